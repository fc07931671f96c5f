//! kube-rs against any API server, over TLS: lists, pages, watches, resumes, and keeps a copy true
//! with a reflector. `cargo xtask e2e` runs it against the built server.
//!
//! ```sh
//! KUBECONFIG=listwatch-data/admin.kubeconfig cargo run -p listwatch --example kube_rs_client
//! ```

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Far above what anything here takes; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let client = Client::try_default().await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let meta = ObjectMeta { generate_name: Some("kube-rs-".to_owned()), ..ObjectMeta::default() };
    let made = namespaces
        .create(&PostParams::default(), &Namespace { metadata: meta, ..Namespace::default() })
        .await?
        .name_any();
    let maps = Api::namespaced(client, &made);
    let story = tokio::time::timeout(PATIENCE, async {
        list_and_page(&maps).await?;
        watch_and_resume(&maps).await?;
        reflect(&maps).await
    });
    let told = story.await;
    namespaces.delete(&made, &DeleteParams::default()).await?;
    told.map_err(|_| format!("not done within {PATIENCE:?}"))??;
    println!("listed, paged, watched, resumed, reflected");
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

/// A reflector, first in the way of list and watch, then in that of a streaming list.
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
