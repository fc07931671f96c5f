//! WebSocket (RFC 6455), as far as a watch needs it: the handshake as values of headers, and messages as
//! bytes, for both ends, without a socket.
//!
//! ```text
//!   request headers ── Upgrade::check ──▶ 101 with Accepted, or Refused
//!   client's bytes  ── Decoder ─────────▶ Message (unmasked, whole; ping to be answered by pong)
//!   watch frame     ── Kind::head ──────▶ head, then the frame's own shared bytes
//! ```
//!
//! kube-apiserver serves a watch so (apiserver `endpoints/handlers/watch.go`, `HandleWS`): one message
//! per event, text for JSON (the document with its newline) and binary for protobuf (without its
//! length) and CBOR; what the client sends is read and dropped ([`Decoder::discarding`]); a ping is
//! answered; the client's close, or a deadline, ends the watch with a close of code 1000. There is no
//! compression and no other extension.
//!
//! Our own codec and not a crate's: `tungstenite` (and `fastwebsockets`) tie their frames to a stream
//! they read and write themselves and copy every payload into a buffer per connection; a watch sends
//! bytes that ten thousand connections share, so it wants the ten bytes in front and nothing else. What
//! is left to write is this module; `tungstenite` is its judge in the tests.

mod codec;
mod handshake;

pub use codec::{Close, Decoder, Error, Head, Kind, MESSAGE_LIMIT_BYTES, Message, Role, close, frame, mask, pong};
pub use handshake::{Accepted, BearerError, Refused, Upgrade, bearer_token, is_upgrade};
