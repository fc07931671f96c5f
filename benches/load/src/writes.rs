//! `writes`: the cost of one request for one object: create, update, each kind of patch, apply,
//! get, delete.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum as _;

use crate::Outcome;
use crate::http::{Client, Http};
use crate::objects::{Objects, Patch, Select};
use crate::report::{Metrics, Report};
use crate::run::{Common, per_request};
use crate::target::Target;

/// The number of objects that are read and updated round-robin.
const OBJECTS: usize = 1_000;
/// The number of objects per round that are created only for the deletions.
const DOOMED: usize = 4_000;

/// The number of the next object that does not exist yet.
static FRESH: AtomicUsize = AtomicUsize::new(0);

/// Create, update, patch, apply, get and delete: CPU per request, requests/s, latency
#[derive(Debug, clap::Args)]
pub(crate) struct Writes {
    /// Requests to measure
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "create,update,json-patch,merge-patch,strategic-patch,apply,get,delete"
    )]
    verb: Vec<Verb>,

    /// Number of concurrent connections
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    clients: Vec<usize>,

    /// Size of an object in KiB as it is written
    #[arg(long, default_value_t = 1)]
    kib: usize,

    /// HTTP version of the clients
    #[arg(long, default_value = "h1")]
    http: Http,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Verb {
    Create,
    Update,
    JsonPatch,
    MergePatch,
    StrategicPatch,
    Apply,
    Get,
    Delete,
}

impl Verb {
    fn patch(self) -> Option<Patch> {
        match self {
            Verb::JsonPatch => Some(Patch::Json),
            Verb::MergePatch => Some(Patch::Merge),
            Verb::StrategicPatch => Some(Patch::Strategic),
            Verb::Apply => Some(Patch::Apply),
            Verb::Create | Verb::Update | Verb::Get | Verb::Delete => None,
        }
    }
}

impl Writes {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        // A running server still has the objects of an earlier run.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        FRESH.store(usize::try_from(now)?, Ordering::Relaxed);
        let targets = common.start()?;
        for &verb in &self.verb {
            for &clients in &self.clients {
                let parameters = [
                    ("request", verb.to_possible_value().map_or_else(String::new, |verb| verb.get_name().to_owned())),
                    ("clients", clients.to_string()),
                    ("KiB", self.kib.to_string()),
                ];
                let measure = async |target: &Arc<Target>, _: Option<&Metrics>| {
                    self.measure(target, verb, clients, common.seconds).await
                };
                common.row(&mut report, "One object", &parameters, &targets, false, measure).await?;
            }
        }
        Ok(report)
    }

    async fn measure(&self, target: &Arc<Target>, verb: Verb, clients: usize, duration: Duration) -> Outcome<Metrics> {
        let objects = Objects { count: OBJECTS, kib: self.kib, select: Select::Label, groups: 10 };
        match verb {
            Verb::Create => objects.make_namespaces(target).await?,
            _ => objects.make(target).await?,
        }
        let range = match verb {
            Verb::Create => (FRESH.load(Ordering::Relaxed), usize::MAX),
            Verb::Delete => {
                let from = FRESH.fetch_add(DOOMED, Ordering::Relaxed);
                if !target.floor {
                    create_objects(target, objects, from..from + DOOMED).await?;
                }
                (from, from + DOOMED)
            }
            _ => (0, usize::MAX),
        };
        let next = Arc::new(AtomicUsize::new(range.0));
        let (before, begun) = (target.usage(), Instant::now());
        let until = begun + duration;
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..clients {
            let (target, next, http) = (target.clone(), next.clone(), self.http);
            running.spawn(async move {
                let mut client = Client::connect(&target, http).await?;
                let (mut times, mut bytes) = (Vec::new(), 0);
                while Instant::now() < until {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= range.1 {
                        break;
                    }
                    let start = Instant::now();
                    let (object, turn) = (number % OBJECTS, number as u64 + 1);
                    bytes += match (verb, verb.patch()) {
                        (_, Some(patch)) => objects.patch(&mut client, object, turn, patch).await?,
                        (Verb::Create, _) => objects.create(&mut client, number).await?,
                        (Verb::Delete, _) => objects.delete(&mut client, number).await?,
                        (Verb::Get, _) => objects.get(&mut client, object).await?,
                        _ => objects.update(&mut client, object, turn).await?,
                    }
                    .len();
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                }
                Outcome::Ok((times, bytes))
            });
        }
        let (mut times, mut bytes) = (Vec::new(), 0);
        while let Some(done) = running.join_next().await {
            let (more, of_client) = done??;
            times.extend(more);
            bytes += of_client;
        }
        let (after, took) = (target.usage(), begun.elapsed().as_secs_f64());
        if verb == Verb::Create {
            FRESH.fetch_max(next.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let count = times.len() as f64;
        let mut metrics = per_request(before.zip(after), &mut times, took);
        metrics.push(("bytes_per_event", bytes as f64 / count));
        Ok(metrics)
    }
}

async fn create_objects(target: &Arc<Target>, objects: Objects, range: std::ops::Range<usize>) -> Outcome<()> {
    let next = Arc::new(AtomicUsize::new(range.start));
    let mut makers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (target, next, end) = (target.clone(), next.clone(), range.end);
        makers.spawn(async move {
            let mut client = Client::connect(&target, Http::H1).await?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return Outcome::Ok(());
                }
                objects.create(&mut client, number).await?;
            }
        });
    }
    while let Some(made) = makers.join_next().await {
        made??;
    }
    Ok(())
}
