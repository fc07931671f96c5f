//! Cases about watches: ordered, unique, complete, resumable or expired, with reliable progress.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Broken, PATIENCE, Subject, Verdict, previous, value};
use listwatch_storage::{StoreEvent, VALUE_BYTES_MAX, WatchItem};

super::case_table! {
    watch_from_any_revision_misses_nothing: "a watch from any revision delivers every later change of its range once, in order, with the previous state",
    watch_from_the_beginning_sees_everything_or_expires: "a watch from revision zero delivers every change since the first revision, or expires",
    watch_delivers_changes_as_they_happen: "a running watch delivers each change without a request",
    watch_excludes_keys_with_the_same_prefix: "a watch of a range excludes keys of other ranges with the same prefix",
    watch_begins_after_the_requested_revision: "a watch from the current or a future revision delivers no change at or below that revision",
    all_watchers_see_the_same_order: "all watchers see the writes of all writers in the order of the revisions",
    list_then_watch_misses_nothing: "a list and a watch from its revision together show every state, despite concurrent writes",
    slow_watcher_misses_nothing_or_expires: "a watcher that reads slowly receives every change, or receives Expired",
    watch_from_compacted_revision_expires (compacts): "a watch from a compacted revision receives Expired and ends",
    current_watch_survives_compaction (compacts): "a compaction does not end a watch that has received every change",
    progress_is_never_ahead_of_events: "after progress at a revision, no change at or below that revision follows",
    progress_covers_every_acknowledged_write: "progress that is requested after an acknowledged write arrives after the event of the write, at or above its revision",
    progress_never_exceeds_the_stores_revision: "the progress of a watch from a future revision never exceeds the store's revision",
    changes_of_one_revision_are_ready_together: "between the first and the last change of one revision, the watch is never pending",
    watch_delivers_large_values: "a watch delivers large values and large previous values",
}

