//! The handle of a shared informer: [`SharedInformer`].

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::event::{Event, StopReason};
use super::handler::{EventStream, Handler, HandlerOptions, run_handler};
use super::run::{Command, CommandSender, PartKind, Shared, Source, Worker};
use super::slot::{Slot, Timer};
use super::status::{DrainTimeout, HandlerStatus, InformerStatus, NotSynced, Phase, StartError};
use crate::deadline::deadline;
use crate::decode::{Decode, DecodeError, KeepJson};
use crate::driver::Reflection;
use crate::indexer::{Index, IndexValue, Indexer, Store};
use crate::list_watch::ListWatch;
use crate::object::{Object, ObjectKey, RawObject, TypeName};
use crate::reflector::ReflectorConfig;
use crate::stored::Stored;

/// The options of an informer.
#[derive(Clone, Debug, Default)]
pub struct InformerConfig {
    /// The name in logs, metrics and errors.
    pub name: String,
    /// The options of the reflectors.
    pub reflector: ReflectorConfig,
}

impl InformerConfig {
    /// Options with this name and the default reflector.
    pub fn named(name: &str) -> Self {
        InformerConfig { name: name.to_owned(), ..InformerConfig::default() }
    }
}

/// A cache of one resource, whose changes any number of handlers receive. Cheap to clone.
///
/// The informer stops when its last handle is dropped: a clone, a [`Handler`], or an
/// [`EventStream`]. Callbacks without a handle then end after they have processed their queue. See
/// the [module](super).
pub struct SharedInformer<S: Stored = Object> {
    inner: Arc<Inner<S>>,
}

struct Inner<S: Stored> {
    shared: Arc<Shared<S>>,
    store: Store<S>,
    /// The channels to the running worker; dropping them ends it.
    commands: Mutex<Option<CommandSender<S>>>,
    next_handler: Mutex<u64>,
}

impl<S: Stored> Inner<S> {
    fn commands(&self) -> MutexGuard<'_, Option<CommandSender<S>>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Stored> Drop for Inner<S> {
    fn drop(&mut self) {
        self.shared.release();
    }
}

impl SharedInformer<Object> {
    /// Creates an informer that stores objects as JSON. The informer is not started.
    pub fn new(list_watch: impl ListWatch, config: InformerConfig) -> Self {
        SharedInformer::with_decoder(list_watch, config, KeepJson)
    }
}

impl<S: Stored> SharedInformer<S> {
    /// Creates an informer that stores the values of a decoder: Rust types, some fields, or JSON. The informer is not
    /// started.
    pub fn with_decoder<D: Decode<Stored = S>>(list_watch: impl ListWatch, config: InformerConfig, decoder: D) -> Self {
        let reflection = Reflection::with_decoder(list_watch, config.reflector, decoder);
        SharedInformer::over(reflection, &config.name)
    }

    /// An informer over an existing reflection, which may already have indexes. The informer is not started.
    pub fn over<L: ListWatch, D: Decode<Stored = S>>(reflection: Reflection<L, D>, name: &str) -> Self {
        let shared = Shared::new(name.to_owned());
        let store = reflection.store();
        let worker = Worker::single(Box::new(reflection), &shared);
        SharedInformer::parked(worker, shared, store)
    }

    /// Creates an informer over several namespaces, each with the list and watch that `list_watch`
    /// returns for its name. Namespaces can be added and removed ([`SharedInformer::add_part`],
    /// [`SharedInformer::remove_part`]). The informer is not started.
    ///
    /// Handlers receive each namespace as it is loaded. An unreadable namespace delays only
    /// [`Event::Synced`].
    pub fn over_namespaces<L: ListWatch, D: Decode<Stored = S>>(
        namespaces: impl IntoIterator<Item = String>,
        list_watch: impl Fn(&str) -> L + Send + Sync + 'static,
        config: InformerConfig,
        decoder: D,
    ) -> Self {
        SharedInformer::over_parts(PartKind::Namespaces, namespaces, list_watch, config, decoder)
    }

