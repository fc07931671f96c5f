//! Simulations of a queue set on a virtual clock, and a comparison with a model that computes each sum from the
//! requests.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// One millisecond, the unit of durations and times.
const MS: Duration = Duration::from_millis(1);

fn queuing(queues: usize, hand: usize, queue_length_max: usize) -> Queuing {
    Queuing::Queue { dealer: Dealer::new(queues, hand).unwrap(), queues, queue_length_max }
}

fn estimate(seats: u64, final_seats: u64, latency_ms: u32) -> WorkEstimate {
    WorkEstimate { initial_seats: seats, final_seats, additional_latency: MS * latency_ms }
}

/// A closed loop: each client sends its next request when the last one has ended.
#[derive(Clone, Copy, Debug)]
struct Client {
    flow: u64,
    seats: u64,
    service_ms: u32,
    /// The pause between two requests of the client, in milliseconds.
    pause_ms: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Served {
    requests: u64,
    rejected: u64,
    longest_wait_ms: u32,
    seat_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(usize),
    Send(usize),
}

/// Simulates clients for `run_ms` milliseconds. Returns the statistics of each client.
fn simulate(queuing: Queuing, limit: u64, clients: &[Client], run_ms: u32) -> Vec<Served> {
    let start = Instant::now();
    let mut set: QueueSet<usize> = QueueSet::new(queuing, limit, start);
    let mut served = vec![Served::default(); clients.len()];
    let mut sent = vec![0u32; clients.len()];
    let mut ids: Vec<Option<Key>> = vec![None; clients.len()];
    let mut events: BTreeSet<(u32, Event)> = (0..clients.len()).map(|client| (0, Event::Send(client))).collect();
    while let Some((at, event)) = events.pop_first() {
        if at > run_ms {
            break;
        }
        let now = start + MS * at;
        let begin = |client: usize, served: &mut [Served], sent: &[u32], events: &mut BTreeSet<(u32, Event)>| {
            served[client].requests += 1;
            served[client].longest_wait_ms = served[client].longest_wait_ms.max(at - sent[client]);
            served[client].seat_ms += clients[client].seats * u64::from(clients[client].service_ms);
            events.insert((at + clients[client].service_ms, Event::End(client)));
        };
        match event {
            Event::Send(client) => {
                sent[client] = at;
                let Client { flow, seats, .. } = clients[client];
                match set.start(now, flow, client, estimate(seats, 0, 0), || client) {
                    Ok(StartedRequest::Executing(id)) => {
                        ids[client] = Some(id);
                        begin(client, &mut served, &sent, &mut events);
                    }
                    Ok(StartedRequest::Waiting(id)) => ids[client] = Some(id),
                    Err(_) => {
                        served[client].rejected += 1;
                        events.insert((at + 10, Event::Send(client)));
                    }
                }
            }
            Event::End(client) => {
                set.end(now, ids[client].take().unwrap()).unwrap();
                events.insert((at + clients[client].pause_ms, Event::Send(client)));
            }
        }
        while let Some((_, client)) = set.poll_dispatched() {
            begin(client, &mut served, &sent, &mut events);
        }
        let occupancy = set.occupancy();
        assert!(occupancy.seats_in_use <= limit, "more seats are taken than the level has");
    }
    served
}

/// Returns the longest wait of a client with few requests next to heavy flows.
fn wait_next_to(heavy: &[Client], queues: usize, light: Client) -> u32 {
    let mut clients = heavy.to_vec();
    clients.push(light);
    let hand = queues.min(2);
    simulate(queuing(queues, hand, 1_000), 4, &clients, 20_000).pop().unwrap().longest_wait_ms
}

#[test]
fn flow_within_its_share_waits_briefly_next_to_a_flood() {
    // One user with 200 clients that list without pause, and one that renews a lease.
    let flood = [Client { flow: 0, seats: 1, service_ms: 20, pause_ms: 0 }; 200];
    let lease = Client { flow: 77_777, seats: 1, service_ms: 2, pause_ms: 100 };
    let wait = wait_next_to(&flood, 64, lease);
    assert!(wait <= 2 * 20, "the light flow waits for the flood: {wait} ms");
    // The same check notices a level whose flows share one queue.
    let wait = wait_next_to(&flood, 1, lease);
    assert!(wait > 500, "a first-in, first-out queue passes the check: {wait} ms");
}

#[test]
fn busy_flows_receive_equal_seats_regardless_of_their_request_rate() {
    let clients = |flow: u64, number: usize, seats: u64, service_ms: u32| {
        std::iter::repeat_n(Client { flow, seats, service_ms, pause_ms: 0 }, number)
    };
    // Flow 0 has many short requests, flow 1 few long ones, flow 2 wide ones. A hand of one card is the queue itself.
    let all: Vec<Client> = clients(0, 100, 1, 5).chain(clients(1, 20, 1, 40)).chain(clients(2, 20, 3, 15)).collect();
    let served = simulate(queuing(8, 1, 1_000), 6, &all, 60_000);
    let mut seat_ms: BTreeMap<u64, u64> = BTreeMap::new();
    for (client, served) in all.iter().zip(&served) {
        *seat_ms.entry(client.flow).or_default() += served.seat_ms;
    }
    let fair = seat_ms.values().sum::<u64>() / 3;
    for (flow, seat_ms) in &seat_ms {
        assert!(seat_ms.abs_diff(fair) < fair / 8, "flow {flow} received {seat_ms} seat-ms of a fair {fair}");
    }
    let total: u64 = seat_ms.values().sum();
    assert!(total > 60_000 * 6 * 8 / 10, "seats stay empty while requests wait: {total}");
}

#[test]
fn wide_request_runs_alone_and_others_run_after_it() {
    let start = Instant::now();
    let mut set: QueueSet<&str> = QueueSet::new(queuing(4, 1, 10), 2, start);
    let Ok(StartedRequest::Executing(first)) = set.start(start, 0, 0, estimate(1, 0, 0), || "first") else { panic!() };
    let Ok(StartedRequest::Waiting(wide)) = set.start(start, 1, 0, estimate(5, 0, 0), || "wide") else { panic!() };
    set.end(start + MS, first).unwrap();
    assert_eq!(set.poll_dispatched(), Some((wide, "wide")));
    let Ok(StartedRequest::Waiting(last)) = set.start(start + MS, 2, 0, estimate(1, 0, 0), || "last") else { panic!() };
    assert_eq!(set.poll_dispatched(), None);
    set.end(start + 2 * MS, wide).unwrap();
    assert_eq!(set.poll_dispatched(), Some((last, "last")));
    assert_eq!(set.occupancy(), Occupancy { executing: 1, seats_in_use: 1, ..Occupancy::default() });
}

#[test]
fn seats_stay_taken_during_the_additional_latency() {
    let start = Instant::now();
    let mut set: QueueSet<()> = QueueSet::new(queuing(4, 1, 10), 4, start);
    let Ok(StartedRequest::Executing(write)) = set.start(start, 0, 0, estimate(1, 3, 50), || ()) else { panic!() };
    set.end(start + 10 * MS, write).unwrap();
    assert_eq!(set.occupancy(), Occupancy { seats_in_use: 3, ..Occupancy::default() });
    let Ok(StartedRequest::Waiting(next)) = set.start(start + 20 * MS, 1, 0, estimate(2, 0, 0), || ()) else {
        panic!()
    };
    assert_eq!(set.next_timeout(), Some(start + 60 * MS));
    set.handle_timeout(start + 59 * MS);
    assert_eq!(set.poll_dispatched(), None);
    set.handle_timeout(start + 60 * MS);
    assert_eq!(set.poll_dispatched(), Some((next, ())));
    assert_eq!(set.next_timeout(), None);
}

#[test]
fn final_phase_wider_than_the_level_becomes_longer() {
    let start = Instant::now();
    let mut set: QueueSet<()> = QueueSet::new(queuing(4, 1, 10), 2, start);
    let Ok(StartedRequest::Executing(write)) = set.start(start, 0, 0, estimate(1, 8, 10), || ()) else { panic!() };
    set.end(start, write).unwrap();
    assert_eq!(set.occupancy().seats_in_use, 2);
    assert_eq!(set.next_timeout(), Some(start + 40 * MS));
}

#[test]
fn full_queue_rejects_only_while_no_seat_is_free() {
    let start = Instant::now();
    let mut set: QueueSet<()> = QueueSet::new(queuing(1, 1, 2), 1, start);
    let begin = |set: &mut QueueSet<()>| set.start(start, 0, 0, WorkEstimate::ONE_SEAT, || ());
    let Ok(StartedRequest::Executing(_)) = begin(&mut set) else { panic!() };
    let Ok(StartedRequest::Waiting(waiting)) = begin(&mut set) else { panic!() };
    assert!(begin(&mut set).is_ok());
    assert_eq!(begin(&mut set), Err(RejectReason::QueueFull));
    // A request that gives up frees its place.
    set.end(start, waiting).unwrap();
    assert!(begin(&mut set).is_ok());
    assert_eq!(set.end(start, waiting).map(|(_, executed)| executed), None, "a request ends once");
}

#[test]
fn removed_queue_stays_until_its_last_seat_is_free() {
    let start = Instant::now();
    let mut set: QueueSet<()> = QueueSet::new(queuing(8, 1, 10), 4, start);
    // The hash is the queue.
    let Ok(StartedRequest::Executing(write)) = set.start(start, 7, 0, estimate(1, 2, 50), || ()) else { panic!() };
    set.configure(start, queuing(2, 1, 10), 4);
    assert_eq!(set.queues.len(), 8, "the last queue has a request");
    set.end(start, write).unwrap();
    assert_eq!(set.queues.len(), 8, "the request of the last queue lingers");
    set.handle_timeout(start + 50 * MS);
    assert_eq!(set.queues.len(), 2);
    assert_eq!(set.occupancy(), Occupancy::default());
}

#[test]
fn exempt_level_admits_everything_and_reject_level_queues_nothing() {
    let start = Instant::now();
    let mut exempt: QueueSet<()> = QueueSet::new(Queuing::Exempt, 0, start);
    for _ in 0..100 {
        assert!(matches!(exempt.start(start, 0, 0, estimate(7, 0, 0), || ()), Ok(StartedRequest::Executing(_))));
    }
    assert_eq!(exempt.occupancy().seats_in_use, 700);
    let mut reject: QueueSet<()> = QueueSet::new(Queuing::Reject, 3, start);
    assert!(reject.start(start, 0, 0, estimate(2, 0, 0), || ()).is_ok());
    assert_eq!(reject.start(start, 0, 0, estimate(2, 0, 0), || ()), Err(RejectReason::ConcurrencyLimit));
    assert!(reject.start(start, 0, 0, estimate(1, 0, 0), || ()).is_ok());
}

/// The rules of upstream without stored sums: every number is computed from the requests.
struct Model {
    hand: usize,
    queues: usize,
    queue_length_max: usize,
    limit: u64,
    time: u32,
    virtual_time: Work,
    robin: usize,
    enqueued: usize,
    next_dispatch: Vec<Work>,
    requests: Vec<ModelRequest>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Waiting,
    Executing(u32),
    Lingering(u32),
    Gone,
}

#[derive(Clone, Copy)]
struct ModelRequest {
    queue: usize,
    estimate: WorkEstimate,
    arrival: Work,
    phase: Phase,
}

impl ModelRequest {
    fn work(&self) -> Work {
        work(self.estimate.initial_seats, ESTIMATED_SERVICE_TIME)
            + work(self.estimate.final_seats, self.estimate.additional_latency)
    }
}

impl Model {
    fn of(&self, is: impl Fn(Phase) -> bool) -> impl Iterator<Item = &ModelRequest> {
        self.requests.iter().filter(move |request| is(request.phase))
    }

