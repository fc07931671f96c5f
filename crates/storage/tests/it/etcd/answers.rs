//! Tests the store against single answers of a fake etcd: errors, silence, and the fields of requests.

use std::sync::Arc;
use std::time::Duration;

use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::etcd3::{
    COMPACT_KEY, ConnectError, DEAD_AFTER, Etcd3, Etcd3Options, WATCH_BYTES, WATCH_RESERVE_BYTES, WATCH_WINDOW_BYTES,
    WATCHES_BYTES,
};
use listwatch_storage::transfer::Source;
use listwatch_storage::{
    CreateError, DeleteError, ListQuery, ReadError, Reread, Storage, StoreEvent, StoreFault, UpdateError,
    VALUE_BYTES_MAX, Watch, WatchError, WatchItem,
};
use prost::Message;
use tokio::time::timeout;
use tonic::Code;

use super::fake::{Answer, FakeEtcd};
use super::raw::proto::{
    AuthenticateRequest, CompactionRequest, Event, KeyValue, LeaseGrantRequest, LeaseTimeToLiveRequest, RangeRequest,
    RequestUnion, ResponseHeader, StatusRequest, TargetUnion, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
    path,
};
use super::{connect, list, patient_options, pod, pods, rejected_endpoint};

/// The time limit for each awaited item. The limit exceeds the timers that [`pass`] skips, so that a timer that
/// starts late only costs time.
const PATIENCE: Duration = Duration::from_secs(60);

const NO_LEADER: Answer = Answer::Status(Code::Unavailable, "etcdserver: no leader");
const INVALID_TOKEN: Answer = Answer::Status(Code::Unauthenticated, "etcdserver: invalid auth token");
const DENIED: Answer = Answer::Status(Code::PermissionDenied, "etcdserver: permission denied");

/// Lets `time` pass at once, after all tasks have had the chance to start their timers.
pub(crate) async fn pass(time: Duration) {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

pub(crate) async fn next(watch: &mut Watch) -> Option<WatchItem> {
    timeout(PATIENCE, watch.next()).await.expect("a watch delivers an item or ends")
}

/// The next item of a watch, which is a change of this revision.
pub(crate) async fn expect_event(watch: &mut Watch, revision: Revision) {
    match next(watch).await {
        Some(WatchItem::Event(event)) if event.revision() == revision => {}
        other => panic!("complete: {other:?} instead of the change at {revision:?}"),
    }
}

/// A store of one fake etcd.
pub(crate) async fn store_of(etcd: &FakeEtcd) -> Arc<Etcd3> {
    connect(&[&etcd.url]).await
}

// ------------------------------------------------------------------------------ at the start

#[tokio::test]
async fn connect_succeeds_within_the_configured_dial_timeout() {
    let etcd = FakeEtcd::start().await;
    let mut options = Etcd3Options::new([&*etcd.url]);
    options.dial_timeout = PATIENCE;
    options.prefix = "a/../registry//".to_owned();
    let store = Etcd3::connect(options).await.expect("an etcd that answers at once");
    assert_eq!(store.prefix(), "/registry", "the prefix is a normalized path");
    assert!(format!("{store:?}").contains(&etcd.url), "{store:?}");
}

#[tokio::test]
async fn connect_error_names_the_member_of_another_cluster() {
    let (one, other) = (FakeEtcd::start().await, FakeEtcd::start().await);
    other.state().cluster = 8;
    let refused = rejected_endpoint(patient_options([&*one.url, &*other.url])).await;
    let ConnectError::Endpoint { endpoint, reason } = refused else { panic!("{refused:?}") };
    assert!([&one.url, &other.url].contains(&&endpoint), "{endpoint:?} is no endpoint");
    assert!(reason.contains(&endpoint) && reason.contains("another etcd cluster answers"), "{reason}");
}

#[tokio::test]
async fn denied_version_request_is_repeated_until_it_succeeds() {
    for unknown in [0, 1] {
        let etcds = [FakeEtcd::start().await, FakeEtcd::start().await];
        etcds[unknown].answer(path::STATUS, [DENIED]);
        let store = connect(&[&etcds[0].url, &etcds[1].url]).await;
        assert!(!store.capabilities().progress_requests, "an unknown version is treated as the oldest one");
        let reads = etcds[unknown].requests::<RangeRequest>(path::RANGE);
        assert!(reads[0].serializable, "the cluster is named without a leader: {:?}", reads[0]);

        pass(Duration::from_secs(10)).await;
        etcds[unknown].wait_for::<StatusRequest>(path::STATUS, 2).await;
        let learned = async {
            while !store.capabilities().progress_requests {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, learned).await.expect("the version is learned");
        let known = etcds[1 - unknown].requests::<StatusRequest>(path::STATUS).len();
        assert_eq!(known, 1, "a known version is not requested again");
    }
}

#[tokio::test]
async fn member_without_reliable_progress_disables_progress_requests() {
    for (version, expected) in [("3.5.12", false), ("3.5.13", true), ("3.4.30", false), ("unknown", false)] {
        let (etcd, other) = (FakeEtcd::start().await, FakeEtcd::start().await);
        other.state().version = version;
        let store = connect(&[&etcd.url, &other.url]).await;
        // The store connects as soon as one member has answered.
        other.wait_for::<StatusRequest>(path::STATUS, 1).await;
        assert_eq!(store.capabilities().progress_requests, expected, "{version}");
    }
}

// ------------------------------------------------------------------------------ reads

#[tokio::test]
async fn read_at_an_unavailable_revision_names_the_available_ones() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    for n in 0..8 {
        etcd.put("/pods/ns/a", &n.to_string());
    }
    let at = async |revision: u64, range: KeyRange| {
        store.list(ListQuery { range, at: Some(Revision::new(revision)), limit: 0 }).await.map(|page| page.revision)
    };
    let future = ReadError::Future { requested: Revision::new(12), current: Revision::new(9) };
    assert_eq!(at(12, pods()).await, Err(future.clone()));
    assert_eq!(at(12, KeyRange::below("/").starting_at("0")).await, Err(future.clone()), "also in an empty range");
    assert_eq!(store.compact(Revision::new(12)).await, Err(future));

    let compacted =
        |oldest: Option<u64>| ReadError::Compacted { requested: Revision::new(3), oldest: oldest.map(Revision::new) };
    etcd.state().compacted = 5;
    assert_eq!(at(3, pods()).await, Err(compacted(None)), "another client compacted");
    assert_eq!(store.compact(Revision::new(6)).await, Ok(()));
    assert_eq!(at(3, pods()).await, Err(compacted(Some(6))));
    assert_eq!(store.compact(Revision::new(6)).await, Ok(()), "compacting twice is allowed");
    assert_eq!(at(6, pods()).await, Ok(Revision::new(6)));
}

#[tokio::test]
async fn get_unless_reads_the_value_only_after_a_change() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let old = etcd.put("/pods/ns/a", "old");
    let new = etcd.put("/pods/ns/a", "new");
    for (name, known, expected) in [("a", new, "unchanged"), ("a", old, "new"), ("b", new, "absent")] {
        let before = etcd.requests::<RangeRequest>(path::RANGE).len();
        let (found, revision) = store.get_unless(&pod(name), known).await.unwrap();
        assert_eq!(revision, new);
        let found = match found {
            Reread::Unchanged => "unchanged".to_owned(),
            Reread::Changed(None) => "absent".to_owned(),
            Reread::Changed(Some(found)) => String::from_utf8_lossy(&found.value).into_owned(),
        };
        assert_eq!(found, expected, "{name} known at {known}");
        let with_values = etcd.requests::<RangeRequest>(path::RANGE).split_off(before);
        let with_values = with_values.iter().filter(|read| !read.keys_only).count();
        assert_eq!(with_values, usize::from(expected == "new"), "the value of {name} is not transferred for nothing");
    }
}

