//! `e2e --faults`: breaks a real etcd and the built server under load, and compares what every client saw with etcd's
//! own history.
//!
//! ```text
//!  listwatch-sim --record ──▶ servers ──▶ etcd: one or three members ◀── kill, pause, partition, compact, fill, replace
//!          │ recording                         │ etcdctl watch: etcd's history
//!          └────────────▶ listwatch-sim --check ◀┘
//! ```

mod backup;
mod certificates;
mod clock;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::failure::{Outcome, ensure, fail};
use crate::process::{Background, Run};
use crate::steps::{Steps, seconds};
use crate::tools;

use super::cluster::pki::Pki;
use super::etcd::{binary, build_image, etcdctl, have_image};
use super::etcd_cluster::{EtcdCluster, Place};
use super::server::{Server, Store};
use super::{ETCD_IMAGE, EtcdFrom, Options, WorkDir, build};

/// The time of the load before a fault.
const BEFORE: Duration = Duration::from_secs(3);

/// The time limit of a recording after its last write.
const RECORD_LIMIT: Duration = Duration::from_secs(180);

/// The initial conditions of a scenario.
#[derive(Clone, Copy)]
struct Setup {
    members: usize,
    servers: usize,
    watchers: usize,
    writers: usize,
    pause_ms: u64,
    /// The time of the load, in seconds.
    seconds: u64,
    /// Flags of etcd.
    flags: &'static [&'static str],
    /// Whether etcd requires client certificates.
    has_tls: bool,
    /// Whether the wall clock of the servers can be set.
    has_clock: bool,
}

const SMALL: Setup = Setup {
    members: 1,
    servers: 1,
    watchers: 12,
    writers: 4,
    pause_ms: 20,
    seconds: 12,
    flags: &[],
    has_tls: false,
    has_clock: false,
};
const QUORUM: Setup = Setup { members: 3, ..SMALL };
const CROWD: Setup = Setup { watchers: 1_000, writers: 1, pause_ms: 300, seconds: 15, ..SMALL };

struct Scenario {
    name: &'static str,
    setup: Setup,
    /// Runs before the load.
    before: fn(&mut Stage) -> Outcome<()>,
    /// Injects the fault and repairs the system. Returns after the repair.
    fault: fn(&mut Stage) -> Outcome<()>,
}

impl Scenario {
    /// A scenario with a fault during the load.
    const fn new(name: &'static str, setup: Setup, fault: fn(&mut Stage) -> Outcome<()>) -> Self {
        Scenario { name, setup, before: |_| Ok(()), fault }
    }
}

/// A running scenario.
struct Stage {
    dir: PathBuf,
    etcd: EtcdCluster,
    servers: Vec<Server>,
    /// The certificates, if etcd requires them.
    pki: Option<Pki>,
    /// The clock of the servers, if it can be set.
    clock: Option<clock::Clock>,
}

impl Stage {
    /// Returns a kubectl for the first server.
    fn kubectl(&self) -> Outcome<Kubectl> {
        let program = tools::find_or_fetch("kubectl", "kubernetes-client")?;
        Ok(Kubectl { program, kubeconfig: self.servers[0].kubeconfig() })
    }
}

/// kubectl for one server.
struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    fn run(&self, arguments: &[&str]) -> Run {
        Run::new(&self.program).arg("--kubeconfig").arg(&self.kubeconfig).args(arguments)
    }
}

const SCENARIOS: &[Scenario] = &[
    Scenario::new("no fault", SMALL, |_| Ok(())),
    Scenario::new("members restart one after another", Setup { seconds: 25, ..QUORUM }, rolling_restart),
    Scenario::new("the leader is killed", QUORUM, kill_leader),
    Scenario::new("one member is partitioned", Setup { seconds: 18, ..QUORUM }, partition_member),
    Scenario::new("the majority is lost and returns", Setup { seconds: 18, ..QUORUM }, lose_majority),
    Scenario::new("the leader is paused", Setup { seconds: 18, ..QUORUM }, pause_leader),
    Scenario::new("compaction and defragmentation", QUORUM, compact_and_defragment),
    Scenario::new(
        "NOSPACE alarm",
        Setup { seconds: 25, flags: &["--quota-backend-bytes", "33554432"], ..SMALL },
        fill_etcd,
    ),
    Scenario::new("a member is replaced", Setup { seconds: 20, ..QUORUM }, replace_member),
    Scenario::new(
        "authority and certificates are rotated",
        Setup { seconds: 20, has_tls: true, ..SMALL },
        certificates::rotate,
    ),
    Scenario { before: backup::restore, ..Scenario::new("etcd is restored from an older backup", SMALL, |_| Ok(())) },
    Scenario::new("the clock of the server jumps", Setup { seconds: 16, has_clock: true, ..SMALL }, clock::jump),
    Scenario::new("the server is killed under 1,000 watchers", CROWD, kill_server),
    Scenario::new("the server stops under 1,000 watchers", CROWD, stop_server),
    Scenario::new("one of two servers is killed", Setup { servers: 2, ..SMALL }, kill_server),
];

