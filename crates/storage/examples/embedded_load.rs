//! What the embedded store costs on this machine: durable creates, point reads, lists, watching,
//! opening, memory. Prints one line per measure; takes the directory, the number of objects and the
//! number of writers.
//!
//! ```text
//! cargo run --release -p listwatch-storage --example embedded_load -- <empty directory> 20000 64
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange};
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, ListQuery, Storage, WatchItem};

const VALUE_BYTES: usize = 1024;

fn key(n: usize) -> Key {
    Key::new("configmaps", Some("default"), &format!("object-{n:07}")).expect("a valid key")
}

fn value(n: usize) -> Bytes {
    let mut value = format!("{n:010}").into_bytes();
    value.resize(VALUE_BYTES, b'x');
    value.into()
}

/// Resident memory in MiB; zero where there is no `/proc`.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// User and system time of the process in seconds; zero where there is no `/proc`.
fn cpu_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |field: usize| fields.get(field).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

/// What a stretch of work took.
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
        println!("{what}: {rate:.0}/s, {each:.1} µs CPU each, {:.1} MiB resident", resident_mib());
    }
}

/// Creates the objects `from..to` with so many writers at once.
async fn create(store: &EmbeddedStorage, from: usize, to: usize, writers: usize) -> Result<(), Box<dyn Error>> {
    let meter = Meter::start();
    let write = async |writer: usize| {
        for n in (from + writer..to).step_by(writers) {
            store.create(&key(n), value(n), None).await?;
        }
        Ok::<_, Box<dyn Error>>(())
    };
    for written in futures_util::future::join_all((0..writers).map(write)).await {
        written?;
    }
    meter.print(&format!("create, {writers} writers"), to - from);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, objects, writers] = &arguments[..] else {
        return Err("usage: embedded_load <empty directory> <objects> <writers>".into());
    };
    let (path, objects, writers) = (PathBuf::from(path), objects.parse::<usize>()?, writers.parse::<usize>()?);
    println!("before: {:.1} MiB resident", resident_mib());
    let store = EmbeddedStorage::open(&path, EmbeddedOptions::default())?;
    let start = store.current_revision().await?;
    create(&store, 0, objects, writers).await?;
    create(&store, objects, objects + objects / 20, 1).await?;

    let meter = Meter::start();
    for n in 0..objects {
        let found = store.get(&key(n * 7919 % objects)).await?.0;
        assert!(found.is_some(), "what was written is there");
    }
    meter.print("get", objects);

    let meter = Meter::start();
    let range = KeyRange::resource("configmaps");
    let listed = store.list(ListQuery { range: range.clone(), at: None, limit: 0 }).await?.items.len();
    meter.print("list, per object", listed);

    let meter = Meter::start();
    let mut watch = store.watch(range, start).await?;
    for events in 0..objects {
        let item = watch.next().await;
        if !matches!(item, Some(WatchItem::Event(_))) {
            return Err(format!("{item:?} after {events} events").into());
        }
    }
    meter.print("watch from the start, per event", objects);
    drop(watch);

    let disk = store.stats().await?.disk_bytes.unwrap_or(0);
    store.close().await;
    drop(store);
    let meter = Meter::start();
    let store = EmbeddedStorage::open(&path, EmbeddedOptions::default())?;
    let took = meter.began.elapsed().as_secs_f64() * 1e3;
    let keys = store.stats().await?.keys.unwrap_or(0);
    println!("open: {keys} objects in {took:.1} ms; {:.1} MiB on disk", disk as f64 / f64::from(1 << 20));
    Ok(())
}
