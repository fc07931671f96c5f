//! Random operations checked against a simple model: the list of all events.
//!
//! The expected result of each operation is computed from that list. [`operations`] generates the operations.
//! [`check_model`] runs them on a store and compares every result.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Broken, Subject, Verdict, Watched, previous, value};
use listwatch_storage::{CreateError, DeleteError, ReadError, UpdateError};
use listwatch_storage::{KeyValue, ListQuery, Storage, StoreEvent, WatchItem};

/// One operation. Keys and revisions are chosen by numbers modulo the existing ones, so that every
/// sequence of operations is valid and shrinks well.
#[derive(Clone, Debug)]
pub enum Op {
    /// Create a key.
    Create {
        /// The key's number.
        key: u8,
        /// The value's length in bytes.
        length: u16,
    },
    /// Updates a key, at its current revision or sometimes at another one.
    Update {
        /// The key's number.
        key: u8,
        /// The value's length in bytes.
        length: u16,
        /// Whether to use another revision than the current one.
        stale: bool,
    },
    /// Delete a key.
    Delete {
        /// The key's number.
        key: u8,
        /// Whether to use another revision than the current one.
        stale: bool,
    },
    /// Read a key.
    Get {
        /// The key's number.
        key: u8,
    },
    /// Lists a range page by page, at the latest or a former revision.
    List {
        /// The range's number.
        range: u8,
        /// The revision's number; `None` for the latest.
        at: Option<u16>,
        /// The page size; 0 for one page.
        limit: u8,
    },
    /// Begins a watch, which is read in [`Op::Drain`] and at the end.
    Watch {
        /// The range's number.
        range: u8,
        /// The number of the start revision.
        after: u16,
    },
    /// Reads all watches up to the current revision.
    Drain,
    /// Compacts history.
    Compact {
        /// The revision's number.
        at: u16,
    },
    /// Closes and reopens the store, if it supports that.
    Reopen,
}

/// Generates sequences of up to `length` operations.
pub fn operations(length: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (any::<u8>(), 0..2000_u16).prop_map(|(key, length)| Op::Create { key, length }),
        8 => (any::<u8>(), 0..2000_u16, prop::bool::weighted(0.1))
            .prop_map(|(key, length, stale)| Op::Update { key, length, stale }),
        4 => (any::<u8>(), prop::bool::weighted(0.1)).prop_map(|(key, stale)| Op::Delete { key, stale }),
        2 => any::<u8>().prop_map(|key| Op::Get { key }),
        3 => (any::<u8>(), any::<Option<u16>>(), 0..4_u8).prop_map(|(range, at, limit)| Op::List { range, at, limit }),
        3 => (any::<u8>(), any::<u16>()).prop_map(|(range, after)| Op::Watch { range, after }),
        1 => Just(Op::Drain),
        1 => any::<u16>().prop_map(|at| Op::Compact { at }),
        1 => Just(Op::Reopen),
    ];
    vec(op, 1..=length)
}

/// The namespaces and names of the model's keys. Some are prefixes of others, to detect wrong
/// ranges.
const KEYS: [(&str, &str); 8] =
    [("a", "x"), ("a", "xx"), ("a", "y"), ("ab", "x"), ("a-b", "x"), ("b", "x"), ("b", "y"), ("b", "z")];

/// Runs the operations on a store and compares every result with the model. For [`Op::Reopen`], `reopen` is called
/// while no watch is open. `reopen` closes the store and returns the reopened store, or `None` if the store cannot be
/// reopened.
///
/// No other client may compact the store meanwhile.
///
/// # Errors
/// The first result that differs from the model.
pub async fn check_model(
    store: Arc<dyn Storage>,
    operations: &[Op],
    mut reopen: impl AsyncFnMut() -> Option<Arc<dyn Storage>>,
) -> Verdict {
    static RUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let run = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let resource = format!("conformance/model-{}-{run}", std::process::id());
    let promise = "a store answers like the list of its events";
    let subject = Subject { store, resource: resource.into(), promise };
    let before = subject.now().await?;
    let mut run = Run { subject, events: Vec::new(), before, oldest: Revision::ZERO, watches: Vec::new() };
    for (step, op) in operations.iter().enumerate() {
        run.step(op, &mut reopen).await.map_err(|mut broken| {
            broken.seen = format!("{} (step {step}: {op:?})", broken.seen);
            broken
        })?;
    }
    run.drain().await
}

