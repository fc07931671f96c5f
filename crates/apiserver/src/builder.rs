//! [`Builder`]: the settings of a server, and its start.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::HeaderValue;
use listwatch_access::rbac::RbacState;
use listwatch_access::{
    Authenticator, Authorizer, ClientCertificateAuthenticator, FrontProxyAuthenticator, IssuerDocuments, JWKS_PATH,
    ServiceAccountTokenOptions,
};
use listwatch_aggregator::AggregatorOptions;
use listwatch_cacher::Limits;
use listwatch_controllers::bootstrap::{self, Bootstrap, RequestHeader};
use listwatch_controllers::flow_control::FlowConfiguration;
use listwatch_controllers::node_ports::NodePortController;
use listwatch_controllers::{Controllers, definitions, flow_control, gc, namespaces, nodes, rbac};
use listwatch_meta::Status;
use listwatch_proxy::ClientCertificate;
use listwatch_registry::{Backend, Registry, StoredForm, rewrite_stale_keys, spawn_cache_budget};
use listwatch_storage::{MemoryStorage, Storage};
use listwatch_write::admission::{
    AdmissionChain, MutatingAdmission, NodeRestriction, RbacEscalation, ValidatingAdmission,
};
use listwatch_write::{ServiceRanges, Writer};
use tokio::sync::Semaphore;

use crate::aggregation::Aggregation;
use crate::auth::{Access, AnonymousAuth, Auth, AuthorizationMode, AuthorizerStates, authorizers};
use crate::compute::Compute;
use crate::documents::Documents;
use crate::filters::authorization::CreateAuthorization;
use crate::filters::flow_control::{Fairness, FlowControl, READS_IN_FLIGHT_MAX, WRITES_IN_FLIGHT_MAX};
use crate::filters::request_deadline::REQUEST_TIMEOUT;
use crate::handlers::connect::{Connections, KubeletOptions};
use crate::handlers::websocket::WEBSOCKETS_MAX;
use crate::metrics::Metrics;
use crate::request::body_budget::{BODIES_BYTES_MAX, BodyBudget};
use crate::server::ApiServer;
use crate::shared::{BackgroundTasks, Shared};
use crate::store_health::StoreHealth;
#[cfg(feature = "serve")]
use crate::transport::HTTP2_STREAMS_MAX;

/// The minimum duration of a watch without `timeoutSeconds`; the maximum is twice this value (`--min-request-timeout`).
const MIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(1800);

/// The target port of the service `kubernetes`, unless another one is set (`--secure-port`).
const SECURE_PORT: u16 = 6443;

/// The settings of an [`ApiServer`]. The defaults suit a test process.
#[derive(Clone)]
pub struct Builder {
    storage: Option<Arc<dyn Storage>>,
    stored_form: Arc<StoredForm>,
    auth: Auth,
    authenticators: Vec<Arc<dyn Authenticator>>,
    authorizers: Vec<Arc<dyn Authorizer>>,
    front_proxy: Option<Arc<FrontProxyAuthenticator>>,
    authorization: Option<Vec<AuthorizationMode>>,
    client_certificates: Option<Arc<ClientCertificateAuthenticator>>,
    service_account_tokens: ServiceAccountTokenOptions,
    jwks_uri: Option<String>,
    external_address: Option<String>,
    bootstrap_tokens: bool,
    anonymous_auth: AnonymousAuth,
    watch_cache: bool,
    min_request_timeout: Duration,
    request_timeout: Duration,
    requests_in_flight_max: (usize, usize),
    priority_and_fairness: bool,
    strict_transport_security: Option<String>,
    goaway_chance: f64,
    limits: Limits,
    cbor: bool,
    controllers: Controllers,
    cache_bytes_max: Option<usize>,
    #[cfg(feature = "serve")]
    http2_streams_max: u32,
    client_ca: Option<String>,
    secure_port: u16,
    service_ranges: ServiceRanges,
    admission: AdmissionChain,
    node_restriction: bool,
    aggregation: AggregatorOptions,
    kubelet: KubeletOptions,
    request_header: Option<RequestHeader>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("auth", &self.auth).field("watch_cache", &self.watch_cache).finish()
    }
}

