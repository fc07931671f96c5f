//! Servers over one store: what each finds after a start, and after somebody deleted or changed it.

use listwatch_cacher::Limits;
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage};
use serde_json::json;

use super::*;
use crate::crd;
use crate::registry::Registry;

/// Longer than the loop waits before it looks again.
const REST: Duration = Duration::from_secs(15);

fn settings() -> Settings {
    Settings { client_ca: None, secure_port: 6443 }
}

async fn backend(storage: &Arc<MemoryStorage>) -> Arc<Backend> {
    let backend = Arc::new(Backend::new(storage.clone(), Registry::builtin(), true, Limits::default()));
    namespaces::ensure_system_namespaces(&backend).await.unwrap();
    backend
}

/// A server that has started, and goes on.
async fn started(storage: &Arc<MemoryStorage>) -> Arc<Backend> {
    let backend = backend(storage).await;
    crd::load(&backend).await.unwrap();
    let mut bootstrap = Bootstrap::new(Arc::clone(&backend), settings());
    bootstrap.sync().await;
    assert_eq!(backend.bootstrap().text(), None);
    tokio::spawn(crd::run(Arc::clone(&backend)));
    tokio::spawn(bootstrap.run());
    backend
}

async fn stored(storage: &MemoryStorage, path: &str) -> Option<Value> {
    let (found, _) = storage.get(&Key::from_path(path).unwrap()).await.unwrap();
    found.map(|found| serde_json::from_slice(&found.value).unwrap())
}

async fn delete(storage: &MemoryStorage, path: &str) {
    let key = Key::from_path(path).unwrap();
    let (found, _) = storage.get(&key).await.unwrap();
    storage.delete(&key, found.expect("it is there").modified).await.unwrap();
}

async fn change(storage: &MemoryStorage, path: &str, change: impl FnOnce(&mut Value)) {
    let key = Key::from_path(path).unwrap();
    let (found, _) = storage.get(&key).await.unwrap();
    let found = found.expect("it is there");
    let mut object: Value = serde_json::from_slice(&found.value).unwrap();
    change(&mut object);
    storage.update(&key, found.modified, object.to_string().into(), None).await.unwrap();
}

const SERVICE: &str = "/services/specs/default/kubernetes";
const RANGE: &str = "/servicecidrs/kubernetes";
const AUTHENTICATION: &str = "/configmaps/kube-system/extension-apiserver-authentication";
const TRACKING: &str = "/configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking";
const NODE_CRITICAL: &str = "/priorityclasses/system-node-critical";
const SERVICES: &str = "/apiregistration.k8s.io/apiservices";

#[tokio::test(start_paused = true)]
async fn a_started_server_has_the_objects_that_clients_wait_for() {
    let storage = MemoryStorage::new();
    started(&storage).await;
    let service = stored(&storage, SERVICE).await.unwrap();
    assert_eq!(
        service["spec"],
        json!({
            "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "type": "ClusterIP",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}],
        })
    );
    assert_eq!(service["metadata"]["labels"], json!({"component": "apiserver", "provider": "kubernetes"}));
    assert_eq!(service["metadata"]["managedFields"][0]["manager"], "kube-apiserver");
    assert!(stored(&storage, "/ipaddresses/10.96.0.1").await.is_some(), "the address is claimed");
    let range = stored(&storage, RANGE).await.unwrap();
    assert_eq!(range["spec"], json!({"cidrs": ["10.96.0.0/16"]}));
    assert_eq!(range["status"]["conditions"][0]["message"], "Kubernetes default Service CIDR is ready");
    assert!(stored(&storage, AUTHENTICATION).await.is_some());
    assert!(stored(&storage, TRACKING).await.unwrap()["data"]["since"].is_string());
    assert_eq!(stored(&storage, NODE_CRITICAL).await.unwrap()["value"], 2_000_001_000_i64);
    let cluster = stored(&storage, "/priorityclasses/system-cluster-critical").await.unwrap();
    assert_eq!(cluster["value"], 2_000_000_000_i64);
    let apps = stored(&storage, &format!("{SERVICES}/v1.apps")).await.unwrap();
    assert_eq!(apps["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "onstart"}));
    assert_eq!(
        apps["spec"],
        json!({"group": "apps", "version": "v1", "groupPriorityMinimum": 17_800, "versionPriority": 15})
    );
    let condition = &apps["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Available"), &json!("Local")));
}

