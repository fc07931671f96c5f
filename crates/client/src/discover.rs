//! Finds a resource by any of its names through legacy discovery, which every server supports:
//! [`Client::discover`].
//!
//! Only the necessary documents are fetched: `pods` needs the core group, `deployments.apps` the
//! group `apps`. A group that does not answer (an aggregated API whose server is down) hides only
//! its own resources.

use std::fmt;

use tokio::time::Instant;

use crate::client::{Client, GET_TRIES_MAX, Tries, wait_before_retry};
use crate::discovery::{ApiGroup, ResourceName, parse_group_list, parse_resource_list};
use crate::problem::Problem;
use crate::resource::ApiResource;

/// The maximum number of versions of all groups. Each may cost a request.
const GROUP_VERSIONS_MAX: usize = 1_000;

/// A name does not refer to a resource that can be watched.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DiscoverError {
    /// The server has no resource of this name.
    Unknown {
        /// The name.
        name: String,
        /// The groups that did not answer and may contain the resource.
        silent: Vec<String>,
        /// Why a group did not answer: the first temporary failure, or else the first one that is not
        /// [final](Problem::is_final), or else the first one.
        problem: Option<Problem>,
    },
    /// The resource exists but cannot be listed and watched.
    NotWatchable {
        /// The qualified name of the resource.
        name: String,
    },
    /// The server did not answer.
    Unreachable(Problem),
}

impl fmt::Display for DiscoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiscoverError::Unknown { name, silent, .. } if silent.is_empty() => {
                write!(f, "the server doesn't have a resource type {name:?}")
            }
            DiscoverError::Unknown { name, silent, .. } => write!(
                f,
                "the server doesn't have a resource type {name:?}, unless in a group that did not answer: {}",
                silent.join(", ")
            ),
            DiscoverError::NotWatchable { name } => write!(f, "{name} cannot be listed and watched"),
            DiscoverError::Unreachable(problem) => problem.fmt(f),
        }
    }
}

impl std::error::Error for DiscoverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DiscoverError::Unreachable(problem) => problem.source(),
            DiscoverError::Unknown { problem, .. } => problem.as_ref().map(|problem| problem as _),
            DiscoverError::NotWatchable { .. } => None,
        }
    }
}

impl DiscoverError {
    /// True if the server or a group that may have the resource is overloaded or unavailable, so that a retry may
    /// succeed: [`Problem::is_temporary`].
    pub fn is_temporary(&self) -> bool {
        match self {
            DiscoverError::Unknown { problem, .. } => problem.as_ref().is_some_and(Problem::is_temporary),
            DiscoverError::NotWatchable { .. } => false,
            DiscoverError::Unreachable(problem) => problem.is_temporary(),
        }
    }
}

impl Client {
    /// Finds a resource by plural, singular, short name or kind, optionally with its group, or its
    /// version and group: `pods`, `po`, `Pod`, `deploy.apps`, `deployments.v1.apps`. If several
    /// resources share a name, the core group precedes the others, which follow in the server's
    /// order. Without a version, the group's preferred version is used if it has the resource, else
    /// the first version that has it. Each document is requested with the retries of [`Client::get`], which share
    /// [`GET_RETRY_LIMIT`](crate::GET_RETRY_LIMIT). A group that requests a later try is asked again after all other
    /// groups.
    ///
    /// # Errors
    /// [`DiscoverError`].
    pub async fn discover(&self, name: &str) -> Result<ApiResource, DiscoverError> {
        let wanted = ResourceName::parse(name);
        let bounds = Tries::from_now();
        if wanted.may_match("", "v1") {
            let core = self.resources("/api/v1", bounds).await.map_err(DiscoverError::Unreachable)?;
            if let Some(found) = pick(&wanted, core)? {
                return Ok(found);
            }
        }
        let document = self.get_document_within("/apis", bounds).await.map_err(DiscoverError::Unreachable)?;
        let groups = parse_group_list(&document).map_err(|error| {
            let problem = Problem::malformed(format!("/apis is no APIGroupList: {error}"));
            DiscoverError::Unreachable(problem.caused_by(error))
        })?;
        check_number(groups.iter().map(|group| group.versions.len()).sum())?;
        // A group whose server is overloaded must not delay a resource of the next group, so that the first pass does
        // not wait. The second pass asks only the groups that request a later try.
        let mut silent = Vec::new();
        for group in &groups {
            match self.search(&wanted, group, Tries { max: 1, ..bounds }).await? {
                Searched::Found(found) => return Ok(found),
                Searched::Absent => {}
                Searched::Silent(problem) => {
                    let retry_at = wait_before_retry(&problem).map(|wait| Instant::now() + wait);
                    silent.push((group, problem, retry_at));
                }
            }
        }
        let mut still_silent = Vec::new();
        for (group, problem, retry_at) in silent {
            let Some(retry_at) = retry_at.filter(|at| (*at).max(Instant::now()) <= bounds.until) else {
                still_silent.push((group, problem));
                continue;
            };
            tokio::time::sleep_until(retry_at).await;
            match self.search(&wanted, group, Tries { max: GET_TRIES_MAX - 1, ..bounds }).await? {
                Searched::Found(found) => return Ok(found),
                Searched::Absent => {}
                Searched::Silent(problem) => still_silent.push((group, problem)),
            }
        }
        let silent = still_silent.iter().map(|(group, _)| group.name.clone()).collect();
        let problem = still_silent.into_iter().map(|(_, problem)| problem).reduce(more_hopeful);
        Err(DiscoverError::Unknown { name: name.to_owned(), silent, problem })
    }

