//! `listwatch serve`: an API server with its own flags, certificates and kubeconfig.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, builder::BoolishValueParser};
use listwatch_access::ClientCertificateAuthenticator;
use listwatch_apiserver::admission::AdmissionPlugins;
use listwatch_apiserver::pki::{Pki, TlsOptions};
use listwatch_apiserver::stored_form::StorageMediaType;
use listwatch_apiserver::{
    ApiServer, Auth, AuthorizationMode, Controllers, ENCODING_CACHE_BYTES_MAX, RuntimeConfig, ServiceRanges,
};
use listwatch_cacher::{HistoryBudget, Limits};

use crate::process::{self, Shutdown};
use crate::relocation;
use crate::snapshots::SnapshotFlags;
use crate::stop_signals::StopSignals;
use crate::store::{self, EtcdConnection, OpenStore};

type Failure = Box<dyn std::error::Error>;

/// The interval of etcd's compaction (kube-apiserver's default of `--etcd-compaction-interval`). etcd then has a
/// history of one to two intervals.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(300);

/// The default of `--controllers`.
const DEFAULT_CONTROLLERS: &str = "namespace,gc,clusterrole-aggregation,resourcequota,pvc-protection,pv-protection,\
volumeattributesclass-protection-controller,validatingadmissionpolicy-status,storage-version-migrator-controller,\
service-cidr-controller";

