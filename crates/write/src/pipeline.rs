//! The write pipeline of creates, updates, patches and applies, and the retry loop that runs the pipeline.
//!
//! ```text
//!           change (per verb: decode a body, apply a patch, merge a configuration)
//!             │
//!  absent ────┼──── present                       the steps without a remark are pure functions
//!             ▼
//!  prepare      defaults, managed fields, storage version
//!  mutate       mutating admission plugins                             (may read other objects, call out)
//!  validate     before_create │ before_update of the strategy
//!  allocate     addresses and ports of services                        (claims keys in the store)
//!  admit        validating admission plugins                           (may read other objects, call out)
//!  encode       bytes of the object
//!             ▼
//!  Create │ Update │ Delete │ nothing, at the revision of the decision; a conflict restarts at `change`
//! ```
//!
//! [`UpdateLoop`] implements the optimistic retry. [`Write::run`] is the only caller for the writes of clients.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use listwatch_admission::{AdmissionChain, AdmissionRequest, Operation};
use listwatch_json::{Map, Value};
use listwatch_kinds::{CreateContext, UpdateContext, before_create, before_update, completes_deletion};
use listwatch_meta::{FieldError, Key, ResourceVersion, Revision, Status, UserInfo, canary, fuel, go};
use listwatch_storage::{CreateError, Decision, KeyValue, Step, UpdateLimits, UpdateLoop};
use listwatch_validation::clock::Clock;
use listwatch_validation::object_meta::{self as meta, Admission};
use listwatch_validation::{Errors, metadata, metadata_mut};
use listwatch_wire::media_type::PatchType;
use listwatch_wire::query::Query;

use super::admission::{StoredObjects, definition_lifecycle, namespace_lifecycle};
use super::cleanups::Cleanups;
use super::conflicts::{self, already_exists, check_precondition};
use super::decode::{self, FieldValidation};
use super::decode_error::{DecodeErrorStyle, not_convertible, not_decodable, not_decodable_from};
use super::expected::Expected;
use super::interruption::{Interruption, check_fuel};
use super::monotonic::Instant;
use super::no_op::changes_an_object;
use super::node_ports::NodePorts;
use super::ownership::{self, FieldWriter, ParsedManagedFields, Sent};
use super::patch::ParsedPatch;
use super::recent::{RecentObject, RecentObjects};
use super::request::WriteContext;
use super::request_details::Details;
use super::scale_view::{self, SCALE};
use super::service_cidrs::ServiceCidrs;
use super::service_ranges::ServiceRanges;
use super::services::{Allocation, AllocationError, Allocators, is_service, release_unused};
use super::store::{self, Existing, WriteOutcome, Written, new_uid};
use super::version_conversions::VersionConversions;
use listwatch_registry::Creating;
use listwatch_registry::{Backend, CreatingIn};
use listwatch_registry::{Registry, Resource, Subresource};

/// The context of one write: the address of the object, the options, the user and the clock.
pub(super) struct Write<'a> {
    pub(super) backend: &'a Arc<Backend>,
    pub(super) admission: &'a AdmissionChain,
    /// Reads other objects for admission plugins.
    pub(super) objects: StoredObjects<'a>,
    /// The trees of recently written objects.
    pub(super) recent: &'a RecentObjects,
    /// The deadline, and the recorder of warnings and audit annotations.
    pub(super) context: &'a WriteContext,
    /// The query of the request; `None` for the server's own writes.
    pub(super) query: Option<&'a Query<'a>>,
    pub(super) ranges: &'a ServiceRanges,
    /// The ranges of cluster addresses.
    pub(super) service_cidrs: &'a Arc<ServiceCidrs>,
    /// The allocator of node ports.
    pub(super) node_ports: &'a Arc<NodePorts>,
    /// Completes the deletions of services.
    pub(super) cleanups: &'a Cleanups,
    pub(super) registry: &'a Registry,
    pub(super) resource: &'a Resource,
    pub(super) subresource: Option<&'a Subresource>,
    pub(super) namespace: Option<&'a str>,
    /// The name in the path, or the name that a POST has in its body.
    pub(super) name: &'a str,
    /// The verb of the request; empty for the server's own writes.
    pub(super) verb: &'a str,
    /// The name in the path; empty for a POST of a collection.
    pub(super) path_name: &'a str,
    pub(super) dry_run: bool,
    pub(super) decode_errors: DecodeErrorStyle<'a>,
    /// The name of the field manager.
    pub(super) manager: &'a str,
    /// The user who sent the write.
    pub(super) user: &'a UserInfo,
    pub(super) managed_fields: ManagedFields,
    pub(super) clock: &'a Clock,
    /// The conversions of the object to the versions of its field managers, if a webhook converts.
    pub(super) conversions: Option<&'a VersionConversions>,
}

