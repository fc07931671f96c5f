//! Tests stores that a kube-apiserver has written: protobuf and encrypted values are served unchanged, and written in
//! the same form.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::stored_form::{Encryption, StorageMediaType, StoredForm};
use listwatch_apiserver::{ApiServer, Controllers};
use listwatch_json::{Value, json};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};
use listwatch_wire::protobuf;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MERGE: &str = "application/merge-patch+json";
const CBC: &str = "aescbc: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}";
const WRONG_CBC: &str = "aescbc: {keys: [{name: key1, secret: ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=}]}";
const GCM: &str = "aesgcm: {keys: [{name: key2, secret: ZmVkY2JhOTg3NjU0MzIxMA==}]}";
const IDENTITY: &str = "identity: {}";

fn form(providers: &[&str], media_type: StorageMediaType) -> StoredForm {
    form_of("secrets, widgets.example.com", providers, media_type)
}

fn form_of(resources: &str, providers: &[&str], media_type: StorageMediaType) -> StoredForm {
    let encryption = (!providers.is_empty()).then(|| {
        let providers: String = providers.iter().map(|provider| format!("\n  - {provider}")).collect();
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: \
             [{resources}]\n  providers:{providers}\n"
        );
        Encryption::parse("test.yaml", text.as_bytes()).expect("a configuration")
    });
    StoredForm::new(encryption, media_type, "/registry")
}

/// A server on a store that outlives the server.
struct World {
    server: ApiServer,
    raw: Arc<MemoryStorage>,
}

impl World {
    async fn over(raw: &Arc<MemoryStorage>, form: StoredForm, watch_cache: bool) -> Self {
        let builder = ApiServer::builder().storage(raw.clone()).stored_form(form).watch_cache(watch_cache);
        let server = builder.controllers(Controllers::NONE).build().await.expect("a server");
        World { server, raw: Arc::clone(raw) }
    }

    async fn text(&self, method: &str, path: &str, content_type: &str, body: &Value) -> (u16, String) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        let request =
            request.header("accept", "application/json").body(Full::new(Bytes::from(body))).expect("a request");
        let response = self.server.service().handle(request).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let content_type = if method == "PATCH" { MERGE } else { "application/json" };
        let (code, text) = self.text(method, path, content_type, body).await;
        (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    async fn expect(&self, code: u16, method: &str, path: &str, body: &Value) -> Value {
        let (found, answer) = self.call(method, path, body).await;
        assert_eq!(found, code, "{method} {path}: {answer}");
        answer
    }

    async fn raw(&self, path: &str) -> Bytes {
        let key = Key::from_path(path).expect("a key");
        self.raw.get(&key).await.expect("a read").0.unwrap_or_else(|| panic!("{path} is stored")).value
    }

    /// Returns the events of a watch from a resource version during one second.
    async fn events(&self, path: &str, from: &Value) -> Vec<Value> {
        let from = from.as_str().expect("a version");
        let path = format!("{path}?watch=1&timeoutSeconds=1&resourceVersion={from}");
        let (code, text) = self.text("GET", &path, "application/json", &Value::Null).await;
        assert_eq!(code, 200, "{text}");
        text.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
    }
}

fn version(object: &Value) -> Value {
    object["metadata"]["resourceVersion"].clone()
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"password": "aHVudGVyMg=="}})
}