    /// Searches one group. The preferred version is the first one. As in kubectl, a resource may exist only in another
    /// one.
    async fn search(&self, wanted: &ResourceName, group: &ApiGroup, bounds: Tries) -> Result<Searched, DiscoverError> {
        let mut silent: Option<Problem> = None;
        for version in group.versions.iter().filter(|version| wanted.may_match(&group.name, version)) {
            let path = format!("/apis/{}/{version}", group.name);
            match self.resources(&path, bounds).await {
                Ok(resources) => {
                    if let Some(found) = pick(wanted, resources)? {
                        return Ok(Searched::Found(found));
                    }
                }
                Err(problem) => {
                    tracing::debug!(%problem, path, "a group did not answer");
                    let is_absent = problem.status().is_some_and(|status| status.code == 404);
                    silent = Some(match silent {
                        Some(known) => more_hopeful(known, problem),
                        None => problem,
                    });
                    // If this version exists, a caller must not keep another one.
                    if !is_absent {
                        break;
                    }
                }
            }
        }
        Ok(silent.map_or(Searched::Absent, Searched::Silent))
    }

    async fn resources(&self, path: &str, bounds: Tries) -> Result<Vec<ApiResource>, Problem> {
        let document = self.get_document_within(path, bounds).await?;
        parse_resource_list(&document)
            .map_err(|error| Problem::malformed(format!("{path} is no APIResourceList: {error}")).caused_by(error))
    }
}

/// The result of a search in one group.
enum Searched {
    Found(ApiResource),
    /// The group does not have the resource.
    Absent,
    /// A version did not answer, and no other one has the resource.
    Silent(Problem),
}

/// The one of two failures after which the resource is more likely to be found later: a temporary one, or else one that
/// is not final, or else the first one.
fn more_hopeful(first: Problem, second: Problem) -> Problem {
    let hope = |problem: &Problem| (problem.is_temporary(), !problem.is_final());
    if hope(&second) > hope(&first) { second } else { first }
}

fn check_number(versions: usize) -> Result<(), DiscoverError> {
    if versions <= GROUP_VERSIONS_MAX {
        return Ok(());
    }
    let problem = Problem::malformed(format!("/apis names more than {GROUP_VERSIONS_MAX} versions"));
    Err(DiscoverError::Unreachable(problem))
}

