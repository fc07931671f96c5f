//! The queue as a state machine: [`WorkQueueCore`]. The inputs are operations and the time; the
//! outputs are keys and the number of workers to wake. The state machine has no lock, clock or
//! task.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use listwatch_meta::canary;

use crate::limiter::{RetryPolicy, TokenBucket};
use crate::metrics::QueueMetrics;
use crate::ready::{Group, Position, Ready};

/// The longest delay of a key. Longer delays are reduced to it. One year keeps times far within a
/// clock's range.
const DELAY_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The options of a queue. The defaults are client-go's, with all keys in one group.
#[derive(Clone)]
pub struct QueueConfig<K> {
    /// The delay of a key that failed.
    pub retry: RetryPolicy,
    /// The limit of retries over all keys.
    pub bucket: TokenBucket,
    /// Time after which a waiting key is overdue. Every other turn belongs to the oldest overdue
    /// key of all priorities and groups, so no key starves. A key with `n` older keys is taken
    /// within `2n + 2` turns of becoming overdue. Default: 10 s.
    pub overdue_after: Duration,
    group: Option<GroupOf<K>>,
}

type GroupOf<K> = Arc<dyn Fn(&K) -> Group + Send + Sync>;

impl<K> Default for QueueConfig<K> {
    fn default() -> Self {
        QueueConfig {
            retry: RetryPolicy::default(),
            bucket: TokenBucket::default(),
            overdue_after: Duration::from_secs(10),
            group: None,
        }
    }
}

impl<K> QueueConfig<K> {
    /// Groups keys by a function. Groups of one priority are served round-robin. With
    /// `fair_by(|key: &ObjectKey| key.namespace().to_owned())`, a namespace with many keys does not
    /// delay the others. Only a hash of the group is kept.
    #[must_use]
    pub fn fair_by<G: Hash>(mut self, group: impl Fn(&K) -> G + Send + Sync + 'static) -> Self {
        self.group = Some(Arc::new(move |key| {
            let mut hasher = DefaultHasher::new();
            group(key).hash(&mut hasher);
            hasher.finish()
        }));
        self
    }
}

impl<K> fmt::Debug for QueueConfig<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueConfig")
            .field("retry", &self.retry)
            .field("bucket", &self.bucket)
            .field("overdue_after", &self.overdue_after)
            .field("grouped", &self.group.is_some())
            .finish()
    }
}

/// Whether the queue accepts and hands out keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Keys are added and handed out.
    Open,
    /// Adds are ignored. Ready keys, and keys that were added again while in processing, are still
    /// handed out.
    ShuttingDown,
    /// The queue is shut down, and no key is ready or in processing.
    Drained,
}

/// A key that a worker has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenKey<K> {
    /// The key.
    pub key: K,
    /// The priority with which the key was taken; a retry keeps it.
    pub priority: i32,
    /// The number of failures in a row.
    pub failures: u32,
    /// The time that the key waited between becoming ready and being taken by a worker.
    pub waited: Duration,
}

/// The result of [`WorkQueueCore::poll_take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollTake<K> {
    /// A key. The worker must call [`WorkQueueCore::handle_done`] for it.
    Key(TakenKey<K>),
    /// No key is ready. Ask again after a wake-up, and at this time if there is one.
    Wait(Option<Instant>),
    /// The queue is shut down and empty.
    Closed,
}

/// The queue as a state machine without locks and timers; see the [module](super).
///
/// Calls may have any order, but `now` must never decrease. After each
/// `handle_*` and each [`WorkQueueCore::poll_take`], wake as many waiting workers as
/// [`WorkQueueCore::poll_wakes`] returns.
#[derive(Debug)]
pub struct WorkQueueCore<K> {
    config: QueueConfig<K>,
    entries: HashMap<K, KeyState>,
    ready: Ready<K>,
    /// Delayed keys by the time at which they become ready.
    delayed: BTreeMap<(Instant, u64), K>,
    /// Failing keys by the time at which their failures expire.
    fading: BTreeMap<(Instant, u64), K>,
    /// Keys in processing by the time at which they were taken.
    running: BTreeSet<(Instant, u64)>,
    bucket: TokenBucket,
    shut_down: bool,
    next_sequence: u64,
    wakes: usize,
    metrics: QueueMetrics,
}

/// The state of a key. Dropped when it is empty.
#[derive(Debug, Default)]
struct KeyState {
    ready: Option<Position>,
    processing: Option<(Instant, u64)>,
    /// The highest priority of the adds during processing; `None` if there were none.
    dirty: Option<i32>,
    delayed: Option<(Instant, u64, i32)>,
    failures: u32,
    fades: Option<(Instant, u64)>,
}

