//! Warnings about services.
//!
//! Source: `pkg/api/service/warnings.go` and `serviceStatusStrategy` in `pkg/registry/core/service/strategy.go`.

use listwatch_schema::Path;
use listwatch_validation::{Object, child, items, metadata, text, texts};

use crate::Warnings;
use crate::addresses::{add_cidr, add_ip};
use crate::networking::add_balancer_ips;

const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";

/// Warnings of services (`GetWarningsForService`).
pub fn of_service(service: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    if child(metadata(service), "annotations").contains_key(TOPOLOGY_HINTS) {
        warnings.add(format_args!("annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"));
    }
    let (spec, at) = (child(service, "spec"), Path::root("spec"));
    let (cluster_ip, kind) = (text(spec, "clusterIP"), text(spec, "type"));
    if !matches!(cluster_ip, "" | "None") {
        add_each_ip(spec, "clusterIPs", &at, warnings);
    }
    let has_external_ips = !items(spec, "externalIPs").is_empty();
    let is_headless = kind == "ClusterIP" && cluster_ip == "None";
    let balancer_ip = text(spec, "loadBalancerIP");
    if is_headless {
        if !balancer_ip.is_empty() {
            warnings.add(format_args!("spec.loadBalancerIP is ignored for headless services"));
        }
        if has_external_ips {
            warnings.add(format_args!("spec.externalIPs is ignored for headless services"));
        }
        if text(spec, "sessionAffinity") != "None" {
            warnings.add(format_args!("spec.SessionAffinity is ignored for headless services"));
        }
    }
    add_each_ip(spec, "externalIPs", &at, warnings);
    if has_external_ips && !is_headless && kind != "ExternalName" {
        warnings.add(format_args!("spec.externalIPs is deprecated and may no longer be implemented in some clusters"));
    }
    if !balancer_ip.is_empty() {
        add_ip(balancer_ip, &at.child("loadBalancerIP"), warnings);
    }
    let ranges_at = at.child("loadBalancerSourceRanges");
    for (index, range) in texts(spec, "loadBalancerSourceRanges").enumerate() {
        add_cidr(range, &ranges_at.index(index), warnings);
    }
    if kind == "ExternalName" && has_external_ips {
        warnings.add(format_args!(r#"spec.externalIPs is ignored when spec.type is "ExternalName""#));
    }
    if kind != "ExternalName" && !text(spec, "externalName").is_empty() {
        warnings.add(format_args!(r#"spec.externalName is ignored when spec.type is not "ExternalName""#));
    }
    if text(spec, "trafficDistribution") == "PreferClose" {
        warnings.add(format_args!(r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#));
    }
}

fn add_each_ip(spec: &Object, name: &str, at: &Path<'_>, warnings: &mut Warnings) {
    let at = at.child(name);
    for (index, ip) in texts(spec, name).enumerate() {
        add_ip(ip, &at.index(index), warnings);
    }
}

/// Warnings of the status of services.
pub fn of_service_status(service: &Object, warnings: &mut Warnings) {
    add_balancer_ips(service, warnings);
}