/// Creates, updates and deletes keys. Returns the events that a watch must show, in order.
async fn history(subject: &Subject, writes: usize) -> Result<Vec<Expected>, Broken> {
    let mut live: BTreeMap<String, (Revision, Bytes)> = BTreeMap::new();
    let mut expected = Vec::new();
    for n in 0..writes {
        let name = format!("k{}", n * 5 % 7);
        let text = Bytes::from(n.to_string());
        let before = live.get(&name).cloned();
        let (revision, after) = match &before {
            None => (subject.create(&name, text.clone()).await?, Some(text)),
            Some((at, _)) if n % 4 == 0 => (subject.delete(&name, *at).await?, None),
            Some((at, _)) => (subject.update(&name, *at, text.clone()).await?, Some(text)),
        };
        match &after {
            Some(text) => live.insert(name.clone(), (revision, text.clone())),
            None => live.remove(&name),
        };
        expected.push(Expected { key: subject.key(&name), revision, before: before.map(|(_, text)| text), after });
    }
    Ok(expected)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Expected {
    key: Key,
    revision: Revision,
    before: Option<Bytes>,
    after: Option<Bytes>,
}

impl From<&StoreEvent> for Expected {
    fn from(event: &StoreEvent) -> Self {
        Expected {
            key: event.key().clone(),
            revision: event.revision(),
            before: previous(event).map(|state| state.value.clone()),
            after: value(event).cloned(),
        }
    }
}

async fn watch_from_any_revision_misses_nothing(subject: Subject) -> Verdict {
    let before = subject.now().await?;
    let expected = history(&subject, 40).await?;
    let starts = [before].into_iter().chain(expected.iter().map(|event| event.revision));
    for (skip, after) in starts.enumerate() {
        let mut watch = subject.watch(subject.range(), after).await?;
        let seen = watch.events(expected.len() - skip).await?;
        let seen: Vec<Expected> = seen.iter().map(Expected::from).collect();
        subject.require_eq(&format!("the watch after {after:?}"), seen, expected[skip..].to_vec())?;
        watch.quiet().await?;
    }
    Ok(())
}

async fn watch_from_the_beginning_sees_everything_or_expires(subject: Subject) -> Verdict {
    // Once on a store without writes (if it is one), and once after writes.
    for name in ["first", "second"] {
        let mut watch = subject.watch(subject.range(), Revision::ZERO).await?;
        let written = subject.create(name, "").await?;
        loop {
            match watch.item().await? {
                WatchItem::Event(event) if event.revision() == written => break,
                WatchItem::Event(event) => {
                    subject.require(event.revision() < written, || format!("{event:?} before {written:?}"))?;
                }
                WatchItem::Progress(_) => {}
                WatchItem::Expired { .. } => return Ok(()),
                lost @ WatchItem::Lost(_) => return Err(subject.broken(format!("{lost:?}"))),
            }
        }
        watch.quiet().await?;
    }
    Ok(())
}

async fn watch_delivers_changes_as_they_happen(subject: Subject) -> Verdict {
    let mut watch = subject.watch(subject.range(), subject.now().await?).await?;
    let mut at = subject.create("a", "0").await?;
    for n in 1..20 {
        subject.require_eq("the event", watch.event().await?.revision(), at)?;
        at = subject.update("a", at, n.to_string()).await?;
    }
    subject.require_eq("the event", watch.event().await?.revision(), at)?;
    let deleted = subject.delete("a", at).await?;
    let event = watch.event().await?;
    subject.require(matches!(&event, StoreEvent::Delete { revision, .. } if *revision == deleted), || {
        format!("{event:?} for a delete at {deleted:?}")
    })?;
    subject.require_eq("the last state", previous(&event).map(|state| state.modified), Some(at))
}

async fn watch_excludes_keys_with_the_same_prefix(subject: Subject) -> Verdict {
    let resource = subject.resource.clone();
    let key = |resource: &str, namespace: &str, name: &str| {
        Key::new(resource, Some(namespace), name).map_err(|e| subject.broken(e))
    };
    let start = subject.now().await?;
    let mine = key(&resource, "a", "x")?;
    let mut watches = [
        subject.watch(KeyRange::single(&mine), start).await?,
        subject.watch(KeyRange::namespace(&resource, "a"), start).await?,
        subject.watch(subject.range(), start).await?,
    ];
    // Pairs of a key and the number of watches that see it.
    let keys = [
        (key(&format!("{resource}-x"), "a", "x")?, 0),
        (key(&format!("{resource}0"), "a", "x")?, 0),
        (key(&format!("{resource}s"), "a", "x")?, 0),
        (key(&resource, "ab", "x")?, 1),
        (key(&resource, "a0", "x")?, 1),
        (key(&resource, "a", "xx")?, 2),
        (key(&resource, "a", "w")?, 2),
        (mine, 3),
    ];
    for (key, concerned) in &keys {
        let written = subject.store.create(key, "".into(), None).await.map_err(|e| subject.broken(e))?;
        for watch in watches.iter_mut().rev().take(*concerned) {
            subject.require_eq("the event", watch.event().await?.revision(), written)?;
        }
    }
    for watch in &mut watches {
        watch.quiet().await?;
    }
    Ok(())
}

async fn watch_begins_after_the_requested_revision(subject: Subject) -> Verdict {
    let now = subject.create("a", "0").await?;
    let mut present = subject.watch(subject.range(), now).await?;
    let mut future = subject.watch(subject.range(), now.next()).await?;
    let second = subject.update("a", now, "1").await?;
    let third = subject.update("a", second, "2").await?;
    let fourth = subject.update("a", third, "3").await?;
    for revision in [second, third, fourth] {
        subject.require_eq("an event of the watch from the present", present.event().await?.revision(), revision)?;
    }
    // Others may have used the revision after `now`, so only later ones are checked.
    for revision in [second, third, fourth].into_iter().filter(|revision| *revision > now.next()) {
        subject.require_eq("an event of the watch from the future", future.event().await?.revision(), revision)?;
    }
    Ok(())
}

async fn all_watchers_see_the_same_order(subject: Subject) -> Verdict {
    const WRITERS: usize = 6;
    const WRITES: usize = 30;
    let start = subject.now().await?;
    let mut watchers = JoinSet::new();
    for _ in 0..4 {
        let mut watch = subject.watch(subject.range(), start).await?;
        watchers.spawn(async move { watch.events(WRITERS * WRITES).await });
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let subject = subject.clone();
        writers.spawn(async move {
            let name = format!("k{writer}");
            let mut written = vec![(subject.create(&name, "").await?, subject.key(&name))];
            for n in 1..WRITES {
                let at = written[n - 1].0;
                written.push((subject.update(&name, at, n.to_string()).await?, subject.key(&name)));
            }
            Ok::<_, Broken>(written)
        });
    }
    let mut written = BTreeMap::new();
    while let Some(result) = writers.join_next().await {
        for (revision, key) in result.map_err(|e| subject.broken(e))?? {
            let twice = written.insert(revision, key);
            subject.require(twice.is_none(), || format!("{revision:?} was given out twice"))?;
        }
    }
    let order: Vec<(Revision, Key)> = written.into_iter().collect();
    while let Some(result) = watchers.join_next().await {
        let events = result.map_err(|e| subject.broken(e))??;
        let seen: Vec<_> = events.iter().map(|event| (event.revision(), event.key().clone())).collect();
        subject.require(seen == order, || format!("{seen:?}, the writes were {order:?}"))?;
    }
    Ok(())
}

async fn list_then_watch_misses_nothing(subject: Subject) -> Verdict {
    let mut writers = JoinSet::new();
    for writer in 0..3 {
        let subject = subject.clone();
        writers.spawn(async move {
            for n in 0..60 {
                let name = format!("w{writer}-{}", n % 4);
                match subject.get(&name).await? {
                    None => subject.create(&name, n.to_string()).await?,
                    Some(found) if n % 5 == 0 => subject.delete(&name, found.modified).await?,
                    Some(found) => subject.update(&name, found.modified, n.to_string()).await?,
                };
                tokio::task::yield_now().await;
            }
            Ok::<_, Broken>(())
        });
    }
    let mut readers = Vec::new();
    for _ in 0..5 {
        let page = subject.list(subject.range(), None, 0).await?;
        let watch = subject.watch(subject.range(), page.revision).await?;
        let copy: BTreeMap<Key, Revision> = page.items.into_iter().map(|item| (item.key, item.modified)).collect();
        readers.push((copy, watch, page.revision));
        tokio::task::yield_now().await;
    }
    while let Some(result) = writers.join_next().await {
        result.map_err(|e| subject.broken(e))??;
    }
    let end = subject.create("end", "").await?;
    let page = subject.list(subject.range(), None, 0).await?;
    let truth: BTreeMap<Key, Revision> = page.items.into_iter().map(|item| (item.key, item.modified)).collect();
    for (mut copy, mut watch, listed) in readers {
        loop {
            let event = watch.event().await?;
            subject.require(event.revision() > listed, || {
                format!("an event at {:?} after a list at {listed:?}", event.revision())
            })?;
            let known = copy.get(event.key()).copied();
            subject.require_eq("the state before", previous(&event).map(|state| state.modified), known)?;
            match &event {
                StoreEvent::Put { current, .. } => copy.insert(current.key.clone(), current.modified),
                StoreEvent::Delete { key, .. } => copy.remove(key),
            };
            if event.revision() == end {
                break;
            }
        }
        subject.require(copy == truth, || format!("the copy is {copy:?}, the store holds {truth:?}"))?;
    }
    Ok(())
}

async fn slow_watcher_misses_nothing_or_expires(subject: Subject) -> Verdict {
    let mut at = subject.create("a", "").await?;
    let mut watch = subject.watch(subject.range(), at).await?;
    let mut written = Vec::new();
    for n in 0..2000_u32 {
        at = subject.update("a", at, n.to_string()).await?;
        written.push(at);
    }
    for expected in written {
        match watch.item().await? {
            WatchItem::Event(event) => subject.require_eq("the next event", event.revision(), expected)?,
            WatchItem::Progress(revision) => {
                subject.require(revision < expected, || format!("progress at {revision:?} before {expected:?}"))?;
            }
            WatchItem::Expired { .. } | WatchItem::Lost(_) => return Ok(()),
        }
    }
    Ok(())
}

async fn watch_from_compacted_revision_expires(subject: Subject) -> Verdict {
    let expected = history(&subject, 30).await?;
    let now = subject.now().await?;
    subject.store.compact(now).await.map_err(|e| subject.broken(e))?;
    subject.watch(subject.range(), Revision::ZERO).await?.expired().await?;
    for event in &expected {
        // The revision just before the compacted one may still be held, because the next change is.
        if event.revision < now.previous() {
            subject.watch(subject.range(), event.revision).await?.expired().await?;
        }
    }
    let mut watch = subject.watch(subject.range(), now).await?;
    let after = subject.create("after", "").await?;
    subject.require_eq("the event after the compaction", watch.event().await?.revision(), after)
}

async fn current_watch_survives_compaction(subject: Subject) -> Verdict {
    let mut at = subject.create("a", "").await?;
    let mut watch = subject.watch(subject.range(), at.previous()).await?;
    let mut quiet = subject.watch(KeyRange::single(&subject.key("quiet")), at).await?;
    subject.require_eq("the event", watch.event().await?.revision(), at)?;
    for n in 0..10 {
        at = subject.update("a", at, n.to_string()).await?;
        subject.require_eq("the event", watch.event().await?.revision(), at)?;
        subject.store.compact(at).await.map_err(|e| subject.broken(e))?;
    }
    let woken = subject.create("quiet", "").await?;
    subject.require_eq("the event of a quiet range", quiet.event().await?.revision(), woken)
}

async fn progress_is_never_ahead_of_events(subject: Subject) -> Verdict {
    if !subject.store.capabilities().progress_requests {
        return Ok(());
    }
    const WRITERS: usize = 4;
    const WRITES: usize = 50;
    let mut watch = subject.watch(subject.range(), subject.now().await?).await?;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let subject = subject.clone();
        writers.spawn(async move {
            let name = format!("k{writer}");
            let mut at = subject.create(&name, "").await?;
            for n in 1..WRITES {
                at = subject.update(&name, at, n.to_string()).await?;
                tokio::task::yield_now().await;
            }
            Ok::<_, Broken>(())
        });
    }
    // `item` checks that no event comes at or below the reported progress.
    let mut events = 0;
    while !writers.is_empty() {
        let now = subject.now().await?;
        events += watch.progress_to(now).await?.len();
        while let Some(result) = writers.try_join_next() {
            result.map_err(|e| subject.broken(e))??;
        }
        tokio::task::yield_now().await;
    }
    let now = subject.now().await?;
    events += watch.progress_to(now).await?.len();
    subject.require_eq("the number of events behind which progress came", events, WRITERS * WRITES)
}

