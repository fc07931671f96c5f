//! Converts changes to kube-rs' watcher events: [`events`], and a store and a controller over it.

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

/// Converts a listwatch source to the stream of `kube::runtime::watcher`. The initial state arrives
/// between `Init` and `InitDone`. Then `Apply` and `Delete` follow without another `Init`. Objects
/// that were deleted during a gap are reported as `Delete`.
///
/// An object that cannot be decoded into `K` is an error item ([`Error::WatchFailed`] with kube's
/// `SerdeError`), and the stream continues. The source retries all other failures itself, so no
/// back-off is needed after this stream. The stream ends with the source.
pub fn events<K>(source: impl EventSource) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: DeserializeOwned + Send + 'static,
{
    let state = EventConverter { source, synced: false, ready: VecDeque::from([Ok(Event::Init)]) };
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
    synced: bool,
    /// The converted events of the last batch that were not returned yet.
    ready: VecDeque<Result<Event<K>, Error>>,
}

impl<S: EventSource, K: DeserializeOwned> EventConverter<S, K> {
    async fn next(&mut self) -> Option<Result<Event<K>, Error>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            match self.source.next().await? {
                SourceEvent::Changes(changes) => {
                    let synced = self.synced;
                    self.ready.extend(changes.iter().map(|change| convert(change, synced)));
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

fn convert<K: DeserializeOwned>(change: &Change, synced: bool) -> Result<Event<K>, Error> {
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
