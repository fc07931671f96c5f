//! Tests that the OpenAPI documents contain the facts that clients need.

use std::collections::HashSet;

use super::paths::root;
use super::version2::V2_PROTOBUF;
use super::*;
use listwatch_json::{JsonString, Value};
use listwatch_registry::PrinterColumn;

fn v2_json(openapi: &OpenApi) -> Value {
    serde_json::from_slice(&openapi.v2(Some("application/json")).unwrap().1.body).unwrap()
}

fn v3_json(openapi: &OpenApi, path: &str) -> Value {
    let Answer::Document { document, .. } = openapi.v3(path, None) else { panic!("{path} is served") };
    serde_json::from_slice(&document.encode(V3Form::Json)).unwrap()
}

/// The operations on a path item.
fn operations(item: &Value) -> impl Iterator<Item = (&JsonString, &Value)> {
    item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters")
}

fn is_kind(operation: &Value, resource: &Resource) -> bool {
    operation[schema::KIND_EXTENSION]
        == json!({"group": resource.group, "kind": resource.kind, "version": resource.version})
}

/// Whether the PATCH of this kind takes `fieldValidation`, by kubectl's check (`cli-runtime`, query_param_verifier).
fn validates_on_the_server(document: &Value, resource: &Resource) -> bool {
    let mut patches =
        document["paths"].as_object().unwrap().values().map(|item| &item["patch"]).filter(|p| is_kind(p, resource));
    let listed = |patch: &Value| {
        let parameters = patch["parameters"].as_array().unwrap();
        parameters.iter().any(|parameter| parameter["name"] == "fieldValidation" && parameter["in"] == "query")
    };
    patches.next().is_some_and(listed) && patches.all(listed)
}

#[test]
fn every_write_accepts_field_validation() {
    let registry = Registry::builtin();
    let openapi = &OpenApi::new(&registry, None);
    let v2 = v2_json(openapi);
    for resource in registry.resources() {
        let v3 = v3_json(openapi, &root(resource)[1..]);
        assert!(validates_on_the_server(&v3, resource), "v3 {}", resource.kind);
        assert!(validates_on_the_server(&v2, resource), "v2 {}", resource.kind);
    }
}

