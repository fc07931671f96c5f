//! `cold`: the start-up time of a server with an empty and with a full store, after a stop and
//! after a kill, and its memory without requests.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::http::{Client, Extras, Http};
use crate::objects::{Objects, Select};
use crate::report::{Metrics, Report};
use crate::run::Common;

/// Start a server: time until it is ready and until a first list is complete, CPU and memory
#[derive(Debug, clap::Args)]
pub(crate) struct Cold {
    /// Number of objects in its store; above 0 a durable store is required (--store)
    #[arg(long, value_delimiter = ',', default_value = "0")]
    objects: Vec<usize>,

    /// Size of an object in KiB as it is written
    #[arg(long, default_value_t = 1)]
    kib: usize,

    /// End of the previous server
    #[arg(long, value_delimiter = ',', default_value = "stopped,killed")]
    after: Vec<End>,

    /// Wait for this number of seconds before the list, and measure the memory after them
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum End {
    /// SIGTERM, and time to close
    Stopped,
    /// SIGKILL
    Killed,
}

impl Cold {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        for &count in &self.objects {
            let launch = common.launch()?;
            if count > 0 && !launch.lasts() {
                return Err(
                    "what is in memory does not outlive a server: give --store embedded, or an etcd's URL".into()
                );
            }
            let objects = Objects { count, kib: self.kib, select: Select::Label, groups: 10 };
            if count > 0 {
                eprintln!("{}: making {count} objects", launch.name());
                let target = std::sync::Arc::new(launch.start()?);
                objects.make(&target).await?;
                target.stop()?;
            }
            for &after in &self.after {
                if after == End::Killed && count == 0 {
                    continue;
                }
                let mut rounds = Vec::new();
                for round in 0..common.rounds() {
                    eprintln!("Start {count} {after:?}: {}, round {}", launch.name(), round + 1);
                    let begun = Instant::now();
                    let target = launch.start()?;
                    let ready = begun.elapsed().as_secs_f64() * 1e3;
                    let started = target.usage().ok_or("the server has ended")?;
                    let waits = Instant::now();
                    tokio::time::sleep(Duration::from_secs(self.idle)).await;
                    let idle = target.usage().ok_or("the server has ended")?;
                    let begun = begun + waits.elapsed();
                    let mut client = Client::connect(&target, Http::H2).await?;
                    let bytes = client.drain(objects.collection(), Extras::default()).await?;
                    let listed = begun.elapsed().as_secs_f64() * 1e3;
                    let used = target.usage().ok_or("the server has ended")?;
                    if (bytes as usize) < count * self.kib * 900 {
                        return Err(format!("a list of {count} objects has {bytes} bytes only").into());
                    }
                    let mut metrics = Metrics::from([
                        ("ready_ms", ready),
                        ("ready_rss_mib", started.rss_kib as f64 / 1024.0),
                        ("listed_ms", listed),
                        ("mb_per_answer", bytes as f64 / 1e6),
                        ("cpu_s", used.cpu.as_secs_f64()),
                        ("rss_mib", used.rss_kib as f64 / 1024.0),
                        ("peak_rss_mib", used.peak_kib as f64 / 1024.0),
                    ]);
                    if self.idle > 0 {
                        metrics.push(("idle_rss_mib", idle.rss_kib as f64 / 1024.0));
                    }
                    rounds.push(metrics);
                    drop(client);
                    match after {
                        End::Stopped => target.stop()?,
                        End::Killed => drop(target),
                    }
                }
                let before = if count == 0 { "-".to_owned() } else { format!("{after:?}").to_lowercase() };
                let parameters = [("objects", count.to_string()), ("KiB", self.kib.to_string()), ("before", before)];
                report.add("Start", &parameters, launch.name(), &rounds);
            }
        }
        Ok(report)
    }
}
