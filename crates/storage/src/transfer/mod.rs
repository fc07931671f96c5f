//! Copies of whole stores: export to a file, import from a file, comparison, and copy from store to store, even while a
//! server uses the store ([`RelocatingStorage`]).
//!
//! ```text
//!   Source ──records, pages of one revision──▶ export ──▶ file ──▶ check ──▶ import ──▶ any Storage
//!      │                                                   │ (whole, or refused before anything
//!      │                                                   │  is written)
//!      └──────────────▶ compare, inspect ◀─────────────────┘
//! ```
//!
//! * **One revision.** An export shows the source at one revision, while writes continue. If
//!   compaction overtakes the export, it fails, and [`ExportFile::write`] restarts it.
//! * **Complete or rejected.** A file has checksums and an end ([`Encoder`]). The file is written under another name
//!   and renamed when it is complete and synced. An import checks the whole file before it writes anything.
//! * **Order.** Records are imported in the order of their last changes, each at its own revision,
//!   so that newer objects stay newer.
//! * **No time travel.** A client with a resource version of the source never sees an older state in the target, and
//!   misses no removal: see [`import()`].
//! * **Memory.** A page of records ([`PAGE_BYTES`], at most [`PAGE_RECORDS_MAX`] records), and
//!   [`SORT_PAIRS`] offsets of records. More offsets go to unnamed temporary files.
//!
//! `docs/decisions/0004-moving-stores.md` gives the reasons. For operators: `docs/storage.md`, and
//! `listwatch storage --help`.
//!
//! # Example
//! ```
//! use std::io::Cursor;
//! use listwatch_meta::Key;
//! use listwatch_storage::transfer::{self, CheckedExport, ImportOptions};
//! use listwatch_storage::{MemoryStorage, Storage};
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let key = Key::new("pods", Some("default"), "web")?;
//! let old = MemoryStorage::new();
//! old.create(&key, r#"{"kind":"Pod"}"#.into(), None).await?;
//!
//! let mut file = Vec::new();
//! transfer::export(&*old, "an example", &mut file, &mut |_| {}).await?;
//!
//! let mut checked = CheckedExport::check(Cursor::new(file), &mut |_| {})?;
//! let new = MemoryStorage::new();
//! let done = transfer::import(&new, &mut checked, ImportOptions::default(), &mut |_| {}).await?;
//! assert_eq!(done.created, 1);
//! assert!(new.current_revision().await? > old.current_revision().await?, "no client travels back in time");
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod compare;
mod export;
mod file;
mod format;
mod import;
mod inspect;
mod relocate;
mod sort;

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use listwatch_meta::{Key, KeyRange, Revision};

use crate::error::ReadError;
use crate::types::{KeyValue, Storage};

pub use compare::{Comparison, Difference, compare};
pub use export::{EXPORT_ATTEMPTS_MAX, ExportError, ExportSummary, export};
pub use file::{CheckedExport, ExportFile, ExportRecords, FileError, spool};
pub use format::{
    Decoder, EXPORT_KEY_BYTES_MAX, EXPORT_VALUE_BYTES_MAX, Encoder, ExportEnd, ExportHeader, FORMAT_VERSION,
    FormatError, Item,
};
pub use import::{CLOCK_LANES, IfExists, ImportError, ImportOptions, ImportSummary, import};
pub use inspect::{FINDINGS_MAX, Finding, Inspection, RESOURCES_MAX, ResourceTotals, inspect};
pub use relocate::{ROUNDS_MAX, RelocateError, RelocatingStorage, Relocation};
pub use sort::SORT_PAIRS;

/// Approximate bytes of keys and values in a page of records. A store that knows a record's size only after reading it
/// may exceed this, within [`PAGE_RECORDS_MAX`].
pub const PAGE_BYTES: usize = 4 << 20;

/// The maximum number of records of a page.
pub const PAGE_RECORDS_MAX: usize = 2_048;

/// A key with its value and revisions.
///
/// etcd's `version` (the number of writes) is not part of it: clients cannot set it, and nothing in
/// Kubernetes reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Key, value and revisions.
    pub entry: KeyValue,
    /// The remaining time to live; `None` for unlimited. Never zero.
    pub ttl: Option<Duration>,
}

impl Record {
    /// Bytes of key and value.
    pub(crate) fn weight(&self) -> usize {
        self.entry.key.as_str().len() + self.entry.value.len()
    }
}

/// A source of records in key order, all at one revision.
#[async_trait]
pub trait Records: Send {
    /// The revision of the records.
    fn revision(&self) -> Revision;

    /// The approximate number of records, for progress reports.
    fn count(&self) -> Option<u64>;

    /// Returns the next page, of about [`PAGE_BYTES`] bytes. The page is empty after the last record.
    ///
    /// # Errors
    /// [`RecordsError`]. The caller must not call this method again after an error.
    async fn next_page(&mut self) -> Result<Vec<Record>, RecordsError>;
}

/// A store that can be copied. Unlike [`Storage`], it also reports remaining TTLs.
#[async_trait]
pub trait Source: Storage {
    /// All records at the current revision; later writes are not included.
    ///
    /// # Errors
    /// [`ReadError::Fault`] when the store fails.
    async fn records(&self) -> Result<Box<dyn Records + '_>, ReadError>;
}

/// The error of reading records.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The store failed, or compaction overtook the reader ([`ReadError::Compacted`]): start again.
    #[error(transparent)]
    Store(#[from] ReadError),
    /// The file is unreadable, or not a complete export.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The progress of an operation, reported for every page or record; the receiver limits its
/// display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current phase.
    pub phase: Phase,
    /// The completed amount: records, or revisions in [`Phase::Clock`].
    pub done: u64,
    /// The total amount, if known.
    pub total: Option<u64>,
}

/// The phase of a [`Progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Records are read from a store.
    Read,
    /// A file is checked.
    Check,
    /// The target's clock is raised.
    Clock,
    /// Records are written to a store.
    Write,
    /// Two stores or exports are compared.
    Compare,
}

/// Receives every [`Progress`].
pub type ProgressFn<'a> = dyn FnMut(Progress) + Send + 'a;

/// The range of all keys of a store.
pub(crate) fn everything() -> KeyRange {
    KeyRange::below("/")
}

/// The range of all keys after a key; all keys for `None`.
pub(crate) fn behind(key: Option<&Key>) -> KeyRange {
    key.map_or_else(everything, |key| everything().starting_at(&format!("{key}\0")))
}

/// The resource prefix of an import's notes in the target. The notes are removed at the end and never
/// copied.
const SCRATCH: &str = "listwatch.transfer";

/// Whether this key is one of an import's notes.
fn is_scratch(key: &Key) -> bool {
    key.as_str().strip_prefix('/').and_then(|rest| rest.strip_prefix(SCRATCH)).is_some_and(|rest| rest.starts_with('/'))
}

/// Adds the remedy to the error of a temporary file.
fn temporary(error: io::Error) -> io::Error {
    let dir = std::env::temp_dir();
    io::Error::new(error.kind(), format!("a temporary file in {}: {error} (TMPDIR names another place)", dir.display()))
}
