//! The tasks of an informer: one per part, which polls the part's [`Reflection`], and one that
//! passes the changes to the hub.
//!
//! ```text
//!   part "a": Reflection ─┐ one message      ┌──▶ view ──▶ handler task
//!   part "b": Reflection ─┼────────▶ Worker ─┤    (Hub)
//!   part "c": Reflection ─┘  waits  (Merge)  └──▶ view ──▶ stream
//! ```
//!
//! A handler under [`Policy::Block`](super::Policy) makes the worker wait, the worker makes the parts
//! wait, and a reflection that is not polled does not read from its connection. Every wait in this module
//! ends when the informer is stopped.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::event::{Reason, Stop};
use super::handler::panic_message;
use super::hub::{Hub, Pushed};
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

/// Batches that the parts may be ahead of the worker, together, besides the one that each holds. What
/// waits here is no more than what one chunk of the network brought.
const PART_BATCHES_MAX: usize = 1;

/// Commands that may wait for the worker. A sender waits while there are more.
const COMMANDS_MAX: usize = 16;

/// The interval at which the version of a merged state is raised to the oldest of its parts.
const MERGED_VERSION_TICK: Duration = Duration::from_secs(1);

/// A running list and watch, whatever its types.
#[async_trait]
pub(super) trait Source<S: Stored>: Send {
    async fn next(&mut self) -> Notice<S>;
    fn told(&self) -> Arc<Snapshot<S>>;
    fn store(&self) -> Store<S>;
    fn health(&self) -> Health;
    fn indexer(&mut self) -> &mut Indexer<S>;
    /// Drops the connection, and returns the known but unreported changes.
    fn suspend(&mut self) -> Vec<NoticeWithState<S>>;
}

#[async_trait]
impl<L: ListWatch, D: Decode> Source<D::Stored> for Reflection<L, D> {
    async fn next(&mut self) -> Notice<D::Stored> {
        Reflection::next(self).await
    }

    fn told(&self) -> Arc<Snapshot<D::Stored>> {
        Reflection::told(self).clone()
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
        // That it was suspended is no news to who suspends it.
        drop(self.take_notices());
        left
    }
}

/// Makes the list and watch of a part.
pub(super) type MakeSource<S> = Box<dyn Fn(&str) -> Box<dyn Source<S>> + Send + Sync>;

/// Something to be done with the store's writer.
pub(super) type WithIndexer<S> = Box<dyn FnOnce(&mut Indexer<S>) + Send>;

/// The parts of a merged informer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    /// No key is in two of them.
    Namespaces,
    /// A recreated name may move between parts.
    Shards,
}

/// A request to a running worker, besides a stop.
pub(super) enum Command<S: Stored> {
    AddPart { name: String, done: oneshot::Sender<bool> },
    RemovePart { name: String, done: oneshot::Sender<bool> },
    WithIndexer(WithIndexer<S>),
}

/// The channels to a running worker. A stop has its own channel, so that it never waits behind
/// commands that the worker defers while it waits for a handler.
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
    /// The informer has no holder. Set under the lock of `parked`.
    unheld: AtomicBool,
}

/// The conditions that handles wait for.
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

    /// Drops the last holder's informer: a running worker ends by itself, a parked one ends here.
    pub(super) fn release(&self) {
        let mut parked = self.parked();
        self.unheld.store(true, Ordering::Relaxed);
        if parked.take().is_some() {
            self.finish(Stop::Unused, true);
        }
    }

    fn set_phase(&self, phase: Phase) {
        self.condition.send_modify(|condition| condition.phase = phase);
    }

    /// The informer does not run any more; `over` when it never will again.
    pub(super) fn finish(&self, why: Stop, over: bool) {
        self.hub.stop(&why);
        if over {
            self.hub.close();
        }
        self.set_phase(Phase::Stopped(why));
    }
}

/// One part of an informer while it does not run.
struct ParkedPart<S: Stored> {
    source: Box<dyn Source<S>>,
    told: Arc<Snapshot<S>>,
    synced: bool,
}

/// One part of an informer that runs.
struct RunningPart<S: Stored> {
    /// Tells this part from an earlier one of the same name.
    number: u64,
    /// Dropping it ends the part's task.
    commands: mpsc::Sender<WithIndexer<S>>,
    told: Arc<Snapshot<S>>,
    store: Store<S>,
    synced: bool,
}

/// A message of a part.
struct PartMessage<S: Stored> {
    part: Arc<str>,
    number: u64,
    notice: Notice<S>,
    told: Arc<Snapshot<S>>,
}

