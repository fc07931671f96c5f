//! Tests a kube-rs controller against a server in this process, without network, TLS, port or
//! cluster. `kube::Client` uses the server's service directly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::controller::Action;
use kube::runtime::{Controller, WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use listwatch::apiserver::ApiServer;

/// A time limit far above the duration of the test.
const TIMEOUT: Duration = Duration::from_secs(30);

async fn client() -> (ApiServer, Client) {
    let server = ApiServer::builder().build().await.expect("a server in memory");
    let client = Client::new(server.service(), "default");
    (server, client)
}

fn config_map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()),
        ..ConfigMap::default()
    }
}

/// The reconcile function under test: keeps a Secret with the same keys for every ConfigMap.
async fn mirror(map: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, kube::Error> {
    let secrets: Api<Secret> = Api::default_namespaced((*client).clone());
    let name = map.name_any();
    let wanted = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "ConfigMap".to_owned(),
                name: name.clone(),
                uid: map.uid().unwrap_or_default(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        string_data: map.data.clone(),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &wanted).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            secrets.patch(&name, &PatchParams::default(), &Patch::Merge(&wanted)).await?;
        }
        Err(error) => return Err(error),
    }
    Ok(Action::await_change())
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    tokio::time::timeout(TIMEOUT, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{what} did not happen within {TIMEOUT:?}"))
}

#[tokio::test]
async fn kube_rs_controller_reconciles_against_an_in_process_server() {
    let (_server, client) = client().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &config_map("before", &[("a", "1")])).await.expect("created");

    let controller = Controller::new(maps.clone(), watcher::Config::default())
        .owns(secrets.clone(), watcher::Config::default())
        .run(mirror, |_, error: &kube::Error, _| panic!("reconciling failed: {error}"), Arc::new(client.clone()))
        .for_each(async |_| {});
    let controller = tokio::spawn(controller);

    eventually("the object that was there before is reconciled", async || {
        secrets.get_opt("before").await.expect("readable")
    })
    .await;

    maps.create(&PostParams::default(), &config_map("after", &[("b", "2")])).await.expect("created");
    let secret =
        eventually("a new object is reconciled", async || secrets.get_opt("after").await.expect("readable")).await;
    assert_eq!(secret.data.expect("stringData became data")["b"].0, b"2");

    let patch = Patch::Merge(serde_json::json!({"data": {"b": "3"}}));
    maps.patch("after", &PatchParams::default(), &patch).await.expect("patched");
    eventually("a change is reconciled", async || {
        let secret = secrets.get("after").await.expect("readable");
        (secret.data.unwrap_or_default()["b"].0 == b"3").then_some(())
    })
    .await;

    secrets.delete("before", &DeleteParams::default()).await.expect("deleted");
    eventually("a deleted owned object is created again", async || secrets.get_opt("before").await.expect("readable"))
        .await;
    controller.abort();
}

#[tokio::test]
async fn kube_rs_watcher_receives_every_change_in_order() {
    let (_server, client) = client().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for n in 0..20 {
        maps.create(&PostParams::default(), &config_map(&format!("m{n:02}"), &[])).await.expect("created");
    }
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut seen = BTreeMap::new();
        let mut changes = std::pin::pin!(watcher(maps.clone(), config).applied_objects());
        for n in 0..20 {
            let object = tokio::time::timeout(TIMEOUT, changes.next()).await.expect("initial state in time");
            seen.insert(object.expect("no end").expect("no error").name_any(), n);
        }
        assert_eq!(seen.len(), 20);
        let mut last = 0_u64;
        for round in 0..50 {
            let patch = Patch::Merge(serde_json::json!({"data": {"round": round.to_string()}}));
            maps.patch("m07", &PatchParams::default(), &patch).await.expect("patched");
            let object = tokio::time::timeout(TIMEOUT, changes.next()).await.expect("an event in time");
            let object = object.expect("no end").expect("no error");
            let version = object.resource_version().expect("a version").parse().expect("a number");
            assert!(version > last, "ordered: {version} came after {last}");
            assert_eq!(object.data.expect("data")["round"], round.to_string());
            last = version;
        }
        let reset = Patch::Merge(serde_json::json!({"data": null}));
        maps.patch("m07", &PatchParams::default(), &reset).await.expect("patched");
    }
}

#[tokio::test]
async fn stale_updates_pages_and_selector_watches_match_kube_apiserver() {
    let (_server, client) = client().await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = |name: &str, app: &str| -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "labels": {"app": app}},
            "spec": {"containers": [{"name": "main", "image": "registry.example/app:1"}]},
        }))
        .expect("a pod")
    };
    let mut first = pods.create(&PostParams::default(), &pod("one", "shop")).await.expect("created");
    pods.create(&PostParams::default(), &pod("two", "bank")).await.expect("created");

    let shop = pods.list(&ListParams::default().labels("app=shop")).await.expect("listed");
    assert_eq!(shop.items.iter().map(|pod| pod.name_any()).collect::<Vec<_>>(), ["one"]);
    let page = pods.list(&ListParams::default().limit(1)).await.expect("listed");
    assert_eq!(page.items.len(), 1);
    let rest = pods
        .list(&ListParams::default().limit(1).continue_token(&page.metadata.continue_.expect("another page")))
        .await
        .expect("listed");
    assert_eq!(rest.items[0].name_any(), "two");
    assert_eq!(rest.metadata.resource_version, page.metadata.resource_version);

    first.labels_mut().insert("seen".to_owned(), "yes".to_owned());
    let fresh = pods.replace("one", &PostParams::default(), &first).await.expect("replaced");
    let stale = pods.replace("one", &PostParams::default(), &first).await.expect_err("a stale version");
    assert!(matches!(&stale, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict"), "{stale}");

    let version = fresh.resource_version().expect("a version");
    let mut changes = pods
        .watch(&WatchParams::default().fields("metadata.name=two").timeout(20), &version)
        .await
        .expect("a watch")
        .boxed();
    pods.delete("one", &DeleteParams::default()).await.expect("deleted");
    pods.delete("two", &DeleteParams::default()).await.expect("deleted");
    // A pod that no node runs is marked as terminating and removed in one request.
    let mut event = async || {
        let event = tokio::time::timeout(TIMEOUT, changes.next()).await.expect("in time");
        event.expect("no end").expect("no error")
    };
    let marked = event().await;
    assert!(
        matches!(&marked, WatchEvent::Modified(pod) if pod.name_any() == "two" && pod.metadata.deletion_timestamp.is_some()),
        "{marked:?}"
    );
    let removed = event().await;
    assert!(matches!(&removed, WatchEvent::Deleted(pod) if pod.name_any() == "two"), "{removed:?}");
}
