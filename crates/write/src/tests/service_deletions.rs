//! Tests the clean-up after deleted services.

use std::pin::Pin;

use futures_util::FutureExt as _;

use super::allocations::FaultyStore;
use super::services::{SERVICES, body, claims};
use super::*;
use crate::{Amendment, Propagation};

const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";

type Deletion<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Returns a world with the service `s`, which has an address and a node port, and its Endpoints. Each call of the store
/// takes two polls.
async fn world_with_service(metadata: &str) -> World {
    let world = World::over(Arc::new(FaultyStore::slow(MemoryStorage::new()))).await;
    let service =
        format!(r#"{{"metadata":{{"name":"s"{metadata}}},"spec":{{"type":"NodePort","ports":[{{"port":80}}]}}}}"#);
    world.send(&post(SERVICES), &service).await.unwrap();
    world.send(&post(ENDPOINTS), &body("s", "{}").replace(r#","spec":{}"#, "")).await.unwrap();
    assert_eq!((claims(&world).await, endpoints(&world).await), ((1, 1), 1));
    world
}

async fn endpoints(world: &World) -> usize {
    world.stored("/services/endpoints/").await.len()
}

fn service_key() -> Key {
    Key::from_path("/services/specs/default/s").unwrap()
}

async fn stored_service(world: &World) -> Option<KeyValue> {
    world.writer.backend().storage().get(&service_key()).await.unwrap().0
}

/// Polls `deletion` once at a time, and drops it when the service is deleted. The clean-up must then complete.
async fn check(world: &World, mut deletion: Deletion<'_>) {
    while stored_service(world).await.is_some() {
        assert!(deletion.as_mut().now_or_never().is_none(), "the deletion ends after the clean-up");
    }
    assert_eq!((claims(world).await, endpoints(world).await), ((1, 1), 1), "the clean-up has not begun");
    drop(deletion);
    world.writer.finish_cleanups().await;
    assert_eq!(claims(world).await, (0, 0), "the address and the node port are released");
    assert_eq!(endpoints(world).await, 0, "the Endpoints are deleted");
}

#[tokio::test]
async fn clean_up_of_a_deleted_service_completes_after_the_request_is_dropped() {
    for (metadata, line, sent) in [
        ("", format!("DELETE {SERVICES}/s"), ""),
        ("", format!("DELETE {SERVICES}"), ""),
        (r#","finalizers":["x/y"]"#, patch(SERVICES, "s", MERGE), r#"{"metadata":{"finalizers":null}}"#),
    ] {
        let world = world_with_service(metadata).await;
        if !metadata.is_empty() {
            world.send(&format!("DELETE {SERVICES}/s"), "").await.unwrap();
        }
        check(&world, Box::pin(async { drop(world.send(&line, sent).await) })).await;
    }
}

#[tokio::test]
async fn clean_up_of_a_service_that_a_controller_deletes_completes_after_the_controller_ends() {
    let registry = listwatch_registry::Registry::builtin();
    let services = registry.find("", "v1", "services").unwrap();
    let key = service_key();

    // The controller of namespaces.
    let world = world_with_service("").await;
    check(&world, Box::pin(async { drop(world.writer.remove(services, &key).await) })).await;

    // The garbage collector deletes a dependent.
    let world = world_with_service("").await;
    let found = stored_service(&world).await.unwrap();
    let uid = store::uid_of(&found).unwrap();
    let collect = world.writer.collect(services, &key, (&uid, found.modified), Propagation::Background);
    check(&world, Box::pin(async { drop(collect.await) })).await;

    // The garbage collector removes the last finalizer of an owner.
    let world = world_with_service("").await;
    let amend = world.writer.amend(services, &key, |_| Amendment::Remove);
    check(&world, Box::pin(async { drop(amend.await) })).await;
}

#[tokio::test]
async fn response_to_the_deletion_of_a_service_follows_the_clean_up() {
    let world = world_with_service("").await;
    world.send(&format!("DELETE {SERVICES}/s"), "").await.unwrap();
    assert_eq!((claims(&world).await, endpoints(&world).await), ((0, 0), 0));
}
