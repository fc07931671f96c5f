//! [`Batcher`]: collects events into batches of bounded size, age and rate (`plugin/pkg/audit/buffered`).
//!
//! ```text
//!  push ──▶ queue ──batch_size_max events, or the oldest waits batch_wait_max──▶ a token of the throttle ──▶ poll_batch
//!    └ full: the item is returned
//! ```
//!
//! Call [`Batcher::poll_batch`] after each push and at [`Batcher::deadline`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The memory of all events in one queue, in bytes. A queue that holds more accepts no further event. kube-apiserver
/// has no such limit.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;

/// The limits of batches (`--audit-log-batch-*`, `--audit-webhook-batch-*`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchOptions {
    /// The largest number of waiting events. Further events are dropped.
    pub queue_events_max: usize,
    /// The number of events in a batch.
    pub batch_events_max: usize,
    /// The longest time that the first event of a batch waits for others.
    pub batch_wait_max: Duration,
    /// The rate of batches; `None`: unlimited.
    pub throttle: Option<Throttle>,
}

/// A token bucket for batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    /// Batches per second.
    pub per_second: f64,
    /// The largest number of batches that are sent at once after an idle period.
    pub burst: u32,
}

impl BatchOptions {
    /// The defaults of log backends (`--audit-log-batch-*`).
    pub fn of_log() -> Self {
        BatchOptions { queue_events_max: 10_000, batch_events_max: 1, batch_wait_max: Duration::ZERO, throttle: None }
    }

    /// The defaults of webhook backends (`--audit-webhook-batch-*`).
    pub fn of_webhook() -> Self {
        BatchOptions {
            queue_events_max: 10_000,
            batch_events_max: 400,
            batch_wait_max: Duration::from_secs(30),
            throttle: Some(Throttle { per_second: 10.0, burst: 15 }),
        }
    }
}

/// A bounded queue that yields batches.
#[derive(Debug)]
pub struct Batcher<T> {
    options: BatchOptions,
    queue: VecDeque<Waiting<T>>,
    bytes: usize,
    /// The number of tokens in the bucket at the time `refilled`.
    tokens: f64,
    refilled: Option<Instant>,
    is_closed: bool,
}

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    bytes: usize,
    since: Instant,
}

impl<T> Batcher<T> {
    /// An empty queue.
    pub fn new(options: BatchOptions) -> Self {
        let tokens = options.throttle.map_or(0.0, |throttle| f64::from(throttle.burst));
        Batcher { options, queue: VecDeque::new(), bytes: 0, tokens, refilled: None, is_closed: false }
    }

    /// Adds an item that holds `bytes` bytes of memory.
    ///
    /// # Errors
    /// The item, if the queue is full or closed.
    pub fn push(&mut self, item: T, bytes: usize, now: Instant) -> Result<(), T> {
        let is_full = self.queue.len() >= self.options.queue_events_max
            || (!self.queue.is_empty() && self.bytes.saturating_add(bytes) > QUEUE_BYTES_MAX);
        if is_full || self.is_closed {
            return Err(item);
        }
        self.bytes += bytes;
        self.queue.push_back(Waiting { item, bytes, since: now });
        Ok(())
    }

    /// Closes the queue: no item can be added, and the waiting items are due at once.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether the queue is closed and empty.
    pub fn is_finished(&self) -> bool {
        self.is_closed && self.queue.is_empty()
    }

    /// The number of waiting items.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the next batch, if one is due and the throttle allows it.
    pub fn poll_batch(&mut self, now: Instant) -> Option<Vec<T>> {
        if self.due()? > now {
            return None;
        }
        if self.token_at(now) > now {
            return None;
        }
        self.take_token(now);
        let count = self.options.batch_events_max.max(1).min(self.queue.len());
        let batch = self.queue.drain(..count);
        let mut bytes = 0;
        let items = batch.map(|waiting| {
            bytes += waiting.bytes;
            waiting.item
        });
        let items: Vec<T> = items.collect();
        self.bytes -= bytes;
        Some(items)
    }

    /// The time at which [`Batcher::poll_batch`] can return a batch; `None` for an empty queue.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        Some(self.due()?.max(self.token_at(now)))
    }

    /// The time at which the next batch is complete.
    fn due(&self) -> Option<Instant> {
        let first = self.queue.front()?;
        let is_complete = self.is_closed || self.queue.len() >= self.options.batch_events_max;
        Some(if is_complete { first.since } else { first.since + self.options.batch_wait_max })
    }

    /// The number of tokens in the bucket at `now`.
    fn tokens(&self, throttle: Throttle, now: Instant) -> f64 {
        let elapsed = self.refilled.map_or(0.0, |refilled| now.saturating_duration_since(refilled).as_secs_f64());
        (self.tokens + elapsed * throttle.per_second).min(f64::from(throttle.burst))
    }

    /// The time at which the bucket has a token.
    fn token_at(&self, now: Instant) -> Instant {
        // The last batches of a server that stops do not wait.
        let Some(throttle) = self.options.throttle.filter(|_| !self.is_closed) else { return now };
        let missing = 1.0 - self.tokens(throttle, now);
        if missing <= 0.0 {
            return now;
        }
        // Rounded up, so that the token is there at this time.
        now + Duration::from_secs_f64(missing / throttle.per_second.max(f64::MIN_POSITIVE)) + Duration::from_nanos(1)
    }

    fn take_token(&mut self, now: Instant) {
        if let Some(throttle) = self.options.throttle {
            self.tokens = (self.tokens(throttle, now) - 1.0).max(0.0);
            self.refilled = Some(now);
        }
    }
}

