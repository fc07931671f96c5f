//! Faults that affect more than one connection: a replaced history, leader changes, black holes,
//! reconnect storms, overtaking compaction. Each test prints its recovery time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::etcd3::{DEAD_AFTER, Etcd3};
use listwatch_storage::{ListQuery, ReadError, Storage, StoreEvent, StoreFault, Watch, WatchItem};
use tokio::time::timeout;

use super::proxy::{NewConnections, Proxy};
use super::raw::Raw;
use super::server::{self, Member};
use super::{
    ELECTION, PATIENCE, SLOW_MACHINE, Writer, assert_same, binary, burst, certainly_create, connect, follow, list,
    next_event, open_watch, patient_options, pod, pods, rejected_endpoint, report, truth,
};

/// Reads a watch until its required Expired; returns the events before it.
async fn until_expired(watch: &mut Watch) -> Vec<StoreEvent> {
    let mut events = Vec::new();
    loop {
        match timeout(PATIENCE, watch.next()).await.expect("the watch is told").expect("no end without a word") {
            WatchItem::Event(event) => events.push(event),
            WatchItem::Progress(_) => {}
            WatchItem::Expired { .. } => break,
            WatchItem::Lost(fault) => panic!("lost instead of Expired: {fault}"),
        }
    }
    assert!(timeout(PATIENCE, watch.next()).await.unwrap().is_none(), "after Expired the watch ends");
    events
}

async fn restarted(mut member: Member, change: impl FnOnce(&Member) + Send + 'static) -> Member {
    let restart = move || {
        member.kill();
        change(&member);
        member.start();
        member
    };
    tokio::task::spawn_blocking(restart).await.unwrap()
}

// ------------------------------------------------------------------------ another history

