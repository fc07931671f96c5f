//! [`handle`]: finds the route of a request and calls its handler, as the last step of the request chain.
//!
//! | route | handler |
//! |---|---|
//! | a stored kind | [`read`], [`watch`] (with [`websocket`]), [`mod@write`], [`connect`] |
//! | a kind that is not stored | reviews in [`mod@write`], [`components`] |
//! | discovery, OpenAPI, version, index | [`documents`] |
//! | documents of the token issuer | [`issuer`] |
//! | health | [`health`] |
//! | metrics | [`metrics`] |
//! | `/statusz`, `/flagz` | [`zpages`] |
//! | a group version of an extension server, and merged documents | [`aggregation`] |

mod aggregation;
mod components;
pub(crate) mod connect;
pub(crate) mod context;
pub(crate) mod documents;
pub(crate) mod health;
pub(crate) mod issuer;
mod metrics;
mod read;
mod watch;
pub(crate) mod websocket;
mod write;
mod zpages;

use std::pin::pin;

use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use tokio::time::Instant;

use self::context::RequestContext;
use crate::filters::rejection::Rejection;
use crate::filters::warnings::WarningRecorder;
use crate::flow_control::Admission;
use crate::metrics::Labels;
use crate::request::info::RequestInfo;
use crate::request::routing::{NoRoute, ResourceRoute, Route, Verb, route};
use crate::request::upload::{RequestBody, Upload};
use crate::response::body::Body;
use crate::response::preferences::header;
use crate::response::respond;
use crate::response::view::status_response;
use listwatch_registry::Registry;

/// Calls the handler of a request.
pub(crate) async fn handle<B: RequestBody>(
    request: &RequestContext<'_>,
    warnings: &WarningRecorder,
    admission: &mut Admission<'_>,
    upload: &mut Upload<B>,
) -> Response<Body> {
    if request.shared.aggregation.has_remote()
        && let Some(passed) = Box::pin(aggregation::answer(request, admission, upload)).await
    {
        return passed.unwrap_or_else(|rejection| rejection.response(request.preferences));
    }
    match find_route(request).await {
        Ok(Route::Resource(route) | Route::Unstored(route)) => {
            let (began, labels) = (Instant::now(), labels(request, &route));
            let answered = match route.verb {
                Verb::Get | Verb::Collection if !route.resource.is_stored() => {
                    components::answer(request.shared, &route, request.query, request.preferences)
                        .await
                        .map_err(Rejection::from)
                }
                _ if route.is_watch() => watch::answer(request, &route, admission).await,
                _ => read_or_write(request, &route, warnings, admission, upload).await,
            };
            let response = answered.unwrap_or_else(|rejection| rejection.response(request.preferences));
            warnings.add(route.resource.deprecation.clone());
            count(request, &labels, &response, began);
            response
        }
        Ok(Route::Health { endpoint, check }) => {
            health::answer(request.shared, endpoint, check.as_deref(), request.query).await
        }
        Ok(Route::Issuer(document)) => issuer::answer(request, document).await,
        Ok(Route::ResetMetrics(page)) if request.shared.metrics_reset => metrics::reset(request.shared, page),
        // As kube-apiserver without profiling, DELETE is served like GET.
        Ok(Route::Metrics(page) | Route::ResetMetrics(page)) => metrics::answer(request.shared, page).await,
        Ok(Route::Statusz) => zpages::statusz(request, warnings),
        Ok(Route::Flagz) => zpages::flagz(request, warnings),
        // The future is boxed, so that the future of a read stays small.
        Ok(route) => Box::pin(documents::answer(request, &route)).await,
        Err(NoRoute::Status(status)) => status_response(request.preferences, &status),
        Err(NoRoute::PageNotFound) => respond::text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        Err(NoRoute::Unparsable(why)) => respond::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
    }
}

/// Finds the route in the current registry. If another server has just stored a definition, this server may not know
/// the resource yet. In that case, waits until this server has read the definition.
async fn find_route<'a>(request: &RequestContext<'a>) -> Result<Route<'a>, NoRoute> {
    let backend = &request.shared.backend;
    let find = |registry: &Registry| route(registry, request.shared.zpages, &request.parts.method, request.info);
    let found = find(&backend.registry());
    let is_unknown = match &found {
        Err(NoRoute::PageNotFound) => true,
        Err(NoRoute::Status(status)) => status.code == 404,
        _ => false,
    };
    if is_unknown
        && let Some((group, plural)) = custom_resource(request.info)
        && backend.catch_up_definition(group, plural).await
    {
        return find(&backend.registry());
    }
    found
}

/// Runs a request for objects, except watches, within its deadline. Connect requests have no deadline.
async fn read_or_write<B: RequestBody>(
    request: &RequestContext<'_>,
    route: &ResourceRoute<'_>,
    warnings: &WarningRecorder,
    admission: &mut Admission<'_>,
    upload: &mut Upload<B>,
) -> Result<Response<Body>, Rejection> {
    read::check_namespace(route)?;
    let RequestContext { shared, query, preferences, .. } = *request;
    let work = async {
        match route.verb {
            Verb::Get => Ok(read::get(shared, route, query, preferences).await?),
            Verb::Collection => Ok(read::list(shared, route, query, preferences).await?),
            // These futures are boxed, so that the future of a read stays small.
            Verb::Connect => Box::pin(connect::answer(request, route, warnings, upload)).await,
            Verb::Write(verb) => Box::pin(write::answer(request, verb, route, warnings, admission, upload)).await,
        }
    };
    match route.verb {
        // A stream lasts longer. Only the lookup of its target has the deadline.
        Verb::Connect => work.await,
        _ => request.deadline.enforce(pin!(work)).await,
    }
}

fn labels(request: &RequestContext<'_>, route: &ResourceRoute<'_>) -> Labels {
    let content_type = header(&request.parts.headers, &CONTENT_TYPE);
    let apply = content_type.is_some_and(|sent| sent.starts_with("application/apply-patch"));
    Labels::new(route, apply, request.query.get("dryRun") == Some("All"))
}

/// Counts a request whose response headers are ready.
fn count(request: &RequestContext<'_>, labels: &Labels, response: &Response<Body>, began: Instant) {
    let registry = request.shared.backend.registry();
    request.shared.metrics.answered(labels, response.status().as_u16(), began.elapsed(), &registry);
}

/// Returns the group and plural of a request that may be for a custom resource: the group contains a dot.
fn custom_resource<'a>(info: &'a RequestInfo<'_>) -> Option<(&'a str, &'a str)> {
    let (group, plural) = (&*info.api_group, &*info.resource);
    (group.contains('.') && !matches!(plural, "" | "namespaces")).then_some((group, plural))
}

#[cfg(test)]
mod tests {
    use http::Method;
    use listwatch_wire::query::Query;

    use super::*;

    #[test]
    fn custom_resource_returns_group_and_plural_of_a_custom_resource_path() {
        for (path, expected) in [
            ("/apis/example.com/v1/widgets", Some(("example.com", "widgets"))),
            ("/apis/example.com/v1/watch/widgets", Some(("example.com", "widgets"))),
            ("/apis/example.com/v1/namespaces/n/widgets/w/status", Some(("example.com", "widgets"))),
            ("/apis/example.com/v1/namespaces/n", None),
            ("/apis/apps/v1/deployments", None),
            ("/apis/example.com/v1", None),
            ("/api/v1/pods", None),
        ] {
            let query = Query::default();
            let info = RequestInfo::new(&Method::GET, path, &query);
            assert_eq!(custom_resource(&info), expected, "{path}");
        }
    }
}
