//! [`FlowController`]: the priority levels of a server (`configController` in `flowcontrol/apf_controller.go`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::allocation::{Class, allocate};
use crate::classifier::{ActiveSchema, Classifier};
use crate::demand::DemandStatistics;
use crate::flow_hash::FlowHash;
use crate::objects::{CATCH_ALL, EXEMPT, FlowSchema, PriorityLevel};
use crate::queue_set::{Occupancy, QueueSet, Queuing, RejectReason, StartedRequest};
use crate::retry_after::RetryAfter;
use crate::schema_counts::{SchemaCounts, SchemaTable};
use crate::slab::{Key, Slab};
use crate::watch_counts::{WatchCounts, WatchKey, WatchScope};
use crate::work::WorkEstimate;

/// The largest number of levels. Further levels, in the order of names, are ignored. The mandatory levels are never
/// ignored.
pub(crate) const LEVELS_MAX: usize = 1_000;
/// The largest number of flow schemas. Further schemas, in the order of matching, are ignored. The mandatory schemas
/// are never ignored.
pub(crate) const SCHEMAS_MAX: usize = 5_000;
/// The period in which seats move between levels (`borrowingAdjustmentPeriod`).
const ADJUSTMENT_PERIOD: Duration = Duration::from_secs(10);
/// The largest part of the nominal seats of a level that one request may occupy, in percent
/// (`priorityLevelMaxSeatsPercent`).
const REQUEST_SEATS_PERCENT: u64 = 15;

/// A request that waits or executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    level: Key,
    request: Key,
}

/// The state of a started request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The request may execute.
    Executing(RequestId),
    /// The request waits, unless [`FlowController::poll_dispatched`] already returns it.
    Waiting(RequestId),
}

impl Started {
    /// The request.
    pub fn id(self) -> RequestId {
        match self {
            Started::Executing(id) | Started::Waiting(id) => id,
        }
    }
}

/// The reason why a request did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The request is rejected with 429. `retry_after_seconds` is the value of the header `Retry-After`.
    Rejected {
        /// The reason of the rejection.
        reason: RejectReason,
        /// The value of the header `Retry-After`.
        retry_after_seconds: u64,
    },
    /// The priority level of the schema has been removed. The caller classifies the request again, with the newest
    /// classifier.
    LevelRemoved,
}

/// The condition `Dangling` that a flow schema should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DanglingCondition {
    /// The name of the flow schema.
    pub schema: String,
    /// `True` or `False`.
    pub status: &'static str,
    /// `NotFound` or `Found`.
    pub reason: &'static str,
    /// The message of the condition.
    pub message: String,
}

/// The result of a new configuration.
#[derive(Debug)]
pub struct Configured {
    /// The classifier of the new configuration.
    pub classifier: Classifier,
    /// The conditions that the caller must write to flow schemas.
    pub conditions: Vec<DanglingCondition>,
}

/// The metrics of one priority level.
#[derive(Clone, Copy, Debug)]
pub struct LevelView<'a> {
    /// The name of the level.
    pub name: &'a str,
    /// The configured number of seats.
    pub nominal_seats: u64,
    /// The seats that other levels cannot borrow.
    pub lower_seats: u64,
    /// The largest number of seats that the level can have.
    pub upper_seats: u64,
    /// The current number of seats of the level.
    pub current_seats: u64,
    /// The demand of the last period.
    pub demand: DemandStatistics,
    /// The target of the last adjustment, in seats.
    pub target_seats: f64,
    /// Requests and seats.
    pub occupancy: Occupancy,
}

#[derive(Debug)]
struct Level<W> {
    config: PriorityLevel,
    queues: QueueSet<W>,
    nominal: u64,
    lower: u64,
    upper: u64,
    current: u64,
    target: f64,
    /// The largest number of seats of one request. 0 if only the work estimator has a limit.
    request_seats_max: u64,
    /// Whether the object of the level was deleted, so that the level is removed when it is idle.
    is_quiescing: bool,
    retry_after: RetryAfter,
    schemas: SchemaTable,
}