impl KeyState {
    fn is_idle(&self) -> bool {
        self.ready.is_none() && self.processing.is_none() && self.delayed.is_none() && self.failures == 0
    }
}

impl<K: Clone + Eq + Hash> WorkQueueCore<K> {
    /// An empty queue.
    pub fn new(config: QueueConfig<K>) -> Self {
        WorkQueueCore {
            bucket: config.bucket.clone(),
            config,
            entries: HashMap::new(),
            ready: Ready::new(),
            delayed: BTreeMap::new(),
            fading: BTreeMap::new(),
            running: BTreeSet::new(),
            shut_down: false,
            next_sequence: 0,
            wakes: 0,
            metrics: QueueMetrics::default(),
        }
    }

    /// Adds a key now. A ready key keeps its position, unless this priority is higher. A key in
    /// processing becomes ready again when its worker is done. Ignored after
    /// [`WorkQueueCore::handle_shut_down`].
    pub fn handle_add(&mut self, now: Instant, key: K, priority: i32) {
        if self.shut_down {
            self.metrics.ignored += 1;
            return;
        }
        self.add(now, key, priority);
    }

    /// Adds a key after a delay. If a key has several delays, the earliest end and the highest
    /// priority apply. A delay of zero adds now. An add without delay does not cancel a delayed
    /// one. Delays are limited to one year. Ignored after shutdown, which also drops delayed keys.
    pub fn handle_add_after(&mut self, now: Instant, key: K, delay: Duration, priority: i32) {
        if self.shut_down {
            self.metrics.ignored += 1;
            return;
        }
        if delay.is_zero() {
            self.add(now, key, priority);
            return;
        }
        let due = now + delay.min(DELAY_MAX);
        let sequence = self.sequence();
        let first = self.delayed.first_key_value().map(|((due, _), _)| *due);
        let entry = self.entries.entry(key.clone()).or_default();
        let (due, priority) = match entry.delayed {
            Some((earlier, old, known)) => {
                self.delayed.remove(&(earlier, old));
                (due.min(earlier), priority.max(known))
            }
            None => (due, priority),
        };
        entry.delayed = Some((due, sequence, priority));
        self.delayed.insert((due, sequence), key);
        if first.is_none_or(|first| due < first) {
            // Sleeping workers must wake up earlier now.
            self.wakes += 1;
        }
    }

    /// Counts a failure of a key and adds it after the later of its own delay and the bucket's.
    /// Returns the delay. Ignored after shutdown, with a delay of zero.
    pub fn handle_failure(&mut self, now: Instant, key: K, priority: i32) -> Duration {
        if self.shut_down {
            self.metrics.ignored += 1;
            return Duration::ZERO;
        }
        self.metrics.retries += 1;
        let sequence = self.sequence();
        let entry = self.entries.entry(key.clone()).or_default();
        let own = self.config.retry.delay(entry.failures);
        entry.failures = entry.failures.saturating_add(1);
        let delay = own.max(self.bucket.reserve(now));
        if let Some(fades) = entry.fades.take() {
            self.fading.remove(&fades);
        }
        let fades = (now + delay.min(DELAY_MAX) + self.config.retry.memory().min(DELAY_MAX), sequence);
        entry.fades = Some(fades);
        self.fading.insert(fades, key.clone());
        self.handle_add_after(now, key, delay, priority);
        delay
    }

