//! Tests of the settings and notices for command lines.

use clap::{Args as _, Command, FromArgMatches as _};

use listwatch_apiserver::pki::SniCertificate;
use listwatch_apiserver::stored_form::StorageMediaType;

use super::*;

fn resolved(line: &str) -> Resolution {
    let arguments = ["kube-apiserver"].into_iter().chain(line.split_whitespace());
    let matches = FlagValues::augment_args(Command::new("kube-apiserver")).try_get_matches_from(arguments);
    resolve(&FlagValues::from_arg_matches(&matches.expect("a command line")).expect("values"))
}

/// The notices as `level flag`, without those that every command line causes.
fn notices(line: &str) -> Vec<String> {
    let is_implied = |notice: &Notice| notice.level == Level::Warning && notice.text.starts_with("kube-apiserver ");
    let notices = resolved(line).notices.into_iter().filter(|notice| !is_implied(notice));
    notices.map(|notice| format!("{:?} {}", notice.level, notice.flag)).collect()
}

const MEMORY: &str = "--storage-backend=memory";

/// The command line of kubeadm's static Pod (`cmd/kubeadm/app/phases/controlplane/manifests.go`, `getAPIServerCommand`).
const KUBEADM: &str = "
    --advertise-address=192.168.102.134
    --allow-privileged=true
    --authorization-mode=Node,RBAC
    --client-ca-file=/etc/kubernetes/pki/ca.crt
    --enable-admission-plugins=NodeRestriction
    --enable-bootstrap-token-auth=true
    --etcd-cafile=/etc/kubernetes/pki/etcd/ca.crt
    --etcd-certfile=/etc/kubernetes/pki/apiserver-etcd-client.crt
    --etcd-keyfile=/etc/kubernetes/pki/apiserver-etcd-client.key
    --etcd-servers=https://127.0.0.1:2379
    --kubelet-client-certificate=/etc/kubernetes/pki/apiserver-kubelet-client.crt
    --kubelet-client-key=/etc/kubernetes/pki/apiserver-kubelet-client.key
    --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname
    --proxy-client-cert-file=/etc/kubernetes/pki/front-proxy-client.crt
    --proxy-client-key-file=/etc/kubernetes/pki/front-proxy-client.key
    --requestheader-allowed-names=front-proxy-client
    --requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt
    --requestheader-extra-headers-prefix=X-Remote-Extra-
    --requestheader-group-headers=X-Remote-Group
    --requestheader-username-headers=X-Remote-User
    --secure-port=6443
    --service-account-issuer=https://kubernetes.default.svc.cluster.local
    --service-account-key-file=/etc/kubernetes/pki/sa.pub
    --service-account-signing-key-file=/etc/kubernetes/pki/sa.key
    --service-cluster-ip-range=10.96.0.0/12
    --tls-cert-file=/etc/kubernetes/pki/apiserver.crt
    --tls-private-key-file=/etc/kubernetes/pki/apiserver.key";

#[test]
fn kubeadm_command_line_starts_without_allow_unenforced() {
    let resolution = resolved(KUBEADM);
    let obstacles = |allowed| resolution.obstacles(allowed).map(|notice| notice.flag.as_str()).collect::<Vec<_>>();
    assert!(obstacles(false).is_empty());
    let with_audit = resolved(&format!("{KUBEADM} --audit-policy-file=/p"));
    assert_eq!(with_audit.obstacles(false).count(), 1);
    assert_eq!(with_audit.obstacles(true).count(), 0);
}

