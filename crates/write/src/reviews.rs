//! Evaluates reviews of users, tokens and permissions. A client posts a review, and the response contains the result.
//! Reviews are not stored (`pkg/registry/authentication`, `pkg/registry/authorization`).
//!
//! The authenticators and authorizers of the server evaluate reviews with the rules for requests. The admission plugins
//! see a review like a create, before the evaluation (`apiserver/pkg/endpoints/handlers/create.go`). Policies exempt
//! reviews.

use listwatch_access::{
    Attributes, Authentication, AuthenticationRecorder, AuthenticationRequest, AuthenticatorChain, Authorization,
    AuthorizerChain, Decision, UserRules,
};
use listwatch_admission::AdmissionRequest;
use listwatch_json::{Map, Value, json};
use listwatch_meta::{FieldError, Status, fuel};

use super::decode::{decode, set_namespace};
use super::expected::Expected;
use super::options::Options;
use super::ownership::{self, Sent};
use super::pipeline::Write;
use super::request::{WriteBody, WriteRequest, WriteResponse};
use super::request_details::Details;
use super::review_selectors::{self, ReviewSelectors};
use listwatch_meta::UserInfo;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};

/// Evaluates the review that a user sent.
///
/// # Errors
/// The errors of a create of the kind: 400 for a body that does not decode, 422 for a review with no attributes,
/// with two kinds of attributes, or with metadata; the error of the first plugin that rejects the review.
pub(crate) async fn review(
    write: &Write<'_>,
    authenticators: &AuthenticatorChain,
    authorizers: &AuthorizerChain,
    request: &WriteRequest<'_>,
) -> Result<WriteResponse, Status> {
    let (resource, user) = (write.resource, write.user);
    let options = Options::parse("CreateOptions", request.query)?;
    let expected = Expected::of(resource);
    let decoded = decode(write.registry, expected, request.content_type, &request.body, options.field_validation)?;
    let mut object = decoded.object;
    meta::wipe_system_fields(metadata_mut(&mut object));
    set_namespace(resource, request.namespace, metadata_mut(&mut object))?;
    let sent = Sent::of(resource, &object);
    write.field_writer().track_managed_fields(None, &mut object, &sent, None);
    ownership::expand_managed_fields(&mut object);
    admit(write, expected, options.dry_run, &mut object).await?;
    let metadata = std::mem::take(metadata_mut(&mut object));
    *metadata_mut(&mut object) = meta::canonical(metadata);
    let clock = write.clock;
    let spec = object.get("spec");
    let evaluation = match resource.kind.as_str() {
        "TokenReview" => {
            let api_audiences = write.backend.tokens().options().audiences();
            let given: Vec<String> = texts(spec, "audiences").collect();
            let audiences = if given.is_empty() { api_audiences } else { &given };
            let now = clock.time().unix_timestamp();
            let request = AuthenticationRequest::of_token(Some(text(spec, "token")), now);
            let recorder = AuthenticationRecorder::default();
            let request = request.with_audiences(audiences).with_api_audiences(api_audiences);
            let answer = authenticators.authenticate(&request.with_recorder(&recorder)).await;
            let recorded = recorder.take();
            let admission = &write.context.recorder;
            recorded.annotations.into_iter().for_each(|(key, value)| admission.annotate(key, value));
            recorded.warnings.into_iter().for_each(|text| admission.warn(text));
            Evaluation::Token(answer)
        }
        "SelfSubjectAccessReview" => authorize(authorizers, user, spec).await,
        "SubjectAccessReview" | "LocalSubjectAccessReview" => authorize(authorizers, &subject(spec), spec).await,
        "SelfSubjectRulesReview" => Evaluation::Rules(authorizers.rules(user, text(spec, "namespace")).await),
        _ => Evaluation::User,
    };
    answer(&resource.kind, user, evaluation, &mut object, &clock.now());
    let body = serde_json::to_vec(&object).map_err(Status::internal)?;
    Ok(WriteResponse { code: 201, body: WriteBody::Json(body.into()), warnings: decoded.warnings })
}

