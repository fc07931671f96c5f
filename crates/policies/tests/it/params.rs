//! Tests the selection of parameter objects by a binding.

use listwatch_json::{Value, json};
use listwatch_policies::param_query;

use crate::support::{binding, validating};

/// The namespace and the name in a query.
type Read = (Option<String>, Option<String>);

/// Returns the query of a binding with this `paramRef`, or the configuration error.
fn query(param_ref: Value, namespaced: bool, namespace: &str) -> Result<Option<Read>, String> {
    let policy = validating(json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}));
    let binding = binding(if param_ref.is_null() { json!({}) } else { json!({"paramRef": param_ref}) });
    let query = param_query(policy.as_ref(), &binding, namespaced, namespace)?;
    Ok(query.map(|query| (query.namespace.map(str::to_owned), query.name.map(str::to_owned))))
}

#[test]
fn parameters_are_read_in_the_namespace_of_the_binding_or_the_request() {
    let read =
        |namespace: Option<&str>, name: Option<&str>| Ok(Some((namespace.map(str::to_owned), name.map(str::to_owned))));
    assert_eq!(query(Value::Null, true, "ns"), Ok(None));
    assert_eq!(query(json!({"name": "a"}), true, "ns"), read(Some("ns"), Some("a")));
    assert_eq!(query(json!({"name": "a", "namespace": "other"}), true, "ns"), read(Some("other"), Some("a")));
    assert_eq!(query(json!({"name": "a", "namespace": "other"}), true, ""), read(Some("other"), Some("a")));
    assert_eq!(query(json!({"selector": {}}), true, "ns"), read(Some("ns"), None));
    assert_eq!(query(json!({"name": "a"}), false, "ns"), read(None, Some("a")));
}

#[test]
fn binding_with_an_unusable_param_ref_is_a_configuration_error() {
    for (param_ref, namespaced, namespace, expected) in [
        (
            json!({"name": "a"}),
            true,
            "",
            "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources",
        ),
        (
            json!({"name": "a", "namespace": "n"}),
            false,
            "ns",
            "paramRef.namespace must not be provided for a cluster-scoped `paramKind`",
        ),
        (json!({}), true, "ns", "one of name or selector must be provided"),
        (
            json!({"name": "a", "selector": {}}),
            true,
            "ns",
            "paramRef.name and paramRef.selector are mutually exclusive",
        ),
    ] {
        assert_eq!(query(param_ref.clone(), namespaced, namespace), Err(expected.to_owned()), "{param_ref}");
    }
}

#[test]
fn absent_parameter_follows_the_not_found_action() {
    let policy = validating(json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}));
    let check = |action: &str, count: usize| {
        let binding = binding(json!({"paramRef": {"name": "a", "parameterNotFoundAction": action}}));
        param_query(policy.as_ref(), &binding, true, "ns").unwrap().unwrap().check_found(count)
    };
    let denied = "no params found for policy binding with `Deny` parameterNotFoundAction";
    assert_eq!(check("Deny", 0), Err(denied.to_owned()));
    assert_eq!(check("Deny", 1), Ok(()));
    assert_eq!(check("Allow", 0), Ok(()));
}

#[test]
fn selector_selects_parameters_by_their_labels() {
    let policy = validating(json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}));
    let selects = |selector: Value, labels: Value| {
        let binding = binding(json!({"paramRef": {"selector": selector, "parameterNotFoundAction": "Deny"}}));
        let object = json!({"metadata": {"labels": labels}});
        let query = param_query(policy.as_ref(), &binding, true, "ns").unwrap().unwrap();
        query.selects(object.as_object().unwrap()).unwrap()
    };
    assert!(selects(json!({}), json!({"a": "b"})), "an empty selector selects everything");
    assert!(selects(json!({"matchLabels": {"a": "b"}}), json!({"a": "b", "c": "d"})));
    assert!(!selects(json!({"matchLabels": {"a": "b"}}), json!({"a": "x"})));
    let expression = json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]});
    assert!(selects(expression.clone(), json!({})) && !selects(expression, json!({"a": ""})));
}

#[test]
fn error_for_an_unserved_param_kind_formats_the_kind_as_go_does() {
    for (kind, expected) in [
        (json!({"apiVersion": "v1", "kind": "ConfigMap"}), "/v1, Kind=ConfigMap"),
        (json!({"apiVersion": "example.com/v1", "kind": "Limit"}), "example.com/v1, Kind=Limit"),
    ] {
        let policy = validating(json!({"paramKind": kind}));
        let expected = format!("failed to find resource referenced by paramKind: '{expected}'");
        assert_eq!(policy.as_ref().param_kind.as_ref().unwrap().not_found(), expected);
    }
}
