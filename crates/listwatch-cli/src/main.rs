//! The `listwatch` command: `serve`, `watch` and `storage`.

mod cli;
mod serve;
mod storage;
mod trim;
mod watch;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let command = cli::Cli::parse();
    match cli::run(command) {
        Ok(code) => code,
        Err(error) => {
            // One line that says what to do; the log has the rest.
            eprintln!("listwatch: {error}");
            ExitCode::FAILURE
        }
    }
}
