//! Tests StorageVersionMigrations: all objects of a resource are rewritten in the current version and encoding, with
//! the current key.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::stored_form::{Encryption, StorageMediaType, StoredForm};
use listwatch_apiserver::{ApiServer, RuntimeConfig};
use listwatch_json::{Value, json};
use listwatch_meta::{Key, KeyRange};
use listwatch_storage::{ListQuery, MemoryStorage, Storage as _};

use crate::crds::world::condition;

const MIGRATIONS: &str = "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
/// A number of objects that is larger than a page of the controller.
const MANY: usize = 120;
const ENCRYPTION: &str = "apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aesgcm: {keys: [{name: new, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
  - identity: {}
";

async fn server(raw: &Arc<MemoryStorage>, form: StoredForm) -> ApiServer {
    let config = RuntimeConfig::parse(["storagemigration.k8s.io/v1beta1=true"]).unwrap();
    ApiServer::builder().storage(raw.clone()).stored_form(form).runtime_config(config).build().await.unwrap()
}

async fn call(server: &ApiServer, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let response = server.service().handle(request.body(Full::new(Bytes::from(body))).unwrap()).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

async fn expect(server: &ApiServer, code: u16, method: &str, path: &str, body: &Value) -> Value {
    let (found, answer) = call(server, method, path, body).await;
    assert_eq!(found, code, "{method} {path}: {answer}");
    answer
}

/// Creates a migration and waits for its end.
async fn migrate(server: &ApiServer, name: &str, group: &str, resource: &str) -> Value {
    let migration = json!({"metadata": {"name": name}, "spec": {"resource": {"group": group, "resource": resource}}});
    expect(server, 201, "POST", MIGRATIONS, &migration).await;
    let wait = async {
        loop {
            let found = expect(server, 200, "GET", &format!("{MIGRATIONS}/{name}"), &Value::Null).await;
            let ended = |kind: &str| {
                let conditions = found["status"]["conditions"].as_array();
                conditions.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
            };
            if ended("Succeeded") || ended("Failed") {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the migration ends")
}

fn condition_types(migration: &Value) -> Vec<&str> {
    let conditions = migration["status"]["conditions"].as_array().unwrap();
    conditions.iter().map(|condition| condition["type"].as_str().unwrap()).collect()
}

async fn stored(raw: &Arc<MemoryStorage>, prefix: &str) -> Vec<(String, u64, Bytes)> {
    let query = ListQuery { range: KeyRange::below(prefix), at: None, limit: 0 };
    let items = raw.list(query).await.unwrap().items;
    items.into_iter().map(|item| (item.key.to_string(), item.modified.get(), item.value)).collect()
}

fn definition(storage: &str) -> Value {
    let version = |name: &str| {
        json!({"name": name, "served": true, "storage": name == storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1"), version("v2")]}})
}

#[tokio::test]
async fn migration_rewrites_each_custom_resource_once_in_the_new_storage_version() {
    let raw = MemoryStorage::new();
    let server = server(&raw, StoredForm::default()).await;
    let collection = DEFINITION.trim_end_matches("/widgets.example.com");
    expect(&server, 201, "POST", collection, &definition("v1")).await;
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    for index in 0..MANY {
        let widget =
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": format!("w{index}")}});
        expect(&server, 201, "POST", widgets, &widget).await;
    }
    let mut current = expect(&server, 200, "GET", DEFINITION, &Value::Null).await;
    current["spec"]["versions"] = definition("v2")["spec"]["versions"].clone();
    expect(&server, 200, "PUT", DEFINITION, &current).await;
    let prefix = "/example.com/widgets/";
    let text = |value: &Bytes| String::from_utf8_lossy(value).into_owned();
    assert!(stored(&raw, prefix).await.iter().all(|(_, _, value)| text(value).contains("example.com/v1")));

    let ended = migrate(&server, "to-v2", "example.com", "widgets").await;
    assert_eq!(condition_types(&ended), ["Running", "Succeeded"], "{ended}");
    let after = stored(&raw, prefix).await;
    assert_eq!(after.len(), MANY);
    for (key, _, value) in &after {
        assert!(text(value).contains("\"apiVersion\":\"example.com/v2\""), "{key} is stored in the new version");
    }
    let migrated = expect(&server, 200, "GET", DEFINITION, &Value::Null).await;
    assert_eq!(migrated["status"]["storedVersions"], json!(["v2"]), "no object is stored in the former version");
    let condition = condition(&migrated, "StorageMigrating");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("MigrationSucceeded")));
    assert_eq!(condition["observedGeneration"], migrated["metadata"]["generation"]);
    // The fields of the object and its owners are those of before.
    let widget = expect(&server, 200, "GET", &format!("{widgets}/w7"), &Value::Null).await;
    let managers = widget["metadata"]["managedFields"].as_array().map_or(0, Vec::len);
    assert!(managers <= 1, "the migration owns nothing: {widget}");

    let again = migrate(&server, "again", "example.com", "widgets").await;
    assert_eq!(condition_types(&again), ["Running", "Succeeded"]);
    assert_eq!(stored(&raw, prefix).await, after, "objects in the current form are not written again");
}

#[tokio::test]
async fn migration_encrypts_secrets_with_the_new_key() {
    let raw = MemoryStorage::new();
    let plain = server(&raw, StoredForm::default()).await;
    let secrets = "/api/v1/namespaces/default/secrets";
    for name in ["a", "b"] {
        expect(&plain, 201, "POST", secrets, &json!({"metadata": {"name": name}, "data": {"x": "eA=="}})).await;
    }
    drop(plain);
    let encryption = Encryption::parse("test.yaml", ENCRYPTION.as_bytes()).unwrap();
    let form = StoredForm::new(Some(encryption), StorageMediaType::Protobuf, "/registry");
    let encrypted = server(&raw, form).await;
    let key = Key::from_path("/secrets/default/a").unwrap();
    assert!(!raw.get(&key).await.unwrap().0.unwrap().value.starts_with(b"k8s:enc:"));
    let ended = migrate(&encrypted, "encrypt", "", "secrets").await;
    assert_eq!(condition_types(&ended), ["Running", "Succeeded"], "{ended}");
    for (key, _, value) in stored(&raw, "/secrets/default/").await {
        assert!(value.starts_with(b"k8s:enc:aesgcm:v1:new:"), "{key} is encrypted");
    }
    let found = expect(&encrypted, 200, "GET", &format!("{secrets}/a"), &Value::Null).await;
    assert_eq!(found["data"]["x"], "eA==");
}

#[tokio::test]
async fn migration_fails_with_the_error_of_an_object_that_became_invalid() {
    let raw = MemoryStorage::new();
    let server = server(&raw, StoredForm::default()).await;
    let collection = DEFINITION.trim_end_matches("/widgets.example.com");
    expect(&server, 201, "POST", collection, &definition("v1")).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "size": 1});
    expect(&server, 201, "POST", "/apis/example.com/v1/namespaces/default/widgets", &widget).await;
    let mut current = expect(&server, 200, "GET", DEFINITION, &Value::Null).await;
    current["spec"]["versions"] = definition("v2")["spec"]["versions"].clone();
    for index in 0..2 {
        let schema = &mut current["spec"]["versions"][index]["schema"]["openAPIV3Schema"];
        *schema = json!({"type": "object", "properties": {"size": {"type": "integer"}, "color": {"type": "string"}},
            "required": ["color"]});
    }
    expect(&server, 200, "PUT", DEFINITION, &current).await;
    let ended = migrate(&server, "fails", "example.com", "widgets").await;
    assert_eq!(condition_types(&ended), ["Running", "Failed"], "{ended}");
    assert_eq!(ended["status"]["conditions"][0]["status"], "False", "it does not run any more");
    let definition = expect(&server, 200, "GET", DEFINITION, &Value::Null).await;
    assert_eq!(
        definition["status"]["storedVersions"],
        json!(["v1", "v2"]),
        "an object is stored in the former version"
    );
    assert_eq!(condition(&definition, "StorageMigrating")["reason"], "MigrationFailed");
    let message = ended["status"]["conditions"][1]["message"].as_str().unwrap();
    assert!(message.starts_with("migration encountered unhandled error: "), "{message}");
    assert!(message.contains("color"), "the message names the field: {message}");
}

#[tokio::test]
async fn storage_version_migrations_are_served_only_if_enabled() {
    let server = ApiServer::builder().build().await.unwrap();
    assert_eq!(call(&server, "GET", MIGRATIONS, &Value::Null).await.0, 404);
    let groups = expect(&server, 200, "GET", "/apis", &Value::Null).await.to_string();
    assert!(!groups.contains("storagemigration"), "{groups}");
}
