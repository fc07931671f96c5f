//! Decides a batch of writes before the batch is written; pure.
//!
//! The writes of a batch are decided in order, each on the outcome of its predecessors. [`Rebuild`]
//! is the inverse: it builds the index in memory from the headers on disk.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use listwatch_meta::{Key, Revision};

use super::record::{CorruptRecord, Header, Put};
use crate::mvcc::{FIRST_REVISION, Mvcc, Stored};
use crate::retention::RetentionTracker;
use crate::ttl::{Deadlines, Millis};

/// The length of a value in bytes. The index does not store the value itself.
pub(super) type Length = u32;

/// One change to be written.
pub(super) type Record = (Revision, Header, Option<Bytes>);

/// The error of a write whose key is not at the expected revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict;

/// The decided changes of a batch.
pub(super) struct Plan<'a> {
    mvcc: &'a Mvcc<Length>,
    /// The index of each key's newest record in this batch.
    touched: HashMap<Key, usize>,
    records: Vec<Record>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(mvcc: &'a Mvcc<Length>) -> Self {
        Plan { mvcc, touched: HashMap::new(), records: Vec::new() }
    }

    /// Writes a key that is at `expected` (zero for absent).
    ///
    /// # Errors
    /// [`Conflict`] when the key is at another revision.
    pub(super) fn put(
        &mut self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        deadline: Millis,
    ) -> Result<Revision, Conflict> {
        let created = self.check(key, expected)?;
        let revision = self.next();
        // The caller rejects values above u32 long before.
        let length = Length::try_from(value.len()).unwrap_or(Length::MAX);
        let put = Put { created: created.unwrap_or(revision), deadline, length };
        self.push(Header { key: key.clone(), put: Some(put), previous: expected }, Some(value));
        Ok(revision)
    }

    /// Removes a key that is at `expected`.
    ///
    /// # Errors
    /// [`Conflict`] when the key is at another revision.
    pub(super) fn delete(&mut self, key: &Key, expected: Revision) -> Result<Revision, Conflict> {
        if self.check(key, expected)?.is_none() {
            return Err(Conflict);
        }
        let revision = self.next();
        self.push(Header { key: key.clone(), put: None, previous: expected }, None);
        Ok(revision)
    }

    /// The records to write.
    pub(super) fn into_records(self) -> Vec<Record> {
        self.records
    }

    fn next(&self) -> Revision {
        Revision::new(self.mvcc.current().get() + self.records.len() as u64 + 1)
    }

    fn push(&mut self, header: Header, value: Option<Bytes>) {
        self.touched.insert(header.key.clone(), self.records.len());
        self.records.push((self.next(), header, value));
    }

    /// The revision of a key's creation, if the key is at `expected`.
    fn check(&self, key: &Key, expected: Revision) -> Result<Option<Revision>, Conflict> {
        let newest = match self.touched.get(key) {
            Some(index) => {
                let (revision, header, _) = &self.records[*index];
                header.put.map(|put| (put.created, *revision))
            }
            None => self.mvcc.get(key.as_str()).map(|stored| (stored.created, stored.modified)),
        };
        match newest {
            Some((created, modified)) if modified == expected => Ok(Some(created)),
            None if expected.is_zero() => Ok(None),
            _ => Err(Conflict),
        }
    }
}

/// The part of the store in memory: everything except the values.
#[derive(Debug)]
pub(super) struct Index {
    pub mvcc: Mvcc<Length>,
    pub deadlines: Deadlines,
    pub keeper: RetentionTracker,
    /// Bytes of the existing keys and their values.
    pub live_bytes: u64,
    /// The steady clock minus the wall clock, in milliseconds. Deadlines expire on the steady clock
    /// and are stored in wall-clock time.
    pub steady_ahead: i64,
}

impl Index {
    /// The bytes of the store, including history.
    pub(super) fn bytes(&self) -> u64 {
        self.live_bytes + self.keeper.bytes()
    }

    /// Creates an empty index whose history begins at `oldest`.
    pub(super) fn new(oldest: Revision, keeper: RetentionTracker) -> Self {
        let mvcc = Mvcc::new(oldest, oldest.max(FIRST_REVISION));
        Index { mvcc, deadlines: Deadlines::default(), keeper, live_bytes: 0, steady_ahead: 0 }
    }

