//! An etcd cluster that a scenario can break: members as containers on a network of their own, or as processes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cleanup::{self, Guard, Resource};
use crate::failure::{Outcome, ensure, fail};
use crate::process::{Background, Run};

use super::etcd::ctl;
use super::server::free_port;

/// The time limit of a cluster's start, and of a member's return.
const START_LIMIT: Duration = Duration::from_secs(40);

/// The time limit of one call of docker.
const DOCKER_LIMIT: Duration = Duration::from_secs(60);

/// The directories of a member's data and TLS files in its container.
const DATA_IN_CONTAINER: &str = "/tmp/etcd";
const TLS_IN_CONTAINER: &str = "/tmp/tls";

/// The environment of the members.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In containers of this image.
    Containers { image: String },
    /// As processes of this binary.
    Processes { bin: PathBuf },
}

/// A cluster. The members are removed when this value is dropped.
pub(crate) struct EtcdCluster {
    place: Place,
    dir: PathBuf,
    etcdctl: PathBuf,
    network: String,
    /// Flags that every member has, such as the quota.
    flags: Vec<String>,
    /// The directory of `ca.crt`, `server.crt` and `server.key` of the members, and of `client.crt` and `client.key`.
    tls: Option<PathBuf>,
    members: Vec<Member>,
    // Dropped after the members.
    _network: Option<Guard>,
}

struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
    /// Whether the member joined a running cluster.
    joined: bool,
    /// The data that a new container begins with.
    data: Option<PathBuf>,
    process: Option<Background>,
    _container: Option<Guard>,
}

impl EtcdCluster {
    /// Starts a cluster. `flags` are further flags of etcd. With the directory `tls`, clients need a certificate.
    pub(crate) fn start(
        place: &Place,
        dir: &Path,
        size: usize,
        etcdctl: &Path,
        flags: &[&str],
        tls: Option<&Path>,
    ) -> Outcome<Self> {
        std::fs::create_dir_all(dir)?;
        let network = format!("listwatch-faults-{}", std::process::id());
        let guard = match place {
            Place::Containers { .. } => {
                let guard = cleanup::guard(Resource::Network(network.clone()));
                docker(["network", "create", &network])?;
                Some(guard)
            }
            Place::Processes { .. } => None,
        };
        let members = (0..size).map(|number| Member::new(format!("member{number}"))).collect::<Outcome<_>>()?;
        let mut cluster = Self {
            place: place.clone(),
            dir: dir.to_owned(),
            etcdctl: etcdctl.to_owned(),
            network,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            tls: tls.map(Path::to_owned),
            members,
            _network: guard,
        };
        for number in 0..size {
            cluster.create(number)?;
        }
        cluster.wait_for_quorum()?;
        Ok(cluster)
    }

