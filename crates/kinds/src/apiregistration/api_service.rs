//! APIService (`apiregistration.k8s.io/v1`): a version of an API group and the server that serves it.
//!
//! Source: `kube-aggregator/pkg/registry/apiservice`, `kube-aggregator/pkg/apis/apiregistration/validation`.

use listwatch_json::Value;
use listwatch_meta::selector::{dns_1035_label_problems, dns_subdomain_problems};
use listwatch_meta::{FieldError, go};
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object, child, given, invalid_each, is_true, number, objects, quoted, text};

use crate::defaults::Default::{If, Number};
use crate::defaults::Defaults;
use crate::kind::StoredText::With;
use crate::{Kind, Subresource, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::text::condition;
use listwatch_printers::{AGE, Column, Json, NAME};

pub(crate) static KIND: Kind = Kind {
    storage_prefix: "apiregistration.k8s.io/apiservices",
    names: NameRule::PathSegment,
    unconditional_update: false,
    categories: &["api-extensions"],
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    stored_texts: &[With(r#""service":{"#, r#""port":"#)],
    validate,
    validate_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &PRINTER,
    ..Kind::cluster("apiregistration.k8s.io", "v1", "apiservices", "APIService")
};

static SERVICE_DEFAULTS: Defaults = Defaults(&[("port", Number(443))]);
static SPEC_DEFAULTS: Defaults = Defaults(&[("service", If(&SERVICE_DEFAULTS))]);

static DEFAULTS: Defaults = Defaults(&[("spec", If(&SPEC_DEFAULTS))]);

const GROUP_PRIORITY_MAX: i64 = 20_000;
const VERSION_PRIORITY_MAX: i64 = 1_000;

/// Validates an APIService (`ValidateAPIService`).
fn validate(service: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec = child(service, "spec");
    let (group, version) = (text(spec, "group"), text(spec, "version"));
    let (name, required) = (text(child(service, "metadata"), "name"), format!("{version}.{group}"));
    // Validation of the metadata rejects a name that is not a path segment.
    let is_element = !name.contains(['/', '%']) && !matches!(name, "" | "." | "..");
    if is_element && name != required {
        let why = format!("must be `spec.version+\".\"+spec.group`: {}", go::quote(&required));
        errors.push(FieldError::invalid("metadata.name", quoted(name), why));
    }
    if group.is_empty() && version != "v1" {
        let why = "only v1 may have an empty group and it better be legacy kube";
        errors.push(FieldError::required("spec.group", why));
    }
    if !group.is_empty() {
        invalid_each(dns_subdomain_problems(group), group, "spec.group", errors);
    }
    invalid_each(dns_1035_label_problems(version), version, "spec.version", errors);
    for (field, priority_max) in
        [("groupPriorityMinimum", GROUP_PRIORITY_MAX), ("versionPriority", VERSION_PRIORITY_MAX)]
    {
        let priority = number(spec, field).unwrap_or(0);
        if !(1..=priority_max).contains(&priority) {
            let why = format!("must be positive and less than {priority_max}");
            errors.push(FieldError::invalid(format!("spec.{field}"), priority, why));
        }
    }
    reached_through(spec, errors);
}

/// The cells for the service of the version and for the status of the condition `Available`.
fn reached_through(spec: &Object, errors: &mut Errors) {
    let bundle = text(spec, "caBundle");
    let insecure = is_true(spec, "insecureSkipTLSVerify");
    let Some(Value::Object(service)) = given(spec, "service") else {
        if !bundle.is_empty() {
            let shown = quoted(&format!("{} bytes", listwatch_validation::base64::decoded_len(bundle)));
            errors.push(FieldError::invalid("spec.caBundle", shown, "local APIServices may not have a caBundle"));
        }
        if insecure {
            let why = "local APIServices may not have insecureSkipTLSVerify";
            errors.push(FieldError::invalid("spec.insecureSkipTLSVerify", true, why));
        }
        return;
    };
    for name in ["namespace", "name"] {
        if text(service, name).is_empty() {
            errors.push(FieldError::required(format!("spec.service.{name}"), ""));
        }
    }
    let port = number(service, "port").unwrap_or(0);
    if !(1..=65535).contains(&port) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid("spec.service.port", port, why));
    }
    if insecure && !bundle.is_empty() {
        let why = "may not be true if caBundle is present";
        errors.push(FieldError::invalid("spec.insecureSkipTLSVerify", true, why));
    }
}

/// Validates the conditions (`ValidateAPIServiceStatus`).
fn validate_status(service: &Object, _: Option<&Object>, errors: &mut Errors) {
    for (position, condition) in objects(child(service, "status"), "conditions") {
        let (state, supported) = (text(condition, "status"), ["True", "False", "Unknown"]);
        if !supported.contains(&state) {
            let field = format!("status.conditions[{position}].status");
            errors.push(FieldError::not_supported(field, state, &supported));
        }
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Service", "The service that serves this version."),
        Column::text("Available", "Whether it answers."),
        AGE,
    ],
    cells: |api| {
        let service = api.at("spec.service");
        let service = match service.exists() {
            true => format!("{}/{}", service.get("namespace").string(), service.get("name").string()),
            false => "Local".to_owned(),
        };
        let available = available_cell(api.at("status.conditions"));
        vec![api.name().into(), service.into(), available.into(), api.age().into()]
    },
};

/// The status of the condition `Available`, with the reason if it is not `True`.
fn available_cell(conditions: Json<'_>) -> String {
    let Some(condition) = condition(conditions, "Available") else {
        return "Unknown".to_owned();
    };
    let status = condition.get("status").string();
    match condition.get("reason").string().as_str() {
        reason if status != "True" && !reason.is_empty() => format!("{status} ({reason})"),
        _ => status,
    }
}
