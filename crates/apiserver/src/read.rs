//! Reads: get, list and watch of one resource, from the options of a request to a read of the cache and
//! a response.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use listwatch_cacher::{ReadError, Scope};
use listwatch_meta::{ListOptions, ResourceVersion, Status, WatchFrom};
use listwatch_wire::media_type::is_late_refusal;
use listwatch_wire::query::{Query, list_options};
use rand::Rng as _;
use tokio::time::Instant;

use crate::Shared;
use crate::body::Body;
use crate::preferences::ResponsePreferences;
use crate::registry::Subresource;
use crate::respond;
use crate::routing::{ResourceRoute, Verb};
use crate::view::{ListView, ObjectView, WatchView};
use crate::watch::WatchStream;
use crate::write;

/// The longest time of a watch, far beyond any use; it bounds the arithmetic.
const WATCH_TIMEOUT_SECONDS_MAX: u64 = 365 * 24 * 3600;

/// GET of one object or subresource.
pub(crate) async fn get(
    shared: &Shared,
    route: &ResourceRoute<'_>,
    query: &Query<'_>,
    preferences: &ResponsePreferences,
) -> Result<Response<Body>, Status> {
    let resource = &route.resource;
    let name = route.name.unwrap_or_default();
    let subresource = route.subresource.and_then(|name| resource.subresource(name));
    let view = match subresource {
        // A Scale has no columns: it is another kind.
        Some(Subresource::Scale { .. }) => ObjectView::plain(preferences)?,
        _ => ObjectView::negotiate(preferences, resource)?,
    };
    let version = ResourceVersion::new(query.get("resourceVersion").unwrap_or_default());
    let at = ListOptions { resource_version: version, ..ListOptions::default() }.get()?;
    let key = resource.key(route.namespace, name)?;
    let found = shared.backend.cacher(resource).get(&key, at).await.map_err(|error| error.status(resource.gr()))?;
    let object = found.ok_or_else(|| Status::not_found(resource.gr(), name))?;
    if let Some(Subresource::Scale { .. }) = subresource {
        return view.json(200, write::scale::scale_of(resource, &object)?);
    }
    view.object(200, resource, &object)
}

/// GET of a collection.
pub(crate) async fn list(
    shared: &Shared,
    route: &ResourceRoute<'_>,
    query: &Query<'_>,
    preferences: &ResponsePreferences,
) -> Result<Response<Body>, Status> {
    let resource = &route.resource;
    let view = early_error(ListView::negotiate(preferences, resource))?;
    let request = list_options(query)?.0.list(&resource.shape)?;
    let cacher = shared.backend.cacher(resource);
    let list = cacher.list(&scope(route)?, &request).await.map_err(|error| error.status(resource.gr()))?;
    if !list.undecodable.is_empty() {
        // Controllers would delete the dependents of an object that a list leaves out.
        return Err(ReadError::Undecodable { keys: list.undecodable }.status(resource.gr()));
    }
    view?.list(resource, list, request.shard.as_ref()).await
}

/// A watch, as a response.
pub(crate) async fn watch(
    shared: &Shared,
    route: &ResourceRoute<'_>,
    query: &Query<'_>,
    preferences: &ResponsePreferences,
) -> Result<Response<Body>, Status> {
    let stream = watch_stream(shared, route, query, preferences).await?;
    let content_type = stream.content_type();
    Ok(respond::ok(content_type, Body::watch(stream)))
}

/// A watch, as a stream for any transport.
pub(crate) async fn watch_stream(
    shared: &Shared,
    route: &ResourceRoute<'_>,
    query: &Query<'_>,
    preferences: &ResponsePreferences,
) -> Result<WatchStream, Status> {
    let resource = &route.resource;
    let view = early_error(WatchView::negotiate(preferences, resource))?;
    let (options, _) = list_options(query)?;
    let request = match route.name {
        Some(name) => options.watch_object(name, &resource.shape, route.info.has_watch_prefix)?,
        None => options.watch(&resource.shape, route.info.has_watch_prefix)?,
    };
    let scope = scope(route)?;
    let deadline = Instant::now() + timeout(request.timeout_seconds, shared.min_request_timeout);
    let cacher = shared.backend.cacher(resource);
    let watcher = cacher.watch(&scope, &request, deadline).await.map_err(|error| error.status(resource.gr()))?;
    let farewell = Arc::clone(&shared.farewell);
    // Only a WatchList with an end mark is compressed.
    let gzip = preferences.gzip() && matches!(request.from, WatchFrom::InitialEvents { mark_end: true, .. });
    Ok(WatchStream::new(watcher, Arc::clone(resource), view?, farewell, gzip))
}

/// Returns the error of a view at once, or inside, where kube-apiserver reports it only after options and
/// read succeeded.
fn early_error<V>(view: Result<V, Status>) -> Result<Result<V, Status>, Status> {
    match view {
        Err(status) if !is_late_refusal(&status) => Err(status),
        view => Ok(view),
    }
}

/// The time of a watch: the client's, or a random time between the server's minimum and twice that, so
/// that watches that begin together do not end together.
fn timeout(asked: Option<i64>, minimum: Duration) -> Duration {
    match asked {
        // Zero means "not given" and is filtered out before; a negative time ends the watch at once.
        Some(seconds) => Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(WATCH_TIMEOUT_SECONDS_MAX)),
        None => minimum.mul_f64(1.0 + rand::rng().random::<f64>()),
    }
}

/// Rejects the namespaces `.` and `..` for a collection, as upstream's `storage.PrepareKey` does. The error
/// is not an API error there, and so a 500 without a reason.
pub(crate) fn check_namespace(route: &ResourceRoute<'_>) -> Result<(), Status> {
    let of_collection = matches!(route.verb, Verb::Collection | Verb::Write(write::WriteVerb::DeleteCollection));
    match route.namespace {
        Some(namespace @ ("." | "..")) if of_collection && route.name.is_none() => {
            let key = format!("/{}/{namespace}", route.resource.storage_prefix);
            Err(Status::failure(500, "", format!("invalid key: {key:?}")))
        }
        _ => Ok(()),
    }
}

fn scope(route: &ResourceRoute<'_>) -> Result<Scope, Status> {
    Ok(match (route.name, route.namespace) {
        (Some(name), namespace) => {
            // A name that cannot be in a key is an error.
            route.resource.key(namespace, name)?;
            Scope::Object { namespace: namespace.map(str::to_owned), name: name.to_owned() }
        }
        (None, Some(namespace)) => Scope::Namespace(namespace.to_owned()),
        (None, None) => Scope::All,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_without_timeout_ends_between_the_minimum_and_twice_that() {
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
