//! [`Proxy`] and [`Transport`]: the state that is shared by several requests.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::body::{ProxyBody, RequestBody};
use crate::destination::Destination;
use crate::dial::{AddressResolver, Connector, Dialer};
use crate::error::ProxyError;
use crate::limits::Limits;
use crate::slots::Slots;
use crate::tls::{TlsSettings, TlsSettingsError};
use crate::{forward, headers, upgrade};

/// Forwards requests to backends, independently of each other.
///
/// Cheap to clone; clones share limits and upgraded connections. When the last clone is dropped, upgraded connections
/// are closed.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) limits: Arc<Limits>,
    connections: Arc<Slots>,
    pub(crate) upgrades: Arc<Slots>,
    /// The relays of upgraded connections. Dropping the set ends the relays.
    pub(crate) relays: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Creates a proxy with these limits.
    pub fn new(limits: Limits) -> Self {
        let connections = Slots::new(limits.connections_max, limits.connections_per_backend_max);
        let upgrades = Slots::new(limits.upgrades_max, limits.upgrades_per_backend_max);
        let relays = Mutex::new(JoinSet::new());
        Proxy { shared: Arc::new(Shared { limits: Arc::new(limits), connections, upgrades, relays }) }
    }

    /// Creates a transport without TLS.
    pub fn plain_transport(&self) -> Transport {
        let (connections, limits) = (Arc::clone(&self.shared.connections), Arc::clone(&self.shared.limits));
        Transport::new(Dialer::plain(connections, Arc::clone(&limits)), limits)
    }

    /// Creates a transport over TLS with these settings. The transport owns a connection pool. Keep the transport while
    /// the settings stay valid, because a new one has no connections.
    ///
    /// # Errors
    /// [`TlsSettingsError`] for unusable certificates.
    pub fn tls_transport(&self, settings: TlsSettings) -> Result<Transport, TlsSettingsError> {
        let (connections, limits) = (Arc::clone(&self.shared.connections), Arc::clone(&self.shared.limits));
        Ok(Transport::new(Dialer::tls(settings, connections, Arc::clone(&limits))?, limits))
    }

    /// Creates a transport like [`Proxy::tls_transport`] that dials the addresses of a resolver. Connections are pooled
    /// by the host and port of the destination. Set the server name in `settings`, because the default is the host that
    /// is dialed.
    ///
    /// # Errors
    /// [`TlsSettingsError`] for unusable certificates.
    pub fn resolved_tls_transport(
        &self,
        settings: TlsSettings,
        resolver: Arc<dyn AddressResolver>,
    ) -> Result<Transport, TlsSettingsError> {
        let (connections, limits) = (Arc::clone(&self.shared.connections), Arc::clone(&self.shared.limits));
        let dialer = Dialer::tls(settings, connections, Arc::clone(&limits))?.with_resolver(resolver);
        Ok(Transport::new(dialer, limits))
    }

    /// Forwards a request, and returns the response when the header has arrived (`UpgradeAwareHandler.ServeHTTP`).
    ///
    /// Bodies stream in both directions at the speed of the slower side. Dropping the future or the response body ends
    /// the exchange with the backend. An upgrade request must carry hyper's `OnUpgrade` extension, as the requests of a
    /// hyper server do. The client then receives the 101 response, and a background task copies the bytes.
    ///
    /// # Errors
    /// [`ProxyError`], which names the party at fault. A response of the backend is never an error, even with a code of
    /// 400 or above.
    pub async fn handle<B>(&self, request: Request<B>, to: &Destination) -> Result<Response<ProxyBody>, ProxyError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match headers::is_upgrade_request(request.headers()) {
            true => upgrade::upgrade(&self.shared, request, to).await,
            false => forward::forward(request, to).await,
        }
    }
}

/// The connections to backends that share TLS settings: a pool for plain requests, and a dialer for upgrades.
///
/// Cheap to clone; clones share the pool. When the last clone is dropped, idle connections are closed.
#[derive(Clone)]
pub struct Transport {
    inner: Arc<TransportInner>,
}

struct TransportInner {
    dialer: Dialer,
    client: legacy::Client<Connector, RequestBody>,
    limits: Arc<Limits>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("tls", &self.is_tls()).finish_non_exhaustive()
    }
}

impl Transport {
    fn new(dialer: Dialer, limits: Arc<Limits>) -> Self {
        let client = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(limits.idle_connection_timeout)
            .pool_max_idle_per_host(limits.idle_connections_per_backend_max)
            .retry_canceled_requests(true)
            // hyper's smallest buffer is 8 KiB.
            .http1_max_buf_size(limits.header_bytes_max.max(8 * 1024))
            .http1_max_headers(limits.header_lines_max)
            .build(Connector(dialer.clone()));
        Transport { inner: Arc::new(TransportInner { dialer, client, limits }) }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.inner.dialer.is_tls()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.inner.dialer
    }

    pub(crate) fn client(&self) -> &legacy::Client<Connector, RequestBody> {
        &self.inner.client
    }
}
