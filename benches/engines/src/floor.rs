//! Appends to one file and syncs it, without an engine: the minimum cost of a durable commit.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use crate::engine::{Engine, Result, Write};

pub(crate) struct Floor {
    log: Mutex<File>,
}

impl Floor {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let log = File::options().create(true).append(true).open(dir.join("floor.log"))?;
        Ok(Self { log: Mutex::new(log) })
    }
}

impl Engine for Floor {
    fn commit(&self, writes: &[Write]) -> Result<()> {
        let mut batch = Vec::new();
        for write in writes {
            batch.extend_from_slice(&write.revision.to_be_bytes());
            batch.extend_from_slice(write.path.as_bytes());
            batch.extend_from_slice(&write.value);
        }
        let mut log = self.log.lock().map_err(|_| "a writer panicked")?;
        log.write_all(&batch)?;
        Ok(log.sync_data()?)
    }

    fn scan_index(&self, _each: &mut dyn FnMut(&str, u64)) -> Result<()> {
        Err("the floor can only be written".into())
    }

    fn scan_records(&self, _each: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        Err("the floor can only be written".into())
    }

    fn delete(&self, _revisions: &[u64]) -> Result<()> {
        Err("the floor can only be written".into())
    }

    fn compact(&mut self) -> Result<()> {
        Err("the floor can only be written".into())
    }
}
