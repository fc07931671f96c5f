//! Services and what leads to them.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use listwatch_meta::FieldError;
use serde_json::Value;

use super::Rule::{Below, Check, Each, Labels, Name, OneOf, Required, Unique};
use super::{Errors, Object, Rules, child, given, items, named, number, objects, port_name, quoted, text, within};
use crate::registry::NameRule;
use crate::write::services::PORT_TAKEN;

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

pub(super) const SERVICE: Rules = &[Below(
    "spec",
    &[
        Check(service_ports),
        Each("ports", &[Check(service_port), OneOf("protocol", PROTOCOLS)]),
        Unique("ports", "name"),
        Check(same_port_twice),
        Labels("selector"),
        OneOf("sessionAffinity", &["ClientIP", "None"]),
        OneOf("type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]),
        Check(external_name),
        Check(external_addresses),
        OneOf("externalTrafficPolicy", &["Cluster", "Local"]),
        OneOf("internalTrafficPolicy", &["Cluster", "Local"]),
    ],
)];
/// A service that changes its type may still say what its former one was about: that is dropped.
pub(super) const NEW_SERVICE: Rules = &[Below(
    "spec",
    &[Check(no_node_ports), Check(new_node_port_twice), Check(traffic_policy), Check(only_of_balancers)],
)];
pub(super) const CHANGED_SERVICE: Rules = &[Below("spec", &[Check(node_port_twice)])];

pub(super) const INGRESS: Rules = &[Below(
    "spec",
    &[
        Check(leads_somewhere),
        Name("ingressClassName", NameRule::Subdomain),
        Check(|spec, at, errors| backend(spec, "defaultBackend", at, errors)),
        Each("tls", &[Check(tls_hosts)]),
        Each("rules", &[Check(rule_host), Check(rule_paths)]),
    ],
)];
pub(super) const INGRESS_CLASS: Rules = &[Below("spec", &[Required("controller", "")])];

pub(super) const NETWORK_POLICY: Rules = &[Below(
    "spec",
    &[
        Check(|spec, at, errors| super::selector(spec, "podSelector", at, errors)),
        Each("ingress", &[Each("ports", POLICY_PORT), Each("from", PEER)]),
        Each("egress", &[Each("ports", POLICY_PORT), Each("to", PEER)]),
        Check(policy_types),
    ],
)];
const POLICY_PORT: Rules = &[OneOf("protocol", &["TCP", "UDP", "SCTP"]), Check(policy_port)];
const PEER: Rules = &[Check(peer)];

pub(super) const ENDPOINT_SLICE: Rules = &[
    Required("addressType", ""),
    OneOf("addressType", &["FQDN", "IPv4", "IPv6"]),
    Check(slice_ports),
    Each("ports", &[OneOf("protocol", PROTOCOLS)]),
    Check(slice_addresses),
];

/// Needs ports unless it has no address of its own to serve them at.
fn service_ports(spec: &Object, at: &str, errors: &mut Errors) {
    let ports = items(spec, "ports");
    let headless = text(spec, "clusterIP") == "None" || text(spec, "type") == "ExternalName";
    if ports.is_empty() && !headless {
        errors.push(FieldError::required(format!("{at}ports"), ""));
    }
    if ports.len() > 1 {
        for (position, _) in objects(spec, "ports").filter(|(_, port)| text(port, "name").is_empty()) {
            errors.push(FieldError::required(format!("{at}ports[{position}].name"), ""));
        }
    }
}

fn no_node_ports(spec: &Object, at: &str, errors: &mut Errors) {
    if matches!(text(spec, "type"), "ClusterIP" | "") {
        for (position, port) in objects(spec, "ports") {
            if number(port, "nodePort").is_some_and(|port| port != 0) {
                let why = "may not be used when `type` is 'ClusterIP'";
                errors.push(FieldError::forbidden(format!("{at}ports[{position}].nodePort"), why));
            }
        }
    }
}

fn service_port(port: &Object, at: &str, errors: &mut Errors) {
    named(text(port, "name"), NameRule::Label, &format!("{at}name"), errors);
    within(number(port, "port").unwrap_or(0), (1, 65535), format!("{at}port"), errors);
    match port.get("targetPort") {
        Some(Value::String(name)) => port_name(name, &format!("{at}targetPort"), errors),
        Some(target) => {
            // None is as good as that of the service.
            let same = |target: &i64| *target != 0 || number(port, "port").unwrap_or(0) == 0;
            if let Some(target) = target.as_i64().filter(same) {
                within(target, (1, 65535), format!("{at}targetPort"), errors);
            }
        }
        None => {}
    }
}

fn same_port_twice(spec: &Object, at: &str, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, port) in objects(spec, "ports") {
        let (protocol, number) = (text(port, "protocol"), number(port, "port").unwrap_or(0));
        if !seen.insert((protocol, number)) {
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{protocol:?},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}"
            );
            errors.push(FieldError::duplicate(format!("{at}ports[{position}]"), shown));
        }
    }
}