#[test]
fn kubeadm_command_line_resolves_to_the_expected_settings() {
    let settings = resolved(KUBEADM).settings;
    let etcd = EtcdConnection {
        servers: vec!["https://127.0.0.1:2379".to_owned()],
        prefix: "/registry".to_owned(),
        ca_file: Some("/etc/kubernetes/pki/etcd/ca.crt".into()),
        cert_file: Some("/etc/kubernetes/pki/apiserver-etcd-client.crt".into()),
        key_file: Some("/etc/kubernetes/pki/apiserver-etcd-client.key".into()),
        user: None,
    };
    let expected = Settings {
        bind: "0.0.0.0:6443".parse().expect("an address"),
        names: vec!["0.0.0.0".to_owned(), "192.168.102.134".to_owned()],
        store: StoreChoice::Etcd(etcd, Some(Duration::from_secs(300))),
        storage_media_type: StorageMediaType::Protobuf,
        encryption_provider_config: None,
        certificates: Certificates::Files {
            certificate: "/etc/kubernetes/pki/apiserver.crt".into(),
            key: "/etc/kubernetes/pki/apiserver.key".into(),
        },
        sni_certificates: Vec::new(),
        tls: TlsOptions { request_client_certificates: true, ..TlsOptions::default() },
        client_ca_file: Some("/etc/kubernetes/pki/ca.crt".into()),
        front_proxy: Some(FrontProxy {
            client_ca_file: "/etc/kubernetes/pki/front-proxy-ca.crt".into(),
            headers: FrontProxyHeaders {
                username: vec!["X-Remote-User".to_owned()],
                groups: vec!["X-Remote-Group".to_owned()],
                extra_prefixes: vec!["X-Remote-Extra-".to_owned()],
                allowed_names: vec!["front-proxy-client".to_owned()],
                ..FrontProxyHeaders::default()
            },
        }),
        proxy_client: Some(CertificateFiles {
            certificate: "/etc/kubernetes/pki/front-proxy-client.crt".into(),
            key: "/etc/kubernetes/pki/front-proxy-client.key".into(),
        }),
        aggregator_routing: false,
        aggregator_passes_redirects: false,
        kubelet_client: Some(CertificateFiles {
            certificate: "/etc/kubernetes/pki/apiserver-kubelet-client.crt".into(),
            key: "/etc/kubernetes/pki/apiserver-kubelet-client.key".into(),
        }),
        kubelet_ca_file: None,
        kubelet_address_types: ["InternalIP", "ExternalIP", "Hostname"].map(str::to_owned).to_vec(),
        token_auth_file: None,
        service_account: ServiceAccountSettings {
            issuers: vec![ISSUER.to_owned()],
            api_audiences: Vec::new(),
            signing_key_file: Some("/etc/kubernetes/pki/sa.key".into()),
            key_files: vec!["/etc/kubernetes/pki/sa.pub".into()],
            jwks_uri: None,
            max_expiration_seconds: None,
            extend_expiration: true,
        },
        bootstrap_tokens: true,
        external_address: Some("192.168.102.134:6443".to_owned()),
        anonymous_auth: AnonymousAuth::Enabled,
        request_timeout: Duration::from_secs(60),
        service_ranges: ServiceRanges::default().with_cluster_addresses("10.96.0.0/12").unwrap(),
        requests_in_flight_max: (400, 200),
        priority_and_fairness: true,
        goaway_chance: 0.0,
        strict_transport_security: None,
        shutdown_delay: Duration::ZERO,
        authorization: Authorization::Modes(vec![AuthorizationMode::Node, AuthorizationMode::Rbac]),
        node_restriction: true,
        min_request_timeout: Duration::from_secs(1800),
        watch_cache: true,
        http2_streams_max: 0,
        cbor: false,
        log_level: "info",
    };
    assert_eq!(settings, expected);
}

#[test]
fn kubeadm_command_line_warns_of_each_ignored_flag() {
    let warnings: Vec<String> =
        notices(KUBEADM).iter().filter_map(|notice| notice.strip_prefix("Warning ").map(str::to_owned)).collect();
    assert_eq!(warnings, ["advertise-address"]);
}

