//! POST of an object.

use listwatch_meta::status::reason;
use listwatch_meta::{Key, Status};
use listwatch_validation::names;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};
use serde_json::Value;

use super::decode::{Decoded, Expected, decode};
use super::options::Options;
use super::ownership;
use super::pipeline::{Absent, Base, DecodeErrorStyle, ManagedFields, Write};
use super::store::{self, Done};
use super::{Clock, WriteRequest, WriteResponse};
use crate::backend::Backend;
use crate::registry::Resource;

/// How often a name is made from `generateName` before giving up
/// (`maxNameGenerationCreateAttempts`).
const GENERATED_NAMES_MAX: usize = 8;

/// After which time objects of this resource remove themselves.
pub(super) fn ttl(resource: &Resource) -> Option<std::time::Duration> {
    resource.rules.ttl_seconds.map(std::time::Duration::from_secs)
}

/// Creates an object.
///
/// # Errors
/// The [`Status`] the client is told.
pub(super) async fn create(
    backend: &Backend,
    request: &WriteRequest<'_>,
    clock: &Clock,
) -> Result<WriteResponse, Status> {
    let resource = &**request.resource;
    let registry = backend.registry();
    let options = Options::parse("CreateOptions", request.query)?;
    let decode_body = || -> Result<Decoded, Status> {
        let expected = Expected::of(resource);
        let mut decoded = decode(&registry, expected, request.content_type, &request.body, options.field_validation)?;
        place(resource, request.namespace, metadata_mut(&mut decoded.object))?;
        decoded.warnings.extend(meta::dedup_owners(metadata_mut(&mut decoded.object)));
        Ok(decoded)
    };
    let Decoded { mut object, mut warnings } = decode_body()?;
    warnings.extend(resource.strategy.warnings(&object, None));
    let given = meta::text(metadata(&object), "name").to_owned();
    let base = meta::text(metadata(&object), "generateName").to_owned();
    let generates = given.is_empty() && !base.is_empty();
    let manager = ownership::manager(request);
    let write = Write {
        backend,
        registry: &registry,
        resource,
        subresource: None,
        namespace: request.namespace,
        name: &given,
        dry_run: options.dry_run,
        decode_errors: DecodeErrorStyle::Body,
        manager: &manager,
        user: request.user,
        managed_fields: ManagedFields::Untracked,
        clock,
    };
    let mut attempts = if generates { GENERATED_NAMES_MAX } else { 1 };
    loop {
        attempts -= 1;
        let name = if generates { names::generate(&base, |below| rand::random_range(0..below)) } else { given.clone() };
        let absent = Absent::Post { generated_name: generates.then_some(name.as_str()) };
        // Only a colliding generated name is tried again, so the copy is as rare.
        let mut first = Some(if attempts == 0 { std::mem::take(&mut object) } else { object.clone() });
        let change = |_: Option<Base<'_>>| match first.take() {
            Some(object) => Ok(object),
            None => Ok(decode_body()?.object),
        };
        match create_named(&write, request.namespace, &name, absent, change).await {
            Ok((key, done)) => return done.response(resource, &key, warnings),
            Err(status) if attempts > 0 && status.reason == reason::ALREADY_EXISTS => {}
            Err(status) => return Err(status),
        }
    }
}

/// Creates the object of this name. If the name cannot be in a key, validation says what is wrong with the object.
async fn create_named(
    write: &Write<'_>,
    namespace: Option<&str>,
    name: &str,
    absent: Absent<'_>,
    change: impl FnMut(Option<Base<'_>>) -> Result<serde_json::Map<String, Value>, Status> + Send,
) -> Result<(Key, Done), Status> {
    match write.resource.key(namespace, name) {
        Ok(key) => {
            let done = write.run(&key, None, absent, change).await?;
            Ok((key, done))
        }
        Err(status) => {
            let key = write.resource.key(namespace, "unnamed")?;
            let write = Write { dry_run: true, ..*write };
            write.run(&key, None, absent, change).await?;
            Err(status)
        }
    }
}

/// Puts the object where the path says it belongs: one that has no namespace by its scope loses what
/// its body says (`EnsureObjectNamespaceMatchesRequestNamespace` of `pkg/registry/rest/meta.go`).
///
/// # Errors
/// 400 when the body says it belongs elsewhere.
pub(super) fn place(
    resource: &Resource,
    namespace: Option<&str>,
    metadata: &mut serde_json::Map<String, Value>,
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

/// 409: an object of this name exists.
pub(super) fn already_exists(
    resource: &Resource,
    name: &str,
    generated: bool,
    current: &listwatch_storage::KeyValue,
) -> Status {
    let mut status = Status::already_exists(resource.gr(), name);
    if generated {
        status.message.push_str(", the server was not able to generate a unique name for the object");
        return status.retry_after(1);
    }
    let deleting = store::parse(current).is_ok_and(|object| meta::is_set(metadata(&object), "deletionTimestamp"));
    if deleting {
        status.message.insert_str(0, "object is being deleted: ");
    }
    status
}
