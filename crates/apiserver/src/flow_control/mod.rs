//! Flow control: decides when a request may execute, and limits the total memory of the bodies of writes. The filter of
//! the same name ([`crate::filters::flow_control`]) creates the responses.
//!
//! ```text
//!  read   ──▶ seat ─────────────────────────────────────▶ handler ──▶ response is sent ──▶ free
//!  write  ──▶ body is received ──▶ seat ──▶ memory ──▶ handler ──▶ response is sent ──▶ free
//!  watch  ──▶ seat ──▶ initial events are read ──▶ free
//!  other long-running request ─────────────────────────────────▶ handler
//! ```
//!
//! - With priority and fairness (`filters/priority-and-fairness.go`), a request needs seats of its priority level. The
//!   level `exempt` has no limit. Exempt requests also take a slot of the limits on requests in flight, so that the
//!   memory of the server stays bounded.
//! - Without it, all requests take such slots (`filters/maxinflight.go`).
//!
//! Requests of the server to itself take no slot in flight: they are calls of webhooks, and the requests that wait for
//! these calls may hold all slots. Upstream lets all members of `system:masters` pass.
//!
//! A write takes its seat only after its body has arrived, so that a slow client holds no seat. A response holds its
//! seat until it is sent. If its client reads slowly, the response is aborted when a request of its level finds no seat
//! ([`in_flight`]). The initial events of a watch are not aborted; the watch only loses its seat.

mod classification;
mod fairness;
#[cfg_attr(not(feature = "serve"), expect(dead_code, reason = "connections track what they send"))]
pub(crate) mod in_flight;
mod too_many_requests;
mod work;

use std::sync::Arc;
use std::time::Duration;

use listwatch_flow_control::RequestDigest;
use listwatch_meta::UserInfo;
use listwatch_registry::Backend;
use listwatch_wire::query::Query;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

pub(crate) use self::classification::Classification;
pub(crate) use self::fairness::Fairness;
use self::fairness::WatchRegistration;
use self::in_flight::{InFlightLimit, InFlightSlot};
pub(crate) use self::too_many_requests::TooManyRequests;
use self::work::Work;
use crate::request::info::RequestInfo;

/// Maximum number of concurrent reads, without watches (`--max-requests-inflight`). A read counts until its response is
/// sent. A further read takes the slot of a slow response, or receives a 429. With priority and fairness, this limits
/// only exempt reads, and the sum of both limits is the number of seats.
pub(crate) const READS_IN_FLIGHT_MAX: usize = 400;
/// Maximum number of concurrent writes (`--max-mutating-requests-inflight`). A write counts until its response is sent.
/// A further write takes the slot of a slow response, or receives a 429. With priority and fairness, this limits only
/// exempt writes, and the sum of both limits is the number of seats.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 200;

/// Maximum total memory of all parsed bodies of writes and of their unsent responses, in bytes. A body is charged with
/// the maximum memory that a body of this length can need. Further writes wait until their deadline.
const WRITES_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Maximum size of a body that is parsed without a charge to [`WRITES_BYTES_MAX`], in bytes.
const SMALL_BODY_BYTES_MAX: usize = 4 * 1024;
/// Interval at which a write that waits for memory aborts one slow response.
const WRITES_BYTES_RECLAIM_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which slow responses are aborted while requests of the same level wait.
const SEATS_RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

/// The seats, the slots and the memory of one server.
pub(crate) struct FlowControl {
    /// `None` if priority and fairness is off.
    fairness: Option<Arc<Fairness>>,
    reads: Arc<InFlightLimit>,
    writes: Arc<InFlightLimit>,
    /// The free part of [`WRITES_BYTES_MAX`], in bytes.
    writes_bytes: Arc<Semaphore>,
}

/// A request that passes flow control.
#[derive(Clone, Copy)]
pub(crate) struct FlowRequest<'a> {
    pub(crate) info: &'a RequestInfo<'a>,
    /// The user after impersonation.
    pub(crate) user: &'a UserInfo,
    /// Whether the server sent the request to itself, so that no slot in flight is needed.
    pub(crate) is_loopback: bool,
    pub(crate) query: &'a Query<'a>,
    pub(crate) backend: &'a Backend,
    /// The time at which the request must be complete.
    pub(crate) deadline: Instant,
}

impl FlowRequest<'_> {
    fn digest(&self) -> RequestDigest<'_> {
        digest(self.info, self.user)
    }
}

