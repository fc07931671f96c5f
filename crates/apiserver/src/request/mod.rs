//! Request processing: facts, routes and bodies.

pub(crate) mod body_budget;
pub(crate) mod client_address;
pub(crate) mod forwarded_headers;
pub(crate) mod info;
pub(crate) mod routing;
pub(crate) mod upload;
pub(crate) mod websocket;
