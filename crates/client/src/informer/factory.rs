//! Shares one informer per watched resource: [`SharedInformerFactory`].

use std::any::{Any, TypeId};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use listwatch_meta::{ListOptions, ShardField, ShardSelector};
use serde::de::DeserializeOwned;

use super::shared_informer::{InformerConfig, SharedInformer, WeakInformer};
use super::status::{DrainTimeout, InformerStatus, METRIC_TYPES, NotSynced, StartError};
#[cfg(feature = "http")]
use crate::client::Client;
use crate::deadline::deadline;
use crate::decode::{Decode, Json, KeepJson, Project};
use crate::list_watch::{ListStream, ListWatch, WatchStream};
use crate::object::Object;
use crate::problem::Problem;
use crate::projection::Projection;
use crate::reflector::ReflectorConfig;
use crate::resource::{ApiResource, Scope};
use crate::shard::ShardListWatch;
use crate::stored::{Stored, Typed};

/// The namespaces that an informer covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Namespaces {
    /// All namespaces, in one list and watch. Also for cluster-scoped resources.
    #[default]
    All,
    /// These namespaces. A single one is a plain list and watch. Several have one list and watch
    /// each. [`SharedInformer::add_part`] adds more, for all users of the informer.
    Only(BTreeSet<String>),
}

/// The part of a collection that an informer covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shards {
    /// The whole collection, in one list and watch.
    #[default]
    Whole,
    /// The shard of this replica, for example [`ShardSelector::part`]`(ShardField::Uid, 0, 3)`.
    Selected(ShardSelector),
    /// The whole collection, in this number of lists and watches by uid. With several namespaces,
    /// which have their own lists and watches, the same as `Whole`.
    Split(u32),
}

/// Identifies an informer of a factory: equal keys get the same informer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InformerKey {
    /// The resource.
    pub resource: ApiResource,
    /// The namespaces of the informer.
    pub namespaces: Namespaces,
    /// The label selector; empty for all objects.
    pub labels: String,
    /// The field selector; empty for all objects.
    pub fields: String,
    /// The part of the collection.
    pub shards: Shards,
    /// Whether to request only metadata from the server, which saves traffic and memory. The
    /// objects are of the kind `PartialObjectMetadata`.
    pub metadata_only: bool,
    /// The fields that are kept of each object; for informers that keep JSON.
    pub projection: Option<Projection>,
}

impl InformerKey {
    /// All objects of this resource with all their fields.
    pub fn new(resource: ApiResource) -> Self {
        InformerKey {
            resource,
            namespaces: Namespaces::All,
            labels: String::new(),
            fields: String::new(),
            shards: Shards::Whole,
            metadata_only: false,
            projection: None,
        }
    }

    /// Restricts the informer to these namespaces.
    #[must_use]
    pub fn namespaces<N: Into<String>>(mut self, namespaces: impl IntoIterator<Item = N>) -> Self {
        self.namespaces = Namespaces::Only(namespaces.into_iter().map(Into::into).collect());
        self
    }

    /// Restricts the informer to objects whose labels match.
    #[must_use]
    pub fn labels(mut self, selector: &str) -> Self {
        selector.clone_into(&mut self.labels);
        self
    }

    /// Restricts the informer to objects whose fields match.
    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        selector.clone_into(&mut self.fields);
        self
    }

    /// Restricts the informer to a shard, or splits it into several.
    #[must_use]
    pub fn shards(mut self, shards: Shards) -> Self {
        self.shards = shards;
        self
    }

    /// Requests only metadata from the server.
    #[must_use]
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// Keeps only these fields of each object.
    #[must_use]
    pub fn projection(mut self, projection: Projection) -> Self {
        self.projection = Some(projection);
        self
    }

    /// The key as text, for the names of informers.
    fn name(&self) -> String {
        let mut name = self.resource.qualified_name();
        if let Namespaces::Only(namespaces) = &self.namespaces {
            let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
            name.push_str(&format!(" in {}", namespaces.join(",")));
        }
        for (what, selector) in [("labels", &self.labels), ("fields", &self.fields)] {
            if !selector.is_empty() {
                name.push_str(&format!(" with {what} {selector}"));
            }
        }
        if self.metadata_only {
            name.push_str(" (metadata)");
        }
        match &self.shards {
            Shards::Whole => {}
            Shards::Selected(selector) => name.push_str(&format!(" in {selector}")),
            Shards::Split(of) => name.push_str(&format!(" in {of} shards")),
        }
        name
    }
}

/// Creates the list and watch of a key in one scope.
type MakeListWatch = dyn Fn(&InformerKey, &Scope) -> Arc<dyn ListWatch> + Send + Sync;

/// Shares one informer per [`InformerKey`] and type. An informer stops when its last handle is dropped;
/// the next request for its key gets a new one.
///
/// Cheap to clone; all clones are one factory.
#[derive(Clone)]
pub struct SharedInformerFactory {
    inner: Arc<Inner>,
}

struct Inner {
    make: Box<MakeListWatch>,
    reflector: ReflectorConfig,
    informers: Mutex<Informers>,
}