/// The node ports that a service of a type that has some chose itself, each with its place and its port.
fn chosen_node_ports(spec: &Object) -> impl Iterator<Item = (usize, &Object, i64)> {
    let outside = matches!(text(spec, "type"), "NodePort" | "LoadBalancer");
    objects(spec, "ports").filter_map(move |(position, port)| {
        let chosen = number(port, "nodePort").filter(|chosen| outside && *chosen != 0)?;
        Some((position, port, chosen))
    })
}

fn node_port_twice(spec: &Object, at: &str, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, port, chosen) in chosen_node_ports(spec) {
        if !seen.insert((text(port, "protocol"), chosen)) {
            errors.push(FieldError::duplicate(format!("{at}ports[{position}].nodePort"), chosen));
        }
    }
}

/// In a new service only ports of one number share a node port, each of another protocol; kube-apiserver
/// allocates before it validates, so that what is chosen for another number counts as taken.
fn new_node_port_twice(spec: &Object, at: &str, errors: &mut Errors) {
    let mut seen = HashSet::new();
    let mut holder = HashMap::new();
    for (position, port, chosen) in chosen_node_ports(spec) {
        let (protocol, number) = (text(port, "protocol"), number(port, "port").unwrap_or(0));
        let field = format!("{at}ports[{position}].nodePort");
        if *holder.entry(chosen).or_insert(number) != number {
            errors.push(FieldError::invalid(field, chosen, PORT_TAKEN));
        } else if !seen.insert((protocol, chosen)) {
            errors.push(FieldError::duplicate(field, chosen));
        }
    }
}

fn external_name(spec: &Object, at: &str, errors: &mut Errors) {
    if text(spec, "type") != "ExternalName" {
        return;
    }
    match text(spec, "externalName") {
        "" => errors.push(FieldError::required(format!("{at}externalName"), "")),
        // A dot at the end is fine in a name that is looked up.
        name => named(name.trim_end_matches('.'), NameRule::Subdomain, &format!("{at}externalName"), errors),
    }
}

fn external_addresses(spec: &Object, at: &str, errors: &mut Errors) {
    for (position, address) in items(spec, "externalIPs").iter().enumerate() {
        let (field, address) = (format!("{at}externalIPs[{position}]"), address.as_str().unwrap_or_default());
        match address.parse::<IpAddr>() {
            Err(_) => errors.push(FieldError::invalid(field, quoted(address), NO_ADDRESS)),
            Ok(parsed) if parsed.is_loopback() => {
                let why = "may not be in the loopback range (127.0.0.0/8, ::1/128)";
                errors.push(FieldError::invalid(field, quoted(address), why));
            }
            Ok(parsed) if parsed.is_unspecified() => {
                let why = "may not be unspecified (0.0.0.0 or ::)";
                errors.push(FieldError::invalid(field, quoted(address), why));
            }
            Ok(_) => {}
        }
    }
}

const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

fn traffic_policy(spec: &Object, at: &str, errors: &mut Errors) {
    let policy = text(spec, "externalTrafficPolicy");
    let outside = matches!(text(spec, "type"), "NodePort" | "LoadBalancer") || !items(spec, "externalIPs").is_empty();
    if !policy.is_empty() && !outside {
        let why = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid(format!("{at}externalTrafficPolicy"), quoted(policy), why));
    }
}

