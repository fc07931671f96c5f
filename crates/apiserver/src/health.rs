//! `/healthz`, `/livez`, `/readyz`: the checks ([`findings`]) and their bodies ([`report`]), as pure functions.
//!
//! Rules: server-side `healthz.go` — `ok` when all pass, the verbose form when asked for or when something
//! fails, the reason withheld from strangers. The names of the checks are kube-apiserver's, which clients and
//! probes name in `?exclude=` and in `/livez/<check>`; [`CHECKS`] says what each one means here.

use std::collections::BTreeSet;

use listwatch_meta::go;

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The check's name, e.g. `etcd`.
    pub(crate) name: &'static str,
    /// What is wrong, if anything. Shown only where the single check is asked for.
    pub(crate) problem: Option<String>,
}

/// What the checks look at; each is what is wrong with it, if anything.
pub(crate) struct State<'a> {
    /// The store does not answer.
    pub(crate) store: Option<String>,
    /// A cache that was begun is not filled.
    pub(crate) caches: Option<String>,
    /// The definitions of custom resources are not followed.
    pub(crate) definitions: Option<String>,
    /// A built-in loop has ended.
    pub(crate) loops: Option<String>,
    /// A built-in controller refuses to work, because it cannot read all that it judges by.
    pub(crate) controllers: Option<String>,
    /// An object that every cluster has could not be made, by the name of the check that says so.
    pub(crate) objects: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// The server is shutting down.
    pub(crate) stopping: bool,
}