/// Prints the scenarios.
pub(crate) fn list() {
    for scenario in SCENARIOS {
        let Setup { members, servers, watchers, .. } = scenario.setup;
        println!("{:<42} {members} members, {servers} servers, {watchers} watchers", scenario.name);
    }
}

pub(crate) fn steps(options: &Options, seed: u64) -> Outcome<Steps> {
    let mut steps = Steps::default();
    let dir = WorkDir::new(options.keep)?;
    let server = match &options.server_bin {
        Some(server) => server.clone(),
        None => build(options.release)?,
    };
    Run::cargo().args(["build", "--workspace", "--bin", "listwatch-sim"]).dir(&tools::root()).show()?;
    let recorder = tools::target().join("debug/listwatch-sim");
    let bin = options.etcd_bin.as_deref();
    let in_containers = match options.etcd {
        EtcdFrom::Container => true,
        EtcdFrom::Auto => tools::docker_engine(),
        EtcdFrom::Binary => false,
        EtcdFrom::None => fail!("the faults need etcd: --etcd container or binary"),
    };
    // The image is removed after the last scenario.
    let mut built = None;
    let place = if in_containers {
        ensure!(tools::docker_engine(), "no Docker engine answers; `--etcd binary` runs etcd as processes");
        let wanted = options.etcd_image.as_deref().unwrap_or(ETCD_IMAGE);
        let image = match (bin, have_image(wanted)) {
            (None, Ok(())) => wanted.to_owned(),
            (None, Err(why)) if options.etcd_image.is_some() => return Err(why),
            _ => {
                let (image, guard) = build_image(&binary(bin)?, &dir.path.join("image"))?;
                built = Some(guard);
                image
            }
        };
        Place::Containers { image }
    } else {
        Place::Processes { bin: binary(bin)? }
    };
    let etcdctl = etcdctl(bin)?;
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| name.contains(only));
    for (number, scenario) in SCENARIOS.iter().enumerate().filter(|(_, scenario)| wanted(scenario.name)) {
        let run = Play { place: &place, etcdctl: &etcdctl, server: &server, recorder: &recorder, seed };
        steps.run("faults", scenario.name, || run.play(scenario, &dir.path.join(format!("faults-{number}"))));
    }
    drop(built);
    Ok(steps)
}

/// The programs of a run.
struct Play<'a> {
    place: &'a Place,
    etcdctl: &'a Path,
    server: &'a Path,
    recorder: &'a Path,
    seed: u64,
}

