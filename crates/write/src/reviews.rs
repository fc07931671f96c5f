//! Evaluates reviews of users, tokens and permissions. A client posts a review, and the response contains the result.
//! Reviews are not stored (`pkg/registry/authentication`, `pkg/registry/authorization`).
//!
//! The authenticators and authorizers of the server evaluate reviews with the rules for requests.

use listwatch_access::{
    Attributes, Authentication, AuthenticationRequest, AuthenticatorChain, Authorization, AuthorizerChain, Decision,
    UserRules,
};
use listwatch_json::{Map, Value, json};
use listwatch_meta::{FieldError, Status};

use super::decode::{decode, set_namespace};
use super::expected::Expected;
use super::options::Options;
use super::request::{WriteBody, WriteRequest, WriteResponse};
use super::review_selectors::{self, ReviewSelectors};
use listwatch_meta::UserInfo;
use listwatch_registry::Registry;
use listwatch_validation::clock::Clock;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};

/// Evaluates the review that a user sent.
///
/// # Errors
/// The errors of a create of the kind: 400 for a body that does not decode, 422 for a review with no attributes or
/// with two kinds of attributes.
pub(crate) async fn review(
    registry: &Registry,
    authenticators: &AuthenticatorChain,
    authorizers: &AuthorizerChain,
    api_audiences: &[String],
    user: &UserInfo,
    request: &WriteRequest<'_>,
) -> Result<WriteResponse, Status> {
    let resource = &**request.resource;
    let options = Options::parse("CreateOptions", request.query)?;
    let expected = Expected::of(resource);
    let decoded = decode(registry, expected, request.content_type, &request.body, options.field_validation)?;
    let mut object = decoded.object;
    set_namespace(resource, request.namespace, metadata_mut(&mut object))?;
    let metadata = std::mem::take(metadata_mut(&mut object));
    *metadata_mut(&mut object) = meta::canonical(metadata);
    let clock = Clock::default();
    let spec = object.get("spec");
    let evaluation = match resource.kind.as_str() {
        "TokenReview" => {
            let audiences = spec.and_then(|spec| spec.get("audiences")).and_then(Value::as_array);
            let audiences = audiences.into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned()));
            let (token, audiences) = (text(spec, "token"), audiences.collect::<Vec<String>>());
            let now = clock.time().unix_timestamp();
            let request = AuthenticationRequest::of_token(Some(token), now).with_audiences(&audiences);
            let authentication = authenticators.authenticate(&request).await;
            Evaluation::Token(with_api_audiences(authentication, &audiences, api_audiences))
        }
        "SelfSubjectAccessReview" => authorize(authorizers, user, spec).await,
        "SubjectAccessReview" | "LocalSubjectAccessReview" => authorize(authorizers, &subject(spec), spec).await,
        "SelfSubjectRulesReview" => Evaluation::Rules(authorizers.rules(user, text(spec, "namespace")).await),
        _ => Evaluation::User,
    };
    answer(&resource.kind, user, evaluation, &mut object, &clock.now())?;
    let body = serde_json::to_vec(&object).map_err(Status::internal)?;
    Ok(WriteResponse { code: 201, body: WriteBody::Json(body.into()), warnings: decoded.warnings })
}

/// The result of a review, before it is written into the status.
enum Evaluation {
    /// The user who sent the review.
    User,
    /// The result for the token of a TokenReview.
    Token(Authentication),
    /// The decision on the subject of an access review, and the evaluation error.
    Access(Authorization, String),
    /// The rules of the user who sent the review.
    Rules(UserRules),
}

/// Sets the API server's audiences on a credential without audiences (`authenticator/audagnostic.go`). Such a
/// credential is not valid for a review that requests only other audiences.
fn with_api_audiences(authentication: Authentication, requested: &[String], own: &[String]) -> Authentication {
    match authentication {
        Authentication::Authenticated { user, audiences } if audiences.is_empty() => {
            let is_requested = |audience: &&String| requested.is_empty() || requested.contains(audience);
            let audiences: Vec<String> = own.iter().filter(is_requested).cloned().collect();
            match audiences.is_empty() {
                true => Authentication::NotRecognized,
                false => Authentication::Authenticated { user, audiences },
            }
        }
        other => other,
    }
}

/// Returns the decision of the authorizers on the spec of an access review.
async fn authorize(authorizers: &AuthorizerChain, user: &UserInfo, spec: Option<&Value>) -> Evaluation {
    let given = |field: &str| spec.and_then(|spec| spec.get(field)).filter(|value| !value.is_null());
    let (resource, path) = (given("resourceAttributes"), given("nonResourceAttributes"));
    let selectors = ReviewSelectors::of(resource);
    let attributes = match resource {
        Some(_) => Attributes {
            field_selector: &selectors.fields,
            label_selector: &selectors.labels,
            api_version: text(resource, "version"),
            namespace: text(resource, "namespace"),
            subresource: text(resource, "subresource"),
            name: text(resource, "name"),
            ..Attributes::resource(user, text(resource, "verb"), text(resource, "group"), text(resource, "resource"))
        },
        None => Attributes::path(user, text(path, "verb"), text(path, "path")),
    };
    let authorization = authorizers.authorize(&attributes).await;
    let errors = [selectors.evaluation_error.to_string(), authorization.error.to_string()];
    let error = errors.into_iter().filter(|error| !error.is_empty()).collect::<Vec<_>>().join("; ");
    Evaluation::Access(authorization, error)
}

