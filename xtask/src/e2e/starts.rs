//! Starts that must fail, with one line of error text and an exit code.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use crate::failure::{Outcome, ensure};
use crate::process::Run;

use super::server::free_port;

/// The time limit of a start that must fail.
const REFUSAL_LIMIT: Duration = Duration::from_secs(15);

pub(crate) fn refused(bin: Option<&Path>, dir: &Path) -> Outcome<String> {
    let bin = bin.ok_or("no server binary")?;
    let dir = dir.join("refused");
    std::fs::create_dir_all(&dir)?;
    // No user, not even root, can create a directory below a plain file.
    std::fs::write(dir.join("plain-file"), "")?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let taken = taken.local_addr().map(|address| (taken, address.to_string()))?;
    let closed = format!("http://127.0.0.1:{}", free_port()?);
    let (data, below) = (dir.join("data"), dir.join("plain-file/data"));
    let (data, below) = (data.to_string_lossy(), below.to_string_lossy());
    let free = "127.0.0.1:0";
    let cases: [(&str, &[&str], &str); 6] = [
        ("a taken port", &["--bind", &taken.1, "--data-dir", &data], &taken.1),
        ("an unwritable directory", &["--bind", free, "--data-dir", &below], "plain-file"),
        ("an unreachable etcd", &["--bind", free, "--data-dir", &data, "--etcd-servers", &closed], "etcd"),
        ("a bad flag", &["--no-such-flag"], "--no-such-flag"),
        ("a bad address", &["--bind", "nonsense"], "nonsense"),
        ("two stores", &["--in-memory", "--etcd-servers", &closed], "--in-memory"),
    ];
    let mut slowest = Duration::ZERO;
    for (what, flags, named) in &cases {
        let output =
            Run::new(bin).args(["serve", "--log-level", "error"]).args(*flags).limit(REFUSAL_LIMIT).output()?;
        let code = output.status.and_then(|status| status.code());
        ensure!(output.status.is_some(), "{what}: still running after {REFUSAL_LIMIT:?}: {}", output.said());
        ensure!(code.is_some_and(|code| code != 0), "{what}: ended with {code:?}: {}", output.said());
        let first = output.stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        ensure!(first.contains(named), "{what}: the line does not name {named}: {}", output.said());
        // An invalid command line also prints the usage; every other error is one line.
        let lines = output.stderr.lines().filter(|line| !line.trim().is_empty()).count();
        ensure!(lines == 1 || code == Some(2), "{what}: {lines} lines instead of one: {}", output.said());
        slowest = slowest.max(output.elapsed);
    }
    Ok(format!("{} refused, the slowest after {}", cases.len(), crate::steps::seconds(slowest)))
}
