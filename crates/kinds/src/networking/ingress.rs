//! Ingress (`networking.k8s.io/v1`): HTTP routes from outside the cluster to Services.
//!
//! Source: `pkg/registry/networking/ingress/strategy.go`, `ValidateIngress` in `pkg/apis/networking/validation`.

use std::collections::HashSet;

use listwatch_json::{Value, json};
use listwatch_meta::FieldError;
use listwatch_meta::go::quote;
use listwatch_meta::selector::{dns_label_problems, dns_subdomain_problems};
use listwatch_schema::Path;
use listwatch_validation::formats::{host, json as go_json, legacy_ip, port_name, port_number, sloppy_ip, subdomain};
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

use crate::networking::load_balancer::{addresses_cell, validate_hostname};
use crate::networking::references::validate_local_reference;
use crate::{Kind, Subresource};
use listwatch_printers::Printer;
use listwatch_printers::text::NONE;
use listwatch_printers::{AGE, Column, Json, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["ing"],
    storage_prefix: "ingress",
    generation: true,
    subresources: &[Subresource::Status],
    initial_status: || Some(json!({"loadBalancer": {}})),
    validate,
    validate_status,
    warnings: listwatch_kind_warnings::networking::of_ingress,
    status_warnings: listwatch_kind_warnings::networking::of_ingress_status,
    printer: &PRINTER,
    ..Kind::namespaced("networking.k8s.io", "v1", "ingresses", "Ingress")
};

fn validate(ingress: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(ingress, "spec");
    let at = Path::root("spec");
    // An update can keep names that an earlier release accepted.
    let invalid_secrets = old.is_some_and(|old| {
        let mut names = objects(child(old, "spec"), "tls").map(|(_, tls)| text(tls, "secretName"));
        names.any(|name| !name.is_empty() && !dns_subdomain_problems(name).is_empty())
    });
    let invalid_wildcards = old.is_some_and(|old| {
        objects(child(old, "spec"), "rules").any(|(_, rule)| {
            let mut found = Errors::default();
            validate_paths(rule, &at, &mut found);
            text(rule, "host").contains('*') && !found.is_empty()
        })
    });
    let default = given(spec, "defaultBackend").and_then(Value::as_object);
    if items(spec, "rules").is_empty() && default.is_none() {
        errors.invalid_value(
            &at,
            go_json(given(spec, "rules")),
            "either `defaultBackend` or `rules` must be specified",
        );
    }
    if let Some(backend) = default {
        validate_backend(backend, &at.child("defaultBackend"), errors);
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
            validate_paths(rule, &at, errors);
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

fn validate_paths(rule: &Object, at: &Path<'_>, errors: &mut Errors) {
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
        validate_backend(child(path, "backend"), &at.child("backend"), errors);
    }
}

fn validate_backend(backend: &Object, at: &Path<'_>, errors: &mut Errors) {
    let service = given(backend, "service").and_then(Value::as_object);
    let resource = given(backend, "resource").and_then(Value::as_object);
    match (service, resource) {
        (Some(_), Some(_)) => errors.invalid(at, "", "cannot set both resource and service backends"),
        (None, None) => errors.invalid(at, "", "resource or service backend is required"),
        (None, Some(resource)) => validate_local_reference(resource, &at.child("resource"), errors),
        (Some(service), None) => {
            let service_at = at.child("service");
            let name_at = service_at.child("name");
            match text(service, "name") {
                "" => errors.required(&name_at, ""),
                // Since v1.36 the name of a service can begin with a digit.
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

fn validate_status(ingress: &Object, old: Option<&Object>, errors: &mut Errors) {
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
        validate_hostname(point, &at, errors);
    }
}

/// The largest number of hosts in one cell.
const SHOWN_MAX: usize = 3;

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Class", "The class whose controller serves this."),
        Column::text("Hosts", "The hosts that the rules are for."),
        Column::text("Address", "Where the load balancer listens."),
        Column::text("Ports", "The ports that are open: 443 with TLS."),
        AGE,
    ],
    cells: |ingress| {
        let spec = ingress.spec();
        vec![
            ingress.name().into(),
            spec.get("ingressClassName").string_or(NONE).into(),
            hosts_cell(spec.get("rules")).into(),
            addresses_cell(ingress.at("status.loadBalancer.ingress")).into(),
            if spec.get("tls").count() > 0 { "80, 443" } else { "80" }.into(),
            ingress.age().into(),
        ]
    },
};

/// The hosts of the rules. The number in `+ N more...` counts rules with and without hosts, as upstream's does.
fn hosts_cell(rules: Json<'_>) -> String {
    let rules = rules.items();
    let (mut hosts, mut more) = (Vec::new(), false);
    for rule in &rules {
        more |= hosts.len() == SHOWN_MAX;
        let host = rule.get("host").string();
        if !more && !host.is_empty() {
            hosts.push(host);
        }
    }
    match (hosts.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => hosts.join(","),
        (false, true) => format!("{} + {} more...", hosts.join(","), rules.len() - SHOWN_MAX),
    }
}
