//! A fake server for tests above [`ListWatch`]: it keeps a state and its history, serves lists and
//! watches (also with initial events), and fails on request.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use listwatch_client::{ListItem, ListStream, ListWatch, Problem, RawObject, WatchStream, WatchedEvent};
use listwatch_meta::{ListOptions, ShardSelector, Status};
use listwatch_wire::{EventKind, ListMeta};
use tokio::sync::Notify;

/// The number of events per batch of initial events, including the end marker.
const INITIAL_BATCH: usize = 3;

/// The time between two batches, in which a test can look at the store.
const INITIAL_BATCH_PAUSE: Duration = Duration::from_millis(20);

/// A handle to a fake server.
#[derive(Clone, Default)]
pub(crate) struct Fake {
    inner: Arc<Inner>,
    /// The namespace that this handle lists and watches; `None` for all.
    namespace: Option<String>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, RawObject>,
    history: Vec<(u64, EventKind, RawObject)>,
    /// Watches from before this version are expired.
    window: u64,
    /// The number of times that all open watches were cut. A watch ends when the number changes.
    cuts: u64,
    /// The numbers of events after which the next batches of watches are cut.
    cuts_within: VecDeque<usize>,
    refuse: Option<Problem>,
    /// The number of complete states that were sent, by lists or watches.
    whole_states: u64,
    watches: u64,
    /// The number of versions by which the state of a WatchList lags. The later changes follow
    /// before the end marker.
    lag: u64,
    /// The number of batches that were read from watches.
    taken: u64,
    shards_known: bool,
    panics: bool,
    /// The number of times that all open watches were frozen. When the number changes, a watch sends
    /// nothing more, not even an end.
    frozen: u64,
}

pub(crate) fn raw(namespace: &str, name: &str, uid: &str, version: u64, extra: &str) -> RawObject {
    let json = format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"{uid}","resourceVersion":"{version}"}}{extra}}}"#
    );
    RawObject::new(Bytes::from(json)).expect("valid JSON")
}

