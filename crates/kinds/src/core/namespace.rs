//! Namespace (`v1`): a scope for names.
//!
//! Source: `pkg/registry/core/namespace/strategy.go`, `ValidateNamespace` in `pkg/apis/core/validation`.

use listwatch_json::{Value, json};
use listwatch_meta::FieldError;
use listwatch_meta::go::quote;
use listwatch_meta::selector::validate_qualified_name;
use listwatch_validation::names::NameRule;
use listwatch_validation::object_meta::{FINALIZER_FOREGROUND, FINALIZER_KUBERNETES, FINALIZER_ORPHAN, is_set};
use listwatch_validation::{Errors, Object, child, child_mut, metadata, metadata_mut, text, texts};

use crate::defaults::Default::{In, Text};
use crate::defaults::Defaults;
use crate::kind::StoredText::Always;
use crate::{CreateContext, Deletion, Field, Kind, Subresource, Unenforced, UnenforcedPart, UpdateContext};
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["ns"],
    names: NameRule::Label,
    fields: &[Field::with_default("status.phase", "Active")],
    subresources: &[Subresource::Status, Subresource::Finalize],
    defaults: &DEFAULTS,
    initial_status: || Some(json!({"phase": "Active"})),
    late_defaults: set_name_label,
    stored_texts: &[Always(r#""kubernetes.io/metadata.name":""#), Always(r#""phase":""#)],
    prepare_for_create,
    prepare_for_update,
    begin_deletion,
    holds_deletion: has_finalizers,
    validate,
    validate_transition,
    printer: &PRINTER,
    zero_members: r#""spec":{},"status":{}"#,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Label("pod-security.kubernetes.io/"),
        consequence: "pods are not checked against the Pod Security Standards",
    }),
    returns_deleted: true,
    ..Kind::cluster("", "v1", "namespaces", "Namespace")
};

static DEFAULTS: Defaults = Defaults(&[("status", In(&STATUS_DEFAULTS))]);

static STATUS_DEFAULTS: Defaults = Defaults(&[("phase", Text("Active"))]);

/// The label with the name of the namespace. Selectors use it to select one namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Finalizers that are valid without a domain.
const STANDARD_FINALIZERS: [&str; 3] = [FINALIZER_KUBERNETES, FINALIZER_ORPHAN, FINALIZER_FOREGROUND];

/// Sets the label with the name of the namespace.
fn set_name_label(namespace: &mut Object) {
    let name = text(metadata(namespace), "name").to_owned();
    if !name.is_empty() {
        child_mut(metadata_mut(namespace), "labels").insert(NAME_LABEL, Value::from(name));
    }
}

/// Adds the finalizer `kubernetes` and the name label.
fn prepare_for_create(namespace: &mut Object, _: CreateContext<'_>) {
    let spec = child_mut(namespace, "spec");
    let kubernetes = json!(FINALIZER_KUBERNETES);
    match spec.get_mut("finalizers") {
        Some(Value::Array(finalizers)) if finalizers.contains(&kubernetes) => {}
        Some(Value::Array(finalizers)) => finalizers.push(kubernetes),
        _ => {
            spec.insert("finalizers", json!([kubernetes]));
        }
    }
    set_name_label(namespace);
}

/// Keeps the finalizers, which only `/finalize` changes. Sets the name label.
fn prepare_for_update(new: &mut Object, old: &Object, context: UpdateContext<'_>) {
    if context.subresource.is_none() {
        let kept = old.get("spec").and_then(|spec| spec.get("finalizers")).cloned();
        let spec = child_mut(new, "spec");
        match kept {
            Some(finalizers) => spec.insert("finalizers", finalizers),
            None => spec.shift_remove("finalizers"),
        };
    }
    set_name_label(new);
}