#[test]
fn flags_are_honored_ignored_unenforced_or_refused() {
    for (line, expected) in [
        ("", &[][..]),
        ("--authorization-mode=AlwaysAllow --watch-cache=false --v=4 --etcd-prefix=/x", &[]),
        ("--authorization-mode=RBAC", &[]),
        ("--authorization-mode=AlwaysDeny,RBAC", &[]),
        ("--authorization-mode=Node,RBAC", &[]),
        ("--authorization-mode=AlwaysAllow,Webhook", &["Error authorization-mode", "Unenforced authorization-mode"]),
        ("--authorization-mode=ABAC", &["Error authorization-mode", "Unenforced authorization-mode"]),
        ("--authorization-mode=Rbac", &["Error authorization-mode", "Unenforced authorization-mode"]),
        ("--enable-admission-plugins=NamespaceLifecycle,Priority", &[]),
        ("--enable-admission-plugins=NodeRestriction,Priority", &[]),
        ("--enable-admission-plugins=PodSecurity", &["Unenforced enable-admission-plugins"]),
        ("--disable-admission-plugins=NodeRestriction", &[]),
        (
            "--enable-admission-plugins=NodeRestriction --disable-admission-plugins=NodeRestriction",
            &["Error enable-admission-plugins"],
        ),
        ("--disable-admission-plugins=ServiceAccount", &[]),
        ("--disable-admission-plugins=Priority", &["Warning disable-admission-plugins"]),
        ("--disable-admission-plugins=Prioritty", &["Error disable-admission-plugins"]),
        ("--profiling=false", &[]),
        ("--profiling", &["Warning profiling"]),
        ("--profiling=F", &[]),
        ("--anonymous-auth=false --request-timeout=30s --shutdown-delay-duration=5s --goaway-chance=0.001", &[]),
        ("--goaway-chance=0.5", &["Error goaway-chance"]),
        ("--goaway-chance=NaN", &["Error goaway-chance"]),
        ("--request-timeout=0", &["Error request-timeout"]),
        ("--max-requests-inflight=0", &["Error max-requests-inflight"]),
        ("--max-mutating-requests-inflight=-1", &["Error max-mutating-requests-inflight"]),
        (
            "--audit-log-path=/var/log/audit.log --audit-log-maxage=30",
            &["Unenforced audit-log-path", "Warning audit-log-maxage"],
        ),
        ("--encryption-provider-config=/etc/e.yaml", &[]),
        (
            "--encryption-provider-config-automatic-reload=true",
            &["Unenforced encryption-provider-config-automatic-reload"],
        ),
        ("--storage-media-type=application/json", &[]),
        ("--storage-media-type=application/yaml", &["Error storage-media-type"]),
        ("--etcd-servers-overrides=/events#http://b:2379", &["Error etcd-servers-overrides"]),
        ("--tls-cert-file=/a", &["Error tls-cert-file"]),
        ("--kubelet-client-key=/a", &["Error kubelet-client-certificate"]),
        ("--kubelet-timeout=5s", &[]),
        ("--kubelet-timeout=10s", &["Warning kubelet-timeout"]),
        ("--proxy-client-key-file=/a", &["Error proxy-client-cert-file"]),
        ("--requestheader-client-ca-file=/a --requestheader-username-headers=x-remote-user", &[]),
        ("--requestheader-group-headers=X-Group", &["Warning requestheader-group-headers"]),
        ("--tls-min-version=VersionTLS12", &[]),
        ("--tls-min-version=VersionTLS13 --disable-http2-serving --tls-curve-preferences=23,29", &[]),
        ("--tls-min-version=TLS1.3", &["Error tls-min-version"]),
        ("--tls-curve-preferences=X25519", &["Error tls-curve-preferences"]),
        ("--api-audiences=vault,api --enable-bootstrap-token-auth", &[]),
        ("--secure-port=0", &["Error secure-port"]),
        ("--secure-port=70000", &["Error secure-port"]),
        ("--bind-address=localhost", &["Error bind-address"]),
        ("--http2-max-streams-per-connection=-1", &["Error http2-max-streams-per-connection"]),
        ("--min-request-timeout=-1", &["Error min-request-timeout"]),
        ("--etcd-servers=http://a:2379", &["Error storage-backend"]),
        ("--feature-gates=CBORServingAndStorage=true", &[]),
        ("--feature-gates=CBORServingAndStorage=true,WatchList=false", &["Warning feature-gates"]),
        ("--feature-gates=WatchList", &["Error feature-gates", "Warning feature-gates"]),
        ("--service-account-issuer=https://a --service-account-issuer=https://b", &[]),
        ("--service-account-issuer=a --service-account-issuer=a", &["Error service-account-issuer"]),
        ("--service-account-jwks-uri=http://a/jwks", &["Error service-account-jwks-uri"]),
        ("--service-account-max-token-expiration=1h", &[]),
        ("--service-account-max-token-expiration=59m", &["Error service-account-max-token-expiration"]),
        ("--tls-cipher-suites=", &[]),
        ("--tls-sni-cert-key=/a,/b --tls-sni-cert-key=/c,/d:*.example.com,example.com", &[]),
        ("--tls-sni-cert-key=/a", &["Error tls-sni-cert-key"]),
        ("--tls-sni-cert-key=/a,/b,/c", &["Error tls-sni-cert-key"]),
        ("--tls-sni-cert-key=/a,/b:", &["Error tls-sni-cert-key"]),
    ] {
        assert_eq!(notices(&format!("{MEMORY} {line}")), expected, "{line}");
    }
}

