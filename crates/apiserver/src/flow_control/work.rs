//! [`Work`]: the data from which the seats of a request are estimated (`flowcontrol/request/width.go`).

use listwatch_flow_control::{FlowController, ListWork, WatchScope, WorkEstimate, write_estimate};
use listwatch_meta::FieldSelector;
use listwatch_registry::Backend;
use listwatch_wire::query::Query;

use crate::request::info::RequestInfo;

/// The field by which watches of pods are indexed. A watch of one node's pods receives few events.
const POD_INDEX: &str = "spec.nodeName";

/// The data from which the seats of a request are estimated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work<'a> {
    /// Any other request.
    Plain,
    /// A list, or a watch with initial events.
    List(ListWork),
    /// A write, whose event is delivered to watches.
    Write(WatchScope<'a>),
}

impl<'a> Work<'a> {
    pub(super) fn new(info: &'a RequestInfo<'_>, query: &Query<'_>, backend: &Backend) -> Self {
        if !info.is_resource_request {
            return Work::Plain;
        }
        match &*info.verb {
            "list" => Work::List(list_work(info, query, backend)),
            "watch" if has_initial_events(query) => Work::List(list_work(info, query, backend)),
            // Tokens have no watches.
            "create" if info.resource == "serviceaccounts" && info.subresource == "token" => Work::Plain,
            "create" | "update" | "patch" | "delete" => Work::Write(scope(info)),
            _ => Work::Plain,
        }
    }

    pub(super) fn estimate<W>(&self, controller: &FlowController<W>, level_seats_max: u64) -> WorkEstimate {
        match self {
            Work::Plain => WorkEstimate::ONE_SEAT,
            Work::List(list) => list.estimate(level_seats_max),
            Work::Write(scope) => write_estimate(controller.interested_watches(scope), level_seats_max),
        }
    }
}

/// Whether a watch starts with the current objects.
fn has_initial_events(query: &Query<'_>) -> bool {
    query.bool("sendInitialEvents") == Some(true) || matches!(query.get("resourceVersion"), None | Some("" | "0"))
}

/// Returns the size of a list. A resource that is not served, or whose cache is not running yet, has size 0.
fn list_work(info: &RequestInfo<'_>, query: &Query<'_>, backend: &Backend) -> ListWork {
    let registry = backend.registry();
    let resource = registry.find(&info.api_group, &info.api_version, &info.resource);
    let cacher = resource.and_then(|resource| backend.running_cacher(resource.stored()));
    let (objects, objects_bytes) = cacher.map_or((0, 0), |cacher| cacher.object_totals());
    let is_given = |name: &str| query.get(name).is_some_and(|value| !value.is_empty());
    let is_from_cache =
        info.verb == "watch" || (!is_given("continue") && query.get("resourceVersionMatch") != Some("Exact"));
    ListWork {
        objects: objects as u64,
        objects_bytes: objects_bytes as u64,
        limit: query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(0),
        names_one_object: !info.name.is_empty(),
        has_selector: is_given("labelSelector") || is_given("fieldSelector"),
        is_from_cache,
    }
}

/// Returns the scope of a request: resource, namespace and name.
fn scope<'a>(info: &'a RequestInfo<'_>) -> WatchScope<'a> {
    WatchScope { api_group: &info.api_group, resource: &info.resource, namespace: &info.namespace, name: &info.name }
}

/// Returns the scope of a watch; `None` if the index of the resource lets the watch receive only few events
/// (`watchTracker`).
pub(super) fn watched<'a>(info: &'a RequestInfo<'_>, query: &Query<'_>) -> Option<WatchScope<'a>> {
    if info.resource == "pods"
        && let Some(selector) = query.get("fieldSelector")
        && let Ok(selector) = FieldSelector::parse(selector)
        && selector.requires_exact(POD_INDEX).is_some_and(|node| !node.is_empty())
    {
        return None;
    }
    Some(scope(info))
}