/// The state of `metadata.managedFields` when an object enters the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManagedFields {
    /// The pipeline assigns the changed fields to the manager of the write.
    Untracked,
    /// The pipeline stores the managed fields of the object unchanged.
    Tracked,
}

/// The state of an object before a change: the tree without the resource version, and the revision.
#[derive(Clone, Copy)]
pub(super) struct Base<'a> {
    pub(super) object: &'a Map,
    pub(super) revision: Revision,
}

impl Base<'_> {
    /// Returns the tree with the resource version, as clients receive the object.
    pub(super) fn visible(&self) -> Map {
        let mut object = self.object.clone();
        let version = Value::from(self.revision.to_string());
        metadata_mut(&mut object).insert("resourceVersion", version);
        object
    }
}

/// The existing object that a write changes, in the version that is validated, with its revision.
#[derive(Clone, Copy)]
pub(super) struct Present<'a> {
    object: &'a Map,
    revision: Revision,
}

/// Computes the new object from the current one (`None`: absent). The new object includes the resource version that the
/// client sent, if any. The pipeline may call the function several times.
type Change<'c> = dyn FnMut(Option<Base<'_>>) -> Result<Map, Status> + Send + 'c;

/// The effect of a write on an absent object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent<'a> {
    /// The write of an absent object fails with a 404.
    NotFound,
    /// The write creates an absent object.
    Create,
    /// The write is a POST. The pipeline assumes that the object is absent, and returns 409 if the object exists.
    Post {
        /// The generated name of the object; `None` if the client chose the name.
        generated_name: Option<&'a str>,
        /// Whether the body has a `generateName`, which changes the error for an existing object.
        has_generate_name: bool,
    },
}

/// What the mutating plugins changed of the identity of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdentityChange {
    None,
    Name,
    Namespace,
}

/// The state that is kept from one pass to the next.
struct Progress {
    /// The time directly before the last check of the namespace of a new object.
    namespace_checked: Instant,
    /// The addresses and ports that were allocated.
    allocation: Allocation,
    /// Whether the managed fields are omitted, because the object would otherwise be too large.
    without_managed_fields: bool,
    /// The existing object that made a POST fail.
    existing: Option<KeyValue>,
    /// The key of a posted object whose name a mutating plugin has changed.
    renamed: Option<Key>,
    /// The old and the new state of the last decision.
    before: Map,
    after: Map,
    /// The parsed managed fields of `after`, if they are known.
    managed: Option<ParsedManagedFields>,
}

impl Progress {
    fn new() -> Self {
        Progress {
            namespace_checked: Instant::now(),
            allocation: Allocation::default(),
            without_managed_fields: false,
            existing: None,
            renamed: None,
            before: Map::new(),
            after: Map::new(),
            managed: None,
        }
    }
}

