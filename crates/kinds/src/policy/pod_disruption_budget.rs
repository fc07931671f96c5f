//! PodDisruptionBudget (`policy/v1`): limits the pods that evictions remove at the same time.
//!
//! Source: `pkg/registry/policy/poddisruptionbudget`, `pkg/apis/policy/{validation,v1/conversion.go}`.

use listwatch_json::{Value, json};
use listwatch_schema::Path;
use listwatch_validation::field_rules::{at_most_100_percent, int_or_percent, not_negative, one_of_if_present};
use listwatch_validation::formats::{self, label_selector};
use listwatch_validation::{Errors, Object, child, given, items};

use crate::kind::StoredText::Rare;
use crate::{Kind, Subresource};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["pdb"],
    unconditional_update: false,
    generation: true,
    subresources: &[Subresource::Status],
    normalize: |budget| {
        strip_combined_expression(budget);
        Ok(())
    },
    stored_texts: &[Rare(EMPTY_SELECTOR_MATCH)],
    default_on_read: strip_combined_expression,
    initial_status: || {
        Some(json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}))
    },
    validate,
    validate_status,
    printer: &PRINTER,
    ..Kind::namespaced("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
};

/// The key of a reserved expression. An empty selector of v1beta1, which selects no pods, has it in v1.
pub(crate) const EMPTY_SELECTOR_MATCH: &str = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match";

/// Removes the reserved expression from a selector that also has other terms. It would hide all pods from the budget.
fn strip_combined_expression(budget: &mut Object) {
    let selector = budget.get_mut("spec").and_then(|spec| spec.get_mut("selector"));
    if let Some(Value::Object(selector)) = selector
        && !is_reserved(selector, "Exists")
    {
        strip_reserved(selector);
    }
}

/// Whether a selector consists of the reserved expression with this operator.
pub(crate) fn is_reserved(selector: &Object, operator: &str) -> bool {
    let has_values = |expression: &Value| expression["values"].as_array().is_some_and(|values| !values.is_empty());
    let is_reserved = |only: &Value| only["key"] == EMPTY_SELECTOR_MATCH && only["operator"] == operator;
    child(selector, "matchLabels").is_empty()
        && matches!(items(selector, "matchExpressions"), [only] if is_reserved(only) && !has_values(only))
}

/// Removes the reserved expression from a selector (`StripPDBV1beta1Label`).
pub(crate) fn strip_reserved(selector: &mut Object) {
    let Some(Value::Array(expressions)) = selector.get_mut("matchExpressions") else { return };
    let before = expressions.len();
    expressions.retain(|expression| expression["key"] != EMPTY_SELECTOR_MATCH);
    if expressions.is_empty() && before > 0 {
        selector.shift_remove("matchExpressions");
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::map;

    #[test]
    fn reserved_expression_is_stripped_from_a_selector_with_other_terms() {
        let reserved = |operator: &str| json!({"key": EMPTY_SELECTOR_MATCH, "operator": operator});
        let own = json!({"key": "a", "operator": "Exists"});
        for (written, expected) in [
            (
                json!({"matchLabels": {"a": "b"}, "matchExpressions": [reserved("Exists")]}),
                json!({"matchLabels": {"a": "b"}}),
            ),
            (json!({"matchExpressions": [own, reserved("Exists")]}), json!({"matchExpressions": [own]})),
            (json!({"matchExpressions": [reserved("DoesNotExist")]}), json!({})),
            (json!({"matchExpressions": [reserved("Exists")]}), json!({"matchExpressions": [reserved("Exists")]})),
            (json!({"matchExpressions": [own]}), json!({"matchExpressions": [own]})),
            (json!({}), json!({})),
            (Value::Null, Value::Null),
        ] {
            let budget = |selector: &Value| map(json!({"spec": {"selector": selector}}));
            let mut normalized = budget(&written);
            assert_eq!((KIND.normalize)(&mut normalized), Ok(()));
            assert_eq!(normalized, budget(&expected), "{written}");
            let mut stored = budget(&written);
            let was_incomplete = KIND.complete_stored(&mut stored);
            assert_eq!(
                stored.get("spec").and_then(|spec| spec.get("selector")),
                expected.as_object().map(|_| &expected)
            );
            assert_eq!(was_incomplete, written != expected, "{written}");
        }
    }
}
