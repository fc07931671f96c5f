//! [`Verification`]: everything on disk is read and compared with what it says about itself, with
//! its neighbours, and with the index in memory.
//!
//! Looked at: the checksum of each header and each value; that each written revision has its value
//! and no value is without a header, and that lengths agree; that from the oldest revision on none
//! is missing, and each says truly which one it replaced; and that the keys, revisions and deadlines
//! in memory are those that the disk adds up to. Not looked at: pages of the engine that hold
//! nothing of this.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use listwatch_meta::{Key, KeyRange, Revision};

use super::Inner;
use super::engine::{EngineError, RawRecord};
use super::plan::{Length, Rebuild};
use super::record::{self, Header};
use crate::error::StoreFault;
use crate::mvcc::Stored;
use crate::retention::{Keeper, Retention};

/// [`Verification::findings`] holds at most this many; [`Verification::found`] counts on.
pub const FINDINGS_MAX: usize = 100;

/// So many keys are compared with the index while it is locked.
const COMPARE_KEYS: usize = 512;

/// Something on disk that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The revision it is about, where it is about one.
    pub revision: Option<Revision>,
    /// What is wrong, in a sentence without its end.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// What [`EmbeddedStorage::verify`](super::EmbeddedStorage::verify) saw.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Verification {
    /// The last revision at the moment that was looked at.
    pub revision: Revision,
    /// The oldest revision that could be read then.
    pub oldest: Revision,
    /// Revisions that were looked at: history, and the older states that still live.
    pub revisions: u64,
    /// Those that wrote a value.
    pub values: u64,
    /// Their length in bytes.
    pub value_bytes: u64,
    /// Keys that exist.
    pub keys: u64,
    /// Revisions that nobody can ask for any more and that the disk still holds.
    pub dead: u64,
    /// The index in memory was compared with all of the disk. False when history moved on under
    /// the comparison; then only a part of it was, and verifying again may get further.
    pub index_compared: bool,
    /// How many things are wrong.
    pub found: u64,
    /// The first [`FINDINGS_MAX`] of them.
    pub findings: Vec<Finding>,
}

impl Verification {
    /// Is all as it should be?
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }

    fn find(&mut self, revision: Option<Revision>, what: String) {
        self.found += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { revision, what });
        }
    }

    /// Looks at one record by itself; its header when that can be read.
    fn look(&mut self, record: &RawRecord<'_>) -> Option<Header> {
        let RawRecord { revision, header, value } = *record;
        self.revisions += 1;
        if let Some(value) = value {
            self.values += 1;
            self.value_bytes += record::value_len(value) as u64;
            if let Err(damaged) = record::check_value(revision, value) {
                self.find(Some(revision), damaged.0);
            }
        }
        let Some(header) = header else {
            self.find(Some(revision), format!("the value of revision {revision} has no header"));
            return None;
        };
        let header = match Header::decode(revision, header) {
            Ok(header) => header,
            Err(damaged) => {
                self.find(Some(revision), damaged.0);
                return None;
            }
        };
        match (header.put, value) {
            (Some(_), None) => self.find(Some(revision), format!("the value of revision {revision} is missing")),
            (None, Some(_)) => self.find(Some(revision), format!("revision {revision} is a removal and has a value")),
            (Some(put), Some(value)) if record::value_len(value) != put.length as usize => {
                let found = record::value_len(value);
                let what =
                    format!("the value of revision {revision} has {found} bytes, its header says {}", put.length);
                self.find(Some(revision), what);
            }
            _ => {}
        }
        Some(header)
    }

    /// Compares the keys that the disk adds up to with those in memory, as of the revision that was
    /// looked at.
    fn compare(&mut self, inner: &Inner, disk: &Rebuild) -> Result<(), StoreFault> {
        let at = self.revision;
        let mut from = String::new();
        loop {
            let state = inner.state.read();
            state.snapshot()?;
            let range = KeyRange::below("/").starting_at(&from);
            let pages =
                (disk.index.mvcc.first(&range, at, COMPARE_KEYS), state.index.mvcc.first(&range, at, COMPARE_KEYS));
            let (Ok(on_disk), Ok(in_memory)) = pages else { return Ok(()) };
            type Entry<'a> = (&'a Key, &'a Stored<Length>);
            let deadline = |index: &super::plan::Index, entry: Option<&Entry<'_>>| {
                entry.and_then(|(_, stored)| index.deadlines.of(stored.modified))
            };
            // Both are sorted; what differs first is told, and the comparison ends there.
            let differs = (0..on_disk.len().max(in_memory.len())).find(|n| {
                let (one, other) = (on_disk.get(*n), in_memory.get(*n));
                // A deadline is kept for a key's newest state alone.
                let newest = other.is_some_and(|(key, stored)| state.index.mvcc.get(key.as_str()) == Some(*stored));
                one != other || newest && deadline(&disk.index, one) != deadline(&state.index, other)
            });
            if let Some(n) = differs {
                let show = |entry: Option<&Entry<'_>>| {
                    let show = |(key, stored): &Entry<'_>| format!("{key} at revision {}", stored.modified);
                    entry.map_or("nothing more".to_owned(), show)
                };
                let what = format!(
                    "the index in memory differs from the disk: {}, on disk {}",
                    show(in_memory.get(n)),
                    show(on_disk.get(n))
                );
                self.find(None, what);
                return Ok(());
            }
            match on_disk.last() {
                Some((key, _)) if on_disk.len() == COMPARE_KEYS => {
                    from.clear();
                    from.push_str(key.as_str());
                    from.push('\0');
                }
                _ => break,
            }
        }
        self.index_compared = true;
        Ok(())
    }
}

/// See the file's head. Blocks until all is read.
pub(super) fn verify(inner: &Arc<Inner>) -> Result<Verification, StoreFault> {
    // The disk may be a moment ahead of the index: what the index does not have is left out.
    let (snapshot, current) = {
        let state = inner.state.read();
        (state.snapshot()?, state.index.mvcc.current())
    };
    let mut seen = Verification { oldest: snapshot.oldest()?, ..Verification::default() };
    let mut disk = Some(Rebuild::new(seen.oldest, Keeper::new(Retention::default())));
    seen.revision = current;
    let walked = snapshot.records_after(Revision::ZERO, |record| {
        if record.revision > current {
            return Ok(ControlFlow::Break(()));
        }
        match seen.look(&record) {
            Some(header) => {
                // What follows a contradiction contradicts too: only the first is told.
                if let Some(rebuild) = &mut disk
                    && let Err(damaged) = rebuild.add(record.revision, &header)
                {
                    seen.find(Some(record.revision), damaged.0);
                    disk = None;
                }
            }
            None => disk = None,
        }
        Ok(ControlFlow::Continue(()))
    });
    drop(snapshot);
    match walked {
        // The engine cannot read on: that is what was to be found out.
        Err(EngineError::Corrupt(what)) => {
            seen.find(None, what);
            return Ok(seen);
        }
        walked => walked?,
    }
    if let Some(disk) = disk {
        seen.keys = disk.index.mvcc.live();
        seen.dead = disk.dead.len() as u64;
        if disk.index.mvcc.current() != current {
            seen.find(None, format!("the disk ends at revision {}, the index at {current}", disk.index.mvcc.current()));
        }
        seen.compare(inner, &disk)?;
    }
    Ok(seen)
}
