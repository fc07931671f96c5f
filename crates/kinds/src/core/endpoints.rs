//! Endpoints (`v1`): the addresses behind a Service, deprecated in favor of EndpointSlice.
//!
//! Source: `pkg/registry/core/endpoint/strategy.go`, `ValidateEndpoints` in `pkg/apis/core/validation`.

use listwatch_schema::Path;
use listwatch_validation::formats::{endpoint_ip, is_full, label, legacy_ip, port_number, same, subdomain};
use listwatch_validation::{Errors, Object, given, items, number, objects, text};

use crate::Kind;
use crate::core::ports::{validate_app_protocol, validate_protocol};
use crate::defaults::Default::{Each, Text};
use crate::defaults::Defaults;
use listwatch_printers::text::{NONE, more_than_shown};
use listwatch_printers::{AGE, Column, NAME};
use listwatch_printers::{Printed, Printer};

pub(crate) static KIND: Kind = Kind {
    short_names: &["ep"],
    storage_prefix: "services/endpoints",
    create_on_update: true,
    deprecation: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    defaults: &DEFAULTS,
    validate,
    warnings: listwatch_kind_warnings::discovery::of_endpoints,
    printer: &PRINTER,
    ..Kind::namespaced("", "v1", "endpoints", "Endpoints")
};

static PORT_DEFAULTS: Defaults = Defaults(&[("protocol", Text("TCP"))]);
static SUBSET_DEFAULTS: Defaults = Defaults(&[("ports", Each(&PORT_DEFAULTS))]);

static DEFAULTS: Defaults = Defaults(&[("subsets", Each(&SUBSET_DEFAULTS))]);

fn validate(endpoints: &Object, old: Option<&Object>, errors: &mut Errors) {
    // An update can keep subsets that an earlier release accepted.
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
                validate_address(address, &list_at.index(index), errors);
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
            validate_protocol(port, &at, errors);
            validate_app_protocol(port, &at, errors);
        }
    }
}

fn validate_address(address: &Object, at: &Path<'_>, errors: &mut Errors) {
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

/// The largest number of addresses with ports in one cell.
const SHOWN_MAX: usize = 3;

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("Endpoints", "Addresses and ports that serve."), AGE],
    cells: |endpoints| vec![endpoints.name().into(), endpoint_list(endpoints).into(), endpoints.age().into()],
};

/// The addresses of all subsets, each with all ports of its subset. Only the first addresses are formatted, because an
/// object may have millions of combinations (`formatEndpoints`).
fn endpoint_list(endpoints: Printed<'_>) -> String {
    let subsets = endpoints.get("subsets").items();
    if subsets.is_empty() {
        return NONE.to_owned();
    }
    let mut list = Vec::new();
    let mut count = 0_usize;
    for subset in subsets {
        let (addresses, ports) = (subset.get("addresses").items(), subset.get("ports").items());
        // A headless service may have no ports.
        count = count.saturating_add(addresses.len().saturating_mul(ports.len().max(1)));
        let ports: Vec<Option<i64>> = match ports.is_empty() {
            true => vec![None],
            false => ports.into_iter().take(SHOWN_MAX).map(|port| Some(port.get("port").int().unwrap_or(0))).collect(),
        };
        for port in ports {
            for address in addresses.iter().take(SHOWN_MAX.saturating_sub(list.len())) {
                let ip = address.get("ip").string();
                list.push(match port {
                    None => ip,
                    Some(port) if ip.contains(':') => format!("[{ip}]:{port}"),
                    Some(port) => format!("{ip}:{port}"),
                });
            }
        }
    }
    more_than_shown(&list, count, ",")
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;
    use listwatch_printers::{Json, RowClock};

    fn cell(subsets: listwatch_json::Value) -> String {
        let object = json!({"metadata": {"name": "e"}, "subsets": subsets}).to_string();
        let clock = RowClock::new(time::OffsetDateTime::UNIX_EPOCH);
        endpoint_list(Printed::new(Json::new(object.as_bytes()), &clock))
    }

    #[test]
    fn endpoints_cell_lists_the_first_addresses_and_counts_the_others() {
        let subset = |addresses: &[&str], ports: &[u16]| {
            let addresses: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
            let ports: Vec<_> = ports.iter().map(|port| json!({"port": port})).collect();
            json!({"addresses": addresses, "ports": ports})
        };
        assert_eq!(cell(json!([])), "<none>");
        assert_eq!(cell(json!([subset(&[], &[80])])), "");
        assert_eq!(cell(json!([subset(&["10.0.0.1", "fd00::1"], &[])])), "10.0.0.1,fd00::1");
        assert_eq!(cell(json!([subset(&["10.0.0.1", "fd00::1"], &[80])])), "10.0.0.1:80,[fd00::1]:80");
        let two = subset(&["10.0.0.1", "10.0.0.2"], &[80, 443]);
        assert_eq!(cell(json!([two, subset(&["10.0.0.3"], &[])])), "10.0.0.1:80,10.0.0.2:80,10.0.0.1:443 + 2 more...");
    }

    #[test]
    fn endpoints_cell_of_400_million_combinations_prints_only_three() {
        let addresses = vec![json!({"ip": "10.0.0.1"}); 20_000];
        let ports: Vec<_> = (0..20_000).map(|port| json!({"port": port})).collect();
        let text = cell(json!([{"addresses": addresses, "ports": ports}]));
        assert_eq!(text, "10.0.0.1:0,10.0.0.1:0,10.0.0.1:0 + 399999997 more...");
    }
}
