//! Converts changes to kube-rs' watcher events: [`events`], and a store and a controller over it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

use futures_util::{Stream, stream};
use kube::Resource;
use kube::runtime::reflector::{self, Lookup};
use kube::runtime::watcher::{Error, Event};
use kube::runtime::{Controller, WatchStreamExt as _};
use listwatch_client::controller::{EventSource, SourceEvent};
use listwatch_client::{Change, Object, ObjectKey};
use serde::de::DeserializeOwned;

/// The number of objects deleted before `InitDone`, beyond the number of existing objects, above which the initial state
/// begins again. The cost of each deletion is therefore constant.
const DELETED_MAX: usize = 1_024;

/// Converts a listwatch source to the stream of `kube::runtime::watcher`. The initial state arrives
/// between `Init` and `InitDone`. Then `Apply` and `Delete` follow without another `Init`. Objects
/// that were deleted during a gap are reported as `Delete`.
///
/// An object that is updated before `InitDone` is reported as `InitApply` again. An object that is
/// deleted before `InitDone` is reported as `Delete` after `InitDone`. After many deletions before `InitDone`, the initial
/// state begins again with `Init` instead.
///
/// An object that cannot be decoded into `K` is an error item ([`Error::WatchFailed`] with kube's
/// `SerdeError`), and the stream continues. The source retries all other failures itself, so no
/// back-off is needed after this stream. The stream ends with the source.
pub fn events<K>(source: impl EventSource) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: DeserializeOwned + Send + 'static,
{
    let phase = Phase::Initial { deleted: BTreeMap::new() };
    let state =
        EventConverter { source, phase, ready: VecDeque::from([Ok(Event::Init)]), replayed: Vec::new().into_iter() };
    stream::unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((event, state))
    })
}

/// Feeds a kube-rs store from [`events`], like `reflector(writer, watcher(..))`. Returns the store
/// and the stream, which must be polled to update the store.
pub fn reflect<K>(source: impl EventSource) -> (reflector::Store<K>, impl Stream<Item = Result<Event<K>, Error>> + Send)
where
    K: Lookup + Clone + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    let (reader, writer) = reflector::store();
    (reader, reflector::reflector(writer, events(source)))
}

/// Creates a kube-rs controller for the objects of this source, instead of `Controller::new`. For
/// other sources, pass [`events`] with `touched_objects` to `owns_stream` and `watches_stream`, so
/// that no part of the controller watches through `kube::Client`.
pub fn controller<K>(source: impl EventSource) -> Controller<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (reader, stream) = reflect::<K>(source);
    Controller::for_stream(stream.applied_objects(), reader)
}

struct EventConverter<S, K> {
    source: S,
    phase: Phase,
    /// The converted events of the last batch that were not returned yet.
    ready: VecDeque<Result<Event<K>, Error>>,
    /// The objects of an initial state that began again, after `ready`. They are decoded when they are returned.
    replayed: std::vec::IntoIter<Object>,
}

/// ```text
///   Initial ── Synced ──▶ Live
/// ```
enum Phase {
    /// `InitDone` was not sent. A writer of kube-rs collects the objects of `InitApply` in a buffer, and replaces its
    /// store by the buffer at `InitDone` (`Writer::apply_watcher_event` in kube-runtime's `reflector/store.rs`). An
    /// `Apply` or `Delete` before `InitDone` would change the replaced store.
    Initial {
        /// The deleted objects, some of which may be in the buffer. Bounded by [`DELETED_MAX`] and the number of
        /// existing objects: a source whose initial state takes long may report any number of deletions.
        deleted: BTreeMap<ObjectKey, Object>,
    },
    Live,
}

impl<S: EventSource, K: DeserializeOwned> EventConverter<S, K> {
    async fn next(&mut self) -> Option<Result<Event<K>, Error>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if let Some(object) = self.replayed.next() {
                return Some(decode(&object).map(Event::InitApply));
            }
            match self.source.next().await? {
                SourceEvent::Changes(changes) => {
                    let phase = &mut self.phase;
                    self.ready.extend(changes.iter().filter_map(|change| phase.convert(change)));
                    self.bound_deleted();
                }
                SourceEvent::Synced => {
                    if let Phase::Initial { deleted } = std::mem::replace(&mut self.phase, Phase::Live) {
                        self.ready.push_back(Ok(Event::InitDone));
                        self.ready.extend(deleted.values().map(|last| decode(last).map(Event::Delete)));
                    }
                }
            }
        }
    }
}

impl<S: EventSource, K> EventConverter<S, K> {
    /// Begins the initial state again if there are too many deleted objects. A writer of kube-rs drops its buffer at
    /// `Init`, so that no deleted object is left in it. The store shows at least the changes that its source returned;
    /// the source returns the others later.
    fn bound_deleted(&mut self) {
        let Phase::Initial { deleted } = &mut self.phase else { return };
        if deleted.len() <= DELETED_MAX {
            return;
        }
        let snapshot = self.source.store().snapshot();
        if deleted.len() - DELETED_MAX > snapshot.len() {
            deleted.clear();
            self.ready.push_back(Ok(Event::Init));
            self.replayed = snapshot.iter().cloned().collect::<Vec<_>>().into_iter();
        }
    }
}

