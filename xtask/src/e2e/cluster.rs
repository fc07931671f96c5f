//! `e2e --cluster`: upstream's kube-controller-manager, kube-scheduler, hollow kubelets and a hollow kube-proxy on the
//! built server, and on a real kube-apiserver for comparison.
//!
//! Each scenario awaits its final state and returns it without uids, times and random names. States of the same
//! scenario on two servers must be equal.

mod binaries;
pub(crate) mod components;
mod cycle;
mod failures;
mod logs;
mod metrics;
pub(crate) mod pki;
mod state;
mod usage;
mod workloads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::args::Args;
use crate::failure::{Failure, Outcome, ensure, fail};
use crate::steps::Steps;
use crate::tools;

use super::access::Access;
use super::etcd::Etcd;
use super::{EtcdFrom, Options, WorkDir};
use binaries::Binaries;
pub(crate) use binaries::directory_of_environment as binaries_of_environment;
use components::{ApiServer, Component, Launcher, Program};
use logs::Errors;
use pki::Pki;
pub(crate) use usage::Usage;

/// The default of `--nodes`.
pub(crate) const NODES: usize = 4;
/// The time limit until all nodes are ready.
const START_LIMIT: Duration = Duration::from_secs(120);
/// The number of differences between two servers that a row shows.
const DIFFERENCES_SHOWN: usize = 12;

/// The options of `--cluster`.
#[derive(Debug, Clone)]
pub(crate) struct ClusterOptions {
    pub(crate) kubernetes_bin: Option<PathBuf>,
    pub(crate) against_apiserver: bool,
    pub(crate) nodes: usize,
    /// The number of pods whose life is measured, instead of the scenarios.
    pub(crate) cycle: Option<usize>,
}

impl ClusterOptions {
    /// Reads the flags. `None` without `--cluster`.
    pub(crate) fn read(args: &mut Args) -> Outcome<Option<Self>> {
        let cluster = args.flag("--cluster");
        let (nodes, cycle) = (args.value("--nodes")?, args.value("--cycle")?);
        let number = |flag: &str, text: &str| {
            text.parse().map_err(|_| Failure::from(format!("{flag} takes a number, not `{text}`")))
        };
        let options = Self {
            kubernetes_bin: args.value("--kubernetes-bin")?.map(PathBuf::from),
            against_apiserver: args.flag("--against-apiserver"),
            nodes: match &nodes {
                Some(count) => number("--nodes", count)?,
                None => NODES,
            },
            cycle: cycle.map(|count| number("--cycle", &count)).transpose()?,
        };
        let others = options.kubernetes_bin.is_some() || options.against_apiserver || nodes.is_some();
        let others = others || options.cycle.is_some();
        ensure!(cluster || !others, "--kubernetes-bin, --against-apiserver, --nodes and --cycle need --cluster");
        ensure!(options.nodes >= 2, "--nodes must be at least 2: a scenario takes one away");
        let kubernetes_bin = options.kubernetes_bin.or_else(binaries::directory_of_environment);
        Ok(cluster.then_some(Self { kubernetes_bin, ..options }))
    }

    /// The options of CI: the directory is that of the environment variable, and the run compares with kube-apiserver
    /// if the directory has one. An error has the reason why the run is impossible.
    pub(crate) fn of_environment() -> Outcome<Self> {
        let dir = binaries::directory_of_environment();
        let against_apiserver = Binaries::find(dir.as_deref(), true).is_ok();
        Binaries::find(dir.as_deref(), against_apiserver)?;
        Ok(Self { kubernetes_bin: dir, against_apiserver, nodes: NODES, cycle: None })
    }
}

/// One server with its components.
pub(crate) struct Cluster {
    pub(crate) access: Access,
    pub(crate) launcher: Launcher,
    pub(crate) server: ApiServer,
    /// A second API server on the same store.
    pub(crate) second: Option<ApiServer>,
    pub(crate) managers: Vec<Component>,
    pub(crate) scheduler: Option<Component>,
    pub(crate) kubelets: Vec<Component>,
    pub(crate) proxies: Vec<Component>,
    /// Components that were killed or replaced, whose logs are checked as well.
    pub(crate) ended: Vec<Component>,
    pub(crate) nodes: usize,
}

