//! Connections without HTTP on top: [`Dialer`], for programs that write the requests themselves.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connect::{Connector, ServerStream, bare};
use super::reloaded_tls::ReloadedTls;
use crate::config::{Config, ConfigError};

/// The protocols that a connection offers to the server by ALPN (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocols {
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only.
    Http2,
    /// HTTP/2, and HTTP/1.1 as the second choice.
    Any,
}

impl Protocols {
    /// The names of the protocols, the preferred one first.
    #[cfg(feature = "tls")]
    pub(super) fn alpn(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Protocols::Http1 => &[b"http/1.1"],
            Protocols::Http2 => &[b"h2"],
            Protocols::Any => &[b"h2", b"http/1.1"],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// Opens connections to the server of a [`Config`]: through its proxy, with its TLS options and client certificate.
/// Requests, their credentials, the impersonated user and the number of requests per connection are left to the caller.
#[derive(Clone)]
pub struct Dialer {
    connector: Connector,
    port: u16,
    limit: Duration,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dialer({}:{})", self.connector.host, self.port)
    }
}

impl Dialer {
    /// Creates a dialer, which connects when [`Dialer::dial`] is called.
    ///
    /// # Errors
    /// [`ConfigError`] when the URL or the certificates cannot be used, or when the configuration has an impersonated
    /// user: the requests would silently be those of the authenticated user. Take [`Config::impersonation`] out of the
    /// configuration, and send its [headers](crate::config::Impersonation::headers) with every request.
    pub fn new(config: &Config, protocols: Protocols) -> Result<Self, ConfigError> {
        if config.impersonation.is_some() {
            return Err(ConfigError::Unsupported {
                what: "an impersonated user of a Dialer".to_owned(),
                advice: "; take it from the Config, and send Impersonation::headers with every request".to_owned(),
            });
        }
        let invalid = |why: &str| ConfigError::invalid(format!("the server's address {}", config.server), why);
        let authority = config.server.authority().ok_or_else(|| invalid("has no host"))?;
        let host = bare(authority.host()).to_owned();
        let secure = config.server.scheme_str() == Some("https");
        let tls = if secure { Some(Arc::new(ReloadedTls::new(&host, config.tls.clone(), protocols)?)) } else { None };
        let options = &config.transport;
        let connector = Connector {
            tls,
            host,
            proxy: options.proxy.clone(),
            connect_limit: options.connect_limit,
            ping_interval: options.ping_interval,
            ping_limit: options.ping_limit,
        };
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Ok(Dialer { connector, port, limit: options.connect_limit })
    }

    /// Opens a connection within the time limit of the [`Config`].
    ///
    /// # Errors
    /// The network's error, or that of the TLS handshake: a server without a common protocol rejects it.
    pub async fn dial(&self) -> io::Result<Dialed> {
        let stream = tokio::time::timeout(self.limit, self.connector.clone().connect(self.port)).await;
        let stream = stream.map_err(|_| {
            let text = format!("no connection within {} s", self.limit.as_secs_f64());
            io::Error::new(io::ErrorKind::TimedOut, text)
        })??;
        Ok(Dialed { stream })
    }
}

/// A connection of a [`Dialer`].
pub struct Dialed {
    stream: ServerStream,
}

impl std::fmt::Debug for Dialed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dialed(http2: {})", self.chose_http2())
    }
}

impl Dialed {
    /// Whether the server chose HTTP/2. Without TLS there is no choice.
    pub fn chose_http2(&self) -> bool {
        match &self.stream {
            ServerStream::Plain(_) => false,
            ServerStream::Tls(stream) => super::tls::inspect(stream).1,
        }
    }
}

impl AsyncRead for Dialed {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Dialed {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Impersonation;

    #[test]
    fn dialer_of_a_configuration_with_an_impersonated_user_is_refused() {
        let mut config = Config::new("http://localhost:1").unwrap();
        config.impersonation = Some(Impersonation::of_user("jane"));
        let error = Dialer::new(&config, Protocols::Any).unwrap_err().to_string();
        assert!(error.contains("take it from the Config, and send Impersonation::headers"), "{error}");
        config.impersonation = None;
        assert!(Dialer::new(&config, Protocols::Any).is_ok());
    }
}
