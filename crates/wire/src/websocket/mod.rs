//! WebSocket (RFC 6455) for watches, without I/O: the handshake as header values, and messages as
//! bytes, for clients and servers.
//!
//! ```text
//!   request headers ── Upgrade::check ──▶ 101 with Accepted, or Refused
//!   client's bytes  ── Decoder ─────────▶ Message (unmasked, whole; ping to be answered by pong)
//!   watch frame     ── Kind::head ──────▶ head, then the frame's own shared bytes
//! ```
//!
//! In a watch of kube-apiserver (apiserver `endpoints/handlers/watch.go`, `HandleWS`), each event
//! is one message. JSON is a text message: the document with its newline. Protobuf (without the
//! length) and CBOR are binary messages. Messages of the client are discarded
//! ([`Decoder::discarding`]), and a ping is answered by a pong. The client's close, or a deadline,
//! ends the watch with a close of code 1000. There is no compression and no other extension.
//!
//! This crate does not use `tungstenite` or `fastwebsockets`, because they read and write the
//! stream themselves, and copy every payload to a buffer per connection. A watch sends bytes that
//! ten thousand connections share, and needs only the header of up to ten bytes before them. The
//! tests compare this module with `tungstenite`.

mod codec;
mod handshake;

pub use codec::{Close, Decoder, Error, Head, Kind, MESSAGE_LIMIT_BYTES, Message, Role, close, frame, mask, pong};
pub use handshake::{Accepted, BearerError, Refused, Upgrade, bearer_token, is_upgrade};
