//! The part of gRPC that etcd needs, over HTTP/2 streams of the `h2` crate: [`Channel`].
//!
//! ```text
//!   Channel::unary ──────┐                                   ┌─▶ task of the connection ──▶ socket
//!   Channel::streaming ──┴─▶ one HTTP/2 stream for each call ─┘   (pings, flow control)
//! ```
//!
//! A call writes its request to its HTTP/2 stream and reads the response from the stream. The only other task is that of
//! the connection. A client with queues between the call and the connection wakes several tasks for each call, which is
//! most of the cost of a small request to etcd.
//!
//! Source of the protocol: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>. Messages are not compressed.

mod call;
mod channel;
mod connection;
mod frame;
mod status;
#[cfg(test)]
mod tests;

pub(super) use self::call::{Answers, Requests};
pub(super) use self::channel::Channel;
pub(super) use self::connection::Settings;
pub(super) use self::status::{Code, Status};