/// Checks a store whose etcd was restored to a state before `before`. The watch has ended. One call
/// may fail with the reason, then the store serves the current state.
async fn check_noticed(store: &Etcd3, watch: &mut Watch, before: Revision, expected: &[&str], what: &str) {
    let begun = Instant::now();
    assert!(until_expired(watch).await.is_empty(), "promise: nothing of another history is handed out");
    report(what, begun.elapsed());
    let page = list(store, 0).await;
    let names: Vec<_> = page.items.iter().map(|item| item.key.name()).collect();
    assert_eq!(names, expected, "what etcd holds now is served");

    // A revision of the former history is invalid in the current one for every client.
    if page.revision < before {
        let mut late = open_watch(store, pods(), before).await;
        assert!(until_expired(&mut late).await.is_empty());
    }
    let mut watch = open_watch(store, pods(), page.revision).await;
    let created = certainly_create(store, "after").await;
    assert_eq!(next_event(&mut watch).await.0.revision(), created, "and the store goes on from there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_older_backup_is_detected_and_every_watch_expires() {
    let Some(binary) = binary() else { return };
    let mut member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    store.create(&pod("old"), "{}".into(), None).await.unwrap();
    member.kill();
    let backup = member.backup();
    member.start();
    let mut watch = open_watch(&store, pods(), store.current_revision().await.unwrap()).await;
    for n in 0..20 {
        certainly_create(&store, &format!("new{n}")).await;
        next_event(&mut watch).await;
    }
    let before = store.current_revision().await.unwrap();
    let _member = restarted(member, move |member| member.restore(&backup)).await;
    check_noticed(&store, &mut watch, before, &["old"], "etcd restarted on an older backup").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_etcd_is_detected_by_a_read() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    for n in 0..20 {
        store.create(&pod(format!("p{n}")), "{}".into(), None).await.unwrap();
    }
    let before = store.current_revision().await.unwrap();
    let member = restarted(member, Member::wipe).await;
    // Without a watch, the first read must fail; a list would show an empty store.
    let refused = loop {
        match store.list(ListQuery { range: pods(), at: None, limit: 0 }).await {
            Err(ReadError::Fault(StoreFault::Unavailable(_))) => {}
            other => break other,
        }
    };
    let Err(ReadError::Fault(StoreFault::Corrupt(reason))) = refused else {
        panic!("never silently: {refused:?} from an etcd that was emptied");
    };
    assert_eq!(reason, format!("etcd's revision went back from {before} to 1"));
    assert_eq!(list(&store, 0).await.items.len(), 0, "it is said once, then what is there is served");
    drop(member);
}

/// The client has seen etcd's revision only in events of a watch that has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_etcd_is_detected_from_events_of_an_ended_watch() {
    let Some(binary) = binary() else { return };
    let mut member = Member::start_one(&binary, &[]);
    let writer = connect(&[&member.url]).await;
    writer.create(&pod("old"), "{}".into(), None).await.unwrap();
    member.kill();
    let backup = member.backup();
    member.start();
    let reader = connect(&[&member.url]).await;
    let mut watch = open_watch(&reader, pods(), reader.current_revision().await.unwrap()).await;
    let mut before = Revision::ZERO;
    for n in 0..20 {
        before = certainly_create(&writer, &format!("new{n}")).await;
    }
    follow(&mut watch, before).await;
    drop((watch, writer));
    let _member = restarted(member, move |member| member.restore(&backup)).await;
    let refused = loop {
        match reader.list(ListQuery { range: pods(), at: None, limit: 0 }).await {
            Err(ReadError::Fault(StoreFault::Unavailable(_))) => {}
            other => break other,
        }
    };
    let Err(ReadError::Fault(StoreFault::Corrupt(reason))) = refused else {
        panic!("no time travel: {refused:?} from an etcd that went back");
    };
    assert!(reason.starts_with(&format!("etcd's revision went back from {before} to ")), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_history_beyond_the_old_revision_is_detected() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let url = member.url.clone();
    let proxy = Proxy::start(&url).await;
    let store = connect(&[&proxy.url]).await;
    let mut watch = open_watch(&store, pods(), store.current_revision().await.unwrap()).await;
    store.create(&pod("old"), "{}".into(), None).await.unwrap();
    next_event(&mut watch).await;
    let before = store.current_revision().await.unwrap();

    // No read is possible while etcd is emptied and passes the old revision.
    proxy.set_new_connections(NewConnections::Closed);
    proxy.hang_up();
    let _member = restarted(member, Member::wipe).await;
    let direct = connect(&[&url]).await;
    let mut names = Vec::new();
    while direct.current_revision().await.unwrap().get() < before.get() + 5 {
        let name = format!("p{}", names.len());
        certainly_create(&direct, &name).await;
        names.push(name);
    }
    proxy.set_new_connections(NewConnections::Open);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    check_noticed(&store, &mut watch, before, &names, "etcd emptied and grown past the old revision").await;
}

#[tokio::test]
async fn members_of_two_clusters_are_rejected_at_start() {
    let Some(binary) = binary().filter(|_| !server::is_plain()) else { return };
    let members = ["one", "two"].map(|name| Member::start_one(&binary, &[&format!("--initial-cluster-token={name}")]));
    let options = patient_options(members.iter().map(|member| member.url.clone()));
    let refused = rejected_endpoint(options).await;
    assert!(refused.to_string().contains("another etcd cluster answers"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_of_another_cluster_is_skipped() {
    let Some(binary) = binary().filter(|_| !server::is_plain()) else { return };
    let member = Member::start_one(&binary, &[]);
    let stranger = Member::start_one(&binary, &["--initial-cluster-token=another"]);
    let proxy = Proxy::start(&member.url).await;
    let store = connect(&[&member.url, &proxy.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watches = Vec::new();
    for _ in 0..2 {
        watches.push(open_watch(&store, pods(), start).await);
    }
    let first = store.create(&pod("first"), "{}".into(), None).await.unwrap();

    // One of the two addresses now leads to another etcd.
    proxy.redirect(&stranger.url);
    proxy.hang_up();
    for n in 0..10 {
        assert_eq!(list(&store, 0).await.items.len(), 1 + n, "reads show the store, whom they ask first");
        // A write to the wrong etcd is not acknowledged; a retry reaches the store.
        certainly_create(&store, &format!("p{n}")).await;
    }
    let last = certainly_create(&store, "zz-last").await;
    let truth = truth(&member.url, start, last).await;
    assert_eq!((truth.len(), truth[0].revision()), (12, first), "what was acknowledged is in the store");
    for watch in &mut watches {
        assert_same(&follow(watch, last).await, &truth);
    }
}

// ------------------------------------------------------------------------ leaders

/// Waits for a leader and returns its index.
pub(super) async fn leader(members: &[Member], without: Option<usize>) -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for (index, member) in members.iter().enumerate().filter(|(index, _)| Some(*index) != without) {
            let raw = Raw::connect(&member.url);
            if let Ok(Ok(status)) = timeout(Duration::from_secs(1), raw.try_status()).await
                && status.leader != 0
                && status.header.is_some_and(|header| header.member_id == status.leader)
            {
                return index;
            }
        }
        assert!(Instant::now() < deadline, "the cluster finds no leader");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Makes the leader give its role to another member, and returns the former leader. etcd rejects the request if the
/// leader has changed meanwhile.
async fn move_leader(members: &[Member]) -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let old = leader(members, None).await;
        let next = Raw::connect(&members[(old + 1) % members.len()].url).status().await;
        let next = next.header.expect("a header").member_id;
        match Raw::connect(&members[old].url).try_move_leader(next).await {
            Ok(()) => return old,
            Err(status) => assert!(Instant::now() < deadline, "the leader stays: {status}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_change_during_writes_loses_no_event() {
    let Some(binary) = binary().filter(|_| !server::is_plain()) else { return };
    let mut members = tokio::task::spawn_blocking(move || Member::start_cluster(&binary, 3)).await.unwrap();
    leader(&members, None).await;
    let urls: Vec<_> = members.iter().map(|member| member.url.clone()).collect();
    let store = Etcd3::connect(patient_options(urls.clone())).await.expect("a cluster with a leader answers");
    let start = store.current_revision().await.unwrap();
    // One watch at each member.
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(open_watch(&store, pods(), start).await);
    }
    let writer = Writer::start(&store, Duration::from_millis(2));
    let mut seen = vec![Vec::new(); watches.len()];
    for (what, bound) in [
        ("the leader gave its place away", ELECTION),
        ("the leader was killed", ELECTION),
        ("the leader was stopped", DEAD_AFTER + ELECTION),
    ] {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let old = match what {
            "the leader gave its place away" => move_leader(&members).await,
            _ => leader(&members, None).await,
        };
        let begun = Instant::now();
        // How long an election takes depends on the machine, and not on the store.
        let counted_from = match what {
            "the leader gave its place away" => {
                leader(&members, None).await;
                Instant::now()
            }
            "the leader was killed" => {
                members[old].kill();
                leader(&members, Some(old)).await;
                Instant::now()
            }
            _ => {
                members[old].stop();
                begun
            }
        };
        let marker = certainly_create(&store, &format!("marker-{}", what.len())).await;
        report(&format!("{what}: the next write"), begun.elapsed());
        for (watch, seen) in watches.iter_mut().zip(&mut seen) {
            seen.extend(follow(watch, marker).await);
        }
        let took = counted_from.elapsed();
        report(&format!("{what}: all watches"), begun.elapsed());
        assert!(took < bound + SLOW_MACHINE, "{what}: the bound is {bound:?}, it took {took:?}");
        match what {
            "the leader was killed" => {
                let member = members.remove(old);
                members.insert(old, restarted(member, |_| ()).await);
            }
            "the leader was stopped" => {
                // Before the old leader runs again: the test has changed the leader.
                leader(&members, Some(old)).await;
                members[old].resume();
            }
            _ => {}
        }
    }
    let (last, acknowledged) = writer.finish(&store).await;
    let truth = truth(&urls[0], start, last).await;
    assert!(truth.len() >= acknowledged, "durable: {acknowledged} were acknowledged, {} happened", truth.len());
    for (watch, mut seen) in watches.iter_mut().zip(seen) {
        seen.extend(follow(watch, last).await);
        assert_same(&seen, &truth);
    }
}

// ------------------------------------------------------------------------ connections

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_recovers_soon_after_a_black_hole_ends() {
    // Not a multiple of the timeouts: 20 s until the watch is dead, 5 s for each try.
    const OUTAGE: Duration = Duration::from_secs(22);
    // The last try may have begun just before the end: an opening that times out, and a pause. A
    // connection made during the outage stays dead and must not be reused.
    const BOUND: Duration = Duration::from_secs(5 + 3);
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let proxy = Proxy::start(&member.url).await;
    let direct = connect(&[&member.url]).await;
    let store = connect(&[&proxy.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;

    // All connections stay open but forward nothing, as behind a firewall that drops packets.
    proxy.set_new_connections(NewConnections::BlackHole);
    proxy.swallow();
    let begun = Instant::now();
    let sick = store.health().await;
    assert!(matches!(sick, Err(StoreFault::Unavailable(_))), "{sick:?}");
    assert!(begun.elapsed() < Duration::from_secs(2) + SLOW_MACHINE, "health answers: {:?}", begun.elapsed());
    let mut last = start;
    for n in 0..50 {
        last = direct.create(&pod(format!("p{n:02}")), "{}".into(), None).await.unwrap();
    }
    tokio::time::sleep(OUTAGE.saturating_sub(begun.elapsed())).await;
    proxy.set_new_connections(NewConnections::Open);

    let back = Instant::now();
    let seen = follow(&mut watch, last).await;
    report("after a black hole of 22 s: the watch", back.elapsed());
    assert!(back.elapsed() < BOUND + SLOW_MACHINE, "the bound is {BOUND:?}, it took {:?}", back.elapsed());
    assert_same(&seen, &truth(&member.url, start, last).await);
    certainly_create(&store, "after").await;
    report("after a black hole of 22 s: watch and writes", back.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_watches_recover_after_a_reconnect_storm() {
    const WATCHES: usize = 1_000;
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let url = member.url.clone();
    let store = connect(&[&url]).await;
    let start = store.current_revision().await.unwrap();
    let begun = Instant::now();
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..WATCHES {
        let store = store.clone();
        opening.spawn(async move { open_watch(&store, pods(), start).await });
    }
    let mut watches = opening.join_all().await;
    println!("{WATCHES} watches were opened in {:?}", begun.elapsed());
    let mut last = start;
    for n in 0..10 {
        last = store.create(&pod(format!("before{n}")), "{}".into(), None).await.unwrap();
    }
    let first = truth(&url, start, last).await;
    for watch in &mut watches {
        assert_same(&follow(watch, last).await, &first);
    }

    let _member = restarted(member, |_| ()).await;
    let back = Instant::now();
    let middle = last;
    for n in 0..10 {
        last = certainly_create(&store, &format!("after{n}")).await;
    }
    let second = truth(&url, middle, last).await;
    for watch in &mut watches {
        assert_same(&follow(watch, last).await, &second);
    }
    report(&format!("etcd was killed under {WATCHES} watches: all of them"), back.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_revocation_during_a_disconnect_is_delivered_once() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let proxy = Proxy::start(&member.url).await;
    let store = connect(&[&proxy.url]).await;
    let direct = connect(&[&member.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;
    for n in 0..5 {
        store.create(&pod(format!("e{n}")), "{\"e\":1}".into(), Some(Duration::from_secs(3600))).await.unwrap();
        next_event(&mut watch).await;
    }
    proxy.set_new_connections(NewConnections::Closed);
    proxy.hang_up();
    timeout(PATIENCE, proxy.wait_until_closed()).await.expect("the connections end");
    // The end of a TTL is the same revocation, made by etcd itself.
    let raw = Raw::connect(&member.url);
    for lease in raw.leases().await {
        raw.lease_revoke(lease).await;
    }
    assert!(list(&direct, 0).await.items.is_empty(), "the keys go with their lease");
    let last = direct.create(&pod("zz-last"), "{}".into(), None).await.unwrap();
    proxy.set_new_connections(NewConnections::Open);
    let back = Instant::now();
    let seen = follow(&mut watch, last).await;
    report("a lease ended while disconnected: its removals", back.elapsed());
    let removed: Vec<_> = seen.iter().filter(|event| matches!(event, StoreEvent::Delete { .. })).collect();
    assert_eq!(removed.len(), 5, "each key's removal is told once");
    for event in removed {
        let StoreEvent::Delete { previous: Some(previous), .. } = event else { panic!("{event:?} without what was") };
        assert_eq!(previous.value, "{\"e\":1}", "with the last state");
    }
    assert_eq!(seen.last().map(|event| event.key().name()), Some("zz-last"));
    assert_eq!(seen.len(), 6);
}

// ------------------------------------------------------------------------ large and slow

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revision_in_many_fragments_is_delivered_as_one() {
    const KEYS: usize = 12;
    const BYTES: usize = 1 << 20;
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let raw = Raw::connect(&member.url);
    let lease = raw.lease_grant(600).await;
    for n in 0..KEYS {
        raw.put_leased(format!("/registry/pods/ns/e{n:02}"), vec![b'x'; BYTES], lease).await;
    }
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;
    let after = i64::try_from(start.get()).unwrap() + 1;
    let mut plain = raw.watch("/registry/pods/", "/registry/pods0", after).await;

    // All keys are removed at one revision: 12 MiB of events, of which etcd sends 1.5 MiB at a
    // time.
    raw.lease_revoke(lease).await;
    let (mut fragments, mut removed) = (0, 0);
    while removed < KEYS {
        let response = timeout(PATIENCE, plain.message()).await.expect("etcd tells").unwrap().expect("no end");
        fragments += usize::from(response.fragment);
        removed += response.events.len();
    }
    assert!(fragments > 0, "the test made etcd send fragments");
    let items = burst(&mut watch).await;
    let mut names = Vec::new();
    for item in &items {
        let WatchItem::Event(StoreEvent::Delete { key, revision, previous }) = item else { panic!("{item:?}") };
        assert_eq!(*revision, start.next());
        assert_eq!(previous.as_ref().map(|previous| previous.value.len()), Some(BYTES));
        names.push(key.name().to_owned());
    }
    names.sort();
    names.dedup();
    assert_eq!((items.len(), names.len()), (KEYS, KEYS), "atomic: {fragments} fragments are ready together, each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_under_a_lagging_watcher_affects_no_other_watch() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let start = store.current_revision().await.unwrap();
    let nodes = KeyRange::resource("nodes");
    let mut lagging = open_watch(&store, pods(), start).await;
    let mut quick = open_watch(&store, pods(), start).await;
    let mut quiet = open_watch(&store, nodes, start).await;
    let reader = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|event: &StoreEvent| event.key().name() != "zz-last") {
            seen.push(next_event(&mut quick).await.0);
        }
        seen
    });
    // More data than all buffers hold, with history compacted meanwhile.
    let mut created = Vec::new();
    for n in 0..600 {
        created.push(store.create(&pod(format!("s{n:03}")), vec![b'x'; 200_000].into(), None).await.unwrap());
        if n % 100 == 99 {
            store.compact(created[n - 20]).await.unwrap();
        }
    }
    store.compact(*created.last().unwrap()).await.unwrap();
    let begun = Instant::now();
    let told = until_expired(&mut lagging).await;
    report("a lagging watch was told Expired", begun.elapsed());
    assert!(told.len() < created.len(), "the test did not make the watch lag");
    let told: Vec<_> = told.iter().map(StoreEvent::revision).collect();
    assert_eq!(told, created[..told.len()], "what was told before is the beginning of what happened");

    created.push(store.create(&pod("zz-last"), "{}".into(), None).await.unwrap());
    let seen: Vec<_> = reader.await.unwrap().iter().map(StoreEvent::revision).collect();
    assert_eq!(seen, created, "a watch of the same objects that keeps up misses nothing");
    let node = Key::new("nodes", None, "n").unwrap();
    let last = store.create(&node, "{}".into(), None).await.unwrap();
    assert_eq!(next_event(&mut quiet).await.0.revision(), last, "a quiet watch behind the compaction goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_slower_than_compaction_completes_consistently() {
    const OBJECTS: usize = 15_000;
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let raw = Raw::connect(&member.url);
    for from in (0..OBJECTS).step_by(100) {
        let puts = (from..from + 100).map(|n| (format!("/registry/pods/ns/p{n:05}"), b"{}".to_vec()));
        raw.put_all(puts, 0).await;
    }
    // Each write is followed by a compaction up to it, so every page finds its revision compacted.
    let counter = "/registry/pods/ns/counter";
    let task = tokio::spawn({
        let raw = raw.clone();
        async move {
            let mut written = BTreeMap::new();
            for round in 0.. {
                let revision = raw.put(counter, round.to_string()).await;
                written.insert(revision, round.to_string());
                raw.compact(revision).await;
                if raw.get("/stop").await.is_some() {
                    return written;
                }
            }
            unreachable!("rounds do not run out")
        }
    });
    // A client that pages itself does not complete here.
    let first = list(&store, 1_000).await;
    let begin = format!("{}\0", first.items[999].key);
    let next = ListQuery { range: pods().starting_at(&begin), at: Some(first.revision), limit: 1_000 };
    let overtaken = async {
        while store.list(next.clone()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        store.list(next.clone()).await
    };
    let overtaken = timeout(PATIENCE, overtaken).await.expect("it is overtaken");
    assert!(matches!(overtaken, Err(ReadError::Compacted { .. })), "{overtaken:?}");

    let begun = Instant::now();
    let mut pages = Vec::new();
    for _ in 0..5 {
        pages.push(timeout(PATIENCE, list(&store, 0)).await.expect("a list ends, however often it is overtaken"));
    }
    report("five lists of 15,000 under constant compaction", begun.elapsed());
    raw.put("/stop", "").await;
    let written = task.await.unwrap();
    for page in pages {
        assert_eq!(page.items.len(), OBJECTS + usize::from(page.items[0].key.name() == "counter"));
        let Some(at) = page.items.iter().find(|item| item.key.name() == "counter") else { continue };
        let revision = i64::try_from(page.revision.get()).unwrap();
        let expected = written.range(..=revision).next_back().expect("it was written before").1;
        assert_eq!(at.value, Bytes::from(expected.clone()), "the list shows the state of its revision");
    }
}

// ------------------------------------------------------------------------ progress

/// Whether etcd's progress does not overtake events (etcd #15220).
fn promises_progress(version: &str) -> bool {
    let numbers: Vec<u32> = version.split(['.', '-']).filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [3, 4, patch, ..] => patch >= 31,
        [3, 5, patch, ..] => patch >= 13,
        _ => numbers > vec![3, 5],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_reliable_under_writes_or_not_requested() {
    const OBJECTS: usize = 2_000;
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let raw = Raw::connect(&member.url);
    let version = raw.status().await.version;
    let promised = promises_progress(&version);
    assert_eq!(store.capabilities().progress_requests, promised, "etcd {version}");

    let mut watch = open_watch(&store, pods(), store.current_revision().await.unwrap()).await;
    let acknowledged = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let (store, acknowledged) = (store.clone(), acknowledged.clone());
        writers.spawn(async move {
            for n in (writer..OBJECTS).step_by(8) {
                let created = store.create(&pod(format!("p{n}")), "{}".into(), None).await.expect("a write");
                acknowledged.lock().unwrap().push(created);
                // Another resource also increases the revision.
                let other = Key::new("nodes", None, &format!("n{n}")).expect("a valid name");
                store.create(&other, "{}".into(), None).await.expect("a write");
            }
        });
    }
    let mut seen = std::collections::BTreeSet::new();
    let (mut answers, mut floor) = (0, Revision::ZERO);
    while seen.len() < OBJECTS {
        // Requested before the item is taken, so later writes do not matter.
        watch.request_progress();
        match timeout(PATIENCE, watch.next()).await.expect("an item comes").expect("no end without a word") {
            WatchItem::Event(event) => {
                assert!(event.revision() > floor, "bookmarkable: {:?} after {floor:?}", event.revision());
                seen.insert(event.revision());
            }
            WatchItem::Progress(revision) => {
                answers += 1;
                floor = revision;
                let missed =
                    acknowledged.lock().unwrap().iter().filter(|at| **at <= revision && !seen.contains(at)).count();
                assert_eq!(missed, 0, "bookmarkable: progress at {revision:?} overtook {missed} events");
            }
            other => panic!("{other:?} instead of events"),
        }
    }
    writers.join_all().await;
    println!("etcd {version}: {answers} answers to progress requests among {OBJECTS} events");
    if !promised {
        assert_eq!(answers, 0, "what may be false is not asked for");
        return;
    }
    assert!(answers > 0, "the test asked for progress while events came");
    // At rest, progress reaches the current revision, past the writes of others.
    let now = store.current_revision().await.unwrap();
    while floor < now {
        watch.request_progress();
        match timeout(PATIENCE, watch.next()).await.expect("an answer comes").expect("no end without a word") {
            WatchItem::Progress(revision) => floor = revision,
            other => panic!("{other:?} at rest"),
        }
    }
}

// ------------------------------------------------------------------------ what others wrote

#[tokio::test]
async fn values_of_a_kube_apiserver_are_delivered_byte_for_byte() {
    // A custom resource as kube-apiserver stores it, a built-in one (protobuf), and garbage.
    let widget = r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"creationTimestamp":"2026-11-21T22:48:13Z","generation":1,"managedFields":[{"apiVersion":"example.com/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"f:size":{}}},"manager":"kubectl","operation":"Update","time":"2026-11-21T22:48:13Z"}],"name":"one","namespace":"default","uid":"334f124c-6d8d-4857-b037-49e05cbef52a"},"spec":{"size":3}}
"#;
    let values: [(&str, &[u8]); 3] =
        [("one", widget.as_bytes()), ("protobuf", b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap"), ("rubbish", b"{\"kind\":")];
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let store = connect(&[&member.url]).await;
    let range = KeyRange::resource("example.com/widgets");
    let mut watch = open_watch(&store, range.clone(), store.current_revision().await.unwrap()).await;
    let raw = Raw::connect(&member.url);
    for (name, value) in values {
        raw.put(format!("/registry/example.com/widgets/default/{name}"), value).await;
    }
    let page = store.list(ListQuery { range, at: None, limit: 0 }).await.unwrap();
    for (item, (name, value)) in page.items.iter().zip(values) {
        assert_eq!((item.key.name(), &item.value[..]), (name, value), "a list changes no byte");
        let StoreEvent::Put { current, .. } = next_event(&mut watch).await.0 else { panic!("not written") };
        assert_eq!(&current, item, "nor does a watch");
        assert_eq!(store.get(&item.key).await.unwrap().0.as_ref(), Some(item), "nor a get");
    }
    assert_eq!(page.items.len(), values.len());
    assert_eq!(store.foreign_keys(), 0, "what a value means is not the store's business");
    let key = page.items[0].key.clone();
    let updated = store.update(&key, page.items[0].modified, "{}".into(), None).await;
    assert!(updated.is_ok(), "and it can be replaced: {updated:?}");
    let _: Arc<Etcd3> = store;
}