    /// The URLs of all members, as `--etcd-servers` takes them.
    pub(crate) fn urls(&self) -> String {
        self.members.iter().map(|member| self.url(member)).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    fn url(&self, member: &Member) -> String {
        format!("{}://127.0.0.1:{}", self.scheme(), member.client_port)
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Returns an etcdctl command for all members.
    pub(crate) fn ctl(&self) -> Run {
        self.ctl_at(&self.urls())
    }

    /// Returns an etcdctl command for one member.
    pub(crate) fn ctl_of(&self, number: usize) -> Run {
        self.ctl_at(&self.url(&self.members[number]))
    }

    fn ctl_at(&self, urls: &str) -> Run {
        let run = ctl(&self.etcdctl, urls);
        match &self.tls {
            Some(dir) => run
                .arg("--cacert")
                .arg(dir.join("ca.crt"))
                .arg("--cert")
                .arg(dir.join("client.crt"))
                .arg("--key")
                .arg(dir.join("client.key")),
            None => run,
        }
    }

    /// The number of the leader.
    pub(crate) fn leader(&self) -> Outcome<usize> {
        let begun = Instant::now();
        while begun.elapsed() < START_LIMIT {
            for number in 0..self.members.len() {
                let status = self.ctl_of(number).args(["endpoint", "status", "--write-out", "json"]).output()?;
                let Ok(status) = serde_json::from_slice::<serde_json::Value>(&status.stdout) else { continue };
                let status = &status[0]["Status"];
                if status["leader"].is_u64() && status["leader"] == status["header"]["member_id"] {
                    return Ok(number);
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        fail!("etcd has no leader within {START_LIMIT:?}")
    }

    /// Kills a member with SIGKILL.
    pub(crate) fn kill(&mut self, number: usize) -> Outcome<()> {
        match self.place {
            Place::Containers { .. } => docker(["kill", "--signal", "KILL", &self.container(number)]),
            Place::Processes { .. } => {
                if let Some(process) = &mut self.members[number].process {
                    process.kill();
                }
                Ok(())
            }
        }
    }

    /// Starts a member that was killed, with its data.
    pub(crate) fn restart(&mut self, number: usize) -> Outcome<()> {
        match self.place {
            Place::Containers { .. } => {
                self.copy_tls_files(number)?;
                docker(["start", &self.container(number)])
            }
            Place::Processes { .. } => self.create(number),
        }
    }

    /// Copies the present TLS files into a container, in which they have the path [`TLS_IN_CONTAINER`].
    fn copy_tls_files(&self, number: usize) -> Outcome<()> {
        let Some(dir) = &self.tls else { return Ok(()) };
        copy_into(dir, &self.container(number), TLS_IN_CONTAINER)
    }

    /// Replaces the data of a killed member by a snapshot that `etcdctl snapshot save` has written, and starts the
    /// member. Only for clusters of one member.
    pub(crate) fn restore(&mut self, snapshot: &Path) -> Outcome<()> {
        let (name, peer) = (self.members[0].name.clone(), self.peer_url(0));
        let data = self.dir.join(format!("{name}-restored"));
        // etcd 3.6 has the command in etcdutl only.
        let etcdutl = self.etcdctl.with_file_name("etcdutl");
        Run::new(if etcdutl.is_file() { &etcdutl } else { &self.etcdctl })
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"])
            .arg(snapshot)
            .args(["--name", &name, "--initial-cluster", &format!("{name}={peer}")])
            .args(["--initial-advertise-peer-urls", &peer, "--data-dir"])
            .arg(&data)
            .limit(Duration::from_secs(30))
            .text()?;
        match self.place {
            Place::Containers { .. } => {
                self.members[0]._container = None;
                self.members[0].data = Some(data);
            }
            Place::Processes { .. } => {
                let present = self.dir.join(&name);
                std::fs::remove_dir_all(&present)?;
                std::fs::rename(&data, &present)?;
            }
        }
        self.create(0)?;
        self.wait_for_quorum()
    }

    /// Stops a member's execution, or lets it continue.
    pub(crate) fn pause(&self, number: usize, is_paused: bool) -> Outcome<()> {
        match (&self.place, &self.members[number].process) {
            (Place::Containers { .. }, _) => {
                docker([if is_paused { "pause" } else { "unpause" }, &self.container(number)])
            }
            (_, Some(process)) => {
                let signal = if is_paused { "-STOP" } else { "-CONT" };
                Run::new("kill").args([signal, &process.id().to_string()]).text().map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Cuts a member from all others and from its clients, or connects it again. Members that are processes share one
    /// network: they are paused instead.
    pub(crate) fn partition(&self, number: usize, is_cut: bool) -> Outcome<()> {
        match &self.place {
            Place::Containers { .. } => docker([
                "network",
                if is_cut { "disconnect" } else { "connect" },
                &self.network,
                &self.container(number),
            ]),
            Place::Processes { .. } => self.pause(number, is_cut),
        }
    }

    /// Removes a member with its data, and adds an empty one in its place.
    pub(crate) fn replace(&mut self, number: usize) -> Outcome<()> {
        let survivor = usize::from(number == 0);
        let members = self.ctl_of(survivor).args(["member", "list"]).text()?;
        let name = self.members[number].name.clone();
        let line = members.lines().find(|line| line.contains(&name));
        let Some((id, _)) = line.and_then(|line| line.split_once(',')) else { fail!("{name} is not in: {members}") };
        self.kill(number)?;
        self.change_members(survivor, &["remove", id])?;
        let mut member = Member::new(format!("{name}-new"))?;
        member.joined = true;
        self.members[number] = member;
        let peer = self.peer_url(number);
        let name = self.members[number].name.clone();
        self.change_members(survivor, &["add", &name, &format!("--peer-urls={peer}")])?;
        self.create(number)
    }

    /// Changes the members. etcd rejects the change without a leader, and until the leader has seen all members for
    /// some seconds.
    fn change_members(&self, through: usize, arguments: &[&str]) -> Outcome<()> {
        let begun = Instant::now();
        loop {
            let changed = self.ctl_of(through).arg("member").args(arguments).output()?;
            if changed.success() {
                return Ok(());
            }
            ensure!(begun.elapsed() < START_LIMIT, "member {}: {}", arguments.join(" "), changed.said());
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// Waits until a write is possible.
    pub(crate) fn wait_for_quorum(&self) -> Outcome<()> {
        let begun = Instant::now();
        loop {
            let put = self.ctl().args(["put", "/probe", "1"]).output()?;
            if put.success() {
                return Ok(());
            }
            if begun.elapsed() > START_LIMIT {
                fail!("etcd accepts no write within {START_LIMIT:?}: {}", put.said());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn container(&self, number: usize) -> String {
        format!("{}-{}", self.network, self.members[number].name)
    }

    fn peer_url(&self, number: usize) -> String {
        match self.place {
            Place::Containers { .. } => format!("http://{}:2380", self.container(number)),
            Place::Processes { .. } => format!("http://127.0.0.1:{}", self.members[number].peer_port),
        }
    }

    /// The flags of TLS with the files in `dir`.
    fn tls_flags(&self, dir: &Path) -> Vec<String> {
        if self.tls.is_none() {
            return Vec::new();
        }
        let flag = |flag: &str, name: &str| format!("{flag}={}", dir.join(name).display());
        vec![
            flag("--cert-file", "server.crt"),
            flag("--key-file", "server.key"),
            flag("--trusted-ca-file", "ca.crt"),
            "--client-cert-auth".to_owned(),
        ]
    }

    /// Creates the container or process of a member.
    fn create(&mut self, number: usize) -> Outcome<()> {
        let peers =
            (0..self.members.len()).map(|other| format!("{}={}", self.members[other].name, self.peer_url(other)));
        let peers = peers.collect::<Vec<_>>().join(",");
        let state = if self.members[number].joined { "existing" } else { "new" };
        let (peer, member) = (self.peer_url(number), &self.members[number]);
        let (name, client_port) = (member.name.clone(), member.client_port);
        let scheme = self.scheme();
        let common = [
            "--name".to_owned(),
            name.clone(),
            "--initial-advertise-peer-urls".to_owned(),
            peer.clone(),
            "--initial-cluster".to_owned(),
            peers,
            "--initial-cluster-state".to_owned(),
            state.to_owned(),
        ];
        match self.place.clone() {
            Place::Containers { image } => {
                let container = self.container(number);
                let guard = cleanup::guard(Resource::Container(container.clone()));
                Run::new("docker")
                    .args(["create", "--name", &container, "--network", &self.network])
                    .args(["--publish", &format!("127.0.0.1:{client_port}:2379"), "--entrypoint", "etcd", &image])
                    .args(common)
                    .args(["--listen-peer-urls", "http://0.0.0.0:2380"])
                    .args(["--listen-client-urls", &format!("{scheme}://0.0.0.0:2379")])
                    .args(["--advertise-client-urls", &format!("{scheme}://{container}:2379")])
                    .args(["--data-dir", DATA_IN_CONTAINER])
                    .args(&self.flags)
                    .args(self.tls_flags(Path::new(TLS_IN_CONTAINER)))
                    .limit(DOCKER_LIMIT)
                    .text()?;
                self.copy_tls_files(number)?;
                if let Some(data) = &self.members[number].data {
                    copy_into(data, &container, DATA_IN_CONTAINER)?;
                }
                docker(["start", &container])?;
                self.members[number]._container = Some(guard);
            }
            Place::Processes { bin } => {
                let client = format!("{scheme}://127.0.0.1:{client_port}");
                let tls_flags = self.tls.as_deref().map(|dir| self.tls_flags(dir)).unwrap_or_default();
                let process = Run::new(bin)
                    .args(common)
                    .args(["--listen-peer-urls", &peer, "--listen-client-urls", &client])
                    .args(["--advertise-client-urls", &client, "--data-dir"])
                    .arg(self.dir.join(&name))
                    .args(&self.flags)
                    .args(tls_flags)
                    .start()?;
                self.members[number].process = Some(process);
            }
        }
        Ok(())
    }
}

impl Member {
    fn new(name: String) -> Outcome<Self> {
        let (client_port, peer_port) = (free_port()?, free_port()?);
        Ok(Member { name, client_port, peer_port, joined: false, data: None, process: None, _container: None })
    }
}

/// Copies the content of a directory into a container.
fn copy_into(dir: &Path, container: &str, path: &str) -> Outcome<()> {
    docker(["cp", &format!("{}/.", dir.display()), &format!("{container}:{path}")])
}

fn docker<const N: usize>(arguments: [&str; N]) -> Outcome<()> {
    let output = Run::new("docker").args(arguments).limit(DOCKER_LIMIT).output()?;
    ensure!(output.success(), "docker {}: {}", arguments.join(" "), output.said());
    Ok(())
}
