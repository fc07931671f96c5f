//! [`RequestContext`]: the data about a request that all handlers use.

use std::sync::Arc;

use http::HeaderValue;
use http::request::Parts;
use listwatch_meta::UserInfo;
use listwatch_wire::query::Query;

use crate::filters::request_deadline::RequestDeadline;
use crate::flow_control::FlowRequest;
use crate::request::info::RequestInfo;
use crate::response::preferences::ResponsePreferences;
use crate::shared::Shared;

/// A request that has passed all filters.
pub(crate) struct RequestContext<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) parts: &'a Parts,
    pub(crate) info: &'a RequestInfo<'a>,
    pub(crate) query: &'a Query<'a>,
    pub(crate) preferences: &'a ResponsePreferences,
    /// The effective user: the impersonated user, or the sender.
    pub(crate) user: &'a UserInfo,
    /// The name of the user who sent the request. Differs from `user` if the request uses impersonation.
    pub(crate) requester: &'a str,
    /// Whether the server sent the request to itself.
    pub(crate) is_loopback: bool,
    pub(crate) deadline: RequestDeadline,
    /// The id of the request in the audit log.
    pub(crate) audit_id: &'a HeaderValue,
}

impl<'a> RequestContext<'a> {
    /// Returns the data for flow control.
    pub(crate) fn flow(&self) -> FlowRequest<'a> {
        let RequestContext { shared, info, query, user, is_loopback, deadline, .. } = *self;
        FlowRequest { info, user, is_loopback, query, backend: &shared.backend, deadline: deadline.at() }
    }
}
