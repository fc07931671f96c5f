//! HTTP without a Kubernetes client library, because a case selects the protocol, the connection, the encoding and each
//! header.

mod body;
mod events;
mod session;
mod target;
mod websocket;

pub(crate) use self::body::{decode, encode};
pub(crate) use self::events::{Event, EventDecoder, Stream};
pub(crate) use self::session::{Exchange, Outgoing, SendError, Session, StreamResponse};
pub use self::target::{HttpVersion, Target, TargetError};
pub(crate) use self::websocket::{events as websocket_events, handshake_headers as websocket_headers};
