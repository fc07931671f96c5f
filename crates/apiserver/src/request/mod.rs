//! Request processing: facts, routes, bodies, and the limit on requests in flight.

pub(crate) mod body_budget;
pub(crate) mod client_address;
pub(crate) mod forwarded_headers;
#[cfg_attr(not(feature = "serve"), expect(dead_code, reason = "connections track what they send"))]
pub(crate) mod in_flight;
pub(crate) mod info;
pub(crate) mod routing;
pub(crate) mod upload;
pub(crate) mod websocket;