#[tokio::test]
async fn secrets_are_encrypted_and_rewritten_after_key_rotation() {
    for media_type in [StorageMediaType::Json, StorageMediaType::Protobuf] {
        let raw = MemoryStorage::new();
        let item = format!("{SECRETS}/web");
        let world = World::over(&raw, form(&[], media_type), true).await;
        world.expect(201, "POST", SECRETS, &secret("plain")).await;

        let world = World::over(&raw, form(&[CBC, IDENTITY], media_type), true).await;
        let created = world.expect(201, "POST", SECRETS, &secret("web")).await;
        let stored = world.raw("/secrets/default/web").await;
        assert!(stored.starts_with(b"k8s:enc:aescbc:v1:key1:"), "{stored:?}");
        assert_eq!(world.expect(200, "GET", &item, &Value::Null).await, created);
        let list = world.expect(200, "GET", SECRETS, &Value::Null).await;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(2), "plain values stay readable beside encrypted ones");
        let events = world.events(SECRETS, &json!("1")).await;
        assert!(events.iter().any(|event| event["object"]["data"]["password"] == "aHVudGVyMg=="), "{events:?}");
        let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}});
        world.expect(201, "POST", "/api/v1/namespaces/default/configmaps", &config_map).await;
        assert!(
            !world.raw("/configmaps/default/web").await.starts_with(b"k8s:enc:"),
            "a resource without a rule is plain"
        );

        let rotated = World::over(&raw, form(&[GCM, CBC, IDENTITY], media_type), true).await;
        for name in ["web", "plain"] {
            let item = format!("{SECRETS}/{name}");
            let found = rotated.expect(200, "GET", &item, &Value::Null).await;
            let put = rotated.expect(200, "PUT", &item, &found).await;
            assert_ne!(version(&put), version(&found), "an update that changes nothing writes a stale value again");
            assert!(rotated.raw(&format!("/secrets/default/{name}")).await.starts_with(b"k8s:enc:aesgcm:v1:key2:"));
            let again = rotated.expect(200, "PUT", &item, &put).await;
            assert_eq!(version(&again), version(&put), "it is written once");
        }
        let only_new = World::over(&raw, form(&[GCM], media_type), true).await;
        let list = only_new.expect(200, "GET", SECRETS, &Value::Null).await;
        assert_eq!(list["items"][1]["data"], created["data"]);
        only_new.expect(200, "DELETE", &item, &Value::Null).await;
        only_new.expect(404, "GET", &item, &Value::Null).await;
    }
}

#[tokio::test]
async fn server_rewrites_its_own_keys_with_the_new_encryption_key() {
    const TOKEN_KEY: &str = "/listwatch/keys/serviceaccounts-es256";
    const PORTS: &str = "/ranges/servicenodeports";
    const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
    let raw = MemoryStorage::new();
    let with = |providers: &[&str]| form_of("'*.'", providers, StorageMediaType::Json);
    let world = World::over(&raw, with(&[IDENTITY]), true).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    world.expect(201, "POST", ACCOUNTS, &account).await;
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let token = world.expect(201, "POST", &format!("{ACCOUNTS}/robot/token"), &request).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}});
    world.expect(201, "POST", "/api/v1/namespaces/default/services", &service).await;
    let stages: [(&[&str], &str); 4] = [
        (&[CBC, IDENTITY], "k8s:enc:aescbc:v1:key1:"),
        (&[GCM, CBC, IDENTITY], "k8s:enc:aesgcm:v1:key2:"),
        (&[GCM, IDENTITY], "k8s:enc:aesgcm:v1:key2:"),
        (&[IDENTITY, GCM], "{"),
    ];
    for (providers, prefix) in stages {
        let world = World::over(&raw, with(providers), true).await;
        for path in [TOKEN_KEY, PORTS] {
            let stored = world.raw(path).await;
            assert!(stored.starts_with(prefix.as_bytes()), "{path} under {providers:?}: {stored:?}");
        }
        let spec = json!({"token": token["status"]["token"]});
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
        let reviewed = world.expect(201, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", &review).await;
        assert_eq!(reviewed["status"]["authenticated"], true, "the token stays valid under {providers:?}: {reviewed}");
    }
}

#[tokio::test]
async fn value_encrypted_with_an_unknown_key_is_unreadable_and_not_absent() {
    for watch_cache in [true, false] {
        let raw = MemoryStorage::new();
        let world = World::over(&raw, form(&[CBC], StorageMediaType::Json), watch_cache).await;
        let item = format!("{SECRETS}/web");
        world.expect(201, "POST", SECRETS, &secret("web")).await;
        let before = world.raw("/secrets/default/web").await;
        for providers in [&[WRONG_CBC][..], &[GCM], &[IDENTITY], &[]] {
            let world = World::over(&raw, form(providers, StorageMediaType::Json), watch_cache).await;
            world.expect(500, "GET", &item, &Value::Null).await;
            world.expect(500, "GET", SECRETS, &Value::Null).await;
            world.expect(500, "PATCH", &item, &json!({"metadata": {"labels": {"a": "b"}}})).await;
            world.expect(500, "DELETE", &item, &Value::Null).await;
            world.expect(409, "POST", SECRETS, &secret("web")).await;
            assert_eq!(world.raw("/secrets/default/web").await, before, "{providers:?}");
        }
        let world = World::over(&raw, form(&[GCM], StorageMediaType::Json), watch_cache).await;
        let listed = "unable to transform key \"/secrets/default/web\": no matching prefix found";
        for (path, why) in [(&*item, "no matching prefix found"), (SECRETS, listed)] {
            let status = world.expect(500, "GET", path, &Value::Null).await;
            assert_eq!(status["reason"], "InternalError", "{path}: {status}");
            assert_eq!(status["message"], format!("Internal error occurred: {why}").as_str(), "{path}");
        }
        // A rule without identity hides plain values: they cannot have been written with a key.
        let plain = MemoryStorage::new();
        World::over(&plain, form(&[], StorageMediaType::Json), true)
            .await
            .expect(201, "POST", SECRETS, &secret("web"))
            .await;
        let world = World::over(&plain, form(&[CBC], StorageMediaType::Json), watch_cache).await;
        let (code, text) = world.text("GET", &item, "application/json", &Value::Null).await;
        assert!(code == 500 && !text.contains("aHVudGVyMg"), "{text}");
    }
}

