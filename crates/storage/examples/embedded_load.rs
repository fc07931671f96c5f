//! Measures the embedded store on this machine: syncs, durable creates, a single writer, point
//! reads, lists and watches. Also measures the waits of writers during compaction and
//! defragmentation, opening after a close and after a SIGKILL, and memory. Prints one line per
//! measurement. Arguments: an empty directory, the number of objects and the number of writers.
//!
//! ```text
//! cargo run --release -p listwatch-storage --example embedded_load -- <empty directory> 20000 64
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, ListQuery, Storage, WatchItem};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const VALUE_BYTES: usize = 1024;

/// The number of writes of the single writer.
const LONE_WRITES: usize = 2000;

/// The number of sequential point reads.
const READS: usize = 200_000;

/// The number of writers of the load under which the store is killed and waits are measured.
const BUSY_WRITERS: usize = 8;

/// First argument of the child process, which writes until it is killed.
const UNTIL_KILLED: &str = "--until-killed";

fn key(n: usize) -> Key {
    Key::new("configmaps", Some("default"), &format!("object-{n:07}")).expect("a valid key")
}

fn value(n: usize) -> Bytes {
    let mut value = format!("{n:010}").into_bytes();
    value.resize(VALUE_BYTES, b'x');
    value.into()
}

/// Resident memory in MiB; zero without `/proc`.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// User and system time of the process in seconds; zero without `/proc`.
fn cpu_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |field: usize| fields.get(field).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

/// CPU time of this thread in seconds; zero without `/proc`.
fn thread_cpu_seconds() -> f64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    times.split_whitespace().next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// The time and CPU time of a measurement.
struct Meter {
    began: Instant,
    cpu: f64,
    clock: fn() -> f64,
}

impl Meter {
    /// Starts measuring the whole process.
    fn start() -> Self {
        Meter { began: Instant::now(), cpu: cpu_seconds(), clock: cpu_seconds }
    }

    /// Starts measuring this thread only.
    fn start_thread() -> Self {
        Meter { began: Instant::now(), cpu: thread_cpu_seconds(), clock: thread_cpu_seconds }
    }

    fn print(&self, what: &str, count: usize) {
        let (took, cpu) = (self.began.elapsed().as_secs_f64(), (self.clock)() - self.cpu);
        let (rate, each) = (count as f64 / took, cpu * 1e6 / count as f64);
        println!("{what}: {rate:.0}/s, {each:.1} µs CPU each, {:.1} MiB resident", resident_mib());
    }
}

/// Creates the objects `from..to` with this many concurrent writers.
async fn create(store: &EmbeddedStorage, from: usize, to: usize, writers: usize) -> Result<()> {
    let meter = Meter::start();
    let write = async |writer: usize| {
        for n in (from + writer..to).step_by(writers) {
            store.create(&key(n), value(n), None).await?;
        }
        Result::Ok(())
    };
    join_all((0..writers).map(write)).await.into_iter().collect::<Result<()>>()?;
    meter.print(&format!("create, {writers} writers"), to - from);
    Ok(())
}

/// Appends to a plain file and syncs, which is the minimum cost of a durable write.
fn syncs(path: &Path, bytes: usize) -> Result<()> {
    const SYNCS: usize = 500;
    let path = path.with_extension("sync");
    let mut file = std::fs::File::create(&path)?;
    let (block, mut took) = (vec![0; bytes], Vec::with_capacity(SYNCS));
    let cpu = cpu_seconds();
    for _ in 0..SYNCS {
        file.write_all(&block)?;
        let began = Instant::now();
        file.sync_data()?;
        took.push(began.elapsed());
    }
    let cpu = (cpu_seconds() - cpu) * 1e6 / SYNCS as f64;
    println!("append {bytes} bytes and sync: {}, {cpu:.1} µs CPU each", quantiles(took));
    Ok(std::fs::remove_file(path)?)
}

fn quantiles(mut took: Vec<Duration>) -> String {
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    format!("median {:.2} ms, 99 % {:.2}, 99.9 % {:.2}, longest {:.2}", at(0.5), at(0.99), at(0.999), at(1.0))
}

/// Updates a key until stopped; returns the wait of each update.
async fn update_until(store: &EmbeddedStorage, name: &str, stop: &AtomicBool) -> Result<Vec<Duration>> {
    let key = Key::new("configmaps", Some("busy"), name)?;
    let mut at = store.get(&key).await?.0.map_or(Revision::ZERO, |found| found.modified);
    let (mut took, mut n) = (Vec::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        at = match at {
            Revision::ZERO => store.create(&key, value(n), None).await?,
            at => store.update(&key, at, value(n), None).await?,
        };
        took.push(began.elapsed());
        n += 1;
    }
    Ok(took)
}

