//! [`Cluster`]: the servers on the store, and the connections of clients to them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Version, header};
use http_body_util::BodyExt as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use listwatch_apiserver::{ApiServer, ApiService, Controllers};
use listwatch_cacher::Limits;
use listwatch_client::Problem;
use listwatch_client::transport::{HttpTransport, RequestBody, ResponseBody, Transport};
use listwatch_storage::Storage;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::{AbortHandle, JoinSet};

use crate::link::FaultyLink;
use crate::plan::Plan;
use crate::store::FaultyStore;
use crate::trace::Recorder;

/// The capacity of a connection in each direction, in bytes.
const SOCKET_BYTES: usize = 8 << 10;

/// The number of events that a watch cache with a small window keeps.
pub(crate) const SMALL_WINDOW_EVENTS: usize = 8;

/// The limits of the watch caches in a run.
fn limits(plan: &Plan) -> Limits {
    let mut limits = Limits::default();
    // Half of the runs have many bookmarks.
    if plan.seed.is_multiple_of(2) {
        limits.bookmark_interval = Duration::from_secs(1);
    }
    if plan.small_window {
        limits.history_age = Duration::from_secs(2);
        limits.history_events_min = SMALL_WINDOW_EVENTS;
        limits.watcher_queue_events_max = 4;
        limits.pinned_snapshots_max = 1;
        limits.list_page_objects = 3;
    }
    limits
}

/// The maximum number of attempts to start a server. After them the run fails.
const STARTS_MAX: usize = 200;

/// The API servers of a run. Clones share the servers.
#[derive(Clone)]
pub(crate) struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    store: FaultyStore,
    plan: Plan,
    recorder: Recorder,
    nodes: Vec<Mutex<Node>>,
    connections: AtomicU64,
    has_faults: AtomicBool,
}

/// A server and its connections. While no server runs, connections are refused.
#[derive(Default)]
struct Node {
    server: Option<ApiServer>,
    connections: JoinSet<()>,
}

impl Cluster {
    /// A cluster without running servers.
    pub(crate) fn new(plan: &Plan, store: &FaultyStore, recorder: &Recorder) -> Self {
        let inner = Inner {
            store: store.clone(),
            plan: plan.clone(),
            recorder: recorder.clone(),
            nodes: (0..plan.servers).map(|_| Mutex::default()).collect(),
            connections: AtomicU64::new(0),
            has_faults: AtomicBool::new(true),
        };
        Cluster { inner: Arc::new(inner) }
    }

    /// Makes all later links free of faults.
    pub(crate) fn heal(&self) {
        self.inner.has_faults.store(false, Ordering::Relaxed);
    }

    pub(crate) fn size(&self) -> usize {
        self.inner.nodes.len()
    }

    /// Starts a server. Retries while the server cannot read the store, as a supervisor does.
    pub(crate) async fn start(&self, node: usize) {
        for _ in 0..STARTS_MAX {
            let storage: Arc<dyn Storage> = Arc::new(self.inner.store.clone());
            let builder = ApiServer::builder().storage(storage).controllers(Controllers::NONE);
            let builder = builder.cache_limits(limits(&self.inner.plan));
            match builder.build().await {
                Ok(server) => {
                    self.inner.recorder.note(format!("server {node} starts"));
                    self.inner.nodes[node].lock().server = Some(server);
                    return;
                }
                Err(error) => {
                    self.inner.recorder.note(format!("server {node} does not start: {error}"));
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
        self.inner.recorder.broken("Available", format!("server {node} does not start in {STARTS_MAX} attempts"));
    }

    /// Kills a server and breaks its connections.
    pub(crate) async fn crash(&self, node: usize) {
        self.inner.recorder.note(format!("server {node} dies"));
        let mut dying = std::mem::take(&mut *self.inner.nodes[node].lock());
        drop(dying.server.take());
        dying.connections.shutdown().await;
    }

    /// Shuts a server down gracefully: watches end, and running requests finish.
    pub(crate) async fn shut_down(&self, node: usize) {
        self.inner.recorder.note(format!("server {node} shuts down"));
        let server = self.inner.nodes[node].lock().server.clone();
        let Some(server) = server else { return };
        let _ = tokio::time::timeout(Duration::from_secs(5), server.drain()).await;
        let mut stopping = std::mem::take(&mut *self.inner.nodes[node].lock());
        drop(stopping.server.take());
        stopping.connections.shutdown().await;
    }

    /// Connects a client to a server and returns the client's end. Returns `None` if the server is down.
    fn connect(&self, node: usize, is_http2: bool) -> Option<FaultyLink> {
        let number = self.inner.connections.fetch_add(1, Ordering::Relaxed);
        let mut node = self.inner.nodes[node].lock();
        let service = node.server.as_ref()?.service();
        let (client, server) = tokio::io::duplex(SOCKET_BYTES);
        // Ended connections are forgotten.
        while node.connections.try_join_next().is_some() {}
        node.connections.spawn(serve(server, service, is_http2));
        let seed = self.inner.plan.seed.wrapping_mul(31).wrapping_add(number);
        Some(FaultyLink::new(client, &self.inner.plan, self.inner.has_faults.load(Ordering::Relaxed), seed))
    }
}

async fn serve(io: tokio::io::DuplexStream, service: ApiService, is_http2: bool) {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let service = service.clone();
        async move { Ok::<_, std::convert::Infallible>(service.handle(request).await) }
    });
    let io = TokioIo::new(io);
    // The end of a connection is the client's business.
    if is_http2 {
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
    } else {
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
    }
}

/// A server outside of the simulation.
pub(crate) struct RealServer {
    /// The connections to the server.
    pub(crate) transport: HttpTransport,
    /// The bearer token of requests.
    pub(crate) token: Option<HeaderValue>,
}

/// The servers that receive the requests of a client.
#[derive(Clone)]
enum Servers {
    Simulated(Cluster),
    Real(Arc<Vec<RealServer>>),
}

impl Servers {
    fn len(&self) -> usize {
        match self {
            Servers::Simulated(cluster) => cluster.size(),
            Servers::Real(servers) => servers.len(),
        }
    }
}

/// Sends the requests of one client, each to a server that the client chooses. Each request to a simulated server
/// opens a new connection.
#[derive(Clone)]
pub(crate) struct Connector {
    servers: Servers,
    rng: Arc<Mutex<StdRng>>,
    /// The server of the last request. A client keeps its server while it works.
    node: Arc<Mutex<usize>>,
}

/// Time after which a client gives up waiting for the head of a response.
const RESPONSE_WAIT: Duration = Duration::from_secs(30);

impl Connector {
    /// A client of the simulated servers.
    pub(crate) fn new(cluster: &Cluster, seed: u64) -> Self {
        Connector::to(Servers::Simulated(cluster.clone()), seed)
    }

