//! Soak test: thousands of watchers stall, disconnect, resume and expire while others write. In the
//! end every watcher's copy must equal the store.
//!
//! `cargo run --release -p listwatch-cacher --example soak -- --seconds 600 --watchers 5000 --writes 500`
//!
//! Prints memory and CPU once a minute (Linux), and fails if memory grew in the second half.
#[path = "../tests/it/support/soak.rs"]
mod soak;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use soak::{Plan, Tally, run};

fn main() -> ExitCode {
    let mut plan =
        Plan { time: Duration::from_secs(60), watchers: 5_000, writes_per_second: 500, objects: 5_000, seed: 1 };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let Some(number) = arguments.next().and_then(|text| text.parse::<u64>().ok()) else {
            eprintln!("usage: soak [--seconds N] [--watchers N] [--writes N] [--objects N] [--seed N]");
            return ExitCode::FAILURE;
        };
        match flag.as_str() {
            "--seconds" => plan.time = Duration::from_secs(number),
            "--watchers" => plan.watchers = number as usize,
            "--writes" => plan.writes_per_second = number,
            "--objects" => plan.objects = number as usize,
            "--seed" => plan.seed = number,
            other => {
                eprintln!("no flag {other}");
                return ExitCode::FAILURE;
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().expect("a runtime");
    let tally = Arc::new(Tally::default());
    let (mut rss, mut next) = (Vec::new(), 0);
    let every = (plan.time.as_secs() / 10).clamp(1, 60);
    let told = tally.clone();
    let verdict = runtime.block_on(run(plan, tally, |elapsed, stats| {
        rss.push(rss_mib());
        if elapsed.as_secs() >= next || elapsed >= plan.time {
            next = elapsed.as_secs() + every;
            println!(
                "{:>4} s: RSS {:.1} MiB, CPU {:.1} s; {} objects, {} events in the window ({:.1} MiB); \
                 {} live, {} lagging, {} replaying; slowest {} ms; store listed {}×; told {told:?}",
                elapsed.as_secs(),
                rss_mib(),
                cpu_seconds(),
                stats.objects,
                stats.history_events,
                stats.history_bytes as f64 / f64::from(1 << 20),
                stats.watchers.live,
                stats.watchers.lagging,
                stats.watchers.replaying,
                stats.watchers.slowest_lag.as_millis(),
                stats.generation,
            );
        }
    }));
    if let Err(broken) = verdict {
        eprintln!("{broken} (seed {})", plan.seed);
        return ExitCode::FAILURE;
    }
    println!("{} events; every copy is what the store holds", told.events.load(Relaxed));
    let most = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
    let (second, last) = (most(&rss[rss.len() / 4..rss.len() / 2]), most(&rss[rss.len() * 3 / 4..]));
    if plan.time >= Duration::from_secs(240) && last > second * 1.1 {
        eprintln!("memory grew: {second:.1} MiB in the second quarter, {last:.1} MiB in the last");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Resident memory in MiB; 0 without `/proc`.
fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0.0);
    kib / 1024.0
}

/// CPU time of this process in seconds, at the usual hundred ticks per second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
