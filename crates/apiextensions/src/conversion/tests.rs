//! Tests the checks of converted objects and of conversion responses.

use listwatch_json::{JsonString, json};

use super::*;
use crate::Definition;

const V2: &str = "example.com/v2";
const GVK: &str = "example.com/v1, Kind=Widget";

fn object(name: &str) -> Map {
    let object = json!({"kind": "Widget", "apiVersion": "example.com/v1",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "labels": {"a": "b"},
            "finalizers": ["x/y"], "managedFields": "[]"},
        "spec": {"size": 1}});
    object.as_object().unwrap().clone()
}

fn batch(names: &[&str]) -> ConversionBatch {
    let objects: Vec<_> = names.iter().map(|name| object(name)).collect();
    ConversionBatch::new(V2, &objects)
}

/// Returns the object `name` in v2, with `value` at the JSON pointer. The parent must exist. `Null` removes the member.
fn converted(name: &str, pointer: &str, value: Value) -> Value {
    let mut object = Value::Object(object(name));
    object["apiVersion"] = json!(V2);
    if !pointer.is_empty() {
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match value {
            Value::Null => parent.shift_remove(member),
            value => parent.insert(member.to_owned(), value),
        };
    }
    object
}

#[test]
fn converted_objects_that_break_a_rule_are_rejected_with_upstreams_texts() {
    let one = |pointer: &str, value: Value, expected: &str| {
        let error = batch(&["w"]).accept(vec![converted("w", pointer, value)]).unwrap_err();
        assert_eq!(error.to_string(), expected.replace("GVK", GVK), "{pointer}");
        assert_eq!(error.failure_type(), ConversionFailureType::InvalidObject);
    };
    let invalid = |why: &str| format!("conversion webhook for GVK returned invalid object: {why}");
    let metadata = |why: &str| format!("conversion webhook for GVK returned invalid metadata: {why}");
    let at_zero = |why: &str| format!("conversion webhook for GVK returned invalid object at index 0: {why}");
    one("/metadata/name", json!("x"), &invalid("must have the same name: w != x"));
    one("/metadata/name", Value::Null, &invalid("must have the same name: w != "));
    one("/metadata/namespace", json!("other"), &invalid("must have the same namespace: ns != other"));
    one("/metadata/uid", json!("1"), &invalid("must have the same UID: uid-w != 1"));
    one("/metadata/uid", json!(1), &invalid("must have the same UID: uid-w != "));
    one("/metadata", Value::Null, &invalid("must have the same name: w != "));
    one("/metadata", json!("x"), &invalid("must have the same name: w != "));
    let version = "invalid groupVersion (expected example.com/v2, received example.com/v1)";
    one("/apiVersion", json!("example.com/v1"), &at_zero(version));
    one("/apiVersion", Value::Null, &at_zero("invalid groupVersion (expected example.com/v2, received )"));
    one("/kind", json!("Gadget"), &at_zero("invalid kind (expected Widget, received Gadget)"));
    one("/metadata/labels", json!([]), &metadata("invalid metadata.labels of type []interface {} in converted object"));
    let number = "metadata.annotations[a] must be a string, but is int64 in converted object";
    one("/metadata/annotations", json!({"a": 1}), &metadata(number));
    let label = r#"metadata.labels: Invalid value: "no label": a valid label must be an empty string or consist of"#;
    let error = batch(&["w"]).accept(vec![converted("w", "/metadata/labels", json!({"a": "no label"}))]).unwrap_err();
    assert!(error.to_string().contains(label), "{error}");
    let error = batch(&["w"]).accept(vec![converted("w", "/metadata/annotations", json!({"no key": "", "-": ""}))]);
    let text = error.unwrap_err().to_string();
    assert!(text.contains("[metadata.annotation: Invalid value:") && text.ends_with(']'), "{text}");
}

#[test]
fn object_without_metadata_is_accepted_only_with_metadata_that_sets_no_identity() {
    let bare = json!({"kind": "Widget", "apiVersion": "example.com/v1", "spec": {}}).as_object().unwrap().clone();
    let accept = |converted: Value| ConversionBatch::new(V2, [&bare]).accept(vec![converted]);
    let error = accept(json!({"kind": "Widget", "apiVersion": V2})).unwrap_err().to_string();
    assert!(error.ends_with("returned invalid metadata: missing metadata in converted object"), "{error}");
    let error = accept(json!({"kind": "Widget", "apiVersion": V2, "metadata": 7})).unwrap_err().to_string();
    assert!(error.ends_with("invalid metadata of type int64 in converted object"), "{error}");
    let accepted = accept(json!({"kind": "Widget", "apiVersion": V2, "metadata": {"labels": {"a": "b"}}})).unwrap();
    assert_eq!(accepted[0]["metadata"], json!({"labels": {"a": "b"}}));
}