/// An event of the model.
#[derive(Clone, Debug)]
struct Event {
    revision: Revision,
    key: Key,
    value: Option<Bytes>,
}

/// The part of an event that is compared.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    key: Key,
    revision: Revision,
    before: Option<(Bytes, Revision, Revision)>,
    after: Option<Bytes>,
}

impl From<&StoreEvent> for Shown {
    fn from(event: &StoreEvent) -> Self {
        Shown {
            key: event.key().clone(),
            revision: event.revision(),
            before: previous(event).map(|state| (state.value.clone(), state.created, state.modified)),
            after: value(event).cloned(),
        }
    }
}

struct Run {
    subject: Subject,
    events: Vec<Event>,
    /// The store's revision before the first event.
    before: Revision,
    /// The revision to which the store was compacted.
    oldest: Revision,
    watches: Vec<ModelWatch>,
}

struct ModelWatch {
    watch: Watched,
    range: KeyRange,
    /// The revision up to which events were seen or not requested.
    seen: Revision,
}

impl Run {
    fn key(&self, choice: u8) -> Key {
        let (namespace, name) = KEYS[usize::from(choice) % KEYS.len()];
        Key::new(&self.subject.resource, Some(namespace), name).expect("a valid key")
    }

    fn range(&self, choice: u8) -> KeyRange {
        match choice % 8 {
            0..=2 => self.subject.range(),
            3 => KeyRange::namespace(&self.subject.resource, "a"),
            4 => KeyRange::namespace(&self.subject.resource, "b"),
            5 => self.subject.range().starting_at(self.key(choice / 8).as_str()),
            _ => KeyRange::single(&self.key(choice / 8)),
        }
    }

    /// The current revision, the revision before everything, or one in between.
    fn revision(&self, choice: u16) -> Revision {
        let choice = usize::from(choice) % (self.events.len() + 1);
        choice.checked_sub(1).map_or(self.before, |index| self.events[index].revision)
    }

    fn last(&self) -> Revision {
        self.events.last().map_or(self.before, |event| event.revision)
    }

    /// The state at a revision, computed from the events up to it.
    fn state(&self, at: Revision) -> BTreeMap<Key, KeyValue> {
        let mut state: BTreeMap<Key, KeyValue> = BTreeMap::new();
        for event in self.events.iter().filter(|event| event.revision <= at) {
            match &event.value {
                Some(value) => {
                    let created = state.get(&event.key).map_or(event.revision, |found| found.created);
                    let (key, value) = (event.key.clone(), value.clone());
                    state.insert(
                        event.key.clone(),
                        KeyValue { key, value, created, modified: event.revision, stale: false },
                    );
                }
                None => {
                    state.remove(&event.key);
                }
            }
        }
        state
    }

    fn found(&self, key: &Key) -> Option<KeyValue> {
        self.state(self.last()).remove(key)
    }

    fn value(&self, length: u16) -> Bytes {
        // Every value differs, so that mixed-up values are detected.
        let seed = self.events.len();
        (0..usize::from(length)).map(|n| (seed + n) as u8).collect::<Vec<u8>>().into()
    }

    /// Records a write that was acknowledged at this revision.
    fn happened(&mut self, key: Key, revision: Revision, value: Option<Bytes>) -> Verdict {
        let last = self.last();
        self.subject.require(revision > last, || format!("a write at {revision:?} after {last:?}"))?;
        self.events.push(Event { revision, key, value });
        Ok(())
    }

