//! Runs kube-rs' Controller on listwatch's reflector, against an API server in this process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use listwatch_apiserver::ApiServer;
use listwatch_client::controller::InformerSource;
use listwatch_client::transport::ServiceTransport;
use listwatch_client::{HttpListWatch, Reflection, ReflectorConfig, Scope, SharedInformer};
use listwatch_kube::KubeStore;

/// A time limit far above the duration of the test.
const TIMEOUT: Duration = Duration::from_secs(30);

async fn source(server: &ApiServer, resource: &str) -> Reflection<HttpListWatch> {
    let client = listwatch_client::Client::with_transport(ServiceTransport::new(server.service()), "default");
    let resource = client.discover(resource).await.expect("the server has it");
    let scope = Scope::Namespace("default".to_owned());
    Reflection::new(client.list_watch(&resource, &scope), ReflectorConfig::default())
}

fn map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some([("value".to_owned(), value.to_owned())].into()),
        ..ConfigMap::default()
    }
}

/// Reconciles a ConfigMap: creates a Secret with the same name.
async fn mirror(map: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, kube::Error> {
    let secrets: Api<Secret> = Api::default_namespaced((*client).clone());
    let wanted = Secret {
        metadata: ObjectMeta {
            name: Some(map.name_any()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "ConfigMap".to_owned(),
                name: map.name_any(),
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
            secrets.patch(&map.name_any(), &PatchParams::default(), &Patch::Merge(&wanted)).await?;
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
async fn kube_rs_controller_reconciles_from_listwatch_reflector() {
    let server = ApiServer::builder().build().await.expect("a server in memory");
    let client = Client::new(server.service(), "default");
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &map("before", "1")).await.expect("created");

    let owned = listwatch_kube::events::<Secret>(source(&server, "secrets").await).touched_objects();
    // An informer, which other users could share.
    let informer = SharedInformer::over(source(&server, "configmaps").await, "configmaps");
    informer.start().expect("it was not started before");
    let controller = listwatch_kube::controller::<ConfigMap>(InformerSource::new(&informer, "mirror"));
    let cache = controller.store();
    let controller = controller
        .owns_stream(owned)
        .run(mirror, |_, error: &kube::Error, _| panic!("reconciling failed: {error}"), Arc::new(client.clone()))
        .for_each(async |_| {});
    let controller = tokio::spawn(controller);

    eventually("the object that was there before is reconciled", async || {
        secrets.get_opt("before").await.expect("readable")
    })
    .await;
    assert!(cache.get(&ObjectRef::new("before").within("default")).is_some(), "kube's own store is filled");

    maps.create(&PostParams::default(), &map("after", "2")).await.expect("created");
    eventually("a new object is reconciled", async || secrets.get_opt("after").await.expect("readable")).await;
    let patch = Patch::Merge(serde_json::json!({"data": {"value": "3"}}));
    maps.patch("after", &PatchParams::default(), &patch).await.expect("patched");
    eventually("a change is reconciled", async || {
        let secret = secrets.get("after").await.expect("readable");
        (secret.data.unwrap_or_default()["value"].0 == b"3").then_some(())
    })
    .await;

    secrets.delete("before", &DeleteParams::default()).await.expect("deleted");
    eventually("a deleted owned object is created again", async || secrets.get_opt("before").await.expect("readable"))
        .await;
    maps.delete("after", &DeleteParams::default()).await.expect("deleted");
    eventually("kube's store forgets what was deleted", async || {
        cache.get(&ObjectRef::new("after").within("default")).is_none().then_some(())
    })
    .await;
    controller.abort();
}

#[tokio::test]
async fn events_equal_those_of_the_kube_rs_watcher() {
    let server = ApiServer::builder().build().await.expect("a server in memory");
    let client = Client::new(server.service(), "default");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for name in ["a", "b"] {
        maps.create(&PostParams::default(), &map(name, "1")).await.expect("created");
    }
    let ours = listwatch_kube::events::<ConfigMap>(source(&server, "configmaps").await).boxed();
    let theirs = watcher(maps.clone(), watcher::Config::default()).boxed();
    let mut told = Vec::new();
    for mut stream in [ours, theirs] {
        let mut events = Vec::new();
        let mut step = 0;
        while events.len() < 7 {
            let event = tokio::time::timeout(TIMEOUT, stream.next()).await.expect("in time");
            let event = event.expect("no end").expect("no error");
            events.push(match &event {
                Event::Init => "init".to_owned(),
                Event::InitApply(map) => format!("init {}", map.name_any()),
                Event::InitDone => "done".to_owned(),
                Event::Apply(map) => format!("apply {}", map.name_any()),
                Event::Delete(map) => format!("delete {}", map.name_any()),
            });
            if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
                match step {
                    0 => drop(maps.create(&PostParams::default(), &map("c", "1")).await.expect("created")),
                    1 => {
                        let patch = Patch::Merge(serde_json::json!({"data": {"value": "2"}}));
                        maps.patch("c", &PatchParams::default(), &patch).await.expect("patched");
                    }
                    2 => drop(maps.delete("c", &DeleteParams::default()).await.expect("deleted")),
                    _ => {}
                }
                step += 1;
            }
        }
        told.push(events);
    }
    assert_eq!(told[0], ["init", "init a", "init b", "done", "apply c", "apply c", "delete c"]);
    assert_eq!(told[0], told[1], "a program cannot tell the streams apart");
}

#[tokio::test]
async fn kube_store_reads_objects_from_the_listwatch_cache() {
    let server = ApiServer::builder().build().await.expect("a server in memory");
    let client = Client::new(server.service(), "default");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for (name, value) in [("a", "1"), ("b", "2"), ("c", "2")] {
        maps.create(&PostParams::default(), &map(name, value)).await.expect("created");
    }
    let mut source = source(&server, "configmaps").await;
    let cache: KubeStore<ConfigMap> = KubeStore::new(source.store());
    assert!(cache.is_empty());
    tokio::spawn(async move {
        loop {
            source.next().await;
        }
    });
    tokio::time::timeout(TIMEOUT, cache.wait_until_ready()).await.expect("in time").expect("synced");

    let names = |maps: Vec<Arc<ConfigMap>>| maps.iter().map(|map| map.name_any()).collect::<Vec<_>>();
    assert_eq!(names(cache.state()), ["a", "b", "c"]);
    let of_two = |map: &ConfigMap| map.data.as_ref().is_some_and(|data| data["value"] == "2");
    assert_eq!(names(cache.state_filter(of_two)), ["b", "c"]);
    assert_eq!(cache.find(of_two).map(|map| map.name_any()).as_deref(), Some("b"));
    let key = ObjectRef::new("a").within("default");
    let (first, second) = (cache.get(&key).expect("there"), cache.get(&key).expect("there"));
    assert!(Arc::ptr_eq(&first, &second), "each version is decoded once");

    let patch = Patch::Merge(serde_json::json!({"data": {"value": "9"}}));
    maps.patch("a", &PatchParams::default(), &patch).await.expect("patched");
    eventually("a change is read", async || {
        let map = cache.get(&key).expect("there");
        (map.data.as_ref().is_some_and(|data| data["value"] == "9")).then_some(())
    })
    .await;
    maps.delete("b", &DeleteParams::default()).await.expect("deleted");
    eventually("a delete is read", async || (cache.len() == 2).then_some(())).await;

    // The values are not base64, so no object decodes as a Secret. The store reports this.
    let wrong: KubeStore<Secret> = KubeStore::new(cache.inner().clone());
    assert_eq!((wrong.state().len(), wrong.undecodable().len()), (0, 2));
}
