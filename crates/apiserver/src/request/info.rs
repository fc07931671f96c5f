//! [`RequestInfo`]: the information about a request that is derived from method, path and query, computed once.
//!
//! Metrics, limits, impersonation, authorization and routing use the same value. The rules are those of kube-apiserver
//! (`apiserver/pkg/endpoints/request/requestinfo.go`). No rule needs the registry, so a `RequestInfo` also exists for a
//! resource that is not served.
//!
//! ```text
//!  /api/{version}[/watch][/namespaces/{namespace}]/{resource}[/{name}[/{subresource}[/…]]]
//!  /apis/{group}/{version}[/watch][/namespaces/{namespace}]/{resource}[/{name}[/{subresource}[/…]]]
//!  anything else                                                          not a resource request
//! ```

use std::borrow::Cow;

use http::Method;
use listwatch_access::Attributes;
use listwatch_meta::{FieldSelector, LabelSelector, UserInfo};
use listwatch_wire::query::Query;
use percent_encoding::percent_decode_str;

/// The information about a request. Strings borrow from the request, unless they are percent-encoded. An absent string
/// is empty.
#[derive(Clone, Debug)]
pub(crate) struct RequestInfo<'a> {
    /// The decoded path.
    pub(crate) path: Cow<'a, str>,
    /// The path as the client sent it.
    raw_path: &'a str,
    /// The verb of a resource request: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or
    /// `deletecollection`, or empty for other methods. For other paths, the method in lower case.
    pub(crate) verb: Cow<'a, str>,
    /// Whether the path is below a version of an API group and contains a resource.
    pub(crate) is_resource_request: bool,
    pub(crate) api_group: Cow<'a, str>,
    pub(crate) api_version: Cow<'a, str>,
    /// The namespace in the path. For a Namespace object, the name of that object.
    pub(crate) namespace: Cow<'a, str>,
    /// The name in the path. For a collection, the name that the field selector requires.
    pub(crate) name: Cow<'a, str>,
    /// Whether the path has `namespaces/{namespace}/` after its version.
    pub(crate) has_namespace_prefix: bool,
    /// Whether the path has the deprecated `/watch/` prefix.
    pub(crate) has_watch_prefix: bool,
    /// Whether the request has no deadline: watches and streams to a kubelet (`BasicLongRunningRequestCheck`).
    pub(crate) long_running: bool,
    /// The reason why the path is invalid; `None` for a valid path.
    pub(crate) problem: Option<PathProblem>,
    /// The plural of the resource.
    pub(crate) resource: Cow<'a, str>,
    /// The name in the path. Empty for a collection, even if the field selector requires a name.
    pub(crate) path_name: Cow<'a, str>,
    pub(crate) subresource: Cow<'a, str>,
    /// Whether the path has segments after the subresource.
    pub(crate) has_more_segments: bool,
    /// The field selector of a collection, for authorization. As in upstream, the selector is empty below the prefix
    /// `/watch/`. An invalid selector is also empty, so that a broader request is authorized.
    field_selector: FieldSelector,
    /// The label selector of a collection, for authorization.
    label_selector: LabelSelector,
}

/// The reason why a path is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathProblem {
    /// A segment is empty, is not UTF-8 or contains an encoded slash.
    Malformed,
    /// The path ends after the `watch/` prefix.
    NothingToWatch,
}

