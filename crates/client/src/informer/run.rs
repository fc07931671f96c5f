//! The tasks of an informer: one task per part, which polls the part's [`Reflection`], and one
//! worker, which passes the changes to the hub.
//!
//! ```text
//!   part "a": Reflection ─┐ one message      ┌──▶ view ──▶ handler task
//!   part "b": Reflection ─┼────────▶ Worker ─┤    (Hub)
//!   part "c": Reflection ─┘  waits  (Merge)  └──▶ view ──▶ stream
//! ```
//!
//! A handler under [`Policy::Block`](super::Policy) makes the worker wait, and the worker makes the
//! parts wait. A reflection that is not polled does not read from its connection. Every wait in
//! this module ends when the informer is stopped.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::event::{Reason, StopReason};
use super::handler::panic_message;
use super::hub::{Hub, PartialPush};
use super::merge::{self, DeletedVersions};
use super::status::{PartStatus, Phase};
use crate::decode::Decode;
use crate::delta_fifo::Delta;
use crate::driver::{Health, Notice, NoticeWithState, Reflection};
use crate::indexer::{Change, Indexer, Snapshot, Store};
use crate::list_watch::ListWatch;
use crate::problem::Problem;
use crate::reflector::ReflectorState;
use crate::stored::Stored;

/// The number of batches in the channel to the worker, for all parts together. Each part holds one
/// further batch. A batch is at most the events of one network chunk.
const PART_BATCHES_MAX: usize = 1;

/// The largest number of commands in the channel to the worker. Further senders wait.
const COMMANDS_MAX: usize = 16;

/// The interval at which the version of a merged state is raised to the oldest of its parts, and its quarantine is
/// compared with theirs.
const MERGED_VERSION_TICK: Duration = Duration::from_secs(1);

/// A running list and watch of any type.
#[async_trait]
pub(super) trait Source<S: Stored>: Send {
    async fn next(&mut self) -> Notice<S>;
    fn notice_snapshot(&self) -> Arc<Snapshot<S>>;
    fn store(&self) -> Store<S>;
    fn health(&self) -> Health;
    fn indexer(&mut self) -> &mut Indexer<S>;
    /// Drops the connection, and returns the changes that were read but not reported.
    fn suspend(&mut self) -> Vec<NoticeWithState<S>>;
}

#[async_trait]
impl<L: ListWatch, D: Decode> Source<D::Stored> for Reflection<L, D> {
    async fn next(&mut self) -> Notice<D::Stored> {
        Reflection::next(self).await
    }

    fn notice_snapshot(&self) -> Arc<Snapshot<D::Stored>> {
        Reflection::notice_snapshot(self).clone()
    }

    fn store(&self) -> Store<D::Stored> {
        Reflection::store(self)
    }

    fn health(&self) -> Health {
        Reflection::health(self)
    }

    fn indexer(&mut self) -> &mut Indexer<D::Stored> {
        self.indexer_mut()
    }

    fn suspend(&mut self) -> Vec<NoticeWithState<D::Stored>> {
        let left = self.take_notices();
        Reflection::suspend(self);
        // The caller caused this state change, so it is not reported.
        drop(self.take_notices());
        left
    }
}

/// Creates the list and watch of a part by its name.
pub(super) type MakeSource<S> = Box<dyn Fn(&str) -> Box<dyn Source<S>> + Send + Sync>;

/// A function that uses the writer of the store.
pub(super) type WithIndexer<S> = Box<dyn FnOnce(&mut Indexer<S>) + Send>;

/// The parts of a merged informer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    /// Parts with distinct keys.
    Namespaces,
    /// Parts between which a recreated name may move.
    Shards,
}

/// A command to a running worker, besides a stop.
pub(super) enum Command<S: Stored> {
    AddPart { name: String, done: oneshot::Sender<bool> },
    RemovePart { name: String, done: oneshot::Sender<bool> },
    WithIndexer(WithIndexer<S>),
}

/// The channels to a running worker. A stop has its own channel, so it never waits behind commands
/// that the worker defers while it waits for a handler.
pub(super) struct CommandSender<S: Stored> {
    pub(super) queue: mpsc::Sender<Command<S>>,
    pub(super) stop: mpsc::Sender<()>,
}

