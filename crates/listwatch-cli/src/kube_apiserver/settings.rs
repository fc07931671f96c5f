//! [`resolve`]: a pure function from the values of flags to the settings of the server.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use listwatch_access::{FrontProxyHeaders, ISSUER};
use listwatch_apiserver::admission::{AdmissionPlugins, InvalidPlugins, PLUGINS, PluginInfo, TolerationSeconds};
use listwatch_apiserver::pki::{SniCertificate, TlsOptions};
use listwatch_apiserver::stored_form::StorageMediaType;
use listwatch_apiserver::{AnonymousAuth, RuntimeConfig, ServiceRanges};

use super::audit::{self, AuditSettings};
use super::authorization::{self, AuthorizationSettings};
use super::command_line::{FlagValues, items, parse_bool};
use super::feature_gates::FeatureGates;
use super::flags::{Flag, KUBERNETES_VERSION, Support, ValueType};
use super::oidc::{self, OidcSettings};
use super::webhooks::{self, WebhookSettings};
use crate::store::{EtcdConnection, parse_media_type};

/// The highest `--goaway-chance` (`ServerRunOptions.Validate`).
const GOAWAY_CHANCE_MAX: f64 = 0.02;

/// The smallest `--service-account-max-token-expiration`.
const TOKEN_EXPIRATION_LEAST: Duration = Duration::from_secs(60 * 60);
/// The largest `--service-account-max-token-expiration`.
const TOKEN_EXPIRATION_MOST: Duration = Duration::from_secs(1 << 32);

/// The settings of the server that follow from the flags.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    /// The address to listen on.
    pub(super) bind: SocketAddr,
    /// The names and addresses for a certificate that the server creates itself.
    pub(super) names: Vec<String>,
    /// The store of the objects.
    pub(super) store: StoreChoice,
    /// The encoding of built-in kinds in the store.
    pub(super) storage_media_type: StorageMediaType,
    /// The file of the encryption of values in the store.
    pub(super) encryption_provider_config: Option<PathBuf>,
    /// The certificates of the listener.
    pub(super) certificates: Certificates,
    /// The certificates for single host names.
    pub(super) sni_certificates: Vec<SniCertificate>,
    /// The TLS options of the listener.
    pub(super) tls: TlsOptions,
    /// The file of the CA certificates that verify client certificates.
    pub(super) client_ca_file: Option<PathBuf>,
    /// The front proxies that may name the user of a request.
    pub(super) front_proxy: Option<FrontProxy>,
    /// The certificate with which this server authenticates to extension servers.
    pub(super) proxy_client: Option<CertificateFiles>,
    /// Whether requests to extension servers go to endpoints instead of the cluster address.
    pub(super) aggregator_routing: bool,
    /// Whether redirects of extension servers are passed on.
    pub(super) aggregator_passes_redirects: bool,
    /// The certificate with which this server authenticates to kubelets.
    pub(super) kubelet_client: Option<CertificateFiles>,
    /// The file of the CA certificates that verify those of kubelets.
    pub(super) kubelet_ca_file: Option<PathBuf>,
    /// The types of node addresses in the order of preference.
    pub(super) kubelet_address_types: Vec<String>,
    /// The file of static tokens.
    pub(super) token_auth_file: Option<PathBuf>,
    /// The issuer and the keys of service account tokens.
    pub(super) service_account: ServiceAccountSettings,
    /// Whether bootstrap tokens authenticate.
    pub(super) bootstrap_tokens: bool,
    /// The host and port at which clients reach the server; `None` if no flag names a host.
    pub(super) external_address: Option<String>,
    /// The authorizers.
    pub(super) authorization: AuthorizationSettings,
    /// The issuer of `--oidc-*`.
    pub(super) oidc: Option<OidcSettings>,
    /// The webhooks that authenticate and authorize.
    pub(super) webhooks: WebhookSettings,
    /// The audit log.
    pub(super) audit: AuditSettings,
    /// The built-in admission plugins.
    pub(super) admission_plugins: AdmissionPlugins,
    /// The file with the configuration of admission plugins.
    pub(super) admission_config_file: Option<PathBuf>,
    /// The tolerations that DefaultTolerationSeconds adds.
    pub(super) toleration_seconds: TolerationSeconds,
    /// The file with the issuers of JWTs.
    pub(super) authentication_config: Option<PathBuf>,
    /// Whether a flag sets the treatment of requests without credentials.
    pub(super) anonymous_auth_given: bool,
    /// The treatment of requests without credentials that the flag requests. The authorization mode `AlwaysAllow`
    /// disables such requests.
    pub(super) anonymous_auth: AnonymousAuth,
    /// The longest duration of a request, except watches.
    pub(super) request_timeout: Duration,
    pub(super) service_ranges: ServiceRanges,
    /// The largest numbers of concurrent reads and of concurrent writes.
    pub(super) requests_in_flight_max: (usize, usize),
    /// Whether requests wait for seats of their priority level.
    pub(super) priority_and_fairness: bool,
    /// The fraction of HTTP/2 requests after which the server closes the connection.
    pub(super) goaway_chance: f64,
    /// Whether DELETE of a page of metrics resets the metrics.
    pub(super) metrics_reset: bool,
    /// The value of the header `Strict-Transport-Security`.
    pub(super) strict_transport_security: Option<String>,
    /// The time between the signal and the shutdown, during which readiness fails.
    pub(super) shutdown_delay: Duration,
    /// Whether new requests get 429 during the shutdown.
    pub(super) shutdown_retry_after: bool,
    /// The longest time over which watches end; `None` is the server's default.
    pub(super) watch_termination_grace_period: Option<Duration>,
    /// The minimum duration of a watch without a timeout. The duration is random, up to twice this value.
    pub(super) min_request_timeout: Duration,
    /// Whether lists and watches are served from caches.
    pub(super) watch_cache: bool,
    /// The largest number of streams on one HTTP/2 connection; 0 means the server's default.
    pub(super) http2_streams_max: u32,
    /// The settings that follow from the feature gates.
    pub(super) feature_gates: FeatureGates,
    /// The served group versions and resources.
    pub(super) runtime_config: RuntimeConfig,
    /// The time after which events expire; zero means never.
    pub(super) event_ttl: Duration,
    /// The address in the endpoints of the Service `kubernetes`.
    pub(super) advertise: Advertise,
    /// The log level.
    pub(super) log_level: &'static str,
}

