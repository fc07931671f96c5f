//! A cache of typed pods with an index by node, and a handler that receives their changes. The
//! server is in this process; for a cluster, create the client from a kubeconfig.
//!
//! ```text
//! cargo run -p listwatch --example informer_pods
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use listwatch::apiserver::ApiServer;
use listwatch::client::informer::{Event, HandlerOptions, InformerKey, SharedInformerFactory};
use listwatch::client::transport::ServiceTransport;
use listwatch::client::{Client, ReflectorConfig, Typed};

/// A time limit far above the duration of the example.
const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    run().await
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let server = ApiServer::builder().build().await?;
    let pods: Api<Pod> = Api::default_namespaced(kube::Client::new(server.service(), "default"));
    for (name, node) in [("web-1", "north"), ("web-2", "south"), ("db-1", "north")] {
        pods.create(&PostParams::default(), &pod(name, node)?).await?;
    }

    // For a cluster: Client::new(Config::load(None, None)?)?
    let client = Client::with_transport(ServiceTransport::new(server.service()), "default");
    let factory = SharedInformerFactory::new(&client, ReflectorConfig::default());
    let informer = factory.typed::<Pod>(&InformerKey::new(client.discover("pods").await?));
    let by_node = informer
        .add_index(|pod: &Typed<Pod>| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()))
        .await
        .expect("an informer that was just made");
    let gone = Arc::new(AtomicUsize::new(0));
    let count = gone.clone();
    let handler = informer.on(HandlerOptions::named("print"), move |event| {
        match event {
            Event::Added { object, reason } => {
                println!("+ {} ({reason:?})", object.metadata.name.as_deref().unwrap_or(""))
            }
            Event::Deleted { last, .. } => {
                println!("- {}", last.metadata.name.as_deref().unwrap_or(""));
                count.fetch_add(1, Ordering::Relaxed);
            }
            other => println!("  {other:?}"),
        }
        std::future::ready(())
    });
    factory.start()?;
    handler.wait_until_synced(TIMEOUT).await?;

    let snapshot = informer.store().snapshot();
    for node in snapshot.index_values(&by_node) {
        let names: Vec<String> = snapshot.keys_by_index(&by_node, &node).iter().map(ToString::to_string).collect();
        println!("{node}: {}", names.join(", "));
    }
    assert_eq!(snapshot.by_index(&by_node, &"north".to_owned()).count(), 2);

    // Read your own write: wait until the cache includes it.
    let new = pods.create(&PostParams::default(), &pod("web-3", "south")?).await?;
    let version = new.metadata.resource_version.unwrap_or_default();
    let snapshot = informer.store().wait_for_version(&version, TIMEOUT).await?;
    assert_eq!(snapshot.by_index(&by_node, &"south".to_owned()).count(), 2);

    pods.delete("web-1", &DeleteParams::default().grace_period(0)).await?;
    // The handler processes all earlier events before the stop ends.
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while informer.store().get("default/web-1").is_some() && tokio::time::Instant::now() < deadline {
        let seen = informer.store().snapshot();
        tokio::time::timeout_at(deadline, informer.store().changed(&seen)).await?;
    }
    factory.shutdown(TIMEOUT).await?;
    assert_eq!(gone.load(Ordering::Relaxed), 1);
    Ok(())
}

fn pod(name: &str, node: &str) -> Result<Pod, serde_json::Error> {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "registry.example/app:1"}]},
    }))
}
