//! Updates copies of stored objects, for authorizers and webhooks, from the watch caches.
//!
//! Each resource is listed and then watched from the revision of the list. While a watch fails, the copy keeps the last
//! known objects, like upstream's informers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use listwatch_cacher::{Cacher, Delivery, Scope, UndecodableValue};
use listwatch_meta::{
    Change, FieldSelector, LabelSelector, ListRequest, Object, ReadAt, Revision, Status, WatchFrom, WatchRequest,
};
use listwatch_registry::Resource;
use listwatch_write::Writer;
use tokio::time::Instant;

/// Maximum duration of one watch. Any value is correct, because an ended watch is restarted.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// Delay before the next list after a failed list or watch.
const RETRY: Duration = Duration::from_secs(1);
/// Timeout for the first lists. The server does not start after this timeout.
const LOAD_MAX: Duration = Duration::from_secs(60);

/// A copy of the objects of one resource, in the form that the consumer needs.
pub(crate) trait ObjectCopy: Sync {
    /// The API group, version and plural name of the resource.
    fn resource(&self) -> (&'static str, &'static str, &'static str);

    /// Adds or replaces an object. Returns false for an object that cannot be read.
    fn set(&self, object: &Object) -> bool;

    /// Removes an object.
    fn remove(&self, namespace: &str, name: &str);

    /// Replaces all objects. Returns the namespaces and names of the objects that cannot be read.
    fn replace<'a>(&self, objects: &'a [Object]) -> Vec<(&'a str, &'a str)>;
}

/// Lists all resources into their copies. A server calls this before the first request, so that no decision is based on
/// an empty copy. `what` names the objects in the error.
///
/// # Errors
/// The error of the store, or 504 if the store does not respond in time.
pub(crate) async fn load(writer: &Writer, copies: &[impl ObjectCopy], what: &str) -> Result<(), Status> {
    let lists = join_all(copies.iter().map(|copy| async move {
        let Some((resource, cacher)) = source(writer, copy) else { return Ok(()) };
        cacher.wait_ready().await.map_err(|error| error.status(resource.gr()))?;
        relist(copy, &cacher, &resource).await.map(drop)
    }));
    let lists = tokio::time::timeout(LOAD_MAX, lists).await;
    lists.map_err(|_| Status::timeout(format!("the store did not list {what}")))?.into_iter().collect()
}

/// Updates the copies until the future is dropped.
pub(crate) async fn follow(writer: &Writer, copies: &[impl ObjectCopy]) {
    join_all(copies.iter().map(|copy| follow_resource(writer, copy))).await;
}

async fn follow_resource(writer: &Writer, copy: &impl ObjectCopy) {
    loop {
        let Some((resource, cacher)) = source(writer, copy) else { return };
        if let Err(status) = follow_once(copy, &cacher, &resource).await {
            tracing::warn!(%status, resource = %resource.plural, "cannot watch objects");
        }
        // The delay keeps this loop from spinning on a store that fails immediately.
        tokio::time::sleep(RETRY).await;
    }
}

/// Lists, then watches from the revision of the list, until the watch ends.
async fn follow_once(copy: &impl ObjectCopy, cacher: &Cacher, resource: &Resource) -> Result<(), Status> {
    let revision = relist(copy, cacher, resource).await?;
    let request = WatchRequest {
        from: WatchFrom::After(revision),
        bookmarks: true,
        timeout_seconds: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let watcher = cacher.watch(&Scope::All, &request, Instant::now() + WATCH_TIME).await;
    let mut watcher = watcher.map_err(|error| error.status(resource.gr()))?;
    while let Some(delivery) = watcher.next().await {
        match delivery {
            Delivery::Event(event) => apply(copy, event.change(), event.object(), resource),
            Delivery::Bookmark { .. } => {}
            Delivery::Error(status) => return Err(*status),
        }
    }
    Ok(())
}

fn apply(copy: &impl ObjectCopy, change: Change, object: &Object, resource: &Resource) {
    let (namespace, name) = (object.namespace(), object.name());
    if change == Change::Deleted {
        copy.remove(namespace, name);
    } else if !copy.set(object) {
        tracing::warn!(resource = %resource.plural, namespace, name, "an unreadable object has no effect");
    }
}

async fn relist(copy: &impl ObjectCopy, cacher: &Cacher, resource: &Resource) -> Result<Revision, Status> {
    let everything = ListRequest {
        at: ReadAt::MostRecent,
        limit: None,
        resume: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let list = cacher.list(&Scope::All, &everything).await.map_err(|error| error.status(resource.gr()))?;
    for UndecodableValue { key, .. } in &list.undecodable {
        tracing::warn!(%key, resource = %resource.plural, "an unreadable object has no effect");
    }
    let objects: Vec<Object> = list.items.collect();
    for (namespace, name) in copy.replace(&objects) {
        tracing::warn!(resource = %resource.plural, namespace, name, "an unreadable object has no effect");
    }
    Ok(list.revision)
}

fn source(writer: &Writer, copy: &impl ObjectCopy) -> Option<(Arc<Resource>, Cacher)> {
    let (group, version, resource) = copy.resource();
    let backend = writer.backend();
    let resource = Arc::clone(backend.registry().find(group, version, resource)?);
    let cacher = backend.cacher(&resource);
    Some((resource, cacher))
}
