//! Serves `/metrics` and `/metrics/slis`: the counters of the server as text.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use crate::metrics::{self, Snapshot};
use crate::request::routing::MetricsPage;
use crate::response::body::Body;
use crate::response::respond;
use crate::shared::Shared;

/// Responds to a scrape.
pub(crate) async fn answer(shared: &Shared, page: MetricsPage) -> Response<Body> {
    let text = match page {
        MetricsPage::Server => text(shared).await,
        MetricsPage::HealthChecks => shared.metrics.health.text(shared.started.unix_timestamp()),
    };
    let mut response = respond::text(StatusCode::OK, text);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

/// Responds to the DELETE of a page. Of [`MetricsPage::Server`], only the counts of requests begin at zero again.
pub(crate) fn reset(shared: &Shared, page: MetricsPage) -> Response<Body> {
    match page {
        MetricsPage::Server => shared.metrics.reset_requests(),
        MetricsPage::HealthChecks => shared.metrics.health.reset(),
    }
    respond::text(StatusCode::OK, "metrics reset\n".to_owned())
}

async fn text(shared: &Shared) -> String {
    let backend = &shared.backend;
    let caches: Vec<_> = backend.running_cachers().into_iter().map(|(_, cacher)| cacher.stats()).collect();
    let store = backend.storage().stats().await.ok();
    let (stored_form, registry) = (Arc::clone(&shared.stored_form), backend.registry());
    // Both texts can take milliseconds.
    let slow_texts = move || stored_form.metrics_text(&registry) + &metrics::process_text();
    let slow_texts = tokio::task::spawn_blocking(slow_texts).await.unwrap_or_default();
    let (reads_in_flight, writes_in_flight) = shared.flow_control.in_flight();
    let snapshot = Snapshot {
        registry: &backend.registry(),
        reads_in_flight,
        writes_in_flight,
        fairness: shared.flow_control.fairness().map(|fairness| &**fairness),
        audit: shared.audit.as_ref().map(|audit| audit.counters()),
        caches: &caches,
        cache_budget: backend.cache_budget(),
        encoding_bytes: [shared.caches.encodings.bytes(), shared.caches.blocks.bytes()],
        store: store.as_ref(),
    };
    metrics::text(&shared.metrics, &snapshot)
        + &shared.webhook_metrics.to_text()
        + &shared.policy_metrics.to_text()
        + &backend.conversion().metrics_text()
        + &slow_texts
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt as _, Empty};

    use crate::ApiServer;

    /// Sends a request such as `GET /metrics`, and returns the body of its response.
    async fn send(server: &ApiServer, line: &str) -> String {
        let (method, path) = line.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(path).body(Empty::<Bytes>::new()).unwrap();
        let response = server.service().handle(request).await;
        assert_eq!(response.status(), 200, "{line}");
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn results_of_health_checks_are_counted_and_metrics_can_be_reset() {
        let server = ApiServer::builder().build().await.unwrap();
        let send = async |line: &str| send(&server, line).await;
        // An excluded check and a single check are not counted.
        for path in ["/livez", "/livez?exclude=ping", "/livez/ping"] {
            send(&format!("GET {path}")).await;
        }
        let slis = send("GET /metrics/slis").await;
        for line in [
            "kubernetes_healthcheck{name=\"ping\",type=\"livez\"} 1",
            "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"livez\"} 1",
            "kubernetes_healthchecks_total{name=\"log\",status=\"success\",type=\"livez\"} 2",
        ] {
            assert!(slis.lines().any(|found| found == line), "{line} is missing in\n{slis}");
        }
        assert_eq!(send("DELETE /metrics/slis").await, "metrics reset\n");
        assert!(!send("GET /metrics/slis").await.contains("kubernetes_healthcheck{"));
        send("GET /api/v1/nodes").await;
        assert!(send("GET /metrics").await.contains("apiserver_request_total{"));
        assert_eq!(send("DELETE /metrics").await, "metrics reset\n");
        assert!(!send("GET /metrics").await.contains("apiserver_request_total{"));
    }

    #[tokio::test]
    async fn delete_returns_the_metrics_if_the_reset_is_disabled() {
        let server = ApiServer::builder().metrics_reset(false).build().await.unwrap();
        let send = async |line: &str| send(&server, line).await;
        send("GET /livez").await;
        send("GET /api/v1/nodes").await;
        for (page, sample) in [("/metrics", "apiserver_request_total{"), ("/metrics/slis", "kubernetes_healthcheck{")] {
            assert!(send(&format!("DELETE {page}")).await.contains(sample), "{page}");
            assert!(send(&format!("GET {page}")).await.contains(sample), "{page} was reset");
        }
    }

    #[tokio::test]
    async fn scrape_has_the_metrics_of_the_store_and_of_the_process() {
        let server = ApiServer::builder().build().await.unwrap();
        let text = send(&server, "GET /metrics").await;
        let created = "group=\"\",operation=\"create\",resource=\"namespaces\"";
        assert!(text.contains(&format!("etcd_request_duration_seconds_sum{{{created}}}")), "{text}");
        assert_eq!(text.contains("\nprocess_open_fds "), cfg!(target_os = "linux"), "{text}");
        let mut families: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        let written = families.len();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), written, "a family is written twice");
    }
}
