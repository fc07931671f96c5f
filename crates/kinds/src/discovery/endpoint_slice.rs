//! EndpointSlice (`discovery.k8s.io/v1`): a part of the addresses behind a Service.
//!
//! Source: `pkg/registry/discovery/endpointslice/strategy.go`, `pkg/apis/discovery/validation`.

use std::collections::HashSet;

use listwatch_json::{Value, json};
use listwatch_schema::Path;
use listwatch_validation::field_rules::required_one_of;
use listwatch_validation::formats::{
    self, IMMUTABLE, endpoint_ip, is_full, is_ipv4, is_ipv6, label, label_value, legacy_ip, same, strict_ip, subdomain,
};
use listwatch_validation::{Errors, Object, child, given, items, objects, text};

use crate::Kind;
use crate::core::ports::{validate_app_protocol, validate_protocol};
use crate::defaults::Default::{Each, Empty, From, Text};
use crate::defaults::{Defaults, NULL};
use listwatch_printers::Printer;
use listwatch_printers::text::{UNSET, with_more};
use listwatch_printers::{AGE, Column, Json, NAME};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    generation_counts_labels: true,
    defaults: &DEFAULTS,
    prepare_for_create: |slice, _| drop_topology(slice, None),
    prepare_for_update: |slice, old, _| drop_topology(slice, Some(old)),
    validate,
    warnings: listwatch_kind_warnings::discovery::of_endpoint_slice,
    printer: &PRINTER,
    ..Kind::namespaced("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
};

/// The largest number of endpoints of one slice.
const ENDPOINTS_MAX: usize = 1_000;

/// The largest number of addresses of one endpoint.
const ADDRESSES_MAX: usize = 100;

/// The largest number of ports of one slice.
const PORTS_MAX: usize = 20_000;

/// The largest number of zones, and of nodes, in the hints of one endpoint.
const HINTS_MAX: usize = 8;

static PORT_DEFAULTS: Defaults =
    Defaults(&[("name", From(|port| (!port.contains_key("name")).then(|| json!("")))), ("protocol", Text("TCP"))]);

static ENDPOINT_DEFAULTS: Defaults = Defaults(&[("conditions", Empty)]);

static DEFAULTS: Defaults = Defaults(&[
    ("endpoints", NULL),
    ("endpoints", Each(&ENDPOINT_DEFAULTS)),
    ("ports", Each(&PORT_DEFAULTS)),
    ("ports", NULL),
]);

/// Removes `deprecatedTopology` unless the endpoints are unchanged (`dropTopologyOnV1`). An endpoint without `nodeName`
/// gets the host name of its topology, if the stored object contains that host name.
fn drop_topology(slice: &mut Object, old: Option<&Object>) {
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
            endpoint.insert("nodeName", Value::from(host));
        }
        endpoint.shift_remove(TOPOLOGY);
    }
}

fn validate(slice: &Object, old: Option<&Object>, errors: &mut Errors) {
    let kind = text(slice, "addressType");
    required_one_of(slice, "addressType", &["FQDN", "IPv4", "IPv6"], &Path::NIL, errors);
    validate_ports(slice, errors);
    if old.is_none_or(|old| !same(slice.get("endpoints"), old.get("endpoints"))) {
        validate_endpoints(slice, kind, errors);
    }
    if old.is_some_and(|old| text(old, "addressType") != kind) {
        errors.invalid(&Path::root("addressType"), kind, IMMUTABLE);
    }
}

fn validate_ports(slice: &Object, errors: &mut Errors) {
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
        validate_protocol(port, &at, errors);
        validate_app_protocol(port, &at, errors);
    }
}

fn validate_endpoints(slice: &Object, kind: &str, errors: &mut Errors) {
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
            validate_hints(hints, &at.child("hints"), errors);
        }
    }
}

fn validate_hints(hints: &Object, at: &Path<'_>, errors: &mut Errors) {
    type Validate = fn(&str, &Path<'_>, &mut Errors);
    for (list, validate) in [("forZones", label_value as Validate), ("forNodes", subdomain)] {
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
            validate(name, &name_at, errors);
        }
    }
}

/// The largest number of ports, and of addresses, in one cell.
const SHOWN_MAX: usize = 3;

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("AddressType", "What the addresses are."),
        Column::text("Ports", "The ports that serve."),
        Column::text("Endpoints", "The addresses that serve."),
        AGE,
    ],
    cells: |slice| {
        let port = |port: Json<'_>| match (port.get("port").int(), port.get("name")) {
            (Some(number), _) => number.to_string(),
            (None, name) if name.exists() => name.string(),
            _ => "*".to_owned(),
        };
        let ports = slice.get("ports").items().into_iter().map(port).collect();
        let addresses = slice
            .get("endpoints")
            .items()
            .into_iter()
            .flat_map(|endpoint| endpoint.get("addresses").items())
            .map(Json::string)
            .collect();
        vec![
            slice.name().into(),
            slice.get("addressType").string().into(),
            with_more(ports, SHOWN_MAX, ",", UNSET).into(),
            with_more(addresses, SHOWN_MAX, ",", UNSET).into(),
            slice.age().into(),
        ]
    },
};
