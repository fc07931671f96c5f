//! Namespaces: the finalizer that holds one until it is empty, and the label with its own name.

use listwatch_meta::FieldError;
use listwatch_meta::selector::validate_qualified_name;
use serde_json::{Value, json};

use crate::Subresource;
use crate::kind::{CreateContext, UpdateContext};
use listwatch_meta::go;
use listwatch_validation::Errors;
use listwatch_validation::Object;
use listwatch_validation::object_meta::{self as meta, FINALIZER_FOREGROUND, FINALIZER_KUBERNETES, FINALIZER_ORPHAN};
use listwatch_validation::{child_mut, metadata, metadata_mut};

/// The label by which a namespace can be selected.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = [FINALIZER_KUBERNETES, FINALIZER_ORPHAN, FINALIZER_FOREGROUND];

/// A new one is held by Kubernetes, whoever else holds it.
pub(crate) fn create(namespace: &mut Object, _: CreateContext<'_>) {
    let spec = child_mut(namespace, "spec");
    let kubernetes = json!(FINALIZER_KUBERNETES);
    match spec.get_mut("finalizers") {
        Some(Value::Array(finalizers)) if finalizers.contains(&kubernetes) => {}
        Some(Value::Array(finalizers)) => finalizers.push(kubernetes),
        _ => {
            spec.insert("finalizers".to_owned(), json!([kubernetes]));
        }
    }
    name_label(namespace);
}

/// What holds it is for `/finalize`.
pub(crate) fn update(new: &mut Object, old: &Object, context: UpdateContext<'_>) {
    if context.subresource.is_none() {
        let kept = old.get("spec").and_then(|spec| spec.get("finalizers")).cloned();
        let spec = child_mut(new, "spec");
        match kept {
            Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers),
            None => spec.shift_remove("finalizers"),
        };
    }
    name_label(new);
}

/// Who holds it is named like any finalizer, and its phase is that of its life.
pub(crate) fn judge(new: &Object, _: &Object, context: UpdateContext<'_>, errors: &mut Errors) {
    let member = |member: &str, name: &str| new.get(member).and_then(|object| object.get(name));
    match context.subresource {
        Some(Subresource::Finalize) => {
            let finalizers = member("spec", "finalizers").and_then(Value::as_array).into_iter().flatten();
            for (position, finalizer) in finalizers.filter_map(Value::as_str).enumerate() {
                self::finalizer(finalizer, &format!("spec.finalizers[{position}]"), errors);
            }
        }
        Some(Subresource::Status) => {
            let phase = member("status", "phase").and_then(Value::as_str).unwrap_or_default();
            let (expected, why) = match meta::is_set(metadata(new), "deletionTimestamp") {
                false => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
                true => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
            };
            if phase != expected {
                errors.push(FieldError::invalid("status.Phase", go::quote(phase), why));
            }
        }
        _ => {}
    }
}

/// `validateFinalizerName`, of one that holds a namespace.
pub(crate) fn finalizer(finalizer: &str, at: &str, errors: &mut Errors) {
    if let Err(why) = validate_qualified_name(finalizer) {
        errors.push(FieldError::invalid(at, go::quote(finalizer), why));
    }
    if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(at, go::quote(finalizer), why));
    }
}

/// The label that carries the namespace's own name.
pub(crate) fn name_label(namespace: &mut Object) {
    let name = meta::text(metadata(namespace), "name").to_owned();
    if !name.is_empty() {
        child_mut(metadata_mut(namespace), "labels").insert(NAME_LABEL.to_owned(), Value::String(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::map;
    use listwatch_meta::UserInfo;

    #[test]
    fn a_namespace_is_held_by_kubernetes_and_whoever_else_says_so() {
        let making = CreateContext { uid: "u", now: "NOW", user: UserInfo::admin() };
        let check = |spec: Value, finalizers: Value| {
            let mut namespace = map(json!({"metadata": {"name": "n"}, "spec": spec}));
            create(&mut namespace, making);
            assert_eq!(namespace["spec"]["finalizers"], finalizers);
            assert_eq!(namespace["metadata"]["labels"], json!({NAME_LABEL: "n"}));
        };
        check(json!({}), json!(["kubernetes"]));
        check(json!({"finalizers": ["kubernetes"]}), json!(["kubernetes"]));
        check(json!({"finalizers": ["example.com/mine"]}), json!(["example.com/mine", "kubernetes"]));
    }

    #[test]
    fn a_namespace_says_who_holds_it_and_how_it_is() {
        let check = |door: Subresource, new: Value, expected: &[&str]| {
            assert_eq!(crate::testing::judged("", "Namespace", new, json!({"metadata": {}}), Some(&door)), expected);
        };
        let held = |by: &[&str]| json!({"metadata": {}, "spec": {"finalizers": by}});
        check(Subresource::Finalize, held(&["kubernetes", "orphan", "example.com/mine"]), &[]);
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        let refused = format!("spec.finalizers[1]: Invalid value: \"mine\": {why}");
        check(Subresource::Finalize, held(&["kubernetes", "mine"]), &[&refused]);
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