    /// Adds a durable change.
    ///
    /// # Errors
    /// The change contradicts the index.
    pub(super) fn apply(&mut self, revision: Revision, header: &Header) -> Result<(), CorruptRecord> {
        let mvcc = &mut self.mvcc;
        if revision != mvcc.current().next() {
            return Err(CorruptRecord(format!("revision {} is missing", mvcc.current().next())));
        }
        let previous = mvcc.get(header.key.as_str()).copied();
        let replaced = previous.map_or(Revision::ZERO, |stored| stored.modified);
        let contradicts = |what: &str| CorruptRecord(format!("revision {revision} of {} {what}", header.key));
        if replaced != header.previous {
            return Err(contradicts(&format!("replaces revision {}, the key is at {replaced}", header.previous)));
        }
        match header.put {
            Some(put) => {
                if put.created != previous.map_or(revision, |stored| stored.created) {
                    return Err(contradicts("has another revision of creation than the state before"));
                }
                mvcc.put(&header.key, put.length);
            }
            None => {
                mvcc.delete(header.key.as_str()).ok_or_else(|| contradicts("removes nothing"))?;
            }
        }
        self.deadlines.forget(header.previous);
        let previous_length = previous.map(|stored| stored.value);
        self.keeper.added(RetentionTracker::cost(header.key.as_str().len(), previous_length.unwrap_or(0) as usize));
        self.settle(revision, header, previous_length);
        Ok(())
    }

    /// Adds a change older than the history. Only the last state of a key is kept. Returns the
    /// state that it replaces.
    fn restore(&mut self, revision: Revision, header: &Header) -> Option<Stored<Length>> {
        let former = match header.put {
            Some(put) => {
                let stored = Stored { value: put.length, created: put.created, modified: revision };
                self.mvcc.restore(&header.key, stored)
            }
            None => self.mvcc.unrestore(header.key.as_str()),
        };
        if let Some(former) = former {
            self.deadlines.forget(former.modified);
        }
        self.settle(revision, header, former.map(|stored| stored.value));
        former
    }

    /// Updates the deadline and the size of the live keys.
    fn settle(&mut self, revision: Revision, header: &Header, previous: Option<Length>) {
        let weight = |length: Length| header.key.as_str().len() as u64 + u64::from(length);
        self.live_bytes -= previous.map_or(0, weight);
        if let Some(put) = header.put {
            self.live_bytes += weight(put.length);
            if put.deadline > 0 {
                let due = put.deadline.saturating_add_signed(self.steady_ahead);
                self.deadlines.set(header.key.clone(), revision, due, put.deadline);
            }
        }
    }
}

/// Builds the index from the headers on disk, in the order of their revisions.
#[derive(Debug)]
pub(super) struct Rebuild {
    /// Up to this revision, only the last state of each key is kept.
    base: Revision,
    pub index: Index,
    /// Revisions on disk that are no longer readable, because their removal was not finished.
    pub dead: VecDeque<Revision>,
}

impl Rebuild {
    /// Begins a rebuild; `oldest` is the oldest readable revision.
    pub(super) fn new(oldest: Revision, keeper: RetentionTracker) -> Self {
        Rebuild { base: oldest.max(FIRST_REVISION), index: Index::new(oldest, keeper), dead: VecDeque::new() }
    }

