//! Uses kube-rs against any API server over TLS: lists, pages, watches, resumes, runs a reflector
//! and a controller with finalizers, and defines a custom kind. `cargo xtask e2e` runs this example
//! against the built server.
//!
//! ```sh
//! KUBECONFIG=listwatch-data/admin.kubeconfig cargo run -p listwatch --example kube_rs_client
//! ```

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    WatchEvent, WatchParams,
};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{self, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A time limit far above the duration of the example.
const TIMEOUT: Duration = Duration::from_secs(150);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let client = Client::try_default().await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let meta = ObjectMeta { generate_name: Some("kube-rs-".to_owned()), ..ObjectMeta::default() };
    let made = namespaces
        .create(&PostParams::default(), &Namespace { metadata: meta, ..Namespace::default() })
        .await?
        .name_any();
    let maps = Api::namespaced(client.clone(), &made);
    let story = tokio::time::timeout(TIMEOUT, async {
        list_and_page(&maps).await?;
        watch_and_resume(&maps).await?;
        reflect(&maps).await?;
        control(&maps).await?;
        define(client, &made).await
    });
    let told = story.await;
    namespaces.delete(&made, &DeleteParams::default()).await?;
    told.map_err(|_| format!("not done within {TIMEOUT:?}"))??;
    println!("listed, paged, watched, resumed, reflected, controlled, defined a kind");
    Ok(())
}

