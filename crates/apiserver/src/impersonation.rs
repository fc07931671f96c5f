//! Impersonation (`Impersonate-User` and its companions; `kubectl --as`), and the refusal that users without
//! rights receive (`pkg/endpoints/filters/impersonation`, `…/filters/authorization.go`).
//!
//! Every authenticated client may impersonate anybody. [`auth::may_do_everything`] then says what the
//! impersonated user may do: a user that this server does not know may read discovery and review its own
//! access, as in a cluster that has bound no role to it.
//!
//! Impersonation fails closed. A header that this module cannot use ends the request with 400; no header is
//! skipped, because a skipped header would let the request act as its sender.

use std::collections::BTreeMap;

use http::HeaderMap;
use listwatch_meta::status::reason;
use listwatch_meta::{GroupResource, Status, go};
use percent_encoding::percent_decode_str;

use crate::auth::{self, User};
use crate::request::Route;
use crate::request_info::RequestInfo;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The user that the headers of a request impersonate; `None` without impersonation.
///
/// # Errors
/// 400 for groups, a uid or extra values without a user name. An empty user name counts as none. So does an
/// empty one before others: kube-apiserver looks at the first alone and then acts as the sender.
pub(crate) fn user(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let all = |name: &str| headers.get_all(name).iter().map(|value| go::text(value.as_bytes())).collect::<Vec<_>>();
    let usernames = all(USER);
    let mut user = User {
        username: usernames.first().cloned().unwrap_or_default(),
        uid: all(UID).into_iter().next().unwrap_or_default(),
        groups: all(GROUP),
        extra: BTreeMap::new(),
    };
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            user.extra.entry(extra_key(key)).or_default().extend(all(name.as_str()));
        }
    }
    if user.username.is_empty() {
        let parts = !user.groups.is_empty() || !user.uid.is_empty() || !user.extra.is_empty();
        let later_name = usernames.iter().any(|name| !name.is_empty());
        return match parts || later_name {
            true => Err(Status::bad_request(format!("requested {} without impersonating a user name", print(&user)))),
            false => Ok(None),
        };
    }
    if user.groups.is_empty()
        && let Some((namespace, _)) = user.service_account()
    {
        user.groups = auth::service_account_groups(namespace);
    }
    let (authenticated, unauthenticated) = ("system:authenticated", "system:unauthenticated");
    let has = |wanted: &str| user.groups.iter().any(|group| group == wanted);
    let added = match user.username.as_str() {
        "system:anonymous" => (!has(unauthenticated)).then_some(unauthenticated),
        _ => (!has(authenticated) && !has(unauthenticated)).then_some(authenticated),
    };
    user.groups.extend(added.map(str::to_owned));
    Ok(Some(user))
}

/// The key of an extra value, from the lower-case rest of its header's name. A key with an invalid escape is
/// taken as it stands (`url.PathUnescape`).
fn extra_key(encoded: &str) -> String {
    let mut escapes = encoded.split('%').skip(1);
    let valid = escapes.all(|rest| rest.len() >= 2 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit));
    match valid {
        true => go::text(&percent_decode_str(encoded).collect::<Vec<_>>()),
        false => encoded.to_owned(),
    }
}