/// A part whose task has ended.
struct EndedPart<S: Stored> {
    part: Arc<str>,
    number: u64,
    source: Box<dyn Source<S>>,
    /// The state that it had not reported.
    left: Vec<NoticeWithState<S>>,
}

/// The changes of a part, to be pushed batch by batch.
struct PartChanges<S: Stored> {
    part: Arc<str>,
    changes: Vec<Vec<Change<S>>>,
    /// The part's state after the last batch.
    told: Arc<Snapshot<S>>,
}

/// Everything an informer is made of, but its handlers. See the [module](self).
pub(super) struct Worker<S: Stored> {
    parked: BTreeMap<Arc<str>, ParkedPart<S>>,
    running: BTreeMap<Arc<str>, RunningPart<S>>,
    next_number: u64,
    merged: Option<Merged<S>>,
    make: Option<MakeSource<S>>,
    /// The requests that arrived while the worker waited for a handler.
    deferred: VecDeque<Command<S>>,
}

struct Merged<S: Stored> {
    kind: PartKind,
    indexer: Indexer<S>,
    floors: DeletedVersions,
}

impl<S: Stored> Worker<S> {
    /// Of one part, whose store is the informer's.
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

    /// Of several parts, merged into `indexer`.
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
        let record = PartRecord { health: source.health(), synced: false, problem: None, skipped: 0, quarantined: 0 };
        shared.parts().insert(name.clone(), record);
        let told = source.told();
        self.parked.insert(name, ParkedPart { source, told, synced: false });
    }

    /// Takes a part in while nothing runs; false when it is there already.
    pub(super) fn add_parked(&mut self, name: &str, shared: &Shared<S>) -> bool {
        let Some(make) = &self.make else { return false };
        if self.parked.contains_key(name) {
            return false;
        }
        let source = make(name);
        self.park(name.into(), source, shared);
        true
    }

    /// Takes a part out while nothing runs; false when it was not there. Its objects are deleted
    /// for everybody.
    pub(super) fn remove_parked(&mut self, name: &str, shared: &Shared<S>) -> bool {
        let Some(part) = self.parked.remove(name) else { return false };
        shared.parts().remove(name);
        self.take_out(&part.told, shared);
        true
    }

    /// Runs a function on the store's writer while no part runs.
    pub(super) fn with_indexer(&mut self, action: WithIndexer<S>) {
        match (&mut self.merged, self.parked.values_mut().next()) {
            (Some(merged), _) => action(&mut merged.indexer),
            (None, Some(part)) => action(part.source.indexer()),
            (None, None) => {}
        }
    }

    /// Runs in a task until stopped, and then parks the worker.
    pub(super) fn spawn(self, shared: Arc<Shared<S>>) -> CommandSender<S> {
        // Says so if the runtime drops the task.
        struct Guard<S: Stored>(Option<Arc<Shared<S>>>);
        impl<S: Stored> Drop for Guard<S> {
            fn drop(&mut self) {
                if let Some(shared) = self.0.take() {
                    shared.finish(Stop::Aborted, true);
                }
            }
        }
        let (queue, queued) = mpsc::channel(COMMANDS_MAX);
        // Whoever asks for a stop after the first one waits for the same.
        let (stop, stops) = mpsc::channel(1);
        let asked = CommandReceiver { queue: queued, stop: stops };
        shared.set_phase(Phase::Running);
        shared.hub.restart();
        tokio::spawn(async move {
            let mut guard = Guard(Some(shared.clone()));
            let mut worker = self;
            let run = super::handler::catch_panic(worker.run(&shared, asked)).await;
            let why = run.unwrap_or_else(|message| Stop::Panicked { message });
            tracing::debug!(informer = %shared.name, %why, "an informer ended");
            guard.0 = None;
            // One step for everybody else: who finds the worker finds that it has stopped.
            let mut parked = shared.parked();
            let over = why != Stop::Asked || shared.unheld.load(Ordering::Relaxed);
            shared.finish(why, over);
            if !over {
                *parked = Some(worker);
            }
        });
        CommandSender { queue, stop }
    }

    async fn run(&mut self, shared: &Shared<S>, mut asked: CommandReceiver<S>) -> Stop {
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
                    None => asked.queue.recv().await,
                }
            };
            let is_merged = self.merged.is_some();
            tokio::select! {
                biased;
                Some(()) = asked.stop.recv() => break Stop::Asked,
                command = next_command => match command {
                    None => break Stop::Unused,
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
                            self.take_out(&part.told, shared);
                            self.check_synced(shared);
                        }
                    }
                },
                Some(ended) = tasks.join_next() => {
                    // The task of a part that was taken out ends; any other end is a panic.
                    if let Err(error) = ended
                        && error.is_panic()
                    {
                        break Stop::Panicked { message: panic_message(&*error.into_panic()) };
                    }
                }
                Some(message) = messages.recv() => {
                    if let Err(why) = self.handle(message, shared, &mut asked).await {
                        break why;
                    }
                }
                _ = tick.tick(), if is_merged => self.move_version(),
            }
        };
        shared.set_phase(Phase::Stopping);
        self.stop_parts(shared, messages, tasks).await;
        why
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
        let ParkedPart { source, told, synced } = part;
        let store = source.store();
        self.running.insert(name.clone(), RunningPart { number, commands, told, store, synced });
        tasks.spawn(run_part(name, number, source, out.clone(), receiver));
    }

    /// Ends the tasks of all parts, passes their pending reports to the hub, and parks them.
    async fn stop_parts(
        &mut self,
        shared: &Shared<S>,
        mut messages: mpsc::Receiver<PartMessage<S>>,
        mut tasks: JoinSet<EndedPart<S>>,
    ) {
        let mut stopped = BTreeMap::new();
        for (name, part) in std::mem::take(&mut self.running) {
            // The sender goes, and with it the task's reason to go on.
            stopped.insert(name, (part.number, part.told, part.synced));
        }
        let mut ended = Vec::new();
        while let Some(part) = tasks.join_next().await {
            ended.extend(part.ok());
        }
        messages.close();
        // What handlers are told before the stop is what the store shows at the stop.
        let mut last = Vec::new();
        while let Ok(message) = messages.try_recv() {
            last.push(message);
        }
        for EndedPart { part, number, left, .. } in &mut ended {
            let left = left.drain(..);
            last.extend(left.map(|(notice, told)| PartMessage { part: part.clone(), number: *number, notice, told }));
        }
        for message in last {
            let known = stopped.get_mut(&message.part).filter(|(number, ..)| *number == message.number);
            let Some((_, told, synced)) = known else { continue };
            told.clone_from(&message.told);
            *synced |= matches!(message.notice, Notice::Synced);
            let Some(batches) = self.tell(message, shared) else { continue };
            for changes in batches.changes {
                if let Some(pushed) = self.push(&batches.part, changes, &batches.told, shared) {
                    pushed.finish_now();
                }
            }
        }
        for EndedPart { part, number, source, .. } in ended {
            if let Some((_, told, synced)) = stopped.remove(&part).filter(|(known, ..)| *known == number) {
                self.parked.insert(part, ParkedPart { source, told, synced });
            }
        }
    }

    async fn handle(
        &mut self,
        message: PartMessage<S>,
        shared: &Shared<S>,
        asked: &mut CommandReceiver<S>,
    ) -> Result<(), Stop> {
        let known = self.running.get_mut(&message.part).filter(|part| part.number == message.number);
        // A part that was taken out has nothing to say.
        let Some(part) = known else { return Ok(()) };
        part.told.clone_from(&message.told);
        part.synced |= matches!(message.notice, Notice::Synced);
        let mut stop = None;
        if let Some(batches) = self.tell(message, shared) {
            for changes in batches.changes {
                // One batch after the other: a handler that is behind gets the rest of the first one
                // before anything of the second.
                let Some(pushed) = self.push(&batches.part, changes, &batches.told, shared) else { continue };
                if stop.is_none() {
                    stop = self.feed(pushed, shared, asked).await.err();
                } else {
                    pushed.finish_now();
                }
            }
        }
        self.check_synced(shared);
        stop.map_or(Ok(()), Err)
    }

    /// Waits for the handlers that are behind, but not once the informer is stopped.
    async fn feed(
        &mut self,
        mut pushed: Pushed<S>,
        shared: &Shared<S>,
        asked: &mut CommandReceiver<S>,
    ) -> Result<(), Stop> {
        let stop = {
            let mut feed = pin!(shared.hub.feed(&mut pushed));
            loop {
                let room = self.deferred.len() < COMMANDS_MAX;
                tokio::select! {
                    biased;
                    () = &mut feed => return Ok(()),
                    // A stop does not wait for a slow handler.
                    Some(()) = asked.stop.recv() => break Stop::Asked,
                    command = asked.queue.recv(), if room => match command {
                        Some(command) => self.deferred.push_back(command),
                        None => break Stop::Unused,
                    },
                }
            }
        };
        pushed.finish_now();
        Err(stop)
    }

    /// Records a part's report. [`Worker::push`] then pushes its changes, batch by batch.
    fn tell(&mut self, message: PartMessage<S>, shared: &Shared<S>) -> Option<PartChanges<S>> {
        let PartMessage { part: name, notice, told, .. } = message;
        let mut parts = shared.parts();
        let record = parts.get_mut(&name)?;
        match notice {
            Notice::Changes(changes) => {
                let changes = match &self.merged {
                    // A merged change has the reason of its batch.
                    Some(_) => split_by_origin(changes),
                    None => vec![changes],
                };
                return Some(PartChanges { part: name.clone(), changes, told });
            }
            Notice::Synced => {
                record.synced = true;
                if self.merged.is_none() {
                    shared.hub.begin(&told);
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
                tracing::warn!(informer = %shared.name, part = %name, %key, ?reason, "an object was passed over");
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

    /// Pushes a batch of a part's changes to the hub; `None` when no handler receives it.
    fn push(
        &mut self,
        part: &str,
        changes: Vec<Change<S>>,
        told: &Arc<Snapshot<S>>,
        shared: &Shared<S>,
    ) -> Option<Pushed<S>> {
        if self.merged.is_some() {
            return self.push_merged(part, &changes, shared);
        }
        // The first state is begun with, it is not news.
        if !shared.hub.has_begun() {
            shared.hub.begin(told);
            return None;
        }
        Some(shared.hub.push(changes, None, told))
    }

    /// Brings a batch of a part's changes, which have one reason, into the merged state.
    fn push_merged(&mut self, name: &str, changes: &[Change<S>], shared: &Shared<S>) -> Option<Pushed<S>> {
        let merged = self.merged.as_mut()?;
        let others: Vec<&Snapshot<S>> = match merged.kind {
            PartKind::Namespaces => Vec::new(),
            PartKind::Shards => {
                let others = self.running.iter().filter(|(other, _)| ***other != *name);
                others.map(|(_, part)| &*part.told).collect()
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

    /// Takes the objects of a part out of the merged state.
    fn take_out(&mut self, part: &Snapshot<S>, shared: &Shared<S>) {
        let Some(merged) = &mut self.merged else { return };
        let mut differences = Vec::new();
        for delta in merge::take_out(merged.indexer.current(), part) {
            merged.indexer.apply(delta, &mut differences);
        }
        if let Some(pushed) = merged.push(differences, Some(Reason::Unwatched), shared) {
            pushed.finish_now();
        }
    }

    /// The informer is synced once every part has been.
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

    /// A merged state is current for the oldest version of its parts.
    fn move_version(&mut self) {
        let Some(merged) = &mut self.merged else { return };
        let versions = self.running.values().map(|part| part.store.snapshot().version().parse::<u64>().ok());
        let oldest = versions.reduce(|a, b| Some(a?.min(b?))).flatten();
        if let Some(version) = oldest {
            merged.floors.forget(version);
            merged.indexer.apply(Delta::Version(version.to_string()), &mut Vec::new());
            merged.indexer.publish();
        }
    }

    async fn with_running_indexer(&mut self, action: WithIndexer<S>) {
        match (&mut self.merged, self.running.values().next()) {
            (Some(merged), _) => action(&mut merged.indexer),
            // An error is a part whose task has ended; the action is dropped, and who waits for
            // it is told so.
            (None, Some(part)) => drop(part.commands.send(action).await),
            (None, None) => {}
        }
    }
}

impl<S: Stored> Merged<S> {
    fn push(&mut self, changes: Vec<Change<S>>, why: Option<Reason>, shared: &Shared<S>) -> Option<Pushed<S>> {
        self.indexer.publish();
        if changes.is_empty() {
            return None;
        }
        if self.kind == PartKind::Shards {
            changes.iter().for_each(|change| self.floors.note(change));
        }
        let told = self.indexer.reader().snapshot();
        Some(shared.hub.push(changes, why, &told))
    }
}

/// Changes in batches with one reason each, in their order.
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

/// Polls one part until told to end.
async fn run_part<S: Stored>(
    part: Arc<str>,
    number: u64,
    mut source: Box<dyn Source<S>>,
    out: mpsc::Sender<PartMessage<S>>,
    mut commands: mpsc::Receiver<WithIndexer<S>>,
) -> EndedPart<S> {
    // What was taken from the source and has no place with the worker yet. A part that waits for
    // news holds no place: it is the parts that have some that share the few there are.
    let mut unsent: Option<NoticeWithState<S>> = None;
    loop {
        let next = async {
            if unsent.is_none() {
                let notice = source.next().await;
                unsent = Some((notice, source.told()));
            }
            let place = out.reserve().await.ok()?;
            if let Some((notice, told)) = unsent.take() {
                place.send(PartMessage { part: part.clone(), number, notice, told });
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