#[tokio::test(start_paused = true)]
async fn deleted_objects_come_back_as_their_controllers_bring_them_back() {
    let storage = MemoryStorage::new();
    let server = started(&storage).await;
    // As a client does it, so that the address is given back.
    let registry = server.registry();
    let services = registry.find("", "v1", "services").unwrap();
    let key = Key::from_path(SERVICE).unwrap();
    assert_eq!(write::remove(&server, services, &key).await.unwrap(), write::Removal::Gone);
    let gone = [RANGE, AUTHENTICATION, TRACKING, NODE_CRITICAL, "/namespaces/kube-node-lease"];
    for path in gone {
        delete(&storage, path).await;
    }
    delete(&storage, &format!("{SERVICES}/v1.apps")).await;
    tokio::time::sleep(REST).await;
    for path in [SERVICE, RANGE, AUTHENTICATION, "/namespaces/kube-node-lease"] {
        assert!(stored(&storage, path).await.is_some(), "{path}");
    }
    for path in [TRACKING, NODE_CRITICAL, &format!("{SERVICES}/v1.apps")] {
        assert!(stored(&storage, path).await.is_none(), "{path}");
    }
    tokio::time::sleep(TRACKING_INTERVAL).await;
    assert!(stored(&storage, TRACKING).await.is_some(), "at most every 30 minutes");
    // What only a start makes comes back with the next one.
    started(&storage).await;
    assert!(stored(&storage, NODE_CRITICAL).await.is_some());
    assert!(stored(&storage, &format!("{SERVICES}/v1.apps")).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn changed_objects_are_corrected_where_their_controllers_correct_them() {
    let storage = MemoryStorage::new();
    started(&storage).await;
    let apps = format!("{SERVICES}/v1.apps");
    change(&storage, SERVICE, |service| service["spec"]["ports"][0]["targetPort"] = json!(1)).await;
    change(&storage, TRACKING, |map| map["data"]["since"] = json!("ages")).await;
    change(&storage, &apps, |service| {
        service["spec"]["versionPriority"] = json!(1);
        service["status"] = json!({});
    })
    .await;
    let unmanaged = format!("{SERVICES}/v1.batch");
    change(&storage, &unmanaged, |service| {
        service["spec"]["versionPriority"] = json!(1);
        service["metadata"]["labels"] = json!({});
    })
    .await;
    tokio::time::sleep(REST).await;
    assert_eq!(stored(&storage, SERVICE).await.unwrap()["spec"]["ports"][0]["targetPort"], 1, "never corrected");
    assert_ne!(stored(&storage, TRACKING).await.unwrap()["data"]["since"], "ages");
    let found = stored(&storage, &apps).await.unwrap();
    assert_eq!(found["spec"]["versionPriority"], 1, "only a start corrects it");
    assert_eq!(found["status"]["conditions"][0]["status"], "True");
    started(&storage).await;
    assert_eq!(stored(&storage, &apps).await.unwrap()["spec"]["versionPriority"], 15);
    assert_eq!(stored(&storage, &unmanaged).await.unwrap()["spec"]["versionPriority"], 1, "it is somebody's own");
}

#[tokio::test(start_paused = true)]
async fn servers_that_start_together_or_later_write_nothing_twice() {
    let storage = MemoryStorage::new();
    let starts: Vec<_> = (0..3)
        .map(|_| {
            let storage = storage.clone();
            tokio::spawn(async move { started(&storage).await })
        })
        .collect();
    let mut servers = Vec::new();
    for start in starts {
        servers.push(start.await.unwrap());
    }
    tokio::time::sleep(REST).await;
    let revision = storage.current_revision().await.unwrap();
    servers.push(started(&storage).await);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(storage.current_revision().await.unwrap(), revision, "servers at rest write");
    for server in servers {
        assert_eq!(server.bootstrap().text(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn group_versions_of_definitions_are_registered_while_they_are_served() {
    let storage = MemoryStorage::new();
    let server = started(&storage).await;
    let definition = json!({"metadata": {"name": "as.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"plural": "as", "kind": "A"}, "versions": [{"name": "v1", "served": true,
        "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let registry = server.registry();
    let definitions = registry.find(crd::GROUP, crd::VERSION, crd::PLURAL).unwrap();
    create(&server, definitions, None, &definition).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let path = format!("{SERVICES}/v1.example.com");
    let service = stored(&storage, &path).await.expect("a definition's group version is registered");
    assert_eq!(service["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "true"}));
    assert_eq!(
        service["spec"],
        json!({"group": "example.com", "version": "v1", "groupPriorityMinimum": 1_000, "versionPriority": 100})
    );
    // Deleted or changed, it is as it was a moment later.
    delete(&storage, &path).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(stored(&storage, &path).await.is_some());
    change(&storage, &path, |service| service["spec"]["versionPriority"] = json!(1)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(stored(&storage, &path).await.unwrap()["spec"]["versionPriority"], 100);
    // A server that has not seen the definition yet does not take its group version away.
    let behind = backend(&storage).await;
    Bootstrap::new(Arc::clone(&behind), settings()).sync().await;
    assert!(stored(&storage, &path).await.is_some());
    let key = definitions.key(None, "as.example.com").unwrap();
    assert_eq!(write::remove(&server, definitions, &key).await.unwrap(), write::Removal::Held);
    tokio::time::sleep(REST).await;
    assert!(stored(&storage, "/apiextensions.k8s.io/customresourcedefinitions/as.example.com").await.is_none());
    assert!(stored(&storage, &path).await.is_none(), "nobody serves it any more");
}

#[tokio::test(start_paused = true)]
async fn unreadable_objects_are_left_alone() {
    let storage = MemoryStorage::new();
    let paths = [SERVICE, RANGE, AUTHENTICATION, TRACKING, NODE_CRITICAL, &format!("{SERVICES}/v1.apps")];
    for path in paths {
        storage.create(&Key::from_path(path).unwrap(), "k8s\0".into(), None).await.unwrap();
    }
    let server = backend(&storage).await;
    let settings = Settings { client_ca: Some(String::new()), ..settings() };
    let bootstrap = Bootstrap::new(Arc::clone(&server), settings);
    tokio::spawn(bootstrap.run());
    tokio::time::sleep(REST).await;
    for path in paths {
        let (found, _) = storage.get(&Key::from_path(path).unwrap()).await.unwrap();
        assert_eq!(found.unwrap().value, "k8s\0", "{path}");
    }
    assert!(stored(&storage, &format!("{SERVICES}/v1.batch")).await.is_some(), "the others are made");
    assert_eq!(server.bootstrap().text(), None, "what cannot be read is no failure");
}
