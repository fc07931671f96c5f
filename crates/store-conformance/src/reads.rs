//! Cases about reads: linearizable, in key order, at any former revision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use listwatch_meta::{Key, KeyRange, Revision};
use tokio::task::JoinSet;

use super::{Broken, Subject, Verdict, fault_text};
use listwatch_storage::ReadError;
use listwatch_storage::{ListPage, ListQuery, Reread};

super::case_table! {
    read_shows_every_acknowledged_write: "a read without a revision shows every write that was acknowledged before the read began",
    conditional_read_equals_a_read: "a read unless the revision is known shows what a read shows, or says that the key is at this revision",
    reads_never_go_back_in_time: "a reader never sees an older state than in its previous read",
    list_is_in_key_order_and_counts_the_rest: "a list is in key order and has at most `limit` items; `more` and `remaining` describe the rest",
    list_keys_equals_list_without_values: "a list of keys has the keys and revisions of a list, without values",
    list_excludes_keys_with_the_same_prefix: "a list of a range excludes keys of other ranges with the same prefix",
    list_at_former_revision_returns_its_state: "a list at a former revision shows exactly the state at that revision",
    pages_show_one_revision_while_others_write: "pages that are pinned to a revision show that revision, despite concurrent writes",
    list_at_future_revision_fails: "a list at a future revision fails with Future",
    list_at_compacted_revision_fails (compacts): "a list below the compacted revision fails with Compacted; a list at or above it succeeds",
    compaction_keeps_the_latest_state (compacts): "a compaction removes only history, and may be repeated",
    health_and_stats_are_answered: "health and statistics are available and correct",
}

async fn read_shows_every_acknowledged_write(subject: Subject) -> Verdict {
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let subject = subject.clone();
        writers.spawn(async move {
            let name = format!("k{writer}");
            let mut at = subject.create(&name, "0").await?;
            for round in 1..20 {
                let written = subject.update(&name, at, round.to_string()).await?;
                let found = subject.get(&name).await?.map(|found| found.modified);
                subject.require_eq("a get after a write", found, Some(written))?;
                let page = subject.list(subject.range(), None, 0).await?;
                let listed = page.items.iter().find(|item| item.key == subject.key(&name)).map(|item| item.modified);
                subject.require_eq("a list after a write", listed, Some(written))?;
                let now = subject.now().await?;
                subject.require(now >= written, || format!("the store is at {now:?} after a write at {written:?}"))?;
                at = written;
            }
            let gone = subject.delete(&name, at).await?;
            subject.require_eq("a get after a delete", subject.get(&name).await?, None)?;
            subject.require(subject.now().await? >= gone, || "a revision below a delete".into())
        });
    }
    while let Some(result) = writers.join_next().await {
        result.map_err(|e| subject.broken(e))??;
    }
    Ok(())
}

async fn conditional_read_equals_a_read(subject: Subject) -> Verdict {
    let check = async |name: &str, known: Revision| -> Verdict {
        let read = subject.store.get_unless(&subject.key(name), known).await;
        let (read, revision) = read.map_err(|error| subject.broken(format!("reading {name} fails: {error}")))?;
        let found = subject.get(name).await?;
        subject.require(found.as_ref().is_none_or(|found| found.modified <= revision), || {
            format!("a state of {found:?} at revision {revision:?}")
        })?;
        subject.require_eq("a read unless the revision is known", read, Reread::of(found, known))
    };
    let created = subject.create("a", "1").await?;
    let other = subject.create("b", "1").await?;
    for known in [created, other, Revision::ZERO] {
        check("a", known).await?;
        check("absent", known).await?;
    }
    let updated = subject.update("a", created, "2").await?;
    check("a", created).await?;
    check("a", updated).await?;
    let gone = subject.delete("a", updated).await?;
    check("a", updated).await?;
    check("a", gone).await?;
    let again = subject.create("a", "3").await?;
    check("a", updated).await?;
    check("a", again).await
}

