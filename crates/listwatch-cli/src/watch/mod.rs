//! `listwatch watch`: the changes of a resource, field by field, on any API server, also across its
//! restarts.
//!
//! Changes go to standard output, everything else to standard error. [`mod@diff`] finds what changed,
//! [`mod@print`] makes text of it, [`mod@story`] tells what happens to the connection.

mod diff;
mod print;
mod story;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use listwatch_client::{
    Client, Config, DiscoverError, HttpListWatch, Notice, Problem, Reflection, ReflectorConfig, ReflectorState, Scope,
};

use self::diff::Shown;
use self::print::{Format, Printer};
use self::story::Story;

type Failure = Box<dyn std::error::Error>;

/// The exit code when the server refuses for good.
const EXIT_REFUSED: u8 = 3;

/// The exit code when `--timeout` was over before the state was loaded.
const EXIT_TIMEOUT: u8 = 4;

/// How often progress and a reader that left are looked for.
const TICK: Duration = Duration::from_millis(200);

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

    /// How changes are printed
    #[arg(short, long, value_name = "FORMAT", default_value = "diff")]
    output: Format,

    /// Print the state that is there at the beginning, or only what changes from then on
    #[arg(long, value_name = "WHEN", default_value = "show")]
    initial: Initial,

    /// Print the state and end
    #[arg(long, conflicts_with = "initial")]
    once: bool,

    /// End with code 4 if the state is not loaded after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// Colours [default: on a terminal, unless NO_COLOR is set]
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    color: Color,

    /// Show changes of metadata.managedFields
    #[arg(long)]
    show_managed_fields: bool,

    /// Show what is in Secrets; otherwise only that it changed
    #[arg(long)]
    show_secrets: bool,

    /// Say nothing on standard error but errors
    #[arg(short, long)]
    quiet: bool,

    /// The kubeconfig [default: $KUBECONFIG, then ~/.kube/config, then in-cluster]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// What to log on standard error
    #[arg(long, value_name = "LEVEL", default_value = "error")]
    log_level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Initial {
    /// Print it
    Show,
    /// Only count it
    Hide,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

const EXAMPLES: &str = "\
Examples:
  listwatch watch pods -A                              every pod, and every field that changes
  listwatch watch deployments.apps -n shop -l tier=front --initial hide
  listwatch watch cm -o json | jq .object.metadata.name
  listwatch watch nodes --once -o name                 what is there, and end
  listwatch watch crontabs.example.com --context staging

The state comes first, then every change. When the server goes away the watch resumes where it was;
when its place is gone the difference is printed. Nothing is printed twice, and standard error says
what happens to the connection and how old the view had become.

Exit codes: 0 when interrupted, when --once is done, or when the reader of a pipe left; 1 when
something is wrong here (no kubeconfig, no plugin); 2 for flags that make no sense; 3 when the server
refuses (not allowed, no such resource); 4 when --timeout is over.";

/// How a watch ends.
enum End {
    /// As it was asked to.
    Done,
    /// The reader of standard output left.
    ReaderLeft,
}

/// Why a watch cannot go on, with its exit code.
struct Refusal(u8, String);

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Refusal(1, error.to_string())
    }
}