/// The result of a scenario: a note for the table, and the state to compare.
pub(crate) struct ScenarioResult {
    pub(crate) note: String,
    pub(crate) state: Value,
}

/// One row of the table.
struct Scenario {
    name: &'static str,
    /// Whether the scenario needs a store that several servers can share.
    etcd: bool,
    run: fn(&mut Cluster) -> Outcome<ScenarioResult>,
}

const fn scenario(name: &'static str, run: fn(&mut Cluster) -> Outcome<ScenarioResult>) -> Scenario {
    Scenario { name, etcd: false, run }
}

/// The scenarios in order. Each has its own namespace.
const SCENARIOS: &[Scenario] = &[
    scenario("rolling update", workloads::rolling_update),
    scenario("job", workloads::job),
    scenario("cron job", workloads::cron_job),
    scenario("stateful set", workloads::stateful_set),
    scenario("daemon set", workloads::daemon_set),
    scenario("service and endpoint slices", workloads::service),
    scenario("autoscaler", workloads::autoscaler),
    scenario("namespace deletion", workloads::namespace_deletion),
    scenario("leader failover", failures::leader_failover),
    scenario("node loss and eviction", failures::node_loss),
    scenario("server restart in a rollout", failures::server_restart),
    Scenario { name: "two API servers", etcd: true, run: failures::two_servers },
];

/// The results of a cluster after its scenarios.
struct Record {
    group: &'static str,
    finals: BTreeMap<&'static str, Value>,
    errors: Errors,
    usage: Usage,
    etcd: Option<Usage>,
    cycle: Option<cycle::Cost>,
}

/// Runs all scenarios. An error only if the run cannot begin, for instance without binaries.
pub(crate) fn steps(options: &Options, wanted: &ClusterOptions) -> Outcome<Steps> {
    let start = Instant::now();
    let binaries = Binaries::find(wanted.kubernetes_bin.as_deref(), wanted.against_apiserver)?;
    let mut steps = Steps::default();
    let dir = WorkDir::new(options.keep)?;
    let pki = Pki::new(&dir.path.join("pki"))?;
    let bin = match &options.server_bin {
        Some(bin) => std::path::absolute(bin)?,
        None => super::build(options.release)?,
    };
    let run = Runner { options, wanted, binaries: &binaries, pki: &pki, dir: &dir.path };
    let mut records = Vec::new();
    records.extend(run.group("embedded", &mut steps, None, |_| Program::ListwatchEmbedded(bin.clone())));
    if options.etcd == EtcdFrom::None {
        steps.skip("etcd", "all of it", "as asked by --etcd none");
    } else {
        let etcd = start_etcd(options, &dir.path.join("etcd"), "etcd", &mut steps);
        if let Some(etcd) = etcd {
            let program = |url| Program::ListwatchEtcd(bin.clone(), url);
            records.extend(run.group("etcd", &mut steps, Some(&etcd), program));
        }
    }
    if let Some(api_server) = &binaries.api_server {
        let etcd = start_etcd(options, &dir.path.join("upstream"), "upstream", &mut steps);
        if let Some(etcd) = etcd {
            let program = |url| Program::Upstream(api_server.clone(), url);
            records.extend(run.group("upstream", &mut steps, Some(&etcd), program));
        }
    }
    compare(&records, &mut steps);
    report(&records);
    println!("the whole run took {}", crate::steps::seconds(start.elapsed()));
    Ok(steps)
}

fn start_etcd(options: &Options, dir: &Path, group: &'static str, steps: &mut Steps) -> Option<Etcd> {
    let mut running = None;
    steps.run(group, "start etcd", || {
        std::fs::create_dir_all(dir)?;
        let etcd = Etcd::process(options.etcd_bin.as_deref(), dir)?;
        let note = etcd.describe();
        running = Some(etcd);
        Ok(note)
    });
    running
}

