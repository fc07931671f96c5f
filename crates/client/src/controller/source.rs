//! The event sources of a controller ([`EventSource`]), and the mapping of changes to keys.

use async_trait::async_trait;
use serde::Deserialize;

use crate::driver::{Notice, Reflection};
use crate::list_watch::ListWatch;
use crate::object::{Object, ObjectKey};
use crate::{Change, Origin, Store};
use listwatch_work_queue::{PRIORITY_LOW, PRIORITY_NORMAL};

/// A message of a source.
#[derive(Clone, Debug)]
pub enum SourceEvent {
    /// The cache changed. Readers already see these changes.
    Changes(Vec<Change>),
    /// The initial state was loaded, and all of it was reported. Sent at least once.
    Synced,
}

/// The changes of one kind of objects, and the cache that shows them.
#[async_trait]
pub trait EventSource: Send + 'static {
    /// The cache, which shows every change before [`EventSource::next`] returns the change.
    fn store(&self) -> Store;

    /// The next message; `None` after the last one. Cancel-safe.
    async fn next(&mut self) -> Option<SourceEvent>;
}

#[async_trait]
impl<L: ListWatch> EventSource for Reflection<L> {
    fn store(&self) -> Store {
        Reflection::store(self)
    }

    async fn next(&mut self) -> Option<SourceEvent> {
        self.begin_source();
        loop {
            match Reflection::next(self).await {
                Notice::Changes(changes) => return Some(SourceEvent::Changes(changes)),
                Notice::Synced => return Some(SourceEvent::Synced),
                Notice::State(state) => tracing::debug!(?state, "a source of a controller"),
                Notice::Problem(problem) => tracing::warn!(%problem, "a source of a controller was interrupted"),
                other => tracing::warn!(?other, "an object was skipped"),
            }
        }
    }
}

/// The type in an owner reference. The version is omitted, because all versions of a group show the
/// same objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerType {
    /// The API group; empty for core.
    pub group: String,
    /// The kind, e.g. `Deployment`.
    pub kind: String,
    /// Whether the owner's kind is namespaced. A cluster-scoped owner has a key without a
    /// namespace.
    pub namespaced: bool,
}

/// The mapping of a source's objects to keys.
pub(super) enum Mapping {
    Own,
    Owner(OwnerType),
    Custom(Box<MapObject>),
}

/// Returns the keys to reconcile for an object.
type MapObject = dyn Fn(&Object) -> Vec<ObjectKey> + Send + Sync;

impl Mapping {
    /// Returns the keys to reconcile for a change, possibly with duplicates.
    pub(super) fn keys(&self, change: &Change) -> Vec<ObjectKey> {
        match change {
            // The old and the new object have the same key.
            Change::Updated { new, .. } if matches!(self, Mapping::Own) => self.keys_of(new),
            Change::Updated { old, new, .. } => {
                let mut keys = self.keys_of(old);
                keys.extend(self.keys_of(new));
                keys
            }
            Change::Added { object, .. } => self.keys_of(object),
            Change::Deleted { last, .. } => self.keys_of(last),
        }
    }

    fn keys_of(&self, object: &Object) -> Vec<ObjectKey> {
        match self {
            Mapping::Own => vec![object.key().clone()],
            Mapping::Owner(owner) => owner_of(object, owner).into_iter().collect(),
            Mapping::Custom(map) => map(object),
        }
    }
}

/// The priority of the keys of a change.
pub(super) fn priority(change: &Change) -> i32 {
    match change.origin() {
        Origin::Live => PRIORITY_NORMAL,
        _ => PRIORITY_LOW,
    }
}

#[derive(Deserialize)]
struct Owned {
    #[serde(default)]
    metadata: OwnedMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnedMeta {
    #[serde(default)]
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnerReference {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    controller: Option<bool>,
}

/// The key of the object's controller, if the controller is of this type. An owner is in the
/// namespace of its dependents or cluster-scoped.
fn owner_of(object: &Object, owner: &OwnerType) -> Option<ObjectKey> {
    let owned: Owned = serde_json::from_slice(object.json()).ok()?;
    let references = owned.metadata.owner_references?;
    let controller = references.into_iter().find(|reference| reference.controller == Some(true))?;
    let group = controller.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    if group != owner.group || controller.kind != owner.kind || controller.name.is_empty() {
        return None;
    }
    let namespace = if owner.namespaced { object.namespace() } else { "" };
    Some(ObjectKey::new(namespace, &controller.name))
}
