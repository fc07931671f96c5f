//! The directory of an embedded store: its ownership, its lock and its creation.
//!
//! ```text
//!   <dir>/LOCK          held while the store is open; holds the owner's process id
//!   <dir>/FORMAT        the format of the store, as text
//!   <dir>/store.redb    the engine's file
//!
//!   for a while:
//!   <dir>/store.redb.new        a store that is being made
//!   <dir>/store.redb.restoring  a store that is being restored
//!   <dir>/store.redb.copy       a denser copy of store.redb, which will take its place
//! ```
//!
//! `store.redb` is created under another name and renamed when complete, so a crash at any moment
//! leaves either no store or a complete one. `FORMAT` without `store.redb` is an incomplete
//! directory.
//!
//! The store holds Secrets unencrypted. On Unix only the owner can access the directory (0700) and
//! its files (0600), with any umask. Wider modes of an older store are tightened.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use redb::StorageBackend;
use redb::backends::FileBackend;

use super::OpenError;
use super::engine::{Disk, Engine, EngineError, FORMAT};

const LOCK_FILE: &str = "LOCK";
const FORMAT_FILE: &str = "FORMAT";
const STORE_FILE: &str = "store.redb";
const UNFINISHED_FILE: &str = "store.redb.new";
const UNFINISHED_FORMAT_FILE: &str = "FORMAT.new";
const RESTORING_FILE: &str = "store.redb.restoring";
const COPY_FILE: &str = "store.redb.copy";

/// Whether the directory holds a store, which may be incomplete.
pub(super) fn holds_store(path: &Path) -> bool {
    [STORE_FILE, FORMAT_FILE].iter().any(|name| path.join(name).exists())
}

/// A locked directory with a store. Dropping it releases the lock.
pub(super) struct StoreDir {
    path: PathBuf,
    _lock: File,
}

impl StoreDir {
    /// Locks the directory and creates a store in it if there is none.
    pub(super) fn prepare(path: &Path, cache_bytes: usize) -> Result<Self, OpenError> {
        let (dir, has_store) = Self::take(path, &[LOCK_FILE, UNFINISHED_FILE])?;
        dir.tighten();
        if has_store {
            // Removes a copy that did not replace the store before a crash.
            dir.disk().discard_side();
        } else {
            if path.join(FORMAT_FILE).try_exists().map_err(|error| dir.failed(error.into()))? {
                let detail = format!("{STORE_FILE} is missing");
                return Err(OpenError::Corrupt { path: path.to_owned(), detail });
            }
            dir.create(cache_bytes)?;
        }
        Ok(dir)
    }

    /// Locks a directory without a store, for a restore.
    pub(super) fn prepare_new(path: &Path) -> Result<Self, OpenError> {
        let (dir, has_store) = Self::take(path, &[LOCK_FILE, UNFINISHED_FILE, RESTORING_FILE])?;
        if has_store || path.join(FORMAT_FILE).try_exists().map_err(|error| dir.failed(error.into()))? {
            return Err(OpenError::Exists { path: path.to_owned() });
        }
        dir.tighten();
        Ok(dir)
    }

    /// Creates and locks the directory, which must hold a store or only `known` files. Returns
    /// whether it holds a store.
    fn take(path: &Path, known: &[&str]) -> Result<(Self, bool), OpenError> {
        Self::take_after(path, known, || ())
    }

    /// Like [`StoreDir::take`], but calls `meanwhile` between the first check and the lock, to
    /// simulate another process.
    fn take_after(path: &Path, known: &[&str], meanwhile: impl FnOnce()) -> Result<(Self, bool), OpenError> {
        create_private_dir(path).map_err(|source| OpenError::Directory { path: path.to_owned(), source })?;
        // Checked before the lock file is created, so that a foreign directory stays unchanged.
        inspect(path, known)?;
        meanwhile();
        let lock = lock(path)?;
        // Checked again under the lock: another process may have created a store since.
        let has_store = inspect(path, known)?;
        Ok((StoreDir { path: path.to_owned(), _lock: lock }, has_store))
    }

