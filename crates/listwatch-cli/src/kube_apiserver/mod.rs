//! `listwatch kube-apiserver`: the server with the flags of kube-apiserver.
//!
//! ```text
//!  command line ─▶ FlagValues ─▶ resolve ─▶ Settings ─▶ server
//!    (clap, FLAGS)   (pure, settings.rs) └▶ notices: warnings, obstacles
//! ```

mod audit;
mod authorization;
mod command_line;
mod credentials;
mod feature_gates;
mod flags;
mod oidc;
#[cfg(test)]
mod page_test;
mod settings;
mod webhooks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use listwatch_apiserver::admission::{AdmissionConfiguration, AdmissionPlugins};
use listwatch_apiserver::pki::Pki;
use listwatch_apiserver::{ApiServer, Auth, Builder, Controllers};

use self::command_line::FlagValues;
use self::settings::{Advertise, Certificates, Level, Notice, Settings, StoreChoice, resolve};
use crate::cli::without_credentials;
use crate::process::{self, Shutdown};
use crate::snapshots::SnapshotFlags;
use crate::stop_signals::StopSignals;
use crate::store::{self, OpenStore};

type Failure = Box<dyn std::error::Error>;

/// Run the server with the flags of kube-apiserver
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KubeApiserver {
    #[command(flatten)]
    given: FlagValues,

    /// Start although flags ask for protection that this server does not give, such as --egress-selector-config-file.
    /// The log names each of them
    #[arg(long, help_heading = "Flags of listwatch")]
    allow_unenforced: bool,

    /// Print the effect of each given flag, and exit: 0 if no flag prevents the start, else 1. Files that flags name are
    /// not read
    #[arg(long, help_heading = "Flags of listwatch")]
    check_flags: bool,

    /// The data directory of --storage-backend=embedded
    #[arg(long, value_name = "DIR", default_value = "listwatch-data", help_heading = "Flags of listwatch")]
    data_dir: PathBuf,

    #[command(flatten)]
    snapshots: SnapshotFlags,

    /// Write a kubeconfig for the administrator to this file. Only with the certificate that the server makes itself
    #[arg(long, value_name = "FILE", conflicts_with = "tls-cert-file", help_heading = "Flags of listwatch")]
    kubeconfig_out: Option<PathBuf>,

    /// Controllers to run in the server: namespace, gc, clusterrole-aggregation, resourcequota, pvc-protection,
    /// pv-protection, volumeattributesclass-protection-controller, validatingadmissionpolicy-status,
    /// storage-version-migrator-controller, service-cidr-controller, serviceaccount, root-ca-cert-publisher; * for all.
    /// In a cluster, kube-controller-manager runs them
    #[arg(long, value_name = "LIST", default_value = "", help_heading = "Flags of listwatch")]
    controllers: Controllers,
}

const EXAMPLES: &str = "\
Examples:
  listwatch kube-apiserver --storage-backend=memory --cert-dir=/tmp/certs --kubeconfig-out=/tmp/kubeconfig
      a server for tests, on port 6443
  listwatch kube-apiserver --authorization-mode=Node,RBAC --etcd-servers=https://127.0.0.1:2379 ...
      the command line of a kubeadm manifest
  listwatch kube-apiserver --check-flags --authorization-mode=Node,RBAC --profiling=false ...
      print the flags that the server ignores, does not enforce or refuses

docs/drop-in.md lists all flags of kube-apiserver.";

