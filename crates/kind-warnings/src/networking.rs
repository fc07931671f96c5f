//! Warnings about Ingresses and NetworkPolicies.
//!
//! Source: `pkg/registry/networking/ingress/strategy.go` and `pkg/registry/networking/networkpolicy/strategy.go`.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::{Object, child, given, metadata, objects, text, texts};

use crate::Warnings;
use crate::addresses::{add_cidr, add_ip};

const INGRESS_CLASS: &str = "kubernetes.io/ingress.class";

/// Warnings of new Ingresses. Updates have no warnings.
pub fn of_ingress(ingress: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    if old.is_none()
        && child(metadata(ingress), "annotations").contains_key(INGRESS_CLASS)
        && given(child(ingress, "spec"), "ingressClassName").is_none()
    {
        warnings.add(format_args!(
            "annotation \"{INGRESS_CLASS}\" is deprecated, please use 'spec.ingressClassName' instead"
        ));
    }
}

/// Warns of the IP addresses of the load balancer in the status of a Service or an Ingress.
pub(crate) fn add_balancer_ips(object: &Object, warnings: &mut Warnings) {
    let at = Path::root("status");
    let at = at.child("loadBalancer");
    let at = at.child("ingress");
    for (index, point) in objects(child(child(object, "status"), "loadBalancer"), "ingress") {
        let ip = text(point, "ip");
        if !ip.is_empty() {
            add_ip(ip, &at.index(index), warnings);
        }
    }
}

/// Warnings of the status of Ingresses.
pub fn of_ingress_status(ingress: &Object, warnings: &mut Warnings) {
    add_balancer_ips(ingress, warnings);
}

/// Warnings of NetworkPolicies (`networkPolicyWarnings`).
pub fn of_network_policy(policy: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    let (spec, at) = (child(policy, "spec"), Path::root("spec"));
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        let at = at.child(direction);
        for (index, rule) in objects(spec, direction) {
            let at = at.index(index);
            let at = at.child(peers);
            for (index, peer) in objects(rule, peers) {
                let Some(Value::Object(block)) = given(peer, "ipBlock") else { continue };
                let at = at.index(index);
                let at = at.child("ipBlock");
                add_cidr(text(block, "cidr"), &at.child("cidr"), warnings);
                let at = at.child("except");
                for (index, except) in texts(block, "except").enumerate() {
                    add_cidr(except, &at.index(index), warnings);
                }
            }
        }
    }
}