/// Returns objects as (collection path, prefix of the key in the store, object).
fn objects() -> Vec<(&'static str, &'static str, Value)> {
    let object = |api_version: &str, kind: &str, rest: Value| {
        let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "web"}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = object("v1", "Pod", json!({"spec": template["spec"].clone()}));
    let deployment = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let event = json!({"involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"}, "reason": "Started"});
    let lease = json!({"spec": {"holderIdentity": "a", "leaseDurationSeconds": 10, "renewTime": "2026-01-02T03:04:05.678901Z"}});
    let service = json!({"spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
    vec![
        ("/api/v1/namespaces/default/pods", "pods/default", pod),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            "deployments/default",
            object("apps/v1", "Deployment", deployment),
        ),
        (SECRETS, "secrets/default", secret("web")),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            "leases/default",
            object("coordination.k8s.io/v1", "Lease", lease),
        ),
        ("/api/v1/namespaces/default/events", "events/default", object("v1", "Event", event)),
        ("/api/v1/namespaces/default/services", "services/specs/default", object("v1", "Service", service)),
        ("/api/v1/nodes", "minions", object("v1", "Node", json!({"spec": {"podCIDR": "10.0.0.0/24"}}))),
    ]
}

#[tokio::test]
async fn store_of_a_kube_apiserver_is_served_unchanged() {
    for watch_cache in [true, false] {
        for media_type in [StorageMediaType::Json, StorageMediaType::Protobuf] {
            let raw = MemoryStorage::new();
            let world = World::over(&raw, form(&[], StorageMediaType::Json), true).await;
            for (path, ..) in objects() {
                world.expect(200, "GET", path, &Value::Null).await;
            }
            for (path, prefix, object) in objects() {
                world.expect(201, "POST", path, &object).await;
                // The bytes of protobuf are Go's, so these are the values of a kube-apiserver.
                let key = Key::from_path(&format!("/{prefix}/web")).unwrap();
                let found = raw.get(&key).await.unwrap().0.unwrap();
                let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
                let encoded = protobuf::encode_strict(api_version, kind, &found.value);
                let encoded = encoded.unwrap_or_else(|error| panic!("{kind}: {error}"));
                raw.update(&key, found.modified, encoded.into(), None).await.unwrap();
            }
            drop(world);
            let world = World::over(&raw, form(&[], media_type), watch_cache).await;
            let mut deleted = Vec::new();
            for (path, prefix, object) in objects() {
                let (item, kind) = (format!("{path}/web"), &object["kind"]);
                let found = world.expect(200, "GET", &item, &Value::Null).await;
                assert_eq!(&found["kind"], kind);
                let list = world.expect(200, "GET", path, &Value::Null).await;
                let listed = list["items"].as_array().unwrap().iter().find(|item| item["metadata"]["name"] == "web");
                let mut listed = listed.unwrap_or_else(|| panic!("{kind} is listed")).clone();
                listed["kind"].clone_from(&found["kind"]);
                listed["apiVersion"].clone_from(&found["apiVersion"]);
                assert_eq!(listed, found, "{kind}");

                let put = world.expect(200, "PUT", &item, &found).await;
                let is_rewritten = version(&put) != version(&found);
                assert_eq!(
                    is_rewritten,
                    media_type == StorageMediaType::Json,
                    "{kind}: only another encoding is stale"
                );
                let patch = json!({"metadata": {"labels": {"new": "label"}}});
                let patched = world.expect(200, "PATCH", &item, &patch).await;
                let stored = world.raw(&format!("/{prefix}/web")).await;
                assert_eq!(stored.starts_with(protobuf::MAGIC), media_type == StorageMediaType::Protobuf, "{kind}");
                let after = world.expect(200, "GET", &item, &Value::Null).await;
                assert_eq!(after, patched, "{kind}: the response of a write is what is stored");
                let again = world.expect(200, "PUT", &item, &after).await;
                assert_eq!(version(&again), version(&after), "{kind}: an update that changes nothing writes nothing");

                let delete = json!({"gracePeriodSeconds": 0});
                world.expect(200, "DELETE", &item, &delete).await;
                world.expect(404, "GET", &item, &Value::Null).await;
                deleted.push((path, kind.clone(), version(&list), is_rewritten));
            }
            let watches = deleted.iter().map(|(path, _, from, _)| world.events(path, from));
            let watched = futures_util::future::join_all(watches).await;
            for ((_, kind, _, is_rewritten), events) in deleted.iter().zip(watched) {
                let seen: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
                // A pod is marked as being deleted first.
                let modified = seen.iter().filter(|seen| **seen == "MODIFIED").count() - usize::from(kind == "Pod");
                assert_eq!(
                    (modified, seen.last().copied()),
                    (1 + usize::from(*is_rewritten), Some("DELETED")),
                    "{kind}: {seen:?}"
                );
                let last = &events.last().unwrap()["object"];
                assert_eq!(last["metadata"]["labels"]["new"], "label", "{kind}");
            }
        }
    }
}

