//! The queue for tasks: [`WorkQueue`], a lock and wake-ups around [`WorkQueueCore`].

use std::fmt;
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::PRIORITY_NORMAL;
use super::core::{Phase, QueueConfig, Take, Taken, WorkQueueCore};
use super::metrics::QueueMetrics;

/// A queue of keys, shared by producers and workers. It is cheap to clone; see the [module](super)
/// for its guarantees. It spawns no task: waiting workers keep the time of delays.
pub struct WorkQueue<K: Clone + Eq + Hash> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    /// Held for one operation, never across an await.
    core: Mutex<WorkQueueCore<K>>,
    work: Notify,
    drained: Notify,
}

impl<K: Clone + Eq + Hash> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        WorkQueue { shared: self.shared.clone() }
    }
}

impl<K: Clone + Eq + Hash> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = self.lock();
        write!(f, "WorkQueue({:?}, {} keys)", core.phase(), core.len())
    }
}

impl<K: Clone + Eq + Hash> Default for WorkQueue<K> {
    fn default() -> Self {
        WorkQueue::new(QueueConfig::default())
    }
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// An empty queue.
    pub fn new(config: QueueConfig<K>) -> Self {
        let core = Mutex::new(WorkQueueCore::new(config));
        WorkQueue { shared: Arc::new(Shared { core, work: Notify::new(), drained: Notify::new() }) }
    }

    /// Adds a key. Nothing happens if it is ready already, or the queue is shut down.
    pub fn add(&self, key: K) {
        self.add_with_priority(key, PRIORITY_NORMAL);
    }

    /// Adds a key with a priority; higher ones come first. A key that is ready with a lower
    /// priority moves up.
    pub fn add_with_priority(&self, key: K, priority: i32) {
        self.change(|core, now| core.handle_add(now, key, priority));
    }

    /// Adds a key when the delay is over. Of several delays the one that ends first counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.add_after_with_priority(key, delay, PRIORITY_NORMAL);
    }

    /// As [`WorkQueue::add_after`], with a priority.
    pub fn add_after_with_priority(&self, key: K, delay: Duration, priority: i32) {
        self.change(|core, now| core.handle_add_after(now, key, delay, priority));
    }

    /// Adds a key that failed, when its back-off and the overall limit allow; returns the delay.
    pub fn add_rate_limited(&self, key: K) -> Duration {
        self.change(|core, now| core.handle_failure(now, key, PRIORITY_NORMAL))
    }

    /// Forgets the failures of a key.
    pub fn forget(&self, key: &K) {
        self.change(|core, _| core.handle_forget(key));
    }

    /// The number of failures of a key since it was forgotten.
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures(key)
    }

    /// Waits for the next key; `None` when the queue is shut down and empty. Any number of workers
    /// may wait. Cancel-safe: a dropped future has taken no key, and another worker is woken in its
    /// place.
    pub async fn get(&self) -> Option<WorkItem<K>> {
        let mut waiting = Waiting { queue: self, took: false };
        loop {
            // Registered before looking, so that nothing added in between is missed.
            let mut woken = pin!(self.shared.work.notified());
            woken.as_mut().enable();
            match self.change(|core, now| core.poll_take(now)) {
                Take::Key(taken) => {
                    waiting.took = true;
                    return Some(WorkItem { queue: self.clone(), taken });
                }
                Take::Closed => return None,
                Take::Wait(None) => woken.await,
                Take::Wait(Some(due)) => {
                    let _ = tokio::time::timeout_at(Instant::from_std(due), woken).await;
                }
            }
        }
    }

    /// Stops accepting keys: adds are ignored and delayed keys are dropped. Workers still receive
    /// ready keys, and keys that were added again while being processed; then [`WorkQueue::get`]
    /// ends.
    pub fn shut_down(&self) {
        self.change(|core, now| core.handle_shut_down(now));
    }

    /// Shuts down like [`WorkQueue::shut_down`], and waits until all keys are processed. It ends
    /// only if workers take the remaining keys.
    pub async fn shut_down_with_drain(&self) {
        self.shut_down();
        loop {
            let mut drained = pin!(self.shared.drained.notified());
            drained.as_mut().enable();
            if self.phase() == Phase::Drained {
                return;
            }
            drained.await;
        }
    }

    /// Whether the queue takes and gives.
    pub fn phase(&self) -> Phase {
        self.lock().phase()
    }

    /// Keys that are ready.
    pub fn depth(&self) -> usize {
        self.metrics().depth
    }

    /// The queue in numbers.
    pub fn metrics(&self) -> QueueMetrics {
        self.lock().metrics(Instant::now().into_std())
    }

    fn change<T>(&self, operation: impl FnOnce(&mut WorkQueueCore<K>, std::time::Instant) -> T) -> T {
        let mut core = self.lock();
        let result = operation(&mut core, Instant::now().into_std());
        let (wakes, phase) = (core.poll_wakes(), core.phase());
        drop(core);
        match wakes {
            usize::MAX => self.shared.work.notify_waiters(),
            wakes => (0..wakes).for_each(|_| self.shared.work.notify_one()),
        }
        if phase == Phase::Drained {
            self.shared.drained.notify_waiters();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, WorkQueueCore<K>> {
        // Only a key's own `Eq`, `Hash` or group can panic in there, before anything is changed in
        // halves that matter; going on is better than ending every worker.
        self.shared.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting worker. If dropped without a key, another worker keeps the time.
struct Waiting<'q, K: Clone + Eq + Hash> {
    queue: &'q WorkQueue<K>,
    took: bool,
}

impl<K: Clone + Eq + Hash> Drop for Waiting<'_, K> {
    fn drop(&mut self) {
        if !self.took {
            self.queue.change(|core, _| core.handle_cancel());
        }
    }
}

/// A key held by a worker; no other worker gets it meanwhile. Dropping it ends the work without a
/// result; the methods report one.
pub struct WorkItem<K: Clone + Eq + Hash> {
    queue: WorkQueue<K>,
    taken: Taken<K>,
}

impl<K: Clone + Eq + Hash> WorkItem<K> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.taken.key
    }

    /// The number of failures in a row before this attempt.
    pub fn failures(&self) -> u32 {
        self.taken.failures
    }

    /// The priority with which the key was taken.
    pub fn priority(&self) -> i32 {
        self.taken.priority
    }

    /// Time between becoming ready and being taken.
    pub fn waited(&self) -> Duration {
        self.taken.waited
    }

    /// Completes the work and resets the key's failures.
    pub fn finish(self) {
        self.queue.forget(&self.taken.key);
    }

    /// Completes the work, resets the key's failures, and adds the key again after this delay.
    pub fn finish_and_requeue(self, after: Duration) {
        self.queue.forget(&self.taken.key);
        self.queue.add_after_with_priority(self.taken.key.clone(), after, self.taken.priority);
    }

    /// The work failed and is tried again, with the priority it had; returns the delay.
    pub fn retry(self) -> Duration {
        let (key, priority) = (self.taken.key.clone(), self.taken.priority);
        self.queue.change(|core, now| core.handle_failure(now, key, priority))
    }
}

impl<K: Clone + Eq + Hash> Drop for WorkItem<K> {
    fn drop(&mut self) {
        self.queue.change(|core, now| core.handle_done(now, &self.taken.key));
    }
}

impl<K: Clone + Eq + Hash + fmt::Debug> fmt::Debug for WorkItem<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkItem({:?})", self.taken)
    }
}