/// Measures the waits of writers during another operation.
async fn waiting<T>(store: &Arc<EmbeddedStorage>, what: &str, happens: impl Future<Output = Result<T>>) -> Result<T> {
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..BUSY_WRITERS)
        .map(|writer| {
            let (store, stop) = (store.clone(), stop.clone());
            tokio::spawn(async move { update_until(&store, &format!("w{writer}"), &stop).await })
        })
        .collect();
    let began = Instant::now();
    let result = happens.await;
    let took = began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let mut waits = Vec::new();
    for writer in writers {
        waits.extend(writer.await??);
    }
    let rate = waits.len() as f64 / took;
    println!("{what} ({took:.1} s): {rate:.0} updates/s by {BUSY_WRITERS} writers, waiting {}", quantiles(waits));
    result
}

/// Waits until the statistics show that compacted data is freed.
async fn compacted(store: &EmbeddedStorage) -> Result<()> {
    store.compact(store.current_revision().await?).await?;
    // The next measurement includes work that remains by then.
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok(())
}

fn open(path: &Path, what: &str) -> Result<Arc<EmbeddedStorage>> {
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let store = EmbeddedStorage::open(path, EmbeddedOptions::default())?;
    let (took, cpu) = (began.elapsed().as_secs_f64() * 1e3, (cpu_seconds() - cpu) * 1e3);
    let stats = store.embedded_stats()?;
    let mib = stats.file_bytes.unwrap_or(0) as f64 / f64::from(1 << 20);
    println!("open {what}: {} objects in {took:.0} ms ({cpu:.0} ms CPU), {mib:.0} MiB on disk", stats.live_keys);
    Ok(store)
}

/// The child process: writes until it is killed, and reports its start.
async fn until_killed(path: &Path) -> Result<()> {
    let store = EmbeddedStorage::open(path, EmbeddedOptions::default())?;
    let stop = AtomicBool::new(false);
    let writers = (0..BUSY_WRITERS).map(async |writer| {
        let name = format!("w{writer}");
        update_until(&store, &name, &stop).await.map(|_| ())
    });
    println!("open");
    join_all(writers).await.into_iter().collect()
}

/// Starts a child that writes to the store, and kills it.
fn kill_under_load(path: &Path) -> Result<()> {
    let mut child =
        Command::new(std::env::current_exe()?).arg(UNTIL_KILLED).arg(path).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("a pipe")?).read_line(&mut line)?;
    std::thread::sleep(Duration::from_secs(2));
    child.kill()?;
    child.wait()?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, path] = &arguments[..]
        && flag == UNTIL_KILLED
    {
        return until_killed(Path::new(path)).await;
    }
    let [_, path, objects, writers] = &arguments[..] else {
        return Err("usage: embedded_load <empty directory> <objects> <writers>".into());
    };
    let (path, objects, writers) = (PathBuf::from(path), objects.parse::<usize>()?, writers.parse::<usize>()?);
    println!("before: {:.1} MiB resident", resident_mib());
    syncs(&path, 4096)?;
    syncs(&path, writers * VALUE_BYTES)?;
    let store = EmbeddedStorage::open(&path, EmbeddedOptions::default())?;
    let start = store.current_revision().await?;
    create(&store, 0, objects, writers).await?;
    create(&store, objects, objects + LONE_WRITES, 1).await?;

    for what in ["get, first", "get, again"] {
        // Measures this thread only, because the committer still removes dead revisions.
        let meter = Meter::start_thread();
        for n in 0..READS {
            let found = store.get(&key(n * 7919 % objects)).await?.0;
            assert!(found.is_some(), "what was written is there");
        }
        meter.print(what, READS);
    }

    let meter = Meter::start();
    let range = KeyRange::resource("configmaps");
    let listed = store.list(ListQuery { range: range.clone(), at: None, limit: 0 }).await?.items.len();
    meter.print("list, per object", listed);

    let meter = Meter::start();
    let mut watch = store.watch(range, start).await?;
    let mut events = 0;
    while events < objects {
        match watch.next().await {
            Some(WatchItem::Event(_)) => events += 1,
            Some(WatchItem::Expired { .. }) if events == 0 => break,
            item => return Err(format!("{item:?} after {events} events").into()),
        }
    }
    meter.print("watch from the start, per event", events);
    drop(watch);

    let seconds = async |seconds| {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Result::Ok(())
    };
    waiting(&store, "nothing beside", seconds(5)).await?;
    waiting(&store, "all history compacted", compacted(&store)).await?;
    let done = waiting(&store, "made dense", async { Ok(store.defragment().await?) }).await?;
    println!("  {done:?}");
    let began = Instant::now();
    let seen = waiting(&store, "verified", async { Ok(store.verify().await?) }).await?;
    println!("  {} findings in {:.1} s", seen.found, began.elapsed().as_secs_f64());

    store.close().await;
    drop(store);
    drop(open(&path, "after a close")?);
    kill_under_load(&path)?;
    drop(open(&path, "after SIGKILL under load")?);
    Ok(())
}
