//! Measures the store alone: the memory of many keys with two indexes, and the cost of readers for
//! the writer.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use listwatch_client::{DeltaFifo, FifoConfig, Indexer, KeepJson, Object, RawObject, Stored as _};
use listwatch_meta::Change;
use rustix::time::{ClockId, clock_gettime};

use crate::memory;
use crate::server::{Shape, object};

/// The size of the objects in bytes, and the memory of a store of them with indexes by label and by
/// owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) objects: usize,
    pub(crate) held: usize,
    /// The peak of the memory during a relist of the same state, in bytes.
    pub(crate) relist_peak: usize,
}

struct Copy {
    fifo: DeltaFifo<KeepJson>,
    indexer: Indexer,
}

impl Copy {
    fn new() -> Self {
        Copy { fifo: DeltaFifo::new(KeepJson, FifoConfig::default()), indexer: Indexer::new() }
    }

    fn drain(&mut self) -> usize {
        let mut applied_changes = 0;
        while !self.fifo.is_empty() {
            let mut changes = Vec::new();
            for delta in self.fifo.pop_batch(self.indexer.current(), 1_000) {
                self.indexer.apply(delta, &mut changes);
            }
            self.fifo.finish_batch();
            self.indexer.publish();
            applied_changes += changes.len();
        }
        applied_changes
    }

    /// Lists all objects, each prepared separately, so that a page does not count.
    fn list(&mut self, objects: usize, shape: Shape) -> usize {
        let mut bytes = 0;
        self.fifo.begin_replace(self.indexer.current());
        for number in 0..objects {
            let text = object(number, number + 1, shape, true);
            bytes += text.len();
            self.fifo.collect(Change::Added, &RawObject::new(Bytes::from(text)).expect("JSON"));
        }
        self.fifo.commit_replace("1");
        self.drain();
        bytes
    }
}

pub(crate) fn weigh(keys: usize, shape: Shape) -> Weight {
    let before = memory::held();
    let mut copy = Copy::new();
    copy.indexer.add_index(|object: &Object| object.label("app").map(|app| app.into_owned()));
    copy.indexer.add_index(|object: &Object| [object.namespace().to_owned()]);
    let objects = copy.list(keys, shape);
    let held = memory::held() - before;
    memory::start_peak();
    copy.list(keys, shape);
    let relist_peak = memory::peak() - before;
    black_box(&copy.indexer);
    Weight { objects, held, relist_peak }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}

/// The CPU time of the writer per event, with this number of busy readers.
pub(crate) fn interfere(keys: usize, events: usize, readers: usize) -> Duration {
    let mut copy = Copy::new();
    let by_app = copy.indexer.add_index(|object: &Object| object.label("app").map(|app| app.into_owned()));
    copy.list(keys, Shape::Metadata);
    let rendered: Vec<RawObject> = (0..events)
        .map(|event| object(event.wrapping_mul(7_919) % keys, keys + 2 + event, Shape::Metadata, true))
        .map(|text| RawObject::new(Bytes::from(text)).expect("JSON"))
        .collect();
    let stop = AtomicBool::new(false);
    let store = copy.indexer.reader();
    std::thread::scope(|scope| {
        for reader in 0..readers {
            let (store, stop, by_app) = (store.clone(), &stop, &by_app);
            scope.spawn(move || {
                let mut number = reader;
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = store.snapshot();
                    for _ in 0..100 {
                        number = (number + 7_919) % keys;
                        let key = format!("team-{}/object-{number:07}", number % 10);
                        black_box(snapshot.get(&key));
                    }
                    let app = format!("app-{}", number % 1_000);
                    black_box(snapshot.by_index(by_app, &app).count());
                }
            });
        }
        let begun = thread_cpu();
        for chunk in rendered.chunks(100) {
            for event in chunk {
                copy.fifo.push(copy.indexer.current(), Change::Modified, event);
            }
            copy.drain();
        }
        let spent = thread_cpu() - begun;
        stop.store(true, Ordering::Relaxed);
        spent / u32::try_from(events).expect("not that many")
    })
}