#[tokio::test]
async fn list_keys_returns_entries_without_values() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    etcd.put("/pods/ns/a", "value");
    let query = ListQuery { range: pods(), at: None, limit: 0 };
    assert_eq!(store.list(query.clone()).await.unwrap().items[0].value, "value");
    assert_eq!(store.list_keys(query).await.unwrap().items[0].value, "");
}

/// The first page has 128 keys. The next one has as many as fit in 16 MiB, and at most eight times as many.
#[tokio::test]
async fn pages_of_a_list_are_sized_by_the_bytes_of_the_page_before() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let name = |n: usize| format!("/pods/ns/{n:05}");
    let value = "x".repeat((8 << 10) - "/registry".len() - name(0).len());
    for n in 0..1_201 {
        etcd.put(&name(n), &value);
    }
    let limits = |last: usize| {
        let reads = etcd.requests::<RangeRequest>(path::RANGE);
        reads[reads.len() - last..].iter().map(|read| read.limit).collect::<Vec<_>>()
    };
    assert_eq!(list(&store, 0).await.items.len(), 1_201);
    assert_eq!(limits(3), [128, 1_024, 2_048], "16 MiB are 2,048 entries of 8 KiB");
    assert_eq!(list(&store, 1_000).await.items.len(), 1_000);
    assert_eq!(limits(1), [1_000], "the size of these entries is known");

    // A page exceeds the largest message.
    let too_large = Answer::Status(Code::ResourceExhausted, "grpc: received message larger than max (4 vs. 2)");
    etcd.answer(path::RANGE, [too_large.clone(), too_large]);
    assert_eq!(list(&store, 0).await.items.len(), 1_201);
    assert_eq!(limits(4), [1_024, 512, 256, 2_048], "smaller pages are read");
}

#[tokio::test]
async fn statistics_describe_etcd_without_reading_its_values() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    for name in ["/pods/ns/a", "/pods/ns/b", "/nodes/c"] {
        etcd.put(name, "{}");
    }
    let stats = store.stats().await.unwrap();
    assert_eq!((&*stats.description, stats.keys, stats.disk_bytes), ("etcd 3.5.20", Some(3), Some(4_096)));
    assert_eq!((stats.revision, stats.oldest), (Revision::new(4), Revision::new(1)));
    let reads = etcd.requests::<RangeRequest>(path::RANGE);
    let whole = reads.iter().filter(|read| !read.range_end.is_empty());
    assert!(whole.clone().count() == 1 && whole.clone().all(|read| read.count_only), "{reads:?}");

    etcd.state().compacted = 3;
    assert_eq!(store.stats().await.unwrap().oldest, Revision::new(3), "another client compacted");
    let watches = etcd.watches();
    assert!(watches.iter().all(|watch| watch.key.starts_with(b"/registry/")), "only the prefix is needed: {watches:?}");
    let at = Some(Revision::new(2));
    let read = store.list(ListQuery { range: pods(), at, limit: 0 }).await;
    assert!(matches!(read, Err(ReadError::Compacted { oldest: Some(oldest), .. }) if oldest == Revision::new(3)));
}