/// The error of [`Builder::build`].
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The store does not respond.
    #[error(transparent)]
    Store(#[from] listwatch_storage::StoreFault),
    /// The namespaces that every cluster has could not be created.
    #[error("cannot create the initial namespaces: {0}")]
    Namespaces(String),
    /// The value of [`Builder::strict_transport_security`] is not valid in a header.
    #[error("{0:?} is not valid in a header")]
    Header(String),
    /// The certificates of [`Builder::kubelet`] cannot be used.
    #[error("cannot use the certificates for kubelets: {0}")]
    Kubelet(String),
    /// The definitions of custom resources could not be read.
    #[error("cannot read the custom resource definitions: {0}")]
    Definitions(String),
    /// The flow schemas and priority levels could not be read.
    #[error("cannot prepare priority and fairness: {0}")]
    FlowControl(String),
    /// The default roles and bindings could not be created, or roles and bindings could not be read.
    #[error("cannot prepare RBAC: {0}")]
    Rbac(String),
    /// The objects that the Node authorizer needs could not be read.
    #[error("cannot prepare the Node authorizer: {0}")]
    Nodes(String),
}

impl ApiServer {
    /// The settings of a new server, each with its default.
    pub fn builder() -> Builder {
        Builder {
            storage: None,
            stored_form: Arc::default(),
            auth: Auth::default(),
            authenticators: Vec::new(),
            authorizers: Vec::new(),
            front_proxy: None,
            authorization: None,
            client_certificates: None,
            service_account_tokens: ServiceAccountTokenOptions::default(),
            jwks_uri: None,
            external_address: None,
            bootstrap_tokens: false,
            anonymous_auth: AnonymousAuth::default(),
            watch_cache: true,
            min_request_timeout: MIN_REQUEST_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            requests_in_flight_max: (READS_IN_FLIGHT_MAX, WRITES_IN_FLIGHT_MAX),
            priority_and_fairness: true,
            strict_transport_security: None,
            goaway_chance: 0.0,
            limits: Limits::default(),
            cbor: false,
            cache_bytes_max: None,
            #[cfg(feature = "serve")]
            http2_streams_max: HTTP2_STREAMS_MAX,
            client_ca: None,
            secure_port: SECURE_PORT,
            service_ranges: ServiceRanges::default(),
            admission: AdmissionChain::default(),
            node_restriction: false,
            aggregation: AggregatorOptions::default(),
            kubelet: KubeletOptions::default(),
            request_header: None,
            controllers: Controllers::default(),
        }
    }
}

impl Builder {
    /// The store of the objects. Default: [`MemoryStorage`].
    #[must_use]
    pub fn storage(mut self, storage: Arc<dyn Storage>) -> Self {
        self.storage = Some(storage);
        self
    }

    /// The encoding and the encryption of values in the store (`--storage-media-type`,
    /// `--encryption-provider-config`). Default: JSON in plain. Protobuf is read in any case.
    #[must_use]
    pub fn stored_form(mut self, form: StoredForm) -> Self {
        self.stored_form = Arc::new(form);
        self
    }

    /// The authentication of requests. Default: every request is the administrator's ([`Auth::Open`]).
    #[must_use]
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// Adds an authenticator. The order is that of the calls; [`Builder::auth`] comes last. The authenticator never
    /// receives the token of a service account. docs/extending.md has an example.
    #[must_use]
    pub fn authenticator(mut self, authenticator: impl Authenticator + 'static) -> Self {
        self.authenticators.push(Arc::new(authenticator));
        self
    }

    /// Adds an authorizer, after those added before. If no authorizer has an opinion, known users have all permissions
    /// ([`KnownUserAuthorizer`](listwatch_access::KnownUserAuthorizer)). docs/extending.md has an example.
    #[must_use]
    pub fn authorizer(mut self, authorizer: impl Authorizer + 'static) -> Self {
        self.authorizers.push(Arc::new(authorizer));
        self
    }

    /// Trusts front proxies to name the user of a request, before all other credentials
    /// (`--requestheader-client-ca-file`). The listener must request certificates, as for
    /// [`Builder::client_certificates`]. [`Builder::request_header`] tells extension servers of the same front proxies.
    /// Default: the headers of front proxies have no effect.
    #[must_use]
    pub fn front_proxy(mut self, authenticator: FrontProxyAuthenticator) -> Self {
        self.front_proxy = Some(Arc::new(authenticator));
        self
    }

