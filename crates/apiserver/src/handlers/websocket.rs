//! Watches over WebSocket, for browsers: the handshake ([`accept`]) and the connection after it ([`run`]). HTTP/1.1
//! only.
//!
//! ```text
//!  GET, Upgrade: websocket ─▶ 101 ─▶ WatchStream ── frame ──▶ one message (text or binary)
//!                                    client ── ping ──▶ pong; close ──▶ close, and the watch ends
//! ```
//!
//! Other messages of the client are discarded. A connection is closed if the client accepts no byte within
//! [`WRITE_TIMEOUT`]. Until then, the connection keeps its buffers and one event in memory.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_TYPE, HeaderName, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use listwatch_wire::media_type::Encoding;
use listwatch_wire::protobuf;
use listwatch_wire::websocket::{self, Accepted, Decoder, Kind, Message, Refused, Upgrade};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use crate::request::websocket::protocols;
use crate::response::body::Body;
use crate::response::watch_stream::WatchStream;

/// Maximum number of concurrent watches over WebSocket. Further requests receive a 429.
pub(crate) const WEBSOCKETS_MAX: usize = 10_000;
/// The time limit for a client to accept one message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(120);
/// The buffer of a read from the client, in bytes.
const READ_BUFFER_BYTES: usize = 1024;
/// The close code for a normal closure (RFC 6455).
const NORMAL: u16 = 1000;

/// Accepts the handshake with a 101 response.
///
/// # Errors
/// The response that rejects the handshake.
pub(crate) fn accept(headers: &HeaderMap) -> Result<Response<Body>, Response<Body>> {
    let one = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let offered = protocols(headers);
    let offered = match websocket::bearer_token(&offered) {
        Ok(Some((_, others))) => others,
        _ => offered,
    };
    let upgrade = Upgrade {
        key: one(&SEC_WEBSOCKET_KEY),
        version: one(&SEC_WEBSOCKET_VERSION),
        origin: one(&ORIGIN),
        protocols: Some(&offered),
    };
    let Accepted { accept, protocol } = upgrade.check().map_err(refusal)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let out = response.headers_mut();
    out.insert(UPGRADE, HeaderValue::from_static("websocket"));
    out.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    for (name, value) in [(SEC_WEBSOCKET_ACCEPT, Some(accept)), (SEC_WEBSOCKET_PROTOCOL, protocol)] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            out.insert(name, value);
        }
    }
    Ok(response)
}

fn refusal(refused: Refused) -> Response<Body> {
    let mut response = Response::new(Body::full(refused.body));
    *response.status_mut() = StatusCode::from_u16(refused.code).unwrap_or(StatusCode::BAD_REQUEST);
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if refused.names_version {
        out.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    }
    response
}

/// Serves a watch on a connection that is upgraded to WebSocket. `_slot` is freed when the watch ends.
pub(crate) async fn run(upgrade: OnUpgrade, stream: WatchStream, encoding: Encoding, _slot: OwnedSemaphorePermit) {
    let io = match upgrade.await {
        Ok(upgraded) => TokioIo::new(upgraded),
        Err(error) => return debug!(%error, "an upgrade to WebSocket failed"),
    };
    if let Err(error) = serve(io, stream, encoding).await {
        debug!(%error, "a WebSocket ended");
    }
}

async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin,
    mut stream: WatchStream,
    encoding: Encoding,
) -> std::io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(io);
    let mut decoder = Decoder::discarding();
    let mut buffer = [0_u8; READ_BUFFER_BYTES];
    loop {
        let end = tokio::select! {
            frame = std::future::poll_fn(|cx| stream.poll_message(cx)) => match frame {
                Some(frame) => {
                    let message = if encoding == Encoding::Protobuf { protobuf::message_of_frame(&frame) } else { frame };
                    send(&mut writer, Kind::of(encoding), &message).await?;
                    None
                }
                None => Some(NORMAL),
            },
            read = reader.read(&mut buffer) => match read? {
                0 => return Ok(()),
                bytes => {
                    decoder.feed(&buffer[..bytes]);
                    answer_messages(&mut decoder, &mut writer).await?
                }
            },
        };
        if let Some(code) = end {
            write(&mut writer, &websocket::close(code, "", None)).await?;
            return tokio::time::timeout(WRITE_TIMEOUT, writer.shutdown()).await?;
        }
    }
}

/// Responds to the messages of the client. Returns the close code if a message ends the connection.
async fn answer_messages(
    decoder: &mut Decoder,
    writer: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<Option<u16>> {
    loop {
        match decoder.next_message() {
            Ok(None) => return Ok(None),
            Ok(Some(Message::Ping(payload))) => write(writer, &websocket::pong(&payload, None)).await?,
            Ok(Some(Message::Close(_))) => return Ok(Some(NORMAL)),
            Ok(Some(_)) => {}
            Err(error) => return Ok(Some(error.close_code())),
        }
    }
}

async fn send(writer: &mut (impl AsyncWrite + Unpin), kind: Kind, payload: &Bytes) -> std::io::Result<()> {
    let head = kind.head(payload.len());
    let mut message = bytes::Buf::chain(head.as_ref(), payload.clone());
    let sent = async {
        writer.write_all_buf(&mut message).await?;
        writer.flush().await
    };
    tokio::time::timeout(WRITE_TIMEOUT, sent).await?
}

async fn write(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    let sent = async {
        writer.write_all(bytes).await?;
        writer.flush().await
    };
    tokio::time::timeout(WRITE_TIMEOUT, sent).await?
}
