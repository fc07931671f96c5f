//! [`QueueSet`]: fair queuing of the requests of one priority level (`flowcontrol/fairqueuing/queueset`).
//!
//! ```text
//!  start ─▶ waiting ── its turn ─▶ executing ── finish ─▶ lingering ── additional latency is over ─▶ seats are free
//!    │        └─ cancel ─▶ gone                  └─ no additional latency ─▶ seats are free
//!    └─▶ rejected: the queue is full, or no seat is free and the level does not queue
//! ```
//!
//! Virtual time is the work that each busy queue received so far: it runs at `min(limit, seats wanted) / busy queues`.
//! Each queue has the virtual time at which its next request starts. The request that would finish first in virtual
//! time is dispatched first. The real duration of a request is unknown when it starts; it is charged with
//! [`ESTIMATED_SERVICE_TIME`], and corrected when the request finishes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::dealer::{Dealer, HAND_MAX};
use crate::demand::{Demand, DemandStatistics};
use crate::slab::{Key, Slab};
use crate::work::WorkEstimate;

/// The duration that a request is charged with until it finishes (`estimatedServiceDuration`).
pub(crate) const ESTIMATED_SERVICE_TIME: Duration = Duration::from_millis(3);
/// The largest number of queues of a level. A larger number in a PriorityLevelConfiguration is reduced to this.
pub(crate) const QUEUES_MAX: usize = 16_384;
/// The largest number of waiting requests of a level. Further requests are rejected as if their queue were full.
pub(crate) const WAITING_MAX: usize = 65_536;
/// The largest number of finished requests of a level that still occupy seats. The seats of further requests are freed
/// at once.
pub(crate) const LINGERING_MAX: usize = 65_536;

/// Seats times nanoseconds. The range is so large that virtual time never overflows.
type Work = i128;

fn work(seats: u64, duration: Duration) -> Work {
    // The largest duration is 584 years.
    i128::from(seats) * i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX >> 64)
}

/// The treatment of a request that finds no free seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queuing {
    /// The level has no limit.
    Exempt,
    /// The request is rejected.
    Reject,
    /// The request waits in one of these queues.
    Queue { dealer: Dealer, queues: usize, queue_length_max: usize },
}

/// The reason of a rejection. The text is the label `reason` of `apiserver_flowcontrol_rejected_requests_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The queue of the request is full.
    QueueFull,
    /// No seat is free, and the level does not queue.
    ConcurrencyLimit,
    /// The request waited for too long.
    TimeOut,
    /// The client disconnected while the request waited.
    Cancelled,
}

impl RejectReason {
    /// All reasons.
    pub const ALL: [RejectReason; 4] =
        [RejectReason::QueueFull, RejectReason::ConcurrencyLimit, RejectReason::TimeOut, RejectReason::Cancelled];

    /// The text for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            RejectReason::QueueFull => "queue-full",
            RejectReason::ConcurrencyLimit => "concurrency-limit",
            RejectReason::TimeOut => "time-out",
            RejectReason::Cancelled => "cancelled",
        }
    }
}

/// The state of a started request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartedRequest {
    Executing(Key),
    Waiting(Key),
}

/// A request that waits or executes.
#[derive(Debug)]
pub(crate) struct Request<W> {
    queue: Option<usize>,
    initial_seats: u64,
    final_seats: u64,
    /// The most seats of both phases. The request occupies these seats until the end of the last phase.
    pub(crate) seats: u64,
    final_work: Work,
    additional_latency: Duration,
    total_work: Work,
    arrival: Work,
    pub(crate) arrived_at: Instant,
    /// `None` while the request waits.
    started_at: Option<Instant>,
    /// The seats before the request was made narrower for its level.
    estimated_seats: u64,
    /// The caller's value for a waiting request.
    waiter: Option<W>,
    /// The caller's number for the flow schema of the request.
    pub(crate) schema: usize,
}

impl<W> Request<W> {
    /// The seats that were counted while the request waited.
    pub(crate) fn waiting_seats(&self) -> u64 {
        self.estimated_seats
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Key>,
    waiting_work: Work,
    executing: usize,
    /// Lingering requests included.
    seats_in_use: u64,
    /// The virtual time at which the next request starts. Undefined while the queue is idle.
    next_dispatch: Work,
}

impl Queue {
    fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.executing > 0
    }
}

/// A finished request that still occupies seats.
#[derive(Debug)]
struct Lingering {
    queue: Option<usize>,
    seats: u64,
}

/// The numbers of a level at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that execute.
    pub executing: usize,
    /// Seats of requests that execute or that have finished and linger.
    pub seats_in_use: u64,
    /// Seats that the waiting requests need.
    pub seats_waiting: u64,
}

