//! Service (`v1`): a stable name and IP addresses for a set of pods.
//!
//! Source: `pkg/registry/core/service/strategy.go`, `ValidateService` in `pkg/apis/core/validation`. Upstream
//! allocates node ports and addresses before it validates; this server allocates afterwards. The rules about allocated
//! values and the IP families of the cluster are therefore in the server's write path. [`super::service_update`] runs
//! before validation.

use std::collections::{HashMap, HashSet};

use listwatch_json::{Map, Value, json};
use listwatch_meta::FieldError;
use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{one_of, one_of_if_present, required_one_of};
use listwatch_validation::formats::{
    self, IMMUTABLE, endpoint_ip, is_ipv4, is_ipv6, json as go_json, label, legacy_cidr, legacy_ip, port_name,
    port_number, qualified_name, subdomain,
};
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object, child, given, is_empty, items, number, objects, text, texts};

use crate::core::ports::{validate_app_protocol, validate_protocol};
use crate::core::service_update::{drop_unused_internal_policy, prepare_for_update, set_cluster_ips};
use crate::defaults::Default::{Do, Each, From, In, Text};
use crate::defaults::{Defaults, missing};
use crate::kind::StoredText::{Always, With};
use crate::networking::load_balancer::{addresses_cell, validate_hostname};
use crate::{Field, Kind, PORT_TAKEN, Subresource};
use listwatch_printers::text::{NONE, joined, labels, or};
use listwatch_printers::{AGE, Column, Json, NAME};
use listwatch_printers::{Printed, Printer};

