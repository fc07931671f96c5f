//! A Kubernetes API server for list-watch, as a tower `Service` and as a server that listens.
//!
//! ```text
//!            ┌────────────────────────── ApiServer ───────────────────────────┐
//!  Request ─▶│ service ─▶ filters ─▶ handlers ─▶ read, watch ─▶ cacher ─▶ storage │
//!            │                         │                               ▲      │
//!            │                         ├───────▶ write ────────────────┘      │
//!            │                         └ discovery, openapi, health           │
//!            └───────────────────────────────────────────────────────────────┘
//!  server: listeners, TLS, HTTP/1.1 and HTTP/2         pki: certificates, token, kubeconfig
//! ```
//!
//! The server keeps objects in any [`listwatch_storage::Storage`] and answers reads from one watch
//! cache per resource, started when somebody first asks for it.
//!
//! # In a test process
//! ```
//! use http_body_util::BodyExt as _;
//! use listwatch_apiserver::ApiServer;
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! // No port, no TLS, nothing on disk: up in milliseconds.
//! let server = ApiServer::builder().build().await?;
//! // `kube::Client::new(server.service(), "default")` takes it as it is; here by hand:
//! let request = http::Request::get("/api/v1/namespaces/default").body(http_body_util::Empty::<bytes::Bytes>::new())?;
//! let response = server.service().handle(request).await;
//! assert_eq!(response.status(), 200);
//! let namespace = response.into_body().collect().await?.to_bytes();
//! assert!(namespace.starts_with(b"{\"kind\":\"Namespace\",\"apiVersion\":\"v1\""));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On a port
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = listwatch_apiserver::ApiServer::builder().build().await?;
//! let served = server.serve_on_free_port().await?;
//! std::fs::write("kubeconfig", served.kubeconfig())?; // for kubectl, client-go, anything
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

/// The examples of docs/extending.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/extending.md")]
struct Extending;

mod auth;
mod backend;
mod body;
mod body_budget;
mod bootstrap;
mod cache_budget;
mod components;
mod compute;
mod connect;
mod controllers;
mod crd;
pub mod discovery;
mod documents;
mod filters;
mod gather;
mod gc;
mod gzip;
mod h1;
mod handlers;
mod health;
mod list;
mod metrics;
mod namespaces;
pub mod openapi;
mod peer;
pub mod pki;
mod preferences;
mod pretty;
mod read;
pub mod registry;
mod request_info;
mod respond;
mod routing;
mod seats;
mod server;
mod service;
mod store_health;
pub mod table;
/// Admission plugins: code that changes or rejects writes.
pub mod admission {
    pub use crate::write::admission::{
        AdmissionFuture, AdmissionRequest, MutatingAdmission, ObjectReader, Operation, ValidatingAdmission,
    };
}
mod tokens;
mod upload;
mod versions;
mod view;
mod watch;
mod websocket;
mod write;
mod yaml;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use listwatch_access::{Authenticator, Authorizer};
use listwatch_cacher::Limits;
use listwatch_storage::{MemoryStorage, Storage};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::auth::Access;
pub use crate::auth::Auth;
use crate::backend::Backend;
pub use crate::body::{Body, BrokenOff};
use crate::body_budget::{BODIES_BYTES_MAX, BodyBudget};
use crate::bootstrap::Bootstrap;
pub use crate::controllers::{Controllers, UnknownController};
use crate::filters::flow_control::FlowControl;
use crate::health::Finding;
use crate::metrics::Metrics;
use crate::pki::{Pki, PkiError};
pub use crate::server::{HTTP2_STREAMS_MAX, Serving};
pub use crate::service::ApiService;
use crate::store_health::StoreHealth;
pub use crate::upload::REQUEST_BODY_BYTES_MAX;
use crate::watch::Farewell;
use crate::write::admission::{AdmissionChain, MutatingAdmission, ValidatingAdmission};

/// A watch whose client names no timeout lasts between this and twice this
/// (`--min-request-timeout`).
const MIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(1800);

/// The port that the service `kubernetes` leads to, unless another one is named (`--secure-port`).
const SECURE_PORT: u16 = 6443;

/// A running API server. Cheap to clone; the built-in loops end when the last clone, service and
/// listener is dropped or [`ApiServer::shutdown`] is called.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

