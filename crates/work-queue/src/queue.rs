//! The queue for async workers: [`WorkQueue`], a lock and wake-ups around [`WorkQueueCore`].

use std::fmt;
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::PRIORITY_NORMAL;
use crate::metrics::QueueMetrics;
use crate::work_queue_core::{Phase, PollTake, QueueConfig, TakenKey, WorkQueueCore};

/// A queue of keys, shared by producers and workers. Cheap to clone. The [module](super) lists its
/// guarantees. The queue spawns no task; waiting workers run the timers of delays.
pub struct WorkQueue<K: Clone + Eq + Hash> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    /// Locked for one operation, never across an await.
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

    /// Adds a key. No effect if the key is ready, or if the queue is shut down.
    pub fn add(&self, key: K) {
        self.add_with_priority(key, PRIORITY_NORMAL);
    }

    /// Adds a key with a priority. Higher priorities are served first. A ready key with a lower
    /// priority moves up.
    pub fn add_with_priority(&self, key: K, priority: i32) {
        self.change(|core, now| core.handle_add(now, key, priority));
    }

    /// Adds a key after a delay. If the key has several delays, the earliest end applies.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.add_after_with_priority(key, delay, PRIORITY_NORMAL);
    }

    /// As [`WorkQueue::add_after`], with a priority.
    pub fn add_after_with_priority(&self, key: K, delay: Duration, priority: i32) {
        self.change(|core, now| core.handle_add_after(now, key, delay, priority));
    }

    /// Adds a key that failed, after the backoff of the key and the delay of the rate limit for all keys.
    /// Returns the delay.
    pub fn add_rate_limited(&self, key: K) -> Duration {
        self.change(|core, now| core.handle_failure(now, key, PRIORITY_NORMAL))
    }

    /// Resets the failures of a key.
    pub fn forget(&self, key: &K) {
        self.change(|core, _| core.handle_forget(key));
    }

    /// The number of failures of a key since the last [`WorkQueue::forget`].
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures(key)
    }

    /// Waits for the next key. `None` if the queue is shut down and empty. Any number of workers
    /// may wait. Cancel-safe: a dropped future has taken no key, and another worker is woken
    /// instead.
    pub async fn get(&self) -> Option<WorkItem<K>> {
        let mut waiting = Waiting { queue: self, took: false };
        loop {
            // Registered before the check, so that no add in between is missed.
            let mut woken = pin!(self.shared.work.notified());
            woken.as_mut().enable();
            match self.change(|core, now| core.poll_take(now)) {
                PollTake::Key(taken) => {
                    waiting.took = true;
                    return Some(WorkItem { queue: self.clone(), taken });
                }
                PollTake::Closed => return None,
                PollTake::Wait(None) => woken.await,
                PollTake::Wait(Some(due)) => {
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

    /// Shuts down like [`WorkQueue::shut_down`], and waits until all keys are processed. Workers
    /// must take the remaining keys, or the wait never ends.
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

    /// Whether the queue accepts and hands out keys.
    pub fn phase(&self) -> Phase {
        self.lock().phase()
    }

    /// The number of ready keys.
    pub fn depth(&self) -> usize {
        self.metrics().depth
    }

    /// The metrics of the queue.
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
        // Only the key's own `Eq`, `Hash` or group function can panic here, and not in the middle
        // of a change. The queue therefore continues after a panic.
        self.shared.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting worker. If it is dropped without a key, another worker takes over its timer.
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

/// A key that a worker holds. No other worker receives it meanwhile. Dropping the item ends the
/// processing without a result; the methods report a result.
pub struct WorkItem<K: Clone + Eq + Hash> {
    queue: WorkQueue<K>,
    taken: TakenKey<K>,
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

    /// The time that the key waited between becoming ready and being taken by a worker.
    pub fn waited(&self) -> Duration {
        self.taken.waited
    }

    /// Ends the processing and resets the key's failures.
    pub fn finish(self) {
        self.queue.forget(&self.taken.key);
    }

    /// Ends the processing, resets the key's failures, and adds the key again after this delay.
    pub fn finish_and_requeue(self, after: Duration) {
        self.queue.forget(&self.taken.key);
        self.queue.add_after_with_priority(self.taken.key.clone(), after, self.taken.priority);
    }

    /// Reports a failure. The key is retried with the same priority. Returns the delay.
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