/// The store that the flags select.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StoreChoice {
    /// etcd v3, with the compaction interval. `None`: this server does not compact.
    Etcd(EtcdConnection, Option<Duration>),
    /// The embedded store in the data directory.
    Embedded,
    /// A store in memory.
    Memory,
}

/// A certificate for outgoing connections, as two files in PEM.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CertificateFiles {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// The issuer and the keys of service account tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServiceAccountSettings {
    pub(super) issuers: Vec<String>,
    pub(super) api_audiences: Vec<String>,
    pub(super) signing_key_file: Option<PathBuf>,
    pub(super) key_files: Vec<PathBuf>,
    pub(super) jwks_uri: Option<String>,
    pub(super) max_expiration_seconds: Option<i64>,
    pub(super) extend_expiration: bool,
}

/// The front proxies that `--requestheader-*` describes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FrontProxy {
    /// The file of the CA certificates that verify the certificates of front proxies.
    pub(super) client_ca_file: PathBuf,
    pub(super) headers: FrontProxyHeaders,
}

/// The address that a server publishes to clients inside the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advertise {
    /// No address.
    Nothing,
    /// The address of the listener, or that of the default route.
    Default,
    /// This address.
    Address(IpAddr),
}

/// The source of the certificate of the listener.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Certificates {
    /// Two files in PEM.
    Files {
        /// The certificate chain, which begins with the server's certificate.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// A CA and a certificate that the server creates in this directory.
    OwnIn(PathBuf),
}

/// A difference between the effect of a flag here and in kube-apiserver.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Notice {
    pub(super) flag: String,
    pub(super) level: Level,
    pub(super) text: String,
}

/// The severity of a [`Notice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// The server logs a warning at the start.
    Warning,
    /// The server starts only with `--allow-unenforced`.
    Unenforced,
    /// The server does not start.
    Error,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}: {}", self.flag, self.text)
    }
}