impl KubeApiserver {
    /// Serves until a signal arrives. `/flagz` shows `flags` and the defaults of kube-apiserver's flags.
    ///
    /// # Errors
    /// The flags do not allow a start, or the server could not start.
    pub(crate) fn run(self, mut flags: BTreeMap<String, String>) -> Result<(), Failure> {
        let resolution = resolve(&self.given);
        let obstacles: Vec<&Notice> = resolution.obstacles(self.allow_unenforced).collect();
        if self.check_flags {
            resolution.notices.iter().for_each(|notice| println!("{}  {notice}", label(notice.level)));
            return if obstacles.is_empty() {
                Ok(())
            } else {
                Err("the server does not start with these flags".into())
            };
        }
        if !obstacles.is_empty() {
            return Err(refusal(&obstacles).into());
        }
        crate::cli::start_logging(resolution.settings.log_level)?;
        for notice in &resolution.notices {
            match notice.level {
                Level::Warning => tracing::warn!("{notice}"),
                Level::Unenforced | Level::Error => tracing::error!("NOT ENFORCED: {notice}"),
            }
        }
        process::prepare();
        flags.extend(self.given.all().map(|(name, value)| (name.to_owned(), without_credentials(value))));
        let serve = self.serve(resolution.settings, flags);
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve)
    }

    async fn serve(self, settings: Settings, flags: BTreeMap<String, String>) -> Result<(), Failure> {
        let listener = process::listen(settings.bind, "--bind-address and --secure-port")?;
        let pki = pki(&settings, self.kubeconfig_out.is_some())?;
        let store = self.storage(&settings.store).await?;
        let _snapshots = self.snapshots.start(store.embedded.as_ref(), &self.data_dir)?;
        let encryption = settings.encryption_provider_config.as_deref();
        let stored_form = store::stored_form(&store, encryption, settings.storage_media_type)?;
        let builder = ApiServer::builder()
            .storage(store.storage)
            .stored_form(stored_form)
            // Only a server with its own certificate writes a kubeconfig. In other servers nobody knows the random
            // token.
            .auth(Auth::Token(pki.token().to_owned()))
            .secure_port(settings.bind.port())
            .loopback_address(settings.bind)
            .watch_cache(settings.watch_cache)
            .min_request_timeout(settings.min_request_timeout)
            .request_timeout(settings.request_timeout)
            .service_ranges(settings.service_ranges.clone())
            .requests_in_flight_max(settings.requests_in_flight_max.0, settings.requests_in_flight_max.1)
            .priority_and_fairness(settings.priority_and_fairness)
            .goaway_chance(settings.goaway_chance)
            .metrics_reset(settings.metrics_reset)
            .cbor(settings.feature_gates.cbor)
            .constrained_impersonation(settings.feature_gates.constrained_impersonation)
            .flagz(settings.feature_gates.flagz)
            .statusz(settings.feature_gates.statusz)
            .runtime_config(settings.runtime_config.clone())
            .event_ttl(settings.event_ttl)
            .http2_max_streams_per_connection(settings.http2_streams_max)
            .aggregator_routing(settings.aggregator_routing)
            .aggregator_passes_redirects(settings.aggregator_passes_redirects)
            .admission_plugins(settings.admission_plugins)
            .admission_configuration(AdmissionConfiguration {
                toleration_seconds: settings.toleration_seconds,
                ..admission_configuration(settings.admission_config_file.as_deref(), settings.admission_plugins)?
            })
            .command_line_flags(flags)
            .controllers(self.controllers);
        // The authority of certificates from files is not known.
        let builder = match settings.certificates {
            Certificates::OwnIn(_) => builder.root_ca(pki.ca_pem()),
            Certificates::Files { .. } => builder,
        };
        let builder = match &settings.strict_transport_security {
            Some(directives) => builder.strict_transport_security(directives),
            None => builder,
        };
        let builder = match settings.watch_termination_grace_period {
            Some(period) => builder.watch_termination_grace_period(period),
            None => builder,
        };
        let builder = announce(builder, &settings);
        let external_address = settings.external_address.clone();
        let external_address = external_address.unwrap_or_else(|| process::reachable(settings.bind).to_string());
        let builder = builder.external_address(&external_address);
        let (builder, allows_everything) = authorization::read(builder, &settings)?;
        let anonymous_auth = authorization::anonymous_auth(settings.anonymous_auth, allows_everything);
        let builder = credentials::read(builder.anonymous_auth(anonymous_auth), &settings, anonymous_auth)?;
        let server = builder.build().await?;
        // Before the server is announced: a signal right after the announcement shuts down gracefully.
        let signals = StopSignals::install()?;
        let serving = server.serve(listener, &pki)?;

        let url = format!("https://{}", process::reachable(settings.bind));
        if let Some(file) = &self.kubeconfig_out {
            pki.write_kubeconfig(file, &url)?;
        }
        tracing::info!("serving on {}, objects are in {}", settings.bind, store.description);
        let shutdown = Shutdown { delay: settings.shutdown_delay, retry_after: settings.shutdown_retry_after };
        process::serve_until_signal(&server, serving, shutdown, signals).await
    }

    async fn storage(&self, choice: &StoreChoice) -> Result<OpenStore, Failure> {
        match choice {
            StoreChoice::Etcd(etcd, compaction) => store::open_etcd(etcd, *compaction).await,
            StoreChoice::Embedded => {
                store::create_data_dir(&self.data_dir)?;
                store::open_embedded(&self.data_dir)
            }
            StoreChoice::Memory => Ok(store::open_memory()),
        }
    }
}