    /// Resets the failures of a key, after a success or when it is not retried.
    pub fn handle_forget(&mut self, key: &K) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.failures = 0;
        if let Some(fades) = entry.fades.take() {
            self.fading.remove(&fades);
        }
        self.drop_if_idle(key);
    }

    /// Ends the processing of a key. Returns false if the key was not in processing.
    pub fn handle_done(&mut self, now: Instant, key: &K) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let Some(taken) = entry.processing.take() else { return false };
        let dirty = entry.dirty.take();
        self.running.remove(&taken);
        self.metrics.work_duration.observe(now.saturating_duration_since(taken.0));
        match dirty {
            Some(priority) => self.enqueue(now, key.clone(), priority),
            None => self.drop_if_idle(key),
        }
        if self.phase() == Phase::Drained {
            self.wakes = usize::MAX;
        }
        true
    }

    /// Stops accepting keys. Ready keys can still be taken; delayed keys are dropped, unless they
    /// are due.
    pub fn handle_shut_down(&mut self, now: Instant) {
        self.advance(now);
        self.shut_down = true;
        for key in std::mem::take(&mut self.delayed).into_values() {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.delayed = None;
            }
            self.drop_if_idle(&key);
        }
        self.wakes = usize::MAX;
    }

    /// Records that a waiting worker left without a key. Another worker takes over its wait.
    pub fn handle_cancel(&mut self) {
        self.pass_on();
    }

    /// Returns a key for a worker, if one is ready.
    pub fn poll_take(&mut self, now: Instant) -> PollTake<K> {
        self.advance(now);
        let Some((key, place)) = self.ready.pop(now, self.config.overdue_after) else {
            if self.phase() == Phase::Drained || (self.shut_down && !self.is_any_dirty()) {
                return PollTake::Closed;
            }
            return PollTake::Wait(self.poll_timeout());
        };
        let sequence = self.sequence();
        let waited = now.saturating_duration_since(place.since);
        self.metrics.queue_duration.observe(waited);
        self.running.insert((now, sequence));
        let entry = self.entries.entry(key.clone()).or_default();
        entry.ready = None;
        entry.processing = Some((now, sequence));
        let failures = entry.failures;
        self.pass_on();
        PollTake::Key(TakenKey { key, priority: place.priority, failures, waited })
    }

    /// The number of waiting workers to wake; `usize::MAX` for all. The call resets it to zero.
    pub fn poll_wakes(&mut self) -> usize {
        std::mem::take(&mut self.wakes)
    }

    /// The end of the first delay. The expiry of failures needs no timer.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((due, _), _)| *due)
    }

    /// Whether the queue accepts and hands out keys.
    pub fn phase(&self) -> Phase {
        match self.shut_down {
            false => Phase::Open,
            true if self.ready.is_empty() && self.running.is_empty() => Phase::Drained,
            true => Phase::ShuttingDown,
        }
    }

    /// The number of failures of a key since the last [`WorkQueueCore::handle_forget`].
    pub fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// The number of tracked keys: ready, delayed, in processing, or with failures.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if no key is tracked.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The metrics of the queue.
    pub fn metrics(&self, now: Instant) -> QueueMetrics {
        let since = |at: &Instant| now.saturating_duration_since(*at);
        QueueMetrics {
            depth: self.ready.len(),
            delayed: self.delayed.len(),
            processing: self.running.len(),
            failing: self.fading.len(),
            unfinished_work: self.running.iter().map(|(at, _)| since(at)).sum(),
            longest_running: self.running.first().map(|(at, _)| since(at)).unwrap_or_default(),
            oldest_ready: self.ready.oldest().as_ref().map(since).unwrap_or_default(),
            ..self.metrics.clone()
        }
    }

    /// Moves due keys from delayed to ready, and drops expired failures.
    fn advance(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let key = first.remove();
            let delayed = self.entries.get_mut(&key).and_then(|entry| entry.delayed.take());
            self.add(now, key, delayed.map_or(super::PRIORITY_NORMAL, |(.., priority)| priority));
        }
        while let Some(first) = self.fading.first_entry()
            && first.key().0 <= now
        {
            let key = first.remove();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.failures = 0;
                entry.fades = None;
            }
            self.drop_if_idle(&key);
        }
    }

    fn add(&mut self, now: Instant, key: K, priority: i32) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.processing.is_some() && !canary!("client-gives-a-key-to-two-workers") {
            if canary!("client-forgets-adds-while-processing") {
                return;
            }
            entry.dirty = Some(entry.dirty.map_or(priority, |known| known.max(priority)));
            return;
        }
        match &mut entry.ready {
            None => self.enqueue(now, key, priority),
            Some(place) if place.priority < priority => {
                // The key moves up but keeps its age, because it is still the same wait.
                self.ready.remove(place);
                place.priority = priority;
                let place = *place;
                self.ready.insert(key, place);
            }
            Some(_) => {}
        }
    }

    fn enqueue(&mut self, now: Instant, key: K, priority: i32) {
        let group = self.config.group.as_ref().map_or(0, |group| group(&key));
        let place = Position { priority, group, sequence: self.sequence(), since: now };
        self.entries.entry(key.clone()).or_default().ready = Some(place);
        self.ready.insert(key, place);
        self.metrics.adds += 1;
        self.wakes = self.wakes.saturating_add(1);
    }

    /// Wakes another worker, because a worker that stops waiting may be the only one that was woken
    /// for the remaining keys.
    fn pass_on(&mut self) {
        if !self.ready.is_empty() || !self.delayed.is_empty() {
            self.wakes = self.wakes.saturating_add(1);
        } else if self.shut_down {
            self.wakes = usize::MAX;
        }
    }

    fn is_any_dirty(&self) -> bool {
        // Only keys in processing can be dirty, and their number is bounded by the number of
        // workers. This is only called after shutdown.
        self.entries.values().any(|entry| entry.dirty.is_some())
    }

    fn drop_if_idle(&mut self, key: &K) {
        if self.entries.get(key).is_some_and(KeyState::is_idle) {
            self.entries.remove(key);
        }
    }

    fn sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }
}