impl Watch {
    /// Watches until interrupted.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        crate::cli::start_logging(&self.log_level)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(async {
            tokio::select! {
                watched = self.watch() => watched,
                interrupted = interrupted() => interrupted.map(|()| End::Done).map_err(Refusal::from),
            }
        });
        // What a plugin or a resolver still does in the background is nobody's business any more.
        runtime.shutdown_background();
        match ended {
            Ok(End::Done | End::ReaderLeft) => Ok(ExitCode::SUCCESS),
            Err(Refusal(code, why)) => {
                eprintln!("listwatch: {why}");
                Ok(ExitCode::from(code))
            }
        }
    }

    async fn watch(&self) -> Result<End, Refusal> {
        let config = Config::load(self.kubeconfig.as_deref(), self.context.as_deref())?;
        let limit = self.timeout.map(Duration::from_secs);
        let begun = Instant::now();
        let too_late =
            || Refusal(EXIT_TIMEOUT, format!("the state was not loaded within {} s", self.timeout.unwrap_or(0)));
        let opening = self.open(config);
        let (list_watch, type_name) = match limit {
            Some(limit) => tokio::time::timeout(limit, opening).await.map_err(|_| too_late())??,
            None => opening.await?,
        };
        let config = ReflectorConfig { type_name: Some(type_name), ..ReflectorConfig::default() };
        let mut reflection = Reflection::new(list_watch, config);
        let mut story = Story::new(io::stderr().is_terminal(), self.quiet, begun);
        let printer = self.printer();
        let mut synced = false;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let notice = tokio::select! {
                notice = reflection.next() => notice,
                _ = tick.tick() => {
                    let now = Instant::now();
                    tell(story.tick(now, &reflection.reflector().state()));
                    if !synced && limit.is_some_and(|limit| begun.elapsed() >= limit) {
                        tell(story.clear());
                        return Err(too_late());
                    }
                    if reader_left() {
                        return Ok(End::ReaderLeft);
                    }
                    continue;
                }
            };
            let now = Instant::now();
            match notice {
                Notice::Changes(changes) if synced || self.initial == Initial::Show => {
                    tell(story.clear());
                    // One write per batch: a slow terminal must not cost a system call per line.
                    let mut text = Vec::new();
                    for change in &changes {
                        printer.print(change, &mut text)?;
                    }
                    match write_out(&text) {
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(End::ReaderLeft),
                        written => written?,
                    }
                }
                Notice::Changes(_) => {}
                Notice::Synced => {
                    tell(story.synced(now, reflection.store().snapshot().len()));
                    synced = true;
                    if self.once {
                        return Ok(End::Done);
                    }
                }
                // Waiting is said only of what the reflector has no other way around; before the first
                // state there is nothing to lose by giving up.
                Notice::State(ReflectorState::BackingOff { problem, .. }) if !synced && is_final(&problem) => {
                    tell(story.clear());
                    let code = if problem.status().is_some() { EXIT_REFUSED } else { 1 };
                    return Err(Refusal(code, problem.to_string()));
                }
                Notice::State(state) => tell(story.state(now, &state)),
                Notice::Problem(problem) => story.problem(now, &problem),
                // An object that was passed over, and what later versions may tell.
                other => tell(story.line(format!("{other:?}"))),
            }
        }
    }

    async fn open(&self, config: Config) -> Result<(HttpListWatch, listwatch_client::TypeName), Refusal> {
        let client = Client::new(config)?;
        let resource = client.discover(&self.resource).await.map_err(|error| match &error {
            DiscoverError::Unknown { .. } | DiscoverError::NotWatchable { .. } => {
                Refusal(EXIT_REFUSED, error.to_string())
            }
            DiscoverError::Unreachable(problem) if problem.status().is_some() && is_final(problem) => {
                Refusal(EXIT_REFUSED, error.to_string())
            }
            _ => Refusal::from(error),
        })?;
        let scope = match (&self.namespace, self.all_namespaces) {
            (Some(namespace), _) => Scope::Namespace(namespace.clone()),
            (None, true) => Scope::Cluster,
            (None, false) => Scope::Namespace(client.namespace().to_owned()),
        };
        let list_watch = client.list_watch(&resource, &scope).labels(&self.selector).fields(&self.field_selector);
        Ok((list_watch, resource.type_name()))
    }

    fn printer(&self) -> Printer {
        let colour = match self.color {
            Color::Always => true,
            Color::Never => false,
            // https://no-color.org: set and not empty.
            Color::Auto => {
                io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
        };
        let shown = Shown { managed_fields: self.show_managed_fields, secrets: self.show_secrets };
        Printer { format: self.output, shown, colour }
    }
}

/// Asking again does not help: we are not who we should be, or it is not there, or it makes no sense.
fn is_final(problem: &Problem) -> bool {
    matches!(problem, Problem::Misconfigured { .. })
        || problem.status().is_some_and(|status| matches!(status.code, 400 | 401 | 403 | 404 | 405 | 422))
}

fn write_out(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()
}

/// Standard error may be closed; the watch goes on.
fn tell(text: Option<String>) {
    if let Some(text) = text {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

/// True when standard output is a pipe that nobody reads any more: a quiet resource would keep this
/// process for ever otherwise.
#[cfg(unix)]
fn reader_left() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let out = io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A terminal that hung up is told by a signal; POLLERR is what a pipe without a reader says.
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

#[cfg(not(unix))]
fn reader_left() -> bool {
    false
}

#[cfg(unix)]
async fn interrupted() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
async fn interrupted() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
