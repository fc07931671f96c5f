//! Handles `/healthz`, `/livez` and `/readyz`: runs the health checks of the server and reports the results.
//!
//! [`run_checks`] and [`report`] perform no I/O. The rules are those of `apiserver/pkg/server/healthz/healthz.go`. If
//! all checks pass, the response is `ok`. The verbose form is returned on request and on a failure. Reasons appear only
//! in the report of a single check. The checks have kube-apiserver's names, which clients and probes use in `?exclude=`
//! and `/livez/<check>`. [`CHECKS`] lists all checks with their subjects.

use std::collections::BTreeSet;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Response, StatusCode};
use listwatch_controllers::node_ports;
use listwatch_meta::go;
use listwatch_wire::query::Query;

use crate::response::body::Body;
use crate::response::respond;
use crate::shared::Shared;

/// Responds to a health request. `check` names a single check.
pub(crate) async fn answer(shared: &Shared, endpoint: &str, check: Option<&str>, query: &Query<'_>) -> Response<Body> {
    let results = check_server(shared, endpoint).await;
    let excluded = query.all("exclude").map(str::to_owned).collect::<Vec<_>>();
    let verbose = query.get("verbose").is_some();
    let (code, body) = report(endpoint, &results, check, verbose, &excluded);
    respond::text(StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
}

/// The interval between two checks of [`wait_until_ready`].
const READY_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until `/readyz` passes. Never returns if the server is dropped first.
pub(crate) async fn wait_until_ready(server: Weak<Shared>) {
    loop {
        if let Some(shared) = server.upgrade() {
            let results = check_server(&shared, "readyz").await;
            if results.iter().all(|result| result.problem.is_none()) {
                return;
            }
        }
        tokio::time::sleep(READY_INTERVAL).await;
    }
}

/// Runs the checks of an endpoint on the current state of the server.
async fn check_server(shared: &Shared, endpoint: &str) -> Vec<CheckResult> {
    let backend = &shared.backend;
    // The shutdown ends the background tasks, so their end is not reported.
    let is_running = !shared.is_stopping();
    let problems = Problems {
        store: shared.store_health.problem().await,
        caches: backend.unfilled_cache().map(|prefix| format!("the cache of {prefix} is not filled")),
        definitions: (is_running && shared.tasks.has_definitions_ended())
            .then(|| "the controller of definitions has stopped".to_owned()),
        loops: (is_running && shared.tasks.has_other_ended()).then(|| "a controller has ended".to_owned()),
        controllers: backend.problems().text(),
        objects: &|check| backend.bootstrap().get(check),
        stopping: shared.is_stopping() || shared.unready.load(Ordering::Relaxed),
    };
    run_checks(endpoint, &problems)
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CheckResult {
    /// The name of the check, e.g. `etcd`.
    name: &'static str,
    /// The reason for the failure. Only the report of a single check contains the reason.
    problem: Option<String>,
}

/// The current problems of a server, on which the checks depend.
struct Problems<'a> {
    /// The store does not respond.
    store: Option<String>,
    /// A running cache has not loaded its objects.
    caches: Option<String>,
    /// The controller of custom resource definitions has ended.
    definitions: Option<String>,
    /// Another built-in controller has ended.
    loops: Option<String>,
    /// A built-in controller has stopped its work, because it cannot read all objects that its decisions need.
    controllers: Option<String>,
    /// Returns the error of creating a bootstrap object, by the name of the health check.
    objects: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// The server is shutting down.
    stopping: bool,
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
    /// The shutdown. The check fails after the shutdown has started.
    Shutdown,
}

/// The endpoints of a check.
#[derive(Clone, Copy, PartialEq)]
enum Endpoints {
    All,
    Readyz,
}

const SYSTEM_NAMESPACES: Subject = Subject::Objects("poststarthook/start-system-namespaces-controller");
const SERVICE_RANGE: Subject = Subject::Objects("poststarthook/start-kubernetes-service-cidr-controller");
const API_SERVICES: Subject = Subject::Objects("autoregister-completion");

/// All checks in kube-apiserver's order. If kube-apiserver checks a controller, this server checks the component with
/// the same purpose.
const CHECKS: &[(&str, Endpoints, Subject)] = &[
    ("ping", Endpoints::All, Subject::Process),
    ("log", Endpoints::All, Subject::Process),
    ("etcd", Endpoints::All, Subject::Store),
    ("etcd-readiness", Endpoints::Readyz, Subject::Store),
    ("informer-sync", Endpoints::Readyz, Subject::Caches),
    ("controllers-sync", Endpoints::Readyz, Subject::Controllers),
    // Admission reads the namespace of each new object.
    ("poststarthook/start-apiserver-admission-initializer", Endpoints::All, SYSTEM_NAMESPACES),
    ("poststarthook/generic-apiserver-start-informers", Endpoints::All, Subject::Loops),
    ("poststarthook/start-apiextensions-informers", Endpoints::All, Subject::Definitions),
    ("poststarthook/start-apiextensions-controllers", Endpoints::All, Subject::Definitions),
    ("poststarthook/crd-informer-synced", Endpoints::All, Subject::Definitions),
    ("poststarthook/start-system-namespaces-controller", Endpoints::All, SYSTEM_NAMESPACES),
    (
        "poststarthook/start-cluster-authentication-info-controller",
        Endpoints::All,
        Subject::Objects("poststarthook/start-cluster-authentication-info-controller"),
    ),
    // A read waits for its cache, so a cache that is still loading fails readiness and not liveness.
    ("poststarthook/storage-readiness", Endpoints::All, Subject::Store),
    (
        "poststarthook/start-legacy-token-tracking-controller",
        Endpoints::All,
        Subject::Objects("poststarthook/start-legacy-token-tracking-controller"),
    ),
    // Each address is claimed by its own key. Only the node ports need repair.
    (node_ports::CHECK, Endpoints::All, Subject::Objects(node_ports::CHECK)),
    (
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        Endpoints::All,
        Subject::Objects("poststarthook/scheduling/bootstrap-system-priority-classes"),
    ),
    ("poststarthook/bootstrap-controller", Endpoints::All, Subject::Objects("poststarthook/bootstrap-controller")),
    ("poststarthook/start-kubernetes-service-cidr-controller", Endpoints::All, SERVICE_RANGE),
    ("poststarthook/start-kube-aggregator-informers", Endpoints::All, Subject::Loops),
    ("poststarthook/apiservice-status-local-available-controller", Endpoints::All, API_SERVICES),
    ("poststarthook/apiservice-status-remote-available-controller", Endpoints::All, API_SERVICES),
    ("poststarthook/apiservice-registration-controller", Endpoints::All, API_SERVICES),
    ("poststarthook/kube-apiserver-autoregistration", Endpoints::All, API_SERVICES),
    ("autoregister-completion", Endpoints::All, API_SERVICES),
    // OpenAPI documents are built from the registry, which follows the definitions.
    ("poststarthook/apiservice-openapi-controller", Endpoints::All, Subject::Definitions),
    ("shutdown", Endpoints::Readyz, Subject::Shutdown),
];

/// Runs the checks of an endpoint.
fn run_checks(endpoint: &str, problems: &Problems<'_>) -> Vec<CheckResult> {
    let readyz = endpoint == "readyz";
    let checks = CHECKS.iter().filter(|(_, endpoints, _)| *endpoints == Endpoints::All || readyz);
    checks
        .map(|(name, _, subject)| {
            // A restart does not help to create a missing object, so liveness does not fail.
            let problem = if readyz || !matches!(subject, Subject::Objects(_)) { problems.of(*subject) } else { None };
            CheckResult { name, problem }
        })
        .collect()
}

impl Problems<'_> {
    fn of(&self, subject: Subject) -> Option<String> {
        match subject {
            Subject::Process => None,
            Subject::Store => self.store.clone(),
            Subject::Caches => self.caches.clone(),
            Subject::Definitions => self.definitions.clone(),
            Subject::Loops => self.loops.clone(),
            Subject::Controllers => self.controllers.clone(),
            Subject::Objects(check) => (self.objects)(check),
            Subject::Shutdown => self.stopping.then(|| "process is shutting down".to_owned()),
        }
    }
}

