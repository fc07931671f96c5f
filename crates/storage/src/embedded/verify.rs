//! Verification of a store: [`Verification`] compares all data on disk with its checksums, its
//! neighbors and the index in memory.
//!
//! The checks: each header and value has its checksum. Each written revision has a value of the
//! right length, and each value has a header. No revision after the oldest is missing, and each
//! refers to the revision that it replaced. Keys, revisions and deadlines in memory follow from the
//! disk. Pages of the engine without such data are not verified.

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
use crate::retention::{Retention, RetentionTracker};

/// The largest number of [`Verification::findings`]; [`Verification::found`] counts all problems.
pub const FINDINGS_MAX: usize = 100;

/// The number of keys that are compared with the index while it is locked.
const COMPARE_KEYS: usize = 512;

/// One inconsistency on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The revision concerned, if any.
    pub revision: Option<Revision>,
    /// The problem, as a sentence without a period.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// The result of [`EmbeddedStorage::verify`](super::EmbeddedStorage::verify).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Verification {
    /// The last revision at the verified moment.
    pub revision: Revision,
    /// The oldest readable revision at the verified moment.
    pub oldest: Revision,
    /// Verified revisions: the history, and older live states.
    pub revisions: u64,
    /// Revisions with a value.
    pub values: u64,
    /// The total length of all values in bytes.
    pub value_bytes: u64,
    /// Existing keys.
    pub keys: u64,
    /// Revisions on disk that are no longer readable.
    pub dead: u64,
    /// Whether the index in memory was compared with the whole disk. False if the history advanced
    /// during the comparison; then only a part was compared, and another verification may complete.
    pub index_compared: bool,
    /// The number of problems.
    pub found: u64,
    /// The first [`FINDINGS_MAX`] problems.
    pub findings: Vec<Finding>,
}