/// Returns the paths of members that Go's types would omit.
fn unwritten_by_go(document: &Value) -> Vec<String> {
    fn schemas(path: &str, schema: &Value, found: &mut Vec<String>) {
        let Value::Object(members) = schema else { return };
        for (name, value) in members {
            let path = format!("{path}/{name}");
            if spec3::is_unwritten(name, value) {
                found.push(path.clone());
            }
            match name.as_str() {
                "properties" | "patternProperties" => {
                    value.as_object().into_iter().flatten().for_each(|(name, of)| {
                        schemas(&format!("{path}/{name}"), of, found);
                    });
                }
                "allOf" | "oneOf" | "anyOf" => value.as_array().into_iter().flatten().for_each(|of| {
                    schemas(&path, of, found);
                }),
                "items" | "not" | "additionalProperties" => schemas(&path, value, found),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    let is_empty_value = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Number(_) => false,
    };
    let mut members = |path: &str, value: &Value| {
        for (name, value) in value.as_object().into_iter().flatten() {
            if is_empty_value(value) {
                found.push(format!("{path}/{name}"));
            }
        }
    };
    members("", document);
    for (name, parameter) in document["components"]["parameters"].as_object().into_iter().flatten() {
        members(&format!("/parameters/{name}"), parameter);
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        members(path, item);
        for (method, operation) in operations(item) {
            let path = format!("{path}/{method}");
            members(&path, operation);
            members(&format!("{path}/requestBody"), &operation["requestBody"]);
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                members(&format!("{path}/parameters"), parameter);
            }
            for (code, response) in operation["responses"].as_object().unwrap() {
                members(&format!("{path}/{code}"), response);
            }
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        schemas(name, schema, &mut found);
    }
    found
}

#[test]
fn documents_have_no_member_that_kube_openapi_omits() {
    let registry = Registry::builtin();
    for resource in registry.resources() {
        let document = v3_json(&OpenApi::new(&registry, None), &root(resource)[1..]);
        assert_eq!(unwritten_by_go(&document), Vec::<String>::new(), "{}/{}", resource.group, resource.version);
    }
}

#[test]
fn every_field_of_a_built_in_type_has_a_description() {
    let registry = Registry::builtin();
    let mut empty = std::collections::BTreeSet::new();
    for resource in registry.resources() {
        let document = v3_json(&OpenApi::new(&registry, None), &root(resource)[1..]);
        for (model, schema) in document["components"]["schemas"].as_object().unwrap() {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if property["description"].as_str().is_none_or(str::is_empty) {
                    empty.insert(format!("{}.{name}", model.rsplit('.').next().unwrap()));
                }
            }
        }
    }
    assert!(empty.is_empty(), "kubectl explains these as <empty>: {empty:?}");
}

/// Whether a strategic merge patch of this kind can be computed from the schema, by kubectl's check.
fn takes_strategic_patches(document: &Value, resource: &Resource) -> bool {
    let mut patches =
        document["paths"].as_object().unwrap().values().map(|item| &item["patch"]).filter(|p| is_kind(p, resource));
    let strategic = "application/strategic-merge-patch+json";
    patches.all(|patch| match &patch["requestBody"]["content"] {
        Value::Null => patch["consumes"].as_array().unwrap().iter().any(|of| of == strategic),
        content => content.get(strategic).is_some(),
    })
}

#[test]
fn documents_offer_strategic_patches_for_built_in_kinds() {
    let registry = Registry::builtin();
    let v2 = v2_json(&OpenApi::new(&registry, None));
    for resource in registry.resources() {
        let kind = json!({"group": resource.group, "kind": resource.kind, "version": resource.version});
        let v3 = v3_json(&OpenApi::new(&registry, None), &root(resource)[1..]);
        for (document, models) in [(&v2, &v2["definitions"]), (&v3, &v3["components"]["schemas"])] {
            let is_it = |model: &Value| model[schema::KIND_EXTENSION].as_array().is_some_and(|of| of.contains(&kind));
            let found: Vec<&Value> = models.as_object().unwrap().values().filter(|model| is_it(model)).collect();
            assert_eq!(found.len(), 1, "kubectl finds one model of {kind}");
            assert_eq!(found[0]["type"], "object", "{kind}");
            assert!(found[0]["properties"]["metadata"].is_object(), "{kind}");
            assert!(takes_strategic_patches(document, resource), "{kind}");
        }
    }
}

/// Follows a path of properties through references, items and map values, and returns the last model.
fn model<'a>(document: &'a Value, models: &'a Value, kind: &str, path: &str) -> &'a Value {
    let resolve = |mut value: &'a Value| loop {
        let reference = match value {
            of if of["$ref"].is_string() => &of["$ref"],
            of if of["allOf"].is_array() => &of["allOf"][0]["$ref"],
            of if of["items"].is_object() => {
                value = &of["items"];
                continue;
            }
            of if of["additionalProperties"].is_object() => {
                value = &of["additionalProperties"];
                continue;
            }
            of => return of,
        };
        value = document.pointer(&reference.as_str().unwrap()[1..]).unwrap();
    };
    let mut found = &models[kind];
    for name in path.split('.') {
        found = &resolve(found)["properties"][name];
        assert!(!found.is_null(), "{kind}: {name} of {path} is not there");
    }
    found
}

