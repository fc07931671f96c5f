//! A simulated disk that loses unsynced data, tears writes, fills up and fails; a side file can
//! replace the main file. Numbers given by a test determine the faults.
//!
//! ```text
//!   write ─▶ view (what reads see) + pending ── sync ─▶ durable
//!                                        ├── power loss: each pending write survives, is torn at a
//!                                        │   sector, or is lost, as the seed determines
//!                                        └── failed sync: the same, but the view still shows all
//!                                            writes, and later syncs succeed (as on Linux)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use redb::StorageBackend;

use super::engine::Disk;

/// The atomic write size of a disk, in bytes.
const SECTOR: usize = 512;

/// The allocation unit of a file system, in bytes. Rewriting a block needs no room.
const BLOCK: u64 = 4096;

/// The failure rate of each operation, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FaultRates {
    pub read: u32,
    /// Failures of writes. A failed write may have written a prefix.
    pub write: u32,
    pub set_len: u32,
    pub sync: u32,
    pub open: u32,
    /// Failures of the replacement by the side file, before or after it took effect.
    pub rename: u32,
}

impl FaultRates {
    pub(super) const NONE: FaultRates = FaultRates { read: 0, write: 0, set_len: 0, sync: 0, open: 0, rename: 0 };
    const ALWAYS: FaultRates =
        FaultRates { read: 1000, write: 1000, set_len: 1000, sync: 1000, open: 1000, rename: 1000 };
}

/// Counts of the injected faults, so that a test can check that faults occurred.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FaultCounts {
    pub reads: u64,
    pub writes: u64,
    pub torn: u64,
    pub syncs: u64,
    pub full: u64,
    pub lost: u64,
    pub renames: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

#[derive(Clone, Debug, Default)]
struct File {
    view: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Step>,
    /// Blocks that were written at least once; files are sparse.
    allocated: BTreeSet<u64>,
}

#[derive(Debug)]
struct Sim {
    files: BTreeMap<u64, File>,
    /// The file with the store's name.
    main: u64,
    create_side: Option<u64>,
    /// The file that had the store's name before a rename, while the rename is not durable.
    former: Option<u64>,
    next_file: u64,
    /// The number of power losses. Handles of an earlier generation fail.
    generation: u64,
    /// Writes, length changes and syncs that succeed before the power fails.
    steps_left: Option<u64>,
    /// Reads that succeed before one fails.
    reads_left: Option<u64>,
    /// Blocks that can still be allocated.
    room: Option<u64>,
    /// The free and the used bytes that the disk reports, instead of its real sizes.
    reported: Option<(u64, u64)>,
    /// The time of the last write, if known.
    written: Option<SystemTime>,
    fault_rates: FaultRates,
    /// Test bug: whether a sync does nothing and succeeds.
    sync_lies: bool,
    fault_counts: FaultCounts,
    rng: TestRng,
}

