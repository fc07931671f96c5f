//! Runs the binary `listwatch storage` as operators do, on files, embedded stores and a real etcd, and checks the
//! output and exit codes.
//!
//! The etcd tests need a binary: `LISTWATCH_ETCD`, or else `etcd` on the PATH. Without a binary they fail with
//! installation instructions. `LISTWATCH_SKIP_ETCD=1` skips them.
#![cfg(all(feature = "embedded", feature = "etcd3", unix))]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use listwatch_meta::{Key, KeyRange};
use listwatch_storage::etcd3::{Etcd3, Etcd3Options};
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, ListQuery, Storage};
use tempfile::TempDir;

/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

const OBJECTS: usize = 600;

/// Creates a directory with a data directory `old` in it. The store has `objects` ConfigMaps and Events, some of them
/// changed, the Events with a TTL, and a history of deleted pods.
fn old_store(objects: usize) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = EmbeddedStorage::open(dir.path().join("old/store"), EmbeddedOptions::default()).expect("a store");
        let mut writes = tokio::task::JoinSet::new();
        for n in 0..objects {
            let store = store.clone();
            writes.spawn(async move {
                let (resource, ttl) =
                    if n % 10 == 0 { ("events", Some(Duration::from_secs(3_600))) } else { ("configmaps", None) };
                let name = format!("n{n:05}");
                let key = Key::new(resource, Some("ns"), &name).expect("a legal name");
                let value = |n| format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns"}},"n":{n}}}"#).into();
                let created = store.create(&key, value(n), ttl).await.expect("a create");
                if n % 3 == 0 {
                    store.update(&key, created, value(n + 1), ttl).await.expect("an update");
                }
                let gone = Key::new("pods", Some("ns"), &name).expect("a legal name");
                let created = store.create(&gone, value(0), None).await.expect("a create");
                store.delete(&gone, created).await.expect("a delete");
            });
        }
        while let Some(written) = writes.join_next().await {
            written.expect("a writer");
        }
        store.close().await;
    });
    dir
}

fn storage(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_listwatch"));
    command.current_dir(dir).arg("storage").args(arguments).stdin(Stdio::null());
    command
}

