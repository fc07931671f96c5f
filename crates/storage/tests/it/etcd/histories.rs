//! Tests the store against members of other clusters, and against other histories, of a fake etcd.

use std::time::Duration;

use listwatch_meta::Revision;
use listwatch_storage::etcd3::{Etcd3, Etcd3Options};
use listwatch_storage::{CreateError, ListQuery, ReadError, Storage, StoreFault, WatchItem};

use super::answers::{expect_event, next, store_of};
use super::fake::{Answer, FakeEtcd};
use super::raw::proto::path;
use super::{connect, pod, pods};

#[tokio::test]
async fn read_answered_by_a_lagging_member_is_retried() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/pods/ns/a", "{}");
    let store = store_of(&etcd).await;
    etcd.answer(path::RANGE, [Answer::Header(7, 1)]);
    let (found, revision) = store.get(&pod("a")).await.expect("the member has caught up");
    assert!(found.is_some() && revision == Revision::new(2), "linearizable: {found:?} at {revision:?}");

    // Each read is behind, and each check of the member is not.
    let stray = [Answer::Header(7, 1), Answer::Executed];
    etcd.answer(path::RANGE, [&stray[..], &stray, &stray, &stray].concat());
    let read = store.get(&pod("a")).await;
    assert!(matches!(read, Err(ReadError::Fault(StoreFault::Unavailable(_)))), "repeated for ever: {read:?}");
}

/// Makes this member one of another cluster, or one that was restored alone.
fn diverge(etcd: &FakeEtcd, is_stranger: bool) {
    let mut state = etcd.state();
    if is_stranger {
        (state.cluster, state.now) = (8, 40);
    } else {
        state.now = 1;
    }
}

/// One of three members contradicts the others, which have no leader and therefore cannot answer.
#[tokio::test]
async fn history_of_one_member_is_not_accepted_while_the_others_cannot_answer() {
    for is_stranger in [false, true] {
        let etcds = [FakeEtcd::start().await, FakeEtcd::start().await, FakeEtcd::start().await];
        for etcd in &etcds {
            etcd.put("/pods/ns/a", "{}");
        }
        let store = connect(&[&etcds[0].url, &etcds[1].url, &etcds[2].url]).await;
        let mut watch = store.watch(pods(), Revision::new(2)).await.unwrap();
        etcds[..2].iter().for_each(|etcd| etcd.state().has_leader = false);
        diverge(&etcds[2], is_stranger);
        for _ in 0..3 {
            let read = store.get(&pod("a")).await;
            let unavailable = matches!(read, Err(ReadError::Fault(StoreFault::Unavailable(_))));
            assert!(unavailable, "no time travel: {read:?}, stranger: {is_stranger}");
            let written = store.create(&pod("b"), "{}".into(), None).await;
            assert!(written.is_err(), "durable: {written:?} was executed by one member, stranger: {is_stranger}");
        }
        etcds[..2].iter().for_each(|etcd| etcd.state().has_leader = true);
        let (found, revision) = store.get(&pod("a")).await.expect("the quorum answers again");
        assert!(found.is_some() && revision == Revision::new(2), "{found:?} at {revision:?}");
        // Each member of a real cluster has the change. Here the watch may be at either one.
        let revisions = etcds[..2].iter().map(|etcd| etcd.put("/pods/ns/a", "again")).collect::<Vec<_>>();
        expect_event(&mut watch, revisions[0]).await;
    }
}

#[tokio::test]
async fn history_that_the_majority_of_the_members_has_is_accepted() {
    for is_stranger in [false, true] {
        let etcds = [FakeEtcd::start().await, FakeEtcd::start().await, FakeEtcd::start().await];
        for etcd in &etcds {
            etcd.put("/pods/ns/a", "{}");
        }
        let store = connect(&[&etcds[0].url, &etcds[1].url, &etcds[2].url]).await;
        let mut watch = store.watch(pods(), Revision::new(2)).await.unwrap();
        // The third member is down. etcd was restored on the other two.
        etcds[2].state().has_leader = false;
        etcds[..2].iter().for_each(|etcd| diverge(etcd, is_stranger));
        let mut reads = Vec::new();
        for _ in 0..3 {
            reads.push(store.current_revision().await);
        }
        let is_replaced = |read: &Result<_, ReadError>| matches!(read, Err(ReadError::Fault(StoreFault::Corrupt(_))));
        assert!(reads.iter().any(is_replaced), "no time travel: the replacement is reported: {reads:?}");
        let revision = Revision::new(if is_stranger { 40 } else { 1 });
        assert_eq!(reads[2], Ok(revision), "the new state is served");
        assert_eq!(next(&mut watch).await, Some(WatchItem::Expired { oldest: None }));
    }
}