#[tokio::test]
async fn failed_read_is_retried_at_another_member_unless_the_credential_is_rejected() {
    for (answer, expected) in [(NO_LEADER, true), (DENIED, false)] {
        let etcds = [FakeEtcd::start().await, FakeEtcd::start().await];
        let store = connect(&[&etcds[0].url, &etcds[1].url]).await;
        let reads = || etcds.iter().map(|etcd| etcd.requests::<RangeRequest>(path::RANGE).len()).sum::<usize>();
        let before = reads();
        for etcd in &etcds {
            etcd.answer(path::RANGE, [answer.clone()]);
        }
        let read = store.get(&pod("a")).await;
        assert!(matches!(read, Err(ReadError::Fault(_))), "no member has executed it: {read:?}");
        assert_eq!(reads() - before, if expected { 2 } else { 1 }, "each member once after {answer:?}");
    }
}

#[tokio::test]
async fn failed_member_is_skipped_by_later_reads() {
    let etcds = [FakeEtcd::start().await, FakeEtcd::start().await];
    let store = connect(&[&etcds[0].url, &etcds[1].url]).await;
    etcds[0].answer(path::RANGE, [NO_LEADER]);
    let reads = |index: usize| etcds[index].requests::<RangeRequest>(path::RANGE).len();
    let before = reads(0);
    for _ in 0..6 {
        store.get(&pod("a")).await.expect("the other member answers");
    }
    assert_eq!(reads(0), before + 1, "a member is skipped after its failure");
}

#[tokio::test]
async fn silent_connection_is_replaced_after_the_request_timeout() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let connections = etcd.state().connections;
    let reads = etcd.requests::<RangeRequest>(path::RANGE).len();
    etcd.answer(path::RANGE, [Answer::Silence]);
    let reader = tokio::spawn(async move { store.get(&pod("a")).await });
    etcd.wait_for::<RangeRequest>(path::RANGE, reads + 1).await;
    pass(Duration::from_secs(10)).await;
    let read = timeout(PATIENCE, reader).await.expect("the read is tried again").unwrap();
    assert_eq!(read, Ok((None, Revision::new(1))));
    assert_eq!(etcd.state().connections, connections + 1, "the next attempt has a new connection");
}

// ------------------------------------------------------------------------------ writes

#[tokio::test]
async fn update_or_delete_at_revision_zero_fails_with_a_conflict() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    etcd.put("/pods/ns/a", "here");
    for (name, expected) in [("a", Some("here")), ("b", None)] {
        let Err(UpdateError::Conflict { current }) = store.update(&pod(name), Revision::ZERO, "x".into(), None).await
        else {
            panic!("{name} was updated")
        };
        assert_eq!(current.map(|current| current.value), expected.map(Into::into), "update of {name}");
        let Err(DeleteError::Conflict { current }) = store.delete(&pod(name), Revision::ZERO).await else {
            panic!("{name} was deleted")
        };
        assert_eq!(current.map(|current| current.value), expected.map(Into::into), "delete of {name}");
    }
}

#[tokio::test]
async fn too_large_value_is_not_sent() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let value = |bytes: usize| vec![b'x'; bytes].into();
    store.create(&pod("a"), value(VALUE_BYTES_MAX), None).await.expect("etcd decides on values up to the limit");
    let (found, _) = store.get(&pod("a")).await.unwrap();
    let at = found.expect("it was created").modified;
    let created = store.create(&pod("b"), value(VALUE_BYTES_MAX + 1), None).await;
    assert!(matches!(created, Err(CreateError::Fault(StoreFault::TooLarge(_)))), "{created:?}");
    let updated = store.update(&pod("a"), at, value(VALUE_BYTES_MAX + 1), None).await;
    assert!(matches!(updated, Err(UpdateError::Fault(StoreFault::TooLarge(_)))), "{updated:?}");
    assert_eq!(etcd.requests::<TxnRequest>(path::TXN).len(), 1, "a value above the limit was sent");
}

#[tokio::test]
async fn write_with_a_lost_lease_is_tried_once_with_a_new_lease() {
    const GONE: Answer = Answer::Status(Code::NotFound, "etcdserver: requested lease not found");
    for (gone, expected) in [(1, true), (2, false)] {
        let etcd = FakeEtcd::start().await;
        let store = store_of(&etcd).await;
        etcd.answer(path::TXN, vec![GONE; gone]);
        let created = store.create(&pod("a"), "{}".into(), Some(Duration::from_secs(60))).await;
        assert_eq!(created.is_ok(), expected, "after {gone} lost leases: {created:?}");
        assert_eq!(etcd.requests::<LeaseGrantRequest>(path::LEASE_GRANT).len(), 2);
        assert_eq!(etcd.requests::<TxnRequest>(path::TXN).len(), 2);
    }
}

