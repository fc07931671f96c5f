//! Handles gets and lists of one resource: parses the options, reads the cache, and responds.

use http::Response;
use listwatch_cacher::Scope;
use listwatch_meta::{ListOptions, ResourceVersion, Status};
use listwatch_wire::media_type::is_late_refusal;
use listwatch_wire::query::{Query, list_options};

use crate::request::routing::{ResourceRoute, Verb};
use crate::response::body::Body;
use crate::response::preferences::ResponsePreferences;
use crate::response::view::{ListView, ObjectView};
use crate::shared::Shared;
use listwatch_registry::Subresource;
use listwatch_write as write;

/// Handles GET of one object or subresource.
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
        Some(Subresource::Scale { .. }) => ObjectView::negotiate_scale(preferences, resource)?,
        _ => ObjectView::negotiate(preferences, resource)?,
    };
    check_export(query)?;
    let version = ResourceVersion::new(query.get("resourceVersion").unwrap_or_default());
    let at = ListOptions { resource_version: version, ..ListOptions::default() }.get()?;
    let key = resource.key(route.namespace, name)?;
    let found = shared.backend.cacher(resource).get(&key, at).await.map_err(|error| error.status(resource.gr()))?;
    let object = found.ok_or_else(|| Status::not_found(resource.gr(), name))?;
    if let Some(Subresource::Scale { .. }) = subresource {
        return view.scale(200, resource, write::scale_of(resource, &object)?);
    }
    view.stored_object(200, resource, &object, &shared.caches.encodings)
}

/// Rejects `?export=true`, so that a client that still uses the parameter does not take the whole object for an exported
/// one (`GetResource` in `apiserver/pkg/endpoints/handlers/get.go`).
pub(crate) fn check_export(query: &Query<'_>) -> Result<(), Status> {
    match query.bool("export") {
        Some(true) => Err(Status::bad_request("the export parameter, deprecated since v1.14, is no longer supported")),
        _ => Ok(()),
    }
}

/// Handles GET of a collection.
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
    if let Some(value) = list.undecodable.first() {
        // An incomplete list would make controllers delete the dependents of a missing object.
        return Err(value.list_status());
    }
    view?.list(resource, list, request.shard.as_ref(), &shared.caches.encodings).await
}

/// Splits the error of a view negotiation. The outer error must be reported immediately. The inner error must be
/// reported after the options are parsed and the object is read, as in kube-apiserver.
pub(crate) fn early_error<V>(view: Result<V, Status>) -> Result<Result<V, Status>, Status> {
    match view {
        Err(status) if !is_late_refusal(&status) => Err(status),
        view => Ok(view),
    }
}

/// Rejects the namespaces `.` and `..` for a collection, as upstream's `storage.PrepareKey` does. Upstream returns a
/// plain error, and therefore a 500 without a reason.
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

/// Returns the scope of a list or watch: one object, one namespace or all objects.
///
/// # Errors
/// 400 for a name that is not valid in a key.
pub(crate) fn scope(route: &ResourceRoute<'_>) -> Result<Scope, Status> {
    Ok(match (route.name, route.namespace) {
        (Some(name), namespace) => {
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
    fn get_with_the_export_parameter_returns_400() {
        for (query, is_refused) in [
            ("", false),
            ("exact=true", false),
            ("export=false", false),
            ("export=FALSE", false),
            ("export=0", false),
            ("export=false&export=true", false),
            ("export=true", true),
            ("export=1", true),
            ("export", true),
            ("export=&resourceVersion=0", true),
            ("export=true&export=false", true),
        ] {
            let found = check_export(&Query::parse(query)).map_err(|status| (status.code, status.message));
            let message = "the export parameter, deprecated since v1.14, is no longer supported".to_owned();
            assert_eq!(found, if is_refused { Err((400, message)) } else { Ok(()) }, "{query}");
        }
    }
}