async fn reads_never_go_back_in_time(subject: Subject) -> Verdict {
    let first = subject.create("a", "").await?;
    let written = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for _ in 0..3 {
        let (subject, written) = (subject.clone(), written.clone());
        readers.spawn(async move {
            let mut seen = (first, Revision::ZERO);
            while !written.load(Ordering::Relaxed) {
                let (found, revision) = subject.store.get(&subject.key("a")).await.map_err(|e| subject.broken(e))?;
                let Some(found) = found else { break };
                subject.require(found.modified >= seen.0 && revision >= seen.1, || {
                    format!("{:?} at {revision:?} after {:?} at {:?}", found.modified, seen.0, seen.1)
                })?;
                subject.require(revision >= found.modified, || {
                    format!("a state of {:?} at revision {revision:?}", found.modified)
                })?;
                seen = (found.modified, revision);
                tokio::task::yield_now().await;
            }
            Ok::<_, Broken>(())
        });
    }
    let mut at = first;
    for round in 0..100 {
        at = subject.update("a", at, round.to_string()).await?;
        tokio::task::yield_now().await;
    }
    subject.delete("a", at).await?;
    written.store(true, Ordering::Relaxed);
    while let Some(result) = readers.join_next().await {
        result.map_err(|e| subject.broken(e))??;
    }
    Ok(())
}

async fn list_is_in_key_order_and_counts_the_rest(subject: Subject) -> Verdict {
    let names = ["m", "a", "z", "b-1", "b", "b.1", "b0", "B"];
    for name in names {
        subject.create(name, name).await?;
    }
    let mut sorted: Vec<_> = names.iter().map(|name| subject.key(name)).collect();
    sorted.sort();
    let keys = |page: &ListPage| page.items.iter().map(|item| item.key.clone()).collect::<Vec<Key>>();
    for limit in 0..=sorted.len() + 1 {
        let page = subject.list(subject.range(), None, limit).await?;
        let expected = if limit == 0 { sorted.len() } else { limit.min(sorted.len()) };
        subject.require_eq("the keys", keys(&page), sorted[..expected].to_vec())?;
        subject.require_eq("`more`", page.more, expected < sorted.len())?;
        let remaining = (sorted.len() - expected) as u64;
        subject.require(page.remaining.is_none_or(|said| said == remaining), || {
            format!("remaining is {:?}, and {remaining} follow", page.remaining)
        })?;
        subject.require(page.items.iter().all(|item| item.value == item.key.name().as_bytes()), || {
            format!("{:?} holds values of others", page.items)
        })?;
    }
    for start in 0..sorted.len() {
        let page = subject.list(subject.range().starting_at(sorted[start].as_str()), None, 2).await?;
        let end = (start + 2).min(sorted.len());
        subject.require_eq("a page from the middle", keys(&page), sorted[start..end].to_vec())?;
    }
    let past_the_end = subject.range().starting_at(subject.range().end());
    subject.require(subject.list(past_the_end, None, 0).await?.items.is_empty(), || "keys past the end".into())
}

async fn list_keys_equals_list_without_values(subject: Subject) -> Verdict {
    let mut revisions = vec![subject.now().await?];
    for name in ["c", "a", "d", "b"] {
        revisions.push(subject.create(name, name).await?);
    }
    let updated = subject.update("a", revisions[2], "again").await?;
    revisions.extend([updated, subject.delete("c", revisions[1]).await?]);
    for at in revisions.into_iter().map(Some).chain([None]) {
        for limit in 0..4 {
            let mut expected = subject.list(subject.range(), at, limit).await?;
            expected.items.iter_mut().for_each(|item| item.value.clear());
            let keys = subject.store.list_keys(ListQuery { range: subject.range(), at, limit }).await;
            let keys = keys.map_err(|error| subject.broken(format!("listing keys at {at:?} fails: {error}")))?;
            subject.require_eq("a list of keys", (keys.items, keys.more), (expected.items, expected.more))?;
            if at.is_some() {
                subject.require_eq("its revision", keys.revision, expected.revision)?;
            }
        }
    }
    Ok(())
}

