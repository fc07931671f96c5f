//! The headers of a WebSocket handshake that filters read before the handler accepts it (RFC 6455, section 4.2).

use http::header::{CONNECTION, HeaderName, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Version};
use listwatch_wire::websocket::{self, BearerError};

/// Whether a request has the headers of an upgrade to WebSocket.
pub(crate) fn is_upgrade_request(parts: &Parts) -> bool {
    let one = |name: &HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    parts.version <= Version::HTTP_11 && websocket::is_upgrade(one(&UPGRADE), one(&CONNECTION))
}

/// Returns the subprotocols that a client offers, with all headers joined.
pub(crate) fn protocols(headers: &HeaderMap) -> String {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    values.filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",")
}

/// Returns the bearer token among the subprotocols. Browsers send the token there, because they cannot set headers.
///
/// # Errors
/// [`BearerError`] for a malformed token.
pub(crate) fn bearer_token(headers: &HeaderMap) -> Result<Option<String>, BearerError> {
    // A header that is not text may have a token, which is then malformed.
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    Ok(websocket::bearer_token(&values.collect::<Vec<_>>().join(","))?.map(|(token, _)| token))
}
