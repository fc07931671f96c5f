//! Asking in somebody else's name (`Impersonate-User` and its like; `kubectl --as`), and what somebody is
//! answered who may nothing (`pkg/endpoints/filters/impersonation`, `…/filters/authorization.go`).
//!
//! Whoever is let in may do everything, and so take any name. What a name may do is said by
//! [`User::may_do_everything`]: a user whom this server does not know may ask who it is, what it may do,
//! and what there is, as in a cluster where nobody gave it a role.

use std::collections::BTreeMap;

use http::{HeaderMap, Method};
use listwatch_meta::Status;
use listwatch_meta::status::reason;
use listwatch_wire::query::Query;
use percent_encoding::percent_decode_str;

use crate::auth::User;
use crate::request::{ResourceRoute, Route, Verb};
use crate::service::is_watch;
use crate::write::WriteVerb;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// Who asks by the headers of a request; `None` for whoever sent it.
///
/// # Errors
/// 400 for parts of somebody without a name.
pub(crate) fn user(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let all = |name: &str| -> Vec<String> {
        headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
    };
    let first = |name: &str| all(name).into_iter().next().unwrap_or_default();
    let (username, uid, mut groups) = (first(USER), first(UID), all(GROUP));
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            let decoded = percent_decode_str(key).decode_utf8().map_or_else(|_| key.to_owned(), Into::into);
            extra.entry(decoded).or_default().extend(all(name.as_str()));
        }
    }
    if username.is_empty() {
        let nothing = groups.is_empty() && uid.is_empty() && extra.is_empty();
        let why = "requested groups, a uid or extra values without impersonating a user";
        return if nothing { Ok(None) } else { Err(Status::bad_request(why)) };
    }
    let account = username.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    if let (true, Some((namespace, _))) = (groups.is_empty(), account) {
        groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    let (known, unknown) = ("system:authenticated", "system:unauthenticated");
    let has = |wanted: &str| groups.iter().any(|group| group == wanted);
    let added = match username.as_str() {
        "system:anonymous" => (!has(unknown)).then_some(unknown),
        _ => (!has(known) && !has(unknown)).then_some(known),
    };
    groups.extend(added.map(str::to_owned));
    Ok(Some(User { username, uid, groups, extra }))
}

/// What a user is told who may not do what a request asks; `None` where it may.
pub(crate) fn refusal(user: &User, method: &Method, path: &str, route: &Route, query: &Query<'_>) -> Option<Status> {
    if user.may_do_everything() {
        return None;
    }
    let who = &user.username;
    match route {
        Route::Resource(asked) => Some(forbidden(who, method, asked, is_watch(asked, query))),
        Route::Unstored(asked) if asked.resource.kind.starts_with("SelfSubject") => None,
        Route::Unstored(asked) => Some(forbidden(who, method, asked, false)),
        Route::Metrics => {
            let verb = method.as_str().to_lowercase();
            let text = format!("forbidden: User {who:?} cannot {verb} path {path:?}");
            Some(Status::failure(403, reason::FORBIDDEN, text).with_details(Default::default()))
        }
        // What there is, anybody may know.
        _ => None,
    }
}

