//! Runs a [`Reflector`] over a [`ListWatch`], decodes through a [`DeltaFifo`] and updates the
//! [`Store`]: [`Reflection`].
//!
//! A reflection reads from the network only while [`Reflection::next`] is polled, so a slow consumer
//! slows the server's stream and no queue grows in between. It spawns no task; dropping it ends
//! everything.

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
use crate::delta_fifo::{DeltaFifo, FifoConfig, Pushed, Quarantined};
use crate::indexer::{Change, Index, IndexValue, Indexer, Snapshot, Store};
use crate::list_watch::{ListItem, ListStream, ListWatch, WatchStream, WatchedEvent};
use crate::object::{Object, ObjectKey, RawObject};
use crate::problem::Problem;
use crate::reflector::{Action, Reflector, ReflectorConfig, ReflectorState, SkipReason, TimeAndRandom, Verdict};
use crate::stored::Stored;

/// Deltas that are applied to the store before it is published. A whole state is applied at once,
/// whatever its size.
pub const APPLY_BATCH: usize = 1_000;

/// Objects of a resync that are reported at once. Events of the server precede the next ones.
pub const RESYNC_BATCH: usize = 256;

/// A notice of [`Reflection::next`].
#[derive(Clone, Debug)]
pub enum Notice<S: Stored = Object> {
    /// Changes of the store, in order, which readers see already. Never empty. Changes that arrived
    /// together are in one notice; after a list, all differences are.
    Changes(Vec<Change<S>>),
    /// A whole state is in the store; the notice of its changes precedes this. After the first one
    /// the copy is synced.
    Synced,
    /// The reflector changed its state.
    State(ReflectorState),
    /// A problem occurred. The following states show the reflector's reaction.
    Problem(Problem),
    /// An object was skipped.
    Skipped {
        /// The reason.
        reason: SkipReason,
        /// The object, as far as known.
        key: ObjectKey,
    },
    /// An object could not be decoded. The store keeps its last decodable state and other objects
    /// are unaffected. [`Snapshot::quarantined`](crate::Snapshot::quarantined) lists it until a
    /// decodable version or its deletion arrives.
    Quarantined {
        /// Which one.
        key: ObjectKey,
        /// Which version, and why.
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
    /// Notices that were not returned yet, each with the state that belongs to it.
    notices: VecDeque<NoticeWithState<D::Stored>>,
    /// The state of the notice that was returned last.
    told_snapshot: Arc<Snapshot<D::Stored>>,
    health: Health,
    random: StdRng,
    /// The reflector's state that was reported last.
    told: ReflectorState,
    told_problem: Option<Problem>,
}

/// A reader of the state of a [`Reflection`]'s reflector. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<ReflectorState>>);

impl Health {
    /// The state as of now: why the copy is not current, if it is not.
    pub fn state(&self) -> ReflectorState {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, state: ReflectorState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// A notice with the published state it belongs to.
pub(crate) type NoticeWithState<S> = (Notice<S>, Arc<Snapshot<S>>);

type Asking<T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send>>;

/// The open exchange with the server.
enum Exchange {
    Idle,
    AskingList(Asking<ListStream>),
    List(ListStream),
    AskingWatch(Asking<WatchStream>),
    Watch(WatchStream),
}

/// The response of an exchange.
enum Input {
    ListOpened(Result<ListStream, Problem>),
    ListItem(Option<Result<ListItem, Problem>>),
    WatchOpened(Result<WatchStream, Problem>),
    Events(Option<Result<Vec<WatchedEvent>, Problem>>),
}

impl<L: ListWatch> Reflection<L> {
    /// A reflector over this resource that keeps objects as their bytes, with the operating
    /// system's randomness for its jitter.
    pub fn new(list_watch: L, config: ReflectorConfig) -> Self {
        Reflection::with_decoder(list_watch, config, KeepJson)
    }

    /// As [`Reflection::new`], reproducible: the jitter follows from the seed.
    pub fn with_seed(list_watch: L, config: ReflectorConfig, seed: u64) -> Self {
        Reflection::new(list_watch, config).seeded(seed)
    }
}

impl<L: ListWatch, D: Decode> Reflection<L, D> {
    /// A reflector over this resource that keeps what `decoder` makes of its objects.
    pub fn with_decoder(list_watch: L, config: ReflectorConfig, decoder: D) -> Self {
        let indexer = Indexer::new();
        Reflection {
            list_watch: Arc::new(list_watch),
            reflector: Reflector::new(config),
            fifo: DeltaFifo::new(decoder, FifoConfig::default()),
            told_snapshot: indexer.reader().snapshot(),
            health: Health(Arc::new(Mutex::new(ReflectorState::Starting))),
            indexer,
            exchange: Exchange::Idle,
            notices: VecDeque::new(),
            random: StdRng::from_os_rng(),
            told: ReflectorState::Starting,
            told_problem: None,
        }
    }

    /// With a jitter that follows from this seed.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.random = StdRng::seed_from_u64(seed);
        self
    }

    /// With a queue that behaves like this.
    #[must_use]
    pub fn queued(mut self, config: FifoConfig) -> Self {
        self.fifo.set_config(config);
        self
    }

    /// A reader of the local copy; usable from anywhere, at any time.
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

    /// Reports every object once more, as [`Change::Updated`] with [`Origin::Resync`], in key order and in
    /// parts of [`RESYNC_BATCH`], while no events arrive from the server. Quarantined objects are decoded
    /// once more. Sends no request.
    ///
    /// [`Origin::Resync`]: crate::Origin::Resync
    pub fn resync(&mut self) {
        self.fifo.retry_quarantined(self.indexer.current());
        self.fifo.resync();
    }

    /// The state that belongs to the last notice of [`Reflection::next`]: with its changes, and without
    /// later ones. The [`Store`] may be newer.
    pub fn told(&self) -> &Arc<Snapshot<D::Stored>> {
        &self.told_snapshot
    }

    /// A reader of the reflector's state, kept up to date while a list is read, not only when a
    /// notice is given; usable from anywhere.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Closes the open request, for a reflection that will not be polled for a while. The copy stays.
    /// The next call of [`Reflection::next`] resumes at its version after the first step of the backoff,
    /// and reports the differences if that version has expired.
    pub fn suspend(&mut self) {
        if self.told == ReflectorState::Starting {
            return;
        }
        self.exchange = Exchange::Idle;
        let at = self.moment();
        self.reflector.handle_problem(at, Problem::disconnected("suspended"));
        self.act();
        self.drain_all();
        self.tell();
    }

    /// Returns everything that is available without reading from the network.
    pub(crate) fn take_notices(&mut self) -> Vec<NoticeWithState<D::Stored>> {
        let notices = std::mem::take(&mut self.notices);
        if let Some((_, snapshot)) = notices.back() {
            self.told_snapshot = snapshot.clone();
        }
        notices.into()
    }

    /// The store's writer.
    pub(crate) fn indexer_mut(&mut self) -> &mut Indexer<D::Stored> {
        &mut self.indexer
    }

    /// The reflector's state machine, for its questions.
    pub fn reflector(&self) -> &Reflector {
        &self.reflector
    }

    /// The next notice. Never ends: it waits for a server that cannot be reached. Cancel-safe: dropping
    /// the future loses no notice.
    pub async fn next(&mut self) -> Notice<D::Stored> {
        loop {
            if let Some((notice, snapshot)) = self.notices.pop_front() {
                self.told_snapshot = snapshot;
                return notice;
            }
            let resyncing = self.fifo.is_resyncing() || !self.fifo.is_empty();
            let input = if self.told == ReflectorState::Starting {
                let at = self.moment();
                self.reflector.handle_start(at);
                None
            } else {
                // Far away rather than never keeps one shape of select; the reflector always
                // waits for something.
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
                        let at = self.moment();
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
            self.tell();
        }
    }

    fn moment(&mut self) -> TimeAndRandom {
        TimeAndRandom { now: Instant::now().into_std(), random: self.random.random() }
    }

    fn handle(&mut self, input: Input) {
        let at = self.moment();
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
                self.reflector.handle_problem(at, Problem::disconnected("the list broke off"));
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
                        Verdict::Skip(reason) => self.skip(reason, &object),
                        Verdict::Collect => self.collect(EventChange::Added, &object),
                        Verdict::Apply | Verdict::Bookmark | Verdict::Ignore => {}
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
            match (self.reflector.handle_event(at, kind, &object.metadata()), change) {
                (Verdict::Apply, Some(change)) => {
                    let pushed = self.fifo.push(self.indexer.current(), change, &object);
                    tracing::trace!(?kind, ?pushed, object = %key_of(&object), "an event");
                    self.note(pushed, &object);
                    if !self.fifo.has_room() {
                        self.drain_all();
                    }
                }
                (Verdict::Collect, Some(change)) => self.collect(change, &object),
                (Verdict::Skip(reason), _) => self.skip(reason, &object),
                _ => {}
            }
            // The end of the initial events puts a state in place before the next event.
            if !self.act() {
                break;
            }
        }
        if self.reflector.is_synced() {
            self.fifo.push_version(self.reflector.version());
        }
    }

    /// Performs an action of the reflector; false when the open exchange is abandoned.
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
                    self.exchange = Exchange::AskingList(Box::pin(async move { list_watch.list(options).await }));
                    open = false;
                }
                Action::Watch(options) => {
                    tracing::debug!(?options, "watching");
                    let list_watch = self.list_watch.clone();
                    self.exchange = Exchange::AskingWatch(Box::pin(async move { list_watch.watch(options).await }));
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

    fn note(&mut self, pushed: Pushed, object: &RawObject) {
        if let Pushed::Quarantined(entry) = pushed {
            self.push(Notice::Quarantined { key: key_of(object), entry });
        }
    }

    /// Applies the queue to the store.
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

    fn tell(&mut self) {
        let problem = self.reflector.last_problem();
        if problem != self.told_problem.as_ref() {
            self.told_problem = problem.cloned();
            if let Some(problem) = self.told_problem.clone() {
                self.push(Notice::Problem(problem));
            }
        }
        let state = self.reflector.state();
        if std::mem::discriminant(&state) != std::mem::discriminant(&self.told) || is_another_try(&state, &self.told) {
            self.told = state.clone();
            self.push(Notice::State(state.clone()));
        }
        self.health.set(state);
    }

    /// A notice waits with the published state it belongs to.
    fn push(&mut self, notice: Notice<D::Stored>) {
        self.notices.push_back((notice, self.indexer.published()));
    }
}

/// A wait with another cause or length is reported; a list that grows is not.
fn is_another_try(state: &ReflectorState, told: &ReflectorState) -> bool {
    matches!(state, ReflectorState::BackingOff { .. }) && state != told
}

fn key_of(object: &RawObject) -> ObjectKey {
    let metadata = object.metadata();
    ObjectKey::new(&metadata.namespace, &metadata.name)
}

impl Exchange {
    async fn next(&mut self) -> Input {
        poll_fn(|context| match self {
            Exchange::Idle => Poll::Pending,
            Exchange::AskingList(asking) => asking.as_mut().poll(context).map(Input::ListOpened),
            Exchange::List(stream) => stream.as_mut().poll_next(context).map(Input::ListItem),
            Exchange::AskingWatch(asking) => asking.as_mut().poll(context).map(Input::WatchOpened),
            Exchange::Watch(stream) => stream.as_mut().poll_next(context).map(Input::Events),
        })
        .await
    }
}
