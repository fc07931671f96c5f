//! The flags of kube-apiserver 1.36 as data: name, type, default, and this server's support for each.
//!
//! Source: the kube-apiserver reference of kubernetes/website for 1.35, with the flags and defaults that
//! CHANGELOG-1.36 adds, and the `--log-json-*` flags that the binary registers (`cmd/kube-apiserver/apiserver.go`).
//! `docs/drop-in.md` shows this table; a test compares the two.

/// The support of this server for a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    /// The flag has the same effect as in kube-apiserver.
    Honored,
    /// The flag has no effect. The server starts with a warning, unless the list contains all values of the flag: the
    /// server always behaves as these values request.
    Ignored(&'static [&'static str]),
    /// The flag requests a protection that the server does not provide. The server starts only with
    /// `--allow-unenforced`, unless the list contains all values of the flag: the server satisfies these values.
    Unenforced(&'static [&'static str]),
    /// The server never starts with this flag.
    Refused,
}

/// The type of a flag's value, as pflag names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueType {
    /// `true` or `false`; without a value, `true`.
    Bool,
    /// A whole number.
    Int,
    /// A decimal number.
    Float,
    /// A Go duration, such as `1m30s`.
    Duration,
    /// A string. If the flag is repeated, the last value applies.
    Text,
    /// A string. If the flag is repeated, all values apply.
    Texts,
    /// Comma-separated strings. If the flag is repeated, the lists are joined.
    List,
}

/// One flag of kube-apiserver.
#[derive(Debug)]
pub(crate) struct Flag {
    /// The name without dashes.
    pub(crate) name: &'static str,
    /// The type of the flag's value.
    pub(crate) value_type: ValueType,
    /// kube-apiserver's default; `""` if it has none.
    pub(crate) default: &'static str,
    /// This server's support.
    pub(crate) support: Support,
    /// The effect of the flag in this server, for users: one or two sentences.
    pub(crate) note: &'static str,
}

/// The Kubernetes version whose flags the table lists.
pub(crate) const KUBERNETES_VERSION: &str = "1.36";

/// Finds a flag by its name.
pub(crate) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.binary_search_by(|flag| flag.name.cmp(name)).ok().map(|at| &FLAGS[at])
}

const FRONT_PROXY: &str =
    "Needs `--requestheader-client-ca-file`. The ConfigMap `extension-apiserver-authentication` publishes it.";
const NO_PEERS: &str = "The server forwards no requests to other servers.";
const NO_LEADER_ELECTION: &str = "The server does not coordinate leader election (alpha in kube-apiserver).";
const NO_EMULATION: &str = "The server serves the APIs of one version.";
const NO_METRIC_OPTIONS: &str =
    "All metrics of the server are always shown. Some families of kube-apiserver do not exist.";
const LOG_OPTIONS: &str = "The log goes to standard error, unbuffered, as text.";

use Support::{Honored, Ignored, Refused, Unenforced};
use ValueType::{Bool, Duration, Float, Int, List, Text, Texts};

const fn flag(
    name: &'static str,
    value_type: ValueType,
    default: &'static str,
    support: Support,
    note: &'static str,
) -> Flag {
    Flag { name, value_type, default, support, note }
}

