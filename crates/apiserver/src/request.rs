//! From method and path to what is meant: [`route`], a pure function over the registry.
//!
//! The rules are those of `pkg/endpoints/request/requestinfo.go` (how a path splits) and of
//! `pkg/endpoints/installer.go` (which methods a path takes).
//!
//! ```text
//!  /api/v1[/watch]/namespaces/{ns}/{resource}[/{name}[/{subresource}]]
//!  /apis/{group}/{version}[/watch]/{resource}[/{name}[/{subresource}]]
//! ```

use std::sync::Arc;

use http::Method;
use listwatch_meta::Status;
use percent_encoding::percent_decode_str;

use crate::registry::{Registry, Resource, Subresource, Way};
use crate::write::WriteVerb;

/// What a request is about.
#[derive(Debug, Clone)]
pub(crate) enum Route {
    /// An object or a collection of a served resource.
    Resource(ResourceRoute),
    /// Something that is answered and not stored: a question, or the states of components.
    Unstored(ResourceRoute),
    /// `/healthz`, `/livez`, `/readyz`, each with an optional single check.
    Health { endpoint: &'static str, check: Option<String> },
    /// `/metrics`.
    Metrics,
    /// `/version`.
    Version,
    /// `/` and `/index.html`: the list of paths.
    Index,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/{group}`.
    Group(String),
    /// `/api/{version}`, `/apis/{group}/{version}`.
    GroupVersion { group: String, version: String },
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/openapi/v3`.
    OpenApiV3Index,
    /// `/openapi/v3/{path}`.
    OpenApiV3(String),
}

/// An object or a collection, and what to do with it.
#[derive(Debug, Clone)]
pub(crate) struct ResourceRoute {
    pub(crate) resource: Arc<Resource>,
    pub(crate) verb: Verb,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    /// The deprecated `/watch/` prefix was used.
    pub(crate) legacy_watch: bool,
}

/// What to do; whether a collection GET is a list or a watch is for the query to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// GET of one object or subresource.
    Get,
    /// GET of a collection: list, or watch when the query asks for it.
    Collection,
    /// A request to be passed on to somebody who is no part of this server.
    Connect,
    /// Anything that changes something.
    Write(WriteVerb),
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NoRoute {
    /// Outside every API group: `404 page not found` as plain text.
    PageNotFound,
    /// Inside an API group: a Status.
    Status(Box<Status>),
    /// The path cannot be taken apart at all; 500 as plain text.
    Unparsable(String),
}

impl From<Status> for NoRoute {
    fn from(status: Status) -> Self {
        NoRoute::Status(Box::new(status))
    }
}

/// Finds out what a request means.
///
/// # Errors
/// [`NoRoute`] with what the client is told.
pub(crate) fn route(registry: &Registry, method: &Method, path: &str) -> Result<Route, NoRoute> {
    let segments = segments(path)?;
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    match parts.as_slice() {
        [] | ["index.html"] => read_only(method, Route::Index),
        ["healthz", check @ ..] => health(method, "healthz", check),
        ["livez", check @ ..] => health(method, "livez", check),
        ["readyz", check @ ..] => health(method, "readyz", check),
        ["metrics"] => read_only(method, Route::Metrics),
        ["version"] => read_only(method, Route::Version),
        ["openapi", "v2"] => read_only(method, Route::OpenApiV2),
        ["openapi", "v3"] => read_only(method, Route::OpenApiV3Index),
        ["openapi", "v3", rest @ ..] => read_only(method, Route::OpenApiV3(rest.join("/"))),
        ["api"] => read_only(method, Route::CoreVersions),
        ["apis"] => read_only(method, Route::Groups),
        ["apis", group] if registry.has_group(group) => read_only(method, Route::Group((*group).to_owned())),
        ["api", version, rest @ ..] => group_version(registry, method, "", version, rest),
        ["apis", group, version, rest @ ..] => group_version(registry, method, group, version, rest),
        _ => Err(NoRoute::PageNotFound),
    }
}

fn read_only(method: &Method, route: Route) -> Result<Route, NoRoute> {
    // HEAD is a GET whose body is not sent; the connection layer drops the body.
    if is_read(method) { Ok(route) } else { Err(Status::method_not_allowed().into()) }
}

fn health(method: &Method, endpoint: &'static str, check: &[&str]) -> Result<Route, NoRoute> {
    let check = match check {
        [] => None,
        [single] => Some((*single).to_owned()),
        // `poststarthook/<name>` is one check with a slash in its name.
        several => Some(several.join("/")),
    };
    read_only(method, Route::Health { endpoint, check })
}

fn group_version(
    registry: &Registry,
    method: &Method,
    group: &str,
    version: &str,
    rest: &[&str],
) -> Result<Route, NoRoute> {
    if !registry.has_group_version(group, version) {
        // A known group answers for all its paths; an unknown one has nobody to answer.
        let mut known = registry.resources().iter().chain(registry.unstored());
        let known = known.any(|r| r.group == group && !r.custom);
        return Err(if known { Status::no_such_resource().into() } else { NoRoute::PageNotFound });
    }
    let (legacy_watch, rest) = match rest {
        [] => {
            let route = Route::GroupVersion { group: group.to_owned(), version: version.to_owned() };
            return read_only(method, route);
        }
        ["watch"] => {
            let path = if group.is_empty() {
                format!("/api/{version}/watch")
            } else {
                format!("/apis/{group}/{version}/watch")
            };
            let why = format!("failed to create RequestInfo: unable to determine kind and namespace from url, {path}");
            return Err(NoRoute::Unparsable(format!("Internal Server Error: {path:?}: {why}")));
        }
        ["watch", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    // `namespaces/{ns}/{resource}...` is a place in a namespace, except that status and finalize
    // are subresources of the Namespace object itself.
    let (namespace, rest) = match rest {
        ["namespaces", namespace, subresource] if group.is_empty() && matches!(*subresource, "status" | "finalize") => {
            (None, vec!["namespaces", namespace, subresource])
        }
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest.to_vec()),
        rest => (None, rest.to_vec()),
    };
    let not_found = || NoRoute::from(Status::no_such_resource());
    let [plural, place @ ..] = rest.as_slice() else {
        return Err(not_found());
    };
    if let Some(found) = registry.find_unstored(group, version, plural) {
        return unstored(registry, method, found, namespace, place, legacy_watch);
    }
    let resource = registry.find(group, version, plural).ok_or_else(|| {
        // An unknown plural in a group of definitions falls through to the end of the chain.
        let custom = registry.resources().iter().any(|r| r.custom && r.group == group);
        if custom { NoRoute::PageNotFound } else { not_found() }
    })?;
    // What the handler of custom resources does not know, nobody behind it knows either.
    let not_found = || if resource.custom { NoRoute::PageNotFound } else { not_found() };
    let (name, subresource) = match place {
        [] => (None, None),
        [name] => (Some(*name), None),
        [name, subresource] => (Some(*name), Some(*subresource)),
        [name, subresource, ..] if resource.subresource(subresource).is_some_and(Subresource::takes_path) => {
            (Some(*name), Some(*subresource))
        }
        _ => return Err(not_found()),
    };
    // A namespaced object needs its namespace; a cluster-scoped resource must not have one.
    let misplaced = if resource.namespaced { name.is_some() && namespace.is_none() } else { namespace.is_some() };
    if misplaced {
        return Err(not_found());
    }
    let subresource = match subresource {
        None => None,
        Some(path) => match resource.subresource(path) {
            Some(found) if !legacy_watch => Some(found),
            _ if resource.custom => return Err(Status::not_found(resource.gr(), name.unwrap_or_default()).into()),
            _ => return Err(not_found()),
        },
    };
    // Only reads go across namespaces.
    if resource.custom && resource.namespaced && namespace.is_none() && !is_read(method) {
        return Err(NoRoute::PageNotFound);
    }
    if resource.custom && name.is_none() && matches!(method.as_str(), "PUT" | "PATCH") {
        return Err(Status::bad_request("name must be provided").into());
    }
    let verb = verb(method, resource, namespace, name, subresource, legacy_watch)?;
    Ok(Route::Resource(ResourceRoute {
        resource: Arc::clone(resource),
        verb,
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
        subresource: subresource.map(|found| found.name().to_owned()),
        legacy_watch,
    }))
}

/// Where something leads that is not stored.
fn unstored(
    registry: &Registry,
    method: &Method,
    found: &Arc<Resource>,
    namespace: Option<&str>,
    place: &[&str],
    legacy_watch: bool,
) -> Result<Route, NoRoute> {
    let verbs = found.verbs();
    let named = verbs.contains(&"get");
    let (name, wanted) = match (place, method.as_str()) {
        ([], "POST") => (None, "create"),
        ([], "GET") => (None, "list"),
        ([name], "GET") if named => (Some((*name).to_owned()), "get"),
        ([_], _) if named => (None, ""),
        ([], _) => (None, ""),
        _ => return Err(Status::no_such_resource().into()),
    };
    if found.namespaced != namespace.is_some() || legacy_watch {
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
        namespace: namespace.map(str::to_owned),
        name,
        subresource: None,
        legacy_watch: false,
    };
    // A binding that does not say by its path which pod it is for says so itself.
    match registry.find("", "v1", "pods").filter(|_| found.kind == "Binding") {
        Some(pods) => {
            let subresource = Some(Subresource::Binding.name().to_owned());
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
        // The handler of custom resources takes any method, and says which verb it does not know.
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
    // Writes to a collection need to know the namespace.
    let collection_is_writable = name.is_none() && (namespace.is_some() || !resource.namespaced);
    match (method.as_str(), name) {
        ("GET" | "HEAD", Some(_)) if get => Ok(Verb::Get),
        ("GET" | "HEAD", None) if get => Ok(Verb::Collection),
        ("POST", None) if collection_is_writable => Ok(Verb::Write(WriteVerb::Create)),
        // Nor does it look at the name in the path: the one in the body counts.
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

/// The verb of a method on something named; empty for a method that has none.
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

/// What a method asks of a subresource; nothing, where that does not have it.
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
    let verb = if subresource.way() == Way::Connected { Verb::Connect } else { verb };
    subresource.verbs().contains(&name).then_some(verb)
}

/// The decoded path elements, without leading and trailing slashes.
fn segments(path: &str) -> Result<Vec<String>, NoRoute> {
    let trimmed = path.trim_matches('/');
    if trimmed.is_empty() {
        return Ok(Vec::new());
    }
    trimmed
        .split('/')
        .map(|segment| {
            let decoded = percent_decode_str(segment).decode_utf8().map_err(|_| NoRoute::PageNotFound)?;
            if decoded.is_empty() || decoded.contains('/') {
                return Err(NoRoute::PageNotFound);
            }
            Ok(decoded.into_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `GET path` → a short text of where it leads.
    fn check(line: &str, expected: &str) {
        let registry = Registry::builtin();
        let (method, path) = line.split_once(' ').unwrap();
        let routed = match route(&registry, &method.parse().unwrap(), path) {
            Ok(Route::Resource(r)) => format!(
                "{:?} {}{} ns={} name={} sub={}",
                r.verb,
                if r.legacy_watch { "watch/" } else { "" },
                r.resource.gr(),
                r.namespace.as_deref().unwrap_or("-"),
                r.name.as_deref().unwrap_or("-"),
                r.subresource.as_deref().unwrap_or("-"),
            ),
            Ok(other) => format!("{other:?}"),
            Err(NoRoute::Status(status)) => format!("{} {}", status.code, status.message),
            Err(NoRoute::PageNotFound) => "404 page not found".to_owned(),
            Err(NoRoute::Unparsable(why)) => format!("500 {why}"),
        };
        assert_eq!(routed, expected, "{line}");
    }

    #[test]
    fn paths_lead_where_kubernetes_leads_them() {
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
        check("GET /readyz/poststarthook/x", "Health { endpoint: \"readyz\", check: Some(\"poststarthook/x\") }");
    }

    #[test]
    fn what_is_not_served_is_refused_in_the_right_words() {
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
