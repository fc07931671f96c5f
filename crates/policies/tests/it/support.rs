//! Policies, bindings and requests for the tests.

use std::sync::LazyLock;

use listwatch_admission::{KindName, Operation, ResourceName};
use listwatch_cel::{AuthorizationDecisions, CheckDecision};
use listwatch_json::{Map, Value, json};
use listwatch_meta::UserInfo;
use listwatch_policies::{Binding, Decision, Evaluated, Inputs, MutatingPolicy, Patch, Reason, ValidatingPolicy};
use listwatch_webhooks::{Attributes, Invocation};

pub(crate) const DEPLOYMENTS: ResourceName<'static> = resource("apps", "v1", "deployments", "Deployment");

/// A resource whose kind has the same group and version.
pub(crate) const fn resource<'a>(
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    kind: &'a str,
) -> ResourceName<'a> {
    ResourceName { group, version, resource, kind: KindName { group, version, kind } }
}

/// Returns the attributes of a create of the deployment `web` in the namespace `ns`.
pub(crate) fn attributes(object: Option<&Map>) -> Attributes<'_> {
    static USER: LazyLock<UserInfo> =
        LazyLock::new(|| UserInfo { username: "u".to_owned(), groups: vec!["g".to_owned()], ..UserInfo::default() });
    Attributes {
        operation: Operation::Create,
        resource: DEPLOYMENTS,
        subresource: "",
        namespace: "ns",
        name: "web",
        user: &USER,
        dry_run: false,
        object,
        old_object: None,
        options: None,
    }
}

/// The object `{metadata, spec}` of a policy or binding of this name.
fn named(name: &str, spec: Value) -> Map {
    let object = json!({"metadata": {"name": name}, "spec": spec});
    object.as_object().unwrap().clone()
}

/// Returns the policy `p` with this spec.
pub(crate) fn validating(spec: Value) -> ValidatingPolicy {
    ValidatingPolicy::parse(&named("p", spec))
}

/// Returns the policy `p` with this spec.
pub(crate) fn mutating(spec: Value) -> MutatingPolicy {
    MutatingPolicy::parse(&named("p", spec))
}

/// The binding `b` of the policy `p` with this spec.
pub(crate) fn binding(mut spec: Value) -> Binding {
    spec["policyName"] = json!("p");
    Binding::parse(&named("b", spec))
}

/// Returns the Deployment `web`, which is the object of the test requests.
pub(crate) fn web() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"replicas": 3, "names": ["a", "b"], "many": (0..2000).collect::<Vec<u32>>()},
    })
}

/// Calls `evaluate` with the inputs of a request for [`web`], until no check is undecided. The authorizer allows `get`.
fn with_inputs<T>(params: Option<&Value>, mut evaluate: impl FnMut(&Inputs<'_>) -> T) -> T {
    let (object, mut decisions) = (web(), AuthorizationDecisions::new());
    let namespace = json!({
        "metadata": {"name": "ns", "labels": {"env": "test"}, "managedFields": []},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
    });
    loop {
        let result = evaluate(&Inputs {
            attributes: attributes(object.as_object()),
            invocation: Invocation { resource: DEPLOYMENTS },
            params: params.and_then(Value::as_object),
            namespace: namespace.as_object(),
            decisions: &decisions,
        });
        let Some(check) = decisions.take_undecided() else { return result };
        let allowed = check.verb == "get";
        decisions.insert(check, CheckDecision { allowed, ..CheckDecision::default() });
    }
}

/// Evaluates a policy over the request.
pub(crate) fn evaluate(policy: &ValidatingPolicy, params: Option<&Value>) -> Evaluated {
    with_inputs(params, |inputs| policy.evaluate(inputs))
}

/// The result of the match conditions of a policy for the request.
pub(crate) fn conditions_hold(policy: &MutatingPolicy) -> Result<bool, String> {
    with_inputs(None, |inputs| policy.conditions_hold(inputs))
}

/// Evaluates the first mutation of a policy over the request.
pub(crate) fn patch(policy: &MutatingPolicy) -> Result<Option<Patch>, String> {
    with_inputs(None, |inputs| policy.patch(0, inputs))
}

/// The denial of a failed validation.
pub(crate) fn deny(message: &str) -> Decision {
    Decision::Deny { message: message.to_owned(), reason: Reason::Invalid, failed: false }
}

/// The denial of an evaluation that failed.
pub(crate) fn failed(message: &str) -> Decision {
    Decision::Deny { message: message.to_owned(), reason: Reason::Invalid, failed: true }
}
