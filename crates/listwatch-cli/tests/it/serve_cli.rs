//! Runs `listwatch serve` as a process: the kubeconfig of a server in memory.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

#[test]
fn server_in_memory_removes_its_private_directory_at_its_end() {
    let parent = tempfile::tempdir().expect("a directory");
    let mut server = Command::new(env!("CARGO_BIN_EXE_listwatch"))
        .args(["serve", "--in-memory", "--bind", "127.0.0.1:0"])
        .env("XDG_RUNTIME_DIR", parent.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a server");
    let mut banner = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let line = banner.by_ref().map_while(Result::ok).find(|line| line.contains("kubeconfig")).expect("a kubeconfig");
    let kubeconfig = line.split_once("KUBECONFIG=").expect("a path").1.trim().to_owned();
    let written = std::fs::read_to_string(&kubeconfig);
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    let ended = server.wait().expect("an exit code");

    assert!(ended.success(), "{ended}");
    assert!(written.expect("the kubeconfig").contains("clusters:"), "{kubeconfig}");
    let left: Vec<_> = std::fs::read_dir(parent.path()).expect("the parent").flatten().collect();
    assert!(left.is_empty(), "a server leaves {left:?}");
}