impl Play<'_> {
    /// Plays a scenario. Returns the note for the table.
    fn play(&self, scenario: &Scenario, dir: &Path) -> Outcome<String> {
        let setup = scenario.setup;
        let pki = if setup.has_tls { Some(certificates::issue(&dir.join("pki"))?) } else { None };
        let tls = pki.as_ref().map(Pki::dir);
        let clock = if setup.has_clock { Some(clock::Clock::new(dir)?) } else { None };
        let etcd = EtcdCluster::start(self.place, &dir.join("etcd"), setup.members, self.etcdctl, setup.flags, tls)?;
        let mut servers = Vec::new();
        for number in 0..setup.servers {
            let tls = tls.map(Path::to_owned);
            let store = Store::Etcd { url: etcd.urls(), etcdctl: self.etcdctl.to_owned(), tls };
            let environment = clock.as_ref().map(clock::Clock::environment).unwrap_or_default();
            let server = Server::start_with(self.server, store, &dir.join(format!("server{number}")), environment)?;
            servers.push(server.0);
        }
        let mut stage = Stage { dir: dir.to_owned(), etcd, servers, pki, clock };
        (scenario.before)(&mut stage)?;
        // The history is read from the beginning on, so that no compaction can remove it.
        let history = HistoryReader::start(&stage.etcd)?;
        let kubeconfigs: Vec<String> =
            stage.servers.iter().map(|server| server.kubeconfig().display().to_string()).collect();
        let recording = dir.join("recording.jsonl");
        let number = |number: u64| number.to_string();
        let mut recorder = Run::new(self.recorder)
            .args(["--record", &kubeconfigs.join(","), "--seconds", &number(setup.seconds)])
            .args(["--writers", &number(setup.writers as u64), "--watchers", &number(setup.watchers as u64)])
            .args(["--pause-ms", &number(setup.pause_ms), "--seed", &number(self.seed), "--out"])
            .arg(&recording)
            .start()?;
        if recorder.lines.wait(0, Duration::from_secs(60), |line| line == "recording").is_none() {
            fail!("the clients do not start: {}", recorder.tail());
        }
        let begun = Instant::now();
        std::thread::sleep(BEFORE);
        (scenario.fault)(&mut stage)?;
        let mended = begun.elapsed();
        let status = recorder.wait(Duration::from_secs(setup.seconds) + RECORD_LIMIT)?;
        ensure!(status.success(), "the clients end with {status}: {}", recorder.tail());
        for server in &stage.servers {
            if let Some(line) = server.panicked() {
                fail!("the server panicked: {line}");
            }
        }
        let etcd_watch = history.finish(&stage.etcd, dir)?;
        let checked =
            Run::new(self.recorder).arg("--check").arg(&recording).arg("--etcd-watch").arg(etcd_watch).output()?;
        let text = checked.text();
        ensure!(checked.success(), "{}", text.lines().take(5).collect::<Vec<_>>().join("\n"));
        let summary = text.lines().last().unwrap_or_default().to_owned();
        let recovered = recovery(&std::fs::read_to_string(&recording)?, mended)?;
        Ok(format!("{summary}; a write succeeds {} after the fault", seconds(recovered)))
    }
}

/// The time from the end of a fault until the first acknowledged write that began after it.
fn recovery(recording: &str, mended: Duration) -> Outcome<Duration> {
    let mended = mended.as_micros() as u64;
    let mut first: Option<u64> = None;
    for line in recording.lines().filter(|line| line.contains("\"record\":\"write\"")) {
        let write: serde_json::Value = serde_json::from_str(line)?;
        let (from, to) = (write["from"].as_u64().unwrap_or(0), write["to"].as_u64().unwrap_or(0));
        if from >= mended && write["outcome"].get("applied").is_some() {
            first = Some(first.map_or(to, |first| first.min(to)));
        }
    }
    match first {
        Some(first) => Ok(Duration::from_micros(first - mended)),
        None => fail!("no write succeeds after the fault; the load ended too early"),
    }
}

/// The arguments of etcdctl that print etcd's history of ConfigMaps.
const HISTORY: [&str; 7] = ["watch", "--prefix", "/registry/configmaps/", "--rev", "1", "--write-out", "json"];

/// The last change of a history: a key that no client writes, and the key in base64, as etcdctl prints it.
const LAST_KEY: (&str, &str) = ("/registry/configmaps/end/end", "L3JlZ2lzdHJ5L2NvbmZpZ21hcHMvZW5kL2VuZA==");

/// `etcdctl watch` since the start of etcd, for histories that are compacted.
struct HistoryReader {
    process: Background,
}

impl HistoryReader {
    fn start(etcd: &EtcdCluster) -> Outcome<Self> {
        Ok(Self { process: etcd.ctl().args(HISTORY).start()? })
    }

    /// Waits until the history is complete; returns its file.
    fn finish(self, etcd: &EtcdCluster, dir: &Path) -> Outcome<PathBuf> {
        etcd.wait_for_quorum()?;
        etcd.ctl().args(["put", LAST_KEY.0, "{}"]).text()?;
        // A new watch shows the whole history, unless it was compacted. The watches of some versions of etcdctl do not
        // survive the loss of a majority.
        let again = etcd.ctl().args(HISTORY).start()?;
        let is_complete = |process: &Background, seconds: u64| {
            process.lines.wait(0, Duration::from_secs(seconds), |line| line.contains(LAST_KEY.1)).is_some()
        };
        let process = match () {
            () if is_complete(&again, 10) => again,
            () if is_complete(&self.process, 30) => self.process,
            () => fail!("etcdctl does not show the last change: {}", again.tail()),
        };
        let file = dir.join("etcd-history.jsonl");
        let lines: Vec<String> = process.lines.all().into_iter().map(|line| line.text).collect();
        std::fs::write(&file, lines.join("\n"))?;
        Ok(file)
    }
}