#[test]
fn errors_in_a_list_name_the_index_of_the_object_as_upstream_counts() {
    let two = |second: Value, expected: &str| {
        let error = batch(&["a", "b"]).accept(vec![converted("a", "", Value::Null), second]).unwrap_err();
        assert_eq!(error.to_string(), format!("conversion webhook for {GVK} returned invalid {expected}"));
    };
    two(Value::Null, "converted object at index 1: unexpected end of JSON input");
    two(
        json!({"apiVersion": V2}),
        &format!("converted object at index 1: Object 'Kind' is missing in '{{\"apiVersion\":\"{V2}\"}}'"),
    );
    let swapped = converted("a", "", Value::Null);
    two(swapped, "converted object at index 2: must have the same name: b != a");
    let label = json!({"a": false});
    let why = "metadata in object at index 2: metadata.labels[a] must be a string, but is bool in converted object";
    two(converted("b", "/metadata/labels", label), why);
}

#[test]
fn response_with_a_different_number_of_objects_is_rejected() {
    let check = |returned: usize| {
        let error = batch(&["a", "b"]).accept(vec![converted("a", "", Value::Null); returned]).unwrap_err();
        assert_eq!(error.to_string(), format!("conversion webhook for {GVK} returned {returned} objects, expected 2"));
        assert_eq!(error.failure_type(), ConversionFailureType::PartialResponse);
    };
    check(0);
    check(1);
    check(3);
}

#[test]
fn accepted_objects_keep_the_original_metadata_except_labels_and_annotations() {
    let mut changed = converted("w", "/metadata/finalizers", Value::Null);
    changed["metadata"]["labels"] = json!({"new": "label"});
    changed["metadata"]["annotations"] = json!({"note": "any text"});
    changed["metadata"]["resourceVersion"] = json!("9");
    // Kubernetes stores a whole float as an integer.
    changed["spec"] = json!({"sizes": [1.0]});
    let accepted = batch(&["w"]).accept(vec![changed]).unwrap();
    let names: Vec<&JsonString> = accepted[0].keys().collect();
    assert_eq!(names, ["kind", "apiVersion", "metadata", "spec"]);
    assert_eq!(
        Value::Object(accepted[0].clone()),
        json!({"kind": "Widget", "apiVersion": V2, "metadata": {"name": "w", "namespace": "ns", "uid": "uid-w",
            "labels": {"new": "label"}, "finalizers": ["x/y"], "managedFields": "[]",
            "annotations": {"note": "any text"}}, "spec": {"sizes": [1]}})
    );
    let accepted = batch(&["w"]).accept(vec![converted("w", "/metadata/labels", Value::Null)]).unwrap();
    assert_eq!(accepted[0]["metadata"].get("labels"), None, "the webhook removed the labels");
}

#[test]
fn unchanged_invalid_labels_are_accepted() {
    let mut old = object("w");
    old["metadata"]["labels"] = json!({"a": "no label"});
    let mut new = Value::Object(old.clone());
    new["apiVersion"] = json!(V2);
    let accepted = ConversionBatch::new(V2, [&old]).accept(vec![new]).unwrap();
    assert_eq!(accepted[0]["metadata"]["labels"]["a"], "no label");
}