    /// Sets the modes that decide after the authorizers of [`Builder::authorizer`] (`--authorization-mode`). Members of
    /// `system:masters` may do everything. Other requests are forbidden, unless an authorizer or a mode allows them. With
    /// [`AuthorizationMode::Rbac`], the server creates Kubernetes' default roles and bindings.
    ///
    /// Default: no modes, but [`KnownUserAuthorizer`](listwatch_access::KnownUserAuthorizer).
    #[must_use]
    pub fn authorization(mut self, modes: impl IntoIterator<Item = AuthorizationMode>) -> Self {
        self.authorization = Some(modes.into_iter().collect());
        self
    }

    /// Authenticates clients by their TLS certificates, before tokens (`--client-ca-file`). The listener must request
    /// certificates: `pki::TlsOptions::request_client_certificates`. Default: certificates are ignored.
    #[must_use]
    pub fn client_certificates(mut self, authenticator: ClientCertificateAuthenticator) -> Self {
        self.client_certificates = Some(Arc::new(authenticator));
        self
    }

    /// How service account tokens are issued and accepted (`--service-account-*`, `--api-audiences`). Default: a key of
    /// the store signs, and the issuer is `https://kubernetes.default.svc.cluster.local`.
    #[must_use]
    pub fn service_account_tokens(mut self, options: ServiceAccountTokenOptions) -> Self {
        self.service_account_tokens = options;
        self
    }

    /// The address of the key set of service account tokens in the discovery document
    /// (`--service-account-jwks-uri`). Default: `/openid/v1/jwks` at [`Builder::external_address`].
    #[must_use]
    pub fn service_account_jwks_uri(mut self, uri: &str) -> Self {
        self.jwks_uri = Some(uri.to_owned());
        self
    }

    /// The host and port at which clients reach this server (`--external-hostname`). Default: `localhost` and
    /// [`Builder::secure_port`].
    #[must_use]
    pub fn external_address(mut self, host_and_port: &str) -> Self {
        self.external_address = Some(host_and_port.to_owned());
        self
    }

    /// Whether Secrets of the type `bootstrap.kubernetes.io/token` in `kube-system` authenticate clients
    /// (`--enable-bootstrap-token-auth`). Default: no.
    #[must_use]
    pub fn bootstrap_tokens(mut self, on: bool) -> Self {
        self.bootstrap_tokens = on;
        self
    }

    /// Sets the treatment of requests without credentials (`--anonymous-auth`). Default: only health and version.
    #[must_use]
    pub fn anonymous_auth(mut self, anonymous_auth: AnonymousAuth) -> Self {
        self.anonymous_auth = anonymous_auth;
        self
    }

    /// Whether reads and watches are served from a cache per resource (the default) or from the store.
    #[must_use]
    pub fn watch_cache(mut self, on: bool) -> Self {
        self.watch_cache = on;
        self
    }

    /// The duration of a watch without `timeoutSeconds`: random, from this value to twice this value. Default: 30
    /// minutes.
    #[must_use]
    pub fn min_request_timeout(mut self, timeout: Duration) -> Self {
        self.min_request_timeout = timeout;
        self
    }

    /// The longest duration of a request, except watches (`--request-timeout`). Default: one minute.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// The largest numbers of concurrent reads and writes, except watches (`--max-requests-inflight`,
    /// `--max-mutating-requests-inflight`). Further requests receive 429. Default: 400 and 200.
    ///
    /// With [`Builder::priority_and_fairness`], their sum is the number of seats of all priority levels, and each is the
    /// limit of exempt requests, those of `system:masters`.
    #[must_use]
    pub fn requests_in_flight_max(mut self, reads: usize, writes: usize) -> Self {
        self.requests_in_flight_max = (reads, writes);
        self
    }

    /// Whether requests wait for seats of their priority level (`--enable-priority-and-fairness`), as the stored
    /// FlowSchemas and PriorityLevelConfigurations say. The server creates and maintains Kubernetes' default ones.
    /// Default: yes.
    #[must_use]
    pub fn priority_and_fairness(mut self, on: bool) -> Self {
        self.priority_and_fairness = on;
        self
    }

    /// The header `Strict-Transport-Security` of all responses (`--strict-transport-security-directives`, joined with
    /// `; `). Default: no header.
    #[must_use]
    pub fn strict_transport_security(mut self, value: &str) -> Self {
        self.strict_transport_security = Some(value.to_owned());
        self
    }

    /// The fraction of HTTP/2 requests after which the server ends their connection, so that clients spread over the
    /// servers behind a load balancer (`--goaway-chance`). Running requests finish. Default: 0; kube-apiserver allows
    /// up to 0.02.
    #[must_use]
    pub fn goaway_chance(mut self, chance: f64) -> Self {
        self.goaway_chance = chance;
        self
    }