impl<S: Stored> Clone for CommandSender<S> {
    fn clone(&self) -> Self {
        CommandSender { queue: self.queue.clone(), stop: self.stop.clone() }
    }
}

/// The worker's end of [`CommandSender`].
struct CommandReceiver<S: Stored> {
    queue: mpsc::Receiver<Command<S>>,
    stop: mpsc::Receiver<()>,
}

/// The state shared by the worker and the handles.
pub(super) struct Shared<S: Stored> {
    pub(super) name: String,
    pub(super) hub: Hub<S>,
    pub(super) condition: watch::Sender<Condition>,
    parts: Mutex<BTreeMap<Arc<str>, PartRecord>>,
    /// The worker while it does not run.
    parked: Mutex<Option<Worker<S>>>,
    /// Whether the informer has no handle. Set under the lock of `parked`.
    unheld: AtomicBool,
}

/// The values that handles wait for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Condition {
    pub(super) phase: Phase,
    pub(super) synced: bool,
}

struct PartRecord {
    health: Health,
    synced: bool,
    problem: Option<Problem>,
    skipped: u64,
    quarantined: u64,
}

impl<S: Stored> Shared<S> {
    pub(super) fn new(name: String) -> Self {
        Shared {
            name,
            hub: Hub::new(),
            condition: watch::Sender::new(Condition::default()),
            parts: Mutex::new(BTreeMap::new()),
            parked: Mutex::new(None),
            unheld: AtomicBool::new(false),
        }
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, PartRecord>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn parked(&self) -> MutexGuard<'_, Option<Worker<S>>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn part_statuses(&self) -> Vec<PartStatus> {
        let parts = self.parts();
        let status = |(name, part): (&Arc<str>, &PartRecord)| PartStatus {
            name: name.to_string(),
            state: part.health.state(),
            synced: part.synced,
            problem: part.problem.clone(),
            skipped: part.skipped,
            quarantined: part.quarantined,
        };
        parts.iter().map(status).collect()
    }

    /// Ends the informer after its last handle is dropped. A running worker ends by itself; a
    /// parked one ends here.
    pub(super) fn release(&self) {
        let mut parked = self.parked();
        self.unheld.store(true, Ordering::Relaxed);
        if parked.take().is_some() {
            self.finish(StopReason::Unused, true);
        }
    }

    fn set_phase(&self, phase: Phase) {
        self.condition.send_modify(|condition| condition.phase = phase);
    }

    /// Records that the informer has stopped. `over` is true if it cannot be started again.
    pub(super) fn finish(&self, why: StopReason, over: bool) {
        self.hub.stop(&why);
        if over {
            self.hub.close();
        }
        self.set_phase(Phase::Stopped(why));
    }
}

/// A part of an informer that does not run.
struct ParkedPart<S: Stored> {
    source: Box<dyn Source<S>>,
    snapshot: Arc<Snapshot<S>>,
    synced: bool,
}

/// A part of a running informer.
struct RunningPart<S: Stored> {
    /// Distinguishes this part from an earlier one of the same name.
    number: u64,
    /// Dropping the sender ends the part's task.
    commands: mpsc::Sender<WithIndexer<S>>,
    /// The part's snapshot of the last handled message.
    snapshot: Arc<Snapshot<S>>,
    /// The version up to which the worker has handled this part. `None` if it is not a number.
    version: Option<u64>,
    store: Store<S>,
    synced: bool,
}

/// A message of a part.
struct PartMessage<S: Stored> {
    part: Arc<str>,
    number: u64,
    notice: Notice<S>,
    snapshot: Arc<Snapshot<S>>,
}

/// A part whose task has ended.
struct EndedPart<S: Stored> {
    part: Arc<str>,
    number: u64,
    source: Box<dyn Source<S>>,
    /// The notices that the part did not report.
    left: Vec<NoticeWithState<S>>,
}

/// The changes of a part, in batches.
struct PartChanges<S: Stored> {
    part: Arc<str>,
    changes: Vec<Vec<Change<S>>>,
    /// The part's snapshot after the last batch.
    snapshot: Arc<Snapshot<S>>,
}

