//! What `networking.k8s.io` demands: Ingress, IngressClass, NetworkPolicy, IPAddress, ServiceCIDR
//! (`pkg/apis/networking/validation`, Kubernetes v1.36).

use std::collections::HashSet;

use listwatch_meta::FieldError;
use listwatch_meta::selector::{dns_label_problems, dns_subdomain_problems};
use listwatch_schema::Path;
use serde_json::Value;

use listwatch_meta::go::quote;
use listwatch_validation::formats::{
    self, IMMUTABLE, Range, host, is_invalid_selector, json, label_selector, legacy_cidr, legacy_ip, path_segment,
    port_name, port_number, same, sloppy_ip, strict_cidr, subdomain,
};
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

/// Bytes of the name of the controller of a class.
const CONTROLLER_BYTES_MAX: usize = 250;

// Ingress.

pub(crate) fn ingress(ingress: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(ingress, "spec");
    let at = Path::root("spec");
    // What an older server took is not held against an update.
    let invalid_secrets = old.is_some_and(|old| {
        let mut names = objects(child(old, "spec"), "tls").map(|(_, tls)| text(tls, "secretName"));
        names.any(|name| !name.is_empty() && !dns_subdomain_problems(name).is_empty())
    });
    let invalid_wildcards = old.is_some_and(|old| {
        objects(child(old, "spec"), "rules").any(|(_, rule)| {
            let mut found = Errors::default();
            ingress_paths(rule, &at, &mut found);
            text(rule, "host").contains('*') && !found.is_empty()
        })
    });
    let default = given(spec, "defaultBackend").and_then(Value::as_object);
    if items(spec, "rules").is_empty() && default.is_none() {
        errors.invalid_value(&at, json(given(spec, "rules")), "either `defaultBackend` or `rules` must be specified");
    }
    if let Some(backend) = default {
        ingress_backend(backend, &at.child("defaultBackend"), errors);
    }
    let rules_at = at.child("rules");
    for (index, rule) in objects(spec, "rules") {
        let at = rules_at.index(index);
        let name = text(rule, "host");
        if !name.is_empty() {
            if sloppy_ip(name).is_some() {
                errors.invalid(&at.child("host"), name, "must be a DNS name, not an IP address");
            }
            host(name, &at.child("host"), errors);
        }
        if !invalid_wildcards || !name.contains('*') {
            ingress_paths(rule, &at, errors);
        }
    }
    let tls_at = at.child("tls");
    for (index, tls) in objects(spec, "tls") {
        let at = tls_at.index(index);
        let hosts_at = at.child("hosts");
        for (index, name) in items(tls, "hosts").iter().enumerate() {
            host(name.as_str().unwrap_or_default(), &hosts_at.index(index), errors);
        }
        let secret = text(tls, "secretName");
        if !invalid_secrets && !secret.is_empty() {
            subdomain(secret, &at.child("secretName"), errors);
        }
    }
    if given(spec, "ingressClassName").is_some() {
        subdomain(text(spec, "ingressClassName"), &at.child("ingressClassName"), errors);
    }
    if old.is_none() {
        let annotations = child(child(ingress, "metadata"), "annotations");
        if let (Some(annotation), Some(class)) = (
            annotations.get("kubernetes.io/ingress.class").and_then(Value::as_str),
            given(spec, "ingressClassName").and_then(Value::as_str),
        ) && annotation != class
        {
            let why = "must match `ingressClassName` when both are specified";
            errors.push(FieldError::invalid("annotations.kubernetes.io/ingress.class", quote(annotation), why));
        }
    }
}

fn ingress_paths(rule: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(http)) = given(rule, "http") else { return };
    let http_at = at.child("http");
    let paths_at = http_at.child("paths");
    if items(http, "paths").is_empty() {
        errors.required(&paths_at, "");
    }
    for (index, path) in objects(http, "paths") {
        let at = paths_at.index(index);
        let (given_path, path_at) = (text(path, "path"), at.child("path"));
        let relative = !given_path.starts_with('/');
        match given(path, "pathType").and_then(Value::as_str) {
            None => {
                errors.required(&at.child("pathType"), "pathType must be specified");
                continue;
            }
            Some("Exact" | "Prefix") => {
                if relative {
                    errors.invalid(&path_at, given_path, "must be an absolute path");
                }
                for part in ["//", "/./", "/../", "%2f", "%2F"] {
                    if given_path.contains(part) {
                        errors.invalid(&path_at, given_path, format_args!("must not contain '{part}'"));
                    }
                }
                for end in ["/..", "/."] {
                    if given_path.ends_with(end) {
                        errors.invalid(&path_at, given_path, format_args!("cannot end with '{end}'"));
                    }
                }
            }
            Some("ImplementationSpecific") => {
                if !given_path.is_empty() && relative {
                    errors.invalid(&path_at, given_path, "must be an absolute path");
                }
            }
            Some(other) => {
                let supported = ["Exact", "ImplementationSpecific", "Prefix"];
                errors.not_supported(&at.child("pathType"), other, &supported);
            }
        }
        ingress_backend(child(path, "backend"), &at.child("backend"), errors);
    }
}

