//! Tests the converter, and lists and watches of the converted store, with converters in this process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_core::Stream as _;
use listwatch_apiextensions::{ConversionError, Definition};
use listwatch_json::{Map, Value, json};
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{KeyValue, ListQuery, MemoryStorage, Storage, StoreEvent, StoreFault, WatchItem};

use super::converter::{CALLS_MAX, Converter, REVIEW_OBJECTS_MAX};
use super::watch::ConvertedItems;
use super::{ConversionCallers, ConversionRequest, ConvertedStorage, PreviousValues};
use crate::custom::{CustomKind, Form};

type Tree = Map;

fn definition() -> Definition {
    let json = r#"{"metadata":{"name":"widgets.example.com","uid":"u"},"spec":{"group":"example.com","scope":"Namespaced",
        "names":{"plural":"widgets","kind":"Widget"},"conversion":{"strategy":"Webhook"},
        "versions":[{"name":"v1","served":true,"storage":true},{"name":"v2","served":true},{"name":"v3","served":true}]}}"#;
    Definition::parse(json.as_bytes()).unwrap()
}

fn tree(version: &str, name: &str) -> Tree {
    let metadata = json!({"name": name, "generation": 1});
    let object = json!({"kind": "Widget", "apiVersion": format!("example.com/{version}"), "metadata": metadata});
    object.as_object().unwrap().clone()
}

