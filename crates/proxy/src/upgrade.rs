//! Upgrades (SPDY/3.1, WebSocket) over HTTP/1.1: the handshake is relayed, then bytes are copied both ways.
//!
//! ```text
//!  dial ─▶ handshake ─┬─ 101 ─────────▶ 101 to the client ─▶ relay
//!                     ├─ 400 and above ▶ response to the client, its body bounded
//!                     └─ other ────────▶ ProxyErrorKind::InvalidUpgrade
//! ```
//!
//! Rules: `apimachinery/pkg/util/proxy/upgradeaware.go:tryUpgrade`. Upstream ends both directions when one ends; here
//! the other one may finish (`Limits::half_closed_timeout`).

use std::sync::Arc;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tracing::debug;

use crate::body::{BodyFailure, BoxError, ProxyBody, request_body};
use crate::destination::Destination;
use crate::error::{ProxyError, ProxyErrorKind};
use crate::forward::{respond, response_text};
use crate::headers;
use crate::limits::Limits;
use crate::proxy::Shared;
use crate::relay::relay;
use crate::slots::SlotLimit;

/// Relays the handshake of an upgrade, and starts the copy of the bytes.
pub(crate) async fn upgrade<B>(
    shared: &Arc<Shared>,
    mut request: Request<B>,
    to: &Destination,
) -> Result<Response<ProxyBody>, ProxyError>
where
    B: Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let limits = Arc::clone(&shared.limits);
    let client = request.extensions_mut().remove::<OnUpgrade>();
    let client = client.ok_or_else(|| ProxyError::upgrade(ProxyErrorKind::NotUpgradable))?;
    let slot = shared.upgrades.take(&to.authority()).map_err(|limit| {
        ProxyError::upgrade(match limit {
            SlotLimit::Total(max) => ProxyErrorKind::TooManyUpgrades(max),
            SlotLimit::Backend(max) => ProxyErrorKind::TooManyUpgradesToBackend(max),
        })
    })?;
    let header_timeout = to.header_timeout.unwrap_or(limits.header_timeout);
    let shaking = handshake(request, to, &limits);
    let mut response = match tokio::time::timeout(header_timeout, shaking).await {
        Ok(response) => response.map_err(ProxyError::upgrade)?,
        Err(_) => return Err(ProxyError::upgrade(ProxyErrorKind::HeaderTimeout { after: header_timeout })),
    };
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        return match status.as_u16() {
            400.. => {
                let (parts, body) = response.into_parts();
                let mut headers = parts.headers;
                headers::prepare_response(&mut headers);
                Ok(respond(status, headers, ProxyBody::bounded(body, limits.refusal_bytes_max, limits.refusal_timeout)))
            }
            code => Err(ProxyError::upgrade(ProxyErrorKind::InvalidUpgrade(code))),
        };
    }
    let backend = hyper::upgrade::on(&mut response);
    let copying = async move {
        // The limit must not count an upgrade without a connection.
        let both = async { tokio::join!(client, backend) };
        match tokio::time::timeout(limits.refusal_timeout, both).await {
            Ok((Ok(client), Ok(backend))) => {
                let (client, backend) = (TokioIo::new(client), TokioIo::new(backend));
                let end = relay(client, backend, limits.upgrade_idle_timeout, limits.half_closed_timeout).await;
                debug!(?end, "an upgraded connection ended");
            }
            Ok((Err(error), _) | (_, Err(error))) => debug!(%error, "an upgrade did not complete"),
            Err(_) => debug!("an upgrade did not complete in time"),
        }
        drop(slot);
    };
    {
        let mut relays = shared.relays.lock();
        while relays.try_join_next().is_some() {}
        relays.spawn(copying);
    }
    Ok(respond(status, response.into_parts().0.headers, ProxyBody::from(bytes::Bytes::new())))
}

/// Sends the upgrade request over a new connection.
async fn handshake<B>(
    request: Request<B>,
    to: &Destination,
    limits: &Limits,
) -> Result<Response<Incoming>, ProxyErrorKind>
where
    B: Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = request.into_parts();
    let invalid = |error: String| ProxyErrorKind::InvalidLocation(error);
    parts.uri = to.path_and_query.parse::<Uri>().map_err(|error| invalid(error.to_string()))?;
    parts.version = Version::HTTP_11;
    parts.extensions = http::Extensions::new();
    headers::prepare_upgrade(&mut parts.headers);
    headers::append_forwarded_for(&mut parts.headers, to.client_address);
    headers::set_forwarded(&mut parts.headers, &to.external, to.path());
    headers::replace(&mut parts.headers, &to.headers);
    // The HTTP library frames the body itself.
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    let host = match &to.host_header {
        Some(host) => host.clone(),
        None => HeaderValue::try_from(to.authority()).map_err(|error| invalid(error.to_string()))?,
    };
    parts.headers.insert(HOST, host);

    let io = to.transport.dialer().connect(&to.host, to.port).await?;
    let failed = |error: hyper::Error| ProxyErrorKind::Response(response_text(&error));
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(limits.header_bytes_max.max(8 * 1024))
        .max_headers(limits.header_lines_max)
        .handshake(TokioIo::new(io))
        .await
        .map_err(failed)?;
    // The task ends when the response body or the upgraded connection is dropped.
    tokio::spawn(connection.with_upgrades());
    let failure = BodyFailure::default();
    let request = Request::from_parts(parts, request_body(body, Arc::clone(&failure)));
    match sender.send_request(request).await {
        Ok(response) => Ok(response),
        Err(error) => Err(match failure.lock().take() {
            Some(text) => ProxyErrorKind::RequestBody(text),
            None => failed(error),
        }),
    }
}
