//! `listwatch serve`: flags, wiring, banner, and an end in order.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, builder::BoolishValueParser};
use listwatch_apiserver::pki::{Pki, write_private};
use listwatch_apiserver::{ApiServer, Auth, Controllers, Serving};
use listwatch_cacher::{HistoryBudget, Limits};
use listwatch_storage::{MemoryStorage, Storage};

type Failure = Box<dyn std::error::Error>;

/// History in etcd is kept for one to two of these (`--etcd-compaction-interval`).
#[cfg(feature = "etcd3")]
const COMPACTION_INTERVAL: std::time::Duration = std::time::Duration::from_secs(300);

/// Run an API server
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    bind: SocketAddr,

    /// Where the embedded store, the certificates and the admin kubeconfig are kept
    #[arg(long, value_name = "DIR", default_value = "listwatch-data")]
    data_dir: PathBuf,

    /// Keep objects in memory only: everything is gone when the server ends
    #[arg(long, conflicts_with = "etcd_servers")]
    in_memory: bool,

    /// Keep objects in etcd v3 at these endpoints instead of the embedded store
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    etcd_servers: Vec<String>,

    /// Prefix of every key in etcd, normalized as a path: "a/../b" is "/b", "" is the whole of etcd
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    etcd_prefix: String,

    /// Certificate authority that signed etcd's certificate (PEM)
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,

    /// Client certificate shown to etcd (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,

    /// Key of the client certificate shown to etcd (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,

    /// User that etcd is asked as, where it asks for one
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,

    /// File with the password of that user; a line break at its end does not count. A file, because
    /// whoever may list processes reads flags
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,

    /// Further names and addresses clients may reach this server by; they go into its certificate
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    tls_san: Vec<String>,

    /// Where to write the admin kubeconfig [default: admin.kubeconfig in the data directory]
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,

    /// Serve lists and watches from a cache per resource; false serves straight from the store
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    watch_cache: bool,

    /// What the states of all caches may take together, e.g. 512MiB; above it, resources are served
    /// from the store, those that nobody watches first, then the largest [default: no bound]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    cache_bytes: Option<usize>,

    /// What the histories of all caches may take together, e.g. 256MiB; above it, the busiest forget
    /// their oldest events first [default: no bound but 64MiB for each resource]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    history_bytes: Option<usize>,

    /// Built-in loops to run: namespace (empties deleted namespaces), gc (collects what owners leave
    /// behind); an empty list runs none
    #[arg(long, value_name = "LIST", default_value = "namespace,gc")]
    controllers: Controllers,

    /// Streams that a client may have open on one HTTP/2 connection, watches included; it opens another
    /// connection for more. 0 is the default
    #[arg(long, value_name = "COUNT", default_value_t = listwatch_apiserver::HTTP2_STREAMS_MAX)]
    http2_max_streams_per_connection: u32,

    /// Serve CBOR as well (kube-apiserver's feature gate CBORServingAndStorage)
    #[arg(long)]
    cbor: bool,

    /// What to log on standard error: error, warn, info, debug, trace, or a filter such as
    /// info,listwatch_cacher=debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

const EXAMPLES: &str = "\
Examples:
  listwatch serve
      durable, in ./listwatch-data, on https://127.0.0.1:6443
  listwatch serve --in-memory --bind 127.0.0.1:0 --kubeconfig-out /tmp/kubeconfig
      for a test: nothing is kept, a free port, the kubeconfig where the test wants it
  listwatch serve --etcd-servers http://127.0.0.1:2379
      objects in etcd, readable with: etcdctl get --prefix /registry/
  kubectl --kubeconfig listwatch-data/admin.kubeconfig get pods -A -w
      any Kubernetes client works with the kubeconfig written at start";

impl Serve {
    /// Serves until a signal says stop.
    pub(crate) fn run(self) -> Result<(), Failure> {
        crate::cli::start_logging(&self.log_level)?;
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(self.serve())
    }

