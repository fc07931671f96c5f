//! Runs a short informer soak test over the network. Meanwhile the server in this process is
//! restarted and the store is compacted.

// The example's `main` is not called here.
#[allow(dead_code)]
#[path = "../../examples/informer_soak.rs"]
mod informer_soak;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use informer_soak::{Plan, run};
use listwatch::apiserver::{ApiServer, Serving};
use listwatch::meta::Key;
use listwatch::storage::{MemoryStorage, Storage};

async fn serve(storage: &Arc<dyn Storage>, port: u16) -> (ApiServer, Serving) {
    let server = ApiServer::builder().storage(storage.clone()).build().await.expect("a server");
    let begun = Instant::now();
    let listener = loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => break listener,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "the port is not free again: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let serving = server.serve_plain(listener).expect("serving");
    (server, serving)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_handler_converges_after_restarts_and_compaction() {
    let storage: Arc<dyn Storage> = MemoryStorage::new();
    let port = listwatch_test_ports::free_port().expect("a free port");
    let (server, serving) = serve(&storage, port).await;
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\nusers: [{{name: u, user: {{}}}}]\ncontexts: [{{name: here, context: {{cluster: c, user: u, namespace: default}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).expect("written");
    let soak = tokio::spawn(run(Plan { kubeconfig, seconds: 9, writes_per_second: 200, objects: 60, seed: 7 }));
    tokio::time::sleep(Duration::from_secs(4)).await;
    server.shutdown();
    serving.shutdown().await;
    // Objects change meanwhile, and the store compacts its history. Every informer's version is
    // compacted, and the new server has no older history.
    let key = Key::new("configmaps", Some("default"), "meanwhile").expect("a key");
    let meanwhile =
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"meanwhile","namespace":"default","uid":"m"}}"#;
    let at = storage.create(&key, meanwhile.into(), None).await.expect("created");
    storage.compact(at).await.expect("compacted");
    let (_server, _serving) = serve(&storage, port).await;
    let told = soak.await.expect("no panic").expect("no promise broken");
    println!("{told}");
}
