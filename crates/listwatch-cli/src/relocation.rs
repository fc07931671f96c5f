//! `listwatch serve --move-to-etcd`: moves the objects of the embedded store to etcd while the server runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use listwatch_storage::Storage;
use listwatch_storage::transfer::{RelocatingStorage, Relocation};

use crate::store::{self, EtcdConnection, OpenStore};

type Failure = Box<dyn std::error::Error>;

/// The file that marks a data directory whose objects have moved. The file contains the new location of the objects.
const MARKER: &str = "moved-to-etcd";

/// Refuses a data directory whose objects have moved, because its objects are outdated.
///
/// # Errors
/// The directory has the marker, or the marker cannot be read.
#[cfg(feature = "embedded")]
pub(crate) fn check_not_moved(data_dir: &Path) -> Result<(), Failure> {
    let marker = data_dir.join(MARKER);
    match std::fs::read_to_string(&marker) {
        Ok(place) => Err(format!(
            "the objects of {} have moved to {}: use --etcd-servers. The objects in this directory are out of date, as {} records",
            data_dir.display(),
            place.trim(),
            marker.display()
        )
        .into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("cannot read {}: {error}", marker.display()).into()),
    }
}

/// Opens the embedded store of a data directory, and begins to move its objects to etcd.
///
/// # Errors
/// One of the stores cannot be opened.
pub(crate) async fn open(data_dir: &Path, etcd: &EtcdConnection, compaction: Duration) -> Result<OpenStore, Failure> {
    let OpenStore { embedded, description, key_prefix, .. } = store::open_embedded(data_dir)?;
    let source = embedded.ok_or("only the embedded store moves")?;
    let target = store::open_etcd(etcd, Some(compaction)).await?;
    if target.key_prefix != key_prefix {
        tracing::warn!(prefix = target.key_prefix, "encrypted values stay readable only below {key_prefix}");
    }
    let storage = RelocatingStorage::new(source.clone());
    let place = target.description.clone();
    let marker = data_dir.join(MARKER);
    let moving = Arc::clone(&storage);
    let runtime = tokio::runtime::Handle::current();
    // The copy reads and writes files, which would hold up the requests on a thread of the runtime.
    std::thread::Builder::new().name("move-to-etcd".to_owned()).spawn(move || {
        runtime.block_on(relocate(&moving, target.storage, marker, &place));
    })?;
    Ok(OpenStore { storage, embedded: Some(source), description: format!("{description}, moving to etcd"), key_prefix })
}

async fn relocate(storage: &RelocatingStorage, target: Arc<dyn Storage>, marker: PathBuf, place: &str) {
    tracing::info!("moving the objects to {place}");
    let record = || write_durably(&marker, place);
    match storage.relocate(target, record, &mut |_| {}).await {
        Ok(Relocation { records, changes, paused, .. }) => tracing::info!(
            records,
            changes,
            paused_ms = paused.as_millis(),
            "the objects are now in {place}; from the next start on, use --etcd-servers"
        ),
        Err(error) => tracing::error!(%error, "the objects have not moved; the embedded store is still in use"),
    }
}

/// Writes a file that survives a power loss.
fn write_durably(path: &Path, text: &str) -> io::Result<()> {
    use io::Write as _;
    let mut file = std::fs::File::create(path)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    match path.parent() {
        Some(directory) => std::fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::*;

    #[test]
    fn data_directory_whose_objects_have_moved_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(check_not_moved(directory.path()).is_ok());
        write_durably(&directory.path().join(MARKER), "etcd 3.6 at http://a:2379").unwrap();
        let error = check_not_moved(directory.path()).unwrap_err().to_string();
        assert!(error.contains("have moved to etcd 3.6 at http://a:2379: use --etcd-servers"), "{error}");
    }
}