#[test]
fn invalid_or_failed_responses_are_rejected_with_upstreams_texts() {
    use ConversionReviewVersion::{V1, V1Beta1};
    let review = |response: Value| {
        json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response}).to_string()
    };
    let check = |version: ConversionReviewVersion, body: &str, expected: Result<usize, &str>| {
        let parsed = batch(&["w"]).parse_response(version, "u", 200, body.as_bytes());
        let parsed = parsed.map(|objects| objects.len()).map_err(|error| error.to_string());
        let expected = expected.map_err(|why| format!("conversion webhook for {GVK} failed: {why}"));
        assert_eq!(parsed, expected, "{body}");
    };
    let success = json!({"status": "Success"});
    check(V1, &review(json!({"uid": "u", "result": success, "convertedObjects": [{}]})), Ok(1));
    check(V1, &review(json!({"uid": "u", "result": success, "convertedObjects": null})), Ok(0));
    check(V1, &review(json!({"uid": "v", "result": success})), Err(r#"expected response.uid="u", got "v""#));
    check(V1, &review(json!({"result": success})), Err(r#"expected response.uid="u", got """#));
    check(V1, &review(Value::Null), Err("no response provided"));
    let of_kind =
        |kind: &str| format!("expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {kind}");
    check(V1, "{}", Err(&of_kind("/, Kind=")));
    let admission = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u"}}"#;
    check(V1, admission, Err(&of_kind("admission.k8s.io/v1, Kind=AdmissionReview")));
    let failure = json!({"status": "Failure", "message": "cannot convert", "reason": "Odd", "code": 404});
    check(V1, &review(json!({"uid": "u", "result": failure})), Err("cannot convert"));
    check(V1, &review(json!({"uid": "u"})), Err("response.result.status was '', not 'Success'"));
    check(
        V1,
        &review(json!({"uid": "u", "result": {"status": "Odd"}})),
        Err("response.result.status was 'Odd', not 'Success'"),
    );
    check(V1, "", Err("0-length response with status code: 200 and content type: application/json"));
    let garbage = "couldn't get version/kind; json parse error:";
    check(V1, "<html>", Err(&format!("{garbage} expected value at line 1 column 1")));
    check(V1, "[1]", Err(&format!("{garbage} invalid type: sequence, expected a map at line 1 column 0")));
    check(V1, &review(json!("x")), Err(&format!("{garbage} json: cannot unmarshal string into response")));
    let wrong = review(json!({"uid": "u", "result": success, "convertedObjects": {}}));
    check(V1, &wrong, Err(&format!("{garbage} invalid type: map, expected a sequence")));
    // v1beta1 has no checks of kind and uid.
    let beta = json!({"response": {"uid": "v", "result": success, "convertedObjects": [{}]}}).to_string();
    check(V1Beta1, &beta, Ok(1));
    check(V1Beta1, "{}", Err("no response provided"));
}

#[test]
fn deeply_nested_and_huge_responses_are_rejected_in_bounded_memory() {
    let batch = batch(&["w"]);
    let deep = format!(r#"{{"response":{}"#, "[".repeat(1_000_000));
    let error = batch.parse_response(ConversionReviewVersion::V1, "u", 200, deep.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("recursion limit exceeded"), "{error}");
    let message = "x".repeat(10_000_000);
    let body = json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
        "response": {"uid": "u", "result": {"status": "Failure", "message": message}}});
    let error = batch.parse_response(ConversionReviewVersion::V1, "u", 200, body.to_string().as_bytes()).unwrap_err();
    assert!(error.to_string().len() <= STATUS_TEXT_BYTES_MAX + 16, "{} bytes", error.to_string().len());
}

#[test]
fn conversion_request_has_the_json_of_upstream() {
    let objects = [br#"{"kind":"Widget"}"#.as_slice(), br#"{"kind":"Widget","a":1}"#];
    let body = batch(&["a", "b"]).request(ConversionReviewVersion::V1Beta1, "u-1", objects);
    let review: Value = serde_json::from_slice(&body).unwrap();
    let expected = json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1beta1", "request": {
        "uid": "u-1", "desiredAPIVersion": V2, "objects": [{"kind": "Widget"}, {"kind": "Widget", "a": 1}]}});
    assert_eq!(review, expected);
}

#[test]
fn first_known_review_version_of_the_definition_is_used() {
    let webhook = |versions: Value| {
        let definition = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": {
            "conversionReviewVersions": versions, "clientConfig": {"url": "https://example.com/convert"}}}}});
        Definition::parse(definition.to_string().as_bytes()).unwrap().conversion_webhook().unwrap()
    };
    assert_eq!(webhook(json!(["v3", "v1beta1", "v1"])).review_version, Some(ConversionReviewVersion::V1Beta1));
    assert_eq!(webhook(json!(["v1", "v1beta1"])).review_version, Some(ConversionReviewVersion::V1));
    assert_eq!(webhook(json!(["v2"])).review_version, None);
    let target = webhook(json!(["v1"])).client_config.target_without_timeout().unwrap();
    assert_eq!(target.shown_url, "https://example.com/convert");
    let none = Definition::parse(br#"{"spec":{"conversion":{"strategy":"None"}}}"#).unwrap();
    assert_eq!(none.conversion_webhook(), None);
    assert!(Definition::parse(b"{}").unwrap().conversion_webhook().is_none());
}
