//! Schedules items: after a period, after a change, or with backoff after failures. A plain value without a clock.
//!
//! ```text
//!  mark_dirty ─▶ due now ─▶ take ─▶ running ─┬─ succeeded ─▶ due after the period
//!                                            └─ failed ────▶ due after 2^n × the smallest delay
//! ```
//!
//! Rules: client-go's `ItemExponentialFailureRateLimiter`, and the delays of the aggregator's controllers.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The delays of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delays {
    /// The delay after a success.
    pub(crate) period: Duration,
    /// The delay after the first failure.
    pub(crate) backoff_min: Duration,
    /// The longest delay after repeated failures.
    pub(crate) backoff_max: Duration,
}

/// The items of a controller, each with its due time.
#[derive(Debug)]
pub(crate) struct Schedule {
    delays: Delays,
    items: BTreeMap<String, Item>,
}

#[derive(Debug)]
struct Item {
    state: ItemState,
    failures: u32,
}

#[derive(Debug)]
enum ItemState {
    DueAt(Instant),
    /// The item is being processed. `is_dirty` means that it has changed since its start.
    Running {
        is_dirty: bool,
    },
}

impl Schedule {
    pub(crate) fn new(delays: Delays) -> Self {
        Schedule { delays, items: BTreeMap::new() }
    }

    /// Adds new items, due at once, and removes all items that are not in `names`.
    pub(crate) fn retain<'a>(&mut self, names: impl IntoIterator<Item = &'a str>, now: Instant) {
        let mut kept = BTreeMap::new();
        for name in names {
            let item = self.items.remove(name).unwrap_or(Item { state: ItemState::DueAt(now), failures: 0 });
            kept.insert(name.to_owned(), item);
        }
        self.items = kept;
    }

    /// Makes an item due at once. A running item becomes due when its run ends.
    pub(crate) fn mark_dirty(&mut self, name: &str, now: Instant) {
        if let Some(item) = self.items.get_mut(name) {
            match &mut item.state {
                ItemState::DueAt(at) => *at = now.min(*at),
                ItemState::Running { is_dirty } => *is_dirty = true,
            }
        }
    }

    /// Takes the item that has been due for the longest time. An item that is always due therefore does not delay the
    /// others.
    pub(crate) fn take(&mut self, now: Instant) -> Option<String> {
        let due = self.items.iter_mut().filter_map(|(name, item)| match item.state {
            ItemState::DueAt(at) if at <= now => Some((at, name, item)),
            _ => None,
        });
        let (_, name, item) = due.min_by_key(|(at, ..)| *at)?;
        item.state = ItemState::Running { is_dirty: false };
        Some(name.clone())
    }

    /// Records the end of a taken item. A failed item keeps its backoff, even if it has changed meanwhile. Otherwise a
    /// failing server whose objects change often would be probed without a pause.
    pub(crate) fn end(&mut self, name: &str, is_success: bool, now: Instant) {
        let Delays { period, backoff_min, backoff_max } = self.delays;
        let Some(item) = self.items.get_mut(name) else { return };
        let is_dirty = matches!(item.state, ItemState::Running { is_dirty: true });
        item.failures = if is_success { 0 } else { item.failures.saturating_add(1) };
        let delay = match item.failures {
            0 if is_dirty => Duration::ZERO,
            0 => period,
            failures => {
                backoff_min.saturating_mul(1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX)).min(backoff_max)
            }
        };
        item.state = ItemState::DueAt(now + delay);
    }

    /// The time of the next due item; `None` if all items are running.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let due = |item: &Item| match item.state {
            ItemState::DueAt(at) => Some(at),
            ItemState::Running { .. } => None,
        };
        self.items.values().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule(now: Instant) -> Schedule {
        let delays = Delays { period: 30 * SECOND, backoff_min: SECOND, backoff_max: 10 * SECOND };
        let mut schedule = Schedule::new(delays);
        schedule.retain(["a"], now);
        schedule
    }

    #[test]
    fn successful_item_is_due_after_the_period() {
        let now = Instant::now();
        let mut schedule = schedule(now);
        assert_eq!(schedule.take(now).as_deref(), Some("a"));
        assert_eq!((schedule.take(now), schedule.next_due()), (None, None), "it runs");
        schedule.end("a", true, now);
        assert_eq!(schedule.next_due(), Some(now + 30 * SECOND));
    }

    #[test]
    fn failed_item_backs_off_up_to_its_limit() {
        let now = Instant::now();
        let mut schedule = schedule(now);
        let mut delays = Vec::new();
        for _ in 0..40 {
            let at = schedule.next_due().unwrap();
            assert!(schedule.take(at).is_some());
            schedule.end("a", false, at);
            delays.push((schedule.next_due().unwrap() - at).as_secs());
        }
        assert_eq!(delays[..6], [1, 2, 4, 8, 10, 10]);
        assert!(delays[6..].iter().all(|&delay| delay == 10), "{delays:?}");
    }

    #[test]
    fn item_changed_while_running_is_due_after_its_run() {
        let now = Instant::now();
        let mut schedule = schedule(now);
        assert!(schedule.take(now).is_some());
        schedule.mark_dirty("a", now);
        schedule.end("a", true, now);
        assert_eq!(schedule.take(now).as_deref(), Some("a"));
        schedule.end("a", true, now);
        assert_eq!(schedule.take(now), None);
        schedule.mark_dirty("a", now + SECOND);
        assert_eq!(schedule.next_due(), Some(now + SECOND));
        schedule.retain(["b"], now);
        schedule.end("a", true, now);
        assert_eq!(schedule.take(now).as_deref(), Some("b"), "a removed item comes back");
    }

    #[test]
    fn item_changed_during_a_failed_run_keeps_its_backoff() {
        let now = Instant::now();
        let mut schedule = schedule(now);
        for expected in [1, 2, 4] {
            let at = schedule.next_due().unwrap();
            assert!(schedule.take(at).is_some());
            schedule.mark_dirty("a", at);
            schedule.end("a", false, at);
            assert_eq!(schedule.next_due(), Some(at + expected * SECOND));
        }
    }

    #[test]
    fn item_that_has_been_due_longest_is_taken_first() {
        let now = Instant::now();
        let mut schedule = schedule(now);
        schedule.retain(["a", "b"], now);
        schedule.mark_dirty("b", now - SECOND);
        assert_eq!(schedule.take(now).as_deref(), Some("b"));
        assert_eq!(schedule.take(now).as_deref(), Some("a"));
    }
}
