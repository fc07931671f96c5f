//! [`Aggregator`]: forwards requests to extension servers.
//!
//! ```text
//!  path ─▶ route ─▶ available? ─▶ TLS usable? ─▶ identity ─▶ address ─▶ proxy
//!             └ none: local  503        500           500        503       the server's own response, or 503
//! ```
//!
//! Rules: `kube-aggregator/pkg/apiserver/{handler_proxy,resolvers}.go`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use listwatch_meta::UserInfo;
use listwatch_proxy::{
    ClientCertificate, Destination, ExternalLocation, Limits, Proxy, ProxyBody, Redirects, Transport,
};
use parking_lot::Mutex;
use tracing::{debug, warn};

use crate::documents::{RemoteDocument, RemoteDocuments};
use crate::identity::{identity_headers, remove_identity_headers};
use crate::objects::{EndpointSlice, Service, ServiceObjects};
use crate::resolve::{Address, ResolveError};
use crate::route::{RemoteRoute, Routes, api_service_name, decode_path, encode_path, encode_query, is_discovery};
use crate::service_resolver::ServiceResolver;
use crate::{ApiService, ServiceReference};

/// The time limit of a request for a discovery document, from the dial to the last byte (`aggregatedDiscoveryTimeout`).
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for the response header of a long-running request. An extension server may send the header with the
/// first event.
const LONG_RUNNING_HEADER_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The largest number of connections for probes and documents. Idle connections are not kept. The loops use at most 27
/// connections at once.
const PROBE_CONNECTIONS_MAX: usize = 64;
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The settings of an [`Aggregator`] for its requests to extension servers.
#[derive(Clone, Debug, Default)]
pub struct AggregatorOptions {
    /// The certificate that identifies this server (`--proxy-client-cert-file`, `--proxy-client-key-file`).
    pub proxy_certificate: Option<ClientCertificate>,
    /// Sends requests to a ready endpoint instead of the cluster address (`--enable-aggregator-routing`).
    pub endpoint_routing: bool,
    /// The address of this server, which replaces that of the service `default/kubernetes`.
    pub loopback: Option<SocketAddr>,
    /// Passes redirects of extension servers on to the client (`--aggregator-reject-forwarding-redirect=false`).
    pub pass_redirects: bool,
}

impl AggregatorOptions {
    /// Creates the resolver of service references. Webhooks use the same addresses as the aggregator.
    pub fn resolver(&self, objects: Arc<dyn ServiceObjects>) -> ServiceResolver {
        ServiceResolver::new(objects).with_endpoint_routing(self.endpoint_routing).with_loopback(self.loopback)
    }
}

/// A service and its slices, each with the error of a failed read.
pub(crate) type Target = (Result<Option<Service>, String>, Result<Arc<Vec<EndpointSlice>>, String>);
/// Services by namespace and name.
pub(crate) type Targets = BTreeMap<(String, String), Target>;

/// Facts about a request that the API server has computed before it forwards the request.
#[derive(Clone, Debug, Default)]
pub struct RequestFacts {
    /// The remaining time for the response; `None` for a long-running request: a watch, or a connect such as `exec`.
    pub timeout: Option<Duration>,
    /// The address of the client, for `X-Forwarded-For`.
    pub client_address: Option<IpAddr>,
    /// The id of the request in the audit log, for `Audit-ID`.
    pub audit_id: Option<HeaderValue>,
}

/// Forwards requests to extension servers, and holds their latest documents.
pub struct Aggregator {
    proxy: Proxy,
    /// Sends probes and requests for documents, over connections that are separate from those of users' requests.
    pub(crate) probes: Proxy,
    resolver: ServiceResolver,
    options: AggregatorOptions,
    routes: ArcSwap<Routes>,
    services: ArcSwap<Vec<ApiService>>,
    /// The services that APIServices refer to, as of the last change of the objects.
    targets: ArcSwap<Targets>,
    documents: ArcSwap<RemoteDocuments>,
    /// Serializes changes of the documents.
    writer: Mutex<()>,
}