#[tokio::test]
async fn new_objects_of_built_in_kinds_are_stored_as_protobuf_and_custom_resources_as_json() {
    let raw = MemoryStorage::new();
    let world = World::over(&raw, form(&[CBC], StorageMediaType::Protobuf), true).await;
    for (path, prefix, object) in objects() {
        let created = world.expect(201, "POST", path, &object).await;
        let stored = world.raw(&format!("/{prefix}/web")).await;
        let expected: &[u8] = if prefix.starts_with("secrets") { b"k8s:enc:aescbc:v1:key1:" } else { protobuf::MAGIC };
        assert!(stored.starts_with(expected), "{path}: {stored:?}");
        let found = world.expect(200, "GET", &format!("{path}/web"), &Value::Null).await;
        assert_eq!(found, created, "{path}: the response of a create is what is stored");
    }
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    world.expect(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    let stored = world.raw("/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com").await;
    assert!(stored.starts_with(b"{"), "kube-apiserver stores definitions as JSON");
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}});
    for _ in 0..200 {
        if world.text("GET", widgets, "application/json", &Value::Null).await.0 == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    world.expect(201, "POST", widgets, &widget).await;
    assert!(world.raw("/example.com/widgets/default/a").await.starts_with(b"k8s:enc:aescbc:v1:key1:"));
    world.expect(200, "GET", &format!("{widgets}/a"), &Value::Null).await;
    let token = "/api/v1/namespaces/default/serviceaccounts/default/token";
    world
        .expect(
            201,
            "POST",
            "/api/v1/namespaces/default/serviceaccounts",
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
        )
        .await;
    world
        .expect(
            201,
            "POST",
            token,
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}),
        )
        .await;
    let stored = world.raw("/listwatch/keys/serviceaccounts-es256").await;
    assert!(stored.starts_with(b"k8s:enc:aescbc:v1:key1:"), "the key that signs tokens follows the rule of Secrets");
}

