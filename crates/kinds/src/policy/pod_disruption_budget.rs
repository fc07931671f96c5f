//! PodDisruptionBudget (`policy/v1`): limits the pods that evictions remove at the same time.
//!
//! Source: `pkg/registry/policy/poddisruptionbudget`, `pkg/apis/policy/validation`.

use listwatch_json::json;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{at_most_100_percent, int_or_percent, not_negative, one_of_if_present};
use listwatch_validation::formats::{self, label_selector};
use listwatch_validation::{Errors, Object, child, given};

use crate::printers::Printer;
use crate::table::{AGE, Column, NAME};
use crate::{Kind, Subresource};

pub(crate) static KIND: Kind = Kind {
    short_names: &["pdb"],
    unconditional_update: false,
    generation: true,
    subresources: &[Subresource::Status],
    initial_status: || {
        Some(json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}))
    },
    validate,
    validate_status,
    printer: &PRINTER,
    ..Kind::namespaced("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
};

/// Validates the spec (`ValidatePodDisruptionBudgetSpec`).
fn validate(budget: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(budget, "spec"), Path::root("spec"));
    let (least, most) = (given(spec, "minAvailable"), given(spec, "maxUnavailable"));
    if least.is_some() && most.is_some() {
        let shown = json!({"MinAvailable": least, "Selector": given(spec, "selector"), "MaxUnavailable": most,
            "UnhealthyPodEvictionPolicy": given(spec, "unhealthyPodEvictionPolicy")});
        errors.invalid_value(&at, shown, "minAvailable and maxUnavailable cannot be both set");
    }
    for name in ["minAvailable", "maxUnavailable"] {
        int_or_percent(spec, name, &at, errors);
        at_most_100_percent(spec, name, &at, errors);
    }
    let strict = old.is_none_or(|old| !formats::is_invalid_selector(child(old, "spec").get("selector")));
    label_selector(spec.get("selector"), strict, &at.child("selector"), errors);
    one_of_if_present(spec, "unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"], &at, errors);
}

/// Validates a write of the status (`ValidatePodDisruptionBudgetStatusUpdate`).
fn validate_status(budget: &Object, _: Option<&Object>, errors: &mut Errors) {
    let (status, at) = (child(budget, "status"), Path::root("status"));
    listwatch_validation::conditions(status, "status.", errors);
    let counts = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    not_negative(status, &counts, &at, errors);
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Min Available", "How many pods must stay available."),
        Column::text("Max Unavailable", "How many pods may be unavailable."),
        Column::integer("Allowed Disruptions", "How many pods may be disrupted now."),
        AGE,
    ],
    cells: |budget| {
        let bound = |path: &str| budget.at(path).scalar().unwrap_or_else(|| "N/A".to_owned());
        vec![
            budget.name().into(),
            bound("spec.minAvailable").into(),
            bound("spec.maxUnavailable").into(),
            budget.status().get("disruptionsAllowed").int().unwrap_or(0).into(),
            budget.age().into(),
        ]
    },
};
