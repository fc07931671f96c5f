//! May an object be created in its namespace? (admission plugin NamespaceLifecycle)

use listwatch_meta::status::StatusCause;
use listwatch_meta::{GroupResource, Status};

use super::store;
use crate::backend::Backend;
use crate::registry::{Registry, Resource};

const NAMESPACES: GroupResource<'_> = GroupResource { group: "", resource: "namespaces" };

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Checks that the namespace exists and is not on its way out. Looks into the namespaces' cache
/// first and asks the store only when that knows nothing of the namespace.
///
/// # Errors
/// 404 when there is no such namespace, 403 when it is being terminated.
pub(super) async fn namespace_is_open(
    backend: &Backend,
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), Status> {
    // A server of custom kinds alone knows no namespaces, and so has none to guard.
    let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(()) };
    let Ok(key) = namespaces.key(None, namespace) else { return Err(Status::not_found(NAMESPACES, namespace)) };
    let cached = backend.running_cacher(namespaces).and_then(|cacher| cacher.peek(&key));
    let terminating = match cached {
        Some(object) => object.is_being_deleted(),
        None => {
            let (found, _) =
                backend.storage().get(&key).await.map_err(|error| store::read_failed(&error, NAMESPACES))?;
            let found = found.ok_or_else(|| Status::not_found(NAMESPACES, namespace))?;
            let object = store::parse(&found)?;
            super::metadata::is_set(store::metadata(&object), "deletionTimestamp")
        }
    };
    if terminating { Err(terminating_namespace(resource, namespace, name)) } else { Ok(()) }
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
pub(super) fn namespace_may_go(name: &str) -> Result<(), Status> {
    if IMMORTAL.contains(&name) {
        return Err(Status::forbidden(NAMESPACES, name, "this namespace may not be deleted"));
    }
    Ok(())
}
