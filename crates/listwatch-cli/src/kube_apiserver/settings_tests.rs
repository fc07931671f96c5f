//! Tests of the settings and notices for command lines.

use clap::{Args as _, Command, FromArgMatches as _};

use listwatch_apiserver::access_webhooks::{AuthorizationWebhookOptions, ReviewVersion, TokenWebhookOptions};
use listwatch_apiserver::audit_log::{AuditMode, BatchOptions, RotationOptions, Truncation};
use listwatch_apiserver::pki::SniCertificate;
use listwatch_apiserver::stored_form::StorageMediaType;

use listwatch_apiserver::AuthorizationMode;
use listwatch_apiserver::token_issuers::OidcFlags;

use super::super::authorization::AuthorizationSource;
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

/// The command line of kubeadm's static Pod (`cmd/kubeadm/app/phases/controlplane/manifests.go`,
/// `getAPIServerCommand`).
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
    let with_egress = resolved(&format!("{KUBEADM} --egress-selector-config-file=/e"));
    assert_eq!(with_egress.obstacles(false).count(), 1);
    assert_eq!(with_egress.obstacles(true).count(), 0);
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
        authentication_config: None,
        anonymous_auth_given: false,
        anonymous_auth: AnonymousAuth::Enabled,
        request_timeout: Duration::from_secs(60),
        service_ranges: ServiceRanges::default().with_cluster_addresses("10.96.0.0/12").unwrap(),
        requests_in_flight_max: (400, 200),
        priority_and_fairness: true,
        goaway_chance: 0.0,
        metrics_reset: true,
        strict_transport_security: None,
        shutdown_delay: Duration::ZERO,
        shutdown_retry_after: false,
        watch_termination_grace_period: None,
        authorization: AuthorizationSettings {
            source: AuthorizationSource::Modes(vec![AuthorizationMode::Node, AuthorizationMode::Rbac]),
            policy_file: None,
        },
        oidc: None,
        webhooks: WebhookSettings::default(),
        audit: AuditSettings::default(),
        admission_plugins: AdmissionPlugins::upstream().with("NodeRestriction", true),
        admission_config_file: None,
        toleration_seconds: TolerationSeconds::default(),
        min_request_timeout: Duration::from_secs(1800),
        watch_cache: true,
        http2_streams_max: 0,
        feature_gates: FeatureGates::default(),
        runtime_config: RuntimeConfig::default(),
        event_ttl: Duration::from_secs(3600),
        advertise: Advertise::Address(IpAddr::from([192, 168, 102, 134])),
        log_level: "info",
    };
    assert_eq!(settings, expected);
}