/// The values that all groups of a run share.
struct Runner<'a> {
    options: &'a Options,
    wanted: &'a ClusterOptions,
    binaries: &'a Binaries,
    pki: &'a Pki,
    dir: &'a Path,
}

impl Runner<'_> {
    /// Runs the scenarios on one server. `None` if the cluster does not start.
    fn group(
        &self,
        group: &'static str,
        steps: &mut Steps,
        etcd: Option<&Etcd>,
        program: impl FnOnce(String) -> Program,
    ) -> Option<Record> {
        let program = program(etcd.map(Etcd::url).unwrap_or_default());
        let mut started = None;
        steps.run(group, "components start", || {
            let launcher = Launcher {
                binaries: self.binaries.clone(),
                pki: self.pki.clone(),
                dir: self.dir.join(group).join("components"),
            };
            let (cluster, note) = Cluster::start(program, launcher, &self.dir.join(group), self.wanted.nodes)?;
            started = Some(cluster);
            Ok(note)
        });
        let mut cluster = started?;
        let (mut finals, mut cost) = (BTreeMap::new(), None);
        if let Some(pods) = self.wanted.cycle {
            steps.run(group, "cycle of pods", || {
                let (ended, measured) = cycle::run(&mut cluster, pods, || etcd.and_then(Etcd::usage))?;
                cluster.check()?;
                cost = Some(measured);
                Ok(ended.note)
            });
        }
        let scenarios = if self.wanted.cycle.is_some() { &[] } else { SCENARIOS };
        for scenario in scenarios {
            let chosen = self.options.only.as_deref().is_none_or(|only| scenario.name.contains(only));
            if !chosen || (scenario.etcd && etcd.is_none()) {
                continue;
            }
            steps.run(group, scenario.name, || {
                let ended = (scenario.run)(&mut cluster)?;
                cluster.check()?;
                finals.insert(scenario.name, ended.state);
                Ok(ended.note)
            });
        }
        let usage = cluster.server.usage();
        if self.options.keep {
            cluster.write_logs(&self.dir.join(group));
        }
        Some(Record { group, finals, errors: cluster.errors(), usage, etcd: etcd.and_then(Etcd::usage), cycle: cost })
    }
}

impl Cluster {
    fn start(program: Program, launcher: Launcher, dir: &Path, nodes: usize) -> Outcome<(Self, String)> {
        let start = Instant::now();
        std::fs::create_dir_all(&launcher.dir)?;
        let server = ApiServer::start(program, &launcher.pki, dir)?;
        let access = access(&launcher, server.port, dir)?;
        let mut cluster = Self {
            access,
            launcher,
            server,
            second: None,
            managers: Vec::new(),
            scheduler: None,
            kubelets: Vec::new(),
            proxies: Vec::new(),
            ended: Vec::new(),
            nodes,
        };
        // Neither server runs the Node authorizer here: kubelets get the role that it replaced.
        cluster.access.kube("create clusterrolebinding e2e:nodes --clusterrole=system:node --group=system:nodes")?;
        let port = cluster.server.port;
        cluster.managers.push(cluster.launcher.controller_manager("controller-manager", port)?);
        cluster.scheduler = Some(cluster.launcher.scheduler("scheduler", port)?);
        for index in 0..nodes {
            cluster.kubelets.push(cluster.launcher.kubelet(&node_name(index), port)?);
        }
        cluster.proxies.push(cluster.launcher.proxy(&node_name(0), port)?);
        cluster.until("all nodes are ready", START_LIMIT, "nodes", |list| ready_nodes(list, nodes))?;
        for lease in ["kube-controller-manager", "kube-scheduler"] {
            cluster.until("a leader is elected", START_LIMIT, &format!("lease {lease} -n kube-system"), holder)?;
        }
        let note = format!("{nodes} nodes are ready after {}", crate::steps::seconds(start.elapsed()));
        Ok((cluster, note))
    }

