//! The trees that a write keeps for the next write of the same object.

use listwatch_registry::{encode_tree, parse_tree};

use super::*;
use crate::recent::RecentObject;

const PODS: &str = "/api/v1/namespaces/default/pods";
const POD: &str = r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"nginx"}]}}"#;

impl World {
    /// Takes the kept tree of an object in the namespace `default`, with the stored state.
    async fn take(&self, prefix: &str, name: &str) -> (KeyValue, Option<RecentObject>) {
        let key = Key::new(prefix, Some("default"), name).unwrap();
        let found = self.writer.backend().storage().get(&key).await.unwrap().0.expect("the object is stored");
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
        assert!(managed.as_ref().is_some_and(|managed| managed.is_of(&tree)), "{line} kept no managed fields");
        world.writer.recent().keep(&found.key, found.modified, found.value, RecentObject { tree, managed });
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
async fn dry_run_and_refused_write_keep_no_tree_of_their_own() {
    let world = World::new().await;
    world.send(&post(PODS), POD).await.unwrap();
    for (line, body) in [
        (patch(PODS, "p?dryRun=All", MERGE), r#"{"metadata":{"labels":{"a":"b"}}}"#),
        (patch(PODS, "p", MERGE), r#"{"metadata":{"labels":{"a":"not a value"}}}"#),
        (format!("DELETE {PODS}/p?dryRun=All&gracePeriodSeconds=5"), ""),
    ] {
        let _ = world.send(&line, body).await;
        let (found, kept) = world.take("pods", "p").await;
        assert!(kept.is_none_or(|kept| encode_tree(&kept.tree) == found.value), "{line}");
    }
}
