//! Namespaces: the finalizer that holds one until it is empty, and the label with its own name.

use serde_json::{Value, json};

use super::{Making, Object, Part};
use crate::write::metadata::{self as meta, FINALIZER_KUBERNETES};
use crate::write::store::{child_mut, metadata, metadata_mut};

/// The label by which a namespace can be selected.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A new one is held by Kubernetes, whoever else holds it.
pub(super) fn create(namespace: &mut Object, _: Making<'_>) {
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
pub(super) fn update(new: &mut Object, old: &Object, part: Part<'_>) {
    if part.subresource.is_none() {
        let kept = old.get("spec").and_then(|spec| spec.get("finalizers")).cloned();
        let spec = child_mut(new, "spec");
        match kept {
            Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers),
            None => spec.shift_remove("finalizers"),
        };
    }
    name_label(new);
}

/// The label that carries the namespace's own name.
pub(in crate::write) fn name_label(namespace: &mut Object) {
    let name = meta::text(metadata(namespace), "name").to_owned();
    if !name.is_empty() {
        child_mut(metadata_mut(namespace), "labels").insert(NAME_LABEL.to_owned(), Value::String(name));
    }
}

#[cfg(test)]
mod tests {
    use super::super::map;
    use super::*;
    use crate::auth::User;

    #[test]
    fn a_namespace_is_held_by_kubernetes_and_whoever_else_says_so() {
        let making = Making { uid: "u", now: "NOW", user: User::admin() };
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
}
