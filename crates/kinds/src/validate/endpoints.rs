//! What Endpoints and EndpointSlices demand (`ValidateEndpoints` of `pkg/apis/core/validation`, and
//! `pkg/apis/discovery/validation`, Kubernetes v1.36).

use std::collections::HashSet;

use listwatch_schema::Path;
use serde_json::Value;

use listwatch_validation::formats::{
    self, IMMUTABLE, endpoint_ip, is_full, is_ipv4, is_ipv6, label, label_value, legacy_ip, port_number,
    qualified_name, same, strict_ip, subdomain,
};
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Endpoints of one slice.
const ENDPOINTS_MAX: usize = 1_000;
/// Addresses of one endpoint.
const ADDRESSES_MAX: usize = 100;
/// Ports of one slice.
const PORTS_MAX: usize = 20_000;
/// Zones, and nodes, that one endpoint is meant for.
const HINTS_MAX: usize = 8;

// Endpoints.

pub(crate) fn endpoints(endpoints: &Object, old: Option<&Object>, errors: &mut Errors) {
    // What an older server took is not held against an update that leaves it.
    if old.is_some_and(|old| same(endpoints.get("subsets"), old.get("subsets"))) {
        return;
    }
    let subsets_at = Path::root("subsets");
    for (index, subset) in objects(endpoints, "subsets") {
        if is_full(errors) {
            return;
        }
        let at = subsets_at.index(index);
        if items(subset, "addresses").is_empty() && items(subset, "notReadyAddresses").is_empty() {
            errors.required(&at, "must specify `addresses` or `notReadyAddresses`");
        }
        for list in ["addresses", "notReadyAddresses"] {
            let list_at = at.child(list);
            for (index, address) in objects(subset, list) {
                endpoint_address(address, &list_at.index(index), errors);
            }
        }
        let ports_at = at.child("ports");
        let several = items(subset, "ports").len() > 1;
        for (index, port) in objects(subset, "ports") {
            let at = ports_at.index(index);
            match text(port, "name") {
                "" if several => errors.required(&at.child("name"), ""),
                "" => {}
                name => label(name, &at.child("name"), errors),
            }
            port_number(number(port, "port").unwrap_or(0), &at.child("port"), errors);
            protocol(port, &at, errors);
            app_protocol(port, &at, errors);
        }
    }
}

fn endpoint_address(address: &Object, at: &Path<'_>, errors: &mut Errors) {
    let (ip, ip_at) = (text(address, "ip"), at.child("ip"));
    legacy_ip(ip, &ip_at, errors);
    if !text(address, "hostname").is_empty() {
        label(text(address, "hostname"), &at.child("hostname"), errors);
    }
    if given(address, "nodeName").is_some() {
        subdomain(text(address, "nodeName"), &at.child("nodeName"), errors);
    }
    endpoint_ip(ip, &ip_at, errors);
}

/// The protocol of a port, which defaulting has set.
pub(crate) fn protocol(port: &Object, at: &Path<'_>, errors: &mut Errors) {
    match text(port, "protocol") {
        "" => errors.required(&at.child("protocol"), ""),
        protocol if PROTOCOLS.contains(&protocol) => {}
        other => errors.not_supported(&at.child("protocol"), other, &PROTOCOLS),
    }
}

pub(crate) fn app_protocol(port: &Object, at: &Path<'_>, errors: &mut Errors) {
    if given(port, "appProtocol").is_some() {
        qualified_name(text(port, "appProtocol"), &at.child("appProtocol"), errors);
    }
}

// EndpointSlice.

/// A slice has no topology of its own any more: what is written under its old name is dropped, unless the
/// endpoints stay as they are (`dropTopologyOnV1`).
pub(crate) fn drop_topology(slice: &mut Object, old: Option<&Object>) {
    const HOST: &str = "kubernetes.io/hostname";
    const TOPOLOGY: &str = "deprecatedTopology";
    let has_any = objects(slice, "endpoints").any(|(_, endpoint)| endpoint.contains_key(TOPOLOGY));
    if !has_any || old.is_some_and(|old| same(slice.get("endpoints"), old.get("endpoints"))) {
        return;
    }
    let host = |endpoint: &Object| text(child(endpoint, TOPOLOGY), HOST).to_owned();
    let known: HashSet<String> =
        old.map(|old| objects(old, "endpoints").map(|(_, endpoint)| host(endpoint)).collect()).unwrap_or_default();
    let Some(Value::Array(endpoints)) = slice.get_mut("endpoints") else { return };
    for endpoint in endpoints.iter_mut().filter_map(Value::as_object_mut) {
        let host = host(endpoint);
        let is_node = listwatch_meta::selector::validate_dns_subdomain(&host).is_ok();
        if given(endpoint, "nodeName").is_none() && known.contains(&host) && is_node {
            endpoint.insert("nodeName".to_owned(), Value::String(host));
        }
        endpoint.shift_remove(TOPOLOGY);
    }
}

