//! The models that both OpenAPI versions name, and the version 3 schemas behind the names.

use serde_json::{Map, Value, json};

use super::paths::Kind;
use crate::registry::Resource;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The name of a model of `meta.k8s.io`.
pub(super) fn meta(kind: &str) -> String {
    format!("{META}.{kind}")
}

/// The name of a kind's model: Go's package path for built-ins, the group's domain backwards for
/// custom resources.
pub(super) fn model_name(kind: &Kind, custom: bool) -> String {
    let Kind { group, version, kind } = kind;
    if custom {
        let domain: Vec<&str> = group.rsplit('.').collect();
        return format!("{}.{version}.{kind}", domain.join("."));
    }
    let package = match group.as_str() {
        "" => "io.k8s.api.core",
        "apiextensions.k8s.io" => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
        "apiregistration.k8s.io" => "io.k8s.kube-aggregator.pkg.apis.apiregistration",
        group => {
            let short = group.split('.').next().unwrap_or(group);
            return format!("io.k8s.api.{short}.{version}.{kind}");
        }
    };
    format!("{package}.{version}.{kind}")
}

/// The extension that ties a model or an operation to a kind.
pub(super) const KIND_EXTENSION: &str = "x-kubernetes-group-version-kind";

pub(super) fn kind_value(kind: &Kind) -> Value {
    json!({"group": kind.group, "kind": kind.kind, "version": kind.version})
}

fn reference(model: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{model}")})
}

/// The version 3 schema of a kind. One that brings no schema of its own has metadata and whatever
/// else its objects hold.
pub(super) fn of_kind(kind: &Kind, own: Option<&Value>) -> Value {
    let mut schema = match own {
        Some(Value::Object(own)) => own.clone(),
        _ => {
            let mut open = Map::new();
            open.insert("description".to_owned(), json!(format!("An object of kind {}.", kind.kind)));
            open.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
            open
        }
    };
    schema.insert("type".to_owned(), json!("object"));
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        let type_meta =
            [("apiVersion", "The group and version in which the object is written."), ("kind", "What the object is.")];
        for (name, description) in type_meta {
            properties.insert(name.to_owned(), json!({"description": description, "type": "string"}));
        }
        let metadata = json!({
            "description": "What every object has: its name, labels, owners and so on.",
            "default": {},
            "allOf": [reference(&meta("ObjectMeta"))],
        });
        properties.insert("metadata".to_owned(), metadata);
    }
    schema.insert(KIND_EXTENSION.to_owned(), json!([kind_value(kind)]));
    Value::Object(schema)
}

/// The version 3 schema of a resource's lists.
pub(super) fn of_list(resource: &Resource, model: &str) -> Value {
    json!({
        "description": format!("A list of objects of kind {}.", resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"default": {}, "allOf": [reference(&meta("ListMeta"))]},
            "items": {"type": "array", "items": {"default": {}, "allOf": [reference(model)]}},
        },
        KIND_EXTENSION: [{"group": resource.group, "kind": resource.list_kind, "version": resource.version}],
    })
}

/// The version 3 schemas that every document needs.
pub(super) fn common() -> Vec<(String, Value)> {
    let text = |description: &str| json!({"description": description, "type": "string"});
    let time = |description: &str| json!({"description": description, "type": "string", "format": "date-time"});
    let number = |description: &str| json!({"description": description, "type": "integer", "format": "int64"});
    let texts = |description: &str| {
        let text = json!({"type": "string", "default": ""});
        json!({"description": description, "type": "object", "additionalProperties": text})
    };
    let object_meta = json!({
        "description": "What every object has.",
        "type": "object",
        "properties": {
            "annotations": texts("Notes of tools; not for selecting."),
            "creationTimestamp": time("When the object was created. Set by the server."),
            "deletionGracePeriodSeconds": number("How long the object may take to end. Set by the server."),
            "deletionTimestamp": time("When the object is to be gone. Set by the server when deletion begins."),
            "finalizers": {
                "description": "Who must agree before the object goes.",
                "type": "array",
                "items": {"type": "string", "default": ""},
                "x-kubernetes-list-type": "set",
                "x-kubernetes-patch-strategy": "merge",
            },
            "generateName": text("The beginning of a name that the server completes."),
            "generation": number("Counts the changes of what is wanted. Set by the server."),
            "labels": texts("What selectors select by."),
            "managedFields": {
                "description": "Who manages which fields. Set by the server.",
                "type": "array",
                "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "x-kubernetes-list-type": "atomic",
            },
            "name": text("The name, unique among objects of a kind in a namespace."),
            "namespace": text("Where the name is unique; empty for kinds without namespaces."),
            "ownerReferences": {
                "description": "The objects on which this one depends.",
                "type": "array",
                "items": reference(&meta("OwnerReference")),
                "x-kubernetes-list-map-keys": ["uid"],
                "x-kubernetes-list-type": "map",
                "x-kubernetes-patch-merge-key": "uid",
                "x-kubernetes-patch-strategy": "merge",
            },
            "resourceVersion": text("The state of the object, to be compared for equality only. Set by the server."),
            "selfLink": text("Deprecated, always empty."),
            "uid": text("Tells apart objects that had the same name one after the other. Set by the server."),
        },
    });
    let owner_reference = json!({
        "description": "An object on which another depends.",
        "type": "object",
        "required": ["apiVersion", "kind", "name", "uid"],
        "properties": {
            "apiVersion": text("The owner's group and version."),
            "blockOwnerDeletion": {
                "description": "A foreground deletion of the owner waits for this object.",
                "type": "boolean",
            },
            "controller": {"description": "The owner manages this object.", "type": "boolean"},
            "kind": text("What the owner is."),
            "name": text("The owner's name."),
            "uid": text("The owner's uid."),
        },
        "x-kubernetes-map-type": "atomic",
    });
    let list_meta = json!({
        "description": "What every list has.",
        "type": "object",
        "properties": {
            "continue": text("The token of the next page."),
            "remainingItemCount": number("How many objects are on later pages, if that is known."),
            "resourceVersion": text("The state of the list: a watch can begin here."),
            "selfLink": text("Deprecated, always empty."),
        },
    });
    let status = json!({
        "description": "What became of a request that did not answer with an object.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "code": {"description": "The HTTP status code.", "type": "integer", "format": "int32"},
            "details": {
                "description": "More about the reason.",
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
            },
            "kind": {"type": "string"},
            "message": text("The reason for people."),
            "metadata": {"default": {}, "allOf": [reference(&meta("ListMeta"))]},
            "reason": text("The reason for programs."),
            "status": text("`Success` or `Failure`."),
        },
        KIND_EXTENSION: [{"group": "", "kind": "Status", "version": "v1"}],
    });
    let open = |description: &str| {
        json!({
            "description": description,
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
        })
    };
    vec![
        (meta("DeleteOptions"), open("How to delete.")),
        (meta("ListMeta"), list_meta),
        (meta("ObjectMeta"), object_meta),
        (meta("OwnerReference"), owner_reference),
        (meta("Patch"), json!({"description": "A patch; its form is that of its media type."})),
        (meta("Status"), status),
    ]
}
