//! fjall: a log-structured merge tree with one shared journal.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::engine::{Engine, MEMORY_BYTES, Result, Write};

/// Twice fjall's minimum of 64 MiB.
const JOURNAL_BYTES: u64 = 128 << 20;

pub(crate) struct Fjall {
    db: Database,
    records: Keyspace,
    index: Keyspace,
}

impl Fjall {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let memory = MEMORY_BYTES as u64;
        let db = Database::builder(dir)
            .cache_size(memory / 4)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(2)
            .open()?;
        // The size of the active memory tables. Up to four sealed tables may queue behind each.
        let options = |share: u64| move || KeyspaceCreateOptions::default().max_memtable_size(memory / share);
        let (records, index) = (db.keyspace("records", options(4))?, db.keyspace("index", options(8))?);
        Ok(Self { db, records, index })
    }
}

impl Engine for Fjall {
    fn commit(&self, writes: &[Write]) -> Result<()> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        for write in writes {
            batch.insert(&self.records, write.revision.to_be_bytes(), write.value.as_slice());
            batch.insert(&self.index, write.path.as_str(), write.revision.to_be_bytes());
        }
        Ok(batch.commit()?)
    }

    fn scan_index(&self, each: &mut dyn FnMut(&str, u64)) -> Result<()> {
        for entry in self.index.iter() {
            let (path, revision) = entry.into_inner()?;
            each(std::str::from_utf8(&path)?, u64::from_be_bytes((*revision).try_into()?));
        }
        Ok(())
    }

    fn scan_records(&self, each: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        for entry in self.records.iter() {
            let (revision, value) = entry.into_inner()?;
            each(u64::from_be_bytes((*revision).try_into()?), &value);
        }
        Ok(())
    }

    fn delete(&self, revisions: &[u64]) -> Result<()> {
        let mut batch = self.db.batch(); // reaches the system, is not synced
        for revision in revisions {
            batch.remove(&self.records, revision.to_be_bytes());
        }
        Ok(batch.commit()?)
    }

    fn compact(&mut self) -> Result<()> {
        // Both functions are public but hidden from fjall's docs: flush, then merge everything.
        for keyspace in [&self.records, &self.index] {
            keyspace.rotate_memtable_and_wait()?;
            keyspace.major_compact()?;
        }
        Ok(())
    }
}