pub(crate) fn endpoint_slice(slice: &Object, old: Option<&Object>, errors: &mut Errors) {
    let kind = text(slice, "addressType");
    let kind_at = Path::root("addressType");
    match kind {
        "" => errors.required(&kind_at, ""),
        "FQDN" | "IPv4" | "IPv6" => {}
        other => errors.not_supported(&kind_at, other, &["FQDN", "IPv4", "IPv6"]),
    }
    slice_ports(slice, errors);
    if old.is_none_or(|old| !same(slice.get("endpoints"), old.get("endpoints"))) {
        slice_endpoints(slice, kind, errors);
    }
    if old.is_some_and(|old| text(old, "addressType") != kind) {
        errors.invalid(&kind_at, kind, IMMUTABLE);
    }
}

fn slice_ports(slice: &Object, errors: &mut Errors) {
    let ports_at = Path::root("ports");
    let count = items(slice, "ports").len();
    if count > PORTS_MAX {
        return errors.too_many(&ports_at, count, PORTS_MAX);
    }
    let mut names = HashSet::new();
    for (index, port) in objects(slice, "ports") {
        let at = ports_at.index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            label(name, &at.child("name"), errors);
        }
        if !names.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        protocol(port, &at, errors);
        app_protocol(port, &at, errors);
    }
}

fn slice_endpoints(slice: &Object, kind: &str, errors: &mut Errors) {
    let endpoints_at = Path::root("endpoints");
    let count = items(slice, "endpoints").len();
    if count > ENDPOINTS_MAX {
        return errors.too_many(&endpoints_at, count, ENDPOINTS_MAX);
    }
    for (index, endpoint) in objects(slice, "endpoints") {
        let at = endpoints_at.index(index);
        let addresses_at = at.child("addresses");
        let addresses = items(endpoint, "addresses");
        if addresses.is_empty() {
            errors.required(&addresses_at, "must contain at least 1 address");
        } else if addresses.len() > ADDRESSES_MAX {
            errors.too_many(&addresses_at, addresses.len(), ADDRESSES_MAX);
        }
        for (index, address) in addresses.iter().enumerate() {
            if is_full(errors) {
                return;
            }
            let (address, at) = (address.as_str().unwrap_or_default(), addresses_at.index(index));
            match kind {
                "IPv4" if legacy_ip(address, &at, errors) => {
                    if !is_ipv4(address) {
                        errors.invalid(&addresses_at, address, "must be an IPv4 address");
                    }
                    endpoint_ip(address, &at, errors);
                }
                "IPv6" if strict_ip(address, &at, errors) => {
                    if !is_ipv6(address) {
                        errors.invalid(&addresses_at, address, "must be an IPv6 address");
                    }
                    endpoint_ip(address, &at, errors);
                }
                "FQDN" => formats::domain_name(address, &at, errors),
                _ => {}
            }
        }
        if given(endpoint, "nodeName").is_some() {
            subdomain(text(endpoint, "nodeName"), &at.child("nodeName"), errors);
        }
        formats::labels(endpoint, "deprecatedTopology", &at.child("deprecatedTopology"), errors);
        if given(endpoint, "hostname").is_some() {
            label(text(endpoint, "hostname"), &at.child("hostname"), errors);
        }
        if let Some(Value::Object(hints)) = given(endpoint, "hints") {
            slice_hints(hints, &at.child("hints"), errors);
        }
    }
}

fn slice_hints(hints: &Object, at: &Path<'_>, errors: &mut Errors) {
    type Form = fn(&str, &Path<'_>, &mut Errors);
    for (list, form) in [("forZones", label_value as Form), ("forNodes", subdomain)] {
        let list_at = at.child(list);
        let count = items(hints, list).len();
        if count > HINTS_MAX {
            return errors.too_many(&list_at, count, HINTS_MAX);
        }
        let mut names = HashSet::new();
        for (index, hint) in objects(hints, list) {
            let (name, item_at) = (text(hint, "name"), list_at.index(index));
            let name_at = item_at.child("name");
            if !names.insert(name) {
                errors.duplicate(&name_at, name);
            }
            form(name, &name_at, errors);
        }
    }
}
