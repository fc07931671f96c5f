//! The rules that MutatingAdmissionPolicyBinding and ValidatingAdmissionPolicyBinding share.
//!
//! Source: `pkg/apis/admissionregistration/validation`, `pkg/apis/admissionregistration/v1/defaults.go`.

use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object, given, named, selector, text};

use super::match_rules::{MATCH_DEFAULTS, required_one_of, validate_match_resources};
use crate::defaults::Default::If;
use crate::defaults::Defaults;
use listwatch_printers::Printer;
use listwatch_printers::text::{UNSET, selector_cell};
use listwatch_printers::{AGE, Column, NAME};

static SPEC_DEFAULTS: Defaults = Defaults(&[("matchResources", If(&MATCH_DEFAULTS))]);

pub(crate) static DEFAULTS: Defaults = Defaults(&[("spec", If(&SPEC_DEFAULTS))]);

/// Validates the parts of a spec that bindings of both kinds have.
pub(crate) fn validate_spec(spec: &Object, errors: &mut Errors) {
    match text(spec, "policyName") {
        "" => errors.push(FieldError::required("spec.policyName", "")),
        name => named(name, NameRule::Subdomain, "spec.policyName", errors),
    }
    if let Some(Value::Object(reference)) = given(spec, "paramRef") {
        validate_param_ref(reference, "spec.paramRef", errors);
    }
    if let Some(Value::Object(resources)) = given(spec, "matchResources") {
        validate_match_resources(resources, "spec.matchResources.", errors);
    }
}

/// Validates `spec.paramRef` (`validateParamRef`).
fn validate_param_ref(reference: &Object, at: &str, errors: &mut Errors) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let (name, selects) = (text(reference, "name"), given(reference, "selector").is_some());
    if !name.is_empty() {
        named(name, NameRule::PathSegment, &format!("{at}.name"), errors);
        if selects {
            errors.push(FieldError::forbidden(format!("{at}.name"), EXCLUSIVE));
        }
    }
    if selects {
        selector(reference, "selector", &format!("{at}."), errors);
        if !name.is_empty() {
            errors.push(FieldError::forbidden(format!("{at}.selector"), EXCLUSIVE));
        }
    }
    if name.is_empty() && !selects {
        errors.push(FieldError::required(at, "one of name or selector must be specified"));
    }
    required_one_of(reference, "parameterNotFoundAction", &format!("{at}."), &["Deny", "Allow"], errors);
}

pub(crate) static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("PolicyName", "The policy that is bound."),
        Column::text("ParamRef", "The parameters that it is bound with."),
        AGE,
    ],
    cells: |binding| {
        let parameters = binding.at("spec.paramRef");
        let [namespace, name] = ["namespace", "name"].map(|key| parameters.get(key).string());
        let parameters = match (namespace.as_str(), name.as_str()) {
            // The printer does not know whether the parameters have namespaces.
            ("", "") if parameters.get("selector").exists() => selector_cell(parameters.get("selector")),
            (_, "") => UNSET.to_owned(),
            ("", name) => format!("*/{name}"),
            (namespace, name) => format!("{namespace}/{name}"),
        };
        vec![
            binding.name().into(),
            binding.at("spec.policyName").string().into(),
            parameters.into(),
            binding.age().into(),
        ]
    },
};
