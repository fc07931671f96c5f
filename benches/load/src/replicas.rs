//! `replicas`: several servers on one etcd that share the watchers, and the cost of each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::http::{Client, Http};
use crate::objects::{Objects, Select};
use crate::report::{Metrics, Report};
use crate::run::{Common, percentile};
use crate::tally;
use crate::target::Target;
use crate::watch::{Request, Watching};

/// The number of objects that are changed round-robin.
const OBJECTS: usize = 200;
/// The time limit for all events after the last write.
const ARRIVE_WAIT: Duration = Duration::from_secs(20);

/// Share the watchers between several servers on one etcd (--store URL); writes go to the first
#[derive(Debug, clap::Args)]
pub(crate) struct Replicas {
    /// Number of servers
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    replicas: Vec<usize>,

    /// Number of watchers of everything, over all servers
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    watchers: Vec<usize>,

    /// Writes per second
    #[arg(long, default_value_t = 100)]
    rate: u32,

    /// Number of watches per HTTP/2 connection
    #[arg(long, default_value_t = 100)]
    streams: usize,
}

impl Replicas {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        for &watchers in &self.watchers {
            for &replicas in &self.replicas {
                let mut rounds: Vec<Vec<Metrics>> = vec![Vec::new(); replicas];
                for round in 0..common.rounds() {
                    let launch = common.launch()?;
                    if !launch.lasts() || launch.name().contains("embedded") {
                        return Err("several servers share an etcd: give its URL with --store".into());
                    }
                    eprintln!("Replicas {watchers} {replicas}: round {}", round + 1);
                    let servers = (0..replicas).map(|_| Ok(Arc::new(launch.start()?))).collect::<Outcome<Vec<_>>>()?;
                    for (of_server, metrics) in rounds.iter_mut().zip(self.measure(&servers, watchers, common).await?) {
                        of_server.push(metrics);
                    }
                }
                for (server, rounds) in rounds.iter().enumerate() {
                    let parameters = [
                        ("watchers", watchers.to_string()),
                        ("servers", replicas.to_string()),
                        ("rate", self.rate.to_string()),
                    ];
                    let writes = if server == 0 { "with the writes" } else { "without writes" };
                    report.add("Servers on one etcd", &parameters, &format!("number {}, {writes}", server + 1), rounds);
                }
            }
        }
        Ok(report)
    }

    async fn measure(&self, servers: &[Arc<Target>], watchers: usize, common: &Common) -> Outcome<Vec<Metrics>> {
        let objects = Objects { count: OBJECTS, kib: 1, select: Select::All, groups: 1 };
        objects.make(&servers[0]).await?;
        let version = Client::connect(&servers[0], Http::H1).await?.version(objects.collection()).await?;
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=86400",
            objects.collection()
        );
        let mut shares = Vec::new();
        for (index, server) in servers.iter().enumerate() {
            let share = watchers / servers.len() + usize::from(index < watchers % servers.len());
            let requests = vec![Request { path: path.clone(), group: 0, initial: false }; share];
            shares.push((share as u64, Watching::open(server, Http::H2, self.streams, requests).await?));
        }
        let clock = shares[0].1.board.clone();
        // Each board counts from its own start time.
        let behind: Vec<u64> = shares.iter().map(|(_, watching)| clock.now() - watching.board.now()).collect();
        let before: Vec<_> = servers.iter().map(|server| server.usage()).collect();
        let begun = Instant::now();
        let mut client = Client::connect(&servers[0], Http::H1).await?;
        let mut writes: std::collections::HashMap<u64, u64> = std::collections::HashMap::new();
        for turn in 0_u32.. {
            let due = begun + Duration::from_secs_f64(f64::from(turn) / f64::from(self.rate.max(1)));
            if due > begun + common.seconds {
                break;
            }
            tokio::time::sleep_until(due.into()).await;
            let start = clock.now();
            let answer = objects.update(&mut client, turn as usize % OBJECTS, start).await?;
            writes.insert(tally::revision(&answer).ok_or("the answer to a write has no resource version")?, start);
        }
        let until = Instant::now() + ARRIVE_WAIT;
        let all = |(share, watching): &(u64, Watching)| watching.board.delivered() >= share * writes.len() as u64;
        while !shares.iter().all(all) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut rows = Vec::new();
        for (((share, watching), server), (before, behind)) in
            shares.into_iter().zip(servers).zip(before.into_iter().zip(behind))
        {
            let after = server.usage();
            watching.board.check()?;
            let results = watching.close().await;
            let mut times: Vec<f64> = results
                .iter()
                .flat_map(|results| &results.receipts)
                .filter_map(|(revision, at)| Some((at + behind).saturating_sub(*writes.get(revision)?) as f64 / 1e6))
                .collect();
            let tallies = || results.iter().flat_map(|results| &results.tallies).map(|(_, tally)| tally);
            let delivered: u64 = tallies().map(|tally| tally.events.count).sum();
            let mut metrics = Metrics::new();
            if let Some((before, after)) = before.zip(after) {
                let cpu = (after.cpu - before.cpu).as_secs_f64();
                metrics.push(("cpu_us_per_delivery", cpu * 1e6 / delivered as f64));
                metrics.push(("cpu_us_per_write", cpu * 1e6 / writes.len() as f64));
                metrics.push(("rss_mib", after.rss_kib as f64 / 1024.0));
            }
            metrics.push(("start_p50_ms", percentile(&mut times, 0.5)));
            metrics.push(("start_p99_ms", percentile(&mut times, 0.99)));
            metrics.push(("lost", (share * writes.len() as u64).saturating_sub(delivered) as f64));
            metrics.push(("duplicate", tallies().map(|tally| tally.duplicates).sum::<u64>() as f64));
            metrics.push(("misordered", tallies().map(|tally| tally.misordered).sum::<u64>() as f64));
            rows.push(metrics);
        }
        Ok(rows)
    }
}
