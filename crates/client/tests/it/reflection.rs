//! Tests of [`Reflection`] against a scripted server, on a clock that advances only when all tasks
//! wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use listwatch_client::{
    Change, Json, ListItem, ListStream, ListWatch, Notice, Object, Origin, Problem, RawObject, Reflection,
    ReflectorConfig, ReflectorState, TypeName, Typed, WatchStream, WatchedEvent,
};
use listwatch_meta::{ListOptions, Status};
use listwatch_wire::{EventKind, ListMeta, print_list_options};

/// The server's next response. A watch sends its batches and then ends as specified.
enum Answer {
    List(Vec<RawObject>, &'static str),
    Watch(Vec<Vec<WatchedEvent>>, End),
    Refuse(Problem),
}

enum End {
    Clean,
    Cut,
    Never,
}

#[derive(Default)]
struct Server {
    answers: Mutex<VecDeque<Answer>>,
    requests: Mutex<Vec<String>>,
    /// The number of batches that were read from a watch.
    taken: Arc<AtomicUsize>,
    /// Each endless watch holds a clone, until the client closes the watch.
    open: Arc<()>,
}

/// A handle to the server, so that the test can read its state.
struct Script(Arc<Server>);

impl Script {
    fn next(&self, request: String) -> Answer {
        self.0.requests.lock().unwrap().push(request);
        let answer = self.0.answers.lock().unwrap().pop_front();
        answer.unwrap_or(Answer::Watch(Vec::new(), End::Never))
    }
}

#[async_trait]
impl ListWatch for Script {
    async fn list(&self, options: ListOptions) -> Result<ListStream, Problem> {
        match self.next(format!("LIST {}", print_list_options(&options))) {
            Answer::List(objects, version) => {
                let list = TypeName { api_version: "v1".to_owned(), kind: "PodList".to_owned() };
                let end = ListMeta { resource_version: version.to_owned(), ..ListMeta::default() };
                let items = [Ok(ListItem::Type(list)), Ok(ListItem::Objects(objects)), Ok(ListItem::End(end))];
                Ok(stream::iter(items).boxed())
            }
            Answer::Refuse(problem) => Err(problem),
            Answer::Watch(..) => panic!("the script has a watch where a list was asked for"),
        }
    }

