//! Updates the admission policies from the stored objects, and reads the parameters of policies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use listwatch_admission::AdmissionFuture;
use listwatch_cacher::Scope;
use listwatch_meta::{FieldSelector, LabelSelector, ListRequest, Object, ReadAt, Status};
use listwatch_policies::{MutatingPolicy, ParamKind, ParamQuery, ValidatingPolicy};
use listwatch_policy_admission::{AdmissionPolicies, CompiledPolicy, ParamReader};
use listwatch_registry::{Backend, Resource};
use listwatch_write::Writer;

use crate::feed::{self, ObjectCopy};

const GROUP: &str = "admissionregistration.k8s.io";

/// Timeout for the first list of a parameter cache (`CollectParams`).
const PARAMS_READY_MAX: Duration = Duration::from_secs(1);

/// The admission policies of a server.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// The ValidatingAdmissionPolicies and their bindings.
    pub validating: Arc<AdmissionPolicies<ValidatingPolicy>>,
    /// The MutatingAdmissionPolicies and their bindings.
    pub mutating: Arc<AdmissionPolicies<MutatingPolicy>>,
}

/// Updates the policies of one kind, or their bindings.
enum PolicyCopy<'a> {
    Validating(&'a AdmissionPolicies<ValidatingPolicy>, Part),
    Mutating(&'a AdmissionPolicies<MutatingPolicy>, Part),
}

/// The objects that a copy updates: policies or bindings.
#[derive(Clone, Copy)]
enum Part {
    Policies,
    Bindings,
}

fn set<P: CompiledPolicy>(policies: &AdmissionPolicies<P>, part: Part, object: &Object) -> bool {
    match part {
        Part::Policies => policies.set_policy(object.json_slice()),
        Part::Bindings => policies.set_binding(object.json_slice()),
    }
}

fn remove<P: CompiledPolicy>(policies: &AdmissionPolicies<P>, part: Part, name: &str) {
    match part {
        Part::Policies => policies.remove_policy(name),
        Part::Bindings => policies.remove_binding(name),
    }
}

fn replace<'a, P: CompiledPolicy>(policies: &AdmissionPolicies<P>, part: Part, objects: &'a [Object]) -> Vec<&'a str> {
    let objects = objects.iter().map(|object| (object.name(), object.json_slice()));
    match part {
        Part::Policies => policies.replace_policies(objects),
        Part::Bindings => policies.replace_bindings(objects),
    }
}

impl ObjectCopy for PolicyCopy<'_> {
    fn resource(&self) -> (&'static str, &'static str, &'static str) {
        let plural = match self {
            PolicyCopy::Validating(_, Part::Policies) => "validatingadmissionpolicies",
            PolicyCopy::Validating(_, Part::Bindings) => "validatingadmissionpolicybindings",
            PolicyCopy::Mutating(_, Part::Policies) => "mutatingadmissionpolicies",
            PolicyCopy::Mutating(_, Part::Bindings) => "mutatingadmissionpolicybindings",
        };
        (GROUP, "v1", plural)
    }

    fn set(&self, object: &Object) -> bool {
        match self {
            PolicyCopy::Validating(policies, part) => set(policies, *part, object),
            PolicyCopy::Mutating(policies, part) => set(policies, *part, object),
        }
    }

    fn remove(&self, _: &str, name: &str) {
        match self {
            PolicyCopy::Validating(policies, part) => remove(policies, *part, name),
            PolicyCopy::Mutating(policies, part) => remove(policies, *part, name),
        }
    }

    fn replace<'a>(&self, objects: &'a [Object]) -> Vec<(&'a str, &'a str)> {
        let unreadable = match self {
            PolicyCopy::Validating(policies, part) => replace(policies, *part, objects),
            PolicyCopy::Mutating(policies, part) => replace(policies, *part, objects),
        };
        unreadable.into_iter().map(|name| ("", name)).collect()
    }
}

