//! NamespaceLifecycle: objects are created only in namespaces that exist and are not being deleted, and the
//! namespaces that a cluster needs cannot be deleted (`plugin/pkg/admission/namespace/lifecycle`).

use listwatch_meta::status::StatusCause;
use listwatch_meta::{Change, GroupResource, Status};

use super::super::store;
use crate::backend::{Backend, CreatingIn};
use crate::registry::{Registry, Resource};

const NAMESPACES: GroupResource<'_> = GroupResource { group: "", resource: "namespaces" };

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Checks that the namespace exists and is not being deleted. Looks into the cache of namespaces first and reads
/// the store only if the cache does not have the namespace. While the caller holds the result, this server does not
/// remove the namespace.
///
/// # Errors
/// 404 when there is no such namespace, 403 when it is being terminated.
pub(in crate::write) async fn check_create<'b>(
    backend: &'b Backend,
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<CreatingIn<'b>>, Status> {
    // A server of custom kinds alone knows no namespaces, and so has none to guard.
    let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(None) };
    let Ok(key) = namespaces.key(None, namespace) else { return Err(Status::not_found(NAMESPACES, namespace)) };
    let cacher = backend.running_cacher(namespaces);
    let cached = || cacher.as_ref().and_then(|cacher| cacher.peek(&key));
    // Who is refused here is never counted: a storm of creations must not hold the namespace up.
    if cached().is_some_and(|cached| cached.is_being_deleted()) {
        return Err(terminating_namespace(resource, namespace, name));
    }
    let creating = backend.creating_in(namespace);
    let terminating = match cached() {
        Some(object) => object.is_being_deleted(),
        None => {
            let (found, _) =
                backend.storage().get(&key).await.map_err(|error| store::read_failed(&error, NAMESPACES))?;
            let found = found.ok_or_else(|| Status::not_found(NAMESPACES, namespace))?;
            store::object(namespaces, &key, found.modified, Change::Added, &found.value)?.is_being_deleted()
        }
    };
    if terminating { Err(terminating_namespace(resource, namespace, name)) } else { Ok(Some(creating)) }
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

/// Refuses to delete the namespaces that a cluster cannot do without.
///
/// # Errors
/// 403 for one of them.
pub(in crate::write) fn check_delete(resource: &Resource, name: &str) -> Result<(), Status> {
    if resource.gr() == NAMESPACES && IMMORTAL.contains(&name) {
        return Err(Status::forbidden(NAMESPACES, name, "this namespace may not be deleted"));
    }
    Ok(())
}