/// Runs the mutating plugins, validates the review, and runs the validating plugins.
///
/// # Errors
/// The errors of [`validate`]; the error of the first plugin that rejects the review.
async fn admit(write: &Write<'_>, expected: Expected<'_>, dry_run: bool, object: &mut Map) -> Result<(), Status> {
    // Plugins must not receive an object that may be incomplete.
    check_fuel()?;
    let name = meta::text(metadata(object), "name").to_owned();
    // A review has one version and no storage version.
    let details = Details { body: Some(expected), dry_run, ..write.details(None) };
    let request = AdmissionRequest { dry_run, ..write.admission_request(&name, None, &details) };
    let admitted = write.admission.mutate(&request, object).await;
    // Without fuel, an error may be wrong, too.
    check_fuel()?;
    admitted?;
    validate(expected.kind, object)?;
    // A plugin must not move the review into a namespace that the user was not authorized for.
    if let Some(namespace) =
        request.namespace.filter(|namespace| *namespace != meta::text(metadata(object), "namespace"))
    {
        let why = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(Status::bad_request(why));
    }
    let admitted = write.admission.validate(&request, object).await;
    check_fuel()?;
    admitted
}

/// Fails if the fuel is used up. The result of a computation without fuel is arbitrary.
fn check_fuel() -> Result<(), Status> {
    if fuel::is_exhausted() { Err(Status::request_timed_out()) } else { Ok(()) }
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

/// Returns the decision of the authorizers on the spec of an access review (`ResourceAttributesFrom`).
async fn authorize(authorizers: &AuthorizerChain, user: &UserInfo, spec: Option<&Value>) -> Evaluation {
    let given = |field: &str| spec.and_then(|spec| spec.get(field)).filter(|value| !value.is_null());
    let (resource, path) = (given("resourceAttributes"), given("nonResourceAttributes"));
    let selectors = ReviewSelectors::of(resource);
    let attributes = match resource {
        Some(_) => Attributes {
            field_selector: &selectors.fields,
            label_selector: &selectors.labels,
            // A review without a version is about all versions (`matchAllVersionIfEmpty`).
            api_version: Some(text(resource, "version")).filter(|version| !version.is_empty()).unwrap_or("*"),
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

/// Validates a review of this kind, before the validating plugins and the evaluation.
///
/// # Errors
/// 400 for a review without a token or namespace, and the errors of [`check_attributes`].
fn validate(kind: &str, object: &Map) -> Result<(), Status> {
    let is_empty = |field: &str| text(object.get("spec"), field).is_empty();
    match kind {
        "TokenReview" if is_empty("token") => {
            Err(Status::bad_request("token is required for TokenReview in authentication"))
        }
        "SelfSubjectRulesReview" if is_empty("namespace") => Err(Status::bad_request("no namespace on request")),
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            check_attributes(kind, object)
        }
        _ => Ok(()),
    }
}

/// Sets the status of the review.
fn answer(kind: &str, user: &UserInfo, evaluation: Evaluation, object: &mut Map, now: &str) {
    let status = match evaluation {
        Evaluation::User => {
            // The answer describes the sender of the review; the body has no effect.
            object.insert("metadata", json!({"creationTimestamp": now}));
            object.shift_remove("spec");
            json!({"userInfo": user})
        }
        Evaluation::Token(token) => match token {
            Authentication::Authenticated { user, audiences } if audiences.is_empty() => {
                json!({"authenticated": true, "user": *user})
            }
            Authentication::Authenticated { user, audiences } => {
                json!({"authenticated": true, "user": *user, "audiences": audiences})
            }
            Authentication::NotRecognized => json!({"user": {}, "error": "invalid bearer token"}),
            Authentication::Rejected(reason) => json!({"user": {}, "error": reason}),
        },
        Evaluation::Rules(rules) => {
            // The answer is a new object.
            object.insert("metadata", json!({}));
            object.insert("spec", json!({}));
            json!(rules)
        }
        Evaluation::Access(authorization, evaluation_error) => {
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
}

fn text<'a>(spec: Option<&'a Value>, field: &str) -> &'a str {
    spec.and_then(|spec| spec.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// The texts of a list.
fn texts<'a>(member: Option<&'a Value>, field: &str) -> impl Iterator<Item = String> + use<'a> {
    let list = member.and_then(|member| member.get(field)).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned()))
}

/// Returns the user that an access review names as its subject (`AuthorizationAttributesFrom`). The keys of the extra
/// fields stay as the client sent them.
fn subject(spec: Option<&Value>) -> UserInfo {
    let extra = spec.and_then(|spec| spec.get("extra"));
    let keys = extra.and_then(Value::as_object).into_iter().flat_map(Map::keys);
    UserInfo {
        username: text(spec, "user").to_owned(),
        uid: text(spec, "uid").to_owned(),
        groups: texts(spec, "groups").collect(),
        extra: keys.map(|key| (key.to_string(), texts(extra, key).collect())).collect(),
    }
}

/// Checks that an access review has a subject, one kind of attributes, and no metadata
/// (`pkg/apis/authorization/validation`).
fn check_attributes(kind: &str, object: &Map) -> Result<(), Status> {
    let spec = object.get("spec");
    let given = |field: &str| spec.and_then(|spec| spec.get(field)).filter(|value| !value.is_null());
    let (resource, path) = (given("resourceAttributes"), given("nonResourceAttributes"));
    // Errors show Go's field names.
    let shown_path = || json!({"Path": text(path, "path"), "Verb": text(path, "verb")});
    let is_local = kind == "LocalSubjectAccessReview";
    let mut errors = Vec::new();
    match (resource, path) {
        (Some(_), Some(_)) => {
            let why = "cannot be specified in combination with resourceAttributes";
            errors.push(FieldError::invalid("spec.nonResourceAttributes", shown_path(), why));
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
    review_selectors::validate(resource, &mut errors);
    check_metadata(metadata(object), is_local, &mut errors);
    if is_local && let Some(resource) = resource {
        let asked = text(Some(resource), "namespace");
        if asked != meta::text(metadata(object), "namespace") {
            let path = "spec.resourceAttributes.namespace";
            errors.push(FieldError::invalid(path, json!(asked), "must match metadata.namespace"));
        }
    }
    if is_local && path.is_some() {
        let why = "disallowed on this kind of request";
        errors.push(FieldError::invalid("spec.nonResourceAttributes", shown_path(), why));
    }
    match errors.is_empty() {
        true => Ok(()),
        // kube-apiserver leaves out the kind in this error.
        false => Err(Status::invalid("authorization.k8s.io", "", "", &errors)),
    }
}

/// Checks that the metadata of an access review is empty, except for managed fields, and for the namespace if
/// `may_have_namespace`.
fn check_metadata(found: &Map, may_have_namespace: bool, errors: &mut Vec<FieldError>) {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Number(number) => number.as_i64() != Some(0),
        Value::Bool(_) => true,
    };
    let is_allowed = |field: &str| field == "managedFields" || (may_have_namespace && field == "namespace");
    let set = || found.iter().filter(|(_, value)| is_set(value));
    if set().all(|(field, _)| is_allowed(field)) {
        return;
    }
    let shown: Map = set().map(|(field, value)| (field.clone(), value.clone())).collect();
    let why = if may_have_namespace { "must be empty except for namespace" } else { "must be empty" };
    // The canonical form has no version.
    let version = shown.get("resourceVersion").cloned();
    let mut shown = meta::canonical(shown);
    if let Some(version) = version {
        shown.insert("resourceVersion", version);
    }
    errors.push(FieldError::invalid("metadata", Value::Object(shown), why));
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
        let found = validate(kind, &object).map(|()| {
            answer(kind, UserInfo::admin(), evaluation, &mut object, "NOW");
            Value::Object(object)
        });
        assert_eq!(found.map_err(|status| status.message), expected.map_err(str::to_owned));
    }

    /// Denies with the user and the version of the request as the reason.
    struct Echo;

    impl listwatch_access::Authorizer for Echo {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> listwatch_access::MaybeFuture<'a, Authorization> {
            let UserInfo { username, uid, groups, extra } = attributes.user;
            let of = format!("{:?}/{:?}", attributes.api_group, attributes.api_version);
            let reason = format!("{username:?} {uid:?} {groups:?} {extra:?} {of}");
            listwatch_access::MaybeFuture::ready(Authorization::deny(reason))
        }
    }

    #[test]
    fn subject_access_review_has_the_uid_and_extra_of_the_subject_and_matches_all_versions_by_default() {
        let authorizers = AuthorizerChain::new().with(Echo);
        let spec = |version: Value| {
            json!({
                "user": "bob", "uid": "7", "groups": ["dev"], "extra": {"Scopes": ["a", "b"]},
                "resourceAttributes": {"verb": "get", "resource": "pods", "version": version},
            })
        };
        for (version, expected) in [(Value::Null, "*"), (json!(""), "*"), (json!("v1"), "v1")] {
            let spec = spec(version);
            let evaluation = authorize(&authorizers, &subject(Some(&spec)), Some(&spec)).now_or_never().unwrap();
            let Evaluation::Access(authorization, _) = evaluation else { panic!("it is an access review") };
            let subject = r#""bob" "7" ["dev"] {"Scopes": ["a", "b"]}"#;
            assert_eq!(&*authorization.reason, format!("{subject} \"\"/{expected:?}"));
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
            json!({"metadata": {"namespace": "a"}, "spec": {"user": "bob", "nonResourceAttributes": {"path": "/x", "verb": "get"}}}),
            Err(
                ".authorization.k8s.io \"\" is invalid: spec.nonResourceAttributes: Invalid value: {\"Path\":\"/x\",\"Verb\":\"get\"}: disallowed on this kind of request",
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

    #[test]
    fn access_review_rejects_metadata() {
        let resource = json!({"verb": "get", "resource": "pods", "namespace": "a"});
        let review =
            |metadata: Value| json!({"metadata": metadata, "spec": {"user": "bob", "resourceAttributes": resource}});
        let named = json!({"labels": {"a": "b"}, "name": "x"});
        for kind in ["SelfSubjectAccessReview", "SubjectAccessReview"] {
            check(
                kind,
                review(named.clone()),
                Err(
                    ".authorization.k8s.io \"\" is invalid: metadata: Invalid value: {\"name\":\"x\",\"labels\":{\"a\":\"b\"}}: must be empty",
                ),
            );
            check(
                kind,
                review(json!({"namespace": "a"})),
                Err(
                    ".authorization.k8s.io \"\" is invalid: metadata: Invalid value: {\"namespace\":\"a\"}: must be empty",
                ),
            );
            check(
                kind,
                review(json!({"resourceVersion": "5"})),
                Err(
                    ".authorization.k8s.io \"\" is invalid: metadata: Invalid value: {\"resourceVersion\":\"5\"}: must be empty",
                ),
            );
        }
        check(
            "LocalSubjectAccessReview",
            review(json!({"namespace": "a", "generation": 3})),
            Err(
                ".authorization.k8s.io \"\" is invalid: metadata: Invalid value: {\"namespace\":\"a\",\"generation\":3}: must be empty except for namespace",
            ),
        );
        let accepted = |kind: &str, metadata: Value| {
            let Value::Object(object) = review(metadata) else { panic!("not an object") };
            assert_eq!(validate(kind, &object).map_err(|status| status.message), Ok(()), "{kind}");
        };
        accepted("LocalSubjectAccessReview", json!({"namespace": "a"}));
        accepted("SubjectAccessReview", json!({"name": "", "labels": {}, "finalizers": null, "managedFields": [{}]}));
    }
}
