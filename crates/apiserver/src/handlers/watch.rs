//! Handles watches: parses the options, starts a watcher of the cache, and streams over HTTP or WebSocket.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use hyper::upgrade::OnUpgrade;
use listwatch_meta::Status;
use listwatch_wire::query::{Query, list_options};
use rand::Rng as _;
use tokio::time::Instant;

use super::context::RequestContext;
use super::read::{check_namespace, early_error, scope};
use super::websocket;
use crate::filters::rejection::Rejection;
use crate::flow_control::{Admission, TooManyRequests, WatchAdmission};
use crate::request::routing::ResourceRoute;
use crate::request::websocket::is_upgrade_request;
use crate::response::body::Body;
use crate::response::preferences::ResponsePreferences;
use crate::response::respond;
use crate::response::watch_stream::WatchStream;
use crate::response::watch_view::WatchView;
use crate::shared::Shared;

/// The maximum duration of a watch: one year, in seconds. The limit prevents an overflow of the deadline.
const WATCH_TIMEOUT_SECONDS_MAX: u64 = 365 * 24 * 3600;

/// Responds to a watch request.
///
/// # Errors
/// The errors of the options and of the cache; 429 if no WebSocket slot is free; 503 while the server shuts down.
pub(crate) async fn answer(
    request: &RequestContext<'_>,
    route: &ResourceRoute<'_>,
    admission: &mut Admission<'_>,
) -> Result<Response<Body>, Rejection> {
    if is_upgrade_request(request.parts) {
        return Box::pin(watch_over_websocket(request, route, admission)).await;
    }
    check_namespace(route)?;
    check_not_stopping(request.shared)?;
    // A watch has its own deadline, which is later than that of other requests.
    Ok(watch(request.shared, route, request.query, request.preferences, admission.begin_watch(request.flow())).await?)
}

fn check_not_stopping(shared: &Shared) -> Result<(), Status> {
    match shared.is_stopping() {
        true => Err(Status::unavailable("apiserver is shutting down").retry_after(1)),
        false => Ok(()),
    }
}

/// Serves a watch whose connection becomes a WebSocket.
async fn watch_over_websocket(
    request: &RequestContext<'_>,
    route: &ResourceRoute<'_>,
    admission: &mut Admission<'_>,
) -> Result<Response<Body>, Rejection> {
    let shared = request.shared;
    check_not_stopping(shared)?;
    let slot = Arc::clone(&shared.websockets).try_acquire_owned().map_err(|_| TooManyRequests::default())?;
    let stream = watch_stream(shared, route, request.query, request.preferences).await?;
    let stream = stream.with_admission(admission.begin_watch(request.flow()));
    let response = match websocket::accept(&request.parts.headers) {
        Ok(response) => response,
        Err(refusal) => return Ok(refusal),
    };
    let Some(upgrade) = request.parts.extensions.get::<OnUpgrade>().cloned() else {
        return Err(Status::bad_request("this connection cannot become a WebSocket").into());
    };
    let encoding = stream.encoding();
    let audited = request.preferences.audited().cloned();
    tokio::spawn(async move {
        websocket::run(upgrade, stream, encoding, slot).await;
        drop(audited);
    });
    Ok(response)
}

/// Serves a watch whose events are the response body.
async fn watch(
    shared: &Shared,
    route: &ResourceRoute<'_>,
    query: &Query<'_>,
    preferences: &ResponsePreferences,
    admission: WatchAdmission,
) -> Result<Response<Body>, Status> {
    let stream = watch_stream(shared, route, query, preferences).await?.with_admission(admission);
    let content_type = stream.content_type();
    Ok(respond::ok(content_type, Body::watch(stream)))
}

/// Starts the watch that a request describes.
async fn watch_stream(
    shared: &Shared,
    route: &ResourceRoute<'_>,
    query: &Query<'_>,
    preferences: &ResponsePreferences,
) -> Result<WatchStream, Status> {
    let resource = &route.resource;
    let view = early_error(WatchView::negotiate(preferences, resource, &shared.caches.encodings))?;
    let (options, _) = list_options(query)?;
    let request = match route.name {
        Some(name) => options.watch_object(name, &resource.shape, route.info.has_watch_prefix)?,
        None => options.watch(&resource.shape, route.info.has_watch_prefix)?,
    };
    let scope = scope(route)?;
    let deadline = Instant::now() + timeout(request.timeout_seconds, shared.min_request_timeout);
    let cacher = shared.backend.cacher(resource);
    let watcher = cacher.watch(&scope, &request, deadline).await.map_err(|error| error.status(resource.gr()))?;
    Ok(WatchStream::new(watcher, Arc::clone(resource), view?, Arc::clone(&shared.watch_drain)))
}

/// Returns the duration of a watch: the client's value, or a random time between `minimum` and twice that value. With
/// random times, watches that start together do not end together.
fn timeout(asked: Option<i64>, minimum: Duration) -> Duration {
    match asked {
        // Zero means that no timeout is set, and was filtered out before. A negative timeout ends the watch at once.
        Some(seconds) => Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(WATCH_TIMEOUT_SECONDS_MAX)),
        None => minimum.mul_f64(1.0 + rand::rng().random::<f64>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_without_timeout_lasts_between_the_minimum_and_twice_the_minimum() {
        let minimum = Duration::from_secs(1800);
        assert_eq!(timeout(Some(7), minimum), Duration::from_secs(7));
        assert_eq!(timeout(Some(-7), minimum), Duration::ZERO);
        assert_eq!(timeout(Some(i64::MAX), minimum), Duration::from_secs(WATCH_TIMEOUT_SECONDS_MAX));
        for _ in 0..100 {
            let chosen = timeout(None, minimum);
            assert!(minimum <= chosen && chosen < 2 * minimum, "{chosen:?}");
        }
    }
}