    fn seats_in_use(&self) -> u64 {
        self.of(|phase| matches!(phase, Phase::Executing(_) | Phase::Lingering(_))).map(|r| r.estimate.seats()).sum()
    }

    fn waiting(&self, queue: usize) -> Vec<usize> {
        let all = 0..self.requests.len();
        all.filter(|i| self.requests[*i].queue == queue && self.requests[*i].phase == Phase::Waiting).collect()
    }

    fn is_busy(&self, queue: usize) -> bool {
        self.of(|phase| matches!(phase, Phase::Waiting | Phase::Executing(_))).any(|request| request.queue == queue)
    }

    fn advance(&mut self, time: u32) {
        let busy = (0..self.queues).filter(|queue| self.is_busy(*queue)).count();
        if busy > 0 {
            let wanted: u64 = self.of(|phase| phase != Phase::Gone).map(|request| request.estimate.seats()).sum();
            self.virtual_time += work(wanted.min(self.limit), MS * (time - self.time)) / busy as i128;
        }
        self.time = time;
    }

    fn advance_to(&mut self, time: u32) -> Vec<usize> {
        let mut dispatched = Vec::new();
        loop {
            let ends =
                self.of(|phase| matches!(phase, Phase::Lingering(_))).filter_map(|request| match request.phase {
                    Phase::Lingering(until) => Some(until),
                    _ => None,
                });
            let Some(first) = ends.min().filter(|first| *first <= time) else { break };
            self.advance(first);
            let ended = self.requests.iter_mut().filter(|request| request.phase == Phase::Lingering(first));
            ended.for_each(|request| request.phase = Phase::Gone);
            dispatched.extend(self.dispatch());
        }
        self.advance(time);
        dispatched
    }

