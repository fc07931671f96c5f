//! The command line: the subcommands and the log.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{serve, storage, watch};

/// Kubernetes list-watch: a small API server that real clients cannot tell from kube-apiserver
/// where lists and watches are concerned, and a client that watches any API server.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  listwatch serve                                   an API server on https://127.0.0.1:6443
  listwatch serve --in-memory --bind 127.0.0.1:0    a throw-away one on a free port
  listwatch watch pods -A                           print changes, also after the server restarts
  listwatch storage export backup.lwx               a copy of everything in the embedded store";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an API server
    Serve(Box<serve::Serve>),
    /// Print the changes of a resource as they happen
    Watch(Box<watch::Watch>),
    /// Back up, restore, move, check, compact and measure stores
    Storage(Box<storage::Storage>),
}

/// Does what was asked.
///
/// # Errors
/// One line for the user.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match cli.command {
        Command::Serve(serve) => serve.run().map(|()| ExitCode::SUCCESS),
        Command::Watch(watch) => watch.run(),
        Command::Storage(storage) => storage.run(),
    }
}

/// Logs to standard error, so that standard output stays for the banner and for results.
pub(crate) fn start_logging(level: &str) -> Result<(), Box<dyn std::error::Error>> {
    use std::io::IsTerminal as _;
    let filter = tracing_subscriber::EnvFilter::try_new(level)
        .map_err(|error| format!("--log-level {level}: {error} (try error, warn, info, debug or trace)"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}