/// The state of an informer without its handlers. See the [module](self).
pub(super) struct Worker<S: Stored> {
    parked: BTreeMap<Arc<str>, ParkedPart<S>>,
    running: BTreeMap<Arc<str>, RunningPart<S>>,
    next_number: u64,
    merged: Option<Merged<S>>,
    make: Option<MakeSource<S>>,
    /// The commands that arrived while the worker waited for a handler.
    deferred: VecDeque<Command<S>>,
}

struct Merged<S: Stored> {
    kind: PartKind,
    indexer: Indexer<S>,
    floors: DeletedVersions,
}

impl<S: Stored> Worker<S> {
    /// A worker with one part, whose store is the informer's store.
    pub(super) fn single(source: Box<dyn Source<S>>, shared: &Shared<S>) -> Self {
        let mut worker = Worker {
            parked: BTreeMap::new(),
            running: BTreeMap::new(),
            next_number: 0,
            merged: None,
            make: None,
            deferred: VecDeque::new(),
        };
        worker.park("".into(), source, shared);
        worker
    }

    /// A worker with several parts, which it merges into `indexer`.
    pub(super) fn merged(
        kind: PartKind,
        names: impl IntoIterator<Item = String>,
        make: MakeSource<S>,
        indexer: Indexer<S>,
        shared: &Shared<S>,
    ) -> Self {
        let mut worker = Worker {
            parked: BTreeMap::new(),
            running: BTreeMap::new(),
            next_number: 0,
            merged: Some(Merged { kind, indexer, floors: DeletedVersions::default() }),
            make: Some(make),
            deferred: VecDeque::new(),
        };
        for name in names {
            worker.add_parked(&name, shared);
        }
        worker
    }

    fn park(&mut self, name: Arc<str>, source: Box<dyn Source<S>>, shared: &Shared<S>) {
        // The caller may have polled the reflection, so that its `Synced` was returned already.
        let snapshot = source.notice_snapshot();
        let synced = snapshot.is_synced();
        if synced && self.merged.is_none() {
            shared.hub.begin(&snapshot);
        }
        let record = PartRecord { health: source.health(), synced, problem: None, skipped: 0, quarantined: 0 };
        shared.parts().insert(name.clone(), record);
        self.parked.insert(name, ParkedPart { source, snapshot, synced });
    }

    /// Adds a part while the informer does not run. Returns false if the part exists.
    fn add_parked(&mut self, name: &str, shared: &Shared<S>) -> bool {
        let Some(make) = &self.make else { return false };
        if self.parked.contains_key(name) {
            return false;
        }
        let source = make(name);
        self.park(name.into(), source, shared);
        true
    }

    /// Removes a part while the informer does not run, and deletes its objects for all handlers.
    /// Returns false if there is no such part.
    fn remove_parked(&mut self, name: &str, shared: &Shared<S>) -> bool {
        let Some(part) = self.parked.remove(name) else { return false };
        shared.parts().remove(name);
        self.remove_objects(&part.snapshot, shared);
        true
    }

    /// Runs a function with the store's writer while no part runs.
    fn with_indexer(&mut self, action: WithIndexer<S>) {
        match (&mut self.merged, self.parked.values_mut().next()) {
            (Some(merged), _) => action(&mut merged.indexer),
            (None, Some(part)) => action(part.source.indexer()),
            (None, None) => {}
        }
    }

    /// Runs the worker in a task until it is stopped, and then parks it.
    pub(super) fn spawn(self, shared: Arc<Shared<S>>) -> CommandSender<S> {
        // Records the end if the runtime drops the task.
        struct Guard<S: Stored>(Option<Arc<Shared<S>>>);
        impl<S: Stored> Drop for Guard<S> {
            fn drop(&mut self) {
                if let Some(shared) = self.0.take() {
                    shared.finish(StopReason::Aborted, true);
                }
            }
        }
        let (queue, queued) = mpsc::channel(COMMANDS_MAX);
        // A second stop waits for the end of the first one.
        let (stop, stops) = mpsc::channel(1);
        let receiver = CommandReceiver { queue: queued, stop: stops };
        shared.set_phase(Phase::Running);
        shared.hub.restart();
        tokio::spawn(async move {
            let mut guard = Guard(Some(shared.clone()));
            let mut worker = self;
            let run = super::handler::catch_panic(worker.run(&shared, receiver)).await;
            let why = run.unwrap_or_else(|message| StopReason::Panicked { message });
            tracing::debug!(informer = %shared.name, %why, "an informer ended");
            guard.0 = None;
            // Parking and stopping are one step: a caller that finds the parked worker sees it
            // stopped.
            let mut parked = shared.parked();
            let over = why != StopReason::Requested || shared.unheld.load(Ordering::Relaxed);
            shared.finish(why, over);
            if !over {
                *parked = Some(worker);
            }
        });
        CommandSender { queue, stop }
    }

