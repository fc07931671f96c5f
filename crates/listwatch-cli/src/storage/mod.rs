//! `listwatch storage`: back up, restore, move, check, compact and measure stores. This module has the flags, the
//! output and the exit codes; `listwatch_storage::transfer` does the work.

mod commands;
mod location;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use listwatch_storage::transfer::IfExists;

use crate::stop_signals::StopSignals;

pub(super) type Failure = Box<dyn std::error::Error>;

/// Back up, restore, move, check, compact and measure stores
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Storage {
    #[command(subcommand)]
    command: Command,

    /// Level of the log on standard error: error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL", default_value = "warn", global = true)]
    log_level: String,
}

const EXAMPLES: &str = "\
Examples:
  listwatch storage export --data-dir listwatch-data backup.lwx
  listwatch storage import --data-dir new-data backup.lwx
  listwatch storage copy --from listwatch-data --to http://127.0.0.1:2379
      moves a server from the embedded store to etcd: stop it, copy, start it with --etcd-servers
  listwatch storage verify listwatch-data --against http://127.0.0.1:2379
  listwatch storage stats --etcd-servers http://127.0.0.1:2379 -o json

Only one process can open an embedded store: stop the server first. etcd can be exported, verified and
measured while servers run.

Exit codes: 0 done, 1 failed, 2 invalid flags, 3 `verify` found damage or a difference.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Export all objects of a store to a file
    Export(Export),
    /// Import the objects of a file into a store
    Import(Import),
    /// Copy all objects to another store, e.g. from the embedded store to etcd
    Copy(Copy),
    /// Check all objects of a store or file, and compare it with another one
    Verify(Verify),
    /// Remove history, and free disk space
    Compact(Compact),
    /// Print sizes and counts of a store
    Stats(Stats),
}

/// The flags that select a store, as in `listwatch serve`.
#[derive(Debug, Args)]
struct StoreFlags {
    /// The data directory of `listwatch serve`, which holds the embedded store
    #[arg(long, value_name = "DIR", default_value = "listwatch-data")]
    data_dir: PathBuf,

    /// Use etcd v3 at these endpoints instead of the embedded store
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    etcd_servers: Vec<String>,

    #[command(flatten)]
    etcd: EtcdFlags,
}

/// The flags of connections to etcd.
#[derive(Clone, Debug, Args)]
struct EtcdFlags {
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
}

/// The flags of imports into a store that may hold objects.
#[derive(Debug, Args)]
struct ImportFlags {
    /// Treatment of a key that the target has with another value. `fail` refuses a target that is not
    /// empty
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    if_exists: OnExisting,

    /// Do not raise etcd's revision above the source's, and do not compact its history. Only if no client
    /// holds a resourceVersion of the source
    #[arg(long)]
    keep_clock: bool,

    /// Raise the target's revision to at least this one. For a backup that is older than the objects that
    /// clients have seen: pass a revision above all of theirs, and they list again
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true, conflicts_with = "keep_clock")]
    clock_at_least: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnExisting {
    /// Import only into an empty store, or continue an interrupted import
    Fail,
    /// Keep the value of the target
    Skip,
    /// Replace the value; keys that only the target has stay
    Overwrite,
}

impl From<OnExisting> for IfExists {
    fn from(flag: OnExisting) -> Self {
        match flag {
            OnExisting::Fail => IfExists::Fail,
            OnExisting::Skip => IfExists::Skip,
            OnExisting::Overwrite => IfExists::Overwrite,
        }
    }
}

/// Export all objects of a store to a file
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  listwatch storage export backup.lwx
  listwatch storage export --etcd-servers http://127.0.0.1:2379 - | zstd > backup.lwx.zst

The file shows the store at one revision. It has Secrets in plain text, so only its owner can read
it. It receives its name when it is complete and on disk.")]
struct Export {
    #[command(flatten)]
    store: StoreFlags,

    /// Replace an existing file
    #[arg(long)]
    force: bool,