    async fn step(&mut self, op: &Op, reopen: &mut impl AsyncFnMut() -> Option<Arc<dyn Storage>>) -> Verdict {
        let store = self.subject.store.clone();
        match *op {
            Op::Create { key, length } => {
                let (key, value) = (self.key(key), self.value(length));
                let result = store.create(&key, value.clone(), None).await;
                match (result, self.found(&key)) {
                    (Ok(revision), None) => self.happened(key, revision, Some(value)),
                    (Err(CreateError::AlreadyExists { current, .. }), Some(found)) => {
                        self.subject.require_eq("what is there", current, found)
                    }
                    (result, found) => Err(self.subject.broken(format!("{result:?}, there is {found:?}"))),
                }
            }
            Op::Update { key, length, stale } => {
                let (key, value) = (self.key(key), self.value(length));
                let found = self.found(&key);
                let expected = self.expected(found.as_ref(), stale);
                let result = store.update(&key, expected, value.clone(), None).await;
                match result {
                    Ok(revision) if found.as_ref().is_some_and(|found| found.modified == expected) => {
                        self.happened(key, revision, Some(value))
                    }
                    Err(UpdateError::Conflict { current }) if found.as_ref().map(|f| f.modified) != Some(expected) => {
                        self.subject.require_eq("what is there", current, found)
                    }
                    result => Err(self.subject.broken(format!("{result:?} at {expected:?}, there is {found:?}"))),
                }
            }
            Op::Delete { key, stale } => {
                let key = self.key(key);
                let found = self.found(&key);
                let expected = self.expected(found.as_ref(), stale);
                match store.delete(&key, expected).await {
                    Ok(revision) if found.as_ref().is_some_and(|found| found.modified == expected) => {
                        self.happened(key, revision, None)
                    }
                    Err(DeleteError::Conflict { current }) if found.as_ref().map(|f| f.modified) != Some(expected) => {
                        self.subject.require_eq("what is there", current, found)
                    }
                    result => Err(self.subject.broken(format!("{result:?} at {expected:?}, there is {found:?}"))),
                }
            }
            Op::Get { key } => {
                let key = self.key(key);
                let (found, revision) = store.get(&key).await.map_err(|e| self.subject.broken(e))?;
                self.subject.require_eq("the key", found, self.found(&key))?;
                let last = self.last();
                self.subject.require(revision >= last, || format!("read at {revision:?}, written at {last:?}"))
            }
            Op::List { range, at, limit } => {
                let (range, at) = (self.range(range), at.map(|at| self.revision(at)));
                self.list(range, at, usize::from(limit)).await
            }
            Op::Watch { range, after } => {
                let (range, after) = (self.range(range), self.revision(after));
                let watch = self.subject.watch(range.clone(), after).await?;
                self.watches.push(ModelWatch { watch, range, seen: after });
                Ok(())
            }
            Op::Drain => self.drain().await,
            Op::Compact { at } => {
                let at = self.revision(at);
                store.compact(at).await.map_err(|e| self.subject.broken(format!("compacting to {at:?}: {e}")))?;
                self.oldest = self.oldest.max(at);
                Ok(())
            }
            Op::Reopen => {
                self.drain().await?;
                self.watches.clear();
                if let Some(store) = reopen().await {
                    self.subject.store = store;
                }
                let (now, last) = (self.subject.now().await?, self.last());
                self.subject.require(now >= last, || format!("opened again at {now:?}, it was at {last:?}"))
            }
        }
    }

    fn expected(&self, found: Option<&KeyValue>, stale: bool) -> Revision {
        match (found, stale) {
            (Some(found), false) => found.modified,
            (Some(found), true) => found.modified.previous(),
            (None, _) => self.last(),
        }
    }