    /// Removes access for others that an older store or the directory's creator granted. A store of
    /// another user still opens; only the log reports the failure.
    fn tighten(&self) {
        #[cfg(unix)]
        for path in [
            self.path.clone(),
            self.path.join(LOCK_FILE),
            self.path.join(FORMAT_FILE),
            self.path.join(STORE_FILE),
            // A leftover of an interrupted creation, which will be reused with the same mode.
            self.path.join(UNFINISHED_FILE),
            self.path.join(UNFINISHED_FORMAT_FILE),
        ] {
            tighten(&path);
        }
    }

    fn create(&self, cache_bytes: usize) -> Result<(), OpenError> {
        let unfinished = self.path.join(UNFINISHED_FILE);
        let make = || -> Result<(), EngineError> {
            // A leftover of an interrupted creation was never used.
            create_private_file(&unfinished)?;
            Engine::create(&FileDisk::new(&unfinished), cache_bytes)?.close();
            rename(&unfinished, &self.path.join(STORE_FILE))?;
            // The name must be as durable as the file.
            Ok(sync_directory(&self.path)?)
        };
        make().map_err(|error| self.failed(error))
    }

    /// Writes the format file if it is missing. Called after a store was opened, so that a foreign
    /// directory stays unchanged.
    pub(super) fn mark(&self) -> Result<(), OpenError> {
        self.write_format().map_err(|error| self.failed(error.into()))
    }

    /// Writes the format file atomically.
    fn write_format(&self) -> io::Result<()> {
        if self.path.join(FORMAT_FILE).try_exists()? {
            return Ok(());
        }
        let unfinished = self.path.join(UNFINISHED_FORMAT_FILE);
        let mut file = create_private_file(&unfinished)?;
        writeln!(file, "{FORMAT}")?;
        file.sync_all()?;
        rename(&unfinished, &self.path.join(FORMAT_FILE))?;
        sync_directory(&self.path)
    }

    /// The engine's file.
    pub(super) fn disk(&self) -> FileDisk {
        FileDisk::new(&self.path.join(STORE_FILE))
    }

    /// Creates an empty file for a store that is being restored.
    pub(super) fn unfinished(&self) -> io::Result<FileDisk> {
        let path = self.path.join(RESTORING_FILE);
        create_private_file(&path)?;
        Ok(FileDisk::new(&path))
    }

    /// Renames the complete and synced restored store to its final name.
    pub(super) fn finish(&self, unfinished: &FileDisk) -> io::Result<()> {
        rename(&unfinished.path, &self.path.join(STORE_FILE))?;
        sync_directory(&self.path)
    }

    /// Removes the files of an unfinished restore.
    pub(super) fn discard_unfinished(&self) {
        let _ = fs::remove_file(self.path.join(RESTORING_FILE));
    }

    /// Converts an engine's error to an error of opening.
    pub(super) fn failed(&self, error: EngineError) -> OpenError {
        let path = self.path.clone();
        match error {
            EngineError::NoSpace(_) => OpenError::NoSpace { path },
            EngineError::Io(detail) => OpenError::Directory { path, source: io::Error::other(detail) },
            EngineError::Corrupt(detail) => OpenError::Corrupt { path, detail },
            EngineError::Foreign(found) if found.starts_with("listwatch") => OpenError::Format { path, found },
            EngineError::Foreign(found) => OpenError::Foreign { path, found: format!("{STORE_FILE}: {found}") },
        }
    }
}