/// The settings for a command line, and the notices about its flags.
#[derive(Debug)]
pub(super) struct Resolution {
    pub(super) settings: Settings,
    pub(super) notices: Vec<Notice>,
}

impl Resolution {
    /// The notices that prevent the start.
    pub(super) fn obstacles(&self, allow_unenforced: bool) -> impl Iterator<Item = &Notice> {
        self.notices.iter().filter(move |notice| match notice.level {
            Level::Warning => false,
            Level::Unenforced => !allow_unenforced,
            Level::Error => true,
        })
    }
}

/// Computes the settings. Invalid values become notices of level [`Level::Error`].
pub(super) fn resolve(given: &FlagValues) -> Resolution {
    let mut notices: Vec<Notice> = given.iter().filter_map(|(flag, values)| notice_of(flag, values)).collect();
    let mut error =
        |flag: &str, text: String| notices.push(Notice { flag: flag.to_owned(), level: Level::Error, text });

    let [enabled, disabled, only] =
        ["enable-admission-plugins", "disable-admission-plugins", "admission-control"].map(|flag| given.list(flag));
    let admission_plugins = AdmissionPlugins::from_flags(&enabled, &disabled, &only).unwrap_or_else(|why| {
        let flag = match &why {
            InvalidPlugins::Unknown { flag, .. } => *flag,
            InvalidPlugins::Overlapping(_) => "enable-admission-plugins",
            InvalidPlugins::Exclusive => "admission-control",
        };
        error(flag, why.to_string());
        AdmissionPlugins::upstream()
    });
    let authorization = authorization::settings(given, &mut error);
    for (one, other) in [
        ("etcd-certfile", "etcd-keyfile"),
        ("kubelet-client-certificate", "kubelet-client-key"),
        ("proxy-client-cert-file", "proxy-client-key-file"),
        ("tls-cert-file", "tls-private-key-file"),
    ] {
        if given.text(one).is_some() != given.text(other).is_some() {
            error(one, format!("--{one} and --{other} need each other"));
        }
    }
    let port = u16::try_from(given.int("secure-port")).ok().filter(|port| *port > 0).unwrap_or_else(|| {
        error("secure-port", format!("{} is not a valid port: 1 to 65535", given.int("secure-port")));
        1
    });
    let mut address = |name: &'static str| {
        let text = given.text(name)?;
        let parsed = text.parse::<IpAddr>();
        if parsed.is_err() {
            error(name, format!("\"{text}\" is not an IP address"));
        }
        parsed.ok()
    };
    let bind = address("bind-address").unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let advertised = address("advertise-address");
    let http2_streams_max = u32::try_from(given.int("http2-max-streams-per-connection")).unwrap_or_else(|_| {
        error("http2-max-streams-per-connection", "a number from 0 to 4294967295 is needed".to_owned());
        0
    });
    let min_request_timeout = u32::try_from(given.int("min-request-timeout")).unwrap_or_else(|_| {
        error("min-request-timeout", "a number of seconds from 0 to 4294967295 is needed".to_owned());
        0
    });
    let mut in_flight = |name: &'static str| {
        usize::try_from(given.int(name)).ok().filter(|max| *max > 0).unwrap_or_else(|| {
            error(name, "a number of at least 1 is needed: every limit is finite here".to_owned());
            1
        })
    };
    let requests_in_flight_max = (in_flight("max-requests-inflight"), in_flight("max-mutating-requests-inflight"));
    let mut service_ranges = ServiceRanges::default();
    if let Some(cidr) = given.text("service-cluster-ip-range") {
        match service_ranges.clone().with_cluster_addresses(cidr) {
            Ok(ranges) => service_ranges = ranges,
            Err(why) => error("service-cluster-ip-range", why.to_string()),
        }
    }
    if let Some(ports) = given.text("service-node-port-range") {
        match service_ranges.clone().with_node_ports(ports) {
            Ok(ranges) => service_ranges = ranges,
            Err(why) => error("service-node-port-range", why.to_string()),
        }
    }
    let request_timeout = given.duration("request-timeout");
    if request_timeout.is_zero() {
        error("request-timeout", "a positive duration is needed".to_owned());
    }
    let goaway_chance = given.text("goaway-chance").and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    if !(0.0..=GOAWAY_CHANCE_MAX).contains(&goaway_chance) {
        error("goaway-chance", format!("{goaway_chance} is not in the range from 0 to {GOAWAY_CHANCE_MAX}"));
    }
    let directives = given.list("strict-transport-security-directives");
    let tls = tls_options(given).unwrap_or_else(|(flag, text)| {
        error(flag, text);
        TlsOptions::default()
    });
    let sni_certificates = given.texts("tls-sni-cert-key").map(sni_certificate).collect::<Result<Vec<_>, _>>();
    let sni_certificates = sni_certificates.unwrap_or_else(|text| {
        error("tls-sni-cert-key", text.to_owned());
        Vec::new()
    });
    let store = store(given).unwrap_or_else(|(flag, text)| {
        error(flag, text);
        StoreChoice::Memory
    });
    let storage_media_type = given.text("storage-media-type").map_or(Ok(StorageMediaType::Protobuf), parse_media_type);
    let storage_media_type = storage_media_type.unwrap_or_else(|text| {
        error("storage-media-type", text);
        StorageMediaType::Protobuf
    });
    let feature_gates = FeatureGates::parse(&given.list("feature-gates")).unwrap_or_else(|text| {
        error("feature-gates", text);
        FeatureGates::default()
    });
    let runtime_config = RuntimeConfig::parse(given.list("runtime-config")).unwrap_or_else(|why| {
        error("runtime-config", why.to_string());
        RuntimeConfig::default()
    });
    let reconciler = given.text("endpoint-reconciler-type").unwrap_or_default();
    if !["lease", "master-count", "none"].contains(&reconciler) {
        error("endpoint-reconciler-type", format!("Reconciler not implemented: {reconciler}"));
    }
    let advertise = match advertised {
        _ if reconciler == "none" => Advertise::Nothing,
        Some(address) if address.is_loopback() => Advertise::Nothing,
        Some(address) if !address.is_unspecified() => Advertise::Address(address),
        _ => Advertise::Default,
    };

    let service_account = service_account(given).unwrap_or_else(|(flag, text, settings)| {
        error(flag, text);
        settings
    });
    let api_audiences = match service_account.api_audiences.as_slice() {
        [] => &service_account.issuers,
        _ => &service_account.api_audiences,
    };
    let oidc = oidc::settings(given).unwrap_or_else(|(flag, text)| {
        error(flag, text);
        None
    });
    let webhooks = webhooks::settings(given, authorization.modes(), api_audiences).unwrap_or_else(|(flag, text)| {
        error(flag, text);
        WebhookSettings::default()
    });
    let audit = audit::settings(given).unwrap_or_else(|(flag, text)| {
        error(&flag, text);
        AuditSettings::default()
    });

    notices.extend(implied_notices(given, admission_plugins));
    let mut warning =
        |flag: &str, text: String| notices.push(Notice { flag: flag.to_owned(), level: Level::Warning, text });
    feature_gates.warnings.iter().for_each(|text| warning("feature-gates", text.clone()));
    if !runtime_config.unavailable().is_empty() {
        let keys = runtime_config.unavailable().join(", ");
        warning("runtime-config", format!("{keys}: the server has only what kube-apiserver serves by default"));
    }
    if reconciler == "master-count" {
        warning("endpoint-reconciler-type", "master-count is treated as lease".to_owned());
    }
    if let Some(address) = advertised.filter(IpAddr::is_loopback) {
        warning("advertise-address", format!("{address} is not published: it is a loopback address"));
    }
    let names = [Some(bind), advertised].into_iter().flatten().map(|ip| ip.to_string());
    let settings = Settings {
        bind: SocketAddr::new(bind, port),
        names: names.chain(given.text("external-hostname").map(str::to_owned)).collect(),
        store,
        storage_media_type,
        encryption_provider_config: given.path("encryption-provider-config"),
        certificates: match (given.path("tls-cert-file"), given.path("tls-private-key-file")) {
            (Some(certificate), Some(key)) => Certificates::Files { certificate, key },
            _ => Certificates::OwnIn(given.path("cert-dir").unwrap_or_default()),
        },
        sni_certificates,
        tls,
        client_ca_file: given.path("client-ca-file"),
        front_proxy: front_proxy(given),
        proxy_client: certificate_files(given, "proxy-client-cert-file", "proxy-client-key-file"),
        aggregator_routing: given.bool("enable-aggregator-routing"),
        aggregator_passes_redirects: !given.bool("aggregator-reject-forwarding-redirect"),
        kubelet_client: certificate_files(given, "kubelet-client-certificate", "kubelet-client-key"),
        kubelet_ca_file: given.path("kubelet-certificate-authority"),
        kubelet_address_types: given.list("kubelet-preferred-address-types").into_iter().map(str::to_owned).collect(),
        token_auth_file: given.path("token-auth-file"),
        service_account,
        bootstrap_tokens: given.bool("enable-bootstrap-token-auth"),
        external_address: external_host(given).map(|host| match host.parse::<std::net::Ipv6Addr>() {
            Ok(ip) => format!("[{ip}]:{port}"),
            Err(_) if host.contains(':') => host.to_owned(),
            Err(_) => format!("{host}:{port}"),
        }),
        authentication_config: given.path("authentication-config"),
        anonymous_auth_given: given.has("anonymous-auth"),
        anonymous_auth: if given.bool("anonymous-auth") { AnonymousAuth::Enabled } else { AnonymousAuth::Disabled },
        authorization,
        oidc,
        webhooks,
        audit,
        admission_plugins,
        admission_config_file: given.path("admission-control-config-file"),
        toleration_seconds: TolerationSeconds {
            not_ready: given.int("default-not-ready-toleration-seconds"),
            unreachable: given.int("default-unreachable-toleration-seconds"),
        },
        request_timeout,
        service_ranges,
        requests_in_flight_max,
        priority_and_fairness: given.bool("enable-priority-and-fairness"),
        goaway_chance,
        metrics_reset: given.bool("profiling"),
        strict_transport_security: (!directives.is_empty()).then(|| directives.join("; ")),
        shutdown_delay: given.duration("shutdown-delay-duration"),
        shutdown_retry_after: given.bool("shutdown-send-retry-after"),
        watch_termination_grace_period: Some(given.duration("shutdown-watch-termination-grace-period"))
            .filter(|period| !period.is_zero()),
        min_request_timeout: Duration::from_secs(min_request_timeout.into()),
        watch_cache: given.bool("watch-cache"),
        http2_streams_max,
        feature_gates,
        runtime_config,
        event_ttl: given.duration("event-ttl"),
        advertise,
        log_level: match given.int("v") {
            ..=3 => "info",
            4..=5 => "debug",
            6.. => "trace",
        },
    };
    notices.sort_by(|one, other| other.level.cmp(&one.level).then_with(|| one.flag.cmp(&other.flag)));
    Resolution { settings, notices }
}