impl Phase {
    /// The event of a change; `None` if it follows after `InitDone`.
    fn convert<K: DeserializeOwned>(&mut self, change: &Change) -> Option<Result<Event<K>, Error>> {
        let event = match (self, change) {
            (Phase::Initial { deleted }, Change::Added { object: new, .. } | Change::Updated { new, .. }) => {
                deleted.remove(new.key());
                decode(new).map(Event::InitApply)
            }
            (Phase::Initial { deleted }, Change::Deleted { last, .. }) => {
                deleted.insert(last.key().clone(), last.clone());
                return None;
            }
            (Phase::Live, Change::Added { object: new, .. } | Change::Updated { new, .. }) => {
                decode(new).map(Event::Apply)
            }
            (Phase::Live, Change::Deleted { last, .. }) => decode(last).map(Event::Delete),
        };
        Some(event)
    }
}

fn decode<K: DeserializeOwned>(object: &Object) -> Result<K, Error> {
    serde_json::from_slice(object.json()).map_err(|error| Error::WatchFailed(kube::Error::SerdeError(error)))
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use listwatch_client::{Delta, Indexer, Origin, Store};

    use super::*;
    use crate::testing::object;

    /// A source that returns the given messages and ends, with this store.
    struct Script(VecDeque<SourceEvent>, Store);

    #[async_trait::async_trait]
    impl EventSource for Script {
        fn store(&self) -> Store {
            self.1.clone()
        }

        async fn next(&mut self) -> Option<SourceEvent> {
            self.0.pop_front()
        }
    }

    /// One message: `synced`, or a change of an object: `+a@1`, `~a@2`, `-a@2`.
    fn message(text: &str) -> SourceEvent {
        let Some((change, version)) = text.split_once('@') else { return SourceEvent::Synced };
        let (kind, name) = change.split_at(1);
        let (old, new) = (object(name, "1"), object(name, version));
        let origin = Origin::Live;
        SourceEvent::Changes(vec![match kind {
            "+" => Change::Added { object: new, origin },
            "~" => Change::Updated { old, new, origin },
            _ => Change::Deleted { last: new, last_is_final: true, origin },
        }])
    }

    #[tokio::test]
    async fn changes_before_init_done_reach_the_store_of_kube_rs() {
        // The messages of the source, the events, and the objects in the store after them.
        async fn check(messages: &[&str], events: &[&str], stored: &[&str]) {
            let script = Script(messages.iter().map(|text| message(text)).collect(), Indexer::new().reader());
            let (store, stream) = reflect::<ConfigMap>(script);
            let name = |map: &ConfigMap| {
                format!("{}@{}", map.name_any(), ResourceExt::resource_version(map).unwrap_or_default())
            };
            let show = |event: Result<Event<ConfigMap>, Error>| match event.expect("each object decodes") {
                Event::Init => "init".to_owned(),
                Event::InitApply(map) => format!("init {}", name(&map)),
                Event::InitDone => "done".to_owned(),
                Event::Apply(map) => format!("apply {}", name(&map)),
                Event::Delete(map) => format!("delete {}", name(&map)),
            };
            let seen: Vec<String> = stream.map(show).collect().await;
            assert_eq!(seen, events, "the events of {messages:?}");
            let mut found: Vec<String> = store.state().iter().map(|map| name(map)).collect();
            found.sort();
            assert_eq!(found, stored, "the store after {messages:?}");
        }
        check(
            &["+a@1", "+b@1", "~a@2", "synced"],
            &["init", "init a@1", "init b@1", "init a@2", "done"],
            &["a@2", "b@1"],
        )
        .await;
        check(
            &["+a@1", "+b@1", "-a@2", "synced", "-b@3"],
            &["init", "init a@1", "init b@1", "done", "delete a@2", "delete b@3"],
            &[],
        )
        .await;
        check(&["+a@1", "-a@2", "+a@3", "synced"], &["init", "init a@1", "init a@3", "done"], &["a@3"]).await;
        check(
            &["+a@1", "-a@2", "+a@3", "-a@4", "synced", "+a@5", "synced", "~a@6"],
            &["init", "init a@1", "init a@3", "done", "delete a@4", "apply a@5", "apply a@6"],
            &["a@6"],
        )
        .await;
    }

    #[tokio::test]
    async fn initial_state_begins_again_after_too_many_deletions() {
        // The objects of the source, the deletions before `Synced`, and the numbers of `Init` and `Delete`.
        async fn check(existing: usize, deletions: usize, expected: (usize, usize)) {
            let mut indexer = Indexer::new();
            let mut messages = VecDeque::new();
            for number in 0..existing {
                let name = format!("e{number}");
                indexer.apply(Delta::Upsert(object(&name, "1")), &mut Vec::new());
                messages.push_back(message(&format!("+{name}@1")));
            }
            indexer.publish();
            for number in 0..deletions {
                messages.extend([message(&format!("+d{number}@2")), message(&format!("-d{number}@3"))]);
            }
            messages.push_back(SourceEvent::Synced);
            let (store, stream) = reflect::<ConfigMap>(Script(messages, indexer.reader()));
            let events: Vec<_> = stream.map(|event| event.expect("each object decodes")).collect().await;
            let inits = events.iter().filter(|event| matches!(event, Event::Init)).count();
            let deletes = events.iter().filter(|event| matches!(event, Event::Delete(_))).count();
            assert_eq!((inits, deletes), expected, "{existing} objects, {deletions} deletions");
            assert_eq!(store.state().len(), existing, "{existing} objects, {deletions} deletions");
        }
        check(2, DELETED_MAX + 2, (1, DELETED_MAX + 2)).await;
        check(2, DELETED_MAX + 3, (2, 0)).await;
        check(2, DELETED_MAX + 5, (2, 2)).await;
        check(0, 2 * DELETED_MAX + 2, (3, 0)).await;
    }
}