fn copies(policies: &Policies) -> [PolicyCopy<'_>; 4] {
    let Policies { validating, mutating } = policies;
    [
        PolicyCopy::Validating(validating, Part::Policies),
        PolicyCopy::Validating(validating, Part::Bindings),
        PolicyCopy::Mutating(mutating, Part::Policies),
        PolicyCopy::Mutating(mutating, Part::Bindings),
    ]
}

/// Lists all policies and bindings. A server calls this before the first request, so that policies apply to every
/// request.
///
/// # Errors
/// The error of the store, or 504 if the store does not respond in time.
pub async fn load(writer: &Writer, policies: &Policies) -> Result<(), Status> {
    feed::load(writer, &copies(policies), "the admission policies").await
}

/// Updates the policies until the future is dropped. While a watch fails, the last known policies apply, as in
/// upstream's informers.
pub async fn follow(writer: Arc<Writer>, policies: Policies) {
    feed::follow(&writer, &copies(&policies)).await;
}

/// Reads parameters of policies from the watch caches of a server.
#[derive(Debug)]
pub struct CachedParams(Arc<Backend>);

impl CachedParams {
    /// Creates a reader of the caches of a server.
    pub fn new(backend: Arc<Backend>) -> Self {
        CachedParams(backend)
    }

    fn find(&self, kind: &ParamKind) -> Option<Arc<Resource>> {
        self.0.registry().find_kind(&kind.group, &kind.version, &kind.kind).cloned()
    }

    async fn read_one(&self, resource: &Resource, namespace: Option<&str>, name: &str) -> Result<Vec<Vec<u8>>, Status> {
        let stored = resource.stored();
        let Ok(key) = stored.key(namespace, name) else { return Ok(Vec::new()) };
        let cached = self.0.running_cacher(stored).and_then(|cacher| cacher.peek(&key));
        let json = match cached {
            Some(object) => Bytes::copy_from_slice(object.json_slice()),
            // The cache may not have the newest objects.
            None => match self.0.storage().get(&key).await.map_err(Status::internal)?.0 {
                Some(found) => found.value,
                None => return Ok(Vec::new()),
            },
        };
        Ok(vec![resource.shown_json(json).to_vec()])
    }

    async fn read_all(&self, kind: &ParamKind, resource: &Resource, scope: &Scope) -> Result<Vec<Vec<u8>>, Status> {
        let request = ListRequest {
            at: ReadAt::Any,
            limit: None,
            resume: None,
            labels: LabelSelector::default(),
            fields: FieldSelector::default(),
            shard: None,
        };
        let cacher = self.0.cacher(resource.stored());
        let listed = tokio::time::timeout(PARAMS_READY_MAX, cacher.list(scope, &request)).await;
        let listed = listed.map_err(|_| {
            let ParamKind { group, version, kind } = kind;
            let version = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
            Status::timeout(format!(
                "paramKind kind `&ParamKind{{APIVersion:{version},Kind:{kind},}}` not yet synced to use for admission"
            ))
        })?;
        let list = listed.map_err(|error| error.status(resource.gr()))?;
        Ok(list.items.map(|object| resource.shown(&object).json_slice().to_vec()).collect())
    }
}

impl ParamReader for CachedParams {
    fn is_namespaced(&self, kind: &ParamKind) -> Option<bool> {
        self.find(kind).map(|resource| resource.namespaced)
    }

    fn resource(&self, kind: &ParamKind) -> Option<String> {
        self.find(kind).map(|resource| resource.plural.to_string())
    }

    fn read<'a>(&'a self, kind: &'a ParamKind, query: ParamQuery<'a>) -> AdmissionFuture<'a, Vec<Vec<u8>>> {
        Box::pin(async move {
            let Some(resource) = self.find(kind) else { return Ok(Vec::new()) };
            match (query.name, query.namespace) {
                (Some(name), namespace) => self.read_one(&resource, namespace, name).await,
                (None, Some(namespace)) => {
                    self.read_all(kind, &resource, &Scope::Namespace(namespace.to_owned())).await
                }
                (None, None) => self.read_all(kind, &resource, &Scope::All).await,
            }
        })
    }
}
