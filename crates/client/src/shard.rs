//! One shard of a collection: [`ShardListWatch`].
//!
//! A server that knows `shardSelector` sends the objects of the shard and nothing else; one that
//! does not (every kube-apiserver whose gate `ShardedListAndWatch` is closed) ignores the parameter
//! and sends all of them. Believing the first of the second would make replicas do each other's
//! work, so every object is looked at here once more: the hash of a uid costs less than the object's
//! way from the socket. What the server does is told by [`ShardListWatch::is_honoured`].

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use futures_core::Stream;
use listwatch_meta::{ListOptions, ShardField, ShardSelector};
use listwatch_wire::EventKind;

use crate::list_watch::{ListItem, ListStream, ListWatch, WatchStream, WatchedEvent};
use crate::object::RawObject;
use crate::problem::Problem;

/// The reaction to a server that ignores `shardSelector`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsharded {
    /// Its objects of other shards are dropped here. Right, but every replica is sent everything.
    #[default]
    FilterHere,
    /// The list or watch fails with [`Problem::Misconfigured`].
    Refuse,
}

/// Lists and watches one shard of what another [`ListWatch`] lists and watches.
#[derive(Clone, Debug)]
pub struct ShardListWatch<L> {
    list_watch: L,
    selector: Arc<ShardSelector>,
    unsharded: Unsharded,
    honoured: Arc<AtomicU8>,
}

const UNKNOWN: u8 = 0;
const HONOURED: u8 = 1;
const IGNORED: u8 = 2;

impl<L> ShardListWatch<L> {
    /// The shards of this selector; [`ShardSelector::part`] makes that of one of several equal ones.
    pub fn new(list_watch: L, selector: ShardSelector) -> Self {
        ShardListWatch {
            list_watch,
            selector: Arc::new(selector),
            unsharded: Unsharded::default(),
            honoured: Arc::new(AtomicU8::new(UNKNOWN)),
        }
    }

    /// The reaction to a server that ignores the selector.
    #[must_use]
    pub fn unsharded(mut self, unsharded: Unsharded) -> Self {
        self.unsharded = unsharded;
        self
    }

    /// Whether the server sends only the shard. `None` until a list names its shards, or an object
    /// of another shard arrives.
    pub fn is_honoured(&self) -> Option<bool> {
        match self.honoured.load(Ordering::Relaxed) {
            HONOURED => Some(true),
            IGNORED => Some(false),
            _ => None,
        }
    }

    fn filter(&self) -> ShardFilter {
        ShardFilter { selector: self.selector.clone(), unsharded: self.unsharded, honoured: self.honoured.clone() }
    }
}

#[async_trait]
impl<L: ListWatch> ListWatch for ShardListWatch<L> {
    async fn list(&self, mut options: ListOptions) -> Result<ListStream, Problem> {
        options.shard_selector = self.selector.to_string();
        let inner = self.list_watch.list(options).await?;
        Ok(Box::pin(FilteredStream { inner, filter: self.filter(), failed: false }))
    }

    async fn watch(&self, mut options: ListOptions) -> Result<WatchStream, Problem> {
        options.shard_selector = self.selector.to_string();
        let inner = self.list_watch.watch(options).await?;
        Ok(Box::pin(FilteredStream { inner, filter: self.filter(), failed: false }))
    }
}

/// Checks whether the server filters by shard.
struct ShardFilter {
    selector: Arc<ShardSelector>,
    unsharded: Unsharded,
    honoured: Arc<AtomicU8>,
}

impl ShardFilter {
    fn is_ours(&self, object: &RawObject) -> bool {
        let metadata = object.metadata();
        // What has no identity is for the reflector to pass over.
        if metadata.uid.is_empty() {
            return true;
        }
        let value = match self.selector.field() {
            ShardField::Uid => metadata.uid,
            ShardField::Namespace => metadata.namespace,
        };
        self.selector.holds(&value)
    }

    fn ignored(&self) -> Result<(), Problem> {
        self.honoured.store(IGNORED, Ordering::Relaxed);
        match self.unsharded {
            Unsharded::FilterHere => Ok(()),
            Unsharded::Refuse => Err(Problem::misconfigured(
                "the server ignores shardSelector; open its feature gate ShardedListAndWatch",
            )),
        }
    }
}

/// The filtered input: a list's items, or a watch's events.
trait Filterable: Sized {
    fn check(self, filter: &ShardFilter) -> Result<Self, Problem>;
}

impl Filterable for ListItem {
    fn check(self, filter: &ShardFilter) -> Result<Self, Problem> {
        match self {
            ListItem::Objects(mut objects) => {
                let sent = objects.len();
                objects.retain(|object| filter.is_ours(object));
                if objects.len() < sent {
                    filter.ignored()?;
                }
                Ok(ListItem::Objects(objects))
            }
            ListItem::End(meta) => {
                if meta.shard_selector.is_empty() {
                    filter.ignored()?;
                } else {
                    filter.honoured.store(HONOURED, Ordering::Relaxed);
                }
                Ok(ListItem::End(meta))
            }
            other @ ListItem::Type(_) => Ok(other),
        }
    }
}

impl Filterable for Vec<WatchedEvent> {
    fn check(mut self, filter: &ShardFilter) -> Result<Self, Problem> {
        let sent = self.len();
        self.retain(|event| {
            matches!(event.kind, EventKind::Bookmark | EventKind::Error) || filter.is_ours(&event.object)
        });
        if self.len() < sent {
            filter.ignored()?;
        }
        Ok(self)
    }
}

struct FilteredStream<T> {
    inner: Pin<Box<dyn Stream<Item = Result<T, Problem>> + Send>>,
    filter: ShardFilter,
    failed: bool,
}

impl<T: Filterable> Stream for FilteredStream<T> {
    type Item = Result<T, Problem>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.failed {
            return Poll::Ready(None);
        }
        let next = ready!(this.inner.as_mut().poll_next(context));
        let checked = next.map(|item| item.and_then(|item| item.check(&this.filter)));
        this.failed = matches!(checked, Some(Err(_)));
        Poll::Ready(checked)
    }
}