fn pick(wanted: &ResourceName, resources: Vec<ApiResource>) -> Result<Option<ApiResource>, DiscoverError> {
    let mut matching: Vec<ApiResource> = resources.into_iter().filter(|resource| wanted.matches(resource)).collect();
    // A plural name precedes an equal short name.
    matching.sort_by_key(|resource| resource.plural != wanted.name);
    match matching.iter().position(ApiResource::can_watch) {
        Some(position) => Ok(Some(matching.swap_remove(position))),
        None => match matching.first() {
            Some(resource) => Err(DiscoverError::NotWatchable { name: resource.qualified_name() }),
            None => Ok(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::error::Error as _;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use http::{Request, Response, StatusCode};
    use http_body_util::Full;

    use super::*;
    use crate::transport::{RequestBody, ServiceTransport};

    fn resource(plural: &str, short: &str, verbs: &[&str]) -> ApiResource {
        ApiResource {
            version: "v1".to_owned(),
            plural: plural.to_owned(),
            short_names: vec![short.to_owned()],
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..ApiResource::default()
        }
    }

    #[test]
    fn plural_name_precedes_short_name_and_unwatchable_resource_is_an_error() {
        let both = || vec![resource("events", "ev", &["list", "watch"]), resource("ev", "x", &["list", "watch"])];
        let wanted = ResourceName::parse("ev");
        assert_eq!(pick(&wanted, both()).unwrap().unwrap().plural, "ev");
        let bindings = vec![resource("bindings", "b", &["create"])];
        let error = pick(&ResourceName::parse("bindings"), bindings).unwrap_err();
        assert_eq!(error, DiscoverError::NotWatchable { name: "bindings".to_owned() });
        assert_eq!(pick(&ResourceName::parse("pods"), both()), Ok(None));
    }

    /// A server with discovery documents only, which records the requested paths.
    #[derive(Clone, Default)]
    struct Documents(Arc<Mutex<Vec<String>>>);

    impl Documents {
        fn answer(path: &str) -> Option<String> {
            let groups = [
                ("apps", &["v1", "v1beta1"][..]),
                ("batch", &["v1", "v1beta1"]),
                ("extensions", &["v1beta1"]),
                ("away.example.com", &["v1", "v2"]),
                ("new.example.com", &["v2", "v1"]),
            ];
            let plurals = match path {
                "/apis" => {
                    let group = |(name, versions): (&str, &[&str])| {
                        let versions = versions.iter().map(|version| serde_json::json!({"version": version}));
                        serde_json::json!({"name": name, "versions": versions.collect::<Vec<_>>()})
                    };
                    return Some(serde_json::json!({"groups": groups.map(group)}).to_string());
                }
                "/api/v1" => "pods",
                "/apis/apps/v1" | "/apis/apps/v1beta1" | "/apis/extensions/v1beta1" => "deployments",
                "/apis/batch/v1" => "jobs",
                "/apis/batch/v1beta1" => "cronjobs",
                "/apis/new.example.com/v1" => "gadgets",
                "/apis/away.example.com/v2" => "pods",
                _ => return None,
            };
            let version = path.trim_start_matches("/apis/").trim_start_matches("/api/");
            let resource = serde_json::json!({"name": plurals, "verbs": ["list", "watch"]});
            Some(serde_json::json!({"groupVersion": version, "resources": [resource]}).to_string())
        }
    }

    impl tower_service::Service<Request<RequestBody>> for Documents {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
            let path = request.uri().path();
            self.0.lock().unwrap().push(path.to_owned());
            let answer = Documents::answer(path);
            let mut response = Response::new(Full::from(answer.clone().unwrap_or_default()));
            if answer.is_none() {
                let is_absent = path.starts_with("/apis/new.example.com/");
                *response.status_mut() =
                    if is_absent { StatusCode::NOT_FOUND } else { StatusCode::SERVICE_UNAVAILABLE };
            }
            std::future::ready(Ok(response))
        }
    }

    /// The order is that of kubectl (`NewDiscoveryRESTMapper` of client-go): groups in the server's order, and in each
    /// group the preferred version first, then the others, "in case there are resources that only exist in those".
    #[tokio::test]
    async fn resource_is_searched_in_the_preferred_version_of_each_group_then_in_the_others() {
        async fn check(name: &str, expected: Result<&str, &[&str]>, requests: &[&str]) {
            let server = Documents::default();
            let client = Client::with_transport(ServiceTransport::new(server.clone()), "default");
            let found = client.discover(name).await.map(|resource| resource.api_version());
            let found = found.map_err(|error| match error {
                DiscoverError::Unknown { name: unknown, silent, .. } if unknown == name => silent,
                other => panic!("{name}: {other}"),
            });
            let expected = expected.map(str::to_owned);
            let silent = |groups: &[&str]| groups.iter().map(|group| (*group).to_owned()).collect();
            assert_eq!(found, expected.map_err(silent), "{name}");
            assert_eq!(*server.0.lock().unwrap(), requests, "{name}");
        }
        check("pods", Ok("v1"), &["/api/v1"]).await;
        check("deployments", Ok("apps/v1"), &["/api/v1", "/apis", "/apis/apps/v1"]).await;
        check("deployments.apps", Ok("apps/v1"), &["/apis", "/apis/apps/v1"]).await;
        check("deployments.v1beta1.apps", Ok("apps/v1beta1"), &["/apis", "/apis/apps/v1beta1"]).await;
        check("deployments.extensions", Ok("extensions/v1beta1"), &["/apis", "/apis/extensions/v1beta1"]).await;
        check("cronjobs.batch", Ok("batch/v1beta1"), &["/apis", "/apis/batch/v1", "/apis/batch/v1beta1"]).await;
        check("cronjobs.v1.batch", Err(&[]), &["/apis", "/apis/batch/v1"]).await;
        check("pods.v2.apps", Err(&[]), &["/apis"]).await;
        // A group that fails is not asked for its other versions: a caller would keep one of them. A 404 is no failure.
        let first = ["/apis", "/apis/away.example.com/v1"];
        check("pods.away.example.com", Err(&["away.example.com"]), &first).await;
        let both = ["/apis", "/apis/new.example.com/v2", "/apis/new.example.com/v1"];
        check("gadgets.new.example.com", Ok("new.example.com/v1"), &both).await;
    }

    /// A server whose core group and group `away.example.com` answer `429` with `Retry-After` for so many requests of
    /// each document.
    #[derive(Clone)]
    struct Overloaded {
        documents: Documents,
        core: usize,
        away: usize,
    }

    impl tower_service::Service<Request<RequestBody>> for Overloaded {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
            let path = request.uri().path().to_owned();
            let answered = self.documents.call(request);
            let count = self.documents.0.lock().unwrap().iter().filter(|asked| **asked == path).count();
            let refusals = match path.as_str() {
                "/api/v1" => self.core,
                _ if path.starts_with("/apis/away.example.com/") => self.away,
                _ => 0,
            };
            if count <= refusals {
                let mut response = Response::new(Full::default());
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("9"));
                return std::future::ready(Ok(response));
            }
            answered
        }
    }

    #[tokio::test(start_paused = true)]
    async fn discovery_waits_for_an_overloaded_server_within_one_time_limit() {
        async fn check(name: &str, refusals: (usize, usize), expected: Result<&str, bool>, seconds: u64) {
            let (core, away) = refusals;
            let server = Overloaded { documents: Documents::default(), core, away };
            let client = Client::with_transport(ServiceTransport::new(server), "default");
            let begun = Instant::now();
            let found = client.discover(name).await.map(|resource| resource.api_version());
            let found = found.map_err(|error| error.is_temporary());
            assert_eq!(found.as_deref().map_err(|temporary| *temporary), expected, "{name}, {refusals:?}");
            assert_eq!(begun.elapsed().as_secs(), seconds, "{name}, {refusals:?}");
        }
        check("pods", (2, 0), Ok("v1"), 18).await;
        check("pods", (99, 0), Err(true), 54).await;
        // The documents of one discovery share the limit.
        check("crontabs", (4, 99), Err(true), 54).await;
        check("crontabs.away.example.com", (0, 99), Err(true), 54).await;
        check("crontabs.apps", (99, 99), Err(false), 0).await;
        // An overloaded group is asked again only if no other group has the resource.
        check("gadgets", (0, 99), Ok("new.example.com/v1"), 0).await;
        check("pods.v2.away.example.com", (0, 2), Ok("away.example.com/v2"), 18).await;
        check("crontabs.v2.away.example.com", (0, 2), Err(false), 18).await;
    }

    #[tokio::test]
    async fn unknown_resource_is_a_temporary_error_only_if_a_group_fails_temporarily() {
        let client = Client::with_transport(ServiceTransport::new(Documents::default()), "default");
        for (name, expected) in [("x.away.example.com", true), ("x.new.example.com", false), ("x.apps", false)] {
            let error = client.discover(name).await.unwrap_err();
            assert_eq!(error.is_temporary(), expected, "{name}");
        }
    }

    #[test]
    fn unknown_resource_has_the_failure_that_a_retry_may_mend() {
        let refused = |code| Problem::refused(listwatch_meta::Status::failure(code, "", "no"));
        // The failures from the least hopeful one to the most hopeful one.
        let failures = [refused(404), refused(500), refused(503)];
        for (less, more) in [(0, 1), (0, 2), (1, 2)] {
            let (less, more) = (&failures[less], &failures[more]);
            assert_eq!(more_hopeful(less.clone(), more.clone()), *more);
            assert_eq!(more_hopeful(more.clone(), less.clone()), *more);
        }
        assert_eq!(more_hopeful(refused(403), refused(404)), refused(403));
        assert_eq!(more_hopeful(Problem::malformed("x"), refused(500)), Problem::malformed("x"));
    }

    #[test]
    fn group_list_may_name_a_thousand_versions() {
        assert_eq!(check_number(1_000), Ok(()));
        let error = check_number(1_001).unwrap_err().to_string();
        assert!(error.contains("/apis names more than 1000 versions"), "{error}");
    }

    #[test]
    fn discover_error_names_groups_that_did_not_answer_and_has_its_cause_as_source() {
        fn check(error: &DiscoverError, expected: &str) {
            assert_eq!(error.to_string(), expected);
        }
        let unknown = |silent: &[&str]| DiscoverError::Unknown {
            name: "x".to_owned(),
            silent: silent.iter().map(|group| (*group).to_owned()).collect(),
            problem: None,
        };
        check(&unknown(&[]), r#"the server doesn't have a resource type "x""#);
        check(
            &unknown(&["a", "b"]),
            r#"the server doesn't have a resource type "x", unless in a group that did not answer: a, b"#,
        );
        check(&DiscoverError::NotWatchable { name: "x.g".to_owned() }, "x.g cannot be listed and watched");
        let unreachable = DiscoverError::Unreachable(Problem::disconnected("reset").caused_by("below"));
        check(&unreachable, "no connection to the server: reset");
        assert_eq!(unreachable.source().map(ToString::to_string).as_deref(), Some("below"));
        assert!(unknown(&[]).source().is_none());
    }
}