/// Checks the review and sets its status.
fn answer(kind: &str, user: &UserInfo, evaluation: Evaluation, object: &mut Map, now: &str) -> Result<(), Status> {
    let status = match evaluation {
        Evaluation::User => {
            // The answer describes the sender of the review; the body has no effect.
            object.insert("metadata", json!({"creationTimestamp": now}));
            object.shift_remove("spec");
            json!({"userInfo": user})
        }
        Evaluation::Token(token) => {
            if text(object.get("spec"), "token").is_empty() {
                return Err(Status::bad_request("token is required for TokenReview in authentication"));
            }
            match token {
                Authentication::Authenticated { user, audiences } if audiences.is_empty() => {
                    json!({"authenticated": true, "user": *user})
                }
                Authentication::Authenticated { user, audiences } => {
                    json!({"authenticated": true, "user": *user, "audiences": audiences})
                }
                Authentication::NotRecognized => json!({"user": {}, "error": "invalid bearer token"}),
                Authentication::Rejected(reason) => json!({"user": {}, "error": reason}),
            }
        }
        Evaluation::Rules(rules) => {
            if text(object.get("spec"), "namespace").is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            object.insert("spec", json!({}));
            json!(rules)
        }
        Evaluation::Access(authorization, evaluation_error) => {
            check_attributes(kind, object)?;
            let mut status = json!({"allowed": authorization.is_allowed()});
            if authorization.decision == Decision::Deny {
                status["denied"] = json!(true);
            }
            if !authorization.reason.is_empty() {
                status["reason"] = json!(&*authorization.reason);
            }
            if !evaluation_error.is_empty() {
                status["evaluationError"] = json!(evaluation_error);
            }
            status
        }
    };
    object.entry("spec").or_insert_with(|| json!({}));
    if kind == "SelfSubjectReview" {
        object.shift_remove("spec");
    }
    object.insert("status", status);
    Ok(())
}