async fn progress_covers_every_acknowledged_write(subject: Subject) -> Verdict {
    if !subject.store.capabilities().progress_requests {
        return Ok(());
    }
    let mut watch = subject.watch(subject.range(), subject.now().await?).await?;
    let mut elsewhere = subject.watch(KeyRange::single(&subject.key("never")), subject.now().await?).await?;
    for round in 0..10 {
        let written = subject.create(&format!("k{round}"), "").await?;
        let events = watch.progress_to(written).await?;
        let seen = events.iter().any(|event| event.revision() == written);
        subject.require(seen, || format!("progress covers {written:?}, whose event did not come"))?;
        elsewhere.quiet().await?;
    }
    Ok(())
}

/// A watch may begin at a revision that the store has not reached. Such a watch stays silent, and its revision does
/// not become the progress of any watch.
async fn progress_never_exceeds_the_stores_revision(subject: Subject) -> Verdict {
    /// Time to wait for progress. A store that has not reached the revision may stay silent instead.
    const SILENCE: Duration = Duration::from_millis(300);
    let future = Revision::new(subject.now().await?.get() + 1_000_000);
    let mut watch = subject.watch(subject.range(), future).await?;
    for round in 0..3 {
        watch.watch.request_progress();
        if let Ok(item) = timeout(SILENCE, watch.watch.next()).await {
            let now = subject.now().await?;
            let reached = matches!(item, Some(WatchItem::Progress(revision)) if revision <= now);
            subject.require(reached, || format!("{item:?} on a watch from {future:?} of a store at {now:?}"))?;
        }
        // Other watches must not report that revision either.
        let written = subject.create(&format!("k{round}"), "").await?;
        subject.require(written < future, || format!("a write at {written:?}, beyond what a watcher named"))?;
    }
    Ok(())
}