async fn list_excludes_keys_with_the_same_prefix(subject: Subject) -> Verdict {
    let resource = subject.resource.clone();
    let near = [format!("{resource}-x"), format!("{resource}0"), format!("{resource}.x"), format!("{resource}s")];
    for resource in near.iter().map(String::as_str).chain([&*resource]) {
        for namespace in ["a", "ab", "a-b", "a0"] {
            let key = Key::new(resource, Some(namespace), "x").map_err(|e| subject.broken(e))?;
            subject.store.create(&key, "".into(), None).await.map_err(|e| subject.broken(e))?;
        }
    }
    let own = |range: KeyRange| {
        let subject = subject.clone();
        async move {
            let page = subject.list(range, None, 0).await?;
            Ok::<_, Broken>(page.items.into_iter().map(|item| item.key.as_str().to_owned()).collect::<Vec<_>>())
        }
    };
    let all = ["a-b", "a", "a0", "ab"].map(|namespace| format!("/{resource}/{namespace}/x")).to_vec();
    subject.require_eq("the resource", own(subject.range()).await?, all)?;
    let one = vec![format!("/{resource}/a/x")];
    subject.require_eq("the namespace", own(KeyRange::namespace(&resource, "a")).await?, one.clone())?;
    let key = Key::new(&resource, Some("a"), "x").map_err(|e| subject.broken(e))?;
    subject.require_eq("the single key", own(KeyRange::single(&key)).await?, one)
}

/// Writes to a few keys in a scattered order, and returns the state after each write.
async fn history(subject: &Subject, writes: usize) -> Result<Vec<(Revision, BTreeMap<Key, Revision>)>, Broken> {
    let mut state: BTreeMap<Key, Revision> = BTreeMap::new();
    let mut states = Vec::new();
    for n in 0..writes {
        let name = format!("k{}", n * 7 % 11);
        let key = subject.key(&name);
        let revision = match state.get(&key).copied() {
            None => subject.create(&name, n.to_string()).await?,
            Some(at) if n % 3 == 0 => {
                state.remove(&key);
                states.push((subject.delete(&name, at).await?, state.clone()));
                continue;
            }
            Some(at) => subject.update(&name, at, n.to_string()).await?,
        };
        state.insert(key, revision);
        states.push((revision, state.clone()));
    }
    Ok(states)
}

fn revisions(page: &ListPage) -> BTreeMap<Key, Revision> {
    page.items.iter().map(|item| (item.key.clone(), item.modified)).collect()
}

async fn list_at_former_revision_returns_its_state(subject: Subject) -> Verdict {
    let before = subject.now().await?;
    let states = history(&subject, 60).await?;
    let page = subject.list(subject.range(), Some(before), 0).await?;
    subject.require(page.items.is_empty(), || format!("{page:?} before the first write"))?;
    for (revision, state) in &states {
        let page = subject.list(subject.range(), Some(*revision), 0).await?;
        subject.require_eq("the page's revision", page.revision, *revision)?;
        subject.require_eq(&format!("the state at {revision:?}"), revisions(&page), state.clone())?;
        let first = subject.list(subject.range(), Some(*revision), 2).await?;
        let remaining = state.len().saturating_sub(2) as u64;
        subject
            .require(first.remaining.is_none_or(|said| said == remaining) && first.more == (remaining > 0), || {
                format!("{:?} remain at {revision:?}, more is {}; {remaining} do", first.remaining, first.more)
            })?;
    }
    let zero = subject.list(subject.range(), Some(Revision::ZERO), 0).await?;
    subject.require(Some(&revisions(&zero)) == states.last().map(|(_, state)| state), || {
        format!("a list at zero is not the latest: {zero:?}")
    })
}

