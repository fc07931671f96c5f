//! HTTP on a port: listeners, TLS, connections and certificates. The crate feature `serve` enables this module.
//!
//! ```text
//!  accept ─▶ first byte ─▶ TLS handshake ─┬─ h2 ───────▶ gather ─▶ hyper ─┬▶ ApiService
//!            plain HTTP is refused        └─ http/1.1 ─▶ http1 ──▶ hyper ─┘
//!  peer: ends connections that are idle or stalled          pki: certificates, token, kubeconfig
//!                                                     serving_certificates: selection by name, renewal
//!                                                     loopback: the certificate for the server itself
//! ```

mod gather;
mod http1;
mod listener;
mod loopback;
mod peer;
pub mod pki;
mod pki_error;
mod serving_certificates;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

pub use self::listener::{HTTP2_STREAMS_MAX, Serving};
use self::loopback::LoopbackCertificate;
use self::pki::{Pki, PkiError};
use crate::auth::Auth;
use crate::server::ApiServer;

/// The error of [`ApiServer::serve_on_free_port`].
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address could not be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The certificates could not be created.
    #[error(transparent)]
    Pki(#[from] PkiError),
}

/// A server on a free port of the loopback address, with a kubeconfig for clients. Dropping the value closes the port.
#[derive(Debug)]
pub struct TestServer {
    serving: Serving,
    kubeconfig: String,
}

impl TestServer {
    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.serving.address()
    }

    /// Returns a kubeconfig with the CA certificate and a token.
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }
}

impl ApiServer {
    /// Serves HTTPS on a bound listener: HTTP/2 and HTTP/1.1 by ALPN. Certificate files are reloaded periodically.
    ///
    /// The server calls webhooks of the service `default/kubernetes` at its first open listener, as the user
    /// `system:apiserver`.
    ///
    /// # Errors
    /// The error of the operating system if the listener cannot be used, or if there are no random bytes.
    pub fn serve(&self, listener: std::net::TcpListener, pki: &Pki) -> io::Result<Serving> {
        let loopback = LoopbackCertificate::create().map_err(io::Error::other)?;
        let serving = listener::serve(
            self.service(),
            listener,
            Some(loopback.add_to(&pki.tls())),
            self.shared.http2_streams_max,
            self.shared.watch_drain.grace(),
        )?;
        let client = loopback.into_client(serving.address(), self.shared.loopback_token.token());
        let serving = serving.with_loopback(self.shared.webhook_caller.add_loopback(client));
        let certificates = pki.certificates();
        Ok(if certificates.can_change() { serving.with_task(Arc::clone(certificates).follow_files()) } else { serving })
    }

    /// Serves plain HTTP (HTTP/1.1, and HTTP/2 by prior knowledge). Use this only on the loopback address, because
    /// credentials are sent unencrypted.
    ///
    /// # Errors
    /// The error of the operating system if the listener cannot be used.
    pub fn serve_plain(&self, listener: std::net::TcpListener) -> io::Result<Serving> {
        listener::serve(self.service(), listener, None, self.shared.http2_streams_max, self.shared.watch_drain.grace())
    }

    /// Serves HTTPS on a free port of 127.0.0.1 with a new CA, for a client in another process. Dropping the result
    /// closes the port.
    ///
    /// The kubeconfig has the token of [`Auth::Token`]. With [`Auth::Open`], every process of this machine has access.
    ///
    /// # Errors
    /// [`ServeError`] if no port is free or no certificate can be created.
    pub async fn serve_on_free_port(&self) -> Result<TestServer, ServeError> {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let failed = |source| ServeError::Bind { address, source };
        let mut pki = Pki::in_memory(&[])?;
        if let Auth::Token(token) = &self.shared.auth {
            pki = pki.with_token(token);
        }
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        let serving = self.serve(listener, &pki).map_err(failed)?;
        let kubeconfig = pki.kubeconfig(&format!("https://{}", serving.address()));
        Ok(TestServer { serving, kubeconfig })
    }
}

/// Performs a TLS handshake in memory.
#[cfg(test)]
fn complete_handshake(
    client: &mut rustls::ClientConnection,
    server: &mut rustls::ServerConnection,
) -> Result<(), rustls::Error> {
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}
