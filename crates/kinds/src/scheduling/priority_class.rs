//! PriorityClass (`scheduling.k8s.io/v1`): a named priority for pods.
//!
//! Source: `pkg/registry/scheduling/priorityclass`, `pkg/apis/scheduling/validation`.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{immutable, one_of};
use listwatch_validation::{Errors, Object, child, is_true, metadata_mut, number, text};

use crate::Kind;
use crate::defaults::Default::Text;
use crate::defaults::Defaults;
use crate::kind::StoredText::Always;
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["pc"],
    defaults: &DEFAULTS,
    stored_texts: &[Always(r#""preemptionPolicy":""#)],
    // Upstream sets the generation once and never increments it.
    prepare_for_create: |class, _| drop(metadata_mut(class).insert("generation", Value::from(1))),
    validate,
    validate_update,
    printer: &PRINTER,
    ..Kind::cluster("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
};

static DEFAULTS: Defaults = Defaults(&[("preemptionPolicy", Text("PreemptLowerPriority"))]);

/// The largest priority of a class that a user defines (`HighestUserDefinablePriority`).
const PRIORITY_MAX: i64 = 1_000_000_000;
/// The classes that every cluster has, with their values.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// Validates a new class (`ValidatePriorityClass`). Updates have other rules.
fn validate(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    if old.is_some() {
        return;
    }
    let name = text(child(class, "metadata"), "name");
    let value = number(class, "value").unwrap_or(0);
    if name.starts_with("system-") {
        let why = match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, known)) if *known != value => Some(format!("value of {name} PriorityClass must be {known}")),
            Some(_) => {
                is_true(class, "globalDefault").then(|| format!("globalDefault of {name} PriorityClass must be false"))
            }
        };
        if let Some(why) = why {
            let at = Path::root("metadata");
            let reserved = "priority class names with 'system-' prefix are reserved for system use only. error: ";
            errors.forbidden(&at.child("name"), &format!("{reserved}{why}"));
        }
    } else if value > PRIORITY_MAX {
        let why = format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
        errors.forbidden(&Path::root("value"), &why);
    }
    one_of(class, "preemptionPolicy", &["PreemptLowerPriority", "Never"], &Path::NIL, errors);
}

/// Reports a changed value or preemption policy (`ValidatePriorityClassUpdate`).
fn validate_update(new: &Object, old: &Object, errors: &mut Errors) {
    if number(new, "value").unwrap_or(0) != number(old, "value").unwrap_or(0) {
        errors.forbidden(&Path::root("value"), "may not be changed in an update.");
    }
    immutable(new, old, "", "preemptionPolicy", errors);
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::integer("Value", "The priority that pods of this class get."),
        Column::boolean("Global-Default", "Whether pods without a class get this one."),
        AGE,
        Column::text("PreemptionPolicy", "Whether pods of this class may displace others."),
    ],
    cells: |class| {
        vec![
            class.name().into(),
            class.get("value").int().unwrap_or(0).into(),
            class.get("globalDefault").bool().unwrap_or(false).into(),
            class.age().into(),
            class.get("preemptionPolicy").string_or("PreemptLowerPriority").into(),
        ]
    },
};