/// A write whose outcome is unknown is not sent again, because it may have taken effect.
#[tokio::test]
async fn write_with_an_unknown_outcome_is_not_sent_again() {
    let etcds = [FakeEtcd::start().await, FakeEtcd::start().await];
    let store = connect(&[&etcds[0].url, &etcds[1].url]).await;
    for etcd in &etcds {
        etcd.answer(path::TXN, [Answer::Status(Code::Unavailable, "etcdserver: leader changed")]);
    }
    let created = store.create(&pod("a"), "{}".into(), None).await;
    assert!(matches!(created, Err(CreateError::Fault(StoreFault::Unavailable(_)))), "{created:?}");
    let sent: usize = etcds.iter().map(|etcd| etcd.requests::<TxnRequest>(path::TXN).len()).sum();
    assert_eq!(sent, 1, "a write may have happened");
}

/// The connection broke before the answer, so the write may have taken effect.
#[tokio::test]
async fn write_on_a_broken_connection_is_not_repeated() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    etcd.answer(path::TXN, [Answer::Silence]);
    let writer = store.clone();
    let created = tokio::spawn(async move { writer.create(&pod("a"), "{}".into(), None).await });
    etcd.wait_for::<TxnRequest>(path::TXN, 1).await;
    etcd.hang_up();
    let created = timeout(PATIENCE, created).await.expect("the write fails").unwrap();
    assert!(matches!(created, Err(CreateError::Fault(StoreFault::Unavailable(_)))), "{created:?}");
    assert_eq!(store.get(&pod("a")).await, Ok((None, Revision::new(1))), "a new connection is made");
    assert_eq!(etcd.requests::<TxnRequest>(path::TXN).len(), 1, "a write may have happened");
}

#[tokio::test]
async fn etcd_response_without_a_header_fails_the_write_as_unavailable() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    etcd.answer(
        path::TXN,
        [Answer::Message(TxnResponse { succeeded: true, ..TxnResponse::default() }.encode_to_vec())],
    );
    let created = store.create(&pod("a"), "{}".into(), None).await;
    assert!(matches!(created, Err(CreateError::Fault(StoreFault::Unavailable(_)))), "{created:?}");
}

/// Another server has increased the version of the compactors' key.
#[tokio::test]
async fn late_compactor_continues_with_the_current_version_of_the_compact_key() {
    // Shorter than the time limit of a request, which may be in flight when time passes.
    let interval = Duration::from_secs(1);
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    for _ in 0..3 {
        etcd.state().write(COMPACT_KEY.as_bytes(), Some(b"0".to_vec()), 0);
    }
    let noted = etcd.state().now;
    store.start_compactor(interval);
    let mut compactions = Vec::new();
    for _ in 0..50 {
        pass(interval).await;
        compactions = etcd.requests::<CompactionRequest>(path::COMPACT);
        if !compactions.is_empty() {
            break;
        }
    }
    let rounds = etcd.requests::<TxnRequest>(path::TXN).into_iter();
    let mut versions: Vec<_> = rounds.map(|round| round.compare[0].target_union.clone()).collect();
    versions.truncate(2);
    let expected = [0, 3].map(|version| Some(TargetUnion::Version(version)));
    assert_eq!(versions, expected, "the key's version is followed");
    let compacted = compactions.first().map(|compaction| compaction.revision);
    assert_eq!(compacted, Some(noted), "history is compacted, and one interval is kept");
}

// ------------------------------------------------------------------------------ users

fn as_user(etcd: &FakeEtcd) -> Etcd3Options {
    let mut options = patient_options([&*etcd.url]);
    options.user = Some(("user".into(), "secret".into()));
    options
}

#[tokio::test]
async fn rejected_token_is_replaced_once() {
    let etcd = FakeEtcd::start().await;
    let store = Etcd3::connect(as_user(&etcd)).await.unwrap();
    let tokens = || etcd.requests::<AuthenticateRequest>(path::AUTHENTICATE).len();
    assert_eq!(tokens(), 2, "one for calls and one for watches");

    etcd.answer(path::RANGE, [INVALID_TOKEN]);
    assert_eq!(store.get(&pod("a")).await, Ok((None, Revision::new(1))));
    assert_eq!(tokens(), 3);
    etcd.answer(path::WATCH, [INVALID_TOKEN]);
    let mut watch = store.watch(pods(), Revision::new(1)).await.expect("a new token opens the watch");
    assert_eq!(tokens(), 4);
    let revision = etcd.put("/pods/ns/a", "{}");
    expect_event(&mut watch, revision).await;

    // Other errors say nothing about the token.
    etcd.answer(path::RANGE, [NO_LEADER]);
    assert!(store.get(&pod("a")).await.is_ok());
    etcd.answer(path::WATCH, [NO_LEADER]);
    let refused = store.watch(pods(), Revision::new(1)).await;
    assert!(matches!(refused, Err(WatchError::Fault(StoreFault::Unavailable(_)))), "{refused:?}");
    assert_eq!(tokens(), 4, "a token was replaced without a reason");
}

