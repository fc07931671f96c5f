//! [`Builder`]: the settings of a server, and the start of the server.

mod command_line;
mod error;
mod in_process;
mod initial_objects;
mod maintenance;
mod optional_controllers;
mod service_repairs;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::HeaderValue;
use listwatch_access::oidc::{JwtAuthenticator, JwtIssuer};
use listwatch_access::webhook::{
    AuthorizationWebhookOptions, TokenWebhookOptions, WebhookAuthorizer, WebhookTokenAuthenticator,
};
use listwatch_access::{
    AbacAuthorizer, Authenticator, Authorizer, ClientCertificateAuthenticator, FrontProxyAuthenticator,
    IssuerDocuments, JWKS_PATH, ServiceAccountTokenOptions,
};
use listwatch_admission::{
    AdmissionChain, AdmissionConfiguration, AdmissionPlugins, CreateAuthorization, MutatingAdmission, RbacEscalation,
    ResourceClaimAuthorization, ValidatingAdmission,
};
use listwatch_aggregator::AggregatorOptions;
use listwatch_cacher::Limits;
use listwatch_controllers::bootstrap::{self, Bootstrap, RequestHeader};
use listwatch_controllers::flow_control::FlowConfiguration;
use listwatch_controllers::policies::{self, CachedParams, Policies};
use listwatch_controllers::webhooks::{self, AdmissionWebhooks, CachedServices};
use listwatch_controllers::{Controllers, definitions, flow_control, legacy_tokens, namespaces, nodes, rbac};
use listwatch_discovery::ServedZpages;
use listwatch_json::Value;
use listwatch_outbound::Client;
use listwatch_policy_admission::{
    MutatingAdmissionPolicy, ParamAccess, ParamReader, PolicyMetrics, ValidatingAdmissionPolicy,
};
use listwatch_proxy::ClientCertificate;
use listwatch_registry::{
    Backend, BuiltinOptions, ConversionHandler, Registry, RuntimeConfig, StoredForm, rewrite_stale_keys,
    spawn_cache_budget,
};
use listwatch_storage::{MemoryStorage, Storage};
use listwatch_webhook_admission::{
    HttpsCaller, MutatingAdmissionWebhook, ValidatingAdmissionWebhook, WebhookCaller, WebhookHandler, WebhookMetrics,
};
use listwatch_write::{ServiceRanges, Writer};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub use self::error::BuildError;
use self::initial_objects::{finish, prepare_flow_control, spawn_roles};
use self::maintenance::{drop_recent_objects, run_cleanups};
use crate::aggregation::Aggregation;
use crate::audit::{AuditOptions, Auditor};
use crate::auth::{
    Access, AnonymousAuth, Auth, AuthorizationMode, AuthorizerStates, ConfiguredAuthenticators, authorizers,
    loopback_token,
};
use crate::compute::Compute;
use crate::connections::{Connections, KubeletOptions};
use crate::filters::request_deadline::REQUEST_TIMEOUT;
use crate::flow_control::{Fairness, FlowControl, READS_IN_FLIGHT_MAX, WRITES_IN_FLIGHT_MAX};
use crate::handlers::websocket::WEBSOCKETS_MAX;
use crate::metrics::Metrics;
use crate::request::body_budget::{BODIES_BYTES_MAX, BodyBudget};
use crate::response::caches::{ENCODING_CACHE_BYTES_MAX, ResponseCaches};
use crate::response::request_drain::RequestDrain;
use crate::response::watch_drain::{WATCH_TERMINATION_GRACE_PERIOD, WatchDrain};
use crate::server::ApiServer;
use crate::shared::{BackgroundTasks, Shared};
use crate::store_health::StoreHealth;
#[cfg(feature = "serve")]
use crate::transport::HTTP2_STREAMS_MAX;
use crate::webhook_client::{IssuerClient, REVIEW_TIMEOUT, WebhookClient, prepare};
use listwatch_controllers::presence::Presence;

/// The minimum duration of a watch without `timeoutSeconds`; the maximum is twice this value (`--min-request-timeout`).
const MIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(1800);