/// Ported from `test/integration/pvc/upgrade_test.go` of Kubernetes.
#[tokio::test]
async fn claim_of_an_old_release_is_read_and_updated_with_its_defaults() {
    let stored = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "metadata": {"name": "old", "namespace": "default", "uid": "08675309-9376-9376-9376-086753099999",
            "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10G"}},
            "dataSource": {"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "foo"}},
        "status": {}});
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let (item, dry_run) = (format!("{claims}/old"), format!("{claims}/old?dryRun=All"));
    let key = Key::from_path("/persistentvolumeclaims/default/old").unwrap();
    let message = protobuf::encode("v1", "PersistentVolumeClaim", stored.to_string().as_bytes()).unwrap();
    for (media_type, value) in
        [(StorageMediaType::Json, Bytes::from(stored.to_string())), (StorageMediaType::Protobuf, Bytes::from(message))]
    {
        for watch_cache in [true, false] {
            let raw = MemoryStorage::new();
            raw.create(&key, value.clone(), None).await.unwrap();
            let world = World::over(&raw, form(&[], media_type), watch_cache).await;
            world.expect(200, "PUT", &dry_run, &stored).await;
            world.expect(200, "PATCH", &dry_run, &json!({})).await;
            let found = world.expect(200, "GET", &item, &Value::Null).await;
            assert_eq!(found["spec"]["volumeMode"], "Filesystem");
            assert_eq!(found["spec"]["dataSourceRef"]["name"], "foo");
            assert_eq!(found["status"]["phase"], "Pending");
            world.expect(200, "PUT", &dry_run, &found).await;
            let list = world.expect(200, "GET", claims, &Value::Null).await;
            assert_eq!(list["items"][0]["spec"], found["spec"]);
            assert_eq!(world.raw("/persistentvolumeclaims/default/old").await, value, "a dry run writes nothing");

            let put = world.expect(200, "PUT", &item, &found).await;
            assert_ne!(version(&put), version(&found), "an update that changes nothing stores the defaults");
            assert_eq!(put["spec"], found["spec"]);
            let again = world.expect(200, "PUT", &item, &put).await;
            assert_eq!(version(&again), version(&put), "they are stored once");
        }
    }
}

#[tokio::test]
async fn objects_in_removed_versions_are_served_and_written_in_the_current_version() {
    let budget = json!({"kind": "PodDisruptionBudget", "apiVersion": "policy/v1beta1",
        "metadata": {"name": "old", "namespace": "default", "uid": "u", "generation": 1},
        "spec": {"minAvailable": 2, "selector": {}}, "status": {}});
    let webhooks = json!({"kind": "ValidatingWebhookConfiguration",
        "apiVersion": "admissionregistration.k8s.io/v1beta1", "metadata": {"name": "old"},
        "webhooks": [{"name": "a.b.c", "clientConfig": {"url": "https://127.0.0.1:1"}, "failurePolicy": "Ignore"}]});
    let ingress = json!({"kind": "Ingress", "apiVersion": "extensions/v1beta1",
        "metadata": {"name": "old", "namespace": "default", "uid": "u", "generation": 1},
        "spec": {"backend": {"serviceName": "s", "servicePort": 80}}, "status": {"loadBalancer": {}}});
    for media_type in [StorageMediaType::Json, StorageMediaType::Protobuf] {
        let raw = MemoryStorage::new();
        for (key, value) in [
            ("/poddisruptionbudgets/default/old", &budget),
            ("/validatingwebhookconfigurations/old", &webhooks),
            ("/ingress/default/old", &ingress),
        ] {
            raw.create(&Key::from_path(key).unwrap(), value.to_string().into(), None).await.unwrap();
        }
        let world = World::over(&raw, form(&[], media_type), true).await;
        for (path, key, version, pointer, value) in [
            (
                "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
                "/poddisruptionbudgets/default/old",
                "policy/v1",
                "/spec/selector/matchExpressions/0/operator",
                json!("Exists"),
            ),
            (
                "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
                "/validatingwebhookconfigurations/old",
                "admissionregistration.k8s.io/v1",
                "/webhooks/0/matchPolicy",
                json!("Exact"),
            ),
            (
                "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
                "/ingress/default/old",
                "networking.k8s.io/v1",
                "/spec/defaultBackend/service/port/number",
                json!(80),
            ),
        ] {
            let item = format!("{path}/old");
            let found = world.expect(200, "GET", &item, &Value::Null).await;
            assert_eq!((&found["apiVersion"], found.pointer(pointer)), (&json!(version), Some(&value)), "{found}");
            let list = world.expect(200, "GET", path, &Value::Null).await;
            assert_eq!(list["items"][0].pointer(pointer), Some(&value), "{list}");
            let labeled = world.expect(200, "PATCH", &item, &json!({"metadata": {"labels": {"a": "b"}}})).await;
            assert_eq!(labeled.pointer(pointer), Some(&value), "{labeled}");
            let stored = String::from_utf8_lossy(&world.raw(key).await).into_owned();
            assert!(stored.contains(version) && !stored.contains("/v1beta1"), "{stored}");
        }
        let item = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/old";
        let selector = json!({"matchLabels": {"a": "b"}});
        let patched = world.expect(200, "PATCH", item, &json!({"spec": {"selector": selector}})).await;
        assert_eq!(patched["spec"]["selector"], selector, "the budget protects the pods with the label");
    }
}
