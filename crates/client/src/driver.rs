//! Runs a [`Reflector`] over a [`ListWatch`], decodes through a [`DeltaFifo`] and updates the
//! [`Store`]: [`Reflection`].
//!
//! A reflection reads from the network only while [`Reflection::next`] is polled. A slow consumer
//! therefore slows the server's stream, and no queue grows in between. The reflection spawns no
//! task, and dropping it ends all requests.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use listwatch_meta::{Change as EventChange, Status};
use listwatch_wire::EventKind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::decode::{Decode, KeepJson};
use crate::delta_fifo::{DeltaFifo, FifoConfig, PushOutcome, Quarantined};
use crate::indexer::{Change, Index, IndexValue, Indexer, Origin, Snapshot, Store};
use crate::list_watch::{ListItem, ListStream, ListWatch, WatchStream, WatchedEvent};
use crate::object::{Object, ObjectKey, RawObject};
use crate::problem::Problem;
use crate::reflector::{Action, EventAction, Reflector, ReflectorConfig, ReflectorState, SkipReason, TimeAndRandom};
use crate::stored::Stored;

/// The maximum number of deltas that are applied between two publications of the store. A complete
/// state is always applied at once.
pub const APPLY_BATCH: usize = 1_000;

/// The number of objects of a resync that are reported at once. Events of the server precede the
/// rest.
pub const RESYNC_BATCH: usize = 256;

/// A message that [`Reflection::next`] returns.
#[derive(Clone, Debug)]
pub enum Notice<S: Stored = Object> {
    /// Changes of the store, in order. Readers already see them. Never empty. Changes that arrived
    /// together are in one notice, and so are all differences that a list found.
    Changes(Vec<Change<S>>),
    /// The store has the complete state of a list or WatchList. The notice with its changes
    /// precedes this one. After the first such notice the copy is synced.
    Synced,
    /// The reflector changed its state.
    State(ReflectorState),
    /// An error occurred. The following [`Notice::State`] shows the reflector's reaction.
    Problem(Problem),
    /// An object was skipped.
    Skipped {
        /// The reason.
        reason: SkipReason,
        /// The key of the object, if known.
        key: ObjectKey,
    },
    /// An object could not be decoded. The store keeps its last decodable state and other objects
    /// are unaffected. [`Snapshot::quarantined`](crate::Snapshot::quarantined) lists it until a
    /// decodable version or its deletion arrives.
    Quarantined {
        /// The object.
        key: ObjectKey,
        /// The version of the object and the decoding error.
        entry: Arc<Quarantined>,
    },
}

/// A running reflector. See the [module](self).
pub struct Reflection<L, D: Decode = KeepJson> {
    list_watch: Arc<L>,
    reflector: Reflector,
    fifo: DeltaFifo<D>,
    indexer: Indexer<D::Stored>,
    exchange: Exchange,
    /// Notices that were not returned yet, each with its snapshot.
    notices: VecDeque<NoticeWithState<D::Stored>>,
    /// The snapshot of the notice that was returned last.
    notice_snapshot: Arc<Snapshot<D::Stored>>,
    /// Whether the reflection is read as an event source: see [`Reflection::begin_source`].
    is_source: bool,
    health: Health,
    random: StdRng,
    /// The reflector's state that was reported last.
    reported_state: ReflectorState,
    told_problem: Option<Problem>,
}

/// A reader of the state of a [`Reflection`]'s reflector. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<ReflectorState>>);