fn only_of_balancers(spec: &Object, at: &str, errors: &mut Errors) {
    if text(spec, "type") == "LoadBalancer" {
        return;
    }
    for (field, shown) in
        [("loadBalancerSourceRanges", "LoadBalancerSourceRanges"), ("loadBalancerClass", "loadBalancerClass")]
    {
        if !super::is_empty(spec.get(field)) {
            let why = "may only be used when `type` is 'LoadBalancer'";
            errors.push(FieldError::forbidden(format!("{at}{shown}"), why));
        }
    }
}

fn leads_somewhere(spec: &Object, at: &str, errors: &mut Errors) {
    if items(spec, "rules").is_empty() && given(spec, "defaultBackend").is_none() {
        let why = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(at.trim_end_matches('.'), Value::Null, why));
    }
}

fn backend(holder: &Object, name: &str, at: &str, errors: &mut Errors) {
    let Some(Value::Object(backend)) = given(holder, name) else { return };
    let field = format!("{at}{name}");
    let (service, resource) = (given(backend, "service"), given(backend, "resource"));
    match (service.and_then(Value::as_object), resource.and_then(Value::as_object)) {
        (None, None) => {
            errors.push(FieldError::invalid(field, "\"\"", "resource or service backend is required"));
        }
        (Some(_), Some(_)) => {
            errors.push(FieldError::invalid(field, "\"\"", "cannot set both resource and service backends"));
        }
        (None, Some(resource)) => {
            for member in ["kind", "name"] {
                if text(resource, member).is_empty() {
                    errors.push(FieldError::required(format!("{field}.resource.{member}"), ""));
                }
            }
        }
        (Some(service), None) => {
            match text(service, "name") {
                "" => errors.push(FieldError::required(format!("{field}.service.name"), "")),
                name => named(name, NameRule::Rfc1035Label, &format!("{field}.service.name"), errors),
            }
            let port = child(service, "port");
            let (name, number) = (text(port, "name"), number(port, "number").unwrap_or(0));
            match (name, number) {
                ("", 0) => errors.push(FieldError::required(field, "port name or number is required")),
                ("", number) => within(number, (1, 65535), format!("{field}.service.port.number"), errors),
                (name, 0) => port_name(name, &format!("{field}.service.port.name"), errors),
                _ => errors.push(FieldError::invalid(field, "\"\"", "cannot set both port name & port number")),
            }
        }
    }
}

fn host(host: &str, field: &str, errors: &mut Errors) {
    match host.strip_prefix("*.") {
        Some(rest) => named(rest, NameRule::Subdomain, field, errors),
        None => named(host, NameRule::Subdomain, field, errors),
    }
}

fn tls_hosts(tls: &Object, at: &str, errors: &mut Errors) {
    for (position, name) in items(tls, "hosts").iter().enumerate() {
        host(name.as_str().unwrap_or_default(), &format!("{at}hosts[{position}]"), errors);
    }
}

fn rule_host(rule: &Object, at: &str, errors: &mut Errors) {
    let name = text(rule, "host");
    if name.parse::<IpAddr>().is_ok() {
        let why = "must be a DNS name, not an IP address";
        errors.push(FieldError::invalid(format!("{at}host"), quoted(name), why));
    } else {
        host(name, &format!("{at}host"), errors);
    }
}

fn rule_paths(rule: &Object, at: &str, errors: &mut Errors) {
    let Some(Value::Object(http)) = given(rule, "http") else { return };
    if items(http, "paths").is_empty() {
        errors.push(FieldError::required(format!("{at}http.paths"), ""));
    }
    for (position, path) in objects(http, "paths") {
        let at = format!("{at}http.paths[{position}].");
        let given_path = text(path, "path");
        let mut wrong = |why: &str| errors.push(FieldError::invalid(format!("{at}path"), quoted(given_path), why));
        match text(path, "pathType") {
            "Exact" | "Prefix" => {
                if !given_path.starts_with('/') {
                    wrong("must be an absolute path");
                }
                for part in ["//", "/./", "/../", "%2f", "%2F"] {
                    if given_path.contains(part) {
                        wrong(&format!("must not contain '{part}'"));
                    }
                }
                for end in ["/..", "/."] {
                    if given_path.ends_with(end) {
                        wrong(&format!("cannot end with '{end}'"));
                    }
                }
            }
            "ImplementationSpecific" if !given_path.is_empty() && !given_path.starts_with('/') => {
                wrong("must be an absolute path");
            }
            "ImplementationSpecific" => {}
            "" => errors.push(FieldError::required(format!("{at}pathType"), "pathType must be specified")),
            other => {
                let supported = ["Exact", "ImplementationSpecific", "Prefix"];
                errors.push(FieldError::not_supported(format!("{at}pathType"), other, &supported));
            }
        }
        backend(path, "backend", &at, errors);
    }
}