    /// Lists page by page, pinned to the first page's revision.
    async fn list(&mut self, range: KeyRange, at: Option<Revision>, limit: usize) -> Verdict {
        let shown = self.state(at.unwrap_or(self.last()));
        let expected: Vec<KeyValue> = shown.into_values().filter(|item| range.contains(item.key.as_str())).collect();
        let (mut items, mut from, mut pinned) = (Vec::new(), range.clone(), at);
        loop {
            let result = self.subject.store.list(ListQuery { range: from, at: pinned, limit }).await;
            let page = match result {
                Err(ReadError::Compacted { .. }) if at.is_some_and(|at| at < self.oldest) => return Ok(()),
                other => other.map_err(|e| self.subject.broken(e))?,
            };
            self.subject.require(at.is_none_or(|at| at >= self.oldest), || {
                format!("{at:?} is read, the store is compacted to {:?}", self.oldest)
            })?;
            pinned = Some(page.revision);
            items.extend(page.items);
            let left = (expected.len() - items.len().min(expected.len())) as u64;
            self.subject.require(page.more == (left > 0) && page.remaining.is_none_or(|said| said == left), || {
                format!("more is {}, {:?} remain; {left} do", page.more, page.remaining)
            })?;
            let Some(last) = items.last().filter(|_| page.more && items.len() <= expected.len()) else { break };
            from = range.starting_at(&format!("{}\0", last.key));
        }
        self.subject.require_eq("the list", items, expected)
    }

    /// Reads every watch up to the current revision and compares.
    async fn drain(&mut self) -> Verdict {
        let mut kept = Vec::new();
        for mut open in std::mem::take(&mut self.watches) {
            let events: Vec<Event> = self
                .events
                .iter()
                .filter(|event| event.revision > open.seen && open.range.contains(event.key.as_str()))
                .cloned()
                .collect();
            let mut lost = false;
            for expected in events {
                let item = loop {
                    match open.watch.item().await? {
                        WatchItem::Progress(revision) => {
                            self.subject.require(revision < expected.revision, || {
                                format!("progress at {revision:?} before the event at {:?}", expected.revision)
                            })?;
                        }
                        item => break item,
                    }
                };
                match item {
                    WatchItem::Event(event) => {
                        // A removal may lack its previous state if that is compacted.
                        let forgotten =
                            expected.value.is_none() && expected.revision <= self.oldest && previous(&event).is_none();
                        let before = self.state(expected.revision.previous()).remove(&expected.key);
                        let before = before.filter(|_| !forgotten);
                        let expected = Shown {
                            key: expected.key,
                            revision: expected.revision,
                            before: before.map(|state| (state.value, state.created, state.modified)),
                            after: expected.value,
                        };
                        self.subject.require_eq("the event", Shown::from(&event), expected)?;
                        open.seen = event.revision();
                    }
                    WatchItem::Expired { .. } if open.seen < self.oldest => {
                        lost = true;
                        break;
                    }
                    other => return Err(self.subject.broken(format!("{other:?} instead of {expected:?}"))),
                }
            }
            if lost {
                continue;
            }
            if self.quiet(&mut open).await? {
                kept.push(open);
            }
        }
        self.watches = kept;
        Ok(())
    }

    /// Checks that no event follows. Returns false if the watch ended because its revision was compacted.
    async fn quiet(&self, open: &mut ModelWatch) -> Result<bool, Broken> {
        if !self.subject.store.capabilities().progress_requests {
            return Ok(true);
        }
        let last = self.last();
        // A store may answer with an older revision a few times.
        for _ in 0..10_000 {
            open.watch.watch.request_progress();
            match open.watch.item().await? {
                WatchItem::Progress(revision) => {
                    open.seen = open.seen.max(revision);
                    if revision >= last {
                        return Ok(true);
                    }
                }
                WatchItem::Expired { .. } if open.seen < self.oldest => return Ok(false),
                other => return Err(self.subject.broken(format!("{other:?} after the last event"))),
            }
            tokio::task::yield_now().await;
        }
        Err(self.subject.broken(format!("progress does not reach {last:?}")))
    }
}
