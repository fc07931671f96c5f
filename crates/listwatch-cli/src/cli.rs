//! The command line: the subcommands and the log.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{conformance, kube_apiserver, serve, storage, watch};

/// Kubernetes list and watch: an API server that behaves as kube-apiserver does, and a client that watches
/// any API server.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  listwatch serve                                   an API server on https://127.0.0.1:6443
  listwatch serve --in-memory --bind 127.0.0.1:0    the same in memory, on a free port
  listwatch kube-apiserver --check-flags ...        which flags of a kube-apiserver work here
  listwatch watch pods -A                           print changes, also after a restart of the server
  listwatch storage export backup.lwx               a backup of the embedded store
  listwatch conformance --kubeconfig FILE           which rules of list and watch a server keeps";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an API server
    Serve(Box<serve::Serve>),
    /// Run an API server with the flags of kube-apiserver
    KubeApiserver(Box<kube_apiserver::KubeApiserver>),
    /// Print the changes of a resource as they happen
    Watch(Box<watch::Watch>),
    /// Back up, restore, move, check, compact and measure stores
    Storage(Box<storage::Storage>),
    /// Score an API server by the rules of list and watch
    Conformance(Box<conformance::Conformance>),
}

/// Runs the subcommand.
///
/// # Errors
/// A text for the user.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match cli.command {
        Command::Serve(serve) => serve.run().map(|()| ExitCode::SUCCESS),
        Command::KubeApiserver(server) => server.run().map(|()| ExitCode::SUCCESS),
        Command::Watch(watch) => watch.run(),
        Command::Storage(storage) => storage.run(),
        Command::Conformance(conformance) => conformance.run(),
    }
}

/// Starts the log on standard error. Standard output is for the banner and for results.
///
/// # Errors
/// The level is not valid.
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