/// Run an API server
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    bind: SocketAddr,

    /// Network from which services get cluster addresses, IPv4; the same on all servers of a store. ServiceCIDRs add
    /// further networks
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/16")]
    service_cluster_ip_range: String,

    /// Ports from which services get node ports; the same on all servers of a store
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767")]
    service_node_port_range: String,

    /// Directory of the embedded store, the certificates and the admin kubeconfig
    #[arg(long, value_name = "DIR", default_value = "listwatch-data")]
    data_dir: PathBuf,

    #[command(flatten)]
    snapshots: SnapshotFlags,

    /// Keep objects only in memory: they are gone when the server ends
    #[arg(long, conflicts_with = "etcd_servers")]
    in_memory: bool,

    /// Keep objects in etcd v3 at these endpoints instead of the embedded store
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    etcd_servers: Vec<String>,

    /// Move the objects of the embedded store to etcd v3 at these endpoints while the server runs. The log says when it
    /// is done: from the next start on, use --etcd-servers. The prefix in etcd must be empty
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',', conflicts_with_all = ["etcd_servers", "in_memory"])]
    move_to_etcd: Vec<String>,

    /// Prefix of all keys in etcd, normalized as a path: "a/../b" is "/b", "" is all of etcd
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    etcd_prefix: String,

    /// Certificate authority that signed etcd's certificate (PEM)
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,

    /// Client certificate for etcd (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,

    /// Key of the client certificate for etcd (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,

    /// User name for etcd, if etcd has authentication enabled
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,

    /// File with the password of that user; a line break at its end is ignored. Flags are visible in the
    /// list of processes, so there is no flag for the password
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,

    /// Encoding of built-in kinds in the store: application/json or application/vnd.kubernetes.protobuf. Both are
    /// read in any case
    #[arg(long, value_name = "TYPE", default_value = "application/json", value_parser = store::parse_media_type)]
    storage_media_type: StorageMediaType,

    /// EncryptionConfiguration (apiserver.config.k8s.io/v1) for the values in the store: identity, aescbc, aesgcm,
    /// secretbox. Read at the start only
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,

    /// Certificate authorities of client certificates (PEM): the common name of a certificate is the user, each
    /// organization a group. Read at the start only [default: client certificates are ignored]
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,

    /// More names and addresses for the server's certificate
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    tls_san: Vec<String>,

    /// File of the admin kubeconfig [default: admin.kubeconfig in the data directory]
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,

    /// Serve lists and watches from a cache per resource; false serves them from the store
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    watch_cache: bool,

    /// Limit for the objects in all caches, e.g. 512MiB. Above it, resources are served from the store:
    /// first those without watchers, then the largest [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    cache_bytes: Option<usize>,

    /// Limit for encoded objects (protobuf, rows of Tables, metadata) and compressed lists that are kept for later
    /// requests, e.g. 128MiB; 1 keeps almost none. Unused ones are dropped after a minute [default: 48MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    encoding_cache_bytes: Option<usize>,

    /// Limit for the histories of all caches, e.g. 256MiB. Above it, the busiest resources drop their
    /// oldest events first [default: 64MiB per resource]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    history_bytes: Option<usize>,

    /// Modes of authorization, in the order of decision: RBAC, AlwaysAllow, AlwaysDeny. Members of the group
    /// system:masters, such as the user of the admin kubeconfig, may do everything in each mode
    #[arg(long, value_name = "LIST", default_value = "RBAC", value_delimiter = ',')]
    authorization_mode: Vec<AuthorizationMode>,

    /// Queue requests by the FlowSchemas and PriorityLevelConfigurations, so that the requests of one user do not delay
    /// those of others; false only limits the requests in flight
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    enable_priority_and_fairness: bool,

    /// Controllers to run: namespace (empties deleted namespaces), gc (deletes objects without owners),
    /// clusterrole-aggregation (writes the rules of aggregated ClusterRoles), resourcequota (counts what quotas limit),
    /// pvc-protection, pv-protection and volumeattributesclass-protection-controller (keep storage objects that are in
    /// use), validatingadmissionpolicy-status (type checks of policies), storage-version-migrator-controller (carries
    /// out StorageVersionMigrations, if --runtime-config switches them on), service-cidr-controller (marks ServiceCIDRs
    /// as ready, and keeps those that services need), serviceaccount (creates the account default in each namespace, and
    /// enables the admission plugin ServiceAccount), root-ca-cert-publisher (creates the ConfigMap kube-root-ca.crt).
    /// * runs all, an empty list none
    #[arg(long, value_name = "LIST", default_value = DEFAULT_CONTROLLERS)]
    controllers: Controllers,

    /// Switches group versions and resources on or off, for instance storagemigration.k8s.io/v1beta1=true or
    /// batch/v1/jobs=false
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    runtime_config: Vec<String>,

    /// Streams that a client may have open on one HTTP/2 connection, watches included. Clients open another
    /// connection for more. 0 is the default
    #[arg(long, value_name = "COUNT", default_value_t = listwatch_apiserver::HTTP2_STREAMS_MAX)]
    http2_max_streams_per_connection: u32,

    /// Serve CBOR (kube-apiserver's feature gate CBORServingAndStorage)
    #[arg(long)]
    cbor: bool,

    /// Level of the log on standard error: error, warn, info, debug, trace, or a filter such as
    /// info,listwatch_cacher=debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

const EXAMPLES: &str = "\
Examples:
  listwatch serve
      durable, in ./listwatch-data, on https://127.0.0.1:6443
  listwatch serve --in-memory --bind 127.0.0.1:0 --kubeconfig-out /tmp/kubeconfig
      for a test: in memory, on a free port
  listwatch serve --etcd-servers http://127.0.0.1:2379
      objects in etcd; read them with: etcdctl get --prefix /registry/
  kubectl --kubeconfig listwatch-data/admin.kubeconfig get pods -A -w
      any Kubernetes client can use the kubeconfig";

impl Serve {
    /// Serves until a signal arrives. `/flagz` shows `flags`.
    ///
    /// # Errors
    /// The address, the store or the data directory cannot be used.
    pub(crate) fn run(self, flags: BTreeMap<String, String>) -> Result<(), Failure> {
        crate::cli::start_logging(&self.log_level)?;
        process::prepare();
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(self.serve(flags))
    }

