//! NamespaceLifecycle: rejects the creation of objects in namespaces that do not exist or are being deleted.
//! Also rejects the deletion of required namespaces (`plugin/pkg/admission/namespace/lifecycle`).

use std::sync::LazyLock;
use std::time::Duration;

use listwatch_meta::status::StatusCause;
use listwatch_meta::{Change, GroupResource, Key, Status};
use memchr::{memchr, memmem};

use super::super::store;
use listwatch_registry::{Backend, CreatingIn};
use listwatch_registry::{Registry, Resource};

const NAMESPACES: GroupResource<'_> = GroupResource { group: "", resource: "namespaces" };

/// Maximum age of a namespace check. If the check of a create is older, the create reads the namespace from the store
/// again directly before the store write. The namespace controller waits twice as long before it removes an empty
/// namespace. A slow create therefore cannot leave an object in a removed namespace.
pub const NAMESPACE_RECHECK: Duration = Duration::from_secs(1);

/// The names of the namespaces that cannot be deleted.
const PROTECTED_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Checks that the namespace exists and is not being deleted. Reads the cache of namespaces first, and the store only
/// on a cache miss. While the caller holds the result, this server does not remove the namespace.
///
/// # Errors
/// 404 when the namespace does not exist, 403 when the namespace is being deleted.
pub(crate) async fn check_create<'b>(
    backend: &'b Backend,
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<CreatingIn<'b>>, Status> {
    // A server of custom resources alone serves no namespaces, so there is nothing to check.
    let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(None) };
    let Ok(key) = namespaces.key(None, namespace) else { return Err(Status::not_found(NAMESPACES, namespace)) };
    let cacher = backend.running_cacher(namespaces);
    let cached = || cacher.as_ref().and_then(|cacher| cacher.peek(&key));
    // Rejected creations are not counted, so a stream of them cannot delay the removal of the namespace.
    if cached().is_some_and(|cached| cached.is_being_deleted()) {
        return Err(terminating_namespace(resource, namespace, name));
    }
    let creating = backend.creating_in(namespace);
    let terminating = match cached() {
        Some(object) => object.is_being_deleted(),
        None => is_stored_terminating(backend, namespaces, &key).await?,
    };
    if terminating { Err(terminating_namespace(resource, namespace, name)) } else { Ok(Some(creating)) }
}

/// Checks that the namespace of a POST to a subresource exists and is not being deleted. Such a POST creates no object,
/// so it need not delay the removal of the namespace. Reads the store only if the cache has no such namespace.
///
/// # Errors
/// 404 when the namespace does not exist, 403 when the namespace is being deleted.
pub(crate) async fn check_post(
    backend: &Backend,
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), Status> {
    let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(()) };
    let Ok(key) = namespaces.key(None, namespace) else { return Err(Status::not_found(NAMESPACES, namespace)) };
    let cached = backend.running_cacher(namespaces).and_then(|cacher| cacher.peek(&key));
    match cached.map(|cached| cached.is_being_deleted()) {
        Some(false) => Ok(()),
        Some(true) => Err(terminating_namespace(resource, namespace, name)),
        None => check_stored(backend, registry, resource, namespace, name).await,
    }
}

/// Checks in the store that the namespace exists and is not being deleted.
///
/// # Errors
/// 404 when the namespace does not exist, 403 when the namespace is being deleted.
pub(crate) async fn check_stored(
    backend: &Backend,
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), Status> {
    let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(()) };
    let Ok(key) = namespaces.key(None, namespace) else { return Err(Status::not_found(NAMESPACES, namespace)) };
    match is_stored_terminating(backend, namespaces, &key).await? {
        true => Err(terminating_namespace(resource, namespace, name)),
        false => Ok(()),
    }
}

/// Whether the stored namespace is being deleted.
async fn is_stored_terminating(backend: &Backend, namespaces: &Resource, key: &Key) -> Result<bool, Status> {
    let found = backend.storage().get(key).await;
    let (found, _) = found.map_err(|error| store::read_failed(&error, NAMESPACES))?;
    let found = found.ok_or_else(|| Status::not_found(NAMESPACES, key.name()))?;
    if !can_have_deletion_timestamp(&found.value) {
        return Ok(false);
    }
    Ok(store::object(namespaces, key, found.modified, Change::Added, &found.value)?.is_being_deleted())
}

/// Whether a stored object may have the field `deletionTimestamp`. Returns false for JSON without escapes that does not
/// contain this name. The namespace of most creates therefore need not be parsed.
fn can_have_deletion_timestamp(value: &[u8]) -> bool {
    static NAME: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new("deletionTimestamp"));
    let is_object = value.starts_with(b"{") && value.ends_with(b"}");
    !is_object || memchr(b'\\', value).is_some() || NAME.find(value).is_some()
}

fn terminating_namespace(resource: &Resource, namespace: &str, name: &str) -> Status {
    let why = format_args!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut status = Status::forbidden(resource.gr(), name, why);
    if let Some(details) = &mut status.details {
        details.causes.push(StatusCause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        });
    }
    status
}

/// Rejects the deletion of the namespaces `default`, `kube-system` and `kube-public`.
///
/// # Errors
/// 403 for each of these namespaces.
pub(crate) fn check_delete(resource: &Resource, name: &str) -> Result<(), Status> {
    if resource.gr() == NAMESPACES && PROTECTED_NAMESPACES.contains(&name) {
        return Err(Status::forbidden(NAMESPACES, name, "this namespace may not be deleted"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::can_have_deletion_timestamp;

    #[test]
    fn namespace_that_may_have_a_deletion_timestamp_is_parsed() {
        for read_in_full in [
            r#"{"metadata":{"name":"a","deletionTimestamp":"2026-01-01T00:00:00Z"}}"#,
            r#"{"metadata":{"name":"a","\u0064eletionTimestamp":"2026-01-01T00:00:00Z"}}"#,
            r#"{"metadata":{"name":"a""#,
            "k8s\0",
            "",
        ] {
            assert!(can_have_deletion_timestamp(read_in_full.as_bytes()), "{read_in_full}");
        }
        assert!(!can_have_deletion_timestamp(br#"{"metadata":{"name":"a"},"status":{"phase":"Active"}}"#));
    }
}
