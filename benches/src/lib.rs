//! What the benches share: the objects they work on, and a cache that is filled with them.
//!
//! One shape for all of them, so that figures can be set beside each other: config maps of about
//! 1 KiB in ten namespaces, with two labels.

pub mod feed;

use std::sync::Arc;
use std::time::Duration;

use listwatch_cacher::{Cacher, Limits, ResourceConfig};
use listwatch_meta::{Key, ObjectShape};
use listwatch_storage::{MemoryStorage, Storage};

/// Namespaces that the objects are spread over, round-robin.
pub const NAMESPACES: usize = 10;

/// Bytes of an object's payload; with its metadata it is about 1 KiB.
const PAYLOAD_BYTES: usize = 640;

/// The key of object number `n`.
///
/// # Panics
/// Never: every number makes a valid name.
pub fn key(n: usize) -> Key {
    Key::new("configmaps", Some(&namespace(n)), &format!("map-{n:06}")).expect("a valid name")
}

/// The namespace of object number `n`.
pub fn namespace(n: usize) -> String {
    format!("team-{}", n % NAMESPACES)
}

/// The stored bytes of object number `n`; `turn` makes one update differ from the next.
pub fn value(n: usize, turn: u64) -> Vec<u8> {
    let (namespace, tier) = (namespace(n), ["front", "middle", "back", "edge"][n / NAMESPACES % 4]);
    let payload = "0123456789abcdef".repeat(PAYLOAD_BYTES / 16);
    format!(
        "{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"map-{n:06}\",\"namespace\":\"{namespace}\",\
         \"uid\":\"5f0c1d1e-0000-4000-8000-{n:012}\",\"creationTimestamp\":\"2026-01-05T08:00:00Z\",\
         \"labels\":{{\"app\":\"shop\",\"tier\":\"{tier}\"}},\"managedFields\":[{{\"manager\":\"bench\",\"operation\":\"Update\",\
         \"apiVersion\":\"v1\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{{\"f:data\":{{\".\":{{}},\"f:payload\":{{}}}}}}}}]}},\
         \"data\":{{\"turn\":\"{turn}\",\"payload\":\"{payload}\"}}}}"
    )
    .into_bytes()
}

/// What is read of the objects: nothing but the metadata.
pub fn shape() -> Arc<ObjectShape> {
    Arc::new(ObjectShape::new(true, Vec::new()))
}

/// Is this run to measure? `cargo bench` says so; the test runner, which goes through every bench once
/// to see that it holds, does not, and gets small sizes.
pub fn measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// A memory store with `objects` objects, and a cache that has seen all of them.
///
/// # Panics
/// When the store or the cache refuses: then there is nothing to measure.
pub async fn filled(objects: usize) -> (Arc<MemoryStorage>, Cacher) {
    let store = MemoryStorage::new();
    for n in 0..objects {
        store.create(&key(n), value(n, 0).into(), None).await.expect("a new key");
    }
    let cacher = Cacher::start(
        store.clone(),
        ResourceConfig {
            name: "configmaps".to_owned(),
            prefix: "configmaps".to_owned(),
            shape: shape(),
            indexed_fields: Vec::new(),
            limits: Limits { audit_interval: None, ready_wait: Duration::from_secs(60), ..Limits::default() },
        },
    );
    cacher.wait_ready().await.expect("the cache fills");
    (store, cacher)
}

/// A runtime with one thread: a bench measures work, not the scheduling of it.
///
/// # Panics
/// When the system refuses a thread or a poll descriptor.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
