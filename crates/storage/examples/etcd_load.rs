//! Measures the cost of the etcd store in **this process**: creates, point reads, the first list
//! with its memory, a watch, many watches. Prints one line per measurement. Run `list` in a
//! separate process, so that it reuses no memory of an earlier step.
//!
//! ```text
//! etcd --data-dir /tmp/load --quota-backend-bytes=8000000000 &
//! cargo run --release -p listwatch-storage --features etcd3 --example etcd_load -- http://127.0.0.1:2379 create 150000 32
//! cargo run --release -p listwatch-storage --features etcd3 --example etcd_load -- http://127.0.0.1:2379 list
//! cargo run --release -p listwatch-storage --features etcd3 --example etcd_load -- http://127.0.0.1:2379 watch 20000 32
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange};
use listwatch_storage::etcd3::{Etcd3, Etcd3Options};
use listwatch_storage::{CreateError, ListQuery, Storage, WatchItem};

const VALUE_BYTES: usize = 1024;
const MIB: f64 = 1024.0 * 1024.0;

fn key(resource: &str, n: usize) -> Key {
    Key::new(resource, Some("default"), &format!("object-{n:07}")).expect("a valid key")
}

/// A JSON object of [`VALUE_BYTES`] bytes. The object has metadata, so that an API server on this etcd can serve it.
fn value(n: usize) -> Bytes {
    let mut value = format!(r#"{{"metadata":{{"name":"object-{n:07}","namespace":"default"}},"data":{{"x":""#);
    let padding = VALUE_BYTES.saturating_sub(value.len() + r#""}}"#.len());
    value.extend(std::iter::repeat_n('x', padding));
    value.push_str(r#""}}"#);
    value.into()
}

/// A value of `/proc/self/status` in MiB; zero without `/proc`.
fn status_mib(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim_matches([':', ' ', '\t']).strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// User and system time of the process in seconds; zero without `/proc`.
fn cpu_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |field: usize| fields.get(field).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

/// The time and CPU time of a measurement.
struct Meter {
    began: Instant,
    cpu: f64,
}

impl Meter {
    fn start() -> Self {
        Meter { began: Instant::now(), cpu: cpu_seconds() }
    }

    fn print(&self, what: &str, count: usize) {
        let (took, cpu) = (self.began.elapsed().as_secs_f64(), cpu_seconds() - self.cpu);
        let (rate, each) = (count as f64 / took, cpu * 1e6 / count as f64);
        println!("{what}: {count} in {took:.2} s, {rate:.0}/s, {each:.1} µs CPU of this process each");
    }
}

/// Creates this many objects with concurrent writers. Existing objects are not counted.
async fn create(store: &Arc<Etcd3>, resource: &'static str, objects: usize, writers: usize) -> Result<(), String> {
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let store = store.clone();
        tasks.spawn(async move {
            for n in (writer..objects).step_by(writers) {
                match store.create(&key(resource, n), value(n), None).await {
                    Ok(_) | Err(CreateError::AlreadyExists { .. }) => {}
                    Err(other) => return Err(other.to_string()),
                }
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    Ok(())
}

async fn list(store: &Etcd3) -> Result<(), Box<dyn Error>> {
    // The first request allocates the connection's own memory.
    store.current_revision().await?;
    // 5 resets the peak.
    let fresh = std::fs::write("/proc/self/clear_refs", "5").is_ok();
    let before = status_mib("VmRSS");
    let meter = Meter::start();
    let page = store.list(ListQuery { range: KeyRange::resource("configmaps"), at: None, limit: 0 }).await?;
    let peak = status_mib("VmHWM") - before;
    meter.print("first list", page.items.len());
    let bytes: usize = page.items.iter().map(|item| item.key.as_str().len() + item.value.len()).sum();
    let bytes = bytes as f64 / MIB;
    println!("first list: {bytes:.1} MiB of keys and values, peak {peak:.1} MiB, {:.2} times", peak / bytes);
    if !fresh {
        println!("(the peak is since the start of the process)");
    }
    Ok(())
}

async fn watch(store: &Arc<Etcd3>, objects: usize, writers: usize) -> Result<(), Box<dyn Error>> {
    let start = store.current_revision().await?;
    create(store, "pods", objects, writers).await?;
    let meter = Meter::start();
    let mut watch = store.watch(KeyRange::resource("pods"), start).await?;
    for events in 0..objects {
        let item = watch.next().await;
        if !matches!(item, Some(WatchItem::Event(_))) {
            return Err(format!("{item:?} after {events} events; were the pods there before?").into());
        }
    }
    meter.print("watch from the start, events", objects);

    let meter = Meter::start();
    for n in 0..objects {
        let found = store.get(&key("pods", n * 7919 % objects)).await?.0;
        assert!(found.is_some(), "what was written is there");
    }
    meter.print("get, one after the other", objects);

    let (watches, before) = (1_000, status_mib("VmRSS"));
    let meter = Meter::start();
    let now = store.current_revision().await?;
    let mut idle = Vec::new();
    for _ in 0..watches {
        idle.push(store.watch(KeyRange::resource("nodes"), now).await?);
    }
    meter.print("open a watch", watches);
    println!("an idle watch: {:.1} KiB resident", (status_mib("VmRSS") - before) * 1024.0 / watches as f64);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let arguments: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    match arguments[..] {
        [url, "create", objects, writers] => {
            let store = Etcd3::connect(Etcd3Options::new([url])).await?;
            let (objects, writers) = (objects.parse::<usize>()?, writers.parse::<usize>()?);
            let meter = Meter::start();
            create(&store, "configmaps", objects, writers).await?;
            meter.print(&format!("create, {writers} writers"), objects);
            Ok(())
        }
        [url, "list"] => list(&*Etcd3::connect(Etcd3Options::new([url])).await?).await,
        [url, "watch", objects, writers] => {
            let store = Etcd3::connect(Etcd3Options::new([url])).await?;
            watch(&store, objects.parse()?, writers.parse()?).await
        }
        _ => Err("usage: etcd_load <url> (create <objects> <writers> | list | watch <objects> <writers>)".into()),
    }
}
