//! The server under test: started as a user would start it, restarted on the same port and data.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::failure::{Outcome, ensure, fail};
use crate::process::{Background, Run};
use crate::steps::seconds;

/// The time limit of the server's start.
const START_LIMIT: Duration = Duration::from_secs(120);

/// The file of the CA of client certificates. `transcripts/certificates.txt` has certificates of this CA.
const CLIENT_CA: &str = "client-ca.crt";

/// The store of the server.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    Embedded,
    Etcd {
        url: String,
        etcdctl: PathBuf,
        /// The directory of `ca.crt`, `client.crt` and `client.key`, if etcd requires TLS.
        tls: Option<PathBuf>,
    },
}

/// A running `listwatch serve`.
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) bin: PathBuf,
    dir: PathBuf,
    port: u16,
    /// Environment variables of the process.
    environment: Vec<(&'static str, PathBuf)>,
    process: Background,
}

impl Server {
    /// Starts the server in `dir` on a free port, and waits until it serves. Returns a note for the
    /// table.
    pub(crate) fn start(bin: &Path, store: Store, dir: &Path) -> Outcome<(Self, String)> {
        Self::start_with(bin, store, dir, Vec::new())
    }

    /// [`Server::start`] with environment variables.
    pub(crate) fn start_with(
        bin: &Path,
        store: Store,
        dir: &Path,
        environment: Vec<(&'static str, PathBuf)>,
    ) -> Outcome<(Self, String)> {
        std::fs::create_dir_all(dir)?;
        let port = free_port()?;
        let start = Instant::now();
        let process = launch(bin, &store, dir, port, &environment)?;
        let server = Self { store, bin: bin.to_owned(), dir: dir.to_owned(), port, environment, process };
        let took = start.elapsed();
        server.kubeconfig_is_private()?;
        Ok((server, format!("`{}` serves after {}", short(bin), seconds(took))))
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn running(&mut self) -> bool {
        self.process.running()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts a new process on the same port and data. Returns the time until the server serves.
    pub(crate) fn restart(&mut self) -> Outcome<Duration> {
        self.process.kill();
        let start = Instant::now();
        self.process = launch(&self.bin, &self.store, &self.dir, self.port, &self.environment)?;
        Ok(start.elapsed())
    }

    /// Sends SIGTERM. Returns the exit code.
    pub(crate) fn terminate(&mut self, limit: Duration) -> Outcome<Option<i32>> {
        Ok(self.process.terminate(limit)?.code())
    }

    pub(crate) fn tail(&self) -> String {
        self.process.tail()
    }

    /// The line of output about a panic, if any.
    pub(crate) fn panicked(&self) -> Option<String> {
        let lines = self.process.lines.all();
        lines.into_iter().find(|line| line.text.contains("panicked at")).map(|line| line.text)
    }

    #[cfg(unix)]
    fn kubeconfig_is_private(&self) -> Outcome<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(self.kubeconfig())?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "the kubeconfig carries a token and has mode {mode:o}; wanted 600");
        Ok(())
    }

    #[cfg(not(unix))]
    fn kubeconfig_is_private(&self) -> Outcome<()> {
        Ok(())
    }
}

fn short(bin: &Path) -> String {
    format!("{} serve", bin.file_name().unwrap_or_default().to_string_lossy())
}

/// The flags of a server on this store.
pub(crate) fn command(bin: &Path, store: &Store, dir: &Path, port: u16) -> Run {
    let run = Run::new(bin)
        .args(["serve", "--bind", &format!("127.0.0.1:{port}"), "--data-dir"])
        .arg(dir.join("data"))
        .arg("--kubeconfig-out")
        .arg(dir.join("kubeconfig"))
        .arg("--client-ca-file")
        .arg(dir.join(CLIENT_CA));
    match store {
        Store::Embedded => run,
        Store::Etcd { url, tls: None, .. } => run.args(["--etcd-servers", url]),
        Store::Etcd { url, tls: Some(dir), .. } => run
            .args(["--etcd-servers", url, "--etcd-cafile"])
            .arg(dir.join("ca.crt"))
            .arg("--etcd-certfile")
            .arg(dir.join("client.crt"))
            .arg("--etcd-keyfile")
            .arg(dir.join("client.key")),
    }
}

fn launch(
    bin: &Path,
    store: &Store,
    dir: &Path,
    port: u16,
    environment: &[(&'static str, PathBuf)],
) -> Outcome<Background> {
    std::fs::write(dir.join(CLIENT_CA), include_str!("client_ca.crt"))?;
    let run = command(bin, store, dir, port);
    let mut process = environment.iter().fold(run, |run, (name, value)| run.env(name, value)).start()?;
    let start = Instant::now();
    // The banner with the address is printed when the server can serve the first request.
    let address = format!("127.0.0.1:{port}");
    while process.lines.wait(0, Duration::from_millis(20), |line| line.contains(&address)).is_none() {
        if !process.running() {
            fail!("`{}` ended at once:\n{}", process.line(), process.tail());
        }
        if start.elapsed() > START_LIMIT {
            fail!("`{}` printed no banner within {START_LIMIT:?}:\n{}", process.line(), process.tail());
        }
    }
    Ok(process)
}

/// A port of the loopback that nothing else gets while this process runs.
pub(crate) fn free_port() -> Outcome<u16> {
    Ok(listwatch_test_ports::free_port()?)
}