fn forbidden(who: &str, method: &Method, asked: &ResourceRoute, watches: bool) -> Status {
    let verb = match (asked.verb, method.as_str()) {
        _ if watches => "watch",
        (Verb::Collection, _) => "list",
        (Verb::Write(WriteVerb::DeleteCollection), _) => "deletecollection",
        (_, "POST") => "create",
        (_, "PUT") => "update",
        (_, "PATCH") => "patch",
        (_, "DELETE") => "delete",
        _ => "get",
    };
    let resource = &asked.resource;
    let what = match &asked.subresource {
        Some(subresource) => format!("{}/{subresource}", resource.plural),
        None => resource.plural.clone(),
    };
    let place = match &asked.namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let name = asked.name.as_deref().unwrap_or_default();
    let why = format!("User {who:?} cannot {verb} resource {what:?} in API group {:?} {place}", resource.group);
    Status::forbidden(resource.gr(), name, why)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt as _, Full};
    use serde_json::{Value, json};

    use super::*;
    use crate::ApiServer;

    fn check(headers: &[(&str, &str)], expected: Result<Option<Value>, &str>) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let found = user(&map).map(|user| user.map(|user| json!(user))).map_err(|status| status.message);
        assert_eq!(found, expected.map_err(str::to_owned), "{headers:?}");
    }

    #[test]
    fn a_name_comes_with_its_groups() {
        check(&[], Ok(None));
        check(&[("Impersonate-User", "bob")], Ok(Some(json!({"username": "bob", "groups": ["system:authenticated"]}))));
        check(
            &[
                ("Impersonate-User", "bob"),
                ("Impersonate-Group", "dev"),
                ("Impersonate-Group", "ops"),
                ("Impersonate-Uid", "7"),
                ("Impersonate-Extra-Example.com%2fScope", "a"),
                ("Impersonate-Extra-Example.com%2fScope", "b"),
            ],
            Ok(Some(json!({"username": "bob", "uid": "7", "groups": ["dev", "ops", "system:authenticated"],
                "extra": {"example.com/scope": ["a", "b"]}}))),
        );
        let accounts = ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"];
        check(
            &[("Impersonate-User", "system:serviceaccount:n:a")],
            Ok(Some(json!({"username": "system:serviceaccount:n:a", "groups": accounts}))),
        );
        check(
            &[("Impersonate-User", "system:anonymous")],
            Ok(Some(json!({"username": "system:anonymous", "groups": ["system:unauthenticated"]}))),
        );
        for part in [("Impersonate-Group", "dev"), ("Impersonate-Uid", "7"), ("Impersonate-Extra-A", "b")] {
            check(&[part], Err("requested groups, a uid or extra values without impersonating a user"));
        }
    }

    #[tokio::test]
    async fn a_name_may_do_what_is_answered_that_it_may() {
        let server = ApiServer::builder().build().await.unwrap();
        let send = async |headers: &[(&str, &str)], line: &str, body: Value| -> (u16, Value) {
            let (method, path) = line.split_once(' ').unwrap();
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let response = server.service().handle(request.body(Full::new(Bytes::from(body))).unwrap()).await;
            let code = response.status().as_u16();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            (code, serde_json::from_slice(&bytes).unwrap_or_default())
        };
        let bob: &[(&str, &str)] = &[("impersonate-user", "bob")];
        let master: &[(&str, &str)] = &[("impersonate-user", "bob"), ("impersonate-group", "system:masters")];
        let account: &[(&str, &str)] = &[("impersonate-user", "system:serviceaccount:default:a")];
        let ask = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}});
        for (who, allowed) in [(&[][..], true), (bob, false), (master, true), (account, true)] {
            let line = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            let (code, review) = send(who, line, ask.clone()).await;
            assert_eq!((code, &review["status"]["allowed"]), (201, &json!(allowed)), "{who:?}");
            let (code, _) = send(who, "GET /api/v1/pods", Value::Null).await;
            assert_eq!(code, if allowed { 200 } else { 403 }, "{who:?} was answered {allowed}");
        }
        let (_, me) = send(bob, "POST /apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await;
        assert_eq!(me["status"]["userInfo"]["username"], "bob");
        let rules = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
        let (_, rules) = send(bob, rules, json!({"spec": {"namespace": "default"}})).await;
        assert!(!rules["status"].to_string().contains("\"*\""), "bob may everything: {rules}");
        for (line, text) in [
            (
                "GET /api/v1/namespaces/a/pods/x",
                "pods \"x\" is forbidden: User \"bob\" cannot get resource \"pods\" in API group \"\" in the namespace \"a\"",
            ),
            (
                "GET /api/v1/namespaces/a/pods?watch=true",
                "pods is forbidden: User \"bob\" cannot watch resource \"pods\" in API group \"\" in the namespace \"a\"",
            ),
            (
                "DELETE /apis/rbac.authorization.k8s.io/v1/clusterroles",
                "clusterroles.rbac.authorization.k8s.io is forbidden: User \"bob\" cannot deletecollection resource \"clusterroles\" in API group \"rbac.authorization.k8s.io\" at the cluster scope",
            ),
            (
                "GET /apis/apps/v1/namespaces/a/deployments/d/scale",
                "deployments.apps \"d\" is forbidden: User \"bob\" cannot get resource \"deployments/scale\" in API group \"apps\" in the namespace \"a\"",
            ),
            ("GET /metrics", "forbidden: User \"bob\" cannot get path \"/metrics\""),
        ] {
            let (code, status) = send(bob, line, Value::Null).await;
            assert_eq!((code, status["message"].as_str()), (403, Some(text)), "{line}");
        }
        for open in ["GET /api", "GET /apis/apps/v1", "GET /version", "GET /readyz"] {
            assert_eq!(send(bob, open, Value::Null).await.0, 200, "{open}");
        }
        assert_eq!(send(&[("impersonate-group", "g")], "GET /api", Value::Null).await.0, 400);
    }
}