    async fn serve(self) -> Result<(), Failure> {
        allow_many_connections();
        crate::trim::start();
        // First what fails fastest: a taken port is told before any store is opened.
        let listener = TcpListener::bind(self.bind)
            .map_err(|error| format!("cannot listen on {}: {error} (choose another with --bind)", self.bind))?;
        let address = listener.local_addr()?;
        let pki = self.pki()?;
        let (storage, description) = self.storage().await?;
        let history_budget = self.history_bytes.map(HistoryBudget::new);
        let server = ApiServer::builder()
            .storage(storage)
            .cache_limits(Limits { history_budget, ..Limits::default() })
            .cache_bytes_max(self.cache_bytes)
            .auth(Auth::Token(pki.token().to_owned()))
            .client_ca(pki.ca_pem())
            .secure_port(address.port())
            .watch_cache(self.watch_cache)
            .cbor(self.cbor)
            .http2_max_streams_per_connection(self.http2_max_streams_per_connection)
            .controllers(self.controllers)
            .build()
            .await?;
        let serving = server.serve(listener, &pki)?;

        let url = format!("https://{}", reachable(address));
        let kubeconfig = self.kubeconfig_path()?;
        write_private(&kubeconfig, pki.kubeconfig(&url).as_bytes())?;
        print_banner(&url, &description, &std::path::absolute(&kubeconfig).unwrap_or(kubeconfig));

        stop_signal().await?;
        stop(&server, serving).await;
        Ok(())
    }

    fn pki(&self) -> Result<Pki, Failure> {
        let names: Vec<String> = [self.bind.ip().to_string()].into_iter().chain(self.tls_san.iter().cloned()).collect();
        if self.in_memory {
            return Ok(Pki::in_memory(&names)?);
        }
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        // It holds keys and Secrets: nobody else may look into it.
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(&self.data_dir)
            .map_err(|error| format!("cannot create the data directory {}: {error}", self.data_dir.display()))?;
        Ok(Pki::load_or_create(&self.data_dir, &names)?)
    }

    async fn storage(&self) -> Result<(Arc<dyn Storage>, String), Failure> {
        if self.in_memory {
            return Ok((MemoryStorage::new(), "memory (gone when the server ends)".to_owned()));
        }
        if self.etcd_servers.is_empty() {
            return embedded(&self.data_dir).await;
        }
        self.etcd().await
    }

    #[cfg(feature = "etcd3")]
    async fn etcd(&self) -> Result<(Arc<dyn Storage>, String), Failure> {
        use listwatch_storage::etcd3::{Etcd3, Etcd3Options};
        let mut options = Etcd3Options::new(self.etcd_servers.iter().cloned());
        options.prefix.clone_from(&self.etcd_prefix);
        options.ca_file.clone_from(&self.etcd_cafile);
        options.cert_file.clone_from(&self.etcd_certfile);
        options.key_file.clone_from(&self.etcd_keyfile);
        if let (Some(user), Some(file)) = (&self.etcd_user, &self.etcd_password_file) {
            let password = std::fs::read_to_string(file)
                .map_err(|error| format!("cannot read the password file {}: {error}", file.display()))?;
            options.user = Some((user.clone(), password.trim_end_matches(['\r', '\n']).to_owned()));
        }
        let etcd = Etcd3::connect(options).await?;
        etcd.start_compactor(COMPACTION_INTERVAL);
        let version = etcd.stats().await.map_or_else(|_| "etcd".to_owned(), |stats| stats.description);
        let description = format!("{version} at {}, below {}", self.etcd_servers.join(", "), self.etcd_prefix);
        Ok((etcd, description))
    }

    #[cfg(not(feature = "etcd3"))]
    async fn etcd(&self) -> Result<(Arc<dyn Storage>, String), Failure> {
        Err("this build has no etcd support; build it with --features etcd3".into())
    }

