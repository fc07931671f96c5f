//! The request and the response of a write.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use listwatch_admission::AdmissionRecorder;
use listwatch_meta::{Object, Status, UserInfo};
use listwatch_registry::Resource;
use listwatch_wire::list::ListMeta;
use listwatch_wire::query::Query;

/// The verb of a write, from the HTTP method and the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteVerb {
    /// POST: creates an object or runs an action such as a binding.
    Create,
    /// PUT: replaces an object or a subresource.
    Update,
    /// PATCH: changes an object or a subresource. The media type selects the patch type.
    Patch,
    /// DELETE: removes one object.
    Delete,
    /// DELETE of a collection: removes the selected objects.
    DeleteCollection,
}

impl WriteVerb {
    /// The verb as authorizers see it.
    pub fn as_str(self) -> &'static str {
        match self {
            WriteVerb::Create => "create",
            WriteVerb::Update => "update",
            WriteVerb::Patch => "patch",
            WriteVerb::Delete => "delete",
            WriteVerb::DeleteCollection => "deletecollection",
        }
    }
}

/// A write request: routed and received within the size limit, but not decoded.
#[derive(Debug, Clone)]
pub struct WriteRequest<'a> {
    /// The verb, which selects the operation.
    pub verb: WriteVerb,
    /// The resource in the path.
    pub resource: &'a Arc<Resource>,
    /// The namespace in the path; `None` for cluster-scoped resources and for collections of all namespaces.
    pub namespace: Option<&'a str>,
    /// The name in the path; `None` for collections.
    pub name: Option<&'a str>,
    /// The subresource in the path, which the resource serves.
    pub subresource: Option<&'a str>,
    /// The query parameters.
    pub query: &'a Query<'a>,
    /// The `Content-Type` header as sent.
    pub content_type: Option<&'a str>,
    /// The authenticated user.
    pub user: &'a UserInfo,
    /// The `User-Agent` header, from which the field manager is derived if the query does not set it.
    pub user_agent: Option<&'a str>,
    /// The body as sent.
    pub body: Bytes,
}

/// The context of a write in addition to the request. The context stays the same if the write is restarted on another
/// thread.
#[derive(Debug, Default)]
pub struct WriteContext {
    /// The time at which the write must be complete; `None` for no limit. Webhooks receive the remaining time.
    pub deadline: Option<Instant>,
    /// Collects the warnings and the audit annotations of admission plugins, including those of a rejected write.
    pub recorder: AdmissionRecorder,
}

/// A [`WriteRequest`] with owned data, for another thread.
#[derive(Debug)]
pub struct OwnedWriteRequest {
    verb: WriteVerb,
    resource: Arc<Resource>,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
    query: Query<'static>,
    content_type: Option<String>,
    user: UserInfo,
    user_agent: Option<String>,
    body: Bytes,
}

impl OwnedWriteRequest {
    /// Returns a [`WriteRequest`] that borrows from this value.
    pub fn request(&self) -> WriteRequest<'_> {
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
    /// Copies the request, so that another thread can handle it.
    pub fn to_owned(&self) -> OwnedWriteRequest {
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

    /// Whether the request has a single effect, in its last step. Before that step, the write can be discarded and
    /// restarted.
    pub fn has_one_effect(&self) -> bool {
        matches!(self.verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch)
            && !matches!(self.subresource, Some("binding" | "eviction" | "token"))
    }
}

/// The response to a successful write.
#[derive(Debug)]
pub struct WriteResponse {
    /// The HTTP status code: 200, 201 or 202.
    pub code: u16,
    /// The body of the response.
    pub body: WriteBody,
    /// The texts of the warnings. Each becomes a header `Warning: 299 - "..."`.
    pub warnings: Vec<String>,
}

/// The body of a [`WriteResponse`].
#[derive(Debug)]
pub enum WriteBody {
    /// An object of the resource. The HTTP layer may render it as a Table or as metadata only.
    Object(Object),
    /// An object of the resource that a dry run would create, as JSON without a resource version. The HTTP layer may
    /// render it like [`WriteBody::Object`].
    DryRun(Bytes),
    /// An object of another kind as JSON, e.g. a Scale.
    Json(Bytes),
    /// The removed objects of a deletecollection, with the metadata of their list.
    List(ListMeta, Vec<Object>),
    /// A Status, such as the response to a delete.
    Status(Box<Status>),
}