    /// Reads `kubectl get <words>` until `check` accepts it. A failure shows the last unmet condition and the state.
    pub(crate) fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        words: &str,
        check: impl FnMut(&Value) -> Result<T, String>,
    ) -> Outcome<T> {
        self.access.until(what, limit, &format!("get {words}"), check)
    }

    /// Returns the output of `kubectl get <words> -o json`.
    pub(crate) fn get(&self, words: &str) -> Outcome<Value> {
        self.access.get(&format!("get {words}"))
    }

    /// Applies an object or a List with kubectl.
    pub(crate) fn apply(&self, object: &Value) -> Outcome<()> {
        self.access.kubectl(["apply", "-f", "-"]).input(object.to_string()).text().map(drop)
    }

    /// Creates the namespace of a scenario.
    pub(crate) fn namespace(&self, name: &str) -> Outcome<()> {
        self.access.kube(&format!("create namespace {name}")).map(drop)
    }

    /// Deletes the namespace of a scenario and does not wait for it.
    pub(crate) fn leave(&self, namespace: &str) -> Outcome<()> {
        self.access.kube(&format!("delete namespace {namespace} --wait=false")).map(drop)
    }

    /// The normalized objects of these kinds in a namespace.
    pub(crate) fn state(&self, namespace: &str, kinds: &str) -> Outcome<Value> {
        Ok(state::normalize_list(&self.get(&format!("{kinds} -n {namespace}"))?))
    }

    /// An error if a process of this cluster has ended unexpectedly.
    fn check(&mut self) -> Outcome<()> {
        self.server.check()?;
        if let Some(second) = &mut self.second {
            second.check()?;
        }
        let all =
            self.managers.iter_mut().chain(&mut self.scheduler).chain(&mut self.kubelets).chain(&mut self.proxies);
        for component in all {
            if !component.running() {
                let lines = component.lines();
                let tail = lines[lines.len().saturating_sub(12)..].join("\n");
                fail!("{} has ended:\n{tail}", component.name);
            }
        }
        Ok(())
    }

    fn components(&self) -> impl Iterator<Item = &Component> {
        let running = self.managers.iter().chain(&self.scheduler).chain(&self.kubelets).chain(&self.proxies);
        running.chain(&self.ended)
    }

    fn errors(&self) -> Errors {
        let mut errors = Errors::default();
        for component in self.components() {
            errors.add(component.kind, component.lines().iter().map(String::as_str));
        }
        errors
    }

    /// Writes the output of each process into a file.
    fn write_logs(&self, dir: &Path) {
        let write = |name: String, lines: Vec<String>| {
            if let Err(error) = std::fs::write(dir.join(format!("{name}.log")), lines.join("\n")) {
                println!("     the log of {name} is not kept: {error}");
            }
        };
        write("server".to_owned(), self.server.lines());
        if let Some(second) = &self.second {
            write("second-server".to_owned(), second.lines());
        }
        for (index, component) in self.components().enumerate() {
            write(format!("{}-{index}", component.name), component.lines());
        }
    }
}

/// kubectl and curl as the administrator of the server at `port`.
pub(crate) fn access(launcher: &Launcher, port: u16, dir: &Path) -> Outcome<Access> {
    let kubeconfig = launcher.pki.admin_kubeconfig(&launcher.dir, port)?;
    let kubectl = tools::find_or_fetch("kubectl", "kubernetes-client")?;
    Access::from_kubeconfig(&kubeconfig, &kubectl, &tools::curl()?, dir)
}

pub(crate) fn node_name(index: usize) -> String {
    format!("hollow-{}", index + 1)
}

pub(crate) fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The items of a list.
pub(crate) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Whether an object has a condition with this status.
pub(crate) fn condition(object: &Value, kind: &str, status: &str) -> Result<(), String> {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    match conditions.iter().find(|condition| condition["type"] == kind) {
        Some(condition) if condition["status"] == status => Ok(()),
        Some(condition) => Err(format!("condition {condition}")),
        None => Err(format!("no condition {kind}")),
    }
}