fn ingress_backend(backend: &Object, at: &Path<'_>, errors: &mut Errors) {
    let service = given(backend, "service").and_then(Value::as_object);
    let resource = given(backend, "resource").and_then(Value::as_object);
    match (service, resource) {
        (Some(_), Some(_)) => errors.invalid(at, "", "cannot set both resource and service backends"),
        (None, None) => errors.invalid(at, "", "resource or service backend is required"),
        (None, Some(resource)) => local_reference(resource, &at.child("resource"), errors),
        (Some(service), None) => {
            let service_at = at.child("service");
            let name_at = service_at.child("name");
            match text(service, "name") {
                "" => errors.required(&name_at, ""),
                // Since v1.36 a service's name may begin with a digit.
                name => errors.problems(&name_at, name, dns_label_problems(name)),
            }
            let (port, port_at) = (child(service, "port"), service_at.child("port"));
            match (text(port, "name"), number(port, "number").unwrap_or(0)) {
                ("", 0) => errors.required(at, "port name or number is required"),
                ("", number) => port_number(number, &port_at.child("number"), errors),
                (name, 0) => port_name(name, &port_at.child("name"), errors),
                _ => errors.invalid(at, "", "cannot set both port name & port number"),
            }
        }
    }
}

/// The group, kind and name of an object of the same namespace.
fn local_reference(reference: &Object, at: &Path<'_>, errors: &mut Errors) {
    if given(reference, "apiGroup").is_some() {
        subdomain(text(reference, "apiGroup"), &at.child("apiGroup"), errors);
    }
    for name in ["kind", "name"] {
        required_segment(reference, name, at, errors);
    }
}

fn required_segment(object: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    match text(object, name) {
        "" => errors.required(&at.child(name), ""),
        value => path_segment(value, &at.child(name), errors),
    }
}

pub(crate) fn ingress_status(ingress: &Object, old: Option<&Object>, errors: &mut Errors) {
    let balancer = |ingress| child(child(ingress, "status"), "loadBalancer");
    let known: HashSet<&str> = old
        .map(|old| objects(balancer(old), "ingress").map(|(_, point)| text(point, "ip")).collect())
        .unwrap_or_default();
    let status = Path::root("status");
    let balancer_at = status.child("loadBalancer");
    let points_at = balancer_at.child("ingress");
    for (index, point) in objects(balancer(ingress), "ingress") {
        let at = points_at.index(index);
        let address = text(point, "ip");
        if !address.is_empty() && !known.contains(address) {
            legacy_ip(address, &at.child("ip"), errors);
        }
        balancer_hostname(point, &at, errors);
    }
}

/// The host name of a load balancer, in the status of what it serves.
pub(crate) fn balancer_hostname(point: &Object, at: &Path<'_>, errors: &mut Errors) {
    let name = text(point, "hostname");
    if !name.is_empty() {
        subdomain(name, &at.child("hostname"), errors);
        if sloppy_ip(name).is_some() {
            errors.invalid(&at.child("hostname"), name, "must be a DNS name, not an IP address");
        }
    }
}

// IngressClass.