#[test]
fn openapi_schemas_have_list_types_and_merge_keys() {
    let registry = Registry::builtin();
    let v2 = v2_json(&OpenApi::new(&registry, None));
    let apps = v3_json(&OpenApi::new(&registry, None), "apis/apps/v1");
    let deployment = "io.k8s.api.apps.v1.Deployment";
    let both = |path: &str, expected: Value| {
        for (document, models) in [(&v2, &v2["definitions"]), (&apps, &apps["components"]["schemas"])] {
            let mut found = model(document, models, deployment, path).clone();
            let members = found.as_object_mut().unwrap();
            members.retain(|name, _| !["description", "default", "items", "allOf", "$ref"].contains(&name.as_str()));
            assert_eq!(found, expected, "{path}");
        }
    };
    both(
        "spec.template.spec.containers.ports",
        json!({
            "type": "array",
            "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
            "x-kubernetes-list-type": "map",
            "x-kubernetes-patch-merge-key": "containerPort",
            "x-kubernetes-patch-strategy": "merge",
        }),
    );
    both("spec.strategy", json!({"x-kubernetes-patch-strategy": "retainKeys"}));
    both("spec.strategy.type", json!({"type": "string", "enum": ["Recreate", "RollingUpdate"]}));
    both("spec.replicas", json!({"type": "integer", "format": "int32"}));
    both(
        "spec.template.spec.nodeSelector",
        json!({"type": "object", "additionalProperties": {"type": "string"}, "x-kubernetes-map-type": "atomic"}),
    );
    both("metadata.creationTimestamp", json!({}));
    let schemas = &apps["components"]["schemas"];
    let protocol = model(&apps, schemas, deployment, "spec.template.spec.containers.ports.protocol");
    assert_eq!((&protocol["default"], &protocol["enum"]), (&json!("TCP"), &json!(["SCTP", "TCP", "UDP"])));
    assert_eq!(schemas["io.k8s.api.apps.v1.DeploymentSpec"]["required"], json!(["selector", "template"]));
    let metadata = model(&apps, schemas, deployment, "metadata");
    let object_meta = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!((&metadata["default"], &metadata["allOf"]), (&json!({}), &json!([{ "$ref": object_meta }])));
    let unavailable = &schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"];
    assert_eq!(unavailable["oneOf"], json!([{"type": "integer"}, {"type": "string"}]));
    assert_eq!(v2["definitions"]["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]["format"], "int-or-string");
}

#[test]
fn parameters_ids_and_references_of_documents_are_consistent() {
    let registry = Registry::builtin();
    let openapi = &OpenApi::new(&registry, None);
    let mut documents = vec![v2_json(openapi)];
    documents.extend(openapi.version3().documents.keys().map(|path| v3_json(openapi, path)));
    for document in documents {
        let mut ids = HashSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            let declared: Vec<&str> = item["parameters"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            let used: Vec<&str> =
                path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            assert_eq!(declared, used, "{path}");
            for (method, operation) in operations(item) {
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{method} {path}");
                let is_of_kind = operation[schema::KIND_EXTENSION]["kind"].is_string();
                assert_eq!(is_of_kind, path.starts_with("/api"), "{method} {path}");
            }
        }
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(document.pointer(reference).is_some(), "{reference} leads nowhere");
        }
    }
}

#[test]
fn documented_paths_are_served() {
    let registry = Registry::builtin();
    let core = v3_json(&OpenApi::new(&registry, None), "api/v1");
    let methods = |path: &str| {
        let mut methods: Vec<&str> = operations(&core["paths"][path]).map(|(method, _)| method.as_str()).collect();
        methods.sort_unstable();
        methods.join(",")
    };
    for (path, expected) in [
        ("/api/v1/pods", "get"),
        ("/api/v1/namespaces/{namespace}/pods", "delete,get,post"),
        ("/api/v1/namespaces/{namespace}/pods/{name}", "delete,get,patch,put"),
        ("/api/v1/namespaces/{namespace}/pods/{name}/status", "get,patch,put"),
        ("/api/v1/namespaces/{namespace}/pods/{name}/eviction", "post"),
        ("/api/v1/namespaces", "get,post"),
        ("/api/v1/namespaces/{name}/finalize", "put"),
        ("/api/v1/nodes", "delete,get,post"),
    ] {
        assert_eq!(methods(path), expected, "{path}");
    }
    let list = &core["paths"]["/api/v1/namespaces/{namespace}/pods"]["get"];
    assert_eq!(list["operationId"], "listCoreV1NamespacedPod");
    assert_eq!(list["x-kubernetes-action"], "list");
    let sweep = &core["paths"]["/api/v1/namespaces/{namespace}/pods"]["delete"];
    assert_eq!(sweep["operationId"], "deleteCoreV1CollectionNamespacedPod");
    let apps = v3_json(&OpenApi::new(&registry, None), "apis/apps/v1");
    let scale = &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]["put"];
    assert_eq!(scale[schema::KIND_EXTENSION], json!({"group": "autoscaling", "kind": "Scale", "version": "v1"}));
    assert!(apps["components"]["schemas"]["io.k8s.api.autoscaling.v1.Scale"].is_object());
}