/// Whether `count` nodes are ready.
pub(crate) fn ready_nodes(list: &Value, count: usize) -> Result<(), String> {
    let ready = items(list).iter().filter(|node| condition(node, "Ready", "True").is_ok()).count();
    if ready == count { Ok(()) } else { Err(format!("{ready} of {count} nodes are ready")) }
}

/// The holder of a lease.
pub(crate) fn holder(lease: &Value) -> Result<String, String> {
    let holder = lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty());
    holder.map(str::to_owned).ok_or_else(|| "nobody holds the lease".to_owned())
}

/// Adds a row per scenario that compares the final state on listwatch with the one on kube-apiserver.
fn compare(records: &[Record], steps: &mut Steps) {
    let Some(upstream) = records.iter().find(|record| record.group == "upstream") else { return };
    for record in records.iter().filter(|record| record.group != "upstream") {
        for (name, ours) in &record.finals {
            let Some(theirs) = upstream.finals.get(name) else { continue };
            let group = if record.group == "etcd" { "= etcd" } else { "= embedded" };
            steps.run(group, name, || {
                let found = state::compare(theirs, ours);
                if found.is_empty() {
                    return Ok("the final state is that of kube-apiserver".to_owned());
                }
                let shown = found.iter().take(DIFFERENCES_SHOWN).cloned().collect::<Vec<_>>().join("\n      ");
                Err(Failure::from(format!("{} differences\n      {shown}", found.len())))
            });
        }
    }
}

/// Prints CPU time, memory and the errors that components repeat only on listwatch.
fn report(records: &[Record]) {
    println!("\n── servers ──");
    for record in records {
        println!("{:<10} {}", record.group, record.usage);
        if let Some(etcd) = record.etcd {
            println!("{:<10} {etcd} (its etcd)", "");
        }
    }
    let costs: Vec<_> = records.iter().filter_map(|record| Some((record.group, record.cycle.clone()?))).collect();
    if !costs.is_empty() {
        cycle::report(&costs);
    }
    let upstream = records.iter().find(|record| record.group == "upstream");
    let none = Errors::default();
    for record in records.iter().filter(|record| record.group != "upstream") {
        let errors = record.errors.repeated_only_here(upstream.map_or(&none, |upstream| &upstream.errors));
        let than = if upstream.is_some() { " and not on kube-apiserver" } else { "" };
        println!("\n── errors that components repeat on {}{than}: {} ──", record.group, errors.len());
        errors.iter().for_each(|line| println!("{line}"));
    }
}

/// A Deployment whose pods end at once when they are deleted.
pub(crate) fn deployment(namespace: &str, name: &str, replicas: usize, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template(name, image)},
    })
}

/// A pod template with the label `app`.
pub(crate) fn template(app: &str, image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "app", "image": image,
            "ports": [{"name": "http", "containerPort": 8080}],
            "resources": {"requests": {"cpu": "10m"}}}]},
    })
}

/// Whether a Deployment has rolled out to `replicas` available pods of its current template.
pub(crate) fn rolled_out(deployment: &Value, replicas: usize) -> Result<(), String> {
    let status = &deployment["status"];
    if status["observedGeneration"] != deployment["metadata"]["generation"] {
        return Err("the current generation is not observed".to_owned());
    }
    for field in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
        if status[field] != replicas {
            return Err(format!("{field} is {}, not {replicas}", status[field]));
        }
    }
    Ok(())
}

/// Whether a list has exactly `count` pods, all running and none being deleted. Returns their names.
pub(crate) fn running_pods(list: &Value, count: usize) -> Result<Vec<String>, String> {
    let pods = items(list);
    let running = |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
    let names: Vec<_> = pods.iter().filter(running).map(name).collect();
    if names.len() == count && pods.len() == count {
        return Ok(names);
    }
    Err(format!("{} pods, {} of them running and not being deleted; wanted {count}", pods.len(), names.len()))
}
