//! `fanout`: the cost and the latency of one write that many watchers receive.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::http::{Client, Http};
use crate::objects::{Objects, Select};
use crate::report::{Metrics, Report};
use crate::run::{Common, percentile};
use crate::tally::{self, Digest};
use crate::target::Target;
use crate::watch::{Request, WatchResults, Watching};

/// The time without progress after the last write, after which missing events count as lost.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The number of objects that are changed round-robin, if the number does not matter.
const OBJECTS: usize = 200;

/// One write, many watchers: CPU per delivered event, events/s, latency, completeness and order
#[derive(Debug, clap::Args)]
pub(crate) struct Fanout {
    /// Number of open watches
    #[arg(long, value_delimiter = ',', default_value = "100,1000")]
    watchers: Vec<usize>,

    /// HTTP version of the watches
    #[arg(long, value_delimiter = ',', default_value = "h2")]
    http: Vec<Http>,

    /// Size of an object in KiB as it is written
    #[arg(long, value_delimiter = ',', default_value = "1")]
    kib: Vec<usize>,

    /// Selection of each watcher
    #[arg(long, value_delimiter = ',', default_value = "all")]
    select: Vec<Select>,

    /// Writes per second; 0 for as many as the watchers can take (see --backlog)
    #[arg(long, value_delimiter = ',', default_value = "0")]
    rate: Vec<u32>,

    /// Without a rate: a write waits while more than this number of writes per watcher have not
    /// arrived
    #[arg(long, default_value_t = 100)]
    backlog: u64,

    /// Number of connections that write
    #[arg(long, default_value_t = 4)]
    writers: usize,

    /// Number of watches per HTTP/2 connection
    #[arg(long, default_value_t = 100)]
    streams: usize,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    watchers: usize,
    http: Http,
    objects: Objects,
    rate: u32,
}

impl Fanout {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        let targets = common.start()?;
        for row in self.rows() {
            let Row { objects, .. } = row;
            let parameters = [
                ("watchers", row.watchers.to_string()),
                ("HTTP", row.http.to_string()),
                ("KiB", objects.kib.to_string()),
                ("each sees", format!("{:?}", objects.select).to_lowercase()),
                ("rate", if row.rate == 0 { "most".to_owned() } else { row.rate.to_string() }),
            ];
            let measure =
                async |target: &Arc<Target>, _: Option<&Metrics>| self.measure(target, row, common.seconds).await;
            common.row(&mut report, "Fan-out", &parameters, &targets, true, measure).await?;
        }
        Ok(report)
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for &select in &self.select {
            for &kib in &self.kib {
                for &rate in &self.rate {
                    for &http in &self.http {
                        for &watchers in &self.watchers {
                            let (groups, count) = match select {
                                Select::All => (1, OBJECTS),
                                Select::Namespace | Select::Label => (10, OBJECTS),
                                Select::Node | Select::Name => (watchers, watchers),
                            };
                            rows.push(Row { watchers, http, rate, objects: Objects { count, kib, select, groups } });
                        }
                    }
                }
            }
        }
        rows
    }

    async fn measure(&self, target: &Arc<Target>, row: Row, duration: Duration) -> Outcome<Metrics> {
        let objects = row.objects;
        objects.make(target).await?;
        let version = Client::connect(target, Http::H1).await?.version(objects.collection()).await?;
        let requests = (0..row.watchers).map(|watcher| {
            let group = watcher % objects.groups;
            let path = format!(
                "{}watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=86400",
                objects.selection(group)
            );
            Request { path, group, initial: false }
        });
        let watching = Watching::open(target, row.http, self.streams, requests.collect()).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;

        let before = target.usage();
        let begun = Instant::now();
        let plan = Arc::new(Plan {
            board: watching.board.clone(),
            objects,
            watchers: row.watchers,
            due: AtomicU64::new(0),
            backlog: self.backlog.saturating_mul((row.watchers / objects.groups).max(1) as u64),
            until: begun + duration,
            rate: f64::from(row.rate) / self.writers as f64,
        });
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..self.writers {
            let (plan, target, writers_count) = (plan.clone(), target.clone(), self.writers);
            writers.spawn(async move { plan.write(&target, writer, writers_count).await });
        }
        let mut writes = Vec::new();
        while let Some(written) = writers.join_next().await {
            writes.extend(written??);
        }
        let ended = plan.arrived().await;
        let after = target.usage();
        watching.board.check()?;
        let results = watching.close().await;
        Ok(metrics(&plan, &writes, &results, ended - begun, before.zip(after)))
    }
}

/// The data that the writers of one measurement share.
struct Plan {
    board: Arc<crate::watch::SharedCounters>,
    objects: Objects,
    watchers: usize,
    /// The number of deliveries that the writes so far require.
    due: AtomicU64,
    /// Without a rate: the maximum number of outstanding deliveries.
    backlog: u64,
    until: Instant,
    /// The number of writes per second and writer; 0 for no limit.
    rate: f64,
}