#[test]
fn openapi_models_have_the_names_of_kube_apiserver() {
    let kind = |group: &str, kind: &str| paths::Kind {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
    };
    for (group, name, custom, expected) in [
        ("", "Pod", false, "io.k8s.api.core.v1.Pod"),
        ("apps", "Deployment", false, "io.k8s.api.apps.v1.Deployment"),
        ("rbac.authorization.k8s.io", "Role", false, "io.k8s.api.rbac.v1.Role"),
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            false,
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        ),
        ("stable.example.com", "CronTab", true, "com.example.stable.v1.CronTab"),
    ] {
        assert_eq!(schema::model_name(&kind(group, name), custom), expected);
    }
}

#[test]
fn openapi_document_of_a_custom_resource_has_the_schema_of_its_definition() {
    let pods = Registry::builtin().find("", "v1", "pods").unwrap().clone();
    let custom = Resource {
        group: "stable.example.com".to_owned(),
        kind: "CronTab".to_owned(),
        list_kind: "CronTabList".to_owned(),
        plural: "crontabs".to_owned(),
        custom: true,
        subresources: Vec::new(),
        printer_columns: Vec::<PrinterColumn>::new(),
        merging: std::sync::OnceLock::new(),
        schema: Some(Arc::new(json!({
            "description": "A cron tab.",
            "type": "object",
            "required": [],
            "properties": {
                "spec": {
                    "type": "object",
                    "description": "",
                    "allOf": [],
                    "properties": {"cron": {"type": "string"}, "rest": {"type": "object", "properties": {}}},
                },
            },
        }))),
        ..Resource::clone(&pods)
    };
    let registry = Registry::new(vec![Arc::new(custom)]);
    let document = v3_json(&OpenApi::new(&registry, None), "apis/stable.example.com/v1");
    let model = &document["components"]["schemas"]["com.example.stable.v1.CronTab"];
    assert_eq!(model["description"], "A cron tab.");
    assert_eq!(model["properties"]["spec"]["properties"]["cron"]["type"], "string");
    assert_eq!(
        model["properties"]["metadata"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(model[schema::KIND_EXTENSION][0]["kind"], "CronTab");
    assert_eq!(model.get("x-kubernetes-preserve-unknown-fields"), None, "its own schema says what is known");
    assert_eq!(unwritten_by_go(&document), Vec::<String>::new());
}

/// A custom resource with a schema.
fn custom_resource(schema: Option<Value>) -> Registry {
    let pods = Registry::builtin().find("", "v1", "pods").unwrap().clone();
    let custom = Resource {
        group: "stable.example.com".to_owned(),
        kind: "CronTab".to_owned(),
        list_kind: "CronTabList".to_owned(),
        plural: "crontabs".to_owned(),
        custom: true,
        subresources: Vec::new(),
        printer_columns: Vec::<PrinterColumn>::new(),
        merging: std::sync::OnceLock::new(),
        shape: Arc::new(listwatch_meta::ObjectShape::new(true, Vec::new())),
        schema: schema.map(Arc::new),
        ..Resource::clone(&pods)
    };
    Registry::new(vec![Arc::new(custom)])
}

#[test]
fn version_2_has_the_schema_of_a_custom_resource_and_of_its_list() {
    let own = json!({"description": "A cron tab.", "type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "properties": {
            "cron": {"type": "string", "pattern": "^a", "maxLength": 300, "default": "a", "title": "T"},
            "count": {"type": "integer", "minimum": 1.5, "exclusiveMinimum": true},
            "any": {"type": "object", "additionalProperties": true, "example": {"a": 1}},
        }},
    }});
    let registry = custom_resource(Some(own));
    let openapi = &OpenApi::new(&registry, None);
    let document = v2_json(openapi);
    let model = &document["definitions"]["com.example.stable.v1.CronTab"];
    assert_eq!((&model["type"], &model["required"]), (&json!("object"), &json!(["spec"])));
    assert_eq!(model["properties"]["spec"]["properties"]["cron"]["maxLength"], 300);
    assert_eq!(
        model["properties"]["metadata"]["$ref"],
        "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(model["properties"]["kind"]["type"], "string");
    let kind = json!([{"group": "stable.example.com", "kind": "CronTab", "version": "v1"}]);
    assert_eq!(model[schema::KIND_EXTENSION], kind);
    let list = &document["definitions"]["com.example.stable.v1.CronTabList"];
    assert_eq!(
        list["properties"]["items"],
        json!({"type": "array", "items": {"$ref": "#/definitions/com.example.stable.v1.CronTab"}})
    );
    assert!(document["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"].is_object());
    protobuf_tests::assert_v2_forms_are_equal(openapi);
}