impl Health {
    /// The current state of the reflector.
    pub fn state(&self) -> ReflectorState {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, state: ReflectorState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// A notice with its published snapshot.
pub(crate) type NoticeWithState<S> = (Notice<S>, Arc<Snapshot<S>>);

type PendingResponse<T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send>>;

/// The open request: none, a request without a response yet, or a response that is being read.
enum Exchange {
    Idle,
    ListRequested(PendingResponse<ListStream>),
    List(ListStream),
    WatchRequested(PendingResponse<WatchStream>),
    Watch(WatchStream),
}

/// An item that was received from the open response.
enum Input {
    ListOpened(Result<ListStream, Problem>),
    ListItem(Option<Result<ListItem, Problem>>),
    WatchOpened(Result<WatchStream, Problem>),
    Events(Option<Result<Vec<WatchedEvent>, Problem>>),
}

impl<L: ListWatch> Reflection<L> {
    /// Creates a reflector over this resource that keeps objects as JSON. The jitter uses the
    /// operating system's random numbers.
    pub fn new(list_watch: L, config: ReflectorConfig) -> Self {
        Reflection::with_decoder(list_watch, config, KeepJson)
    }

    /// As [`Reflection::new`], but the jitter is derived from a seed.
    pub fn with_seed(list_watch: L, config: ReflectorConfig, seed: u64) -> Self {
        Reflection::new(list_watch, config).seeded(seed)
    }
}

impl<L: ListWatch, D: Decode> Reflection<L, D> {
    /// Creates a reflector over this resource that keeps the values of a decoder.
    pub fn with_decoder(list_watch: L, config: ReflectorConfig, decoder: D) -> Self {
        let indexer = Indexer::new();
        Reflection {
            list_watch: Arc::new(list_watch),
            reflector: Reflector::new(config),
            fifo: DeltaFifo::new(decoder, FifoConfig::default()),
            notice_snapshot: indexer.reader().snapshot(),
            health: Health(Arc::new(Mutex::new(ReflectorState::Starting))),
            indexer,
            is_source: false,
            exchange: Exchange::Idle,
            notices: VecDeque::new(),
            random: StdRng::from_os_rng(),
            reported_state: ReflectorState::Starting,
            told_problem: None,
        }
    }

    /// Derives the jitter from this seed.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.random = StdRng::seed_from_u64(seed);
        self
    }

    /// Sets the options of the queue.
    #[must_use]
    pub fn queued(mut self, config: FifoConfig) -> Self {
        self.fifo.set_config(config);
        self
    }

    /// A reader of the local copy, for any task.
    pub fn store(&self) -> Store<D::Stored> {
        self.indexer.reader()
    }

    /// Adds an index to the store: see [`Indexer::add_index`].
    pub fn add_index<V, I>(&mut self, function: impl Fn(&D::Stored) -> I + Send + Sync + 'static) -> Index<D::Stored, V>
    where
        V: IndexValue,
        I: IntoIterator<Item = V>,
    {
        self.indexer.add_index(function)
    }

    /// Adds the label index to the store: see [`Indexer::add_label_index`].
    pub fn add_label_index(&mut self) {
        self.indexer.add_label_index();
    }

    /// Reports every object once more, as [`Change::Updated`] with [`Origin::Resync`], in key order
    /// and in parts of [`RESYNC_BATCH`]. Events of the server have priority. Quarantined objects
    /// are decoded once more. Sends no request.
    ///
    /// [`Origin::Resync`]: crate::Origin::Resync
    pub fn resync(&mut self) {
        self.fifo.retry_quarantined(self.indexer.current());
        self.fifo.resync();
    }

    /// The snapshot of the last notice of [`Reflection::next`]: with its changes and without later
    /// ones. The [`Store`] may be newer.
    pub fn notice_snapshot(&self) -> &Arc<Snapshot<D::Stored>> {
        &self.notice_snapshot
    }

    /// A reader of the reflector's state, for any task. The state is also updated between notices,
    /// for example while a list is read.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Closes the open request, for a reflection that will not be polled for a while. The copy
    /// stays. The next call of [`Reflection::next`] resumes at the copy's last complete version
    /// after the first delay of the backoff. If that version has expired, it relists and reports the differences.
    pub fn suspend(&mut self) {
        if self.reported_state == ReflectorState::Starting {
            return;
        }
        self.exchange = Exchange::Idle;
        let at = self.time_and_random();
        // A cut stream that was of use is resumed without a delay. The second problem is for that new request, whose
        // time limit would pass while nobody polls.
        for _ in 0..2 {
            self.reflector.handle_problem(at, Problem::disconnected("suspended"));
        }
        self.act();
        self.drain_all();
        self.report_state();
    }

    /// Returns all available notices without reading from the network.
    pub(crate) fn take_notices(&mut self) -> Vec<NoticeWithState<D::Stored>> {
        let notices = std::mem::take(&mut self.notices);
        if let Some((_, snapshot)) = notices.back() {
            self.notice_snapshot = snapshot.clone();
        }
        notices.into()
    }

    /// Queues the state of the notices that were returned before, as an initial state. An event source needs it,
    /// because its reader has not seen these notices. Only the first call has an effect.
    pub(crate) fn begin_source(&mut self) {
        if std::mem::replace(&mut self.is_source, true) || !self.notice_snapshot.is_synced() {
            return;
        }
        let snapshot = self.notice_snapshot.clone();
        let added = |object: &D::Stored| Change::Added { object: object.clone(), origin: Origin::Initial };
        let changes: Vec<_> = snapshot.iter().map(added).collect();
        self.notices.push_front((Notice::Synced, snapshot.clone()));
        if !changes.is_empty() {
            self.notices.push_front((Notice::Changes(changes), snapshot));
        }
    }

    /// The writer of the store.
    pub(crate) fn indexer_mut(&mut self) -> &mut Indexer<D::Stored> {
        &mut self.indexer
    }

    /// The reflector's state machine, to read its state.
    pub fn reflector(&self) -> &Reflector {
        &self.reflector
    }

    /// Returns the next notice. Never ends: an unreachable server is retried forever. Cancel-safe:
    /// dropping the future loses no notice.
    pub async fn next(&mut self) -> Notice<D::Stored> {
        loop {
            if let Some((notice, snapshot)) = self.notices.pop_front() {
                self.notice_snapshot = snapshot;
                return notice;
            }
            let resyncing = self.fifo.is_resyncing() || !self.fifo.is_empty();
            let input = if self.reported_state == ReflectorState::Starting {
                let at = self.time_and_random();
                self.reflector.handle_start(at);
                None
            } else {
                // A distant deadline instead of none keeps one form of `select!`. The reflector
                // always has a timeout.
                let due = self.reflector.poll_timeout();
                let timeout = async {
                    match due {
                        Some(due) => tokio::time::sleep_until(Instant::from_std(due)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    input = self.exchange.next() => Some(input),
                    () = timeout => {
                        let at = self.time_and_random();
                        self.reflector.handle_timeout(at);
                        None
                    }
                    () = std::future::ready(()), if resyncing => {
                        self.drain(RESYNC_BATCH);
                        continue;
                    }
                }
            };
            if let Some(input) = input {
                self.handle(input);
            }
            self.act();
            self.drain_all();
            self.report_state();
        }
    }

    fn time_and_random(&mut self) -> TimeAndRandom {
        TimeAndRandom { now: Instant::now().into_std(), random: self.random.random() }
    }

    fn handle(&mut self, input: Input) {
        let at = self.time_and_random();
        match input {
            Input::ListOpened(Ok(stream)) => self.exchange = Exchange::List(stream),
            Input::WatchOpened(Ok(stream)) => {
                self.exchange = Exchange::Watch(stream);
                self.reflector.handle_watch_open(at);
            }
            Input::ListItem(Some(Ok(item))) => self.handle_list_item(at, item),
            Input::Events(Some(Ok(events))) => self.handle_events(at, events),
            Input::Events(None) => {
                self.exchange = Exchange::Idle;
                self.reflector.handle_stream_end(at);
            }
            Input::ListItem(None) => {
                self.exchange = Exchange::Idle;
                self.reflector.handle_problem(at, Problem::disconnected("the list was interrupted"));
            }
            Input::ListOpened(Err(problem))
            | Input::WatchOpened(Err(problem))
            | Input::ListItem(Some(Err(problem)))
            | Input::Events(Some(Err(problem))) => {
                self.exchange = Exchange::Idle;
                self.reflector.handle_problem(at, problem);
            }
        }
    }

    fn handle_list_item(&mut self, at: TimeAndRandom, item: ListItem) {
        match item {
            ListItem::Type(type_name) => self.reflector.handle_list_type(&type_name),
            ListItem::Objects(objects) => {
                if let Some(type_name) = self.reflector.item_type() {
                    self.fifo.set_type_name(type_name);
                }
                for object in objects {
                    match self.reflector.handle_item(at, &object.metadata()) {
                        EventAction::Skip(reason) => self.skip(reason, &object),
                        EventAction::Collect => self.collect(EventChange::Added, &object),
                        EventAction::Apply | EventAction::Bookmark | EventAction::Ignore => {}
                    }
                }
            }
            ListItem::End(meta) => {
                self.exchange = Exchange::Idle;
                self.reflector.handle_list_end(at, &meta);
            }
        }
    }

    fn handle_events(&mut self, at: TimeAndRandom, events: Vec<WatchedEvent>) {
        for WatchedEvent { kind, object } in events {
            let change = match kind {
                EventKind::Error => {
                    let problem = match serde_json::from_slice::<Status>(object.json()) {
                        Ok(status) => Problem::refused(status),
                        Err(error) => {
                            Problem::malformed(format!("an ERROR event without a Status: {error}")).caused_by(error)
                        }
                    };
                    self.exchange = Exchange::Idle;
                    self.reflector.handle_problem(at, problem);
                    break;
                }
                EventKind::Added => Some(EventChange::Added),
                EventKind::Modified => Some(EventChange::Modified),
                EventKind::Deleted => Some(EventChange::Deleted),
                EventKind::Bookmark => None,
            };
            let metadata = object.metadata();
            match (self.reflector.handle_event(at, kind, &metadata), change) {
                (EventAction::Apply, Some(change)) => {
                    let pushed = self.fifo.push_with_metadata(self.indexer.current(), change, &object, &metadata);
                    tracing::trace!(?kind, ?pushed, object = %key_of(&object), "an event");
                    self.note(pushed, &object);
                    if !self.fifo.has_room() {
                        self.drain_all();
                    }
                }
                (EventAction::Collect, Some(change)) => self.collect(change, &object),
                (EventAction::Skip(reason), _) => self.skip(reason, &object),
                _ => {}
            }
            // The end of the initial events commits a state before the next event.
            if !self.act() {
                break;
            }
        }
        if self.reflector.is_synced() {
            self.fifo.push_version(self.reflector.version());
        }
    }

    /// Performs an action of the reflector. Returns false if the action ends the open request.
    fn act(&mut self) -> bool {
        let mut open = true;
        while let Some(action) = self.reflector.poll_action() {
            match action {
                Action::Begin => self.fifo.begin_replace(self.indexer.current()),
                Action::Commit { version } => {
                    self.fifo.commit_replace(&version);
                    self.drain_all();
                    self.push(Notice::Synced);
                }
                Action::List(options) => {
                    tracing::debug!(?options, "listing");
                    let list_watch = self.list_watch.clone();
                    self.exchange = Exchange::ListRequested(Box::pin(async move { list_watch.list(options).await }));
                    open = false;
                }
                Action::Watch(options) => {
                    tracing::debug!(?options, "watching");
                    let list_watch = self.list_watch.clone();
                    self.exchange = Exchange::WatchRequested(Box::pin(async move { list_watch.watch(options).await }));
                    open = false;
                }
                Action::Close => {
                    self.exchange = Exchange::Idle;
                    open = false;
                }
            }
        }
        open
    }

    fn collect(&mut self, change: EventChange, object: &RawObject) {
        let pushed = self.fifo.collect(change, object);
        self.note(pushed, object);
    }

    fn note(&mut self, pushed: PushOutcome, object: &RawObject) {
        if let PushOutcome::Quarantined(entry) = pushed {
            self.push(Notice::Quarantined { key: key_of(object), entry });
        }
    }

    /// Applies all queued deltas to the store.
    fn drain_all(&mut self) {
        while !self.fifo.is_empty() {
            self.drain(APPLY_BATCH);
        }
    }

    /// Applies one batch to the store, publishes it, and reports its changes.
    fn drain(&mut self, max: usize) {
        let mut changes = Vec::new();
        for delta in self.fifo.pop_batch(self.indexer.current(), max) {
            self.indexer.apply(delta, &mut changes);
        }
        self.fifo.finish_batch();
        self.indexer.publish();
        if !changes.is_empty() {
            self.push(Notice::Changes(changes));
        }
    }

    fn skip(&mut self, reason: SkipReason, object: &RawObject) {
        self.push(Notice::Skipped { reason, key: key_of(object) });
    }

    fn report_state(&mut self) {
        let problem = self.reflector.last_problem();
        if problem != self.told_problem.as_ref() {
            self.told_problem = problem.cloned();
            if let Some(problem) = self.told_problem.clone() {
                self.push(Notice::Problem(problem));
            }
        }
        let state = self.reflector.state();
        // The progress of a list is not reported. Between two backoffs there is always another state.
        if std::mem::discriminant(&state) != std::mem::discriminant(&self.reported_state) {
            self.reported_state = state.clone();
            self.push(Notice::State(state.clone()));
        }
        self.health.set(state);
    }

    /// Queues a notice with its published snapshot.
    fn push(&mut self, notice: Notice<D::Stored>) {
        self.notices.push_back((notice, self.indexer.published()));
    }
}

fn key_of(object: &RawObject) -> ObjectKey {
    let metadata = object.metadata();
    ObjectKey::new(&metadata.namespace, &metadata.name)
}

impl Exchange {
    async fn next(&mut self) -> Input {
        poll_fn(|context| match self {
            Exchange::Idle => Poll::Pending,
            Exchange::ListRequested(asking) => asking.as_mut().poll(context).map(Input::ListOpened),
            Exchange::List(stream) => stream.as_mut().poll_next(context).map(Input::ListItem),
            Exchange::WatchRequested(asking) => asking.as_mut().poll(context).map(Input::WatchOpened),
            Exchange::Watch(stream) => stream.as_mut().poll_next(context).map(Input::Events),
        })
        .await
    }
}