#[test]
fn kubeadm_command_line_warns_of_each_ignored_flag() {
    let warnings: Vec<String> =
        notices(KUBEADM).iter().filter_map(|notice| notice.strip_prefix("Warning ").map(str::to_owned)).collect();
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn flags_are_honored_ignored_unenforced_or_refused() {
    for (line, expected) in [
        ("", &[][..]),
        ("--authorization-mode=AlwaysAllow --watch-cache=false --v=4 --etcd-prefix=/x", &[]),
        ("--authorization-mode=RBAC", &[]),
        ("--authorization-mode=AlwaysDeny,RBAC", &[]),
        ("--authorization-mode=Node,RBAC", &[]),
        ("--authorization-mode=RBAC,Webhook", &["Error authorization-webhook-config-file"]),
        ("--authorization-mode=RBAC,Webhook --authorization-webhook-config-file=/w", &[]),
        ("--authorization-webhook-config-file=/w", &["Error authorization-webhook-config-file"]),
        (
            "--authorization-mode=Webhook --authorization-webhook-config-file=/w --authorization-webhook-version=v2",
            &["Error authorization-webhook-version"],
        ),
        ("--authentication-token-webhook-config-file=/w --authentication-token-webhook-version=v1", &[]),
        (
            "--authentication-token-webhook-config-file=/w --authentication-token-webhook-version=",
            &["Error authentication-token-webhook-version"],
        ),
        ("--authorization-mode=ABAC", &["Error authorization-mode"]),
        ("--authorization-mode=ABAC --authorization-policy-file=/p", &[]),
        ("--authorization-mode=RBAC --authorization-policy-file=/p", &["Error authorization-policy-file"]),
        ("--authorization-mode=Rbac", &["Error authorization-mode"]),
        ("--authorization-mode=RBAC,Node,RBAC", &["Error authorization-mode"]),
        ("--authorization-config=/c", &[]),
        ("--authorization-config=/c --authorization-policy-file=/p", &[]),
        ("--authorization-config=/c --authorization-mode=RBAC", &["Error authorization-config"]),
        ("--authorization-config=/c --authorization-webhook-version=v1", &["Error authorization-config"]),
        ("--oidc-issuer-url=https://i --oidc-client-id=c", &[]),
        ("--oidc-issuer-url=https://i", &["Error oidc-issuer-url"]),
        ("--oidc-groups-claim=g", &["Error oidc-groups-claim"]),
        ("--oidc-issuer-url=https://i --oidc-client-id=c --oidc-required-claim=a", &["Error oidc-required-claim"]),
        ("--oidc-issuer-url=https://i --oidc-client-id=c --authentication-config=/c", &["Error oidc-client-id"]),
        ("--enable-admission-plugins=NamespaceLifecycle,Priority", &[]),
        ("--enable-admission-plugins=NodeRestriction,Priority", &[]),
        ("--enable-admission-plugins=PodSecurity", &[]),
        ("--enable-admission-plugins=ImagePolicyWebhook", &["Unenforced enable-admission-plugins"]),
        ("--admission-control=ImagePolicyWebhook", &["Unenforced enable-admission-plugins"]),
        ("--disable-admission-plugins=NodeRestriction", &[]),
        (
            "--enable-admission-plugins=NodeRestriction --disable-admission-plugins=NodeRestriction",
            &["Error enable-admission-plugins"],
        ),
        ("--disable-admission-plugins=ServiceAccount", &[]),
        ("--disable-admission-plugins=Priority", &[]),
        ("--disable-admission-plugins=Priority --admission-control=Priority", &["Error admission-control"]),
        ("--disable-admission-plugins=Prioritty", &["Error disable-admission-plugins"]),
        ("--profiling=false", &[]),
        ("--profiling", &[]),
        ("--profiling=F", &[]),
        ("--anonymous-auth=false --request-timeout=30s --shutdown-delay-duration=5s --goaway-chance=0.001", &[]),
        ("--goaway-chance=0.5", &["Error goaway-chance"]),
        ("--goaway-chance=NaN", &["Error goaway-chance"]),
        ("--request-timeout=0", &["Error request-timeout"]),
        ("--max-requests-inflight=0", &["Error max-requests-inflight"]),
        ("--max-mutating-requests-inflight=-1", &["Error max-mutating-requests-inflight"]),
        ("--audit-log-path=/var/log/audit.log --audit-log-maxage=30", &[]),
        ("--audit-log-path=- --audit-log-mode=later", &["Error audit-log-mode"]),
        ("--audit-log-path=- --audit-log-format=xml", &["Error audit-log-format"]),
        ("--audit-log-path=- --audit-log-maxbackup=-1", &["Error audit-log-maxbackup"]),
        ("--audit-log-path=- --audit-log-version=audit.k8s.io/v1beta1", &["Error audit-log-version"]),
        ("--audit-log-maxbackup=-1", &[]),
        (
            "--audit-log-path=- --audit-log-mode=batch --audit-log-batch-buffer-size=0",
            &["Error audit-log-batch-buffer-size"],
        ),
        (
            "--audit-webhook-config-file=/a --audit-webhook-batch-throttle-qps=0",
            &["Error audit-webhook-batch-throttle-qps"],
        ),
        (
            "--audit-webhook-config-file=/a --audit-webhook-truncate-max-batch-size=1",
            &["Error audit-webhook-truncate-max-batch-size"],
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
        ("--feature-gates=WatchList", &["Error feature-gates"]),
        ("--feature-gates=NoSuchGate=true", &["Error feature-gates"]),
        ("--runtime-config=batch/v1=false,api/beta=false --event-ttl=10m", &[]),
        ("--runtime-config=storage.k8s.io/v1beta1=true", &["Warning runtime-config"]),
        ("--runtime-config=batch/v9=true", &["Error runtime-config"]),
        ("--endpoint-reconciler-type=none --advertise-address=192.0.2.1", &[]),
        ("--endpoint-reconciler-type=master-count", &["Warning endpoint-reconciler-type"]),
        ("--endpoint-reconciler-type=other", &["Error endpoint-reconciler-type"]),
        ("--advertise-address=127.0.0.1", &["Warning advertise-address"]),
        ("--shutdown-send-retry-after --shutdown-watch-termination-grace-period=30s", &[]),
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
fn webhook_flags_reach_the_settings() {
    let line = "--authorization-mode=Webhook --authorization-webhook-config-file=/a --authorization-webhook-version=v1 \
                --authentication-token-webhook-config-file=/t --api-audiences=x";
    let webhooks = resolved(&format!("{MEMORY} {line}")).settings.webhooks;
    let (file, options) = webhooks.authorization.unwrap();
    assert_eq!(file, PathBuf::from("/a"));
    let expected = AuthorizationWebhookOptions { version: ReviewVersion::V1, ..Default::default() };
    assert_eq!(options, expected, "kube-apiserver's defaults");
    let (file, options) = webhooks.tokens.unwrap();
    assert_eq!(file, PathBuf::from("/t"));
    let kept_for = Duration::from_secs(120);
    let expected =
        TokenWebhookOptions { version: ReviewVersion::V1Beta1, kept_for, api_audiences: vec!["x".to_owned()] };
    assert_eq!(options, expected);
}

#[test]
fn oidc_flags_reach_the_settings() {
    let oidc = |line: &str| resolved(&format!("{MEMORY} {line}")).settings.oidc;
    assert_eq!(oidc(""), None);
    let line = "--oidc-issuer-url=https://i --oidc-client-id=c --oidc-ca-file=/ca --oidc-groups-claim=g \
                --oidc-required-claim=a=b,c --oidc-required-claim=d=e=f --oidc-required-claim=a=x \
                --oidc-signing-algs=RS256,ES256 --oidc-username-prefix=-";
    let OidcSettings { ca_file, flags } = oidc(line).unwrap();
    assert_eq!(ca_file, Some("/ca".into()));
    let expected = OidcFlags {
        issuer_url: "https://i".to_owned(),
        client_id: "c".to_owned(),
        certificate_authority: String::new(),
        username_claim: "sub".to_owned(),
        username_prefix: "-".to_owned(),
        groups_claim: "g".to_owned(),
        groups_prefix: String::new(),
        required_claims: vec![("d".to_owned(), "e=f".to_owned()), ("a".to_owned(), "x".to_owned())],
        signing_algorithms: vec!["RS256".to_owned(), "ES256".to_owned()],
    };
    assert_eq!(flags, expected);
}

#[test]
fn authorization_file_gives_its_authorizers_to_the_server_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let kubeconfig = write(
        "kubeconfig",
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n",
    );
    let policies = write("policies", "{\"user\":\"bob\"}\n");
    let read = |authorizers: &str, more: &str| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n{authorizers}"
        );
        let file = write("config", &text);
        let settings = resolved(&format!("{MEMORY} --authorization-config={file} {more}")).settings;
        let read = authorization::read(listwatch_apiserver::ApiServer::builder(), &settings);
        read.map(|(_, allows_everything)| allows_everything)
            .map_err(|error| error.to_string().replace(&*directory.path().display().to_string(), ""))
    };
    let webhook = |name: &str, kubeconfig: &str| {
        format!(
            "- {{type: Webhook, name: {name}, webhook: {{timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, \
             connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {kubeconfig}}}}}}}\n"
        )
    };
    let rbac = "- {type: RBAC, name: rbac}\n";
    assert_eq!(read(&(webhook("one", &kubeconfig) + rbac + &webhook("two", &kubeconfig)), ""), Ok(false));
    assert_eq!(read("- {type: AlwaysAllow, name: alwaysallow}", ""), Ok(true));
    let abac = "- {type: ABAC, name: abac}\n";
    assert_eq!(read(abac, &format!("--authorization-policy-file={policies}")), Ok(false));
    for (authorizers, expected) in [
        (abac.to_owned(), "authorization-mode ABAC's authorization policy file not passed"),
        (
            "- {type: RBAC, name: roles}".to_owned(),
            "--authorization-config /config: expected name rbac for authorizer RBAC instead of roles",
        ),
        (
            webhook("one", "/absent/file"),
            "--authorization-config /config: authorizers[0].connectionInfo.kubeConfigFile: Invalid value: \"/absent/file\": ",
        ),
    ] {
        let error = read(&authorizers, "").unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn audit_flags_reach_the_settings() {
    let audit = |line: &str| resolved(&format!("{MEMORY} {line}")).settings.audit;
    assert_eq!(audit("--audit-log-maxage=1"), AuditSettings::default());
    let line = "--audit-policy-file=/p --audit-log-path=/l --audit-log-maxage=2 --audit-log-maxbackup=3 \
                --audit-log-maxsize=4 --audit-log-compress --audit-webhook-config-file=/w --audit-webhook-truncate-enabled";
    let AuditSettings { policy_file, log: Some(log), webhook: Some(webhook) } = audit(line) else {
        panic!("both backends are on")
    };
    assert_eq!(policy_file, Some("/p".into()));
    let rotation = RotationOptions {
        age_max: Duration::from_secs(2 * 24 * 3600),
        backups_max: 3,
        file_bytes_max: 4 << 20,
        compress: true,
    };
    assert_eq!((log.path.as_str(), log.rotation, log.legacy), ("/l", rotation, false));
    assert_eq!((log.backend.mode, log.backend.truncation), (AuditMode::Blocking, None), "kube-apiserver's default");
    assert_eq!((webhook.config_file, webhook.backend.mode), ("/w".into(), AuditMode::Batch));
    assert_eq!(webhook.backend.batch, BatchOptions::of_webhook(), "kube-apiserver's defaults");
    assert_eq!(webhook.backend.truncation, Some(Truncation::default()));
    let batch = audit("--audit-log-path=/l --audit-log-mode=batch").log.map(|log| log.backend.batch);
    assert_eq!(batch, Some(BatchOptions::of_log()));
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
    assert!(
        settings("--feature-gates=WatchList=false --feature-gates=kube:CBORServingAndStorage=1").feature_gates.cbor
    );
    assert_eq!(settings("--event-ttl=90s").event_ttl, Duration::from_secs(90));
    let advertise = |line: &str| settings(line).advertise;
    assert_eq!(advertise(""), Advertise::Default);
    assert_eq!(advertise("--advertise-address=192.0.2.1"), Advertise::Address(IpAddr::from([192, 0, 2, 1])));
    assert_eq!(advertise("--advertise-address=192.0.2.1 --endpoint-reconciler-type=none"), Advertise::Nothing);
    assert_eq!(advertise("--advertise-address=127.0.0.1"), Advertise::Nothing);
    let shutdown = settings("--shutdown-send-retry-after --shutdown-watch-termination-grace-period=30s");
    assert!(shutdown.shutdown_retry_after);
    assert_eq!(shutdown.watch_termination_grace_period, Some(Duration::from_secs(30)));
    assert_eq!(settings("--cert-dir=/c").certificates, Certificates::OwnIn("/c".into()));
    let tls = settings("--tls-min-version=VersionTLS13 --tls-cipher-suites=A,B --tls-curve-preferences=29").tls;
    assert!(tls.tls13_only && !tls.http1_only && !tls.request_client_certificates);
    assert_eq!((tls.cipher_suites, tls.key_exchange_groups), (vec!["A".to_owned(), "B".to_owned()], vec![29]));
    let anonymous = |line: &str| settings(line).anonymous_auth;
    assert_eq!(anonymous("--authorization-mode=RBAC"), AnonymousAuth::Enabled);
    assert_eq!(anonymous("--authorization-config=/c"), AnonymousAuth::Enabled);
    assert_eq!(anonymous("--authorization-mode=RBAC --anonymous-auth=false"), AnonymousAuth::Disabled);
    for (wanted, allows_everything, expected) in [
        (AnonymousAuth::Enabled, false, AnonymousAuth::Enabled),
        (AnonymousAuth::Enabled, true, AnonymousAuth::Disabled),
        (AnonymousAuth::Disabled, false, AnonymousAuth::Disabled),
    ] {
        let found = authorization::anonymous_auth(wanted, allows_everything);
        assert_eq!(found, expected, "AlwaysAllow never allows anonymous requests");
    }
    assert_eq!(settings("--request-timeout=90s").request_timeout, Duration::from_secs(90));
    let media_type = |line: &str| settings(line).storage_media_type;
    assert_eq!(media_type(""), StorageMediaType::Protobuf, "kube-apiserver's default");
    assert_eq!(media_type("--storage-media-type=application/json"), StorageMediaType::Json);
    let file = settings("--encryption-provider-config=/etc/e.yaml").encryption_provider_config;
    assert_eq!(file, Some("/etc/e.yaml".into()));
    let limits = "--max-requests-inflight=3000 --max-mutating-requests-inflight=1000";
    assert_eq!(settings(limits).requests_in_flight_max, (3000, 1000));
    assert!(!settings("--profiling=false").metrics_reset);
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
    let modes = |line: &str| settings(line).authorization.source;
    let of = |modes: &[AuthorizationMode]| AuthorizationSource::Modes(modes.to_vec());
    assert_eq!(modes(""), of(&[AuthorizationMode::AlwaysAllow]), "kube-apiserver's default");
    assert_eq!(modes("--authorization-mode=Node,RBAC"), of(&[AuthorizationMode::Node, AuthorizationMode::Rbac]));
    for (line, expected) in [
        ("", false),
        ("--enable-admission-plugins=NodeRestriction", true),
        ("--enable-admission-plugins=Priority,NodeRestriction", true),
        ("--admission-control=NodeRestriction", true),
        ("--enable-admission-plugins=noderestriction", false),
        ("--disable-admission-plugins=NodeRestriction", false),
    ] {
        assert_eq!(settings(line).admission_plugins.is_enabled("NodeRestriction"), expected, "{line}");
    }
    assert_eq!(modes("--authorization-config=/c"), AuthorizationSource::File("/c".into()));
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
    let missing = PLUGINS.iter().filter(|plugin| plugin.default_on && !plugin.available).map(|plugin| plugin.name);
    let missing: Vec<&str> = missing.collect();
    let Some(first) = missing.first() else { return };
    assert!(of_plugins("").contains(first));
    assert!(!of_plugins(&format!("--disable-admission-plugins={first}")).contains(&format!("{first},")));
    assert_eq!(of_plugins(&format!("--disable-admission-plugins={}", missing.join(","))), "");
}

#[test]
fn repeated_sni_certificate_flags_add_certificates() {
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

#[test]
fn default_tolerations_have_the_seconds_of_the_flags() {
    let seconds = |line: &str| resolved(&format!("{MEMORY} {line}")).settings.toleration_seconds;
    assert_eq!(seconds(""), TolerationSeconds { not_ready: 300, unreachable: 300 });
    let line = "--default-not-ready-toleration-seconds=30 --default-unreachable-toleration-seconds=60";
    assert_eq!(seconds(line), TolerationSeconds { not_ready: 30, unreachable: 60 });
    assert_eq!(notices(line), notices(""));
}

#[test]
fn event_rate_limit_needs_limits_at_the_start() {
    let configured = |file: Option<&std::path::Path>, on| {
        let plugins = AdmissionPlugins::upstream().with("EventRateLimit", on);
        super::super::admission_configuration(file, plugins).map(drop).map_err(|error| error.to_string())
    };
    let why = "couldn't init admission plugin \"EventRateLimit\": limits: Invalid value: null: must not be empty";
    assert_eq!(configured(None, true), Err(why.to_owned()));
    assert_eq!(configured(None, false), Ok(()));
    let directory = tempfile::tempdir().unwrap();
    let (file, limits) = (directory.path().join("admission.yaml"), directory.path().join("limits.yaml"));
    let plugin = "{name: EventRateLimit, path: limits.yaml}";
    let text = format!("{{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [{plugin}]}}");
    std::fs::write(&file, text).unwrap();
    let kind = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration";
    std::fs::write(&limits, format!("{{{kind}, limits: [{{type: User, qps: 1, burst: 1}}]}}")).unwrap();
    assert_eq!(configured(Some(&file), true), Ok(()));
}
