//! The program behind `cargo xtask sim`: plays seeds on all processors, replays one seed, or looks for planted bugs.
//!
//! Each plan is played by a process of its own, so that its trace does not depend on earlier runs.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use listwatch_history::{EndReason, Expiry, History, Limits, Record};
use listwatch_sim::{BUGS, Bug, Entry, Plan, RecordOptions, changes_of_etcd_watch, minimize, record, run_with_bug};

/// The number of runs that make a failing plan smaller.
const MINIMIZING_RUNS: usize = 300;

/// The number of seeds within which a planted bug must be found.
const SEEDS_PER_BUG: u64 = 200;

const HELP: &str = "\
Plays the whole system in one thread per seed, under a virtual clock, and checks each guarantee.

Usage:
  sim [--from S] [--seeds N] [--bug NAME]   plays N seeds from S on; makes the first failing run smaller
  sim --replay SEED [--SIZE N]… [--faults F,…] [--bug NAME] [--json] [--summary]
                                            plays one plan and prints its trace, as a story or as JSON lines
  sim --bugs [--from S]                     looks for each planted bug, within 200 seeds
  sim --list                                lists the planted bugs and the faults
  sim --record KUBECONFIG,… --out FILE [--seconds N] [--writers N] [--watchers N] [--readers N] [--pause-ms N]
                                            runs the clients on real servers, and writes what they saw
  sim --check FILE --etcd-watch FILE        checks a recording against etcd's history, made by
                                            `etcdctl watch --prefix /registry/configmaps/ --rev 1 -w json`

Sizes: --servers, --writers, --writes, --readers, --watchers, --reflectors, --informer, --controller,
--small-window. Planted bugs need a build with `--cfg listwatch_canary`, which `cargo xtask sim` makes.

Examples:
  sim --seeds 10000
  sim --replay 17 --writes 5 --faults leader-loss,half-open
  sim --replay 17 --bug cacher-skips-an-event";

/// The parsed command line.
#[derive(Default)]
struct Arguments {
    from: Option<u64>,
    seeds: Option<u64>,
    bug: Option<&'static Bug>,
    replay: Option<u64>,
    /// The arguments that change the plan of the seed.
    changes: Vec<(String, String)>,
    hunts: bool,
    lists: bool,
    json: bool,
    summary: bool,
}

impl Arguments {
    fn read() -> Result<Self, String> {
        let mut arguments = Arguments::default();
        let mut left = std::env::args().skip(1);
        while let Some(name) = left.next() {
            match name.as_str() {
                "--bugs" => arguments.hunts = true,
                "--list" => arguments.lists = true,
                "--json" => arguments.json = true,
                "--summary" => arguments.summary = true,
                "--help" | "-h" | "help" => {
                    println!("{HELP}");
                    std::process::exit(0);
                }
                _ => {
                    let value = left.next().ok_or_else(|| format!("{name} needs a value; --help shows the usage"))?;
                    let number = || value.parse().map_err(|_| format!("{name} is not a number: {value:?}"));
                    match name.as_str() {
                        "--from" => arguments.from = Some(number()?),
                        "--seeds" => arguments.seeds = Some(number()?),
                        "--replay" => arguments.replay = Some(number()?),
                        "--bug" => {
                            let bug = BUGS.iter().find(|bug| bug.name == value);
                            let bug =
                                bug.ok_or_else(|| format!("there is no planted bug {value:?}; --list shows all"))?;
                            arguments.bug = Some(bug);
                        }
                        _ => arguments.changes.push((name, value)),
                    }
                }
            }
        }
        Ok(arguments)
    }

    /// The value of an argument that does not change a plan.
    fn text(&self, name: &str) -> Option<&str> {
        self.changes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("{name} is not a number: {text:?}"));
        self.text(name).map_or(Ok(default), number)
    }

    fn plan(&self, seed: u64) -> Result<Plan, String> {
        let mut plan = Plan::draw(seed);
        self.changes.iter().try_for_each(|(name, value)| plan.set(name, value))?;
        Ok(plan)
    }
}

fn main() -> ExitCode {
    match Arguments::read().and_then(|arguments| perform(&arguments)) {
        Ok(is_sound) => ExitCode::from(u8::from(!is_sound)),
        Err(message) => {
            eprintln!("sim: {message}");
            ExitCode::from(2)
        }
    }
}

