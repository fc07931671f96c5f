//! Replaces [`super::tls`] without the feature `tls`: every `https://` server is rejected.

use std::io;

use tokio::net::TcpStream;

use super::Protocols;
use crate::config::{ConfigError, TlsOptions};

/// The client side of TLS, which is not compiled in.
#[derive(Clone)]
pub(super) enum Tls {}

/// A placeholder for a TLS connection.
pub(super) type TlsStream = TcpStream;

impl Tls {
    pub(super) fn offering(_: &str, _: TlsOptions, _: Protocols) -> Result<Self, ConfigError> {
        Err(ConfigError::Unsupported {
            what: "an https:// server".to_owned(),
            advice: "; build listwatch-client with the feature `tls`".to_owned(),
        })
    }

    pub(super) async fn connect(&self, _: TcpStream) -> io::Result<TlsStream> {
        match *self {}
    }
}

/// The TCP connection below, and whether the server chose HTTP/2.
pub(super) fn inspect(stream: &TlsStream) -> (&TcpStream, bool) {
    (stream, false)
}