/// Clients of [`Storage`](listwatch_storage::Storage) cannot write several keys at one revision. Only keys that expire
/// together can share a revision, and not in every store. Where they do not, each change has its own revision.
async fn changes_of_one_revision_are_ready_together(subject: Subject) -> Verdict {
    const KEYS: usize = 24;
    const TTL: Duration = Duration::from_secs(2);
    let mut watch = subject.watch(subject.range(), subject.now().await?).await?.watch;
    let ttl = Some(TTL);
    for n in 0..KEYS {
        let created = subject.store.create(&subject.key(&format!("k{n}")), "".into(), ttl).await;
        created.map_err(|error| subject.broken(format!("creating fails: {error}")))?;
    }
    let (mut removed, mut last) = (0, Revision::ZERO);
    while removed < KEYS {
        let mut pended = false;
        let next = std::future::poll_fn(|cx| {
            let next = Pin::new(&mut watch).poll_next(cx);
            pended |= next.is_pending();
            next
        });
        match tokio::time::timeout(PATIENCE, next).await {
            Ok(Some(WatchItem::Event(event))) => {
                let at = event.revision();
                subject.require(at >= last, || format!("an event at {at:?} after {last:?}"))?;
                subject.require(at > last || !pended, || {
                    format!("the watch was pending between two changes of revision {at:?}")
                })?;
                removed += usize::from(matches!(event, StoreEvent::Delete { .. }));
                last = at;
            }
            Ok(Some(WatchItem::Progress(_))) => {}
            Ok(other) => return Err(subject.broken(format!("{other:?} instead of an event"))),
            Err(_) => return Err(subject.broken(format!("{removed} of {KEYS} keys were removed within {PATIENCE:?}"))),
        }
    }
    Ok(())
}

async fn watch_delivers_large_values(subject: Subject) -> Verdict {
    let large = |byte: u8| Bytes::from(vec![byte; VALUE_BYTES_MAX - 8 * 1024]);
    let start = subject.now().await?;
    let created = subject.create("a", large(1)).await?;
    let updated = subject.update("a", created, large(2)).await?;
    subject.delete("a", updated).await?;
    let mut watch = subject.watch(subject.range(), start).await?;
    for (before, after) in [(None, Some(1)), (Some(1), Some(2)), (Some(2), None)] {
        let event = watch.event().await?;
        let kept = value(&event) == after.map(large).as_ref()
            && previous(&event).map(|state| &state.value) == before.map(large).as_ref();
        subject.require(kept, || format!("the event at {:?} holds other values", event.revision()))?;
    }
    Ok(())
}
