//! Rules that the update strategies of Deployments and DaemonSets share.
//!
//! Source: `pkg/apis/apps/validation/validation.go`, `pkg/apis/apps/v1/defaults.go`.

use listwatch_json::{Map, Value, json};
use listwatch_meta::FieldError;
use listwatch_schema::Path;
use listwatch_validation::{Errors, Object, given, text};

/// A strategy in the notation in which Go prints it.
fn shown_strategy(strategy: &Object) -> Value {
    let rolling = given(strategy, "rollingUpdate")
        .map(|rolling| json!({"MaxUnavailable": rolling.get("maxUnavailable"), "MaxSurge": rolling.get("maxSurge")}));
    json!({"Type": text(strategy, "type"), "RollingUpdate": rolling})
}

/// Reports a strategy of an unknown type.
pub(crate) fn report_unsupported_strategy(strategy: &Object, supported: &[&str], at: &Path<'_>, errors: &mut Errors) {
    let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
    let message =
        format!("Unsupported value: {}: supported values: {}", shown_strategy(strategy), supported.join(", "));
    errors.push(FieldError { field: at.to_string(), reason: "FieldValueNotSupported", message });
}

/// The default of `rollingUpdate`: `{}` if the type is `RollingUpdate`.
pub(crate) fn rolling_update_default(strategy: &Map) -> Option<Value> {
    (strategy.get("type").and_then(Value::as_str) == Some("RollingUpdate")).then(|| json!({}))
}