/// With JSON web tokens, each change of users or roles makes older tokens invalid.
#[tokio::test]
async fn token_that_is_older_than_the_users_and_roles_is_replaced() {
    for (code, text) in [
        (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
        (Code::Unknown, "auth: revision in header is old"),
        (Code::InvalidArgument, "etcdserver: user name is empty"),
    ] {
        let rejected = || [Answer::Status(code, text)];
        let etcd = FakeEtcd::start().await;
        let store = Etcd3::connect(as_user(&etcd)).await.unwrap();
        let tokens = || etcd.requests::<AuthenticateRequest>(path::AUTHENTICATE).len();
        etcd.answer(path::RANGE, rejected());
        assert_eq!(store.get(&pod("a")).await, Ok((None, Revision::new(1))), "{text}");
        assert_eq!(tokens(), 3, "{text}");
        // etcd rejects the token before it executes the write.
        etcd.answer(path::TXN, rejected());
        assert_eq!(store.create(&pod("a"), "{}".into(), None).await, Ok(Revision::new(2)), "{text}");
        assert_eq!(tokens(), 4, "{text}");
        etcd.answer(path::WATCH, rejected());
        let mut watch = store.watch(pods(), Revision::new(2)).await.expect("a new token opens the watch");
        assert_eq!(tokens(), 5, "{text}");
        expect_event(&mut watch, etcd.put("/pods/ns/a", "{}")).await;

        // etcd ends an open watch after the change.
        etcd.wait_for::<WatchRequest>(path::WATCH, 2).await;
        let header = Some(ResponseHeader { cluster_id: 7, revision: 3, ..ResponseHeader::default() });
        let cancel_reason = text.to_owned();
        etcd.send(WatchResponse { header, watch_id: 5, canceled: true, cancel_reason, ..WatchResponse::default() });
        let revision = etcd.put("/pods/ns/b", "{}");
        expect_event(&mut watch, revision).await;
        assert_eq!(tokens(), 6, "the resumed watch has a new token: {text}");
    }
}

// ------------------------------------------------------------------------------ watches

#[tokio::test]
async fn dropped_store_ends_its_watches() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    let mut empty = store.watch(KeyRange::below("/").starting_at("0"), Revision::new(1)).await.unwrap();
    etcd.wait_for::<WatchRequest>(path::WATCH, 1).await;
    assert_eq!(etcd.watches().len(), 1, "etcd rejects a watch of an empty range");
    drop(store);
    assert_eq!(next(&mut watch).await, None);
    assert_eq!(next(&mut empty).await, None);
}

#[tokio::test]
async fn dropped_watch_ends_its_stream() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    // The reader of the stream waits for further responses.
    let revision = etcd.put("/pods/ns/a", "{}");
    expect_event(&mut watch, revision).await;
    drop(watch);
    etcd.wait_until_streams_end().await;
}

#[tokio::test]
async fn watch_is_opened_at_each_member_once() {
    for (answers, opened, expected) in [
        ([NO_LEADER, Answer::Executed], 2, Ok(())),
        ([NO_LEADER, NO_LEADER], 2, Err("no leader")),
        ([DENIED, DENIED], 1, Err("permission denied")),
    ] {
        let etcds = [FakeEtcd::start().await, FakeEtcd::start().await];
        let store = connect(&[&etcds[0].url, &etcds[1].url]).await;
        // Requests go to the members in turn, and the first member has served a read.
        let [first, second] = answers;
        etcds[1].answer(path::WATCH, [first]);
        etcds[0].answer(path::WATCH, [second]);
        let watch = store.watch(pods(), Revision::new(1)).await;
        match (&watch, expected) {
            (Ok(_), Ok(())) => drop(etcds[0].wait_for::<WatchRequest>(path::WATCH, 1).await),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (watch, expected) => panic!("{watch:?} instead of {expected:?}"),
        }
        let attempts: usize = etcds.iter().map(|etcd| etcd.requests::<WatchRequest>(path::WATCH).len()).sum();
        assert_eq!(attempts, opened, "{expected:?}");
    }
}

#[tokio::test]
async fn member_that_opens_no_watch_in_time_gets_a_new_connection() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    etcd.answer(path::WATCH, [Answer::Silence]);
    let opening = store.clone();
    let opened = tokio::spawn(async move { opening.watch(pods(), Revision::new(1)).await });
    etcd.wait_for::<WatchRequest>(path::WATCH, 1).await;
    pass(Duration::from_secs(5)).await;
    let opened = timeout(PATIENCE, opened).await.expect("an opening has a time limit").unwrap();
    assert!(matches!(opened, Err(WatchError::Fault(StoreFault::Unavailable(_)))), "{opened:?}");
    let connections = etcd.state().connections;
    store.current_revision().await.unwrap();
    assert_eq!(etcd.state().connections, connections + 1, "a silent connection is used again");
}

