//! Cases about writes: one order of revisions, optimistic, atomic.

use std::time::Duration;

use bytes::Bytes;
use listwatch_meta::{Key, Revision};
use tokio::task::JoinSet;

use super::{Subject, Verdict};
use listwatch_storage::{CreateError, DeleteError, UpdateError};
use listwatch_storage::{KeyValue, VALUE_BYTES_MAX};

super::case_table! {
    each_write_takes_a_later_revision: "every successful write takes a later revision than all writes that were acknowledged before it",
    empty_store_has_a_revision_above_zero: "the revision of a store is above zero even before the first write",
    create_of_existing_key_fails: "a create of an existing key fails with AlreadyExists and the current state",
    update_at_another_revision_fails: "an update at another revision than the expected one fails with Conflict and the current state",
    delete_at_another_revision_fails: "a delete at another revision than the expected one fails with Conflict and the current state",
    failed_write_changes_nothing: "a failed write changes nothing and causes no event",
    recreated_key_has_new_revisions: "a key that was deleted and created again has the revision of its second creation in `created`",
    exactly_one_of_many_writers_succeeds: "of many updates that expect the same revision, exactly one succeeds; the others receive a later state",
    exactly_one_of_many_creators_succeeds: "of many creates of one key, exactly one succeeds",
    value_of_any_bytes_is_stored_unchanged: "a value of any bytes, even empty or large, is read as it was written",
    any_valid_key_is_stored: "a valid key of any length and text is stored",
    dropped_write_is_atomic: "a write whose future is dropped takes effect completely or not at all, and the store continues",
}

async fn each_write_takes_a_later_revision(subject: Subject) -> Verdict {
    let mut last = subject.now().await?;
    for round in 0..5 {
        let name = format!("k{round}");
        let created = subject.create(&name, "a").await?;
        let updated = subject.update(&name, created, "b").await?;
        let deleted = subject.delete(&name, updated).await?;
        for revision in [created, updated, deleted] {
            subject.require(revision > last, || format!("{revision:?} after {last:?}"))?;
            last = revision;
        }
        let now = subject.now().await?;
        subject.require(now >= deleted, || format!("the store is at {now:?} after a write at {deleted:?}"))?;
    }
    Ok(())
}

async fn empty_store_has_a_revision_above_zero(subject: Subject) -> Verdict {
    let now = subject.now().await?;
    subject.require(now > Revision::ZERO, || format!("{now:?}"))?;
    let page = subject.list(subject.range(), None, 0).await?;
    subject.require(page.revision >= now, || format!("a list at {:?} when the store is at {now:?}", page.revision))?;
    subject.require(page.items.is_empty() && !page.more, || format!("{page:?}"))?;
    let (found, revision) = subject.store.get(&subject.key("absent")).await.map_err(|e| subject.broken(e))?;
    subject.require(found.is_none() && revision >= now, || format!("{found:?} at {revision:?}"))
}

async fn create_of_existing_key_fails(subject: Subject) -> Verdict {
    let created = subject.create("a", "first").await?;
    let second = subject.store.create(&subject.key("a"), "second".into(), None).await;
    let there = kept(subject.key("a"), "first", created, created);
    let expected = Err(CreateError::AlreadyExists { key: subject.key("a"), current: there.clone() });
    subject.require_eq("the second create", second, expected)?;
    subject.require_eq("the key", subject.get("a").await?, Some(there))
}

async fn update_at_another_revision_fails(subject: Subject) -> Verdict {
    let created = subject.create("a", "1").await?;
    let updated = subject.update("a", created, "2").await?;
    let there = kept(subject.key("a"), "2", created, updated);
    for wrong in [created, updated.next(), Revision::ZERO] {
        let result = subject.store.update(&subject.key("a"), wrong, "3".into(), None).await;
        let expected = Err(UpdateError::Conflict { current: Some(there.clone()) });
        subject.require_eq(&format!("an update at {wrong:?}"), result, expected)?;
    }
    let result = subject.store.update(&subject.key("absent"), updated, "3".into(), None).await;
    subject.require_eq("an update of nothing", result, Err(UpdateError::Conflict { current: None }))?;
    subject.require_eq("the key", subject.get("a").await?, Some(there))
}

async fn delete_at_another_revision_fails(subject: Subject) -> Verdict {
    let created = subject.create("a", "1").await?;
    let updated = subject.update("a", created, "2").await?;
    let there = kept(subject.key("a"), "2", created, updated);
    let result = subject.store.delete(&subject.key("a"), created).await;
    subject.require_eq("a late delete", result, Err(DeleteError::Conflict { current: Some(there) }))?;
    subject.delete("a", updated).await?;
    subject.require_eq("the key", subject.get("a").await?, None)?;
    for key in [subject.key("a"), subject.key("never")] {
        let result = subject.store.delete(&key, updated).await;
        subject.require_eq("a delete of nothing", result, Err(DeleteError::Conflict { current: None }))?;
    }
    Ok(())
}

