//! One shard of a collection: [`ShardListWatch`].
//!
//! A server that supports `shardSelector` sends only the objects of the shard. Every kube-apiserver
//! without the feature gate `ShardedListAndWatch` ignores the parameter and sends all objects. A
//! client that trusted such a server would process the objects of the other replicas. This type
//! therefore checks the shard of every object, which costs one hash of the uid.
//! [`ShardListWatch::is_honored`] returns whether the server filters.

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
pub enum ShardFallback {
    /// Objects of other shards are dropped by the client. The result is correct, but the server
    /// sends every object to every replica.
    #[default]
    FilterLocally,
    /// The list or watch fails with [`Problem::Misconfigured`].
    Refuse,
}

/// Lists and watches one shard of another [`ListWatch`].
#[derive(Clone, Debug)]
pub struct ShardListWatch<L> {
    list_watch: L,
    selector: Arc<ShardSelector>,
    fallback: ShardFallback,
    honored: Arc<AtomicU8>,
}

const UNKNOWN: u8 = 0;
const HONORED: u8 = 1;
const IGNORED: u8 = 2;

impl<L> ShardListWatch<L> {
    /// The shards of this selector. [`ShardSelector::part`] returns the selector of one of several
    /// equal shards.
    pub fn new(list_watch: L, selector: ShardSelector) -> Self {
        ShardListWatch {
            list_watch,
            selector: Arc::new(selector),
            fallback: ShardFallback::default(),
            honored: Arc::new(AtomicU8::new(UNKNOWN)),
        }
    }

    /// Sets the reaction to a server that ignores the selector.
    #[must_use]
    pub fn fallback(mut self, fallback: ShardFallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// Whether the server sends only the shard. `None` until a list names its shards or an object
    /// of another shard arrives.
    pub fn is_honored(&self) -> Option<bool> {
        match self.honored.load(Ordering::Relaxed) {
            HONORED => Some(true),
            IGNORED => Some(false),
            _ => None,
        }
    }

    fn filter(&self) -> ShardFilter {
        ShardFilter { selector: self.selector.clone(), fallback: self.fallback, honored: self.honored.clone() }
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
    fallback: ShardFallback,
    honored: Arc<AtomicU8>,
}

impl ShardFilter {
    fn is_ours(&self, object: &RawObject) -> bool {
        let metadata = object.metadata();
        // The reflector skips objects without an identity.
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
        self.honored.store(IGNORED, Ordering::Relaxed);
        match self.fallback {
            ShardFallback::FilterLocally => Ok(()),
            ShardFallback::Refuse => Err(Problem::misconfigured(
                "the server ignores shardSelector; open its feature gate ShardedListAndWatch",
            )),
        }
    }
}

/// An item that the filter can check: list items, or watch events.
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
                    filter.honored.store(HONORED, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::{StreamExt as _, stream};
    use listwatch_wire::ListMeta;

    use super::*;

    /// A server that ignores the selector and sends the objects of these uids.
    struct UnshardedServer(Vec<String>);

    fn object(uid: &str) -> RawObject {
        let json = format!(r#"{{"metadata":{{"name":"x{uid}","uid":"{uid}","resourceVersion":"1"}}}}"#);
        RawObject::new(Bytes::from(json)).unwrap()
    }

    #[async_trait]
    impl ListWatch for UnshardedServer {
        async fn list(&self, _: ListOptions) -> Result<ListStream, Problem> {
            let objects = self.0.iter().map(|uid| object(uid)).collect();
            let items = [Ok(ListItem::Objects(objects)), Ok(ListItem::End(ListMeta::default()))];
            Ok(stream::iter(items).boxed())
        }

        async fn watch(&self, _: ListOptions) -> Result<WatchStream, Problem> {
            let mut events: Vec<_> =
                self.0.iter().map(|uid| WatchedEvent { kind: EventKind::Added, object: object(uid) }).collect();
            let bookmark = RawObject::new(Bytes::from_static(b"{}")).unwrap();
            events.push(WatchedEvent { kind: EventKind::Bookmark, object: bookmark });
            Ok(stream::iter([Ok(events)]).boxed())
        }
    }

    /// Reads the first item of a list and of a watch from a server with objects of this shard and, if `foreign`, of
    /// another one.
    async fn check(foreign: bool, fallback: ShardFallback, kept: Option<usize>, honored: Option<bool>) {
        let selector = ShardSelector::part(ShardField::Uid, 0, 2).unwrap();
        let (own, others): (Vec<_>, Vec<_>) = (0..20).map(|uid| uid.to_string()).partition(|uid| selector.holds(uid));
        let sent = if foreign { [&own[..2], &others[..3]].concat() } else { own[..2].to_vec() };
        let shard = || ShardListWatch::new(UnshardedServer(sent.clone()), selector.clone()).fallback(fallback);
        let listed = shard();
        let first = listed.list(ListOptions::default()).await.unwrap().next().await.unwrap();
        let first = first.map(|item| match item {
            ListItem::Objects(objects) => objects.len(),
            _ => panic!("the objects come first"),
        });
        assert_eq!(first.ok(), kept, "list: {foreign} {fallback:?}");
        assert_eq!(listed.is_honored(), honored, "list: {foreign} {fallback:?}");
        let watched = shard();
        let mut events = watched.watch(ListOptions::default()).await.unwrap();
        let first = events.next().await.unwrap();
        // Bookmarks belong to every shard.
        assert_eq!(first.map(|events| events.len()).ok(), kept.map(|kept| kept + 1), "watch: {foreign} {fallback:?}");
        assert_eq!(watched.is_honored(), honored, "watch: {foreign} {fallback:?}");
        assert!(events.next().await.is_none());
    }

    #[tokio::test]
    async fn foreign_shard_object_is_dropped_or_refused_and_marks_the_selector_as_not_honored() {
        check(true, ShardFallback::FilterLocally, Some(2), Some(false)).await;
        check(true, ShardFallback::Refuse, None, Some(false)).await;
        check(false, ShardFallback::FilterLocally, Some(2), None).await;
        check(false, ShardFallback::Refuse, Some(2), None).await;
    }
}
