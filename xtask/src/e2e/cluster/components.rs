//! The processes of a cluster: API servers, controller managers, schedulers, hollow nodes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Outcome, fail};
use crate::process::{Background, Run};
use crate::tools;

use super::super::server::free_port;
use super::pki::Pki;
use super::usage::Usage;

/// The time limit until `/readyz` of an API server returns 200.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// Time between two requests while a server is awaited.
const READY_INTERVAL: Duration = Duration::from_millis(100);
/// The time limit of a component's end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// The network of cluster addresses.
const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The time after which the controller manager marks a silent node as unhealthy. Kubelets renew their leases every ten
/// seconds, and later on a slow host, so a shorter time would mark healthy nodes.
const NODE_GRACE: &str = "--node-monitor-grace-period=60s";

/// The program that serves the API, and its store.
#[derive(Clone)]
pub(crate) enum Program {
    /// listwatch on its embedded store.
    ListwatchEmbedded(PathBuf),
    /// listwatch on etcd at this URL.
    ListwatchEtcd(PathBuf, String),
    /// A real kube-apiserver on etcd at this URL.
    Upstream(PathBuf, String),
}

/// An API server, which keeps its port and data over a restart.
pub(crate) struct ApiServer {
    program: Program,
    pki: Pki,
    dir: PathBuf,
    /// Flags of this run alone.
    extra: Vec<String>,
    pub(crate) port: u16,
    process: Background,
    /// Usage of the processes before this one.
    before: Usage,
    /// Lines of the processes before this one.
    ended: Vec<String>,
}

impl ApiServer {
    /// Starts the server with its files in `dir`, and waits until it is ready.
    pub(crate) fn start(program: Program, pki: &Pki, dir: &Path) -> Outcome<Self> {
        Self::start_with(program, pki, dir, &[])
    }

    /// Like [`start`](Self::start), with further flags.
    pub(crate) fn start_with(program: Program, pki: &Pki, dir: &Path, extra: &[String]) -> Outcome<Self> {
        std::fs::create_dir_all(dir)?;
        let port = free_port()?;
        let process = launch(&program, pki, dir, port, extra)?;
        Ok(Self {
            program,
            pki: pki.clone(),
            dir: dir.to_owned(),
            extra: extra.to_vec(),
            port,
            process,
            before: Usage::default(),
            ended: Vec::new(),
        })
    }

    /// Sends SIGKILL and starts the server again on the same port.
    pub(crate) fn kill_and_restart(&mut self) -> Outcome<Duration> {
        self.before = self.usage();
        self.process.kill();
        self.ended.extend(self.process.lines.all().into_iter().map(|line| line.text));
        let start = Instant::now();
        self.process = launch(&self.program, &self.pki, &self.dir, self.port, &self.extra)?;
        Ok(start.elapsed())
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn stop(&mut self) -> Outcome<()> {
        self.process.terminate(STOP_LIMIT).map(drop)
    }

    /// CPU time and memory of all processes of this server.
    pub(crate) fn usage(&self) -> Usage {
        self.before.followed_by(Usage::of_process(self.process.id()).unwrap_or_default())
    }

    /// All output lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        let now = self.process.lines.all().into_iter().map(|line| line.text);
        self.ended.iter().cloned().chain(now).collect()
    }

    /// An error if the server has panicked or ended.
    pub(crate) fn check(&mut self) -> Outcome<()> {
        if let Some(line) = self.lines().into_iter().find(|line| line.contains("panicked at")) {
            fail!("the API server panicked: {line}");
        }
        if !self.process.running() {
            fail!("the API server has ended:\n{}", self.process.tail());
        }
        Ok(())
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }
}

fn launch(program: &Program, pki: &Pki, dir: &Path, port: u16, extra: &[String]) -> Outcome<Background> {
    let run = match program {
        Program::ListwatchEmbedded(bin) => {
            Run::new(bin).args(["kube-apiserver", "--storage-backend=embedded", "--data-dir"]).arg(dir.join("data"))
        }
        Program::ListwatchEtcd(bin, url) => Run::new(bin).args(["kube-apiserver", "--etcd-servers", url]),
        Program::Upstream(bin, url) => Run::new(bin).args(["--etcd-servers", url]),
    };
    let file = |flag: &str, name: &str| format!("--{flag}={}", pki.file(name).display());
    let mut process = run
        .args([
            format!("--secure-port={port}"),
            format!("--cert-dir={}", dir.join("certificates").display()),
            file("tls-cert-file", "apiserver.crt"),
            file("tls-private-key-file", "apiserver.key"),
            file("client-ca-file", "ca.crt"),
            file("token-auth-file", "tokens.csv"),
            file("service-account-key-file", "sa.pub"),
            file("service-account-signing-key-file", "sa.key"),
            file("requestheader-client-ca-file", "front-proxy-ca.crt"),
            file("proxy-client-cert-file", "front-proxy-client.crt"),
            file("proxy-client-key-file", "front-proxy-client.key"),
            format!("--service-cluster-ip-range={SERVICE_RANGE}"),
        ])
        .args([
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            // Loopback addresses are no valid endpoints, and these pods need no token.
            "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount",
        ])
        .args(extra)
        .start()?;
    let start = Instant::now();
    let ready = Run::new(tools::curl()?)
        .args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--cacert"])
        .arg(pki.file("ca.crt"))
        .arg(format!("https://127.0.0.1:{port}/readyz"));
    while ready.clone().limit(Duration::from_secs(5)).output()?.text() != "200" {
        if !process.running() {
            fail!("`{}` ended at once:\n{}", process.line(), process.tail());
        }
        if start.elapsed() > READY_LIMIT {
            fail!("`{}` is not ready after {READY_LIMIT:?}:\n{}", process.line(), process.tail());
        }
        std::thread::sleep(READY_INTERVAL);
    }
    Ok(process)
}