impl Default for Sim {
    fn default() -> Self {
        Sim {
            files: BTreeMap::from([(0, File::default())]),
            main: 0,
            create_side: None,
            former: None,
            next_file: 1,
            generation: 0,
            steps_left: None,
            reads_left: None,
            room: None,
            reported: None,
            written: None,
            fault_rates: FaultRates::NONE,
            sync_lies: false,
            fault_counts: FaultCounts::default(),
            rng: rng(0),
        }
    }
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

fn failure() -> io::Error {
    io::Error::other("the disk fails")
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

impl File {
    /// Applies each pending write completely, partly or not at all.
    fn settle(&mut self, rng: &mut TestRng, fault_counts: &mut FaultCounts) {
        let fits = |durable: &[u8], end: u64| end <= durable.len() as u64;
        for step in std::mem::take(&mut self.pending) {
            match (&step, rng.next_u32() % 4) {
                (_, 0) => fault_counts.lost += 1,
                (Step::Write(offset, data), 1) => {
                    fault_counts.torn += 1;
                    for (index, sector) in data.chunks(SECTOR).enumerate() {
                        let start = offset + (index * SECTOR) as u64;
                        if rng.next_u32().is_multiple_of(2) && fits(&self.durable, start + sector.len() as u64) {
                            apply(&mut self.durable, &Step::Write(start, sector.to_vec()));
                        }
                    }
                }
                (Step::Write(offset, data), _) => {
                    if fits(&self.durable, offset + data.len() as u64) {
                        apply(&mut self.durable, &step);
                    }
                }
                (Step::SetLen(_), _) => apply(&mut self.durable, &step),
            }
        }
    }
}

impl Sim {
    /// Whether an operation with this failure rate (in thousandths) fails.
    fn should_fail(&mut self, chance: u32) -> bool {
        chance > 0 && self.rng.next_u32() % 1000 < chance
    }

    /// Counts one operation of a handle; fails when the handle's machine has lost power.
    fn step(&mut self, generation: u64) -> io::Result<()> {
        if let Some(left) = &mut self.steps_left {
            *left = left.saturating_sub(1);
        }
        if generation != self.generation || self.steps_left == Some(0) { Err(failure()) } else { Ok(()) }
    }

    fn put(&mut self, file: u64, step: Step) -> io::Result<()> {
        let file = self.files.entry(file).or_default();
        if let Step::Write(offset, data) = &step {
            for block in offset / BLOCK..(offset + data.len() as u64).div_ceil(BLOCK) {
                if self.room == Some(0) && !file.allocated.contains(&block) {
                    self.fault_counts.full += 1;
                    return Err(io::ErrorKind::StorageFull.into());
                }
                if file.allocated.insert(block) {
                    self.room = self.room.map(|room| room - 1);
                }
            }
        }
        apply(&mut file.view, &step);
        file.pending.push(step);
        Ok(())
    }

    fn write(&mut self, file: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.should_fail(self.fault_rates.write) {
            self.fault_counts.writes += 1;
            let sectors = self.rng.next_u32() as usize % (data.len() / SECTOR + 1);
            let begun = data[..sectors * SECTOR].to_vec();
            self.put(file, Step::Write(offset, begun))?;
            return Err(failure());
        }
        self.put(file, Step::Write(offset, data.to_vec()))
    }

    fn sync(&mut self, file: u64) -> io::Result<()> {
        let fails = self.should_fail(self.fault_rates.sync);
        let Sim { files, rng, fault_counts, sync_lies, .. } = self;
        let file = files.entry(file).or_default();
        if fails {
            fault_counts.syncs += 1;
            file.settle(rng, fault_counts);
            return Err(failure());
        }
        if *sync_lies {
            return Ok(());
        }
        for step in std::mem::take(&mut file.pending) {
            // A failed sync still grows the file, because the file system keeps the length.
            if let Step::Write(offset, data) = &step {
                let end = usize::try_from(*offset).unwrap() + data.len();
                file.durable.resize(file.durable.len().max(end), 0);
            }
            apply(&mut file.durable, &step);
        }
        file.durable.resize(file.view.len(), 0);
        Ok(())
    }
}

/// A simulated disk; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct SimDisk {
    sim: Arc<Mutex<Sim>>,
}

impl SimDisk {
    /// Sets the time of the last write to the file.
    pub(super) fn set_written(&self, written: SystemTime) {
        self.sim.lock().written = Some(written);
    }

    /// Cuts the power after this many writes and syncs.
    pub(super) fn lose_power_after(&self, steps: u64) {
        self.sim.lock().steps_left = Some(steps);
    }

    /// Restores the power. `seed` determines the unsynced data that survived.
    pub(super) fn power_back(&self, seed: u64) {
        let sim = &mut *self.sim.lock();
        let mut rng = rng(seed);
        for file in sim.files.values_mut() {
            file.settle(&mut rng, &mut sim.fault_counts);
            file.view = file.durable.clone();
        }
        if let Some(former) = sim.former.take()
            && rng.next_u32().is_multiple_of(2)
        {
            sim.main = former;
        }
        sim.create_side = None;
        sim.generation += 1;
        sim.steps_left = None;
    }

    /// Makes one read fail after this many reads.
    pub(super) fn fail_read_after(&self, reads: u64) {
        self.sim.lock().reads_left = Some(reads);
    }

    /// Whether the read chosen by [`SimDisk::fail_read_after`] has failed.
    pub(super) fn chosen_read_failed(&self) -> bool {
        self.sim.lock().reads_left.is_none()
    }

    /// Sets the number of blocks that can be allocated; `None` for no limit.
    pub(super) fn set_room(&self, room: Option<u64>) {
        self.sim.lock().room = room;
    }

    /// Sets the free and the used bytes that the disk reports.
    pub(super) fn report(&self, free: u64, used: u64) {
        self.sim.lock().reported = Some((free, used));
    }

    /// Sets the failure rates from now on. `seed` determines which operations fail.
    pub(super) fn set_fault_rates(&self, fault_rates: FaultRates, seed: u64) {
        let mut sim = self.sim.lock();
        sim.fault_rates = fault_rates;
        sim.rng = rng(seed);
    }

    /// Makes every operation fail, or none.
    pub(super) fn set_broken(&self, broken: bool) {
        self.set_fault_rates(if broken { FaultRates::ALWAYS } else { FaultRates::NONE }, 0);
    }

