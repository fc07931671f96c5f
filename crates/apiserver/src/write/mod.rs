//! Writes: create, update, patch, delete and deletecollection of one resource, with every rule a
//! client relies on. Knows no HTTP beyond the names of media types.
//!
//! ```text
//!  WriteRequest ─▶ options ─▶ one of ─▶ WriteResponse
//!
//!  create   decode a body          ┐
//!  update   decode a body          │
//!  patch    apply to the object    ├─▶ pipeline
//!  scale    change the replicas    │
//!  apply    merge a configuration  ┘
//!  delete   one optimistic loop: judge (a pure function of state, options and time)
//! ```
//!
//! A body is parsed once into a [`serde_json::Value`] and stored as compact JSON: `kind`, `apiVersion`, `metadata` in
//! Kubernetes' order, then the rest in the client's order. Pure functions decide what an object becomes
//! ([`listwatch_kinds::Strategy`], [`delete`], [`strategic`], [`patch`]); the files that await are thin.

pub(crate) mod admission;
mod binding;
pub(crate) mod cbor;
mod create;
mod decode;
mod delete;
mod document;
mod evict;
mod json_patch;
mod merge_keys;
mod options;
mod ownership;
mod patch;
mod pipeline;
mod place;
mod reviews;
pub(crate) mod scale;
mod services;
mod store;
mod strategic;
mod strict_order;
mod token;
mod typed;
mod unenforced;
mod update;
mod yaml_reader;

use std::sync::Arc;

use bytes::Bytes;
use listwatch_cacher::ReadError;
use listwatch_meta::{Key, KeyRange, Object, Revision, Status};
use listwatch_storage::{Decision, KeyValue, ListQuery};
pub(crate) use listwatch_validation::clock::{Clock, parse_timestamp, timestamp};
use listwatch_wire::list::ListMeta;
use listwatch_wire::query::Query;
use serde_json::{Map, Value};

use crate::auth::User;
use crate::backend::Backend;
use crate::registry::{Resource, Subresource};

pub(crate) use self::document::bytes_max as document_bytes_max;
pub(crate) use self::options::Propagation;
pub(crate) use self::reviews::review;
pub(crate) use self::services::{kubernetes_service_address, service_range};

/// [`check_readable`] lists objects in pages of so many.
const CHECK_PAGE_ITEMS: usize = 500;
/// [`check_readable`] names at most so many keys; the others are left out of the error.
const UNREADABLE_NAMED_MAX: usize = 100;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteVerb {
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH; the media type says which kind.
    Patch,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
}

/// A write, as it came off the wire: routed, its body read (within the size limit), nothing decoded.
#[derive(Debug, Clone)]
pub(crate) struct WriteRequest<'a> {
    pub(crate) verb: WriteVerb,
    pub(crate) resource: &'a Arc<Resource>,
    /// From the path; `None` for cluster-scoped resources and for all-namespaces collections.
    pub(crate) namespace: Option<&'a str>,
    /// From the path; `None` for collections.
    pub(crate) name: Option<&'a str>,
    /// From the path, known to be served by the resource.
    pub(crate) subresource: Option<&'a str>,
    pub(crate) query: &'a Query<'a>,
    /// The `Content-Type` header as sent.
    pub(crate) content_type: Option<&'a str>,
    /// Who writes.
    pub(crate) user: &'a User,
    /// The `User-Agent` header, which names the field manager of a client that names none.
    pub(crate) user_agent: Option<&'a str>,
    pub(crate) body: Bytes,
}

/// A [`WriteRequest`] that borrows nothing, to be carried out on another thread.
#[derive(Debug)]
pub(crate) struct OwnedWriteRequest {
    verb: WriteVerb,
    resource: Arc<Resource>,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
    query: Query<'static>,
    content_type: Option<String>,
    user: User,
    user_agent: Option<String>,
    body: Bytes,
}

impl OwnedWriteRequest {
    /// The request, borrowed.
    pub(crate) fn request(&self) -> WriteRequest<'_> {
        WriteRequest {
            verb: self.verb,
            resource: &self.resource,
            namespace: self.namespace.as_deref(),
            name: self.name.as_deref(),
            subresource: self.subresource.as_deref(),
            query: &self.query,
            content_type: self.content_type.as_deref(),
            user: &self.user,
            user_agent: self.user_agent.as_deref(),
            body: self.body.clone(),
        }
    }
}

