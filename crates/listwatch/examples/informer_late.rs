//! Event handlers of an informer that join late, are slow, or leave. Each handler first receives
//! the current state and then the changes, at its own speed. Handlers do not delay each other.
//!
//! ```text
//! cargo run -p listwatch --example informer_late
//! ```

use std::error::Error;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams, PostParams};
use listwatch::apiserver::ApiServer;
use listwatch::client::informer::{Event, HandlerOptions, InformerConfig, Policy, Remaining};
use listwatch::client::transport::ServiceTransport;
use listwatch::client::{Client, Scope, SharedInformer};
use tokio::sync::watch;

/// A time limit far above the duration of the example.
const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    run().await
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let server = ApiServer::builder().build().await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(kube::Client::new(server.service(), "default"));
    let named = |name: &str| serde_json::from_value(serde_json::json!({"metadata": {"name": name}}));
    maps.create(&PostParams::default(), &named("a")?).await?;

    let client = Client::with_transport(ServiceTransport::new(server.service()), "default");
    let resource = client.discover("configmaps").await?;
    let list_watch = client.list_watch(&resource, &Scope::Namespace("default".to_owned()));
    let informer = SharedInformer::new(list_watch, InformerConfig::named("configmaps"));
    informer.start()?;
    informer.wait_until_synced(TIMEOUT).await?;

    // A stream that joins late and pauses, and a callback that receives each change.
    let mut late = informer.stream(HandlerOptions::named("late"));
    let (seen, mut has_seen) = watch::channel(String::new());
    let each = informer.on(HandlerOptions::named("each").policy(Policy::block()), move |event| {
        if let Some(object) = event.object() {
            seen.send_replace(object.resource_version().into_owned());
        }
        std::future::ready(())
    });
    each.wait_until_synced(TIMEOUT).await?;
    let mut newest = String::new();
    for round in 0..20 {
        let patch = Patch::Merge(serde_json::json!({"data": {"round": round.to_string()}}));
        let map = maps.patch("a", &PatchParams::default(), &patch).await?;
        newest = map.metadata.resource_version.unwrap_or_default();
    }
    tokio::time::timeout(TIMEOUT, has_seen.wait_for(|seen| *seen == newest)).await??;

    // The stream receives the current state once.
    let first = late.next().await.ok_or("the stream ended")?;
    println!("late: {first:?}; {:?}", late.lag());
    assert!(matches!(&first, Event::Added { object, .. } if object.resource_version() == newest));
    assert!(matches!(late.next().await, Some(Event::Synced)));
    assert_eq!(late.lag().waiting, 0);

    // The callback received each change.
    each.remove(Remaining::Drain).await;
    let delivered = each.counts().delivered;
    println!("the callback received {delivered} events");
    assert!(delivered >= 20);

    // A stopped informer reports it, and keeps its handlers for the next start. Nobody polls the
    // stream, so the stop does not wait for it.
    let _busy = informer.stop(Duration::ZERO).await;
    assert!(matches!(late.next().await, Some(Event::Stopped(_))));
    maps.create(&PostParams::default(), &named("b")?).await?;
    informer.start()?;
    let next = tokio::time::timeout(TIMEOUT, late.next()).await?;
    assert!(matches!(next, Some(Event::Added { object, .. }) if object.name() == "b"));
    Ok(())
}
