//! Keeps an [`RbacState`] in step with the stored roles and bindings, from the watch caches of the four kinds.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use listwatch_access::rbac::{RbacKind, RbacState};
use listwatch_cacher::{Cacher, Delivery, Scope};
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

/// The group and version of the kinds.
pub(super) const GROUP: &str = "rbac.authorization.k8s.io";
pub(super) const VERSION: &str = "v1";

/// Lists all roles and bindings into the state, so that a server decides correctly from its first request on.
///
/// # Errors
/// The error of the store, or 504 if the store does not respond in time.
pub async fn load(writer: &Writer, state: &RbacState) -> Result<(), Status> {
    let lists = join_all(RbacKind::ALL.map(|kind| async move {
        let Some((resource, cacher)) = source(writer, kind) else { return Ok(()) };
        cacher.wait_ready().await.map_err(|error| error.status(resource.gr()))?;
        relist(state, kind, &cacher, &resource).await.map(drop)
    }));
    let lists = tokio::time::timeout(LOAD_MAX, lists).await;
    lists.map_err(|_| Status::timeout("the store did not list the roles and bindings"))?.into_iter().collect()
}

/// Keeps the state in step until the future is dropped. While a watch cannot be served, the state keeps the last known
/// objects, as upstream's informers do.
pub async fn follow(writer: Arc<Writer>, state: Arc<RbacState>) {
    join_all(RbacKind::ALL.map(|kind| follow_kind(&writer, &state, kind))).await;
}

async fn follow_kind(writer: &Writer, state: &RbacState, kind: RbacKind) {
    loop {
        let Some((resource, cacher)) = source(writer, kind) else { return };
        if let Err(status) = follow_once(state, kind, &cacher, &resource).await {
            tracing::warn!(%status, kind = kind.resource(), "cannot watch the objects of RBAC");
        }
        // The delay keeps this loop from spinning on a store that fails immediately.
        tokio::time::sleep(RETRY).await;
    }
}

/// Lists, then watches from the revision of the list, until the watch ends.
async fn follow_once(state: &RbacState, kind: RbacKind, cacher: &Cacher, resource: &Resource) -> Result<(), Status> {
    let revision = relist(state, kind, cacher, resource).await?;
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
            Delivery::Event(event) => apply(state, kind, event.change(), event.object()),
            Delivery::Bookmark { .. } => {}
            Delivery::Error(status) => return Err(*status),
        }
    }
    Ok(())
}

fn apply(state: &RbacState, kind: RbacKind, change: Change, object: &Object) {
    let (namespace, name) = (object.namespace(), object.name());
    if change == Change::Deleted {
        return state.remove(kind, namespace, name);
    }
    if let Err(error) = state.set(kind, namespace, name, object.json_slice()) {
        tracing::warn!(%error, kind = kind.resource(), namespace, name, "an object of RBAC grants nothing");
    }
}

async fn relist(state: &RbacState, kind: RbacKind, cacher: &Cacher, resource: &Resource) -> Result<Revision, Status> {
    let everything = ListRequest {
        at: ReadAt::MostRecent,
        limit: None,
        resume: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let list = cacher.list(&Scope::All, &everything).await.map_err(|error| error.status(resource.gr()))?;
    for key in &list.undecodable {
        tracing::warn!(%key, kind = kind.resource(), "an unreadable object of RBAC grants nothing");
    }
    let objects: Vec<Object> = list.items.collect();
    let parts = objects.iter().map(|object| (object.namespace(), object.name(), object.json_slice()));
    for (namespace, name) in state.replace(kind, parts) {
        tracing::warn!(kind = kind.resource(), namespace, name, "an object of RBAC grants nothing");
    }
    Ok(list.revision)
}

fn source(writer: &Writer, kind: RbacKind) -> Option<(Arc<Resource>, Cacher)> {
    let backend = writer.backend();
    let resource = Arc::clone(backend.registry().find(GROUP, VERSION, kind.resource())?);
    let cacher = backend.cacher(&resource);
    Some((resource, cacher))
}