/// The target port of the service `kubernetes`, unless another port is set (`--secure-port`).
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
    constrained_impersonation: bool,
    goaway_chance: f64,
    metrics_reset: bool,
    watch_termination_grace_period: Duration,
    builtin: BuiltinOptions,
    advertise_address: Option<IpAddr>,
    host_name: Option<String>,
    limits: Limits,
    cbor: bool,
    controllers: Controllers,
    cache_bytes_max: Option<usize>,
    caches: ResponseCaches,
    #[cfg(feature = "serve")]
    http2_streams_max: u32,
    client_ca: Option<String>,
    root_ca: Option<String>,
    secure_port: u16,
    service_ranges: ServiceRanges,
    admission_plugins: AdmissionPlugins,
    admission_configuration: AdmissionConfiguration,
    mutating_admission: Vec<Arc<dyn MutatingAdmission>>,
    validating_admission: Vec<Arc<dyn ValidatingAdmission>>,
    mutating_webhooks: Vec<(Value, Arc<dyn WebhookHandler>)>,
    validating_webhooks: Vec<(Value, Arc<dyn WebhookHandler>)>,
    converters: Vec<(String, Arc<dyn ConversionHandler>)>,
    aggregation: AggregatorOptions,
    kubelet: KubeletOptions,
    request_header: Option<RequestHeader>,
    audit: Option<AuditOptions>,
    authorization_webhooks: Vec<Arc<dyn Authorizer>>,
    abac_policies: Option<AbacAuthorizer>,
    token_webhook: Option<Arc<dyn Authenticator>>,
    token_issuers: Vec<JwtIssuer>,
    anonymous_paths: Vec<String>,
    flags: BTreeMap<String, String>,
    zpages: ServedZpages,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("auth", &self.auth).field("watch_cache", &self.watch_cache).finish()
    }
}

impl ApiServer {
    /// Returns the default settings of a new server.
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
            constrained_impersonation: true,
            goaway_chance: 0.0,
            metrics_reset: true,
            watch_termination_grace_period: WATCH_TERMINATION_GRACE_PERIOD,
            builtin: BuiltinOptions::default(),
            advertise_address: None,
            host_name: None,
            limits: Limits::default(),
            cbor: false,
            cache_bytes_max: None,
            caches: ResponseCaches::new(ENCODING_CACHE_BYTES_MAX),
            #[cfg(feature = "serve")]
            http2_streams_max: HTTP2_STREAMS_MAX,
            client_ca: None,
            root_ca: None,
            secure_port: SECURE_PORT,
            service_ranges: ServiceRanges::default(),
            admission_plugins: AdmissionPlugins::default(),
            admission_configuration: AdmissionConfiguration::default(),
            mutating_admission: Vec::new(),
            validating_admission: Vec::new(),
            mutating_webhooks: Vec::new(),
            validating_webhooks: Vec::new(),
            converters: Vec::new(),
            aggregation: AggregatorOptions::default(),
            kubelet: KubeletOptions::default(),
            request_header: None,
            audit: None,
            authorization_webhooks: Vec::new(),
            abac_policies: None,
            token_webhook: None,
            token_issuers: Vec::new(),
            anonymous_paths: Vec::new(),
            flags: BTreeMap::new(),
            zpages: ServedZpages::default(),
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

    /// The authentication of requests. Default: every request runs as the administrator ([`Auth::Open`]).
    #[must_use]
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// Adds an authenticator. Authenticators are asked in the order of the calls; [`Builder::auth`] is asked last. The
    /// authenticator also receives service account tokens that this server rejected, so it must verify every token.
    /// docs/extending.md has an example.
    #[must_use]
    pub fn authenticator(mut self, authenticator: impl Authenticator + 'static) -> Self {
        self.authenticators.push(Arc::new(authenticator));
        self
    }

    /// Adds an authorizer after the authorizers that were added before. If no authorizer has an opinion, known users
    /// have all permissions ([`KnownUserAuthorizer`](listwatch_access::KnownUserAuthorizer)). docs/extending.md has an
    /// example.
    #[must_use]
    pub fn authorizer(mut self, authorizer: impl Authorizer + 'static) -> Self {
        self.authorizers.push(Arc::new(authorizer));
        self
    }

    /// Accepts the user headers of front proxies, with precedence over all other credentials
    /// (`--requestheader-client-ca-file`). The listener must request certificates, as for
    /// [`Builder::client_certificates`]. [`Builder::request_header`] publishes the same front proxies for extension
    /// servers. Default: the headers of front proxies have no effect.
    #[must_use]
    pub fn front_proxy(mut self, authenticator: FrontProxyAuthenticator) -> Self {
        self.front_proxy = Some(Arc::new(authenticator));
        self
    }

