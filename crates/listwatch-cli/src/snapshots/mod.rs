//! Snapshots of the embedded store while the server runs, on a schedule and with retention.
//!
//! ```text
//!  wait ─▶ export to a temporary file ─▶ sync, rename ─▶ read back ─▶ remove superseded snapshots ─┐
//!   ▲           └ failed: keep all snapshots, wait RETRY_WAIT                                      │
//!   └──────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A snapshot is a file of `listwatch storage export`. `listwatch storage import` restores it.

mod schedule;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use listwatch_storage::transfer::{CheckedExport, ExportFile, Source};
use listwatch_wire::query::parse_go_duration;
use tokio::sync::watch;

use self::schedule::{SnapshotName, superseded, wait};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The delay after a failed snapshot, or the snapshot interval if that is shorter.
const RETRY_WAIT: Duration = Duration::from_secs(300);
/// The shortest snapshot interval that the flag accepts.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The name of a snapshot that is not verified yet.
const UNCHECKED: &str = ".unchecked.lwx";

/// The flags of snapshots.
#[derive(Clone, Debug, Args)]
pub(crate) struct SnapshotFlags {
    /// Write a snapshot of the embedded store at this interval, e.g. 6h or 30m [default: no snapshots]
    #[arg(long, value_name = "DURATION", value_parser = parse_interval)]
    snapshot_interval: Option<Duration>,

    /// Number of snapshots to keep; older ones are removed after each new snapshot
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    snapshot_retention: u32,

    /// The directory of snapshots [default: snapshots in the data directory]
    #[arg(long, value_name = "DIR")]
    snapshot_dir: Option<PathBuf>,
}

/// Parses an interval: a Go duration of at least one second.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let nanos = parse_go_duration(text).map_err(|error| error.to_string())?;
    let interval = Duration::from_nanos(u64::try_from(nanos).unwrap_or_default());
    if interval < INTERVAL_MIN { Err("an interval of at least 1s is needed, e.g. 6h".to_owned()) } else { Ok(interval) }
}

/// The task that takes snapshots. Dropping the handle ends the task; an unfinished snapshot leaves no file.
pub(crate) struct Snapshots {
    _stop: watch::Sender<()>,
}

impl SnapshotFlags {
    /// Starts the task, if the flags enable snapshots. `source` is the embedded store, if the server has one.
    ///
    /// # Errors
    /// The server has no embedded store, or the directory cannot be created.
    pub(crate) fn start(
        &self,
        source: Option<&Arc<dyn Source>>,
        data_dir: &Path,
    ) -> Result<Option<Snapshots>, Box<dyn std::error::Error>> {
        let Some(interval) = self.snapshot_interval else { return Ok(None) };
        let source =
            source.ok_or("--snapshot-interval needs the embedded store; etcd and memory have no snapshots here")?;
        let directory = self.snapshot_dir.clone().unwrap_or_else(|| data_dir.join("snapshots"));
        crate::store::create_data_dir(&directory)?;
        let (stop, stopped) = watch::channel(());
        let retention = usize::try_from(self.snapshot_retention).unwrap_or(usize::MAX);
        let task = Task { source: Arc::clone(source), directory, interval, retention };
        let runtime = tokio::runtime::Handle::current();
        // An export writes files and computes checksums, so it would block a thread of the runtime.
        tokio::task::spawn_blocking(move || runtime.block_on(task.run(stopped)));
        Ok(Some(Snapshots { _stop: stop }))
    }
}

/// The state of the snapshot task.
struct Task {
    source: Arc<dyn Source>,
    directory: PathBuf,
    interval: Duration,
    retention: usize,
}

impl Task {
    /// Takes snapshots until the sender of `stopped` is dropped.
    async fn run(self, mut stopped: watch::Receiver<()>) {
        remove_unfinished(&self.directory);
        let snapshots = async {
            let mut pause = match list(&self.directory) {
                Ok(snapshots) => wait(snapshots.into_iter().max(), self.interval, now()),
                Err(_) => Duration::ZERO,
            };
            loop {
                tokio::time::sleep(pause).await;
                pause = match self.take().await {
                    Ok(path) => {
                        tracing::info!(path = %path.display(), "took a snapshot");
                        self.interval
                    }
                    Err(error) => {
                        tracing::error!(%error, directory = %self.directory.display(), "cannot take a snapshot");
                        self.interval.min(RETRY_WAIT)
                    }
                };
            }
        };
        tokio::select! {
            () = snapshots => {}
            _ = stopped.changed() => {}
        }
    }