fn policy_port(port: &Object, at: &str, errors: &mut Errors) {
    match port.get("port") {
        Some(Value::String(name)) => port_name(name, &format!("{at}port"), errors),
        Some(first) => {
            let first = first.as_i64().unwrap_or(0);
            within(first, (1, 65535), format!("{at}port"), errors);
            if let Some(last) = number(port, "endPort").filter(|last| *last < first) {
                // The port is what is shown.
                let why = "must be greater than or equal to `port`";
                errors.push(FieldError::invalid(format!("{at}endPort"), last.max(first), why));
            }
        }
        None => {}
    }
}

fn peer(peer: &Object, at: &str, errors: &mut Errors) {
    let field = at.trim_end_matches('.');
    let selectors = ["podSelector", "namespaceSelector"].into_iter().filter(|name| given(peer, name).is_some()).count();
    for name in ["podSelector", "namespaceSelector"] {
        super::selector(peer, name, at, errors);
    }
    match given(peer, "ipBlock").and_then(Value::as_object) {
        None if selectors == 0 => errors.push(FieldError::required(field, "must specify a peer")),
        None => {}
        Some(block) => {
            let range = text(block, "cidr");
            if range.is_empty() {
                errors.push(FieldError::required(format!("{at}ipBlock.cidr"), ""));
            } else if !is_range(range) {
                let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                errors.push(FieldError::invalid(format!("{at}ipBlock.cidr"), quoted(range), why));
            }
            if selectors > 0 {
                errors.push(FieldError::forbidden(field, "may not specify both ipBlock and another peer"));
            }
        }
    }
}

fn is_range(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let (Ok(address), Ok(bits)) = (address.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    bits <= if address.is_ipv4() { 32 } else { 128 }
}

fn policy_types(spec: &Object, at: &str, errors: &mut Errors) {
    for (position, kind) in items(spec, "policyTypes").iter().enumerate() {
        let kind = kind.as_str().unwrap_or_default();
        if !matches!(kind, "Ingress" | "Egress") {
            let field = format!("{at}policyTypes[{position}]");
            errors.push(FieldError::not_supported(field, kind, &["Ingress", "Egress"]));
        }
    }
}

fn slice_ports(slice: &Object, at: &str, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, port) in objects(slice, "ports") {
        let name = text(port, "name");
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}ports[{position}].name"), quoted(name)));
        }
        named(name, NameRule::Label, &format!("{at}ports[{position}].name"), errors);
    }
}

fn slice_addresses(slice: &Object, at: &str, errors: &mut Errors) {
    let kind = text(slice, "addressType");
    for (position, endpoint) in objects(slice, "endpoints") {
        let field = format!("{at}endpoints[{position}].addresses");
        let addresses = items(endpoint, "addresses");
        if addresses.is_empty() {
            errors.push(FieldError::required(&field, "must contain at least 1 address"));
        }
        for (position, address) in addresses.iter().enumerate() {
            let (field, address) = (format!("{field}[{position}]"), address.as_str().unwrap_or_default());
            let parsed = address.parse::<IpAddr>().ok();
            match (kind, parsed) {
                ("IPv4" | "IPv6", None) => errors.push(FieldError::invalid(field, quoted(address), NO_ADDRESS)),
                ("IPv4", Some(parsed)) if !parsed.is_ipv4() => {
                    errors.push(FieldError::invalid(field, quoted(address), "must be an IPv4 address"));
                }
                ("IPv6", Some(parsed)) if !parsed.is_ipv6() => {
                    errors.push(FieldError::invalid(field, quoted(address), "must be an IPv6 address"));
                }
                ("FQDN", _) => named(address, NameRule::Subdomain, &field, errors),
                _ => {}
            }
        }
    }
}
