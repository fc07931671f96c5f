//! Reviews: questions about users, tokens and permissions, as a POST of an object that is answered and
//! not stored (`pkg/registry/authentication`, `pkg/registry/authorization`).
//!
//! The authenticators and authorizers of the server answer them, as they decide on requests.

use listwatch_access::{Attributes, Authentication, AuthenticationRequest, Authorization, Decision, UserRules};
use listwatch_meta::{FieldError, Status};
use serde_json::{Map, Value, json};

use super::decode::{Expected, decode};
use super::options::Options;
use super::{Clock, WriteBody, WriteRequest, WriteResponse, create};
use crate::auth::{Access, User};
use crate::backend::Backend;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};

/// Answers the review of a user.
///
/// # Errors
/// What a create of the kind is refused with: 400 for a body that is no such review, 422 for one that
/// asks nothing or two things at once.
pub(crate) async fn review(
    backend: &Backend,
    access: &Access,
    user: &User,
    request: &WriteRequest<'_>,
) -> Result<WriteResponse, Status> {
    let resource = &**request.resource;
    let options = Options::parse("CreateOptions", request.query)?;
    let expected = Expected::of(resource);
    let decoded = decode(&backend.registry(), expected, request.content_type, &request.body, options.field_validation)?;
    let mut object = decoded.object;
    create::place(resource, request.namespace, metadata_mut(&mut object))?;
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
            Evaluation::Token(access.authenticators.authenticate(&request).await)
        }
        "SelfSubjectAccessReview" => Evaluation::Access(authorize(access, user, spec).await),
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            Evaluation::Access(authorize(access, &subject(spec), spec).await)
        }
        "SelfSubjectRulesReview" => Evaluation::Rules(access.authorizers.rules(user, text(spec, "namespace")).await),
        _ => Evaluation::User,
    };
    answer(&resource.kind, user, evaluation, &mut object, &clock.now())?;
    let body = serde_json::to_vec(&object).map_err(Status::internal)?;
    Ok(WriteResponse { code: 201, body: WriteBody::Json(body.into()), warnings: decoded.warnings })
}

/// The answer to a review, before it is written into the object.
enum Evaluation {
    /// The user who sent the review.
    User,
    /// The result for the token of a TokenReview.
    Token(Authentication),
    /// The decision on the subject of an access review.
    Access(Authorization),
    /// The rules of the user who sent the review.
    Rules(UserRules),
}

/// Whether a user may do what the spec of an access review describes.
async fn authorize(access: &Access, user: &User, spec: Option<&Value>) -> Authorization {
    let given = |field: &str| spec.and_then(|spec| spec.get(field)).filter(|value| !value.is_null());
    let (resource, path) = (given("resourceAttributes"), given("nonResourceAttributes"));
    let attributes = match resource {
        Some(_) => Attributes {
            api_version: text(resource, "version"),
            namespace: text(resource, "namespace"),
            subresource: text(resource, "subresource"),
            name: text(resource, "name"),
            ..Attributes::resource(user, text(resource, "verb"), text(resource, "group"), text(resource, "resource"))
        },
        None => Attributes::path(user, text(path, "verb"), text(path, "path")),
    };
    access.authorizers.authorize(&attributes).await
}

/// Checks the review and puts the status into it.
fn answer(
    kind: &str,
    user: &User,
    evaluation: Evaluation,
    object: &mut Map<String, Value>,
    now: &str,
) -> Result<(), Status> {
    let status = match evaluation {
        Evaluation::User => {
            // The answer is the user who sent the review; nothing of the body counts.
            object.insert("metadata".to_owned(), json!({"creationTimestamp": now}));
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
                Authentication::NotRecognized | Authentication::Rejected => {
                    json!({"user": {}, "error": "invalid bearer token"})
                }
            }
        }
        Evaluation::Rules(rules) => {
            if text(object.get("spec"), "namespace").is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            object.insert("spec".to_owned(), json!({}));
            json!(rules)
        }
        Evaluation::Access(authorization) => {
            check_attributes(kind, object)?;
            let mut status = json!({"allowed": authorization.is_allowed()});
            if authorization.decision == Decision::Deny {
                status["denied"] = json!(true);
            }
            if !authorization.reason.is_empty() {
                status["reason"] = json!(authorization.reason);
            }
            status
        }
    };
    object.entry("spec").or_insert_with(|| json!({}));
    if kind == "SelfSubjectReview" {
        object.shift_remove("spec");
    }
    object.insert("status".to_owned(), status);
    Ok(())
}

fn text<'a>(spec: Option<&'a Value>, field: &str) -> &'a str {
    spec.and_then(|spec| spec.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// The subject of an access review.
fn subject(spec: Option<&Value>) -> User {
    let groups = spec.and_then(|spec| spec.get("groups")).and_then(Value::as_array).into_iter().flatten();
    User {
        username: text(spec, "user").to_owned(),
        uid: String::new(),
        groups: groups.filter_map(|group| Some(group.as_str()?.to_owned())).collect(),
        extra: std::collections::BTreeMap::new(),
    }
}

/// An access review has one kind of attributes and a subject (`pkg/apis/authorization/validation`).
fn check_attributes(kind: &str, object: &Map<String, Value>) -> Result<(), Status> {
    let spec = object.get("spec");
    let given = |field: &str| spec.and_then(|spec| spec.get(field)).filter(|value| !value.is_null());
    let (resource, path) = (given("resourceAttributes"), given("nonResourceAttributes"));
    let mut errors = Vec::new();
    match (resource, path) {
        (Some(_), Some(path)) => {
            // The fields are printed as Go has them.
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
        // kube-apiserver forgets the kind here.
        false => Err(Status::invalid("authorization.k8s.io", "", "", &errors)),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use listwatch_access::{AuthenticatorChain, AuthorizerChain, KnownUserAuthorizer};

    use super::*;

    fn check(kind: &str, body: Value, expected: Result<Value, &str>) {
        let Value::Object(mut object) = body else { panic!("not an object") };
        let token = match text(object.get("spec"), "token") {
            "secret" => Authentication::of_user(User::admin().clone()),
            _ => Authentication::NotRecognized,
        };
        let named = subject(object.get("spec"));
        let user = if kind == "SelfSubjectAccessReview" { User::admin() } else { &named };
        let authorizers = AuthorizerChain::new().with(KnownUserAuthorizer);
        let access = Access { authenticators: AuthenticatorChain::new(), authorizers };
        let evaluation = match kind {
            "SelfSubjectReview" => Evaluation::User,
            "TokenReview" => Evaluation::Token(token),
            "SelfSubjectRulesReview" => Evaluation::Rules(UserRules::default()),
            _ => Evaluation::Access(authorize(&access, user, object.get("spec")).now_or_never().unwrap()),
        };
        let found = answer(kind, User::admin(), evaluation, &mut object, "NOW").map(|()| Value::Object(object));
        assert_eq!(found.map_err(|status| status.message), expected.map_err(str::to_owned));
    }

    #[test]
    fn reviews_are_answered_as_kube_apiserver_answers_its_masters() {
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