/// Whether the directory holds a store of this format. Fails if the directory has neither a store
/// nor only `known` files.
fn inspect(path: &Path, known: &[&str]) -> Result<bool, OpenError> {
    let unusable = |source: io::Error| OpenError::Directory { path: path.to_owned(), source };
    let format = match fs::read_to_string(path.join(FORMAT_FILE)) {
        Ok(format) => Some(format.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Some("unreadable".to_owned()),
        Err(error) => return Err(unusable(error)),
    };
    if let Some(found) = &format
        && found != FORMAT
    {
        return Err(OpenError::Format { path: path.to_owned(), found: found.clone() });
    }
    let has_store = path.join(STORE_FILE).try_exists().map_err(unusable)?;
    if format.is_none()
        && !has_store
        && let Some(found) = foreign_entry(path, known).map_err(unusable)?
    {
        return Err(OpenError::Foreign { path: path.to_owned(), found });
    }
    Ok(has_store)
}

/// Creates a directory and its missing parents, accessible by the owner only. The names are
/// durable afterwards, as the later files must be.
fn create_private_dir(path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|directory| !directory.as_os_str().is_empty() && !directory.exists());
    let missing: Vec<&Path> = missing.collect();
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    #[cfg(test)]
    missing.iter().for_each(|directory| names::changed(parent(directory)));
    missing.iter().rev().try_for_each(|directory| sync_directory(parent(directory)))
}

/// The directory that contains a file's name.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Renames a file; durable after [`sync_directory`].
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    #[cfg(test)]
    names::changed(parent(to));
    Ok(())
}

/// Makes the names in a directory durable. Only Unix supports it.
fn sync_directory(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(path)?.sync_all()?;
    #[cfg(test)]
    names::synced(path);
    Ok(())
}

/// Simulates the effect of a power loss on names.
#[cfg(test)]
mod names {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use parking_lot::Mutex;

    /// Directories with a name that a power loss would revert.
    static UNSYNCED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    /// Directories in which a later name could have survived without an earlier one.
    static UNORDERED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    /// Directories that were synced at least once.
    static SYNCED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

    pub(super) fn changed(directory: &Path) {
        if !UNSYNCED.lock().insert(directory.to_owned()) {
            UNORDERED.lock().insert(directory.to_owned());
        }
    }

    pub(super) fn synced(directory: &Path) {
        UNSYNCED.lock().remove(directory);
        SYNCED.lock().insert(directory.to_owned());
    }

    pub(super) fn is_synced(directory: &Path) -> bool {
        SYNCED.lock().contains(directory)
    }

    /// Directories below `root` whose names are not durable, or became durable in the wrong order.
    pub(super) fn doubtful_below(root: &Path) -> Vec<PathBuf> {
        let below = |directories: &Mutex<BTreeSet<PathBuf>>| -> Vec<PathBuf> {
            directories.lock().iter().filter(|directory| directory.starts_with(root)).cloned().collect()
        };
        [below(&UNSYNCED), below(&UNORDERED)].concat()
    }
}

/// Creates or truncates a file that only the owner can access.
fn create_private_file(path: &Path) -> io::Result<File> {
    private().create(true).truncate(true).open(path)
}

/// Options that open for writing and create files for the owner only.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Removes all rights of group and others from the file at `path`, if it exists.
#[cfg(unix)]
fn tighten(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(mode) = fs::metadata(path).map(|metadata| metadata.permissions().mode() & 0o7777) else { return };
    let Some(tighter) = tighter(mode) else { return };
    let path_shown = path.display();
    match fs::set_permissions(path, fs::Permissions::from_mode(tighter)) {
        Ok(()) => tracing::warn!("{path_shown} was open to other users (mode {mode:04o}); it is {tighter:04o} now"),
        Err(error) => tracing::warn!(
            "{path_shown} is open to other users (mode {mode:04o}) and stays so: {error}; chmod it as its owner"
        ),
    }
}

/// The mode without the rights of group and others; `None` if they have no rights.
#[cfg(unix)]
fn tighter(mode: u32) -> Option<u32> {
    (mode & 0o077 != 0).then_some(mode & !0o077)
}