impl Write<'_> {
    /// Applies `change` to the object at `key`. `uid` is a precondition. A mutating plugin can change the name of a posted
    /// object; [`Written`] has the key of the written object.
    ///
    /// # Errors
    /// The errors of `change`; 404 for an absent object that the write may not create; 403 from admission; 409 for a
    /// stale resource version or another `uid`; 422 for an invalid result.
    pub(super) async fn run(
        &self,
        key: &Key,
        uid: Option<&str>,
        absent: Absent<'_>,
        mut change: impl FnMut(Option<Base<'_>>) -> Result<Map, Status> + Send,
    ) -> Result<Written, Status> {
        let resource = self.resource;
        let mut progress = Progress::new();
        let mut _holds = None;
        let may_create = match absent {
            Absent::NotFound => None,
            Absent::Create | Absent::Post { .. } => Some(self.may_create().await.map(|holds| _holds = Some(holds))),
        };
        let done = loop {
            match self.attempt(key, uid, absent, may_create.as_ref(), &mut change, &mut progress).await {
                Ok(done) => break done,
                Err(Interruption::TooLarge(_))
                    if self.managed_fields == ManagedFields::Untracked && !progress.without_managed_fields =>
                {
                    progress.without_managed_fields = true;
                }
                Err(Interruption::TooLarge(status) | Interruption::Abandoned(status)) => {
                    progress.allocation.release(self.allocators()).await;
                    return Err(*status);
                }
                // The claims stay: the service may be stored. If it is not, a later service takes the address over, and
                // repairs release the node ports.
                Err(Interruption::Unknown(status)) => return Err(*status),
                Err(Interruption::Status(status)) => {
                    match progress.existing.as_ref().map(store::parse) {
                        // No store repeats a create whose outcome is unknown, so the object is not of this write.
                        Some(Ok(existing)) => {
                            progress.allocation.release_unused_claims(self.allocators(), &existing).await;
                        }
                        // An unreadable object may use any address or port.
                        Some(Err(_)) => {}
                        None => progress.allocation.release(self.allocators()).await,
                    }
                    return Err(*status);
                }
            }
        };
        let Progress { allocation, before, after, managed, renamed, .. } = progress;
        let key = renamed.as_ref().unwrap_or(key);
        if !self.dry_run {
            let (gone, at) = match &done {
                WriteOutcome::Deleted { revision, .. } => (true, *revision),
                WriteOutcome::Updated { revision, .. } => (false, Some(*revision)),
                WriteOutcome::Created { .. } | WriteOutcome::Unchanged(_) | WriteOutcome::Absent => (false, None),
            };
            if gone {
                allocation.release(self.allocators()).await;
            } else {
                allocation.release_unused_claims(self.allocators(), &after).await;
            }
            match at {
                Some(at) if !gone && is_service(resource) => {
                    release_unused(self.allocators(), &before, Some(&after), at, self.clock.time()).await;
                }
                _ => {}
            }
        }
        // A program that writes the status of the object will do so soon.
        let has_status = || self.query.is_some() && resource.subresource("status").is_some();
        let written = match &done {
            WriteOutcome::Updated { value, revision } if !self.dry_run => Some((value, *revision)),
            WriteOutcome::Created { value, revision: Some(revision) } if has_status() => Some((value, *revision)),
            _ => None,
        };
        if let Some((value, revision)) = written {
            self.keep(key, revision, value.clone(), RecentObject { tree: after, managed });
            return Ok(Written { key: key.clone(), outcome: done });
        }
        let outcome = match done {
            // The client sees its own version of the object, at the revision before the deletion.
            WriteOutcome::Deleted { previous, .. } => {
                WriteOutcome::Updated { value: store::encode(&after), revision: previous.modified }
            }
            done => done,
        };
        Ok(Written { key: key.clone(), outcome })
    }

    /// Keeps the tree of a written object for the next write. `value` is the encoded tree, as it is stored or cached.
    /// The tree of a CustomResourceDefinition is not kept: it is large and would displace others, and few writes follow.
    pub(super) fn keep(&self, key: &Key, revision: Revision, value: Bytes, object: RecentObject) {
        let RecentObject { tree, managed } = object;
        if self.backend.definitions().is_resource(self.resource) || !store::is_as_parsed(&tree) {
            return;
        }
        let managed = managed.filter(|managed| managed.is_of(&tree));
        self.recent.keep(key, revision, value, RecentObject { tree, managed });
    }

    /// Returns the allocators of addresses and ports.
    pub(super) fn allocators(&self) -> Allocators<'_> {
        let Write { backend, registry, ranges, service_cidrs, node_ports, .. } = *self;
        Allocators { backend, registry, ranges, service_cidrs, node_ports }
    }

    /// Returns the field manager of this write and the written object.
    pub(super) fn field_writer(&self) -> FieldWriter<'_> {
        FieldWriter {
            resource: self.resource,
            subresource: self.subresource,
            conversions: self.conversions,
            manager: self.manager,
            // Managed fields have times of whole seconds.
            now: self.clock.time().truncate_to_second(),
        }
    }

    /// Checks that objects may be created in the namespace and of this kind. The returned guards block the removal of
    /// the namespace and of the definition. A rejected write returns no guards, so that it cannot delay a removal.
    async fn may_create(&self) -> Result<(Option<CreatingIn<'_>>, Option<Creating>), Status> {
        let in_namespace = match self.namespace.filter(|_| self.resource.namespaced) {
            Some(namespace) => {
                let (backend, registry) = (self.backend, self.registry);
                namespace_lifecycle::check_create(backend, registry, self.resource, namespace, self.name).await?
            }
            None => None,
        };
        // The lock comes before the check, so a definition that is deleted after the check waits.
        let creating = self.resource.creating();
        definition_lifecycle::check_create(self.backend, self.resource, self.name)?;
        Ok((in_namespace, creating))
    }

    /// Reads the namespace of a new object from the store again if the last check is older than
    /// [`namespace_lifecycle::NAMESPACE_RECHECK`]. Another server may have removed the namespace.
    async fn check_namespace_again(&self, progress: &mut Progress) -> Result<(), Status> {
        let Some(namespace) = self.namespace.filter(|_| self.resource.namespaced) else { return Ok(()) };
        if progress.namespace_checked.elapsed() <= namespace_lifecycle::NAMESPACE_RECHECK {
            return Ok(());
        }
        progress.namespace_checked = Instant::now();
        namespace_lifecycle::check_stored(self.backend, self.registry, self.resource, namespace, self.name).await
    }

    /// Retries passes until the object is written or needs no change. `may_create` is `None` for a write that fails with a
    /// 404 if the object is absent.
    async fn attempt(
        &self,
        key: &Key,
        uid: Option<&str>,
        absent: Absent<'_>,
        may_create: Option<&Result<(), Status>>,
        change: &mut Change<'_>,
        progress: &mut Progress,
    ) -> Result<WriteOutcome, Interruption> {
        let storage = &**self.backend.storage();
        let is_post = matches!(absent, Absent::Post { .. });
        let limits = UpdateLimits::default();
        let mut update = if is_post {
            UpdateLoop::assuming_absent(key.clone(), limits)
        } else {
            let suggestion = if self.dry_run { None } else { store::suggestion(self.backend, self.resource, key) };
            UpdateLoop::new(key.clone(), suggestion, limits)
        };
        let mut current = None;
        let outcome = loop {
            let Some(step) = update.step() else {
                return Err(Status::internal("the write ended without a result").into());
            };
            let answered = match step {
                Step::Read => update.read(storage.get(key).await.map(|(found, _)| found)),
                Step::Decide(found) => {
                    let decision = match &found {
                        None => self.decide_absent(key, uid, absent, may_create, change, progress).await,
                        Some(found) => self.decide_present(key, uid, absent, found, change, progress).await,
                    };
                    current = found;
                    update.decided(self.check(decision))
                }
                Step::Create { value, .. } if self.dry_run => {
                    let key = progress.renamed.as_ref().unwrap_or(key);
                    let present = if is_post { storage.get(key).await.map(|(found, _)| found) } else { Ok(None) };
                    match present {
                        Ok(None) => return Ok(WriteOutcome::Created { value, revision: None }),
                        Ok(Some(current)) => {
                            update.created(Err(CreateError::AlreadyExists { key: key.clone(), current }))
                        }
                        Err(error) => return Err(store::read_failed(&error, self.resource.gr()).into()),
                    }
                }
                Step::Update { value, expected, .. } if self.dry_run => {
                    return Ok(WriteOutcome::Updated { value, revision: expected });
                }
                Step::Delete { .. } if self.dry_run => {
                    return match current {
                        Some(previous) => Ok(WriteOutcome::Deleted { previous, revision: None }),
                        None => Ok(WriteOutcome::Absent),
                    };
                }
                Step::Create { value, ttl } => {
                    self.check_namespace_again(progress).await?;
                    progress.allocation.check_age(self.clock)?;
                    let key = progress.renamed.as_ref().unwrap_or(key);
                    update.created(storage.create(key, value, ttl).await)
                }
                Step::Update { expected, value, ttl } => {
                    progress.allocation.check_age(self.clock)?;
                    update.updated(storage.update(key, expected, value, ttl).await)
                }
                Step::Delete { expected } => update.deleted(self.delete_stored(key, expected, current.as_ref()).await),
            };
            if let Some(outcome) = answered {
                break outcome;
            }
        };
        store::done(outcome, if is_post { "create" } else { "update" }, self.resource)
    }

    /// Rejects a decision that was computed after the fuel was used up. In a dry run, also checks the size of the
    /// object.
    fn check(&self, decision: Result<Decision, Interruption>) -> Result<Decision, Interruption> {
        // An error may be wrong, too, once the fuel is used up.
        if fuel::is_exhausted() {
            return Err(Interruption::Abandoned(Box::new(Status::request_timed_out())));
        }
        let decision = decision?;
        if let (true, Decision::Write { value, .. }) = (self.dry_run, &decision) {
            store::check_size(value)?;
        }
        Ok(decision)
    }

    /// Runs one pass for an absent object; see [`Write::attempt`].
    async fn decide_absent(
        &self,
        key: &Key,
        uid: Option<&str>,
        absent: Absent<'_>,
        may_create: Option<&Result<(), Status>>,
        change: &mut Change<'_>,
        progress: &mut Progress,
    ) -> Result<Decision, Interruption> {
        let resource = self.resource;
        check_precondition(resource, key, "UID", uid.filter(|_| absent != Absent::NotFound), "")?;
        let Some(may_create) = may_create else {
            return Err(Status::not_found(resource.gr(), self.name).into());
        };
        may_create.clone()?;
        let mut object = self.changed(change, None).await?;
        progress.managed = self.prepare(None, &mut object, None).await?;
        let change = self.mutate(&mut object, None).await?;
        self.check_identity(change, matches!(absent, Absent::Post { .. }))?;
        self.validate_new(absent, &mut object)?;
        progress.renamed = match change {
            IdentityChange::Name => Some(resource.key(self.namespace, meta::text(metadata(&object), "name"))?),
            _ => None,
        };
        self.allocate(&mut object, None, &mut progress.allocation).await?;
        self.round_trip_numbers(&mut object);
        self.admit(&object, None).await?;
        resource.to_stored(&mut object, self.context.deadline).await?;
        if progress.without_managed_fields {
            ownership::remove_managed_fields(&mut object);
        }
        let value = store::encode(&object);
        (progress.before, progress.after) = (Map::new(), object);
        Ok(Decision::Write { value, ttl: resource.ttl() })
    }

    /// Gives the numbers of a custom object the form in which kube-apiserver encodes them. Clients in Go cannot read `1.0`
    /// into an integer. The object was validated before, because the type of a number is part of error messages.
    fn round_trip_numbers(&self, object: &mut Map) {
        if self.resource.custom {
            object.values_mut().for_each(go::round_trip_numbers);
        }
    }

    /// Sets the generated name and validates a new object.
    fn validate_new(&self, absent: Absent<'_>, object: &mut Map) -> Result<(), Status> {
        let mut claims_version = false;
        if let Absent::Post { generated_name, .. } = absent {
            if let Some(name) = generated_name
                && meta::text(metadata(object), "name").is_empty()
            {
                metadata_mut(object).insert("name", Value::from(name));
            }
            // A dry run does not reach the storage layer, which has this rule.
            claims_version = !self.dry_run && conflicts::claims_version(metadata(object));
        }
        let (new_uid, now) = (new_uid(self.clock), self.clock.now());
        let context = CreateContext { uid: &new_uid, now: &now, user: self.user };
        for warning in self.resource.strategy.create_warnings(object) {
            self.context.recorder.warn(warning);
        }
        let errors = before_create(&*self.resource.strategy, object, context);
        self.refuse(object, &errors)?;
        self.warn(object, None);
        if claims_version {
            return Err(Status::unknown("resourceVersion should not be set on objects to be created"));
        }
        Ok(())
    }

    /// Checks a new object whose name is not a valid key. Runs the mutating plugins and validation, and stores nothing.
    ///
    /// # Errors
    /// The errors of a create, up to and including validation.
    pub(super) async fn check_new(&self, absent: Absent<'_>, mut object: Map) -> Result<(), Status> {
        let _holds = self.may_create().await?;
        self.prepare(None, &mut object, None).await?;
        let change = self.mutate(&mut object, None).await.map_err(Interruption::into_status)?;
        self.check_identity(change, true)?;
        self.validate_new(absent, &mut object)
    }

    /// Runs one pass for an existing object.
    async fn decide_present(
        &self,
        key: &Key,
        uid: Option<&str>,
        absent: Absent<'_>,
        found: &KeyValue,
        change: &mut Change<'_>,
        progress: &mut Progress,
    ) -> Result<Decision, Interruption> {
        let resource = self.resource;
        if let Absent::Post { has_generate_name, .. } = absent {
            progress.existing = Some(found.clone());
            let name = progress.renamed.as_ref().unwrap_or(key).name();
            return Err(already_exists(resource, name, has_generate_name, found).into());
        }
        let Existing { object: existing, is_complete } = store::take_or_parse(self.recent, resource, found)?;
        let RecentObject { tree, managed } = existing;
        let stored = Value::Object(tree);
        let shown = match resource.read_stored(ownership::as_map(&stored), self.context.deadline).await? {
            Cow::Borrowed(_) => None,
            Cow::Owned(tree) => Some(Value::Object(tree)),
        };
        let live = shown.as_ref().unwrap_or(&stored);
        let old = ownership::as_map(live);
        check_precondition(resource, key, "UID", uid, meta::text(metadata(old), "uid"))?;
        let mut object = self.changed(change, Some(Base { object: old, revision: found.modified })).await?;
        let claimed = meta::text(metadata(&object), "resourceVersion").to_owned();
        progress.managed = self.prepare(Some(live), &mut object, managed).await?;
        // Both states are validated in the stored version.
        let old = if resource.conversion.is_some() { ownership::as_map(&stored) } else { old };
        let present = Present { object: old, revision: found.modified };
        // Validation rejects a change of the name.
        if self.mutate(&mut object, Some(present)).await? == IdentityChange::Namespace {
            return Err(decode::other_namespace().into());
        }
        self.check_version(&claimed, found.modified)?;
        let context = || UpdateContext { subresource: self.subresource, now: self.clock.time() };
        let mut errors = before_update(&*resource.strategy, &mut object, old, context());
        // An immutable field may differ only in a form that the store does not keep.
        if !errors.is_empty() && self.normalize(key, found, &mut object)? {
            errors = before_update(&*resource.strategy, &mut object, old, context());
        }
        for tolerated in errors.tolerated() {
            self.context.recorder.warn(tolerated.to_string());
        }
        self.refuse(&object, &errors)?;
        self.warn(&object, Some(old));
        // The last finalizer is gone, so the object needs nothing more.
        if !completes_deletion(&*resource.strategy, &object, old) {
            self.allocate(&mut object, Some(old), &mut progress.allocation).await?;
        }
        self.round_trip_numbers(&mut object);
        self.admit(&object, Some(present)).await?;
        let is_unchanged = if progress.without_managed_fields {
            ownership::remove_managed_fields(&mut object);
            true
        } else {
            ownership::restore_unchanged_timestamps(old, &mut object)
        };
        let completes = completes_deletion(&*resource.strategy, &object, old);
        resource.to_stored(&mut object, self.context.deadline).await?;
        let may_be_same = is_unchanged || shown.is_some() || resource.conversion.is_some();
        let decision = if completes {
            Decision::Delete
        } else if may_be_same
            && !found.stale
            && object == *ownership::as_map(&stored)
            && (is_complete || store::has_all_defaults(found, ownership::as_map(&stored))?)
        {
            Decision::Nothing
        } else {
            let value = store::encode(&object);
            let normal = self.backend.storage().normal_form(key, value.clone());
            let is_same = !found.stale && normal != value && self.is_no_op(&normal, found, progress)?;
            if is_same { Decision::Nothing } else { Decision::Write { value, ttl: resource.ttl() } }
        };
        (progress.before, progress.after) = (ownership::into_map(stored), object);
        Ok(decision)
    }

    /// Replaces the object by the object that a read after the write would return. Returns false if both are equal.
    fn normalize(&self, key: &Key, found: &KeyValue, object: &mut Map) -> Result<bool, Status> {
        if self.resource.conversion.is_some() {
            return Ok(false);
        }
        let value = store::encode(object);
        let normal = self.backend.storage().normal_form(key, value.clone());
        if normal == value {
            return Ok(false);
        }
        *object = store::parse(&KeyValue { value: normal, ..found.clone() })?;
        Ok(true)
    }

    /// Whether the stored value already equals the new value, except for times in the managed fields.
    fn is_no_op(&self, normal: &Bytes, found: &KeyValue, progress: &Progress) -> Result<bool, Status> {
        if *normal == found.value {
            return Ok(true);
        }
        if progress.without_managed_fields || changes_an_object(normal, &found.value) {
            return Ok(false);
        }
        let mut object = store::parse(&KeyValue { value: normal.clone(), ..found.clone() })?;
        Ok(ownership::restore_unchanged_timestamps(&store::parse(found)?, &mut object))
    }

    /// Calls `change`. Calls `change` again after each conversion that a call required.
    async fn changed(&self, change: &mut Change<'_>, base: Option<Base<'_>>) -> Result<Map, Status> {
        let Some(conversions) = self.conversions else { return change(base) };
        loop {
            let changed = change(base);
            if !conversions.resolve(self.resource).await {
                return changed;
            }
        }
    }

    /// Prepares the object for validation. Repeats the preparation after each conversion that the managed fields
    /// require.
    async fn prepare(
        &self,
        live: Option<&Value>,
        object: &mut Map,
        managed: Option<ParsedManagedFields>,
    ) -> Result<Option<ParsedManagedFields>, Status> {
        let Some(conversions) = self.conversions else { return self.prepare_once(live, object, managed) };
        loop {
            let before = object.clone();
            let prepared = self.prepare_once(live, object, None);
            if !conversions.resolve(self.resource).await {
                return prepared;
            }
            *object = before;
        }
    }

    /// Applies defaults, records the manager as owner of changed fields, and converts to the stored version. `managed`
    /// may hold the managed fields of `live`. Returns those of the object, if they are known.
    fn prepare_once(
        &self,
        live: Option<&Value>,
        object: &mut Map,
        managed: Option<ParsedManagedFields>,
    ) -> Result<Option<ParsedManagedFields>, Status> {
        let strategy = &*self.resource.strategy;
        let sent = Sent::of(self.resource, object);
        strategy.apply_defaults(object).map_err(|why| self.undecodable(object, &why))?;
        let managed = match self.managed_fields {
            ManagedFields::Untracked => self.field_writer().track_managed_fields(live, object, &sent, managed),
            ManagedFields::Tracked => None,
        };
        strategy.to_storage_version(object).map_err(|why| self.undecodable(object, &why))?;
        Ok(managed)
    }

    /// Runs the mutating plugins, and removes duplicate owner references that they have added. Returns whether they have
    /// changed the name or the namespace.
    async fn mutate(&self, object: &mut Map, present: Option<Present<'_>>) -> Result<IdentityChange, Interruption> {
        check_fuel()?;
        fn identity(object: &Map) -> (&str, &str) {
            let metadata = metadata(object);
            (meta::text(metadata, "name"), meta::text(metadata, "namespace"))
        }
        let (name, namespace) = identity(object);
        let (name, namespace) = (name.to_owned(), namespace.to_owned());
        let details = self.details(present);
        let old = present.map(|present| present.object);
        let request = self.admission_request(&name, old, &details);
        if let Some(Subresource::Scale { spec_replicas, .. }) = self.subresource {
            // Plugins see the Scale, as in upstream's `ScaleREST`.
            let mut shown = scale_view::view(self.resource, object)?;
            let old = old.map(|old| scale_view::view(self.resource, old)).transpose()?;
            let before = shown.clone();
            self.admission.mutate(&AdmissionRequest { old_object: old.as_ref(), ..request }, &mut shown).await?;
            if shown != before {
                scale_view::write_back(object, &shown, spec_replicas, self.resource.custom)?;
            }
        } else {
            self.admission.mutate(&request, object).await?;
            if let Some(warning) = meta::dedup_owners(metadata_mut(object), Admission::After) {
                self.context.recorder.warn(warning);
            }
        }
        let after = identity(object);
        Ok(if after.1 != namespace {
            IdentityChange::Namespace
        } else if after.0 != name {
            IdentityChange::Name
        } else {
            IdentityChange::None
        })
    }

    /// Checks what the mutating plugins did to the name and the namespace of a new object.
    ///
    /// # Errors
    /// 400 for another namespace; 500 for another name, unless the object is posted.
    fn check_identity(&self, change: IdentityChange, is_post: bool) -> Result<(), Status> {
        match change {
            IdentityChange::Namespace => Err(decode::other_namespace()),
            IdentityChange::Name if !is_post => {
                Err(Status::internal("an admission plugin changed the name of the object"))
            }
            IdentityChange::Name | IdentityChange::None => Ok(()),
        }
    }

    /// Runs the validating plugins.
    async fn admit(&self, object: &Map, present: Option<Present<'_>>) -> Result<(), Interruption> {
        check_fuel()?;
        let details = self.details(present);
        let old = present.map(|present| present.object);
        // Validating plugins see a generated name, and the name of the request although a plugin has changed the name.
        let name = if self.name.is_empty() { meta::text(metadata(object), "name") } else { self.name };
        let request = self.admission_request(name, old, &details);
        if let Some(Subresource::Scale { .. }) = self.subresource {
            let shown = scale_view::view(self.resource, object)?;
            let old = old.map(|old| scale_view::view(self.resource, old)).transpose()?;
            self.admission.validate(&AdmissionRequest { old_object: old.as_ref(), ..request }, &shown).await?;
        } else {
            self.admission.validate(&request, object).await?;
        }
        Ok(())
    }

    /// Runs all plugins for an object that was posted to a subresource. The posted object is not stored.
    ///
    /// # Errors
    /// The error of the first plugin that rejects the object.
    pub(super) async fn admit_post(&self, body: Expected<'_>, object: &mut Map, dry_run: bool) -> Result<(), Status> {
        let details = Details { body: Some(body), dry_run, ..self.details(None) };
        let request = AdmissionRequest { dry_run, ..self.admission_request(self.name, None, &details) };
        self.admission.mutate(&request, object).await?;
        self.admission.validate(&request, object).await
    }

    /// Returns the admission details of a create, or of the update of the object `present`.
    pub(super) fn details(&self, present: Option<Present<'_>>) -> Details<'_> {
        Details {
            registry: self.registry,
            resource: self.resource,
            operation: if present.is_some() { Operation::Update } else { Operation::Create },
            body: matches!(self.subresource, Some(Subresource::Scale { .. })).then_some(SCALE),
            query: self.query,
            dry_run: self.dry_run,
            verb: self.verb,
            path_name: self.path_name,
            deletion: None,
            deadline: self.context.deadline,
            revision: present.map(|present| present.revision),
            recorder: &self.context.recorder,
        }
    }

    /// Builds the request for admission plugins.
    pub(super) fn admission_request<'r>(
        &'r self,
        name: &'r str,
        old_object: Option<&'r Map>,
        details: &'r Details<'r>,
    ) -> AdmissionRequest<'r> {
        let resource = self.resource;
        AdmissionRequest {
            operation: details.operation,
            group: &resource.group,
            version: &resource.version,
            resource: &resource.plural,
            kind: details.body.map_or(&*resource.kind, |body| body.kind),
            subresource: self.subresource.map(Subresource::name),
            namespace: self.namespace.filter(|_| resource.namespaced),
            name,
            user: self.user,
            dry_run: self.dry_run,
            old_object,
            objects: &self.objects,
            recorder: &self.context.recorder,
            details,
            reinvocation: None,
        }
    }

    /// Returns a 422 if there are errors.
    fn refuse(&self, object: &Map, errors: &Errors) -> Result<(), Status> {
        if errors.is_empty() {
            return Ok(());
        }
        let stored = self.resource.stored();
        Err(Status::invalid(&stored.group, &stored.kind, meta::text(metadata(object), "name"), errors))
    }

    /// Allocates the addresses and ports that a service needs and writes them into the service. Writes of a subresource
    /// do not change the spec.
    async fn allocate(
        &self,
        object: &mut Map,
        old: Option<&Map>,
        allocation: &mut Allocation,
    ) -> Result<(), Interruption> {
        if self.subresource.is_some() {
            return Ok(());
        }
        loop {
            match allocation.fill(self.allocators(), self.resource, object, old) {
                Ok(()) => return Ok(()),
                Err(AllocationError::Status(status)) => return Err(Interruption::Status(status)),
                // Without fuel the decision is discarded, so no claim is made.
                Err(AllocationError::Unclaimed(_)) if fuel::is_exhausted() => {
                    return Err(Interruption::Abandoned(Box::new(Status::request_timed_out())));
                }
                Err(AllocationError::Unclaimed(request)) => {
                    allocation.add(request.claim(self.allocators(), self.dry_run, self.clock).await?);
                }
            }
        }
    }

    fn undecodable(&self, object: &mut Map, why: &str) -> Status {
        // Only for base64 does kube-apiserver's converter call the decoder, and its error shows that.
        let converted = || if why.starts_with("illegal base64") { "error decoding from json: " } else { "" };
        match self.decode_errors {
            DecodeErrorStyle::Body => decode::cannot_handle(object, Expected::of(self.resource), why),
            DecodeErrorStyle::Patch => {
                ownership::expand_managed_fields(object);
                not_decodable(object, why)
            }
            DecodeErrorStyle::StrategicPatch(patch) => {
                match ParsedPatch::parse(PatchType::StrategicMerge, patch, FieldValidation::Warn) {
                    Ok(parsed) => not_decodable_from(&parsed.patch.shown(), &format!("{}{why}", converted())),
                    Err(status) => status,
                }
            }
            DecodeErrorStyle::Apply(described) => not_convertible(described, &format!("{}{why}", converted())),
        }
    }

    /// Checks the resource version of the client against `present`. Some kinds also accept an absent version. The check
    /// follows the mutating plugins, so that their errors come first (`Store.Update`).
    fn check_version(&self, claimed: &str, present: Revision) -> Result<(), Status> {
        if canary!("write-ignores-the-resource-version") {
            return Ok(());
        }
        let resource = self.resource;
        let claimed = ResourceVersion::new(claimed).revision().map_err(|error| {
            // kube-apiserver shows only the error of Go's parser.
            let text = error.to_string();
            Status::unknown(text.find("strconv.").map_or(text.as_str(), |at| &text[at..]))
        })?;
        if claimed == present || (claimed.is_zero() && resource.rules.unconditional_update) {
            return Ok(());
        }
        if claimed.is_zero() {
            let error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
            return Err(Status::invalid(&resource.group, &resource.plural, self.name, &[error]));
        }
        Err(Status::modified(resource.gr(), self.name))
    }

    /// Records the warnings of the strategy for a valid object, also if a later step rejects the write. The recorder
    /// drops the duplicates of a repeated pass.
    fn warn(&self, new: &Map, old: Option<&Map>) {
        for warning in self.resource.strategy.warnings(new, old, self.subresource) {
            self.context.recorder.warn(warning);
        }
    }
}