/// The priority levels of a server, with their queues and seats. `W` is the caller's value for a waiting request, such
/// as the channel that wakes it.
///
/// ```text
///  configure ─▶ Classifier ── classify ─▶ start ─▶ Executing ───────────────▶ end
///                                           └────▶ Waiting ─ poll_dispatched ─▶ end
/// ```
///
/// After each call of `configure`, `start`, `end` and `handle_timeout`, the caller polls dispatched requests until
/// `None`. The caller calls `handle_timeout` no later than `next_timeout`. The caller ends each started request once,
/// even if the request did not execute.
#[derive(Debug)]
pub struct FlowController<W> {
    seats: u64,
    levels: Slab<Level<W>>,
    dispatched: VecDeque<(RequestId, W)>,
    hash: FlowHash,
    watches: WatchCounts,
    adjust_at: Instant,
    fair_fraction: f64,
}

impl<W> FlowController<W> {
    /// Creates the levels `exempt` and `catch-all` of a server with `seats` seats. `secret` is a random number.
    pub fn new(now: Instant, seats: u64, secret: u64) -> (Self, Classifier) {
        let hash = FlowHash::new(secret);
        let mut controller = FlowController {
            seats,
            levels: Slab::default(),
            dispatched: VecDeque::new(),
            watches: WatchCounts::new(hash.with("watch")),
            hash,
            adjust_at: now + ADJUSTMENT_PERIOD,
            fair_fraction: 0.0,
        };
        let configured = controller.configure(now, Vec::new(), Vec::new());
        (controller, configured.classifier)
    }

    /// Replaces the configuration (`digestConfigObjects`). The mandatory levels and schemas are added if they are absent.
    /// A level without object stays until it is idle.
    pub fn configure(&mut self, now: Instant, levels: Vec<PriorityLevel>, schemas: Vec<FlowSchema>) -> Configured {
        let mut configs: BTreeMap<String, PriorityLevel> =
            levels.into_iter().map(|level| (level.name.clone(), level)).collect();
        let objects: BTreeSet<String> = configs.keys().cloned().collect();
        while configs.len() > LEVELS_MAX {
            let last = configs.keys().rev().find(|name| !matches!(&***name, EXEMPT | CATCH_ALL)).cloned();
            last.and_then(|name| configs.remove(&name));
        }
        for name in [EXEMPT, CATCH_ALL] {
            configs.entry(name.to_owned()).or_insert_with(|| PriorityLevel::mandatory(name));
        }
        let idle: Vec<Key> = self
            .levels
            .iter()
            .filter(|(_, level)| !configs.contains_key(&level.config.name) && level.queues.is_idle())
            .map(|(key, _)| key)
            .collect();
        idle.into_iter().for_each(|key| drop(self.levels.remove(key)));
        for level in self.levels.values_mut() {
            match configs.remove(&level.config.name) {
                Some(config) => (level.config, level.is_quiescing) = (config, false),
                None => level.is_quiescing = true,
            }
        }
        for config in configs.into_values() {
            let queues = QueueSet::new(config.queuing, 0, now);
            self.levels.insert(Level {
                config,
                queues,
                nominal: 0,
                lower: 0,
                upper: 0,
                current: 0,
                target: 0.0,
                request_seats_max: 0,
                is_quiescing: false,
                retry_after: RetryAfter::new(now),
                schemas: SchemaTable::default(),
            });
        }
        self.divide_seats();
        self.adjust(now);
        self.activate_schemas(schemas, &objects)
    }

