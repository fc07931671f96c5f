//! [`route`]: selects the handler of a request from the [`RequestInfo`] and the registry.
//!
//! [`RequestInfo`] contains the parsed path. This module determines which resources, subresources and methods are
//! served (`apiserver/pkg/endpoints/installer.go`).

use std::sync::Arc;

use http::Method;
use listwatch_discovery::ServedZpages;
use listwatch_meta::Status;

use crate::request::info::{PathProblem, RequestInfo};
use listwatch_registry::{Registry, Resource, Subresource};
use listwatch_write::WriteVerb;

/// The handler of a request.
#[derive(Debug, Clone)]
pub(crate) enum Route<'a> {
    /// An object or a collection of a served resource.
    Resource(ResourceRoute<'a>),
    /// A kind that is not stored: reviews and component statuses.
    Unstored(ResourceRoute<'a>),
    /// `/healthz`, `/livez`, `/readyz`, each with an optional single check.
    Health { endpoint: &'static str, check: Option<String> },
    /// The documents of the issuer of service account tokens.
    Issuer(IssuerDocument),
    /// Metrics in the text format of Prometheus.
    Metrics(MetricsPage),
    /// DELETE of metrics: the counters begin at zero again.
    ResetMetrics(MetricsPage),
    /// `/statusz`.
    Statusz,
    /// `/flagz`.
    Flagz,
    /// `/version`.
    Version,
    /// `/` and `/index.html`: the list of paths.
    Index,
    /// `/api`: the versions of the core group.
    CoreVersions,
    /// `/apis`: the other groups.
    Groups,
    /// `/apis/{group}`: the versions of a group.
    Group(String),
    /// `/api/{version}`, `/apis/{group}/{version}`: the resources of a version.
    GroupVersion { group: String, version: String },
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/openapi/v3`.
    OpenApiV3Index,
    /// `/openapi/v3/{path}`.
    OpenApiV3(String),
}

/// A page of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricsPage {
    /// `/metrics`.
    Server,
    /// `/metrics/slis`: the results of health checks.
    HealthChecks,
}

/// A document of the issuer of service account tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IssuerDocument {
    /// `/.well-known/openid-configuration`.
    Configuration,
    /// `/openid/v1/jwks`.
    Keys,
}

/// An object or a collection, and the operation on it.
#[derive(Debug, Clone)]
pub(crate) struct ResourceRoute<'a> {
    pub(crate) resource: Arc<Resource>,
    pub(crate) verb: Verb,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    pub(crate) subresource: Option<&'static str>,
    pub(crate) info: &'a RequestInfo<'a>,
}

impl ResourceRoute<'_> {
    /// Whether the request is a watch.
    pub(crate) fn is_watch(&self) -> bool {
        self.verb == Verb::Collection && self.info.is_watch()
    }
}

/// The operation on an object or a collection. [`ResourceRoute::is_watch`] distinguishes a list from a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// GET of one object or subresource.
    Get,
    /// GET of a collection: a list or a watch.
    Collection,
    /// A request that is forwarded to a kubelet, a pod, a node or a service.
    Connect,
    /// A write.
    Write(WriteVerb),
}

/// The reason why a request has no handler.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NoRoute {
    /// The path is outside of all API groups: `404 page not found` as plain text.
    PageNotFound,
    /// The path is in an API group: a Status.
    Status(Box<Status>),
    /// The path is invalid for [`RequestInfo`]: a 500 as plain text.
    Unparsable(String),
}

impl From<Status> for NoRoute {
    fn from(status: Status) -> Self {
        NoRoute::Status(Box::new(status))
    }
}

/// Finds the handler of a request.
///
/// # Errors
/// [`NoRoute`] with the response to the client.
pub(crate) fn route<'a>(
    registry: &Registry,
    zpages: ServedZpages,
    method: &Method,
    info: &'a RequestInfo<'a>,
) -> Result<Route<'a>, NoRoute> {
    if info.problem == Some(PathProblem::Malformed) {
        return Err(NoRoute::PageNotFound);
    }
    if info.is_resource_request {
        return resource_route(registry, method, info);
    }
    let segments = info.segments();
    let segments: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
    match segments.as_slice() {
        [] | ["index.html"] => read_only(method, Route::Index),
        ["healthz", check @ ..] => health(method, "healthz", check),
        ["livez", check @ ..] => health(method, "livez", check),
        ["readyz", check @ ..] => health(method, "readyz", check),
        [".well-known", "openid-configuration"] => read_only(method, Route::Issuer(IssuerDocument::Configuration)),
        ["openid", "v1", "jwks"] => read_only(method, Route::Issuer(IssuerDocument::Keys)),
        ["metrics"] => metrics(method, MetricsPage::Server),
        ["metrics", "slis"] => metrics(method, MetricsPage::HealthChecks),
        ["statusz"] if zpages.statusz => read_only(method, Route::Statusz),
        ["flagz"] if zpages.flagz => read_only(method, Route::Flagz),
        ["version"] => read_only(method, Route::Version),
        ["openapi", "v2"] => read_only(method, Route::OpenApiV2),
        ["openapi", "v3"] => read_only(method, Route::OpenApiV3Index),
        ["openapi", "v3", rest @ ..] => read_only(method, Route::OpenApiV3(rest.join("/"))),
        ["api"] => read_only(method, Route::CoreVersions),
        ["apis"] => read_only(method, Route::Groups),
        ["apis", group] if registry.has_group(group) => read_only(method, Route::Group((*group).to_owned())),
        ["api", version] => group_version(registry, method, "", version),
        ["apis", group, version] => group_version(registry, method, group, version),
        _ => Err(NoRoute::PageNotFound),
    }
}

fn read_only<'a>(method: &Method, route: Route<'a>) -> Result<Route<'a>, NoRoute> {
    // HEAD is handled as GET; the connection does not send the body.
    if is_read(method) { Ok(route) } else { Err(Status::method_not_allowed().into()) }
}

/// As in kube-apiserver with profiling (`metrics.HandlerWithReset`), a DELETE resets the metrics. The handler decides
/// whether the reset is enabled.
fn metrics(method: &Method, page: MetricsPage) -> Result<Route<'static>, NoRoute> {
    if *method == Method::DELETE { Ok(Route::ResetMetrics(page)) } else { read_only(method, Route::Metrics(page)) }
}

fn health(method: &Method, endpoint: &'static str, check: &[&str]) -> Result<Route<'static>, NoRoute> {
    let check = match check {
        [] => None,
        [single] => Some((*single).to_owned()),
        // `poststarthook/<name>` is one check whose name contains a slash.
        several => Some(several.join("/")),
    };
    read_only(method, Route::Health { endpoint, check })
}

/// Finds the discovery document of one version of a group.
fn group_version(registry: &Registry, method: &Method, group: &str, version: &str) -> Result<Route<'static>, NoRoute> {
    check_version(registry, group, version)?;
    read_only(method, Route::GroupVersion { group: group.to_owned(), version: version.to_owned() })
}

/// Rejects an unknown version of a built-in group with a Status, and an unknown group with a plain 404.
fn check_version(registry: &Registry, group: &str, version: &str) -> Result<(), NoRoute> {
    if registry.has_group_version(group, version) {
        return Ok(());
    }
    let mut known = registry.resources().iter().chain(registry.unstored());
    let known = known.any(|r| r.group == group && !r.custom);
    Err(if known { Status::no_such_resource().into() } else { NoRoute::PageNotFound })
}

fn resource_route<'a>(registry: &Registry, method: &Method, info: &'a RequestInfo<'a>) -> Result<Route<'a>, NoRoute> {
    let (group, version) = (&*info.api_group, &*info.api_version);
    check_version(registry, group, version)?;
    if info.problem == Some(PathProblem::NothingToWatch) {
        let path = match group {
            "" => format!("/api/{version}/watch"),
            group => format!("/apis/{group}/{version}/watch"),
        };
        let why = format!("failed to create RequestInfo: unable to determine kind and namespace from url, {path}");
        return Err(NoRoute::Unparsable(format!("Internal Server Error: {path:?}: {why}")));
    }
    let namespace = info.has_namespace_prefix.then_some(&*info.namespace);
    let plural = &*info.resource;
    let not_found = || NoRoute::from(Status::no_such_resource());
    if let Some(found) = registry.find_unstored(group, version, plural) {
        return unstored(registry, method, found, namespace, info);
    }
    let resource = registry.find(group, version, plural).ok_or_else(|| {
        // An unknown plural in a group of custom resources reaches the end of upstream's handler chain.
        let custom = registry.resources().iter().any(|r| r.custom && r.group == group);
        if custom { NoRoute::PageNotFound } else { not_found() }
    })?;
    // In upstream's chain, no handler follows the handler of custom resources.
    let not_found = || if resource.custom { NoRoute::PageNotFound } else { not_found() };
    let given = |text: &'a str| (!text.is_empty()).then_some(text);
    let (name, subresource) = (given(&info.path_name), given(&info.subresource));
    let takes_path = |name: &str| resource.subresource(name).is_some_and(Subresource::takes_path);
    if info.has_more_segments && !subresource.is_some_and(takes_path) {
        return Err(not_found());
    }
    // A namespaced object needs a namespace; a cluster-scoped object must not have one.
    let misplaced = if resource.namespaced { name.is_some() && namespace.is_none() } else { namespace.is_some() };
    if misplaced {
        return Err(not_found());
    }
    let subresource = match subresource {
        None => None,
        Some(path) => match resource.subresource(path) {
            Some(found) if !info.has_watch_prefix => Some(found),
            _ if resource.custom => return Err(Status::not_found(resource.gr(), name.unwrap_or_default()).into()),
            _ => return Err(not_found()),
        },
    };
    // Only reads can cover all namespaces.
    if resource.custom && resource.namespaced && namespace.is_none() && !is_read(method) {
        return Err(NoRoute::PageNotFound);
    }
    if resource.custom && name.is_none() && matches!(method.as_str(), "PUT" | "PATCH") {
        return Err(Status::bad_request("name must be provided").into());
    }
    let verb = verb(method, resource, namespace, name, subresource, info.has_watch_prefix)?;
    Ok(Route::Resource(ResourceRoute {
        resource: Arc::clone(resource),
        verb,
        namespace,
        name,
        subresource: subresource.map(Subresource::name),
        info,
    }))
}

/// Returns the route of a kind that is not stored.
fn unstored<'a>(
    registry: &Registry,
    method: &Method,
    found: &Arc<Resource>,
    namespace: Option<&'a str>,
    info: &'a RequestInfo<'a>,
) -> Result<Route<'a>, NoRoute> {
    let verbs = found.verbs();
    let named = verbs.contains(&"get");
    let name = (!info.path_name.is_empty()).then_some(&*info.path_name);
    let wanted = match (name, method.as_str()) {
        _ if !info.subresource.is_empty() => return Err(Status::no_such_resource().into()),
        (None, "POST") => "create",
        (None, "GET") => "list",
        (Some(_), "GET") if named => "get",
        (Some(_), _) if !named => return Err(Status::no_such_resource().into()),
        _ => "",
    };
    if found.namespaced != namespace.is_some() || info.has_watch_prefix {
        return Err(Status::no_such_resource().into());
    }
    if !verbs.contains(&wanted) {
        return Err(Status::method_not_allowed().into());
    }
    let route = ResourceRoute {
        resource: Arc::clone(found),
        verb: match wanted {
            "get" => Verb::Get,
            "list" => Verb::Collection,
            _ => Verb::Write(WriteVerb::Create),
        },
        namespace,
        name,
        subresource: None,
        info,
    };
    // The name of the pod is in the body of a binding if the path has none.
    match registry.find("", "v1", "pods").filter(|_| found.kind == "Binding") {
        Some(pods) => {
            let subresource = Some(Subresource::Binding.name());
            Ok(Route::Resource(ResourceRoute { resource: Arc::clone(pods), subresource, ..route }))
        }
        None => Ok(Route::Unstored(route)),
    }
}

fn is_read(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

fn verb(
    method: &Method,
    resource: &Resource,
    namespace: Option<&str>,
    name: Option<&str>,
    subresource: Option<&Subresource>,
    legacy_watch: bool,
) -> Result<Verb, NoRoute> {
    let not_allowed = || {
        // The handler of custom resources accepts any method, and then rejects the verb.
        let status = match resource.custom && !legacy_watch {
            true => Status::verb_not_supported(verb_name(method), resource.gr()),
            false => Status::method_not_allowed(),
        };
        Err(status.into())
    };
    let get = *method == Method::GET || (*method == Method::HEAD && resource.custom);
    if legacy_watch {
        return if get { Ok(Verb::Collection) } else { not_allowed() };
    }
    if let Some(subresource) = subresource {
        return verb_of_subresource(method, resource, subresource).map_or_else(not_allowed, Ok);
    }
    // Writes to a collection need a namespace.
    let collection_is_writable = name.is_none() && (namespace.is_some() || !resource.namespaced);
    match (method.as_str(), name) {
        ("GET" | "HEAD", Some(_)) if get => Ok(Verb::Get),
        ("GET" | "HEAD", None) if get => Ok(Verb::Collection),
        ("POST", None) if collection_is_writable => Ok(Verb::Write(WriteVerb::Create)),
        // That handler uses the name in the body and ignores the name in the path.
        ("POST", Some(_)) if resource.custom => Ok(Verb::Write(WriteVerb::Create)),
        ("PUT", Some(_)) => Ok(Verb::Write(WriteVerb::Update)),
        ("PATCH", Some(_)) => Ok(Verb::Write(WriteVerb::Patch)),
        ("DELETE", Some(_)) => Ok(Verb::Write(WriteVerb::Delete)),
        ("DELETE", None) if collection_is_writable && resource.serves_delete_collection() => {
            Ok(Verb::Write(WriteVerb::DeleteCollection))
        }
        _ => not_allowed(),
    }
}

/// Returns the verb of a method on a named object; empty for unsupported methods.
fn verb_name(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// Returns the operation of a method on a subresource; `None` if the subresource does not support the verb.
fn verb_of_subresource(method: &Method, resource: &Resource, subresource: &Subresource) -> Option<Verb> {
    let passes_all = subresource.takes_path();
    let (name, verb) = match method.as_str() {
        "GET" => ("get", Verb::Get),
        "HEAD" if resource.custom || passes_all => ("get", Verb::Get),
        "OPTIONS" if passes_all => ("get", Verb::Get),
        "POST" => ("create", Verb::Write(WriteVerb::Create)),
        "PUT" => ("update", Verb::Write(WriteVerb::Update)),
        "PATCH" => ("patch", Verb::Write(WriteVerb::Patch)),
        "DELETE" => ("delete", Verb::Write(WriteVerb::Delete)),
        _ => return None,
    };
    let verb = if subresource.is_connect() { Verb::Connect } else { verb };
    subresource.verbs().contains(&name).then_some(verb)
}

#[cfg(test)]
mod tests {
    use listwatch_wire::query::Query;

    use super::*;

    /// Compares the route of `GET path`, formatted as a short text, with the expected text.
    fn check(line: &str, expected: &str) {
        check_with(ServedZpages::default(), line, expected);
    }

    fn check_with(zpages: ServedZpages, line: &str, expected: &str) {
        let registry = Registry::builtin();
        let (method, path) = line.split_once(' ').unwrap();
        let (method, query) = (method.parse().unwrap(), Query::default());
        let info = RequestInfo::new(&method, path, &query);
        let routed = match route(&registry, zpages, &method, &info) {
            Ok(Route::Resource(r)) => format!(
                "{:?} {}{} ns={} name={} sub={}",
                r.verb,
                if r.info.has_watch_prefix { "watch/" } else { "" },
                r.resource.gr(),
                r.namespace.unwrap_or("-"),
                r.name.unwrap_or("-"),
                r.subresource.unwrap_or("-"),
            ),
            Ok(other) => format!("{other:?}"),
            Err(NoRoute::Status(status)) => format!("{} {}", status.code, status.message),
            Err(NoRoute::PageNotFound) => "404 page not found".to_owned(),
            Err(NoRoute::Unparsable(why)) => format!("500 {why}"),
        };
        assert_eq!(routed, expected, "{line}");
    }

    #[test]
    fn served_path_is_routed_to_its_handler() {
        check("GET /api/v1/pods", "Collection pods ns=- name=- sub=-");
        check("GET /api/v1/namespaces/a/pods/", "Collection pods ns=a name=- sub=-");
        check("GET /api/v1/namespaces/a/pods/x", "Get pods ns=a name=x sub=-");
        check("GET /api/v1/namespaces/a/pods/x/status", "Get pods ns=a name=x sub=status");
        check("GET /api/v1/namespaces", "Collection namespaces ns=- name=- sub=-");
        check("GET /api/v1/namespaces/a", "Get namespaces ns=- name=a sub=-");
        check("PUT /api/v1/namespaces/a/finalize", "Write(Update) namespaces ns=- name=a sub=finalize");
        check("PATCH /api/v1/namespaces/a/status", "Write(Patch) namespaces ns=- name=a sub=status");
        check("POST /apis/apps/v1/namespaces/a/deployments", "Write(Create) deployments.apps ns=a name=- sub=-");
        check(
            "DELETE /apis/apps/v1/namespaces/a/deployments",
            "Write(DeleteCollection) deployments.apps ns=a name=- sub=-",
        );
        check(
            "PATCH /apis/apps/v1/namespaces/a/deployments/d/scale",
            "Write(Patch) deployments.apps ns=a name=d sub=scale",
        );
        check("POST /api/v1/namespaces/a/pods/x/binding", "Write(Create) pods ns=a name=x sub=binding");
        check(
            "GET /apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
            "Get clusterroles.rbac.authorization.k8s.io ns=- name=system:node sub=-",
        );
        check("GET /api/v1/watch/pods", "Collection watch/pods ns=- name=- sub=-");
        check("GET /apis/authorization.k8s.io", "Group(\"authorization.k8s.io\")");
        check("POST /api/v1/namespaces/a/bindings", "Write(Create) pods ns=a name=- sub=binding");
        check("GET /api/v1/namespaces/a/pods/x/log", "Connect pods ns=a name=x sub=log");
        check("DELETE /api/v1/namespaces/a/services/x/proxy/a/b", "Connect services ns=a name=x sub=proxy");
        check("GET /api/v1/nodes/x/proxy/", "Connect nodes ns=- name=x sub=proxy");
        check("GET /api/v1/watch/namespaces/a/pods/x", "Collection watch/pods ns=a name=x sub=-");
        check("GET /metrics/slis", "Metrics(HealthChecks)");
        check("DELETE /metrics", "ResetMetrics(Server)");
        check("GET /statusz", "Statusz");
        check("GET /readyz/poststarthook/x", "Health { endpoint: \"readyz\", check: Some(\"poststarthook/x\") }");
    }

    #[test]
    fn disabled_page_about_the_process_is_not_found() {
        for (statusz, flagz) in [(true, false), (false, true)] {
            for (path, kind, is_served) in [("/statusz", "Statusz", statusz), ("/flagz", "Flagz", flagz)] {
                let zpages = ServedZpages { statusz, flagz };
                let missing = "404 page not found";
                check_with(zpages, &format!("GET {path}"), if is_served { kind } else { missing });
                let not_allowed = "405 the server does not allow this method on the requested resource";
                check_with(zpages, &format!("POST {path}"), if is_served { not_allowed } else { missing });
            }
        }
    }

    #[test]
    fn unserved_path_or_method_is_rejected_with_upstreams_text() {
        let missing = "404 the server could not find the requested resource";
        let method = "405 the server does not allow this method on the requested resource";
        check("GET /api/v1/nonsense", missing);
        check("GET /api/v1/pods/x", missing);
        check("GET /api/v1/namespaces/a/nodes", missing);
        check("GET /api/v1/namespaces/a/pods/x/nonsense", missing);
        check("POST /api/v1/pods", method);
        check("GET /apis/authentication.k8s.io/v1/tokenreviews", method);
        check("GET /apis/authentication.k8s.io/v1/tokenreviews/x", missing);
        check("POST /apis/authorization.k8s.io/v1/localsubjectaccessreviews", missing);
        check("POST /apis/authorization.k8s.io/v1/namespaces/a/selfsubjectaccessreviews", missing);
        check("DELETE /api/v1/pods", method);
        check("DELETE /api/v1/namespaces", method);
        check("HEAD /api/v1/pods", method);
        check("OPTIONS /api/v1/pods", method);
        check("POST /api/v1/namespaces/a/pods/x", method);
        check("GET /apis/nonsense", "404 page not found");
        check("GET /apis/nonsense/v1/things", "404 page not found");
        check("GET /api/v2/pods", missing);
        check("GET /apis/apps/v9", missing);
        check("GET /nonsense", "404 page not found");
        check("GET /api/v1/namespaces/a%2Fb/pods", "404 page not found");
        check(
            "GET /api/v1/watch",
            "500 Internal Server Error: \"/api/v1/watch\": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch",
        );
        check("POST /version", method);
        check("POST /metrics", method);
        check("DELETE /statusz", method);
        check("GET /api/v1/bindings", missing);
        check("GET /api/v1/namespaces/a/bindings", method);
        check("POST /api/v1/componentstatuses", method);
        check("DELETE /api/v1/componentstatuses/x", method);
        check("GET /api/v1/namespaces/a/componentstatuses", missing);
        // Each subresource has its own verbs.
        check("GET /api/v1/namespaces/a/finalize", method);
        check("PATCH /api/v1/namespaces/a/finalize", method);
        check("GET /api/v1/namespaces/a/pods/x/binding", method);
        check("PUT /api/v1/namespaces/a/pods/x/eviction", method);
        check("POST /api/v1/namespaces/a/pods/x/status", method);
        check("DELETE /api/v1/namespaces/a/pods/x/status", method);
        check("PUT /api/v1/namespaces/a/pods/x/log", method);
        check("PATCH /api/v1/namespaces/a/pods/x/exec", method);
        check("GET /api/v1/namespaces/a/pods/x/status/y", missing);
        check("GET /api/v1/namespaces/a/services/x/log", missing);
    }
}
