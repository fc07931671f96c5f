//! The shell around the [`Reflector`]: [`Reflection`] runs it over a [`ListWatch`] and keeps the
//! [`Store`].
//!
//! It is pulled: nothing is read from the network unless somebody waits in [`Reflection::next`],
//! so a slow consumer slows the server's stream and no queue grows in between. Nothing is spawned;
//! dropping it ends everything.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use listwatch_meta::{Change as EventChange, Status};
use listwatch_wire::EventKind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::list_watch::{ListItem, ListStream, ListWatch, WatchStream, WatchedEvent};
use crate::object::{ObjectKey, RawObject};
use crate::problem::Problem;
use crate::reflector::{Action, Moment, Reflector, ReflectorConfig, ReflectorState, SkipReason, Verdict};
use crate::store::{Change, Store, StoreWriter};

/// What [`Reflection::next`] tells.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The store changed, in this order; readers see it already. Never empty. As many changes as
    /// came together; after a list, everything that differs.
    Changes(Vec<Change>),
    /// A whole state was put in place. The first one makes the copy synced; its changes came
    /// before.
    Synced,
    /// The reflector went over into another state.
    State(ReflectorState),
    /// Something went wrong; what follows is told by the states.
    Problem(Problem),
    /// An object was passed over.
    Skipped {
        /// Why.
        reason: SkipReason,
        /// Which one, as far as it can be told.
        key: ObjectKey,
    },
}

/// A running reflector. See the [module](self).
pub struct Reflection<L> {
    list_watch: Arc<L>,
    reflector: Reflector,
    writer: StoreWriter,
    exchange: Exchange,
    notices: VecDeque<Notice>,
    random: StdRng,
    /// The state that was told last.
    told: ReflectorState,
    told_problem: Option<Problem>,
}

type Asking<T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send>>;

/// What is open towards the server.
enum Exchange {
    Idle,
    AskingList(Asking<ListStream>),
    List(ListStream),
    AskingWatch(Asking<WatchStream>),
    Watch(WatchStream),
}

/// What comes back.
enum Input {
    ListOpened(Result<ListStream, Problem>),
    ListItem(Option<Result<ListItem, Problem>>),
    WatchOpened(Result<WatchStream, Problem>),
    Events(Option<Result<Vec<WatchedEvent>, Problem>>),
}

impl<L: ListWatch> Reflection<L> {
    /// A reflector over this resource, with the operating system's randomness for its jitter.
    pub fn new(list_watch: L, config: ReflectorConfig) -> Self {
        Reflection::with_random(list_watch, config, StdRng::from_os_rng())
    }

    /// As [`Reflection::new`], reproducible: the jitter follows from the seed.
    pub fn with_seed(list_watch: L, config: ReflectorConfig, seed: u64) -> Self {
        Reflection::with_random(list_watch, config, StdRng::seed_from_u64(seed))
    }

    fn with_random(list_watch: L, config: ReflectorConfig, random: StdRng) -> Self {
        Reflection {
            list_watch: Arc::new(list_watch),
            reflector: Reflector::new(config),
            writer: StoreWriter::new(),
            exchange: Exchange::Idle,
            notices: VecDeque::new(),
            random,
            told: ReflectorState::Starting,
            told_problem: None,
        }
    }

    /// A reader of the local copy; usable from anywhere, at any time.
    pub fn store(&self) -> Store {
        self.writer.reader()
    }

    /// The reflector's state machine, for its questions.
    pub fn reflector(&self) -> &Reflector {
        &self.reflector
    }