#[tokio::test]
async fn watches_that_are_not_read_hold_a_bounded_number_of_bytes_together() {
    const WATCHES: usize = 14;
    const VALUE_BYTES: usize = 512 << 10;
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        watches.push(store.watch(pods(), Revision::new(1)).await.unwrap());
    }
    etcd.wait_for::<WatchRequest>(path::WATCH, WATCHES).await;
    let value = "x".repeat(VALUE_BYTES);
    let mut last = Revision::new(1);
    for n in 0..WATCH_BYTES / VALUE_BYTES + 8 {
        last = etcd.put(&format!("/pods/ns/{n:02}"), &value);
    }
    // A watch that is read has its reserve, and so all changes, while the others are stalled.
    let mut read = watches.remove(0);
    while !matches!(next(&mut read).await, Some(WatchItem::Event(event)) if event.revision() == last) {}
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Without etcd, only buffered changes arrive.
    drop(etcd);
    let mut held = Vec::new();
    for watch in &mut watches {
        let mut bytes = 0;
        while let Ok(Some(WatchItem::Event(_))) = timeout(Duration::from_millis(200), watch.next()).await {
            bytes += VALUE_BYTES;
        }
        held.push(bytes >> 10);
    }
    let total = held.iter().sum::<usize>() << 10;
    // Each watch also has a response that waits for room, and one on the wire.
    let bound = WATCHES_BYTES + watches.len() * (WATCH_RESERVE_BYTES + WATCH_WINDOW_BYTES as usize + VALUE_BYTES);
    assert!(total <= bound, "bounded: {total} bytes of {bound} are held, in KiB: {held:?}");
    assert!(held.iter().all(|kib| *kib > 0), "each watch has its reserve: {held:?}");
}

/// etcd cuts one response, with the changes of many revisions, into fragments.
#[tokio::test]
async fn watch_that_is_not_read_holds_a_bounded_part_of_a_fragmented_response() {
    const VALUE_BYTES: usize = 512 << 10;
    // The number of revisions, the changes of each, and whether the watch is read only after the stop of etcd.
    for (revisions, changes, is_cut) in [(200_i64, 1_i64, true), (200, 1, false), (2, 40, false)] {
        let etcd = FakeEtcd::start().await;
        let store = store_of(&etcd).await;
        let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
        etcd.wait_for::<WatchRequest>(path::WATCH, 1).await;
        let value = vec![b'x'; VALUE_BYTES];
        let mut events = Vec::new();
        for (revision, n) in (0..revisions).flat_map(|revision| (0..changes).map(move |n| (revision, n))) {
            let at = 2 + revision;
            let kv = KeyValue {
                key: format!("/registry/pods/ns/{revision:03}-{n:02}").into(),
                value: value.clone(),
                create_revision: at,
                mod_revision: at,
                version: 1,
                ..KeyValue::default()
            };
            events.push(Event { kv: Some(kv), ..Event::default() });
        }
        etcd.state().now = 1 + revisions;
        etcd.send_in_fragments(&events, 3);
        if is_cut {
            tokio::time::sleep(Duration::from_secs(2)).await;
            drop(etcd);
        }
        // Without etcd, only buffered changes arrive.
        let quiet = if is_cut { Duration::from_secs(2) } else { PATIENCE };
        let mut seen = 0;
        while let Ok(Some(WatchItem::Event(event))) = timeout(quiet, watch.next()).await {
            seen += 1;
            let expected = 2 + (seen - 1) / changes;
            assert_eq!(event.revision().get(), expected.unsigned_abs(), "complete and in order");
            if seen == revisions * changes {
                break;
            }
        }
        if is_cut {
            // A response waits for room, and one is on the wire.
            let bound = WATCH_BYTES + WATCH_RESERVE_BYTES + WATCH_WINDOW_BYTES as usize + 2 * 3 * VALUE_BYTES;
            let held = usize::try_from(seen).unwrap() * VALUE_BYTES;
            assert!(held <= bound, "bounded: {held} bytes of {bound} are held");
        } else {
            assert_eq!(seen, revisions * changes, "complete");
        }
    }
}

/// The last delivered object is read at its revision, so later changes of the object do not indicate another history.
#[tokio::test]
async fn watch_resumes_after_changes_of_its_last_object() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    let first = etcd.put("/pods/ns/a", "1");
    expect_event(&mut watch, first).await;
    etcd.hang_up();
    let second = etcd.put("/pods/ns/a", "2");
    expect_event(&mut watch, second).await;

    // The same object with another revision is a sign of another history.
    etcd.hang_up();
    etcd.remove_version(second);
    assert_eq!(next(&mut watch).await, Some(WatchItem::Expired { oldest: None }));
    assert_eq!(next(&mut watch).await, None);
}

#[tokio::test]
async fn watch_expires_fails_or_resumes_by_the_status_that_ends_its_stream() {
    const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
    for (code, text, expected) in [
        (Code::OutOfRange, COMPACTED, "expired"),
        (Code::PermissionDenied, "etcdserver: permission denied", "denied"),
        (Code::Unavailable, "etcdserver: no leader", "resumed"),
    ] {
        let etcd = FakeEtcd::start().await;
        let store = store_of(&etcd).await;
        let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
        // A watch ends after three rejected credentials in a row.
        for round in 1..=3 {
            etcd.wait_for::<WatchRequest>(path::WATCH, round).await;
            etcd.end_streams(code, text);
            if expected == "expired" {
                break;
            }
            // The pause before the next attempt.
            pass(Duration::from_secs(3)).await;
        }
        let revision = etcd.put("/pods/ns/a", "{}");
        let item = match next(&mut watch).await.expect("a last item") {
            WatchItem::Expired { .. } => "expired",
            WatchItem::Lost(StoreFault::Denied(_)) => "denied",
            WatchItem::Event(event) if event.revision() == revision => "resumed",
            other => panic!("{other:?} after {text}"),
        };
        assert_eq!(item, expected, "{text}");
    }
}