/// Runs the requested command. Returns whether no guarantee is broken, or each planted bug is found.
fn perform(arguments: &Arguments) -> Result<bool, String> {
    if arguments.lists {
        for bug in BUGS {
            println!("{:<40} {}", bug.name, bug.what);
        }
        let faults: Vec<String> = listwatch_sim::FaultKind::ALL.iter().map(|kind| kind.name()).collect();
        println!("faults: {}", faults.join(", "));
        return Ok(true);
    }
    if let Some(kubeconfigs) = arguments.text("--record") {
        return record_clients(arguments, kubeconfigs);
    }
    if let Some(file) = arguments.text("--check") {
        return check(file, arguments.text("--etcd-watch").ok_or("--check needs --etcd-watch")?);
    }
    if let Some(seed) = arguments.replay {
        return replay(arguments, &arguments.plan(seed)?);
    }
    if let Some((name, _)) = arguments.changes.first() {
        return Err(format!("{name} needs --replay; --help shows the usage"));
    }
    let from = arguments.from.unwrap_or(1);
    if arguments.hunts {
        return hunt(from);
    }
    let Some((failing, violation)) = search(from, arguments.seeds.unwrap_or(100), arguments.bug)? else {
        return Ok(true);
    };
    println!("\n{violation}\n  {failing}\n  replay with cargo xtask sim {}", failing.arguments().join(" "));
    let (guarantee, bug_name) = (guarantee(&violation).to_owned(), arguments.bug.map(|bug| bug.name));
    let smallest = minimize(&failing, &guarantee, MINIMIZING_RUNS, |plan| {
        let played = play(plan, bug_name).ok()?;
        let has = played.violations.iter().any(|violation| self::guarantee(violation) == guarantee);
        has.then(|| guarantee.clone())
    });
    println!("\nthe smallest failing run:");
    let mut command = command(&smallest, bug_name)?;
    let _ = command.status();
    Ok(false)
}

/// Runs the clients on real servers. Prints `recording` when the first write can be sent, and broken guarantees.
fn record_clients(arguments: &Arguments, kubeconfigs: &str) -> Result<bool, String> {
    let size = |name: &str, default: u64| {
        arguments.number(name, default).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
    };
    let options = RecordOptions {
        kubeconfigs: kubeconfigs.split(',').map(Into::into).collect(),
        seed: arguments.number("--seed", 1)?,
        time: Duration::from_secs(arguments.number("--seconds", 10)?),
        writers: size("--writers", 4)?,
        pause: Duration::from_millis(arguments.number("--pause-ms", 20)?),
        readers: size("--readers", 2)?,
        watchers: size("--watchers", 12)?,
    };
    let file = arguments.text("--out").ok_or("--record needs --out")?;
    let trace = record(&options, || println!("recording"))?;
    std::fs::write(file, trace.json_lines()).map_err(|error| format!("cannot write {file}: {error}"))?;
    let broken: Vec<&String> = trace
        .entries
        .iter()
        .filter_map(|(_, entry)| if let Entry::Broken(evidence) = entry { Some(evidence) } else { None })
        .collect();
    broken.iter().for_each(|evidence| println!("{evidence}"));
    Ok(broken.is_empty())
}

/// Checks a recording against the history of etcd. Prints the broken guarantees, and a summary.
fn check(file: &str, etcd_watch: &str) -> Result<bool, String> {
    let read = |file: &str| std::fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"));
    let recording = History::parse(&read(file)?).map_err(|error| format!("{file}: {error}"))?;
    let mut records = changes_of_etcd_watch(&read(etcd_watch)?)?;
    let changes = records.len();
    records.extend(recording.records().iter().cloned());
    let events = records.iter().filter(|record| matches!(record, Record::Event(_))).count();
    let expired =
        records.iter().filter(|record| matches!(record, Record::End(end) if end.reason == EndReason::Expired));
    let expired = expired.count();
    // A server that could not read etcd may have forgotten changes at any time.
    let violations = History::new(records).check(&Limits { expiry: Expiry::Any });
    for violation in &violations {
        println!("{violation}");
    }
    println!("{changes} changes, {events} events, {expired} expired, {} broken", violations.len());
    Ok(violations.is_empty())
}

/// The name of the guarantee of a violation.
fn guarantee(violation: &str) -> &str {
    violation.split(':').next().unwrap_or_default()
}

