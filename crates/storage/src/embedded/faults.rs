//! A disk that loses what was not synced, tears writes, fills up and fails, and the tests that run
//! the whole store on it.
//!
//! ```text
//!   write ─▶ view (what reads see) + pending ── sync ─▶ durable
//!                                        └── power loss: each pending write survives, is torn at a
//!                                            sector, or is lost, as the seed says
//! ```

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use redb::StorageBackend;

use super::engine::Disk;

/// What a disk writes as a whole, in bytes.
const SECTOR: usize = 512;

/// What a file system allocates as a whole, in bytes. Writing to a block again takes no room.
const BLOCK: u64 = 4096;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

#[derive(Debug, Default)]
struct Sim {
    view: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Step>,
    /// Handles of an earlier generation belong to a machine that lost its power.
    generation: u64,
    /// So many more writes, length changes and syncs succeed before the power goes.
    steps_left: Option<u64>,
    /// Blocks that were ever written to; a file grows sparse.
    allocated: BTreeSet<u64>,
    /// So many more blocks can be allocated.
    room: Option<u64>,
    /// Every write and sync fails.
    broken: bool,
}

fn apply(to: &mut Vec<u8>, step: &Step) {
    match step {
        Step::Write(offset, data) => {
            let start = usize::try_from(*offset).unwrap();
            to[start..start + data.len()].copy_from_slice(data);
        }
        Step::SetLen(len) => to.resize(usize::try_from(*len).unwrap(), 0),
    }
}

impl Sim {
    fn change(&mut self, generation: u64, step: Option<Step>) -> io::Result<()> {
        if let Some(left) = &mut self.steps_left {
            *left = left.saturating_sub(1);
        }
        if generation != self.generation || self.broken || self.steps_left == Some(0) {
            return Err(io::Error::other("the disk fails"));
        }
        match step {
            Some(step) => {
                if let Step::Write(offset, data) = &step {
                    for block in offset / BLOCK..(offset + data.len() as u64).div_ceil(BLOCK) {
                        if self.room == Some(0) && !self.allocated.contains(&block) {
                            return Err(io::ErrorKind::StorageFull.into());
                        }
                        if self.allocated.insert(block) {
                            self.room = self.room.map(|room| room - 1);
                        }
                    }
                }
                apply(&mut self.view, &step);
                self.pending.push(step);
            }
            None => {
                for step in std::mem::take(&mut self.pending) {
                    apply(&mut self.durable, &step);
                }
            }
        }
        Ok(())
    }
}

/// A simulated disk; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct SimDisk {
    sim: Arc<Mutex<Sim>>,
    beside: Arc<Mutex<Option<SimDisk>>>,
}

impl SimDisk {
    /// The power goes after so many more writes and syncs.
    pub(super) fn lose_power_after(&self, steps: u64) {
        self.sim.lock().steps_left = Some(steps);
    }

    /// The power comes back: of what was not synced, `seed` decides what survived.
    pub(super) fn power_back(&self, seed: u64) {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let sim = &mut *self.sim.lock();
        for step in std::mem::take(&mut sim.pending) {
            match (&step, rng.next_u32() % 4) {
                (_, 0) => {}
                (Step::Write(offset, data), 1) => {
                    // Each sector on its own reaches the disk or does not.
                    for (index, sector) in data.chunks(SECTOR).enumerate() {
                        if rng.next_u32().is_multiple_of(2) {
                            let end = offset + ((index + 1) * SECTOR) as u64;
                            if end <= sim.durable.len() as u64 {
                                apply(
                                    &mut sim.durable,
                                    &Step::Write(offset + (index * SECTOR) as u64, sector.to_vec()),
                                );
                            }
                        }
                    }
                }
                (Step::Write(offset, data), _) => {
                    if offset + data.len() as u64 <= sim.durable.len() as u64 {
                        apply(&mut sim.durable, &step);
                    }
                }
                (Step::SetLen(_), _) => apply(&mut sim.durable, &step),
            }
        }
        sim.view = sim.durable.clone();
        sim.generation += 1;
        sim.steps_left = None;
    }

    /// So many more blocks can be allocated; `None` is no limit.
    pub(super) fn set_room(&self, room: Option<u64>) {
        self.sim.lock().room = room;
    }

    /// Every write and sync fails, or no longer does.
    pub(super) fn set_broken(&self, broken: bool) {
        self.sim.lock().broken = broken;
    }

