//! Warnings for clients that write objects of built-in kinds (`WarningsOnCreate`, `WarningsOnUpdate`).
//!
//! ```text
//!  valid object, old object ──of_pod, of_service, …──▶ Warnings ──▶ texts, bounded in number and bytes
//! ```
//!
//! One module holds the warnings of one upstream source. A function gets a valid object after its preparation, and the
//! old object in an update. An object without a problem costs no formatting. `listwatch-kinds` names the function of
//! each kind.
//!
//! Source: `pkg/api/*/warnings.go` and the strategies in `pkg/registry` of Kubernetes v1.36.
//!
//! # Example
//! ```
//! use listwatch_json::{Value, json};
//! use listwatch_kind_warnings::{Warnings, pod::of_pod};
//!
//! let Value::Object(pod) = json!({
//!     "metadata": {"name": "web"},
//!     "spec": {"containers": [{"name": "c"}], "terminationGracePeriodSeconds": -1},
//! }) else { unreachable!() };
//! let mut warnings = Warnings::default();
//! of_pod(&pod, None, &mut warnings);
//! let texts = Vec::from(warnings);
//! assert_eq!(texts.len(), 1);
//! assert!(texts[0].starts_with("spec.terminationGracePeriodSeconds: must be >= 0"));
//! ```
#![forbid(unsafe_code)]

mod addresses;
mod containers;
pub mod discovery;
mod key_pair;
pub mod networking;
pub mod node;
mod node_labels;
pub mod pod;
mod ports;
pub mod secret;
pub mod service;
pub mod small;
pub mod storage;
mod virtual_paths;
mod volumes;
pub mod workload;

use std::collections::HashSet;
use std::fmt;

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::{Object, text};

/// The largest number of warnings of one write. Further ones are not formatted.
const WARNINGS_MAX: usize = 256;

/// The size of the warnings of one write after which further ones are not formatted, in bytes. Clients receive 4 KiB
/// of them. The last warning may exceed the size.
const WARNINGS_BYTES_MAX: usize = 64 * 1024;

/// The largest length of a list whose duplicates are found without a set.
const SCANNED_ITEMS: usize = 32;

/// Collects the warnings of one write.
#[derive(Debug, Default)]
pub struct Warnings {
    texts: Vec<String>,
    /// The bytes of the texts.
    bytes: usize,
}

impl Warnings {
    /// Adds a warning, unless there are [`WARNINGS_MAX`] or [`WARNINGS_BYTES_MAX`].
    pub fn add(&mut self, text: fmt::Arguments<'_>) {
        if !self.is_full() {
            let text = text.to_string();
            self.bytes += text.len();
            self.texts.push(text);
        }
    }

    /// Whether further warnings are dropped. Loops over large lists can then end.
    pub(crate) fn is_full(&self) -> bool {
        self.texts.len() >= WARNINGS_MAX || self.bytes >= WARNINGS_BYTES_MAX
    }

    fn len(&self) -> usize {
        self.texts.len()
    }
}

impl From<Warnings> for Vec<String> {
    fn from(warnings: Warnings) -> Self {
        warnings.texts
    }
}

/// Whether an update changes `metadata.generation`.
fn changes_generation(new: &Object, old: &Object) -> bool {
    fn generation(object: &Object) -> Option<&Value> {
        object.get("metadata")?.get("generation")
    }
    generation(new) != generation(old)
}

/// Calls `visit` for each item whose text `name` an earlier item has.
fn each_duplicate<'a>(items: &'a [Value], name: &str, mut visit: impl FnMut(usize, &'a Object, &'a str)) {
    let text_of = |item: &'a Value| item.as_object().map(|object| (object, text(object, name)));
    let mut seen = HashSet::new();
    for (position, item) in items.iter().enumerate() {
        let Some((object, text)) = text_of(item) else { continue };
        let is_duplicate = if items.len() <= SCANNED_ITEMS {
            items.iter().take(position).filter_map(text_of).any(|(_, earlier)| earlier == text)
        } else {
            !seen.insert(text)
        };
        if is_duplicate {
            visit(position, object, text);
        }
    }
}

