//! A shared informer as a source of events: [`InformerSource`].

use async_trait::async_trait;

use super::{EventSource, SourceEvent};
use crate::informer::{Event, EventStream, HandlerOptions, Reason, SharedInformer};
use crate::{Change, Object, Origin, Store};

/// A handler of a [`SharedInformer`] as a source of a controller. Several controllers and other
/// handlers can share one cache. The source keeps the informer running but does not start it; the
/// controller waits until its owner does.
///
/// The handler coalesces changes: a slow controller receives the latest state of each object, which
/// suffices for a queue of keys.
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
    /// Registers a handler with this name. The handler first receives the current state.
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
                // A coalescing handler never receives a reset.
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
