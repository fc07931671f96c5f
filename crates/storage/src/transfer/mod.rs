//! Copies of a whole store: into a file, out of one, from store to store, and whether two places
//! hold the same.
//!
//! ```text
//!   Source ──records, pages of one revision──▶ export ──▶ file ──▶ check ──▶ import ──▶ any Storage
//!      │                                                   │ (whole, or refused before anything
//!      │                                                   │  is written)
//!      └──────────────▶ compare, inspect ◀─────────────────┘
//! ```
//!
//! * **One moment.** An export shows the source at one revision, while writes go on. When
//!   compaction overtakes it, it says so, and [`ExportFile::write`] begins anew.
//! * **Whole or refused.** A file has checksums and an end ([`Encoder`]); it is written under
//!   another name and renamed when it is whole and synced. An import reads it once before it
//!   writes anything.
//! * **Order.** Records are imported in the order in which they were last changed, each at a revision
//!   of its own, so that newer stays newer.
//! * **No time travel.** A client that holds a resource version of the source must not be shown an
//!   older state by the target, nor miss a removal: see [`import()`].
//! * **Memory.** A page of records ([`PAGE_BYTES`], at most [`PAGE_RECORDS_MAX`] records), and
//!   [`SORT_PAIRS`] places of records; the rest waits in unnamed temporary files.
//!
//! Why it is so: `docs/decisions/0004-moving-stores.md`. For operators: `docs/storage.md`, and
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
pub use sort::SORT_PAIRS;

/// A page of records weighs about this much, in bytes of keys and values; a store that does not know
/// how large a record is before it has read it may be mistaken, within [`PAGE_RECORDS_MAX`].
pub const PAGE_BYTES: usize = 4 << 20;

/// A page has no more records than this.
pub const PAGE_RECORDS_MAX: usize = 2_048;

/// A key with its value, as it is carried from store to store.
///
/// etcd's `version` (how often a key was written) is not carried: nobody can set it, and nothing in
/// Kubernetes reads it of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Key, value and revisions.
    pub entry: KeyValue,
    /// How much longer the key lives; `None` is for ever. Never zero.
    pub ttl: Option<Duration>,
}

impl Record {
    /// Bytes of key and value.
    pub(crate) fn weight(&self) -> usize {
        self.entry.key.as_str().len() + self.entry.value.len()
    }
}

/// Where records come from, in the order of their keys, all as they were at one revision.
#[async_trait]
pub trait Records: Send {
    /// The revision that they show, which is the clock of their source.
    fn revision(&self) -> Revision;

    /// How many there are about, for who shows progress.
    fn count(&self) -> Option<u64>;

    /// The next records, about [`PAGE_BYTES`] of them; empty at the end.
    ///
    /// # Errors
    /// [`RecordsError`]. Nothing more may be asked then.
    async fn next_page(&mut self) -> Result<Vec<Record>, RecordsError>;
}

/// A store that can be copied: it tells what [`Storage`] does not have to, how much longer keys live.
#[async_trait]
pub trait Source: Storage {
    /// Everything that the store holds now, at one revision; later writes do not show.
    ///
    /// # Errors
    /// [`ReadError::Fault`] when the store fails.
    async fn records(&self) -> Result<Box<dyn Records + '_>, ReadError>;
}

/// Why records cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The store failed, or compaction has overtaken the reader ([`ReadError::Compacted`]): begin anew.
    #[error(transparent)]
    Store(#[from] ReadError),
    /// The file cannot be read, or is no whole export.
    #[error(transparent)]
    File(#[from] FileError),
}

/// How far something is. Whoever shows it decides how often; it comes once for every page or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// So much of it: records, or revisions in [`Phase::Clock`].
    pub done: u64,
    /// Of so much, where known.
    pub total: Option<u64>,
}

/// What is being done, for [`Progress`].
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
    /// Two places are compared.
    Compare,
}

/// Told of every [`Progress`].
pub type ProgressFn<'a> = dyn FnMut(Progress) + Send + 'a;

/// Everything that a store holds.
pub(crate) fn everything() -> KeyRange {
    KeyRange::below("/")
}

/// What lies behind a key.
pub(crate) fn behind(key: Option<&Key>) -> KeyRange {
    key.map_or_else(everything, |key| everything().starting_at(&format!("{key}\0")))
}

/// Where an import keeps its notes in the target. Removed when it is done; never a part of a copy.
const SCRATCH: &str = "listwatch.transfer";

/// Is this key one of an import's notes?
fn is_scratch(key: &Key) -> bool {
    key.as_str().strip_prefix('/').and_then(|rest| rest.strip_prefix(SCRATCH)).is_some_and(|rest| rest.starts_with('/'))
}

/// The error of a temporary file: what to do about it is always the same.
fn temporary(error: io::Error) -> io::Error {
    let dir = std::env::temp_dir();
    io::Error::new(error.kind(), format!("a temporary file in {}: {error} (TMPDIR names another place)", dir.display()))
}
