//! Watches over WebSocket (RFC 6455): one message per event.

use base64::Engine as _;
use bytes::Bytes;
use http::HeaderMap;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use listwatch_wire::Encoding;
use listwatch_wire::websocket::{self, Decoder, Message, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use super::events::{Received, Stream, decode};
use super::session::{SendError, StreamResponse};

/// The headers of the handshake (RFC 6455, section 4.1). The API server requires `Origin`.
pub(crate) fn handshake_headers() -> Vec<(String, String)> {
    let key = base64::engine::general_purpose::STANDARD.encode(rand::random::<[u8; 16]>());
    [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", &key),
        ("Origin", "http://localhost"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// Takes over the connection of a 101 response, and reads its events.
pub(crate) async fn events(response: StreamResponse) -> Result<(HeaderMap, Stream), SendError> {
    let headers = response.headers.clone();
    let upgraded = hyper::upgrade::on(response.response).await;
    let upgraded = upgraded.map_err(|error| SendError::Failed(format!("the upgrade failed: {error}")))?;
    Ok((headers, Stream::spawn(|events| read(upgraded, events))))
}

async fn read(upgraded: Upgraded, events: mpsc::Sender<Received>) {
    if let Err(why) = read_messages(upgraded, &events).await {
        let _ = events.try_send(Err(why));
    }
}

async fn read_messages(upgraded: Upgraded, events: &mpsc::Sender<Received>) -> Result<(), String> {
    let mut connection = TokioIo::new(upgraded);
    let mut decoder = Decoder::new(Role::Client);
    let mut buffer = vec![0; 64 << 10];
    loop {
        while let Some(message) = decoder.next_message().map_err(|error| error.to_string())? {
            let (encoding, frame): (Encoding, Bytes) = match message {
                Message::Text(text) => (Encoding::Json, text),
                Message::Binary(bytes) if bytes.starts_with(&[0xd9, 0xd9, 0xf7]) => (Encoding::Cbor, bytes),
                Message::Binary(bytes) => (Encoding::Protobuf, bytes),
                Message::Ping(payload) => {
                    let pong = websocket::pong(&payload, Some(rand::random()));
                    connection.write_all(&pong).await.map_err(|error| error.to_string())?;
                    continue;
                }
                Message::Pong(_) => continue,
                Message::Close(_) => {
                    let close = websocket::close(1000, "", Some(rand::random()));
                    let _ = connection.write_all(&close).await;
                    return Ok(());
                }
            };
            let event = decode(encoding, &frame)?;
            if events.try_send(Ok(event)).is_err() {
                return Ok(());
            }
        }
        let count = match connection.read(&mut buffer).await {
            Ok(count) => count,
            Err(error) => return Err(format!("the connection broke off: {error}")),
        };
        if count == 0 {
            // kube-apiserver may end a watch without a close frame.
            return Ok(());
        }
        decoder.feed(&buffer[..count]);
    }
}