    /// Divides the seats of the server among the levels by their shares (`finishQueueSetReconfigsLocked`).
    fn divide_seats(&mut self) {
        let shares: u64 = self.levels.iter().map(|(_, level)| level.config.shares).sum::<u64>().max(1);
        let seats = self.seats;
        for level in self.levels.values_mut() {
            let config = &level.config;
            level.nominal = (seats as f64 * config.shares as f64 / shares as f64).ceil() as u64;
            let percent_of = |given: u64| (level.nominal as f64 * given as f64 / 100.0).round() as u64;
            level.lower = level.nominal - percent_of(config.lendable_percent).min(level.nominal);
            level.upper = level.nominal + config.borrowing_percent.map_or(seats, percent_of);
            // Only a level with queues has such a limit.
            level.request_seats_max = level.nominal.checked_div(config.hand).map_or(0, |of_hand| {
                let part = (level.nominal * REQUEST_SEATS_PERCENT).div_ceil(100);
                part.min(of_hand).max(1)
            });
        }
    }

    /// Moves seats between levels according to their demand (`updateBorrowingLocked`).
    fn adjust(&mut self, now: Instant) {
        self.adjust_at = now + ADJUSTMENT_PERIOD;
        let nominal_sum: u64 = self.levels.iter().map(|(_, level)| level.nominal).sum();
        let (mut exempt_sum, mut lower_sum, mut needed_sum) = (0, 0, 0);
        let mut classes = Vec::new();
        for level in self.levels.values_mut() {
            let demand = level.queues.end_period(now);
            let is_exempt = level.config.queuing == Queuing::Exempt;
            // A level keeps the seats that it used, up to its nominal ones.
            let used = if is_exempt { demand.high_watermark } else { demand.high_watermark.min(level.nominal) };
            let needed = level.lower.max(used);
            level.target = demand.smoothed.max(needed as f64);
            if is_exempt {
                level.current = needed;
                exempt_sum += needed;
            } else {
                lower_sum += level.lower;
                needed_sum += needed;
                classes.push((needed, Class { target: level.target, lower: needed as f64, upper: level.upper as f64 }));
            }
        }
        let remaining = nominal_sum.saturating_sub(exempt_sum);
        self.fair_fraction = 0.0;
        let mut seats = None;
        let share = if remaining <= lower_sum {
            0.0
        } else if remaining <= needed_sum {
            (remaining - lower_sum) as f64 / (needed_sum - lower_sum) as f64
        } else {
            let only: Vec<Class> = classes.iter().map(|(_, class)| *class).collect();
            if let Some((found, fraction)) = allocate(nominal_sum as f64, &only) {
                self.fair_fraction = fraction;
                seats = Some(found);
            }
            1.0
        };
        let limited = self.levels.values_mut().filter(|level| level.config.queuing != Queuing::Exempt);
        for (position, (level, (needed, _))) in limited.zip(classes).enumerate() {
            level.current = match &seats {
                Some(seats) => seats[position].round() as u64,
                None => level.lower + ((needed - level.lower) as f64 * share).round() as u64,
            };
        }
        for level in self.levels.values_mut() {
            level.queues.configure(now, level.config.queuing, level.current);
        }
        self.collect_dispatched(None, now);
    }

    /// Sorts the schemas and finds their levels (`digestFlowSchemasLocked`).
    fn activate_schemas(&mut self, mut schemas: Vec<FlowSchema>, objects: &BTreeSet<String>) -> Configured {
        let by_name: BTreeMap<String, Key> = self
            .levels
            .iter()
            .filter(|(_, level)| !level.is_quiescing)
            .map(|(key, level)| (level.config.name.clone(), key))
            .collect();
        let conditions = schemas.iter().filter_map(|schema| dangling_condition(schema, objects)).collect();
        schemas.retain(|schema| objects.contains(&schema.level) && by_name.contains_key(&schema.level));
        for name in [EXEMPT, CATCH_ALL] {
            if !schemas.iter().any(|schema| schema.name == name) {
                schemas.push(FlowSchema::mandatory(name));
            }
        }
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        let mut excess = schemas.len().saturating_sub(SCHEMAS_MAX);
        while excess > 0 {
            excess -= 1;
            let last = schemas.iter().rposition(|schema| !matches!(&*schema.name, EXEMPT | CATCH_ALL));
            last.map(|last| schemas.remove(last));
        }
        let level_of: BTreeMap<&str, &str> = schemas.iter().map(|schema| (&*schema.name, &*schema.level)).collect();
        for level in self.levels.values_mut() {
            level.schemas.retain(|name| level_of.get(name) == Some(&&*level.config.name));
        }
        let active = schemas.into_iter().filter_map(|schema| {
            let key = *by_name.get(&schema.level)?;
            let level = self.levels.get_mut(key)?;
            let has_queues = matches!(level.config.queuing, Queuing::Queue { queues, .. } if queues > 1);
            Some(Arc::new(ActiveSchema {
                slot: level.schemas.slot(&schema.name),
                level: key,
                level_name: level.config.name.clone(),
                level_uid: level.config.uid.clone(),
                request_seats_max: level.request_seats_max,
                is_exempt: level.config.queuing == Queuing::Exempt,
                hash: has_queues.then(|| self.hash.with(&schema.name)),
                schema,
            }))
        });
        let classifier = Classifier::new(active.collect());
        Configured { classifier, conditions }
    }