/// The queues of one priority level. `W` is the caller's value for a waiting request.
#[derive(Debug)]
pub(crate) struct QueueSet<W> {
    queuing: Queuing,
    limit: u64,
    queues: Vec<Queue>,
    /// The queues with waiting requests.
    with_waiting: BTreeSet<usize>,
    requests: Slab<Request<W>>,
    virtual_time: Work,
    virtual_time_at: Instant,
    /// The queue of the last dispatched request. Queues with equal virtual finish times are dispatched round-robin.
    robin: usize,
    enqueued: usize,
    busy_queues: usize,
    occupancy: Occupancy,
    lingering: BTreeMap<(Instant, u64), Lingering>,
    lingering_next: u64,
    dispatched: VecDeque<(Key, W)>,
    demand: Demand,
}

impl<W> QueueSet<W> {
    pub(crate) fn new(queuing: Queuing, limit: u64, now: Instant) -> Self {
        let mut set = QueueSet {
            queuing: Queuing::Reject,
            limit,
            queues: Vec::new(),
            with_waiting: BTreeSet::new(),
            requests: Slab::default(),
            virtual_time: 0,
            virtual_time_at: now,
            robin: 0,
            enqueued: 0,
            busy_queues: 0,
            occupancy: Occupancy::default(),
            lingering: BTreeMap::new(),
            lingering_next: 0,
            dispatched: VecDeque::new(),
            demand: Demand::new(now),
        };
        set.configure(now, queuing, limit);
        set
    }

    /// Changes the configuration. Requests that wait keep their queues, and surplus queues are removed when they are
    /// idle.
    pub(crate) fn configure(&mut self, now: Instant, queuing: Queuing, limit: u64) {
        self.advance(now);
        (self.queuing, self.limit) = (queuing, limit);
        if let Queuing::Queue { queues, .. } = queuing
            && self.queues.len() < queues
        {
            self.queues.resize_with(queues, Queue::default);
        }
        self.remove_idle_queues();
        self.dispatch(now);
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        self.occupancy
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.occupancy.waiting == 0 && self.occupancy.executing == 0 && self.dispatched.is_empty()
    }

    pub(crate) fn end_period(&mut self, now: Instant) -> DemandStatistics {
        self.demand.end_period(now)
    }

    pub(crate) fn demand(&self) -> DemandStatistics {
        self.demand.statistics()
    }

    pub(crate) fn request(&self, id: Key) -> Option<&Request<W>> {
        self.requests.get(id)
    }

