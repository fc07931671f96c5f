//! The cache on a real etcd: its load on etcd, undecodable values, and an etcd that was restored to
//! an older state.
//!
//! The tests need an etcd binary; see `crates/storage/tests/it/etcd.rs`.

#[allow(dead_code, unreachable_pub, reason = "another test's helper, of which this one needs a part")]
#[path = "../../../storage/tests/it/etcd/raw.rs"]
mod raw;
#[allow(dead_code, unreachable_pub, reason = "another test's helper, of which this one needs a part")]
#[path = "../../../storage/tests/it/etcd/server.rs"]
mod server;

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{config, key, options, quiet};
use listwatch_cacher::{Cacher, Delivery, Limits, List, ReadError, ResourceConfig, Scope, Watcher};
use listwatch_meta::{Key, ReadAt};
use listwatch_storage::Storage;
use listwatch_storage::etcd3::{Etcd3, Etcd3Options};
use server::{Etcd, Member};

/// The time limit for each awaited event.
const PATIENCE: Duration = Duration::from_secs(60);

async fn start() -> Option<(Member, Arc<Etcd3>)> {
    let Etcd::Binary(binary) = server::find() else {
        eprintln!("skipped: LISTWATCH_SKIP_ETCD=1");
        return None;
    };
    let member = Member::start_one(&binary, &[]);
    // A started etcd accepts connections before it answers requests.
    let mut options = Etcd3Options::new([&*member.url]);
    options.dial_timeout = PATIENCE;
    let store = Etcd3::connect(options).await.expect("etcd answers");
    Some((member, store))
}

async fn list(cacher: &Cacher, scope: &Scope, words: &[&str]) -> Result<List, ReadError> {
    cacher.list(scope, &options(words).list(cacher.shape()).expect("valid options")).await
}

fn names(list: List) -> Vec<String> {
    assert!(list.undecodable.is_empty(), "{:?}", list.undecodable);
    list.items.map(|object| object.key().name().to_owned()).collect()
}

fn undecodable(list: &List) -> Vec<Key> {
    list.undecodable.iter().map(|value| value.key.clone()).collect()
}

