//! Controllers: a [`Controller`] connects event sources, a [`WorkQueue`] and workers.
//!
//! ```text
//!   own objects   ─ their key ───────────────┐
//!   owned objects ─ key of the owner ────────┼─▶ WorkQueue ─▶ N workers ─▶ reconcile(key, caches)
//!   other objects ─ keys of your function ───┘       ▲                        │
//!                                                    └─ error: backoff ◀──────┤
//!                                                    └─ requeue after ◀───────┘
//! ```
//!
//! A source is a separate [`Reflection`](crate::Reflection), an [`InformerSource`] of a shared
//! [`SharedInformer`](crate::SharedInformer), or any other implementation of [`EventSource`].
//!
//! Guarantees:
//! - No key is reconciled before every source has loaded its initial state.
//! - A key is never reconciled by two workers at once, and always once after the last change that
//!   maps to it.
//! - An update is mapped by the old and by the new object. An owner that lost a dependent is therefore also reconciled.
//! - The initial state and a relist have a lower priority than live changes.
//! - An error, a panic and a timeout are failures: they are counted and logged, and the key is
//!   retried with backoff. The controller continues.
//! - After [`Request::record_write`] or [`Request::record_write_of`] the key waits until the cache shows the write, for
//!   at most [`ControllerConfig::write_wait`]. After that time the key is reconciled, and [`Request::is_behind`] is true
//!   in each of its reconciles until the cache shows the write, or until [`OVERDUE_MAX`] after it.
//!   A waiting key delays no other key.
//! - A stopped controller drops waiting keys, and reconciles ready keys for at most [`ControllerConfig::drain_wait`]. Then
//!   it drops running reconciles at their next await.

mod informer;
mod metrics;
mod run;
mod source;
#[cfg(test)]
mod tests;
mod writes;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use self::informer::InformerSource;
pub use self::metrics::ControllerMetrics;
pub use self::run::ControllerHandle;
pub use self::source::{EventSource, OwnerType, SourceEvent};
pub use self::writes::OVERDUE_MAX;

use self::run::Shared;
use self::source::Mapping;
use crate::Store;
use crate::object::{Object, ObjectKey};
use listwatch_work_queue::{QueueConfig, WorkQueue};

/// The options of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The name in logs and metrics.
    pub name: String,
    /// The number of concurrent reconciles; zero is raised to one.
    pub workers: usize,
    /// Time limit of one reconcile, after which it is dropped at its next await and counted as a
    /// failure; `None` for no limit. Default: 5 min.
    pub timeout: Option<Duration>,
    /// Time for which a key waits until the caches show the writes of its last reconcile. It holds no worker meanwhile,
    /// so other keys are reconciled. Then the key is reconciled anyway, and [`Request::is_behind`] is true. The key does
    /// not wait for the same writes a second time. Default: 10 s.
    pub write_wait: Duration,
    /// Time for which a stopped controller still processes ready keys. Default: 25 s, just below a
    /// pod's grace period of 30 s.
    pub drain_wait: Duration,
    /// The queue's options. Default: client-go's limits, and namespaces are served round-robin.
    pub queue: QueueConfig<ObjectKey>,
}

impl ControllerConfig {
    /// The defaults, with one worker.
    pub fn new(name: &str) -> Self {
        ControllerConfig {
            name: name.to_owned(),
            workers: 1,
            timeout: Some(Duration::from_secs(300)),
            write_wait: Duration::from_secs(10),
            drain_wait: Duration::from_secs(25),
            queue: QueueConfig::default().fair_by(|key: &ObjectKey| key.namespace().to_owned()),
        }
    }
}

/// Identifies a source of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId(usize);

impl SourceId {
    /// The controller's own objects.
    pub const OWN: SourceId = SourceId(0);
}

/// The result of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key is reconciled again at its next change.
    Done,
    /// The key is reconciled again after this time, or earlier at a change.
    RequeueAfter(Duration),
}

/// The key to reconcile, with its context. The object may be deleted: reconcile then removes its
/// dependents.
#[derive(Clone, Debug)]
pub struct Request {
    key: ObjectKey,
    failures: u32,
    behind: bool,
    shared: Arc<Shared>,
}

impl Request {
    /// The object to reconcile.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The object in the cache; `None` if it is deleted.
    pub fn object(&self) -> Option<Object> {
        self.cache(SourceId::OWN).snapshot().get(self.key.as_str()).cloned()
    }

    /// The cache of a source.
    ///
    /// # Panics
    /// If the id belongs to another controller that has more sources.
    pub fn cache(&self, source: SourceId) -> &Store {
        &self.shared.stores[source.0]
    }

