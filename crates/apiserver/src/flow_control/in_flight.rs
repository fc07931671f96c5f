//! The requests in flight: [`InFlightLimit`]. A request takes a slot when its work begins and frees the slot when the
//! last byte of its response is sent.
//!
//! There are two kinds of slots. A limited slot counts against the maximum of the table. If priority and fairness is
//! off, all requests have limited slots; otherwise only exempt requests have them. A seated slot holds the [`Seat`] of
//! a request, which the priority level limits. The seat is freed with the slot.
//!
//! ```text
//!  acquire ─▶ working ── response goes to a connection ─▶ sending ── last byte sent, or dropped ─▶ free
//!                                                         │ past its deadline (`abort_expired`)
//!                                                         │ slow while another request needs a slot (`acquire`)
//!                                                         │ slow while a request of its level waits (`reclaim_seat`)
//!                                                         └─▶ aborted: the slot is free at once, the stream is reset
//! ```
//!
//! The deadline is the same as in kube-apiserver, whose timeout filter aborts a response that is incomplete at the
//! deadline (`apiserver/pkg/server/filters/timeout.go`). Watches take no slot.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::fairness::Seat;

/// The time for which a response keeps its slot even if the client reads slowly.
pub(crate) const SENDING_GRACE: Duration = Duration::from_secs(1);
/// The minimum rate of a response, in bytes per second, as an average since its start. A slower response is aborted
/// when another request finds no free slot. The client receives a stream reset, or the connection is closed.
pub(crate) const SENDING_BYTES_PER_SECOND_MIN: u64 = 64 * 1024;
/// The interval of [`InFlightLimit::abort_expired`]. A response is aborted at most this time after its deadline.
pub(crate) const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// A response that can be aborted.
pub(crate) trait Abort: Send + Sync {
    /// Drops the response soon. Callers call this at most once.
    fn abort(&self);
}

/// The slots of reads, or the slots of writes.
pub(crate) struct InFlightLimit {
    max: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// The number of taken limited slots.
    taken: usize,
    /// The number of taken seated slots.
    seated: usize,
    sending: HashMap<u64, Arc<Sending>>,
    next: u64,
}

/// A response that is being sent to a client.
struct Sending {
    since: Instant,
    deadline: Instant,
    /// The number of bytes that the connection has accepted.
    bytes: AtomicU64,
    /// The reference is weak, because the connection owns the slots of its responses.
    response: Weak<dyn Abort>,
    /// Whether the slot is a seated slot.
    is_seated: bool,
    /// The seat, until the slot is free.
    seat: Mutex<Option<Seat>>,
}

impl Sending {
    /// Whether the response holds a seat of a level.
    fn holds_seat_of(&self, level: &str) -> bool {
        self.seat.lock().as_ref().is_some_and(|seat| seat.level_name() == level)
    }

    /// Aborts the response, and frees its seat at once. No lock of a table is held.
    fn abort(&self) {
        drop(self.seat.lock().take());
        if let Some(response) = self.response.upgrade() {
            response.abort();
        }
    }

    /// Returns the rate in bytes per second if the response is slow; otherwise `None`.
    fn slow_rate(&self, now: Instant) -> Option<u64> {
        let age = now.saturating_duration_since(self.since);
        let rate = (self.bytes.load(Relaxed) as f64 / age.as_secs_f64()) as u64;
        (age >= SENDING_GRACE && rate < SENDING_BYTES_PER_SECOND_MIN).then_some(rate)
    }
}

impl Table {
    /// Removes the slowest response for which `among` returns true, and frees its slot. Returns `None` if no such
    /// response is slow.
    fn take_slowest(&mut self, now: Instant, among: impl Fn(&Sending) -> bool) -> Option<Arc<Sending>> {
        let candidates = self.sending.iter().filter(|(_, sending)| among(sending));
        let slow = candidates.filter_map(|(id, sending)| Some((sending.slow_rate(now)?, *id)));
        let (_, id) = slow.min()?;
        let sending = self.sending.remove(&id)?;
        self.note_free(sending.is_seated);
        Some(sending)
    }

