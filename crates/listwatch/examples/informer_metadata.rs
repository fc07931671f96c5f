//! A cache of metadata only. The server sends no other fields of large objects, and a projection
//! drops unneeded metadata before the metadata is copied.
//!
//! ```text
//! cargo run -p listwatch --example informer_metadata
//! ```

use std::error::Error;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use listwatch::apiserver::ApiServer;
use listwatch::client::informer::{InformerKey, SharedInformerFactory};
use listwatch::client::transport::ServiceTransport;
use listwatch::client::{Client, Projection, ReflectorConfig, Stored as _};
use listwatch::meta::LabelSelector;

/// A time limit far above the duration of the example.
const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    run().await
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let server = ApiServer::builder().build().await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(kube::Client::new(server.service(), "default"));
    for n in 0..50 {
        let map = serde_json::from_value(serde_json::json!({
            "metadata": {"name": format!("m{n:02}"), "labels": {"parity": if n % 2 == 0 { "even" } else { "odd" }}},
            "data": {"text": "x".repeat(10_000)},
        }))?;
        maps.create(&PostParams::default(), &map).await?;
    }

    let client = Client::with_transport(ServiceTransport::new(server.service()), "default");
    let factory = SharedInformerFactory::new(&client, ReflectorConfig::default());
    let key = InformerKey::new(client.discover("configmaps").await?).namespaces(["default"]);
    let whole = factory.informer(&key);
    let slim = factory.informer(
        &key.clone().metadata_only().projection(Projection::everything().without(["metadata.managedFields"])),
    );
    factory.start()?;
    factory.wait_until_synced(TIMEOUT).await?;

    let bytes = |informer: &listwatch::client::SharedInformer| {
        informer.store().snapshot().iter().map(|object| object.json().len()).sum::<usize>()
    };
    assert!(slim.store().snapshot().iter().all(|object| object.metadata().kind == "PartialObjectMetadata"));
    println!("whole: {} bytes, metadata alone: {} bytes", bytes(&whole), bytes(&slim));
    assert!(bytes(&slim) * 10 < bytes(&whole));
    let snapshot = slim.store().snapshot();
    let even = snapshot.select(&LabelSelector::parse("parity=even")?);
    assert_eq!(even.len(), 25);
    println!("the first of them: {} {:?}", even[0].key(), even[0].label("parity"));
    factory.shutdown(TIMEOUT).await?;
    Ok(())
}