#[tokio::test]
async fn write_that_another_cluster_executed_is_not_acknowledged() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    etcd.answer(path::TXN, [Answer::Header(8, 40)]);
    let created = store.create(&pod("a"), "{}".into(), None).await;
    assert!(matches!(created, Err(CreateError::Fault(StoreFault::Unavailable(_)))), "durable: {created:?}");
}

/// The first of two writes that meet the new history decides, while the other one checks it.
#[tokio::test]
async fn concurrent_writes_to_a_replaced_history_are_acknowledged() {
    for is_stranger in [false, true] {
        let etcd = FakeEtcd::start().await;
        for n in 0..10 {
            etcd.put("/pods/ns/a", &n.to_string());
        }
        let store = store_of(&etcd).await;
        diverge(&etcd, is_stranger);
        let (b, c) = (pod("b"), pod("c"));
        let written = tokio::join!(store.create(&b, "{}".into(), None), store.create(&c, "{}".into(), None));
        assert!(
            matches!(written, (Ok(_), Ok(_))),
            "durable: the cluster has executed both: {written:?}, stranger: {is_stranger}"
        );
    }
}

/// The third member accepts connections and never authenticates.
#[tokio::test]
async fn rewritten_history_is_detected_while_a_member_is_silent() {
    let etcds = [FakeEtcd::start().await, FakeEtcd::start().await, FakeEtcd::start().await];
    etcds[2].answer(path::AUTHENTICATE, vec![Answer::Silence; 50]);
    let revisions = etcds.iter().map(|etcd| etcd.put("/pods/ns/a", "{}")).collect::<Vec<_>>();
    let mut options = Etcd3Options::new(etcds.iter().map(|etcd| etcd.url.clone()));
    options.user = Some(("user".to_owned(), "password".to_owned()));
    options.dial_timeout = Duration::from_secs(60);
    let store = Etcd3::connect(options).await.expect("two members answer");
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    expect_event(&mut watch, revisions[0]).await;
    for etcd in &etcds[..2] {
        etcd.remove_version(revisions[0]);
        etcd.hang_up();
    }
    assert_eq!(next(&mut watch).await, Some(WatchItem::Expired { oldest: None }), "no time travel");
}

/// The store has seen the newest revision only in items of a watch that has ended.
#[tokio::test]
async fn older_history_is_detected_from_the_items_of_a_watch() {
    for by_progress in [false, true] {
        let etcd = FakeEtcd::start().await;
        let store = store_of(&etcd).await;
        let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
        if by_progress {
            etcd.state().write(b"/elsewhere", Some(Vec::new()), 0);
            watch.request_progress();
            assert_eq!(next(&mut watch).await, Some(WatchItem::Progress(Revision::new(2))));
        } else {
            let revision = etcd.put("/pods/ns/a", "{}");
            expect_event(&mut watch, revision).await;
        }
        drop(watch);
        etcd.state().now = 1;
        let read = store.list(ListQuery { range: pods(), at: None, limit: 0 }).await;
        let Err(ReadError::Fault(StoreFault::Corrupt(reason))) = read else { panic!("no time travel: {read:?}") };
        assert_eq!(reason, "etcd's revision went back from 2 to 1");
        let mut former = store.watch(pods(), Revision::new(2)).await.unwrap();
        assert_eq!(
            next(&mut former).await,
            Some(WatchItem::Expired { oldest: None }),
            "a revision of the former history"
        );
    }
}