    async fn run(&mut self, shared: &Shared<S>, mut receiver: CommandReceiver<S>) -> StopReason {
        let (out, mut messages) = mpsc::channel(PART_BATCHES_MAX);
        let mut tasks = JoinSet::new();
        for (name, part) in std::mem::take(&mut self.parked) {
            self.start_part(name, part, &out, &mut tasks);
        }
        if let Some(merged) = &self.merged
            && !shared.hub.has_begun()
        {
            shared.hub.begin(&merged.indexer.reader().snapshot());
        }
        self.check_synced(shared);
        let mut tick = tokio::time::interval(MERGED_VERSION_TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let why = loop {
            let next_command = async {
                match self.deferred.pop_front() {
                    Some(command) => Some(command),
                    None => receiver.queue.recv().await,
                }
            };
            let is_merged = self.merged.is_some();
            tokio::select! {
                biased;
                Some(()) = receiver.stop.recv() => break StopReason::Requested,
                command = next_command => match command {
                    None => break StopReason::Unused,
                    Some(Command::WithIndexer(action)) => self.with_running_indexer(action).await,
                    Some(Command::AddPart { name, done }) => {
                        let added = !self.running.contains_key(&*name) && self.add_parked(&name, shared);
                        if let Some((name, part)) = self.parked.pop_first() {
                            self.start_part(name, part, &out, &mut tasks);
                        }
                        let _ = done.send(added);
                    }
                    Some(Command::RemovePart { name, done }) => {
                        let part = self.running.remove(&*name);
                        let _ = done.send(part.is_some());
                        if let Some(part) = part {
                            shared.parts().remove(&*name);
                            self.remove_objects(&part.snapshot, shared);
                            self.check_synced(shared);
                        }
                    }
                },
                Some(ended) = tasks.join_next() => {
                    // The task of a removed part ends normally; any other end is a panic.
                    if let Err(error) = ended
                        && error.is_panic()
                    {
                        break StopReason::Panicked { message: panic_message(&*error.into_panic()) };
                    }
                }
                Some(message) = messages.recv() => {
                    if let Err(why) = self.handle(message, shared, &mut receiver).await {
                        break why;
                    }
                }
                _ = tick.tick(), if is_merged => {
                    self.move_version();
                    self.release_quarantined();
                }
            }
        };
        shared.set_phase(Phase::Stopping);
        self.stop_parts(shared, messages, tasks).await;
        // The callers of these commands wait for them. Commands that are sent from now on wait for the end of the stop.
        receiver.queue.close();
        while let Some(command) = self.deferred.pop_front() {
            self.execute_parked(command, shared);
        }
        while let Some(command) = receiver.queue.recv().await {
            self.execute_parked(command, shared);
        }
        why
    }

    /// Executes a command while no part runs.
    pub(super) fn execute_parked(&mut self, command: Command<S>, shared: &Shared<S>) {
        // An error of `send` means that the caller is gone.
        match command {
            Command::WithIndexer(action) => self.with_indexer(action),
            Command::AddPart { name, done } => drop(done.send(self.add_parked(&name, shared))),
            Command::RemovePart { name, done } => drop(done.send(self.remove_parked(&name, shared))),
        }
    }

    fn start_part(
        &mut self,
        name: Arc<str>,
        part: ParkedPart<S>,
        out: &mpsc::Sender<PartMessage<S>>,
        tasks: &mut JoinSet<EndedPart<S>>,
    ) {
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let number = self.next_number;
        self.next_number += 1;
        let ParkedPart { source, snapshot, synced } = part;
        let store = source.store();
        let version = snapshot.version().parse().ok();
        self.running.insert(name.clone(), RunningPart { number, commands, snapshot, version, store, synced });
        tasks.spawn(run_part(name, number, source, out.clone(), receiver));
    }

    /// Ends the tasks of all parts, passes their pending notices to the hub, and parks the parts.
    async fn stop_parts(
        &mut self,
        shared: &Shared<S>,
        mut messages: mpsc::Receiver<PartMessage<S>>,
        mut tasks: JoinSet<EndedPart<S>>,
    ) {
        let mut stopped = BTreeMap::new();
        for (name, part) in std::mem::take(&mut self.running) {
            // Dropping the sender ends the task.
            stopped.insert(name, (part.number, part.snapshot, part.synced));
        }
        let mut ended = Vec::new();
        while let Some(part) = tasks.join_next().await {
            ended.extend(part.ok());
        }
        messages.close();
        // At the stop, the handlers have received the same state that the store shows.
        let mut last = Vec::new();
        while let Ok(message) = messages.try_recv() {
            last.push(message);
        }
        for EndedPart { part, number, left, .. } in &mut ended {
            let left = left.drain(..);
            last.extend(left.map(|(notice, snapshot)| PartMessage {
                part: part.clone(),
                number: *number,
                notice,
                snapshot,
            }));
        }
        for message in last {
            let known = stopped.get_mut(&message.part).filter(|(number, ..)| *number == message.number);
            let Some((_, snapshot, synced)) = known else { continue };
            snapshot.clone_from(&message.snapshot);
            *synced |= matches!(message.notice, Notice::Synced);
            let Some(batches) = self.record_report(message, shared) else { continue };
            for changes in batches.changes {
                if let Some(pushed) = self.push(&batches.part, changes, &batches.snapshot, shared) {
                    pushed.finish_now();
                }
            }
        }
        for EndedPart { part, number, source, .. } in ended {
            if let Some((_, snapshot, synced)) = stopped.remove(&part).filter(|(known, ..)| *known == number) {
                self.parked.insert(part, ParkedPart { source, snapshot, synced });
            }
        }
    }

    async fn handle(
        &mut self,
        message: PartMessage<S>,
        shared: &Shared<S>,
        receiver: &mut CommandReceiver<S>,
    ) -> Result<(), StopReason> {
        let known = self.running.get_mut(&message.part).filter(|part| part.number == message.number);
        // Messages of a removed part are dropped.
        let Some(part) = known else { return Ok(()) };
        part.snapshot.clone_from(&message.snapshot);
        part.version = part.snapshot.version().parse().ok();
        part.synced |= matches!(message.notice, Notice::Synced);
        let mut stop = None;
        if let Some(batches) = self.record_report(message, shared) {
            for changes in batches.changes {
                // Batches are pushed one after the other: a lagging handler receives the rest of
                // the first one before the second one.
                let Some(pushed) = self.push(&batches.part, changes, &batches.snapshot, shared) else { continue };
                if stop.is_none() {
                    stop = self.feed(pushed, shared, receiver).await.err();
                } else {
                    pushed.finish_now();
                }
            }
        }
        self.check_synced(shared);
        stop.map_or(Ok(()), Err)
    }

    /// Waits for the lagging handlers, until the informer is stopped.
    async fn feed(
        &mut self,
        mut pushed: PartialPush<S>,
        shared: &Shared<S>,
        receiver: &mut CommandReceiver<S>,
    ) -> Result<(), StopReason> {
        let stop = {
            let mut feed = pin!(shared.hub.feed(&mut pushed));
            loop {
                let room = self.deferred.len() < COMMANDS_MAX;
                tokio::select! {
                    biased;
                    () = &mut feed => return Ok(()),
                    // A stop does not wait for a slow handler.
                    Some(()) = receiver.stop.recv() => break StopReason::Requested,
                    command = receiver.queue.recv(), if room => match command {
                        Some(command) => self.deferred.push_back(command),
                        None => break StopReason::Unused,
                    },
                }
            }
        };
        pushed.finish_now();
        Err(stop)
    }

    /// Records a notice of a part. If it contains changes, [`Worker::push`] then pushes them batch
    /// by batch.
    fn record_report(&mut self, message: PartMessage<S>, shared: &Shared<S>) -> Option<PartChanges<S>> {
        let PartMessage { part: name, notice, snapshot, .. } = message;
        let mut parts = shared.parts();
        let record = parts.get_mut(&name)?;
        match notice {
            Notice::Changes(changes) => {
                let changes = match &self.merged {
                    // A merged change has the reason of its batch.
                    Some(_) => split_by_origin(changes),
                    None => vec![changes],
                };
                return Some(PartChanges { part: name.clone(), changes, snapshot });
            }
            Notice::Synced => {
                record.synced = true;
                if self.merged.is_none() {
                    shared.hub.begin(&snapshot);
                }
            }
            Notice::State(state) => {
                if matches!(state, ReflectorState::Watching { .. }) {
                    record.problem = None;
                }
                tracing::debug!(informer = %shared.name, part = %name, ?state, "the reflector went on");
            }
            Notice::Problem(problem) => {
                tracing::info!(informer = %shared.name, part = %name, %problem, "a list or watch was interrupted");
                record.problem = Some(problem);
            }
            Notice::Skipped { reason, key } => {
                tracing::warn!(informer = %shared.name, part = %name, %key, ?reason, "an object was skipped");
                record.skipped += 1;
            }
            Notice::Quarantined { key, entry } => {
                tracing::warn!(informer = %shared.name, part = %name, %key, ?entry, "an object could not be decoded");
                record.quarantined += 1;
                if let Some(merged) = &mut self.merged {
                    let delta = Delta::Quarantine { key: key.clone(), entry: entry.clone() };
                    merged.indexer.apply(delta, &mut Vec::new());
                    merged.indexer.publish();
                }
                shared.hub.push_quarantined(&key, &entry);
            }
        }
        None
    }

    /// Pushes a batch of a part's changes to the hub. `None` if no handler receives it.
    fn push(
        &mut self,
        part: &str,
        changes: Vec<Change<S>>,
        snapshot: &Arc<Snapshot<S>>,
        shared: &Shared<S>,
    ) -> Option<PartialPush<S>> {
        if self.merged.is_some() {
            return self.push_merged(part, &changes, shared);
        }
        // The first state is the handlers' initial state, not a change.
        if !shared.hub.has_begun() {
            shared.hub.begin(snapshot);
            return None;
        }
        Some(shared.hub.push(changes, None, snapshot))
    }

    /// Applies a batch of a part's changes, which have one reason, to the merged state.
    fn push_merged(&mut self, name: &str, changes: &[Change<S>], shared: &Shared<S>) -> Option<PartialPush<S>> {
        let merged = self.merged.as_mut()?;
        let others: Vec<&Snapshot<S>> = match merged.kind {
            PartKind::Namespaces => Vec::new(),
            PartKind::Shards => {
                let others = self.running.iter().filter(|(other, _)| ***other != *name);
                others.map(|(_, part)| &*part.snapshot).collect()
            }
        };
        let mut differences = Vec::new();
        for change in changes {
            for delta in merge::fold(merged.indexer.current(), change, &merged.floors, others.iter().copied()) {
                merged.indexer.apply(delta, &mut differences);
            }
        }
        let why = changes.first().map(|change| change.origin().into());
        merged.push(differences, why, shared)
    }

    /// Removes the objects of a part from the merged state.
    fn remove_objects(&mut self, part: &Snapshot<S>, shared: &Shared<S>) {
        let Some(merged) = &mut self.merged else { return };
        let mut differences = Vec::new();
        for delta in merge::removal_deltas(merged.indexer.current(), part) {
            merged.indexer.apply(delta, &mut differences);
        }
        if let Some(pushed) = merged.push(differences, Some(Reason::Unwatched), shared) {
            pushed.finish_now();
        }
        self.release_quarantined();
    }

    /// Releases the objects of the merged state that no part has in quarantine any more. The end of an object that was
    /// never decodable is no change, so no message of its part reports it. A newer state of a part's store does no
    /// harm: its message follows.
    fn release_quarantined(&mut self) {
        let Some(merged) = &mut self.merged else { return };
        if merged.indexer.current().quarantine().next().is_none() {
            return;
        }
        let running = self.running.values().map(|part| part.store.snapshot());
        let parts: Vec<_> = running.chain(self.parked.values().map(|part| part.source.store().snapshot())).collect();
        merged.indexer.retain_quarantined(|key| parts.iter().any(|part| part.quarantined(key.as_str()).is_some()));
        merged.indexer.publish();
    }

    /// Marks the informer as synced when every part is synced.
    fn check_synced(&mut self, shared: &Shared<S>) {
        if shared.condition.borrow().synced || !self.running.values().all(|part| part.synced) {
            return;
        }
        self.move_version();
        if let Some(merged) = &mut self.merged {
            merged.indexer.set_synced();
            merged.indexer.publish();
        }
        shared.hub.end_initial();
        shared.condition.send_modify(|condition| condition.synced = true);
    }

    /// Sets the version of the merged state to the oldest version up to which a part is merged.
    ///
    /// A bookmark raises the version of a part without a message. The version of a store whose objects are not merged
    /// yet does not count.
    fn move_version(&mut self) {
        let Some(merged) = &mut self.merged else { return };
        for part in self.running.values_mut() {
            let current = part.store.snapshot();
            if current.has_same_objects(&part.snapshot) {
                part.version = current.version().parse().ok();
            }
        }
        let oldest = self.running.values().map(|part| part.version).reduce(|a, b| Some(a?.min(b?))).flatten();
        if let Some(version) = oldest {
            merged.floors.forget(version);
            merged.indexer.apply(Delta::Version(version.to_string()), &mut Vec::new());
            merged.indexer.publish();
        }
    }

    async fn with_running_indexer(&mut self, action: WithIndexer<S>) {
        match (&mut self.merged, self.running.values().next()) {
            (Some(merged), _) => action(&mut merged.indexer),
            // An error means that the part's task has ended. The action is dropped, and with it the
            // caller's channel.
            (None, Some(part)) => drop(part.commands.send(action).await),
            (None, None) => {}
        }
    }
}

impl<S: Stored> Merged<S> {
    fn push(&mut self, changes: Vec<Change<S>>, why: Option<Reason>, shared: &Shared<S>) -> Option<PartialPush<S>> {
        self.indexer.publish();
        if changes.is_empty() {
            return None;
        }
        if self.kind == PartKind::Shards {
            changes.iter().for_each(|change| self.floors.note(change));
        }
        let snapshot = self.indexer.reader().snapshot();
        Some(shared.hub.push(changes, why, &snapshot))
    }
}

/// Splits changes into batches with one reason each, in order.
fn split_by_origin<S: Stored>(changes: Vec<Change<S>>) -> Vec<Vec<Change<S>>> {
    let mut batches: Vec<Vec<Change<S>>> = Vec::new();
    for change in changes {
        match batches.last_mut() {
            Some(batch) if batch.last().is_some_and(|last| last.origin() == change.origin()) => batch.push(change),
            _ => batches.push(vec![change]),
        }
    }
    batches
}

/// Polls one part until its command channel is closed.
async fn run_part<S: Stored>(
    part: Arc<str>,
    number: u64,
    mut source: Box<dyn Source<S>>,
    out: mpsc::Sender<PartMessage<S>>,
    mut commands: mpsc::Receiver<WithIndexer<S>>,
) -> EndedPart<S> {
    // A notice that the worker has not received yet. A waiting part holds no place in the channel;
    // only parts with notices compete for places.
    let mut unsent: Option<NoticeWithState<S>> = None;
    loop {
        let next = async {
            if unsent.is_none() {
                let notice = source.next().await;
                unsent = Some((notice, source.notice_snapshot()));
            }
            let place = out.reserve().await.ok()?;
            if let Some((notice, snapshot)) = unsent.take() {
                place.send(PartMessage { part: part.clone(), number, notice, snapshot });
            }
            Some(())
        };
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                None => break,
                Some(action) => action(source.indexer()),
            },
            sent = next => if sent.is_none() { break },
        }
    }
    let mut left: Vec<_> = unsent.into_iter().collect();
    left.extend(source.suspend());
    EndedPart { part, number, source, left }
}

#[cfg(test)]
mod tests;