/// What a check looks at.
#[derive(Clone, Copy)]
enum Subject {
    /// The process, which answers if it is there.
    Process,
    Store,
    Caches,
    Definitions,
    Loops,
    Controllers,
    /// The objects that every cluster has, by the check under which their problems are kept. Fails `/readyz` alone.
    Objects(&'static str),
    /// The shutdown has not begun.
    Shutdown,
}

/// Which endpoints a check belongs to.
#[derive(Clone, Copy, PartialEq)]
enum On {
    Each,
    Readyz,
}

const SYSTEM_NAMESPACES: Subject = Subject::Objects("poststarthook/start-system-namespaces-controller");
const SERVICE_RANGE: Subject = Subject::Objects("poststarthook/start-kubernetes-service-cidr-controller");
const API_SERVICES: Subject = Subject::Objects("autoregister-completion");

/// All checks, in kube-apiserver's order. A check of a controller that kube-apiserver starts looks at what does
/// that controller's work here.
const CHECKS: &[(&str, On, Subject)] = &[
    ("ping", On::Each, Subject::Process),
    ("log", On::Each, Subject::Process),
    ("etcd", On::Each, Subject::Store),
    ("etcd-readiness", On::Readyz, Subject::Store),
    ("informer-sync", On::Readyz, Subject::Caches),
    ("controllers-sync", On::Readyz, Subject::Controllers),
    // Admission asks for the namespace of each new object.
    ("poststarthook/start-apiserver-admission-initializer", On::Each, SYSTEM_NAMESPACES),
    ("poststarthook/generic-apiserver-start-informers", On::Each, Subject::Loops),
    ("poststarthook/start-apiextensions-informers", On::Each, Subject::Definitions),
    ("poststarthook/start-apiextensions-controllers", On::Each, Subject::Definitions),
    ("poststarthook/crd-informer-synced", On::Each, Subject::Definitions),
    ("poststarthook/start-system-namespaces-controller", On::Each, SYSTEM_NAMESPACES),
    (
        "poststarthook/start-cluster-authentication-info-controller",
        On::Each,
        Subject::Objects("poststarthook/start-cluster-authentication-info-controller"),
    ),
    // A read waits for its cache, so that a cache that is not filled makes readiness wait, and not liveness.
    ("poststarthook/storage-readiness", On::Each, Subject::Store),
    (
        "poststarthook/start-legacy-token-tracking-controller",
        On::Each,
        Subject::Objects("poststarthook/start-legacy-token-tracking-controller"),
    ),
    // Addresses and ports are claimed one by one in the store, so that none is lost; the range must be there.
    ("poststarthook/start-service-ip-repair-controllers", On::Each, SERVICE_RANGE),
    (
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        On::Each,
        Subject::Objects("poststarthook/scheduling/bootstrap-system-priority-classes"),
    ),
    ("poststarthook/bootstrap-controller", On::Each, Subject::Objects("poststarthook/bootstrap-controller")),
    ("poststarthook/start-kubernetes-service-cidr-controller", On::Each, SERVICE_RANGE),
    ("poststarthook/start-kube-aggregator-informers", On::Each, Subject::Loops),
    ("poststarthook/apiservice-status-local-available-controller", On::Each, API_SERVICES),
    ("poststarthook/apiservice-status-remote-available-controller", On::Each, API_SERVICES),
    ("poststarthook/apiservice-registration-controller", On::Each, API_SERVICES),
    ("poststarthook/kube-apiserver-autoregistration", On::Each, API_SERVICES),
    ("autoregister-completion", On::Each, API_SERVICES),
    // The documents are made from the registry, which follows the definitions.
    ("poststarthook/apiservice-openapi-controller", On::Each, Subject::Definitions),
    ("shutdown", On::Readyz, Subject::Shutdown),
];

/// What the checks of an endpoint find.
pub(crate) fn findings(endpoint: &str, state: &State<'_>) -> Vec<Finding> {
    let readyz = endpoint == "readyz";
    let checks = CHECKS.iter().filter(|(_, on, _)| *on == On::Each || readyz);
    checks
        .map(|(name, _, subject)| {
            // A restart makes no object that could not be made before: liveness must not ask for one.
            let problem =
                if readyz || !matches!(subject, Subject::Objects(_)) { state.problem(*subject) } else { None };
            Finding { name, problem }
        })
        .collect()
}

impl State<'_> {
    fn problem(&self, subject: Subject) -> Option<String> {
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

/// The code and plain-text body for an endpoint.
pub(crate) fn report(
    endpoint: &str,
    findings: &[Finding],
    check: Option<&str>,
    verbose: bool,
    exclude: &[String],
) -> (u16, String) {
    if let Some(check) = check {
        return match findings.iter().find(|finding| finding.name == check) {
            None => (404, "404 page not found\n".to_owned()),
            Some(Finding { problem: None, .. }) => (200, "ok".to_owned()),
            Some(Finding { problem: Some(why), .. }) => (500, format!("internal server error: {why}\n")),
        };
    }
    let mut text = String::new();
    let mut failed = false;
    for Finding { name, problem } in findings {
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
        exclude.iter().filter(|excluded| !findings.iter().any(|finding| finding.name == **excluded)).collect();
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

    fn ping_and_etcd(etcd: Option<&str>) -> Vec<Finding> {
        vec![Finding { name: "ping", problem: None }, Finding { name: "etcd", problem: etcd.map(str::to_owned) }]
    }

    #[test]
    fn bodies_are_those_of_kubernetes() {
        let well = ping_and_etcd(None);
        let ill = ping_and_etcd(Some("connection refused"));
        let excluded = ["etcd", "y", "x", "y"].map(str::to_owned);
        for (report, expected) in [
            (report("readyz", &well, None, false, &[]), (200, "ok".to_owned())),
            (report("readyz", &well, None, true, &[]), (200, "[+]ping ok\n[+]etcd ok\nreadyz check passed\n".to_owned())),
            (
                report("livez", &ill, None, false, &[]),
                (500, "[+]ping ok\n[-]etcd failed: reason withheld\nlivez check failed\n".to_owned()),
            ),
            (
                report("livez", &ill, None, true, &excluded),
                (200, "[+]ping ok\n[+]etcd excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\",\"y\"\nlivez check passed\n".to_owned()),
            ),
            (report("livez", &ill, Some("ping"), false, &[]), (200, "ok".to_owned())),
            (report("livez", &ill, Some("etcd"), false, &[]), (500, "internal server error: connection refused\n".to_owned())),
            (report("livez", &ill, Some("x"), false, &[]).to_owned(), (404, "404 page not found\n".to_owned())),
        ] {
            assert_eq!(report, expected);
        }
    }

    /// The checks that the e2e test "health handlers should contain necessary checks" asks for.
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
    async fn endpoints_list_the_necessary_checks() {
        let server = crate::ApiServer::builder().build().await.unwrap();
        for endpoint in ["healthz", "livez", "readyz"] {
            let findings = server.shared.findings(endpoint).await;
            let (code, body) = report(endpoint, &findings, None, true, &[]);
            assert_eq!(code, 200, "{body}");
            let mut necessary = NECESSARY.to_vec();
            if endpoint == "readyz" {
                necessary.extend(["informer-sync", "etcd-readiness", "shutdown"]);
            }
            for check in necessary {
                assert!(body.lines().any(|line| line == format!("[+]{check} ok")), "{endpoint} lacks {check}: {body}");
                assert_eq!(report(endpoint, &findings, Some(check), false, &[]), (200, "ok".to_owned()), "{check}");
            }
        }
    }

    #[test]
    fn failed_checks_name_their_subject() {
        fn state(objects: &(dyn Fn(&str) -> Option<String> + Sync)) -> State<'_> {
            State {
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
        let failed = |endpoint: &str, state: &State<'_>| -> Vec<&'static str> {
            let found = findings(endpoint, state).into_iter();
            found.filter(|finding| finding.problem.is_some()).map(|finding| finding.name).collect()
        };
        let why = || Some("why".to_owned());
        assert_eq!(failed("readyz", &state(&nothing)), [""; 0]);
        assert_eq!(
            failed("livez", &State { store: why(), ..state(&nothing) }),
            ["etcd", "poststarthook/storage-readiness"]
        );
        assert_eq!(failed("livez", &State { caches: why(), stopping: true, ..state(&nothing) }), [""; 0]);
        assert_eq!(
            failed("readyz", &State { caches: why(), stopping: true, ..state(&nothing) }),
            ["informer-sync", "shutdown"]
        );
        let definitions = failed("livez", &State { definitions: why(), ..state(&nothing) });
        assert!(definitions.contains(&"poststarthook/crd-informer-synced"), "{definitions:?}");
        let loops = failed("livez", &State { loops: why(), ..state(&nothing) });
        assert!(loops.contains(&"poststarthook/generic-apiserver-start-informers"), "{loops:?}");
        let refused = State { controllers: why(), ..state(&nothing) };
        assert_eq!((failed("readyz", &refused), failed("livez", &refused)), (vec!["controllers-sync"], vec![]));
        let service = |check: &str| (check == "poststarthook/bootstrap-controller").then(|| "why".to_owned());
        assert_eq!(failed("readyz", &state(&service)), ["poststarthook/bootstrap-controller"]);
        assert_eq!(failed("livez", &state(&service)), [""; 0], "a missing object is no reason to restart the server");
    }
}