    /// Whether CBOR is served (kube-apiserver's feature gate `CBORServingAndStorage`). Default: no.
    #[must_use]
    pub fn cbor(mut self, on: bool) -> Self {
        self.cbor = on;
        self
    }

    /// The built-in controllers that run. Default: all of them.
    #[must_use]
    pub fn controllers(mut self, controllers: Controllers) -> Self {
        self.controllers = controllers;
        self
    }

    /// The limits of each watch cache.
    #[must_use]
    pub fn cache_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The memory limit of the states of all watch caches together, in bytes. Default: no limit.
    ///
    /// Above the limit, the server drops caches and serves their resources from the store: first caches without
    /// watchers, then the largest. The watches of a dropped cache end cleanly, and their clients reconnect. After a
    /// minute or more, a cache is rebuilt if it leaves a quarter of the limit free. [`Limits::history_bytes_max`] and
    /// [`Limits::history_budget`] limit the histories.
    #[must_use]
    pub fn cache_bytes_max(mut self, bytes: Option<usize>) -> Self {
        self.cache_bytes_max = bytes;
        self
    }

    /// The largest number of streams on one HTTP/2 connection, including watches. Clients open another connection for
    /// more. Default: [`HTTP2_STREAMS_MAX`]; 0 means the default.
    #[cfg(feature = "serve")]
    #[must_use]
    pub fn http2_max_streams_per_connection(mut self, streams: u32) -> Self {
        self.http2_streams_max = if streams == 0 { HTTP2_STREAMS_MAX } else { streams };
        self
    }

    /// The CA certificates of clients, in PEM. The ConfigMap `kube-system/extension-apiserver-authentication` publishes
    /// them to extension servers, kube-controller-manager and kube-scheduler. Default: none.
    #[must_use]
    pub fn client_ca(mut self, pem: &str) -> Self {
        self.client_ca = Some(pem.to_owned());
        self
    }

    /// The target port of the service `default/kubernetes`. Default: 6443.
    #[must_use]
    pub fn secure_port(mut self, port: u16) -> Self {
        self.secure_port = port;
        self
    }

    /// The ranges from which services get cluster addresses and node ports. All servers of a store must have the
    /// same. Default: 10.96.0.0/16 and 30000-32767.
    #[must_use]
    pub fn service_ranges(mut self, ranges: ServiceRanges) -> Self {
        self.service_ranges = ranges;
        self
    }

    /// The certificate and key, in PEM, by which extension servers recognize this server. Default: none.
    #[must_use]
    pub fn proxy_client_certificate(mut self, chain_pem: &str, key_pem: &str) -> Self {
        let (chain_pem, key_pem) = (chain_pem.as_bytes().to_vec(), key_pem.as_bytes().to_vec());
        self.aggregation.proxy_certificate = Some(ClientCertificate { chain_pem, key_pem });
        self
    }

    /// How extension servers recognize this server as a front proxy, by the ConfigMap
    /// `kube-system/extension-apiserver-authentication`. Default: not at all.
    #[must_use]
    pub fn request_header(mut self, request_header: RequestHeader) -> Self {
        self.request_header = Some(request_header);
        self
    }

    /// Requests to extension servers go to a ready endpoint of the service instead of its cluster address. Default:
    /// off.
    #[must_use]
    pub fn aggregator_routing(mut self, on: bool) -> Self {
        self.aggregation.endpoint_routing = on;
        self
    }

    /// Whether redirects of extension servers are passed on to the client instead of rejected with 502
    /// (`--aggregator-reject-forwarding-redirect=false`). The server itself never follows them. Default: off.
    #[must_use]
    pub fn aggregator_passes_redirects(mut self, on: bool) -> Self {
        self.aggregation.pass_redirects = on;
        self
    }

    /// How the server connects to kubelets (`--kubelet-*`): for logs, exec, attach, port-forward and proxied nodes.
    /// Default: no client certificate, and certificates of kubelets are not verified.
    #[must_use]
    pub fn kubelet(mut self, options: KubeletOptions) -> Self {
        self.kubelet = options;
        self
    }

