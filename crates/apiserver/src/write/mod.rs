//! Writes: create, update, patch, delete and deletecollection of one resource, with every rule a
//! client relies on. Knows no HTTP beyond the names of media types.

use std::sync::Arc;

use bytes::Bytes;
use listwatch_meta::{Object, Status};
use listwatch_wire::query::Query;

use crate::backend::Backend;
use crate::registry::Resource;

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
#[derive(Debug)]
pub(crate) struct WriteRequest<'a> {
    pub(crate) verb: WriteVerb,
    pub(crate) resource: &'a Arc<Resource>,
    /// From the path; `None` for cluster-scoped resources and for all-namespaces collections.
    pub(crate) namespace: Option<&'a str>,
    /// From the path; `None` for collections.
    pub(crate) name: Option<&'a str>,
    /// From the path, known to be served by the resource.
    pub(crate) subresource: Option<&'a str>,
    pub(crate) query: &'a Query,
    /// The `Content-Type` header as sent.
    pub(crate) content_type: Option<&'a str>,
    pub(crate) user_agent: Option<&'a str>,
    pub(crate) body: Bytes,
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
    /// The removed objects of a deletecollection.
    List(Vec<Object>),
    /// A Status.
    Status(Status),
}

/// Carries out a write.
///
/// # Errors
/// The [`Status`] the client is told.
pub(crate) async fn write(backend: &Arc<Backend>, request: WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let _ = (backend, request);
    Err(Status::unavailable("writes are not served"))
}