#[tokio::test]
async fn progress_request_reaches_etcd() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    etcd.state().write(b"/elsewhere", Some(Vec::new()), 0);
    watch.request_progress();
    assert_eq!(next(&mut watch).await, Some(WatchItem::Progress(Revision::new(2))), "another prefix counts, too");
    assert_eq!(etcd.watches().len(), 1, "the stream goes on");
}

/// The member refuses its version until the user receives the role `root`. The connection of the watch stays.
#[tokio::test]
async fn open_watch_requests_progress_once_the_version_of_its_member_is_known() {
    let etcd = FakeEtcd::start().await;
    etcd.answer(path::STATUS, [DENIED, DENIED]);
    let store = store_of(&etcd).await;
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    etcd.state().write(b"/elsewhere", Some(Vec::new()), 0);
    watch.request_progress();
    let revision = etcd.put("/pods/ns/a", "{}");
    expect_event(&mut watch, revision).await;
    let progress_requests = || {
        let requests = etcd.requests::<WatchRequest>(path::WATCH).into_iter();
        requests.filter(|request| matches!(request.request_union, Some(RequestUnion::Progress(_)))).count()
    };
    assert_eq!(progress_requests(), 0, "the progress of an unknown version is unreliable");

    pass(Duration::from_secs(10)).await;
    let learned = async {
        while !store.capabilities().progress_requests {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, learned).await.expect("the version is learned");
    etcd.state().write(b"/elsewhere", Some(Vec::new()), 0);
    watch.request_progress();
    let progress = timeout(PATIENCE, watch.next()).await.expect("read your writes: no progress");
    assert_eq!(progress, Some(WatchItem::Progress(Revision::new(4))));
    let opened = etcd.watches().iter().filter(|watch| watch.key != watch.range_end).count();
    assert_eq!((opened, progress_requests()), (1, 1), "on the stream that was open before");
}

/// Behind a load balancer, the stream ends at an old member, and the next connection reaches a new one.
#[tokio::test]
async fn watch_of_an_old_member_does_not_use_the_version_of_a_later_connection() {
    let etcd = FakeEtcd::start().await;
    etcd.state().version = "3.5.12";
    let store = store_of(&etcd).await;
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    etcd.state().version = "3.5.20";
    let _other = store.watch(pods(), Revision::new(1)).await.unwrap();
    assert!(store.capabilities().progress_requests, "the endpoint counts as a new one");
    watch.request_progress();
    let revision = etcd.put("/pods/ns/a", "{}");
    expect_event(&mut watch, revision).await;
    let requests = etcd.requests::<WatchRequest>(path::WATCH).into_iter();
    let requested = requests.filter(|request| matches!(request.request_union, Some(RequestUnion::Progress(_)))).count();
    assert_eq!(requested, 0, "progress of an old etcd overtakes events");
}

/// Another implementation of etcd's API may create the watch of a probe.
#[tokio::test]
async fn leftover_watch_of_a_probe_is_canceled() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    etcd.wait_for::<WatchRequest>(path::WATCH, 1).await;
    let created = |watch_id, canceled| WatchResponse {
        header: Some(ResponseHeader { cluster_id: 7, revision: 1, ..ResponseHeader::default() }),
        watch_id,
        created: true,
        canceled,
        ..WatchResponse::default()
    };
    let revision = etcd.put("/pods/ns/a", "{}");
    expect_event(&mut watch, revision).await;
    // A rejected watch needs no cancellation, nor does the own one.
    for (id, canceled) in [(-1, true), (5, false), (6, false)] {
        etcd.send(created(id, canceled));
    }
    let requests = etcd.wait_for::<WatchRequest>(path::WATCH, 2).await;
    let Some(RequestUnion::Cancel(cancel)) = &requests[1].request_union else { panic!("{requests:?}") };
    assert_eq!(cancel.watch_id, 6);
    let revision = etcd.put("/pods/ns/b", "{}");
    expect_event(&mut watch, revision).await;
    assert_eq!(etcd.requests::<WatchRequest>(path::WATCH).len(), 2);
}

#[tokio::test]
async fn silent_watch_is_probed_and_replaced_in_time() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    let opened = etcd.wait_for::<WatchRequest>(path::WATCH, 1).await;
    let revision = etcd.put("/pods/ns/a", "{}");
    expect_event(&mut watch, revision).await;

    // An answered probe keeps the stream.
    for probe in [1, 2] {
        pass(DEAD_AFTER / 2).await;
        let sent = etcd.wait_for::<WatchRequest>(path::WATCH, opened.len() + probe).await;
        let Some(RequestUnion::Create(sent)) = &sent[probe].request_union else { panic!("{sent:?}") };
        let is_probe = sent.key.starts_with(b"/registry/") && sent.key == sent.range_end;
        assert!(is_probe, "a probe is a watch of an empty range below the prefix: {sent:?}");
        // A delivered change shows that the answer to the probe was read before.
        let revision = etcd.put("/pods/ns/a", "{}");
        expect_event(&mut watch, revision).await;
    }
    etcd.state().answers_probes = false;
    pass(DEAD_AFTER / 2).await;
    etcd.wait_for::<WatchRequest>(path::WATCH, 4).await;
    pass(DEAD_AFTER / 2).await;
    let sent = etcd.wait_for::<WatchRequest>(path::WATCH, 5).await;
    let Some(RequestUnion::Create(resumed)) = &sent[4].request_union else { panic!("{sent:?}") };
    assert_eq!(resumed.start_revision, 5, "the next stream begins after the last event");
    let revision = etcd.put("/pods/ns/b", "{}");
    expect_event(&mut watch, revision).await;
}

