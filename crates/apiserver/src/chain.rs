//! The request chain: [`serve`] calls the filters in kube-apiserver's order (`DefaultBuildHandlerChain` in
//! `apiserver/pkg/server/config.go`), and then the handler.
//!
//! ```text
//!  Request
//!     │  panic_recovery     a panic becomes a 500
//!     │  audit              the request's id, on every response; audit events   500
//!     │  request_drain      a stopping server takes no new requests   429
//!     │  cache_control      responses are private
//!     │  RequestInfo        the verb, resource and name of the request
//!     │  request_deadline   ?timeout=, or 60 s                     400, 504
//!     │  warnings           collects Warning headers
//!     │  authentication     which user sent it                     401
//!     │  impersonation      which user it acts as                  400, 403
//!     │  flow_control       a seat of its priority level           429
//!     │  authorization      whether that user may do it            403
//!     ▼
//!  handlers                 routing, then read, write, watch, documents
//! ```
//!
//! Each filter is a function that returns a value for the next filter, or a [`Rejection`]
//! (`docs/decisions/0013-request-chain.md`).

use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use http::header::STRICT_TRANSPORT_SECURITY;
use http::request::Parts;
use http::{HeaderValue, Response};
use listwatch_access::AuthenticationRecorder;
use listwatch_wire::query::Query;
use tokio::time::Instant;

use crate::filters::audit::RequestAudit;
use crate::filters::rejection::Rejection;
use crate::filters::request_deadline::RequestDeadline;
use crate::filters::warnings::WarningRecorder;
use crate::filters::{
    audit, authentication, authorization, cache_control, flow_control, impersonation, panic_recovery,
};
use crate::flow_control::FlowRequest;
use crate::handlers::context::RequestContext;
use crate::handlers::handle;
use crate::request::info::RequestInfo;
use crate::request::upload::{RequestBody, Upload};
use crate::response::body::Body;
use crate::response::extensions::{GoAway, Unauthenticated};
use crate::response::preferences::ResponsePreferences;
use crate::shared::Shared;

/// Runs a request through the filters and the handler.
pub(crate) async fn serve<B: RequestBody>(
    shared: &Arc<Shared>,
    parts: &Parts,
    upload: &mut Upload<B>,
) -> Response<Body> {
    let audit_id = audit::id(&parts.headers);
    let audit = RequestAudit::new(shared.audit.as_ref(), &audit_id);
    // The large future is boxed, so that a connection without a request does not hold its memory.
    let served = match shared.request_drain.admit(parts) {
        Ok(_active) => {
            panic_recovery::recover(Box::pin(serve_with_info(shared, parts, &audit_id, &audit, upload))).await
        }
        Err(rejection) => Ok(*rejection),
    };
    let mut response = match served {
        Ok(mut response) => {
            audit.respond(&mut response).await;
            response
        }
        Err(panic) => {
            audit.panicked(&panic).await;
            panic_recovery::response()
        }
    };
    drop(audit);
    audit::add(response.headers_mut(), audit_id);
    cache_control::add(response.headers_mut());
    response
}

/// Returns the current time, in seconds since 1970.
fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

