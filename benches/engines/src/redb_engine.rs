//! redb: a copy-on-write B-tree in one file.

use std::path::Path;

use redb::{
    Builder, Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition, WriteTransaction,
};

use crate::engine::{Engine, MEMORY_BYTES, Result, Write};

const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");
const INDEX: TableDefinition<&str, u64> = TableDefinition::new("index");

pub(crate) struct Redb {
    db: Database,
}

impl Redb {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        // The default cache is 1 GiB.
        let db = Builder::new().set_cache_size(MEMORY_BYTES).create(dir.join("store.redb"))?;
        let engine = Self { db };
        let transaction = engine.begin(Durability::Immediate)?;
        transaction.open_table(RECORDS)?; // made on first use, so that readers find them
        transaction.open_table(INDEX)?;
        transaction.commit()?;
        Ok(engine)
    }

    fn begin(&self, durability: Durability) -> Result<WriteTransaction> {
        let mut transaction = self.db.begin_write()?;
        transaction.set_durability(durability)?;
        Ok(transaction)
    }
}

impl Engine for Redb {
    fn commit(&self, writes: &[Write]) -> Result<()> {
        let transaction = self.begin(Durability::Immediate)?;
        {
            let (mut records, mut index) = (transaction.open_table(RECORDS)?, transaction.open_table(INDEX)?);
            for write in writes {
                records.insert(write.revision, write.value.as_slice())?;
                index.insert(write.path.as_str(), write.revision)?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn scan_index(&self, each: &mut dyn FnMut(&str, u64)) -> Result<()> {
        for entry in self.db.begin_read()?.open_table(INDEX)?.iter()? {
            let (path, revision) = entry?;
            each(path.value(), revision.value());
        }
        Ok(())
    }

    fn scan_records(&self, each: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        for entry in self.db.begin_read()?.open_table(RECORDS)?.iter()? {
            let (revision, value) = entry?;
            each(revision.value(), value.value());
        }
        Ok(())
    }

    fn delete(&self, revisions: &[u64]) -> Result<()> {
        let transaction = self.begin(Durability::None)?; // the next durable commit carries it along
        {
            let mut records = transaction.open_table(RECORDS)?;
            for revision in revisions {
                records.remove(revision)?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn compact(&mut self) -> Result<()> {
        self.db.compact()?;
        Ok(())
    }
}