    async fn serve(self, flags: BTreeMap<String, String>) -> Result<(), Failure> {
        let runtime_config = RuntimeConfig::parse(self.runtime_config.iter().map(String::as_str));
        let runtime_config = runtime_config.map_err(|error| Failure::from(format!("--runtime-config: {error}")))?;
        for key in runtime_config.unavailable() {
            tracing::warn!(key, "--runtime-config switches on what this server does not have");
        }
        // The address is bound first, so that a port in use fails before a store is opened.
        let listener = process::listen(self.bind, "--bind")?;
        let address = listener.local_addr()?;
        let client_ca = self.client_ca()?;
        let tls = TlsOptions { request_client_certificates: client_ca.is_some(), ..TlsOptions::default() };
        let pki = self.pki()?.with_tls_options(&tls)?;
        let service_ranges = self.service_ranges()?;
        let store = self.storage().await?;
        let _snapshots = self.snapshots.start(store.embedded.as_ref(), &self.data_dir)?;
        let history_budget = self.history_bytes.map(HistoryBudget::new);
        let encryption = self.encryption_provider_config.as_deref();
        let stored_form = store::stored_form(&store, encryption, self.storage_media_type)?;
        let builder = ApiServer::builder()
            .storage(store.storage)
            .stored_form(stored_form)
            .cache_limits(Limits { history_budget, ..Limits::default() })
            .cache_bytes_max(self.cache_bytes)
            .encoding_cache_bytes_max(self.encoding_cache_bytes.unwrap_or(ENCODING_CACHE_BYTES_MAX))
            .auth(Auth::Token(pki.token().to_owned()))
            // The host may have no kube-proxy, without which cluster addresses lead nowhere.
            .aggregator_routing(true)
            .authorization(self.authorization_mode.iter().copied())
            .root_ca(pki.ca_pem())
            .admission_plugins(AdmissionPlugins::default().with("ServiceAccount", self.controllers.service_account))
            .priority_and_fairness(self.enable_priority_and_fairness)
            .runtime_config(runtime_config)
            .secure_port(address.port())
            .loopback_address(address)
            .external_address(&process::reachable(address).to_string())
            .service_ranges(service_ranges)
            .watch_cache(self.watch_cache)
            .cbor(self.cbor)
            .http2_max_streams_per_connection(self.http2_max_streams_per_connection)
            .command_line_flags(flags)
            .controllers(self.controllers);
        let builder = match client_ca {
            Some((pem, authenticator)) => builder.client_ca(&pem).client_certificates(authenticator),
            None => builder.client_ca(pki.ca_pem()),
        };
        let server = builder.build().await?;
        // Before the server is announced: a signal right after the announcement shuts down gracefully.
        let signals = StopSignals::install()?;
        let serving = server.serve(listener, &pki)?;

        let url = format!("https://{}", process::reachable(address));
        let private = match self.in_memory && self.kubeconfig_out.is_none() {
            true => Some(PrivateDirectory::create()?),
            false => None,
        };
        let kubeconfig = self.kubeconfig_path(private.as_ref());
        pki.write_kubeconfig(&kubeconfig, &url)?;
        print_banner(&url, &store.description, &std::path::absolute(&kubeconfig).unwrap_or(kubeconfig));
        process::serve_until_signal(&server, serving, Shutdown::default(), signals).await
    }

    /// The certificate authorities of client certificates, in PEM and ready for use.
    fn client_ca(&self) -> Result<Option<(String, ClientCertificateAuthenticator)>, Failure> {
        let Some(file) = &self.client_ca_file else { return Ok(None) };
        let wrong = |error: &dyn std::fmt::Display| format!("--client-ca-file {}: {error}", file.display());
        let pem = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
        let authenticator = ClientCertificateAuthenticator::new(&pem).map_err(|error| wrong(&error))?;
        Ok(Some((pem, authenticator)))
    }