impl WriteRequest<'_> {
    /// The same request, which borrows nothing.
    pub(crate) fn to_owned(&self) -> OwnedWriteRequest {
        OwnedWriteRequest {
            verb: self.verb,
            resource: Arc::clone(self.resource),
            namespace: self.namespace.map(str::to_owned),
            name: self.name.map(str::to_owned),
            subresource: self.subresource.map(str::to_owned),
            query: self.query.to_static(),
            content_type: self.content_type.map(str::to_owned),
            user: self.user.clone(),
            user_agent: self.user_agent.map(str::to_owned),
            body: self.body.clone(),
        }
    }

    /// Whether the request has one effect, its last step: until then it can be thrown away and begun again.
    pub(crate) fn has_one_effect(&self) -> bool {
        matches!(self.verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch)
            && !matches!(self.subresource, Some("binding" | "eviction" | "token"))
    }
}

/// What a successful write answers.
#[derive(Debug)]
pub(crate) struct WriteResponse {
    /// 200, 201 or 202.
    pub(crate) code: u16,
    pub(crate) body: WriteBody,
    /// Texts for `Warning: 299 - "..."` headers.
    pub(crate) warnings: Vec<String>,
}

/// The body of a [`WriteResponse`].
#[derive(Debug)]
pub(crate) enum WriteBody {
    /// An object of the resource; may be shown as a Table or as metadata only.
    Object(Object),
    /// Another object (Scale, a dry-run result that has no resource version), as JSON.
    Json(Bytes),
    /// The removed objects of a deletecollection, with the metadata of the list they came from.
    List(ListMeta, Vec<Object>),
    /// A Status.
    Status(Box<Status>),
}

/// A new uid: a random UUID; always the same where the clock is fixed.
fn new_uid(clock: &Clock) -> String {
    if clock.is_fixed() { uuid::Uuid::nil().to_string() } else { uuid::Uuid::new_v4().to_string() }
}

/// Carries out a write.
///
/// # Errors
/// The [`Status`] the client is told.
pub(crate) async fn write(backend: &Arc<Backend>, request: WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let verb = request.verb;
    let mut written = write_at(backend, &request, &Clock::default()).await?;
    written.warnings.extend(unenforced::warning(&request, &written.body));
    // One that is deleted may be gone before anybody looks for it.
    if backend.definitions().is_resource(request.resource)
        && matches!(verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch)
        && let WriteBody::Object(object) = &written.body
    {
        // What was defined is served when its author hears that it was stored.
        backend.definitions().has_settled(object.name(), object.revision()).await;
    }
    Ok(written)
}

/// As [`write()`], with times and ids from `clock`.
async fn write_at(backend: &Backend, request: &WriteRequest<'_>, clock: &Clock) -> Result<WriteResponse, Status> {
    let resource = &**request.resource;
    let unsupported = |verb: &str| Status::verb_not_supported(verb, resource.gr());
    let Some(subresource) = request.subresource else {
        return match request.verb {
            WriteVerb::Create => Box::pin(create::create(backend, request, clock)).await,
            WriteVerb::Delete => Box::pin(delete::delete(backend, request, clock)).await,
            WriteVerb::DeleteCollection => Box::pin(delete::delete_collection(backend, request, clock)).await,
            WriteVerb::Update | WriteVerb::Patch => Box::pin(change(backend, request, None, clock)).await,
        };
    };
    let subresource = resource.subresource(subresource).ok_or_else(Status::no_such_resource)?;
    match request.verb {
        WriteVerb::Delete | WriteVerb::DeleteCollection => Err(unsupported("delete")),
        WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch => {
            Box::pin(change(backend, request, Some(subresource), clock)).await
        }
    }
}