    /// Begins a request (`StartRequest`). `waiter` is called only if the request has to wait.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        hash: u64,
        schema: usize,
        estimate: WorkEstimate,
        waiter: impl FnOnce() -> W,
    ) -> Result<StartedRequest, RejectReason> {
        self.advance(now);
        let final_work = work(estimate.final_seats, estimate.additional_latency);
        let mut request = Request {
            queue: None,
            initial_seats: estimate.initial_seats,
            final_seats: estimate.final_seats,
            seats: estimate.seats(),
            final_work,
            additional_latency: estimate.additional_latency,
            total_work: work(estimate.initial_seats, ESTIMATED_SERVICE_TIME) + final_work,
            arrival: self.virtual_time,
            arrived_at: now,
            started_at: None,
            estimated_seats: estimate.seats(),
            waiter: None,
            schema,
        };
        let Queuing::Queue { dealer, queue_length_max, .. } = self.queuing else {
            if !self.can_accommodate(request.seats) {
                return Err(RejectReason::ConcurrencyLimit);
            }
            return Ok(StartedRequest::Executing(self.execute_new(now, request)));
        };
        let index = self.choose_queue(dealer, hash);
        let queue = &mut self.queues[index];
        if !queue.is_busy() {
            queue.next_dispatch = self.virtual_time;
            self.busy_queues += 1;
        }
        request.queue = Some(index);
        if self.occupancy.waiting == 0
            && self.occupancy.seats_in_use < self.limit
            && self.can_accommodate(request.seats)
        {
            // The request is the only one that could be dispatched.
            let queue = &mut self.queues[index];
            queue.next_dispatch = queue.next_dispatch.max(request.arrival);
            self.robin = index;
            return Ok(StartedRequest::Executing(self.execute_new(now, request)));
        }
        let queue = &mut self.queues[index];
        let is_full = self.occupancy.seats_in_use >= self.limit && queue.waiting.len() >= queue_length_max;
        if is_full || self.occupancy.waiting >= WAITING_MAX {
            if !queue.is_busy() {
                self.busy_queues -= 1;
            }
            return Err(RejectReason::QueueFull);
        }
        request.waiter = Some(waiter());
        queue.waiting_work += request.total_work;
        self.occupancy.waiting += 1;
        self.occupancy.seats_waiting += request.seats;
        let id = self.requests.insert(request);
        self.queues[index].waiting.push_back(id);
        self.with_waiting.insert(index);
        self.bound_next_dispatch(index);
        self.note_demand(now);
        self.dispatch(now);
        Ok(StartedRequest::Waiting(id))
    }

    /// Ends a request. A waiting request leaves its queue. An executing request frees its seats after its additional
    /// latency. Returns the request, and whether it was executing.
    pub(crate) fn end(&mut self, now: Instant, id: Key) -> Option<(Request<W>, bool)> {
        let request = self.requests.remove(id)?;
        self.advance(now);
        let is_executing = request.started_at.is_some();
        match request.started_at {
            None => self.leave_queue(now, id, &request),
            Some(started_at) => self.finish(now, started_at, &request),
        }
        // A request that was dispatched and ended before the caller polled it is not reported.
        self.dispatched.retain(|(dispatched, _)| *dispatched != id);
        self.dispatch(now);
        Some((request, is_executing))
    }

    fn leave_queue(&mut self, now: Instant, id: Key, request: &Request<W>) {
        if let Some(index) = request.queue {
            let queue = &mut self.queues[index];
            queue.waiting.retain(|waiting| *waiting != id);
            queue.waiting_work -= request.total_work;
            self.note_left(index);
            self.bound_next_dispatch(index);
        }
        self.occupancy.waiting -= 1;
        self.occupancy.seats_waiting -= request.seats;
        self.note_demand(now);
        self.remove_idle_queues();
    }

    fn finish(&mut self, now: Instant, started_at: Instant, request: &Request<W>) {
        self.occupancy.executing -= 1;
        if let Some(index) = request.queue {
            let queue = &mut self.queues[index];
            queue.executing -= 1;
            // The estimate is replaced with the real duration.
            let duration = now.saturating_duration_since(started_at);
            queue.next_dispatch -= work(request.initial_seats, ESTIMATED_SERVICE_TIME);
            queue.next_dispatch += work(request.initial_seats, duration);
            if !queue.is_busy() {
                self.busy_queues -= 1;
            }
            self.bound_next_dispatch(index);
        }
        if request.additional_latency.is_zero() || self.lingering.len() >= LINGERING_MAX {
            self.free_seats(now, request.queue, request.seats);
            return;
        }
        let lingering = Lingering { queue: request.queue, seats: request.seats };
        self.lingering.insert((now + request.additional_latency, self.lingering_next), lingering);
        self.lingering_next += 1;
    }

    fn free_seats(&mut self, now: Instant, queue: Option<usize>, seats: u64) {
        self.occupancy.seats_in_use -= seats;
        if let Some(index) = queue {
            self.queues[index].seats_in_use -= seats;
        }
        self.note_demand(now);
        self.remove_idle_queues();
    }

    /// The time of the next call of [`QueueSet::handle_timeout`].
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.lingering.first_key_value().map(|((at, _), _)| *at)
    }

    /// Frees the seats of requests whose additional latency is over.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(first) = self.lingering.first_entry().filter(|first| first.key().0 <= now) {
            // Each end changes the rate of virtual time, so time advances to it first.
            let ((at, _), Lingering { queue, seats }) = first.remove_entry();
            self.advance(at);
            self.free_seats(at, queue, seats);
        }
        self.advance(now);
        self.dispatch(now);
    }

    /// Returns the next request that was dispatched after waiting.
    pub(crate) fn poll_dispatched(&mut self) -> Option<(Key, W)> {
        self.dispatched.pop_front()
    }

    /// Advances virtual time (`syncTimeLocked`).
    fn advance(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.virtual_time_at);
        if elapsed.is_zero() {
            return;
        }
        self.virtual_time_at = now;
        if self.busy_queues > 0 {
            let wanted = self.occupancy.seats_in_use + self.occupancy.seats_waiting;
            self.virtual_time += work(wanted.min(self.limit), elapsed) / self.busy_queues as i128;
        }
    }

    /// Takes the queue with the least waiting work from the hand of the flow. The order in which the hand is visited
    /// changes with each request, so that flows whose hands overlap are not biased (`shuffleShardLocked`).
    fn choose_queue(&mut self, dealer: Dealer, hash: u64) -> usize {
        let mut cards = [0; HAND_MAX];
        let hand = dealer.deal(hash, &mut cards);
        let offset = self.enqueued % hand.len();
        self.enqueued = self.enqueued.wrapping_add(1);
        if self.occupancy.waiting == 0 {
            return hand[offset];
        }
        let in_turn = hand[offset..].iter().chain(&hand[..offset]);
        in_turn.copied().min_by_key(|index| self.queues[*index].waiting_work).unwrap_or_default()
    }

    fn can_accommodate(&self, seats: u64) -> bool {
        match self.queuing {
            Queuing::Exempt => true,
            // A request wider than the level runs when nothing else does.
            _ if seats > self.limit => self.occupancy.executing == 0,
            _ => self.occupancy.seats_in_use + seats <= self.limit,
        }
    }

    fn execute_new(&mut self, now: Instant, request: Request<W>) -> Key {
        let id = self.requests.insert(request);
        self.execute(now, id);
        self.note_demand(now);
        id
    }

    /// Starts a request: marks the seats as occupied, and returns the waiter.
    fn execute(&mut self, now: Instant, id: Key) -> Option<W> {
        let request = self.requests.get_mut(id)?;
        if request.queue.is_some() {
            let final_seats_max = self.limit.max(1);
            if request.final_seats > final_seats_max {
                // The final phase becomes narrower and longer.
                request.final_seats = final_seats_max;
                request.seats = request.initial_seats.max(final_seats_max);
                let nanos = u64::try_from(request.final_work / i128::from(final_seats_max)).unwrap_or(u64::MAX);
                request.additional_latency = Duration::from_nanos(nanos);
            }
        }
        request.started_at = Some(now);
        self.occupancy.executing += 1;
        self.occupancy.seats_in_use += request.seats;
        if let Some(index) = request.queue {
            let queue = &mut self.queues[index];
            queue.executing += 1;
            queue.seats_in_use += request.seats;
            queue.next_dispatch += request.total_work;
        }
        request.waiter.take()
    }

    fn dispatch(&mut self, now: Instant) {
        while self.occupancy.seats_in_use < self.limit && self.dispatch_one(now) {}
    }

    /// Dispatches the waiting request with the smallest virtual finish time (`findDispatchQueueToBoundLocked`). Returns
    /// `false` if no request waits, or if the request needs more seats than are free.
    fn dispatch_one(&mut self, now: Instant) -> bool {
        let in_turn = self.with_waiting.range(self.robin + 1..).chain(self.with_waiting.range(..=self.robin));
        let heads = in_turn.filter_map(|index| Some((*index, *self.queues[*index].waiting.front()?)));
        let first = heads.min_by_key(|(index, head)| {
            let work = self.requests.get(*head).map_or(0, |request| request.total_work);
            self.queues[*index].next_dispatch + work
        });
        let Some((index, id)) = first else { return false };
        let Some(request) = self.requests.get(id) else { return false };
        let (seats, total_work) = (request.seats, request.total_work);
        if !self.can_accommodate(seats) {
            return false;
        }
        let queue = &mut self.queues[index];
        queue.waiting.pop_front();
        queue.waiting_work -= total_work;
        self.robin = index;
        self.occupancy.waiting -= 1;
        self.occupancy.seats_waiting -= seats;
        if queue.waiting.is_empty() {
            self.with_waiting.remove(&index);
        }
        if let Some(waiter) = self.execute(now, id) {
            self.dispatched.push_back((id, waiter));
        }
        self.bound_next_dispatch(index);
        self.note_demand(now);
        true
    }

    /// Raises the virtual start time of a queue to the arrival of its next request (`boundNextDispatchLocked`).
    fn bound_next_dispatch(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        if let Some(oldest) = queue.waiting.front().and_then(|id| self.requests.get(*id)) {
            queue.next_dispatch = queue.next_dispatch.max(oldest.arrival);
        }
    }

    /// Records that a request left a queue without being dispatched.
    fn note_left(&mut self, index: usize) {
        let queue = &self.queues[index];
        if queue.waiting.is_empty() {
            self.with_waiting.remove(&index);
        }
        if !queue.is_busy() {
            self.busy_queues -= 1;
        }
    }

    fn note_demand(&mut self, now: Instant) {
        self.demand.set(now, self.occupancy.seats_in_use + self.occupancy.seats_waiting);
    }

    /// Removes idle queues above the configured number. New requests are never added to these queues.
    fn remove_idle_queues(&mut self) {
        let wanted = match self.queuing {
            Queuing::Queue { queues, .. } => queues,
            Queuing::Exempt | Queuing::Reject => 0,
        };
        while self.queues.len() > wanted
            && self.queues.last().is_some_and(|queue| !queue.is_busy() && queue.seats_in_use == 0)
        {
            self.queues.pop();
        }
    }
}

#[cfg(test)]
#[path = "queue_set_tests.rs"]
mod tests;
