//! The trees that a write keeps for the next write of the same object.

use listwatch_registry::{encode_tree, parse_tree};

use super::*;
use crate::recent::RecentObject;

const PODS: &str = "/api/v1/namespaces/default/pods";
const POD: &str = r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"nginx"}]}}"#;

impl World {
    /// The stored state of an object in the namespace `default`.
    async fn found(&self, prefix: &str, name: &str) -> KeyValue {
        let key = Key::new(prefix, Some("default"), name).unwrap();
        self.writer.backend().storage().get(&key).await.unwrap().0.expect("the object is stored")
    }

    /// Takes the kept tree of an object, with the stored state.
    async fn take(&self, prefix: &str, name: &str) -> (KeyValue, Option<RecentObject>) {
        let found = self.found(prefix, name).await;
        let kept = self.writer.recent().take(&found);
        (found, kept)
    }
}

#[tokio::test]
async fn every_write_of_a_pod_keeps_the_tree_that_the_next_write_would_parse() {
    let world = World::new().await;
    for (line, body) in [
        (post(PODS), POD),
        (patch(PODS, "p", MERGE), r#"{"metadata":{"labels":{"a":"b"}}}"#),
        (post(&format!("{PODS}/p/binding")), r#"{"metadata":{"name":"p"},"target":{"kind":"Node","name":"node"}}"#),
        (
            patch(PODS, "p/status", STRATEGIC),
            r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#,
        ),
        (patch(PODS, "p/status", MERGE), r#"{"status":{"podIP":"10.0.0.1"}}"#),
        (
            put(PODS, "p/status"),
            r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"nginx"}]},"status":{"phase":"Running","message":"m"}}"#,
        ),
        (format!("DELETE {PODS}/p"), ""),
    ] {
        world.send(&line, body).await.unwrap();
        let (found, kept) = world.take("pods", "p").await;
        let RecentObject { tree, managed } = kept.unwrap_or_else(|| panic!("{line} kept no tree"));
        assert_eq!(encode_tree(&tree), found.value, "{line}");
        assert_eq!(tree, parse_tree(&found.value).unwrap(), "{line}");
        let managed = managed.unwrap_or_else(|| panic!("{line} kept no managed fields"));
        assert_eq!(managed.read_again(), managed.managed, "{line}");
        let object = RecentObject { tree, managed: Some(managed) };
        world.writer.recent().keep(&found.key, found.modified, found.value, object);
    }
}

#[tokio::test]
async fn tree_is_kept_by_the_create_of_an_object_with_a_status_only() {
    let world = World::new().await;
    world.send(&post(MAPS), r#"{"metadata":{"name":"m"}}"#).await.unwrap();
    assert!(world.take("configmaps", "m").await.1.is_none());
    world.send(&patch(MAPS, "m", MERGE), r#"{"data":{"a":"b"}}"#).await.unwrap();
    assert!(world.take("configmaps", "m").await.1.is_some());
}

#[tokio::test]
async fn definitions_keep_no_tree() {
    const DEFINITION: &str = r#"{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Cluster",
        "names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,
        "schema":{"openAPIV3Schema":{"type":"object"}}}]}}"#;
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let world = World::new().await;
    let before = world.writer.recent().len();
    world.send(&post(DEFINITIONS), DEFINITION).await.unwrap();
    world
        .send(&patch(DEFINITIONS, "widgets.example.com", MERGE), r#"{"metadata":{"labels":{"a":"b"}}}"#)
        .await
        .unwrap();
    assert_eq!(world.writer.recent().len(), before);
}

#[tokio::test]
async fn dry_runs_and_refused_writes_keep_no_tree() {
    /// The number of kept trees besides that of the namespace.
    fn kept(world: &World) -> usize {
        world.writer.recent().len() - 1
    }
    const BINDING: &str = r#"{"metadata":{"name":"p"},"target":{"kind":"Node","name":"node"}}"#;
    let world = World::new().await;
    world.send(&post(PODS), POD).await.unwrap();
    let binding = post(&format!("{PODS}/p/binding"));
    world.send(&format!("{binding}?dryRun=All"), BINDING).await.unwrap();
    assert_eq!(kept(&world), 0, "binding");
    world.send(&binding, BINDING).await.unwrap();
    assert_eq!(kept(&world), 1);
    for (line, body) in [
        (format!("PATCH {PODS}/p?dryRun=All {MERGE}"), r#"{"metadata":{"labels":{"a":"b"}}}"#),
        (patch(PODS, "p", MERGE), r#"{"metadata":{"labels":{"a":"not a value"}}}"#),
        (format!("DELETE {PODS}/p?dryRun=All&gracePeriodSeconds=5"), ""),
    ] {
        world.take("pods", "p").await;
        let answer = world.answer(&line, body).await;
        assert_eq!(kept(&world), 0, "{line}: {answer}");
    }
}

#[tokio::test]
async fn write_after_a_write_of_another_server_starts_from_the_stored_object() {
    let storage = MemoryStorage::new();
    let (one, other) = (World::over(Arc::clone(&storage) as Arc<dyn Storage>).await, testing::writer(storage));
    let other = World { writer: Arc::new(other), clock: Clock::fixed(parse_timestamp(NOW).unwrap()) };
    one.send(&post(PODS), POD).await.unwrap();
    other.send(&patch(PODS, "p", MERGE), r#"{"metadata":{"labels":{"a":"b"}}}"#).await.unwrap();
    one.send(&patch(PODS, "p", MERGE), r#"{"metadata":{"labels":{"c":"d"}}}"#).await.unwrap();
    let stored = parse_tree(&one.found("pods", "p").await.value).unwrap();
    assert_eq!(stored["metadata"]["labels"].to_string(), r#"{"a":"b","c":"d"}"#);
}

#[tokio::test]
async fn object_without_room_for_its_managed_fields_keeps_a_tree_without_them() {
    let world = World::new().await;
    let data: String = (0..20_000).map(|n| format!(r#","key-{n:05}":"{}""#, "x".repeat(50))).collect();
    world.send(&post(MAPS), r#"{"metadata":{"name":"m"}}"#).await.unwrap();
    world.send(&patch(MAPS, "m", MERGE), &format!(r#"{{"data":{{"a":"b"{data}}}}}"#)).await.unwrap();
    assert!(!String::from_utf8_lossy(&world.found("configmaps", "m").await.value).contains("managedFields"));
    assert!(world.take("configmaps", "m").await.1.is_none(), "the tree is too large");
    world.send(&patch(MAPS, "m", MERGE), r#"{"data":null}"#).await.unwrap();
    let (found, kept) = world.take("configmaps", "m").await;
    assert_eq!(encode_tree(&kept.expect("a small tree").tree), found.value);
}