impl<'a> RequestInfo<'a> {
    /// Computes the information about a request.
    pub(crate) fn new(method: &Method, path: &'a str, query: &Query<'_>) -> Self {
        let all = Segments::of(path);
        let mut info = RequestInfo {
            path: if all.is_encoded { percent_decode_str(path).decode_utf8_lossy() } else { Cow::Borrowed(path) },
            raw_path: path,
            verb: method_in_lower_case(method),
            is_resource_request: false,
            api_group: Cow::Borrowed(""),
            api_version: Cow::Borrowed(""),
            namespace: Cow::Borrowed(""),
            name: Cow::Borrowed(""),
            has_namespace_prefix: false,
            has_watch_prefix: false,
            long_running: false,
            problem: None,
            resource: Cow::Borrowed(""),
            path_name: Cow::Borrowed(""),
            subresource: Cow::Borrowed(""),
            has_more_segments: false,
            field_selector: FieldSelector::default(),
            label_selector: LabelSelector::default(),
        };
        if all.is_malformed() && all.before_proxied_path().is_none_or(Segments::is_malformed) {
            info.problem = Some(PathProblem::Malformed);
            return info;
        }
        let mut segments = all.peekable();
        let (has_group, segments_min) = match segments.next().as_deref() {
            Some("api") => (false, 3),
            Some("apis") => (true, 4),
            _ => return info,
        };
        if all.number() < segments_min {
            // Discovery of a group or a version.
            return info;
        }
        info.is_resource_request = true;
        if has_group {
            info.api_group = segments.next().unwrap_or_default();
        }
        info.api_version = segments.next().unwrap_or_default();
        info.verb = Cow::Borrowed(verb_of_resource(method));
        if segments.next_if(|first| first == "watch").is_some() {
            info.has_watch_prefix = true;
            info.verb = Cow::Borrowed("watch");
            if segments.peek().is_none() {
                info.problem = Some(PathProblem::NothingToWatch);
            }
        }
        let [mut resource, mut name, mut subresource] = [(); 3].map(|()| segments.next().unwrap_or_default());
        if resource == "namespaces" {
            info.namespace = name.clone();
            // `status` and `finalize` are subresources of the Namespace object. Any other segment is a resource in the
            // namespace.
            if !matches!(&*subresource, "" | "status" | "finalize") {
                info.has_namespace_prefix = true;
                resource = subresource;
                [name, subresource] = [(); 2].map(|()| segments.next().unwrap_or_default());
            }
        }
        info.has_more_segments = segments.next().is_some();
        (info.resource, info.name, info.path_name, info.subresource) = (resource, name.clone(), name, subresource);
        if info.path_name.is_empty() {
            info.refine_for_collection(query);
        }
        let streams = ["attach", "exec", "log", "portforward", "proxy"];
        info.long_running = info.verb == "watch" || streams.contains(&&*info.subresource);
        info
    }

    /// Replaces the verb of a request without a name: a read becomes a list or watch, and a delete a deletecollection.
    fn refine_for_collection(&mut self, query: &Query<'_>) {
        let verb = match &*self.verb {
            "get" if query.bool("watch") == Some(true) => "watch",
            "get" => "list",
            "delete" => "deletecollection",
            _ => return,
        };
        self.verb = Cow::Borrowed(verb);
        let selector = |key: &str| query.get(key).filter(|selector| !selector.is_empty());
        if let Some(fields) = selector("fieldSelector").and_then(|text| FieldSelector::parse(text).ok()) {
            if verb != "deletecollection"
                && let Some(name) = fields.requires_exact("metadata.name")
                && !matches!(name, "." | "..")
                && !name.contains(['/', '%'])
            {
                self.name = Cow::Owned(name.to_owned());
            }
            self.field_selector = fields;
        }
        if let Some(labels) = selector("labelSelector").and_then(|text| LabelSelector::parse(text).ok()) {
            self.label_selector = labels;
        }
    }

