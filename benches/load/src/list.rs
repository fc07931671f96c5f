//! `list`: the cost of a list: whole, selected, paged, and in other representations and encodings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use memchr::memmem;

use crate::Outcome;
use crate::http::{Client, Extras, Http};
use crate::objects::{Objects, Select};
use crate::report::{Metrics, Report};
use crate::run::{Common, percentile};
use crate::target::Target;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// List: CPU per MB and per response, MB/s
#[derive(Debug, clap::Args)]
pub(crate) struct Lists {
    /// Number of objects
    #[arg(long, default_value_t = 20_000)]
    objects: usize,

    /// Size of an object in KiB as it is written
    #[arg(long, default_value_t = 1)]
    kib: usize,

    /// Variants to measure
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "consistent,any,paged,namespace,label,table,metadata,protobuf,gzip"
    )]
    variant: Vec<Variant>,

    /// HTTP version of the client
    #[arg(long, value_delimiter = ',', default_value = "h2")]
    http: Vec<Http>,

    /// Number of concurrent clients
    #[arg(long, default_value_t = 2)]
    clients: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Variant {
    /// No resourceVersion: includes every earlier write
    Consistent,
    /// resourceVersion=0: any state of the server
    Any,
    /// Pages of 500 objects
    Paged,
    /// One namespace of ten
    Namespace,
    /// One label value of ten
    Label,
    /// As a Table, like kubectl
    Table,
    /// As PartialObjectMetadataList, like garbage collectors
    Metadata,
    /// As protobuf, like Go clients
    Protobuf,
    /// As JSON with gzip
    Gzip,
}

impl Lists {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        let targets = common.start()?;
        let objects = Objects { count: self.objects, kib: self.kib, select: Select::Label, groups: 10 };
        for target in &targets {
            eprintln!("{}: making {} objects", target.name, objects.count);
            objects.make(target).await?;
        }
        for &http in &self.http {
            for &variant in &self.variant {
                let parameters = [
                    ("objects", self.objects.to_string()),
                    ("KiB", self.kib.to_string()),
                    ("HTTP", http.to_string()),
                    ("list", format!("{variant:?}").to_lowercase()),
                ];
                let measure = async |target: &Arc<Target>, like: Option<&Metrics>| {
                    let bytes = like.and_then(|like| like.iter().find(|(name, _)| *name == "mb_per_answer"));
                    let bytes = bytes.map(|(_, mb)| (mb * 1e6) as usize);
                    self.measure(target, http, variant, objects, bytes, common.seconds).await
                };
                common.row(&mut report, "List", &parameters, &targets, false, measure).await?;
            }
        }
        Ok(report)
    }

    async fn measure(
        &self,
        target: &Arc<Target>,
        http: Http,
        variant: Variant,
        objects: Objects,
        floor_bytes: Option<usize>,
        duration: Duration,
    ) -> Outcome<Metrics> {
        let (path, extras) = match floor_bytes {
            Some(bytes) => (format!("/?bytes={bytes}"), Extras::default()),
            None => asked(variant, objects),
        };
        let known = match floor_bytes {
            Some(_) => true,
            None => !target.floor && complete(target, http, variant, objects).await?,
        };
        if !known {
            eprintln!("  {} does not know this form of a list", target.name);
            return Ok(Metrics::new());
        }
        let (before, begun) = (target.usage(), Instant::now());
        let until = begun + duration;
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..self.clients {
            let (target, path, extras) = (target.clone(), path.clone(), extras.clone());
            let paged = variant == Variant::Paged && floor_bytes.is_none();
            clients.spawn(async move {
                let mut client = Client::connect(&target, http).await?;
                let mut answers = Vec::new();
                while Instant::now() < until {
                    let start = Instant::now();
                    let bytes = match paged {
                        true => pages(&mut client, &path, &extras).await?.0,
                        false => client.drain(&path, extras.clone()).await?,
                    };
                    answers.push((bytes, start.elapsed()));
                }
                Outcome::Ok(answers)
            });
        }
        let mut answers = Vec::new();
        while let Some(done) = clients.join_next().await {
            answers.extend(done??);
        }
        let (after, took) = (target.usage(), begun.elapsed());
        let (count, mb) = (answers.len() as f64, answers.iter().map(|(bytes, _)| *bytes as f64).sum::<f64>() / 1e6);
        let mut times: Vec<f64> = answers.iter().map(|(_, time)| time.as_secs_f64() * 1e3).collect();
        let mut metrics = Metrics::new();
        if let Some((before, after)) = before.zip(after) {
            let cpu = (after.cpu - before.cpu).as_secs_f64();
            metrics.push(("cpu_ms_per_mb", cpu * 1e3 / mb));
            metrics.push(("cpu_us_per_request", cpu * 1e6 / count));
            metrics.push(("rss_mib", after.rss_kib as f64 / 1024.0));
        }
        metrics.push(("mb_per_s", mb / took.as_secs_f64()));
        metrics.push(("mb_per_answer", mb / count));
        metrics.push(("p50_ms", percentile(&mut times, 0.5)));
        metrics.push(("p99_ms", percentile(&mut times, 0.99)));
        Ok(metrics)
    }
}