async fn serve_with_info<B: RequestBody>(
    shared: &Arc<Shared>,
    parts: &Parts,
    audit_id: &HeaderValue,
    audit: &RequestAudit<'_>,
    upload: &mut Upload<B>,
) -> Response<Body> {
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let info = RequestInfo::new(&parts.method, parts.uri.path(), &query);
    let preferences =
        ResponsePreferences::new(&parts.method, &parts.headers, &query, shared.cbor, &shared.caches.blocks);
    let warnings = WarningRecorder::default();
    let mut is_authenticated = false;
    let mut classification = None;

    let served = async {
        let deadline = RequestDeadline::new(&info, &query, Instant::now(), shared.request_timeout)?;
        let admit = async {
            let recorder = AuthenticationRecorder::default();
            let sender = authentication::authenticate(
                &shared.access.authenticators,
                shared.backend.tokens().options().audiences(),
                (shared.anonymous_auth, &shared.anonymous_paths),
                parts,
                &info,
                unix_seconds(),
                &recorder,
            )
            .await;
            let recorded = recorder.take();
            warnings.add(recorded.warnings.into_iter().map(str::to_owned));
            let sender = match sender {
                Ok(sender) => sender,
                Err(status) => {
                    audit.authentication_failed(parts, &info, &query, &status, recorded.annotations).await;
                    return Err(status.into());
                }
            };
            let is_loopback = recorded.is_loopback;
            audit.begin(parts, &info, &sender.user, recorded.annotations).await?;
            let audited = audit.audited();
            preferences.set_audited(audited);
            is_authenticated = sender.is_authenticated;
            let requester = Arc::clone(&sender.user);
            let authorizers = &shared.access.authorizers;
            let constrained = shared.constrained_impersonation;
            let user =
                impersonation::impersonate(authorizers, constrained, &info, &parts.headers, sender.user, audited)
                    .await?;
            classification = shared.flow_control.classify(&info, &user);
            let (backend, deadline) = (&*shared.backend, deadline.at());
            let flow = FlowRequest { info: &info, user: &user, is_loopback, query: &query, backend, deadline };
            let admission = shared.flow_control.admit(classification.clone(), flow).await?;
            authorization::authorize(authorizers, &info, &user, parts, audited).await?;
            Ok::<_, Rejection>((user, requester, is_loopback, admission))
        };
        let (user, requester, is_loopback, mut admission) = deadline.enforce(pin!(admit)).await?;
        let request = RequestContext {
            shared,
            parts,
            info: &info,
            query: &query,
            preferences: &preferences,
            user: &user,
            requester: &requester.username,
            is_loopback,
            deadline,
            audit_id,
        };
        let mut response = handle(&request, &warnings, &mut admission, upload).await;
        flow_control::hold_until_sent(admission, &mut response, deadline.at());
        Ok::<_, Rejection>(response)
    };
    let mut response = served.await.unwrap_or_else(|rejection| rejection.response(&preferences));
    warnings.write_to(response.headers_mut());
    if let Some(classification) = classification {
        classification.write_to(response.headers_mut());
    }
    if !is_authenticated {
        response.extensions_mut().insert(Unauthenticated);
    }
    if let Some(value) = &shared.strict_transport_security {
        response.headers_mut().entry(STRICT_TRANSPORT_SECURITY).or_insert_with(|| value.clone());
    }
    if shared.goaway_chance > 0.0 && rand::random::<f64>() < shared.goaway_chance {
        response.extensions_mut().insert(GoAway);
    }
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt as _, Full};
    use listwatch_access::{
        Attributes, Authentication, AuthenticationRequest, Authenticator, Authorization, Authorizer, MaybeFuture,
    };
    use listwatch_json::{Value, json};
    use listwatch_meta::UserInfo;

    use crate::{ApiServer, Auth};

    /// Authenticates the token `bobs` as the user `bob`.
    struct Bob;

    impl Authenticator for Bob {
        fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
            let bob = || UserInfo { username: "bob".to_owned(), ..UserInfo::default() };
            MaybeFuture::ready(match request.token {
                Some("bobs") => Authentication::of_user(bob()),
                _ => Authentication::NotRecognized,
            })
        }
    }

    /// Allows the user `bob` to list pods, and denies every delete.
    struct Rules;

    impl Authorizer for Rules {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            // This simulates an authorizer that calls another server.
            MaybeFuture::new(async {
                tokio::task::yield_now().await;
                match (&*attributes.user.username, attributes.verb, attributes.resource) {
                    ("bob", "list", "pods") => Authorization::allow("rule 1"),
                    (_, "delete", _) => Authorization::deny("rule 2"),
                    _ => Authorization::no_opinion(),
                }
            })
        }
    }

    #[tokio::test]
    async fn requests_are_checked_by_the_authenticator_and_authorizer_of_the_builder() {
        let auth = Auth::Token("secret".to_owned());
        let server = ApiServer::builder().auth(auth).authenticator(Bob).authorizer(Rules).build().await.unwrap();
        let send = async |line: &str, token: &str, impersonated: Option<&str>, body: Value| {
            let (method, path) = line.split_once(' ').unwrap();
            let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
            request = request.header("authorization", format!("Bearer {token}"));
            if let Some(user) = impersonated {
                request = request.header("impersonate-user", user);
            }
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let response = server.service().handle(request.body(Full::new(Bytes::from(body))).unwrap()).await;
            let code = response.status().as_u16();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            (code, serde_json::from_slice::<Value>(&bytes).unwrap_or_default())
        };
        for (line, token, impersonated, code) in [
            ("GET /api/v1/pods", "bobs", None, 200),
            ("GET /api/v1/nodes", "bobs", None, 403),
            ("GET /api/v1/nodes", "secret", None, 200),
            ("DELETE /api/v1/namespaces/default", "secret", None, 403),
            ("GET /api/v1/nodes", "other", None, 401),
            ("GET /api/v1/pods", "secret", Some("bob"), 200),
            ("GET /api/v1/nodes", "secret", Some("bob"), 403),
            ("GET /api/v1/nodes", "bobs", Some("admin"), 403),
        ] {
            let (found, status) = send(line, token, impersonated, Value::Null).await;
            assert_eq!(found, code, "{line} {token} {impersonated:?}: {status}");
        }
        let (_, status) = send("DELETE /api/v1/namespaces/default", "secret", None, Value::Null).await;
        assert!(status["message"].as_str().unwrap().ends_with(": rule 2"), "{status}");
        // Access reviews return the same decisions.
        let review = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let ask = |verb: &str| json!({"spec": {"resourceAttributes": {"verb": verb, "resource": "pods"}}});
        let (_, answer) = send(review, "bobs", None, ask("list")).await;
        assert_eq!(answer["status"], json!({"allowed": true, "reason": "rule 1"}));
        let (_, answer) = send(review, "secret", None, ask("delete")).await;
        assert_eq!(answer["status"], json!({"allowed": false, "denied": true, "reason": "rule 2"}));
        let review = "POST /apis/authentication.k8s.io/v1/tokenreviews";
        let (_, answer) = send(review, "secret", None, json!({"spec": {"token": "bobs"}})).await;
        assert_eq!(answer["status"]["user"]["username"], "bob", "{answer}");
    }

    /// Allows the user `bob` everything but the synthetic subresources of ResourceClaims.
    struct NoBindings;

    impl Authorizer for NoBindings {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            let is_synthetic = matches!(attributes.subresource, "binding" | "driver");
            MaybeFuture::ready(match &*attributes.user.username {
                "bob" if !is_synthetic => Authorization::allow("rule 1"),
                _ => Authorization::no_opinion(),
            })
        }
    }

    #[tokio::test]
    async fn claim_writes_require_the_namespace_label_and_the_granular_permissions() {
        let auth = Auth::Token("secret".to_owned());
        let server = ApiServer::builder().auth(auth).authenticator(Bob).authorizer(NoBindings).build().await.unwrap();
        let send = async |token: &str, line: &str, body: Value| {
            let (method, path) = line.split_once(' ').unwrap();
            let media_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
            let request = Request::builder().method(method).uri(path).header("content-type", media_type);
            let request = request.header("authorization", format!("Bearer {token}"));
            let response =
                server.service().handle(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await;
            let code = response.status().as_u16();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            let answer = serde_json::from_slice::<Value>(&bytes).unwrap_or_default();
            (code, answer["message"].as_str().unwrap_or_default().to_owned())
        };
        let claim = |name: &str, admin: bool| {
            json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [
                {"name": "b", "exactly": {"deviceClassName": "x", "adminAccess": admin}}]}}})
        };
        let claims = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims";
        let (post, status) = (format!("POST {claims}"), |method: &str| format!("{method} {claims}/c/status"));
        let allocation = json!({"metadata": {"name": "c"}, "status": {"allocation": {"devices": {"results": [
            {"request": "b", "driver": "d.example.com", "pool": "p", "device": "d"}]}}}});
        let label = "spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label";
        let namespace = json!({"metadata": {"name": "a"}});
        let labeled = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
        for (token, line, body, code, message) in [
            ("secret", "POST /api/v1/namespaces".to_owned(), namespace, 201, ""),
            ("secret", post.clone(), claim("c", false), 201, ""),
            ("secret", post.clone(), claim("d", true), 422, label),
            ("secret", "PATCH /api/v1/namespaces/a".to_owned(), labeled, 200, ""),
            ("bobs", post, claim("d", true), 201, ""),
            (
                "bobs",
                status("PUT"),
                allocation.clone(),
                422,
                "verb=\"update\" permission: resourceclaims.resource.k8s.io is forbidden",
            ),
            (
                "bobs",
                status("PATCH"),
                allocation.clone(),
                422,
                "verb=\"patch\" permission: resourceclaims.resource.k8s.io is forbidden",
            ),
            ("secret", status("PUT"), allocation, 200, ""),
        ] {
            let (found, answer) = send(token, &line, body).await;
            assert!(found == code && answer.contains(message), "{token} {line}: {found} {answer}");
        }
    }

    #[tokio::test]
    async fn impersonated_request_and_access_review_have_the_same_decision() {
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
        for who in [&[][..], master] {
            let line = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
            let (_, rules) = send(who, line, json!({"spec": {"namespace": "default"}})).await;
            let all = json!({
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": false,
            });
            assert_eq!(rules["status"], all, "{who:?}");
        }
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