pub(crate) fn ingress_class(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(class, "spec");
    let at = Path::root("spec");
    let (controller, controller_at) = (text(spec, "controller"), at.child("controller"));
    if old.is_some_and(|old| text(child(old, "spec"), "controller") != controller) {
        errors.invalid(&controller_at, controller, IMMUTABLE);
    }
    if controller.len() > CONTROLLER_BYTES_MAX {
        errors.too_long(&controller_at, CONTROLLER_BYTES_MAX);
    }
    formats::domain_prefixed_path(controller, &controller_at, errors);
    let Some(Value::Object(parameters)) = given(spec, "parameters") else { return };
    let at = at.child("parameters");
    local_reference(parameters, &at, errors);
    let namespace_at = at.child("namespace");
    let namespace = given(parameters, "namespace").and_then(Value::as_str);
    match given(parameters, "scope").and_then(Value::as_str) {
        None => errors.required(&at.child("scope"), ""),
        Some("Cluster") => {
            if namespace.is_some() {
                errors.forbidden(&namespace_at, "`parameters.scope` is set to 'Cluster'");
            }
        }
        Some("Namespace") => match namespace {
            None => errors.required(&namespace_at, "`parameters.scope` is set to 'Namespace'"),
            Some(namespace) => formats::label(namespace, &namespace_at, errors),
        },
        Some(other) => errors.not_supported(&at.child("scope"), other, &["Cluster", "Namespace"]),
    }
}

// NetworkPolicy.

pub(crate) fn network_policy(policy: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(policy, "spec");
    let at = Path::root("spec");
    // A range that stood in the old policy stays allowed, wherever it is now.
    let known: HashSet<&str> = old.map(|old| ranges(child(old, "spec")).collect()).unwrap_or_default();
    let values_too = old.is_none_or(|old| !is_invalid_selector(child(old, "spec").get("podSelector")));
    label_selector(spec.get("podSelector"), values_too, &at.child("podSelector"), errors);
    for (rules, peers) in RULES {
        let rules_at = at.child(rules);
        for (index, rule) in objects(spec, rules) {
            let at = rules_at.index(index);
            let ports_at = at.child("ports");
            for (index, port) in objects(rule, "ports") {
                policy_port(port, &ports_at.index(index), errors);
            }
            let peers_at = at.child(peers);
            for (index, peer) in objects(rule, peers) {
                policy_peer(peer, &known, values_too, &peers_at.index(index), errors);
            }
        }
    }
    let (types, types_at) = (items(spec, "policyTypes"), at.child("policyTypes"));
    if types.len() > 2 {
        errors.invalid_value(&types_at, json(spec.get("policyTypes")), "may not specify more than two policyTypes");
        return;
    }
    for (index, kind) in types.iter().enumerate() {
        let kind = kind.as_str().unwrap_or_default();
        if !matches!(kind, "Ingress" | "Egress") {
            errors.not_supported(&types_at.index(index), kind, &["Ingress", "Egress"]);
        }
    }
}

/// The lists of rules of a policy, and what their peers are called.
const RULES: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

/// All ranges that a policy names.
fn ranges(spec: &Object) -> impl Iterator<Item = &str> {
    RULES.into_iter().flat_map(move |(rules, peers)| {
        objects(spec, rules).flat_map(move |(_, rule)| {
            objects(rule, peers).flat_map(|(_, peer)| {
                let block = child(peer, "ipBlock");
                items(block, "except").iter().filter_map(Value::as_str).chain([text(block, "cidr")])
            })
        })
    })
}

fn policy_port(port: &Object, at: &Path<'_>, errors: &mut Errors) {
    let protocol = given(port, "protocol").and_then(Value::as_str);
    if let Some(protocol) = protocol.filter(|protocol| !matches!(*protocol, "TCP" | "UDP" | "SCTP")) {
        errors.not_supported(&at.child("protocol"), protocol, &["TCP", "UDP", "SCTP"]);
    }
    let (last, last_at) = (number(port, "endPort"), at.child("endPort"));
    match (given(port, "port"), last) {
        (Some(Value::String(name)), _) => {
            if let Some(last) = last {
                errors.invalid_value(&last_at, last, "may not be specified when `port` is non-numeric");
            }
            port_name(name, &at.child("port"), errors);
        }
        (Some(first), _) => {
            let first = first.as_i64().unwrap_or(0);
            port_number(first, &at.child("port"), errors);
            if let Some(last) = last {
                if last < first {
                    // The first port is what upstream shows.
                    errors.invalid_value(&last_at, first, "must be greater than or equal to `port`");
                }
                port_number(last, &last_at, errors);
            }
        }
        (None, Some(last)) => errors.invalid_value(&last_at, last, "may not be specified when `port` is not specified"),
        (None, None) => {}
    }
}