fn asked(variant: Variant, objects: Objects) -> (String, Extras) {
    let all = objects.collection();
    let path = match variant {
        Variant::Consistent | Variant::Gzip => all.to_owned(),
        Variant::Paged => format!("{all}?limit=500"),
        Variant::Namespace => "/api/v1/namespaces/load-3/configmaps?resourceVersion=0".to_owned(),
        Variant::Label => format!("{}resourceVersion=0", objects.selection(3)),
        Variant::Any | Variant::Table | Variant::Metadata | Variant::Protobuf => format!("{all}?resourceVersion=0"),
    };
    let accept = match variant {
        Variant::Table => Some(TABLE),
        Variant::Metadata => Some(METADATA),
        Variant::Protobuf => Some(PROTOBUF),
        _ => None,
    };
    (path, Extras { accept, gzip: variant == Variant::Gzip, ..Extras::default() })
}

/// Reads all pages of a list. Returns the size in bytes and the number of object names.
async fn pages(client: &mut Client<'_>, path: &str, extras: &Extras) -> Outcome<(u64, usize)> {
    let (mut next, mut bytes, mut items) = (path.to_owned(), 0, 0);
    loop {
        let page = client.expect(Method::GET, &next, extras.clone()).await?;
        bytes += page.len() as u64;
        items += named(&page);
        let Some(token) = continue_token(&page) else { return Ok((bytes, items)) };
        next = format!("{path}&continue={token}");
    }
}

fn continue_token(page: &[u8]) -> Option<String> {
    // The token is in the metadata of the list, at any position.
    let name = b"\"continue\":\"";
    let at = memmem::find(page, name)? + name.len();
    let end = memchr::memchr(b'"', &page[at..])?;
    let token = String::from_utf8_lossy(&page[at..at + end]).into_owned();
    (!token.is_empty()).then(|| token.replace('=', "%3D").replace('+', "%2B"))
}

fn named(body: &[u8]) -> usize {
    memmem::find_iter(body, b"\"name\":\"load-").count()
}

/// Checks before the measurement that the response contains the requested objects. False if the
/// server does not support the encoding or representation.
async fn complete(target: &Target, http: Http, variant: Variant, objects: Objects) -> Outcome<bool> {
    let mut client = Client::connect(target, http).await?;
    let (path, extras) = asked(variant, objects);
    if client.request(Method::GET, &path, extras.clone()).await?.0 == StatusCode::NOT_ACCEPTABLE {
        return Ok(false);
    }
    let expected = match variant {
        Variant::Namespace | Variant::Label => objects.count / 10,
        // Compressed and binary responses cannot be searched, so only their size is checked.
        Variant::Protobuf | Variant::Gzip => return Ok(true),
        _ => objects.count,
    };
    let items = match variant {
        Variant::Paged => pages(&mut client, &path, &extras).await?.1,
        _ => named(&client.expect(Method::GET, &path, extras).await?),
    };
    if items < expected {
        return Err(format!("{path} on {} has {items} objects instead of {expected}", target.name).into());
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_token_and_object_names_are_found_in_list() {
        let page = br#"{"metadata":{"resourceVersion":"1","continue":"ab+c=="},"items":[{"metadata":{"name":"load-1k-000001"}}]}"#;
        assert_eq!(continue_token(page).as_deref(), Some("ab%2Bc%3D%3D"));
        assert_eq!(named(page), 1);
        assert_eq!(continue_token(br#"{"metadata":{"continue":""}}"#), None);
        assert_eq!(continue_token(br#"{"metadata":{}}"#), None);
    }
}