fn digest<'a>(info: &'a RequestInfo<'_>, user: &'a UserInfo) -> RequestDigest<'a> {
    RequestDigest {
        user,
        is_resource_request: info.is_resource_request,
        verb: &info.verb,
        api_group: &info.api_group,
        resource: &info.resource,
        subresource: &info.subresource,
        namespace: &info.namespace,
        path: &info.path,
    }
}

impl FlowControl {
    /// Creates slots for the given numbers of reads and writes. All slots and all memory are free.
    pub(crate) fn new(reads: usize, writes: usize, fairness: Option<Arc<Fairness>>) -> Arc<Self> {
        Arc::new(FlowControl {
            fairness,
            reads: InFlightLimit::new(reads),
            writes: InFlightLimit::new(writes),
            writes_bytes: Arc::new(Semaphore::new(WRITES_BYTES_MAX)),
        })
    }

    /// Returns the priority and fairness of the server; `None` if it is off.
    pub(crate) fn fairness(&self) -> Option<&Arc<Fairness>> {
        self.fairness.as_ref()
    }

    /// Returns the flow schema and the flow of a request. `None` without priority and fairness, and for long-running
    /// requests other than watches.
    pub(crate) fn classify(&self, info: &RequestInfo<'_>, user: &UserInfo) -> Option<Classification> {
        let fairness = self.fairness.as_ref()?;
        (!info.long_running || info.is_watch()).then(|| fairness.classify(&digest(info, user)))
    }

    /// Admits a request. A read or watch waits for a seat.
    ///
    /// # Errors
    /// [`TooManyRequests`] if no seat or slot is free in time.
    pub(crate) async fn admit(
        &self,
        found: Option<Classification>,
        request: FlowRequest<'_>,
    ) -> Result<Admission<'_>, TooManyRequests> {
        let mut admission = Admission { control: self, found, slot: None, memory: None };
        let info = request.info;
        if !info.is_mutating() {
            // Only priority and fairness limits watches until they are initialized.
            let is_limited = !info.long_running && !info.is_health_or_version();
            admission.slot = admission.take(&self.reads, request, is_limited).await?;
        }
        Ok(admission)
    }

    /// Aborts a slow response of a level to free its seat. Returns false if no response of the level is slow.
    fn reclaim_seat(&self, now: Instant, level: &str) -> bool {
        self.reads.reclaim_seat(now, level) || self.writes.reclaim_seat(now, level)
    }

    /// Runs the timers of the priority levels, and aborts slow responses while requests wait. Runs until the future is
    /// dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let Some(fairness) = &self.fairness else { return };
        loop {
            let now = Instant::now();
            let waiting = fairness.waiting();
            for (level, requests) in &waiting {
                // Each waiting request may take one seat.
                let mut seats = *requests;
                while seats > 0 && self.reclaim_seat(now, level) {
                    seats -= 1;
                }
            }
            let next = fairness.next_timeout();
            let next = if waiting.is_empty() { next } else { next.min(now + SEATS_RECLAIM_INTERVAL) };
            tokio::select! {
                () = tokio::time::sleep_until(next) => fairness.handle_timeout(Instant::now()),
                () = fairness.timer.notified() => {}
            }
        }
    }

    /// Aborts the responses past their deadline.
    #[cfg(feature = "serve")]
    pub(crate) fn abort_expired(&self, now: Instant) {
        self.reads.abort_expired(now);
        self.writes.abort_expired(now);
    }

    /// Returns the number of reads and the number of writes in flight.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.reads.taken(), self.writes.taken())
    }
}

/// The seat, the slot and the memory that a request holds until its response is sent.
pub(crate) struct Admission<'a> {
    control: &'a FlowControl,
    /// The classification of a request that needs seats.
    found: Option<Classification>,
    slot: Option<InFlightSlot>,
    memory: Option<OwnedSemaphorePermit>,
}