/// A write: its revision and object, and the times of request and acknowledgment.
struct Write {
    revision: u64,
    object: usize,
    start: u64,
    ack: u64,
}

impl Plan {
    /// The number of watchers that receive an object of this group.
    fn audience(&self, group: usize) -> u64 {
        let groups = self.objects.groups;
        (self.watchers / groups + usize::from(group < self.watchers % groups)) as u64
    }

    async fn write(&self, target: &Target, writer: usize, writers: usize) -> Outcome<Vec<Write>> {
        let mut client = Client::connect(target, Http::H1).await?;
        let mut writes = Vec::new();
        let begun = Instant::now();
        // Each writer has its own objects, so no write waits for another one of the same object.
        let mut object = writer;
        while Instant::now() < self.until {
            if object >= self.objects.count {
                object = writer % self.objects.count;
            }
            if self.rate > 0.0 {
                let due = begun + Duration::from_secs_f64(writes.len() as f64 / self.rate);
                tokio::time::sleep_until(due.into()).await;
            } else if self.due.load(Ordering::Relaxed) > self.board.delivered() + self.backlog {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            let start = self.board.now();
            let turn = start ^ writer as u64;
            self.due.fetch_add(self.audience(self.objects.group(object)), Ordering::Relaxed);
            let answer = self.objects.update(&mut client, object, turn).await?;
            let ack = self.board.now();
            let revision = tally::revision(&answer).ok_or("the answer to a write has no resource version")?;
            writes.push(Write { revision, object, start, ack });
            object += writers;
        }
        Ok(writes)
    }

    /// Waits until all events have arrived, or nothing arrives any more. Returns the time of the
    /// last event.
    async fn arrived(&self) -> Instant {
        let (mut last, mut at) = (0, Instant::now());
        loop {
            let delivered = self.board.delivered();
            if delivered != last {
                (last, at) = (delivered, Instant::now());
            }
            if delivered >= self.due.load(Ordering::Relaxed) || at.elapsed() > SILENCE_MAX {
                return at;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn metrics(
    plan: &Plan,
    writes: &[Write],
    results: &[WatchResults],
    took: Duration,
    usage: Option<(crate::usage::Usage, crate::usage::Usage)>,
) -> Metrics {
    let mut expected = vec![Digest::default(); plan.objects.groups];
    for write in writes {
        expected[plan.objects.group(write.object)].add(write.revision);
    }
    let (mut lost, mut duplicate, mut misordered, mut delivered, mut bytes) = (0, 0, 0, 0, 0);
    for (group, tally) in results.iter().flat_map(|results| &results.tallies) {
        let due = expected[*group];
        lost += due.count.saturating_sub(tally.events.count);
        // The number of events is right, but the events are not.
        lost += u64::from(due.count <= tally.events.count && due != tally.events);
        (duplicate, misordered) = (duplicate + tally.duplicates, misordered + tally.misordered);
        (delivered, bytes) = (delivered + tally.events.count, bytes + tally.bytes);
        if let Some(error) = &tally.error {
            eprintln!("  a watch brought {error}");
        }
    }
    let (mut since_ack, mut since_start) = (Vec::new(), Vec::new());
    let times: HashMap<u64, &Write> = writes.iter().map(|write| (write.revision, write)).collect();
    for (revision, at) in results.iter().flat_map(|results| &results.receipts) {
        if let Some(write) = times.get(revision) {
            since_ack.push((*at as f64 - write.ack as f64) / 1e6);
            since_start.push((*at as f64 - write.start as f64) / 1e6);
        }
    }
    let (delivered, writes) = (delivered as f64, writes.len() as f64);
    let mut metrics = Metrics::new();
    if let Some((before, after)) = usage {
        let cpu_us = (after.cpu - before.cpu).as_secs_f64() * 1e6;
        if plan.objects.select == Select::Name || plan.objects.select == Select::Node {
            metrics.push(("cpu_us_per_write", cpu_us / writes));
        }
        metrics.push(("cpu_us_per_delivery", cpu_us / delivered));
        metrics.push(("rss_mib", after.rss_kib as f64 / 1024.0));
    }
    metrics.push(("deliveries_per_s", delivered / took.as_secs_f64()));
    metrics.push(("writes_per_s", writes / took.as_secs_f64()));
    metrics.push(("ack_p50_ms", percentile(&mut since_ack, 0.5)));
    metrics.push(("ack_p99_ms", percentile(&mut since_ack, 0.99)));
    metrics.push(("start_p50_ms", percentile(&mut since_start, 0.5)));
    metrics.push(("start_p99_ms", percentile(&mut since_start, 0.99)));
    metrics.push(("bytes_per_event", bytes as f64 / delivered));
    metrics.push(("lost", lost as f64));
    metrics.push(("duplicate", duplicate as f64));
    metrics.push(("misordered", misordered as f64));
    metrics
}
