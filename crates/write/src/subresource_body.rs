//! POSTs of kinds that are not resources: decodes the body, builds the response, and sets pod conditions.

use listwatch_json::{Map, Value, json};
use listwatch_meta::Status;
use listwatch_validation::object_meta::text;
use listwatch_validation::{metadata, metadata_mut};

use super::admission::namespace_lifecycle;
use super::decode::{decode, set_namespace};
use super::expected::Expected;
use super::options::Options;
use super::pipeline::Write;
use super::request::{WriteBody, WriteRequest, WriteResponse};

/// Returns a 201 with a success Status and the warnings.
pub(super) fn success(warnings: Vec<String>) -> WriteResponse {
    let mut status = Status::failure(201, "", "");
    status.status = "Success".into();
    WriteResponse { code: 201, body: WriteBody::Status(Box::new(status)), warnings }
}

/// The decoded body of a POST, and its create options.
pub(super) struct SubresourceBody {
    pub(super) object: Map,
    pub(super) options: Options,
    pub(super) warnings: Vec<String>,
}

/// Decodes the body of a POST whose kind need not be registered, and passes it to the admission plugins. The first of
/// them is NamespaceLifecycle.
///
/// # Errors
/// 400 or 415 for a body that does not decode as the expected kind, 422 for invalid options; 404 if the namespace does
/// not exist, 403 if it is being deleted; the error of the first plugin that rejects the object.
pub(super) async fn body(
    write: &Write<'_>,
    request: &WriteRequest<'_>,
    expected: Expected<'_>,
) -> Result<SubresourceBody, Status> {
    let options = Options::parse("CreateOptions", request.query)?;
    let decoded = decode(write.registry, expected, request.content_type, &request.body, options.field_validation)?;
    let mut object = decoded.object;
    set_namespace(write.resource, request.namespace, metadata_mut(&mut object))?;
    if let Some(namespace) = write.namespace.filter(|_| write.resource.namespaced) {
        // The name for a POST to `bindings` is in the body.
        let named = [write.name, text(metadata(&object), "name")].into_iter().find(|name| !name.is_empty());
        let name = named.unwrap_or_default();
        namespace_lifecycle::check_post(write.backend, write.registry, write.resource, namespace, name).await?;
    }
    write.admit_post(expected, &mut object, options.dry_run).await?;
    Ok(SubresourceBody { object, options, warnings: decoded.warnings })
}

/// Replaces the condition of the same type, or appends the condition.
pub(super) fn set_condition(status: &mut Map, condition: Value) {
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if let Value::Array(conditions) = conditions {
        listwatch_kinds::conditions::put(conditions, condition);
    }
}