/// The hashable parts of a key, the stored type, and the decoder's name.
type Identity = (String, TypeId, String);

type Informers = HashMap<Identity, Vec<(InformerKey, Box<dyn AnyWeak>)>>;

impl SharedInformerFactory {
    /// A factory over this client. All its informers use this reflector configuration.
    #[cfg(feature = "http")]
    pub fn new(client: &Client, reflector: ReflectorConfig) -> Self {
        let client = client.clone();
        SharedInformerFactory::with_list_watch(reflector, move |key, scope| {
            let list_watch = client.list_watch(&key.resource, scope).labels(&key.labels).fields(&key.fields);
            Arc::new(if key.metadata_only { list_watch.metadata_only() } else { list_watch })
        })
    }

    /// A factory over a custom [`ListWatch`]. `make` returns the list and watch of a key in one
    /// scope. `make` applies the key's selectors and `metadata_only`; the factory applies shards and
    /// projections.
    pub fn with_list_watch(
        reflector: ReflectorConfig,
        make: impl Fn(&InformerKey, &Scope) -> Arc<dyn ListWatch> + Send + Sync + 'static,
    ) -> Self {
        let inner = Inner { make: Box::new(make), reflector, informers: Mutex::new(HashMap::new()) };
        SharedInformerFactory { inner: Arc::new(inner) }
    }

    /// The informer of this key that keeps objects as JSON, projected if the key has a projection.
    /// The informer is not started, unless another holder has started it.
    pub fn informer(&self, key: &InformerKey) -> SharedInformer<Object> {
        match &key.projection {
            Some(projection) => self.with_decoder(key, "", || Project(projection.clone())),
            None => self.with_decoder(key, "", || KeepJson),
        }
    }

    /// The informer of this key that keeps values of a Rust type, for example of `k8s-openapi`,
    /// decoded by serde.
    pub fn typed<T: DeserializeOwned + Send + Sync + 'static>(&self, key: &InformerKey) -> SharedInformer<Typed<T>> {
        self.with_decoder(key, "", Json::<T>::new)
    }

    /// The informer of this key with a custom decoder. The name `decoder` distinguishes it from
    /// other decoders of the same type.
    pub fn with_decoder<D: Decode>(
        &self,
        key: &InformerKey,
        decoder: &str,
        make: impl FnOnce() -> D,
    ) -> SharedInformer<D::Stored> {
        let name = key.name();
        let identity = (name.clone(), TypeId::of::<D::Stored>(), decoder.to_owned());
        let mut informers = self.informers();
        let known = informers.entry(identity).or_default();
        known.retain(|(_, informer)| informer.is_usable());
        // Different keys may have the same text; a list holds the informers of one text.
        let found = known.iter().find(|(other, _)| other == key);
        let found = found.and_then(|(_, informer)| informer.as_any().downcast_ref::<WeakInformer<D::Stored>>());
        if let Some(informer) = found.and_then(WeakInformer::upgrade) {
            return informer;
        }
        let informer = self.make(key, name, make());
        known.push((key.clone(), Box::new(informer.downgrade())));
        informer
    }

    fn make<D: Decode>(&self, key: &InformerKey, name: String, decoder: D) -> SharedInformer<D::Stored> {
        let mut reflector = self.inner.reflector.clone();
        // `PartialObjectMetadata` is not the resource's kind, so the first object determines the
        // type. The same holds if the kind is not known.
        let type_name = key.resource.type_name();
        reflector.type_name = Some(type_name).filter(|name| !name.kind.is_empty() && !key.metadata_only);
        let config = InformerConfig { name, reflector };
        let inner = self.inner.clone();
        let of = key.clone();
        let open = move |scope: &Scope, shard: Option<&ShardSelector>| -> Arc<dyn ListWatch> {
            let list_watch = (inner.make)(&of, scope);
            match shard {
                Some(selector) => Arc::new(ShardListWatch::new(list_watch, selector.clone())),
                None => list_watch,
            }
        };
        let shard = match &key.shards {
            Shards::Selected(selector) => Some(selector.clone()),
            Shards::Whole | Shards::Split(_) => None,
        };
        let scope = match &key.namespaces {
            Namespaces::All => Scope::Cluster,
            Namespaces::Only(namespaces) => match namespaces.first() {
                Some(namespace) if namespaces.len() == 1 => Scope::Namespace(namespace.clone()),
                _ => {
                    let names = namespaces.iter().cloned();
                    let open = move |name: &str| open(&Scope::Namespace(name.to_owned()), shard.as_ref());
                    return SharedInformer::over_namespaces(names, open, config, decoder);
                }
            },
        };
        match key.shards {
            Shards::Split(of) if of > 1 => {
                let parts = (0..of).filter_map(|index| ShardSelector::part(ShardField::Uid, index, of).ok());
                let names = parts.map(|part| part.to_string()).collect::<Vec<_>>();
                let open = move |name: &str| match ShardSelector::parse(name) {
                    Ok(selector) => open(&scope, Some(&selector)),
                    Err(error) => Arc::new(Misconfigured { why: error.to_string() }),
                };
                SharedInformer::over_shards(names, open, config, decoder)
            }
            _ => SharedInformer::with_decoder(open(&scope, shard.as_ref()), config, decoder),
        }
    }

    /// Starts every informer that has a handle and is not running.
    ///
    /// # Errors
    /// The first [`StartError`]. The other informers are started anyway.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(&self) -> Result<(), StartError> {
        let mut result = Ok(());
        for informer in self.held() {
            result = result.and(informer.start());
        }
        result
    }

    /// Waits until every informer in use has its initial state, for at most `timeout` in total.
    /// Dropping the future ends the wait.
    ///
    /// # Errors
    /// The informers that are not synced, each with the reason.
    pub async fn wait_until_synced(&self, timeout: Duration) -> Result<(), InformersNotSynced> {
        let until = deadline(tokio::time::Instant::now(), timeout);
        let mut missing = Vec::new();
        for informer in self.held() {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if let Err(why) = informer.wait_until_synced(left).await {
                missing.push((informer.status().name, why));
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(InformersNotSynced { missing }) }
    }

    /// Shuts down every informer in use: see [`SharedInformer::shutdown`]. `timeout` is the total
    /// time for all of them.
    ///
    /// # Errors
    /// [`DrainTimeout`] names the handlers that did not finish in time.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), DrainTimeout> {
        let until = deadline(tokio::time::Instant::now(), timeout);
        let mut handlers = Vec::new();
        for informer in self.held() {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if let Err(busy) = informer.shutdown(left).await {
                handlers.extend(busy.handlers);
            }
        }
        if handlers.is_empty() { Ok(()) } else { Err(DrainTimeout { handlers }) }
    }

    /// The status of every informer in use, by name.
    pub fn statuses(&self) -> Vec<InformerStatus> {
        let mut statuses: Vec<InformerStatus> = self.held().iter().map(|informer| informer.status()).collect();
        statuses.sort_by(|a, b| a.name.cmp(&b.name));
        statuses
    }

    /// The metrics of all informers as Prometheus text.
    pub fn metrics(&self) -> String {
        let mut text = METRIC_TYPES.to_owned();
        for status in self.statuses() {
            status.write_metrics(&mut text);
        }
        text
    }

    fn held(&self) -> Vec<Box<dyn AnyInformer>> {
        let mut informers = self.informers();
        informers.retain(|_, known| {
            known.retain(|(_, informer)| informer.is_usable());
            !known.is_empty()
        });
        informers.values().flatten().filter_map(|(_, informer)| informer.hold()).collect()
    }

    fn informers(&self) -> MutexGuard<'_, Informers> {
        self.inner.informers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedInformerFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.statuses().iter().map(|status| &status.name)).finish()
    }
}

