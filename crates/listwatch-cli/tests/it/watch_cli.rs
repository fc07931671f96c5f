//! Runs `listwatch watch` as a process, and checks the output and exit codes. The server is in this process, over plain
//! HTTP, and can be stopped and restarted.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, Serving};
use listwatch_storage::{MemoryStorage, Storage};
use serde_json::{Value, json};

/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server and a store that survives restarts of the server.
struct World {
    storage: Arc<dyn Storage>,
    server: ApiServer,
    serving: Option<Serving>,
    port: u16,
    folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let storage: Arc<dyn Storage> = MemoryStorage::new();
        let port = listwatch_test_ports::free_port().expect("a free port");
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("nothing else listens there");
        let server = ApiServer::builder().storage(storage.clone()).build().await.expect("a server");
        let serving = server.serve_plain(listener).expect("serving");
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = format!(
            "current-context: here\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\ncontexts: [{{name: here, context: {{cluster: c, user: '', namespace: default}}}}]\n"
        );
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).expect("written");
        World { storage, server, serving: Some(serving), port, folder }
    }

    async fn stop(&mut self) {
        self.server.shutdown();
        self.serving.take().expect("it serves").shutdown().await;
    }

    async fn restart(&mut self) {
        self.server = ApiServer::builder().storage(self.storage.clone()).build().await.expect("a server");
        let begun = Instant::now();
        let listener = loop {
            match TcpListener::bind(("127.0.0.1", self.port)) {
                Ok(listener) => break listener,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "the port is not free again: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        self.serving = Some(self.server.serve_plain(listener).expect("serving"));
    }

    async fn send(&self, method: &str, path: &str, body: Value) {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
        let body = Full::new(bytes::Bytes::from(body.to_string()));
        let response = self.server.service().handle(request.body(body).expect("a request")).await;
        let status = response.status();
        let answer = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        assert!(status.is_success(), "{method} {path}: {status} {answer:?}");
    }

    async fn create(&self, name: &str, value: &str) {
        let map = json!({"metadata": {"name": name, "labels": {"app": name}}, "data": {"value": value}});
        self.send("POST", "/api/v1/namespaces/default/configmaps", map).await;
    }

    async fn set(&self, name: &str, value: &str) {
        let path = format!("/api/v1/namespaces/default/configmaps/{name}");
        self.send("PATCH", &path, json!({"data": {"value": value}})).await;
    }

    async fn delete(&self, name: &str) {
        self.send("DELETE", &format!("/api/v1/namespaces/default/configmaps/{name}"), json!({})).await;
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    fn watch(&self, arguments: &[&str]) -> Watch {
        let mut command = Command::new(env!("CARGO_BIN_EXE_listwatch"));
        command.args(["watch", "--kubeconfig"]).arg(self.kubeconfig()).args(arguments);
        Watch::new(command)
    }
}

/// A running `listwatch watch`, killed when the value is dropped.
struct Watch {
    process: Child,
    out: Receiver<String>,
    err: Receiver<String>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lines(reader: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Watch {
    fn new(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("NO_COLOR");
        let mut process = command.spawn().expect("it starts");
        let out = lines(process.stdout.take().expect("piped"));
        let err = lines(process.stderr.take().expect("piped"));
        Watch { process, out, err }
    }

    /// Returns the next lines of standard output, with versions replaced by `N`.
    fn next(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| hide_versions(&self.line(&self.out, "a line of output"))).collect()
    }

    /// Returns the next line of standard error that contains a text.
    fn told(&self, what: &str) -> String {
        loop {
            let line = self.line(&self.err, what);
            if line.contains(what) {
                return line;
            }
        }
    }

    fn line(&self, from: &Receiver<String>, what: &str) -> String {
        match from.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("{what} did not come"),
            Err(RecvTimeoutError::Disconnected) => {
                let said: Vec<String> = self.err.try_iter().collect();
                panic!("it ended before {what} came: {said:?}")
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("its status") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Replaces versions, e.g. `rv 17 → 18` by `rv N → N`, because versions vary between runs.
fn hide_versions(line: &str) -> String {
    let Some((before, after)) = line.split_once("rv") else { return line.to_owned() };
    let mut out = format!("{before}rv");
    let mut digits = false;
    for c in after.chars() {
        match (c.is_ascii_digit(), digits) {
            (true, false) => out.push('N'),
            (true, true) => {}
            (false, _) => out.push(c),
        }
        digits = c.is_ascii_digit();
    }
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_prints_changed_fields_and_resumes_after_a_server_restart() {
    let mut world = World::new().await;
    world.create("a", "1").await;
    world.create("b", "1").await;
    let mut watch = world.watch(&["cm", "-l", "app in (a,b,c)"]);
    assert_eq!(watch.next(2), ["+ default/a  rv N", "+ default/b  rv N"]);
    assert!(watch.told("loaded in").starts_with("# 2 objects, loaded in "));
    world.set("a", "2").await;
    assert_eq!(watch.next(2), ["~ default/a  rv N → N", "    data.value: \"1\" → \"2\""]);

    world.stop().await;
    watch.told("trying again in");
    world.restart().await;
    world.set("b", "3").await;
    world.create("c", "1").await;
    assert_eq!(
        watch.next(3),
        ["~ default/b  rv N → N", "    data.value: \"1\" → \"3\"", "+ default/c  rv N"],
        "after a restart what happened since is printed, and nothing else"
    );
    assert!(watch.told("watching again").contains("the view was up to"));
    world.delete("a").await;
    assert_eq!(watch.next(1), ["- default/a  rv N"]);

    watch.signal(rustix::process::Signal::INT);
    assert_eq!(watch.end().code(), Some(0), "an interrupt is how a watch ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_and_name_formats_print_one_line_per_change() {
    let world = World::new().await;
    world.create("a", "1").await;
    let watch = world.watch(&["configmaps", "-o", "name", "-q"]);
    assert_eq!(watch.next(1), ["ADDED     default/a  rv=N"]);
    let json_watch = world.watch(&["configmap", "-o", "json", "--initial", "hide"]);
    json_watch.told("loaded in");
    world.set("a", "2").await;
    assert_eq!(watch.next(1), ["MODIFIED  default/a  rv=N"]);
    let event: Value = serde_json::from_str(&json_watch.line(&json_watch.out, "an event")).expect("JSON");
    assert_eq!((&event["type"], &event["object"]["data"]["value"]), (&json!("MODIFIED"), &json!("2")));
    assert_eq!(event["object"]["kind"], "ConfigMap", "an object says what it is");
    assert_eq!(watch.err.try_iter().collect::<Vec<_>>(), Vec::<String>::new(), "quiet is quiet");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_flag_prints_the_initial_objects_and_exits() {
    let world = World::new().await;
    world.create("a", "1").await;
    world.create("b", "1").await;
    let mut once = world.watch(&["cm", "--once", "-o", "name", "--field-selector", "metadata.name=b"]);
    assert_eq!(once.next(1), ["ADDED     default/b  rv=N"]);
    assert_eq!(once.end().code(), Some(0));
    assert_eq!(once.out.try_iter().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_output_is_colored_as_the_color_flag_requests() {
    let world = World::new().await;
    world.create("a", "1").await;
    let plain = world.watch(&["cm", "--once"]).next(1);
    assert_eq!(plain, ["+ default/a  rv N"], "a pipe is no terminal");
    let colored = world.watch(&["cm", "--once", "--color", "always"]).next(1);
    let begin = "\u{1b}[32m+ \u{1b}[1mdefault/a\u{1b}[0m  \u{1b}[2mrv N";
    assert!(colored[0].starts_with(begin), "{colored:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_exit_code_depends_on_the_reason_for_the_end() {
    let mut world = World::new().await;
    let mut unknown = world.watch(&["crontabs"]);
    assert_eq!(unknown.told("crontabs"), "listwatch: the server doesn't have a resource type \"crontabs\"");
    assert_eq!(unknown.end().code(), Some(3));
    assert_eq!(world.watch(&["cm", "--field-selector", "no selector"]).end().code(), Some(3), "a bad selector");
    assert_eq!(world.watch(&["cm", "-A", "-n", "x"]).end().code(), Some(2));
    assert_eq!(world.watch(&["cm", "--context", "nowhere"]).end().code(), Some(1));
    world.create("a", "1").await;

    let mut left = world.watch(&["cm"]);
    left.next(1);
    let (_, nobody) = channel();
    // The thread that reads the output ends at the next line, because its receiver is dropped.
    left.out = nobody;
    world.set("a", "2").await;
    assert_eq!(left.end().code(), Some(0), "a reader that leaves is no error");

    let mut terminated = world.watch(&["cm"]);
    terminated.next(1);
    terminated.signal(rustix::process::Signal::TERM);
    assert_eq!(terminated.end().code(), Some(0));

    world.stop().await;
    let mut away = world.watch(&["cm", "--timeout", "1"]);
    assert_eq!(away.end().code(), Some(1), "nobody answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_standard_output_ends_the_watch_of_a_quiet_resource() {
    let world = World::new().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_listwatch"));
    command.args(["watch", "cm", "--kubeconfig"]).arg(world.kubeconfig());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().expect("it starts");
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(process.stdout.take());
    let begun = Instant::now();
    while process.try_wait().expect("its status").is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = process.kill();
            panic!("a watch stays although nobody reads and nothing happens");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(process.wait().expect("its status").code(), Some(0));
}