    /// Damages one byte of what is stored.
    pub(super) fn flip(&self, at: usize) {
        let mut sim = self.sim.lock();
        let at = at % sim.view.len();
        sim.view[at] ^= 0x40;
        sim.durable[at] ^= 0x40;
    }
}

#[derive(Debug)]
struct SimFile {
    sim: Arc<Mutex<Sim>>,
    generation: u64,
}

impl StorageBackend for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.sim.lock().view.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let sim = self.sim.lock();
        let start = usize::try_from(offset).unwrap();
        let found = sim.view.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.sim.lock().change(self.generation, Some(Step::SetLen(len)))
    }
    fn sync_data(&self) -> io::Result<()> {
        self.sim.lock().change(self.generation, None)
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.sim.lock().change(self.generation, Some(Step::Write(offset, data.to_vec())))
    }
}

impl Disk for SimDisk {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let sim = self.sim.lock();
        if sim.broken || sim.steps_left == Some(0) {
            return Err(io::Error::other("the disk fails"));
        }
        Ok(Box::new(SimFile { sim: self.sim.clone(), generation: sim.generation }))
    }
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    fn used_bytes(&self) -> Option<u64> {
        Some(self.sim.lock().view.len() as u64)
    }
    fn beside(&self) -> io::Result<Arc<dyn Disk>> {
        let beside = SimDisk::default();
        *self.beside.lock() = Some(beside.clone());
        Ok(Arc::new(beside))
    }
    fn take_beside(&self) -> io::Result<()> {
        Err(io::Error::other("the disk fails"))
    }
    fn drop_beside(&self) {
        *self.beside.lock() = None;
    }
}

mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use bytes::Bytes;
    use listwatch_meta::{Key, KeyRange, Revision};
    use proptest::prelude::*;

    use super::*;
    use crate::embedded::{EmbeddedOptions, EmbeddedStorage, Engine};
    use crate::error::{CreateError, StoreFault};
    use crate::retention::Retention;
    use crate::types::{ListQuery, Storage, WatchItem};

    fn options() -> EmbeddedOptions {
        let retention = Retention { age: Duration::ZERO, revisions: 20, bytes: 1 << 20 };
        EmbeddedOptions { retention, cache_bytes: 1 << 20, reserve_bytes: 0 }
    }

    fn new_disk() -> SimDisk {
        let disk = SimDisk::default();
        Engine::create(&disk, 1 << 20).unwrap().close();
        disk
    }

    fn open(disk: &SimDisk) -> Arc<EmbeddedStorage> {
        EmbeddedStorage::load(Arc::new(disk.clone()), options()).unwrap().start(None)
    }

    fn key(n: u64) -> Key {
        Key::new("pods", Some("ns"), &format!("k{n}")).unwrap()
    }

    async fn listed(store: &EmbeddedStorage) -> BTreeMap<Key, (Revision, Bytes)> {
        let page = store.list(ListQuery { range: KeyRange::resource("pods"), at: None, limit: 0 }).await.unwrap();
        page.items.into_iter().map(|item| (item.key, (item.modified, item.value))).collect()
    }

    /// Writes until the power goes, several times over. What was acknowledged is there, what was
    /// not is there whole or not at all, and the revision does not go back.
    async fn check_power_losses(losses: &[(u64, u64)]) -> Result<(), TestCaseError> {
        let disk = new_disk();
        let mut acknowledged: BTreeMap<Key, (Revision, Bytes)> = BTreeMap::new();
        let mut last = Revision::ZERO;
        let mut n = 0_u64;
        for (steps, seed) in losses {
            let store = open(&disk);
            let now = store.current_revision().await.unwrap();
            prop_assert!(now >= last, "the revision went back from {last} to {now}");
            prop_assert_eq!(&listed(&store).await, &acknowledged, "opened again");
            disk.lose_power_after(*steps);
            // The write that is under way when the power goes, and what it would lead to.
            let undecided = loop {
                n += 1;
                let key = key(n * 7 % 13);
                let value = Bytes::from(vec![n as u8; (n * 331 % 9000) as usize]);
                let at = acknowledged.get(&key).map(|(revision, _)| *revision);
                let written = match at {
                    None => store.create(&key, value.clone(), None).await.ok(),
                    Some(at) if n.is_multiple_of(4) => match store.delete(&key, at).await {
                        Ok(revision) => {
                            last = revision;
                            acknowledged.remove(&key);
                            continue;
                        }
                        Err(_) => break (key, None),
                    },
                    Some(at) => store.update(&key, at, value.clone(), None).await.ok(),
                };
                match written {
                    Some(revision) => {
                        last = revision;
                        acknowledged.insert(key, (revision, value));
                    }
                    None => break (key, Some(value)),
                }
            };
            store.close().await;
            disk.power_back(*seed);

            let store = open(&disk);
            let now = listed(&store).await;
            let (key, value) = undecided;
            let before = acknowledged.get(&key).cloned();
            let after = now.get(&key).cloned();
            if after != before {
                // It happened, and then as a whole.
                prop_assert_eq!(after.as_ref().map(|(_, value)| value.clone()), value);
                match after {
                    Some(after) => acknowledged.insert(key, after),
                    None => acknowledged.remove(&key),
                };
            }
            prop_assert_eq!(&now, &acknowledged, "after the power came back");
            store.close().await;
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn nothing_acknowledged_is_lost_with_the_power(
            losses in prop::collection::vec((1..400_u64, any::<u64>()), 1..6)
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(check_power_losses(&losses))?;
        }
    }

    #[tokio::test]
    async fn a_full_disk_stops_writes_and_nothing_else() {
        let disk = new_disk();
        let store = open(&disk);
        let first = store.create(&key(1), vec![1; 3000].into(), None).await.unwrap();
        let mut watch = store.watch(KeyRange::resource("pods"), Revision::ZERO).await.unwrap();
        disk.set_room(Some(8));
        let mut last = first;
        let mut n = 2;
        for refused in 1..=3 {
            let error = loop {
                match store.create(&key(n), vec![2; 3000].into(), None).await {
                    Ok(revision) => last = revision,
                    Err(error) => break error,
                }
                n += 1;
            };
            assert!(matches!(error, CreateError::Fault(StoreFault::NoSpace(_))), "refusal {refused}: {error:?}");
            let (found, revision) = store.get(&key(1)).await.unwrap();
            assert_eq!((found.unwrap().value, revision), (Bytes::from(vec![1; 3000]), last), "reads go on");
        }
        for revision in first.get()..=last.get() {
            let item = watch.next().await;
            assert!(matches!(item, Some(WatchItem::Event(event)) if event.revision().get() == revision));
        }
        disk.set_room(None);
        let second = store.create(&key(n), vec![3; 3000].into(), None).await.unwrap();
        assert_eq!(second, last.next(), "a write that failed took no revision");
        assert!(matches!(watch.next().await, Some(WatchItem::Event(event)) if event.revision() == second));
        assert_eq!(listed(&store).await.len() as u64, n);
    }

    #[tokio::test]
    async fn a_disk_that_fails_for_a_while_comes_back() {
        let disk = new_disk();
        let store = open(&disk);
        let first = store.create(&key(1), "1".into(), None).await.unwrap();
        disk.set_broken(true);
        let error = store.create(&key(2), "2".into(), None).await.unwrap_err();
        assert!(matches!(error, CreateError::Fault(StoreFault::Unavailable(_))), "{error:?}");
        assert!(store.health().await.is_err());
        disk.set_broken(false);
        let mut watch = None;
        while watch.is_none() {
            // The committer tries again by itself; how soon is its affair.
            watch = store.watch(KeyRange::resource("pods"), first).await.ok();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        store.health().await.unwrap();
        let second = store.create(&key(3), "3".into(), None).await.unwrap();
        assert!(matches!(watch.unwrap().next().await, Some(WatchItem::Event(event)) if event.revision() == second));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// A flipped byte is noticed when the store is opened or when the value is read, or it was
        /// in a place that does not matter. It never changes what is read, and nothing panics.
        #[test]
        fn damage_is_noticed(at in any::<usize>()) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let disk = new_disk();
            let expected = runtime.block_on(async {
                let store = open(&disk);
                for n in 0..30 {
                    store.create(&key(n), vec![n as u8; 2000].into(), None).await.unwrap();
                }
                let expected = listed(&store).await;
                store.close().await;
                expected
            });
            disk.flip(at);
            std::panic::set_hook(Box::new(|_| {}));
            let opened = EmbeddedStorage::load(Arc::new(disk.clone()), options());
            if let Ok(committer) = opened {
                let store = committer.start(None);
                runtime.block_on(async {
                    for (key, (_, value)) in &expected {
                        if let Ok((found, _)) = store.get(key).await {
                            prop_assert_eq!(found.map(|found| found.value), Some(value.clone()));
                        }
                    }
                    Ok(())
                })?;
            }
        }
    }
}
