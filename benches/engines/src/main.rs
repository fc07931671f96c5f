//! Compares embedded engines under the access pattern of an API server's store. The pattern has
//! small values, group commits on stable storage, and a restart that reads everything.
//!
//! A subcommand measures one engine in this process and prints one line of `name=value`. The
//! engines implement one small trait (`engine.rs`). The load is deterministic (`load.rs`), so every
//! value that was acknowledged before a crash can be checked afterwards.

mod engine;
mod fjall_engine;
mod floor;
mod load;
mod meter;
mod redb_engine;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use engine::{Engine, Result};
use load::State;

const USAGE: &str = "\
engines <command> <engine> <dir> [number...]
  write   OBJECTS WRITERS SECONDS  writes a second under group commit, in a store of OBJECTS
  restart                          open, read the index, read all values
  crash   OBJECTS MILLIS           SIGKILL a writing child, reopen, check every acknowledged write
  disk    OBJECTS REVISIONS        size before and after superseded revisions are deleted
engines: fjall, redb, floor (a bare synced log: no engine, the least a durable commit costs)

Examples (dir is made where there is none, and not emptied):
  engines write redb data/redb 20000 32 3
  engines restart redb data/redb
  engines crash fjall data/crash 20000 1500";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let [command, engine, dir, numbers @ ..] = args else { return Err(USAGE.into()) };
    let number = |at: usize, default: u64| numbers.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let dir = Path::new(dir);
    match command.as_str() {
        "write" => write(engine, dir, number(0, 20_000)?, number(1, 32)? as usize, number(2, 3)?),
        "restart" => restart(engine, dir),
        "crash" => crash(engine, dir, number(0, 20_000)?, number(1, 1_500)?),
        "write-until-killed" => write_until_killed(engine, dir, number(0, 20_000)?),
        "disk" => disk(engine, dir, number(0, 20_000)?, number(1, 200_000)?),
        _ => Err(USAGE.into()),
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn write(name: &str, dir: &Path, objects: u64, writers: usize, seconds: u64) -> Result<()> {
    let engine = engine::open(name, dir)?;
    let mut state = State::new(objects);
    load::fill(&*engine, &mut state, objects)?;
    let (cpu, written) = (meter::cpu(), meter::written_bytes());
    let report = load::run(&*engine, &mut state, writers, Duration::from_secs(seconds), &mut |_| {})?;
    let (elapsed, writes) = (report.elapsed.as_secs_f64(), report.writes as f64);
    let [p50, p99, max] = meter::percentiles_ms(report.commits, [0.5, 0.99, 1.0]);
    println!(
        "write engine={name} writers={writers} writes_s={:.0} cpu_us_per_write={:.1} bytes_per_write={:.0} \
         commit_p50_ms={p50:.2} commit_p99_ms={p99:.2} commit_max_ms={max:.1} rss_mib={:.1}",
        writes / elapsed,
        (meter::cpu() - cpu).as_secs_f64() * 1e6 / writes,
        (meter::written_bytes() - written) as f64 / writes,
        meter::rss_mib(),
    );
    Ok(())
}

type Stored = (BTreeMap<String, u64>, BTreeMap<u64, Box<[u8]>>);

fn read_all(engine: &dyn Engine) -> Result<Stored> {
    let (mut index, mut values) = (BTreeMap::new(), BTreeMap::new());
    engine.scan_index(&mut |path, revision| {
        index.insert(path.to_owned(), revision);
    })?;
    engine.scan_records(&mut |revision, value| {
        values.insert(revision, Box::from(value));
    })?;
    Ok((index, values))
}

fn restart(name: &str, dir: &Path) -> Result<()> {
    let start = Instant::now();
    let engine = engine::open(name, dir)?;
    let (open_ms, open_mib) = (millis(start), meter::rss_mib());
    let (index, values) = read_all(&*engine)?;
    println!(
        "restart engine={name} open_ms={open_ms:.1} all_ms={:.1} objects={} values={} rss_open_mib={open_mib:.1} rss_all_mib={:.1}",
        millis(start),
        index.len(),
        values.len(),
        meter::rss_mib(),
    );
    Ok(())
}

/// The child process of `crash`: writes, and prints each revision after its acknowledgment.
fn write_until_killed(name: &str, dir: &Path, objects: u64) -> Result<()> {
    let engine = engine::open(name, dir)?;
    let mut state = State::new(objects);
    load::fill(&*engine, &mut state, objects)?;
    let mut out = std::io::stdout();
    let mut say = |revision: u64| {
        // A broken pipe means that the parent process has ended, and this one will be killed.
        let _ = writeln!(out, "{revision}");
    };
    load::run(&*engine, &mut state, 32, Duration::from_secs(600), &mut say)?;
    Ok(())
}

fn crash(name: &str, dir: &Path, objects: u64, run_millis: u64) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["write-until-killed", name])
        .arg(dir)
        .arg(objects.to_string())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut acknowledged, mut first) = (0, None);
    for line in BufReader::new(child.stdout.take().ok_or("no pipe")?).lines() {
        let Ok(revision) = line?.parse::<u64>() else { continue };
        acknowledged = revision;
        if first.get_or_insert_with(Instant::now).elapsed() > Duration::from_millis(run_millis) {
            child.kill()?; // SIGKILL; what is still in the pipe was acknowledged, too
        }
    }
    child.wait()?;

    let start = Instant::now();
    let engine = engine::open(name, dir)?;
    let open_ms = millis(start);
    let (index, values) = read_all(&*engine)?;
    let last = values.keys().next_back().copied().unwrap_or(0);
    let mut state = State::new(objects);
    (1..=last.max(acknowledged)).for_each(|revision| state.acknowledge(revision));
    let right =
        |revision: &u64| values.get(revision).is_some_and(|value| **value == *load::write_of(*revision, objects).value);
    let missing = (1..=acknowledged).filter(|revision| !right(revision)).count();
    let unindexed = state.live().filter(|(path, revision)| index.get(path) != Some(revision)).count();
    println!(
        "crash engine={name} acknowledged={acknowledged} open_ms={open_ms:.1} missing={missing} wrong_in_index={unindexed} \
         stored_but_unacknowledged={}",
        last.saturating_sub(acknowledged),
    );
    if missing + unindexed > 0 { Err("acknowledged writes are gone".into()) } else { Ok(()) }
}

fn disk(name: &str, dir: &Path, objects: u64, revisions: u64) -> Result<()> {
    let mut engine = engine::open(name, dir)?;
    let mut state = State::new(objects);
    load::fill(&*engine, &mut state, revisions)?;
    let full_mib = meter::disk_mib(dir);
    let start = Instant::now();
    let dead = state.dead();
    for chunk in dead.chunks(load::BATCH_MAX) {
        engine.delete(chunk)?;
    }
    engine.commit(&[load::write_of(revisions + 1, objects)])?;
    let (delete_ms, deleted_mib) = (millis(start), meter::disk_mib(dir));
    let start = Instant::now();
    engine.compact()?;
    let compact_ms = millis(start);
    drop(engine);
    println!(
        "disk engine={name} full_mib={full_mib:.1} deleted={} delete_ms={delete_ms:.0} deleted_mib={deleted_mib:.1} \
         compact_ms={compact_ms:.0} closed_mib={:.1}",
        dead.len(),
        meter::disk_mib(dir),
    );
    Ok(())
}
