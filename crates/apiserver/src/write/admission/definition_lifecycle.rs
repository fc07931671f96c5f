//! Objects of a custom resource are created only while its definition is not being deleted
//! (`customresource_handler.go` of apiextensions-apiserver).

use listwatch_meta::Status;

use crate::backend::Backend;
use crate::registry::Resource;

/// Checks that the definition of a custom resource is not on its way out: what is served now counts,
/// not what was served when the request came.
///
/// # Errors
/// 403 when it is being deleted, 404 when it is gone.
pub(in crate::write) fn check_create(backend: &Backend, resource: &Resource, name: &str) -> Result<(), Status> {
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
