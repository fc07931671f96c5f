//! `idle`: the memory of a watcher without events.

use std::sync::Arc;
use std::time::Duration;

use crate::Outcome;
use crate::http::{Client, Http};
use crate::objects::{Objects, Select};
use crate::report::{Metrics, Report};
use crate::run::Common;
use crate::target::Target;
use crate::watch::{Request, Watching};

/// Time for the server to release memory before the measurement.
const SETTLE: Duration = Duration::from_secs(2);

/// Memory per watcher without events; each row with a new server
#[derive(Debug, clap::Args)]
pub(crate) struct Idle {
    /// Number of open watches
    #[arg(long, value_delimiter = ',', default_value = "2000")]
    watchers: Vec<usize>,

    /// HTTP version of the watches
    #[arg(long, value_delimiter = ',', default_value = "h2,h1")]
    http: Vec<Http>,

    /// Number of watches per HTTP/2 connection
    #[arg(long, default_value_t = 100)]
    streams: usize,
}

impl Idle {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        for &http in &self.http {
            for &watchers in &self.watchers {
                // A server does not return memory to the system, so each row needs a new one.
                let targets = common.start()?;
                let parameters = [("watchers", watchers.to_string()), ("HTTP", http.to_string())];
                let measure =
                    async |target: &Arc<Target>, _: Option<&Metrics>| self.measure(target, http, watchers).await;
                common.once().row(&mut report, "Idle watchers", &parameters, &targets, false, measure).await?;
            }
        }
        Ok(report)
    }

    async fn measure(&self, target: &Arc<Target>, http: Http, watchers: usize) -> Outcome<Metrics> {
        let objects = Objects { count: 10, kib: 1, select: Select::All, groups: 1 };
        objects.make(target).await?;
        let version = Client::connect(target, Http::H1).await?.version(objects.collection()).await?;
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=86400",
            objects.collection()
        );
        // The code of a server's first watch is loaded once, and is no memory of a watcher.
        let first = vec![Request { path: path.clone(), group: 0, initial: false }];
        Watching::open(target, http, self.streams, first).await?.close().await;
        tokio::time::sleep(SETTLE).await;
        let before = target.usage().ok_or("memory cannot be measured without the server's process: give --pid")?;
        let requests = vec![Request { path, group: 0, initial: false }; watchers];
        let watching = Watching::open(target, http, self.streams, requests).await?;
        tokio::time::sleep(SETTLE).await;
        let after = target.usage().ok_or("the server has ended")?;
        watching.board.check()?;
        watching.close().await;
        Ok(vec![
            ("kib_per_watcher", (after.rss_kib as f64 - before.rss_kib as f64) / watchers as f64),
            ("rss_before_mib", before.rss_kib as f64 / 1024.0),
            ("rss_mib", after.rss_kib as f64 / 1024.0),
        ])
    }
}
