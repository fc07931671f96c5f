//! The measured servers: running ones ([`Target::connect_to`]), ones started from a binary
//! ([`Launch`]), or the floor ([`Target::floor`]).

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use listwatch_client::Config;
use listwatch_client::config::Auth;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::Outcome;
use crate::http::Http;
use crate::usage::{self, Usage};

/// The time limit for a server to become ready.
const READY_WAIT: Duration = Duration::from_secs(60);
/// The header with the group of a write or watch, for the floor.
pub(crate) const GROUP_HEADER: &str = "x-load-group";

/// A server: its address, its credentials, and its process.
pub(crate) struct Target {
    /// The name in the tables.
    pub(crate) name: String,
    pub(crate) authority: String,
    /// The value of `Authorization`.
    pub(crate) authorization: Option<String>,
    pub(crate) floor: bool,
    server_name: ServerName<'static>,
    connectors: [TlsConnector; 2],
    pid: Option<u32>,
    child: Mutex<Option<Started>>,
}

/// A started process. Dropping the value ends the process.
struct Started {
    child: Child,
    /// Closing the pipe ends the floor, even if this program is killed.
    _stdin: Option<ChildStdin>,
    /// Removed after the last process with data in it.
    _directory: Option<Arc<tempfile::TempDir>>,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Target {
    /// A running server. Without a `pid`, CPU and memory are not measured.
    pub(crate) fn connect_to(name: &str, config: Config, pid: Option<u32>) -> Outcome<Self> {
        let authority = config.server.authority().ok_or("the server's URL has no host")?.to_string();
        if config.server.scheme_str() != Some("https") {
            return Err("only https:// servers can be measured: TLS is a good part of what an event costs".into());
        }
        if config.tls.insecure_skip_verify || config.tls.authorities.is_empty() {
            return Err("the server's certificate authority is needed (--ca, or in the kubeconfig)".into());
        }
        let mut roots = RootCertStore::empty();
        for certificate in config.tls.authorities {
            roots.add(CertificateDer::from(certificate.der()))?;
        }
        let host = config.server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let server_name = ServerName::try_from(config.tls.server_name.unwrap_or(host))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut tls = match config.tls.identity {
            Some(identity) => {
                let chain = identity.certificates().iter();
                let chain = chain.map(|certificate| CertificateDer::from(certificate.der()).into_owned()).collect();
                builder.with_client_auth_cert(chain, PrivateKeyDer::try_from(identity.key_der())?.clone_key())?
            }
            None => builder.with_no_client_auth(),
        };
        let connectors = [Http::H1, Http::H2].map(|http| {
            tls.alpn_protocols = vec![http.alpn().to_vec()];
            TlsConnector::from(Arc::new(tls.clone()))
        });
        if config.impersonation.is_some() {
            return Err("give a user without impersonation".into());
        }
        let authorization = match config.auth {
            Auth::None => None,
            Auth::Token(token) => Some(format!("Bearer {token}")),
            Auth::TokenFile(path) => Some(format!("Bearer {}", std::fs::read_to_string(path)?.trim())),
            Auth::Basic { .. } => return Err("give a token or a client certificate, not a password".into()),
            _ => return Err("give a token or a client certificate, not a credential plugin".into()),
        };
        let (name, floor) = (name.to_owned(), false);
        Ok(Target { name, authority, authorization, floor, server_name, connectors, pid, child: Mutex::default() })
    }

    /// Stops a started process like a service manager, and waits for its end.
    ///
    /// # Errors
    /// The process was not started here, or did not end successfully.
    pub(crate) fn stop(&self) -> Outcome<()> {
        let mut started = self.child.lock();
        let child = &mut started.as_mut().ok_or("this server was not started here")?.child;
        #[cfg(unix)]
        {
            let pid = rustix::process::Pid::from_child(child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
            let status = child.wait()?;
            if !status.success() {
                return Err(format!("{} ended with {status}", self.name).into());
            }
        }
        #[cfg(not(unix))]
        child.kill()?;
        Ok(())
    }

    /// Starts the floor in a separate process.
    pub(crate) fn floor(name: &str, coalesce: bool, frame_bytes: usize) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["floor", "--frame-bytes", &frame_bytes.to_string()]);
        if coalesce {
            command.arg("--coalesce");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().ok_or("no standard output")?);
        let pid = child.id();
        let child = Mutex::new(Some(Started { child, _stdin: stdin, _directory: None }));
        let (mut authority, mut ca) = (String::new(), String::new());
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if authority.is_empty() {
                authority = line;
            } else {
                ca = ca + &line + "\n";
                if line.starts_with("-----END") {
                    break;
                }
            }
        }
        let config = config(&format!("https://{authority}"), None, ca.as_bytes())?;
        let target = Target::connect_to(name, config, Some(pid))?;
        Ok(Target { floor: true, child, ..target })
    }

    /// Opens a connection with this HTTP version.
    pub(crate) async fn connect(&self, http: Http) -> Outcome<TlsStream<TcpStream>> {
        let begun = Instant::now();
        loop {
            let tcp = match TcpStream::connect(&self.authority).await {
                Ok(tcp) => tcp,
                // The backlog is full, or the server is still starting.
                Err(_) if begun.elapsed() < READY_WAIT => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(error) => return Err(format!("cannot connect to {}: {error}", self.authority).into()),
            };
            tcp.set_nodelay(true)?;
            let stream = self.connectors[http as usize].connect(self.server_name.clone(), tcp).await?;
            if stream.get_ref().1.alpn_protocol().is_some_and(|chosen| chosen != http.alpn()) {
                return Err(format!("{} does not speak {http}", self.name).into());
            }
            return Ok(stream);
        }
    }

    /// The resources that the process has used so far.
    pub(crate) fn usage(&self) -> Option<Usage> {
        usage::read(self.pid?)
    }

    pub(crate) fn reset_peak(&self) {
        if let Some(pid) = self.pid {
            usage::reset_peak(pid);
        }
    }
}

