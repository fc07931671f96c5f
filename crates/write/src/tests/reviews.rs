//! Tests reviews with admission plugins.

use listwatch_access::{AuthenticatorChain, AuthorizerChain, KnownUserAuthorizer};
use listwatch_cacher::Limits;
use listwatch_json::json;
use listwatch_meta::fuel::{self, Tank};
use listwatch_registry::{Backend, Registry};

use super::*;
use listwatch_admission::{
    AdmissionChain, AdmissionFuture, AdmissionRequest, MutatingAdmission, Operation, ValidatingAdmission,
};

/// Handles the reviews of users other than the sender. Sets the group `system:masters` for the user `promoted`, moves the
/// review of the user `moved` to another namespace, and rejects the user `blocked`. Uses up the fuel for the user `tired`
/// in the first call and for the user `late` in the last call, and rejects both.
struct Subjects;

fn is_of_a_subject(request: &AdmissionRequest<'_>) -> bool {
    request.operation == Operation::Create
        && matches!(request.kind, "SubjectAccessReview" | "LocalSubjectAccessReview")
        && request.namespace.is_some() == request.resource.starts_with("local")
        && request.dry_run == request.details.options().is_some_and(|options| options.contains_key("dryRun"))
}

impl MutatingAdmission for Subjects {
    fn name(&self) -> &str {
        "Subjects"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        is_of_a_subject(request)
    }

    fn admit<'a>(&'a self, _: &'a AdmissionRequest<'_>, object: &'a mut Map) -> AdmissionFuture<'a, ()> {
        if object["spec"]["user"] == "promoted" {
            object["spec"]["groups"] = json!(["system:masters"]);
        }
        if object["spec"]["user"] == "tired" {
            fuel::exhaust();
        }
        if object["spec"]["user"] == "moved" {
            object["metadata"]["namespace"] = json!("other");
            object["spec"]["resourceAttributes"]["namespace"] = json!("other");
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

impl ValidatingAdmission for Subjects {
    fn name(&self) -> &str {
        "Subjects"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        is_of_a_subject(request)
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        let user = object["spec"]["user"].as_str().unwrap_or_default();
        if user == "late" {
            fuel::exhaust();
        }
        Box::pin(std::future::ready(match ["blocked", "tired", "late"].contains(&user) {
            true => Err(request.forbidden("it is blocked")),
            false => Ok(()),
        }))
    }
}

/// Sends a review, and returns the code and the decision, or the error.
async fn review(path: &str, body: Value) -> Result<(u16, bool), (u16, String)> {
    let mut admission = AdmissionChain::default();
    admission.add_mutating(Arc::new(Subjects));
    admission.add_validating(Arc::new(Subjects));
    let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
    let writer = Writer::new(Arc::new(backend), admission);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let (namespace, plural) = match path.split('/').collect::<Vec<_>>()[..] {
        ["namespaces", namespace, plural] => (Some(namespace), plural),
        _ => (None, path),
    };
    let registry = writer.backend().registry();
    let resource = registry.unstored().iter().find(|resource| *resource.plural == *plural).unwrap();
    let query = Query::parse(query);
    let request = WriteRequest {
        verb: WriteVerb::Create,
        resource,
        namespace,
        name: None,
        subresource: None,
        query: &query,
        content_type: None,
        user: UserInfo::admin(),
        user_agent: None,
        body: Bytes::from(body.to_string()),
    };
    let (authenticators, authorizers) = (AuthenticatorChain::new(), AuthorizerChain::new().with(KnownUserAuthorizer));
    let answer = writer.review(&authenticators, &authorizers, &request, &WriteContext::default()).await;
    let answer = answer.map_err(|status| (status.code, status.message))?;
    let WriteBody::Json(body) = &answer.body else { panic!("{answer:?}") };
    let body: Value = serde_json::from_slice(body).unwrap();
    Ok((answer.code, body["status"]["allowed"] == true))
}

#[tokio::test]
async fn access_review_passes_mutating_and_validating_plugins_before_its_evaluation() {
    let pods = json!({"verb": "get", "resource": "pods", "namespace": "a"});
    let of = |user: &str| json!({"spec": {"user": user, "resourceAttributes": pods}});
    let (all, local) = ("subjectaccessreviews", "namespaces/a/localsubjectaccessreviews");
    let blocked = |resource: &str| Err((403, format!("{resource}.authorization.k8s.io is forbidden: it is blocked")));
    for (path, body, expected) in [
        (all, of("bob"), Ok((201, false))),
        (all, of("promoted"), Ok((201, true))),
        (local, of("promoted"), Ok((201, true))),
        ("subjectaccessreviews?dryRun=All", of("promoted"), Ok((201, true))),
        (all, of("blocked"), blocked("subjectaccessreviews")),
        (local, of("blocked"), blocked("localsubjectaccessreviews")),
        (local, of("moved"), Err((400, "spec.resourceAttributes.namespace must match namespace: a".to_owned()))),
        ("selfsubjectaccessreviews", of("blocked"), Ok((201, true))),
    ] {
        assert_eq!(review(path, body.clone()).await, expected, "{path} {body}");
    }
    let system = json!({"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x"});
    let sent = json!({"metadata": system, "spec": {"user": "bob", "resourceAttributes": pods}});
    assert_eq!(review(all, sent).await, Ok((201, false)), "the server's own metadata is removed first");
    let invalid = review(all, json!({"spec": {"user": "blocked"}})).await;
    assert_eq!(invalid.map_err(|(code, _)| code), Err(422), "validating plugins see only valid reviews");
}

#[tokio::test]
async fn review_whose_plugin_uses_up_the_fuel_times_out() {
    let pods = json!({"verb": "get", "resource": "pods", "namespace": "a"});
    for (user, expected) in [("bob", Ok(201)), ("blocked", Err(403)), ("tired", Err(504)), ("late", Err(504))] {
        let body = json!({"spec": {"user": user, "resourceAttributes": pods}});
        let mut tank = Tank::new(20_000);
        let mut answer = Box::pin(review("subjectaccessreviews", body));
        let answer = std::future::poll_fn(|context| tank.run(|| answer.as_mut().poll(context))).await;
        assert_eq!(answer.map(|(code, _)| code).map_err(|(code, _)| code), expected, "{user}");
    }
}
