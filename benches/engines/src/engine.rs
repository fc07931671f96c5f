//! The operations that a store needs from an engine.

use std::path::Path;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The memory of an engine for caches and buffers, in bytes.
pub(crate) const MEMORY_BYTES: usize = 32 << 20;

/// One write: a record by revision, and the object's path pointing to it.
pub(crate) struct Write {
    pub(crate) revision: u64,
    pub(crate) path: String,
    pub(crate) value: Vec<u8>,
}

/// An engine with two tables: records by revision, and the newest revision by path.
pub(crate) trait Engine: Send + Sync {
    /// Applies all writes or none. The writes are on stable storage when this returns.
    fn commit(&self, writes: &[Write]) -> Result<()>;

    /// Calls `each` for the index entries in the order of paths.
    fn scan_index(&self, each: &mut dyn FnMut(&str, u64)) -> Result<()>;

    /// Calls `each` for the records in the order of revisions.
    fn scan_records(&self, each: &mut dyn FnMut(u64, &[u8])) -> Result<()>;

    /// Deletes records. The deletion need not be durable: a crash may restore them.
    fn delete(&self, revisions: &[u64]) -> Result<()>;

    /// Returns freed space to the file system, as far as the engine supports it.
    fn compact(&mut self) -> Result<()>;
}

/// Opens or creates the store of the engine with this name.
pub(crate) fn open(name: &str, dir: &Path) -> Result<Box<dyn Engine>> {
    std::fs::create_dir_all(dir)?;
    match name {
        "fjall" => Ok(Box::new(crate::fjall_engine::Fjall::open(dir)?)),
        "redb" => Ok(Box::new(crate::redb_engine::Redb::open(dir)?)),
        "floor" => Ok(Box::new(crate::floor::Floor::open(dir)?)),
        other => Err(format!("unknown engine {other}; known are fjall, redb and floor").into()),
    }
}