/// What all requests of one server share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<Backend>,
    pub(crate) auth: Auth,
    pub(crate) access: Access,
    pub(crate) min_request_timeout: Duration,
    pub(crate) flow_control: FlowControl,
    /// What bodies of requests take, as they come.
    pub(crate) bodies: Arc<BodyBudget>,
    store_health: StoreHealth,
    http2_streams_max: u32,
    /// Where expensive computations run.
    pub(crate) compute: compute::Compute,
    pub(crate) metrics: Metrics,
    /// Places for watches over WebSocket, whose connections nobody else counts.
    pub(crate) websockets: Arc<Semaphore>,
    /// CBOR is served.
    pub(crate) cbor: bool,
    stopping: AtomicBool,
    /// How watches leave at the end.
    pub(crate) farewell: Arc<Farewell>,
    /// The built-in loops live as long as somebody can ask this server for something.
    loops: Loops,
}

/// The loop that follows the definitions of custom resources, and then the others.
struct Loops(Vec<JoinHandle<()>>);

impl Drop for Loops {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiServer")
    }
}

/// Settings of an [`ApiServer`]; every one has a default that suits a test process.
#[derive(Clone)]
pub struct Builder {
    storage: Option<Arc<dyn Storage>>,
    auth: Auth,
    authenticators: Vec<Arc<dyn Authenticator>>,
    authorizers: Vec<Arc<dyn Authorizer>>,
    watch_cache: bool,
    min_request_timeout: Duration,
    limits: Limits,
    cbor: bool,
    controllers: Controllers,
    cache_bytes_max: Option<usize>,
    http2_streams_max: u32,
    client_ca: Option<String>,
    secure_port: u16,
    admission: AdmissionChain,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("auth", &self.auth).field("watch_cache", &self.watch_cache).finish()
    }
}

/// Why a server could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] listwatch_storage::StoreFault),
    /// The namespaces every cluster has could not be made.
    #[error("cannot create the initial namespaces: {0}")]
    Namespaces(String),
    /// The definitions of custom resources could not be read.
    #[error("cannot read the custom resource definitions: {0}")]
    Definitions(String),
}

/// Why a server could not listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The certificates cannot be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
}

impl Builder {
    /// Where objects live. Default: in memory.
    #[must_use]
    pub fn storage(mut self, storage: Arc<dyn Storage>) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Who the administrator is. Default: everyone ([`Auth::Open`]).
    #[must_use]
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// Adds an authenticator. It is asked after those added before and before [`Builder::auth`] counts; tokens
    /// of service accounts are never offered to it. docs/extending.md has an example.
    #[must_use]
    pub fn authenticator(mut self, authenticator: impl Authenticator + 'static) -> Self {
        self.authenticators.push(Arc::new(authenticator));
        self
    }

    /// Adds an authorizer. It is asked after those added before. If none of them has an opinion, known users
    /// may do everything ([`KnownUserAuthorizer`](listwatch_access::KnownUserAuthorizer)). docs/extending.md has
    /// an example.
    #[must_use]
    pub fn authorizer(mut self, authorizer: impl Authorizer + 'static) -> Self {
        self.authorizers.push(Arc::new(authorizer));
        self
    }

    /// Answer reads and watches from a cache per resource (the default), or straight from the
    /// store.
    #[must_use]
    pub fn watch_cache(mut self, on: bool) -> Self {
        self.watch_cache = on;
        self
    }

    /// A watch whose client names no timeout lasts between this and twice this. Default: 30 minutes.
    #[must_use]
    pub fn min_request_timeout(mut self, timeout: Duration) -> Self {
        self.min_request_timeout = timeout;
        self
    }

    /// Serve CBOR too (kube-apiserver's gate `CBORServingAndStorage`, which is off there as here by
    /// default).
    #[must_use]
    pub fn cbor(mut self, on: bool) -> Self {
        self.cbor = on;
        self
    }

    /// Which built-in loops run. Default: all of them.
    #[must_use]
    pub fn controllers(mut self, controllers: Controllers) -> Self {
        self.controllers = controllers;
        self
    }

    /// The bounds of every watch cache.
    #[must_use]
    pub fn cache_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// What the states of all watch caches may take together, in bytes. Default: no bound.
    ///
    /// Above it, resources go without a cache and are served from the store, those that nobody watches
    /// first, then the largest; their watches end cleanly and go on when their clients come back. After a
    /// minute or more, a cache comes back when it leaves a quarter of the bound free. What the
    /// histories take is bounded by [`Limits::history_bytes_max`] and [`Limits::history_budget`].
    #[must_use]
    pub fn cache_bytes_max(mut self, bytes: Option<usize>) -> Self {
        self.cache_bytes_max = bytes;
        self
    }