/// A listwatch binary and its data directory. Each [`start`](Launch::start) finds the data of the
/// previous one.
pub(crate) struct Launch {
    name: String,
    binary: PathBuf,
    /// `memory`, `embedded`, or the URL of an etcd.
    store: String,
    further: Vec<String>,
    directory: Arc<tempfile::TempDir>,
}

impl Launch {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// True if the objects outlive the process.
    pub(crate) fn lasts(&self) -> bool {
        self.store != "memory"
    }

    /// Starts `binary serve` on a free port. Returns when the server listens.
    pub(crate) fn start(&self) -> Outcome<Target> {
        let directory = self.directory.path();
        let kubeconfig = directory.join("kubeconfig");
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--bind", "127.0.0.1:0", "--log-level", "warn", "--kubeconfig-out"]).arg(&kubeconfig);
        match self.store.as_str() {
            "memory" => command.arg("--in-memory"),
            "embedded" => command.arg("--data-dir").arg(directory.join("data")),
            etcd => {
                // A separate prefix, so that each run begins with an empty store.
                let prefix = format!("/load-{}-{}", std::process::id(), directory.display()).replace("/tmp/", "");
                command.args(["--etcd-servers", etcd, "--etcd-prefix", &prefix, "--data-dir"]).arg(directory)
            }
        };
        let mut child = command
            .args(&self.further)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", self.binary.display()))?;
        let stdout = child.stdout.take().ok_or("no standard output")?;
        let pid = child.id();
        let started = Started { child, _stdin: None, _directory: Some(self.directory.clone()) };
        // The server prints the banner when it listens.
        let ready = BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line.trim().starts_with("stop"));
        if !ready {
            return Err(format!("{} ended before it was ready", self.binary.display()).into());
        }
        let target = Target::connect_to(&self.name, Config::load(Some(&kubeconfig), None)?, Some(pid))?;
        Ok(Target { child: Mutex::new(Some(started)), ..target })
    }
}

