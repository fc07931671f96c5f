//! The parts of a request: [`RequestInfo`](info::RequestInfo), route, headers and body.

pub(crate) mod body_budget;
pub(crate) mod client_address;
pub(crate) mod forwarded_headers;
pub(crate) mod info;
pub(crate) mod routing;
pub(crate) mod upload;
pub(crate) mod websocket;
