//! The health checks of a server: their names, the endpoints that run them, the part of the server that each examines,
//! and the report. [`CHECKS`] lists all checks.
//!
//! The names are kube-apiserver's, which clients and probes use in `?exclude=` and `/livez/<check>`. Sources:
//! `apiserver/pkg/server/{config,hooks}.go` and the hooks of `pkg/controlplane`, `pkg/registry`, `kube-aggregator` and
//! `apiextensions-apiserver` for the names; `apiserver/pkg/server/healthz/healthz.go` for the report.
//!
//! The module performs no I/O. The caller observes the server ([`ServerState`]), runs the checks ([`run_checks`]) and
//! serves the [`report`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use listwatch_meta::go;

use crate::{flow_control, ip_addresses, node_ports, rbac};

/// How long a cache may load its objects before the server becomes unready.
const FILL_PATIENCE: Duration = Duration::from_secs(10);

/// Decides when caches that load their objects fail readiness.
///
/// Before the server is ready for the first time, every such cache fails readiness. Later, a first reader starts a cache,
/// or a cache loads again after the store has lost its history. Other resources are served meanwhile, so the server stays
/// ready for [`FILL_PATIENCE`]. kube-apiserver waits for its caches at its start only.
#[derive(Debug, Default)]
pub struct UnfilledCaches {
    was_ready: bool,
    /// The caches that the last check saw unfilled, by storage prefix, and when a check saw that first.
    since: BTreeMap<String, Instant>,
}

impl UnfilledCaches {
    /// Returns the reason why readiness fails. `unfilled` has the storage prefixes of all caches that are not filled.
    pub fn problem(&mut self, now: Instant, unfilled: Vec<String>) -> Option<String> {
        let mut former = std::mem::take(&mut self.since);
        self.since.extend(unfilled.into_iter().map(|prefix| {
            let since = former.remove(&prefix).unwrap_or(now);
            (prefix, since)
        }));
        let patience = if self.was_ready { FILL_PATIENCE } else { Duration::ZERO };
        let late = self.since.iter().find(|(_, since)| now.duration_since(**since) >= patience);
        late.map(|(prefix, _)| format!("the cache of {prefix} is not filled"))
    }

    /// Records that all checks of readiness have passed.
    pub fn set_ready(&mut self) {
        self.was_ready = true;
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    /// The name of the check, e.g. `etcd`.
    pub name: &'static str,
    /// The reason for the failure. Only the report of a single check contains the reason.
    pub problem: Option<String>,
}

/// The features of a server that have checks of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Roles and bindings authorize requests.
    pub rbac: bool,
    /// API priority and fairness. A server without it limits the requests in flight.
    pub priority_and_fairness: bool,
    /// The server renews an identity Lease.
    pub identity_lease: bool,
}

/// The state of a server on which the checks depend. A text is the reason why the checks of the subject fail.
pub struct ServerState<'a> {
    /// The features of the server.
    pub features: Features,
    /// The store does not respond.
    pub store: Option<String>,
    /// A running cache has not loaded its objects.
    pub caches: Option<String>,
    /// The controller of custom resource definitions has ended.
    pub definitions: Option<String>,
    /// Another built-in controller has ended.
    pub loops: Option<String>,
    /// A built-in controller has stopped its work, because it cannot read all objects that its decisions need.
    pub controllers: Option<String>,
    /// Returns the error of creating a bootstrap object, by the name of the health check.
    pub objects: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// The server is shutting down.
    pub stopping: bool,
}