    /// Creates an informer over several shards of one collection. Each has the list and watch that `list_watch` returns
    /// for its name, for example a [`ShardListWatch`](crate::ShardListWatch) of that selector. The informer is not
    /// started.
    pub fn over_shards<L: ListWatch, D: Decode<Stored = S>>(
        shards: impl IntoIterator<Item = String>,
        list_watch: impl Fn(&str) -> L + Send + Sync + 'static,
        config: InformerConfig,
        decoder: D,
    ) -> Self {
        SharedInformer::over_parts(PartKind::Shards, shards, list_watch, config, decoder)
    }

    fn over_parts<L: ListWatch, D: Decode<Stored = S>>(
        kind: PartKind,
        names: impl IntoIterator<Item = String>,
        list_watch: impl Fn(&str) -> L + Send + Sync + 'static,
        config: InformerConfig,
        decoder: D,
    ) -> Self {
        let shared = Shared::new(config.name);
        let indexer = Indexer::new();
        let store = indexer.reader();
        let decoder = SharedDecoder(Arc::new(decoder));
        let make = move |name: &str| -> Box<dyn Source<S>> {
            Box::new(Reflection::with_decoder(list_watch(name), config.reflector.clone(), decoder.clone()))
        };
        let worker = Worker::merged(kind, names, Box::new(make), indexer, &shared);
        SharedInformer::parked(worker, shared, store)
    }

    fn parked(worker: Worker<S>, shared: Shared<S>, store: Store<S>) -> Self {
        *shared.parked() = Some(worker);
        let inner = Inner { shared: Arc::new(shared), store, commands: Mutex::new(None), next_handler: Mutex::new(0) };
        SharedInformer { inner: Arc::new(inner) }
    }

    /// The name of the informer.
    pub fn name(&self) -> &str {
        &self.inner.shared.name
    }

    // ===== running =====