    /// What happened next. Runs for ever: a server that is away is waited for. Cancel-safe:
    /// dropping the future loses nothing.
    pub async fn next(&mut self) -> Notice {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return notice;
            }
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
                }
            };
            let mut changes = Vec::new();
            if let Some(input) = input {
                self.handle(input, &mut changes);
            }
            self.act(&mut changes);
            self.tell(changes);
        }
    }

    fn moment(&mut self) -> Moment {
        Moment { now: Instant::now().into_std(), random: self.random.random() }
    }

    fn handle(&mut self, input: Input, changes: &mut Vec<Change>) {
        let at = self.moment();
        match input {
            Input::ListOpened(Ok(stream)) => self.exchange = Exchange::List(stream),
            Input::WatchOpened(Ok(stream)) => {
                self.exchange = Exchange::Watch(stream);
                self.reflector.handle_watch_open(at);
            }
            Input::ListItem(Some(Ok(item))) => self.handle_list_item(at, item),
            Input::Events(Some(Ok(events))) => self.handle_events(at, events, changes),
            Input::Events(None) => {
                self.exchange = Exchange::Idle;
                self.reflector.handle_stream_end(at);
            }
            Input::ListItem(None) => {
                self.exchange = Exchange::Idle;
                let why = "the list broke off".to_owned();
                self.reflector.handle_problem(at, Problem::Disconnected { why });
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

    fn handle_list_item(&mut self, at: Moment, item: ListItem) {
        match item {
            ListItem::Type(type_name) => self.reflector.handle_list_type(&type_name),
            ListItem::Objects(objects) => {
                if let Some(type_name) = self.reflector.item_type() {
                    self.writer.set_type_name(type_name);
                }
                for object in objects {
                    match self.reflector.handle_item(at, &object.metadata()) {
                        Verdict::Skip(reason) => self.skip(reason, &object),
                        _ => self.writer.collect(EventChange::Added, &object),
                    }
                }
            }
            ListItem::End(meta) => {
                self.exchange = Exchange::Idle;
                self.reflector.handle_list_end(at, &meta);
            }
        }
    }

    fn handle_events(&mut self, at: Moment, events: Vec<WatchedEvent>, changes: &mut Vec<Change>) {
        for WatchedEvent { kind, object } in events {
            let change = match kind {
                EventKind::Error => {
                    let problem = match serde_json::from_slice::<Status>(object.json()) {
                        Ok(status) => Problem::refused(status),
                        Err(error) => Problem::Malformed { why: format!("an ERROR event without a Status: {error}") },
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
                    let applied = self.writer.apply(change, &object, changes);
                    tracing::trace!(?kind, ?applied, object = %key_of(&object), "an event");
                }
                (Verdict::Collect, Some(change)) => self.writer.collect(change, &object),
                (Verdict::Skip(reason), _) => self.skip(reason, &object),
                _ => {}
            }
            // The end of the initial events puts a state in place before the next event.
            if !self.act(changes) {
                break;
            }
        }
        let version = self.reflector.version();
        if self.reflector.is_synced() {
            self.writer.set_version(version);
        }
    }

    /// Does what the reflector wants; false when the exchange that was open is given up.
    fn act(&mut self, changes: &mut Vec<Change>) -> bool {
        let mut open = true;
        while let Some(action) = self.reflector.poll_action() {
            match action {
                Action::Begin => self.writer.begin_replace(),
                Action::Commit { version } => {
                    self.writer.commit_replace(&version, changes);
                    self.tell_changes(std::mem::take(changes));
                    self.notices.push_back(Notice::Synced);
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

    fn skip(&mut self, reason: SkipReason, object: &RawObject) {
        self.notices.push_back(Notice::Skipped { reason, key: key_of(object) });
    }

    fn tell_changes(&mut self, changes: Vec<Change>) {
        self.writer.publish();
        if !changes.is_empty() {
            self.notices.push_back(Notice::Changes(changes));
        }
    }

    fn tell(&mut self, changes: Vec<Change>) {
        self.tell_changes(changes);
        let problem = self.reflector.last_problem();
        if problem != self.told_problem.as_ref() {
            self.told_problem = problem.cloned();
            self.notices.extend(self.told_problem.clone().map(Notice::Problem));
        }
        let state = self.reflector.state();
        if std::mem::discriminant(&state) != std::mem::discriminant(&self.told) || is_another_try(&state, &self.told) {
            self.told = state.clone();
            self.notices.push_back(Notice::State(state));
        }
    }
}

/// A wait for another reason or of another length is news; a list that grows is not.
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