impl Verification {
    /// Whether no problem was found.
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }

    fn find(&mut self, revision: Option<Revision>, what: String) {
        self.found += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { revision, what });
        }
    }

    /// Verifies one record by itself; returns its header if it is readable.
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

    /// Compares the keys that follow from the disk with those in memory, at the verified revision.
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
            // Both are sorted. Only the first difference is reported; the comparison ends there.
            let differs = (0..on_disk.len().max(in_memory.len())).find(|n| {
                let (one, other) = (on_disk.get(*n), in_memory.get(*n));
                // Only a key's newest state has a deadline.
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

/// Runs the verification. Blocks until all data is read.
pub(super) fn verify(inner: &Arc<Inner>) -> Result<Verification, StoreFault> {
    // The disk may be ahead of the index: later revisions are skipped.
    let (snapshot, current) = {
        let state = inner.state.read();
        (state.snapshot()?, state.index.mvcc.current())
    };
    let mut seen = Verification { oldest: snapshot.oldest()?, ..Verification::default() };
    let mut disk = Some(Rebuild::new(seen.oldest, RetentionTracker::new(Retention::default())));
    seen.revision = current;
    let walked = snapshot.records_after(Revision::ZERO, |record| {
        if record.revision > current {
            return Ok(ControlFlow::Break(()));
        }
        match seen.look(&record) {
            Some(header) => {
                // One contradiction causes others, so only the first is reported.
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
        // The engine cannot read on, which is itself a finding.
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::engine::Engine;
    use super::super::faults::SimDisk;
    use super::super::plan::Plan;
    use super::super::record::Put;
    use super::super::{EmbeddedOptions, EmbeddedStorage};
    use super::*;

    /// Verifies one record by itself and returns the problems.
    fn check(header: Option<&[u8]>, value: Option<&[u8]>, expected: &[&str]) {
        let mut seen = Verification::default();
        seen.look(&RawRecord { revision: Revision::new(7), header, value });
        let texts: Vec<String> = seen.findings.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expected);
        assert_eq!((seen.found, seen.is_clean()), (expected.len() as u64, expected.is_empty()));
        assert!(seen.findings.iter().all(|finding| finding.revision == Some(Revision::new(7))));
        assert_eq!((seen.revisions, seen.values), (1, u64::from(value.is_some())));
        assert_eq!(seen.value_bytes, value.map_or(0, |record| record.len() as u64 - 4), "bytes without the checksum");
    }

    #[test]
    fn each_problem_of_a_record_is_found() {
        let at = Revision::new(7);
        let key = Key::new("pods", Some("ns"), "a").unwrap();
        let put = |length| Header {
            key: key.clone(),
            put: Some(Put { created: at, deadline: 0, length }),
            previous: Revision::ZERO,
        };
        let removal = Header { key: key.clone(), put: None, previous: Revision::new(3) }.encode(at);
        let (header, longer) = (put(5).encode(at), put(6).encode(at));
        let value = record::encode_value(at, b"value");
        let mut torn = value.clone();
        torn[0] ^= 1;
        check(Some(&header), Some(&value), &[]);
        check(Some(&removal), None, &[]);
        check(Some(&header), None, &["the value of revision 7 is missing"]);
        check(Some(&removal), Some(&value), &["revision 7 is a removal and has a value"]);
        check(Some(&longer), Some(&value), &["the value of revision 7 has 5 bytes, its header says 6"]);
        check(Some(&header), Some(&torn), &["the value of revision 7 does not match its checksum"]);
        check(Some(&header[1..]), Some(&value), &["the header of revision 7 does not match its checksum"]);
        check(None, Some(&value), &["the value of revision 7 has no header"]);
    }

    /// An index of keys, each created at the next revision, with a deadline or none.
    fn rebuilt(keys: &[(String, u64)]) -> Rebuild {
        let mut rebuild = Rebuild::new(Revision::ZERO, RetentionTracker::new(Retention::default()));
        for (name, deadline) in keys {
            let mut plan = Plan::new(&rebuild.index.mvcc);
            let key = Key::new("pods", Some("ns"), name).unwrap();
            plan.put(&key, Revision::ZERO, "v".into(), *deadline).unwrap();
            for (revision, header, _) in plan.into_records() {
                rebuild.add(revision, &header).unwrap();
            }
        }
        rebuild
    }

    #[test]
    fn index_in_memory_is_compared_with_the_disk() {
        let check = |memory: &[(String, u64)], disk: &[(String, u64)], expected: Option<&str>, why: &str| {
            let file = SimDisk::default();
            Engine::create(&file, 1 << 20).unwrap().close();
            let options = EmbeddedOptions::default();
            let committer = EmbeddedStorage::load(Arc::new(file), options, SystemTime::now).unwrap();
            committer.inner.state.write().index = rebuilt(memory).index;
            let disk = rebuilt(disk);
            let mut seen = Verification { revision: disk.index.mvcc.current(), ..Verification::default() };
            seen.compare(&committer.inner, &disk).unwrap();
            let found = seen
                .findings
                .first()
                .map(|finding| finding.what.strip_prefix("the index in memory differs from the disk: "));
            assert_eq!(found, expected.map(Some), "{why}");
            assert_eq!(seen.index_compared, expected.is_none(), "{why}");
        };
        let keys = |count: usize| (0..count).map(|n| (format!("k{n:04}"), 0)).collect::<Vec<_>>();
        let changed = |at: usize, change: (&str, u64)| {
            let mut keys = keys(2 * COMPARE_KEYS + 10);
            keys[at] = (change.0.to_owned(), change.1);
            keys
        };
        for count in [0, 1, COMPARE_KEYS, 2 * COMPARE_KEYS + 10] {
            check(&keys(count), &keys(count), None, "the same keys");
        }
        let all = keys(2 * COMPARE_KEYS + 10);
        let text = "/pods/ns/k0007 at revision 9, on disk /pods/ns/k0007x at revision 9";
        check(&all, &changed(7, ("k0007x", 0)), Some(text), "another key");
        let text = "/pods/ns/k0007 at revision 9, on disk /pods/ns/k0007 at revision 9";
        check(&all, &changed(7, ("k0007", 5)), Some(text), "another deadline");
        check(&changed(7, ("k0007", 5)), &changed(7, ("k0007", 5)), None, "the same deadline");
        let text = "/pods/ns/k1030 at revision 1032, on disk /pods/ns/k1030x at revision 1032";
        check(&all, &changed(1030, ("k1030x", 0)), Some(text), "a key of a later page");
    }

    #[test]
    fn findings_are_bounded_and_all_problems_are_counted() {
        let mut seen = Verification::default();
        (0..250).for_each(|n| seen.find(None, format!("{n}")));
        assert_eq!((seen.found, seen.findings.len()), (250, FINDINGS_MAX));
        assert_eq!(
            seen.findings.last().map(|finding| finding.what.as_str()),
            Some("99"),
            "the first problems are kept"
        );
    }
}