    /// The file to write; `-` for standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Import the objects of a file into a store
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  listwatch storage import --data-dir new-data backup.lwx
  zstd -dc backup.lwx.zst | listwatch storage import --etcd-servers http://127.0.0.1:2379 -

The whole file is checked before the first write. A new embedded store has the revisions of the source.
In etcd each object gets a new revision, in the old order and above all revisions of the source; older
watches receive 410 Expired. Run an interrupted import again to continue it.

  listwatch storage import --data-dir new-data --clock-at-least 2000000 last-week.lwx
      clients have seen revisions up to 1,9xx,xxx: they receive 410 Expired and list again")]
struct Import {
    #[command(flatten)]
    store: StoreFlags,

    #[command(flatten)]
    import: ImportFlags,

    /// The file to read; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Copy all objects to another store
#[derive(Debug, Args)]
#[command(after_help = "\
A location is a data directory of `listwatch serve`, an etcd as http://HOST:PORT[,URL], or a file that
`listwatch storage export` wrote.

Examples:
  listwatch storage copy --from listwatch-data --to http://127.0.0.1:2379
      from the embedded store to etcd, with the server stopped; then start it with
      listwatch serve --data-dir listwatch-data --etcd-servers http://127.0.0.1:2379
  listwatch storage copy --from http://127.0.0.1:2379 --to new-data
      and back

The source stays as it is.")]
struct Copy {
    /// The source
    #[arg(long, value_name = "LOCATION")]
    from: String,

    /// The target
    #[arg(long, value_name = "LOCATION")]
    to: String,

    #[command(flatten)]
    etcd: EtcdFlags,

    /// Prefix of all keys in the target etcd [default: --etcd-prefix]
    #[arg(long, value_name = "PREFIX")]
    to_etcd_prefix: Option<String>,

    #[command(flatten)]
    import: ImportFlags,
}

/// Check all objects of a store or file, and compare it with another one
#[derive(Debug, Args)]
#[command(after_help = "\
A location is a data directory of `listwatch serve`, an etcd as http://HOST:PORT[,URL], or a file that
`listwatch storage export` wrote.

Embedded store: all checksums, revisions without gaps, the index. File: checksums and the end. All:
each object can be decoded, belongs to its key, and has possible revisions. --against: both have the
same keys with the same values, changed in the same order.

Examples:
  listwatch storage verify --data-dir listwatch-data
  listwatch storage verify backup.lwx --against http://127.0.0.1:2379")]
struct Verify {
    #[command(flatten)]
    store: StoreFlags,

    /// Compare with this store or file
    #[arg(long, value_name = "LOCATION")]
    against: Option<String>,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,

    /// The store or file to check [default: the store of --data-dir or --etcd-servers]
    #[arg(value_name = "LOCATION")]
    location: Option<String>,
}

/// Remove history, and free disk space
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  listwatch storage compact --data-dir listwatch-data
  listwatch storage compact --etcd-servers http://127.0.0.1:2379 --revision 120000

Watches and lists from an older revision then receive 410 Expired and list again. Servers compact on
their own; use this when disk space is short.")]
struct Compact {
    #[command(flatten)]
    store: StoreFlags,

    /// Remove the history before this revision [default: the current one]
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
}

/// Print sizes and counts of a store
#[derive(Debug, Args)]
struct Stats {
    #[command(flatten)]
    store: StoreFlags,

    /// Do not read the objects: no figures per resource
    #[arg(long)]
    quick: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Lines for people
    Text,
    /// One JSON object
    Json,
}

impl Storage {
    /// Runs the subcommand until it is done or interrupted.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        crate::cli::start_logging(&self.log_level)?;
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
            let work = async {
                match self.command {
                    Command::Export(export) => export.run().await,
                    Command::Import(import) => import.run().await,
                    Command::Copy(copy) => copy.run().await,
                    Command::Verify(verify) => verify.run().await,
                    Command::Compact(compact) => compact.run().await,
                    Command::Stats(stats) => stats.run().await,
                }
            };
            let mut signals = StopSignals::install()?;
            tokio::select! {
                done = work => done,
                interrupted = signals.received() => {
                    interrupted?;
                    Err("interrupted; nothing half-done is left under a final name, run it again to go on".into())
                }
            }
        })
    }
}