#[test]
fn custom_schema_that_preserves_unknown_fields_or_is_too_large_has_no_v2_properties() {
    let kind = json!([{"group": "stable.example.com", "kind": "CronTab", "version": "v1"}]);
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}});
    let large = json!({"type": "object", "description": "x".repeat(CUSTOM_BYTES_MAX)});
    for own in [None, Some(open), Some(large)] {
        let document = v2_json(&OpenApi::new(&custom_resource(own), None));
        let model = &document["definitions"]["com.example.stable.v1.CronTab"];
        assert_eq!(*model, json!({"type": "object", schema::KIND_EXTENSION: kind}));
    }
}

#[test]
fn custom_resource_without_a_published_schema_has_no_v3_properties() {
    let document = v3_json(&OpenApi::new(&custom_resource(None), None), "apis/stable.example.com/v1");
    let kind = json!([{"group": "stable.example.com", "kind": "CronTab", "version": "v1"}]);
    let model = &document["components"]["schemas"]["com.example.stable.v1.CronTab"];
    assert_eq!(*model, json!({"type": "object", schema::KIND_EXTENSION: kind}));
}

#[test]
fn indexed_document_is_immutable_under_its_hash() {
    let registry = Registry::builtin();
    let openapi = &OpenApi::new(&registry, None);
    let index: Value = serde_json::from_slice(&openapi.v3_index().body).unwrap();
    let paths = index["paths"].as_object().unwrap();
    for path in ["api/v1", "apis/apps/v1", "version", ".well-known/openid-configuration", "openid/v1/jwks"] {
        assert!(paths.contains_key(path), "{path}");
    }
    for (path, entry) in paths {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        let hash = url.strip_prefix(&format!("/openapi/v3/{path}?hash=")).unwrap_or_else(|| panic!("{url}"));
        let Answer::Document { document, immutable: true } = openapi.v3(path, Some(hash)) else {
            panic!("{url} is immutable")
        };
        assert_eq!(document.etag(), format!("\"{hash}\""), "the hash is the ETag");
        let Answer::Moved(location) = openapi.v3(path, Some("0")) else { panic!("{path} has another hash") };
        assert_eq!(location, url, "another hash leads to the right one");
        for hash in [None, Some("")] {
            assert!(matches!(openapi.v3(path, hash), Answer::Document { immutable: false, .. }), "{path}");
        }
    }
    assert!(matches!(openapi.v3("apis/nope/v1", Some("0")), Answer::Unknown));
}