/// Returns the notice about a flag with these values, if the flag table has one.
fn notice_of(flag: &'static Flag, values: &[String]) -> Option<Notice> {
    let (level, satisfied) = match flag.support {
        Support::Honored => return None,
        Support::Ignored(satisfied) => (Level::Warning, satisfied),
        Support::Unenforced(satisfied) => (Level::Unenforced, satisfied),
        Support::Refused => (Level::Error, &[][..]),
    };
    let values: Vec<&str> = match flag.value_type {
        ValueType::List => items(values.iter().map(String::as_str).collect()),
        _ => values.last().map(String::as_str).into_iter().collect(),
    };
    let is_satisfied = |value: &&str| match flag.value_type {
        ValueType::Bool => satisfied.iter().any(|satisfied| parse_bool(satisfied) == parse_bool(value)),
        _ => value.is_empty() || satisfied.contains(value),
    };
    let open: Vec<&str> = values.into_iter().filter(|value| !is_satisfied(value)).collect();
    let what = match level {
        Level::Warning => "has no effect",
        Level::Unenforced => "is not enforced",
        Level::Error => "is refused",
    };
    let text = || format!("{} {what}: {}", open.join(","), flag.note);
    (!open.is_empty()).then(|| Notice { flag: flag.name.to_owned(), level, text: text() })
}

