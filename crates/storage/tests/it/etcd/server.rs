//! Starts and stops real etcd processes for tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use listwatch_test_ports::free_port;
use tempfile::TempDir;

/// Time for a started member to answer.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// The etcd for the tests, determined by the environment.
pub(crate) enum Etcd {
    /// A binary to start.
    Binary(PathBuf),
    /// `LISTWATCH_SKIP_ETCD=1`: these tests are skipped.
    Skipped,
}

/// Finds an etcd binary: `LISTWATCH_ETCD`, else `etcd` on the PATH.
///
/// # Panics
/// When there is no binary, with instructions. A skipped test would look like a passed one.
pub(crate) fn find() -> Etcd {
    if std::env::var_os("LISTWATCH_SKIP_ETCD").is_some_and(|value| value == "1") {
        return Etcd::Skipped;
    }
    if let Some(path) = std::env::var_os("LISTWATCH_ETCD").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "LISTWATCH_ETCD names {}, which is no file", path.display());
        return Etcd::Binary(path);
    }
    let on_path = std::env::var_os("PATH")
        .and_then(|paths| std::env::split_paths(&paths).map(|dir| dir.join("etcd")).find(|path| path.is_file()));
    on_path.map(Etcd::Binary).expect(
        "no etcd found: install one (Debian: apt-get install etcd-server; or https://github.com/etcd-io/etcd/releases), \
         or set LISTWATCH_ETCD to a binary, or LISTWATCH_SKIP_ETCD=1 to go without these tests",
    )
}

/// `LISTWATCH_ETCD_PLAIN=1`: the binary embeds etcd's server and takes no flags for clusters and TLS.
pub(crate) fn is_plain() -> bool {
    let plain = std::env::var_os("LISTWATCH_ETCD_PLAIN").is_some_and(|value| value == "1");
    if plain {
        eprintln!("skipped: LISTWATCH_ETCD_PLAIN=1");
    }
    plain
}

/// The endpoints of an external cluster: `LISTWATCH_ETCD_ENDPOINTS`.
pub(crate) fn foreign_endpoints() -> Option<Vec<String>> {
    let endpoints = std::env::var("LISTWATCH_ETCD_ENDPOINTS").ok().filter(|endpoints| !endpoints.is_empty())?;
    Some(endpoints.split(',').map(|endpoint| endpoint.trim().to_owned()).collect())
}

/// One member and its data, across restarts of its process.
pub(crate) struct Member {
    binary: PathBuf,
    arguments: Vec<String>,
    dir: TempDir,
    /// `http://127.0.0.1:port` or `https://…`.
    pub(crate) url: String,
    process: Option<Process>,
}

/// An etcd process that a shell kills when the test's end of a pipe closes. A killed test process therefore leaves no
/// etcd running.
struct Process {
    shell: Child,
    pid: u32,
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

impl Member {
    /// Starts a cluster of one.
    pub(crate) fn start_one(binary: &Path, extra: &[&str]) -> Member {
        let mut members = Self::prepare(binary, 1, extra);
        let mut member = members.remove(0);
        member.start();
        member
    }

    /// Starts a cluster.
    pub(crate) fn start_cluster(binary: &Path, size: usize) -> Vec<Member> {
        let mut members = Self::prepare(binary, size, &[]);
        for member in &mut members {
            member.launch();
        }
        for member in &mut members {
            member.wait_until_it_answers();
        }
        members
    }

