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
    let service = || json!({"service": {"name": "a", "namespace": "b", "port": 443}});
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
fn conversion_webhook_with_an_invalid_address_or_review_version_is_rejected() {
    let check = |client: Value, reviews: Value, expected: &[&str]| {
        let conversion =
            json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": reviews, "clientConfig": client}});
        let expected: Vec<String> = expected.iter().map(|error| format!("spec.conversion.{error}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        super::tests::check("/spec/conversion", conversion, &expected);
    };
    const FORM: &str = "; desired format: https://host[/path]";
    let at = "webhookClientConfig.url: Invalid value";
    check(json!({"url": "https://host/path"}), json!(["v1"]), &[]);
    check(
        json!({"url": "http://u:p@host/p?a=b#c"}),
        json!(["v1"]),
        &[
            &format!("{at}: \"http\": 'https' is the only allowed URL scheme{FORM}"),
            &format!("{at}: \"u:p\": user information is not permitted in the URL"),
            &format!("{at}: \"c\": fragments are not permitted in the URL"),
            &format!("{at}: \"a=b\": query parameters are not permitted in the URL"),
        ],
    );
    check(
        json!({"service": {"name": "", "namespace": "n", "port": 0, "path": "/a//b"}}),
        json!(["v1"]),
        &[
            // kube-apiserver swaps the names of the fields.
            "webhookClientConfig.service.namespace: Required value",
            "webhookClientConfig.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
            "webhookClientConfig.service.path: Invalid value: \"/a//b\": segment[1] may not be empty",
        ],
    );
    let duplicate = "conversionReviewVersions[1]: Invalid value: \"v1\": duplicate version";
    check(json!({"url": "https://host"}), json!(["v1", "v1"]), &[duplicate]);
    let malformed = format!("conversionReviewVersions[1]: Invalid value: \"V 2\": {LABEL}");
    check(json!({"url": "https://host"}), json!(["v1", "V 2"]), &[&malformed]);
}

#[test]
fn ca_bundle_of_an_established_definition_cannot_become_invalid() {
    let with = |bundle: &str, established: &str| {
        let mut changed = definition();
        let conversion = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://host", "caBundle": bundle}}});
        set(&mut changed, "/spec/conversion", conversion);
        set(&mut changed, "/status/conditions", json!([{"type": "Established", "status": established}]));
        map(changed)
    };
    const INVALID: &str = "bm90IGEgY2VydGlmaWNhdGU=";
    let check = |old: (&str, &str), new: &str, expected: &[&str]| {
        let errors = validate_update(&with(new, old.1), &with(old.0, old.1));
        assert_eq!(texts(&errors), expected, "{old:?} {new}");
    };
    assert_eq!(texts(&validate(&with(INVALID, "False"))), [""; 0], "a new definition may have it");
    check(("", "False"), INVALID, &[]);
    check((INVALID, "True"), INVALID, &[]);
    let error = format!(
        "spec.conversion.webhookClientConfig.caBundle: Invalid value: \"{INVALID}\": unable to load root certificates: unable to parse bytes as PEM block"
    );
    check(("", "True"), INVALID, &[&error]);
}

#[test]
fn selectable_fields_that_all_versions_share_need_a_schema_that_all_versions_share() {
    let version = |name: &str, kind: &str| {
        json!({"name": name, "served": true, "storage": name == "v1", "selectableFields": [{"jsonPath": ".spec.size"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "size": {"type": "string"}, "other": {"type": kind}}}}}}})
    };
    check("/spec/versions", json!([version("v1", "string"), version("v2", "string")]), &[]);
    check(
        "/spec/versions",
        json!([version("v1", "string"), version("v2", "integer")]),
        &[r#"spec.selectableFields: Invalid value: "": may only be set when validations.schema is included"#],
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

/// Validates an update between two definitions with these members of the spec, and compares the errors.
fn check_update(old: &[(&str, Value)], new: &[(&str, Value)], expected: &[&str]) {
    let with = |members: &[(&str, Value)]| {
        let mut changed = definition();
        members.iter().for_each(|(pointer, value)| set(&mut changed, &format!("/spec/{pointer}"), value.clone()));
        map(changed)
    };
    assert_eq!(texts(&validate_update(&with(new), &with(old))), expected, "{old:?} {new:?}");
}

const SCHEMA: &str = "versions/0/schema/openAPIV3Schema";
const AT: &str = "spec.validation.openAPIV3Schema";

fn preserves() -> (&'static str, Value) {
    ("preserveUnknownFields", json!(true))
}

fn schema(properties: Value) -> (&'static str, Value) {
    (SCHEMA, json!({"type": "object", "properties": properties}))
}

#[test]
fn stored_non_structural_schema_may_stay_while_unknown_fields_are_preserved() {
    let untyped = schema(json!({"a": {}}));
    let error = format!("{AT}.properties[a].type: Required value: must not be empty for specified object fields");
    let old = [preserves(), untyped.clone()];
    check_update(&old, &old, &[]);
    check_update(&old, &[preserves(), schema(json!({"a": {}, "b": {}})), ("names/shortNames", json!(["w"]))], &[]);
    check_update(&old, std::slice::from_ref(&untyped), &[&error]);
    check_update(&[preserves()], &old, &[&error]);
    check_update(&old, &[schema(json!({"a": {"type": "string"}}))], &[]);
    // Some features need a structural schema.
    check_update(&old, &[preserves(), schema(json!({"a": {}, "b": {"x-kubernetes-int-or-string": true}}))], &[&error]);
    check_update(
        &old,
        &[preserves(), schema(json!({"a": {}, "b": {"type": "string", "default": "x"}}))],
        &[
            "spec.preserveUnknownFields: Invalid value: true: must be false in order to use defaults in the schema",
            &error,
        ],
    );
    // Some rules apply to every schema.
    let unique = format!(
        "{AT}.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
    );
    check_update(&old, &[preserves(), schema(json!({"a": {"uniqueItems": true}}))], &[&unique]);
}

#[test]
fn update_may_keep_violations_of_rules_that_became_stricter() {
    let kept = |property: Value| {
        let with = |name: &str| [schema(json!({name: property}))];
        check_update(&with("a"), &with("b"), &[]);
        let mut new = definition();
        set(&mut new, &format!("/spec/{SCHEMA}"), with("a")[0].1.clone());
        assert_ne!(texts(&validate(&map(new))), [""; 0], "{property}");
    };
    kept(json!({"type": "file"}));
    kept(json!({"type": "object", "properties": {"b": {"type": "string"}}, "default": {"c": 1}}));
    kept(json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}));
    kept(json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}}}}));
}