/// Returns callers with a converter that changes only the version and fails for the name `bad`; also the numbers of
/// calls and of objects.
fn callers() -> (Arc<ConversionCallers>, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (callers, calls, objects) =
        (Arc::<ConversionCallers>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (counted, counted_objects) = (Arc::clone(&calls), Arc::clone(&objects));
    let convert = move |request: ConversionRequest| {
        counted.fetch_add(1, Ordering::SeqCst);
        counted_objects.fetch_add(request.objects.len(), Ordering::SeqCst);
        async move {
            if request.objects.iter().any(|object| object["metadata"]["name"] == "bad") {
                return Err("bad object".to_owned());
            }
            let convert = |mut object: Value| {
                object["apiVersion"] = json!(request.desired_api_version);
                object
            };
            Ok(request.objects.into_iter().map(convert).collect())
        }
    };
    callers.set_handler("widgets.example.com", Arc::new(convert));
    (callers, calls, objects)
}

fn form(callers: &Arc<ConversionCallers>, version: &str) -> Form {
    let definition = definition();
    let kind = CustomKind::new(&definition, &definition.spec.names, "{}".into());
    Form::new(&Arc::new(kind.with_conversion(&definition, callers)), version)
}

fn name(tree: &Tree) -> String {
    format!("{} {}", tree["apiVersion"].as_str().unwrap(), tree["metadata"]["name"].as_str().unwrap())
}

#[tokio::test]
async fn converter_sends_only_objects_of_other_versions_and_preserves_the_order() {
    let (callers, calls, objects) = callers();
    let converter = Converter::new(&definition(), &callers).unwrap();
    let trees = [("v2", "a"), ("v1", "b"), ("v2", "c"), ("v3", "d")].map(|(version, name)| tree(version, name));
    let converted = converter.convert(trees.to_vec(), "example.com/v2", None).await.unwrap();
    let names: Vec<String> = converted.iter().map(name).collect();
    assert_eq!(names, ["example.com/v2 a", "example.com/v2 b", "example.com/v2 c", "example.com/v2 d"]);
    assert_eq!((calls.load(Ordering::SeqCst), objects.load(Ordering::SeqCst)), (1, 2));
    converter.convert(vec![tree("v2", "a")], "example.com/v2", None).await.unwrap();
    let mut empty = tree("v1", "");
    empty.shift_remove("metadata");
    let converted = converter.convert(vec![empty], "example.com/v2", None).await.unwrap();
    assert_eq!(converted[0]["apiVersion"], "example.com/v2");
    assert_eq!(calls.load(Ordering::SeqCst), 1, "nothing was to be converted");
}

#[tokio::test]
async fn converter_splits_large_lists_into_batches() {
    let (callers, calls, objects) = callers();
    let converter = Converter::new(&definition(), &callers).unwrap();
    let count = 2 * REVIEW_OBJECTS_MAX + 1;
    let trees = (0..count).map(|number| tree("v1", &number.to_string())).collect();
    let converted = converter.convert(trees, "example.com/v2", None).await.unwrap();
    assert!(converted.iter().enumerate().all(|(number, tree)| name(tree) == format!("example.com/v2 {number}")));
    assert_eq!((calls.load(Ordering::SeqCst), objects.load(Ordering::SeqCst)), (3, count));
}

#[tokio::test]
async fn conversion_from_or_to_an_unknown_version_fails_without_a_call() {
    let (callers, calls, _) = callers();
    let converter = Converter::new(&definition(), &callers).unwrap();
    let text = |result: Result<Vec<Tree>, ConversionError>| result.unwrap_err().to_string();
    let to = converter.convert(vec![tree("v1", "a")], "example.com/v9", None).await;
    assert_eq!(text(to), "request to convert CR to an invalid group/version: example.com/v9");
    let from = converter.convert(vec![tree("v9", "a")], "example.com/v1", None).await;
    assert_eq!(text(from), "request to convert CR from an invalid group/version: example.com/v9");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let alone = Converter::new(&definition(), &Arc::default()).unwrap();
    let text = text(alone.convert(vec![tree("v1", "a")], "example.com/v2", None).await);
    assert_eq!(text, "no supported conversion review versions");
}

#[tokio::test(start_paused = true)]
async fn concurrent_conversion_calls_are_bounded_and_end_at_the_deadline() {
    // Long enough for a slow machine to start every task, and shorter than the timeout of a call. The paused clock of
    // the runtime passes this time at once.
    let time_left = Duration::from_secs(25);
    let callers = Arc::<ConversionCallers>::default();
    let running = Arc::<AtomicUsize>::default();
    let most = Arc::<AtomicUsize>::default();
    let (counted, peak) = (Arc::clone(&running), Arc::clone(&most));
    let hang = move |_: ConversionRequest| {
        peak.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::future::pending::<Result<Vec<Value>, String>>()
    };
    callers.set_handler("widgets.example.com", Arc::new(hang));
    let converter = Arc::new(Converter::new(&definition(), &callers).unwrap());
    let (begun, deadline) = (tokio::time::Instant::now(), Instant::now() + time_left);
    let tasks: Vec<_> = (0..CALLS_MAX + 20)
        .map(|_| {
            let converter = Arc::clone(&converter);
            tokio::spawn(
                async move { converter.convert(vec![tree("v1", "a")], "example.com/v2", Some(deadline)).await },
            )
        })
        .collect();
    for task in tasks {
        let error = task.await.unwrap().unwrap_err().to_string();
        assert_eq!(error, "conversion webhook for example.com/v1, Kind=Widget failed: context deadline exceeded");
    }
    assert!(begun.elapsed() < time_left + Duration::from_secs(1), "a call ends after the deadline");
    assert_eq!(most.load(Ordering::SeqCst), CALLS_MAX);
}

fn put(revision: u64, name: &str) -> WatchItem {
    let entry = |revision: u64| KeyValue {
        key: Key::new("example.com/widgets", Some("ns"), name).unwrap(),
        value: Value::Object(tree("v1", name)).to_string().into(),
        created: Revision::new(1),
        modified: Revision::new(revision),
        stale: false,
    };
    WatchItem::Event(StoreEvent::Put { current: entry(revision), previous: Some(entry(revision - 1)) })
}

/// Returns the converted items of a watch as text, and the number of calls.
async fn items(source: Vec<WatchItem>, previous: PreviousValues) -> (Vec<String>, usize) {
    struct Items(VecDeque<WatchItem>);
    impl futures_core::Stream for Items {
        type Item = WatchItem;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<WatchItem>> {
            std::task::Poll::Ready(self.0.pop_front())
        }
    }
    let (callers, calls, _) = callers();
    let source = Box::pin(Items(source.into()));
    let mut stream = std::pin::pin!(ConvertedItems::new(source, form(&callers, "v2"), previous));
    let mut found = Vec::new();
    while let Some(item) = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
        found.push(match item {
            WatchItem::Event(StoreEvent::Put { current, previous }) => {
                let tree: Tree = serde_json::from_slice(&current.value).unwrap();
                let former = previous.map(|previous| serde_json::from_slice::<Tree>(&previous.value).unwrap());
                let former = former.map_or(String::new(), |former| format!(" before {}", name(&former)));
                format!("{} {}{former}", current.modified, name(&tree))
            }
            WatchItem::Event(StoreEvent::Delete { revision, .. }) => format!("{revision} deleted"),
            WatchItem::Progress(revision) => format!("{revision} progress"),
            WatchItem::Lost(StoreFault::Unconvertible(text)) => text.rsplit(": ").next().unwrap().to_owned(),
            other => panic!("{other:?}"),
        });
    }
    (found, calls.load(Ordering::SeqCst))
}

