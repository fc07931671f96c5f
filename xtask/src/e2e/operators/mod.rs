//! `e2e --operator`: public operators with webhooks of their own, on the built server and on a real kube-apiserver.
//!
//! A run installs an operator from its own manifests and starts its programs as processes. Each program has the token
//! of its service account, so the operator's own RBAC rules apply. Its webhook services lead to the processes. The
//! scenarios then use the operator as a user would. `--operator suite` runs the compiled envtest suites of an operator
//! instead: the server takes the place of kube-apiserver in the directory that `KUBEBUILDER_ASSETS` names.
//!
//! The operator's programs are built beforehand, outside of this repository.

mod cert_manager;
mod installed;
mod jobset;
mod leader_worker_set;
mod managers;
mod suites;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::args::Args;
use crate::failure::{Outcome, ensure, fail};
use crate::steps::Steps;
use crate::tools;

use super::access::Access;
use super::cluster::components::{ApiServer, Program};
use super::cluster::pki::Pki;
use super::etcd::Etcd;
use super::{EtcdFrom, Options, WorkDir};
use installed::Operator;
use suites::Suite;

/// The file name of upstream's server.
const API_SERVER: &str = "kube-apiserver";

/// The operator of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    CertManager,
    JobSet,
    LeaderWorkerSet,
    Suite,
}

/// The options of `--operator`.
#[derive(Debug, Clone)]
pub(crate) struct OperatorOptions {
    kind: Kind,
    manifests: Vec<PathBuf>,
    bin: Option<PathBuf>,
    suites: Vec<Suite>,
    suite_args: Vec<String>,
    etcd_store: bool,
    /// A real kube-apiserver to compare with.
    api_server: Option<PathBuf>,
}

impl OperatorOptions {
    /// Reads the flags. `None` without `--operator`.
    pub(crate) fn read(args: &mut Args) -> Outcome<Option<Self>> {
        let Some(name) = args.value("--operator")? else {
            for flag in ["--manifests", "--operator-bin", "--suite", "--suite-args", "--store"] {
                ensure!(args.value(flag)?.is_none(), "{flag} needs --operator");
            }
            return Ok(None);
        };
        let kind = match name.as_str() {
            "cert-manager" => Kind::CertManager,
            "jobset" => Kind::JobSet,
            "lws" => Kind::LeaderWorkerSet,
            "suite" => Kind::Suite,
            other => fail!("--operator is cert-manager, jobset, lws or suite, not {other}"),
        };
        let mut manifests = Vec::new();
        while let Some(path) = args.value("--manifests")? {
            manifests.push(std::path::absolute(path)?);
        }
        let mut suites = Vec::new();
        while let Some(suite) = args.value("--suite")? {
            suites.push(Suite::parse(&suite)?);
        }
        let bin = args.value("--operator-bin")?.map(std::path::absolute).transpose()?;
        let words = args.value("--suite-args")?.unwrap_or_else(|| "-test.v".to_owned());
        let etcd_store = match args.value("--store")?.as_deref() {
            None | Some("embedded") => false,
            Some("etcd") => true,
            Some(other) => fail!("--store is embedded or etcd, not {other}"),
        };
        let dir = args.value("--kubernetes-bin")?.map(PathBuf::from);
        let dir = dir.or_else(super::cluster::binaries_of_environment);
        let api_server = if args.flag("--against-apiserver") {
            let file = dir.ok_or("--against-apiserver needs --kubernetes-bin")?.join(API_SERVER);
            ensure!(file.is_file(), "there is no {}", file.display());
            Some(std::path::absolute(file)?)
        } else {
            None
        };
        if kind == Kind::Suite {
            ensure!(!suites.is_empty(), "--operator suite needs --suite DIR=FILE");
        } else {
            ensure!(!manifests.is_empty() && bin.is_some(), "--operator {name} needs --manifests and --operator-bin");
        }
        let suite_args = words.split_whitespace().map(str::to_owned).collect();
        Ok(Some(Self { kind, manifests, bin, suites, suite_args, etcd_store, api_server }))
    }
}

/// One row of the table.
struct Scenario {
    name: &'static str,
    run: fn(&mut Operator) -> Outcome<String>,
}

const fn scenario(name: &'static str, run: fn(&mut Operator) -> Outcome<String>) -> Scenario {
    Scenario { name, run }
}

/// Runs the operator on the built server, and on kube-apiserver if asked. An error only if the run cannot begin.
pub(crate) fn steps(options: &Options, wanted: &OperatorOptions) -> Outcome<Steps> {
    let start = Instant::now();
    let mut steps = Steps::default();
    let dir = WorkDir::new(options.keep)?;
    let bin = match &options.server_bin {
        Some(bin) => std::path::absolute(bin)?,
        None => super::build(options.release)?,
    };
    if wanted.kind == Kind::Suite {
        suites::run(options, wanted, &bin, &dir.path, &mut steps)?;
    } else {
        let pki = Pki::new(&dir.path.join("pki"))?;
        let run = Runner { options, wanted, pki: &pki, dir: &dir.path };
        match wanted.etcd_store {
            false => run.group("embedded", &mut steps, |_| Ok((Program::ListwatchEmbedded(bin.clone()), None))),
            true => run.group("etcd", &mut steps, |dir| {
                let etcd = start_etcd(options, dir)?;
                Ok((Program::ListwatchEtcd(bin.clone(), etcd.url()), Some(etcd)))
            }),
        }
        if let Some(api_server) = &wanted.api_server {
            run.group("upstream", &mut steps, |dir| {
                let etcd = start_etcd(options, dir)?;
                Ok((Program::Upstream(api_server.clone(), etcd.url()), Some(etcd)))
            });
        }
    }
    println!("the whole run took {}", crate::steps::seconds(start.elapsed()));
    Ok(steps)
}