#[test]
fn update_may_keep_versions_without_schemas_if_unknown_fields_are_preserved() {
    let none = ("versions/0/schema", Value::Null);
    let required = "spec.versions[0].schema.openAPIV3Schema: Required value";
    check_update(&[preserves(), none.clone()], &[preserves(), none.clone()], &[]);
    check_update(&[], std::slice::from_ref(&none), &[required]);
    let pruned = format!("{required}: because otherwise all fields are pruned");
    check_update(std::slice::from_ref(&none), std::slice::from_ref(&none), &[&pruned]);
    check_update(std::slice::from_ref(&none), &[none.clone(), ("versions/0/served", json!(false))], &[]);
}

#[test]
fn update_may_keep_too_many_selectable_fields_and_unknown_review_versions() {
    let fields = |count: usize| {
        let names: Vec<String> = (0..count).map(|index| format!("f{index}")).collect();
        let properties: Map = names.iter().map(|name| (name.clone(), json!({"type": "string"}))).collect();
        let paths: Vec<Value> = names.iter().map(|name| json!({"jsonPath": format!(".{name}")})).collect();
        [schema(Value::Object(properties)), ("versions/0/selectableFields", Value::Array(paths))]
    };
    check_update(&fields(9), &fields(9), &[]);
    let error = "spec.selectableFields: Too many: 9: must have at most 8 items";
    check_update(&fields(8), &fields(9), &[error]);
    check_update(&fields(10), &fields(9), &[error]);

    let reviews = |versions: &[&str]| {
        let webhook = json!({"conversionReviewVersions": versions, "clientConfig": {"url": "https://host"}});
        [("conversion", json!({"strategy": "Webhook", "webhook": webhook}))]
    };
    check_update(&reviews(&["v9"]), &reviews(&["v8"]), &[]);
    let error =
        r#"spec.conversion.conversionReviewVersions: Invalid value: ["v8"]: must include at least one of v1, v1beta1"#;
    check_update(&reviews(&["v1"]), &reviews(&["v8"]), &[error]);
    check_update(&[], &reviews(&["v8"]), &[error]);
}