/// Sets the address and the host name that the server publishes in its cluster.
fn announce(builder: Builder, settings: &Settings) -> Builder {
    let address = match settings.advertise {
        Advertise::Nothing => None,
        Advertise::Address(address) => Some(address),
        Advertise::Default => {
            let address = process::advertised(settings.bind.ip());
            if address.is_none() {
                tracing::warn!("the machine has no default route: give --advertise-address to publish an address");
            }
            address
        }
    };
    let builder = match address {
        Some(address) => builder.advertise_address(address),
        None => builder,
    };
    match process::host_name().filter(|_| settings.feature_gates.identity) {
        Some(name) => builder.host_name(&name),
        None => builder,
    }
}

fn pki(settings: &Settings, writes_kubeconfig: bool) -> Result<Pki, Failure> {
    let pki = match &settings.certificates {
        Certificates::Files { certificate, key } => Pki::from_files(certificate, key)?,
        Certificates::OwnIn(directory) => match certificate_pair(directory)? {
            Some((certificate, _)) if writes_kubeconfig => {
                let certificate = certificate.display();
                return Err(
                    format!("--kubeconfig-out: the CA of {certificate} is not known; remove one of both").into()
                );
            }
            Some((certificate, key)) => Pki::from_files(&certificate, &key)?,
            None => {
                store::create_data_dir(directory)?;
                Pki::load_or_create(directory, &settings.names)?
            }
        },
    };
    let pki = match settings.sni_certificates.is_empty() {
        true => pki,
        false => pki.with_sni_certificates(settings.sni_certificates.clone())?,
    };
    Ok(pki.with_tls_options(&settings.tls)?)
}

/// The serving certificate and the key that `--cert-dir` has already, as in kube-apiserver
/// (`MaybeDefaultWithSelfSignedCerts` of k8s.io/apiserver). Test frameworks such as envtest put them there.
fn certificate_pair(directory: &Path) -> Result<Option<(PathBuf, PathBuf)>, Failure> {
    let (certificate, key) = (directory.join("apiserver.crt"), directory.join("apiserver.key"));
    let missing = match (certificate.is_file(), key.is_file()) {
        (true, true) => return Ok(Some((certificate, key))),
        (false, false) => return Ok(None),
        (false, true) => certificate,
        (true, false) => key,
    };
    Err(format!("error reading {}, certificate and key must be supplied as a pair", missing.display()).into())
}

fn label(level: Level) -> &'static str {
    match level {
        Level::Warning => "warning     ",
        Level::Unenforced => "not enforced",
        Level::Error => "refused     ",
    }
}

/// The error of a start that the flags do not allow.
fn refusal(obstacles: &[&Notice]) -> String {
    let mut text = "the server does not start with these flags:".to_owned();
    for notice in obstacles {
        text.push_str(&format!("\n  {notice}"));
    }
    if obstacles.iter().any(|notice| notice.level == Level::Unenforced) {
        text.push_str("\nTo start without this protection, add --allow-unenforced.");
    }
    text
}

/// Reads the configuration of admission plugins. Relative paths in the file begin at the directory of the file.
fn admission_configuration(file: Option<&Path>, plugins: AdmissionPlugins) -> Result<AdmissionConfiguration, Failure> {
    let configuration = match file {
        Some(file) => read_admission_configuration(file)?,
        None => AdmissionConfiguration::default(),
    };
    // kube-apiserver does not start either.
    if plugins.is_enabled("EventRateLimit") && configuration.event_limits.is_empty() {
        let why = "couldn't init admission plugin \"EventRateLimit\": limits: Invalid value: null: must not be empty";
        return Err(why.into());
    }
    Ok(configuration)
}

fn read_admission_configuration(file: &Path) -> Result<AdmissionConfiguration, Failure> {
    let directory = file.parent().unwrap_or(Path::new("."));
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let failed = |why: String| format!("--admission-control-config-file: {why}");
    let text = read(file).map_err(failed)?;
    let configuration = AdmissionConfiguration::from_yaml(&text, |path| read(&directory.join(path)));
    Ok(configuration.map_err(|error| failed(error.to_string()))?)
}