/// The first entry that no store creates; `None` if the directory is treated as empty.
fn foreign_entry(path: &Path, known: &[&str]) -> io::Result<Option<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names.into_iter().find(|name| {
        // A mount point has a lost+found; hidden files are no user data.
        !known.contains(&name.as_str()) && name != "lost+found" && !name.starts_with('.')
    }))
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let unusable = |source: io::Error| OpenError::Directory { path: path.to_owned(), source };
    let mut file = private().create(true).truncate(false).read(true).open(path.join(LOCK_FILE)).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            let _ = file.read_to_string(&mut owner);
            return Err(OpenError::Locked { path: path.to_owned(), owner: owner.trim().parse().ok() });
        }
        Err(TryLockError::Error(error)) => return Err(unusable(error)),
    }
    // The owner's id only informs people: a full disk must not keep a store from opening.
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

/// A file as a [`Disk`].
pub(super) struct FileDisk {
    path: PathBuf,
    /// The file was renamed without a sync of the directory since: data written to it could be lost
    /// with its name.
    unsynced: AtomicBool,
}

impl FileDisk {
    fn new(path: &Path) -> Self {
        FileDisk { path: path.to_owned(), unsynced: AtomicBool::new(false) }
    }

    fn directory(&self) -> &Path {
        parent(&self.path)
    }

    fn copy(&self) -> PathBuf {
        self.path.with_file_name(COPY_FILE)
    }

