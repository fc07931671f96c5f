//! Cases about time: keys that expire.

use std::time::Duration;

use listwatch_meta::Revision;
use tokio::time::{Instant, timeout};

use super::{Subject, Verdict, previous};
use listwatch_storage::StoreEvent;

super::case_table! {
    key_expires_after_its_ttl: "a key with a TTL is removed, never early and at most a bounded time late; a write without a TTL keeps the key",
}

/// The TTL of keys. Several writes of a busy store must fit into it.
const TTL: Duration = Duration::from_secs(6);

/// The longest tick of a store, plus the time of the case's own writes. etcd checks for expired leases twice a second,
/// and its members need time to agree. On a busy machine, all of this is slow.
const TICK: Duration = Duration::from_secs(30);

async fn key_expires_after_its_ttl(subject: Subject) -> Verdict {
    let start = subject.now().await?;
    let begun = Instant::now();
    let with_ttl = async |name: &str, ttl| {
        let created = subject.store.create(&subject.key(name), "v".into(), Some(ttl)).await;
        created.map_err(|e| subject.broken(format!("creating {name} with a TTL fails: {e}")))
    };
    let renew = async |name: &str, at, ttl| {
        let updated = subject.store.update(&subject.key(name), at, "w".into(), ttl).await;
        updated.map_err(|e| subject.broken(format!("updating {name} with a TTL fails: {e:?}")))
    };
    let plain = with_ttl("plain", TTL).await?;
    let kept = with_ttl("kept", TTL).await?;
    let kept = renew("kept", kept, None).await?;
    let renewed = with_ttl("renewed", TTL).await?;
    let renewed = renew("renewed", renewed, Some(TTL * 2)).await?;
    let back = with_ttl("back", TTL).await?;
    subject.delete("back", back).await?;
    let back = subject.create("back", "v").await?;
    let late = subject.create("late", "v").await?;
    let late = renew("late", late, Some(TTL)).await?;
    let long = with_ttl("long", Duration::from_secs(24 * 3600)).await?;

    let mut watch = subject.watch(subject.range(), start).await?;
    // The writes above come first, then the removals, two of which are due at the same time.
    watch.events(11).await?;
    let mut gone: Vec<(String, Option<Revision>, Duration)> = Vec::new();
    while gone.len() < 3 {
        let event = watch.event().await?;
        let StoreEvent::Delete { key, .. } = &event else {
            return Err(subject.broken(format!("{event:?} instead of a removal")));
        };
        let last = previous(&event).map(|state| state.modified);
        gone.push((key.name().to_owned(), last, begun.elapsed()));
    }
    gone.sort();
    let expected = [("late", late, TTL), ("plain", plain, TTL), ("renewed", renewed, TTL * 2)];
    for ((name, last, after), (expected_name, expected_last, ttl)) in gone.iter().zip(expected) {
        subject.require_eq("what removes itself", name.as_str(), expected_name)?;
        subject.require_eq("its last state", *last, Some(expected_last))?;
        subject.require(*after >= ttl, || format!("{name} goes after {after:?}"))?;
        let latest = ttl + (ttl / 20).min(Duration::from_secs(60)) + TICK;
        subject.require(*after <= latest, || format!("{name} goes only after {after:?}, its TTL is {ttl:?}"))?;
    }
    for (name, expected) in [("kept", kept), ("back", back), ("long", long)] {
        let found = subject.get(name).await?.map(|found| found.modified);
        subject.require_eq(&format!("the key {name:?}, which has no TTL to run out"), found, Some(expected))?;
    }
    let more = timeout(Duration::from_millis(100), watch.event()).await;
    subject.require(more.is_err(), || format!("{more:?} after the last removal"))
}