    /// A client of real servers.
    pub(crate) fn real(servers: &Arc<Vec<RealServer>>, seed: u64) -> Self {
        Connector::to(Servers::Real(Arc::clone(servers)), seed)
    }

    fn to(servers: Servers, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let node = rng.random_range(0..servers.len());
        Connector { servers, rng: Arc::new(Mutex::new(rng)), node: Arc::new(Mutex::new(node)) }
    }

    /// Sends a request with a JSON body, and returns the status and the whole body. Returns `None` if no response
    /// arrives.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: String,
    ) -> Option<(u16, Bytes)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .body(RequestBody::from(Bytes::from(body)))
            .ok()?;
        let response = self.send(request).await.ok()?;
        let status = response.status().as_u16();
        let body = tokio::time::timeout(RESPONSE_WAIT, response.into_body().collect()).await.ok()?.ok()?;
        Some((status, body.to_bytes()))
    }

    /// Sends a GET.
    pub(crate) async fn get(&self, path: &str) -> Option<Response<ResponseBody>> {
        let request = Request::get(path).body(RequestBody::empty()).ok()?;
        self.send(request).await.ok()
    }

    async fn exchange(
        &self,
        node: usize,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, Problem> {
        match &self.servers {
            Servers::Simulated(cluster) => self.simulate(cluster, node, request).await,
            Servers::Real(servers) => {
                let server = &servers[node];
                if let Some(token) = &server.token {
                    request.headers_mut().insert(header::AUTHORIZATION, token.clone());
                }
                server.transport.send(request).await
            }
        }
    }

    async fn simulate(
        &self,
        cluster: &Cluster,
        node: usize,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, Problem> {
        let (is_http2, pause) = {
            let mut rng = self.rng.lock();
            (rng.random_bool(0.3), Duration::from_micros(rng.random_range(1..2_000)))
        };
        // Without a pause, a client that retries at once would stop the virtual clock.
        tokio::time::sleep(pause).await;
        let Some(link) = cluster.connect(node, is_http2) else {
            return Err(Problem::disconnected("connection refused"));
        };
        let lost = |error: hyper::Error| Problem::disconnected("the connection is lost").caused_by(error);
        let io = TokioIo::new(link);
        let (response, connection) = if is_http2 {
            let uri = format!("http://server{}", request.uri());
            *request.uri_mut() = uri.parse().map_err(|_| Problem::disconnected("not a URI"))?;
            *request.version_mut() = Version::HTTP_2;
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
            let (mut sender, connection) = handshake.map_err(lost)?;
            let task = tokio::spawn(async move { drop(connection.await) });
            (sender.send_request(request).await, OpenConnection(task.abort_handle()))
        } else {
            request.headers_mut().insert(header::HOST, HeaderValue::from_static("server"));
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(lost)?;
            let task = tokio::spawn(async move { drop(connection.await) });
            (sender.send_request(request).await, OpenConnection(task.abort_handle()))
        };
        let response = response.map_err(lost)?;
        Ok(response.map(|body| ResponseBody::new(ConnectedBody { body, _connection: connection })))
    }
}

#[async_trait]
impl Transport for Connector {
    async fn send(&self, request: Request<RequestBody>) -> Result<Response<ResponseBody>, Problem> {
        let node = *self.node.lock();
        let sent = tokio::time::timeout(RESPONSE_WAIT, self.exchange(node, request)).await;
        let response = sent.unwrap_or_else(|_| Err(Problem::disconnected("no response")));
        let failed = response.as_ref().map_or(true, |response| response.status().is_server_error());
        if failed || self.rng.lock().random_bool(0.1) {
            *self.node.lock() = self.rng.lock().random_range(0..self.servers.len());
        }
        response
    }
}

/// Ends a connection when dropped.
struct OpenConnection(AbortHandle);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A response body that keeps its connection open.
struct ConnectedBody {
    body: hyper::body::Incoming,
    _connection: OpenConnection,
}

impl http_body::Body for ConnectedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }
}