async fn pages_show_one_revision_while_others_write(subject: Subject) -> Verdict {
    for n in 0..50 {
        subject.create(&format!("k{n:02}"), "before").await?;
    }
    let first = subject.list(subject.range(), None, 7).await?;
    let pinned = first.revision;
    let writer = subject.clone();
    let writing = tokio::spawn(async move {
        // From the end, where the pages are still to be read.
        for n in (0..50).rev() {
            let name = format!("k{n:02}");
            let at = writer.get(&name).await?.map(|found| found.modified).unwrap_or_default();
            match n % 3 {
                0 => writer.delete(&name, at).await?,
                1 => writer.update(&name, at, "after").await?,
                _ => writer.create(&format!("{name}x"), "after").await?,
            };
            tokio::task::yield_now().await;
        }
        Ok::<_, Broken>(())
    });
    let mut items = first.items;
    let mut more = first.more;
    while more && items.len() < 50 {
        let last = items.last().map(|item| format!("{}\0", item.key)).unwrap_or_default();
        let page = subject.list(subject.range().starting_at(&last), Some(pinned), 7).await?;
        subject.require_eq("a page's revision", page.revision, pinned)?;
        let left = 50_usize.saturating_sub(items.len() + page.items.len());
        subject.require(page.remaining.is_none_or(|said| said == left as u64), || {
            format!("{:?} remain, {left} do", page.remaining)
        })?;
        more = page.more;
        items.extend(page.items);
        tokio::task::yield_now().await;
    }
    writing.await.map_err(|e| subject.broken(e))??;
    subject.require_eq("the number of items and `more` behind them", (items.len(), more), (50, false))?;
    let old = items.iter().all(|item| item.value == "before" && item.modified <= pinned);
    subject.require(old && items.is_sorted_by_key(|item| item.key.clone()), || format!("{items:?}"))
}

async fn list_at_future_revision_fails(subject: Subject) -> Verdict {
    let now = subject.create("a", "").await?;
    let at = Some(Revision::new(now.get() + 1_000_000));
    match subject.store.list(ListQuery { range: subject.range(), at, limit: 0 }).await {
        Err(ReadError::Future { current, .. }) => {
            subject.require(current >= now, || format!("it says that the store is at {current:?}, it was at {now:?}"))
        }
        other => Err(subject.broken(format!("{other:?}"))),
    }
}

async fn list_at_compacted_revision_fails(subject: Subject) -> Verdict {
    let states = history(&subject, 40).await?;
    let (compacted, _) = states[25];
    subject.store.compact(compacted).await.map_err(|e| subject.broken(e))?;
    for (revision, state) in &states {
        let page = subject.store.list(ListQuery { range: subject.range(), at: Some(*revision), limit: 0 }).await;
        match page {
            Err(ReadError::Compacted { requested, oldest }) => {
                subject
                    .require(*revision < compacted, || format!("{revision:?} is refused, compacted {compacted:?}"))?;
                subject.require_eq("the refused revision", requested, *revision)?;
                subject.require(oldest.is_none_or(|oldest| oldest > *revision), || format!("oldest is {oldest:?}"))?;
            }
            Ok(page) => {
                subject
                    .require(*revision >= compacted, || format!("{revision:?} is read, compacted to {compacted:?}"))?;
                subject.require_eq(&format!("the state at {revision:?}"), revisions(&page), state.clone())?;
            }
            Err(other) => return Err(subject.broken(other)),
        }
    }
    Ok(())
}

async fn compaction_keeps_the_latest_state(subject: Subject) -> Verdict {
    let states = history(&subject, 40).await?;
    let now = subject.now().await?;
    for at in [states[10].0, states[30].0, states[30].0, states[10].0, now, now] {
        subject.store.compact(at).await.map_err(|e| subject.broken(format!("compacting to {at:?} fails: {e}")))?;
        let page = subject.list(subject.range(), None, 0).await?;
        subject.require(Some(&revisions(&page)) == states.last().map(|(_, state)| state), || {
            format!("{page:?} after compacting to {at:?}")
        })?;
    }
    let future = Revision::new(subject.now().await?.get() + 1_000_000);
    let refused = subject.store.compact(future).await;
    subject.require(matches!(refused, Err(ReadError::Future { .. })), || {
        format!("compacting a future revision comes to {refused:?}")
    })?;
    subject.create("after", "").await?;
    Ok(())
}

async fn health_and_stats_are_answered(subject: Subject) -> Verdict {
    subject.store.health().await.map_err(|fault| subject.broken(fault_text(&fault)))?;
    let written = subject.create("a", "").await?;
    let stats = subject.store.stats().await.map_err(|fault| subject.broken(fault_text(&fault)))?;
    subject.require(stats.revision >= written, || format!("statistics at {:?} after {written:?}", stats.revision))?;
    subject.require(stats.oldest <= stats.revision, || format!("{stats:?}"))?;
    subject.require(stats.keys.is_none_or(|keys| keys >= 1) && !stats.description.is_empty(), || format!("{stats:?}"))
}
