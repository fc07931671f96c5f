//! `definitions`: the cost of many CustomResourceDefinitions, none of whose objects exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde_json::{Map, Value, json};

use crate::Outcome;
use crate::http::{Client, Extras, Http};
use crate::report::{Metrics, Report};
use crate::run::Common;
use crate::target::Target;

const COLLECTION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The number of API groups of the definitions.
const GROUPS: usize = 50;
/// The longest time until all definitions are established.
const ESTABLISHED_MAX: Duration = Duration::from_secs(300);

/// Create CustomResourceDefinitions: time until all are established, memory for each, documents
#[derive(Debug, clap::Args)]
pub(crate) struct Definitions {
    /// Number of definitions, each with a schema of 30 fields and a status
    #[arg(long, default_value_t = 2000)]
    count: usize,

    /// Number of clients that create the definitions
    #[arg(long, default_value_t = 8)]
    clients: usize,

    /// Seconds before memory is measured; the histories of watches hold former states for 75 s
    #[arg(long, default_value_t = 100)]
    settle: u64,
}

impl Definitions {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        // The floor has no definitions.
        let common = common.once().without_floor();
        let targets = common.start()?;
        let parameters = [("definitions", self.count.to_string()), ("clients", self.clients.to_string())];
        let measure = async |target: &Arc<Target>, _: Option<&Metrics>| self.measure(target).await;
        common.row(&mut report, "Definitions", &parameters, &targets, false, measure).await?;
        Ok(report)
    }

    async fn measure(&self, target: &Arc<Target>) -> Outcome<Metrics> {
        let begun = Instant::now();
        let before = target.usage();
        let next = Arc::new(AtomicUsize::new(0));
        let mut creating = tokio::task::JoinSet::new();
        for _ in 0..self.clients {
            let (target, next, count) = (target.clone(), next.clone(), self.count);
            creating.spawn(async move {
                let mut client = Client::connect(&target, Http::H1).await?;
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return Outcome::Ok(());
                    }
                    let extras = Extras { body: definition(n), ..Extras::default() };
                    client.expect(Method::POST, COLLECTION, extras).await?;
                }
            });
        }
        while let Some(done) = creating.join_next().await {
            done??;
        }
        let mut client = Client::connect(target, Http::H1).await?;
        let mut bytes = 0;
        while !self.are_established(&mut client, &mut bytes).await? {
            if begun.elapsed() > ESTABLISHED_MAX {
                return Err(format!("not all definitions are established after {ESTABLISHED_MAX:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut metrics = Metrics::from([("established_s", begun.elapsed().as_secs_f64())]);
        let usage = target.usage();
        tokio::time::sleep(Duration::from_secs(self.settle)).await;
        let count = self.count as f64;
        if let (Some(before), Some(usage), Some(after)) = (before, usage, target.usage()) {
            metrics.push(("cpu_ms_per_definition", (usage.cpu - before.cpu).as_secs_f64() * 1e3 / count));
            metrics.push(("kib_per_definition", (after.rss_kib as f64 - before.rss_kib as f64) / count));
        }
        metrics.push(("definition_kib", bytes as f64 / 1024.0 / count));
        for (name, path, accept) in [
            ("discovery_ms", "/apis", Some(DISCOVERY)),
            ("openapi_v3_ms", "/openapi/v3", None),
            ("openapi_v2_ms", "/openapi/v2", None),
        ] {
            let begun = Instant::now();
            client.drain(path, Extras { accept, ..Extras::default() }).await?;
            metrics.push((name, begun.elapsed().as_secs_f64() * 1e3));
        }
        metrics.extend(target.usage().map(|usage| ("rss_mib", usage.rss_kib as f64 / 1024.0)));
        Ok(metrics)
    }

    /// Whether all definitions have the condition `Established`. Also returns the bytes of their list.
    async fn are_established(&self, client: &mut Client<'_>, bytes: &mut usize) -> Outcome<bool> {
        let list = client.expect(Method::GET, COLLECTION, Extras::default()).await?;
        *bytes = list.len();
        let list: Value = serde_json::from_slice(&list)?;
        let is_established = |definition: &&Value| {
            let conditions = definition["status"]["conditions"].as_array();
            let is_true = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
            conditions.is_some_and(|conditions| conditions.iter().any(is_true))
        };
        Ok(list["items"].as_array().map_or(0, |items| items.iter().filter(is_established).count()) >= self.count)
    }
}

fn definition(n: usize) -> Bytes {
    let text = json!({"type": "string", "description": "A field of the specification, described in one sentence."});
    let fields: Map<String, Value> = (0..20).map(|field| (format!("field{field}"), text.clone())).collect();
    let condition: Map<String, Value> = ["type", "status", "reason", "message", "lastTransitionTime"]
        .into_iter()
        .map(|name| (name.to_owned(), json!({"type": "string"})))
        .collect();
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": fields},
            "status": {"type": "object", "properties": {
                "conditions": {"type": "array", "items": {"type": "object", "properties": condition}},
            }},
        },
    });
    let group = format!("group{}.example.com", n % GROUPS);
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widget{n}s.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": format!("widget{n}s"), "singular": format!("widget{n}"), "kind": format!("Widget{n}")},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}},
            }],
        },
    });
    definition.to_string().into()
}
