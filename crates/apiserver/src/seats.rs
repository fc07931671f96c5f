//! Seats: the limit on requests in flight. A request takes a seat when its work begins and frees it when
//! the last byte of its response is sent.
//!
//! ```text
//!  take ─▶ working ── response goes to a connection ─▶ sending ── last byte left, or dropped ─▶ free
//!                                                      │ past its deadline (`sweep`)
//!                                                      │ slow while another request needs a seat (`take`)
//!                                                      └─▶ cut: the seat is free at once, the stream is reset
//! ```
//!
//! The deadline is kube-apiserver's: its timeout filter aborts a response that is not complete when
//! the request's time is over (`apiserver/pkg/server/filters/timeout.go`). Watches have no seat.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// For this long an response keeps its seat however slowly its client reads.
pub(crate) const SENDING_GRACE: Duration = Duration::from_secs(1);
/// Bytes per second, on average since the response began. A slower response loses its seat when another
/// request finds none: it is broken off, and its client sees a reset stream or a closed connection.
pub(crate) const SENDING_BYTES_PER_SECOND_MIN: u64 = 64 * 1024;
/// How often responses past their deadline are looked for: they are cut up to this much late.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Breaks off an response.
pub(crate) trait Cut: Send + Sync {
    /// Drops the response soon. Called at most once.
    fn cut(&self);
}

/// The seats of one kind of requests.
pub(crate) struct Seats {
    max: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    taken: usize,
    sending: HashMap<u64, Arc<Sending>>,
    next: u64,
}

/// An response on its way to a client.
struct Sending {
    since: Instant,
    deadline: Instant,
    /// Bytes handed to the connection.
    bytes: AtomicU64,
    /// Weak: a connection keeps the seats of its responses, and may be gone before them.
    cut: Weak<dyn Cut>,
}

impl Sending {
    fn cut(&self) {
        if let Some(response) = self.cut.upgrade() {
            response.cut();
        }
    }

    /// Bytes per second, if that is too few.
    fn slow(&self, now: Instant) -> Option<u64> {
        let age = now.saturating_duration_since(self.since);
        let rate = (self.bytes.load(Relaxed) as f64 / age.as_secs_f64()) as u64;
        (age >= SENDING_GRACE && rate < SENDING_BYTES_PER_SECOND_MIN).then_some(rate)
    }
}

impl Table {
    fn slowest(&mut self, now: Instant) -> Option<Arc<Sending>> {
        let slow = self.sending.iter().filter_map(|(id, sending)| Some((sending.slow(now)?, *id)));
        let (_, id) = slow.min()?;
        self.sending.remove(&id)
    }
}

impl Seats {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Seats { max, table: Mutex::default() })
    }

    /// A seat: a free one, or that of the slowest response.
    pub(crate) fn take(self: &Arc<Self>, now: impl FnOnce() -> Instant) -> Option<Seat> {
        let mut table = self.table.lock();
        if table.taken < self.max {
            table.taken += 1;
        } else {
            let slowest = table.slowest(now())?;
            drop(table);
            slowest.cut();
        }
        Some(Seat { seats: Arc::clone(self), sending: None })
    }

    /// Cuts the slowest response, if one is slow, for the sake of the memory behind it.
    pub(crate) fn reclaim(&self, now: Instant) {
        let mut table = self.table.lock();
        if let Some(slowest) = table.slowest(now) {
            table.taken -= 1;
            drop(table);
            slowest.cut();
        }
    }

    /// Cuts the responses whose time is over.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut table = self.table.lock();
        let late: Vec<Arc<Sending>> =
            table.sending.extract_if(|_, sending| sending.deadline <= now).map(|(_, sending)| sending).collect();
        table.taken -= late.len();
        drop(table);
        late.iter().for_each(|sending| sending.cut());
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.table.lock().taken
    }
}

/// A seat, given back when it is dropped.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    sending: Option<(u64, Arc<Sending>)>,
}

impl Seat {
    /// The response goes to a connection, which has until `deadline` to take it.
    pub(crate) fn send(&mut self, now: Instant, deadline: Instant, cut: Weak<dyn Cut>) {
        let sending = Arc::new(Sending { since: now, deadline, bytes: AtomicU64::new(0), cut });
        let mut table = self.seats.table.lock();
        let id = table.next;
        table.next += 1;
        table.sending.insert(id, Arc::clone(&sending));
        self.sending = Some((id, sending));
    }

    /// The connection has taken this many more bytes.
    pub(crate) fn sent(&self, bytes: usize) {
        if let Some((_, sending)) = &self.sending {
            // One writer at a time.
            sending.bytes.store(sending.bytes.load(Relaxed) + bytes as u64, Relaxed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.seats.table.lock();
        // An response that was cut has given its seat away already.
        let own = self.sending.as_ref().is_none_or(|(id, _)| table.sending.remove(id).is_some());
        table.taken -= usize::from(own);
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seat")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[derive(Default)]
    struct Response(AtomicBool);

    impl Cut for Response {
        fn cut(&self) {
            assert!(!self.0.swap(true, Relaxed), "cut twice");
        }
    }

    impl Response {
        fn is_cut(&self) -> bool {
            self.0.load(Relaxed)
        }
    }

    fn sending(seats: &Arc<Seats>, now: Instant, seconds: u64) -> (Seat, Arc<Response>) {
        let (mut seat, response) = (seats.take(|| now).expect("a free seat"), Arc::new(Response::default()));
        let cut: Weak<Response> = Arc::downgrade(&response);
        seat.send(now, now + Duration::from_secs(seconds), cut);
        (seat, response)
    }

    #[test]
    fn take_without_free_seat_cuts_the_slowest_response() {
        let (seats, start) = (Seats::new(3), Instant::now());
        let (fast, unread, slow) = (sending(&seats, start, 60), sending(&seats, start, 60), sending(&seats, start, 60));
        fast.0.sent(10 << 20);
        slow.0.sent(1);
        assert!(seats.take(|| start + SENDING_GRACE / 2).is_none(), "no response is slow yet");
        let later = start + SENDING_GRACE;
        let _first = seats.take(|| later).expect("the seat of the unread response");
        assert!(unread.1.is_cut() && !slow.1.is_cut());
        let _second = seats.take(|| later).expect("the seat of the slow response");
        assert!(slow.1.is_cut() && !fast.1.is_cut());
        assert!(seats.take(|| later).is_none(), "a fast response and two requests at work keep their seats");
        drop((unread, slow));
        assert_eq!(seats.taken(), 3, "a seat that was given away is not given back again");
        drop(fast);
        assert_eq!(seats.taken(), 2);
    }

    #[test]
    fn sweep_cuts_responses_past_their_deadline() {
        let (seats, start) = (Seats::new(2), Instant::now());
        let (short, long) = (sending(&seats, start, 1), sending(&seats, start, 60));
        short.0.sent(10 << 20);
        seats.sweep(start + Duration::from_millis(999));
        assert!(!short.1.is_cut());
        seats.sweep(start + Duration::from_secs(1));
        assert!(short.1.is_cut() && !long.1.is_cut());
        assert_eq!(seats.taken(), 1);
        drop((short, long));
        assert_eq!(seats.taken(), 0);
    }

    #[test]
    fn request_at_work_is_never_cut() {
        let (seats, start) = (Seats::new(1), Instant::now());
        let _working = seats.take(|| start);
        let later = start + Duration::from_secs(3600);
        seats.sweep(later);
        seats.reclaim(later);
        assert!(seats.take(|| later).is_none());
    }
}