/// Whether the spec has finalizers, which keep the namespace until its objects are deleted.
fn has_finalizers(namespace: &Object) -> bool {
    let finalizers = namespace.get("spec").and_then(|spec| spec.get("finalizers")?.as_array());
    finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

/// Marks a namespace for deletion. The first request only starts the deletion of its objects.
fn begin_deletion(namespace: &mut Object, now: &str) -> Deletion {
    if !is_set(metadata(namespace), "deletionTimestamp") {
        metadata_mut(namespace).insert("deletionTimestamp", Value::from(now));
        child_mut(namespace, "status").insert("phase", Value::from("Terminating"));
        return Deletion::Marked;
    }
    if has_finalizers(namespace) { Deletion::Pending } else { Deletion::Unmarked }
}

/// Validates the finalizers of a new namespace. Later changes go through `/finalize`.
fn validate(namespace: &Object, old: Option<&Object>, errors: &mut Errors) {
    if old.is_none() {
        for finalizer in texts(child(namespace, "spec"), "finalizers") {
            validate_finalizer(finalizer, "spec.finalizers", errors);
        }
    }
}

/// Validates writes of `/finalize` (names of finalizers) and `/status` (the phase, which follows from deletion).
fn validate_transition(new: &Object, _: &Object, context: UpdateContext<'_>, errors: &mut Errors) {
    let member = |member: &str, name: &str| new.get(member).and_then(|object| object.get(name));
    match context.subresource {
        Some(Subresource::Finalize) => {
            let finalizers = member("spec", "finalizers").and_then(Value::as_array).into_iter().flatten();
            for (position, finalizer) in finalizers.filter_map(Value::as_str).enumerate() {
                validate_finalizer(finalizer, &format!("spec.finalizers[{position}]"), errors);
            }
        }
        Some(Subresource::Status) => {
            let phase = member("status", "phase").and_then(Value::as_str).unwrap_or_default();
            let (expected, why) = match is_set(metadata(new), "deletionTimestamp") {
                false => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
                true => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
            };
            if phase != expected {
                errors.push(FieldError::invalid("status.Phase", quote(phase), why));
            }
        }
        _ => {}
    }
}

/// Validates the name of a namespace finalizer (`validateFinalizerName`).
fn validate_finalizer(finalizer: &str, at: &str, errors: &mut Errors) {
    if let Err(why) = validate_qualified_name(finalizer) {
        errors.push(FieldError::invalid(at, quote(finalizer), why));
    }
    if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(at, quote(finalizer), why));
    }
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("Status", "Whether the namespace is active or going away."), AGE],
    cells: |namespace| {
        let phase = namespace.at("status.phase").string_or("Active");
        vec![namespace.name().into(), phase.into(), namespace.age().into()]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};
    use listwatch_meta::UserInfo;

    use crate::testing::{check_defaults, map, transition_errors};
    use crate::{CreateContext, Subresource};

    use super::*;

    #[test]
    fn status_without_phase_is_active() {
        check_defaults(&KIND, json!({}), json!({"status": {"phase": "Active"}}));
        let terminating = json!({"status": {"phase": "Terminating"}});
        check_defaults(&KIND, terminating.clone(), terminating);
    }

    #[test]
    fn new_namespace_gets_the_kubernetes_finalizer_and_name_label() {
        let context = CreateContext { uid: "u", now: "NOW", user: UserInfo::admin() };
        let check = |spec: Value, finalizers: Value| {
            let mut namespace = map(json!({"metadata": {"name": "n"}, "spec": spec}));
            prepare_for_create(&mut namespace, context);
            assert_eq!(namespace["spec"]["finalizers"], finalizers);
            assert_eq!(namespace["metadata"]["labels"], json!({NAME_LABEL: "n"}));
        };
        check(json!({}), json!(["kubernetes"]));
        check(json!({"finalizers": ["kubernetes"]}), json!(["kubernetes"]));
        check(json!({"finalizers": ["example.com/mine"]}), json!(["example.com/mine", "kubernetes"]));
    }

    #[test]
    fn finalize_rejects_invalid_finalizers_and_status_update_rejects_invalid_phases() {
        let check = |subresource: Subresource, new: Value, expected: &[&str]| {
            assert_eq!(transition_errors(&KIND, new, json!({"metadata": {}}), Some(&subresource)), expected);
        };
        let finalizers = |by: &[&str]| json!({"metadata": {}, "spec": {"finalizers": by}});
        check(Subresource::Finalize, finalizers(&["kubernetes", "orphan", "example.com/mine"]), &[]);
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        let refused = format!("spec.finalizers[1]: Invalid value: \"mine\": {why}");
        check(Subresource::Finalize, finalizers(&["kubernetes", "mine"]), &[&refused]);
        let phase = |phase: &str, deleted: Value| json!({"metadata": {"deletionTimestamp": deleted}, "status": {"phase": phase}});
        check(Subresource::Status, phase("Active", Value::Null), &[]);
        check(Subresource::Status, phase("Terminating", json!("NOW")), &[]);
        let early =
            "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty";
        check(Subresource::Status, phase("Terminating", Value::Null), &[early]);
        let late = "status.Phase: Invalid value: \"\": may only be 'Terminating' if `deletionTimestamp` is not empty";
        check(Subresource::Status, phase("", json!("NOW")), &[late]);
    }
}