/// Runs the command, and asserts the exit code and a part of the output.
fn run(dir: &Path, arguments: &[&str], code: i32, says: &str) -> Output {
    let output = storage(dir, arguments).output().expect("the binary runs");
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(output.status.code(), Some(code), "listwatch storage {arguments:?} says: {said}");
    assert!(said.contains(says), "listwatch storage {arguments:?} should say {says:?} and says: {said}");
    output
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

/// An etcd process below a shell. The shell kills etcd when the test's end of the pipe closes, so that a killed test
/// leaves no process behind.
struct Etcd {
    shell: Child,
    url: String,
    _dir: TempDir,
}

impl Etcd {
    /// Starts etcd. Returns `None` if `LISTWATCH_SKIP_ETCD=1` is set.
    fn start() -> Option<Etcd> {
        if std::env::var_os("LISTWATCH_SKIP_ETCD").is_some_and(|value| value == "1") {
            eprintln!("skipped: LISTWATCH_SKIP_ETCD=1");
            return None;
        }
        let named = std::env::var_os("LISTWATCH_ETCD").filter(|path| !path.is_empty()).map(PathBuf::from);
        let on_path =
            || std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join("etcd")).find(|p| p.is_file());
        let binary = named.or_else(on_path).expect(
            "no etcd found: install one (Debian: apt-get install etcd-server), set LISTWATCH_ETCD to a binary, or \
             LISTWATCH_SKIP_ETCD=1 to go without these tests",
        );
        let dir = tempfile::Builder::new().prefix("listwatch-etcd-").tempdir().expect("a temporary directory");
        let [client, peer] = free_ports();
        let url = format!("http://127.0.0.1:{client}");
        let script = r#"exec 3<&0
"$@" </dev/null 3<&- >/dev/null 2>&1 &
etcd=$!
( read -r _ <&3; kill -9 $etcd ) >/dev/null 2>&1 &
echo $etcd
wait $etcd"#;
        let mut shell = Command::new("sh")
            .args(["-c", script, "etcd-keeper"])
            .arg(binary)
            .arg(format!("--data-dir={}", dir.path().join("data").display()))
            .args([format!("--listen-client-urls={url}"), format!("--advertise-client-urls={url}")])
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"))
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("x86_64", "amd64").replace("aarch64", "arm64"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut pid = String::new();
        BufReader::new(shell.stdout.take().expect("a pipe")).read_line(&mut pid).expect("etcd's process id");
        let etcd = Etcd { shell, url, _dir: dir };
        etcd.wait_until_it_answers();
        Some(etcd)
    }

    /// Waits until etcd answers a read. etcd accepts connections earlier, and the commands do not wait as long.
    fn wait_until_it_answers(&self) {
        let deadline = Instant::now() + PATIENCE;
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            while let Err(error) = Etcd3::connect(Etcd3Options::new([self.url.clone()])).await {
                assert!(Instant::now() < deadline, "etcd does not start: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn free_ports() -> [u16; 2] {
    [(), ()].map(|()| listwatch_test_ports::free_port().expect("a free port"))
}

#[test]
fn imported_backup_has_the_revisions_of_the_source() {
    let dir = old_store(OBJECTS);
    let dir = dir.path();
    run(dir, &["export", "--data-dir", "old", "backup.lwx"], 0, "exported 600 objects");
    run(dir, &["export", "--data-dir", "old", "backup.lwx"], 1, "replace it with --force");
    run(dir, &["export", "--data-dir", "old", "--force", "backup.lwx"], 0, "exported 600 objects");
    run(dir, &["verify", "backup.lwx"], 0, "is as it should be");
    run(dir, &["import", "--data-dir", "new", "backup.lwx"], 0, "every object has kept its own");
    let verified = run(dir, &["verify", "--data-dir", "new", "--against", "old", "-o", "json"], 0, "");
    assert_eq!(json(&verified)["comparison"]["sameRevision"], OBJECTS, "{}", json(&verified));
    let stats = |store| json(&run(dir, &["stats", "--data-dir", store, "-o", "json"], 0, ""));
    let (old, new) = (stats("old"), stats("new"));
    for figure in ["revision", "keys", "objects", "bytes", "withTTL", "resources"] {
        assert_eq!(old[figure], new[figure], "{figure}: {old} and {new}");
    }
    assert_eq!(old["withTTL"], OBJECTS / 10);
    run(dir, &["stats", "--data-dir", "old"], 0, "configmaps");
    run(dir, &["compact", "--data-dir", "old"], 0, "it is held from");
    run(dir, &["compact", "--data-dir", "old", "--revision", "999999"], 1, "has not happened yet");
    run(dir, &["verify", "old", "--against", "backup.lwx"], 0, "600 objects are the same");

    // The export and the import also work through pipes.
    let mut export =
        storage(dir, &["export", "--data-dir", "old", "-"]).stdout(Stdio::piped()).spawn().expect("it runs");
    let pipe = export.stdout.take().expect("a pipe");
    let import = storage(dir, &["import", "--data-dir", "piped", "-"]).stdin(pipe).output().expect("it runs");
    assert!(import.status.success() && export.wait().expect("a child").success(), "{import:?}");
    run(dir, &["verify", "piped", "--against", "old"], 0, "600 objects are the same");
}

#[test]
fn invalid_command_is_refused_and_changes_nothing() {
    let dir = old_store(20);
    let dir = dir.path();
    run(dir, &["export", "--data-dir", "old", "backup.lwx"], 0, "exported 20 objects");
    let whole = std::fs::read(dir.join("backup.lwx")).expect("the backup");
    std::fs::write(dir.join("torn.lwx"), &whole[..whole.len() - 7]).expect("a file");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    std::fs::write(dir.join("flipped.lwx"), flipped).expect("a file");
    std::fs::write(dir.join("foreign.lwx"), "apiVersion: v1\n").expect("a file");
    for (file, says) in
        [("torn", "it is torn"), ("flipped", "is damaged at byte"), ("foreign", "no export of listwatch")]
    {
        let file = format!("{file}.lwx");
        run(dir, &["import", "--data-dir", "never", &file], 1, says);
        run(dir, &["verify", &file], 3, says);
    }
    run(dir, &["import", "--data-dir", "old", "backup.lwx"], 1, "the target is not empty");
    run(dir, &["import", "--data-dir", "old", "--if-exists", "skip", "backup.lwx"], 0, "20 were there already");
    for nowhere in [["stats", "--data-dir"], ["verify", "--data-dir"], ["compact", "--data-dir"]] {
        run(dir, &[nowhere[0], nowhere[1], "never"], 1, "there is no store in never/store");
    }
    run(dir, &["copy", "--from", "never", "--to", "old"], 1, "there is no store in never/store");
    run(dir, &["export", "--data-dir", "old", "no/such/dir/file"], 1, "cannot write no/such/dir/file");
    run(dir, &["frobnicate"], 2, "unrecognized subcommand");
    assert!(!dir.join("never").exists(), "a store was made by who only wanted to look");

    // A store that a running server has open.
    let open = EmbeddedStorage::open(dir.join("old/store"), EmbeddedOptions::default()).expect("the store");
    let in_use = format!("in use by process {}; stop that one first", std::process::id());
    for command in ["stats", "verify", "compact"] {
        run(dir, &[command, "--data-dir", "old"], 1, &in_use);
    }
    run(dir, &["export", "--data-dir", "old", "second.lwx"], 1, "Only one process can open an embedded store");
    assert!(!dir.join("second.lwx").exists());
    drop(open);

    // A store that differs from the source.
    run(dir, &["import", "--data-dir", "new", "backup.lwx"], 0, "imported 20 objects");
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let store = EmbeddedStorage::open(dir.join("new/store"), EmbeddedOptions::default()).expect("the store");
        let query = ListQuery { range: KeyRange::below("/"), at: None, limit: 1 };
        let first = store.list(query).await.expect("a list").items.remove(0);
        store.delete(&first.key, first.modified).await.expect("a delete");
        store.close().await;
    });
    run(dir, &["verify", "new", "--against", "backup.lwx"], 3, "is only in the file backup.lwx");
}

#[test]
fn copy_moves_a_store_to_etcd_and_back() {
    let Some(etcd) = Etcd::start() else { return };
    let dir = old_store(OBJECTS);
    let dir = dir.path();
    run(dir, &["copy", "--from", "old", "--to", &etcd.url], 0, "every object's is above the source's");
    let verified = run(dir, &["verify", "old", "--against", &etcd.url, "-o", "json"], 0, "");
    assert_eq!(json(&verified)["comparison"]["same"], OBJECTS, "{}", json(&verified));
    let there = ["--etcd-servers", &etcd.url];
    run(dir, &["verify", there[0], there[1]], 0, "600 objects");
    let old = json(&run(dir, &["stats", "--data-dir", "old", "-o", "json"], 0, ""));
    let new = json(&run(dir, &["stats", there[0], there[1], "-o", "json"], 0, ""));
    for figure in ["keys", "objects", "bytes", "withTTL", "resources"] {
        assert_eq!(old[figure], new[figure], "{figure}: {old} and {new}");
    }
    assert!(new["oldestRevision"].as_u64() >= old["revision"].as_u64(), "an old version is not expired: {new}");

    // A second copy is rejected, or changes nothing with `--if-exists overwrite`.
    run(dir, &["copy", "--from", "old", "--to", &etcd.url], 1, "the target is not empty");
    run(dir, &["copy", "--from", "old", "--to", &etcd.url, "--if-exists", "overwrite"], 0, "600 were there already");

    // The objects are copied from etcd to a file, to another prefix, and back to an embedded store.
    run(dir, &["export", there[0], there[1], "etcd.lwx"], 0, "exported 600 objects");
    run(dir, &["import", there[0], there[1], "--etcd-prefix", "/second", "etcd.lwx"], 0, "imported 600 objects");
    run(
        dir,
        &["verify", "etcd.lwx", "--against", &etcd.url, "--etcd-prefix", "/second"],
        0,
        "600 objects are the same",
    );
    run(dir, &["copy", "--from", &etcd.url, "--to", "back", "--etcd-prefix", "/second"], 0, "imported 600 objects");
    run(dir, &["verify", "back", "--against", "old"], 0, "600 objects are the same");
    run(
        dir,
        &["copy", "--from", &etcd.url, "--to", &etcd.url, "--to-etcd-prefix", "/third"],
        0,
        "imported 600 objects",
    );
    run(dir, &["compact", there[0], there[1]], 0, "etcdctl defrag");
}

/// The ConfigMaps among the 3,000 objects of a store of [`old_store`].
const CONFIG_MAPS: u64 = 2_700;

/// Runs an import and kills it after the first objects. Returns false if the import was faster.
fn kill_import(dir: &Path, etcd: &Etcd, prefix: &str, import: &[&str]) -> bool {
    let mut child = storage(dir, import).stdout(Stdio::null()).spawn().expect("it runs");
    let objects = |at_least: u64| {
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let mut options = Etcd3Options::new([etcd.url.clone()]);
            options.prefix = prefix.to_owned();
            options.dial_timeout = PATIENCE;
            let store = Etcd3::connect(options).await.expect("etcd answers");
            let deadline = Instant::now() + PATIENCE;
            let configmaps = ListQuery { range: KeyRange::resource("configmaps"), at: None, limit: 1 };
            loop {
                let page = store.list(configmaps.clone()).await.expect("a list");
                let there = page.items.len() as u64 + page.remaining.unwrap_or(0);
                if there >= at_least {
                    return there;
                }
                assert!(Instant::now() < deadline, "nothing is imported");
            }
        })
    };
    objects(100);
    child.kill().expect("a child");
    child.wait().expect("a child");
    objects(0) < CONFIG_MAPS
}

#[test]
fn killed_import_continues_when_run_again() {
    let Some(etcd) = Etcd::start() else { return };
    let dir = old_store(3_000);
    let dir = dir.path();
    run(dir, &["export", "--data-dir", "old", "backup.lwx"], 0, "exported 3,000 objects");
    // If this test is delayed, an import ends before it is killed. Each attempt has an empty target.
    for attempt in 1..=5 {
        let prefix = format!("/attempt-{attempt}");
        let import = ["import", "--etcd-servers", &etcd.url, "--etcd-prefix", &prefix, "backup.lwx"];
        if kill_import(dir, &etcd, &prefix, &import) {
            run(dir, &import, 0, "an interrupted import went on");
            let verify = ["verify", "backup.lwx", "--against", &etcd.url, "--etcd-prefix", &prefix];
            run(dir, &verify, 0, "3,000 objects are the same");
            return;
        }
    }
    panic!("each import was killed too late for this test to mean anything");
}