/// The part of the server that a check examines.
#[derive(Clone, Copy)]
enum Subject {
    /// The process itself. The check always passes.
    Process,
    Store,
    Caches,
    Definitions,
    Loops,
    Controllers,
    /// The bootstrap objects, by the name of the check. A problem only fails `/readyz`.
    Objects(&'static str),
    /// The repairs of cluster addresses and node ports. A problem only fails `/readyz`.
    ServiceRepairs,
    /// The shutdown. The check fails after the shutdown has started.
    Shutdown,
}

/// The endpoints of a check.
#[derive(Clone, Copy, PartialEq)]
enum Endpoints {
    All,
    /// `/healthz` and `/livez`.
    Liveness,
    Readyz,
}

/// The feature without which a server does not have a check.
#[derive(Clone, Copy)]
enum Feature {
    Any,
    Rbac,
    PriorityAndFairness,
    /// The limits on requests in flight, of a server without priority and fairness.
    MaxInFlight,
    IdentityLease,
}

const SYSTEM_NAMESPACES: Subject = Subject::Objects("poststarthook/start-system-namespaces-controller");
const SERVICE_RANGE: Subject = Subject::Objects("poststarthook/start-kubernetes-service-cidr-controller");
const API_SERVICES: Subject = Subject::Objects("autoregister-completion");

/// All checks in kube-apiserver's order. If kube-apiserver checks a controller, this server checks the component with
/// the same purpose. Checks of features that this server does not have are absent: peer servers, and the reload of the
/// proxy client certificate.
const CHECKS: &[(&str, Endpoints, Feature, Subject)] = &[
    ("ping", Endpoints::All, Feature::Any, Subject::Process),
    ("log", Endpoints::All, Feature::Any, Subject::Process),
    // The certificate for the requests of the server to itself lasts as long as the process.
    ("loopback-serving-certificate", Endpoints::Liveness, Feature::Any, Subject::Process),
    ("etcd", Endpoints::All, Feature::Any, Subject::Store),
    ("etcd-readiness", Endpoints::Readyz, Feature::Any, Subject::Store),
    ("informer-sync", Endpoints::Readyz, Feature::Any, Subject::Caches),
    ("controllers-sync", Endpoints::Readyz, Feature::Any, Subject::Controllers),
    // Admission reads the namespace of each new object.
    ("poststarthook/start-apiserver-admission-initializer", Endpoints::All, Feature::Any, SYSTEM_NAMESPACES),
    ("poststarthook/generic-apiserver-start-informers", Endpoints::All, Feature::Any, Subject::Loops),
    // The task that follows flow schemas and priority levels.
    (
        "poststarthook/priority-and-fairness-config-consumer",
        Endpoints::All,
        Feature::PriorityAndFairness,
        Subject::Loops,
    ),
    // The task that runs the timers of the priority levels.
    ("poststarthook/priority-and-fairness-filter", Endpoints::All, Feature::PriorityAndFairness, Subject::Loops),
    // The slots of requests in flight need no task.
    ("poststarthook/max-in-flight-filter", Endpoints::All, Feature::MaxInFlight, Subject::Process),
    // Caches count their objects. A task counts the objects of resources without a cache.
    ("poststarthook/storage-object-count-tracker-hook", Endpoints::All, Feature::Any, Subject::Loops),
    ("poststarthook/start-apiextensions-informers", Endpoints::All, Feature::Any, Subject::Definitions),
    ("poststarthook/start-apiextensions-controllers", Endpoints::All, Feature::Any, Subject::Definitions),
    ("poststarthook/crd-informer-synced", Endpoints::All, Feature::Any, Subject::Definitions),
    ("poststarthook/start-system-namespaces-controller", Endpoints::All, Feature::Any, SYSTEM_NAMESPACES),
    (
        "poststarthook/start-cluster-authentication-info-controller",
        Endpoints::All,
        Feature::Any,
        Subject::Objects("poststarthook/start-cluster-authentication-info-controller"),
    ),
    // As in kube-apiserver, a Lease that cannot be written does not fail the check: an unreachable webhook may reject the
    // Lease, and the webhook may be unreachable until this server is ready.
    (
        "poststarthook/start-kube-apiserver-identity-lease-controller",
        Endpoints::All,
        Feature::IdentityLease,
        Subject::Process,
    ),
    (
        "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
        Endpoints::All,
        Feature::IdentityLease,
        Subject::Process,
    ),
    // A read waits for its cache, so a cache that is still loading fails readiness and not liveness.
    ("poststarthook/storage-readiness", Endpoints::All, Feature::Any, Subject::Store),
    (
        "poststarthook/start-legacy-token-tracking-controller",
        Endpoints::All,
        Feature::Any,
        Subject::Objects("poststarthook/start-legacy-token-tracking-controller"),
    ),
    (node_ports::CHECK, Endpoints::All, Feature::Any, Subject::ServiceRepairs),
    (rbac::CHECK, Endpoints::All, Feature::Rbac, Subject::Objects(rbac::CHECK)),
    (
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        Endpoints::All,
        Feature::Any,
        Subject::Objects("poststarthook/scheduling/bootstrap-system-priority-classes"),
    ),
    (flow_control::CHECK, Endpoints::All, Feature::PriorityAndFairness, Subject::Objects(flow_control::CHECK)),
    (
        "poststarthook/bootstrap-controller",
        Endpoints::All,
        Feature::Any,
        Subject::Objects("poststarthook/bootstrap-controller"),
    ),
    ("poststarthook/start-kubernetes-service-cidr-controller", Endpoints::All, Feature::Any, SERVICE_RANGE),
    ("poststarthook/start-kube-aggregator-informers", Endpoints::All, Feature::Any, Subject::Loops),
    ("poststarthook/apiservice-status-local-available-controller", Endpoints::All, Feature::Any, API_SERVICES),
    ("poststarthook/apiservice-status-remote-available-controller", Endpoints::All, Feature::Any, API_SERVICES),
    ("poststarthook/apiservice-registration-controller", Endpoints::All, Feature::Any, API_SERVICES),
    // The task that reads the discovery of extension servers.
    ("poststarthook/apiservice-discovery-controller", Endpoints::All, Feature::Any, Subject::Loops),
    ("poststarthook/kube-apiserver-autoregistration", Endpoints::All, Feature::Any, API_SERVICES),
    ("autoregister-completion", Endpoints::All, Feature::Any, API_SERVICES),
    // OpenAPI documents are built from the registry, which follows the definitions.
    ("poststarthook/apiservice-openapi-controller", Endpoints::All, Feature::Any, Subject::Definitions),
    ("poststarthook/apiservice-openapiv3-controller", Endpoints::All, Feature::Any, Subject::Definitions),
    ("shutdown", Endpoints::Readyz, Feature::Any, Subject::Shutdown),
];

/// Runs the checks of an endpoint: `healthz`, `livez` or `readyz`.
pub fn run_checks(endpoint: &str, state: &ServerState<'_>) -> Vec<CheckResult> {
    let is_readyz = endpoint == "readyz";
    let skipped = if is_readyz { Endpoints::Liveness } else { Endpoints::Readyz };
    let checks =
        CHECKS.iter().filter(|(_, endpoints, feature, _)| *endpoints != skipped && state.features.have(*feature));
    checks
        .map(|(name, _, _, subject)| {
            // A restart does not help to create or repair an object, so liveness does not fail.
            let is_examined = is_readyz || !matches!(subject, Subject::Objects(_) | Subject::ServiceRepairs);
            CheckResult { name, problem: if is_examined { state.problem(*subject) } else { None } }
        })
        .collect()
}

impl Features {
    fn have(self, feature: Feature) -> bool {
        match feature {
            Feature::Any => true,
            Feature::Rbac => self.rbac,
            Feature::PriorityAndFairness => self.priority_and_fairness,
            Feature::MaxInFlight => !self.priority_and_fairness,
            Feature::IdentityLease => self.identity_lease,
        }
    }
}

impl ServerState<'_> {
    fn problem(&self, subject: Subject) -> Option<String> {
        match subject {
            Subject::Process => None,
            Subject::Store => self.store.clone(),
            Subject::Caches => self.caches.clone(),
            Subject::Definitions => self.definitions.clone(),
            Subject::Loops => self.loops.clone(),
            Subject::Controllers => self.controllers.clone(),
            Subject::Objects(check) => (self.objects)(check),
            Subject::ServiceRepairs => {
                (self.objects)(node_ports::CHECK).or_else(|| (self.objects)(ip_addresses::PROBLEM))
            }
            Subject::Shutdown => self.stopping.then(|| "process is shutting down".to_owned()),
        }
    }
}