    fn note_free(&mut self, is_seated: bool) {
        match is_seated {
            true => self.seated -= 1,
            false => self.taken -= 1,
        }
    }
}

impl InFlightLimit {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(InFlightLimit { max, table: Mutex::default() })
    }

    /// Takes a free limited slot. If no slot is free, aborts the slowest response and takes its slot. `None` if no
    /// response is slow.
    pub(crate) fn acquire(self: &Arc<Self>, now: impl FnOnce() -> Instant) -> Option<InFlightSlot> {
        let mut table = self.table.lock();
        if table.taken >= self.max {
            let slowest = table.take_slowest(now(), |sending| !sending.is_seated)?;
            table.taken += 1;
            drop(table);
            slowest.abort();
        } else {
            table.taken += 1;
        }
        Some(InFlightSlot { limit: Arc::clone(self), sending: None, is_seated: false, seat: None })
    }

    /// Takes a slot for a request that has a seat.
    pub(crate) fn seat(self: &Arc<Self>, seat: Seat) -> InFlightSlot {
        self.table.lock().seated += 1;
        InFlightSlot { limit: Arc::clone(self), sending: None, is_seated: true, seat: Some(seat) }
    }

    /// Frees a seat of a level by aborting the slowest response of the level. Returns false if no response of the level
    /// is slow.
    pub(crate) fn reclaim_seat(&self, now: Instant, level: &str) -> bool {
        let slowest = self.table.lock().take_slowest(now, |sending| sending.holds_seat_of(level));
        slowest.inspect(|sending| sending.abort()).is_some()
    }

    /// Frees memory by aborting the slowest response. Does nothing if no response is slow.
    pub(crate) fn reclaim(&self, now: Instant) {
        let slowest = self.table.lock().take_slowest(now, |_| true);
        if let Some(slowest) = slowest {
            slowest.abort();
        }
    }

    /// Aborts the responses past their deadline.
    pub(crate) fn abort_expired(&self, now: Instant) {
        let mut table = self.table.lock();
        let expired: Vec<Arc<Sending>> =
            table.sending.extract_if(|_, sending| sending.deadline <= now).map(|(_, sending)| sending).collect();
        expired.iter().for_each(|sending| table.note_free(sending.is_seated));
        drop(table);
        expired.iter().for_each(|sending| sending.abort());
    }

    /// Returns the number of taken slots.
    pub(crate) fn taken(&self) -> usize {
        let table = self.table.lock();
        table.taken + table.seated
    }
}

/// A slot, which is freed when the value is dropped.
pub(crate) struct InFlightSlot {
    limit: Arc<InFlightLimit>,
    sending: Option<(u64, Arc<Sending>)>,
    is_seated: bool,
    /// The seat, until the response is sent.
    seat: Option<Seat>,
}

impl InFlightSlot {
    /// Adds the seat of an exempt request to its limited slot. Both are freed together.
    pub(crate) fn with_seat(mut self, seat: Seat) -> Self {
        self.seat = Some(seat);
        self
    }

    /// Records that a connection starts to send the response, which must be complete at `deadline`.
    pub(crate) fn begin_sending(&mut self, now: Instant, deadline: Instant, response: Weak<dyn Abort>) {
        let (is_seated, seat) = (self.is_seated, Mutex::new(self.seat.take()));
        let sending = Arc::new(Sending { since: now, deadline, bytes: AtomicU64::new(0), response, is_seated, seat });
        let mut table = self.limit.table.lock();
        let id = table.next;
        table.next += 1;
        table.sending.insert(id, Arc::clone(&sending));
        self.sending = Some((id, sending));
    }

    /// Records that a task prepares the response, and that aborting the task only frees the seat.
    pub(crate) fn begin_preparing(&mut self, now: Instant, deadline: Instant) {
        self.begin_sending(now, deadline, Weak::<Unabortable>::new());
    }