/// A uid whose hash is spread over the whole range.
fn uid(version: u64) -> String {
    format!("{:016x}", version.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Fake {
    pub(crate) fn new() -> Self {
        Fake::default()
    }

    /// A handle to the same server that lists and watches one namespace.
    pub(crate) fn namespace(&self, namespace: &str) -> Self {
        Fake { inner: self.inner.clone(), namespace: Some(namespace.to_owned()) }
    }

    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.inner.state.lock().expect("no test panics in here"));
        self.inner.news.notify_waiters();
        result
    }

    /// Creates or updates `namespace/name`, with additional members of the object in `extra`.
    pub(crate) fn put_with(&self, key: &str, extra: &str) -> u64 {
        let (namespace, name) = key.split_once('/').expect("namespace/name");
        self.with(|state| {
            state.version += 1;
            let version = state.version;
            let old = state.objects.get(key).map(|old| old.metadata().uid.into_owned());
            let kind = if old.is_some() { EventKind::Modified } else { EventKind::Added };
            let object = raw(namespace, name, &old.unwrap_or_else(|| uid(version)), version, extra);
            state.objects.insert(key.to_owned(), object.clone());
            state.history.push((version, kind, object));
            version
        })
    }

    pub(crate) fn put(&self, key: &str) -> u64 {
        self.put_with(key, "")
    }

    pub(crate) fn delete(&self, key: &str) {
        let (namespace, name) = key.split_once('/').expect("namespace/name");
        self.with(|state| {
            let Some(old) = state.objects.remove(key) else { return };
            state.version += 1;
            let last = raw(namespace, name, &old.metadata().uid, state.version, "");
            state.history.push((state.version, EventKind::Deleted, last));
        });
    }

    /// Deletes these objects at one version, as when a lease expires.
    pub(crate) fn delete_together(&self, keys: &[&str]) {
        self.with(|state| {
            state.version += 1;
            for key in keys {
                let (namespace, name) = key.split_once('/').expect("namespace/name");
                let old = state.objects.remove(*key).expect("an object");
                let last = raw(namespace, name, &old.metadata().uid, state.version, "");
                state.history.push((state.version, EventKind::Deleted, last));
            }
        });
    }

    /// Cuts every open watch after this number of events of its next batch. A further call is for the batch after.
    pub(crate) fn cut_within(&self, events: usize) {
        self.with(|state| state.cuts_within.push_back(events));
    }

    /// The number of watches that were opened.
    pub(crate) fn watches(&self) -> u64 {
        self.with(|state| state.watches)
    }

    /// Cuts every open watch.
    pub(crate) fn cut(&self) {
        self.with(|state| state.cuts += 1);
    }

    /// Drops the history, and cuts every open watch.
    pub(crate) fn expire(&self) {
        self.with(|state| {
            state.window = state.version;
            state.cuts += 1;
        });
    }

    /// Rejects every list and watch; `None` serves again.
    pub(crate) fn refuse(&self, problem: Option<Problem>) {
        self.with(|state| state.refuse = problem);
    }

    /// Supports `shardSelector` from now on.
    pub(crate) fn know_shards(&self) {
        self.with(|state| state.shards_known = true);
    }

    /// Panics at the next list or watch.
    pub(crate) fn panic(&self) {
        self.with(|state| state.panics = true);
    }

    /// Makes every open watch silent, like a half-open socket.
    pub(crate) fn freeze(&self) {
        self.with(|state| state.frozen += 1);
    }

    /// The number of complete states that were sent.
    pub(crate) fn whole_states(&self) -> u64 {
        self.with(|state| state.whole_states)
    }

    /// Makes the state of every later WatchList lag by this number of versions, like a watch cache
    /// that catches up. The later changes follow as events before the end marker.
    pub(crate) fn lag(&self, versions: u64) {
        self.with(|state| state.lag = versions);
    }

    /// The version of an object at a version of the server, if it existed.
    pub(crate) fn version_at(&self, key: &str, version: u64) -> Option<u64> {
        self.with(|state| {
            let object = state.at(version).remove(key)?;
            object.metadata().resource_version.parse().ok()
        })
    }

    /// Every key that ever existed.
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        self.with(|state| state.history.iter().map(|(_, _, object)| key_of(object)).collect())
    }

    /// The number of batches that were read from watches after their initial events.
    pub(crate) fn taken(&self) -> u64 {
        self.with(|state| state.taken)
    }

    /// The current objects: keys with uids and versions.
    pub(crate) fn objects(&self) -> BTreeMap<String, (String, String)> {
        self.with(|state| {
            let of = |object: &RawObject| {
                let metadata = object.metadata();
                (metadata.uid.into_owned(), metadata.resource_version.into_owned())
            };
            state.objects.iter().map(|(key, object)| (key.clone(), of(object))).collect()
        })
    }

    fn is_meant(&self, object: &RawObject, shards: Option<&ShardSelector>) -> bool {
        let metadata = object.metadata();
        self.namespace.as_ref().is_none_or(|namespace| metadata.namespace == *namespace)
            && shards.is_none_or(|shards| shards.holds(&metadata.uid))
    }

    fn check(&self) -> Result<(), Problem> {
        let (panics, refuse) = self.with(|state| (state.panics, state.refuse.clone()));
        assert!(!panics, "this list watch panics");
        refuse.map_or(Ok(()), Err)
    }
}

fn key_of(object: &RawObject) -> String {
    let metadata = object.metadata();
    format!("{}/{}", metadata.namespace, metadata.name)
}

impl State {
    /// The objects at a version.
    fn at(&self, version: u64) -> BTreeMap<String, RawObject> {
        let mut objects = BTreeMap::new();
        for (_, kind, object) in self.history.iter().take_while(|(at, ..)| *at <= version) {
            match kind {
                EventKind::Deleted => drop(objects.remove(&key_of(object))),
                _ => drop(objects.insert(key_of(object), object.clone())),
            }
        }
        objects
    }
}

fn end_marker(version: u64) -> WatchedEvent {
    let json = format!(
        r#"{{"metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}"#
    );
    let object = RawObject::new(Bytes::from(json)).expect("valid JSON");
    WatchedEvent { kind: EventKind::Bookmark, object }
}

fn shards_of(state: &State, options: &ListOptions) -> Option<ShardSelector> {
    let known = state.shards_known && !options.shard_selector.is_empty();
    known.then(|| ShardSelector::parse(&options.shard_selector).expect("a good selector"))
}