fn deleted(revision: u64, name: &str) -> WatchItem {
    let key = Key::new("example.com/widgets", Some("ns"), name).unwrap();
    let WatchItem::Event(StoreEvent::Put { current, .. }) = put(revision, name) else { unreachable!() };
    WatchItem::Event(StoreEvent::Delete { key, revision: Revision::new(revision), previous: Some(current) })
}

#[tokio::test]
async fn watch_items_that_are_ready_together_are_converted_in_one_call() {
    let source = || vec![put(2, "a"), put(2, "b"), WatchItem::Progress(Revision::new(3)), put(4, "c"), deleted(5, "a")];
    let (found, calls) = items(source(), PreviousValues::Dropped).await;
    let expected = ["2 example.com/v2 a", "2 example.com/v2 b", "3 progress", "4 example.com/v2 c", "5 deleted"];
    assert_eq!((found, calls), (expected.map(str::to_owned).to_vec(), 1));
    let (found, calls) = items(source(), PreviousValues::Converted).await;
    assert_eq!((&*found[0], calls), ("2 example.com/v2 a before example.com/v2 a", 1));
    let (_, calls) = items(vec![deleted(5, "a"), WatchItem::Progress(Revision::new(6))], PreviousValues::Dropped).await;
    assert_eq!(calls, 0, "a cache knows the deleted object");
}

#[tokio::test]
async fn watch_delivers_complete_revisions_before_a_failed_conversion() {
    let check = async |source: Vec<WatchItem>, expected: &[&str]| {
        let (found, _) = items(source, PreviousValues::Dropped).await;
        assert_eq!(found, expected);
    };
    check(vec![put(2, "bad")], &["bad object"]).await;
    check(vec![put(2, "a"), put(2, "bad")], &["bad object"]).await;
    let source = vec![put(2, "a"), put(3, "b"), put(3, "bad"), put(3, "c"), put(4, "d")];
    check(source, &["2 example.com/v2 a", "bad object"]).await;
    let source = vec![put(2, "a"), WatchItem::Progress(Revision::new(3)), put(4, "bad"), put(5, "d")];
    check(source, &["2 example.com/v2 a", "3 progress", "bad object"]).await;
}

#[tokio::test]
async fn converted_store_returns_objects_in_its_version_and_damaged_values_unchanged() {
    let (callers, calls, _) = callers();
    let store = MemoryStorage::new();
    for (name, value) in [("a", Value::Object(tree("v1", "a")).to_string()), ("b", "damaged".to_owned())] {
        let key = Key::new("example.com/widgets", Some("ns"), name).unwrap();
        store.create(&key, value.into(), None).await.unwrap();
    }
    let converted = ConvertedStorage::new(store.clone(), form(&callers, "v2"), PreviousValues::Converted);
    let query = ListQuery { range: KeyRange::resource("example.com/widgets"), at: None, limit: 0 };
    let page = converted.list(query.clone()).await.unwrap();
    let values: Vec<_> = page.items.iter().map(|item| String::from_utf8_lossy(&item.value).into_owned()).collect();
    let expected = r#"{"kind":"Widget","apiVersion":"example.com/v2","metadata":{"name":"a","generation":1}}"#;
    assert_eq!(values, [expected, "damaged"]);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let own = ConvertedStorage::new(store.clone(), form(&callers, "v1"), PreviousValues::Dropped);
    assert_eq!(own.list(query.clone()).await.unwrap(), store.list(query).await.unwrap(), "nothing changes");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let key = Key::new("example.com/widgets", Some("ns"), "bad").unwrap();
    store.create(&key, Value::Object(tree("v1", "bad")).to_string().into(), None).await.unwrap();
    let error = converted.get(&key).await.unwrap_err().to_string();
    assert_eq!(error, "conversion webhook for example.com/v1, Kind=Widget failed: bad object");
}
