//! Each test changes a valid definition and compares the errors.

use listwatch_json::json;

use super::*;

fn definition() -> Value {
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "conversion": {"strategy": "None"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {"type": "object", "properties": {
                    "size": {"type": "string"}, "items": {"type": "array", "items": {"type": "string"}}}}},
            }}}],
        },
        "status": {"storedVersions": ["v1"], "acceptedNames": {"plural": "", "kind": ""}, "conditions": null},
    })
}

fn map(value: Value) -> Map {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is not an object"),
    }
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Sets the value at a JSON pointer and compares the errors.
fn check(pointer: &str, value: Value, expected: &[&str]) {
    let mut changed = definition();
    set(&mut changed, pointer, value);
    assert_eq!(texts(&validate(&map(changed))), expected, "{pointer}");
}

fn set(definition: &mut Value, pointer: &str, value: Value) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    definition.pointer_mut(parent).unwrap()[name] = value;
}

const LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

#[test]
fn valid_definition_has_no_errors() {
    check("/spec/scope", json!("Cluster"), &[]);
    check("/spec/names/shortNames", json!(["w", "wd"]), &[]);
}

#[test]
fn invalid_names_group_and_scope_are_rejected() {
    check(
        "/metadata/name",
        json!("wrong"),
        &[r#"metadata.name: Invalid value: "wrong": must be spec.names.plural+"."+spec.group"#],
    );
    check("/spec/names/kind", json!(""), &["spec.names.kind: Required value"]);
    check(
        "/spec/names/kind",
        json!("Wid_get"),
        &[&format!(
            "spec.names.kind: Invalid value: \"Wid_get\": may have mixed case, but should otherwise match: {LABEL}"
        )],
    );
    check(
        "/spec/names/listKind",
        json!("Widget"),
        &[r#"spec.names.listKind: Invalid value: "Widget": kind and listKind may not be the same"#],
    );
    check(
        "/spec/names/shortNames",
        json!(["W"]),
        &[&format!("spec.names.shortNames[0]: Invalid value: \"W\": {LABEL}")],
    );
    check(
        "/spec/group",
        json!("example"),
        &[
            r#"metadata.name: Invalid value: "widgets.example.com": must be spec.names.plural+"."+spec.group"#,
            r#"spec.group: Invalid value: "example": should be a domain with at least one dot"#,
        ],
    );
    check(
        "/spec/scope",
        json!("Galaxy"),
        &[r#"spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced""#],
    );
}

#[test]
fn versions_need_unique_names_schemas_and_one_storage_version() {
    let found = |versions: Value| {
        let mut changed = definition();
        changed["spec"]["versions"] = versions;
        texts(&validate(&map(changed)))
            .into_iter()
            .map(|text| text.rsplit(": ").next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}});
    assert_eq!(found(json!([version("v1", true), version("v2", false)])), [""; 0]);
    assert_eq!(
        found(json!([version("v1", true), version("v2", true)])),
        ["must have exactly one version marked as storage version", "must have the storage version v2"]
    );
    assert_eq!(found(json!([version("v1", true), version("v1", false)])), ["must contain unique version names"]);
    assert_eq!(
        found(json!([{"name": "v1", "served": true, "storage": true}])),
        ["spec.versions[0].schema.openAPIV3Schema: Required value"].map(|text| text.rsplit(": ").next().unwrap())
    );
}

#[test]
fn error_in_a_field_shared_by_all_versions_has_a_path_above_the_versions() {
    check(
        "/spec/versions/0/subresources",
        json!({"scale": {"specReplicasPath": "spec.n", "statusReplicasPath": ".spec.n"}}),
        &[
            r#"spec.subresources.scale.specReplicasPath: Invalid value: "spec.n": must be a simple json path starting with ."#,
            r#"spec.subresources.scale.statusReplicasPath: Invalid value: ".spec.n": should be a json path under .status"#,
        ],
    );
    check(
        "/spec/versions/0/additionalPrinterColumns",
        json!([{"name": "Size", "type": "text", "jsonPath": "spec.size"}]),
        &[
            r#"spec.additionalPrinterColumns[0].type: Invalid value: "text": must be one of boolean,date,integer,number,string"#,
            r#"spec.additionalPrinterColumns[0].JSONPath: Invalid value: "spec.size": must be a simple json path starting with ."#,
        ],
    );
    check(
        "/spec/versions/0/additionalPrinterColumns",
        json!([{"name": "Size", "type": "string", "format": "name", "jsonPath": ".spec.size"}]),
        &[
            r#"spec.additionalPrinterColumns[0].format: Invalid value: "name": must be one of byte,date,date-time,double,float,int32,int64,password"#,
        ],
    );
}

#[test]
fn selectable_field_must_be_a_unique_scalar_of_the_schema() {
    check("/spec/versions/0/selectableFields", json!([{"jsonPath": ".spec.size"}]), &[]);
    let scalar = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
    check(
        "/spec/versions/0/selectableFields",
        json!([{"jsonPath": ".spec.items"}, {"jsonPath": ".spec.nope"}, {"jsonPath": ".spec.size"}, {"jsonPath": ".spec.size"}]),
        &[
            &format!("spec.selectableFields[0].jsonPath: Invalid value: \".spec.items\": {scalar}"),
            r#"spec.selectableFields[1].jsonPath: Invalid value: ".spec.nope": is an invalid path: does not refer to a valid field"#,
            r#"spec.selectableFields[3].jsonPath: Duplicate value: ".spec.size""#,
        ],
    );
    check(
        "/spec/versions/0/selectableFields",
        json!([{"jsonPath": ".spec.items[0]"}, {"jsonPath": "spec.size"}]),
        &[
            r#"spec.selectableFields[0].jsonPath: Invalid value: ".spec.items[0]": is an invalid path: array notation is not allowed"#,
            r#"spec.selectableFields[1].jsonPath: Invalid value: "spec.size": is an invalid path: expected [ or . but got: spec"#,
        ],
    );
}

#[test]
fn deprecation_warning_must_be_short_printable_and_of_a_deprecated_version() {
    check(
        "/spec/versions/0/deprecationWarning",
        json!("old"),
        &[r#"spec.versions[0].deprecationWarning: Invalid value: "old": can only be set for deprecated versions"#],
    );
    let found = |warning: &str| {
        let mut changed = definition();
        set(&mut changed, "/spec/versions/0/deprecated", json!(true));
        set(&mut changed, "/spec/versions/0/deprecationWarning", json!(warning));
        texts(&validate(&map(changed))).join("\n").rsplit_once("\": ").map(|(_, why)| why.to_owned())
    };
    assert_eq!(found("old"), None);
    assert_eq!(found("").as_deref(), Some("must not be an empty string"));
    assert_eq!(found(&"x".repeat(257)).as_deref(), Some("must be <= 256 characters long"));
    let control = "must only contain printable UTF-8 characters; non-printable character found at index 1";
    assert_eq!(found("a\u{7}").as_deref(), Some(control));
}

#[test]
fn webhook_conversion_needs_client_config_and_review_version() {
    let webhook = |client: Value, reviews: Value| {
        json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": reviews, "clientConfig": client}})
    };
    let service = || json!({"service": {"name": "a", "namespace": "b"}});
    check("/spec/conversion", webhook(service(), json!(["v1"])), &[]);
    check(
        "/spec/conversion",
        webhook(json!({}), json!(["v2"])),
        &[
            "spec.conversion.webhookClientConfig: Required value: exactly one of url or service is required",
            r#"spec.conversion.conversionReviewVersions: Invalid value: ["v2"]: must include at least one of v1, v1beta1"#,
        ],
    );
    check(
        "/spec/conversion",
        json!({"strategy": "None", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": service()}}),
        &[
            "spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook",
            "spec.conversion.conversionReviewVersions: Forbidden: should not be set when strategy is not set to Webhook",
        ],
    );
}

#[test]
fn version_list_in_an_error_has_the_format_of_go() {
    check(
        "/spec/versions/0/storage",
        json!(false),
        &[
            r#"spec.versions: Invalid value: [{"Name":"v1","Served":true,"Storage":false,"Deprecated":false,"DeprecationWarning":null,"Schema":null,"Subresources":null,"AdditionalPrinterColumns":null,"SelectableFields":null}]: must have exactly one version marked as storage version"#,
        ],
    );
}

#[test]
fn community_group_needs_approval_annotation() {
    let mut changed = definition();
    changed["metadata"]["name"] = json!("widgets.x.k8s.io");
    changed["spec"]["group"] = json!("x.k8s.io");
    assert_eq!(
        texts(&validate(&map(changed.clone()))),
        [
            r#"metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation "api-approved.kubernetes.io", see https://github.com/kubernetes/enhancements/pull/1111"#
        ]
    );
    changed["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, a test"});
    assert_eq!(texts(&validate(&map(changed))), [""; 0]);
}

#[test]
fn update_rejects_changed_scope_and_dropped_stored_version() {
    let old = definition();
    let mut established = old.clone();
    established["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let mut changed = old.clone();
    changed["spec"]["scope"] = json!("Cluster");
    assert_eq!(
        texts(&validate_update(&map(changed.clone()), &map(old.clone()))),
        [""; 0],
        "the definition is not established"
    );
    assert_eq!(
        texts(&validate_update(&map(changed), &map(established))),
        [r#"spec.scope: Invalid value: "Cluster": field is immutable"#]
    );
    let mut dropped = old.clone();
    dropped["spec"]["versions"][0]["name"] = json!("v2");
    let text = texts(&validate_update(&map(dropped), &map(old)));
    assert!(
        text.iter().any(|text| text
            .starts_with("status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was")),
        "{text:?}"
    );
}