#[test]
fn paths_without_resources_have_the_v3_documents_of_kube_apiserver() {
    let registry = Registry::builtin();
    let openapi = &OpenApi::new(&registry, None);
    let document = v3_json(openapi, "version");
    let get = &document["paths"]["/version/"]["get"];
    assert_eq!((&get["operationId"], &get["tags"]), (&json!("getCodeVersion"), &json!(["version"])));
    let reference = get["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].as_str().unwrap();
    assert_eq!(reference, "#/components/schemas/io.k8s.apimachinery.pkg.version.Info");
    let model = document.pointer(&reference[1..]).unwrap();
    let required = "major minor gitVersion gitCommit gitTreeState buildDate goVersion compiler platform";
    assert_eq!(model["required"], json!(required.split(' ').collect::<Vec<_>>()));
    let served: Value = serde_json::from_slice(&crate::VersionInfo::current().body()).unwrap();
    let (served, properties) = (served.as_object().unwrap(), model["properties"].as_object().unwrap());
    assert_eq!(served.len(), properties.len());
    for name in served.keys() {
        let property = properties.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no description"));
        let has_default = required.split(' ').any(|required| *name == required);
        assert_eq!((&property["type"], property["default"] == ""), (&json!("string"), has_default), "{name}");
    }
    for (path, id, media_type) in [
        (".well-known/openid-configuration", "getServiceAccountIssuerOpenIDConfiguration", "application/json"),
        ("openid/v1/jwks", "getServiceAccountIssuerOpenIDKeyset", "application/jwk-set+json"),
    ] {
        let get = v3_json(openapi, path)["paths"][format!("/{path}/")]["get"].clone();
        assert_eq!(get["operationId"], id, "{path}");
        assert!(get["responses"]["200"]["content"][media_type].is_object(), "{path}");
    }
}

#[test]
fn openapi_v2_is_sent_in_the_accepted_form() {
    let registry = Registry::builtin();
    let openapi = &OpenApi::new(&registry, None);
    for (accept, expected) in [
        (None, Some(JSON)),
        (Some(""), Some(JSON)),
        (Some("*/*"), Some(JSON)),
        (Some("application/json"), Some(JSON)),
        (Some("application/com.github.proto-openapi.spec.v2@v1.0+protobuf"), Some(V2_PROTOBUF)),
        (Some("application/com.github.proto-openapi.spec.v2.v1.0+protobuf"), Some(V2_PROTOBUF)),
        (Some("application/com.github.proto-openapi.spec.v2.v1.0+protobuf;q=0.5, application/json"), Some(JSON)),
        (Some("text/html, application/com.github.proto-openapi.spec.v2.v1.0+protobuf, */*;q=0.1"), Some(V2_PROTOBUF)),
        (Some("application/yaml"), None),
        (Some("application/json;q=x"), Some(JSON)),
        (Some("*/*, application/com.github.proto-openapi.spec.v2@v1.0+protobuf"), Some(V2_PROTOBUF)),
    ] {
        assert_eq!(openapi.v2(accept).map(|(content_type, _)| content_type), expected, "Accept: {accept:?}");
    }
    let (json, protobuf) = (openapi.v2(Some(JSON)).unwrap().1, openapi.v2(Some(V2_PROTOBUF)).unwrap().1);
    assert_eq!(json.etag, protobuf.etag, "one state, one ETag");
    assert_ne!(json.body, protobuf.body);
}

#[test]
fn openapi_v3_is_sent_in_the_accepted_form() {
    let (json, protobuf) = (Some(V3Form::Json), Some(V3Form::Protobuf));
    const CLIENT_GO: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    for (accept, expected) in [
        ("", json),
        ("*/*", json),
        ("application/*", json),
        ("application/json", json),
        (CLIENT_GO, protobuf),
        (version3::V3_PROTOBUF, protobuf),
        (&format!("application/json, {CLIENT_GO}"), json),
        (&format!("{CLIENT_GO}, application/json"), protobuf),
        (&format!("{CLIENT_GO};q=0.5, application/json"), json),
        ("application/yaml", None),
        ("application/vnd.oai.openapi+json", None),
        ("application/com.github.proto-openapi.spec.v2@v1.0+protobuf", None),
    ] {
        assert_eq!(V3Form::negotiate(Some(accept)), expected, "Accept: {accept:?}");
    }
    assert_eq!(V3Form::negotiate(None), json);
}

#[test]
fn custom_and_built_in_kinds_share_descriptions_of_metadata() {
    for (name, description) in listwatch_schema::TYPE_META {
        assert_eq!(descriptions::of_field("", name), Some(description), "{name}");
    }
    let own = json!({"type": "object", "properties": {
        "apiVersion": {"type": "string", "description": "mine"}, "spec": {"type": "object", "description": "What is wanted."}}});
    let published = listwatch_schema::publish(Some(&own), listwatch_schema::OpenApi::V3, "example.com", "v1", "Widget");
    let said = |name: &str| published["properties"][name]["description"].as_str().unwrap_or_default();
    for (name, description) in listwatch_schema::TYPE_META {
        assert_eq!(said(name), description, "the definition does not replace the text of {name}");
    }
    assert_eq!(said("spec"), "What is wanted.");
}