    fn bound(&mut self, queue: usize) {
        if let Some(first) = self.waiting(queue).first() {
            self.next_dispatch[queue] = self.next_dispatch[queue].max(self.requests[*first].arrival);
        }
    }

    fn start(&mut self, hash: u64, estimate: WorkEstimate) -> Option<Vec<usize>> {
        let mut cards = [0; HAND_MAX];
        let hand = Dealer::new(self.queues, self.hand).unwrap().deal(hash, &mut cards).to_vec();
        let offset = self.enqueued % hand.len();
        self.enqueued += 1;
        let waiting_work = |queue: usize| self.waiting(queue).iter().map(|i| self.requests[*i].work()).sum::<Work>();
        let queue = (0..hand.len()).map(|i| hand[(offset + i) % hand.len()]).min_by_key(|q| waiting_work(*q)).unwrap();
        if self.seats_in_use() >= self.limit && self.waiting(queue).len() >= self.queue_length_max {
            self.bound(queue);
            return None;
        }
        if !self.is_busy(queue) {
            self.next_dispatch[queue] = self.virtual_time;
        }
        let request = ModelRequest { queue, estimate, arrival: self.virtual_time, phase: Phase::Waiting };
        self.requests.push(request);
        self.bound(queue);
        Some(self.dispatch())
    }