    /// Whether the admission plugin NodeRestriction limits the writes of kubelets to their own node
    /// (`--enable-admission-plugins=NodeRestriction`). [`AuthorizationMode::Node`] needs it: without it, a kubelet may
    /// write the objects of other nodes. Default: no.
    #[must_use]
    pub fn node_restriction(mut self, on: bool) -> Self {
        self.node_restriction = on;
        self
    }

    /// Adds a mutating admission plugin after the built-in ones.
    #[must_use]
    pub fn mutating_admission(mut self, plugin: impl MutatingAdmission + 'static) -> Self {
        self.admission.add_mutating(Arc::new(plugin));
        self
    }

    /// Adds a validating admission plugin after the built-in ones.
    #[must_use]
    pub fn validating_admission(mut self, plugin: impl ValidatingAdmission + 'static) -> Self {
        self.admission.add_validating(Arc::new(plugin));
        self
    }

    /// Builds the server on the current tokio runtime: creates the objects that every cluster has and starts the
    /// built-in controllers.
    ///
    /// # Errors
    /// [`BuildError`] if the store does not respond, or if a setting or a stored definition cannot be used.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn build(self) -> Result<ApiServer, BuildError> {
        let strict_transport_security = self.strict_transport_security.as_deref().map(HeaderValue::from_str);
        let strict_transport_security = strict_transport_security
            .transpose()
            .map_err(|_| BuildError::Header(self.strict_transport_security.unwrap_or_default()))?;
        let connections = Connections::new(self.kubelet).map_err(|error| BuildError::Kubelet(error.to_string()))?;
        let storage = self.storage.unwrap_or_else(|| MemoryStorage::new());
        storage.health().await?;
        let storage = self.stored_form.storage(storage);
        if let Err(fault) = rewrite_stale_keys(&storage).await {
            tracing::warn!(%fault, "some keys of the server still need the former encryption key: keep it, and restart");
        }
        let backend = Backend::new(storage, Registry::builtin(), self.watch_cache, self.limits);
        let external_address = self.external_address.unwrap_or_else(|| format!("localhost:{}", self.secure_port));
        let jwks_uri = self.jwks_uri.unwrap_or_else(|| format!("https://{external_address}{JWKS_PATH}"));
        if let Err(error) = IssuerDocuments::new(self.service_account_tokens.issuer(), &jwks_uri, &[]) {
            tracing::warn!(%error, "the server does not publish the keys of service account tokens");
        }
        let backend = backend.with_service_account_tokens(self.service_account_tokens);
        let backend = Arc::new(backend.with_cache_budget(self.cache_bytes_max));
        let modes = self.authorization.as_deref();
        let states = AuthorizerStates::of_modes(modes);
        let authorizers = authorizers(self.authorizers, modes, &states);
        let AuthorizerStates { rbac: rbac_state, node: node_state } = states;
        let mut admission = self.admission;
        if self.node_restriction {
            let plugin = Arc::new(NodeRestriction::new(authorizers.clone()));
            admission.add_mutating(Arc::clone(&plugin) as Arc<dyn MutatingAdmission>);
            admission.add_validating(plugin);
        }
        admission.add_validating(Arc::new(CreateAuthorization(authorizers.clone())));
        if let Some(state) = &rbac_state {
            admission.add_validating(Arc::new(RbacEscalation::new(authorizers.clone(), Arc::clone(state))));
        }
        let writer = Arc::new(
            Writer::new(Arc::clone(&backend), admission)
                .with_service_ranges(self.service_ranges)
                .with_enforced_rbac(rbac_state.is_some())
                .with_enforced_flow_control(self.priority_and_fairness),
        );
        namespaces::ensure_system_namespaces(&writer).await.map_err(|status| BuildError::Namespaces(status.message))?;
        definitions::load(&writer).await.map_err(|status| BuildError::Definitions(status.message))?;
        let settings = bootstrap::Settings {
            client_ca: self.client_ca,
            request_header: self.request_header.clone(),
            secure_port: self.secure_port,
        };
        let mut bootstrap = Bootstrap::new(Arc::clone(&writer), settings);
        bootstrap.sync().await;
        let mut node_ports = NodePortController::new(Arc::clone(&writer));
        let next_repair = node_ports.sync().await;
        if let Some(state) = &rbac_state {
            prepare_rbac(&writer, state, self.controllers).await.map_err(|status| BuildError::Rbac(status.message))?;
        }
        let (reads, writes) = self.requests_in_flight_max;
        let fairness = self.priority_and_fairness.then(|| Fairness::new(reads.saturating_add(writes)));
        if let Some(fairness) = &fairness {
            prepare_flow_control(&writer, fairness).await.map_err(|status| BuildError::FlowControl(status.message))?;
        }
        let flow_control = FlowControl::new(reads, writes, fairness);
        if let Some(state) = &node_state {
            nodes::load(&writer, state).await.map_err(|status| BuildError::Nodes(status.message))?;
        }
        // Every server runs the controllers of definitions and of the objects that every cluster has. The others are
        // optional.
        let definitions_task = tokio::spawn(definitions::run(Arc::clone(&writer)));
        let mut others = vec![tokio::spawn(bootstrap.run()), tokio::spawn(node_ports.run(next_repair))];
        if self.cache_bytes_max.is_some() {
            others.push(spawn_cache_budget(&backend));
        }
        if self.controllers.namespace {
            others.push(tokio::spawn(namespaces::run(Arc::clone(&writer))));
        }
        if self.controllers.gc {
            others.push(tokio::spawn(gc::run(Arc::clone(&writer))));
        }
        if let Some(state) = rbac_state {
            others.push(tokio::spawn(rbac::follow(Arc::clone(&writer), state)));
            if self.controllers.clusterrole_aggregation {
                others.push(tokio::spawn(rbac::run_aggregation(Arc::clone(&writer))));
            }
        }
        if let Some(fairness) = flow_control.fairness() {
            let target: Arc<dyn FlowConfiguration> = Arc::<Fairness>::clone(fairness);
            others.push(tokio::spawn(flow_control::follow(Arc::clone(&writer), target)));
            others.push(tokio::spawn(flow_control::maintain_objects(Arc::clone(&writer))));
            others.push(tokio::spawn(Arc::clone(&flow_control).run()));
        }
        if let Some(state) = node_state {
            others.push(tokio::spawn(nodes::follow(Arc::clone(&writer), state)));
        }
        let store_health = StoreHealth::new(Arc::clone(backend.storage()));
        let access = Access::new(
            &backend,
            &self.auth,
            self.front_proxy,
            self.client_certificates,
            self.bootstrap_tokens,
            self.authenticators,
            authorizers,
        );
        let aggregation = Aggregation::new(&writer, self.aggregation, self.request_header);
        others.push(tokio::spawn(aggregation.run()));
        Ok(ApiServer::new(Shared {
            aggregation,
            connections,
            backend,
            writer,
            documents: Documents::default(),
            access: Arc::new(access),
            #[cfg(feature = "serve")]
            auth: self.auth,
            anonymous_auth: self.anonymous_auth,
            min_request_timeout: self.min_request_timeout,
            request_timeout: self.request_timeout,
            jwks_uri,
            strict_transport_security,
            goaway_chance: self.goaway_chance,
            flow_control,
            bodies: BodyBudget::new(BODIES_BYTES_MAX),
            store_health,
            #[cfg(feature = "serve")]
            http2_streams_max: self.http2_streams_max,
            compute: Compute::new(self.cbor),
            metrics: Metrics::default(),
            websockets: Arc::new(Semaphore::new(WEBSOCKETS_MAX)),
            cbor: self.cbor,
            stopping: AtomicBool::new(false),
            unready: AtomicBool::new(false),
            watch_drain: Arc::default(),
            tasks: BackgroundTasks { definitions: definitions_task, others },
        }))
    }
}

/// Creates the flow schemas and priority levels that every cluster has, and reads all of them, so that the first request
/// is classified correctly.
async fn prepare_flow_control(writer: &Arc<Writer>, fairness: &Fairness) -> Result<(), Status> {
    // The controller tries again. An object that cannot be written must not keep the server from starting.
    if let Err(status) = flow_control::ensure_objects(writer).await {
        tracing::warn!(%status, "cannot create the flow schemas and priority levels that every cluster has");
    }
    flow_control::load(writer, fairness).await
}

/// Creates the default roles and bindings, and reads all of them, so that the first request is decided correctly.
async fn prepare_rbac(writer: &Arc<Writer>, state: &RbacState, controllers: Controllers) -> Result<(), Status> {
    rbac::ensure_policy(writer).await?;
    if controllers.clusterrole_aggregation {
        // The controller tries again. A role that cannot be written must not keep the server from starting.
        if let Err(status) = rbac::aggregate(writer).await {
            tracing::warn!(%status, "cannot aggregate ClusterRoles");
        }
    }
    rbac::load(writer, state).await
}