    /// Sets the modes that are asked after the authorizers of [`Builder::authorizer`] (`--authorization-mode`). Members
    /// of `system:masters` have all permissions. Other requests are forbidden unless an authorizer or a mode allows
    /// them. With [`AuthorizationMode::Rbac`], the server creates Kubernetes' default roles and bindings.
    ///
    /// Default: no modes; [`KnownUserAuthorizer`](listwatch_access::KnownUserAuthorizer) decides.
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

    /// Sets how service account tokens are issued and accepted (`--service-account-*`, `--api-audiences`). Default: a
    /// key of the store signs, and the issuer is `https://kubernetes.default.svc.cluster.local`.
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
    /// With [`Builder::priority_and_fairness`], the sum of both is the number of seats of all priority levels. The
    /// numbers then limit only exempt requests, i.e. requests of `system:masters`.
    #[must_use]
    pub fn requests_in_flight_max(mut self, reads: usize, writes: usize) -> Self {
        self.requests_in_flight_max = (reads, writes);
        self
    }

    /// Whether API priority and fairness is enabled (`--enable-priority-and-fairness`). Requests then wait for seats of
    /// their priority level, according to the stored FlowSchemas and PriorityLevelConfigurations. The server creates
    /// and maintains Kubernetes' default objects. Default: yes.
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

    /// Whether constrained impersonation is enabled (`ConstrainedImpersonation`). Users can then impersonate with
    /// narrower permissions than the verb `impersonate`: the node of a pod, any node, service accounts, or other users.
    /// Default: yes.
    #[must_use]
    pub fn constrained_impersonation(mut self, on: bool) -> Self {
        self.constrained_impersonation = on;
        self
    }

    /// The fraction of HTTP/2 requests after which the server closes the connection, so that clients spread over the
    /// servers behind a load balancer (`--goaway-chance`). Running requests finish. Default: 0; kube-apiserver allows
    /// up to 0.02.
    #[must_use]
    pub fn goaway_chance(mut self, chance: f64) -> Self {
        self.goaway_chance = chance;
        self
    }

    /// Whether DELETE of `/metrics` and of `/metrics/slis` resets the metrics, as with `--profiling` of kube-apiserver.
    /// Otherwise, DELETE returns the metrics, as GET does. Default: yes.
    #[must_use]
    pub fn metrics_reset(mut self, on: bool) -> Self {
        self.metrics_reset = on;
        self
    }

    /// The maximum time over which [`ApiServer::shutdown`] spreads the ends of open watches
    /// (`--shutdown-watch-termination-grace-period`). At least 200 watches end per second. Default: five seconds.
    #[must_use]
    pub fn watch_termination_grace_period(mut self, period: Duration) -> Self {
        self.watch_termination_grace_period = period;
        self
    }

    /// The built-in group versions and resources that are served (`--runtime-config`). Default: all.
    #[must_use]
    pub fn runtime_config(mut self, config: RuntimeConfig) -> Self {
        self.builtin.runtime_config = config;
        self
    }

    /// The time after which events expire, in whole seconds (`--event-ttl`). Zero means never. Default: one hour.
    #[must_use]
    pub fn event_ttl(mut self, ttl: Duration) -> Self {
        self.builtin.event_ttl = ttl;
        self
    }

    /// The address at which clients inside the cluster reach this server, at [`Builder::secure_port`]
    /// (`--advertise-address`, with `--endpoint-reconciler-type=lease`). The server publishes the addresses of all
    /// running servers of the store in the Endpoints and the EndpointSlice of the Service `default/kubernetes`. Call
    /// [`ApiServer::withdraw`] before the shutdown. Otherwise the address is removed up to 25 seconds later. Default:
    /// none.
    #[must_use]
    pub fn advertise_address(mut self, address: IpAddr) -> Self {
        self.advertise_address = Some(address);
        self
    }