async fn failed_write_changes_nothing(subject: Subject) -> Verdict {
    let created = subject.create("a", "1").await?;
    let mut watch = subject.watch(subject.range(), created).await?;
    let key = subject.key("a");
    let wrong = created.next();
    subject.require(subject.store.create(&key, "2".into(), None).await.is_err(), || "a second create".into())?;
    subject.require(subject.store.update(&key, wrong, "2".into(), None).await.is_err(), || "an update".into())?;
    subject.require(subject.store.delete(&key, wrong).await.is_err(), || "a delete".into())?;
    subject.require_eq("the key", subject.get("a").await?, Some(kept(key, "1", created, created)))?;
    let after = subject.create("b", "").await?;
    subject.require_eq("the next event", watch.event().await?.revision(), after)
}

async fn recreated_key_has_new_revisions(subject: Subject) -> Verdict {
    let first = subject.create("a", "1").await?;
    subject.delete("a", first).await?;
    let second = subject.create("a", "2").await?;
    let updated = subject.update("a", second, "3").await?;
    subject.require_eq("the key", subject.get("a").await?, Some(kept(subject.key("a"), "3", second, updated)))?;
    let mut watch = subject.watch(subject.range(), first).await?;
    let events = watch.events(3).await?;
    subject.require(super::previous(&events[1]).is_none(), || format!("{:?} is no creation", events[1]))
}

async fn exactly_one_of_many_writers_succeeds(subject: Subject) -> Verdict {
    const WRITERS: usize = 8;
    let mut at = subject.create("a", "0").await?;
    for round in 0..20 {
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let subject = subject.clone();
            let value = format!("{round}/{writer}");
            writers.spawn(async move { subject.store.update(&subject.key("a"), at, value.into(), None).await });
        }
        let mut won = Vec::new();
        let mut shown = Vec::new();
        while let Some(result) = writers.join_next().await {
            match result.map_err(|e| subject.broken(e))? {
                Ok(revision) => won.push(revision),
                Err(UpdateError::Conflict { current: Some(current) }) => shown.push(current.modified),
                Err(other) => return Err(subject.broken(format!("{other:?}"))),
            }
        }
        subject.require(won.len() == 1, || format!("{} of {WRITERS} updates at {at:?} happened", won.len()))?;
        let losers_see_the_winner = shown.iter().all(|revision| *revision == won[0]);
        subject.require(losers_see_the_winner, || format!("{shown:?} is shown to losers, the winner is {won:?}"))?;
        subject.require(won[0] > at, || format!("{won:?} follows {at:?}"))?;
        at = won[0];
    }
    Ok(())
}

async fn exactly_one_of_many_creators_succeeds(subject: Subject) -> Verdict {
    for round in 0..10 {
        let mut creators = JoinSet::new();
        for creator in 0..8 {
            let subject = subject.clone();
            creators.spawn(async move {
                let key = subject.key(&format!("k{round}"));
                subject.store.create(&key, format!("{creator}").into(), None).await
            });
        }
        let results = creators.join_all().await;
        let won = results.iter().filter(|result| result.is_ok()).count();
        subject.require(won == 1, || format!("{won} creates of one key happened: {results:?}"))?;
    }
    Ok(())
}

async fn value_of_any_bytes_is_stored_unchanged(subject: Subject) -> Verdict {
    // A little below the limit, because etcd also counts the rest of the request.
    let largest = VALUE_BYTES_MAX - 8 * 1024;
    let pattern = |length: usize| (0..length).map(|n| (n % 251) as u8).collect::<Vec<u8>>();
    for (name, value) in [
        ("empty", Vec::new()),
        ("zeros", vec![0; 3]),
        ("all", (0..=255).collect()),
        ("page", pattern(4096)),
        ("64k", pattern(65_537)),
        ("large", pattern(largest)),
    ] {
        let created = subject.create(name, value.clone()).await?;
        let found = subject.get(name).await?.ok_or_else(|| subject.broken(format!("{name} is not there")))?;
        subject.require(found.value == value, || format!("{name} is read differently"))?;
        subject.update(name, created, pattern(10)).await?;
    }
    let page = subject.list(subject.range(), None, 0).await?;
    let all_read = page.items.len() == 6 && page.items.iter().all(|item| item.value == pattern(10));
    subject.require(all_read, || format!("a list shows {:?}", page.items))
}

async fn any_valid_key_is_stored(subject: Subject) -> Verdict {
    let long = "n".repeat(253);
    let names = ["a.b-c", "ü-ß-日本", "x y", "%2F", "a:b", "~", long.as_str()];
    for name in names {
        subject.create(name, name.to_owned()).await?;
    }
    for name in names {
        let found = subject.get(name).await?;
        subject.require(found.is_some_and(|found| found.value == name.as_bytes()), || format!("{name} is lost"))?;
    }
    let page = subject.list(subject.range(), None, 0).await?;
    subject.require_eq("the number of keys", page.items.len(), names.len())
}

async fn dropped_write_is_atomic(subject: Subject) -> Verdict {
    for round in 0..10 {
        let name = format!("k{round}");
        // The future is polled once or not at all, then dropped.
        let write = subject.create(&name, "whole");
        let _ = tokio::time::timeout(Duration::from_micros(round * 50), write).await;
        match subject.get(&name).await? {
            None => {}
            Some(found) => subject.require_eq("the value", found.value, Bytes::from_static(b"whole"))?,
        }
    }
    subject.create("after", "").await?;
    Ok(())
}

fn kept(key: Key, value: &'static str, created: Revision, modified: Revision) -> KeyValue {
    KeyValue { key, value: Bytes::from_static(value.as_bytes()), created, modified, stale: false }
}
