//! A gRPC client over HTTP/2 streams of the `h2` crate, with one task for each connection: [`Channel`].
//!
//! ```text
//!   Channel::unary ──────┐                                     ┌─▶ task of the connection ──▶ socket
//!   Channel::streaming ──┴─▶ an HTTP/2 stream for each call ───┘   (frames, flow control, pings)
//! ```
//!
//! A call writes its request to its HTTP/2 stream and reads the response from the stream. A client with queues between the
//! call and the connection wakes several tasks for each call. Where calls are small, this is most of their cost.
//!
//! Source of the protocol: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>. Messages are not compressed.
//! A call has no time limit of its own; dropping its future cancels it.
//!
//! # Example
//! ```
//! use std::time::Duration;
//! use listwatch_grpc::{Channel, Code, Connector, Settings};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! // No server listens on this port.
//! let connector = Connector::new("127.0.0.1:1".parse()?, None, Duration::from_secs(5));
//! let channel = Channel::new(connector, Settings::default());
//! let status = channel.unary::<()>("/grpc.health.v1.Health/Check", &(), &[]).await.unwrap_err();
//! assert_eq!(status.code, Code::Unavailable);
//! assert!(status.unsent, "the request may be repeated at another server");
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod call;
mod channel;
mod connection;
mod connector;
mod frame;
mod status;
#[cfg(test)]
mod tests;

pub use http::uri::Authority;
pub use http::{HeaderValue, Uri};

pub use self::call::{Answers, Metadata, Requests};
pub use self::channel::Channel;
pub use self::connection::Settings;
pub use self::connector::{Connector, TlsSource};
pub use self::status::{Code, Status, error_chain};
