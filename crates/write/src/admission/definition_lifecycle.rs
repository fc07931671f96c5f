//! Rejects the creation of a custom resource while its CustomResourceDefinition is being deleted
//! (`customresource_handler.go` of apiextensions-apiserver).

use listwatch_meta::Status;

use listwatch_registry::Backend;
use listwatch_registry::Resource;

/// Checks that the definition of a custom resource is not being deleted. Reads the current registry, not the one from
/// the start of the request.
///
/// # Errors
/// 403 when the definition is being deleted, 404 when the definition no longer exists.
pub(crate) fn check_create(backend: &Backend, resource: &Resource, name: &str) -> Result<(), Status> {
    if resource.form.is_none() {
        return Ok(());
    }
    let registry = backend.registry();
    let Some(present) = registry.find(&resource.group, &resource.version, &resource.plural) else {
        return Err(Status::no_such_resource());
    };
    if present.terminating {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(Status::forbidden(resource.gr(), name, why));
    }
    Ok(())
}
