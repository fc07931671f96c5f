//! A controller that mirrors every ConfigMap with the label `mirror=yes` as a Secret. The
//! controller recreates deleted Secrets, and deletes a Secret with its ConfigMap. The example runs
//! against an API server in this process, changes a few objects, prints the controller's reaction,
//! and ends.
//!
//! ```text
//! cargo run -p listwatch --example controller
//! ```
//!
//! For a cluster, only [`Cluster`] changes: `Client::new(Config::load(None, None)?)?` reads, and
//! any HTTP client writes.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use listwatch::apiserver::{ApiServer, ApiService};
use listwatch::client::controller::{OwnerType, SourceId};
use listwatch::client::transport::ServiceTransport;
use listwatch::client::{
    Client, Controller, ControllerConfig, HttpListWatch, Outcome, Reflection, ReflectorConfig, Request, Scope,
};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run().await
}

/// The connection to the API server: listwatch's client for reads, and plain HTTP requests for
/// writes.
#[derive(Clone)]
struct Cluster {
    client: Client,
    service: ApiService,
}

impl Cluster {
    async fn source(&self, resource: &str, selector: &str) -> Result<Reflection<HttpListWatch>, Failure> {
        let resource = self.client.discover(resource).await?;
        let list_watch = self.client.list_watch(&resource, &Scope::Cluster).labels(selector);
        let config = ReflectorConfig { type_name: Some(resource.type_name()), ..ReflectorConfig::default() };
        Ok(Reflection::new(list_watch, config))
    }

    /// Sends a request and returns the status code and the body.
    async fn send(&self, method: &str, path: &str, body: Value) -> Result<(u16, Value), Failure> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
        let response = self.service.handle(request.body(Full::new(bytes::Bytes::from(body.to_string())))?).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok((code, serde_json::from_slice(&body)?))
    }
}

/// Creates, updates or deletes the Secret to match the ConfigMap, whatever state both are in.
async fn reconcile(cluster: Cluster, secrets: SourceId, request: Request) -> Result<Outcome, Failure> {
    let key = request.key().clone();
    let path = format!("/api/v1/namespaces/{}/secrets", key.namespace());
    let there = request.cache(secrets).snapshot().get(key.as_str()).cloned();
    let Some(map) = request.object() else {
        // The garbage collector deletes owned objects inside the cluster; a controller must delete
        // external ones. A second deletion finds nothing.
        if there.is_some() {
            cluster.send("DELETE", &format!("{path}/{}", key.name()), json!({})).await?;
        }
        return Ok(Outcome::Done);
    };
    let map: Value = serde_json::from_slice(map.json())?;
    let wanted = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": key.name(),
            "labels": {"mirror": "yes"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": key.name(), "uid": map["metadata"]["uid"], "controller": true,
            }],
        },
        "stringData": map["data"],
    });
    let (code, answer) = match there {
        None => cluster.send("POST", &path, wanted).await?,
        Some(_) => cluster.send("PATCH", &format!("{path}/{}", key.name()), wanted).await?,
    };
    match code {
        200 | 201 => {
            // The next reconcile of this key waits until the cache shows this write.
            request.record_write(secrets, answer["metadata"]["resourceVersion"].as_str().unwrap_or_default());
            Ok(Outcome::Done)
        }
        // The cache is stale. Its update follows, and the error causes a retry.
        code => Err(format!("{code}: {}", answer["message"]).into()),
    }
}

pub(crate) async fn run() -> Result<(), Failure> {
    let server = ApiServer::builder().build().await?;
    let client = Client::with_transport(ServiceTransport::new(server.service()), "default");
    let cluster = Cluster { client, service: server.service() };

    let mut config = ControllerConfig::new("mirror");
    config.workers = 2;
    let mut controller = Controller::new(config, cluster.source("configmaps", "mirror=yes").await?);
    let owner = OwnerType { group: String::new(), kind: "ConfigMap".to_owned(), namespaced: true };
    let secrets = controller.owns(cluster.source("secrets", "mirror=yes").await?, owner);
    let working = cluster.clone();
    let handle = controller.start(move |request| reconcile(working.clone(), secrets, request));
    handle.synced().await;

    let maps = "/api/v1/namespaces/default/configmaps";
    let mirrored = "/api/v1/namespaces/default/secrets/settings";
    let settings = json!({"metadata": {"name": "settings", "labels": {"mirror": "yes"}}, "data": {"color": "blue"}});
    cluster.send("POST", maps, settings).await?;
    let made = eventually(&cluster, mirrored, |code, _| code == 200).await?;
    println!("a Secret was made: {}", made["data"]);

    let green = json!({"data": {"color": "green"}});
    cluster.send("PATCH", &format!("{maps}/settings"), green).await?;
    let changed = eventually(&cluster, mirrored, |_, secret| secret["data"] != made["data"]).await?;
    println!("it follows a change: {}", changed["data"]);

    cluster.send("DELETE", mirrored, json!({})).await?;
    let anew = eventually(&cluster, mirrored, |code, secret| {
        code == 200 && secret["metadata"]["uid"] != made["metadata"]["uid"]
    })
    .await?;
    println!("created again after its deletion: {}", anew["metadata"]["name"]);

    cluster.send("DELETE", &format!("{maps}/settings"), json!({})).await?;
    eventually(&cluster, mirrored, |code, _| code == 404).await?;
    println!("it goes with its ConfigMap");

    let metrics = handle.metrics();
    println!("{} reconciles, {} tried again, {} in the queue", metrics.done, metrics.failures(), metrics.queue.depth);
    handle.stop().await?;
    Ok(())
}

/// Repeats a request until its response satisfies the condition.
async fn eventually(cluster: &Cluster, path: &str, right: impl Fn(u16, &Value) -> bool) -> Result<Value, Failure> {
    let asking = async {
        loop {
            let (code, answer) = cluster.send("GET", path, json!({})).await?;
            if right(code, &answer) {
                return Ok::<Value, Failure>(answer);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asking).await.map_err(|_| format!("{path} did not become right"))?
}
