//! [`ClientAddress`]: the address of the client, which the listener adds to each request.

use std::net::IpAddr;

use http::request::Parts;

/// The address from which a client connected. In-process requests have no address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// Returns the address of the client of a request.
pub(crate) fn client_address(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<ClientAddress>().map(|address| address.0)
}
