//! `aims`: the target figures of listwatch, each with its result in one run of all loads.

use std::fmt::Write as _;

use clap::Parser;

use crate::Outcome;
use crate::report::{Report, number};
use crate::run::Common;
use crate::{Load, cold, fanout, idle, list, storm, writes};

/// Measure all target figures in one run; takes about ten minutes
#[derive(Debug, clap::Args)]
pub(crate) struct Aims {
    /// Measure only targets whose description contains this text
    #[arg(long, default_value = "")]
    only: String,
}

/// The target value of a figure.
#[derive(Clone, Copy, Debug)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

use Aim::{AtLeast, AtMost};

/// A figure: its description, the load that measures it (with flags), the store, the column, and
/// the target value.
type Figure = (&'static str, &'static [&'static str], &'static str, &'static str, Aim);

const STORM: &[&str] = &["storm", "--informers", "20", "--objects", "5000"];
const FAN_OUT: &[&str] = &["fanout", "--watchers", "1000"];
const LIST: &[&str] = &["list", "--variant", "consistent"];
const START: &[&str] = &["cold", "--objects", "0", "--idle", "30"];

/// The target figures, in the order of the table. Figures with the same load share a run.
const FIGURES: &[Figure] = &[
    ("CPU µs per event, 1,000 watchers, h2", FAN_OUT, "memory", "cpu_us_per_delivery", AtMost(2.0)),
    ("events/s, 1,000 watchers, h2", FAN_OUT, "memory", "deliveries_per_s", AtLeast(350_000.0)),
    (
        "CPU µs per event, 100 watchers, h2, writes included",
        &["fanout", "--watchers", "100"],
        "memory",
        "cpu_us_per_delivery",
        AtMost(3.5),
    ),
    (
        "ms from a write's acknowledgement to its receipt, p50, 100 writes/s, 100 watchers, each write on disk",
        &["fanout", "--watchers", "100", "--rate", "100"],
        "embedded",
        "ack_p50_ms",
        AtMost(1.0),
    ),
    (
        "ms from sending a write to its receipt, p50, 100 writes/s, 100 watchers, each write on disk",
        &["fanout", "--watchers", "100", "--rate", "100"],
        "embedded",
        "start_p50_ms",
        AtMost(1.0),
    ),
    ("CPU ms per MB of a list of 20,000", LIST, "memory", "cpu_ms_per_mb", AtMost(0.7)),
    ("MB/s of it, clients on the same cores", LIST, "memory", "mb_per_s", AtLeast(900.0)),
    // The server without a database, like kube-apiserver without etcd: each object is in memory
    // once.
    ("RSS MiB with 20,000 objects of 1 KiB", LIST, "embedded", "rss_mib", AtMost(80.0)),
    ("CPU ms per MB of WatchList", STORM, "memory", "cpu_ms_per_mb", AtMost(1.0)),
    (
        "CPU µs per create",
        &["writes", "--verb", "create", "--clients", "32"],
        "memory",
        "cpu_us_per_request",
        AtMost(120.0),
    ),
    (
        "CPU µs per server-side apply",
        &["writes", "--verb", "apply", "--clients", "32"],
        "memory",
        "cpu_us_per_request",
        AtMost(300.0),
    ),
    ("KiB per idle watcher, h2", &["idle", "--http", "h2"], "memory", "kib_per_watcher", AtMost(5.0)),
    ("KiB per idle watcher, h1 with TLS", &["idle", "--http", "h1"], "memory", "kib_per_watcher", AtMost(20.0)),
    ("ms from start to ready, empty", START, "embedded", "ready_ms", AtMost(100.0)),
    ("RSS MiB then", START, "embedded", "ready_rss_mib", AtMost(15.0)),
    ("RSS MiB 30 s later", START, "embedded", "idle_rss_mib", AtMost(15.0)),
    (
        "CPU µs per write, 2,000 watchers of one object each",
        &["fanout", "--select", "name", "--watchers", "2000", "--rate", "200"],
        "memory",
        "cpu_us_per_write",
        AtMost(150.0),
    ),
];

/// The flags of one load, parsed like a command line.
#[derive(Debug, Parser)]
struct Flags {
    #[command(subcommand)]
    load: Load,
}

impl Aims {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut reports: Vec<(&[&str], &str, Report)> = Vec::new();
        let figures = || FIGURES.iter().filter(|figure| figure.0.contains(&self.only));
        for (_, flags, store, ..) in figures() {
            if !reports.iter().any(|(known, at, _)| known == flags && at == store) {
                reports.push((flags, store, one(flags, &common.with_store(store)).await?));
            }
        }
        println!(
            "\n{}",
            table(figures().map(|figure| {
                let found = reports.iter().find(|(flags, store, _)| *flags == figure.1 && *store == figure.2);
                (figure, found.map_or_else(Vec::new, |(.., report)| report.values(figure.3)))
            }))
        );
        let mut all = Report::new();
        for (.., report) in reports {
            all.append(report);
        }
        Ok(all)
    }
}

async fn one(flags: &[&str], common: &Common) -> Outcome<Report> {
    let flags = Flags::try_parse_from(["load"].iter().chain(flags))?;
    match flags.load {
        Load::Fanout(load) => fanout::Fanout::run(&load, common).await,
        Load::List(load) => list::Lists::run(&load, common).await,
        Load::Storm(load) => storm::Storm::run(&load, common).await,
        Load::Writes(load) => writes::Writes::run(&load, common).await,
        Load::Idle(load) => idle::Idle::run(&load, common).await,
        Load::Cold(load) => cold::Cold::run(&load, common).await,
        _ => Err("an aim that no load brings".into()),
    }
}

/// One line per target: the target value, the result of each server, and whether the first server
/// reaches it.
fn table<'a>(figures: impl Iterator<Item = (&'a Figure, Vec<(String, f64)>)>) -> String {
    let mut text = "| figure | aim | seen | reached | beside it |\n|---|---:|---:|---|---|\n".to_owned();
    for ((what, _, _, _, aim), values) in figures {
        let (sign, wanted) = match aim {
            AtMost(wanted) => ("≤", *wanted),
            AtLeast(wanted) => ("≥", *wanted),
        };
        let decimals = if wanted < 10.0 { 2 } else { usize::from(wanted < 1_000.0) };
        let (seen, reached) = match values.first() {
            Some((_, seen)) => {
                let reached = if reached(*aim, *seen) { "yes" } else { "no" };
                (number(*seen, decimals), reached)
            }
            None => ("–".to_owned(), "–"),
        };
        let others: Vec<String> =
            values.iter().skip(1).map(|(server, value)| format!("{server} {}", number(*value, decimals))).collect();
        let wanted = number(wanted, usize::from(wanted.fract() > 0.0));
        let _ = writeln!(text, "| {what} | {sign} {wanted} | {seen} | {reached} | {} |", others.join("; "));
    }
    text
}

fn reached(aim: Aim, seen: f64) -> bool {
    match aim {
        AtMost(wanted) => seen <= wanted,
        AtLeast(wanted) => seen >= wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_aim_has_parsable_load_flags() {
        for (what, flags, ..) in FIGURES {
            let read = Flags::try_parse_from(["load"].iter().chain(*flags));
            assert!(read.is_ok(), "{what}: {}", read.unwrap_err());
        }
    }

    #[test]
    fn aims_table_shows_target_result_and_verdict() {
        let values = |seen| vec![("listwatch".to_owned(), seen), ("floor".to_owned(), 1.55)];
        let (most, least) = (&FIGURES[0], &FIGURES[1]);
        let text =
            table([(most, values(2.0)), (most, values(2.01)), (least, values(350_000.0)), (least, vec![])].into_iter());
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines[0], "| CPU µs per event, 1,000 watchers, h2 | ≤ 2 | 2.00 | yes | floor 1.55 |");
        assert!(lines[1].contains("| 2.01 | no |"), "{}", lines[1]);
        assert!(lines[2].contains("| ≥ 350,000 | 350,000 | yes |"), "{}", lines[2]);
        assert!(lines[3].contains("| – | – |"), "{}", lines[3]);
    }
}
