//! Tests the bootstrap objects on one store: after a start, after a deletion and after a change.

use listwatch_json::{Value, json};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage};

use super::ensure::create;
use super::*;
use crate::definitions;
use listwatch_registry::{DEFINITIONS_GROUP, DEFINITIONS_PLURAL, DEFINITIONS_VERSION};
use listwatch_write::testing;

/// Longer than the interval between two syncs.
const REST: Duration = Duration::from_secs(15);

fn settings() -> Settings {
    Settings { client_ca: None, request_header: None, secure_port: 6443 }
}

async fn writer(storage: &Arc<MemoryStorage>) -> Arc<Writer> {
    let writer = Arc::new(testing::writer(storage.clone()));
    namespaces::ensure_system_namespaces(&writer).await.unwrap();
    writer
}

/// Starts a server whose bootstrap controller keeps running.
async fn started(storage: &Arc<MemoryStorage>) -> Arc<Writer> {
    let writer = writer(storage).await;
    definitions::load(&writer).await.unwrap();
    let mut bootstrap = Bootstrap::new(Arc::clone(&writer), settings());
    bootstrap.sync().await;
    assert_eq!(writer.backend().bootstrap().text(), None);
    tokio::spawn(definitions::run(Arc::clone(&writer)));
    tokio::spawn(bootstrap.run());
    writer
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
async fn started_server_has_all_bootstrap_objects() {
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
async fn deleted_bootstrap_objects_are_recreated_by_the_loop_or_at_start() {
    let storage = MemoryStorage::new();
    let server = started(&storage).await;
    // The deletion uses the write path of clients, so the address is released.
    let registry = server.backend().registry();
    let services = registry.find("", "v1", "services").unwrap();
    let key = Key::from_path(SERVICE).unwrap();
    assert_eq!(server.remove(services, &key).await.unwrap(), listwatch_write::Removal::Gone);
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
    // Objects that are created only at start return with the next start.
    started(&storage).await;
    assert!(stored(&storage, NODE_CRITICAL).await.is_some());
    assert!(stored(&storage, &format!("{SERVICES}/v1.apps")).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn changed_bootstrap_objects_are_corrected_by_the_loop_or_at_start() {
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
    assert_eq!(
        stored(&storage, &unmanaged).await.unwrap()["spec"]["versionPriority"],
        1,
        "an unmanaged APIService is not changed"
    );
}

#[tokio::test(start_paused = true)]
async fn later_server_starts_write_nothing_when_bootstrap_objects_exist() {
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
        assert_eq!(server.backend().bootstrap().text(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn custom_group_version_has_an_api_service_while_it_is_served() {
    let storage = MemoryStorage::new();
    let server = started(&storage).await;
    let definition = json!({"metadata": {"name": "as.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"plural": "as", "kind": "A"}, "versions": [{"name": "v1", "served": true,
        "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let registry = server.backend().registry();
    let definitions = registry.find(DEFINITIONS_GROUP, DEFINITIONS_VERSION, DEFINITIONS_PLURAL).unwrap();
    create(&server, definitions, None, &definition).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let path = format!("{SERVICES}/v1.example.com");
    let service = stored(&storage, &path).await.expect("a definition's group version is registered");
    assert_eq!(service["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "true"}));
    assert_eq!(
        service["spec"],
        json!({"group": "example.com", "version": "v1", "groupPriorityMinimum": 1_000, "versionPriority": 100})
    );
    // A deleted or changed APIService is restored at once.
    delete(&storage, &path).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(stored(&storage, &path).await.is_some());
    change(&storage, &path, |service| service["spec"]["versionPriority"] = json!(1)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(stored(&storage, &path).await.unwrap()["spec"]["versionPriority"], 100);
    // A server that has not seen the definition yet does not delete its APIService.
    let behind = writer(&storage).await;
    Bootstrap::new(Arc::clone(&behind), settings()).sync().await;
    assert!(stored(&storage, &path).await.is_some());
    let key = definitions.key(None, "as.example.com").unwrap();
    assert_eq!(server.remove(definitions, &key).await.unwrap(), listwatch_write::Removal::Held);
    tokio::time::sleep(REST).await;
    assert!(stored(&storage, "/apiextensions.k8s.io/customresourcedefinitions/as.example.com").await.is_none());
    assert!(stored(&storage, &path).await.is_none(), "the group version is not served");
}

#[tokio::test(start_paused = true)]
async fn unreadable_bootstrap_objects_are_not_overwritten() {
    let storage = MemoryStorage::new();
    let paths = [SERVICE, RANGE, AUTHENTICATION, TRACKING, NODE_CRITICAL, &format!("{SERVICES}/v1.apps")];
    for path in paths {
        storage.create(&Key::from_path(path).unwrap(), "k8s\0".into(), None).await.unwrap();
    }
    let server = writer(&storage).await;
    let settings = Settings { client_ca: Some(String::new()), ..settings() };
    let bootstrap = Bootstrap::new(Arc::clone(&server), settings);
    tokio::spawn(bootstrap.run());
    tokio::time::sleep(REST).await;
    for path in paths {
        let (found, _) = storage.get(&Key::from_path(path).unwrap()).await.unwrap();
        assert_eq!(found.unwrap().value, "k8s\0", "{path}");
    }
    assert!(stored(&storage, &format!("{SERVICES}/v1.batch")).await.is_some(), "the others are made");
    assert_eq!(server.backend().bootstrap().text(), None, "what cannot be read is no failure");
}