    /// How many streams a client may have open on one HTTP/2 connection, watches included; it opens
    /// another connection for more. Default: [`HTTP2_STREAMS_MAX`]; 0 is the default too.
    #[must_use]
    pub fn http2_max_streams_per_connection(mut self, streams: u32) -> Self {
        self.http2_streams_max = if streams == 0 { HTTP2_STREAMS_MAX } else { streams };
        self
    }

    /// The certificates, in PEM, that extension servers, kube-controller-manager and kube-scheduler are told
    /// to trust for clients, by the ConfigMap `kube-system/extension-apiserver-authentication`. Default: none.
    #[must_use]
    pub fn client_ca(mut self, pem: &str) -> Self {
        self.client_ca = Some(pem.to_owned());
        self
    }

    /// The port that the service `default/kubernetes` leads to. Default: 6443.
    #[must_use]
    pub fn secure_port(mut self, port: u16) -> Self {
        self.secure_port = port;
        self
    }

    /// Adds a mutating admission plugin behind the built-in ones.
    #[must_use]
    pub fn mutating_admission(mut self, plugin: impl MutatingAdmission + 'static) -> Self {
        self.admission.add_mutating(Arc::new(plugin));
        self
    }

    /// Adds a validating admission plugin behind the built-in ones.
    #[must_use]
    pub fn validating_admission(mut self, plugin: impl ValidatingAdmission + 'static) -> Self {
        self.admission.add_validating(Arc::new(plugin));
        self
    }

    /// Builds the server on the current tokio runtime: creates the objects every cluster has and
    /// starts the built-in loops.
    ///
    /// # Errors
    /// [`BuildError`] when the store does not answer.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn build(self) -> Result<ApiServer, BuildError> {
        let storage = self.storage.unwrap_or_else(|| MemoryStorage::new());
        storage.health().await?;
        let registry = registry::Registry::builtin();
        let backend = Backend::new(storage, registry, self.watch_cache, self.limits);
        let backend = Arc::new(backend.with_cache_budget(self.cache_bytes_max).with_admission(self.admission));
        namespaces::ensure_system_namespaces(&backend)
            .await
            .map_err(|status| BuildError::Namespaces(status.message))?;
        crd::load(&backend).await.map_err(|status| BuildError::Definitions(status.message))?;
        let settings = bootstrap::Settings { client_ca: self.client_ca, secure_port: self.secure_port };
        let mut bootstrap = Bootstrap::new(Arc::clone(&backend), settings);
        bootstrap.sync().await;
        // Definitions and what every cluster has are a part of the server itself; the others are a choice.
        let mut loops = vec![tokio::spawn(crd::run(Arc::clone(&backend))), tokio::spawn(bootstrap.run())];
        if self.cache_bytes_max.is_some() {
            loops.push(cache_budget::spawn(&backend));
        }
        if self.controllers.namespace {
            loops.push(tokio::spawn(namespaces::run(Arc::clone(&backend))));
        }
        if self.controllers.gc {
            loops.push(tokio::spawn(gc::run(Arc::clone(&backend))));
        }
        let store_health = StoreHealth::new(Arc::clone(backend.storage()));
        let access = Access::new(&backend, &self.auth, self.authenticators, self.authorizers);
        let shared = Arc::new(Shared {
            backend,
            access,
            auth: self.auth,
            min_request_timeout: self.min_request_timeout,
            flow_control: FlowControl::new(),
            bodies: BodyBudget::new(BODIES_BYTES_MAX),
            store_health,
            http2_streams_max: self.http2_streams_max,
            compute: compute::Compute::new(self.cbor),
            metrics: Metrics::default(),
            websockets: Arc::new(Semaphore::new(websocket::WEBSOCKETS_MAX)),
            cbor: self.cbor,
            stopping: AtomicBool::new(false),
            farewell: Arc::default(),
            loops: Loops(loops),
        });
        Ok(ApiServer { shared })
    }
}

/// A server that listens on a free port of the loopback, with a kubeconfig to reach it.
#[derive(Debug)]
pub struct TestServer {
    serving: Serving,
    kubeconfig: String,
}

impl TestServer {
    /// The address bound.
    pub fn address(&self) -> SocketAddr {
        self.serving.address()
    }

    /// A kubeconfig with the CA and a token inside.
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }
}

impl ApiServer {
    /// Begins to describe a server.
    pub fn builder() -> Builder {
        Builder {
            storage: None,
            auth: Auth::default(),
            authenticators: Vec::new(),
            authorizers: Vec::new(),
            watch_cache: true,
            min_request_timeout: MIN_REQUEST_TIMEOUT,
            limits: Limits::default(),
            cbor: false,
            cache_bytes_max: None,
            http2_streams_max: HTTP2_STREAMS_MAX,
            client_ca: None,
            secure_port: SECURE_PORT,
            admission: AdmissionChain::default(),
            controllers: Controllers::default(),
        }
    }