fn text<'a>(spec: Option<&'a Value>, field: &str) -> &'a str {
    spec.and_then(|spec| spec.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the user that an access review names as its subject.
fn subject(spec: Option<&Value>) -> UserInfo {
    let groups = spec.and_then(|spec| spec.get("groups")).and_then(Value::as_array).into_iter().flatten();
    UserInfo {
        username: text(spec, "user").to_owned(),
        uid: String::new(),
        groups: groups.filter_map(|group| Some(group.as_str()?.to_owned())).collect(),
        extra: std::collections::BTreeMap::new(),
    }
}

/// Checks that an access review has a subject and one kind of attributes (`pkg/apis/authorization/validation`).
fn check_attributes(kind: &str, object: &Map) -> Result<(), Status> {
    let spec = object.get("spec");
    let given = |field: &str| spec.and_then(|spec| spec.get(field)).filter(|value| !value.is_null());
    let (resource, path) = (given("resourceAttributes"), given("nonResourceAttributes"));
    let mut errors = Vec::new();
    match (resource, path) {
        (Some(_), Some(path)) => {
            // The error shows Go's field names.
            let shown = json!({"Path": text(Some(path), "path"), "Verb": text(Some(path), "verb")});
            let why = "cannot be specified in combination with resourceAttributes";
            errors.push(FieldError::invalid("spec.nonResourceAttributes", shown, why));
        }
        (None, None) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(FieldError::invalid("spec.resourceAttributes", Value::Null, why));
        }
        _ => {}
    }
    review_selectors::validate(resource, &mut errors);
    let groups = given("groups").and_then(Value::as_array).is_some_and(|groups| !groups.is_empty());
    if kind != "SelfSubjectAccessReview" && text(spec, "user").is_empty() && !groups {
        errors.push(FieldError::invalid("spec.user", "\"\"", "at least one of user or group must be specified"));
    }
    if kind == "LocalSubjectAccessReview" {
        let asked = text(resource, "namespace");
        if asked != meta::text(metadata(object), "namespace") {
            let shown = json!(asked);
            errors.push(FieldError::invalid(
                "spec.resourceAttributes.namespace",
                shown,
                "must match metadata.namespace",
            ));
        }
        if path.is_some() {
            let why = "disallowed on this kind of request";
            errors.push(FieldError::invalid("spec.nonResourceAttributes", path.unwrap_or(&Value::Null), why));
        }
    }
    match errors.is_empty() {
        true => Ok(()),
        // kube-apiserver leaves out the kind in this error.
        false => Err(Status::invalid("authorization.k8s.io", "", "", &errors)),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use listwatch_access::KnownUserAuthorizer;

    use super::*;

    fn check(kind: &str, body: Value, expected: Result<Value, &str>) {
        let Value::Object(mut object) = body else { panic!("not an object") };
        let token = match text(object.get("spec"), "token") {
            "secret" => Authentication::of_user(UserInfo::admin().clone()),
            "old" => Authentication::Rejected("service account token has expired".to_owned()),
            _ => Authentication::NotRecognized,
        };
        let named = subject(object.get("spec"));
        let user = if kind == "SelfSubjectAccessReview" { UserInfo::admin() } else { &named };
        let authorizers = AuthorizerChain::new().with(KnownUserAuthorizer);
        let evaluation = match kind {
            "SelfSubjectReview" => Evaluation::User,
            "TokenReview" => Evaluation::Token(token),
            "SelfSubjectRulesReview" => Evaluation::Rules(UserRules::default()),
            _ => authorize(&authorizers, user, object.get("spec")).now_or_never().unwrap(),
        };
        let found = answer(kind, UserInfo::admin(), evaluation, &mut object, "NOW").map(|()| Value::Object(object));
        assert_eq!(found.map_err(|status| status.message), expected.map_err(str::to_owned));
    }

    #[test]
    fn token_review_of_a_credential_without_audiences_uses_the_api_server_audiences() {
        let own = ["api".to_owned(), "other-api".to_owned()];
        for (requested, expected) in
            [(&[][..], Some(&["api", "other-api"][..])), (&["x", "api"], Some(&["api"])), (&["x"], None)]
        {
            let requested: Vec<String> = requested.iter().map(|audience: &&str| (*audience).to_owned()).collect();
            let of_admin = Authentication::of_user(UserInfo::admin().clone());
            let found = match with_api_audiences(of_admin, &requested, &own) {
                Authentication::Authenticated { audiences, .. } => Some(audiences),
                _ => None,
            };
            let expected = expected.map(|audiences| audiences.iter().map(|name| (*name).to_owned()).collect());
            assert_eq!(found, expected, "{requested:?}");
        }
    }

    #[test]
    fn review_status_and_errors_equal_those_of_kube_apiserver() {
        let user = json!({"username": "admin", "groups": ["system:masters", "system:authenticated"]});
        check(
            "SelfSubjectReview",
            json!({"metadata": {"name": "x"}}),
            Ok(json!({"metadata": {"creationTimestamp": "NOW"}, "status": {"userInfo": user}})),
        );
        let spec = json!({"token": "secret"});
        check(
            "TokenReview",
            json!({"spec": spec}),
            Ok(json!({"spec": spec, "status": {"authenticated": true, "user": user}})),
        );
        let spec = json!({"token": "guess"});
        let refused = json!({"user": {}, "error": "invalid bearer token"});
        check("TokenReview", json!({"spec": spec}), Ok(json!({"spec": spec, "status": refused})));
        let spec = json!({"token": "old"});
        let expired = json!({"user": {}, "error": "service account token has expired"});
        check("TokenReview", json!({"spec": spec}), Ok(json!({"spec": spec, "status": expired})));
        check("TokenReview", json!({}), Err("token is required for TokenReview in authentication"));
        check("SelfSubjectRulesReview", json!({"spec": {}}), Err("no namespace on request"));

        let resource = json!({"verb": "get", "resource": "pods"});
        let spec = json!({"resourceAttributes": resource});
        check("SelfSubjectAccessReview", json!({"spec": spec}), Ok(json!({"spec": spec, "status": {"allowed": true}})));
        for (user, groups, allowed) in
            [("bob", json!([]), false), ("bob", json!(["system:masters"]), true), ("admin", json!([]), true)]
        {
            let spec = json!({"resourceAttributes": resource, "user": user, "groups": groups});
            let expected = json!({"spec": spec, "status": {"allowed": allowed}});
            check("SubjectAccessReview", json!({"spec": spec}), Ok(expected));
        }
        check(
            "SelfSubjectAccessReview",
            json!({"spec": {}}),
            Err(
                ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ),
        );
        check(
            "SubjectAccessReview",
            json!({"spec": {"user": "", "resourceAttributes": resource, "nonResourceAttributes": {"path": "/x", "verb": "get"}}}),
            Err(
                ".authorization.k8s.io \"\" is invalid: [spec.nonResourceAttributes: Invalid value: {\"Path\":\"/x\",\"Verb\":\"get\"}: cannot be specified in combination with resourceAttributes, spec.user: Invalid value: \"\": at least one of user or group must be specified]",
            ),
        );
        check(
            "LocalSubjectAccessReview",
            json!({"metadata": {"namespace": "a"}, "spec": {"user": "bob", "resourceAttributes": resource}}),
            Err(
                ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes.namespace: Invalid value: \"\": must match metadata.namespace",
            ),
        );
    }
}
