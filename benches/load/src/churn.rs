//! `churn`: the cost of watches that are opened and closed at once, as by short-lived clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::http::{Client, Http};
use crate::objects::{Objects, Select};
use crate::report::{Metrics, Report};
use crate::run::{Common, per_request};
use crate::target::Target;

/// Open watches and close them at once: CPU per watch, watches/s, time to the response
#[derive(Debug, clap::Args)]
pub(crate) struct Churn {
    /// Number of concurrent clients
    #[arg(long, value_delimiter = ',', default_value = "8")]
    clients: Vec<usize>,

    /// HTTP version of the watches: streams of one connection per client, or a connection per watch
    #[arg(long, value_delimiter = ',', default_value = "h2,h1")]
    http: Vec<Http>,

    /// Selection of each watch
    #[arg(long, value_delimiter = ',', default_value = "all,label")]
    select: Vec<Select>,

    /// Number of objects
    #[arg(long, default_value_t = 1_000)]
    objects: usize,
}

impl Churn {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        let targets = common.start()?;
        for &http in &self.http {
            for &select in &self.select {
                let objects = Objects { count: self.objects, kib: 1, select, groups: 10 };
                for target in &targets {
                    objects.make(target).await?;
                }
                for &clients in &self.clients {
                    let parameters = [
                        ("clients", clients.to_string()),
                        ("HTTP", http.to_string()),
                        ("each sees", format!("{select:?}").to_lowercase()),
                    ];
                    let measure = async |target: &Arc<Target>, _: Option<&Metrics>| {
                        measure(target, http, clients, objects, common.seconds).await
                    };
                    common.row(&mut report, "Watches that come and go", &parameters, &targets, false, measure).await?;
                }
            }
        }
        Ok(report)
    }
}

async fn measure(
    target: &Arc<Target>,
    http: Http,
    clients: usize,
    objects: Objects,
    duration: Duration,
) -> Outcome<Metrics> {
    let version = Client::connect(target, Http::H1).await?.version(objects.collection()).await?;
    let (before, begun) = (target.usage(), Instant::now());
    let until = begun + duration;
    let mut running = tokio::task::JoinSet::new();
    for client in 0..clients {
        let target = target.clone();
        let path = format!(
            "{}watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=86400",
            objects.selection(client % objects.groups)
        );
        running.spawn(async move {
            let mut shared = match http {
                Http::H1 => None,
                Http::H2 => Some(Client::connect(&target, http).await?),
            };
            let mut times = Vec::new();
            while Instant::now() < until {
                let start = Instant::now();
                match &mut shared {
                    Some(client) => client.open_and_close(&path).await?,
                    // Closing a watch of HTTP/1.1 closes its connection.
                    None => Client::connect(&target, http).await?.open_and_close(&path).await?,
                }
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
            Outcome::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = running.join_next().await {
        times.extend(done??);
    }
    let (after, took) = (target.usage(), begun.elapsed().as_secs_f64());
    Ok(per_request(before.zip(after), &mut times, took))
}