    /// Adds the next header.
    ///
    /// # Errors
    /// A header is missing before this one, or it contradicts the others.
    pub(super) fn add(&mut self, revision: Revision, header: &Header) -> Result<(), CorruptRecord> {
        if revision > self.base {
            return self.index.apply(revision, header);
        }
        // The order matters: if a removal were deleted from disk before the state that it removed,
        // that state would reappear.
        self.dead.extend(self.index.restore(revision, header).map(|former| former.modified));
        if header.put.is_none() {
            self.dead.push_back(revision);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retention::Retention;

    fn key(name: &str) -> Key {
        Key::new("pods", Some("ns"), name).unwrap()
    }

    fn keeper() -> RetentionTracker {
        RetentionTracker::new(Retention::default())
    }

    fn rebuild(oldest: Revision, headers: &[(Revision, Header)]) -> Result<Rebuild, CorruptRecord> {
        let mut rebuild = Rebuild::new(oldest, keeper());
        for (revision, header) in headers {
            rebuild.add(*revision, header)?;
        }
        Ok(rebuild)
    }

    #[test]
    fn each_write_of_a_batch_sees_its_predecessors() {
        let mvcc = Mvcc::new(Revision::ZERO, FIRST_REVISION);
        let mut plan = Plan::new(&mvcc);
        let at = Revision::new;
        assert_eq!(plan.put(&key("a"), at(0), "1".into(), 0), Ok(at(2)));
        assert_eq!(plan.put(&key("a"), at(0), "2".into(), 0), Err(Conflict), "the key is there by then");
        assert_eq!(plan.put(&key("a"), at(2), "3".into(), 0), Ok(at(3)));
        assert_eq!(plan.delete(&key("a"), at(2)), Err(Conflict), "the key was changed by then");
        assert_eq!(plan.delete(&key("a"), at(3)), Ok(at(4)));
        assert_eq!(plan.delete(&key("a"), at(3)), Err(Conflict), "the key is gone by then");
        assert_eq!(plan.put(&key("a"), at(3), "4".into(), 0), Err(Conflict), "an update does not create a key again");
        assert_eq!(plan.delete(&key("never"), at(0)), Err(Conflict));
        assert_eq!(plan.put(&key("a"), at(0), "4".into(), 0), Ok(at(5)));
        let records = plan.into_records();
        assert_eq!(records.iter().map(|(revision, ..)| revision.get()).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!(records[3].1.put.unwrap().created, at(5), "a key that came back is new");
    }

    /// Random writes in batches: the index rebuilt from disk equals the original.
    #[test]
    fn index_rebuilt_from_headers_equals_the_original() {
        let mut index = Index::new(Revision::ZERO, keeper());
        let mut disk: Vec<(Revision, Header)> = Vec::new();
        for batch in 0..40_u64 {
            let mut plan = Plan::new(&index.mvcc);
            for n in 0..batch % 5 {
                let key = key(&format!("k{}", (batch * 7 + n * 3) % 11));
                let at = match plan.touched.get(&key) {
                    Some(index) => Some(&plan.records[*index]).filter(|record| record.1.put.is_some()).map(|r| r.0),
                    None => index.mvcc.get(key.as_str()).map(|stored| stored.modified),
                };
                let at = at.unwrap_or_default();
                if !at.is_zero() && (batch + n) % 4 == 0 {
                    plan.delete(&key, at).unwrap();
                } else {
                    plan.put(&key, at, vec![0; batch as usize].into(), (batch % 3) * 1000).unwrap();
                }
            }
            for (revision, header, _) in plan.into_records() {
                index.apply(revision, &header).unwrap();
                disk.push((revision, header));
            }
        }
        for oldest in 0..=index.mvcc.current().get() {
            let oldest = Revision::new(oldest);
            let rebuilt = rebuild(oldest, &disk).unwrap();
            assert_eq!(rebuilt.index.mvcc.current(), index.mvcc.current());
            assert_eq!(rebuilt.index.mvcc.oldest(), oldest);
            assert_eq!(rebuilt.index.deadlines.next(), index.deadlines.next());
            assert_eq!(rebuilt.index.live_bytes, index.live_bytes);
            for at in oldest.max(FIRST_REVISION).get()..=index.mvcc.current().get() {
                let range = listwatch_meta::KeyRange::resource("pods");
                let states = |mvcc: &Mvcc<Length>| {
                    let page = mvcc.list(&range, Revision::new(at), 0).unwrap();
                    page.items.iter().map(|(key, stored)| ((*key).clone(), **stored)).collect::<Vec<_>>()
                };
                assert_eq!(states(&rebuilt.index.mvcc), states(&index.mvcc), "at {at}, oldest {oldest}");
            }
            // No readable revision shows a dead one, so any prefix of them may be deleted.
            for gone in [rebuilt.dead.len(), rebuilt.dead.len() / 2, 1] {
                let gone: Vec<_> = rebuilt.dead.iter().take(gone).collect();
                let kept: Vec<_> = disk.iter().filter(|(at, _)| !gone.contains(&at)).cloned().collect();
                let again = rebuild(oldest, &kept).unwrap();
                assert_eq!(again.index.mvcc.live(), index.mvcc.live());
                assert_eq!(again.index.live_bytes, index.live_bytes);
                assert_eq!(again.dead.len(), rebuilt.dead.len() - gone.len());
            }
        }
    }

    #[test]
    fn gap_or_contradiction_in_headers_is_reported_as_corruption() {
        let put = |created, previous| Header {
            key: key("a"),
            put: Some(Put { created: Revision::new(created), deadline: 0, length: 1 }),
            previous: Revision::new(previous),
        };
        let delete = |previous| Header { key: key("a"), put: None, previous: Revision::new(previous) };
        let check = |headers: Vec<(u64, Header)>| {
            let headers = headers.into_iter().map(|(revision, header)| (Revision::new(revision), header));
            rebuild(Revision::ZERO, &headers.collect::<Vec<_>>()).map(|rebuilt| rebuilt.index.mvcc.current().get())
        };
        assert_eq!(check(vec![]), Ok(1));
        assert_eq!(check(vec![(2, put(2, 0)), (3, put(2, 2)), (4, delete(3))]), Ok(4));
        assert!(check(vec![(2, put(2, 0)), (4, put(2, 2))]).is_err(), "a revision is missing");
        assert!(check(vec![(3, put(3, 0))]).is_err(), "the first revision is missing");
        assert!(check(vec![(2, put(2, 0)), (3, put(2, 0))]).is_err(), "a state is not accounted for");
        assert!(check(vec![(2, put(2, 0)), (3, put(3, 2))]).is_err(), "created does not fit");
        assert!(check(vec![(2, delete(0))]).is_err(), "nothing to remove");
    }
}