    /// Takes and verifies one snapshot, and removes superseded snapshots. A failed removal is logged and retried after
    /// the next snapshot.
    async fn take(&self) -> Result<PathBuf, Failure> {
        let taken_at = now();
        let description = self.source.stats().await?.description;
        // The name contains the revision, which is known only at the end of the export.
        let unnamed = self.directory.join(UNCHECKED);
        let written = ExportFile::new(&unnamed, true).write(&*self.source, &description, &mut |_| ()).await?;
        let snapshot = SnapshotName { taken_at, revision: written.header.revision.get() };
        let path = self.directory.join(snapshot.to_string());
        let checked = File::open(&unnamed)
            .map_err(Failure::from)
            .and_then(|file| CheckedExport::check(file, &mut |_| ()).map_err(Failure::from))
            .and_then(|checked| match (checked.header() == &written.header, checked.end() == written.end) {
                (true, true) => Ok(()),
                _ => Err("the file does not hold what was written".into()),
            })
            .and_then(|()| {
                std::fs::rename(&unnamed, &path).and_then(|()| sync(&self.directory)).map_err(Failure::from)
            });
        if let Err(error) = checked {
            let _ = std::fs::remove_file(&unnamed);
            return Err(error);
        }
        match list(&self.directory) {
            Ok(snapshots) => superseded(snapshots, self.retention).into_iter().for_each(|old| self.remove(&old)),
            Err(error) => tracing::warn!(%error, directory = %self.directory.display(), "cannot list snapshots"),
        }
        Ok(path)
    }

    fn remove(&self, old: &SnapshotName) {
        let path = self.directory.join(old.to_string());
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(%error, path = %path.display(), "cannot remove a superseded snapshot");
        }
    }
}

/// Lists the snapshots in a directory. Other files are ignored.
fn list(directory: &Path) -> std::io::Result<Vec<SnapshotName>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<SnapshotName>().ok()));
    }
    Ok(found)
}

/// Removes the unfinished files of a killed process. Files that cannot be removed stay.
fn remove_unfinished(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.trim_start_matches('.').starts_with(&UNCHECKED[1..])) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Makes renames durable by syncing the directory. Only Unix supports this.
fn sync(directory: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = directory;
    Ok(())
}

/// The current time, in seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use listwatch_meta::Key;
    use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, Storage as _};

    use super::*;

    async fn store(directory: &Path) -> Arc<dyn Source> {
        let store = EmbeddedStorage::open(directory.join("store"), EmbeddedOptions::default()).expect("a store");
        for name in ["a", "b"] {
            let key = Key::new("configmaps", Some("ns"), name).expect("a key");
            let value = format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns"}}}}"#);
            store.create(&key, value.into(), None).await.expect("a create");
        }
        store
    }

    fn task(source: &Arc<dyn Source>, directory: &Path) -> Task {
        let interval = Duration::from_secs(3_600);
        Task { source: Arc::clone(source), directory: directory.to_owned(), interval, retention: 2 }
    }

    fn files(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn snapshot_holds_all_objects_and_supersedes_the_oldest() {
        let (data, snapshots) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let directory = snapshots.path();
        let (oldest, older) = ("snapshot-20200101T000000Z-1.lwx", "snapshot-20200102T000000Z-2.lwx");
        let unfinished = [UNCHECKED, "..unchecked.lwx.Xy1.partial"];
        for name in [oldest, older, "notes.txt"].iter().chain(&unfinished) {
            std::fs::write(directory.join(name), "old").expect("written");
        }
        remove_unfinished(directory);
        let source = store(data.path()).await;
        let path = task(&source, directory).take().await.expect("a snapshot");
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        assert_eq!(files(directory), ["notes.txt".to_owned(), older.to_owned(), name]);
        let checked = CheckedExport::check(File::open(&path).expect("a file"), &mut |_| ()).expect("a complete export");
        assert_eq!(checked.end().records, 2);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(&path).expect("metadata").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "snapshots hold Secrets");
        }
    }

    #[tokio::test]
    async fn unremovable_superseded_snapshot_does_not_fail_later_snapshots() {
        let (data, snapshots) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let directory = snapshots.path();
        let stuck = "snapshot-20200102T000000Z-2.lwx";
        std::fs::create_dir(directory.join(stuck)).expect("a directory, which cannot be removed as a file");
        for name in ["snapshot-20200101T000000Z-1.lwx", "snapshot-20200103T000000Z-3.lwx"] {
            std::fs::write(directory.join(name), "old").expect("written");
        }
        let source = store(data.path()).await;
        task(&source, directory).take().await.expect("a snapshot");
        let left = files(directory);
        assert_eq!((left.len(), left[0].as_str(), left[1].as_str()), (3, stuck, "snapshot-20200103T000000Z-3.lwx"));
    }

    #[tokio::test]
    async fn failed_snapshot_keeps_the_others() {
        let data = tempfile::tempdir().expect("a directory");
        let source = store(data.path()).await;
        let missing = data.path().join("missing");
        assert!(task(&source, &missing).take().await.is_err());
        std::fs::create_dir(&missing).expect("a directory");
        assert!(files(&missing).is_empty());
    }

    #[test]
    fn snapshot_interval_below_one_second_is_rejected() {
        assert_eq!(parse_interval("6h"), Ok(Duration::from_secs(21_600)));
        for text in ["0", "999ms", "-1h", "6", "often"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }
}
