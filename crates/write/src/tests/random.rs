//! Tests random writes. A rejected write changes nothing, and watchers receive exactly the acknowledged writes of
//! concurrent clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use listwatch_cacher::{Delivery, Scope};
use listwatch_meta::{Change, FieldSelector, LabelSelector, ReadAt, WatchFrom, WatchRequest};
use proptest::prelude::*;
use tokio::time::Instant;

use super::*;

/// Generates a request, which may be malformed.
fn requests() -> impl Strategy<Value = (String, String)> {
    let name = prop_oneof![Just("a"), Just("b"), Just("C_"), Just("")];
    let line = prop_oneof![
        Just(post(MAPS)),
        Just(put(MAPS, "a")),
        Just(put(MAPS, "b")),
        Just(patch(MAPS, "a", MERGE)),
        Just(patch(MAPS, "a", JSON_PATCH)),
        Just(patch(MAPS, "a", "application/strategic-merge-patch+json")),
        Just(format!("DELETE {MAPS}/a")),
        Just(format!("DELETE {MAPS}/b?dryRun=All")),
        Just(format!("{}?fieldValidation=Strict", post(MAPS))),
        Just(post("/api/v1/namespaces/absent/configmaps")),
    ];
    let finalizers =
        prop_oneof![4 => Just("null"), 1 => Just(r#"["x.io/y"]"#), 1 => Just(r#"["bad"]"#), 1 => Just("7")];
    let version = prop_oneof![4 => Just("null"), 1 => Just(r#""1""#), 1 => Just(r#""x""#), 1 => Just(r#""0""#)];
    let data =
        prop_oneof![Just("null"), Just(r#"{"k":"v"}"#), Just(r#"{"k":"w"}"#), Just(r#"{"a b":"v"}"#), Just("[]")];
    let body = prop_oneof![
        8 => (name, finalizers, version, data).prop_map(|(name, finalizers, version, data)| format!(
            r#"{{"metadata":{{"name":"{name}","finalizers":{finalizers},"resourceVersion":{version}}},"data":{data}}}"#
        )),
        1 => Just(r#"[{"op":"add","path":"/data","value":{"j":"p"}}]"#.to_owned()),
        1 => Just(r#"[{"op":"test","path":"/data/k","value":"nope"}]"#.to_owned()),
        1 => Just(r#"{"$patch":"replace","data":{"s":"m"}}"#.to_owned()),
        1 => Just(r#"{"preconditions":{"uid":"other"}}"#.to_owned()),
        1 => "[{}\\[\\]\":,a-c0-9]{0,12}",
    ];
    (line, body)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_rejected_write_changes_nothing(requests in prop::collection::vec(requests(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new().await;
            for (line, body) in requests {
                let (before, stored) = (world.revision().await, world.stored("/").await);
                // Delete options in the body override those in the query.
                let body = if line.contains("dryRun") && line.starts_with("DELETE") { String::new() } else { body };
                let dry = line.contains("dryRun");
                match world.send(&line, &body).await {
                    Err(status) => {
                        let after = world.revision().await;
                        assert_eq!(after, before, "a refused write emitted an event: {line} {body}: {}", status.message);
                        assert_eq!(world.stored("/").await, stored, "a refused write changed something: {line} {body}");
                        assert!(status.code >= 400 && !status.message.is_empty(), "{line} {body}: {status:?}");
                    }
                    Ok(_) if dry => assert_eq!(world.revision().await, before, "a dry run changed something: {line}"),
                    Ok(_) => {
                        let events = world.revision().await - before;
                        assert!(events <= 1, "one write is at most one event: {line} {body}: {events}");
                    }
                }
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watcher_receives_exactly_the_acknowledged_writes_of_six_concurrent_writers() {
    const WRITERS: u64 = 6;
    const ROUNDS: u64 = 80;
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let world = Arc::new(World::new().await);
    let maps = world.writer.backend().registry().find("", "v1", "configmaps").unwrap().clone();
    let cacher = world.writer.backend().cacher(&maps);
    cacher.wait_ready().await.unwrap();
    let request = WatchRequest {
        from: WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false },
        bookmarks: false,
        timeout_seconds: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let mut watcher = cacher.watch(&Scope::All, &request, Instant::now() + Duration::from_secs(600)).await.unwrap();

    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                // The revisions of acknowledged writes, and the number of acknowledged deletions.
                let (mut written, mut deleted) = (BTreeSet::new(), 0);
                for round in 0..ROUNDS {
                    // A deterministic pseudorandom sequence.
                    let dice = (writer * 7_919 + round * 104_729) % 997;
                    let name = NAMES[usize::try_from(dice % 3).unwrap()];
                    let value = format!("{writer}-{round}");
                    let (line, body) = match dice % 5 {
                        0 => (post(MAPS), format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"w":"{value}"}}}}"#)),
                        1 => (
                            patch(MAPS, name, JSON_PATCH),
                            format!(r#"[{{"op":"add","path":"/data","value":{{"j":"{value}"}}}}]"#),
                        ),
                        2 => (patch(MAPS, name, MERGE), format!(r#"{{"data":{{"m{writer}":"{value}"}}}}"#)),
                        3 => {
                            (put(MAPS, name), format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"u":"{value}"}}}}"#))
                        }
                        _ => (format!("DELETE {MAPS}/{name}"), String::new()),
                    };
                    match world.send(&line, &body).await {
                        Ok(WriteResponse { body: WriteBody::Object(object), .. }) => {
                            written.insert(object.revision().get());
                        }
                        Ok(_) => deleted += 1,
                        Err(status) => assert!(matches!(status.code, 404 | 409), "{line} {body}: {status:?}"),
                    }
                }
                (written, deleted)
            })
        })
        .collect();
    let (mut written, mut deleted) = (BTreeSet::new(), 0);
    for writer in writers {
        let (more, deletions) = writer.await.unwrap();
        for revision in more {
            assert!(written.insert(revision), "two writers were told that revision {revision} is theirs");
        }
        deleted += deletions;
    }

    let end = world.revision().await;
    let (mut seen, mut gone, mut state) = (BTreeSet::new(), 0, BTreeMap::new());
    while written.len() + gone > seen.len() + gone || gone < deleted {
        let next = tokio::time::timeout(Duration::from_secs(20), watcher.next()).await;
        let Ok(Some(Delivery::Event(event))) = next else {
            panic!("the watcher lacks {:?} and {} deletions at {end}", written.difference(&seen), deleted - gone)
        };
        let object = event.object();
        match event.change() {
            Change::Deleted => {
                gone += 1;
                assert!(state.remove(object.name()).is_some(), "what was not there was deleted");
            }
            _ => {
                assert!(seen.insert(object.revision().get()), "an event came twice");
                state.insert(object.name().to_owned(), object.revision().get());
            }
        }
    }
    assert_eq!(seen, written, "watchers see exactly what was acknowledged");
    let range = listwatch_meta::KeyRange::resource("configmaps");
    let page = world.writer.backend().storage().list(ListQuery { range, at: None, limit: 0 }).await.unwrap();
    let stored: BTreeMap<String, u64> =
        page.items.iter().map(|item| (item.key.name().to_owned(), item.modified.get())).collect();
    assert_eq!(state, stored, "the end is that of the writes that won");
}