impl fmt::Debug for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aggregator").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Aggregator {
    /// Creates an aggregator without APIServices. [`Aggregator::update`] adds them.
    pub fn new(proxy: Proxy, objects: Arc<dyn ServiceObjects>, options: AggregatorOptions) -> Self {
        let limits = Limits {
            connections_max: PROBE_CONNECTIONS_MAX,
            connections_per_backend_max: PROBE_CONNECTIONS_MAX,
            idle_connections_per_backend_max: 0,
            ..Limits::default()
        };
        Aggregator {
            proxy,
            probes: Proxy::new(limits),
            resolver: options.resolver(objects),
            options,
            routes: ArcSwap::default(),
            services: ArcSwap::default(),
            targets: ArcSwap::default(),
            documents: ArcSwap::default(),
            writer: Mutex::new(()),
        }
    }

    /// Replaces the APIServices. Requests in flight finish on their old route.
    pub fn update(&self, services: Vec<ApiService>) {
        let _writer = self.writer.lock();
        if **self.services.load() == services {
            return;
        }
        let before = self.routes.load_full();
        let proxies = (&self.proxy, &self.probes);
        let routes = Routes::new(proxies, self.options.proxy_certificate.as_ref(), &services, &before);
        let is_remote = |name: &str| routes.get(name).is_some();
        let old = self.documents.load_full();
        let mut documents = RemoteDocuments { generation: old.generation + 1, by_name: old.by_name.clone() };
        documents.by_name.retain(|name, _| is_remote(name));
        self.routes.store(Arc::new(routes));
        self.services.store(Arc::new(services));
        self.documents.store(Arc::new(documents));
    }

    /// The APIServices.
    pub fn services(&self) -> Arc<Vec<ApiService>> {
        self.services.load_full()
    }

    /// The latest discovery and OpenAPI documents of the extension servers.
    pub fn documents(&self) -> Arc<RemoteDocuments> {
        self.documents.load_full()
    }

    /// Replaces the documents of one APIService.
    pub(crate) fn store_document(&self, name: &str, document: RemoteDocument) {
        let _writer = self.writer.lock();
        let old = self.documents.load_full();
        if self.routes.load().get(name).is_none() || old.by_name.get(name) == Some(&document) {
            return;
        }
        let mut documents = (*old).clone();
        documents.insert(name, document);
        self.documents.store(Arc::new(documents));
    }

    /// Whether any APIService refers to a service. Otherwise every request is local.
    pub fn has_remote(&self) -> bool {
        !self.routes.load().is_empty()
    }

    /// The route of a percent-encoded path that an extension server serves; `None` for every path that this server
    /// serves, and for ambiguous paths, which servers decode differently.
    pub fn route(&self, path: &str) -> Option<RemoteRoute> {
        let routes = self.routes.load();
        routes.get(&api_service_name(&decode_path(path)?)?).cloned()
    }

    /// The route of an APIService by its name, for example of the owner of an OpenAPI path.
    pub fn route_of(&self, name: &str) -> Option<RemoteRoute> {
        self.routes.load().get(name).cloned()
    }

    /// Forwards a request (`proxyHandler.ServeHTTP`). Failures are plain-text responses.
    ///
    /// The caller has authenticated and authorized `user` for this request. The identity headers and credentials of the
    /// client are removed. Every other header is forwarded, unless it is listed in `Connection`.
    ///
    /// The decoded path is encoded again, so that the extension server receives the path that was authorized. An
    /// ambiguous path (with an encoded slash, an empty segment, `.` or `..`) fails with 404.
    pub async fn handle<B>(
        &self,
        route: &RemoteRoute,
        mut request: Request<B>,
        user: &UserInfo,
        facts: RequestFacts,
    ) -> Response<ProxyBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let service = &route.api_service;
        let unavailable = || text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable");
        if !service.is_available {
            return unavailable();
        }
        let transport = match &route.transport {
            Ok(transport) => transport.clone(),
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        };
        remove_identity_headers(request.headers_mut());
        let mut headers = match identity_headers(user) {
            Ok(headers) => headers,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        };
        if let Some(audit_id) = facts.audit_id {
            headers.insert(AUDIT_ID, audit_id);
        }
        let Some(path) = decode_path(request.uri().path()).map(|path| encode_path(&path)) else {
            return text(StatusCode::NOT_FOUND, "404 page not found");
        };
        let Some(reference) = &service.service else { return unavailable() };
        let address = match self.resolve(reference).await {
            Ok(address) => address,
            Err(error) => {
                warn!(api_service = %service.name, %error, "no address of an extension server");
                return unavailable();
            }
        };
        let path_and_query = match request.uri().query() {
            Some(query) if !encode_query(query).is_empty() => format!("{path}?{}", encode_query(query)),
            _ => path.clone(),
        };
        let mut to = destination(transport, &address, path_and_query);
        to.headers = headers;
        to.client_address = facts.client_address;
        to.redirects = if self.options.pass_redirects { Redirects::PassOn } else { Redirects::Reject };
        let discovery_timeout = is_discovery(&path).then_some(DISCOVERY_TIMEOUT);
        to.total_timeout = discovery_timeout.into_iter().chain(facts.timeout).min();
        to.header_timeout = facts.timeout.is_none().then_some(LONG_RUNNING_HEADER_TIMEOUT);
        match self.proxy.handle(request, &to).await {
            Ok(response) => response,
            Err(error) => {
                debug!(api_service = %service.name, %error, "an extension server did not answer");
                let (code, message) = error.to_text();
                text(code, &message)
            }
        }
    }

    /// Resolves a service reference to an address. [`Aggregator::run`] observes the referenced services, so that a
    /// request reads no object, as upstream's informers do. Without an observation the objects are read.
    ///
    /// # Errors
    /// [`ResolveError`] if the service cannot be read, or has no usable port or endpoint.
    pub async fn resolve(&self, reference: &ServiceReference) -> Result<Address, ResolveError> {
        let ServiceReference { namespace, name, .. } = reference;
        let observed = self.targets.load().get(&(namespace.clone(), name.clone())).cloned();
        let Some((service, slices)) = observed else { return self.resolver.resolve(reference).await };
        if let Some(address) = self.resolver.own_address(reference) {
            return Ok(address);
        }
        self.resolver.address_of(service, slices.as_ref().map(|slices| &***slices).map_err(Clone::clone), reference)
    }

    /// Reads a service and its slices.
    pub(crate) async fn read_target(&self, namespace: &str, name: &str) -> Target {
        let service = self.resolver.objects.service(namespace, name).await;
        let slices = self.resolver.objects.endpoint_slices(namespace, name).await;
        (service, slices.map(Arc::new))
    }

    /// Replaces the observed services.
    pub(crate) fn observe_targets(&self, targets: Targets) {
        self.targets.store(Arc::new(targets));
    }
}

/// Creates the destination of a path at an address. `X-Forwarded-Host` and `X-Forwarded-Proto` name the extension
/// server itself. Upstream's handler does the same, because it rewrites the URL of the request first.
pub(crate) fn destination(transport: Transport, address: &Address, path_and_query: String) -> Destination {
    let mut to = Destination::new(transport, address.host.clone(), address.port, path_and_query);
    to.external = ExternalLocation { scheme: "https".to_owned(), host: to.authority(), path_prefix: String::new() };
    to
}

/// Creates a plain-text response of a failure (Go's `http.Error`).
fn text(code: StatusCode, message: &str) -> Response<ProxyBody> {
    let mut response = Response::new(ProxyBody::from(Bytes::from(format!("{message}\n"))));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}