// ------------------------------------------------------------------------------ copies

#[tokio::test]
async fn export_of_etcd_has_one_revision_and_the_remaining_ttls() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    etcd.state().write(b"/other/key", Some(Vec::new()), 0);
    etcd.state().ttls.extend([(1, 59), (2, 0)]);
    let leased =
        [("/events/ns/a", 1), ("/events/ns/b", 2), ("/events/ns/c", 1), ("/events/ns/d", 3), ("/pods/ns/e", 0)];
    for (name, lease) in leased {
        etcd.put_leased(name, "{}", lease);
    }
    let before = etcd.requests::<RangeRequest>(path::RANGE).len();
    let mut records = store.records().await.unwrap();
    etcd.put("/pods/ns/late", "{}");
    assert_eq!((records.revision(), records.count()), (Revision::new(7), Some(5)));
    let page = records.next_page().await.unwrap();
    let found: Vec<_> =
        page.iter().map(|record| (record.entry.key.as_str(), record.ttl.map(|ttl| ttl.as_secs_f64().ceil()))).collect();
    // etcd counts whole seconds down, so a second may remain. A lease that is gone expires at once.
    let expected = [
        ("/events/ns/a", Some(60.0)),
        ("/events/ns/b", Some(1.0)),
        ("/events/ns/c", Some(60.0)),
        ("/events/ns/d", Some(1.0)),
        ("/pods/ns/e", None),
    ];
    assert_eq!(found, expected);
    assert!(page[3].ttl < Some(Duration::from_millis(10)), "{:?}", page[3].ttl);
    assert!(records.next_page().await.unwrap().is_empty(), "the late key is not part of the revision");
    let leases = etcd.requests::<LeaseTimeToLiveRequest>(path::LEASE_TIME_TO_LIVE);
    assert_eq!(leases.iter().map(|lease| lease.id).collect::<Vec<_>>(), [1, 2, 3], "each lease is read once");
    let reads = etcd.requests::<RangeRequest>(path::RANGE).split_off(before);
    assert!(reads.len() == 2 && reads[0].count_only, "the number of keys needs no values: {reads:?}");

    // Compaction overtakes the copy.
    let mut records = store.records().await.unwrap();
    etcd.put("/pods/ns/later", "{}");
    etcd.state().compacted = 9;
    let error = records.next_page().await.unwrap_err();
    assert!(error.to_string().contains("revision 8 is compacted"), "{error}");
}

/// The first page has 128 records. The later ones have 4 MiB, or 2,048 records.
#[tokio::test]
async fn export_page_is_sized_by_the_bytes_of_the_previous_page() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let name = |n: usize| format!("/pods/ns/{n:05}");
    let value = "x".repeat((4 << 10) - "/registry".len() - name(0).len());
    for n in 0..128 {
        etcd.put(&name(n), &value);
    }
    // A page of foreign keys only is passed over.
    for n in 128..(128 + 1_024) {
        etcd.put(&format!("/pods/ns/{n:05}//"), "");
    }
    for n in 2_000..2_003 {
        etcd.put(&name(n), "{}");
    }
    let before = etcd.requests::<RangeRequest>(path::RANGE).len();
    let mut records = store.records().await.unwrap();
    let mut pages = Vec::new();
    loop {
        let page = records.next_page().await.unwrap();
        if page.is_empty() {
            break;
        }
        pages.push(page.len());
    }
    assert_eq!(pages, [128, 3]);
    let limits: Vec<i64> =
        etcd.requests::<RangeRequest>(path::RANGE)[before + 1..].iter().map(|read| read.limit).collect();
    assert_eq!(limits, [128, 1_024, 2_048], "4 MiB are 1,024 entries of 4 KiB");
}

#[tokio::test]
async fn watch_events_contain_the_state_before_the_change() {
    let etcd = FakeEtcd::start().await;
    let store = store_of(&etcd).await;
    let key: Key = pod("a");
    let mut watch = store.watch(pods(), Revision::new(1)).await.unwrap();
    let created = store.create(&key, "1".into(), None).await.unwrap();
    let updated = store.update(&key, created, "2".into(), None).await.unwrap();
    store.delete(&key, updated).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let Some(WatchItem::Event(event)) = next(&mut watch).await else { panic!("an event is missing") };
        seen.push(match event {
            StoreEvent::Put { current, previous } => (Some(current.value), previous.map(|previous| previous.value)),
            StoreEvent::Delete { previous, .. } => (None, previous.map(|previous| previous.value)),
        });
    }
    let value = |text: &'static str| Some(text.into());
    assert_eq!(seen, [(value("1"), None), (value("2"), value("1")), (None, value("2"))]);
    let sent = etcd.watches();
    assert!(sent.iter().all(|watch| watch.prev_kv && watch.fragment && watch.progress_notify), "{sent:?}");
}
