//! `listwatch kube-apiserver`: the server with the flags of kube-apiserver.
//!
//! ```text
//!  command line ─▶ FlagValues ─▶ resolve ─▶ Settings ─▶ server
//!    (clap, FLAGS)   (pure, settings.rs) └▶ notices: warnings, obstacles
//! ```

mod command_line;
mod credentials;
mod flags;
#[cfg(test)]
mod page_test;
mod settings;

use std::path::PathBuf;

use clap::Args;
use listwatch_access::PrivilegedGroups;
use listwatch_apiserver::pki::{Pki, write_private};
use listwatch_apiserver::{ApiServer, Auth, Controllers};

use self::command_line::FlagValues;
use self::settings::{Authorization, Certificates, Level, Notice, Settings, StoreChoice, resolve};
use crate::process;
use crate::snapshots::SnapshotFlags;
use crate::store::{self, OpenStore};

type Failure = Box<dyn std::error::Error>;

/// Run the server with the flags of kube-apiserver
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KubeApiserver {
    #[command(flatten)]
    given: FlagValues,

    /// Start although flags ask for protection that this server does not give, such as --audit-log-path.
    /// The log names each of them
    #[arg(long, help_heading = "Flags of listwatch")]
    allow_unenforced: bool,

    /// Print what each given flag does here, and exit: 0 if the server would start, else 1
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

    /// Controllers to run in the server: namespace, gc, clusterrole-aggregation. In a cluster, kube-controller-manager runs them
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
    /// Serves until a signal arrives.
    ///
    /// # Errors
    /// The flags do not allow a start, or the server could not start.
    pub(crate) fn run(self) -> Result<(), Failure> {
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
        let serve = self.serve(resolution.settings);
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve)
    }

    async fn serve(self, settings: Settings) -> Result<(), Failure> {
        process::prepare();
        let listener = process::listen(settings.bind, "--bind-address and --secure-port")?;
        let pki = pki(&settings)?;
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
            .watch_cache(settings.watch_cache)
            .min_request_timeout(settings.min_request_timeout)
            .request_timeout(settings.request_timeout)
            .service_ranges(settings.service_ranges.clone())
            .requests_in_flight_max(settings.requests_in_flight_max.0, settings.requests_in_flight_max.1)
            .priority_and_fairness(settings.priority_and_fairness)
            .goaway_chance(settings.goaway_chance)
            .anonymous_auth(settings.anonymous_auth)
            .cbor(settings.cbor)
            .http2_max_streams_per_connection(settings.http2_streams_max)
            .aggregator_routing(settings.aggregator_routing)
            .aggregator_passes_redirects(settings.aggregator_passes_redirects)
            .node_restriction(settings.node_restriction)
            .controllers(self.controllers);
        let builder = match settings.authorization.clone() {
            Authorization::Modes(modes) => builder.authorization(modes),
            Authorization::AuthenticatedOnly => {
                builder.authorizer(PrivilegedGroups::new(["system:authenticated", "system:masters"]))
            }
        };
        let builder = match &settings.strict_transport_security {
            Some(directives) => builder.strict_transport_security(directives),
            None => builder,
        };
        let external_address = settings.external_address.clone();
        let external_address = external_address.unwrap_or_else(|| process::reachable(settings.bind).to_string());
        let builder = builder.external_address(&external_address);
        let builder = credentials::read(builder, &settings)?;
        let server = builder.build().await?;
        let serving = server.serve(listener, &pki)?;

        let url = format!("https://{}", process::reachable(settings.bind));
        if let Some(file) = &self.kubeconfig_out {
            write_private(file, pki.kubeconfig(&url).as_bytes())?;
        }
        tracing::info!("serving on {}, objects are in {}", settings.bind, store.description);
        process::serve_until_signal(&server, serving, settings.shutdown_delay).await
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

fn pki(settings: &Settings) -> Result<Pki, Failure> {
    let pki = match &settings.certificates {
        Certificates::Files { certificate, key } => Pki::from_files(certificate, key)?,
        Certificates::OwnIn(directory) => {
            store::create_data_dir(directory)?;
            Pki::load_or_create(directory, &settings.names)?
        }
    };
    let pki = match settings.sni_certificates.is_empty() {
        true => pki,
        false => pki.with_sni_certificates(settings.sni_certificates.clone())?,
    };
    Ok(pki.with_tls_options(&settings.tls)?)
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