/// Warns of an amount of bytes that is not an integer. The error shows the amount in its canonical form.
fn add_fractional(amounts: &Object, name: &str, at: &Path<'_>, warnings: &mut Warnings) {
    let Some(amount) = amounts.get(name).and_then(Value::as_str) else { return };
    if is_fractional(amount) {
        let shown = listwatch_meta::go::quote(amount);
        warnings.add(format_args!("{}: fractional byte value {shown} is invalid, must be an integer", at.key(name)));
    }
}

/// Whether a quantity in units of 1/1000, rounded up, is not an integer (`MilliValue() % 1000 != 0`).
fn is_fractional(amount: &str) -> bool {
    // The canonical form of an integer ends in a digit or in another suffix.
    if !amount.ends_with(['m', 'u', 'n']) && !amount.contains(['.', 'e']) {
        return false;
    }
    let Ok(Some(nanos)) = listwatch_meta::quantity::nanos(amount) else { return false };
    let millis = nanos / 1_000_000 + i128::from(nanos % 1_000_000 != 0) * nanos.signum();
    millis % 1000 != 0
}

/// Whether a value is displayed as this text. Does not allocate.
fn is_displayed_as(value: impl fmt::Display, text: &str) -> bool {
    struct Rest<'a>(&'a str);
    impl fmt::Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(text);
    fmt::write(&mut rest, format_args!("{value}")).is_ok() && rest.0.is_empty()
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn warnings_of_pod(spec: Value) -> Vec<String> {
        let Value::Object(pod) = json!({"metadata": {"name": "p"}, "spec": spec}) else { unreachable!() };
        let mut warnings = Warnings::default();
        pod::of_pod(&pod, None, &mut warnings);
        warnings.into()
    }

    #[test]
    fn number_of_warnings_and_of_comparisons_is_limited() {
        let port = json!({"containerPort": 80, "protocol": "TCP"});
        let ports: Value = (0..20_000).map(|_| port.clone()).collect();
        let items: Value = (0..20_000).map(|_| json!({"path": "a"})).collect();
        let spec = json!({"containers": [{"name": "c", "ports": ports}],
            "volumes": [{"name": "v", "configMap": {"name": "m", "items": items}}]});
        let found = warnings_of_pod(spec);
        assert_eq!(found.len(), WARNINGS_MAX);
        assert!(!Warnings::default().is_full());
    }

    #[test]
    fn bytes_of_warnings_are_limited() {
        let long = "x".repeat(2 * WARNINGS_BYTES_MAX / 10);
        // Each overlap is one warning that has the path twice, and each value is one that has it once.
        let items: Value = (0..20).map(|_| json!({"path": long})).collect();
        let volume = json!({"volumes": [{"name": "v", "configMap": {"name": "m", "items": items}}]});
        let values: Value = (0..20).map(|_| json!(long)).collect();
        let preferred =
            json!([{"preference": {"matchExpressions": [{"key": "k", "operator": "In", "values": values}]}}]);
        let affinity =
            json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}});
        for (spec, expected) in [(volume, 3), (affinity, 5)] {
            let found = warnings_of_pod(spec);
            assert_eq!(found.len(), expected);
        }
    }

    #[test]
    fn displayed_value_is_compared_as_a_whole() {
        for (text, expected) in [("12", true), ("1", false), ("123", false), ("", false)] {
            assert_eq!(is_displayed_as(12, text), expected, "{text}");
        }
    }

    #[test]
    fn amount_is_fractional_unless_it_is_an_integer() {
        for (amount, expected) in [
            ("1", false),
            ("1Gi", false),
            ("1k", false),
            ("1500m", true),
            ("1u", true),
            ("1001001n", true),
            ("999999999999n", false),
            ("1e3", false),
        ] {
            assert_eq!(is_fractional(amount), expected, "{amount}");
        }
    }
}