/// The configuration of a server that is given by flags.
pub(crate) fn config(url: &str, token: Option<String>, ca_pem: &[u8]) -> Outcome<Config> {
    let authorities = listwatch_client::config::Certificate::from_pem(ca_pem)?;
    Ok(Config {
        tls: listwatch_client::config::TlsOptions { authorities, ..Default::default() },
        auth: token.map_or(Auth::None, Auth::Token),
        ..Config::new(url)?
    })
}

/// The flags that select the measured servers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "What is measured")]
pub(crate) struct Servers {
    /// Start this listwatch binary and measure it
    #[arg(long, value_name = "PATH", global = true)]
    serve: Option<PathBuf>,

    /// Store of the started server: memory, embedded, or the URL of an etcd
    #[arg(long, value_name = "STORE", default_value = "memory", global = true)]
    store: String,

    /// A further flag of the started server; may be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true, global = true)]
    serve_flag: Vec<String>,

    /// Measure the running server of this kubeconfig
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,

    /// Measure the running server at this URL; requires --ca, and usually --token-file
    #[arg(long, value_name = "URL", conflicts_with = "kubeconfig", requires = "ca", global = true)]
    server: Option<String>,

    /// File with the bearer token for --server
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,

    /// Certificate authority of --server (PEM)
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,

    /// Process id of the running server, to measure its CPU time and memory
    #[arg(long, value_name = "PID", global = true)]
    pid: Option<u32>,

    /// Name of the running server in the tables
    #[arg(long, value_name = "NAME", default_value = "kube-apiserver", global = true)]
    name: String,

    /// Do not measure the floor
    #[arg(long, global = true)]
    no_floor: bool,
}

impl Servers {
    /// The binary of `--serve`, not started, with a separate data directory.
    pub(crate) fn launch(&self) -> Outcome<Launch> {
        let binary = self.serve.clone().ok_or("this starts a server: give its binary with --serve (see --help)")?;
        let name = match self.store.as_str() {
            "memory" | "embedded" => format!("listwatch, {}", self.store),
            _ => "listwatch, etcd".to_owned(),
        };
        let directory = Arc::new(tempfile::tempdir()?);
        Ok(Launch { name, binary, store: self.store.clone(), further: self.serve_flag.clone(), directory })
    }

    pub(crate) fn with_store(&self, store: &str) -> Self {
        Servers { store: store.to_owned(), ..self.clone() }
    }

    pub(crate) fn without_floor(&self) -> Self {
        Servers { no_floor: true, ..self.clone() }
    }

    /// The selected servers, in the order of the tables.
    pub(crate) fn start(&self) -> Outcome<Vec<Target>> {
        let mut targets = Vec::new();
        if self.serve.is_some() {
            targets.push(self.launch()?.start()?);
        }
        if let Some(path) = &self.kubeconfig {
            targets.push(Target::connect_to(&self.name, Config::load(Some(path), None)?, self.pid)?);
        }
        if let (Some(url), Some(ca)) = (&self.server, &self.ca) {
            let token = self.token_file.as_ref().map(std::fs::read_to_string).transpose()?;
            let config = config(url, token.map(|token| token.trim().to_owned()), &std::fs::read(ca)?)?;
            targets.push(Target::connect_to(&self.name, config, self.pid)?);
        }
        if targets.is_empty() {
            return Err("nothing to measure: give --serve, --kubeconfig or --server (see --help)".into());
        }
        Ok(targets)
    }

    /// The floors for a figure: one that sends event by event, and a coalescing one.
    pub(crate) fn floors(&self, frame_bytes: usize, coalesced: bool) -> Outcome<Vec<Target>> {
        if self.no_floor {
            return Ok(Vec::new());
        }
        let mut floors = vec![Target::floor("floor", false, frame_bytes)?];
        if coalesced {
            floors.push(Target::floor("floor, coalesced", true, frame_bytes)?);
        }
        Ok(floors)
    }
}