/// Informers that did not sync in time.
#[derive(Clone, Debug, PartialEq)]
pub struct InformersNotSynced {
    /// The names of the informers, each with the reason.
    pub missing: Vec<(String, NotSynced)>,
}

impl fmt::Display for InformersNotSynced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, why)) in self.missing.iter().enumerate() {
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}{name}: {why}")?;
        }
        Ok(())
    }
}

impl std::error::Error for InformersNotSynced {}

/// A part whose name is not a valid shard.
struct Misconfigured {
    why: String,
}

#[async_trait]
impl ListWatch for Misconfigured {
    async fn list(&self, _: ListOptions) -> Result<ListStream, Problem> {
        Err(Problem::misconfigured(self.why.clone()))
    }

    async fn watch(&self, _: ListOptions) -> Result<WatchStream, Problem> {
        Err(Problem::misconfigured(self.why.clone()))
    }
}

/// A weak reference to an informer of any type.
trait AnyWeak: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    /// True if the informer has a handle and can still run.
    fn is_usable(&self) -> bool;
    fn hold(&self) -> Option<Box<dyn AnyInformer>>;
}

impl<S: Stored> AnyWeak for WeakInformer<S> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_usable(&self) -> bool {
        self.upgrade().is_some_and(|informer| !informer.is_over())
    }

    fn hold(&self) -> Option<Box<dyn AnyInformer>> {
        Some(Box::new(self.upgrade()?))
    }
}

/// An informer of any type.
#[async_trait]
trait AnyInformer: Send + Sync {
    fn start(&self) -> Result<(), StartError>;
    fn status(&self) -> InformerStatus;
    async fn wait_until_synced(&self, timeout: Duration) -> Result<(), NotSynced>;
    async fn shutdown(&self, timeout: Duration) -> Result<(), DrainTimeout>;
}

#[async_trait]
impl<S: Stored> AnyInformer for SharedInformer<S> {
    fn start(&self) -> Result<(), StartError> {
        SharedInformer::start(self)
    }

    fn status(&self) -> InformerStatus {
        SharedInformer::status(self)
    }

    async fn wait_until_synced(&self, timeout: Duration) -> Result<(), NotSynced> {
        SharedInformer::wait_until_synced(self, timeout).await
    }

    async fn shutdown(&self, timeout: Duration) -> Result<(), DrainTimeout> {
        SharedInformer::shutdown(self, timeout).await
    }
}