    fn kubeconfig_path(&self) -> Result<PathBuf, Failure> {
        match &self.kubeconfig_out {
            Some(path) => Ok(path.clone()),
            None if self.in_memory => private_directory().map(|directory| directory.join("kubeconfig")),
            None => Ok(self.data_dir.join("admin.kubeconfig")),
        }
    }
}

/// A new directory that only this user may look into: nothing else of a throw-away server is kept,
/// several may run at once, and a token must not lie where others can lay something in wait.
fn private_directory() -> Result<PathBuf, Failure> {
    let parent = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    let directory = parent.join(format!("listwatch-{}-{nanos:08x}", std::process::id()));
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    // Fails when it exists, whoever made it.
    builder.create(&directory).map_err(|error| {
        format!("cannot create {}: {error} (name a place with --kubeconfig-out)", directory.display())
    })?;
    Ok(directory)
}

#[cfg(feature = "embedded")]
async fn embedded(directory: &Path) -> Result<(Arc<dyn Storage>, String), Failure> {
    use listwatch_storage::{EmbeddedOptions, EmbeddedStorage};
    let path = directory.join("store");
    // Opening reads the index from disk; the runtime has nothing else to do yet.
    let store = EmbeddedStorage::open(&path, EmbeddedOptions::default())?;
    Ok((store, format!("embedded, durable, in {}", directory.display())))
}

#[cfg(not(feature = "embedded"))]
async fn embedded(_directory: &Path) -> Result<(Arc<dyn Storage>, String), Failure> {
    Err("this build has no embedded store; give --etcd-servers or --in-memory, or build it with --features embedded"
        .into())
}

/// An address a client can connect to: "any" is reached through the loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from(([127, 0, 0, 1], address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    }
}

/// The token is in the kubeconfig, which only its owner may read; what is printed ends in logs.
fn print_banner(url: &str, storage: &str, kubeconfig: &Path) {
    println!("listwatch {} serves the Kubernetes API", env!("CARGO_PKG_VERSION"));
    println!("  address     {url}");
    println!("  storage     {storage}");
    println!("  kubeconfig  export KUBECONFIG={}", kubeconfig.display());
    println!("  try         kubectl get namespaces --watch");
    println!("  stop        Ctrl-C");
}

/// A number of bytes, with or without a unit: `1000000`, `512MiB`, `2Gi`.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_end_matches('B') {
        "" => 0,
        "Ki" | "K" | "k" => 10,
        "Mi" | "M" => 20,
        "Gi" | "G" => 30,
        _ => return Err(format!("`{unit}` is no unit of bytes: take KiB, MiB or GiB")),
    };
    let number: usize = number.parse().map_err(|_| "a number is needed, e.g. 512MiB".to_owned())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "0 and what no machine has are refused".into())
}

/// Raises the soft limit of open files to the hard one: every watcher is a connection or shares one,
/// and the usual soft limit of 1,024 is meant for programs that use `select`.
fn allow_many_connections() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            limit.current = limit.maximum;
            if let Err(error) = setrlimit(Resource::Nofile, limit) {
                tracing::warn!(%error, "cannot raise the limit of open files");
            }
        }
    }
}

/// Waits for Ctrl-C or a termination signal.
async fn stop_signal() -> Result<(), Failure> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted?,
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await?;
    Ok(())
}

async fn stop(server: &ApiServer, serving: Serving) {
    eprintln!("listwatch: stopping; a second signal stops at once");
    server.shutdown();
    tokio::select! {
        () = serving.shutdown() => {}
        _ = stop_signal() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn bytes_are_written_as_people_write_them() {
        for (text, expected) in [
            ("1", Some(1)),
            ("4096B", Some(4096)),
            ("64KiB", Some(64 << 10)),
            ("512Mi", Some(512 << 20)),
            ("2G", Some(2 << 30)),
            ("0", None),
            ("", None),
            ("MiB", None),
            ("1.5GiB", None),
            ("5 apples", None),
            ("99999999999GiB", None),
        ] {
            assert_eq!(parse_bytes(text).ok(), expected, "{text:?}");
        }
    }
}