    /// Begins a request of a flow. `waiter` is called only if the request has to wait.
    ///
    /// # Errors
    /// [`StartError::Rejected`] if no seat is free and the request cannot wait, and [`StartError::LevelRemoved`].
    pub fn start(
        &mut self,
        now: Instant,
        schema: &ActiveSchema,
        flow_hash: u64,
        estimate: WorkEstimate,
        waiter: impl FnOnce() -> W,
    ) -> Result<Started, StartError> {
        let Some(level) = self.levels.get_mut(schema.level) else { return Err(StartError::LevelRemoved) };
        let begun = level.queues.start(now, flow_hash, schema.slot, estimate, waiter);
        let counts = level.schemas.counts(schema.slot);
        let id = |request| RequestId { level: schema.level, request };
        match begun {
            Ok(StartedRequest::Executing(request)) => {
                let seats = level.queues.request(request).map_or(0, |request| request.seats);
                counts.note_dispatched(seats, Duration::ZERO);
                Ok(Started::Executing(id(request)))
            }
            Ok(StartedRequest::Waiting(request)) => {
                counts.note_waiting(estimate.seats());
                self.collect_dispatched(Some(schema.level), now);
                Ok(Started::Waiting(id(request)))
            }
            Err(reason) => {
                counts.note_rejected(reason, Duration::ZERO);
                level.retry_after.note_rejected(now);
                Err(StartError::Rejected { reason, retry_after_seconds: level.retry_after.seconds() })
            }
        }
    }

    /// Ends a request. A request that still waits is rejected for `reason`; the result is then the value of the header
    /// `Retry-After`. `None` for a request that executed.
    pub fn end(&mut self, now: Instant, id: RequestId, reason: RejectReason) -> Option<u64> {
        let level = self.levels.get_mut(id.level)?;
        let (request, executed) = level.queues.end(now, id.request)?;
        let counts = level.schemas.counts(request.schema);
        let mut retry_after = None;
        if executed {
            counts.note_finished(request.seats);
        } else {
            counts.note_left(request.seats);
            counts.note_rejected(reason, now.saturating_duration_since(request.arrived_at));
            level.retry_after.note_rejected(now);
            retry_after = Some(level.retry_after.seconds());
        }
        // A request that was dispatched and ended before the caller polled it is not reported.
        self.dispatched.retain(|(dispatched, _)| *dispatched != id);
        self.collect_dispatched(Some(id.level), now);
        retry_after
    }

    /// Collects the dispatched requests of one level, or of all levels.
    fn collect_dispatched(&mut self, only: Option<Key>, now: Instant) {
        match only {
            Some(key) => {
                if let Some(level) = self.levels.get_mut(key) {
                    collect(key, level, now, &mut self.dispatched);
                }
            }
            None => {
                let keys: Vec<Key> = self.levels.iter().map(|(key, _)| key).collect();
                keys.into_iter().for_each(|key| self.collect_dispatched(Some(key), now));
            }
        }
    }