pub(crate) static KIND: Kind = Kind {
    short_names: &["svc"],
    storage_prefix: "services/specs",
    names: NameRule::Label,
    create_on_update: true,
    categories: &["all"],
    fields: &[Field::new("spec.clusterIP"), Field::with_default("spec.type", "ClusterIP")],
    subresources: &[Subresource::Status, Subresource::Proxy { options: "ServiceProxyOptions" }],
    defaults: &DEFAULTS,
    // Only services of the type ExternalName have no cluster IP.
    stored_texts: &[
        Always(r#""type":""#),
        Always(r#""sessionAffinity":""#),
        With(r#""clusterIP":""#, r#""clusterIPs":["#),
        With(r#""clusterIP":""#, r#""ipFamilies":["#),
        With(r#""clusterIP":""#, r#""ipFamilyPolicy":""#),
        With(r#""clusterIP":""#, r#""internalTrafficPolicy":""#),
        With(r#""internalTrafficPolicy":""#, r#""clusterIP":""#),
        With(r#""type":"NodePort""#, r#""externalTrafficPolicy":""#),
        With(r#""type":"LoadBalancer""#, r#""externalTrafficPolicy":""#),
        With(r#""externalIPs":["#, r#""externalTrafficPolicy":""#),
        With(r#""type":"LoadBalancer""#, r#""allocateLoadBalancerNodePorts":"#),
        // An address of a load balancer may have a host name instead, which has no mode.
        With(r#""ingress":[{"ip":""#, r#""ipMode":""#),
    ],
    default_on_read,
    initial_status: || Some(json!({"loadBalancer": {}})),
    prepare_for_create: |service, _| {
        set_cluster_ips(service);
        drop_unused_internal_policy(service);
    },
    prepare_for_update,
    validate,
    validate_status,
    warnings: listwatch_kind_warnings::service::of_service,
    status_warnings: listwatch_kind_warnings::service::of_service_status,
    printer: &PRINTER,
    zero_members: r#""spec":{},"status":{"loadBalancer":{}}"#,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "services", "Service")
};

/// The largest timeout of session affinity, in seconds.
const AFFINITY_SECONDS_MAX: i64 = 86_400;

/// The annotation that the field `loadBalancerSourceRanges` replaced.
const RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

const ONLY_BALANCERS: &str = "may only be used when `type` is 'LoadBalancer'";

static PORT_DEFAULTS: Defaults = Defaults(&[
    ("protocol", Text("TCP")),
    ("targetPort", From(|port| port.get("port").cloned())),
    ("targetPort", Do(default_zero_target)),
]);

/// Sets a target port of 0 to the number of the port.
fn default_zero_target(port: &mut Map) {
    if port.get("targetPort") == Some(&json!(0))
        && let Some(number) = port.get("port").cloned()
    {
        port.insert("targetPort", number);
    }
}

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("ports", Each(&PORT_DEFAULTS)),
    ("type", Text("ClusterIP")),
    ("sessionAffinity", Text("None")),
    ("sessionAffinityConfig", Do(default_session_affinity)),
    ("externalTrafficPolicy", From(|spec| is_externally_accessible(spec).then(|| json!("Cluster")))),
    ("internalTrafficPolicy", From(|spec| (!is_type(spec, "ExternalName")).then(|| json!("Cluster")))),
    ("allocateLoadBalancerNodePorts", From(|spec| is_type(spec, "LoadBalancer").then(|| json!(true)))),
]);

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS)), ("status", Do(default_ip_modes))]);

/// The default of `ipMode` for addresses of a load balancer: `VIP`.
fn default_ip_modes(service: &mut Map) {
    if service.get("spec").and_then(|spec| spec.get("type")) != Some(&json!("LoadBalancer")) {
        return;
    }
    let points =
        service.get_mut("status").and_then(|status| status.pointer_mut("/loadBalancer/ingress")?.as_array_mut());
    for point in points.into_iter().flatten().filter_map(Value::as_object_mut) {
        if !missing(point, "ip") && !point.contains_key("ipMode") {
            point.insert("ipMode", json!("VIP"));
        }
    }
}

pub(super) fn is_type(spec: &Map, name: &str) -> bool {
    spec.get("type").and_then(Value::as_str) == Some(name)
}

/// Sets the cluster IPs and the IP families of a service from a release without them, on a cluster whose first range of
/// addresses is IPv4. Removes the internal traffic policy that some releases set for `ExternalName`
/// (`defaultOnReadService`).
fn default_on_read(service: &mut Object) {
    set_cluster_ips(service);
    let Some(Value::Object(spec)) = service.get_mut("spec") else { return };
    if is_type(spec, "ExternalName") {
        spec.shift_remove("internalTrafficPolicy");
        return;
    }
    if !items(spec, "ipFamilies").is_empty() {
        return;
    }
    let families: Vec<&str> = match text(spec, "clusterIP") {
        "None" if child(spec, "selector").is_empty() => vec!["IPv4", "IPv6"],
        "None" => vec!["IPv4"],
        _ => texts(spec, "clusterIPs").map(|address| if is_ipv6(address) { "IPv6" } else { "IPv4" }).collect(),
    };
    let policy = match families.len() {
        0 => return,
        1 => "SingleStack",
        _ => "RequireDualStack",
    };
    spec.insert("ipFamilies", json!(families));
    spec.insert("ipFamilyPolicy", json!(policy));
}

/// Whether clients outside of the cluster can reach the service (`ExternallyAccessible`).
pub(super) fn is_externally_accessible(spec: &Map) -> bool {
    let external = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    is_type(spec, "NodePort") || is_type(spec, "LoadBalancer") || (is_type(spec, "ClusterIP") && external)
}

/// Applies the default timeout of session affinity, 3 h. Without affinity, removes the configuration.
fn default_session_affinity(spec: &mut Map) {
    match spec.get("sessionAffinity").and_then(Value::as_str) {
        Some("None") => {
            spec.shift_remove("sessionAffinityConfig");
        }
        Some("ClientIP") => {
            let timeout = spec.get("sessionAffinityConfig").and_then(|c| c.pointer("/clientIP/timeoutSeconds"));
            if timeout.is_none_or(Value::is_null) {
                spec.insert("sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
            }
        }
        _ => {}
    }
}

fn validate(service: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(service, "spec");
    let before = old.map(|old| child(old, "spec"));
    let at = Path::root("spec");
    if let Some(before) = before {
        validate_changes(spec, before, &at, errors);
    }
    validate_topology_annotations(service, errors);
    let kind = text(spec, "type");
    let headless = is_headless(spec);
    if items(spec, "ports").is_empty() && !headless && kind != "ExternalName" {
        errors.required(&at.child("ports"), "");
    }
    let addresses_at = at.child("clusterIPs");
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let why = format_args!("may not be set to 'None' for {kind} services");
            errors.invalid(&addresses_at.index(0), "None", why);
        }
        "ExternalName" => {
            for name in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if !is_empty(spec.get(name)) {
                    errors.forbidden(&at.child(name), "may not be set for ExternalName services");
                }
            }
            let name = text(spec, "externalName");
            match name.strip_suffix('.').unwrap_or(name) {
                "" => errors.required(&at.child("externalName"), ""),
                name => subdomain(name, &at.child("externalName"), errors),
            }
        }
        _ => {}
    }
    validate_ports(spec, &at.child("ports"), errors);
    formats::labels(spec, "selector", &at.child("selector"), errors);
    validate_session_affinity(spec, &at, errors);
    if kind != "ExternalName" {
        validate_cluster_ips(spec, before, &at, errors);
    }
    validate_external_ips(spec, before, &at.child("externalIPs"), errors);
    required_one_of(spec, "type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], &at, errors);
    validate_node_ports(spec, before, &at.child("ports"), errors);
    validate_unique_ports(spec, &at.child("ports"), errors);
    validate_source_ranges(service, old, errors);
    validate_load_balancer_fields(spec, &at, errors);
    validate_traffic_policies(spec, &at, errors);
}

fn is_headless(spec: &Object) -> bool {
    matches!(items(spec, "clusterIPs"), [only] if only == "None")
}

fn validate_changes(spec: &Object, before: &Object, at: &Path<'_>, errors: &mut Errors) {
    let is_load_balancer = |spec| text(spec, "type") == "LoadBalancer";
    if is_load_balancer(spec) && is_load_balancer(before) {
        let class = given(spec, "loadBalancerClass");
        if class != given(before, "loadBalancerClass") {
            errors.invalid_value(&at.child("loadBalancerClass"), go_json(class), "may not change once set");
        }
    }
    validate_load_balancer_class(spec, at, errors);
    let checked = |spec| is_load_balancer(spec) && text(spec, "externalTrafficPolicy") == "Local";
    let port = |spec| number(spec, "healthCheckNodePort").unwrap_or(0);
    // An absent port keeps its value.
    if checked(spec) && checked(before) && port(spec) != 0 && port(spec) != port(before) {
        errors.forbidden(&at.child("healthCheckNodePort"), IMMUTABLE);
    }
}

fn validate_topology_annotations(service: &Object, errors: &mut Errors) {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    const MODE: &str = "service.kubernetes.io/topology-mode";
    let annotations = child(child(service, "metadata"), "annotations");
    if let (Some(hints), Some(mode)) = (annotations.get(HINTS), annotations.get(MODE))
        && hints != mode
    {
        let why = format_args!("must match annotations[{HINTS}] when both are specified");
        let field = format!("metadata.annotations[{MODE}]");
        errors.push(FieldError::invalid(field, quote(mode.as_str().unwrap_or_default()), why));
    }
}

fn validate_ports(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let several = items(spec, "ports").len() > 1;
    let mut names = HashSet::new();
    for (index, port) in objects(spec, "ports") {
        let at = at.index(index);
        let name_at = at.child("name");
        match text(port, "name") {
            "" if several => errors.required(&name_at, ""),
            "" => {}
            name => {
                label(name, &name_at, errors);
                if !names.insert(name) {
                    errors.duplicate(&name_at, name);
                }
            }
        }
        let number = number(port, "port").unwrap_or(0);
        port_number(number, &at.child("port"), errors);
        validate_protocol(port, &at, errors);
        let target_at = at.child("targetPort");
        match given(port, "targetPort") {
            Some(Value::String(name)) => port_name(name, &target_at, errors),
            // An absent target port is the port of the service.
            target => {
                let target = target.and_then(Value::as_i64).filter(|target| *target != 0).unwrap_or(number);
                port_number(target, &target_at, errors);
            }
        }
        validate_app_protocol(port, &at, errors);
    }
}

fn validate_session_affinity(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let config_at = at.child("sessionAffinityConfig");
    match text(spec, "sessionAffinity") {
        "" => errors.required(&at.child("sessionAffinity"), ""),
        "ClientIP" => {
            let client_at = config_at.child("clientIP");
            let seconds_at = client_at.child("timeoutSeconds");
            let config = given(spec, "sessionAffinityConfig").and_then(Value::as_object);
            let client = config.and_then(|config| given(config, "clientIP")?.as_object());
            const WHY: &str = "when session affinity type is ClientIP";
            match (config, client, client.and_then(|client| number(client, "timeoutSeconds"))) {
                (None, ..) => errors.required(&config_at, WHY),
                (_, None, _) => errors.required(&client_at, WHY),
                (_, _, None) => errors.required(&seconds_at, WHY),
                (_, _, Some(seconds)) if !(1..=AFFINITY_SECONDS_MAX).contains(&seconds) => {
                    let why = format_args!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
                    errors.invalid_value(&seconds_at, seconds, why);
                }
                _ => {}
            }
        }
        "None" => {
            if given(spec, "sessionAffinityConfig").is_some() {
                errors.forbidden(&config_at, "must not be set when session affinity is None");
            }
        }
        other => errors.not_supported(&at.child("sessionAffinity"), other, &["ClientIP", "None"]),
    }
}

/// Validates the cluster IPs and IP families that the client chose (`ValidateServiceClusterIPsRelatedFields`).
fn validate_cluster_ips(spec: &Object, before: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let (all_at, families_at) = (at.child("clusterIPs"), at.child("ipFamilies"));
    let all = items(spec, "clusterIPs");
    let chosen = text(spec, "clusterIP");
    let texts = || all.iter().map(|address| address.as_str().unwrap_or_default());
    let shown = || go_json(spec.get("clusterIPs"));
    if all.first().is_some_and(|first| *first != chosen) {
        let why = match chosen {
            "" => "must be empty when `clusterIP` is not specified",
            _ => "first value must match `clusterIP`",
        };
        errors.invalid_value(&all_at, shown(), why);
    }
    let mut families = HashSet::new();
    for (index, family) in items(spec, "ipFamilies").iter().enumerate() {
        let (family, at) = (family.as_str().unwrap_or_default(), families_at.index(index));
        if !matches!(family, "IPv4" | "IPv6") {
            errors.not_supported(&at, family, &["IPv4", "IPv6"]);
        }
        if !families.insert(family) {
            errors.duplicate(&at, family);
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    one_of(spec, "ipFamilyPolicy", &policies, at, errors);
    let known: HashSet<&str> =
        before.map(|before| items(before, "clusterIPs").iter().filter_map(Value::as_str).collect()).unwrap_or_default();
    let mut fine = true;
    for (index, address) in texts().enumerate() {
        if index == 0 && address == "None" {
            if all.len() > 1 {
                fine = false;
                errors.invalid_value(&all_at, shown(), "'None' must be the first and only value");
            }
            continue;
        }
        fine &= known.contains(address) || legacy_ip(address, &all_at.index(index), errors);
    }
    if all.len() > 2 {
        errors.invalid_value(&all_at, shown(), "may only hold up to 2 values");
    }
    if !fine {
        return;
    }
    if all.len() > 1 && !(texts().any(is_ipv4) && texts().any(is_ipv6)) {
        errors.invalid_value(&all_at, shown(), "may specify no more than one IP for each IP family");
    }
    if is_headless(spec) {
        return;
    }
    for (index, (address, family)) in texts().zip(items(spec, "ipFamilies")).enumerate() {
        let expected = match family.as_str() {
            Some("IPv4") if is_ipv6(address) => "an IPv4",
            Some("IPv6") if !is_ipv6(address) => "an IPv6",
            _ => continue,
        };
        let why = format_args!("expected {expected} value as indicated by `ipFamilies[{index}]`");
        errors.invalid(&all_at.index(index), address, why);
    }
}

fn validate_external_ips(spec: &Object, before: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let known: HashSet<&str> = before
        .map(|before| items(before, "externalIPs").iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for (index, address) in items(spec, "externalIPs").iter().enumerate() {
        let (address, at) = (address.as_str().unwrap_or_default(), at.index(index));
        if known.contains(address) || legacy_ip(address, &at, errors) {
            endpoint_ip(address, &at, errors);
        }
    }
}

/// Validates the chosen node ports. In a new service, two ports can share a node port only if they have the same number
/// and different protocols. The reason is that upstream allocates node ports before validation.
fn validate_node_ports(spec: &Object, before: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let chosen =
        |spec| objects(spec, "ports").filter_map(|(index, port)| Some((index, port, number(port, "nodePort")?)));
    let outside = |spec| matches!(text(spec, "type"), "NodePort" | "LoadBalancer");
    if text(spec, "type") == "ClusterIP" {
        for (index, ..) in chosen(spec).filter(|(.., port)| *port != 0) {
            let at = at.index(index);
            errors.forbidden(&at.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
    }
    let mut seen = HashSet::new();
    let mut holder = HashMap::new();
    for (index, port, chosen) in chosen(spec).filter(|(.., port)| *port != 0) {
        let number = number(port, "port").unwrap_or(0);
        let item_at = at.index(index);
        let at = item_at.child("nodePort");
        if before.is_none() && outside(spec) && *holder.entry(chosen).or_insert(number) != number {
            errors.invalid_value(&at, chosen, PORT_TAKEN);
        } else if !seen.insert((text(port, "protocol"), chosen)) {
            errors.push(FieldError::duplicate(at, chosen));
        }
    }
}

fn validate_unique_ports(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, port) in objects(spec, "ports") {
        let (protocol, number) = (text(port, "protocol"), number(port, "port").unwrap_or(0));
        if !seen.insert((protocol, number)) {
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{protocol:?},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}"
            );
            errors.push(FieldError::duplicate(at.index(index), shown));
        }
    }
}

fn validate_source_ranges(service: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(service, "spec");
    let balancer = text(spec, "type") == "LoadBalancer";
    let annotation =
        |object| child(child(object, "metadata"), "annotations").get(RANGES_ANNOTATION).and_then(Value::as_str);
    let ranges = items(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() {
        let spec_at = Path::root("spec");
        // Upstream spells the field this way.
        let at = spec_at.child("LoadBalancerSourceRanges");
        if !balancer {
            errors.forbidden(&at, ONLY_BALANCERS);
        }
        let texts = |ranges: &'_ [Value]| -> Vec<String> {
            ranges.iter().map(|range| range.as_str().unwrap_or_default().trim().to_owned()).collect()
        };
        let known: HashSet<String> = old
            .map(|old| texts(items(child(old, "spec"), "loadBalancerSourceRanges")).into_iter().collect())
            .unwrap_or_default();
        for (index, range) in texts(ranges).iter().enumerate().filter(|(_, range)| !known.contains(*range)) {
            legacy_cidr(range, &at.index(index), errors);
        }
    } else if let Some(value) = annotation(service) {
        let metadata_at = Path::root("metadata.annotations");
        let at = metadata_at.key(RANGES_ANNOTATION);
        if !balancer {
            errors.forbidden(&at, ONLY_BALANCERS);
        }
        if old.is_none_or(|old| annotation(old) != Some(value)) && !value.trim().is_empty() {
            for range in value.trim().split(',') {
                legacy_cidr(range.trim(), &at, errors);
            }
        }
    }
}

fn validate_load_balancer_fields(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let ports = given(spec, "allocateLoadBalancerNodePorts");
    if text(spec, "type") != "LoadBalancer" {
        if ports.is_some() {
            errors.forbidden(&at.child("allocateLoadBalancerNodePorts"), ONLY_BALANCERS);
        }
    } else if ports.is_none() {
        errors.push(FieldError::required("allocateLoadBalancerNodePorts", ""));
    }
    validate_load_balancer_class(spec, at, errors);
}

fn validate_load_balancer_class(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(name) = given(spec, "loadBalancerClass").and_then(Value::as_str) else { return };
    let at = at.child("loadBalancerClass");
    if text(spec, "type") == "LoadBalancer" {
        return qualified_name(name, &at, errors);
    }
    errors.forbidden(&at, ONLY_BALANCERS);
}

fn validate_traffic_policies(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    const POLICIES: [&str; 2] = ["Cluster", "Local"];
    let (external, external_at) = (text(spec, "externalTrafficPolicy"), at.child("externalTrafficPolicy"));
    if is_externally_accessible(spec) {
        required_one_of(spec, "externalTrafficPolicy", &POLICIES, at, errors);
    } else if !external.is_empty() {
        errors.invalid(&external_at, external, "may only be set for externally-accessible services");
    }
    let checked = text(spec, "type") == "LoadBalancer" && external == "Local";
    let (port, port_at) = (number(spec, "healthCheckNodePort").unwrap_or(0), at.child("healthCheckNodePort"));
    if !checked && port != 0 {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.invalid_value(&port_at, port, why);
    }
    let has_cluster_ip = matches!(text(spec, "type"), "NodePort" | "LoadBalancer" | "ClusterIP");
    let internal = if has_cluster_ip { required_one_of } else { one_of };
    internal(spec, "internalTrafficPolicy", &POLICIES, at, errors);
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    one_of_if_present(spec, "trafficDistribution", &distributions, at, errors);
}

fn validate_status(service: &Object, old: Option<&Object>, errors: &mut Errors) {
    let balancer = |service| child(child(service, "status"), "loadBalancer");
    let points = objects(balancer(service), "ingress");
    let status_at = Path::root("status");
    let balancer_at = status_at.child("loadBalancer");
    let at = balancer_at.child("ingress");
    if text(child(service, "spec"), "type") != "LoadBalancer" {
        if !items(balancer(service), "ingress").is_empty() {
            errors.forbidden(&at, "may only be used when `spec.type` is 'LoadBalancer'");
        }
        return;
    }
    let known: HashSet<&str> = old
        .map(|old| objects(balancer(old), "ingress").map(|(_, point)| text(point, "ip")).collect())
        .unwrap_or_default();
    for (index, point) in points {
        let at = at.index(index);
        let address = text(point, "ip");
        if !address.is_empty() && !known.contains(address) {
            legacy_ip(address, &at.child("ip"), errors);
        }
        let mode_at = at.child("ipMode");
        match given(point, "ipMode").and_then(Value::as_str) {
            None if address.is_empty() => {}
            None => errors.required(&mode_at, "must be specified when `ip` is set"),
            Some(_) if address.is_empty() => errors.forbidden(&mode_at, "may not be specified when `ip` is not set"),
            Some("VIP" | "Proxy") => {}
            Some(other) => errors.not_supported(&mode_at, other, &["Proxy", "VIP"]),
        }
        validate_hostname(point, &at, errors);
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Type", "How the service is reached."),
        Column::text("Cluster-IP", "The address inside the cluster."),
        Column::text("External-IP", "The addresses outside the cluster."),
        Column::text("Port(s)", "The ports, with their node ports."),
        AGE,
        Column::wide("Selector", "The labels of the pods behind the service."),
    ],
    cells: |service| {
        let spec = service.spec();
        // Old objects have `clusterIP` alone.
        let cluster_ip =
            spec.get("clusterIPs").items().first().map_or_else(|| spec.get("clusterIP"), |address| *address);
        vec![
            service.name().into(),
            spec.get("type").string_or("ClusterIP").into(),
            cluster_ip.string_or(NONE).into(),
            external_ip_cell(service).into(),
            or(ports_cell(spec.get("ports")), NONE).into(),
            service.age().into(),
            labels(spec.get("selector")).into(),
        ]
    },
};

fn external_ip_cell(service: Printed<'_>) -> String {
    let spec = service.spec();
    let external = joined(spec.get("externalIPs"), ",");
    match spec.get("type").string_or("ClusterIP").as_str() {
        "ClusterIP" | "NodePort" => or(external, NONE),
        "LoadBalancer" => {
            let balancers = addresses_cell(service.at("status.loadBalancer.ingress"));
            match (balancers.as_str(), external.as_str()) {
                ("", "") => "<pending>".to_owned(),
                ("", _) => external,
                (_, "") => balancers,
                _ => format!("{balancers},{external}"),
            }
        }
        "ExternalName" => spec.get("externalName").string(),
        _ => "<unknown>".to_owned(),
    }
}

/// The cell of the ports, each with its node port.
fn ports_cell(ports: Json<'_>) -> String {
    let port = |port: Json<'_>| {
        let number = port.get("port").int().unwrap_or(0);
        let protocol = port.get("protocol").string_or("TCP");
        match port.get("nodePort").int() {
            Some(node_port @ 1..) => format!("{number}:{node_port}/{protocol}"),
            _ => format!("{number}/{protocol}"),
        }
    };
    ports.items().into_iter().map(port).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use crate::testing::check_defaults;

    use super::*;

    #[test]
    fn service_defaults_equal_those_of_kube_apiserver_for_each_type() {
        check_defaults(
            &KIND,
            json!({"spec": {"ports": [{"port": 80}, {"port": 81, "targetPort": "http", "protocol": "UDP"}]}}),
            json!({"spec": {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80},
                    {"port": 81, "targetPort": "http", "protocol": "UDP"}],
                "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}}),
        );
        check_defaults(
            &KIND,
            json!({"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"}}),
            json!({"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}, "internalTrafficPolicy": "Cluster",
                "externalTrafficPolicy": "Cluster", "allocateLoadBalancerNodePorts": true}}),
        );
        check_defaults(
            &KIND,
            json!({"spec": {"type": "ExternalName", "externalName": "a.b"}}),
            json!({"spec": {"type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None"}}),
        );
    }
}