    /// Test bug: syncs do nothing and succeed.
    pub(super) fn set_sync_lies(&self, lies: bool) {
        self.sim.lock().sync_lies = lies;
    }

    /// The faults injected so far.
    pub(super) fn fault_counts(&self) -> FaultCounts {
        self.sim.lock().fault_counts
    }

    /// Damages one stored byte.
    pub(super) fn flip(&self, at: usize) {
        let mut sim = self.sim.lock();
        let main = sim.main;
        let file = sim.files.entry(main).or_default();
        let at = at % file.view.len();
        file.view[at] ^= 0x40;
        file.durable[at] ^= 0x40;
    }

    /// A handle of the main file or the side file.
    fn handle(&self, which: impl Fn(&Sim) -> Option<u64>) -> io::Result<Box<dyn StorageBackend>> {
        let sim = &mut *self.sim.lock();
        if sim.steps_left == Some(0) || sim.should_fail(sim.fault_rates.open) {
            return Err(failure());
        }
        let file = which(sim).ok_or(io::ErrorKind::NotFound)?;
        // A rename that is not durable is made durable first.
        if sim.former.is_some() {
            if sim.should_fail(sim.fault_rates.sync) {
                return Err(failure());
            }
            sim.former = None;
        }
        Ok(Box::new(SimFile { sim: self.sim.clone(), file, generation: sim.generation }))
    }
}

#[derive(Debug)]
struct SimFile {
    sim: Arc<Mutex<Sim>>,
    file: u64,
    generation: u64,
}

impl StorageBackend for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.sim.lock().files[&self.file].view.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let sim = &mut *self.sim.lock();
        let last = sim.reads_left == Some(0);
        sim.reads_left = sim.reads_left.and_then(|left| left.checked_sub(1));
        if last || sim.should_fail(sim.fault_rates.read) {
            sim.fault_counts.reads += 1;
            return Err(failure());
        }
        let start = usize::try_from(offset).unwrap();
        let found = sim.files[&self.file].view.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let sim = &mut *self.sim.lock();
        sim.step(self.generation)?;
        if sim.should_fail(sim.fault_rates.set_len) {
            return Err(failure());
        }
        sim.put(self.file, Step::SetLen(len))
    }
    fn sync_data(&self) -> io::Result<()> {
        let sim = &mut *self.sim.lock();
        sim.step(self.generation)?;
        sim.sync(self.file)
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let sim = &mut *self.sim.lock();
        sim.step(self.generation)?;
        sim.write(self.file, offset, data)
    }
}

impl Disk for SimDisk {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        self.handle(|sim| Some(sim.main))
    }
    fn written(&self) -> Option<SystemTime> {
        self.sim.lock().written
    }
    fn free_bytes(&self) -> Option<u64> {
        Some(self.sim.lock().reported?.0)
    }
    fn used_bytes(&self) -> Option<u64> {
        let sim = self.sim.lock();
        Some(sim.reported.map_or(sim.files[&sim.main].view.len() as u64, |(_, used)| used))
    }
    fn create_side(&self) -> io::Result<Arc<dyn Disk>> {
        let mut sim = self.sim.lock();
        let file = sim.next_file;
        sim.next_file += 1;
        sim.files.insert(file, File::default());
        sim.create_side = Some(file);
        Ok(Arc::new(SideDisk(self.clone())))
    }
    fn promote_side(&self) -> io::Result<()> {
        let sim = &mut *self.sim.lock();
        sim.step(sim.generation)?;
        if sim.should_fail(sim.fault_rates.rename) {
            sim.fault_counts.renames += 1;
            return Err(failure());
        }
        let create_side = sim.create_side.take().ok_or(io::ErrorKind::NotFound)?;
        sim.former = Some(std::mem::replace(&mut sim.main, create_side));
        // From here the name refers to the new file, and a power loss may restore the former.
        sim.step(sim.generation)?;
        if sim.should_fail(sim.fault_rates.rename) {
            sim.fault_counts.renames += 1;
            return Err(failure());
        }
        sim.former = None;
        Ok(())
    }
    fn discard_side(&self) {
        self.sim.lock().create_side = None;
    }
}

/// The side file.
struct SideDisk(SimDisk);

impl Disk for SideDisk {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        self.0.handle(|sim| sim.create_side)
    }
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    fn used_bytes(&self) -> Option<u64> {
        None
    }
    fn create_side(&self) -> io::Result<Arc<dyn Disk>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn promote_side(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn discard_side(&self) {}
}