/// A user as `%#v` prints `user.DefaultInfo`.
fn print(user: &User) -> String {
    let list = |values: &[String]| values.iter().map(|value| go::quote(value)).collect::<Vec<_>>().join(", ");
    let groups = match user.groups.as_slice() {
        [] => "[]string(nil)".to_owned(),
        groups => format!("[]string{{{}}}", list(groups)),
    };
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{}:[]string{{{}}}", go::quote(key), list(values))).collect();
    let extra = match extra.as_slice() {
        [] => "map[string][]string(nil)".to_owned(),
        extra => format!("map[string][]string{{{}}}", extra.join(", ")),
    };
    let (name, uid) = (go::quote(&user.username), go::quote(&user.uid));
    format!("&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

/// The 403 for a user that may not do what a request asks; `None` for one that may.
pub(crate) fn refusal(user: &User, info: &RequestInfo<'_>, route: &Route<'_>) -> Option<Status> {
    if auth::may_do_everything(user) {
        return None;
    }
    let who = &user.username;
    match route {
        Route::Resource(_) => Some(forbidden(who, info)),
        Route::Unstored(asked) if asked.resource.kind.starts_with("SelfSubject") => None,
        Route::Unstored(_) => Some(forbidden(who, info)),
        Route::Metrics => {
            let text = format!("forbidden: User {who:?} cannot {} path {:?}", info.verb, info.path);
            Some(Status::failure(403, reason::FORBIDDEN, text).with_details(Default::default()))
        }
        // What there is, anybody may know.
        _ => None,
    }
}

/// The text of kube-apiserver's 403 (`responsewriters/errors.go`).
fn forbidden(who: &str, info: &RequestInfo<'_>) -> Status {
    let RequestInfo { verb, api_group: group, resource, subresource, namespace, name, .. } = info;
    let what = match &**subresource {
        "" => resource.to_string(),
        subresource => format!("{resource}/{subresource}"),
    };
    let place = match &**namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let why = format!("User {who:?} cannot {verb} resource {what:?} in API group {group:?} {place}");
    Status::forbidden(GroupResource { group, resource }, name, why)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt as _, Full};
    use serde_json::{Value, json};

    use super::*;
    use crate::ApiServer;

    fn check(headers: &[(&str, &[u8])], expected: Result<Option<Value>, &str>) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, http::HeaderValue::from_bytes(value).unwrap());
        }
        let found = user(&map).map(|user| user.map(|user| json!(user))).map_err(|status| status.message);
        assert_eq!(found, expected.map_err(str::to_owned), "{headers:?}");
    }

    fn named(username: &str, groups: &[&str]) -> Result<Option<Value>, &'static str> {
        Ok(Some(json!({"username": username, "groups": groups})))
    }

    #[test]
    fn impersonated_user_has_the_groups_of_its_kind() {
        check(&[], Ok(None));
        check(&[("Impersonate-User", b"bob")], named("bob", &["system:authenticated"]));
        check(
            &[
                ("Impersonate-User", b"bob"),
                ("Impersonate-Group", b"dev"),
                ("Impersonate-Group", b"ops"),
                ("Impersonate-Uid", b"7"),
                ("Impersonate-Extra-Example.com%2fScope", b"a"),
                ("Impersonate-Extra-Example.com%2fScope", b"b"),
            ],
            Ok(Some(json!({"username": "bob", "uid": "7", "groups": ["dev", "ops", "system:authenticated"],
                "extra": {"example.com/scope": ["a", "b"]}}))),
        );
        let account = "system:serviceaccount:n:a";
        let groups = ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"];
        check(&[("Impersonate-User", account.as_bytes())], named(account, &groups));
        check(
            &[("Impersonate-User", account.as_bytes()), ("Impersonate-Group", b"dev")],
            named(account, &["dev", "system:authenticated"]),
        );
        check(&[("Impersonate-User", b"system:anonymous")], named("system:anonymous", &["system:unauthenticated"]));
        for malformed in ["", "n", "n:", ":a", "n:a:b", "N:a", "n:A", "n.m:a", "n:b\u{f8}"] {
            let name = format!("system:serviceaccount:{malformed}");
            check(&[("Impersonate-User", name.as_bytes())], named(&name, &["system:authenticated"]));
        }
    }

    #[test]
    fn impersonation_headers_are_read_as_bytes() {
        check(&[("Impersonate-User", "b\u{f8}b".as_bytes())], named("b\u{f8}b", &["system:authenticated"]));
        // Latin-1 is not UTF-8: each byte that is not is replaced, as Go's encoder does.
        check(
            &[("Impersonate-User", b"b\xf8\xe2\x82b")],
            named("b\u{fffd}\u{fffd}\u{fffd}b", &["system:authenticated"]),
        );
        check(
            &[("Impersonate-User", b"bob"), ("Impersonate-Group", "gr\u{f8}n".as_bytes())],
            named("bob", &["gr\u{f8}n", "system:authenticated"]),
        );
        let extra = |name: &str, key: &str| {
            let user = json!({"username": "bob", "groups": ["system:authenticated"], "extra": {key: ["\u{f8}"]}});
            check(&[("Impersonate-User", b"bob"), (name, "\u{f8}".as_bytes())], Ok(Some(user)));
        };
        extra("Impersonate-Extra-", "");
        extra("Impersonate-Extra-A%2Fb%C3%B8", "a/b\u{f8}");
        extra("Impersonate-Extra-%41", "A");
        extra("Impersonate-Extra-a%ff", "a\u{fffd}");
        for invalid in ["a%2fb%", "a%2fb%4", "a%2fb%zz", "%%41"] {
            extra(&format!("Impersonate-Extra-{invalid}"), invalid);
        }
    }

    #[test]
    fn impersonation_without_a_user_name_is_refused() {
        let refused = |headers: &[(&str, &[u8])], user: &str| {
            let text = format!("requested &user.DefaultInfo{{{user}}} without impersonating a user name");
            check(headers, Err(text.as_str()));
        };
        let none = ("[]string(nil)", "map[string][]string(nil)");
        let user =
            |uid: &str, groups: &str, extra: &str| format!("Name:\"\", UID:\"{uid}\", Groups:{groups}, Extra:{extra}");
        refused(&[("Impersonate-Group", b"dev")], &user("", "[]string{\"dev\"}", none.1));
        refused(&[("Impersonate-Group", "gr\u{f8}n".as_bytes())], &user("", "[]string{\"gr\u{f8}n\"}", none.1));
        refused(&[("Impersonate-Group", b"")], &user("", "[]string{\"\"}", none.1));
        refused(&[("Impersonate-Uid", b"7")], &user("7", none.0, none.1));
        refused(&[("Impersonate-Uid", "\u{f8}".as_bytes())], &user("\u{f8}", none.0, none.1));
        refused(&[("Impersonate-Extra-A", b"b")], &user("", none.0, "map[string][]string{\"a\":[]string{\"b\"}}"));
        refused(
            &[
                ("Impersonate-User", b""),
                ("Impersonate-Uid", b"7"),
                ("Impersonate-Group", b"a"),
                ("Impersonate-Group", b"b"),
            ],
            &user("7", "[]string{\"a\", \"b\"}", none.1),
        );
        refused(&[("Impersonate-User", b""), ("Impersonate-User", b"bob")], &user("", none.0, none.1));
        // Empty values alone impersonate nobody, as in kube-apiserver.
        check(&[("Impersonate-User", b"")], Ok(None));
        check(&[("Impersonate-Uid", b"")], Ok(None));
        // Of several names the first counts.
        check(&[("Impersonate-User", b"bob"), ("Impersonate-User", b"admin")], named("bob", &["system:authenticated"]));
    }

    #[tokio::test]
    async fn impersonated_user_may_do_what_its_access_review_allows() {
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
        let foreign: &[(&str, &str)] = &[("impersonate-user", "b\u{f8}b")];
        let malformed: &[(&str, &str)] = &[("impersonate-user", "system:serviceaccount:x")];
        let master: &[(&str, &str)] = &[("impersonate-user", "bob"), ("impersonate-group", "system:masters")];
        let account: &[(&str, &str)] = &[("impersonate-user", "system:serviceaccount:default:a")];
        let ask = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}});
        for (who, allowed) in
            [(&[][..], true), (bob, false), (foreign, false), (malformed, false), (master, true), (account, true)]
        {
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
        for part in ["impersonate-group", "impersonate-uid", "impersonate-extra-a"] {
            assert_eq!(send(&[(part, "\u{f8}")], "GET /api", Value::Null).await.0, 400, "{part}");
        }
        let review = json!({"spec": {"user": "system:serviceaccount:x", "resourceAttributes": {"verb": "list", "resource": "pods"}}});
        let (_, review) = send(&[], "POST /apis/authorization.k8s.io/v1/subjectaccessreviews", review).await;
        assert_eq!(review["status"]["allowed"], false, "a malformed name is no service account's");
    }
}
