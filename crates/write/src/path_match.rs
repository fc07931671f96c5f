//! Checks that the body of a request agrees with the path.

use listwatch_meta::Status;
use listwatch_registry::Resource;
use listwatch_validation::object_meta as meta;
use serde_json::{Map, Value};

/// Sets the namespace from the path, or removes it from cluster-scoped objects
/// (`EnsureObjectNamespaceMatchesRequestNamespace` of `pkg/registry/rest/meta.go`).
///
/// # Errors
/// 400 when the body names another namespace.
pub(super) fn set_namespace(
    resource: &Resource,
    namespace: Option<&str>,
    metadata: &mut Map<String, Value>,
) -> Result<(), Status> {
    let Some(namespace) = namespace.filter(|_| resource.namespaced) else {
        metadata.shift_remove("namespace");
        return Ok(());
    };
    let given = meta::text(metadata, "namespace");
    if given.is_empty() {
        metadata.insert("namespace".to_owned(), Value::String(namespace.to_owned()));
    } else if given != namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Checks that the name in the body is the name in the path.
///
/// # Errors
/// 400 when the name in the body is missing or different.
pub(super) fn check_name(metadata: &Map<String, Value>, expected: &str) -> Result<(), Status> {
    match meta::text(metadata, "name") {
        name if name == expected => Ok(()),
        "" => Err(Status::bad_request(format!(
            "the name of the object ({expected} based on URL) was undeterminable: name must be provided"
        ))),
        name => Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({expected})"
        ))),
    }
}