impl Admission<'_> {
    /// Takes a slot of a table. A request with a priority level waits for a seat. If `is_limited` is set, an exempt
    /// request, or any request without priority and fairness, takes a limited slot, unless the server itself sent it.
    async fn take(
        &self,
        table: &Arc<InFlightLimit>,
        request: FlowRequest<'_>,
        is_limited: bool,
    ) -> Result<Option<InFlightSlot>, TooManyRequests> {
        let is_limited = is_limited && !request.is_loopback;
        let (Some(fairness), Some(found)) = (&self.control.fairness, &self.found) else {
            return if is_limited { table.acquire(Instant::now).ok_or_default().map(Some) } else { Ok(None) };
        };
        let limited = match is_limited && found.is_exempt() {
            true => Some(table.acquire(Instant::now).ok_or_default()?),
            false => None,
        };
        let work = Work::new(request.info, request.query, request.backend);
        let wait_until = fairness::wait_limit(Instant::now(), request.deadline);
        let reclaim = |level: &str| self.control.reclaim_seat(Instant::now(), level);
        let seat = fairness.seat(&request.digest(), found.clone(), &work, wait_until, reclaim).await?;
        Ok(Some(match limited {
            Some(slot) => slot.with_seat(seat),
            None => table.seat(seat),
        }))
    }

    /// Takes a seat or slot for a write whose body has arrived.
    ///
    /// # Errors
    /// [`TooManyRequests`] if no seat or slot is free in time.
    pub(crate) async fn take_write_slot(&mut self, request: FlowRequest<'_>) -> Result<(), TooManyRequests> {
        self.slot = self.take(&self.control.writes, request, true).await?;
        Ok(())
    }

    /// Waits for the memory of a large body, which needs up to `parsed_bytes` when it is parsed. A small body does not
    /// wait.
    pub(crate) async fn wait_for_memory(&mut self, body_bytes: usize, parsed_bytes: usize) {
        // A small write, such as that of a lease, never waits for large ones. The seats and slots limit the memory of
        // small bodies to 800 times 0.5 MiB.
        if body_bytes <= SMALL_BODY_BYTES_MAX {
            return;
        }
        // No body needs more than the whole memory, and the semaphore is never closed.
        let bytes = u32::try_from(parsed_bytes.min(WRITES_BYTES_MAX)).unwrap_or(u32::MAX);
        let mut memory = std::pin::pin!(Arc::clone(&self.control.writes_bytes).acquire_many_owned(bytes));
        loop {
            match tokio::time::timeout(WRITES_BYTES_RECLAIM_INTERVAL, &mut memory).await {
                Ok(memory) => {
                    self.memory = memory.ok();
                    return;
                }
                Err(_) => self.control.writes.reclaim(Instant::now()),
            }
        }
    }

    /// Moves the seat to a new watch, and registers the watch for the cost estimates of writes. The result must be
    /// dropped with the watch.
    pub(crate) fn begin_watch(&mut self, request: FlowRequest<'_>) -> WatchAdmission {
        let mut initializing = self.slot.take();
        if let Some(slot) = &mut initializing {
            slot.begin_preparing(Instant::now(), request.deadline);
        }
        let registration = self.control.fairness.as_ref().and_then(|fairness| {
            let scope = work::watched(request.info, request.query)?;
            Some(fairness.register_watch(&scope))
        });
        WatchAdmission { initializing, _registration: registration }
    }

    /// Returns the slot, and the memory permit for a response of `bytes` bytes. The response holds both until it is
    /// sent. Returns `None` for a request without a slot.
    pub(crate) fn into_slot(self, bytes: usize) -> Option<(InFlightSlot, Option<OwnedSemaphorePermit>)> {
        let memory = self.memory.and_then(|mut memory| memory.split(bytes.min(memory.num_permits())));
        Some((self.slot?, memory))
    }
}

/// Converts a missing slot to the error [`TooManyRequests`].
trait OrDefault<T> {
    fn ok_or_default(self) -> Result<T, TooManyRequests>;
}

impl<T> OrDefault<T> for Option<T> {
    fn ok_or_default(self) -> Result<T, TooManyRequests> {
        self.ok_or_else(TooManyRequests::default)
    }
}

/// The resources of a watch: the seat until the initial events are read, and the registration for cost estimates.
#[derive(Default)]
pub(crate) struct WatchAdmission {
    initializing: Option<InFlightSlot>,
    _registration: Option<WatchRegistration>,
}

impl WatchAdmission {
    /// Records that the client has accepted bytes of the watch.
    pub(crate) fn note_sent(&self, bytes: usize) {
        if let Some(slot) = &self.initializing {
            slot.add_sent(bytes);
        }
    }

    /// Frees the seat after the last initial event. Called when no further event is ready.
    pub(crate) fn note_initialized(&mut self) {
        if self.initializing.is_some() {
            self.initializing = None;
        }
    }
}

#[cfg(test)]
mod tests;
