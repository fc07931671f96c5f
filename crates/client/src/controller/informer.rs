//! A shared informer as a source of events: [`InformerSource`].

use async_trait::async_trait;

use super::{EventSource, SourceEvent};
use crate::informer::{Event, EventStream, HandlerOptions, Reason, SharedInformer};
use crate::{Change, Object, Origin, Store};

/// One more handler of a [`SharedInformer`], for a controller: several controllers, and whatever
/// else is told of changes, share one cache. Keeps the informer running while it lives; starting it
/// is its owner's business, and a controller waits until that is done.
///
/// The handler coalesces: when the controller cannot keep up it is told the latest state of each
/// object, which is all that a queue of keys asks for.
pub struct InformerSource {
    events: EventStream<Object>,
    store: Store,
}

impl std::fmt::Debug for InformerSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InformerSource")
    }
}

impl InformerSource {
    /// A handler with this name, which is told the state that is there first.
    pub fn new(informer: &SharedInformer<Object>, name: &str) -> Self {
        InformerSource { events: informer.stream(HandlerOptions::named(name)), store: informer.store() }
    }
}

#[async_trait]
impl EventSource for InformerSource {
    fn store(&self) -> Store {
        self.store.clone()
    }

    async fn next(&mut self) -> Option<SourceEvent> {
        loop {
            let change = match self.events.next().await? {
                Event::Added { object, reason } => Change::Added { object, origin: origin(reason) },
                Event::Updated { old, new, reason } => Change::Updated { old, new, origin: origin(reason) },
                Event::Deleted { last, last_is_final, reason } => {
                    Change::Deleted { last, last_is_final, origin: origin(reason) }
                }
                Event::Synced => return Some(SourceEvent::Synced),
                Event::Quarantined { key, entry } => {
                    tracing::warn!(%key, ?entry, "an object cannot be read; its last good state counts");
                    continue;
                }
                Event::Stopped(why) => {
                    tracing::warn!(?why, "the informer of a controller was stopped");
                    continue;
                }
                // A handler that coalesces is not reset.
                Event::Reset => continue,
            };
            return Some(SourceEvent::Changes(vec![change]));
        }
    }
}

fn origin(reason: Reason) -> Origin {
    match reason {
        Reason::Initial => Origin::Initial,
        Reason::Live | Reason::Unwatched => Origin::Live,
        Reason::Relist | Reason::Refill => Origin::Relist,
        Reason::Resync => Origin::Resync,
    }
}
