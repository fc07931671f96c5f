//! `storm`: many informers that start at once, each with a WatchList.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::http::{Client, Http};
use crate::objects::{Objects, Select};
use crate::report::{Metrics, Report};
use crate::run::Common;
use crate::target::Target;
use crate::watch::{Request, Watching};

/// The time limit for all informers together.
const SYNC_WAIT: Duration = Duration::from_secs(300);

/// Start many informers at once (WatchList): CPU per MB, time until all are synced, peak memory
#[derive(Debug, clap::Args)]
pub(crate) struct Storm {
    /// Number of informers
    #[arg(long, value_delimiter = ',', default_value = "1,20")]
    informers: Vec<usize>,

    /// Number of objects
    #[arg(long, default_value_t = 20_000)]
    objects: usize,

    /// Size of an object in KiB as it is written
    #[arg(long, default_value_t = 1)]
    kib: usize,

    /// HTTP version of the informers
    #[arg(long, value_delimiter = ',', default_value = "h2")]
    http: Vec<Http>,

    /// Number of informers per HTTP/2 connection; 1 is like separate processes
    #[arg(long, default_value_t = 1)]
    streams: usize,
}

impl Storm {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        let targets = common.start()?;
        // The same objects as in `list`, so that both loads can share a server.
        let objects = Objects { count: self.objects, kib: self.kib, select: Select::Label, groups: 10 };
        for target in &targets {
            eprintln!("{}: making {} objects", target.name, objects.count);
            objects.make(target).await?;
        }
        for &http in &self.http {
            for &informers in &self.informers {
                let parameters = [
                    ("informers", informers.to_string()),
                    ("objects", self.objects.to_string()),
                    ("KiB", self.kib.to_string()),
                    ("HTTP", http.to_string()),
                ];
                let measure = async |target: &Arc<Target>, like: Option<&Metrics>| {
                    let bytes = like.and_then(|like| like.iter().find(|(name, _)| *name == "mb_per_answer"));
                    self.measure(target, http, informers, objects, bytes.map(|(_, mb)| (mb * 1e6) as usize)).await
                };
                common.row(&mut report, "WatchList storm", &parameters, &targets, false, measure).await?;
            }
        }
        Ok(report)
    }

    async fn measure(
        &self,
        target: &Arc<Target>,
        http: Http,
        informers: usize,
        objects: Objects,
        floor_bytes: Option<usize>,
    ) -> Outcome<Metrics> {
        let mut path = format!(
            "{}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
             &timeoutSeconds=86400",
            objects.collection()
        );
        if let Some(bytes) = floor_bytes {
            path += &format!("&bytes={bytes}");
        }
        // A server may load a resource from its store at the first request.
        Client::connect(target, Http::H1).await?.version(objects.collection()).await?;
        target.reset_peak();
        let requests = vec![Request { path, group: 0, initial: true }; informers];
        let (before, begun) = (target.usage(), Instant::now());
        let watching = Watching::begin(target, http, self.streams, requests);
        while watching.board.synced.load(Ordering::Relaxed) < informers {
            watching.board.check()?;
            if begun.elapsed() > SYNC_WAIT {
                return Err(format!("not in sync after {} s", SYNC_WAIT.as_secs()).into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (took, after) = (begun.elapsed().as_secs_f64(), target.usage());
        let results = watching.close().await;
        let tallies = || results.iter().flat_map(|results| &results.tallies).map(|(_, tally)| tally);
        // A server may contain more objects than this load created, but every informer must receive
        // the same ones.
        let most = tallies().map(|tally| tally.initial_objects).max().unwrap_or(0);
        let due = if target.floor { most } else { most.max(objects.count as u64) };
        let mb = tallies().map(|tally| tally.bytes as f64).sum::<f64>() / 1e6;
        let mut metrics = Metrics::new();
        if let Some((before, after)) = before.zip(after) {
            metrics.push(("cpu_ms_per_mb", (after.cpu - before.cpu).as_secs_f64() * 1e3 / mb));
            metrics.push(("rss_before_mib", before.rss_kib as f64 / 1024.0));
            metrics.push(("peak_rss_mib", after.peak_kib as f64 / 1024.0));
        }
        metrics.push(("seconds", took));
        metrics.push(("mb_per_s", mb / took));
        metrics.push(("mb_per_answer", mb / informers as f64));
        metrics.push(("bytes_per_event", mb * 1e6 / tallies().map(|tally| tally.initial_objects as f64).sum::<f64>()));
        metrics.push(("lost", tallies().map(|tally| due - tally.initial_objects).sum::<u64>() as f64));
        Ok(metrics)
    }
}