#[test]
fn start_without_a_store_is_refused() {
    assert_eq!(notices(""), ["Error etcd-servers"]);
    assert_eq!(notices("--storage-backend=etcd2"), ["Error storage-backend"]);
    assert_eq!(notices("--storage-backend=embedded"), [""; 0]);
    assert_eq!(resolved("--storage-backend=embedded").settings.store, StoreChoice::Embedded);
}

#[test]
fn values_of_honored_flags_reach_the_settings() {
    let settings = |line: &str| resolved(&format!("{MEMORY} {line}")).settings;
    assert_eq!(settings("--bind-address=::1 --secure-port=7443").bind.to_string(), "[::1]:7443");
    assert_eq!(settings("--min-request-timeout=300").min_request_timeout, Duration::from_secs(300));
    assert_eq!(settings("--http2-max-streams-per-connection=1000").http2_streams_max, 1000);
    assert!(!settings("--watch-cache=false").watch_cache);
    assert!(settings("--feature-gates=WatchList=false --feature-gates=kube:CBORServingAndStorage=1").cbor);
    assert_eq!(settings("--cert-dir=/c").certificates, Certificates::OwnIn("/c".into()));
    let tls = settings("--tls-min-version=VersionTLS13 --tls-cipher-suites=A,B --tls-curve-preferences=29").tls;
    assert!(tls.tls13_only && !tls.http1_only && !tls.request_client_certificates);
    assert_eq!((tls.cipher_suites, tls.key_exchange_groups), (vec!["A".to_owned(), "B".to_owned()], vec![29]));
    let anonymous = |line: &str| settings(line).anonymous_auth;
    assert_eq!(anonymous("--authorization-mode=RBAC"), AnonymousAuth::Enabled);
    assert_eq!(anonymous("--authorization-mode=RBAC,AlwaysAllow"), AnonymousAuth::Disabled);
    assert_eq!(anonymous("--authorization-config=/c"), AnonymousAuth::HealthOnly);
    assert_eq!(anonymous("--authorization-mode=RBAC --anonymous-auth=false"), AnonymousAuth::Disabled);
    assert_eq!(anonymous(""), AnonymousAuth::Disabled, "AlwaysAllow never allows anonymous requests");
    assert_eq!(settings("--request-timeout=90s").request_timeout, Duration::from_secs(90));
    let media_type = |line: &str| settings(line).storage_media_type;
    assert_eq!(media_type(""), StorageMediaType::Protobuf, "kube-apiserver's default");
    assert_eq!(media_type("--storage-media-type=application/json"), StorageMediaType::Json);
    let file = settings("--encryption-provider-config=/etc/e.yaml").encryption_provider_config;
    assert_eq!(file, Some("/etc/e.yaml".into()));
    let limits = "--max-requests-inflight=3000 --max-mutating-requests-inflight=1000";
    assert_eq!(settings(limits).requests_in_flight_max, (3000, 1000));
    assert!(!settings("--enable-priority-and-fairness=false").priority_and_fairness);
    assert_eq!(settings("--shutdown-delay-duration=1m").shutdown_delay, Duration::from_secs(60));
    assert_eq!(settings("--requestheader-username-headers=X-Remote-User").front_proxy, None, "there is no CA");
    let proxied = settings("--requestheader-client-ca-file=/a --enable-aggregator-routing");
    assert!(proxied.tls.request_client_certificates && proxied.aggregator_routing);
    assert_eq!(settings("--kubelet-certificate-authority=/a").kubelet_ca_file, Some("/a".into()));
    let types = ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];
    assert_eq!(settings("").kubelet_address_types, types, "kube-apiserver's default");
    assert!(settings("--aggregator-reject-forwarding-redirect=false").aggregator_passes_redirects);
    let header = settings("--strict-transport-security-directives=max-age=31536000,includeSubDomains");
    assert_eq!(header.strict_transport_security.as_deref(), Some("max-age=31536000; includeSubDomains"));
    assert_eq!(settings("--external-hostname=h.example.com").names, ["0.0.0.0", "h.example.com"]);
    let modes = |line: &str| settings(line).authorization;
    assert_eq!(modes(""), Authorization::Modes(vec![AuthorizationMode::AlwaysAllow]), "kube-apiserver's default");
    let both = Authorization::Modes(vec![AuthorizationMode::Node, AuthorizationMode::Rbac]);
    assert_eq!(modes("--authorization-mode=Node,RBAC"), both);
    for (line, expected) in [
        ("", false),
        ("--enable-admission-plugins=NodeRestriction", true),
        ("--enable-admission-plugins=Priority,NodeRestriction", true),
        ("--admission-control=NodeRestriction", true),
        ("--enable-admission-plugins=noderestriction", false),
        ("--disable-admission-plugins=NodeRestriction", false),
    ] {
        assert_eq!(settings(line).node_restriction, expected, "{line}");
    }
    assert_eq!(modes("--authorization-config=/c"), Authorization::AuthenticatedOnly);
    for (verbosity, level) in [(0, "info"), (3, "info"), (4, "debug"), (6, "trace"), (10, "trace")] {
        assert_eq!(settings(&format!("-v={verbosity}")).log_level, level);
    }
    let StoreChoice::Etcd(_, interval) = resolved("--etcd-servers=a --etcd-compaction-interval=0").settings.store
    else {
        panic!("the store is etcd")
    };
    assert_eq!(interval, None, "0 leaves compaction to others");
}

#[test]
fn notice_lists_missing_default_plugins_unless_they_are_disabled() {
    let of_plugins = |line: &str| {
        let notices = resolved(&format!("{MEMORY} {line}")).notices.into_iter();
        notices.filter(|notice| notice.flag == "enable-admission-plugins").map(|notice| notice.text).collect::<String>()
    };
    assert!(of_plugins("").contains("PodSecurity"));
    assert!(!of_plugins("--disable-admission-plugins=PodSecurity").contains("PodSecurity"));
    assert_eq!(of_plugins(&format!("--disable-admission-plugins={}", MISSING_DEFAULT_PLUGINS.join(","))), "");
}

#[test]
fn certificates_for_names_add_up() {
    let settings = resolved("--tls-sni-cert-key=/a,/b --tls-sni-cert-key=/c,/d:*.example.com,example.com").settings;
    let certificate = |certificate: &str, key: &str, names: &[&str]| SniCertificate {
        certificate: certificate.into(),
        key: key.into(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    assert_eq!(
        settings.sni_certificates,
        [certificate("/a", "/b", &[]), certificate("/c", "/d", &["*.example.com", "example.com"])]
    );
}
