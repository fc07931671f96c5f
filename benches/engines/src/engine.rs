//! The small surface that a store needs of an engine.

use std::path::Path;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Memory an engine may use for its caches and buffers, in bytes.
pub(crate) const MEMORY_BYTES: usize = 32 << 20;

/// One write: a record by revision, and the object's path pointing to it.
pub(crate) struct Write {
    pub(crate) revision: u64,
    pub(crate) path: String,
    pub(crate) value: Vec<u8>,
}

/// An engine with two tables: records by revision, and the newest revision by path.
pub(crate) trait Engine: Send + Sync {
    /// Applies all writes or none; they are on stable storage when it returns.
    fn commit(&self, writes: &[Write]) -> Result<()>;

    /// Walks the index in the order of paths.
    fn scan_index(&self, each: &mut dyn FnMut(&str, u64)) -> Result<()>;

    /// Walks the records in the order of revisions.
    fn scan_records(&self, each: &mut dyn FnMut(u64, &[u8])) -> Result<()>;

    /// Forgets records. Need not be durable: a crash may bring them back.
    fn delete(&self, revisions: &[u64]) -> Result<()>;

    /// Gives freed space back to the file system, as far as the engine can.
    fn compact(&mut self) -> Result<()>;
}

/// Opens or makes the store of the engine with this name.
pub(crate) fn open(name: &str, dir: &Path) -> Result<Box<dyn Engine>> {
    std::fs::create_dir_all(dir)?;
    match name {
        "fjall" => Ok(Box::new(crate::fjall_engine::Fjall::open(dir)?)),
        "redb" => Ok(Box::new(crate::redb_engine::Redb::open(dir)?)),
        "floor" => Ok(Box::new(crate::floor::Floor::open(dir)?)),
        other => Err(format!("unknown engine {other}; known are fjall, redb and floor").into()),
    }
}