fn policy_peer(peer: &Object, known: &HashSet<&str>, values_too: bool, at: &Path<'_>, errors: &mut Errors) {
    let mut peers = 0;
    for name in ["podSelector", "namespaceSelector"] {
        if let Some(selector) = given(peer, name) {
            peers += 1;
            label_selector(Some(selector), values_too, &at.child(name), errors);
        }
    }
    let block = given(peer, "ipBlock").and_then(Value::as_object);
    if let Some(block) = block {
        peers += 1;
        ip_block(block, known, &at.child("ipBlock"), errors);
    }
    if peers == 0 {
        errors.required(at, "must specify a peer");
    } else if peers > 1 && block.is_some() {
        errors.forbidden(at, "may not specify both ipBlock and another peer");
    }
}

fn ip_block(block: &Object, known: &HashSet<&str>, at: &Path<'_>, errors: &mut Errors) {
    let cidr = text(block, "cidr");
    if cidr.is_empty() {
        errors.required(&at.child("cidr"), "");
        return;
    }
    if !known.contains(cidr) {
        legacy_cidr(cidr, &at.child("cidr"), errors);
    }
    let Some(range) = Range::parse(cidr) else { return };
    let except_at = at.child("except");
    for (index, except) in items(block, "except").iter().enumerate() {
        let (except, at) = (except.as_str().unwrap_or_default(), except_at.index(index));
        if !known.contains(except) {
            legacy_cidr(except, &at, errors);
        }
        if Range::parse(except).is_some_and(|inner| !range.is_strictly_above(inner)) {
            errors.invalid(&at, except, "must be a strict subset of `cidr`");
        }
    }
}

// IPAddress.

pub(crate) fn ip_address(address: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(address, "spec");
    let spec_at = Path::root("spec");
    let at = spec_at.child("parentRef");
    match given(spec, "parentRef").and_then(Value::as_object) {
        None => errors.required(&at, ""),
        Some(parent) => {
            if !text(parent, "group").is_empty() {
                subdomain(text(parent, "group"), &at.child("group"), errors);
            }
            for name in ["resource", "name"] {
                required_segment(parent, name, &at, errors);
            }
            if !text(parent, "namespace").is_empty() {
                path_segment(text(parent, "namespace"), &at.child("namespace"), errors);
            }
        }
    }
    if let Some(old) = old
        && !same(spec.get("parentRef"), child(old, "spec").get("parentRef"))
    {
        let shown = given(spec, "parentRef").and_then(Value::as_object).map(|parent| {
            // As upstream's own type prints itself.
            serde_json::json!({"Group": text(parent, "group"), "Resource": text(parent, "resource"),
                "Namespace": text(parent, "namespace"), "Name": text(parent, "name")})
        });
        errors.invalid_value(&at, json(shown.as_ref()), IMMUTABLE);
    }
}

// ServiceCIDR.

pub(crate) fn service_cidr(cidr: &Object, old: Option<&Object>, errors: &mut Errors) {
    let ranges = items(child(cidr, "spec"), "cidrs");
    let spec_at = Path::root("spec");
    let at = spec_at.child("cidrs");
    let Some(old) = old else {
        return service_ranges(ranges, &at, errors);
    };
    let before = items(child(old, "spec"), "cidrs");
    let mut changed = |index: usize| {
        if ranges[index] != before[index] {
            errors.invalid(&at.index(index), ranges[index].as_str().unwrap_or_default(), IMMUTABLE);
        }
    };
    match (before.len(), ranges.len()) {
        (had, has) if had == has => (0..has).for_each(changed),
        // A second family may join the first.
        (1, 2) => {
            changed(0);
            service_ranges(ranges, &at, errors);
        }
        _ => errors.invalid_value(&at, json(child(cidr, "spec").get("cidrs")), IMMUTABLE),
    }
}

fn service_ranges(ranges: &[Value], at: &Path<'_>, errors: &mut Errors) {
    let shown = || Value::from(ranges).to_string();
    match ranges {
        [] => return errors.required(at, "at least one CIDR required"),
        [_] | [_, _] => {}
        _ => {
            return errors.invalid_value(at, format_args!("{{\"CIDRs\":{}}}", shown()), "may only hold up to 2 values");
        }
    }
    for (index, range) in ranges.iter().enumerate() {
        strict_cidr(range.as_str().unwrap_or_default(), &at.index(index), errors);
    }
    let family = |range: &Value| range.as_str().and_then(Range::parse).map(Range::is_ipv6);
    if let [first, second] = ranges
        && let Some(first) = family(first)
        && family(second) == Some(first)
    {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.invalid_value(at, shown(), why);
    }
}
