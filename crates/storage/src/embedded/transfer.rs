//! The embedded store as a source and a target of copies. A copied store keeps the revisions of its
//! source.

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
use crate::ttl::Millis;

#[async_trait]
impl Source for EmbeddedStorage {
    async fn records(&self) -> Result<Box<dyn Records + '_>, ReadError> {
        self.inner.readable().await;
        let state = self.inner.state.read();
        state.snapshot()?;
        let (at, count) = (state.index.mvcc.current(), state.index.mvcc.live());
        Ok(Box::new(EmbeddedRecords { store: self, at, count, last: None }))
    }
}

/// The deadline of a record.
enum StoredDeadline {
    /// The record is the key's newest state, whose deadline the index has.
    Known(Option<Millis>),
    /// The key was changed or removed since the export began. The record's header has the deadline.
    OnDisk,
}

/// All records at one revision.
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
        self.store.inner.readable().await;
        let now = SystemTime::now();
        // The index has the lengths of the values, so that no page is too large.
        let mut found: Vec<(Key, Stored<Length>, StoredDeadline)> = Vec::new();
        let snapshot = {
            let state = self.store.inner.state.read();
            let range = transfer::behind(self.last.as_ref());
            let mut bytes = 0;
            for (key, stored) in state.index.mvcc.first(&range, self.at, PAGE_RECORDS_MAX)? {
                bytes += key.as_str().len() + stored.value as usize;
                if bytes > PAGE_BYTES && !found.is_empty() {
                    break;
                }
                let is_newest = state.index.mvcc.get(key.as_str()).is_some_and(|it| it.modified == stored.modified);
                let deadline = if is_newest {
                    StoredDeadline::Known(state.index.deadlines.of(stored.modified))
                } else {
                    StoredDeadline::OnDisk
                };
                found.push((key.clone(), *stored, deadline));
            }
            state.snapshot().map_err(ReadError::Fault)?
        };
        self.last = found.last().map(|(key, ..)| key.clone()).or(self.last.take());
        let load = move || {
            // A key that is due but not yet removed expires at once in the target.
            let left = |at: SystemTime| at.duration_since(now).unwrap_or_default().max(Duration::from_millis(1));
            let record = |(key, stored, deadline): (Key, Stored<Length>, StoredDeadline)| {
                let value = snapshot.value(stored.modified)?;
                let deadline = match deadline {
                    StoredDeadline::Known(deadline) => deadline,
                    StoredDeadline::OnDisk => snapshot.deadline(stored.modified)?,
                };
                let ttl = deadline.map(super::commit::time_of).map(left);
                Ok::<_, EngineError>(Record { entry: key_value(&key, stored, value), ttl })
            };
            found.into_iter().map(record).collect::<Result<Vec<_>, _>>().map_err(StoreFault::from)
        };
        Ok(blocking(load).await.map_err(ReadError::Fault)?)
    }
}

/// The error of creating a store from an export.
#[derive(Debug, thiserror::Error)]
pub enum FromExportError {
    /// The export cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The new store cannot be created.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

impl From<OpenError> for FromExportError {
    fn from(error: OpenError) -> Self {
        FromExportError::Restore(error.into())
    }
}

impl EmbeddedStorage {
    /// Creates a store from an export, in an empty or new directory, with the source's revisions.
    /// `clock_at_least` raises the store's revision, for a backup older than the state that clients
    /// have seen. A client of the old store continues with the new one, or receives `Expired` if it
    /// requests history.
    ///
    /// This store holds one key per revision. If a transaction of etcd changed several keys at
    /// once, all keys but the first move to later revisions. Keys that would collide with moved
    /// keys also move. [`ImportSummary::moved`] counts all moved keys.
    ///
    /// Blocks until the store is on stable storage. An interruption leaves no store.
    ///
    /// # Errors
    /// [`FromExportError`], with [`OpenError::Exists`] if there is a store already.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Storage;

    fn key(n: usize) -> Key {
        Key::new("pods", Some("ns"), &format!("k{n:04}")).unwrap()
    }

    #[tokio::test]
    async fn page_of_records_is_bounded_in_bytes_and_records() {
        let check = async |lengths: Vec<usize>, expected: &[usize], why: &str| {
            let directory = tempfile::tempdir().unwrap();
            let store = EmbeddedStorage::open(directory.path(), EmbeddedOptions::default()).unwrap();
            let create = async |(n, length): (usize, usize)| store.create(&key(n), vec![0; length].into(), None).await;
            let created = futures_util::future::join_all(lengths.iter().copied().enumerate().map(create)).await;
            assert!(created.iter().all(Result::is_ok));
            let mut records = store.records().await.unwrap();
            assert_eq!(records.count(), Some(lengths.len() as u64), "{why}");
            assert_eq!(records.revision(), store.current_revision().await.unwrap(), "{why}");
            let (mut pages, mut found) = (Vec::new(), Vec::new());
            loop {
                let page = records.next_page().await.unwrap();
                if page.is_empty() {
                    break;
                }
                pages.push(page.len());
                found.extend(page.into_iter().map(|record| (record.entry.key, record.entry.value.len())));
            }
            assert_eq!(pages, expected, "{why}");
            let all: Vec<_> = lengths.into_iter().enumerate().map(|(n, length)| (key(n), length)).collect();
            assert_eq!(found, all, "{why}: no record is missed or repeated");
        };
        let name = key(0).as_str().len();
        check(vec![], &[], "an empty store").await;
        check(vec![1 << 20; 5], &[3, 2], "a fourth value and the keys exceed the bytes of a page").await;
        check(vec![(1 << 20) - name; 5], &[4, 1], "four values and their keys reach the bytes of a page").await;
        check(vec![0; PAGE_RECORDS_MAX + 5], &[PAGE_RECORDS_MAX, 5], "many records").await;
    }
}
