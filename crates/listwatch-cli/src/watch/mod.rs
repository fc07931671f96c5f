//! `listwatch watch`: prints the changes of a resource, field by field. The watch resumes after a restart of the API
//! server.
//!
//! Changes go to standard output, everything else to standard error. [`mod@diff`] compares versions of objects,
//! [`mod@print`] formats changes, and [`mod@status_lines`] reports the state of the connection.

mod diff;
mod print;
mod status_lines;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use listwatch_client::{
    Client, Config, DiscoverError, HttpListWatch, Notice, Problem, Reflection, ReflectorConfig, ReflectorState, Scope,
    TypeName,
};

use self::diff::{DiffOptions, is_secret_type};
use self::print::{Format, Printer};
use self::status_lines::StatusLines;
use crate::stop_signals::StopSignals;

type Failure = Box<dyn std::error::Error>;

/// The exit code after a local error, or a failure of the server that may end, such as 503.
const EXIT_FAILED: u8 = 1;

/// The exit code after a permanent error of the server, such as 403 or 404.
const EXIT_REFUSED: u8 = 3;

/// The exit code when `--timeout` passed before the initial list was loaded.
const EXIT_TIMEOUT: u8 = 4;

/// The interval of checks for progress and for a closed standard output.
const TICK: Duration = Duration::from_millis(200);

/// Print the changes of a resource as they happen
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Watch {
    /// The resource: plural, singular, short name or kind, with its group where needed
    /// (pods, po, deployments.apps)
    resource: String,

    /// Watch all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// Watch this namespace [default: that of the kubeconfig]
    #[arg(short, long, value_name = "NAME", conflicts_with = "all_namespaces")]
    namespace: Option<String>,

    /// Only objects with these labels, e.g. app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,

    /// Only objects with these fields, e.g. spec.nodeName=node-1
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    field_selector: String,

    /// Format of the changes
    #[arg(short, long, value_name = "FORMAT", default_value = "diff")]
    output: Format,

    /// Print the initial objects, or only count them
    #[arg(long, value_name = "WHEN", default_value = "show")]
    initial: Initial,

    /// Print the initial objects and exit
    #[arg(long, conflicts_with = "initial")]
    once: bool,

    /// Exit with code 4 if the initial objects are not loaded after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// Colors [default: on a terminal, unless NO_COLOR is set]
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    color: Color,

    /// Show changes of metadata.managedFields
    #[arg(long)]
    show_managed_fields: bool,

    /// Show the values of Secrets, which are otherwise hidden as `***` in every format
    #[arg(long)]
    show_secrets: bool,

    /// Print only errors on standard error
    #[arg(short, long)]
    quiet: bool,

    /// The kubeconfig [default: $KUBECONFIG, then ~/.kube/config, then in-cluster]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Level of the log on standard error: error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL", default_value = "error")]
    log_level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Initial {
    /// Print the initial objects
    Show,
    /// Only count the initial objects
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
  listwatch watch pods -A                              all pods, and all fields that change
  listwatch watch deployments.apps -n shop -l tier=front --initial hide
  listwatch watch cm -o json | jq .object.metadata.name
  listwatch watch nodes --once -o name                 the present nodes, and exit
  listwatch watch crontabs.example.com --context staging

The initial objects come first, then all changes. After a lost connection the watch resumes at its
resource version; if that has expired, the difference to a new list is printed. No change is printed
twice. Standard error reports the state of the connection and the age of the data.

Exit codes: 0 interrupted, --once is done, or the reader of the pipe left; 1 local error (no kubeconfig,
no plugin), or a failure of the server that may end (unreachable, overloaded, unreadable answer); 2 invalid
flags; 3 permanent error of the server (forbidden, no such resource); 4 --timeout passed.";

/// The reason for the end of a watch.
enum End {
    /// The watch was interrupted, or `--once` is done.
    Done,
    /// The reader of the pipe at standard output closed it.
    ReaderLeft,
}

/// The error that ended a watch, with its exit code.
struct Refusal(u8, String);

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Refusal(EXIT_FAILED, error.to_string())
    }
}

