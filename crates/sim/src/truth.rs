//! Records the store's own log of changes, below every layer under test ([`Truth`]).

use std::collections::BTreeMap;

use listwatch_meta::{KeyRange, Revision};
use listwatch_storage::{MemoryStorage, Storage as _, StoreEvent, Watch, WatchItem};

/// The checked parts of an object's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The object's labels, which selectors use.
    pub labels: BTreeMap<String, String>,
    /// The object's content, which must arrive unchanged.
    pub data: String,
}

/// Objects by `namespace/name`, each with the revision of its state.
pub type Objects = BTreeMap<String, (Revision, State)>;

/// One change.
#[derive(Debug, Clone)]
pub struct Change {
    /// The revision of the change.
    pub revision: Revision,
    /// `namespace/name`.
    pub object: String,
    /// The state before; `None` for a create.
    pub before: Option<State>,
    /// The state after; `None` for a delete.
    pub after: Option<State>,
}

/// Every change of the watched resource, in order.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The changes.
    pub changes: Vec<Change>,
}

/// A recorder of the store's log.
#[derive(Debug)]
pub struct Truth {
    watch: Watch,
    history: History,
}

impl Truth {
    /// Begins to record the ConfigMaps of a store.
    pub async fn record(storage: &MemoryStorage) -> Self {
        let watch = storage.watch(KeyRange::resource("configmaps"), Revision::ZERO).await;
        Truth { watch: watch.expect("a store in memory answers"), history: History::default() }
    }

    /// Reads all changes up to a past revision. Must be called before the store compacts it.
    pub async fn catch_up(&mut self, last: Revision) {
        self.watch.request_progress();
        while let Some(item) = self.watch.next().await {
            match item {
                WatchItem::Event(event) => self.history.changes.push(change(event)),
                WatchItem::Progress(revision) if revision >= last => return,
                WatchItem::Progress(_) => self.watch.request_progress(),
                other => panic!("the truth was lost: {other:?}"),
            }
        }
    }

    /// Returns the recorded changes.
    pub fn into_history(self) -> History {
        self.history
    }
}

impl History {
    /// The state at a revision.
    pub fn state_at(&self, revision: Revision) -> Objects {
        let mut state = Objects::new();
        for change in self.changes.iter().take_while(|change| change.revision <= revision) {
            match &change.after {
                Some(after) => state.insert(change.object.clone(), (change.revision, after.clone())),
                None => state.remove(&change.object),
            };
        }
        state
    }
}

fn change(event: StoreEvent) -> Change {
    let object = |key: &listwatch_meta::Key| format!("{}/{}", key.namespace(), key.name());
    match event {
        StoreEvent::Put { current, previous } => Change {
            revision: current.modified,
            object: object(&current.key),
            before: previous.map(|previous| parse(&previous.value)),
            after: Some(parse(&current.value)),
        },
        StoreEvent::Delete { key, revision, previous } => Change {
            revision,
            object: object(&key),
            before: previous.map(|previous| parse(&previous.value)),
            after: None,
        },
    }
}

/// Parses the state from an object's JSON.
pub fn parse(json: &[u8]) -> State {
    let value: serde_json::Value = serde_json::from_slice(json).expect("objects are JSON");
    let labels = value["metadata"]["labels"].as_object().into_iter().flatten();
    State {
        labels: labels.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
        data: value["data"].to_string(),
    }
}
