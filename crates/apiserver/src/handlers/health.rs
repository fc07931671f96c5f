//! Handles `/healthz`, `/livez` and `/readyz`: observes the server, runs the checks of
//! [`listwatch_controllers::health`], and serves the report.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::{Response, StatusCode};
use listwatch_controllers::health::{CheckResult, Features, ServerState, report, run_checks};
use listwatch_wire::query::Query;

use crate::response::body::Body;
use crate::response::respond;
use crate::shared::Shared;

/// Responds to a health request. `check` names a single check.
pub(crate) async fn answer(shared: &Shared, endpoint: &str, check: Option<&str>, query: &Query<'_>) -> Response<Body> {
    let results = check_server(shared, endpoint).await;
    let excluded = query.all("exclude").map(str::to_owned).collect::<Vec<_>>();
    if check.is_none() {
        let observed = results.iter().filter(|result| !excluded.iter().any(|name| name == result.name));
        shared.metrics.health.observe(endpoint, observed.map(|result| (result.name, result.problem.is_none())));
    }
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
    let state = ServerState {
        features: Features {
            rbac: shared.enforces_rbac,
            priority_and_fairness: shared.flow_control.fairness().is_some(),
            identity_lease: shared.presence.has_lease(),
        },
        store: shared.store_health.problem().await,
        caches: shared.unfilled_caches.lock().problem(Instant::now(), backend.unfilled_caches()),
        definitions: (is_running && shared.tasks.has_definitions_ended())
            .then(|| "the controller of definitions has stopped".to_owned()),
        loops: (is_running && shared.tasks.has_other_ended()).then(|| "a controller has ended".to_owned()),
        controllers: backend.problems().text(),
        objects: &|check| backend.bootstrap().get(check),
        stopping: shared.is_stopping() || shared.unready.load(Ordering::Relaxed),
    };
    let results = run_checks(endpoint, &state);
    if endpoint == "readyz" && results.iter().all(|result| result.problem.is_none()) {
        shared.unfilled_caches.lock().set_ready();
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AuthorizationMode;

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
            match endpoint {
                "readyz" => necessary.extend(["informer-sync", "etcd-readiness", "shutdown"]),
                _ => necessary.push("loopback-serving-certificate"),
            }
            for check in necessary {
                assert!(body.lines().any(|line| line == format!("[+]{check} ok")), "{endpoint} lacks {check}: {body}");
                assert_eq!(report(endpoint, &results, Some(check), false, &[]), (200, "ok".to_owned()), "{check}");
            }
        }
    }

    #[tokio::test]
    async fn roles_and_priority_and_fairness_and_the_lease_have_checks() {
        const CHECKS: [&str; 6] = [
            "poststarthook/rbac/bootstrap-roles",
            "poststarthook/priority-and-fairness-config-consumer",
            "poststarthook/priority-and-fairness-config-producer",
            "poststarthook/priority-and-fairness-filter",
            "poststarthook/start-kube-apiserver-identity-lease-controller",
            "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
        ];
        let plain = crate::ApiServer::builder().priority_and_fairness(false);
        let full = crate::ApiServer::builder().authorization([AuthorizationMode::Rbac]);
        let full = full.priority_and_fairness(true).host_name("node-1");
        for (builder, is_full) in [(plain, false), (full, true)] {
            let server = builder.build().await.unwrap();
            for endpoint in ["healthz", "livez", "readyz"] {
                let results = check_server(&server.shared, endpoint).await;
                for check in CHECKS {
                    let found = results.iter().find(|result| result.name == check);
                    assert_eq!(found.is_some(), is_full, "{endpoint} {check}");
                    assert_eq!(found.and_then(|result| result.problem.clone()), None, "{endpoint} {check}");
                }
            }
        }
    }
}
