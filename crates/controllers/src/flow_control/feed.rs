//! Configures the server's priority and fairness from the watch caches of FlowSchemas and PriorityLevelConfigurations.
//!
//! ```text
//!  FlowSchemas ─────────────────┐
//!                               ├─▶ Configuration ── changed, or every 10 s if needed ──▶ configure ──▶ Dangling
//!  PriorityLevelConfigurations ─┘
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use listwatch_cacher::{Cacher, Delivery, Scope, UndecodableValue};
use listwatch_flow_control::{BootstrapKind, FlowSchema, InvalidObject, PriorityLevel};
use listwatch_meta::{
    Change, FieldSelector, LabelSelector, ListRequest, Object, ReadAt, Revision, Status, WatchFrom, WatchRequest,
};
use listwatch_registry::Resource;
use listwatch_write::Writer;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::conditions::ConditionWriter;
use super::{FlowConfiguration, resource};

/// Maximum duration of one watch. Any value is correct, because an ended watch is restarted.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// Delay before the next list after a failed list or watch.
const RETRY: Duration = Duration::from_secs(1);
/// Timeout for the first lists. The server does not start after this timeout.
const LOAD_MAX: Duration = Duration::from_secs(60);
/// Minimum time between two configurations. Changes that arrive during this time are applied together.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval between two checks for deleted levels that are now idle, and for conditions that could not be written.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

const KINDS: [BootstrapKind; 2] = [BootstrapKind::PriorityLevel, BootstrapKind::FlowSchema];

/// The valid objects of both kinds.
#[derive(Debug, Default)]
struct Configuration {
    objects: Mutex<Objects>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Objects {
    levels: BTreeMap<String, PriorityLevel>,
    schemas: BTreeMap<String, FlowSchema>,
    /// Whether priority levels were listed. Until then, a missing object may still exist in the store.
    are_levels_listed: bool,
    are_schemas_listed: bool,
}

impl Objects {
    fn set(&mut self, kind: BootstrapKind, json: &[u8]) -> Result<(), InvalidObject> {
        match kind {
            BootstrapKind::PriorityLevel => {
                let level = PriorityLevel::parse(json)?;
                self.levels.insert(level.name().to_owned(), level);
            }
            BootstrapKind::FlowSchema => {
                let schema = FlowSchema::parse(json)?;
                self.schemas.insert(schema.name().to_owned(), schema);
            }
        }
        Ok(())
    }

    fn remove(&mut self, kind: BootstrapKind, name: &str) {
        match kind {
            BootstrapKind::PriorityLevel => drop(self.levels.remove(name)),
            BootstrapKind::FlowSchema => drop(self.schemas.remove(name)),
        }
    }

    /// Removes all objects of a kind, before the objects of a new list are set.
    fn clear(&mut self, kind: BootstrapKind) {
        match kind {
            BootstrapKind::PriorityLevel => {
                self.levels.clear();
                self.are_levels_listed = true;
            }
            BootstrapKind::FlowSchema => {
                self.schemas.clear();
                self.are_schemas_listed = true;
            }
        }
    }
}

impl Configuration {
    fn objects(&self) -> std::sync::MutexGuard<'_, Objects> {
        // A panic between two changes leaves a valid set of objects.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, kind: BootstrapKind, change: Change, object: &Object) {
        let mut objects = self.objects();
        // An object that can no longer be read configures nothing, as a deleted one.
        objects.remove(kind, object.name());
        if change != Change::Deleted
            && let Err(error) = objects.set(kind, object.json_slice())
        {
            tracing::warn!(%error, name = object.name(), "an object of flow control configures nothing");
        }
        drop(objects);
        self.changed.notify_one();
    }

    fn replace(&self, kind: BootstrapKind, list: impl Iterator<Item = Object>) {
        let mut objects = self.objects();
        objects.clear(kind);
        for object in list {
            if let Err(error) = objects.set(kind, object.json_slice()) {
                tracing::warn!(%error, name = object.name(), "an object of flow control configures nothing");
            }
        }
        drop(objects);
        self.changed.notify_one();
    }

    /// Returns the levels and schemas, or `None` before both kinds were listed.
    fn parts(&self) -> Option<(Vec<PriorityLevel>, Vec<FlowSchema>)> {
        let objects = self.objects();
        let is_listed = objects.are_levels_listed && objects.are_schemas_listed;
        is_listed.then(|| (objects.levels.values().cloned().collect(), objects.schemas.values().cloned().collect()))
    }
}