    /// Starts the informer. After a stop it resumes from its version, and handlers receive the
    /// changes since then. Has no effect on a running informer.
    ///
    /// # Errors
    /// [`StartError`] if the informer is stopping or has ended permanently.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(&self) -> Result<(), StartError> {
        let mut commands = self.inner.commands();
        let mut parked = self.inner.shared.parked();
        let Some(worker) = parked.take() else {
            return match &self.inner.shared.condition.borrow().phase {
                Phase::New | Phase::Running => Ok(()),
                Phase::Stopping => Err(StartError::Stopping),
                Phase::Stopped(why) => Err(StartError::Over(why.clone())),
            };
        };
        *commands = Some(worker.spawn(self.inner.shared.clone()));
        Ok(())
    }

    /// Stops the informer and waits, for at most `timeout`, until its handlers have processed all
    /// events. The last one is [`Event::Stopped`]. Handlers stay registered for the next start, and
    /// the store stays readable.
    ///
    /// # Errors
    /// [`DrainTimeout`] names the handlers that did not finish in time.
    pub async fn stop(&self, timeout: Duration) -> Result<(), DrainTimeout> {
        let until = deadline(Instant::now(), timeout);
        let commands = self.inner.commands().clone();
        if let Some(commands) = commands {
            // An error means that the worker has ended or was already stopped.
            let _ = commands.stop.try_send(());
        }
        let mut condition = self.inner.shared.condition.subscribe();
        let stands_still = |phase: &Phase| matches!(phase, Phase::New | Phase::Stopped(_));
        // A stopped worker waits for no handler; an error means that it has ended.
        let _ = condition.wait_for(|condition| stands_still(&condition.phase)).await;
        let mut busy = Vec::new();
        for slot in self.inner.shared.hub.slots() {
            if tokio::time::timeout_at(until, slot.idle()).await.is_err() {
                busy.push(slot.name.to_string());
            }
        }
        if busy.is_empty() { Ok(()) } else { Err(DrainTimeout { handlers: busy }) }
    }

    /// Stops the informer permanently: as [`SharedInformer::stop`], and then its handlers and
    /// streams end.
    ///
    /// # Errors
    /// [`DrainTimeout`] names the handlers that did not finish in time. These handlers end when they finish.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), DrainTimeout> {
        let stopped = self.stop(timeout).await;
        let was_new = matches!(self.inner.shared.condition.borrow().phase, Phase::New);
        if self.inner.shared.parked().take().is_some() && was_new {
            self.inner.shared.finish(StopReason::Requested, true);
        }
        self.inner.shared.hub.close();
        stopped
    }

    /// Waits until the initial state is in the store, for at most `timeout`. Handlers may still
    /// process it: see [`Handler::wait_until_synced`]. An informer that is not started is also
    /// awaited, because another holder may start it. Dropping the future ends the wait.
    ///
    /// # Errors
    /// [`NotSynced`], with the reason.
    pub async fn wait_until_synced(&self, timeout: Duration) -> Result<(), NotSynced> {
        let mut condition = self.inner.shared.condition.subscribe();
        let wait = condition.wait_for(|condition| condition.synced || matches!(condition.phase, Phase::Stopped(_)));
        let ended = tokio::time::timeout(timeout, wait).await.map(|ended| ended.map(|condition| condition.clone()));
        match ended {
            Ok(Ok(condition)) => match condition.phase {
                _ if condition.synced => Ok(()),
                Phase::Stopped(why) => Err(NotSynced::Stopped(why)),
                Phase::New | Phase::Running | Phase::Stopping => Ok(()),
            },
            Ok(Err(_)) => Err(NotSynced::Stopped(StopReason::Unused)),
            Err(_) => {
                let now = Instant::now().into_std();
                let parts = self.inner.shared.part_statuses().into_iter().filter(|part| !part.synced);
                let described = parts.map(|part| {
                    let state = part.state.describe(now);
                    match part.problem {
                        Some(problem) if !state.contains(&problem.to_string()) => {
                            (part.name, format!("{state} (before: {problem})"))
                        }
                        _ => (part.name, state),
                    }
                });
                Err(NotSynced::TimedOut { waited: timeout, parts: described.collect() })
            }
        }
    }

    /// True once the initial state is in the store.
    pub fn has_synced(&self) -> bool {
        self.inner.shared.condition.borrow().synced
    }

    /// Waits until the informer does not run, and returns the reason.
    pub async fn stopped(&self) -> StopReason {
        let mut condition = self.inner.shared.condition.subscribe();
        let stopped = condition.wait_for(|condition| matches!(condition.phase, Phase::Stopped(_))).await;
        match stopped.map(|condition| condition.phase.clone()) {
            Ok(Phase::Stopped(why)) => why,
            _ => StopReason::Unused,
        }
    }

    // ===== reading =====

    /// The cache, which stays readable after the informer stops.
    pub fn store(&self) -> Store<S> {
        self.inner.store.clone()
    }

    /// Adds an index to the cache, at any time: see [`Indexer::add_index`]. `None` if the informer has ended
    /// permanently.
    pub async fn add_index<V, I>(&self, function: impl Fn(&S) -> I + Send + Sync + 'static) -> Option<Index<S, V>>
    where
        V: IndexValue,
        I: IntoIterator<Item = V>,
    {
        let function = Arc::new(function);
        self.command(|done| {
            let function = function.clone();
            Command::WithIndexer(Box::new(move |indexer: &mut Indexer<S>| {
                // The caller may be gone; the index stays.
                let _ = done.send(indexer.add_index(move |object: &S| function(object)));
            }))
        })
        .await
    }

    /// The status of the informer.
    pub fn status(&self) -> InformerStatus {
        let condition = self.inner.shared.condition.borrow().clone();
        let snapshot = self.inner.store.snapshot();
        let handlers = self.inner.shared.hub.slots();
        InformerStatus {
            name: self.inner.shared.name.clone(),
            phase: condition.phase,
            synced: condition.synced,
            objects: snapshot.len(),
            version: snapshot.version().to_owned(),
            parts: self.inner.shared.part_statuses(),
            handlers: handlers
                .iter()
                .map(|slot| HandlerStatus {
                    name: slot.name.to_string(),
                    synced: slot.has_synced(),
                    lag: slot.lag(),
                    counts: slot.counts(),
                })
                .collect(),
        }
    }

    // ===== handlers =====

    /// Registers a callback, at any time. The callback runs in its own task, receives one event at a time,
    /// and receives the current state first.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn on<F, Fut>(&self, options: HandlerOptions, callback: F) -> Handler<S>
    where
        F: FnMut(Event<S>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let slot = self.slot(&options);
        tokio::spawn(run_handler(slot.clone(), callback));
        Handler { slot, _hold: self.hold() }
    }

    /// Registers a stream, at any time. The stream receives the current state first.
    pub fn stream(&self, options: HandlerOptions) -> EventStream<S> {
        EventStream { slot: self.slot(&options), timer: Timer::default(), _hold: self.hold() }
    }

    fn slot(&self, options: &HandlerOptions) -> Arc<Slot<S>> {
        let mut next = self.inner.next_handler.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 1;
        let number = next.to_string();
        let name = if options.name.is_empty() { &number } else { &options.name };
        let slot = Arc::new(Slot::new(name, options.policy, options.resync));
        self.inner.shared.hub.add(slot.clone());
        slot
    }

    fn hold(&self) -> Arc<dyn Any + Send + Sync> {
        self.inner.clone()
    }

    // ===== parts =====

    /// Adds a namespace or shard. All handlers receive its objects as added. Returns false if the part exists, if this
    /// informer has no parts, or if the informer has ended permanently.
    pub async fn add_part(&self, name: &str) -> bool {
        self.command(|done| Command::AddPart { name: name.to_owned(), done }).await.unwrap_or(false)
    }

    /// Removes a namespace or shard. All handlers receive its objects as deleted, with
    /// [`Reason::Unwatched`](super::Reason::Unwatched). Returns false if there is no such part.
    pub async fn remove_part(&self, name: &str) -> bool {
        self.command(|done| Command::RemovePart { name: name.to_owned(), done }).await.unwrap_or(false)
    }

    /// Executes a command if the informer does not run, or returns it.
    fn execute_if_parked(&self, command: Command<S>) -> Option<Command<S>> {
        match &mut *self.inner.shared.parked() {
            Some(worker) => {
                worker.execute_parked(command, &self.inner.shared);
                None
            }
            None => Some(command),
        }
    }

    /// Executes a command, now if the informer does not run. `None` if the informer has ended permanently.
    async fn command<R>(&self, command: impl Fn(oneshot::Sender<R>) -> Command<S>) -> Option<R> {
        let mut condition = self.inner.shared.condition.subscribe();
        loop {
            let (done, answer) = oneshot::channel();
            let command = command(done);
            if let Some(command) = self.execute_if_parked(command) {
                let commands = self.inner.commands().clone()?;
                // An error drops the command, so that there is no answer.
                let _ = commands.queue.send(command).await;
            }
            if let Ok(answer) = answer.await {
                return Some(answer);
            }
            // The informer stops, and takes commands again when it has stopped. An error means that it has ended.
            condition.wait_for(|condition| !matches!(condition.phase, Phase::Stopping)).await.ok()?;
            if self.is_over() {
                return None;
            }
        }
    }

    /// True if the informer has ended permanently.
    pub(super) fn is_over(&self) -> bool {
        let parked = self.inner.shared.parked();
        parked.is_none() && matches!(self.inner.shared.condition.borrow().phase, Phase::Stopped(_))
    }

    pub(super) fn downgrade(&self) -> WeakInformer<S> {
        WeakInformer(Arc::downgrade(&self.inner))
    }
}

impl<S: Stored> Clone for SharedInformer<S> {
    fn clone(&self) -> Self {
        SharedInformer { inner: self.inner.clone() }
    }
}

impl<S: Stored> fmt::Debug for SharedInformer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedInformer({}, {:?})", self.name(), self.inner.store)
    }
}

/// A weak reference to an informer, as a factory holds it.
pub(super) struct WeakInformer<S: Stored>(std::sync::Weak<Inner<S>>);

impl<S: Stored> WeakInformer<S> {
    pub(super) fn upgrade(&self) -> Option<SharedInformer<S>> {
        self.0.upgrade().map(|inner| SharedInformer { inner })
    }
}

/// A decoder that all parts share.
struct SharedDecoder<D>(Arc<D>);

impl<D> Clone for SharedDecoder<D> {
    fn clone(&self) -> Self {
        SharedDecoder(self.0.clone())
    }
}

impl<D: Decode> Decode for SharedDecoder<D> {
    type Stored = D::Stored;

    fn decode(&self, raw: &RawObject, key: ObjectKey, type_name: Option<&TypeName>) -> Result<D::Stored, DecodeError> {
        self.0.decode(raw, key, type_name)
    }
}