impl Watch {
    /// Runs the watch until a signal, an error, or the end that the flags request.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        crate::cli::start_logging(&self.log_level)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(async {
            let mut signals = StopSignals::install()?;
            tokio::select! {
                watched = self.watch() => watched,
                interrupted = signals.received() => interrupted.map(|()| End::Done).map_err(Refusal::from),
            }
        });
        // A credential plugin or a name lookup may still run in the background.
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
        let printer = self.printer(&type_name);
        let config = ReflectorConfig { type_name: Some(type_name), ..ReflectorConfig::default() };
        let mut reflection = Reflection::new(list_watch, config);
        let mut status_lines = StatusLines::new(io::stderr().is_terminal(), self.quiet, begun);
        let mut synced = false;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let notice = tokio::select! {
                notice = reflection.next() => notice,
                _ = tick.tick() => {
                    let now = Instant::now();
                    tell(status_lines.tick(now, &reflection.reflector().state()));
                    if !synced && limit.is_some_and(|limit| begun.elapsed() >= limit) {
                        tell(status_lines.clear());
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
                    tell(status_lines.clear());
                    // Each batch is one write, so that a slow terminal does not cost one system call per line.
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
                    tell(status_lines.synced(now, reflection.store().snapshot().len()));
                    synced = true;
                    if self.once {
                        return Ok(End::Done);
                    }
                }
                // Before the first list, a permanent error ends the watch. After the first list, the reflector retries.
                Notice::State(ReflectorState::BackingOff { problem, .. }) if !synced && problem.is_final() => {
                    tell(status_lines.clear());
                    return Err(Refusal(problem_exit_code(&problem), problem.to_string()));
                }
                Notice::State(state) => tell(status_lines.state(now, &state)),
                Notice::Problem(problem) => status_lines.problem(now, &problem),
                // The reflector skipped an object, or sent a notice that this version does not know.
                other => tell(status_lines.line(format!("{other:?}"))),
            }
        }
    }

    async fn open(&self, config: Config) -> Result<(HttpListWatch, TypeName), Refusal> {
        let client = Client::new(config)?;
        let resource = client.discover(&self.resource).await;
        let resource = resource.map_err(|error| Refusal(discovery_exit_code(&error), error.to_string()))?;
        let scope = match (&self.namespace, self.all_namespaces) {
            (Some(namespace), _) => Scope::Namespace(namespace.clone()),
            (None, true) => Scope::Cluster,
            (None, false) => Scope::Namespace(client.namespace().to_owned()),
        };
        let list_watch = client.list_watch(&resource, &scope).labels(&self.selector).fields(&self.field_selector);
        Ok((list_watch, resource.type_name()))
    }

    fn printer(&self, type_name: &TypeName) -> Printer {
        let color = match self.color {
            Color::Always => true,
            Color::Never => false,
            // As on https://no-color.org: the variable is set and not empty.
            Color::Auto => {
                io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
        };
        let shown = DiffOptions { managed_fields: self.show_managed_fields, secrets: self.show_secrets };
        let are_secrets = is_secret_type(&type_name.api_version, &type_name.kind);
        Printer { format: self.output, shown, color, are_secrets }
    }
}

/// The exit code when the resource is not found. A group that does not answer may have the resource, so the resource is
/// only missing for good if every failure was final.
fn discovery_exit_code(error: &DiscoverError) -> u8 {
    match error {
        DiscoverError::Unknown { problem: None, .. } | DiscoverError::NotWatchable { .. } => EXIT_REFUSED,
        DiscoverError::Unknown { problem: Some(problem), .. } | DiscoverError::Unreachable(problem) => {
            problem_exit_code(problem)
        }
        _ => EXIT_FAILED,
    }
}

/// The exit code of a failure, at whatever request it happens. A final problem without a status is a local error.
fn problem_exit_code(problem: &Problem) -> u8 {
    if problem.is_final() && problem.status().is_some() { EXIT_REFUSED } else { EXIT_FAILED }
}

fn write_out(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()
}

/// Prints a line to standard error. The watch continues if standard error is closed.
fn tell(text: Option<String>) {
    if let Some(text) = text {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Whether standard output is a pipe without a reader. Otherwise the watch of a quiet resource would never end.
#[cfg(unix)]
fn reader_left() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let out = io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A closed terminal causes a signal. POLLERR means a pipe without a reader.
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

#[cfg(not(unix))]
fn reader_left() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use listwatch_meta::Status;

    use super::*;

    #[test]
    fn discovery_exits_with_3_only_after_a_final_failure_of_any_document() {
        fn check(error: &DiscoverError, expected: u8) {
            assert_eq!(discovery_exit_code(error), expected, "{error}");
        }
        let refused = |code| Problem::refused(Status::failure(code, "", "no"));
        let unknown = |problem: Option<Problem>| DiscoverError::Unknown {
            name: "x".to_owned(),
            silent: problem.iter().map(|_| "g".to_owned()).collect(),
            problem,
        };
        check(&unknown(None), EXIT_REFUSED);
        check(&DiscoverError::NotWatchable { name: "x".to_owned() }, EXIT_REFUSED);
        // A group's document, and the list of groups.
        for (problem, code) in [
            (refused(400), EXIT_REFUSED),
            (refused(403), EXIT_REFUSED),
            (refused(404), EXIT_REFUSED),
            (refused(429), EXIT_FAILED),
            (refused(500), EXIT_FAILED),
            (refused(503), EXIT_FAILED),
            (Problem::malformed("no list"), EXIT_FAILED),
            (Problem::disconnected("reset"), EXIT_FAILED),
            (Problem::misconfigured("no token"), EXIT_FAILED),
        ] {
            check(&unknown(Some(problem.clone())), code);
            check(&DiscoverError::Unreachable(problem), code);
        }
    }
}
