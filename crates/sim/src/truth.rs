//! What really happened: the store's own log, read past every layer under test ([`Truth`]).

use std::collections::BTreeMap;

use listwatch_meta::{KeyRange, Revision};
use listwatch_storage::{MemoryStorage, Storage as _, StoreEvent, Watch, WatchItem};

/// The state of one object, as far as the checkers look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Its labels, which selectors look at.
    pub labels: BTreeMap<String, String>,
    /// Its content, which must arrive unchanged.
    pub data: String,
}

/// Objects by `namespace/name`, each with the revision of its state.
pub type Objects = BTreeMap<String, (Revision, State)>;

/// One change.
#[derive(Debug, Clone)]
pub struct Change {
    /// Its place in the order.
    pub revision: Revision,
    /// `namespace/name`.
    pub object: String,
    /// The state before; `None` when it was created.
    pub before: Option<State>,
    /// The state after; `None` when it was removed.
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

    /// Reads everything up to a revision that has happened already. Has to be done before the
    /// store forgets it.
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

    /// What was read.
    pub fn into_history(self) -> History {
        self.history
    }
}

impl History {
    /// The state after everything up to and including a revision.
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

/// Reads the state from an object's JSON.
pub fn parse(json: &[u8]) -> State {
    let value: serde_json::Value = serde_json::from_slice(json).expect("objects are JSON");
    let labels = value["metadata"]["labels"].as_object().into_iter().flatten();
    State {
        labels: labels.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
        data: value["data"].to_string(),
    }
}