#[async_trait]
impl ListWatch for Fake {
    async fn list(&self, options: ListOptions) -> Result<ListStream, Problem> {
        self.with(|state| state.whole_states += 1);
        self.check()?;
        let (objects, end) = self.with(|state| {
            let shards = shards_of(state, &options);
            let objects = state.objects.values().filter(|object| self.is_meant(object, shards.as_ref()));
            let end = ListMeta {
                resource_version: state.version.to_string(),
                shard_selector: shards.as_ref().map(ToString::to_string).unwrap_or_default(),
                ..ListMeta::default()
            };
            (objects.cloned().collect::<Vec<_>>(), end)
        });
        Ok(stream::iter([Ok(ListItem::Objects(objects)), Ok(ListItem::End(end))]).boxed())
    }

    async fn watch(&self, options: ListOptions) -> Result<WatchStream, Problem> {
        self.check()?;
        let asked: u64 = options.resource_version.as_str().parse().unwrap_or(0);
        let (cuts, frozen, from, initial) = self.with(|state| {
            state.watches += 1;
            let mut initial = VecDeque::new();
            if options.send_initial_events == Some(true) {
                state.whole_states += 1;
                let shards = shards_of(state, &options);
                let behind = state.version.saturating_sub(state.lag);
                let mut events: Vec<_> =
                    state.at(behind).into_values().map(|object| (EventKind::Added, object)).collect();
                let since = state.history.iter().filter(|(version, ..)| *version > behind);
                events.extend(since.map(|(_, kind, object)| (*kind, object.clone())));
                events.retain(|(_, object)| self.is_meant(object, shards.as_ref()));
                let events = events.into_iter().map(|(kind, object)| WatchedEvent { kind, object });
                let events: Vec<_> = events.chain([end_marker(state.version)]).collect();
                initial.extend(events.chunks(INITIAL_BATCH).map(<[_]>::to_vec));
                return Ok((state.cuts, state.frozen, state.version, initial));
            }
            if asked < state.window {
                return Err(Problem::refused(Status::expired_watch(asked, state.window)));
            }
            Ok((state.cuts, state.frozen, asked, initial))
        })?;
        let server = self.clone();
        let events = stream::unfold(Some((from, initial, true)), move |next| {
            let (server, options) = (server.clone(), options.clone());
            async move {
                let (from, mut initial, is_first) = next?;
                if !is_first && !initial.is_empty() {
                    tokio::time::sleep(INITIAL_BATCH_PAUSE).await;
                }
                loop {
                    // Registered before the check, so that no write in between is missed.
                    let mut news = std::pin::pin!(server.inner.news.notified());
                    news.as_mut().enable();
                    let batch = {
                        let mut state = server.inner.state.lock().expect("no test panics in here");
                        if state.cuts != cuts && state.frozen == frozen {
                            let cut = Problem::disconnected("cut");
                            return Some((Err(cut), None));
                        }
                        if state.frozen == frozen
                            && let Some(batch) = initial.pop_front()
                        {
                            return Some((Ok(batch), Some((from, initial, false))));
                        }
                        let shards = shards_of(&state, &options);
                        let new = state.history.iter().filter(|(version, ..)| *version > from);
                        let mine = new.filter(|(_, _, object)| server.is_meant(object, shards.as_ref()));
                        let events = mine.map(|(version, kind, object)| {
                            (*version, WatchedEvent { kind: *kind, object: object.clone() })
                        });
                        let mut batch: Vec<_> = events.collect();
                        if !batch.is_empty()
                            && let Some(events) = state.cuts_within.pop_front()
                        {
                            batch.truncate(events);
                            state.cuts += 1;
                        }
                        if state.frozen == frozen {
                            state.taken += u64::from(!batch.is_empty());
                            batch
                        } else {
                            Vec::new()
                        }
                    };
                    if let Some((last, _)) = batch.last() {
                        let last = *last;
                        let events = batch.into_iter().map(|(_, event)| event).collect();
                        return Some((Ok(events), Some((last, initial, false))));
                    }
                    news.await;
                }
            }
        });
        Ok(events.boxed())
    }
}
