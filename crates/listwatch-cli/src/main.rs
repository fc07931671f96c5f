//! The `listwatch` command: `serve`, `kube-apiserver`, `watch`, `storage` and `conformance`.

mod cli;
mod conformance;
mod kube_apiserver;
mod malloc_thresholds;
mod process;
mod relocation;
mod serve;
mod snapshots;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod start_code;
mod stop_signals;
mod storage;
mod store;
mod trim;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(error) => {
            // The message is one line about the remedy; the log has the details.
            eprintln!("listwatch: {error}");
            ExitCode::FAILURE
        }
    }
}