    fn sync_name(&self) -> io::Result<()> {
        if self.unsynced.load(Ordering::Relaxed) {
            sync_directory(self.directory())?;
            self.unsynced.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Disk for FileDisk {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        self.sync_name()?;
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
    }

    fn written(&self) -> Option<SystemTime> {
        fs::metadata(&self.path).and_then(|metadata| metadata.modified()).ok()
    }

    fn free_bytes(&self) -> Option<u64> {
        #[cfg(unix)]
        return rustix::fs::statvfs(&self.path).ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        #[cfg(not(unix))]
        None
    }

    fn used_bytes(&self) -> Option<u64> {
        // The engine makes the file longer than needed; the hole at its end occupies no space.
        #[cfg(unix)]
        let used = |metadata: fs::Metadata| std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
        #[cfg(not(unix))]
        let used = |metadata: fs::Metadata| metadata.len();
        fs::metadata(&self.path).ok().map(used)
    }

    fn create_side(&self) -> io::Result<Arc<dyn Disk>> {
        create_private_file(&self.copy())?;
        Ok(Arc::new(FileDisk::new(&self.copy())))
    }

    fn promote_side(&self) -> io::Result<()> {
        self.unsynced.store(true, Ordering::Relaxed);
        rename(&self.copy(), &self.path)?;
        self.sync_name()
    }

    fn discard_side(&self) {
        if let Err(error) = fs::remove_file(self.copy())
            && error.kind() != io::ErrorKind::NotFound
        {
            let path = self.copy();
            tracing::warn!("{} is no longer used and cannot be removed: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::{Key, Revision};

    use super::*;
    use crate::{EmbeddedOptions, EmbeddedStorage, Storage};

    fn key(name: &str) -> Key {
        Key::new("pods", Some("ns"), name).unwrap()
    }

    fn options() -> EmbeddedOptions {
        EmbeddedOptions::default()
    }

    fn doubtful(root: &tempfile::TempDir) -> Vec<PathBuf> {
        names::doubtful_below(root.path())
    }

    #[test]
    fn new_store_syncs_its_directory_and_new_parent_directories() {
        let root = tempfile::tempdir().unwrap();
        let store = EmbeddedStorage::open(root.path().join("a/b/store"), options()).unwrap();
        assert!(doubtful(&root).is_empty(), "promise: durable, {:?}", doubtful(&root));
        drop(store);
        let mut restore = EmbeddedStorage::restore(root.path().join("c/d"), options()).unwrap();
        let (created, modified) = (Revision::new(3), Revision::new(4));
        restore
            .put(crate::KeyValue { key: key("a"), value: "{}".into(), created, modified, stale: false }, None)
            .unwrap();
        restore.finish(Revision::new(9)).unwrap();
        assert!(doubtful(&root).is_empty(), "promise: durable, {:?}", doubtful(&root));
    }

    #[test]
    fn only_directories_with_new_names_are_synced() {
        let root = tempfile::tempdir().unwrap();
        let existing = root.path().join("existing");
        fs::create_dir(&existing).unwrap();
        drop(EmbeddedStorage::open(existing.join("a/b"), options()).unwrap());
        for (directory, expected) in [("existing/a/b", true), ("existing/a", true), ("existing", true), ("", false)] {
            let synced = names::is_synced(&root.path().join(directory));
            assert_eq!(synced, expected, "{directory:?}: a new name is durable, and an old one is not touched");
        }
    }

    #[test]
    fn parent_of_a_relative_name_is_the_working_directory() {
        for (path, expected) in [("/a/b", "/a"), ("a/b", "a"), ("/a", "/"), ("a", "."), ("/", ".")] {
            assert_eq!(parent(Path::new(path)), Path::new(expected), "{path}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn mode_is_tightened_only_if_others_have_rights() {
        let cases = [(0o700, None), (0o600, None), (0o4700, None), (0o755, Some(0o700)), (0o601, Some(0o600))];
        for (mode, expected) in cases {
            assert_eq!(tighter(mode), expected, "{mode:o}");
        }
    }

    #[test]
    fn open_error_names_the_remedy_for_each_engine_error() {
        let root = tempfile::tempdir().unwrap();
        let dir = StoreDir::prepare_new(root.path()).unwrap();
        let check = |error: EngineError, expected: &str| {
            let text = dir.failed(error).to_string().replace(&root.path().display().to_string(), "<dir>");
            assert!(text.starts_with(expected), "{text:?} does not say {expected:?}");
        };
        let text = || "text".to_owned();
        check(EngineError::NoSpace(text()), "no space is left in <dir> to open the store");
        check(EngineError::Io(text()), "cannot use <dir> as a store: text");
        check(EngineError::Corrupt(text()), "the store in <dir> is damaged: text; restore it");
        check(EngineError::Foreign(text()), "<dir> is no store and not empty, it holds store.redb: text;");
        let format = "listwatch embedded store, format 9".to_owned();
        let expected = format!("the store in <dir> has a format that this version does not read ({format});");
        check(EngineError::Foreign(format), &expected);
    }

    #[test]
    fn restore_never_replaces_an_existing_or_incomplete_store() {
        let check = |prepare: fn(&Path), why: &str| {
            let root = tempfile::tempdir().unwrap();
            drop(EmbeddedStorage::open(root.path(), options()).unwrap());
            prepare(root.path());
            let refused = EmbeddedStorage::restore(root.path(), options()).map(drop);
            assert!(matches!(refused, Err(OpenError::Exists { .. })), "{why}: {refused:?}");
        };
        check(|_| (), "a store");
        check(|path| fs::remove_file(path.join(FORMAT_FILE)).unwrap(), "a store without its format file");
        check(|path| fs::remove_file(path.join(STORE_FILE)).unwrap(), "a store that lost its data");
    }

    #[tokio::test]
    async fn defragment_syncs_the_directory_after_the_rename() {
        let root = tempfile::tempdir().unwrap();
        let store = EmbeddedStorage::open(root.path(), options()).unwrap();
        store.create(&key("a"), "{}".into(), None).await.unwrap();
        store.defragment().await.unwrap();
        assert!(doubtful(&root).is_empty(), "promise: durable, {:?}", doubtful(&root));
    }

    #[test]
    fn store_created_by_another_process_before_the_lock_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("store");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let another = || {
            runtime.block_on(async {
                let store = EmbeddedStorage::open(&path, options()).unwrap();
                store.create(&key("a"), "{}".into(), None).await.unwrap();
                store.close().await;
            });
        };
        let (dir, has_store) = StoreDir::take_after(&path, &[LOCK_FILE, UNFINISHED_FILE], another).unwrap();
        assert!(has_store, "durable: what was acknowledged would be replaced by a new store");
        drop(dir);
        let store = EmbeddedStorage::open(&path, options()).unwrap();
        assert!(runtime.block_on(store.get(&key("a"))).unwrap().0.is_some());
    }
}