/// PUT, PATCH, and the POSTs that change an object that is there.
async fn change(
    backend: &Backend,
    request: &WriteRequest<'_>,
    subresource: Option<&Subresource>,
    clock: &Clock,
) -> Result<WriteResponse, Status> {
    let registry = backend.registry();
    let manager = ownership::manager(request);
    let write = pipeline::Write {
        backend,
        registry: &registry,
        resource: request.resource,
        subresource,
        namespace: request.namespace,
        name: request.name.unwrap_or_default(),
        dry_run: false,
        decode_errors: match request.verb {
            WriteVerb::Patch => pipeline::DecodeErrorStyle::Patch,
            _ => pipeline::DecodeErrorStyle::Body,
        },
        manager: &manager,
        user: request.user,
        managed_fields: pipeline::ManagedFields::Untracked,
        clock,
    };
    // Which verbs a subresource has was found out when the request was routed.
    match (subresource, request.verb) {
        (Some(Subresource::Binding), WriteVerb::Create) => binding::bind(&write, request).await,
        (Some(Subresource::Eviction), WriteVerb::Create) => evict::post(&write, request).await,
        (Some(Subresource::Token), WriteVerb::Create) => token::issue(&write, request).await,
        (Some(Subresource::Scale { .. }), verb) => scale::write(&write, request, verb == WriteVerb::Patch).await,
        (_, WriteVerb::Update) => update::update(&write, request).await,
        (_, WriteVerb::Patch) => update::patch(&write, request).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// What a built-in loop makes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amendment {
    /// It is to be as the tree is now.
    Write,
    /// It is to be removed.
    Remove,
    /// It stays as it is in the store.
    Leave,
}

/// Changes one object on behalf of a built-in loop, by the same optimistic loop as clients' writes
/// and without their rules. `change` is shown the stored tree and may be called several times; an
/// object that is not there is left alone.
///
/// # Errors
/// A [`Status`] when the store fails or holds something that is no object.
pub(crate) async fn amend(
    backend: &Backend,
    resource: &Resource,
    key: &Key,
    mut change: impl FnMut(&mut Map<String, Value>) -> Amendment,
) -> Result<(), Status> {
    let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
        let Some(found) = found else { return Ok(Decision::Nothing) };
        let old = store::parse(found)?;
        let mut new = old.clone();
        Ok(match change(&mut new) {
            Amendment::Remove => Decision::Delete,
            Amendment::Write if new != old => {
                Decision::Write { value: store::encode(&new), ttl: create::ttl(resource) }
            }
            Amendment::Write | Amendment::Leave => Decision::Nothing,
        })
    };
    let done = store::run(backend, resource, key, false, decide).await?;
    if let store::Done::Deleted { previous, revision: Some(at) } = done {
        services::release_unused(backend, &backend.registry(), resource, &store::parse(&previous)?, None, at).await;
    }
    Ok(())
}

/// Whether an object is stored under a key and its value cannot be read.
pub(crate) async fn is_unreadable(backend: &Backend, key: &Key) -> Result<bool, Status> {
    let (found, _) = backend.storage().get(key).await.map_err(Status::internal)?;
    Ok(found.is_some_and(|found| !store::is_readable(&found.value)))
}

/// Makes sure that all objects in a range can be read, before a built-in loop acts on any of them.
///
/// # Errors
/// What the store says, and 500 with the reason `StorageReadError` when some cannot be read.
pub(crate) async fn check_readable(backend: &Backend, resource: &Resource, range: &KeyRange) -> Result<(), Status> {
    let mut range = range.clone();
    let mut unreadable = Vec::new();
    loop {
        let query = ListQuery { range: range.clone(), at: None, limit: CHECK_PAGE_ITEMS };
        let page = backend.storage().list(query).await.map_err(Status::internal)?;
        let keys = page.items.iter().filter(|item| !store::is_readable(&item.value)).map(|item| item.key.clone());
        unreadable.extend(keys.take(UNREADABLE_NAMED_MAX - unreadable.len()));
        // One page that cannot be read is enough to refuse.
        match page.items.last().filter(|_| page.more && unreadable.is_empty()) {
            Some(last) => range = range.starting_at(&format!("{}\0", last.key)),
            None if unreadable.is_empty() => return Ok(()),
            None => return Err(ReadError::Undecodable { keys: unreadable }.status(resource.gr())),
        }
    }
}

/// What became of an object that a built-in loop removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// It is gone.
    Gone,
    /// Finalizers or a running grace period hold it up.
    Held,
}

/// Removes one object as a client would with `propagationPolicy=Background`.
///
/// # Errors
/// A [`Status`] when it cannot be removed. One that is gone already is [`Removal::Gone`].
pub(crate) async fn remove(backend: &Backend, resource: &Resource, key: &Key) -> Result<Removal, Status> {
    let registry = backend.registry();
    let clock = Clock::default();
    let target = delete::Target { backend, registry: &registry, resource, user: User::admin(), clock: &clock };
    match target.delete(key, &options::DeleteOptions::background()).await {
        Ok(deleted) if deleted.gone => Ok(Removal::Gone),
        Ok(_) => Ok(Removal::Held),
        Err(status) if status.code == 404 => Ok(Removal::Gone),
        Err(status) => Err(status),
    }
}

/// Deletes one object on behalf of the garbage collector, which has seen it with this uid at this
/// revision.
///
/// # Errors
/// 409 when it is another one or was changed since, 404 when it is gone, and whatever else a client's
/// delete is refused with.
pub(crate) async fn collect(
    backend: &Backend,
    resource: &Resource,
    key: &Key,
    (uid, revision): (&str, Revision),
    propagation: Propagation,
) -> Result<(), Status> {
    let registry = backend.registry();
    let clock = Clock::default();
    let target = delete::Target { backend, registry: &registry, resource, user: User::admin(), clock: &clock };
    let options = options::DeleteOptions {
        propagation: Some(propagation),
        uid: Some(uid.to_owned()),
        resource_version: Some(revision.to_string()),
        ..options::DeleteOptions::default()
    };
    target.delete(key, &options).await.map(drop)
}

#[cfg(test)]
mod tests;
