//! Serves `/metrics`: the counters of the server as text.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use crate::metrics::{self, Snapshot};
use crate::response::body::Body;
use crate::response::respond;
use crate::shared::Shared;

/// Responds to a scrape.
pub(crate) async fn answer(shared: &Shared) -> Response<Body> {
    let mut response = respond::text(StatusCode::OK, text(shared).await);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

async fn text(shared: &Shared) -> String {
    let backend = &shared.backend;
    let caches: Vec<_> = backend.running_cachers().into_iter().map(|(_, cacher)| cacher.stats()).collect();
    let store = backend.storage().stats().await.ok();
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
}