/// Splits the encoded events of a batch into parts of at most `bytes_max` bytes; a larger event is a part of its own.
pub fn split_batch(events: Vec<Vec<u8>>, bytes_max: usize) -> Vec<Vec<Vec<u8>>> {
    let mut parts: Vec<Vec<Vec<u8>>> = Vec::new();
    let mut bytes = 0;
    for event in events {
        match parts.last_mut() {
            Some(part) if bytes + event.len() <= bytes_max => {
                bytes += event.len();
                part.push(event);
            }
            _ => {
                bytes = event.len();
                parts.push(vec![event]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    fn options(events: usize, wait_millis: u64) -> BatchOptions {
        BatchOptions {
            queue_events_max: 5,
            batch_events_max: events,
            batch_wait_max: Duration::from_millis(wait_millis),
            throttle: None,
        }
    }

    #[test]
    fn batch_is_due_when_it_is_complete_or_its_first_event_is_old() {
        let start = Instant::now();
        let mut batcher = Batcher::new(options(2, 100));
        assert_eq!((batcher.deadline(start), batcher.poll_batch(start)), (None, None));
        batcher.push(1, 1, start).unwrap();
        assert_eq!(batcher.deadline(start), Some(after(start, 100)));
        assert_eq!(batcher.poll_batch(after(start, 99)), None);
        assert_eq!(batcher.poll_batch(after(start, 100)), Some(vec![1]));
        for item in [2, 3, 4] {
            batcher.push(item, 1, after(start, 200)).unwrap();
        }
        assert_eq!(batcher.poll_batch(after(start, 200)), Some(vec![2, 3]));
        assert_eq!(batcher.poll_batch(after(start, 200)), None);
        assert_eq!(batcher.deadline(after(start, 200)), Some(after(start, 300)));
    }

    #[test]
    fn full_queue_returns_the_item() {
        let start = Instant::now();
        let mut batcher = Batcher::new(options(10, 100));
        for item in 0..5 {
            batcher.push(item, 1, start).unwrap();
        }
        assert_eq!(batcher.push(5, 1, start), Err(5));
        let mut batcher = Batcher::new(options(10, 100));
        batcher.push(0, QUEUE_BYTES_MAX + 1, start).unwrap();
        assert_eq!(batcher.push(1, 1, start), Err(1), "the bytes are bounded too");
        batcher.poll_batch(after(start, 100)).unwrap();
        batcher.push(1, 1, start).unwrap();
    }

    #[test]
    fn throttle_limits_batches_and_allows_a_burst() {
        let start = Instant::now();
        let throttle = Some(Throttle { per_second: 10.0, burst: 2 });
        let mut batcher = Batcher::new(BatchOptions { queue_events_max: 100, throttle, ..options(1, 0) });
        for item in 0..4 {
            batcher.push(item, 1, start).unwrap();
        }
        assert_eq!(batcher.poll_batch(start), Some(vec![0]));
        assert_eq!(batcher.poll_batch(start), Some(vec![1]));
        assert_eq!(batcher.poll_batch(start), None);
        let next = batcher.deadline(start).unwrap();
        assert!(next > after(start, 99) && next < after(start, 101), "{:?}", next - start);
        assert_eq!(batcher.poll_batch(next), Some(vec![2]));
        batcher.close();
        assert_eq!(batcher.poll_batch(next), Some(vec![3]), "the rest does not wait");
        assert!(batcher.is_finished() && batcher.push(4, 1, next).is_err());
    }

    #[test]
    fn batch_above_the_byte_limit_is_split() {
        let events = [3, 4, 5, 20, 1].map(|bytes| vec![b'x'; bytes]).to_vec();
        let parts = split_batch(events, 10);
        let sizes: Vec<Vec<usize>> = parts.iter().map(|part| part.iter().map(Vec::len).collect()).collect();
        assert_eq!(sizes, [vec![3, 4], vec![5], vec![20], vec![1]]);
    }

    proptest! {
        #[test]
        fn batcher_yields_each_accepted_item_once_and_in_order(
            steps in proptest::collection::vec((0_u64..50, proptest::bool::ANY), 1..200),
        ) {
            let start = Instant::now();
            let throttle = Some(Throttle { per_second: 20.0, burst: 3 });
            let mut batcher = Batcher::new(BatchOptions { throttle, ..options(3, 40) });
            let (mut now, mut accepted, mut yielded) = (start, Vec::new(), Vec::new());
            for (at, (millis, pushes)) in steps.into_iter().enumerate() {
                now += Duration::from_millis(millis);
                if pushes && batcher.push(at, 1, now).is_ok() {
                    accepted.push(at);
                }
                while let Some(batch) = batcher.poll_batch(now) {
                    prop_assert!(batch.len() <= 3);
                    yielded.extend(batch);
                }
                if let Some(deadline) = batcher.deadline(now) {
                    prop_assert!(deadline > now, "a batch that is due was not yielded");
                }
            }
            batcher.close();
            while let Some(batch) = batcher.poll_batch(now) {
                yielded.extend(batch);
            }
            prop_assert_eq!(accepted, yielded);
            prop_assert!(batcher.is_finished() && batcher.bytes == 0);
        }
    }
}