/// All flags, by name.
#[rustfmt::skip]
pub(crate) const FLAGS: &[Flag] = &[
    flag("admission-control", List, "", Honored, "Exactly these plugins; deprecated by kube-apiserver."),
    flag("admission-control-config-file", Text, "", Honored, "For EventRateLimit, PodNodeSelector, PodSecurity, PodTolerationRestriction and ResourceQuota. With the configuration of another plugin the server does not start."),
    flag("advertise-address", Text, "", Honored, "The address in the endpoints of the Service `kubernetes`, and in the server's own certificate. Without it, the bind address, or that of the default route. A loopback address is not published."),
    flag("aggregator-reject-forwarding-redirect", Bool, "true", Honored, "The server follows no redirects. With `false`, clients receive them."),
    flag("allow-metric-labels", List, "", Ignored(&[]), NO_METRIC_OPTIONS),
    flag("allow-metric-labels-manifest", Text, "", Ignored(&[]), NO_METRIC_OPTIONS),
    flag("allow-privileged", Bool, "false", Unenforced(&["true"]), "Privileged containers are always allowed. Without the flag, the server starts with a warning."),
    flag("anonymous-auth", Bool, "true", Honored, "`AlwaysAllow` makes it `false`, as in kube-apiserver."),
    flag("api-audiences", List, "", Honored, "Without it, the issuers."),
    flag("audit-log-batch-buffer-size", Int, "10000", Honored, "With `--audit-log-mode=batch`. Further events are dropped and counted; also above 64 MiB of waiting events."),
    flag("audit-log-batch-max-size", Int, "1", Honored, "With `--audit-log-mode=batch`."),
    flag("audit-log-batch-max-wait", Duration, "0s", Honored, "With `--audit-log-mode=batch`."),
    flag("audit-log-batch-throttle-burst", Int, "0", Honored, "With `--audit-log-batch-throttle-enable`."),
    flag("audit-log-batch-throttle-enable", Bool, "false", Honored, "With `--audit-log-mode=batch`."),
    flag("audit-log-batch-throttle-qps", Float, "0", Honored, "With `--audit-log-batch-throttle-enable`."),
    flag("audit-log-compress", Bool, "false", Honored, "Rotated files are compressed with gzip."),
    flag("audit-log-format", Text, "json", Honored, "`json` or `legacy`."),
    flag("audit-log-maxage", Int, "366", Honored, "Days that rotated files stay."),
    flag("audit-log-maxbackup", Int, "100", Honored, "Rotated files that stay."),
    flag("audit-log-maxsize", Int, "100", Honored, "MiB at which the file is rotated."),
    flag("audit-log-mode", Text, "blocking", Honored, "`blocking` delays each response until its event is written."),
    flag("audit-log-path", Text, "", Honored, "Needs `--audit-policy-file`. `-` is standard output. The file has mode 0600."),
    flag("audit-log-truncate-enabled", Bool, "false", Honored, "Events above the limit lose their objects, and are dropped if that does not suffice."),
    flag("audit-log-truncate-max-batch-size", Int, "10485760", Honored, "With `--audit-log-truncate-enabled`."),
    flag("audit-log-truncate-max-event-size", Int, "102400", Honored, "With `--audit-log-truncate-enabled`."),
    flag("audit-log-version", Text, "audit.k8s.io/v1", Honored, "Only `audit.k8s.io/v1`."),
    flag("audit-policy-file", Text, "", Honored, "Without it, nothing is recorded. The file is read at the start only."),
    flag("audit-webhook-batch-buffer-size", Int, "10000", Honored, "With `--audit-webhook-mode=batch`. Further events are dropped and counted; also above 64 MiB of waiting events."),
    flag("audit-webhook-batch-max-size", Int, "400", Honored, "With `--audit-webhook-mode=batch`."),
    flag("audit-webhook-batch-max-wait", Duration, "30s", Honored, "With `--audit-webhook-mode=batch`."),
    flag("audit-webhook-batch-throttle-burst", Int, "15", Honored, "With `--audit-webhook-batch-throttle-enable`."),
    flag("audit-webhook-batch-throttle-enable", Bool, "true", Honored, "With `--audit-webhook-mode=batch`."),
    flag("audit-webhook-batch-throttle-qps", Float, "10", Honored, "With `--audit-webhook-batch-throttle-enable`."),
    flag("audit-webhook-config-file", Text, "", Honored, "Needs `--audit-policy-file`. A kubeconfig with a certificate, a token or a password; no `exec`. The kubeconfig is read at the start only, its `tokenFile` every minute."),
    flag("audit-webhook-initial-backoff", Duration, "10s", Honored, "The pause after the first failure; five tries in all."),
    flag("audit-webhook-mode", Text, "batch", Honored, "`blocking` delays each response until its event is sent."),
    flag("audit-webhook-truncate-enabled", Bool, "false", Honored, "Events above the limit lose their objects, and are dropped if that does not suffice."),
    flag("audit-webhook-truncate-max-batch-size", Int, "10485760", Honored, "With `--audit-webhook-truncate-enabled`."),
    flag("audit-webhook-truncate-max-event-size", Int, "102400", Honored, "With `--audit-webhook-truncate-enabled`."),
    flag("audit-webhook-version", Text, "audit.k8s.io/v1", Honored, "Only `audit.k8s.io/v1`."),
    flag("authentication-config", Text, "", Honored, "Issuers of JWTs with claims, CEL and rules, and the rule for anonymous requests. No `egressSelectorType`, no ES512. The file is read at the start only."),
    flag("authentication-token-webhook-cache-ttl", Duration, "2m0s", Honored, "How long an answer is kept."),
    flag("authentication-token-webhook-config-file", Text, "", Honored, "A kubeconfig with a certificate, a token or a password; no `exec`. The kubeconfig is read at the start only, its `tokenFile` every minute."),
    flag("authentication-token-webhook-version", Text, "v1beta1", Honored, "`v1` or `v1beta1`."),
    flag("authorization-config", Text, "", Honored, "The authorizers in their order, with several webhooks and their match conditions. The file is read at the start only."),
    flag("authorization-mode", List, "AlwaysAllow", Honored, "`AlwaysAllow`, `AlwaysDeny`, `ABAC`, `Webhook`, `RBAC` and `Node`. Use `Node` with `--enable-admission-plugins=NodeRestriction`."),
    flag("authorization-policy-file", Text, "", Honored, "Policies of the mode `ABAC`, one per line. The file is read at the start only."),
    flag("authorization-webhook-cache-authorized-ttl", Duration, "5m0s", Honored, "How long an allowed request stays allowed."),
    flag("authorization-webhook-cache-unauthorized-ttl", Duration, "30s", Honored, "How long another answer stays."),
    flag("authorization-webhook-config-file", Text, "", Honored, "Needs `--authorization-mode=Webhook`. A kubeconfig with a certificate, a token or a password; no `exec`. The kubeconfig is read at the start only, its `tokenFile` every minute."),
    flag("authorization-webhook-version", Text, "v1beta1", Honored, "`v1` or `v1beta1`."),
    flag("bind-address", Text, "0.0.0.0", Honored, "`0.0.0.0` is IPv4 only, `::` is both where the system allows it."),
    flag("cert-dir", Text, "/var/run/kubernetes", Honored, "The directory of the serving certificate: `apiserver.crt` and `apiserver.key` are used if they exist. Otherwise the server keeps its own CA and the administrator's token there."),
    flag("client-ca-file", Text, "", Honored, "The CommonName is the user, each Organization a group. The file is read at the start only."),
    flag("contention-profiling", Bool, "false", Ignored(&["false"]), "The server has no profiling endpoint."),
    flag("coordinated-leadership-lease-duration", Duration, "15s", Ignored(&[]), NO_LEADER_ELECTION),
    flag("coordinated-leadership-renew-deadline", Duration, "10s", Ignored(&[]), NO_LEADER_ELECTION),
    flag("coordinated-leadership-retry-period", Duration, "2s", Ignored(&[]), NO_LEADER_ELECTION),
    flag("cors-allowed-origins", List, "", Ignored(&[]), "The server sends no CORS headers: browsers keep pages of other origins out."),
    flag("debug-socket-path", Text, "", Ignored(&[]), "The server has no profiling endpoint."),
    flag("default-not-ready-toleration-seconds", Int, "300", Honored, "In seconds, for pods without a toleration of the taint."),
    flag("default-unreachable-toleration-seconds", Int, "300", Honored, "In seconds, for pods without a toleration of the taint."),
    flag("delete-collection-workers", Int, "1", Ignored(&[]), "The server chooses the concurrency of a collection's deletion."),
    flag("disable-admission-plugins", List, "", Honored, "NamespaceLifecycle stays enabled."),
    flag("disable-http2-serving", Bool, "false", Honored, "HTTP/1.1 only."),
    flag("disabled-metrics", List, "", Ignored(&[]), NO_METRIC_OPTIONS),
    flag("egress-selector-config-file", Text, "", Unenforced(&[]), "Outgoing connections do not pass the egress proxy."),
    flag("emulated-version", List, "1.36", Ignored(&["1.36", "kube=1.36"]), NO_EMULATION),
    flag("emulation-forward-compatible", Bool, "false", Ignored(&["false"]), NO_EMULATION),
    flag("enable-admission-plugins", List, "", Honored, "If a plugin is not available here, the server starts only with `--allow-unenforced`. ServiceAccount needs kube-controller-manager or `--controllers=serviceaccount`, StorageObjectInUseProtection `--controllers=pvc-protection,pv-protection`."),
    flag("enable-aggregator-routing", Bool, "false", Honored, "Requests for extension servers and webhooks go to a ready endpoint of the service instead of its cluster address. Cluster addresses need kube-proxy, or another route to them, on this host. `listwatch serve` always uses endpoints."),
    flag("enable-bootstrap-token-auth", Bool, "false", Honored, "The Secrets are read from the store at each request."),
    flag("enable-garbage-collector", Bool, "true", Ignored(&["true"]), "Finalizers of foreground deletion and orphans are always set. kube-controller-manager collects, or `--controllers=gc`."),
    flag("enable-logs-handler", Bool, "false", Ignored(&["false"]), "The server has no endpoint `/logs`."),
    flag("enable-priority-and-fairness", Bool, "true", Honored, "With `false`, only the limits of reads and writes at once apply."),
    flag("encryption-provider-config", Text, "", Honored, "Providers `identity`, `aescbc`, `aesgcm` and `secretbox`. With `kms` the server does not start. The file is read at the start only."),
    flag("encryption-provider-config-automatic-reload", Bool, "false", Unenforced(&["false"]), "The file is read at the start only: restart the server after a change of keys."),
    flag("endpoint-reconciler-type", Text, "lease", Honored, "`lease` or `none`. `master-count`, which is deprecated, is treated as `lease`, with a warning."),
    flag("etcd-cafile", Text, "", Honored, "Without it, the authorities of the operating system sign etcd's certificate."),
    flag("etcd-certfile", Text, "", Honored, "Needs `--etcd-keyfile`."),
    flag("etcd-compaction-interval", Duration, "5m0s", Honored, "`0` leaves compaction to others."),
    flag("etcd-count-metric-poll-period", Duration, "1m0s", Ignored(&[]), "The metrics of etcd are read when `/metrics` is."),
    flag("etcd-db-metric-poll-interval", Duration, "30s", Ignored(&[]), "The metrics of etcd are read when `/metrics` is."),
    flag("etcd-healthcheck-timeout", Duration, "2s", Ignored(&[]), "The timeout is fixed."),
    flag("etcd-keyfile", Text, "", Honored, "Needs `--etcd-certfile`."),
    flag("etcd-prefix", Text, "/registry", Honored, "The same keys as in kube-apiserver."),
    flag("etcd-readycheck-timeout", Duration, "2s", Ignored(&[]), "The timeout is fixed."),
    flag("etcd-servers", List, "", Honored, "Required, unless `--storage-backend` names another store."),
    flag("etcd-servers-overrides", List, "", Refused, "All resources are in one store: the server would not see the objects in the other one."),
    flag("event-ttl", Duration, "1h0m0s", Honored, "In whole seconds. With less than one second, events do not expire."),
    flag("external-hostname", Text, "", Honored, "The server's own certificate names it."),
    flag("feature-gates", List, "", Honored, "`CBORServingAndStorage`, `APIServerIdentity`, `ConstrainedImpersonation`, `ComponentFlagz` and `ComponentStatusz` switch their features. `ShardedListAndWatch` is always on. A warning names other gates whose value has no effect. Unknown gates are an error."),
    flag("goaway-chance", Float, "0", Honored, "0 to 0.02."),
    flag("help", Bool, "false", Honored, "Also `-h`."),
    flag("http2-max-streams-per-connection", Int, "0", Honored, "`0` is 100."),
    flag("kubelet-certificate-authority", Text, "", Honored, "Without it, certificates of kubelets are not verified, as in kube-apiserver. The file is read at the start only."),
    flag("kubelet-client-certificate", Text, "", Honored, "Needs `--kubelet-client-key`. The file is read at the start only."),
    flag("kubelet-client-key", Text, "", Honored, "Needs `--kubelet-client-certificate`."),
    flag("kubelet-preferred-address-types", List, "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP", Honored, "The order in which the server looks for an address of a node."),
    flag("kubelet-timeout", Duration, "5s", Ignored(&["5s"]), "A connection must be open within 30 seconds, as in kube-apiserver, which does not use the value either."),
    flag("kubernetes-service-node-port", Int, "0", Ignored(&["0"]), "The Service `kubernetes` has type ClusterIP."),
    flag("lease-reuse-duration-seconds", Int, "60", Ignored(&[]), "The server chooses which objects share an etcd lease."),
    flag("livez-grace-period", Duration, "0s", Ignored(&["0", "0s"]), "`/livez` fails from the first failed check on."),
    flag("log-flush-frequency", Duration, "5s", Ignored(&[]), LOG_OPTIONS),
    flag("log-json-info-buffer-size", Text, "0", Ignored(&["0"]), LOG_OPTIONS),
    flag("log-json-split-stream", Bool, "false", Ignored(&["false"]), LOG_OPTIONS),
    flag("log-text-info-buffer-size", Text, "0", Ignored(&["0"]), LOG_OPTIONS),
    flag("log-text-split-stream", Bool, "false", Ignored(&["false"]), LOG_OPTIONS),
    flag("logging-format", Text, "text", Ignored(&["text"]), LOG_OPTIONS),
    flag("max-connection-bytes-per-sec", Int, "0", Ignored(&["0"]), "Connections have no limit of bytes per second."),
    flag("max-mutating-requests-inflight", Int, "200", Honored, "Writes at once, of exempt users with priority and fairness; a part of the seats of all priority levels. At least 1: `0`, no limit, is an error."),
    flag("max-requests-inflight", Int, "400", Honored, "Reads at once, watches not counted, of exempt users with priority and fairness; a part of the seats of all priority levels. At least 1: `0`, no limit, is an error."),
    flag("min-compatibility-version", List, "1.35", Ignored(&[]), NO_EMULATION),
    flag("min-request-timeout", Int, "1800", Honored, "Seconds. A watch without a timeout lasts between this and twice this."),
    flag("oidc-ca-file", Text, "", Honored, "The authorities of the issuer's certificate. Without it, those of the system. The file is read at the start only."),
    flag("oidc-client-id", Text, "", Honored, "The audience of the tokens. Needs `--oidc-issuer-url`."),
    flag("oidc-groups-claim", Text, "", Honored, "The claim with the groups of the user, a string or a list. A token whose groups are a distributed claim (`_claim_names`) is rejected: the server does not fetch it."),
    flag("oidc-groups-prefix", Text, "", Honored, "Stands before each group."),
    flag("oidc-issuer-url", Text, "", Honored, "Tokens of this issuer are accepted. Needs `--oidc-client-id`, and excludes `--authentication-config`."),
    flag("oidc-required-claim", Texts, "", Honored, "`claim=value` that each token needs. May be repeated."),
    flag("oidc-signing-algs", List, "RS256", Honored, "`RS`, `ES` and `PS` with 256, 384 and 512, without `ES512`."),
    flag("oidc-username-claim", Text, "sub", Honored, "The claim with the name of the user. An `email` must not be marked as not verified."),
    flag("oidc-username-prefix", Text, "", Honored, "Stands before the name. Without it, the issuer and `#`, unless the claim is `email`. `-` is no prefix."),
    flag("peer-advertise-ip", Text, "", Ignored(&[]), NO_PEERS),
    flag("peer-advertise-port", Text, "", Ignored(&[]), NO_PEERS),
    flag("peer-ca-file", Text, "", Ignored(&[]), NO_PEERS),
    flag("permit-address-sharing", Bool, "false", Ignored(&["false"]), "The server does not share its address."),
    flag("permit-port-sharing", Bool, "false", Ignored(&["false"]), "The server does not share its port."),
    flag("profiling", Bool, "true", Honored, "Whether `DELETE /metrics` resets the counts of requests. The server has no profiling endpoint."),
    flag("proxy-client-cert-file", Text, "", Honored, "Needs `--proxy-client-key-file`. The file is read at the start only."),
    flag("proxy-client-key-file", Text, "", Honored, "Needs `--proxy-client-cert-file`."),
    flag("request-timeout", Duration, "1m0s", Honored, "Must be positive."),
    flag("requestheader-allowed-names", List, "", Honored, "Required if the CA is also in `--client-ca-file`."),
    flag("requestheader-client-ca-file", Text, "", Honored, "Front proxies with a certificate of this CA may name users. The file is read at the start only."),
    flag("requestheader-extra-headers-prefix", List, "", Honored, FRONT_PROXY),
    flag("requestheader-group-headers", List, "", Honored, FRONT_PROXY),
    flag("requestheader-uid-headers", List, "", Honored, FRONT_PROXY),
    flag("requestheader-username-headers", List, "", Honored, FRONT_PROXY),
    flag("runtime-config", List, "", Honored, "Switches group versions and resources on or off. Of what kube-apiserver does not serve by default, the server has `storagemigration.k8s.io/v1beta1`; a warning names the others."),
    flag("runtime-config-emulation-forward-compatible", Bool, "false", Ignored(&["false"]), NO_EMULATION),
    flag("secure-port", Int, "6443", Honored, "1 to 65535."),
    flag("service-account-extend-token-expiration", Bool, "true", Honored, "Tokens of pods that request 3607 s live for a year."),
    flag("service-account-issuer", List, "", Honored, "Without it, `https://kubernetes.default.svc.cluster.local`."),
    flag("service-account-jwks-uri", Text, "", Honored, "Without it, `/openid/v1/jwks` at the external address."),
    flag("service-account-key-file", List, "", Honored, "RSA from 2048 bits, P-256 and P-384; no P-521. The files are read at the start only."),
    flag("service-account-lookup", Bool, "true", Ignored(&["true"]), "The server always looks up the account of a token."),
    flag("service-account-max-token-expiration", Duration, "0s", Honored, "From 1 hour to 2^32 seconds."),
    flag("service-account-signing-endpoint", Text, "", Unenforced(&[]), "A key in the store signs tokens."),
    flag("service-account-signing-key-file", Text, "", Honored, "Without it, a key for ES256 that the servers of the store share. The file is read at the start only."),
    flag("service-cluster-ip-range", Text, "10.0.0.0/24", Honored, "IPv4 with a prefix of 12 to 29 bits. The same on all servers of a store. ServiceCIDRs add further IPv4 ranges, of any size."),
    flag("service-node-port-range", Text, "30000-32767", Honored, "The same on all servers of a store."),
    flag("show-hidden-metrics-for-version", Text, "", Ignored(&[]), NO_METRIC_OPTIONS),
    flag("shutdown-delay-duration", Duration, "0s", Honored, "`/readyz` fails during the delay, and requests are served. The address in the Service `kubernetes` is removed at once."),
    flag("shutdown-send-retry-after", Bool, "false", Honored, "With `true`, new requests get 429 while the running ones finish. Health checks are served."),
    flag("shutdown-watch-termination-grace-period", Duration, "0s", Honored, "At least 200 watches end per second. With `0`, all end within five seconds."),
    flag("storage-backend", Text, "etcd3", Honored, "Besides `etcd3`: `embedded` (in `--data-dir`) and `memory`."),
    flag("storage-initialization-timeout", Duration, "1m0s", Ignored(&[]), "The server starts when the store responds."),
    flag("storage-media-type", Text, "application/vnd.kubernetes.protobuf", Honored, "Both encodings are read in any case. `application/yaml` is an error."),
    flag("strict-transport-security-directives", List, "", Honored, "The header `Strict-Transport-Security` of all responses."),
    flag("tls-cert-file", Text, "", Honored, "Needs `--tls-private-key-file`. Changed files are read again. Without both, the certificate is that of `--cert-dir`."),
    flag("tls-cipher-suites", List, "", Honored, "The server has the suites with ECDHE and AES-GCM or ChaCha20-Poly1305. Others are ignored; TLS 1.2 needs at least one."),
    flag("tls-curve-preferences", List, "", Honored, "The server has 23 (P-256), 24 (P-384) and 29 (X25519). Others are ignored; at least one is needed."),
    flag("tls-min-version", Text, "", Honored, "`VersionTLS10` and `VersionTLS11` are as `VersionTLS12`: the server supports no older version."),
    flag("tls-private-key-file", Text, "", Honored, "Needs `--tls-cert-file`."),
    flag("tls-sni-cert-key", Texts, "", Honored, "Certificates are selected by host name, not by address. Changed files are read again."),
    flag("token-auth-file", Text, "", Honored, "The file is read at the start only."),
    flag("tracing-config-file", Text, "", Ignored(&[]), "The server sends no traces."),
    flag("v", Int, "0", Honored, "Up to 3 is level info, 4 and 5 debug, from 6 on trace. Also `-v`."),
    flag("version", Text, "false", Honored, "Prints the version of listwatch."),
    flag("vmodule", List, "", Ignored(&[]), LOG_OPTIONS),
    flag("watch-cache", Bool, "true", Honored, "`false` serves lists and watches from the store."),
    flag("watch-cache-sizes", List, "", Ignored(&[]), "The sizes of watch caches follow their use."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_sorted_and_unique() {
        assert!(FLAGS.is_sorted_by(|one, next| one.name < next.name));
        assert_eq!(find("v").map(|flag| flag.value_type), Some(Int));
        assert!(find("no-such-flag").is_none());
    }

    #[test]
    fn flag_notes_are_complete_sentences() {
        for flag in FLAGS {
            assert!(flag.note.ends_with('.') && !flag.note.contains('|'), "--{}: {}", flag.name, flag.note);
        }
    }
}
