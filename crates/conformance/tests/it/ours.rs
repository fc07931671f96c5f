//! Tests that listwatch passes every case, over its stores and over both HTTP versions.

use std::sync::Arc;

use listwatch_conformance::{HttpVersion, Outcome, RunOptions};
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, MemoryStorage, Storage};

use crate::world::World;

/// Runs the cases with one of these texts in their names, or all of them.
async fn every_case_passes(storage: Arc<dyn Storage>, version: HttpVersion, only: &[&str]) {
    let world = World::new(storage).await;
    let only = only.iter().map(|&text| text.to_owned()).collect();
    let options = RunOptions { jobs: 16, only, profile: "everything".to_owned() };
    let report = world.judge(version, &options).await;
    // The cache still has what a compaction of this small store removed, so no token expires.
    let is_kept_in_cache = |id: &str, outcome: &Outcome| {
        id.starts_with("expiry/expired-token-comes-with-a-new-one/") && matches!(outcome, Outcome::Skipped { .. })
    };
    let not_passed = report.results.iter().filter(|result| result.outcome != Outcome::Passed);
    let not_passed = not_passed.filter(|result| !is_kept_in_cache(&result.id, &result.outcome));
    let names: Vec<&str> = not_passed.map(|result| result.id.as_str()).collect();
    assert!(names.is_empty(), "{} cases do not pass: {names:?}\n{}", names.len(), report.to_text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_over_the_memory_store_passes_every_case_over_http_1() {
    every_case_passes(MemoryStorage::new(), HttpVersion::Http1, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_over_the_embedded_store_passes_every_case_over_http_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let storage = EmbeddedStorage::open(path, EmbeddedOptions::default()).expect("a store");
    every_case_passes(storage, HttpVersion::Http2, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_over_the_memory_store_passes_the_cases_of_watches_over_http_2() {
    let only = ["watch/", "watch-list/", "ordering/", "expiry/", "restart/"];
    every_case_passes(MemoryStorage::new(), HttpVersion::Http2, &only).await;
}
