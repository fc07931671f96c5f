//! `leases`: the cost of the heartbeats of many nodes, each of which renews a lease every few
//! seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;

use crate::Outcome;
use crate::http::{Client, Extras, Http};
use crate::objects::create_if_absent;
use crate::report::{Metrics, Report};
use crate::run::{Common, percentile};
use crate::tally;
use crate::target::Target;
use crate::watch::{Request, Watching};

const COLLECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Renew the leases of many nodes: CPU per renewal, and whether the rate is reached
#[derive(Debug, clap::Args)]
pub(crate) struct Leases {
    /// Number of nodes
    #[arg(long, value_delimiter = ',', default_value = "5000,20000,100000")]
    nodes: Vec<usize>,

    /// Seconds between two renewals of one lease; kubelets use 10
    #[arg(long, default_value_t = 10.0)]
    every: f64,

    /// Number of connections for the renewals
    #[arg(long, default_value_t = 32)]
    clients: usize,

    /// Number of watchers of all leases, like the node controller
    #[arg(long, default_value_t = 1)]
    watchers: usize,
}

impl Leases {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        let targets = common.start()?;
        for &nodes in &self.nodes {
            let pace = nodes as f64 / self.every;
            let parameters = [
                ("nodes", nodes.to_string()),
                ("watchers", self.watchers.to_string()),
                ("due/s", format!("{pace:.0}")),
            ];
            let measure = async |target: &Arc<Target>, _: Option<&Metrics>| {
                self.measure(target, nodes, pace, common.seconds).await
            };
            common.row(&mut report, "Leases", &parameters, &targets, false, measure).await?;
        }
        Ok(report)
    }

    async fn measure(&self, target: &Arc<Target>, nodes: usize, pace: f64, duration: Duration) -> Outcome<Metrics> {
        let mut versions = make(target, nodes, self.clients).await?;
        let version = Client::connect(target, Http::H1).await?.version(COLLECTION).await?;
        let path = format!("{COLLECTION}?watch=true&resourceVersion={version}&timeoutSeconds=86400");
        let requests = vec![Request { path, group: 0, initial: false }; self.watchers];
        let watching = Watching::open(target, Http::H2, 1, requests).await?;
        let (before, begun) = (target.usage(), Instant::now());
        let until = begun + duration;
        let mut renewing = tokio::task::JoinSet::new();
        for client in 0..self.clients {
            let (target, every) = (target.clone(), self.clients as f64 / pace);
            let mut versions = std::mem::take(&mut versions[client]);
            let clients = self.clients;
            renewing.spawn(async move {
                let mut http = Client::connect(&target, Http::H1).await?;
                let mut times = Vec::new();
                for turn in 0.. {
                    let due = begun + Duration::from_secs_f64(every * f64::from(turn));
                    if due.max(Instant::now()) >= until {
                        break;
                    }
                    tokio::time::sleep_until(due.into()).await;
                    let mine = turn as usize % versions.len();
                    let start = Instant::now();
                    versions[mine] = renew(&mut http, mine * clients + client, versions[mine]).await?;
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                }
                Outcome::Ok(times)
            });
        }
        let mut times = Vec::new();
        while let Some(done) = renewing.join_next().await {
            times.extend(done??);
        }
        let took = begun.elapsed().as_secs_f64();
        let due = (times.len() * self.watchers) as u64;
        // Later events count as lost.
        for _ in 0..1_000 {
            if target.floor || watching.board.delivered() >= due {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let after = target.usage();
        watching.board.check()?;
        let delivered: u64 = watching
            .close()
            .await
            .iter()
            .flat_map(|results| &results.tallies)
            .map(|(_, tally)| tally.events.count)
            .sum();
        let count = times.len() as f64;
        let mut metrics = Metrics::new();
        if let Some((before, after)) = before.zip(after) {
            metrics.push(("cpu_us_per_write", (after.cpu - before.cpu).as_secs_f64() * 1e6 / count));
            metrics.push(("cpu_share", (after.cpu - before.cpu).as_secs_f64() / took));
            metrics.push(("rss_mib", after.rss_kib as f64 / 1024.0));
        }
        metrics.push(("writes_per_s", count / took));
        metrics.push(("p50_ms", percentile(&mut times, 0.5)));
        metrics.push(("p99_ms", percentile(&mut times, 0.99)));
        metrics.push(("lost", if target.floor { 0.0 } else { due.saturating_sub(delivered) as f64 }));
        Ok(metrics)
    }
}

/// A lease for a renewal. Each renewal has another time, because an update without a change causes
/// no event.
fn body(node: usize, version: u64) -> Bytes {
    let version = match version {
        0 => String::new(),
        version => format!(",\"resourceVersion\":\"{version}\""),
    };
    let now = time::OffsetDateTime::now_utc();
    Bytes::from(format!(
        "{{\"apiVersion\":\"coordination.k8s.io/v1\",\"kind\":\"Lease\",\"metadata\":{{\"name\":\"node-{node}\",\
         \"namespace\":\"kube-node-lease\"{version}}},\"spec\":{{\"holderIdentity\":\"node-{node}\",\
         \"leaseDurationSeconds\":40,\"renewTime\":\"{}T{:02}:{:02}:{:02}.{:06}Z\"}}}}",
        now.date(),
        now.hour(),
        now.minute(),
        now.second(),
        now.microsecond()
    ))
}

/// Renews a lease like a kubelet: with the known version. Returns the new version.
pub(crate) async fn renew(client: &mut Client<'_>, node: usize, version: u64) -> Outcome<u64> {
    let extras = Extras { body: body(node, version), ..Extras::default() };
    let answer = client.expect(Method::PUT, &format!("{COLLECTION}/node-{node}"), extras).await?;
    tally::revision(&answer).ok_or_else(|| "a lease without a resource version".into())
}

/// Creates the missing leases. Returns their versions, by the client that will renew them.
pub(crate) async fn make(target: &Arc<Target>, nodes: usize, clients: usize) -> Outcome<Vec<Vec<u64>>> {
    let mut versions = vec![Vec::new(); clients];
    if target.floor {
        for node in 0..nodes {
            versions[node % clients].push(0);
        }
        return Ok(versions);
    }
    let namespace = "{\"apiVersion\":\"v1\",\"kind\":\"Namespace\",\"metadata\":{\"name\":\"kube-node-lease\"}}";
    create_if_absent(&mut Client::connect(target, Http::H1).await?, "/api/v1/namespaces", namespace.into()).await?;
    let made = Arc::new(AtomicUsize::new(0));
    let mut makers = tokio::task::JoinSet::new();
    for client in 0..clients {
        let (target, made) = (target.clone(), made.clone());
        makers.spawn(async move {
            let mut http = Client::connect(&target, Http::H1).await?;
            let mut versions = Vec::new();
            for node in (client..nodes).step_by(clients) {
                create_if_absent(&mut http, COLLECTION, body(node, 0)).await?;
                let lease = http.expect(Method::GET, &format!("{COLLECTION}/node-{node}"), Extras::default()).await?;
                versions.push(tally::revision(&lease).ok_or("a lease without a resource version")?);
                let made = made.fetch_add(1, Ordering::Relaxed) + 1;
                if made.is_multiple_of(20_000) {
                    eprintln!("  {made} of {nodes} leases");
                }
            }
            Outcome::Ok((client, versions))
        });
    }
    while let Some(done) = makers.join_next().await {
        let (client, of_client) = done??;
        versions[client] = of_client;
    }
    Ok(versions)
}