    /// Records that the connection has accepted bytes.
    pub(crate) fn add_sent(&self, bytes: usize) {
        if let Some((_, sending)) = &self.sending {
            // There is only one writer, so no atomic addition is needed.
            sending.bytes.store(sending.bytes.load(Relaxed) + bytes as u64, Relaxed);
        }
    }
}

impl Drop for InFlightSlot {
    fn drop(&mut self) {
        let mut table = self.limit.table.lock();
        // The slot of an aborted response is already free.
        let own = self.sending.as_ref().is_none_or(|(id, _)| table.sending.remove(id).is_some());
        if own {
            table.note_free(self.is_seated);
        }
        drop(table);
        if let Some((_, sending)) = &self.sending {
            drop(sending.seat.lock().take());
        }
    }
}

/// A response that is not aborted when its seat is reclaimed.
struct Unabortable;

impl Abort for Unabortable {
    fn abort(&self) {}
}

impl std::fmt::Debug for InFlightSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InFlightSlot")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[derive(Default)]
    struct Response(AtomicBool);

    impl Abort for Response {
        fn abort(&self) {
            assert!(!self.0.swap(true, Relaxed), "aborted twice");
        }
    }

    impl Response {
        fn is_aborted(&self) -> bool {
            self.0.load(Relaxed)
        }
    }

    fn sending(limit: &Arc<InFlightLimit>, now: Instant, seconds: u64) -> (InFlightSlot, Arc<Response>) {
        let (mut slot, response) = (limit.acquire(|| now).expect("a free slot"), Arc::new(Response::default()));
        let weak: Weak<Response> = Arc::downgrade(&response);
        slot.begin_sending(now, now + Duration::from_secs(seconds), weak);
        (slot, response)
    }

    #[test]
    fn acquire_without_free_slot_aborts_the_slowest_response() {
        let (limit, start) = (InFlightLimit::new(3), Instant::now());
        let (fast, unread, slow) = (sending(&limit, start, 60), sending(&limit, start, 60), sending(&limit, start, 60));
        fast.0.add_sent(10 << 20);
        slow.0.add_sent(1);
        assert!(limit.acquire(|| start + SENDING_GRACE / 2).is_none(), "no response is slow yet");
        let later = start + SENDING_GRACE;
        let _first = limit.acquire(|| later).expect("the slot of the unread response");
        assert!(unread.1.is_aborted() && !slow.1.is_aborted());
        let _second = limit.acquire(|| later).expect("the slot of the slow response");
        assert!(slow.1.is_aborted() && !fast.1.is_aborted());
        assert!(limit.acquire(|| later).is_none(), "a fast response and two requests at work keep their slots");
        drop((unread, slow));
        assert_eq!(limit.taken(), 3, "the slot of an aborted response is freed once");
        drop(fast);
        assert_eq!(limit.taken(), 2);
    }

    #[test]
    fn unsent_responses_past_their_deadline_are_aborted() {
        let (limit, start) = (InFlightLimit::new(2), Instant::now());
        let (short, long) = (sending(&limit, start, 1), sending(&limit, start, 60));
        short.0.add_sent(10 << 20);
        limit.abort_expired(start + Duration::from_millis(999));
        assert!(!short.1.is_aborted());
        limit.abort_expired(start + Duration::from_secs(1));
        assert!(short.1.is_aborted() && !long.1.is_aborted());
        assert_eq!(limit.taken(), 1);
        drop((short, long));
        assert_eq!(limit.taken(), 0);
    }

    #[test]
    fn request_without_response_is_never_aborted() {
        let (limit, start) = (InFlightLimit::new(1), Instant::now());
        let _working = limit.acquire(|| start);
        let later = start + Duration::from_secs(3600);
        limit.abort_expired(later);
        limit.reclaim(later);
        assert!(limit.acquire(|| later).is_none());
    }
}
