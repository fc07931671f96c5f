//! RuntimeClass (`node.k8s.io/v1`): a container runtime that pods can choose.
//!
//! Source: `pkg/registry/node/runtimeclass`, `pkg/apis/node/validation`.

use std::collections::{BTreeSet, HashSet};

use listwatch_json::{Map, Value, json};
use listwatch_meta::FieldError;
use listwatch_schema::Path;
use listwatch_validation::field_rules::immutable;
use listwatch_validation::formats::{self, label};
use listwatch_validation::pod_spec;
use listwatch_validation::{Errors, Object, given, items, objects, text};

use crate::{Kind, Unenforced, UnenforcedPart};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    create_on_update: true,
    validate,
    validate_update,
    warnings: listwatch_kind_warnings::node::of_runtime_class,
    printer: &PRINTER,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Object,
        consequence: "its overhead and scheduling are not added to pods",
    }),
    ..Kind::cluster("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass")
};

/// Validates a class (`ValidateRuntimeClass`).
fn validate(class: &Object, _: Option<&Object>, errors: &mut Errors) {
    match text(class, "handler") {
        "" => errors.required(&Path::root("handler"), ""),
        handler => label(handler, &Path::root("handler"), errors),
    }
    if let Some(Value::Object(overhead)) = given(class, "overhead") {
        let mut limits = Map::new();
        limits.insert("limits", overhead.get("podFixed").cloned().unwrap_or_default());
        pod_spec::container_resources(&limits, &BTreeSet::new(), &Path::root("overhead"), errors);
    }
    let Some(Value::Object(scheduling)) = given(class, "scheduling") else { return };
    let at = Path::root("scheduling");
    formats::labels(scheduling, "nodeSelector", &at.child("nodeSelector"), errors);
    let at = at.child("tolerations");
    pod_spec::tolerations(items(scheduling, "tolerations"), &at, errors);
    let mut seen = HashSet::new();
    for (position, toleration) in objects(scheduling, "tolerations") {
        let [key, operator, value, effect] = ["key", "operator", "value", "effect"].map(|name| text(toleration, name));
        if !seen.insert((key, operator, value, effect)) {
            let shown = json!({"Key": key, "Operator": operator, "Value": value, "Effect": effect,
                "TolerationSeconds": toleration.get("tolerationSeconds")});
            errors.push(FieldError::duplicate(at.index(position), shown));
        }
    }
}

/// Reports a changed handler (`ValidateRuntimeClassUpdate`).
fn validate_update(new: &Object, old: &Object, errors: &mut Errors) {
    immutable(new, old, "", "handler", errors);
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("Handler", "The runtime's handler for pods of this class."), AGE],
    cells: |class| vec![class.name().into(), class.get("handler").string().into(), class.age().into()],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::map;

    #[test]
    fn update_validates_the_whole_class() {
        let old = map(json!({"handler": "runc"}));
        for (name, value, expected) in [
            ("overhead", json!({"podFixed": {"cpu": "-1"}}), "overhead.limits[cpu]"),
            ("scheduling", json!({"nodeSelector": {"a b": "c"}}), "scheduling.nodeSelector"),
            ("handler", json!("a b"), "handler"),
        ] {
            let mut new = old.clone();
            new.insert(name, value);
            let mut errors = Errors::default();
            validate(&new, Some(&old), &mut errors);
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, [expected]);
        }
    }
}