/// Returns the code and the plain-text body of an endpoint's response. If all checks pass, the body is `ok`. With
/// `verbose` and after a failure, the body lists the checks without reasons. Only the report of a single check (`check`)
/// has a reason. The checks in `exclude` do not fail the endpoint.
pub fn report(
    endpoint: &str,
    results: &[CheckResult],
    check: Option<&str>,
    verbose: bool,
    exclude: &[String],
) -> (u16, String) {
    if let Some(check) = check {
        return match results.iter().find(|result| result.name == check) {
            None => (404, "404 page not found\n".to_owned()),
            Some(CheckResult { problem: None, .. }) => (200, "ok".to_owned()),
            Some(CheckResult { problem: Some(why), .. }) => (500, format!("internal server error: {why}\n")),
        };
    }
    let mut text = String::new();
    let mut failed = false;
    for CheckResult { name, problem } in results {
        if exclude.iter().any(|excluded| excluded == name) {
            text.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if problem.is_some() {
            failed = true;
            text.push_str(&format!("[-]{name} failed: reason withheld\n"));
        } else {
            text.push_str(&format!("[+]{name} ok\n"));
        }
    }
    let unknown: BTreeSet<&String> =
        exclude.iter().filter(|excluded| !results.iter().any(|result| result.name == **excluded)).collect();
    if !unknown.is_empty() {
        let unknown: Vec<String> = unknown.into_iter().map(|excluded| go::quote(excluded)).collect();
        text.push_str(&format!("warn: some health checks cannot be excluded: no matches for {}\n", unknown.join(",")));
    }
    if failed {
        return (500, format!("{text}{endpoint} check failed\n"));
    }
    if verbose {
        return (200, format!("{text}{endpoint} check passed\n"));
    }
    (200, "ok".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping_and_etcd(etcd: Option<&str>) -> Vec<CheckResult> {
        vec![
            CheckResult { name: "ping", problem: None },
            CheckResult { name: "etcd", problem: etcd.map(str::to_owned) },
        ]
    }

    #[test]
    fn health_report_has_the_text_of_kube_apiserver() {
        let healthy = ping_and_etcd(None);
        let unhealthy = ping_and_etcd(Some("connection refused"));
        let excluded = ["etcd", "y", "x", "y"].map(str::to_owned);
        for (report, expected) in [
            (report("readyz", &healthy, None, false, &[]), (200, "ok".to_owned())),
            (report("readyz", &healthy, None, true, &[]), (200, "[+]ping ok\n[+]etcd ok\nreadyz check passed\n".to_owned())),
            (
                report("livez", &unhealthy, None, false, &[]),
                (500, "[+]ping ok\n[-]etcd failed: reason withheld\nlivez check failed\n".to_owned()),
            ),
            (
                report("livez", &unhealthy, None, true, &excluded),
                (200, "[+]ping ok\n[+]etcd excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\",\"y\"\nlivez check passed\n".to_owned()),
            ),
            (report("livez", &unhealthy, Some("ping"), false, &[]), (200, "ok".to_owned())),
            (report("livez", &unhealthy, Some("etcd"), false, &[]), (500, "internal server error: connection refused\n".to_owned())),
            (report("livez", &unhealthy, Some("x"), false, &[]), (404, "404 page not found\n".to_owned())),
        ] {
            assert_eq!(report, expected);
        }
    }

    #[test]
    fn loading_cache_fails_readiness_before_the_first_success_and_after_ten_seconds() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let pods = || vec!["pods/".to_owned()];
        let failure = Some("the cache of pods/ is not filled".to_owned());
        let mut caches = UnfilledCaches::default();
        assert_eq!(
            caches.problem(at(0), pods()),
            failure,
            "a server that starts is not ready before its caches are filled"
        );
        assert_eq!(caches.problem(at(1), Vec::new()), None);
        caches.set_ready();
        assert_eq!(caches.problem(at(20), pods()), None, "a first reader starts a cache");
        assert_eq!(caches.problem(at(25), Vec::new()), None, "the cache is filled");
        assert_eq!(caches.problem(at(29), pods()), None, "the cache loads again");
        assert_eq!(caches.problem(at(38), pods()), None, "since 9 s");
        assert_eq!(caches.problem(at(39), pods()), failure, "since 10 s");
    }

    fn no_problem(_: &str) -> Option<String> {
        None
    }

    /// The state of a server without problems.
    fn healthy<'a>() -> ServerState<'a> {
        ServerState {
            features: Features { rbac: true, priority_and_fairness: true, identity_lease: true },
            store: None,
            caches: None,
            definitions: None,
            loops: None,
            controllers: None,
            objects: &no_problem,
            stopping: false,
        }
    }

    /// The checks of an endpoint that fail.
    fn failed(endpoint: &str, state: &ServerState<'_>) -> Vec<&'static str> {
        let found = run_checks(endpoint, state).into_iter();
        found.filter(|result| result.problem.is_some()).map(|result| result.name).collect()
    }

    #[test]
    fn problem_fails_only_the_health_checks_of_the_affected_part() {
        let why = || Some("why".to_owned());
        assert_eq!(failed("readyz", &healthy()), [""; 0]);
        assert_eq!(
            failed("livez", &ServerState { store: why(), ..healthy() }),
            ["etcd", "poststarthook/storage-readiness"]
        );
        assert_eq!(failed("livez", &ServerState { caches: why(), stopping: true, ..healthy() }), [""; 0]);
        assert_eq!(
            failed("readyz", &ServerState { caches: why(), stopping: true, ..healthy() }),
            ["informer-sync", "shutdown"]
        );
        let definitions = failed("livez", &ServerState { definitions: why(), ..healthy() });
        assert!(definitions.contains(&"poststarthook/crd-informer-synced"), "{definitions:?}");
        let loops = failed("livez", &ServerState { loops: why(), ..healthy() });
        assert!(loops.contains(&"poststarthook/generic-apiserver-start-informers"), "{loops:?}");
        let stopped = ServerState { controllers: why(), ..healthy() };
        assert_eq!((failed("readyz", &stopped), failed("livez", &stopped)), (vec!["controllers-sync"], vec![]));
    }

    #[test]
    fn loopback_certificate_is_checked_for_liveness_only() {
        let has_check = |endpoint: &str| {
            let results = run_checks(endpoint, &healthy());
            results.iter().any(|result| result.name == "loopback-serving-certificate")
        };
        assert_eq!(["healthz", "livez", "readyz"].map(has_check), [true, true, false]);
    }

    #[test]
    fn missing_bootstrap_object_fails_readiness_and_not_liveness() {
        for check in [
            "poststarthook/bootstrap-controller",
            "poststarthook/rbac/bootstrap-roles",
            "poststarthook/priority-and-fairness-config-producer",
        ] {
            let objects = |name: &str| (name == check).then(|| "why".to_owned());
            let state = ServerState { objects: &objects, ..healthy() };
            assert_eq!(failed("readyz", &state), [check]);
            assert_eq!(failed("livez", &state), [""; 0], "a restart does not create a missing object");
        }
    }

    #[test]
    fn failed_repair_of_addresses_or_node_ports_fails_the_readiness_check_of_service_repairs() {
        for repair in [node_ports::CHECK, ip_addresses::PROBLEM] {
            let objects = |name: &str| (name == repair).then(|| "why".to_owned());
            let state = ServerState { objects: &objects, ..healthy() };
            assert_eq!(failed("readyz", &state), [node_ports::CHECK], "{repair}");
            assert_eq!(failed("livez", &state), [""; 0], "{repair}");
        }
    }

    #[test]
    fn features_have_checks_of_their_own() {
        const NAMES: [&str; 7] = [
            "poststarthook/priority-and-fairness-config-consumer",
            "poststarthook/priority-and-fairness-filter",
            "poststarthook/max-in-flight-filter",
            "poststarthook/start-kube-apiserver-identity-lease-controller",
            "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
            "poststarthook/rbac/bootstrap-roles",
            "poststarthook/priority-and-fairness-config-producer",
        ];
        let check = |features: Features, expected: &[usize]| {
            let results = run_checks("livez", &ServerState { features, ..healthy() });
            let names = results.iter().map(|result| result.name);
            let found: Vec<&str> = names.filter(|name| NAMES.contains(name)).collect();
            let expected: Vec<&str> = expected.iter().map(|at| NAMES[*at]).collect();
            assert_eq!(found, expected, "{features:?}");
        };
        check(Features::default(), &[2]);
        check(Features { rbac: true, ..Features::default() }, &[2, 5]);
        check(Features { priority_and_fairness: true, ..Features::default() }, &[0, 1, 6]);
        check(Features { identity_lease: true, ..Features::default() }, &[2, 3, 4]);
    }
}