    async fn watch(&self, options: ListOptions) -> Result<WatchStream, Problem> {
        match self.next(format!("WATCH {}", options.resource_version)) {
            Answer::Watch(batches, end) => {
                let taken = self.0.taken.clone();
                let batches = stream::iter(batches).map(move |batch| {
                    taken.fetch_add(1, Ordering::Relaxed);
                    Ok(batch)
                });
                Ok(match end {
                    End::Clean => batches.boxed(),
                    End::Cut => {
                        let cut = Problem::disconnected("reset");
                        batches.chain(stream::iter([Err(cut)])).boxed()
                    }
                    End::Never => {
                        let open = self.0.open.clone();
                        let endless = stream::poll_fn(move |_| {
                            let _ = &open;
                            Poll::Pending
                        });
                        batches.chain(endless).boxed()
                    }
                })
            }
            Answer::Refuse(problem) => Err(problem),
            Answer::List(..) => panic!("the script has a list where a watch was asked for"),
        }
    }
}

fn object(name: &str, version: u64) -> RawObject {
    let json =
        format!(r#"{{"metadata":{{"namespace":"n","name":"{name}","uid":"{name}","resourceVersion":"{version}"}}}}"#);
    RawObject::new(Bytes::from(json)).unwrap()
}

fn event(kind: EventKind, name: &str, version: u64) -> WatchedEvent {
    WatchedEvent { kind, object: object(name, version) }
}

fn error(status: &Status) -> WatchedEvent {
    WatchedEvent { kind: EventKind::Error, object: RawObject::new(status.to_json().into()).unwrap() }
}

fn start(answers: impl IntoIterator<Item = Answer>) -> (Arc<Server>, Reflection<Script>) {
    let server = Arc::new(Server::default());
    server.answers.lock().unwrap().extend(answers);
    let config = ReflectorConfig { watch_list: false, check_server: false, ..ReflectorConfig::default() };
    let reflection = Reflection::with_seed(Script(server.clone()), config, 1);
    (server, reflection)
}

fn show(change: &Change) -> String {
    let name = |object: &Object| format!("{}@{}", object.key(), object.resource_version());
    match change {
        Change::Added { object, origin } => format!("+{} {origin:?}", name(object)),
        Change::Updated { new, origin, .. } => format!("~{} {origin:?}", name(new)),
        Change::Deleted { last, origin, .. } => format!("-{} {origin:?}", name(last)),
    }
}

/// Collects notices until the reflector only waits for the server.
async fn settle(reflection: &mut Reflection<Script>) -> Vec<String> {
    let mut received = Vec::new();
    // The clock is paused: it advances only while the reflection waits. The script ends in an
    // endless watch, which is polled for a minute, less than any of its timeouts.
    while let Ok(notice) = tokio::time::timeout(Duration::from_secs(60), reflection.next()).await {
        match notice {
            Notice::Changes(changes) => received.extend(changes.iter().map(show)),
            Notice::Synced => received.push("synced".to_owned()),
            Notice::Problem(problem) => received.push(format!("problem: {problem}")),
            Notice::Skipped { reason, key } => received.push(format!("skipped {key}: {reason:?}")),
            Notice::Quarantined { key, entry } => received.push(format!("quarantined {key}{entry:?}")),
            Notice::State(_) => {}
        }
    }
    received
}

#[tokio::test(start_paused = true)]
async fn server_restart_reports_no_change_twice() {
    let refused = || Answer::Refuse(Problem::disconnected("connection refused"));
    let (server, mut reflection) = start([
        Answer::List(vec![object("a", 1), object("b", 2)], "2"),
        Answer::Watch(vec![vec![event(EventKind::Modified, "a", 3)]], End::Cut),
        refused(),
        refused(),
        // The server sends the event of the last version again.
        Answer::Watch(
            vec![vec![
                event(EventKind::Modified, "a", 3),
                event(EventKind::Modified, "b", 4),
                event(EventKind::Deleted, "a", 5),
            ]],
            End::Clean,
        ),
    ]);
    let received = settle(&mut reflection).await;
    assert_eq!(
        received,
        [
            "+n/a@1 Initial",
            "+n/b@2 Initial",
            "synced",
            "~n/a@3 Live",
            "problem: no connection to the server: reset",
            "problem: no connection to the server: connection refused",
            "~n/b@4 Live",
            "-n/a@5 Live",
        ]
    );
    assert_eq!(
        *server.requests.lock().unwrap(),
        ["LIST limit=500", "WATCH 2", "WATCH 2", "WATCH 2", "WATCH 2", "WATCH 4"]
    );
    let snapshot = reflection.store().snapshot();
    assert_eq!((snapshot.len(), snapshot.version()), (1, "5"));
    assert!(matches!(reflection.reflector().state(), ReflectorState::Watching { .. }));
}

#[tokio::test(start_paused = true)]
async fn relist_after_410_reports_the_differences() {
    let (server, mut reflection) = start([
        Answer::List(vec![object("a", 1), object("b", 2)], "2"),
        Answer::Watch(vec![vec![error(&Status::expired_watch(2, 7))]], End::Clean),
        Answer::List(vec![object("b", 2), object("c", 8)], "9"),
    ]);
    let received = settle(&mut reflection).await;
    assert_eq!(
        received,
        [
            "+n/a@1 Initial",
            "+n/b@2 Initial",
            "synced",
            "problem: the server refused: too old resource version: 2 (7) (410 Expired)",
            "-n/a@1 Relist",
            "+n/c@8 Relist",
            "synced",
        ]
    );
    assert_eq!(*server.requests.lock().unwrap(), ["LIST limit=500", "WATCH 2", "LIST resourceVersion=2", "WATCH 9"]);
    let c = reflection.store().snapshot().get("n/c").unwrap().clone();
    assert!(c.json().starts_with(br#"{"kind":"Pod","apiVersion":"v1","metadata":"#), "a list item kept no type");
}

#[tokio::test(start_paused = true)]
async fn unidentified_object_is_skipped_and_others_are_delivered() {
    let (_, mut reflection) = start([
        Answer::List(vec![object("a", 1), object("", 2)], "2"),
        Answer::Watch(
            vec![vec![
                WatchedEvent { kind: EventKind::Added, object: RawObject::new(Bytes::from_static(b"{}")).unwrap() },
                event(EventKind::Added, "b", 3),
            ]],
            End::Never,
        ),
    ]);
    let received = settle(&mut reflection).await;
    let expected = ["skipped n/: Unidentified", "+n/a@1 Initial", "synced", "skipped : Unidentified", "+n/b@3 Live"];
    assert_eq!(received, expected);
}

#[tokio::test(start_paused = true)]
async fn undecodable_object_is_reported_and_others_are_readable() {
    #[derive(serde::Deserialize)]
    struct Named {
        metadata: Meta,
    }
    #[derive(serde::Deserialize)]
    struct Meta {
        uid: String,
    }
    let server = Arc::new(Server::default());
    server.answers.lock().unwrap().extend([
        Answer::List(vec![object("a", 1), object("b", 2), object("c", 3)], "3"),
        Answer::Watch(
            vec![vec![event(EventKind::Modified, "c", 4)], vec![event(EventKind::Modified, "b", 5)]],
            End::Never,
        ),
    ]);
    let decoder = Json::<Named>::new().transform(|named| match named.metadata.uid.as_str() {
        "b" => Err("b is not liked"),
        uid => Ok(uid.to_owned()),
    });
    let config = ReflectorConfig { watch_list: false, ..ReflectorConfig::default() };
    let mut reflection = Reflection::with_decoder(Script(server), config, decoder).seeded(1);
    let by_value = reflection.add_index(|value: &Typed<String>| [value.len()]);
    let store = reflection.store();
    let mut received = Vec::new();
    while let Ok(notice) = tokio::time::timeout(Duration::from_secs(60), reflection.next()).await {
        match notice {
            Notice::Changes(changes) => received.extend(changes.iter().map(|change| format!("{:?}", change.object()))),
            Notice::Quarantined { key, entry } => {
                received.push(format!("{key}@{}: {}", entry.version(), entry.error()))
            }
            // A reader that sees `Synced` finds the store synced.
            Notice::Synced => assert!(store.snapshot().is_synced() && store.snapshot().len() == 2),
            _ => {}
        }
    }
    let expected = ["n/b@2: b is not liked", "n/a@1", "n/c@3", "n/c@4", "n/b@5: b is not liked"];
    assert_eq!(received, expected);
    let snapshot = store.wait_for_version("5", Duration::ZERO).await.unwrap();
    assert_eq!(snapshot.by_index(&by_value, &1).map(|value| value.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(snapshot.quarantined("n/b").unwrap().version(), "5");
}

#[tokio::test(start_paused = true)]
async fn resync_is_marked_split_and_yields_to_events() {
    let objects = (0..1_000).map(|number| object(&format!("o{number:04}"), number + 1)).collect();
    let late = vec![vec![event(EventKind::Modified, "o0999", 2_000)]];
    let (_, mut reflection) = start([Answer::List(objects, "1000"), Answer::Watch(late, End::Never)]);
    while !matches!(reflection.next().await, Notice::Synced) {}
    reflection.resync();
    let mut parts = Vec::new();
    while let Ok(notice) = tokio::time::timeout(Duration::from_secs(60), reflection.next()).await {
        if let Notice::Changes(changes) = notice {
            let newest = changes
                .iter()
                .all(|change| change.key().name() != "o0999" || change.object().resource_version() == "2000");
            assert!(newest, "a resync reported an old state");
            parts.push((changes.len(), changes[0].origin()));
        }
    }
    assert_eq!(parts[0], (1, Origin::Live), "a resync went before what changed");
    let resync: Vec<usize> = parts[1..]
        .iter()
        .map(|(count, origin)| {
            assert_eq!(*origin, Origin::Resync);
            *count
        })
        .collect();
    assert_eq!(resync, [256, 256, 256, 232]);
}

#[tokio::test(start_paused = true)]
async fn slow_consumer_stops_reads_from_the_network() {
    let batch = |version| vec![event(EventKind::Modified, "a", version)];
    let (server, mut reflection) =
        start([Answer::List(vec![object("a", 1)], "1"), Answer::Watch((2..100).map(batch).collect(), End::Never)]);
    let mut live = 0;
    while live < 3 {
        if let Notice::Changes(changes) = reflection.next().await {
            live += usize::from(changes[0].origin() == Origin::Live);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(server.taken.load(Ordering::Relaxed), 3, "more events were read than requested");
}

/// A watch that delivered events would be resumed without a delay if it were cut.
#[tokio::test(start_paused = true)]
async fn suspended_reflection_closes_its_request_and_resumes_at_its_version() {
    let (server, mut reflection) = start([
        Answer::List(vec![object("a", 1)], "1"),
        Answer::Watch(vec![vec![event(EventKind::Modified, "a", 2)]], End::Never),
        Answer::Watch(vec![vec![event(EventKind::Modified, "a", 2), event(EventKind::Modified, "a", 3)]], End::Never),
    ]);
    reflection.suspend();
    assert_eq!(reflection.health().state(), ReflectorState::Starting, "there is nothing to close");
    settle(&mut reflection).await;
    assert_eq!(Arc::strong_count(&server.open), 2, "the watch is open");
    reflection.suspend();
    assert_eq!(Arc::strong_count(&server.open), 1, "the watch stays open");
    assert!(matches!(reflection.health().state(), ReflectorState::BackingOff { .. }), "a request is running");
    // Longer than the time limit of any request.
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let expected = ["problem: no connection to the server: suspended", "~n/a@3 Live"];
    assert_eq!(settle(&mut reflection).await, expected);
    assert_eq!(*server.requests.lock().unwrap(), ["LIST limit=500", "WATCH 1", "WATCH 1"]);
}

#[tokio::test(start_paused = true)]
async fn canceled_next_loses_no_notice() {
    let batch = |version| vec![event(EventKind::Modified, "a", version)];
    let (_, mut reflection) =
        start([Answer::List(vec![object("a", 1)], "1"), Answer::Watch((2..30).map(batch).collect(), End::Never)]);
    let mut versions = Vec::new();
    for turn in 0..200 {
        // Every other wait is cancelled early.
        let timeout = Duration::from_millis(turn % 2);
        if let Ok(Notice::Changes(changes)) = tokio::time::timeout(timeout, reflection.next()).await {
            versions.extend(changes.iter().map(show));
        }
    }
    assert_eq!(versions.len(), 29, "{versions:?}");
    assert_eq!(versions.last().map(String::as_str), Some("~n/a@29 Live"));
}

#[tokio::test(start_paused = true)]
async fn reflector_state_names_the_cause_when_not_synced() {
    let forbidden = Status::forbidden(
        listwatch_meta::GroupResource { group: "", resource: "pods" },
        "",
        "User \"u\" cannot list resource \"pods\"",
    );
    let (_, mut reflection) = start((0..9).map(|_| Answer::Refuse(Problem::refused(forbidden.clone()))));
    let mut attempt = 0;
    while attempt < 5 {
        if let Notice::State(ReflectorState::BackingOff { problem, attempts, .. }) = reflection.next().await {
            attempt += 1;
            assert_eq!(attempts, attempt);
            let state = reflection.reflector().state().describe(std::time::Instant::now());
            assert!(problem.to_string().contains("cannot list resource \"pods\""), "{problem}");
            assert!(
                state.contains(&format!("cannot list resource \"pods\" (403 Forbidden); try {attempt} failed")),
                "{state}"
            );
        }
    }
    assert!(!reflection.store().snapshot().is_synced());
}

/// A skipped item must be followed by a poll of the next item, because no other wake-up would come.
/// Skipped items are events without a change, bookmarks, empty batches and objects without
/// identity.
#[tokio::test(start_paused = true)]
async fn no_wake_up_is_lost_when_an_item_is_skipped() {
    let skipped = || event(EventKind::Modified, "a", 1);
    let batches = vec![
        vec![],
        vec![skipped()],
        vec![skipped(), skipped()],
        vec![event(EventKind::Bookmark, "", 5)],
        vec![],
        vec![event(EventKind::Added, "b", 6)],
    ];
    let (server, mut reflection) = start([Answer::List(vec![object("a", 1)], "4"), Answer::Watch(batches, End::Never)]);
    let received = tokio::time::timeout(Duration::from_secs(1), async {
        loop {
            if let Notice::Changes(changes) = reflection.next().await
                && let Some(change) = changes.iter().map(show).find(|change| change.starts_with("+n/b"))
            {
                return change;
            }
        }
    });
    assert_eq!(received.await.expect("a wake-up was lost behind an item that was skipped"), "+n/b@6 Live");
    assert_eq!(server.taken.load(Ordering::Relaxed), 6);
}