    /// The server as a service from requests to responses.
    pub fn service(&self) -> ApiService {
        ApiService::new(Arc::clone(&self.shared))
    }

    /// Serves HTTPS on an address that was bound already: HTTP/2 and HTTP/1.1 by ALPN.
    ///
    /// # Errors
    /// What the system says when the listener cannot be used.
    pub fn serve(&self, listener: std::net::TcpListener, pki: &Pki) -> io::Result<Serving> {
        server::serve(self.service(), listener, Some(pki.tls()), self.shared.http2_streams_max)
    }

    /// Serves plain HTTP (HTTP/1.1, and HTTP/2 by prior knowledge). For loopback only: nothing
    /// protects the credentials on the wire.
    ///
    /// # Errors
    /// What the system says when the listener cannot be used.
    pub fn serve_plain(&self, listener: std::net::TcpListener) -> io::Result<Serving> {
        server::serve(self.service(), listener, None, self.shared.http2_streams_max)
    }

    /// Serves HTTPS on a free port of 127.0.0.1 with a CA and a token of its own, for a client in
    /// another process. The server ends when the result is dropped.
    ///
    /// The kubeconfig carries the token of [`Auth::Token`]; with [`Auth::Open`] everybody on this
    /// machine is let in.
    ///
    /// # Errors
    /// [`ServeError`] when no port is free or no certificate can be made.
    pub async fn serve_on_free_port(&self) -> Result<TestServer, ServeError> {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let bound = |source| ServeError::Bind { address, source };
        let mut pki = Pki::in_memory(&[])?;
        if let Auth::Token(token) = &self.shared.auth {
            pki = pki.with_token(token);
        }
        let listener = std::net::TcpListener::bind(address).map_err(bound)?;
        let serving = self.serve(listener, &pki).map_err(bound)?;
        let kubeconfig = pki.kubeconfig(&format!("https://{}", serving.address()));
        Ok(TestServer { serving, kubeconfig })
    }

    /// Begins the end: readiness fails, watches end cleanly, the built-in loops stop. Requests that
    /// run are let finish; [`Serving::shutdown`] waits for them. Many watches do not end at once but
    /// spread over up to five seconds, so that their clients do not come back elsewhere all together
    /// (`--shutdown-watch-termination-grace-period`).
    pub fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.farewell.begin(tokio::time::Instant::now());
        self.shared.loops.0.iter().for_each(JoinHandle::abort);
        for (_, cacher) in self.shared.backend.running_cachers() {
            cacher.stop(None);
        }
    }
}

impl Shared {
    /// Has the end begun?
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The text of `/metrics`.
    pub(crate) async fn metrics_text(&self) -> String {
        let caches: Vec<_> = self.backend.running_cachers().into_iter().map(|(_, cacher)| cacher.stats()).collect();
        let store = self.backend.storage().stats().await.ok();
        let (reads_in_flight, writes_in_flight) = self.flow_control.in_flight();
        let found = metrics::Snapshot {
            registry: &self.backend.registry(),
            reads_in_flight,
            writes_in_flight,
            caches: &caches,
            cache_budget: self.backend.cache_budget(),
            store: store.as_ref(),
        };
        metrics::text(&self.metrics, &found)
    }

    /// What the health checks of an endpoint find.
    pub(crate) async fn findings(&self, endpoint: &str) -> Vec<Finding> {
        let unready = self.backend.running_cachers().into_iter().find(|(_, cacher)| !cacher.is_ready());
        let mut loops = self.loops.0.iter();
        // At the end of the server they end, too.
        let has_ended = |task: &JoinHandle<()>| task.is_finished() && !self.is_stopping();
        let state = health::State {
            store: self.store_health.problem().await,
            caches: unready.map(|(prefix, _)| format!("the cache of {prefix} is not filled")),
            definitions: loops
                .next()
                .filter(|task| has_ended(task))
                .map(|_| "nobody follows the definitions".to_owned()),
            loops: loops.find(|task| has_ended(task)).map(|_| "a built-in loop has ended".to_owned()),
            controllers: self.backend.problems().text(),
            objects: &|check| self.backend.bootstrap().get(check),
            stopping: self.is_stopping(),
        };
        health::findings(endpoint, &state)
    }
}

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
