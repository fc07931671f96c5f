//! ResourceQuota (`v1`): limits the resources that the objects of a namespace use in total.
//!
//! Source: `pkg/registry/core/resourcequota/strategy.go`, `ValidateResourceQuota` in `pkg/apis/core/validation`,
//! `pkg/apis/core/helper`.

use std::collections::BTreeSet;

use listwatch_json::{JsonString, Value};
use listwatch_schema::Path;
use listwatch_validation::formats::{self, IMMUTABLE, amount};
use listwatch_validation::{Errors, Object, child, given, items, objects, text};

use crate::{Kind, Subresource, Unenforced, UnenforcedPart};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, Json, NAME};
use listwatch_validation::resource_names::{amount_of, is_quota_name, resource_name};

pub(crate) static KIND: Kind = Kind {
    short_names: &["quota"],
    subresources: &[Subresource::Status],
    validate,
    validate_status,
    warnings: listwatch_kind_warnings::small::of_resource_quota,
    printer: &PRINTER,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "the namespace may exceed it" }),
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "resourcequotas", "ResourceQuota")
};

/// The largest number of errors that list all scopes of a quota. Upstream reports one error for each pair of scope and
/// resource.
const SCOPE_ERRORS_MAX: usize = 64;

/// The largest size of a list of scopes that several errors show, in bytes. Only one error shows a longer list.
const SCOPES_SHOWN_BYTES_MAX: usize = 1024;

fn scope_errors_max(shown: &str) -> usize {
    if shown.len() > SCOPES_SHOWN_BYTES_MAX { 1 } else { SCOPE_ERRORS_MAX }
}

fn validate(quota: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(quota, "spec");
    let at = Path::root("spec");
    validate_amounts(spec, "hard", &at, errors);
    validate_scopes(spec, &at, errors);
    validate_scope_selector(spec, &at, errors);
    let Some(old) = old else {
        return;
    };
    let set = |spec| items(spec, "scopes").iter().filter_map(Value::as_str).collect::<BTreeSet<&str>>();
    if set(spec) != set(child(old, "spec")) {
        errors.invalid_value(&at.child("scopes"), formats::json(spec.get("scopes")), IMMUTABLE);
    }
}

fn validate_status(quota: &Object, _: Option<&Object>, errors: &mut Errors) {
    let at = Path::root("status");
    for list in ["hard", "used"] {
        validate_amounts(child(quota, "status"), list, &at, errors);
    }
}

fn validate_amounts(holder: &Object, list: &str, at: &Path<'_>, errors: &mut Errors) {
    let list_at = at.child(list);
    for (name, value) in child(holder, list) {
        let at = list_at.key(name);
        resource_name(name, &at, errors);
        if !name.contains('/') && !is_quota_name(name) {
            errors.invalid(&at, name, "must be a standard resource for quota");
        }
        amount_of(name, amount(value), &at, errors);
    }
}

/// Whether a scope applies to a resource (`IsResourceQuotaScopeValidForResource`).
fn scope_applies_to(scope: &str, resource: &str) -> bool {
    let compute =
        ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"].contains(&resource);
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            resource == "pods" || compute
        }
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn is_scope(scope: &str) -> bool {
    const SCOPES: [&str; 7] = [
        "Terminating",
        "NotTerminating",
        "BestEffort",
        "NotBestEffort",
        "PriorityClass",
        "VolumeAttributesClass",
        "CrossNamespacePodAffinity",
    ];
    SCOPES.contains(&scope)
}

const CONFLICTING_SCOPES: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

/// The resources of a quota to which a scope does not apply.
fn unfit_resources<'a>(spec: &'a Object, scope: &'a str) -> impl Iterator<Item = &'a JsonString> {
    child(spec, "hard").keys().filter(move |resource| is_quota_name(resource) && !scope_applies_to(scope, resource))
}

fn validate_scopes(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("scopes");
    let all: Vec<&str> = items(spec, "scopes").iter().map(|scope| scope.as_str().unwrap_or_default()).collect();
    let shown = formats::json(spec.get("scopes"));
    let max = scope_errors_max(&shown);
    let most = errors.len() + max;
    for scope in &all {
        if errors.len() >= most {
            return;
        }
        if !is_scope(scope) {
            errors.invalid_value(&at, &shown, "unsupported scope");
        }
        for _ in unfit_resources(spec, scope).take(max) {
            errors.invalid_value(&at, &shown, "unsupported scope applied to resource");
        }
    }
    for pair in CONFLICTING_SCOPES {
        if pair.iter().all(|scope| all.contains(scope)) {
            errors.invalid_value(&at, &shown, "conflicting scopes");
        }
    }
}

fn validate_scope_selector(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(selector)) = given(spec, "scopeSelector") else { return };
    let selector_at = at.child("scopeSelector");
    let at = selector_at.child("matchExpressions");
    let requirements = objects(selector, "matchExpressions").map(|(_, requirement)| {
        listwatch_json::json!({"ScopeName": text(requirement, "scopeName"), "Operator": text(requirement, "operator"),
            "Values": requirement.get("values")})
    });
    let shown = format!("{{\"MatchExpressions\":{}}}", requirements.collect::<Value>());
    let max = scope_errors_max(&shown);
    let mut all = BTreeSet::new();
    let most = errors.len() + max;
    for (_, requirement) in objects(selector, "matchExpressions") {
        if errors.len() >= most {
            return;
        }
        let (scope, operator) = (text(requirement, "scopeName"), text(requirement, "operator"));
        if !is_scope(scope) {
            errors.invalid(&at.child("scopeName"), scope, "unsupported scope");
        }
        for _ in unfit_resources(spec, scope).take(max) {
            errors.invalid_value(&at, &shown, "unsupported scope applied to resource");
        }
        let alone = matches!(
            scope,
            "BestEffort" | "NotBestEffort" | "Terminating" | "NotTerminating" | "CrossNamespacePodAffinity"
        );
        if alone && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&at.child("operator"), operator, why);
        }
        let values_at = at.child("values");
        match (operator, items(requirement, "values").is_empty()) {
            ("In" | "NotIn", true) => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(&values_at, why);
            }
            ("Exists" | "DoesNotExist", false) => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid_value(&values_at, formats::json(requirement.get("values")), why);
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            (other, _) => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
        all.insert(scope);
    }
    for pair in CONFLICTING_SCOPES {
        if pair.iter().all(|scope| all.contains(scope)) {
            errors.invalid_value(&at, formats::json(spec.get("scopes")), "conflicting scopes");
        }
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Request", "What is used of what may be requested."),
        Column::text("Limit", "What is used of what limits may add up to."),
        AGE,
    ],
    cells: |quota| {
        let (hard, used) = (quota.at("status.hard"), quota.at("status.used"));
        let mut resources = hard.entries();
        resources.sort_by(|a, b| a.0.cmp(&b.0));
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (resource, hard) in resources {
            let quantity = |json: Json<'_>| json.scalar().unwrap_or_else(|| "0".to_owned());
            let text = format!("{resource}: {}/{}", quantity(used.get(&resource)), quantity(hard));
            if resource.starts_with("limits.") { limits.push(text) } else { requests.push(text) }
        }
        vec![quota.name().into(), requests.join(", ").into(), limits.join(", ").into(), quota.age().into()]
    },
};