    fn service_ranges(&self) -> Result<ServiceRanges, Failure> {
        let ranges = ServiceRanges::default()
            .with_cluster_addresses(&self.service_cluster_ip_range)
            .map_err(|error| format!("--service-cluster-ip-range: {error}"))?;
        let ranges = ranges.with_node_ports(&self.service_node_port_range);
        Ok(ranges.map_err(|error| format!("--service-node-port-range: {error}"))?)
    }

    fn pki(&self) -> Result<Pki, Failure> {
        let names: Vec<String> = [self.bind.ip().to_string()].into_iter().chain(self.tls_san.iter().cloned()).collect();
        if self.in_memory {
            return Ok(Pki::in_memory(&names)?);
        }
        store::create_data_dir(&self.data_dir)?;
        Ok(Pki::load_or_create(&self.data_dir, &names)?)
    }

    async fn storage(&self) -> Result<OpenStore, Failure> {
        if self.in_memory {
            return Ok(store::open_memory());
        }
        if !self.move_to_etcd.is_empty() {
            return relocation::open(&self.data_dir, &self.etcd(&self.move_to_etcd), COMPACTION_INTERVAL).await;
        }
        if self.etcd_servers.is_empty() {
            return store::open_embedded(&self.data_dir);
        }
        store::open_etcd(&self.etcd(&self.etcd_servers), Some(COMPACTION_INTERVAL)).await
    }

    fn etcd(&self, servers: &[String]) -> EtcdConnection {
        EtcdConnection {
            servers: servers.to_vec(),
            prefix: self.etcd_prefix.clone(),
            ca_file: self.etcd_cafile.clone(),
            cert_file: self.etcd_certfile.clone(),
            key_file: self.etcd_keyfile.clone(),
            user: self.etcd_user.clone().zip(self.etcd_password_file.clone()),
        }
    }

    fn kubeconfig_path(&self, private: Option<&PrivateDirectory>) -> PathBuf {
        match (&self.kubeconfig_out, private) {
            (Some(path), _) => path.clone(),
            (None, Some(private)) => private.0.join("kubeconfig"),
            (None, None) => self.data_dir.join("admin.kubeconfig"),
        }
    }
}

/// A directory that only this user can read, for the kubeconfig of a server in memory. Several servers may run at once,
/// and another user must not be able to replace the file. The directory is removed at the end of the server, because the
/// kubeconfig is worthless then.
struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    fn create() -> Result<Self, Failure> {
        let parent = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let nanos =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
        let directory = parent.join(format!("listwatch-{}-{nanos:08x}", std::process::id()));
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        // Fails if the directory exists.
        builder.create(&directory).map_err(|error| {
            format!("cannot create {}: {error} (name a place with --kubeconfig-out)", directory.display())
        })?;
        Ok(PrivateDirectory(directory))
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, directory = %self.0.display(), "cannot remove the directory of the kubeconfig");
        }
    }
}

/// Prints the address and the path of the kubeconfig. The token is omitted, because standard output often ends up in
/// logs.
fn print_banner(url: &str, storage: &str, kubeconfig: &Path) {
    println!("listwatch {} serves the Kubernetes API", env!("CARGO_PKG_VERSION"));
    println!("  address     {url}");
    println!("  storage     {storage}");
    println!("  kubeconfig  export KUBECONFIG={}", kubeconfig.display());
    println!("  try         kubectl get namespaces --watch");
    println!("  stop        Ctrl-C");
}

/// Parses a number of bytes, with or without a unit: `1000000`, `512MiB`, `2Gi`.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_end_matches('B') {
        "" => 0,
        "Ki" | "K" | "k" => 10,
        "Mi" | "M" => 20,
        "Gi" | "G" => 30,
        _ => return Err(format!("`{unit}` is not a unit of bytes; use KiB, MiB or GiB")),
    };
    let number: usize = number.parse().map_err(|_| "a number is needed, e.g. 512MiB".to_owned())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a number of bytes from 1 to 2^64-1 is needed".into())
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn byte_limits_are_parsed_with_and_without_units() {
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
