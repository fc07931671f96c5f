//! Warnings about Endpoints and EndpointSlices. The controllers of Kubernetes write canonical addresses, so their objects
//! are not checked.
//!
//! Source: `pkg/registry/core/endpoint/strategy.go` and `pkg/registry/discovery/endpointslice/strategy.go`.

use listwatch_schema::Path;
use listwatch_validation::{Object, child, metadata, objects, text, texts};

use crate::Warnings;
use crate::addresses::add_ip;

fn manager<'a>(object: &'a Object, label: &str) -> &'a str {
    text(child(metadata(object), "labels"), label)
}

/// Warnings of Endpoints (`endpointsWarnings`).
pub fn of_endpoints(endpoints: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    if manager(endpoints, "endpoints.kubernetes.io/managed-by") == "endpoint-controller" {
        return;
    }
    let at = Path::root("subsets");
    for (index, subset) in objects(endpoints, "subsets") {
        let at = at.index(index);
        for list in ["addresses", "notReadyAddresses"] {
            let at = at.child(list);
            for (index, address) in objects(subset, list) {
                add_ip(text(address, "ip"), &at.index(index).child("ip"), warnings);
            }
        }
    }
}

/// Warnings of EndpointSlices (`warnOnDeprecatedAddressType`, `warnOnBadIPs`).
pub fn of_endpoint_slice(slice: &Object, old: Option<&Object>, warnings: &mut Warnings) {
    if old.is_none() && text(slice, "addressType") == "FQDN" {
        warnings.add(format_args!("spec.addressType: FQDN endpoints are deprecated"));
    }
    let manager = manager(slice, "endpointslice.kubernetes.io/managed-by");
    if matches!(manager, "endpointslice-controller.k8s.io" | "endpointslicemirroring-controller.k8s.io") {
        return;
    }
    let at = Path::root("endpoints");
    for (index, endpoint) in objects(slice, "endpoints") {
        let at = at.index(index);
        let at = at.child("addresses");
        for (index, address) in texts(endpoint, "addresses").enumerate() {
            add_ip(address, &at.index(index), warnings);
        }
    }
}