/// Lists the objects, configures priority and fairness, and writes the conditions of the schemas. A server calls this
/// before the first request, so that every request is classified correctly. A failing store is retried for
/// [`LOAD_MAX`].
///
/// # Errors
/// The last error of the store, or 504 if the store does not respond in time.
pub async fn load(writer: &Writer, target: &dyn FlowConfiguration) -> Result<(), Status> {
    let deadline = Instant::now() + LOAD_MAX;
    let configuration = Configuration::default();
    loop {
        let listed = tokio::time::timeout_at(deadline, list_all(writer, &configuration)).await;
        match listed.unwrap_or_else(|_| Err(Status::timeout("the store did not list the objects of flow control"))) {
            Ok(()) => break,
            Err(status) if Instant::now() + RETRY < deadline => {
                tracing::warn!(%status, "cannot list the objects of flow control yet");
                tokio::time::sleep(RETRY).await;
            }
            Err(status) => return Err(status),
        }
    }
    if let Some((levels, schemas)) = configuration.parts() {
        // `follow` repeats the writes that fail here.
        let missing = target.configure(levels, schemas);
        ConditionWriter::default().write(writer, missing).await;
    }
    Ok(())
}

async fn list_all(writer: &Writer, configuration: &Configuration) -> Result<(), Status> {
    let lists = KINDS.map(|kind| async move {
        let Some((resource, cacher)) = source(writer, kind) else { return Ok(()) };
        cacher.wait_ready().await.map_err(|error| error.status(resource.gr()))?;
        relist(configuration, kind, &cacher, &resource).await.map(drop)
    });
    join_all(lists).await.into_iter().collect()
}

/// Updates the configuration until the future is dropped. While a watch fails, the last known objects are used, as in
/// upstream's informers.
pub async fn follow(writer: Arc<Writer>, target: Arc<dyn FlowConfiguration>) {
    let configuration = Configuration::default();
    let follow_all = join_all(KINDS.map(|kind| follow_kind(&writer, &configuration, kind)));
    tokio::join!(follow_all, configure(&writer, &configuration, &*target));
}

async fn configure(writer: &Writer, configuration: &Configuration, target: &dyn FlowConfiguration) {
    let mut conditions = ConditionWriter::default();
    let mut is_complete = true;
    loop {
        tokio::select! {
            () = configuration.changed.notified() => tokio::time::sleep(PAUSE).await,
            () = tokio::time::sleep(CHECK_INTERVAL) => {
                if is_complete && !target.has_removable_level() {
                    continue;
                }
            }
        }
        let Some((levels, schemas)) = configuration.parts() else { continue };
        let missing = target.configure(levels, schemas);
        is_complete = conditions.write(writer, missing).await;
    }
}

async fn follow_kind(writer: &Writer, configuration: &Configuration, kind: BootstrapKind) {
    loop {
        let Some((resource, cacher)) = source(writer, kind) else { return };
        if let Err(status) = follow_once(configuration, kind, &cacher, &resource).await {
            tracing::warn!(%status, kind = super::plural(kind), "cannot watch the objects of flow control");
        }
        // The delay keeps this loop from spinning on a store that fails immediately.
        tokio::time::sleep(RETRY).await;
    }
}

/// Lists, then watches from the revision of the list, until the watch ends.
async fn follow_once(
    configuration: &Configuration,
    kind: BootstrapKind,
    cacher: &Cacher,
    resource: &Resource,
) -> Result<(), Status> {
    let revision = relist(configuration, kind, cacher, resource).await?;
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
            Delivery::Event(event) => configuration.apply(kind, event.change(), event.object()),
            Delivery::Bookmark { .. } => {}
            Delivery::Error(status) => return Err(*status),
        }
    }
    Ok(())
}

async fn relist(
    configuration: &Configuration,
    kind: BootstrapKind,
    cacher: &Cacher,
    resource: &Resource,
) -> Result<Revision, Status> {
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
        tracing::warn!(%key, "an unreadable object of flow control configures nothing");
    }
    configuration.replace(kind, list.items);
    Ok(list.revision)
}

fn source(writer: &Writer, kind: BootstrapKind) -> Option<(Arc<Resource>, Cacher)> {
    let resource = resource(writer, kind)?;
    let cacher = writer.backend().cacher(&resource);
    Some((resource, cacher))
}