/// Returns notices about default behavior of kube-apiserver that this server lacks.
fn implied_notices(given: &FlagValues, admission_plugins: AdmissionPlugins) -> Vec<Notice> {
    let mut implied = Vec::new();
    let mut warn = |flag: &str, text: String| {
        implied.push(Notice { flag: flag.to_owned(), level: Level::Warning, text });
    };
    let missing = |plugin: &&PluginInfo| !plugin.available && admission_plugins.is_enabled(plugin.name);
    let names = |plugins: Vec<&'static str>| plugins.join(", ");
    let by_default: Vec<&str> =
        PLUGINS.iter().filter(missing).filter(|one| one.default_on).map(|one| one.name).collect();
    if !by_default.is_empty() {
        let text = format!(
            "kube-apiserver {KUBERNETES_VERSION} enables by default and this server does not have: {}",
            names(by_default)
        );
        warn("enable-admission-plugins", text);
    }
    let asked: Vec<&str> = PLUGINS.iter().filter(missing).filter(|one| !one.default_on).map(|one| one.name).collect();
    if !given.has("allow-privileged") {
        warn(
            "allow-privileged",
            "kube-apiserver forbids privileged containers by default, this server does not".into(),
        );
    }
    // `RequestHeaderAuthenticationOptions.Validate`.
    for (flag, standard, what) in [
        ("requestheader-username-headers", "X-Remote-User", "header"),
        ("requestheader-uid-headers", "X-Remote-Uid", "header"),
        ("requestheader-group-headers", "X-Remote-Group", "header"),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-", "header prefix"),
    ] {
        let names = given.list(flag);
        if !names.is_empty() && !names.iter().any(|name| name.eq_ignore_ascii_case(standard)) {
            let text = format!("the standard {standard} {what} is missing: API aggregation will not work");
            warn(flag, text);
        }
    }
    if !asked.is_empty() {
        let text = format!("{} is not enforced: this server does not have it", names(asked));
        implied.push(Notice { flag: "enable-admission-plugins".to_owned(), level: Level::Unenforced, text });
    }
    implied
}

