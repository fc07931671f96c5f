//! Shared test helpers: a store with controllable watches, and shorthands.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

pub mod checker;
pub mod script;
pub mod store;
pub mod transactions;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream;
use listwatch_cacher::{Cacher, Delivery, Limits, ResourceConfig, Scope, Watcher};
use listwatch_meta::{Key, ListOptions, ObjectShape, ResourceVersion, SelectableField};

pub fn shape() -> Arc<ObjectShape> {
    Arc::new(ObjectShape::new(true, vec![SelectableField::string("spec.nodeName")]))
}

pub fn config(limits: Limits) -> ResourceConfig {
    ResourceConfig {
        name: "pods".to_owned(),
        prefix: "pods".to_owned(),
        shape: shape(),
        indexed_fields: vec!["spec.nodeName".to_owned()],
        limits,
    }
}

/// Limits without background work.
pub fn quiet() -> Limits {
    Limits { audit_interval: None, ..Limits::default() }
}

pub fn key(path: &str) -> Key {
    let (namespace, name) = path.split_once('/').expect("namespace/name");
    Key::new("pods", Some(namespace), name).expect("a valid key")
}

pub fn scope(text: &str) -> Scope {
    match text.split_once('/') {
        _ if text == "all" => Scope::All,
        Some((namespace, name)) => Scope::Object { namespace: Some(namespace.to_owned()), name: name.to_owned() },
        None => Scope::Namespace(text.to_owned()),
    }
}

/// Parses options such as `rv=5 limit=2 labels=app=web`; `+` in labels is a space.
pub fn options(words: &[&str]) -> ListOptions {
    let mut options = ListOptions::default();
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "rv" => options.resource_version = ResourceVersion::new(value),
            "match" => options.resource_version_match = value.to_owned(),
            "limit" => options.limit = value.parse().expect("a number"),
            "continue" => options.continue_token = value.to_owned(),
            "sie" => options.send_initial_events = Some(value == "true"),
            "bookmarks" => options.allow_watch_bookmarks = true,
            "labels" => options.label_selector = value.replace('+', " "),
            "fields" => options.field_selector = value.to_owned(),
            other => panic!("no option {other:?}"),
        }
    }
    options
}

pub async fn watch(cacher: &Cacher, scope: &Scope, words: &[&str], lasts: Duration) -> Watcher {
    let request = ListOptions { watch: true, ..options(words) }.watch(cacher.shape(), false).expect("valid options");
    cacher.watch(scope, &request, tokio::time::Instant::now() + lasts).await.expect("a watch")
}

/// Runs all tasks until they wait. The paused clock does not advance.
pub async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Takes the ready items, and whether the stream has ended.
pub async fn drain(watcher: &mut Watcher) -> (Vec<Delivery>, bool) {
    let mut seen = Vec::new();
    loop {
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut *watcher).poll_next(cx))).await {
            Poll::Ready(Some(delivery)) => seen.push(delivery),
            Poll::Ready(None) => return (seen, true),
            Poll::Pending => return (seen, false),
        }
    }
}
