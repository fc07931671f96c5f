//! The common part of the benchmarks: objects, and a cache that contains them.
//!
//! All benchmarks use the same objects, so that their figures can be compared: config maps of about
//! 1 KiB in ten namespaces, with two labels.

pub mod cluster;
pub mod feed;

use std::sync::Arc;
use std::time::Duration;

use listwatch_cacher::{Cacher, Limits, ResourceConfig};
use listwatch_meta::{Key, ObjectShape};
use listwatch_storage::{MemoryStorage, Storage};

/// The number of namespaces of the objects, assigned round-robin.
pub const NAMESPACES: usize = 10;

/// The size of an object's payload in bytes; with its metadata an object has about 1 KiB.
const PAYLOAD_BYTES: usize = 640;

/// The key of object number `n`.
///
/// # Panics
/// Never: every number gives a valid name.
pub fn key(n: usize) -> Key {
    Key::new("configmaps", Some(&namespace(n)), &format!("map-{n:06}")).expect("a valid name")
}

/// The namespace of object number `n`.
pub fn namespace(n: usize) -> String {
    format!("team-{}", n % NAMESPACES)
}

/// The stored bytes of object number `n`; `turn` distinguishes updates.
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

/// The shape of the objects: only metadata is scanned.
pub fn shape() -> Arc<ObjectShape> {
    Arc::new(ObjectShape::new(true, Vec::new()))
}

/// True under `cargo bench`. The test runner runs every benchmark once with small sizes, to check
/// that it works.
pub fn measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Answers `--list` of a test runner for a bench that is one test: prints the name of that test. Returns whether the
/// runner asked; if it did, the bench must end without further output.
pub fn answers_list(name: &str) -> bool {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    if has("--list") && !has("--ignored") {
        println!("{name}: test");
    }
    has("--list")
}

/// A memory store with this number of objects, and a cache that has loaded them.
///
/// # Panics
/// If the store or the cache fails.
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

/// A runtime with one thread, so that a benchmark measures work and not scheduling.
///
/// # Panics
/// If the system refuses a thread or a poll descriptor.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