fn store(given: &FlagValues) -> Result<StoreChoice, (&'static str, String)> {
    let backend = given.text("storage-backend").unwrap_or_default();
    let servers: Vec<String> = given.list("etcd-servers").into_iter().map(str::to_owned).collect();
    match backend {
        "etcd3" if servers.is_empty() => Err((
            "etcd-servers",
            "--etcd-servers must be specified, or a store without etcd: --storage-backend=embedded or memory".into(),
        )),
        "etcd3" => {
            let interval = given.duration("etcd-compaction-interval");
            let connection = EtcdConnection {
                servers,
                prefix: given.text("etcd-prefix").unwrap_or_default().to_owned(),
                ca_file: given.path("etcd-cafile"),
                cert_file: given.path("etcd-certfile"),
                key_file: given.path("etcd-keyfile"),
                user: None,
            };
            Ok(StoreChoice::Etcd(connection, (!interval.is_zero()).then_some(interval)))
        }
        "embedded" | "memory" if !servers.is_empty() => {
            Err(("storage-backend", format!("\"{backend}\" keeps nothing in --etcd-servers; give one of the two")))
        }
        "embedded" => Ok(StoreChoice::Embedded),
        "memory" => Ok(StoreChoice::Memory),
        other => Err(("storage-backend", format!("\"{other}\" is not a storage backend: etcd3, embedded or memory"))),
    }
}

/// The external host name, or the advertised address (`ServerRunOptions.DefaultAdvertiseAddress`).
fn external_host(given: &FlagValues) -> Option<&str> {
    given.text("external-hostname").or_else(|| given.text("advertise-address"))
}