    /// Returns the next request that was dispatched after waiting.
    pub fn poll_dispatched(&mut self) -> Option<(RequestId, W)> {
        self.dispatched.pop_front()
    }

    /// The time of the next call of [`FlowController::handle_timeout`].
    pub fn next_timeout(&self) -> Instant {
        let levels = self.levels.iter().filter_map(|(_, level)| level.queues.next_timeout());
        levels.min().map_or(self.adjust_at, |first| first.min(self.adjust_at))
    }

    /// Frees the seats of requests whose additional latency is over, and moves seats between levels every 10 s.
    pub fn handle_timeout(&mut self, now: Instant) {
        for level in self.levels.values_mut() {
            if level.queues.next_timeout().is_some_and(|at| at <= now) {
                level.queues.handle_timeout(now);
            }
        }
        if self.adjust_at <= now {
            self.adjust(now);
        } else {
            self.collect_dispatched(None, now);
        }
    }

    /// Whether a level without object is idle, so that the next [`FlowController::configure`] removes it.
    pub fn has_removable_level(&self) -> bool {
        self.levels.iter().any(|(_, level)| level.is_quiescing && level.queues.is_idle())
    }

    /// Counts a watch until [`FlowController::remove_watch`].
    pub fn add_watch(&mut self, scope: &WatchScope<'_>) -> WatchKey {
        self.watches.add(scope)
    }

    /// Ends the counting of a watch.
    pub fn remove_watch(&mut self, key: WatchKey) {
        self.watches.remove(key);
    }

    /// The number of watches that may receive the event of a write.
    pub fn interested_watches(&self, write: &WatchScope<'_>) -> u64 {
        self.watches.interested(write)
    }

    /// The levels, for metrics.
    pub fn levels(&self) -> impl Iterator<Item = LevelView<'_>> {
        self.levels.iter().map(|(_, level)| LevelView {
            name: &level.config.name,
            nominal_seats: level.nominal,
            lower_seats: level.lower,
            upper_seats: level.upper,
            current_seats: level.current,
            demand: level.queues.demand(),
            target_seats: level.target,
            occupancy: level.queues.occupancy(),
        })
    }

    /// The counters of each flow schema: level, schema, counters.
    pub fn schema_counts(&self) -> impl Iterator<Item = (&str, &str, &SchemaCounts)> {
        self.levels
            .iter()
            .flat_map(|(_, level)| level.schemas.iter().map(|(schema, counts)| (&*level.config.name, schema, counts)))
    }

    /// The proportion of seats to demand after the last adjustment (`apiserver_flowcontrol_seat_fair_frac`).
    pub fn fair_fraction(&self) -> f64 {
        self.fair_fraction
    }
}

fn collect<W>(key: Key, level: &mut Level<W>, now: Instant, to: &mut VecDeque<(RequestId, W)>) {
    while let Some((request, waiter)) = level.queues.poll_dispatched() {
        if let Some(found) = level.queues.request(request) {
            let counts = level.schemas.counts(found.schema);
            counts.note_left(found.waiting_seats());
            counts.note_dispatched(found.seats, now.saturating_duration_since(found.arrived_at));
        }
        to.push_back((RequestId { level: key, request }, waiter));
    }
}

/// Returns the condition `Dangling` that must be written to a schema; `None` if the stored condition is current
/// (`presyncFlowSchemaStatus`).
fn dangling_condition(schema: &FlowSchema, levels: &BTreeSet<String>) -> Option<DanglingCondition> {
    let level = listwatch_meta::go::quote(&schema.level);
    let reference = format!("This FlowSchema references the PriorityLevelConfiguration object named {level}");
    let (status, reason, message) = if levels.contains(&schema.level) {
        ("False", "Found", format!("{reference} and it exists"))
    } else {
        ("True", "NotFound", format!("{reference} but there is no such object"))
    };
    let has = schema.dangling.as_ref().is_some_and(|(a, b, c)| a == status && b == reason && *c == message);
    (!has).then(|| DanglingCondition { schema: schema.name.clone(), status, reason, message })
}
