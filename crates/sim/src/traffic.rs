//! The writers: ConfigMaps are created, changed, relabeled and deleted through both servers, with
//! compactions in between.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, ApiService};
use listwatch_meta::Revision;
use listwatch_storage::{MemoryStorage, Storage as _};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use crate::faults::Faults;
use crate::truth::Truth;

const NAMESPACES: [&str; 2] = ["default", "kube-public"];
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// The label values. Selectors choose among them, so objects enter and leave views.
pub const TIERS: [&str; 3] = ["front", "back", "none"];

/// Performs a number of write attempts.
pub async fn play(
    servers: &[ApiServer],
    writes: usize,
    seed: u64,
    faults: &Faults,
    store: &MemoryStorage,
    truth: &mut Truth,
) {
    let mut rng = StdRng::seed_from_u64(seed);
    for n in 0..writes {
        let service = servers.choose(&mut rng).expect("servers").service();
        write(&service, &mut rng, n).await;
        if rng.random_bool(0.3) {
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..200))).await;
        }
        if rng.random_bool(faults.compact) {
            let head = store.current_revision().await.expect("a store in memory answers");
            truth.catch_up(head).await;
            let keep = rng.random_range(0..20);
            let _ = store.compact(Revision::new(head.get().saturating_sub(keep).max(1))).await;
        }
    }
}

async fn write(service: &ApiService, rng: &mut StdRng, n: usize) {
    let namespace = NAMESPACES.choose(rng).expect("namespaces");
    let name = NAMES.choose(rng).expect("names");
    let tier = TIERS.choose(rng).expect("tiers");
    let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
    let item = format!("{collection}/{name}");
    let (method, path, content_type, body) = match rng.random_range(0..10) {
        0..4 => (
            "POST",
            collection,
            "application/json",
            json!({"metadata": {"name": name, "labels": {"tier": tier}}, "data": {"n": n.to_string()}}),
        ),
        4..8 => (
            "PATCH",
            item,
            "application/merge-patch+json",
            json!({"metadata": {"labels": {"tier": tier}}, "data": {"n": n.to_string()}}),
        ),
        _ => ("DELETE", item, "application/json", json!({})),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .body(Full::new(Bytes::from(body.to_string())))
        .expect("a request");
    // Conflicts and absent objects are part of the traffic; the store's log has the outcome.
    let response = service.handle(request).await;
    let _ = response.into_body().collect().await;
}
