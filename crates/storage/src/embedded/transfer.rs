//! The embedded store as the source of copies, and as what a copy becomes: a new store with the
//! revisions of the old one.

use std::io::{Read, Seek};
use std::path::Path;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use listwatch_meta::{Key, Revision};

use super::engine::EngineError;
use super::{EmbeddedOptions, EmbeddedStorage, Length, OpenError, RestoreError, blocking, key_value};
use crate::error::{ReadError, StoreFault};
use crate::mvcc::Stored;
use crate::transfer::{
    self, CheckedExport, FileError, ImportSummary, PAGE_BYTES, PAGE_RECORDS_MAX, Phase, Progress, ProgressFn, Record,
    Records, RecordsError, Source,
};

#[async_trait]
impl Source for EmbeddedStorage {
    /// A key that was written again since has its former TTL forgotten: it is told without one.
    async fn records(&self) -> Result<Box<dyn Records + '_>, ReadError> {
        let state = self.inner.state.read();
        state.snapshot()?;
        let (at, count) = (state.index.mvcc.current(), state.index.mvcc.live());
        Ok(Box::new(EmbeddedRecords { store: self, at, count, last: None }))
    }
}

/// Everything at one revision.
struct EmbeddedRecords<'a> {
    store: &'a EmbeddedStorage,
    at: Revision,
    count: u64,
    last: Option<Key>,
}

#[async_trait]
impl Records for EmbeddedRecords<'_> {
    fn revision(&self) -> Revision {
        self.at
    }

    fn count(&self) -> Option<u64> {
        Some(self.count)
    }

    async fn next_page(&mut self) -> Result<Vec<Record>, RecordsError> {
        let now = SystemTime::now();
        // The index knows how long the values are, so no page is larger than it should be.
        let mut found: Vec<(Key, Stored<Length>, Option<Duration>)> = Vec::new();
        let snapshot = {
            let state = self.store.inner.state.read();
            let range = transfer::behind(self.last.as_ref());
            let mut bytes = 0;
            for (key, stored) in state.index.mvcc.first(&range, self.at, PAGE_RECORDS_MAX)? {
                bytes += key.as_str().len() + stored.value as usize;
                if bytes > PAGE_BYTES && !found.is_empty() {
                    break;
                }
                let expires = state.index.deadlines.of(stored.modified).map(super::commit::time_of);
                // One that is due and not removed yet goes at once where it is brought to.
                let left = |at: SystemTime| at.duration_since(now).unwrap_or_default().max(Duration::from_millis(1));
                found.push((key.clone(), *stored, expires.map(left)));
            }
            state.snapshot().map_err(ReadError::Fault)?
        };
        self.last = found.last().map(|(key, ..)| key.clone()).or(self.last.take());
        let load = move || {
            let record = |(key, stored, ttl): (Key, Stored<Length>, Option<Duration>)| {
                let value = snapshot.value(stored.modified)?;
                Ok::<_, EngineError>(Record { entry: key_value(&key, stored, value), ttl })
            };
            found.into_iter().map(record).collect::<Result<Vec<_>, _>>().map_err(StoreFault::from)
        };
        Ok(blocking(load).await.map_err(ReadError::Fault)?)
    }
}

/// Why an export did not become a store.
#[derive(Debug, thiserror::Error)]
pub enum FromExportError {
    /// The export cannot be read on.
    #[error(transparent)]
    File(#[from] FileError),
    /// The new store cannot be made.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

impl From<OpenError> for FromExportError {
    fn from(error: OpenError) -> Self {
        FromExportError::Restore(error.into())
    }
}

impl EmbeddedStorage {
    /// Makes a new store of an export, in an empty or new directory, with the source's clock (or
    /// `clock_at_least`, where that is later: for a backup older than what clients have seen) and its
    /// revisions: a client of the old store goes on with this one as if nothing had happened, or is
    /// told `Expired` where it asks for history.
    ///
    /// This store holds one key per revision. Where a transaction of etcd has changed several at once, all
    /// but the first, and whatever would collide with them, move on to later revisions;
    /// [`ImportSummary::moved`] counts them.
    ///
    /// Blocks until the store is on stable storage. An interruption leaves no store.
    ///
    /// # Errors
    /// [`FromExportError`], with [`OpenError::Exists`] where there is a store already.
    pub fn from_export<F: Read + Seek>(
        path: impl AsRef<Path>,
        options: EmbeddedOptions,
        export: &mut CheckedExport<F>,
        clock_at_least: Revision,
        progress: &mut ProgressFn<'_>,
    ) -> Result<ImportSummary, FromExportError> {
        let mut restore = EmbeddedStorage::restore(path, options)?;
        let (total, mut last) = (export.left(), Revision::ZERO);
        let mut summary = ImportSummary::default();
        while let Some(Record { mut entry, ttl }) = export.next_record()? {
            let at = entry.modified.max(last.next());
            summary.moved += u64::from(at != entry.modified);
            (entry.modified, last) = (at, at);
            restore.put(entry, ttl.map(|ttl| SystemTime::now() + ttl))?;
            summary.created += 1;
            progress(Progress { phase: Phase::Write, done: summary.created, total: Some(total) });
        }
        summary.revision = last.max(export.header().revision).max(clock_at_least);
        restore.finish(summary.revision)?;
        Ok(summary)
    }
}
