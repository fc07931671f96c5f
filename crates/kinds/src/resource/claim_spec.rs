//! Defaults and validation of the spec that ResourceClaim and ResourceClaimTemplate share.
//!
//! Source: `validateResourceClaimSpec` in `pkg/apis/resource/validation/validation.go`,
//! `pkg/apis/resource/v1/defaults.go`.

use std::collections::{HashMap, HashSet};

use listwatch_json::{Value, json};
use listwatch_schema::Path;
use listwatch_validation::field_rules::one_of;
use listwatch_validation::formats::{label, label_value, qualified_name, subdomain};
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

use super::devices::{
    CONSTRAINTS_MAX, EFFECTS, attribute_name, configuration, list, name_of, object, quoted_key, selectors, set,
    string_of,
};
use crate::defaults::Default::{Do, Each, If, In, Text};
use crate::defaults::Defaults;

/// The largest number of requests of one claim, and of names in one list of requests.
const REQUESTS_MAX: usize = 32;
/// The largest number of alternatives of one request.
const ALTERNATIVES_MAX: usize = 8;

/// The defaults of the spec of a claim.
pub(super) static DEFAULTS: Defaults = Defaults(&[("devices", In(&DEVICES))]);
static DEVICES: Defaults = Defaults(&[("requests", Each(&REQUEST))]);
static REQUEST: Defaults = Defaults(&[("exactly", If(&DEVICE_REQUEST)), ("firstAvailable", Each(&DEVICE_REQUEST))]);
static DEVICE_REQUEST: Defaults = Defaults(&[
    ("allocationMode", Text("ExactCount")),
    ("count", Do(default_count)),
    ("tolerations", Each(&DEVICE_TOLERATION)),
]);
static DEVICE_TOLERATION: Defaults = Defaults(&[("operator", Text("Equal"))]);

/// Sets the count of a request in mode `ExactCount` to 1 if the count is missing or 0.
fn default_count(request: &mut Object) {
    let is_missing = request.get("count").is_none_or(|count| count.as_i64() == Some(0));
    if is_missing && request.get("allocationMode") == Some(&json!("ExactCount")) {
        request.insert("count", json!(1));
    }
}

/// The names of a claim's requests, each with the names of its alternatives.
pub(super) struct Requests<'a>(HashMap<&'a str, HashSet<&'a str>>);

impl<'a> Requests<'a> {
    /// The requests of the spec of a claim.
    pub(super) fn of(spec: &'a Object) -> Requests<'a> {
        let requests = items(child(spec, "devices"), "requests").iter().map(|request| {
            let alternatives = items(object(request), "firstAvailable").iter().map(name_of);
            (name_of(request), alternatives.collect())
        });
        Requests(requests.collect())
    }

    fn contains(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, alternative)) => self.0.get(request).is_some_and(|names| names.contains(alternative)),
        }
    }

    /// Validates a reference to a request: `request` or `request/alternative` (`validateRequestNameRef`).
    pub(super) fn validate_name(&self, name: &str, at: &Path<'_>, errors: &mut Errors) {
        const WHY: &str =
            "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        if name.matches('/').count() > 1 {
            return errors.invalid(at, name, WHY);
        }
        name.split('/').for_each(|part| label(part, at, errors));
        if !self.contains(name) {
            errors.invalid(at, name, WHY);
        }
    }

    /// Validates the member `requests` of a constraint or configuration.
    pub(super) fn validate_list(&self, holder: &Object, at: &Path<'_>, errors: &mut Errors) {
        let validate =
            |name: &Value, at: &Path<'_>, errors: &mut Errors| self.validate_name(string_of(name), at, errors);
        set(holder, "requests", REQUESTS_MAX, at, errors, validate, string_of, quoted_key);
    }
}

/// Validates the spec of a claim.
pub(super) fn validate(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let devices = child(spec, "devices");
    let at = at.child("devices");
    let requests = Requests::of(spec);
    set(devices, "requests", REQUESTS_MAX, &at, errors, request, name_of, quoted_key);
    list(devices, "constraints", CONSTRAINTS_MAX, &at, errors, |item, at, errors| {
        requests.validate_list(object(item), at, errors);
        constraint(object(item), at, errors);
    });
    list(devices, "config", CONSTRAINTS_MAX, &at, errors, |config, at, errors| {
        requests.validate_list(object(config), at, errors);
        configuration(object(config), true, at, errors);
    });
}

fn constraint(constraint: &Object, at: &Path<'_>, errors: &mut Errors) {
    let attribute = |name: &'static str| Some((name, given(constraint, name)?.as_str()?));
    let Some((member, name)) = attribute("matchAttribute").or_else(|| attribute("distinctAttribute")) else {
        let why = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
        return errors.required(at, why);
    };
    attribute_name(name, &at.child(member), errors);
    if !name.contains('/') {
        let why = "a fully qualified name must be a domain and a name separated by a slash";
        errors.invalid(&at.child(member), name, why);
    }
}

fn request(request: &Value, at: &Path<'_>, errors: &mut Errors) {
    let request = object(request);
    label(text(request, "name"), &at.child("name"), errors);
    let alternatives = !items(request, "firstAvailable").is_empty();
    match (given(request, "exactly").and_then(Value::as_object), alternatives) {
        (None, false) => errors.required(at, "exactly one of `exactly` or `firstAvailable` is required"),
        (Some(_), true) => {
            let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.invalid_value(at, "null", why);
        }
        (Some(exactly), false) => device_request(exactly, &at.child("exactly"), errors),
        (None, true) => {
            let validate = |alternative: &Value, at: &Path<'_>, errors: &mut Errors| {
                label(name_of(alternative), &at.child("name"), errors);
                device_request(object(alternative), at, errors);
            };
            set(request, "firstAvailable", ALTERNATIVES_MAX, at, errors, validate, name_of, quoted_key);
        }
    }
}

/// Validates the class, selectors, count and tolerations of a request (`validateExactDeviceRequest`).
fn device_request(request: &Object, at: &Path<'_>, errors: &mut Errors) {
    let class_at = at.child("deviceClassName");
    match text(request, "deviceClassName") {
        "" => errors.required(&class_at, ""),
        class => subdomain(class, &class_at, errors),
    }
    selectors(request, true, at, errors);
    let count = number(request, "count").unwrap_or(0);
    match text(request, "allocationMode") {
        "All" if count != 0 => {
            errors.invalid_value(&at.child("count"), count, "must not be specified when allocationMode is 'All'");
        }
        "ExactCount" if count <= 0 => errors.invalid_value(&at.child("count"), count, "must be greater than zero"),
        "All" | "ExactCount" => {}
        other => errors.not_supported(&at.child("allocationMode"), other, &["All", "ExactCount"]),
    }
    let tolerations_at = at.child("tolerations");
    for (index, item) in objects(request, "tolerations") {
        toleration(item, &tolerations_at.index(index), errors);
    }
}

fn toleration(toleration: &Object, at: &Path<'_>, errors: &mut Errors) {
    if !text(toleration, "key").is_empty() {
        qualified_name(text(toleration, "key"), &at.child("key"), errors);
    }
    let value = text(toleration, "value");
    match text(toleration, "operator") {
        "Exists" if !value.is_empty() => {
            errors.invalid(&at.child("value"), value, "must be empty for operator `Exists`");
        }
        "Exists" => {}
        "Equal" => label_value(value, &at.child("value"), errors),
        "" => errors.required(&at.child("operator"), ""),
        other => errors.not_supported(&at.child("operator"), other, &["Equal", "Exists"]),
    }
    one_of(toleration, "effect", &EFFECTS, at, errors);
}