fn pause(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

fn rolling_restart(stage: &mut Stage) -> Outcome<()> {
    for number in 0..stage.etcd.size() {
        stage.etcd.kill(number)?;
        pause(2);
        stage.etcd.restart(number)?;
        stage.etcd.wait_for_quorum()?;
        pause(2);
    }
    Ok(())
}

fn kill_leader(stage: &mut Stage) -> Outcome<()> {
    let leader = stage.etcd.leader()?;
    stage.etcd.kill(leader)?;
    pause(4);
    stage.etcd.restart(leader)
}

fn partition_member(stage: &mut Stage) -> Outcome<()> {
    let leader = stage.etcd.leader()?;
    stage.etcd.partition(leader, true)?;
    pause(6);
    stage.etcd.partition(leader, false)?;
    stage.etcd.wait_for_quorum()
}

fn lose_majority(stage: &mut Stage) -> Outcome<()> {
    stage.etcd.kill(0)?;
    stage.etcd.kill(1)?;
    pause(5);
    stage.etcd.restart(0)?;
    stage.etcd.restart(1)?;
    stage.etcd.wait_for_quorum()
}

fn pause_leader(stage: &mut Stage) -> Outcome<()> {
    let leader = stage.etcd.leader()?;
    stage.etcd.pause(leader, true)?;
    pause(6);
    stage.etcd.pause(leader, false)?;
    stage.etcd.wait_for_quorum()
}

fn compact_and_defragment(stage: &mut Stage) -> Outcome<()> {
    for _ in 0..3 {
        let status = stage.etcd.ctl_of(0).args(["endpoint", "status", "--write-out", "json"]).text()?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        let Some(revision) = status[0]["Status"]["header"]["revision"].as_u64() else { fail!("no revision: {status}") };
        stage.etcd.ctl().args(["compact", &revision.to_string()]).text()?;
        for number in 0..stage.etcd.size() {
            stage.etcd.ctl_of(number).arg("defrag").limit(Duration::from_secs(30)).text()?;
        }
        pause(1);
    }
    Ok(())
}

fn fill_etcd(stage: &mut Stage) -> Outcome<()> {
    let filler = "x".repeat(1 << 20);
    let mut is_full = false;
    for number in 0..64 {
        let put = stage.etcd.ctl().args(["put", &format!("/filler/{number}")]).input(filler.as_str()).output()?;
        if !put.success() {
            ensure!(put.said().contains("database space exceeded"), "{}", put.said());
            is_full = true;
            break;
        }
    }
    ensure!(is_full, "64 MiB do not fill an etcd with a quota of 32 MiB");
    pause(3);
    stage.etcd.ctl().args(["del", "--prefix", "/filler/"]).text()?;
    let status = stage.etcd.ctl_of(0).args(["endpoint", "status", "--write-out", "json"]).text()?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let revision = status[0]["Status"]["header"]["revision"].as_u64().unwrap_or(1);
    stage.etcd.ctl().args(["compact", &revision.to_string()]).text()?;
    stage.etcd.ctl_of(0).arg("defrag").limit(Duration::from_secs(30)).text()?;
    stage.etcd.ctl().args(["alarm", "disarm"]).text().map(drop)
}

fn replace_member(stage: &mut Stage) -> Outcome<()> {
    stage.etcd.replace(2)?;
    stage.etcd.wait_for_quorum()?;
    pause(3);
    Ok(())
}

fn kill_server(stage: &mut Stage) -> Outcome<()> {
    stage.servers[0].kill();
    pause(1);
    stage.servers[0].restart().map(drop)
}

fn stop_server(stage: &mut Stage) -> Outcome<()> {
    let code = stage.servers[0].terminate(Duration::from_secs(60))?;
    ensure!(code == Some(0), "the server ends with {code:?}");
    stage.servers[0].restart().map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::recovery;

    fn write(from: u64, to: u64, outcome: &str) -> String {
        format!("{{\"record\":\"write\",\"from\":{from},\"to\":{to},\"outcome\":{outcome}}}\n")
    }

    #[test]
    fn recovery_ends_with_the_first_acknowledged_write_that_began_after_the_fault() {
        let applied = "{\"applied\":{\"revision\":7}}";
        let recording = [
            write(900, 1_500, applied),
            write(1_100, 1_200, "\"unknown\""),
            write(1_300, 1_900, applied),
            write(1_400, 1_700, applied),
        ];
        let mended = Duration::from_micros(1_000);
        assert_eq!(recovery(&recording.concat(), mended), Ok(Duration::from_micros(700)));
        assert!(recovery(&recording[..2].concat(), mended).is_err());
    }
}
