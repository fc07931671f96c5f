//! Changes as kube-rs' watcher events: [`events`], and what is built of them.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::hash::Hash;

use futures_util::{Stream, stream};
use kube::Resource;
use kube::runtime::reflector::{self, Lookup};
use kube::runtime::watcher::{Error, Event};
use kube::runtime::{Controller, WatchStreamExt as _};
use listwatch_client::controller::{EventSource, SourceEvent};
use listwatch_client::{Change, Object};
use serde::de::DeserializeOwned;

/// The stream that `kube::runtime::watcher` would give, from a listwatch source. The initial state
/// comes between `Init` and `InitDone`; then `Apply` and `Delete` follow each other without another
/// `Init`, also after a gap: what vanished in it is told as `Delete`.
///
/// An object that cannot be decoded into `K` is an error item
/// ([`Error::WatchFailed`] with kube's `SerdeError`), and the stream goes on with the next one.
/// Everything else that fails is waited for by the source, so no back-off is needed behind this. The
/// stream ends when the source does.
pub fn events<K>(source: impl EventSource) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: DeserializeOwned + Send + 'static,
{
    let state = Telling { source, synced: false, ready: VecDeque::from([Ok(Event::Init)]) };
    stream::unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((event, state))
    })
}

/// [`events`] into a kube-rs store, as `reflector(writer, watcher(..))`: the store, and the stream
/// that has to be polled to keep it true.
pub fn reflect<K>(source: impl EventSource) -> (reflector::Store<K>, impl Stream<Item = Result<Event<K>, Error>> + Send)
where
    K: Lookup + Clone + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    let (reader, writer) = reflector::store();
    (reader, reflector::reflector(writer, events(source)))
}

/// A kube-rs controller of the objects of this source, in place of `Controller::new`. `owns_stream`
/// and `watches_stream` take [`events`] of other sources (with `touched_objects`), so that no part
/// of it watches through `kube::Client`.
pub fn controller<K>(source: impl EventSource) -> Controller<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (reader, stream) = reflect::<K>(source);
    Controller::for_stream(stream.applied_objects(), reader)
}

struct Telling<S, K> {
    source: S,
    synced: bool,
    /// What was made of the last batch and not handed out.
    ready: VecDeque<Result<Event<K>, Error>>,
}

impl<S: EventSource, K: DeserializeOwned> Telling<S, K> {
    async fn next(&mut self) -> Option<Result<Event<K>, Error>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            match self.source.next().await? {
                SourceEvent::Changes(changes) => {
                    let synced = self.synced;
                    self.ready.extend(changes.iter().map(|change| told(change, synced)));
                }
                SourceEvent::Synced if !self.synced => {
                    self.synced = true;
                    self.ready.push_back(Ok(Event::InitDone));
                }
                SourceEvent::Synced => {}
            }
        }
    }
}

fn told<K: DeserializeOwned>(change: &Change, synced: bool) -> Result<Event<K>, Error> {
    let decode = |object: &Object| {
        serde_json::from_slice(object.json()).map_err(|error| Error::WatchFailed(kube::Error::SerdeError(error)))
    };
    match change {
        Change::Added { object, .. } if !synced => decode(object).map(Event::InitApply),
        Change::Added { object, .. } => decode(object).map(Event::Apply),
        Change::Updated { new, .. } => decode(new).map(Event::Apply),
        Change::Deleted { last, .. } => decode(last).map(Event::Delete),
    }
}