/// The settings of service account tokens (`completeServiceAccountOptions`, `BuiltInAuthenticationOptions.Validate`).
///
/// # Errors
/// The flag with its error, and the valid part of the settings.
fn service_account(
    given: &FlagValues,
) -> Result<ServiceAccountSettings, (&'static str, String, ServiceAccountSettings)> {
    let texts = |name: &str| given.list(name).into_iter().map(str::to_owned).collect::<Vec<String>>();
    let mut settings = ServiceAccountSettings {
        issuers: texts("service-account-issuer"),
        api_audiences: texts("api-audiences"),
        signing_key_file: given.path("service-account-signing-key-file"),
        key_files: texts("service-account-key-file").into_iter().map(PathBuf::from).collect(),
        jwks_uri: given.text("service-account-jwks-uri").map(str::to_owned),
        max_expiration_seconds: None,
        extend_expiration: given.bool("service-account-extend-token-expiration"),
    };
    let repeated = settings.issuers.iter().enumerate().find(|(at, issuer)| settings.issuers[..*at].contains(issuer));
    if let Some((_, issuer)) = repeated {
        let text = format!("service-account-issuer {issuer:?} is already specified");
        return Err(("service-account-issuer", text, settings));
    }
    if settings.issuers.is_empty() {
        settings.issuers.push(ISSUER.to_owned());
    }
    if let Some(uri) = settings.jwks_uri.clone().filter(|uri| !uri.starts_with("https://")) {
        let text = format!("service-account-jwks-uri requires https scheme, parsed as: {uri}");
        return Err(("service-account-jwks-uri", text, settings));
    }
    let max = given.duration("service-account-max-token-expiration");
    if !max.is_zero() {
        if max < TOKEN_EXPIRATION_LEAST || max > TOKEN_EXPIRATION_MOST {
            let text = "the service-account-max-token-expiration must be between 1 hour and 2^32 seconds".to_owned();
            return Err(("service-account-max-token-expiration", text, settings));
        }
        settings.max_expiration_seconds = i64::try_from(max.as_secs()).ok();
    }
    Ok(settings)
}

fn certificate_files(given: &FlagValues, certificate: &str, key: &str) -> Option<CertificateFiles> {
    Some(CertificateFiles { certificate: given.path(certificate)?, key: given.path(key)? })
}

/// The front proxies; `None` without their CA, as in kube-apiserver.
fn front_proxy(given: &FlagValues) -> Option<FrontProxy> {
    let list = |name: &str| given.list(name).into_iter().map(str::to_owned).collect();
    let client_ca_file = given.path("requestheader-client-ca-file")?;
    let headers = FrontProxyHeaders {
        username: list("requestheader-username-headers"),
        uid: list("requestheader-uid-headers"),
        groups: list("requestheader-group-headers"),
        extra_prefixes: list("requestheader-extra-headers-prefix"),
        allowed_names: list("requestheader-allowed-names"),
    };
    Some(FrontProxy { client_ca_file, headers })
}

/// Parses `certificate,key` or `certificate,key:name,name` (`component-base/cli/flag.NamedCertKey`).
fn sni_certificate(text: &str) -> Result<SniCertificate, &'static str> {
    let (files, names) = match text.split_once(':') {
        Some((_, names)) if names.trim().is_empty() => return Err("empty names list is not allowed"),
        Some((files, names)) => (files, names.split(',').map(|name| name.trim().to_owned()).collect()),
        None => (text, Vec::new()),
    };
    match files.split(',').map(str::trim).collect::<Vec<_>>()[..] {
        [certificate, key] => Ok(SniCertificate { certificate: certificate.into(), key: key.into(), names }),
        _ => Err("expected comma separated certificate and key file paths"),
    }
}

fn tls_options(given: &FlagValues) -> Result<TlsOptions, (&'static str, String)> {
    let tls13_only = match given.text("tls-min-version") {
        None | Some("VersionTLS10" | "VersionTLS11" | "VersionTLS12") => false,
        Some("VersionTLS13") => true,
        Some(other) => return Err(("tls-min-version", format!("unknown tls version \"{other}\""))),
    };
    let groups = given.list("tls-curve-preferences").into_iter().map(str::parse).collect::<Result<Vec<u16>, _>>();
    Ok(TlsOptions {
        tls13_only,
        cipher_suites: given.list("tls-cipher-suites").into_iter().map(str::to_owned).collect(),
        key_exchange_groups: groups
            .map_err(|_| ("tls-curve-preferences", "numbers are needed, such as 23,24,29".to_owned()))?,
        http1_only: given.bool("disable-http2-serving"),
        request_client_certificates: ["client-ca-file", "requestheader-client-ca-file"]
            .iter()
            .any(|name| given.text(name).is_some()),
    })
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