/// A client of the API: a controller manager, a scheduler, a hollow kubelet or a hollow kube-proxy.
pub(crate) struct Component {
    /// The kind of the component, for the comparison of logs.
    pub(crate) kind: &'static str,
    /// The name of the component, for the log file.
    pub(crate) name: String,
    process: Background,
}

impl Component {
    /// Sends SIGKILL. The output stays available.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn stop(&mut self) -> Outcome<()> {
        self.process.terminate(STOP_LIMIT).map(drop)
    }

    pub(crate) fn running(&mut self) -> bool {
        self.process.running()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.process.lines.all().into_iter().map(|line| line.text).collect()
    }

    /// Waits for a line with these words.
    pub(crate) fn wait_for_line(&self, words: &str, limit: Duration) -> Outcome<()> {
        match self.process.lines.wait(0, limit, |line| line.contains(words)) {
            Some(_) => Ok(()),
            None => Err(Failure::from(format!(
                "{} has not logged {words:?} within {limit:?}:\n{}",
                self.name,
                self.process.tail()
            ))),
        }
    }
}

/// Starts the components of one cluster.
pub(crate) struct Launcher {
    pub(crate) binaries: super::binaries::Binaries,
    pub(crate) pki: Pki,
    pub(crate) dir: PathBuf,
}

impl Launcher {
    /// Starts kube-controller-manager with the server at `port`.
    pub(crate) fn controller_manager(&self, name: &str, port: u16) -> Outcome<Component> {
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.pki.file(name).display());
        let run = self.elected(&self.binaries.controller_manager, name, "controller-manager", port)?;
        let run = run
            .args([
                file("service-account-private-key-file", "sa.key"),
                file("root-ca-file", "ca.crt"),
                file("cluster-signing-cert-file", "ca.crt"),
                file("cluster-signing-key-file", "ca.key"),
            ])
            .args([
                "--use-service-account-credentials=true",
                NODE_GRACE,
                "--node-monitor-period=1s",
                "--horizontal-pod-autoscaler-sync-period=2s",
                "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
                "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
            ]);
        Ok(Component { kind: "kube-controller-manager", name: name.to_owned(), process: run.start()? })
    }

    /// Starts kube-scheduler with the server at `port`.
    pub(crate) fn scheduler(&self, name: &str, port: u16) -> Outcome<Component> {
        let run = self.elected(&self.binaries.scheduler, name, "scheduler", port)?;
        Ok(Component { kind: "kube-scheduler", name: name.to_owned(), process: run.start()? })
    }

    /// A component with leader election, which serves its own metrics and authenticates their readers by the server.
    fn elected(&self, bin: &Path, name: &str, user: &str, port: u16) -> Outcome<Run> {
        let kubeconfig = self.pki.component_kubeconfig(&self.dir, user, port)?;
        let flag = |flag: &str| format!("--{flag}={}", kubeconfig.display());
        Ok(self
            .run(bin)
            .args([flag("kubeconfig"), flag("authentication-kubeconfig"), flag("authorization-kubeconfig")])
            .args([
                format!("--secure-port={}", free_port()?),
                format!("--cert-dir={}", self.dir.join(format!("{name}-certificates")).display()),
                "--bind-address=127.0.0.1".to_owned(),
                "--leader-elect=true".to_owned(),
                // A leader ends its process after the renew deadline. A slow host must restart the server within it.
                "--leader-elect-lease-duration=30s".to_owned(),
                "--leader-elect-renew-deadline=20s".to_owned(),
                "--leader-elect-retry-period=2s".to_owned(),
            ]))
    }

    /// Starts a hollow kubelet with the server at `port`.
    pub(crate) fn kubelet(&self, node: &str, port: u16) -> Outcome<Component> {
        self.pki.node(node)?;
        let kubeconfig = self.pki.component_kubeconfig(&self.dir, node, port)?;
        let run = self.hollow("kubelet", node, &kubeconfig).args([
            format!("--kubelet-port={}", free_port()?),
            format!("--kubelet-read-only-port={}", free_port()?),
            "--use-host-image-service=false".to_owned(),
            format!("--node-labels=kubernetes.io/hostname={node}"),
        ]);
        Ok(Component { kind: "hollow kubelet", name: node.to_owned(), process: run.start()? })
    }

    /// Starts a hollow kube-proxy with the server at `port`.
    pub(crate) fn proxy(&self, node: &str, port: u16) -> Outcome<Component> {
        let kubeconfig = self.pki.component_kubeconfig(&self.dir, "proxy", port)?;
        let run = self.hollow("proxy", node, &kubeconfig);
        Ok(Component { kind: "hollow kube-proxy", name: format!("{node}-proxy"), process: run.start()? })
    }

    fn hollow(&self, morph: &str, node: &str, kubeconfig: &Path) -> Run {
        let run = self.run(&self.binaries.kubemark).args(["--morph", morph, "--name", node, "--kubeconfig"]);
        run.arg(kubeconfig)
    }

    /// A program with temporary files in the directory of the run.
    fn run(&self, bin: &Path) -> Run {
        Run::new(bin).env("TMPDIR", &self.dir).env("HOME", &self.dir).dir(&self.dir)
    }
}
