//! ControllerRevision (`apps/v1`): a former state of a DaemonSet or StatefulSet.
//!
//! Source: `ValidateControllerRevisionCreate` in `pkg/apis/apps/validation` and `printControllerRevision` of Kubernetes
//! v1.36.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{immutable, not_negative};
use listwatch_validation::{Errors, Object};

use crate::Kind;
use listwatch_printers::Printer;
use listwatch_printers::text::NONE;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    // The data of a revision is an object of any form.
    keeps_nulls: true,
    validate,
    validate_update,
    printer: &PRINTER,
    ..Kind::namespaced("apps", "v1", "controllerrevisions", "ControllerRevision")
};

/// Validates a revision (`ValidateControllerRevisionCreate`). Updates do not check the data again.
fn validate(revision: &Object, old: Option<&Object>, errors: &mut Errors) {
    not_negative(revision, &["revision"], &Path::NIL, errors);
    if old.is_some() {
        return;
    }
    match revision.get("data") {
        None | Some(Value::Null) => errors.required(&Path::root("data"), "data is mandatory"),
        Some(Value::Object(_)) => {}
        Some(_) => errors.required(&Path::root("data"), "data must be a valid JSON object"),
    }
}

/// Reports changed data.
fn validate_update(new: &Object, old: &Object, errors: &mut Errors) {
    immutable(new, old, "", "data", errors);
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Controller", "The object whose history this is."),
        Column::text("Revision", "The number of this state."),
        AGE,
    ],
    cells: |revision| {
        let owners = revision.at("metadata.ownerReferences").items();
        let controller = owners.iter().find(|owner| owner.get("controller").bool() == Some(true));
        let controller = controller.map_or_else(
            || NONE.to_owned(),
            |owner| {
                let version = owner.get("apiVersion").string();
                let group = version.split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
                format!("{}{group}", owner.get("kind").string()).to_lowercase() + "/" + &owner.get("name").string()
            },
        );
        let number = revision.get("revision").int().unwrap_or(0);
        vec![revision.name().into(), controller.into(), number.into(), revision.age().into()]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;
    use crate::testing::map;

    #[test]
    fn update_rejects_changed_data_of_a_controller_revision() {
        let errors = |old: Value, new: Value| -> Vec<String> {
            let mut errors = Errors::default();
            (KIND.validate_update)(&map(json!({"data": new})), &map(json!({"data": old})), &mut errors);
            errors.iter().map(listwatch_meta::FieldError::to_string).collect()
        };
        assert_eq!(errors(json!({"a": 1}), json!({"a": 1})), [""; 0]);
        let changed = errors(json!({"a": 1}), json!({"a": 2}));
        assert!(changed.len() == 1 && changed[0].starts_with("data: Invalid value: "), "{changed:?}");
        assert!(changed[0].ends_with(": field is immutable"), "{changed:?}");
    }
}