    fn prepare(binary: &Path, size: usize, extra: &[&str]) -> Vec<Member> {
        let tls = extra.iter().any(|argument| argument.starts_with("--cert-file"));
        let scheme = if tls { "https" } else { "http" };
        let port = |_| free_port().expect("a free port");
        let (clients, peers): (Vec<u16>, Vec<u16>) = (0..size).map(|n| (port(n), port(n))).unzip();
        let cluster: Vec<_> =
            peers.iter().enumerate().map(|(n, peer)| format!("m{n}=http://127.0.0.1:{peer}")).collect();
        let cluster = cluster.join(",");
        (clients.into_iter().zip(peers).enumerate())
            .map(|(n, (client, peer))| {
                let dir = tempfile::Builder::new().prefix("listwatch-etcd-").tempdir().expect("a temporary directory");
                let url = format!("{scheme}://127.0.0.1:{client}");
                let peer = format!("http://127.0.0.1:{peer}");
                let mut arguments: Vec<String> = [
                    ("--name", format!("m{n}")),
                    ("--data-dir", dir.path().join("data").display().to_string()),
                    ("--listen-client-urls", url.clone()),
                    ("--advertise-client-urls", url.clone()),
                    ("--listen-peer-urls", peer.clone()),
                    ("--log-level", "warn".to_owned()),
                ]
                .into_iter()
                .map(|(flag, value)| format!("{flag}={value}"))
                .collect();
                if size > 1 {
                    arguments.push(format!("--initial-advertise-peer-urls={peer}"));
                    arguments.push(format!("--initial-cluster={cluster}"));
                }
                arguments.extend(extra.iter().map(|&argument| argument.to_owned()));
                Member { binary: binary.to_owned(), arguments, dir, url, process: None }
            })
            .collect()
    }

    /// Starts the member on its existing data, and waits until it answers.
    pub(crate) fn start(&mut self) {
        self.launch();
        self.wait_until_it_answers();
    }

    fn launch(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let log = self.dir.path().join("log");
        let script = r#"exec 3<&0
log="$1"; shift
"$@" </dev/null 3<&- >>"$log" 2>&1 &
etcd=$!
( read -r _ <&3; kill -9 $etcd ) >/dev/null 2>&1 &
echo $etcd
wait $etcd"#;
        let mut shell = Command::new("sh")
            .args(["-c", script, "etcd-keeper"])
            .arg(log)
            .arg(&self.binary)
            .args(&self.arguments)
            // Debian's build requires this on some architectures.
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("x86_64", "amd64").replace("aarch64", "arm64"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let stdout = shell.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the shell says etcd's process id");
        let pid = line.trim().parse().expect("a process id");
        self.process = Some(Process { shell, pid });
    }

    fn wait_until_it_answers(&mut self) {
        let address = self.url.split("//").nth(1).expect("a URL");
        let deadline = Instant::now() + START_PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            let exited = self.process.as_mut().expect("a running member").shell.try_wait().expect("a child");
            assert!(exited.is_none() && Instant::now() < deadline, "etcd does not start:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The member's log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Kills the member with `SIGKILL`, as in a crash. The member's data stays.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Removes the data of a stopped member, as an operator may.
    pub(crate) fn wipe(&self) {
        std::fs::remove_dir_all(self.data()).expect("the data of a member that has run");
    }

    /// Copies the data of a stopped member, as a backup.
    pub(crate) fn backup(&self) -> TempDir {
        let backup = tempfile::tempdir().expect("a temporary directory");
        copy(&self.data(), backup.path());
        backup
    }

    /// Replaces the data of a stopped member by a backup.
    pub(crate) fn restore(&self, backup: &TempDir) {
        self.wipe();
        copy(backup.path(), &self.data());
    }

    fn data(&self) -> PathBuf {
        assert!(self.process.is_none(), "it runs");
        self.dir.path().join("data")
    }

    /// Stops the process with `SIGSTOP`: its sockets stay open without answers.
    pub(crate) fn stop(&self) {
        self.signal("STOP");
    }

    /// Continues the process with `SIGCONT`.
    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let pid = self.process.as_ref().expect("a running member").pid;
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().expect("a shell");
        assert!(status.success(), "kill -{name} {pid}");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let (there, here) = (entry.path(), to.join(entry.file_name()));
        if there.is_dir() {
            copy(&there, &here);
        } else {
            std::fs::copy(&there, &here).expect("a copy");
        }
    }
}
