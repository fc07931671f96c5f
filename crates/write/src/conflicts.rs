//! The conflicts of a write with the object that exists: preconditions, resource versions and taken names.

use listwatch_json::Map;
use listwatch_meta::{Key, Status};
use listwatch_registry::Resource;
use listwatch_storage::KeyValue;
use listwatch_validation::metadata;
use listwatch_validation::object_meta as meta;

use super::store;

/// Whether the object has a resource version above zero. Like kube-apiserver, ignores a version that is not a number.
pub(super) fn claims_version(metadata: &Map) -> bool {
    meta::text(metadata, "resourceVersion").parse::<u64>().is_ok_and(|version| version > 0)
}

/// Checks a precondition as upstream's storage layer does. `what` is `UID` or `ResourceVersion`.
///
/// # Errors
/// 409 if the value is not the wanted one (`Preconditions.Check` of `pkg/storage`).
pub(super) fn check_precondition(
    resource: &Resource,
    key: &Key,
    what: &str,
    wanted: Option<&str>,
    found: &str,
) -> Result<(), Status> {
    match wanted {
        Some(wanted) if wanted != found => Err(Status::conflict(
            resource.gr(),
            key.name(),
            format_args!(
                "StorageError: invalid object, Code: 4, Key: /registry{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
            ),
        )),
        _ => Ok(()),
    }
}

/// Returns the 409 for an existing object of this name (`CheckGeneratedNameError`).
pub(super) fn already_exists(resource: &Resource, name: &str, has_generate_name: bool, current: &KeyValue) -> Status {
    let mut status = Status::already_exists(resource.gr(), name);
    if has_generate_name {
        status.message.push_str(", the server was not able to generate a unique name for the object");
        status = status.retry_after(1);
    }
    let deleting = store::parse(current).is_ok_and(|object| meta::is_set(metadata(&object), "deletionTimestamp"));
    if deleting {
        status.message.insert_str(0, "object is being deleted: ");
    }
    status
}
