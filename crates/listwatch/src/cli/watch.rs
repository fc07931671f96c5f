//! `listwatch watch`: the changes of a resource as lines, on any API server, also across its
//! restarts.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use listwatch_client::{Change, Client, Config, Notice, Origin, Reflection, ReflectorConfig, Scope};

type Failure = Box<dyn std::error::Error>;

/// Print the changes of a resource as they happen
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Watch {
    /// The resource: plural, singular, short name or kind, with its group where that is needed
    /// (pods, po, deployments.apps)
    resource: String,

    /// Every namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// One namespace [default: the kubeconfig's]
    #[arg(short, long, value_name = "NAME", conflicts_with = "all_namespaces")]
    namespace: Option<String>,

    /// Only objects with these labels, e.g. app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,

    /// Only objects with these fields, e.g. spec.nodeName=node-1
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    field_selector: String,

    /// The kubeconfig [default: $KUBECONFIG, then ~/.kube/config, then in-cluster]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// One short line per change, or the whole object as JSON
    #[arg(short, long, value_name = "FORMAT", default_value = "line")]
    output: Output,

    /// What to log on standard error
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// `ADDED  default/web  rv=7`
    Line,
    /// `{"type":"ADDED","object":{...}}`, as a watch sends it
    Json,
}

const EXAMPLES: &str = "\
Examples:
  listwatch watch pods -A
  listwatch watch deployments.apps -n shop -l tier=front
  listwatch watch cm -o json | jq .object.metadata.name

The state comes first, then every change. When the server goes away the watch resumes where it
was; when its place is gone the difference is printed. Nothing is printed twice.";

impl Watch {
    /// Watches until interrupted.
    pub(crate) fn run(self) -> Result<(), Failure> {
        super::start_logging(&self.log_level)?;
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            tokio::select! {
                watched = self.watch() => watched,
                interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
            }
        })
    }

    async fn watch(&self) -> Result<(), Failure> {
        let config = Config::load(self.kubeconfig.as_deref(), self.context.as_deref())?;
        let client = Client::new(config)?;
        let resource = client.discover(&self.resource).await?;
        let scope = match (&self.namespace, self.all_namespaces) {
            (Some(namespace), _) => Scope::Namespace(namespace.clone()),
            (None, true) => Scope::Cluster,
            (None, false) => Scope::Namespace(client.namespace().to_owned()),
        };
        let list_watch = client.list_watch(&resource, &scope).labels(&self.selector).fields(&self.field_selector);
        let config = ReflectorConfig { type_name: Some(resource.type_name()), ..ReflectorConfig::default() };
        let mut reflection = Reflection::new(list_watch, config);
        loop {
            match reflection.next().await {
                Notice::Changes(changes) => {
                    // One write per batch: a slow terminal must not cost a system call per line.
                    let mut lines = Vec::new();
                    for change in &changes {
                        self.print(change, &mut lines)?;
                    }
                    let mut out = std::io::stdout().lock();
                    out.write_all(&lines)?;
                    out.flush()?;
                }
                Notice::Synced => {}
                Notice::State(state) => tracing::debug!(?state, "reflector"),
                Notice::Problem(problem) => {
                    if problem.status().is_some_and(|status| matches!(status.code, 401 | 403)) {
                        return Err(format!("{problem}").into());
                    }
                    tracing::warn!(%problem, "the watch was interrupted");
                }
                Notice::Skipped { reason, key } => tracing::warn!(%key, ?reason, "an object was passed over"),
            }
        }
    }

    fn print(&self, change: &Change, out: &mut Vec<u8>) -> Result<(), Failure> {
        let (kind, object, origin) = match change {
            Change::Added { object, origin } => ("ADDED", object, origin),
            Change::Updated { new, origin, .. } => ("MODIFIED", new, origin),
            Change::Deleted { last, origin, .. } => ("DELETED", last, origin),
        };
        match self.output {
            Output::Line => {
                let note = match origin {
                    Origin::Initial | Origin::Live => "",
                    Origin::Relist => "  (found by listing again)",
                };
                writeln!(out, "{kind:<8}  {}  rv={}{note}", object.key(), object.resource_version())?;
            }
            Output::Json => {
                write!(out, "{{\"type\":\"{kind}\",\"object\":")?;
                out.extend_from_slice(object.json());
                out.extend_from_slice(b"}\n");
            }
        }
        Ok(())
    }
}