    /// Returns the decoded segments of the path.
    pub(crate) fn segments(&self) -> Vec<Cow<'a, str>> {
        Segments::of(self.raw_path).collect()
    }

    /// Returns the attributes for the authorizers.
    pub(crate) fn attributes<'s>(&'s self, user: &'s UserInfo) -> Attributes<'s> {
        Attributes {
            user,
            verb: &self.verb,
            is_resource_request: self.is_resource_request,
            api_group: &self.api_group,
            api_version: &self.api_version,
            namespace: &self.namespace,
            resource: &self.resource,
            subresource: &self.subresource,
            name: &self.name,
            path: &self.path,
            field_selector: self.field_selector.terms(),
            label_selector: self.label_selector.requirements(),
        }
    }

    /// Whether the request may change an object. A stream to a kubelet changes no object of this server.
    pub(crate) fn is_mutating(&self) -> bool {
        self.is_resource_request && !self.long_running && !matches!(&*self.verb, "get" | "list" | "watch")
    }

    /// Whether the request reads the health or the version of the server. Such a request needs no authentication and no
    /// slot.
    pub(crate) fn is_health_or_version(&self) -> bool {
        if self.is_resource_request || !matches!(&*self.verb, "get" | "head") {
            return false;
        }
        let path = self.path.trim_matches('/');
        path == "version" || matches!(path.split('/').next(), Some("healthz" | "livez" | "readyz"))
    }

    /// Whether the request is a watch of a resource.
    pub(crate) fn is_watch(&self) -> bool {
        self.is_resource_request && self.verb == "watch"
    }
}

fn method_in_lower_case(method: &Method) -> Cow<'static, str> {
    match method.as_str() {
        "GET" => Cow::Borrowed("get"),
        "HEAD" => Cow::Borrowed("head"),
        "POST" => Cow::Borrowed("post"),
        "PUT" => Cow::Borrowed("put"),
        "PATCH" => Cow::Borrowed("patch"),
        "DELETE" => Cow::Borrowed("delete"),
        other => Cow::Owned(other.to_lowercase()),
    }
}

fn verb_of_resource(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// The decoded segments of a path, without leading and trailing slashes.
#[derive(Clone, Copy)]
struct Segments<'a> {
    rest: Option<&'a str>,
    /// Whether the path contains percent signs. Other paths are not decoded, to save time.
    is_encoded: bool,
}

impl<'a> Segments<'a> {
    fn of(path: &'a str) -> Self {
        let trimmed = path.trim_matches('/');
        Segments { rest: (!trimmed.is_empty()).then_some(trimmed), is_encoded: path.as_bytes().contains(&b'%') }
    }

    /// Returns the segments up to the subresource `proxy`, if the path has them in this spelling. The rest is a path of
    /// the target, in which empty segments and encoded slashes are not malformed.
    fn before_proxied_path(self) -> Option<Self> {
        let rest = self.rest?;
        let segment = |at: usize| rest.split('/').nth(at).unwrap_or_default();
        let number = match (segment(2), segment(4)) {
            ("nodes", "proxy") => 5,
            ("namespaces", "pods" | "services") if segment(6) == "proxy" => 7,
            _ => return None,
        };
        let (end, _) = rest.match_indices('/').nth(number - 1)?;
        (segment(0) == "api").then_some(Segments { rest: Some(&rest[..end]), ..self })
    }

    /// Returns the number of segments.
    fn number(self) -> usize {
        self.rest.map_or(0, |rest| 1 + rest.bytes().filter(|byte| *byte == b'/').count())
    }

