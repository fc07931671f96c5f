//! A disk that loses what was not synced, tears writes, fills up and fails; a file beside it can take
//! its place. What befalls it is decided by numbers that a test gives.
//!
//! ```text
//!   write ─▶ view (what reads see) + pending ── sync ─▶ durable
//!                                        ├── power loss: each pending write survives, is torn at a
//!                                        │   sector, or is lost, as the seed says
//!                                        └── failed sync: the same, but the view goes on showing it
//!                                            all, and later syncs say nothing (so does Linux)
//! ```

use std::collections::{BTreeMap, BTreeSet};
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

/// How often each operation fails, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chances {
    pub read: u32,
    /// A write that fails may have written its beginning.
    pub write: u32,
    pub set_len: u32,
    pub sync: u32,
    pub open: u32,
    /// Taking the place of the file beside, before it or after.
    pub rename: u32,
}

impl Chances {
    pub(super) const NONE: Chances = Chances { read: 0, write: 0, set_len: 0, sync: 0, open: 0, rename: 0 };
    const ALWAYS: Chances = Chances { read: 1000, write: 1000, set_len: 1000, sync: 1000, open: 1000, rename: 1000 };
}

/// How often each fault was seen to strike: a test that never meets a fault proves nothing of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Struck {
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
    /// Blocks that were ever written to; a file grows sparse.
    allocated: BTreeSet<u64>,
}

#[derive(Debug)]
struct Sim {
    files: BTreeMap<u64, File>,
    /// The file of the store's name.
    main: u64,
    beside: Option<u64>,
    /// The file that had the name before, while the renaming is not durable.
    former: Option<u64>,
    next_file: u64,
    /// Handles of an earlier generation belong to a machine that lost its power.
    generation: u64,
    /// So many more writes, length changes and syncs succeed before the power goes.
    steps_left: Option<u64>,
    /// So many more blocks can be allocated.
    room: Option<u64>,
    chances: Chances,
    /// A bug on purpose: the disk says that it has synced, and has not.
    sync_lies: bool,
    struck: Struck,
    rng: TestRng,
}

