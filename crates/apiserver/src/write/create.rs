//! POST of an object.

use listwatch_meta::{Change, Status, fuel};
use listwatch_storage::{CreateError, StoreFault};
use serde_json::Value;

use super::admission::{NoPriority, PriorityClass};
use super::decode::{Expected, cannot_handle, decode};
use super::options::Options;
use super::ownership::{self, Sent};
use super::store;
use super::{Clock, WriteBody, WriteRequest, WriteResponse, admission, new_uid, prepare, services};
use crate::backend::Backend;
use crate::compute;
use crate::crd::strategy;
use crate::registry::Resource;
use listwatch_kinds::CreateContext;
use listwatch_validation::names;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};

/// How often a name is made from `generateName` before giving up
/// (`maxNameGenerationCreateAttempts`).
const GENERATED_NAMES_MAX: usize = 8;

/// After which time objects of this resource remove themselves.
pub(super) fn ttl(resource: &Resource) -> Option<std::time::Duration> {
    resource.strategy.ttl_seconds.map(std::time::Duration::from_secs)
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
    let expected = Expected::of(resource);
    let decoded = decode(&registry, expected, request.content_type, &request.body, options.field_validation)?;
    let (mut object, mut warnings) = (decoded.object, decoded.warnings);

    place(resource, request.namespace, metadata_mut(&mut object))?;
    warnings.extend(meta::dedup_owners(metadata_mut(&mut object)));
    if strategy::is_definition(resource) {
        warnings.extend(strategy::warnings(&object));
    }
    if resource.custom {
        warnings.extend(meta::finalizer_warnings(metadata(&object), &[]));
    }
    let given = meta::text(metadata(&object), "name").to_owned();
    let _inside = match request.namespace.filter(|_| resource.namespaced) {
        Some(namespace) => admission::namespace_is_open(backend, &registry, resource, namespace, &given).await?,
        None => None,
    };
    let _creating = resource.creating();
    admission::definition_is_open(backend, resource, &given)?;
    let sent = Sent::of(resource, &object);
    prepare::complete(resource, &mut object).map_err(|why| cannot_handle(&object, expected, &why))?;
    ownership::account_for_new(&registry, resource, &mut object, &sent, &ownership::manager(request), clock);
    prepare::keep(resource, &mut object).map_err(|why| cannot_handle(&object, expected, &why))?;
    let mut class = None;
    while let Err(missing) = admission::set_priority(resource, &mut object, &given, class.as_ref()) {
        match missing {
            NoPriority::Unknown(name) => {
                class = Some(PriorityClass::look_up(backend, &registry, &name, (resource, &given)).await?);
            }
            NoPriority::Refused(status) => return Err(*status),
        }
    }

    let base = meta::text(metadata(&object), "generateName").to_owned();
    let generated = given.is_empty() && !base.is_empty();
    let version_given = claims_a_version(metadata(&object));
    let mut attempts = if generated { GENERATED_NAMES_MAX } else { 1 };
    loop {
        attempts -= 1;
        if generated {
            let name = names::generate(&base, |below| rand::random_range(0..below));
            metadata_mut(&mut object).insert("name".to_owned(), Value::String(name));
        }
        // Only a colliding generated name comes back here, so the copy is as rare as that.
        let mut attempt = if attempts == 0 { std::mem::take(&mut object) } else { object.clone() };
        let (uid, now) = (new_uid(clock), clock.now());
        prepare::create(resource, &mut attempt, CreateContext { uid: &uid, now: &now, user: request.user })?;
        admission::signer_may_be_asked(resource, &attempt)?;
        if version_given {
            return Err(Status::unknown("resourceVersion should not be set on objects to be created"));
        }
        let name = meta::text(metadata(&attempt), "name").to_owned();
        let key = resource.key(request.namespace, &name)?;
        // A computation that was cut short has no effect.
        if fuel::is_exhausted() {
            return Err(compute::timed_out());
        }
        let claim = services::claim_for_new(backend, &registry, resource, &mut attempt, options.dry_run, clock).await?;
        resource.to_stored(&mut attempt);
        let mut value = store::encode(&attempt);

        let mut written = if options.dry_run {
            match backend.storage().get(&key).await {
                Ok((None, _)) => {
                    store::check_size(&value)?;
                    let body = WriteBody::Json(resource.shown_json(value));
                    return Ok(WriteResponse { code: 201, body, warnings });
                }
                Ok((Some(current), _)) => Err(CreateError::AlreadyExists { key: key.clone(), current }),
                Err(error) => return Err(store::read_failed(&error, resource.gr())),
            }
        } else {
            backend.storage().create(&key, value.clone(), ttl(resource)).await
        };
        if let Err(CreateError::Fault(StoreFault::TooLarge(_))) = &written
            && ownership::forget(&mut attempt)
        {
            value = store::encode(&attempt);
            written = backend.storage().create(&key, value.clone(), ttl(resource)).await;
        }
        let error = match written {
            Ok(revision) => {
                let object = store::object(resource, &key, revision, Change::Added, &value)?;
                return Ok(WriteResponse { code: 201, body: WriteBody::Object(object), warnings });
            }
            Err(error) => error,
        };
        match &error {
            CreateError::Fault(fault) => claim.release_after(backend, fault).await,
            // It may be this very object: the store was asked again when it did not answer.
            CreateError::AlreadyExists { current, .. } => match store::parse(current) {
                Ok(current) => claim.keep_used(backend, &current).await,
                Err(_) => claim.release(backend).await,
            },
        }
        match error {
            CreateError::Fault(fault) => return Err(store::store_failed("create", &fault, resource.gr())),
            CreateError::AlreadyExists { .. } if attempts > 0 => {}
            CreateError::AlreadyExists { current, .. } => {
                return Err(already_exists(resource, &name, generated, &current));
            }
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

/// A version that is no number is no version: kube-apiserver looks away, and so do we.
fn claims_a_version(metadata: &serde_json::Map<String, Value>) -> bool {
    meta::text(metadata, "resourceVersion").parse::<u64>().is_ok_and(|version| version > 0)
}

fn already_exists(resource: &Resource, name: &str, generated: bool, current: &listwatch_storage::KeyValue) -> Status {
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