    /// Whether a segment is empty, is not UTF-8 or contains an encoded slash.
    fn is_malformed(self) -> bool {
        let has_invalid = |rest: &str| {
            rest.split('/').any(|segment| {
                let decoded = percent_decode_str(segment).decode_utf8();
                decoded.is_err() || decoded.is_ok_and(|decoded| decoded.contains('/'))
            })
        };
        self.rest.is_some_and(|rest| {
            rest.as_bytes().windows(2).any(|two| two == b"//") || (self.is_encoded && has_invalid(rest))
        })
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Cow<'a, str>> {
        let rest = self.rest.take()?;
        let segment = match rest.bytes().position(|byte| byte == b'/') {
            Some(at) => {
                self.rest = Some(&rest[at + 1..]);
                &rest[..at]
            }
            None => rest,
        };
        Some(if self.is_encoded { percent_decode_str(segment).decode_utf8_lossy() } else { Cow::Borrowed(segment) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the `RequestInfo` of `METHOD path?query` with the expected verb, group/version, namespace, resource,
    /// name and subresource.
    fn check(line: &str, expected: &str) {
        let (method, target) = line.split_once(' ').unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let method: Method = method.parse().unwrap();
        let info = RequestInfo::new(&method, path, &Query::parse(query));
        let found = match info.is_resource_request {
            false => format!("{} non-resource", info.verb),
            true => format!(
                "{} {}/{} ns={} {} name={} sub={}",
                info.verb, info.api_group, info.api_version, info.namespace, info.resource, info.name, info.subresource
            ),
        };
        let long = if info.long_running { " long-running" } else { "" };
        let problem = info.problem.map(|problem| format!(" {problem:?}")).unwrap_or_default();
        assert_eq!(format!("{found}{long}{problem}"), expected, "{line}");
    }

    #[test]
    fn resource_path_is_parsed_as_in_upstreams_request_info() {
        check("GET /api/v1/pods", "list /v1 ns= pods name= sub=");
        check("GET /api/v1/pods?watch", "watch /v1 ns= pods name= sub= long-running");
        check("GET /api/v1/pods?watch=false", "list /v1 ns= pods name= sub=");
        check("GET /api/v1/watch/pods", "watch /v1 ns= pods name= sub= long-running");
        check("GET /api/v1/watch/namespaces/a/pods/x", "watch /v1 ns=a pods name=x sub= long-running");
        check("GET /api/v1/namespaces/a/pods/x?watch=true", "get /v1 ns=a pods name=x sub=");
        check("GET /api/v1/namespaces/a/pods/x/log", "get /v1 ns=a pods name=x sub=log long-running");
        check("POST /api/v1/namespaces/a/pods/x/exec", "create /v1 ns=a pods name=x sub=exec long-running");
        check("GET /api/v1/nodes/n/proxy/a/b", "get /v1 ns= nodes name=n sub=proxy long-running");
        check("POST /apis/apps/v1/namespaces/a/deployments", "create apps/v1 ns=a deployments name= sub=");
        check("PUT /apis/apps/v1/namespaces/a/deployments/d/scale", "update apps/v1 ns=a deployments name=d sub=scale");
        check("DELETE /api/v1/namespaces/a/pods", "deletecollection /v1 ns=a pods name= sub=");
        check("DELETE /api/v1/namespaces/a/pods/x", "delete /v1 ns=a pods name=x sub=");
        check("PATCH /api/v1/nodes/n", "patch /v1 ns= nodes name=n sub=");
        check("OPTIONS /api/v1/pods", " /v1 ns= pods name= sub=");
        check("GET /api/v1/nonsense", "list /v1 ns= nonsense name= sub=");
        check(
            "GET /apis/g.example/v1/clusterroles/system%3Anode",
            "get g.example/v1 ns= clusterroles name=system:node sub=",
        );
    }

    #[test]
    fn request_for_a_namespace_object_has_its_name_as_namespace() {
        check("GET /api/v1/namespaces", "list /v1 ns= namespaces name= sub=");
        check("GET /api/v1/namespaces/a", "get /v1 ns=a namespaces name=a sub=");
        check("PUT /api/v1/namespaces/a/finalize", "update /v1 ns=a namespaces name=a sub=finalize");
        check("GET /api/v1/namespaces/a/status", "get /v1 ns=a namespaces name=a sub=status");
        check("GET /api/v1/namespaces/a/namespaces/b", "get /v1 ns=a namespaces name=b sub=");
    }

    #[test]
    fn field_selector_on_one_name_sets_the_name_of_the_request() {
        check("GET /api/v1/pods?fieldSelector=metadata.name%3Dx", "list /v1 ns= pods name=x sub=");
        check(
            "GET /api/v1/pods?watch=1&fieldSelector=metadata.name%3Dx",
            "watch /v1 ns= pods name=x sub= long-running",
        );
        check("GET /api/v1/pods?fieldSelector=metadata.name!%3Dx", "list /v1 ns= pods name= sub=");
        check("GET /api/v1/pods?fieldSelector=metadata.name%3Da%252Fb", "list /v1 ns= pods name= sub=");
        check("GET /api/v1/pods?fieldSelector=nonsense", "list /v1 ns= pods name= sub=");
        check("DELETE /api/v1/pods?fieldSelector=metadata.name%3Dx", "deletecollection /v1 ns= pods name= sub=");
        check("GET /api/v1/watch/pods?fieldSelector=metadata.name%3Dx", "watch /v1 ns= pods name= sub= long-running");
    }

    #[test]
    fn non_resource_request_has_the_lowercase_method_as_verb() {
        for (line, verb) in [
            ("GET /", "get"),
            ("GET /api/v1", "get"),
            ("GET /apis/apps/v1/", "get"),
            ("HEAD /readyz/ping", "head"),
            ("POST /version", "post"),
            ("GET /openapi/v3/apis/apps/v1?watch=true", "get"),
            ("PURGE /metrics", "purge"),
        ] {
            check(line, &format!("{verb} non-resource"));
        }
    }

    #[test]
    fn malformed_path_sets_the_path_problem() {
        check("GET /api/v1/watch", "watch /v1 ns=  name= sub= long-running NothingToWatch");
        check("GET /apis/apps/v1/watch/", "watch apps/v1 ns=  name= sub= long-running NothingToWatch");
        for path in ["/api/v1//pods", "/api/v1/namespaces/a%2Fb/pods", "/api/v1/pods/%ff"] {
            check(&format!("GET {path}"), "get non-resource Malformed");
        }
    }

    #[test]
    fn path_behind_a_proxy_may_have_empty_segments_and_encoded_slashes() {
        for rest in ["a//b", "/a", "a%2Fb", "..%2f..%2Fsecrets", "%ff", "%2F", "a//"] {
            check(
                &format!("GET /api/v1/namespaces/a/pods/p/proxy/{rest}"),
                "get /v1 ns=a pods name=p sub=proxy long-running",
            );
            check(
                &format!("POST /api/v1/namespaces/a/services/p:80/proxy/{rest}"),
                "create /v1 ns=a services name=p:80 sub=proxy long-running",
            );
            check(&format!("GET /api/v1/nodes/n/proxy/{rest}"), "get /v1 ns= nodes name=n sub=proxy long-running");
        }
        for path in [
            "/api/v1/namespaces/a%2Fb/pods/p/proxy/x",
            "/api/v1/namespaces/a/pods/p%2F..%2Fq/proxy/x",
            "/api/v1/namespaces/a//pods/p/proxy/x",
            "/api/v1/namespaces/a/pods//proxy/x",
            "/api/v1/namespaces/a/pods/p/proxy%2Fx",
            "/api/v1/namespaces/a/pods/p//proxy/x",
            "/api/v1/namespaces/a/pods/p/log/x//y",
            "/api/v1/namespaces/a/pods/p/%70roxy/x//y",
            "/api/v1/namespaces/a/secrets/p/proxy/x//y",
            "/api/v1/watch/nodes/proxy//x",
            "/api/v1/nodes//proxy/x",
            "/apis/v1/nodes/n/proxy/x//y",
            "/api/%2F/nodes/n/proxy/x",
        ] {
            check(&format!("GET {path}"), "get non-resource Malformed");
        }
    }

    #[test]
    fn request_info_of_a_plain_path_borrows_its_strings() {
        let query = Query::default();
        let info = RequestInfo::new(&Method::GET, "/apis/apps/v1/namespaces/a/deployments/d/scale", &query);
        let place = [&info.api_group, &info.api_version, &info.namespace];
        let texts =
            [&info.verb, &info.resource, &info.name, &info.path_name, &info.subresource].into_iter().chain(place);
        assert!(texts.into_iter().all(|text| matches!(text, Cow::Borrowed(_))));
    }
}