    fn dispatch(&mut self) -> Vec<usize> {
        let mut dispatched = Vec::new();
        while self.seats_in_use() < self.limit {
            let order = (1..=self.queues).map(|i| (self.robin + i) % self.queues);
            let heads = order.filter_map(|queue| Some((queue, *self.waiting(queue).first()?)));
            let first = heads.min_by_key(|(queue, head)| self.next_dispatch[*queue] + self.requests[*head].work());
            let Some((queue, head)) = first else { break };
            let seats = self.requests[head].estimate.seats();
            let executing = self.of(|phase| matches!(phase, Phase::Executing(_))).count();
            let fits = if seats > self.limit { executing == 0 } else { self.seats_in_use() + seats <= self.limit };
            if !fits {
                break;
            }
            self.robin = queue;
            self.next_dispatch[queue] += self.requests[head].work();
            self.requests[head].phase = Phase::Executing(self.time);
            self.bound(queue);
            dispatched.push(head);
        }
        dispatched
    }

    fn end(&mut self, index: usize) -> Vec<usize> {
        let request = self.requests[index];
        self.requests[index].phase = match request.phase {
            Phase::Executing(since) => {
                let seats = request.estimate.initial_seats;
                self.next_dispatch[request.queue] +=
                    work(seats, MS * (self.time - since)) - work(seats, ESTIMATED_SERVICE_TIME);
                let latency = request.estimate.additional_latency.as_millis() as u32;
                if latency > 0 { Phase::Lingering(self.time + latency) } else { Phase::Gone }
            }
            _ => Phase::Gone,
        };
        self.bound(request.queue);
        self.dispatch()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Start {
        flow: u64,
        seats: u64,
        final_seats: u64,
        latency_ms: u32,
    },
    End {
        which: usize,
    },
    /// Ends the oldest request that executes.
    Finish,
    Pass {
        ms: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..40, 1u64..7, 0u64..4, 0u32..6).prop_map(|(flow, seats, final_seats, latency_ms)| {
            // Without a duration there is no final phase.
            let final_seats = if latency_ms == 0 { 0 } else { final_seats };
            let latency_ms = if final_seats == 0 { 0 } else { latency_ms };
            Step::Start { flow, seats, final_seats, latency_ms }
        }),
        3 => (0usize..64).prop_map(|which| Step::End { which }),
        3 => (1u32..20).prop_map(|ms| Step::Pass { ms }),
    ]
}

proptest! {
    #[test]
    fn queue_set_decides_like_the_model(
        (queues, hand) in (1usize..6).prop_flat_map(|queues| (Just(queues), 1..=queues)),
        queue_length_max in 1usize..4,
        limit in 3u64..6,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let start = Instant::now();
        let mut set: QueueSet<usize> = QueueSet::new(queuing(queues, hand, queue_length_max), limit, start);
        let mut model = Model {
            hand, queues, queue_length_max, limit, time: 0, virtual_time: 0, robin: 0, enqueued: 0,
            next_dispatch: vec![0; queues], requests: Vec::new(),
        };
        let (mut ids, mut time): (Vec<Key>, u32) = (Vec::new(), 0);
        // At the end, requests only finish. Then each one that waits has to get its turn.
        let ends = std::iter::repeat_n([Step::Pass { ms: 7 }, Step::Finish], 201).flatten();
        for step in steps.into_iter().chain(ends) {
            let now = start + MS * time;
            let mut expected = Vec::new();
            let mut found = Vec::new();
            match step {
                Step::Pass { ms } => {
                    time += ms;
                    expected = model.advance_to(time);
                    // As the shell does: each timeout is handled at its time.
                    while let Some(at) = set.next_timeout().filter(|at| *at <= start + MS * time) {
                        set.handle_timeout(at);
                    }
                    set.handle_timeout(start + MS * time);
                }
                Step::Start { flow, seats, final_seats, latency_ms } => {
                    let estimate = estimate(seats, final_seats, latency_ms);
                    let next = ids.len();
                    match (set.start(now, flow, 0, estimate, || next), model.start(flow, estimate)) {
                        (Ok(begun), Some(dispatched)) => {
                            expected = dispatched;
                            match begun {
                                StartedRequest::Executing(id) => { ids.push(id); found.push(next); }
                                StartedRequest::Waiting(id) => ids.push(id),
                            }
                        }
                        (Err(RejectReason::QueueFull), None) => {}
                        (found, expected) => prop_assert!(false, "{found:?} instead of {expected:?}"),
                    }
                }
                Step::End { .. } | Step::Finish => {
                    let which = if let Step::End { which } = step { which } else { 0 };
                    let live = |i: &usize| match model.requests[*i].phase {
                        Phase::Executing(_) => true,
                        Phase::Waiting => !matches!(step, Step::Finish),
                        _ => false,
                    };
                    let live: Vec<usize> = (0..ids.len()).filter(live).collect();
                    if live.is_empty() {
                        continue;
                    }
                    let which = live[which % live.len()];
                    let executes = matches!(model.requests[which].phase, Phase::Executing(_));
                    expected = model.end(which);
                    prop_assert_eq!(set.end(now, ids[which]).map(|(_, executed)| executed), Some(executes));
                }
            }
            while let Some((id, waiter)) = set.poll_dispatched() {
                prop_assert_eq!(id, ids[waiter]);
                found.push(waiter);
            }
            prop_assert_eq!(found, expected, "another request is dispatched after {:?}", step);
            prop_assert_eq!(set.occupancy().seats_in_use, model.seats_in_use());
            prop_assert_eq!(set.virtual_time, model.virtual_time);
        }
        prop_assert!(set.is_idle(), "a request starves");
        prop_assert_eq!(set.occupancy(), Occupancy::default(), "seats are lost");
    }
}