    /// The name of this host, which must be unique among the servers of a store. The server renews a Lease in
    /// `kube-system` whose name is derived from the host name. The server also deletes Leases of other servers that
    /// were not renewed for an hour. Default: no Lease.
    #[must_use]
    pub fn host_name(mut self, name: &str) -> Self {
        self.host_name = Some(name.to_owned());
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

    /// The memory limit of the cached objects of all watch caches together, in bytes. Default: no limit.
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

    /// The memory limit of the cache of encoded objects (two thirds) and compressed lists (one third), in bytes. 0
    /// disables the cache. Default: [`ENCODING_CACHE_BYTES_MAX`].
    #[must_use]
    pub fn encoding_cache_bytes_max(mut self, bytes: usize) -> Self {
        self.caches = ResponseCaches::new(bytes);
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

    /// The CA certificates that sign client certificates, in PEM. The ConfigMap
    /// `kube-system/extension-apiserver-authentication` publishes them to extension servers, kube-controller-manager
    /// and kube-scheduler. Default: none.
    #[must_use]
    pub fn client_ca(mut self, pem: &str) -> Self {
        self.client_ca = Some(pem.to_owned());
        self
    }

    /// The CA certificates, in PEM, that verify this server's own certificate. The controller `root-ca-cert-publisher`
    /// writes them into the ConfigMap `kube-root-ca.crt` of each namespace (`--root-ca-file` of
    /// kube-controller-manager). Default: none.
    #[must_use]
    pub fn root_ca(mut self, pem: &str) -> Self {
        self.root_ca = Some(pem.to_owned());
        self
    }

    /// The address of port 443 of the service `default/kubernetes` for calls of this server, instead of the addresses in
    /// the objects of the service. The aggregator uses this address for APIServices. The calls of webhooks use it only
    /// without a listener; `ApiServer::serve` replaces it by the address of its listener. Default: none.
    #[must_use]
    pub fn loopback_address(mut self, address: SocketAddr) -> Self {
        self.aggregation.loopback = Some(address);
        self
    }

    /// The target port of the service `default/kubernetes`. Default: 6443.
    #[must_use]
    pub fn secure_port(mut self, port: u16) -> Self {
        self.secure_port = port;
        self
    }

    /// The ranges from which cluster addresses and node ports of services are allocated. All servers of a store must
    /// have the same ranges. Default: 10.96.0.0/16 and 30000-32767.
    #[must_use]
    pub fn service_ranges(mut self, ranges: ServiceRanges) -> Self {
        self.service_ranges = ranges;
        self
    }

    /// The certificate and key, in PEM, with which this server authenticates to extension servers. Default: none.
    #[must_use]
    pub fn proxy_client_certificate(mut self, chain_pem: &str, key_pem: &str) -> Self {
        let (chain_pem, key_pem) = (chain_pem.as_bytes().to_vec(), key_pem.as_bytes().to_vec());
        self.aggregation.proxy_certificate = Some(ClientCertificate { chain_pem, key_pem });
        self
    }

    /// The settings with which extension servers recognize this server as a front proxy. The ConfigMap
    /// `kube-system/extension-apiserver-authentication` publishes them. Default: none.
    #[must_use]
    pub fn request_header(mut self, request_header: RequestHeader) -> Self {
        self.request_header = Some(request_header);
        self
    }

    /// Sends requests for extension servers and webhooks to a ready endpoint of the service instead of the cluster
    /// address (`--enable-aggregator-routing`). Cluster addresses need a route on this host, such as that of kube-proxy.
    /// Default: off.
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

    /// Sets how the server connects to kubelets (`--kubelet-*`): for logs, exec, attach, port-forward and proxied
    /// nodes. Default: no client certificate, and certificates of kubelets are not verified.
    #[must_use]
    pub fn kubelet(mut self, options: KubeletOptions) -> Self {
        self.kubelet = options;
        self
    }

    /// Whether the admission plugin NodeRestriction limits the writes of kubelets to their own node
    /// (`--enable-admission-plugins=NodeRestriction`). Enable the plugin with [`AuthorizationMode::Node`]; otherwise a
    /// kubelet may write the objects of other nodes. Default: no.
    #[must_use]
    pub fn node_restriction(mut self, on: bool) -> Self {
        self.admission_plugins = self.admission_plugins.with("NodeRestriction", on);
        self
    }

    /// The built-in admission plugins (`--enable-admission-plugins`, `--disable-admission-plugins`). Default:
    /// [`AdmissionPlugins::default`], which are kube-apiserver's defaults without ServiceAccount. Replaces an earlier
    /// [`Builder::node_restriction`].
    #[must_use]
    pub fn admission_plugins(mut self, plugins: AdmissionPlugins) -> Self {
        self.admission_plugins = plugins;
        self
    }

    /// The configuration of admission plugins (`--admission-control-config-file`). Default: none.
    #[must_use]
    pub fn admission_configuration(mut self, configuration: AdmissionConfiguration) -> Self {
        self.admission_configuration = configuration;
        self
    }

    /// Adds a webhook of the mode [`AuthorizationMode::Webhook`] (`--authorization-webhook-*`,
    /// `--authorization-config`). The first occurrence of the mode uses the first added webhook, and so on. Without a
    /// webhook, the mode denies. Default: none.
    #[must_use]
    pub fn authorization_webhook(mut self, client: Client, options: AuthorizationWebhookOptions) -> Self {
        let client = WebhookClient { client, timeout: options.timeout };
        self.authorization_webhooks.push(Arc::new(WebhookAuthorizer::new(client, options)));
        self
    }

    /// The policies of the mode [`AuthorizationMode::Abac`] (`--authorization-policy-file`). Without them, the mode
    /// denies. Default: none.
    #[must_use]
    pub fn abac_policies(mut self, policies: AbacAuthorizer) -> Self {
        self.abac_policies = Some(policies);
        self
    }

    /// Accepts tokens of other issuers (`--authentication-config`, `--oidc-*`). The keys of an issuer are fetched at
    /// the start or when its first token arrives, and again when a token has an unknown key. Default: none.
    #[must_use]
    pub fn token_issuers(mut self, issuers: Vec<JwtIssuer>) -> Self {
        self.token_issuers = issuers;
        self
    }

    /// The exact paths for which [`AnonymousAuth::Enabled`] allows anonymous requests. Default: empty, which allows all
    /// paths.
    #[must_use]
    pub fn anonymous_paths(mut self, paths: Vec<String>) -> Self {
        self.anonymous_paths = paths;
        self
    }

    /// A webhook that authenticates the tokens that no other authenticator recognizes
    /// (`--authentication-token-webhook-*`). Default: none.
    #[must_use]
    pub fn token_webhook(mut self, client: Client, options: TokenWebhookOptions) -> Self {
        let client = WebhookClient { client, timeout: REVIEW_TIMEOUT };
        self.token_webhook = Some(Arc::new(WebhookTokenAuthenticator::new(client, options)));
        self
    }

    /// The audit log. Default: none.
    #[must_use]
    pub fn audit_log(mut self, options: AuditOptions) -> Self {
        self.audit = Some(options);
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
        // On the heap, so that the futures of callers stay small.
        Box::pin(self.start()).await
    }

    async fn start(self) -> Result<ApiServer, BuildError> {
        let strict_transport_security = self.strict_transport_security.as_deref().map(HeaderValue::from_str);
        let strict_transport_security = strict_transport_security
            .transpose()
            .map_err(|_| BuildError::Header(self.strict_transport_security.unwrap_or_default()))?;
        let connections = Connections::new(self.kubelet).map_err(|error| BuildError::Kubelet(error.to_string()))?;
        let audit = self.audit.map(Auditor::start).transpose().map_err(BuildError::Audit)?;
        let storage = self.storage.unwrap_or_else(|| MemoryStorage::new());
        storage.health().await?;
        let storage = self.stored_form.storage(storage);
        if let Err(fault) = rewrite_stale_keys(&storage).await {
            tracing::warn!(%fault, "some keys of the server still need the former encryption key: keep it, and restart");
        }
        let backend = Backend::new(storage, Registry::configured(&self.builtin), self.watch_cache, self.limits);
        let external_address = self.external_address.unwrap_or_else(|| format!("localhost:{}", self.secure_port));
        let jwks_uri = self.jwks_uri.unwrap_or_else(|| format!("https://{external_address}{JWKS_PATH}"));
        if let Err(error) = IssuerDocuments::new(self.service_account_tokens.issuer(), &jwks_uri, &[]) {
            tracing::warn!(%error, "the server does not publish the keys of service account tokens");
        }
        let api_audiences = self.service_account_tokens.audiences().to_vec();
        let token_issuers = self.token_issuers.into_iter().map(|issuer| {
            let authenticator = Arc::new(JwtAuthenticator::new(issuer, IssuerClient, api_audiences.clone()));
            tokio::spawn(prepare(Arc::downgrade(&authenticator)));
            authenticator as Arc<dyn Authenticator>
        });
        let token_issuers: Vec<_> = token_issuers.collect();
        let backend = backend.with_service_account_tokens(self.service_account_tokens);
        let backend = Arc::new(backend.with_cache_budget(self.cache_bytes_max));
        let modes = self.authorization.as_deref();
        let states = AuthorizerStates::of_modes(modes, self.authorization_webhooks, self.abac_policies);
        let authorizers = authorizers(self.authorizers, modes, &states);
        let AuthorizerStates { rbac: rbac_state, node: node_state, webhooks: _, abac: _ } = states;
        let enforces_rbac = rbac_state.is_some();
        let plugins = self.admission_plugins;
        let mut admission = AdmissionChain::new(&plugins, &self.admission_configuration, Some(&authorizers));
        self.mutating_admission.into_iter().for_each(|plugin| admission.add_mutating(plugin));
        self.validating_admission.into_iter().for_each(|plugin| admission.add_validating(plugin));
        admission.add_validating(Arc::new(CreateAuthorization::new(authorizers.clone())));
        admission.add_validating(Arc::new(ResourceClaimAuthorization::new(authorizers.clone())));
        if let Some(state) = &rbac_state {
            admission.add_validating(Arc::new(RbacEscalation::new(authorizers.clone(), Arc::clone(state))));
        }
        let (webhooks, webhook_metrics) = (AdmissionWebhooks::default(), Arc::<WebhookMetrics>::default());
        for (all, added) in
            [(&webhooks.mutating, self.mutating_webhooks), (&webhooks.validating, self.validating_webhooks)]
        {
            for (configuration, handler) in added {
                let result = all.add_handler(&configuration, handler);
                result.map_err(|error| BuildError::Webhooks(error.to_string()))?;
            }
        }
        let (policies, policy_metrics) = (Policies::default(), Arc::<PolicyMetrics>::default());
        let params: Arc<dyn ParamReader> = Arc::new(CachedParams::new(Arc::clone(&backend)));
        admission.add_validating(Arc::new(ParamAccess::new(authorizers.clone(), Arc::clone(&params))));
        let services = self.aggregation.resolver(Arc::new(CachedServices::new(&backend)));
        let webhook_caller = Arc::new(HttpsCaller::new(services));
        let caller: Arc<dyn WebhookCaller> = Arc::<HttpsCaller>::clone(&webhook_caller);
        backend.conversion().set_caller(Arc::clone(&caller));
        for (definition, handler) in self.converters {
            backend.conversion().set_handler(definition, handler);
        }
        if plugins.is_enabled("MutatingAdmissionPolicy") {
            admission.add_mutating(Arc::new(MutatingAdmissionPolicy::new(
                Arc::clone(&policies.mutating),
                Arc::clone(&params),
                authorizers.clone(),
                Arc::clone(&policy_metrics),
            )));
        }
        let (hooks, metrics) = (Arc::clone(&webhooks.mutating), Arc::clone(&webhook_metrics));
        if plugins.is_enabled("MutatingAdmissionWebhook") {
            let plugin = MutatingAdmissionWebhook::new(hooks, Arc::clone(&caller), metrics, authorizers.clone());
            admission.add_mutating(Arc::new(plugin));
        }
        if plugins.is_enabled("ValidatingAdmissionPolicy") {
            admission.add_validating(Arc::new(ValidatingAdmissionPolicy::new(
                Arc::clone(&policies.validating),
                params,
                authorizers.clone(),
                Arc::clone(&policy_metrics),
            )));
        }
        let (hooks, metrics) = (Arc::clone(&webhooks.validating), Arc::clone(&webhook_metrics));
        if plugins.is_enabled("ValidatingAdmissionWebhook") {
            let plugin = ValidatingAdmissionWebhook::new(hooks, caller, metrics, authorizers.clone());
            admission.add_validating(Arc::new(plugin));
        }
        let writer = Arc::new(
            Writer::new(Arc::clone(&backend), admission)
                .with_service_ranges(self.service_ranges)
                .with_enforced_rbac(enforces_rbac)
                .with_enforced_plugins(plugins)
                .with_enforced_flow_control(self.priority_and_fairness),
        );
        namespaces::ensure_system_namespaces(&writer).await.map_err(|status| BuildError::Namespaces(status.message))?;
        definitions::load(&writer).await.map_err(|status| BuildError::Definitions(status.message))?;
        let settings = bootstrap::Settings {
            client_ca: self.client_ca,
            request_header: self.request_header.clone(),
            secure_port: self.secure_port,
        };
        let roles = spawn_roles(&writer, rbac_state.as_ref(), self.controllers);
        let repairs = service_repairs::start(&writer).await?;
        let mut bootstrap = Bootstrap::new(Arc::clone(&writer), settings);
        bootstrap.sync().await;
        // Before webhooks and policies are known: one that needs this server must not keep it from starting.
        finish(roles).await.map_err(|status| BuildError::Rbac(status.message))?;
        let (loaded_webhooks, loaded_policies) =
            tokio::join!(webhooks::load(&writer, &webhooks), policies::load(&writer, &policies));
        loaded_webhooks.map_err(|status| BuildError::Webhooks(status.message))?;
        loaded_policies.map_err(|status| BuildError::Policies(status.message))?;
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
        let mut others = repairs.spawn(&writer);
        others.push(tokio::spawn(bootstrap.run()));
        others.push(tokio::spawn(webhooks::follow(Arc::clone(&writer), webhooks)));
        others.push(tokio::spawn(legacy_tokens::run(Arc::clone(&writer))));
        others.push(tokio::spawn(policies::follow(Arc::clone(&writer), policies)));
        if self.cache_bytes_max.is_some() {
            others.push(spawn_cache_budget(&backend));
        }
        others.push(tokio::spawn(self.caches.clone().sweep()));
        others.push(tokio::spawn(drop_recent_objects(Arc::clone(&writer))));
        let cleanups = Mutex::new(Some(tokio::spawn(run_cleanups(Arc::clone(&writer)))));
        others.extend(optional_controllers::spawn(self.controllers, &writer, self.root_ca).await);
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
        let loopback_token = Arc::new(loopback_token());
        let configured = ConfiguredAuthenticators {
            loopback: Arc::clone(&loopback_token),
            front_proxy: self.front_proxy,
            client_certificates: self.client_certificates,
            bootstrap_tokens: self.bootstrap_tokens,
            custom: self.authenticators,
            token_issuers,
            token_webhook: self.token_webhook,
        };
        let access = Access::new(&backend, &self.auth, configured, authorizers);
        let documents = Arc::default();
        let aggregation = Aggregation::new(&writer, &documents, self.aggregation, self.request_header);
        others.push(tokio::spawn(aggregation.run()));
        let advertised = self.advertise_address.map(|address| (address, self.secure_port));
        Ok(ApiServer::new(Shared {
            aggregation,
            connections,
            backend,
            presence: Presence::new(&writer, advertised, self.host_name.as_deref()),
            writer,
            documents,
            access: Arc::new(access),
            enforces_rbac,
            stored_form: self.stored_form,
            audit,
            #[cfg(feature = "serve")]
            auth: self.auth,
            #[cfg(feature = "serve")]
            loopback_token,
            #[cfg(feature = "serve")]
            webhook_caller,
            anonymous_auth: self.anonymous_auth,
            anonymous_paths: self.anonymous_paths,
            min_request_timeout: self.min_request_timeout,
            request_timeout: self.request_timeout,
            jwks_uri,
            strict_transport_security,
            constrained_impersonation: self.constrained_impersonation,
            goaway_chance: self.goaway_chance,
            metrics_reset: self.metrics_reset,
            flow_control,
            bodies: BodyBudget::new(BODIES_BYTES_MAX),
            caches: self.caches,
            store_health,
            #[cfg(feature = "serve")]
            http2_streams_max: self.http2_streams_max,
            compute: Compute::new(self.cbor),
            metrics: Metrics::default(),
            webhook_metrics,
            policy_metrics,
            websockets: Arc::new(Semaphore::new(WEBSOCKETS_MAX)),
            cbor: self.cbor,
            stopping: AtomicBool::new(false),
            unready: AtomicBool::new(false),
            unfilled_caches: Mutex::default(),
            started: time::OffsetDateTime::now_utc(),
            flags: self.flags,
            zpages: self.zpages,
            request_drain: RequestDrain::default(),
            watch_drain: Arc::new(WatchDrain::new(self.watch_termination_grace_period)),
            tasks: BackgroundTasks { definitions: definitions_task, others, cleanups },
        }))
    }
}
