//! The records of a recording, one JSON object per line.
//!
//! Times are in microseconds since the start of the recording, on one clock. Revisions are those of the store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "camelCase")]
pub enum Record {
    /// A change of the store.
    Change(Change),
    /// A compaction of the store.
    Compaction(Compaction),
    /// A client's write, recorded when it ended.
    Write(Write),
    /// A client's read of one object, recorded when it ended.
    Get(Get),
    /// A client's read of a collection, recorded when its last page was read.
    List(List),
    /// The start of a watch.
    Watch(Watch),
    /// An event of a watch, in the order of its arrival.
    Event(Event),
    /// A bookmark of a watch.
    Bookmark(Bookmark),
    /// The end of a watch.
    End(End),
}

/// A state of an object: its content and the labels that selectors see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The content. Each write must have a unique content, so that the checker can find the write in the log.
    pub value: String,
    /// The labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A change in the store's own history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The revision of the change.
    pub revision: u64,
    /// `namespace/name`, or the name of an object without a namespace.
    pub object: String,
    /// The state after the change; `None` for a deletion.
    pub state: Option<State>,
}

/// A compaction: the store dropped the history before a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Compaction {
    /// The time when the compaction began.
    pub at: u64,
    /// The oldest revision that can still be read. A watch from an older revision may receive `410 Expired`.
    pub revision: u64,
}

/// The outcome of a write, as far as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The server acknowledged the write.
    Applied {
        /// The revision of the change, if the response shows it.
        revision: Option<u64>,
    },
    /// The server rejected the write, so it must not be in the store.
    Rejected,
    /// The client does not know. The write may have been applied, may be applied later, or may never be applied.
    Unknown,
}

/// A client's create, update or delete of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    /// The name of the client.
    pub client: String,
    /// The time when the request was sent.
    pub from: u64,
    /// The time when the outcome was known.
    pub to: u64,
    /// The object, in the form of [`Change::object`].
    pub object: String,
    /// The content after the write; `None` for a deletion.
    pub value: Option<String>,
    /// The revision of the state that the write replaces, if the client sent it as a precondition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
    /// The outcome.
    pub outcome: Outcome,
}

/// A read of the most recent state of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Get {
    /// The name of the client.
    pub client: String,
    /// The time when the request was sent.
    pub from: u64,
    /// The time when the response arrived.
    pub to: u64,
    /// The object, in the form of [`Change::object`].
    pub object: String,
    /// The revision and the state; `None` if the object did not exist.
    pub found: Option<(u64, State)>,
}

/// The freshness that a list requires (`resourceVersion` and `resourceVersionMatch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Freshness {
    /// The most recent state.
    MostRecent,
    /// Any state, even if the client has already seen a newer one.
    Any,
    /// The state of this revision or a later one.
    NotOlderThan(u64),
    /// The state of this revision.
    Exact(u64),
}

/// The objects that a list or a watch shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// The namespace; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels that an object must have, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Selector {
    /// Whether an object in this state is shown.
    pub fn matches(&self, object: &str, state: &State) -> bool {
        let in_namespace = self
            .namespace
            .as_deref()
            .is_none_or(|namespace| object.split_once('/').is_some_and(|(found, _)| found == namespace));
        in_namespace && self.labels.iter().all(|(key, value)| state.labels.get(key) == Some(value))
    }
}

/// A client's read of a collection. All pages of a list are one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct List {
    /// The name of the client.
    pub client: String,
    /// The time when the first request was sent.
    pub from: u64,
    /// The time when the last response arrived.
    pub to: u64,
    /// The freshness that the list requires.
    pub freshness: Freshness,
    /// The selected objects.
    #[serde(default)]
    pub selector: Selector,
    /// The revision of the list.
    pub revision: u64,
    /// The objects, each with the revision of its last change.
    pub items: BTreeMap<String, (u64, State)>,
}

/// The position at which a watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Start {
    /// After a revision.
    After(u64),
    /// The state of this revision or a later one, as initial events that end with a bookmark (`sendInitialEvents`).
    InitialEvents(u64),
}

/// The start of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Watch {
    /// The number of the watch, which no other watch has.
    pub watch: u64,
    /// The name of the client.
    pub client: String,
    /// The time when the request was sent.
    pub at: u64,
    /// The position at which the watch starts.
    pub start: Start,
    /// The selected objects.
    #[serde(default)]
    pub selector: Selector,
}

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventType {
    /// The object was created, or begins to match the selector.
    Added,
    /// The object was changed.
    Modified,
    /// The object was deleted, or ceases to match the selector.
    Deleted,
}

/// An event that a watch received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The number of the watch.
    pub watch: u64,
    /// The time when the event arrived.
    pub at: u64,
    /// The type of the event.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// The object, in the form of [`Change::object`].
    pub object: String,
    /// The revision that the event shows.
    pub revision: u64,
    /// The state that the event shows. The event of a deletion shows the last state.
    pub state: State,
}

/// A bookmark that a watch received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bookmark {
    /// The number of the watch.
    pub watch: u64,
    /// The time when the bookmark arrived.
    pub at: u64,
    /// The revision of the bookmark.
    pub revision: u64,
    /// Whether the bookmark ends the initial events.
    #[serde(default)]
    pub ends_initial_events: bool,
}

/// The reason why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EndReason {
    /// The server ended the response.
    Closed,
    /// The connection broke, or the client ended the watch.
    Cut,
    /// The server answered `410 Expired`.
    Expired,
    /// The server sent another error.
    Failed,
}

/// The end of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// The number of the watch.
    pub watch: u64,
    /// The time when the watch ended.
    pub at: u64,
    /// The reason why the watch ended.
    pub reason: EndReason,
}