/// Returns the code and the plain-text body of an endpoint's response.
fn report(
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
            (report("livez", &unhealthy, Some("x"), false, &[]).to_owned(), (404, "404 page not found\n".to_owned())),
        ] {
            assert_eq!(report, expected);
        }
    }

    /// The checks that the e2e test "health handlers should contain necessary checks" requires.
    const NECESSARY: [&str; 21] = [
        "ping",
        "log",
        "poststarthook/start-apiserver-admission-initializer",
        "poststarthook/generic-apiserver-start-informers",
        "poststarthook/start-apiextensions-informers",
        "poststarthook/start-apiextensions-controllers",
        "poststarthook/crd-informer-synced",
        "poststarthook/bootstrap-controller",
        "poststarthook/start-system-namespaces-controller",
        "poststarthook/start-service-ip-repair-controllers",
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        "poststarthook/start-cluster-authentication-info-controller",
        "poststarthook/start-kube-aggregator-informers",
        "poststarthook/apiservice-registration-controller",
        "poststarthook/apiservice-status-local-available-controller",
        "poststarthook/apiservice-status-remote-available-controller",
        "poststarthook/kube-apiserver-autoregistration",
        "autoregister-completion",
        "poststarthook/apiservice-openapi-controller",
        "poststarthook/storage-readiness",
        "etcd",
    ];

    #[tokio::test]
    async fn every_endpoint_reports_the_checks_that_conformance_requires() {
        let server = crate::ApiServer::builder().build().await.unwrap();
        for endpoint in ["healthz", "livez", "readyz"] {
            let results = check_server(&server.shared, endpoint).await;
            let (code, body) = report(endpoint, &results, None, true, &[]);
            assert_eq!(code, 200, "{body}");
            let mut necessary = NECESSARY.to_vec();
            if endpoint == "readyz" {
                necessary.extend(["informer-sync", "etcd-readiness", "shutdown"]);
            }
            for check in necessary {
                assert!(body.lines().any(|line| line == format!("[+]{check} ok")), "{endpoint} lacks {check}: {body}");
                assert_eq!(report(endpoint, &results, Some(check), false, &[]), (200, "ok".to_owned()), "{check}");
            }
        }
    }

    #[test]
    fn problem_fails_only_the_health_checks_of_the_affected_part() {
        fn problems(objects: &(dyn Fn(&str) -> Option<String> + Sync)) -> Problems<'_> {
            Problems {
                store: None,
                caches: None,
                definitions: None,
                loops: None,
                controllers: None,
                objects,
                stopping: false,
            }
        }
        let nothing = |_: &str| None::<String>;
        let failed = |endpoint: &str, problems: &Problems<'_>| -> Vec<&'static str> {
            let found = run_checks(endpoint, problems).into_iter();
            found.filter(|result| result.problem.is_some()).map(|result| result.name).collect()
        };
        let why = || Some("why".to_owned());
        assert_eq!(failed("readyz", &problems(&nothing)), [""; 0]);
        assert_eq!(
            failed("livez", &Problems { store: why(), ..problems(&nothing) }),
            ["etcd", "poststarthook/storage-readiness"]
        );
        assert_eq!(failed("livez", &Problems { caches: why(), stopping: true, ..problems(&nothing) }), [""; 0]);
        assert_eq!(
            failed("readyz", &Problems { caches: why(), stopping: true, ..problems(&nothing) }),
            ["informer-sync", "shutdown"]
        );
        let definitions = failed("livez", &Problems { definitions: why(), ..problems(&nothing) });
        assert!(definitions.contains(&"poststarthook/crd-informer-synced"), "{definitions:?}");
        let loops = failed("livez", &Problems { loops: why(), ..problems(&nothing) });
        assert!(loops.contains(&"poststarthook/generic-apiserver-start-informers"), "{loops:?}");
        let stopped = Problems { controllers: why(), ..problems(&nothing) };
        assert_eq!((failed("readyz", &stopped), failed("livez", &stopped)), (vec!["controllers-sync"], vec![]));
        let service = |check: &str| (check == "poststarthook/bootstrap-controller").then(|| "why".to_owned());
        assert_eq!(failed("readyz", &problems(&service)), ["poststarthook/bootstrap-controller"]);
        assert_eq!(
            failed("livez", &problems(&service)),
            [""; 0],
            "a missing object is no reason to restart the server"
        );
    }
}
