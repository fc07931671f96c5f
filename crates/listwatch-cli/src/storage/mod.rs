//! `listwatch storage`: back up, restore, move, check, compact and measure stores. What it does is
//! `listwatch_storage::transfer`; here are flags, words and exit codes.

mod commands;
mod place;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use listwatch_storage::transfer::IfExists;

pub(super) type Failure = Box<dyn std::error::Error>;

/// Back up, restore, move, check, compact and measure stores
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Storage {
    #[command(subcommand)]
    command: Command,

    /// What to log on standard error
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

An embedded store is open to one process at a time: stop the server first. etcd is exported,
verified and measured while servers run on it.

Exit codes: 0 done, 1 not done, 2 wrong flags, 3 `verify` found damage or a difference.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Write everything that a store holds into a file
    Export(Export),
    /// Bring what a file holds into a store
    Import(Import),
    /// Bring everything from one place into another, e.g. from the embedded store into etcd
    Copy(Copy),
    /// Look at everything that a place holds, and compare it with another place
    Verify(Verify),
    /// Forget history, and give the room back
    Compact(Compact),
    /// Tell what a store holds
    Stats(Stats),
}

/// Which store, named as for `listwatch serve`.
#[derive(Debug, Args)]
struct StoreFlags {
    /// The data directory of `listwatch serve`, which holds the embedded store
    #[arg(long, value_name = "DIR", default_value = "listwatch-data")]
    data_dir: PathBuf,

    /// Instead of the embedded store, etcd v3 at these endpoints
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    etcd_servers: Vec<String>,

    #[command(flatten)]
    etcd: EtcdFlags,
}

/// How to talk to etcd, whichever place is one.
#[derive(Clone, Debug, Args)]
struct EtcdFlags {
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
}

/// How an import treats what it finds.
#[derive(Debug, Args)]
struct ImportFlags {
    /// What to do about a key that the target has with another value. `fail` refuses a target that
    /// holds anything
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    if_exists: OnExisting,

    /// Do not raise etcd's revision above the source's, and do not forget its history. Only where no
    /// client holds a resourceVersion of the source
    #[arg(long)]
    keep_clock: bool,

    /// Set the target's revision on to this one at least. For a backup that is older than what clients
    /// have seen: give a revision above all of theirs, and they list again
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true, conflicts_with = "keep_clock")]
    clock_at_least: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnExisting {
    /// Import into an empty store alone, or go on with an interrupted import
    Fail,
    /// Keep what is there
    Skip,
    /// Replace it; keys that only the target has stay
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

/// Write everything that a store holds into a file
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  listwatch storage export backup.lwx
  listwatch storage export --etcd-servers http://127.0.0.1:2379 - | zstd > backup.lwx.zst

The file shows the store at one revision. It holds Secrets in plain, and is its owner's alone. It
gets its name when it is whole and on disk.")]
struct Export {
    #[command(flatten)]
    store: StoreFlags,

    /// Replace a file that is there
    #[arg(long)]
    force: bool,

    /// The file to write; `-` for standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Bring what a file holds into a store
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  listwatch storage import --data-dir new-data backup.lwx
  zstd -dc backup.lwx.zst | listwatch storage import --etcd-servers http://127.0.0.1:2379 -

The file is checked to its end before anything is written. A new embedded store has the revisions of
the old one. In etcd every object gets a new revision, in the old order and above every revision of
the source; watches from before are told to list again. Run an interrupted import again: it goes on.

  listwatch storage import --data-dir new-data --clock-at-least 2000000 last-week.lwx
      clients have seen revisions up to 1,9xx,xxx since: they are told to list again, not refused")]
struct Import {
    #[command(flatten)]
    store: StoreFlags,

    #[command(flatten)]
    import: ImportFlags,

    /// The file to read; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Bring everything from one place into another
#[derive(Debug, Args)]
#[command(after_help = "\
A place is a data directory of `listwatch serve`, an etcd as http://HOST:PORT[,URL], or a file that
`listwatch storage export` wrote.

Examples:
  listwatch storage copy --from listwatch-data --to http://127.0.0.1:2379
      from the embedded store to etcd, with the server stopped; then start it with
      listwatch serve --data-dir listwatch-data --etcd-servers http://127.0.0.1:2379
  listwatch storage copy --from http://127.0.0.1:2379 --to new-data
      and back

Nothing is removed from where it comes from.")]
struct Copy {
    /// Where from
    #[arg(long, value_name = "PLACE")]
    from: String,

    /// Where to
    #[arg(long, value_name = "PLACE")]
    to: String,

    #[command(flatten)]
    etcd: EtcdFlags,

    /// Prefix of every key in the etcd that is copied to [default: --etcd-prefix]
    #[arg(long, value_name = "PREFIX")]
    to_etcd_prefix: Option<String>,

    #[command(flatten)]
    import: ImportFlags,
}

/// Look at everything that a place holds, and compare it with another place
#[derive(Debug, Args)]
#[command(after_help = "\
A place is a data directory of `listwatch serve`, an etcd as http://HOST:PORT[,URL], or a file that
`listwatch storage export` wrote.

Embedded: checksums of everything on disk, revisions without gaps, the index. File: checksums, the
end. All: every object can be read, is the one that its key says, and has revisions that can be.
--against: both have the same keys with the same values, changed in the same order.

Examples:
  listwatch storage verify --data-dir listwatch-data
  listwatch storage verify backup.lwx --against http://127.0.0.1:2379")]
struct Verify {
    #[command(flatten)]
    store: StoreFlags,

    /// Compare with this place
    #[arg(long, value_name = "PLACE")]
    against: Option<String>,

    /// How to tell
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,

    /// The place to look at [default: what --data-dir or --etcd-servers name]
    #[arg(value_name = "PLACE")]
    place: Option<String>,
}

/// Forget history, and give the room back
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  listwatch storage compact --data-dir listwatch-data
  listwatch storage compact --etcd-servers http://127.0.0.1:2379 --revision 120000

Watches and lists that ask for an older revision are then told 410 Expired, and list again. Servers
compact by themselves; this is for when room is short.")]
struct Compact {
    #[command(flatten)]
    store: StoreFlags,

    /// Forget what is older than this revision [default: the present one]
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
}

/// Tell what a store holds
#[derive(Debug, Args)]
struct Stats {
    #[command(flatten)]
    store: StoreFlags,

    /// Do not read the objects: no figures for each resource
    #[arg(long)]
    quick: bool,

    /// How to tell
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
    /// Does it, until it is done or interrupted.
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
            tokio::select! {
                done = work => done,
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted?;
                    Err("interrupted; nothing half-done is left under a final name, run it again to go on".into())
                }
            }
        })
    }
}
