//! The command line: the subcommands and the log.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::{conformance, kube_apiserver, serve, storage, watch};

/// Kubernetes list and watch: an API server that behaves as kube-apiserver does, and a client that watches
/// any API server.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
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

/// Parses the command line, and runs the subcommand. Ends the process if the command line is not valid.
///
/// # Errors
/// A text for the user.
pub(crate) fn run() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut command = Cli::command();
    let matches = command.get_matches_mut();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    match cli.command {
        Command::Serve(serve) => serve.run(flags(&command, &matches)).map(|()| ExitCode::SUCCESS),
        Command::KubeApiserver(server) => server.run(flags(&command, &matches)).map(|()| ExitCode::SUCCESS),
        Command::Watch(watch) => watch.run(),
        Command::Storage(storage) => storage.run(),
        Command::Conformance(conformance) => conformance.run(),
    }
}

/// Returns the flags of the subcommand that have a value, by name without dashes, for `/flagz`. The values of a list
/// are joined with commas.
fn flags(command: &clap::Command, matches: &ArgMatches) -> BTreeMap<String, String> {
    let Some((name, matches)) = matches.subcommand() else { return BTreeMap::new() };
    let value = |argument: &Arg| {
        let values = matches.try_get_raw(argument.get_id().as_str()).ok()??;
        let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
        Some((argument.get_long()?.to_owned(), without_credentials(values.join(","))))
    };
    command.find_subcommand(name).into_iter().flat_map(|command| command.get_arguments()).filter_map(value).collect()
}

/// Replaces a value, or joined values, with credentials in a URL, as kube-apiserver does with classified flags. Other
/// flags have no secrets, only the names of files.
pub(crate) fn without_credentials(value: String) -> String {
    if has_credentials(&value) { "CLASSIFIED".to_owned() } else { value }
}

/// Whether a value may contain credentials. In joined values, a comma may separate values or be a part of a password.
/// Therefore a comma begins a value but ends no authority.
fn has_credentials(values: &str) -> bool {
    fn authority(rest: &str) -> &str {
        rest.split(['/', '?', '#']).next().unwrap_or_default()
    }
    let is_user = |rest: &str| authority(rest).rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
    values.split("://").skip(1).any(|rest| authority(rest).contains('@'))
        || is_user(values)
        || values.match_indices(',').any(|(comma, _)| is_user(&values[comma + 1..]))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> BTreeMap<String, String> {
        let mut command = Cli::command();
        let matches = command.try_get_matches_from_mut(line.split(' ')).expect("a valid command line");
        flags(&command, &matches)
    }

    #[test]
    fn flags_have_the_values_of_the_command_line_and_defaults() {
        let flags = parsed("listwatch serve --in-memory --tls-san a --tls-san b,c");
        let value = |name: &str| flags.get(name).map(String::as_str);
        assert_eq!(value("in-memory"), Some("true"));
        assert_eq!(value("cbor"), Some("false"));
        assert_eq!(value("bind"), Some("127.0.0.1:6443"));
        assert_eq!(value("tls-san"), Some("a,b,c"));
        assert_eq!(value("cache-bytes"), None);
        let flags = parsed("listwatch serve --tls-san https://user:sec,ret@a.example");
        assert_eq!(flags["tls-san"], "CLASSIFIED", "clap splits the password");
        let flags = parsed("listwatch kube-apiserver --v=2 --data-dir d");
        assert_eq!((&*flags["v"], &*flags["data-dir"]), ("2", "d"));
    }

    #[test]
    fn url_with_credentials_is_classified() {
        for (value, expected) in [
            ("https://127.0.0.1:2379,https://[::1]:2379", "https://127.0.0.1:2379,https://[::1]:2379"),
            ("https://a.example/@b", "https://a.example/@b"),
            ("user@host", "user@host"),
            ("127.0.0.1:2379,[::1]:2379", "127.0.0.1:2379,[::1]:2379"),
            ("/etc/a:b@c,email=a@b", "/etc/a:b@c,email=a@b"),
            ("https://user:secret@a.example", "CLASSIFIED"),
            ("https://user:sec,ret@a.example:2379", "CLASSIFIED"),
            ("https://a.example,https://user:sec,r@et@b.example", "CLASSIFIED"),
            ("http://a.example,http://user@b.example/x", "CLASSIFIED"),
            ("user:secret@host", "CLASSIFIED"),
            ("user:sec,ret@host:2379/x", "CLASSIFIED"),
            ("https://a.example/x,user:secret@host", "CLASSIFIED"),
        ] {
            assert_eq!(without_credentials(value.to_owned()), expected);
        }
    }
}