/// Reads one of etcd's metrics.
fn metric(member: &Member, name: &str) -> f64 {
    let address = member.url.split("//").nth(1).expect("a URL");
    let mut stream = std::net::TcpStream::connect(address).expect("etcd listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
    let mut body = String::new();
    stream.read_to_string(&mut body).expect("an answer");
    let line = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.expect("etcd has this figure").trim().parse().expect("a number")
}

/// The next event or error of a watch, in short form.
async fn next(watcher: &mut Watcher) -> String {
    loop {
        let next = std::future::poll_fn(|cx| futures_core::Stream::poll_next(std::pin::Pin::new(&mut *watcher), cx));
        match tokio::time::timeout(PATIENCE, next).await.expect("something comes in time") {
            Some(Delivery::Event(event)) => return format!("{:?} {}", event.change(), event.object().key().name()),
            Some(Delivery::Error(status)) => return format!("{} {}", status.code, status.reason),
            Some(Delivery::Bookmark { .. }) => {}
            None => return "end".to_owned(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_has_one_watch_per_resource_for_any_number_of_clients() {
    const CLIENTS: usize = 200;
    const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";
    let Some((member, store)) = start().await else { return };
    let before = metric(&member, WATCHERS);
    let resources = ["pods", "nodes", "leases"];
    let mut cachers = Vec::new();
    let mut watchers = Vec::new();
    for resource in resources {
        let named = ResourceConfig { name: resource.into(), prefix: resource.into(), ..config(quiet()) };
        let cacher = Cacher::start(store.clone(), named);
        cacher.wait_ready().await.unwrap();
        for _ in 0..CLIENTS {
            watchers.push(crate::support::watch(&cacher, &Scope::All, &["rv=0"], PATIENCE).await);
        }
        cachers.push(cacher);
    }
    for resource in resources {
        let key = Key::new(resource, Some("a"), "x").unwrap();
        store.create(&key, r#"{"metadata":{"name":"x"}}"#.into(), None).await.unwrap();
    }
    for watcher in &mut watchers {
        assert_eq!(next(watcher).await, "Added x");
    }
    let watches = metric(&member, WATCHERS) - before;
    assert_eq!(watches, resources.len() as f64, "bounded: {CLIENTS} clients share one watch of etcd");
    drop((watchers, cachers));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undecodable_value_is_named_and_never_delivered_as_deleted() {
    let Some((member, store)) = start().await else { return };
    let raw = raw::Raw::connect(&member.url);
    let good = |name: &str| format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
    for (path, value) in [
        ("a/good", good("good").into_bytes()),
        ("a/protobuf", b"k8s\0\n\x0f\n\x02v1\x12\x03Pod".to_vec()),
        ("a/rubbish", b"{\"metadata\":".to_vec()),
        ("b/good", good("good").into_bytes()),
    ] {
        raw.put(format!("/registry/pods/{path}"), value).await;
    }
    let cached = Cacher::start(store.clone(), config(quiet()));
    cached.wait_ready().await.unwrap();
    let cachers = [("cached", cached), ("direct", Cacher::direct(store.clone(), config(quiet())))];
    let (in_a, in_b) = (Scope::Namespace("a".into()), Scope::Namespace("b".into()));
    for (what, cacher) in &cachers {
        // A client would consider the omitted objects deleted. So the list names their keys, and
        // the server rejects it.
        let listed = list(cacher, &in_a, &[]).await.unwrap();
        assert_eq!(undecodable(&listed), [key("a/protobuf"), key("a/rubbish")], "{what}: by key");
        assert_eq!(listed.items.count(), 1, "{what}");
        assert_eq!(names(list(cacher, &in_b, &[]).await.unwrap()), ["good"], "{what}: other lists are whole");
        let refused = cacher.get(&key("a/protobuf"), ReadAt::MostRecent).await;
        assert!(matches!(refused, Err(ReadError::UndecodableObject(_))), "{what}: {refused:?}");
        assert!(cacher.get(&key("a/good"), ReadAt::Any).await.unwrap().is_some(), "{what}: its neighbour is read");
    }
    // Repaired values are normal objects. A value that becomes undecodable is not deleted: its
    // watches end with an error, and lists name it.
    let begun = list(&cachers[0].1, &in_b, &[]).await.unwrap().revision;
    let from = format!("rv={begun}");
    raw.put("/registry/pods/a/protobuf", good("protobuf")).await;
    raw.delete("/registry/pods/a/rubbish").await;
    for (what, cacher) in &cachers {
        let mut watcher = crate::support::watch(cacher, &in_a, &[&from], PATIENCE).await;
        assert_eq!(next(&mut watcher).await, "Added protobuf", "{what}");
        assert!(list(cacher, &in_a, &[]).await.unwrap().undecodable.is_empty(), "{what}");
    }
    let from = format!("rv={}", list(&cachers[0].1, &in_b, &[]).await.unwrap().revision);
    let mut watchers = Vec::new();
    for (_, cacher) in &cachers {
        watchers.push(crate::support::watch(cacher, &in_a, &[&from], PATIENCE).await);
    }
    raw.put("/registry/pods/a/good", "k8s\0").await;
    for ((what, cacher), watcher) in cachers.iter().zip(&mut watchers) {
        let told = next(watcher).await;
        assert!(told.contains("410"), "{what}: {told}");
        let listed = list(cacher, &in_a, &[]).await.unwrap();
        assert_eq!(undecodable(&listed), [key("a/good")], "{what}");
        let told = next(&mut crate::support::watch(cacher, &in_a, &["rv="], PATIENCE).await).await;
        assert!(told.contains("StorageReadError"), "{what}: an initial state left an object out: {told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncached_watch_far_ahead_of_etcd_receives_nothing_and_affects_no_other_client() {
    let Some((_member, store)) = start().await else { return };
    let cached = Cacher::start(store.clone(), config(quiet()));
    cached.wait_ready().await.unwrap();
    let limits = Limits { bookmark_interval: Duration::from_millis(100), ..quiet() };
    let direct = Cacher::direct(store.clone(), config(limits));
    let mut healthy = crate::support::watch(&cached, &Scope::All, &["rv="], PATIENCE).await;
    let mut uncached = crate::support::watch(&direct, &Scope::All, &["rv="], PATIENCE).await;
    // A client sends such a revision if its store was restored since, or if it invents one.
    let mut ahead = crate::support::watch(&direct, &Scope::All, &["rv=99999999", "bookmarks"], PATIENCE).await;
    let said = tokio::time::timeout(Duration::from_secs(1), ahead.next()).await;
    assert!(said.is_err(), "a watch stays silent until etcd gets there: {said:?}");
    for name in ["x", "y"] {
        let key = key(&format!("a/{name}"));
        let written = store.create(&key, format!(r#"{{"metadata":{{"name":"{name}"}}}}"#).into(), None).await.unwrap();
        assert_eq!(next(&mut healthy).await, format!("Added {name}"), "promise: complete");
        assert_eq!(next(&mut uncached).await, format!("Added {name}"), "promise: complete");
        let listed = list(&direct, &Scope::All, &[]).await.expect("etcd is not treated as restored");
        assert!(listed.revision >= written && listed.revision.get() < 99_999_999, "{:?}", listed.revision);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_expire_when_etcd_is_restored_and_new_reads_show_the_restored_state() {
    let Some((mut member, store)) = start().await else { return };
    let create = async |path: &str| {
        let begun = Instant::now();
        while let Err(error) = store.create(&key(path), r#"{"metadata":{}}"#.into(), None).await {
            assert!(begun.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    create("a/old").await;
    member.kill();
    let backup = member.backup();
    member.start();
    let cacher = Cacher::start(store.clone(), config(quiet()));
    cacher.wait_ready().await.unwrap();
    for n in 0..20 {
        create(&format!("a/new{n}")).await;
    }
    // The cache itself has seen them: the store may answer lists of an old etcd.
    let begun = Instant::now();
    while cacher.stats().objects < 21 {
        assert!(begun.elapsed() < PATIENCE, "complete: the cache does not come to the present");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut watcher = crate::support::watch(&cacher, &Scope::All, &[], PATIENCE).await;
    for _ in 0..21 {
        next(&mut watcher).await;
    }

    member.kill();
    member.restore(&backup);
    member.start();
    let begun = Instant::now();
    assert_eq!(next(&mut watcher).await, "410 Expired", "the client's copy is outdated");
    println!("recovery: etcd was put back to an older state: clients told after {:?}", begun.elapsed());
    // The client's reaction.
    let listed = loop {
        match list(&cacher, &Scope::All, &[]).await {
            Ok(listed) => break listed,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
    };
    let from = format!("rv={}", listed.revision);
    assert_eq!(names(listed), ["old"], "the new list equals etcd's state");
    let mut watcher = crate::support::watch(&cacher, &Scope::All, &[&from], PATIENCE).await;
    create("a/after").await;
    assert_eq!(next(&mut watcher).await, "Added after");
    assert_eq!(names(list(&cacher, &Scope::All, &[]).await.unwrap()), ["after", "old"]);
}