fn start_etcd(options: &Options, dir: &Path) -> Outcome<Etcd> {
    ensure!(options.etcd != EtcdFrom::Container, "operators run with etcd as a process, not in a container");
    std::fs::create_dir_all(dir)?;
    Etcd::process(options.etcd_bin.as_deref(), dir)
}

/// The values that the groups of a run share.
struct Runner<'a> {
    options: &'a Options,
    wanted: &'a OperatorOptions,
    pki: &'a Pki,
    dir: &'a Path,
}

impl Runner<'_> {
    /// Runs the scenarios on one server.
    fn group(
        &self,
        group: &'static str,
        steps: &mut Steps,
        program: impl FnOnce(&Path) -> Outcome<(Program, Option<Etcd>)>,
    ) {
        let dir = self.dir.join(group);
        let mut started = None;
        steps.run(group, "start", || {
            let start = Instant::now();
            let (program, etcd) = program(&dir)?;
            let server = ApiServer::start(program, self.pki, &dir)?;
            let kubeconfig = self.pki.admin_kubeconfig(&dir, server.port)?;
            let kubectl = tools::find_or_fetch("kubectl", "kubernetes-client")?;
            let access = Access::from_kubeconfig(&kubeconfig, &kubectl, &tools::curl()?, &dir.join("access"))?;
            started = Some((server, access, etcd));
            Ok(format!("ready after {}", crate::steps::seconds(start.elapsed())))
        });
        let Some((mut server, access, etcd)) = started else { return };
        let bin = self.wanted.bin.clone().unwrap_or_default();
        let (namespace, scenarios) = match self.wanted.kind {
            Kind::CertManager => (cert_manager::NAMESPACE, cert_manager::SCENARIOS),
            Kind::JobSet => (jobset::PROJECT.namespace, jobset::SCENARIOS),
            Kind::LeaderWorkerSet | Kind::Suite => (leader_worker_set::PROJECT.namespace, leader_worker_set::SCENARIOS),
        };
        let mut operator = Operator::new(access, dir.clone(), namespace, bin, self.wanted.manifests.clone());
        for (number, scenario) in scenarios.iter().enumerate() {
            // The first scenario installs the operator.
            let chosen = self.options.only.as_deref().is_none_or(|only| scenario.name.contains(only));
            if number > 0 && !chosen {
                continue;
            }
            let well = steps.run(group, scenario.name, || {
                let note = (scenario.run)(&mut operator)?;
                server.check()?;
                operator.check()?;
                Ok(note)
            });
            if number == 0 && !well {
                break;
            }
        }
        if self.options.keep {
            operator.write_logs(&dir);
            let log = dir.join("server.log");
            if let Err(error) = std::fs::write(&log, server.lines().join("\n")) {
                println!("     {} is not kept: {error}", log.display());
            }
        }
        drop(operator);
        drop(server);
        drop(etcd);
    }
}

#[cfg(test)]
mod tests {
    use super::OperatorOptions;
    use crate::args::Args;

    fn read(line: &str) -> Result<Option<OperatorOptions>, String> {
        let mut args = Args::new(line.split_whitespace().map(str::to_owned));
        let options = OperatorOptions::read(&mut args).map_err(|failure| failure.to_string())?;
        args.finish("e2e").map_err(|failure| failure.to_string())?;
        Ok(options)
    }

    #[test]
    fn operator_flags_are_read_in_order() {
        let options = read("--operator lws --manifests /b --manifests /a --operator-bin /c").unwrap().unwrap();
        let manifests: Vec<_> = options.manifests.iter().map(|path| path.display().to_string()).collect();
        assert_eq!(manifests, ["/b", "/a"]);
        let options = read("--operator suite --suite /p=/f --suite /q=/g --suite-args=-test.short").unwrap().unwrap();
        assert_eq!((options.suites.len(), options.suite_args.join(" ").as_str()), (2, "-test.short"));
        assert!(read("--etcd none").is_err() && read("").unwrap().is_none());
    }

    #[test]
    fn incomplete_operator_flags_are_refused() {
        for (line, error) in [
            ("--operator", "--operator needs a value"),
            ("--operator kueue", "--operator is cert-manager, jobset, lws or suite, not kueue"),
            ("--operator lws --manifests /a", "--operator lws needs --manifests and --operator-bin"),
            ("--operator suite", "--operator suite needs --suite DIR=FILE"),
            ("--operator suite --suite nothing", "--suite is DIR=FILE, not nothing"),
            ("--suite a=b", "--suite needs --operator"),
        ] {
            assert_eq!(read(line).unwrap_err(), error, "{line}");
        }
    }
}