fn map(name: &str) -> ConfigMap {
    ConfigMap { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, ..ConfigMap::default() }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Outcome<()> {
    if holds { Ok(()) } else { Err(what().into()) }
}

async fn list_and_page(maps: &Api<ConfigMap>) -> Outcome<()> {
    for n in 0..7 {
        maps.create(&PostParams::default(), &map(&format!("m{n}"))).await?;
    }
    let mut found = Vec::new();
    let mut params = ListParams::default().limit(3);
    loop {
        let page = maps.list(&params).await?;
        found.extend(page.iter().map(|map| map.name_any()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    ensure(found == ["m0", "m1", "m2", "m3", "m4", "m5", "m6"], || format!("pages: {found:?}"))
}

/// The first `count` events after a resource version.
async fn watched(maps: &Api<ConfigMap>, from: &str, count: usize) -> Outcome<Vec<(&'static str, ConfigMap)>> {
    let mut stream = pin!(maps.watch(&WatchParams::default(), from).await?);
    let mut seen = Vec::new();
    while seen.len() < count {
        match stream.next().await.ok_or("the watch ended")?? {
            WatchEvent::Added(map) => seen.push(("ADDED", map)),
            WatchEvent::Modified(map) => seen.push(("MODIFIED", map)),
            WatchEvent::Deleted(map) => seen.push(("DELETED", map)),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(error) => return Err(Box::new(error)),
        }
    }
    Ok(seen)
}

async fn watch_and_resume(maps: &Api<ConfigMap>) -> Outcome<()> {
    let start = maps.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    maps.create(&PostParams::default(), &map("w")).await?;
    let first = watched(maps, &start, 1).await?;
    let from = first[0].1.resource_version().unwrap_or_default();
    maps.patch("w", &PatchParams::default(), &Patch::Merge(json!({"data": {"x": "1"}}))).await?;
    maps.delete("w", &DeleteParams::default()).await?;
    let rest = watched(maps, &from, 2).await?;
    let seen: Vec<_> = first.iter().chain(&rest).map(|(kind, map)| (*kind, map.name_any())).collect();
    let wanted = ["ADDED", "MODIFIED", "DELETED"].map(|kind| (kind, "w".to_owned()));
    ensure(seen == wanted, || format!("watched: {seen:?}"))
}

/// Runs a reflector, first with list and watch, then with a streaming list.
async fn reflect(maps: &Api<ConfigMap>) -> Outcome<()> {
    for (n, config) in
        [watcher::Config::default(), watcher::Config::default().streaming_lists()].into_iter().enumerate()
    {
        let (copy, writer) = reflector::store();
        let mut changes = pin!(watcher(maps.clone(), config).default_backoff().reflect(writer).applied_objects());
        let (late, mut began) = (format!("late{n}"), false);
        while let Some(change) = changes.next().await {
            let change = change?;
            if !began {
                began = true;
                maps.create(&PostParams::default(), &map(&late)).await?;
            }
            if change.name_any() == late {
                break;
            }
        }
        let mut names: Vec<_> = copy.state().iter().map(|map| map.name_any()).collect();
        names.sort();
        let mut truth: Vec<_> = maps.list(&ListParams::default()).await?.iter().map(|map| map.name_any()).collect();
        truth.sort();
        ensure(names == truth, || format!("the copy {names:?} is not {truth:?}"))?;
    }
    Ok(())
}

/// The finalizer of the controller below.
const FINALIZER: &str = "listwatch.example/counted";

/// Reconciles a ConfigMap: writes the number of its entries into an annotation, and uses a
/// finalizer.
async fn count(map: Arc<ConfigMap>, maps: Arc<Api<ConfigMap>>) -> Result<Action, finalizer::Error<kube::Error>> {
    let own = Arc::clone(&maps);
    let step = |event: finalizer::Event<ConfigMap>| async move {
        if let finalizer::Event::Apply(map) = event {
            let counted = map.data.as_ref().map_or(0, |data| data.len()).to_string();
            if map.annotations().get("count") != Some(&counted) {
                let patch = Patch::Merge(json!({"metadata": {"annotations": {"count": counted}}}));
                own.patch(&map.name_any(), &PatchParams::default(), &patch).await?;
            }
        }
        Ok::<_, kube::Error>(Action::await_change())
    };
    finalizer(&maps, FINALIZER, map, step).await
}

/// Runs a kube-rs controller through creates, updates and deletes.
async fn control(maps: &Api<ConfigMap>) -> Outcome<()> {
    let chosen = watcher::Config::default().labels("counted=yes");
    let controller = Controller::new(maps.clone(), chosen)
        .run(count, |_, _, _| Action::requeue(Duration::from_millis(100)), Arc::new(maps.clone()))
        .for_each(|_| async {});
    let running = tokio::spawn(controller);
    let mut made = map("counted");
    made.metadata.labels = Some([("counted".to_owned(), "yes".to_owned())].into());
    maps.create(&PostParams::default(), &made).await?;
    let says = |wanted: &'static str| {
        move |found: Option<&ConfigMap>| {
            found.is_some_and(|map| map.annotations().get("count").is_some_and(|count| count == wanted))
        }
    };
    await_condition(maps.clone(), "counted", says("0")).await?;
    let grown = Patch::Merge(json!({"data": {"a": "1", "b": "2"}}));
    maps.patch("counted", &PatchParams::default(), &grown).await?;
    let found = await_condition(maps.clone(), "counted", says("2")).await?.ok_or("the map is gone")?;
    ensure(found.finalizers() == [FINALIZER], || format!("finalizers: {:?}", found.finalizers()))?;
    maps.delete("counted", &DeleteParams::default()).await?;
    let uid = found.uid().unwrap_or_default();
    await_condition(maps.clone(), "counted", conditions::is_deleted(&uid)).await?;
    running.abort();
    Ok(())
}

/// Defines a custom kind, uses it through untyped objects, and deletes the definition.
async fn define(client: Client, namespace: &str) -> Outcome<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    // A group that no other run uses.
    let group = format!("{namespace}.example");
    let name = format!("gadgets.{group}");
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
        "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    }});
    let definition = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "names": {"kind": "Gadget", "plural": "gadgets"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}}}],
        },
    }))?;
    let uid = definitions.create(&PostParams::default(), &definition).await?.uid().unwrap_or_default();
    await_condition(definitions.clone(), &name, conditions::is_crd_established()).await?;

    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, "v1", "Gadget"));
    let gadgets: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
    // Like every informer: first a list, then a watch from its version.
    let from = gadgets.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    let made = DynamicObject::new("g", &resource).data(json!({"spec": {"size": 1}}));
    gadgets.create(&PostParams::default(), &made).await?;
    let params = PatchParams::default();
    gadgets.patch("g", &params, &Patch::Merge(json!({"spec": {"size": 2}}))).await?;
    let status = Patch::Merge(json!({"spec": {"size": 9}, "status": {"ready": true}}));
    let found = gadgets.patch_status("g", &params, &status).await?;
    let (size, ready) = (&found.data["spec"]["size"], &found.data["status"]["ready"]);
    ensure(*size == 2 && *ready == true, || format!("a write of the status made {}", found.data))?;
    ensure(found.metadata.generation == Some(2), || format!("generation {:?}", found.metadata.generation))?;
    gadgets.delete("g", &DeleteParams::default()).await?;
    let mut stream = pin!(gadgets.watch(&WatchParams::default(), &from).await?);
    let mut seen = Vec::new();
    while seen.last() != Some(&"deleted") {
        match stream.next().await.ok_or("the watch ended")?? {
            WatchEvent::Added(_) => seen.push("added"),
            WatchEvent::Modified(_) => seen.push("modified"),
            WatchEvent::Deleted(_) => seen.push("deleted"),
            other => return Err(format!("not what happened: {other:?}").into()),
        }
    }
    ensure(seen == ["added", "modified", "modified", "deleted"], || format!("the gadget's events: {seen:?}"))?;
    definitions.delete(&name, &DeleteParams::default()).await?;
    await_condition(definitions, &name, conditions::is_deleted(&uid)).await?;
    Ok(())
}