impl Default for Sim {
    fn default() -> Self {
        Sim {
            files: BTreeMap::from([(0, File::default())]),
            main: 0,
            beside: None,
            former: None,
            next_file: 1,
            generation: 0,
            steps_left: None,
            room: None,
            chances: Chances::NONE,
            sync_lies: false,
            struck: Struck::default(),
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
    /// Each pending write reaches the disk, or parts of it do, or nothing.
    fn settle(&mut self, rng: &mut TestRng, struck: &mut Struck) {
        let fits = |durable: &[u8], end: u64| end <= durable.len() as u64;
        for step in std::mem::take(&mut self.pending) {
            match (&step, rng.next_u32() % 4) {
                (_, 0) => struck.lost += 1,
                (Step::Write(offset, data), 1) => {
                    struck.torn += 1;
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
    /// Does something with this chance in a thousand happen?
    fn strikes(&mut self, chance: u32) -> bool {
        chance > 0 && self.rng.next_u32() % 1000 < chance
    }

    /// One more operation of a handle: fails when its machine has lost its power.
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
                    self.struck.full += 1;
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
        if self.strikes(self.chances.write) {
            self.struck.writes += 1;
            let sectors = self.rng.next_u32() as usize % (data.len() / SECTOR + 1);
            let begun = data[..sectors * SECTOR].to_vec();
            self.put(file, Step::Write(offset, begun))?;
            return Err(failure());
        }
        self.put(file, Step::Write(offset, data.to_vec()))
    }

    fn sync(&mut self, file: u64) -> io::Result<()> {
        let fails = self.strikes(self.chances.sync);
        let Sim { files, rng, struck, sync_lies, .. } = self;
        let file = files.entry(file).or_default();
        if fails {
            struck.syncs += 1;
            file.settle(rng, struck);
            return Err(failure());
        }
        if *sync_lies {
            return Ok(());
        }
        for step in std::mem::take(&mut file.pending) {
            // What a failed sync left short grows here: the length is the file system's, not the disk's.
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
    /// The power goes after so many more writes and syncs.
    pub(super) fn lose_power_after(&self, steps: u64) {
        self.sim.lock().steps_left = Some(steps);
    }

    /// The power comes back: of what was not synced, `seed` decides what survived.
    pub(super) fn power_back(&self, seed: u64) {
        let sim = &mut *self.sim.lock();
        let mut rng = rng(seed);
        for file in sim.files.values_mut() {
            file.settle(&mut rng, &mut sim.struck);
            file.view = file.durable.clone();
        }
        if let Some(former) = sim.former.take()
            && rng.next_u32().is_multiple_of(2)
        {
            sim.main = former;
        }
        sim.beside = None;
        sim.generation += 1;
        sim.steps_left = None;
    }

    /// So many more blocks can be allocated; `None` is no limit.
    pub(super) fn set_room(&self, room: Option<u64>) {
        self.sim.lock().room = room;
    }

    /// Operations fail with these chances from now on, as `seed` decides.
    pub(super) fn set_chances(&self, chances: Chances, seed: u64) {
        let mut sim = self.sim.lock();
        sim.chances = chances;
        sim.rng = rng(seed);
    }

    /// Everything fails, or no longer does.
    pub(super) fn set_broken(&self, broken: bool) {
        self.set_chances(if broken { Chances::ALWAYS } else { Chances::NONE }, 0);
    }

    /// A bug on purpose: syncing does nothing and succeeds.
    pub(super) fn set_sync_lies(&self, lies: bool) {
        self.sim.lock().sync_lies = lies;
    }

    /// What befell the disk so far.
    pub(super) fn struck(&self) -> Struck {
        self.sim.lock().struck
    }

    /// Damages one byte of what is stored.
    pub(super) fn flip(&self, at: usize) {
        let mut sim = self.sim.lock();
        let main = sim.main;
        let file = sim.files.entry(main).or_default();
        let at = at % file.view.len();
        file.view[at] ^= 0x40;
        file.durable[at] ^= 0x40;
    }

    /// A handle of the store's file or of another.
    fn handle(&self, which: impl Fn(&Sim) -> Option<u64>) -> io::Result<Box<dyn StorageBackend>> {
        let sim = &mut *self.sim.lock();
        if sim.steps_left == Some(0) || sim.strikes(sim.chances.open) {
            return Err(failure());
        }
        let file = which(sim).ok_or(io::ErrorKind::NotFound)?;
        // A renaming that is not durable yet is made so first.
        if sim.former.is_some() {
            if sim.strikes(sim.chances.sync) {
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
        if sim.strikes(sim.chances.read) {
            sim.struck.reads += 1;
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
        if sim.strikes(sim.chances.set_len) {
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
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    fn used_bytes(&self) -> Option<u64> {
        let sim = self.sim.lock();
        Some(sim.files[&sim.main].view.len() as u64)
    }
    fn beside(&self) -> io::Result<Arc<dyn Disk>> {
        let mut sim = self.sim.lock();
        let file = sim.next_file;
        sim.next_file += 1;
        sim.files.insert(file, File::default());
        sim.beside = Some(file);
        Ok(Arc::new(Beside(self.clone())))
    }
    fn take_beside(&self) -> io::Result<()> {
        let sim = &mut *self.sim.lock();
        sim.step(sim.generation)?;
        if sim.strikes(sim.chances.rename) {
            sim.struck.renames += 1;
            return Err(failure());
        }
        let beside = sim.beside.take().ok_or(io::ErrorKind::NotFound)?;
        sim.former = Some(std::mem::replace(&mut sim.main, beside));
        // Here the name stands for the new file, and a power loss may bring back the former.
        sim.step(sim.generation)?;
        if sim.strikes(sim.chances.rename) {
            sim.struck.renames += 1;
            return Err(failure());
        }
        sim.former = None;
        Ok(())
    }
    fn drop_beside(&self) {
        self.sim.lock().beside = None;
    }
}

/// The file beside the store's.
struct Beside(SimDisk);

impl Disk for Beside {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        self.0.handle(|sim| sim.beside)
    }
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    fn used_bytes(&self) -> Option<u64> {
        None
    }
    fn beside(&self) -> io::Result<Arc<dyn Disk>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn take_beside(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn drop_beside(&self) {}
}