/// Plays a plan in this process and prints it.
fn replay(arguments: &Arguments, plan: &Plan) -> Result<bool, String> {
    let report = run_with_bug(plan, arguments.bug.map(|bug| bug.name));
    let is_sound = report.violations.is_empty();
    let (steps, hash) = (report.trace.entries.len(), report.trace.hash());
    let mut text = String::new();
    if arguments.summary {
        let _ = writeln!(text, "{steps} {hash:016x}");
        for violation in &report.violations {
            let _ = writeln!(text, "{violation}");
        }
    } else if arguments.json {
        text = report.trace.json_lines();
    } else {
        let _ = writeln!(text, "{}\n{report}\n  {steps} steps, trace {hash:016x}", report.trace);
    }
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| format!("cannot print: {error}"))?;
    Ok(is_sound)
}

/// The result of a process that played a plan.
struct Played {
    steps: u64,
    violations: Vec<String>,
}

fn command(plan: &Plan, bug: Option<&str>) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(plan.arguments());
    command.args(bug.into_iter().flat_map(|bug| ["--bug", bug]));
    Ok(command)
}

/// Plays a plan in a process of its own.
fn play(plan: &Plan, bug: Option<&str>) -> Result<Played, String> {
    let output = command(plan, bug)?.arg("--summary").output();
    let output = output.map_err(|error| format!("cannot start a process: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    match lines.next().and_then(|line| line.split(' ').next()?.parse().ok()) {
        Some(steps) => Ok(Played { steps, violations: lines.map(str::to_owned).collect() }),
        // The process panicked.
        None => {
            let panic = String::from_utf8_lossy(&output.stderr);
            let line = panic.lines().find(|line| line.contains("panicked")).unwrap_or("no output").to_owned();
            Ok(Played { steps: 0, violations: vec![format!("Panic: {line}")] })
        }
    }
}

/// Plays seeds on all processors. Returns the failing plan with the lowest seed, and the violation. With a planted bug,
/// only violations of its guarantees count.
fn search(from: u64, seeds: u64, bug: Option<&Bug>) -> Result<Option<(Plan, String)>, String> {
    let counts = |violation: &str| bug.is_none_or(|bug| bug.breaks.contains(&guarantee(violation)));
    let started = Instant::now();
    let (next, is_done) = (AtomicU64::new(from), AtomicBool::new(false));
    let (steps, count) = (AtomicU64::new(0), AtomicU64::new(0));
    let failing: Mutex<Option<(Plan, String)>> = Mutex::new(None);
    let work = || -> Result<(), String> {
        while !is_done.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from.saturating_add(seeds) {
                break;
            }
            let plan = Plan::draw(seed);
            let played = play(&plan, bug.map(|bug| bug.name))?;
            steps.fetch_add(played.steps, Ordering::Relaxed);
            let count = count.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_multiple_of(250) && bug.is_none() && std::io::stderr().is_terminal() {
                eprintln!("{count} of {seeds} seeds, {:.0?}", started.elapsed());
            }
            if let Some(violation) = played.violations.into_iter().find(|violation| counts(violation)) {
                is_done.store(true, Ordering::Relaxed);
                let mut failing = failing.lock().map_err(|_| "a thread panicked")?;
                if failing.as_ref().is_none_or(|(former, _)| seed < former.seed) {
                    *failing = Some((plan, violation));
                }
            }
        }
        Ok(())
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    if bug.is_none() {
        let (elapsed, steps) = (started.elapsed(), steps.into_inner());
        let per_second = steps as f64 / elapsed.max(Duration::from_millis(1)).as_secs_f64();
        let count = count.into_inner();
        println!("{count} seeds from {from} on in {elapsed:.1?}: {steps} steps, {per_second:.0} a second");
    }
    failing.into_inner().map_err(|_| "a thread panicked".to_owned())
}

/// Looks for each planted bug. Returns whether each is found under the guarantee that it breaks.
fn hunt(from: u64) -> Result<bool, String> {
    let mut missed = 0;
    for bug in BUGS {
        let found = search(from, SEEDS_PER_BUG, Some(bug))?;
        missed += usize::from(found.is_none());
        let line = found.map_or_else(
            || format!("NOT FOUND within {SEEDS_PER_BUG} seeds"),
            |(plan, violation)| format!("seed {:<4} {violation}", plan.seed),
        );
        let line: String = line.chars().take(150).collect();
        println!("{:<40} {line}", bug.name);
    }
    println!("{} planted bugs, {missed} not found", BUGS.len());
    Ok(missed == 0)
}
