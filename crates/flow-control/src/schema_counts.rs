//! [`SchemaCounts`]: the counters of a flow schema within its level, for metrics (`flowcontrol/metrics/metrics.go`).

use std::time::Duration;

use crate::queue_set::RejectReason;

/// The upper bounds of the durations, in seconds (`requestDurationSecondsBuckets`).
pub const WAIT_SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// A histogram of durations.
#[derive(Clone, Debug, Default)]
pub struct WaitHistogram {
    /// The number of durations in each interval of [`WAIT_SECONDS`], and of longer ones.
    pub intervals: [u64; WAIT_SECONDS.len() + 1],
    /// The sum of all durations, in seconds.
    pub seconds: f64,
}

impl WaitHistogram {
    fn note(&mut self, duration: Duration) {
        if duration.is_zero() {
            self.intervals[0] += 1;
            return;
        }
        let seconds = duration.as_secs_f64();
        self.intervals[WAIT_SECONDS.partition_point(|bound| *bound < seconds)] += 1;
        self.seconds += seconds;
    }
}

/// The counters of a flow schema.
#[derive(Clone, Debug, Default)]
pub struct SchemaCounts {
    /// Requests that began to execute.
    pub dispatched: u64,
    /// Rejected requests, in the order of [`RejectReason::ALL`].
    pub rejected: [u64; RejectReason::ALL.len()],
    /// Requests that wait.
    pub waiting: u64,
    /// Seats that the waiting requests need.
    pub seats_waiting: u64,
    /// Requests that execute.
    pub executing: u64,
    /// Seats of the requests that execute.
    pub seats_executing: u64,
    /// The waiting times of requests that then executed.
    pub waits: WaitHistogram,
    /// The waiting times of requests that were then rejected.
    pub rejected_waits: WaitHistogram,
}

impl SchemaCounts {
    pub(crate) fn note_waiting(&mut self, seats: u64) {
        self.waiting += 1;
        self.seats_waiting += seats;
    }

    pub(crate) fn note_left(&mut self, seats: u64) {
        self.waiting -= 1;
        self.seats_waiting -= seats;
    }

    pub(crate) fn note_dispatched(&mut self, seats: u64, waited: Duration) {
        self.dispatched += 1;
        self.executing += 1;
        self.seats_executing += seats;
        self.waits.note(waited);
    }

    pub(crate) fn note_finished(&mut self, seats: u64) {
        self.executing -= 1;
        self.seats_executing -= seats;
    }

    pub(crate) fn note_rejected(&mut self, reason: RejectReason, waited: Duration) {
        self.rejected[reason as usize] += 1;
        self.rejected_waits.note(waited);
    }

    fn is_idle(&self) -> bool {
        self.waiting == 0 && self.executing == 0
    }
}

/// The counters of the schemas of one level. A schema keeps its slot until it is deleted and has no request.
#[derive(Debug, Default)]
pub(crate) struct SchemaTable {
    slots: Vec<(Option<String>, SchemaCounts)>,
}

impl SchemaTable {
    /// Removes the schemas that are deleted and have no request.
    pub(crate) fn retain(&mut self, is_active: impl Fn(&str) -> bool) {
        for (name, counts) in &mut self.slots {
            if counts.is_idle() && name.as_ref().is_some_and(|name| !is_active(name)) {
                (*name, *counts) = (None, SchemaCounts::default());
            }
        }
    }

    /// Returns the slot of a schema, and allocates a free slot for a new schema.
    pub(crate) fn slot(&mut self, name: &str) -> usize {
        let known = self.slots.iter().position(|(slot, _)| slot.as_deref() == Some(name));
        let free = || self.slots.iter().position(|(slot, counts)| slot.is_none() && counts.is_idle());
        let slot = known.or_else(free).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(Default::default());
        }
        self.slots[slot].0 = Some(name.to_owned());
        slot
    }

    /// The counters of a slot that [`SchemaTable::slot`] returned.
    pub(crate) fn counts(&mut self, slot: usize) -> &mut SchemaCounts {
        &mut self.slots[slot].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &SchemaCounts)> {
        self.slots.iter().filter_map(|(name, counts)| Some((name.as_deref()?, counts)))
    }
}