    /// The number of consecutive failures of this key before this attempt.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// True if a cache did not show this key's last writes after [`ControllerConfig::write_wait`].
    /// Every reconcile of the key is behind until the cache shows them, or until they are as old as
    /// [`OVERDUE_MAX`]. A reconcile should then make no decision that depends on the newest state,
    /// and return an error to be retried.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Records a write of an object of this source's kind, with the resource version of the server's response. The key
    /// is not reconciled again before the cache shows that version. If several versions are recorded, the newest is
    /// used. Versions that are not numbers are ignored.
    ///
    /// The cache of an informer over several namespaces or shards reaches a version when all of them have, and a quiet
    /// one advances only with the server's bookmarks. Use [`Request::record_write_of`] with such a source.
    pub fn record_write(&self, source: SourceId, version: &str) {
        self.shared.record_write(&self.key, source, None, version);
    }

    /// Records a create or an update of this object, as [`Request::record_write`] does. The key waits only until the
    /// cache has the object in that version or a newer one, or has reached the version. Record a deletion with
    /// [`Request::record_write`], because the cache has no object then.
    ///
    /// # Example
    /// ```
    /// use listwatch_client::controller::{Outcome, Request, SourceId};
    /// use listwatch_client::ObjectKey;
    ///
    /// async fn reconcile(secrets: SourceId, request: Request) -> Result<Outcome, String> {
    ///     let secret = ObjectKey::new(request.key().namespace(), "copy");
    ///     if request.is_behind() {
    ///         return Err("the cache does not show the last write".to_owned());
    ///     }
    ///     if request.cache(secrets).get(secret.as_str()).is_none() {
    ///         let version = create(&secret).await?;
    ///         request.record_write_of(secrets, &secret, &version);
    ///     }
    ///     Ok(Outcome::Done)
    /// }
    /// # async fn create(_: &ObjectKey) -> Result<String, String> {
    /// #     Ok("7".to_owned())
    /// # }
    /// ```
    pub fn record_write_of(&self, source: SourceId, object: &ObjectKey, version: &str) {
        self.shared.record_write(&self.key, source, Some(object), version);
    }
}

/// The reconcile function of a controller. Implemented by every `Fn(Request) -> impl Future<Output
/// = Result<Outcome, E>>`.
pub trait Reconcile: Send + Sync + 'static {
    /// The error of a reconcile.
    type Error: fmt::Display + Send + 'static;

    /// Brings the actual state to the object's desired state. Called again for the same key after
    /// every change, so it must work from any intermediate state.
    ///
    /// # Errors
    /// Any error is retried with backoff.
    fn reconcile(&self, request: Request) -> impl Future<Output = Result<Outcome, Self::Error>> + Send;
}

impl<F, R, E> Reconcile for F
where
    F: Fn(Request) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Outcome, E>> + Send,
    E: fmt::Display + Send + 'static,
{
    type Error = E;

    fn reconcile(&self, request: Request) -> impl Future<Output = Result<Outcome, E>> + Send {
        self(request)
    }
}

/// The reason why a controller ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// A source ended. Reconciles would use an outdated cache from then on.
    #[error("source {} of the controller ended", which.0)]
    SourceEnded {
        /// The source.
        which: SourceId,
    },
    /// A source, or the mapping of its objects to keys, panicked.
    #[error("source {} of the controller panicked: {message}", which.0)]
    SourcePanicked {
        /// The source.
        which: SourceId,
        /// The panic's message.
        message: String,
    },
}

/// A controller that is not started yet: its sources and options; see the [module](self).
pub struct Controller {
    config: ControllerConfig,
    queue: WorkQueue<ObjectKey>,
    sources: Vec<(Box<dyn EventSource>, Mapping)>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Controller({:?}, {} sources)", self.config.name, self.sources.len())
    }
}

impl Controller {
    /// Creates a controller for the objects of this source.
    pub fn new(config: ControllerConfig, own: impl EventSource) -> Self {
        let queue = WorkQueue::new(config.queue.clone());
        Controller { config, queue, sources: vec![(Box::new(own), Mapping::Own)] }
    }

    /// Adds a source of dependents. A changed dependent reconciles its owner: the owner reference
    /// with `controller: true` of this group and kind, in any version.
    pub fn owns(&mut self, source: impl EventSource, owner: OwnerType) -> SourceId {
        self.add(Box::new(source), Mapping::Owner(owner))
    }

    /// Adds a source whose objects are mapped to keys by a function. An update maps both the old
    /// and the new object.
    pub fn watches(
        &mut self,
        source: impl EventSource,
        map: impl Fn(&Object) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) -> SourceId {
        self.add(Box::new(source), Mapping::Custom(Box::new(map)))
    }

    fn add(&mut self, source: Box<dyn EventSource>, mapping: Mapping) -> SourceId {
        self.sources.push((source, mapping));
        SourceId(self.sources.len() - 1)
    }

    /// The queue, for keys from other origins, for example a timer or a webhook.
    pub fn queue(&self) -> &WorkQueue<ObjectKey> {
        &self.queue
    }

    /// Starts the controller on the current tokio runtime. The controller runs until the handle stops it or is
    /// dropped.
    pub fn start(self, reconcile: impl Reconcile) -> ControllerHandle {
        run::start(self, reconcile)
    }
}
