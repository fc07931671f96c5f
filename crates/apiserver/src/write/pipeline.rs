//! The write pipeline: what every create, update, patch and apply goes through, and its driver.
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
//!  Create │ Update │ Delete │ nothing, at the revision that was decided upon; on a conflict again from `change`
//! ```
//!
//! The optimistic retry is [`UpdateLoop`]; [`Write::run`] is the only code that drives it for clients' writes.

use std::borrow::Cow;

use listwatch_kinds::{CreateContext, UpdateContext, before_create, before_update, completes_deletion};
use listwatch_meta::{FieldError, Key, ResourceVersion, Revision, Status, UserInfo, fuel};
use listwatch_storage::{CreateError, Decision, KeyValue, Step, UpdateLimits, UpdateLoop};
use listwatch_validation::object_meta as meta;
use listwatch_validation::{Errors, metadata, metadata_mut};
use listwatch_wire::media_type::PatchType;
use serde_json::{Map, Value};

use super::admission::{AdmissionRequest, Operation, definition_lifecycle, namespace_lifecycle};
use super::decode::{self, Expected};
use super::ownership::{self, Sent};
use super::patch::ParsedPatch;
use super::services::{Grant, Unfilled, release_unused};
use super::store::{self, Done, Faulted};
use super::update::{not_convertible, not_decodable, not_decodable_from};
use super::{Clock, create, new_uid};
use crate::backend::{Backend, CreatingIn};
use crate::compute;
use crate::crd::Creating;
use crate::registry::{Registry, Resource, Subresource};

/// One object that is to be written, and how.
pub(super) struct Write<'a> {
    pub(super) backend: &'a Backend,
    pub(super) registry: &'a Registry,
    pub(super) resource: &'a Resource,
    pub(super) subresource: Option<&'a Subresource>,
    pub(super) namespace: Option<&'a str>,
    /// The name in the path; empty for a POST.
    pub(super) name: &'a str,
    pub(super) dry_run: bool,
    pub(super) decode_errors: DecodeErrorStyle<'a>,
    /// The field manager.
    pub(super) manager: &'a str,
    /// The user who writes.
    pub(super) user: &'a UserInfo,
    pub(super) managed_fields: ManagedFields,
    pub(super) clock: &'a Clock,
}

/// The form of the error about an object that cannot be decoded.
#[derive(Clone, Copy, Debug)]
pub(super) enum DecodeErrorStyle<'a> {
    /// 400: the body is no such object.
    Body,
    /// 422 with the patched object: the patch is at fault.
    Patch,
    /// 422 with the patch: this strategic merge patch is at fault.
    StrategicPatch(&'a [u8]),
    /// 500: a configuration, of the object so described, cannot be merged.
    Apply(&'a str),
}

/// The state of `metadata.managedFields` when an object enters the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManagedFields {
    /// The pipeline gives the fields that change to the manager of the write.
    Untracked,
    /// The managed fields of the object are those to be stored.
    Tracked,
}

/// The state of an object before a change: its tree without resource version, and its revision.
pub(super) struct Base<'a> {
    pub(super) object: &'a Map<String, Value>,
    pub(super) revision: Revision,
}

impl Base<'_> {
    /// The tree as a client sees it, with the resource version.
    pub(super) fn visible(&self) -> Map<String, Value> {
        let mut object = self.object.clone();
        let version = Value::String(self.revision.to_string());
        metadata_mut(&mut object).insert("resourceVersion".to_owned(), version);
        object
    }
}

/// Makes the whole new object from the present one (`None`: absent), with the resource version that the client
/// claims, if any. It may be called several times.
type Change<'c> = dyn FnMut(Option<Base<'_>>) -> Result<Map<String, Value>, Status> + Send + 'c;

/// What happens to an absent object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent<'a> {
    /// The write is a 404.
    NotFound,
    /// The write creates the object.
    Create,
    /// The write is a POST: the object is assumed absent, and a present one is a 409. The name is generated where
    /// one is given here.
    Post {
        /// The name that is generated for the object.
        generated_name: Option<&'a str>,
    },
}

/// Why a pass through the pipeline has no decision.
enum Interruption {
    /// The client receives this.
    Status(Box<Status>),
    /// The store does not take so large an object.
    TooLarge(Box<Status>),
    /// The store failed in a way that leaves open whether the object was written.
    Unknown(Box<Status>),
    /// The fuel was used up; nothing was written.
    Abandoned(Box<Status>),
}

impl From<Status> for Interruption {
    fn from(status: Status) -> Self {
        Interruption::Status(Box::new(status))
    }
}

impl From<Faulted> for Interruption {
    fn from(faulted: Faulted) -> Self {
        match faulted {
            Faulted::TooLarge(status) => Interruption::TooLarge(Box::new(status)),
            Faulted::Abandoned(status) => Interruption::Abandoned(Box::new(status)),
            Faulted::Unknown(status) => Interruption::Unknown(Box::new(status)),
            Faulted::Other(status) => Interruption::Status(Box::new(status)),
        }
    }
}

/// What is kept from pass to pass.
#[derive(Default)]
struct Progress {
    /// The addresses and ports that were allocated.
    grant: Grant,
    /// Managed fields are left out of an object that is too large with them.
    without_managed_fields: bool,
    /// The object that a POST found in its place.
    existing: Option<KeyValue>,
    /// The state that the last pass decided upon, and the state that it decided on.
    before: Map<String, Value>,
    after: Map<String, Value>,
}

impl Write<'_> {
    /// Changes the object at `key` as `change` says. `uid` is a precondition.
    ///
    /// # Errors
    /// Those of `change`; 404 when the object is absent and may not be created; 403 when admission rejects it; 409
    /// when the claimed version or `uid` is not the present one; 422 when the result is not valid.
    pub(super) async fn run(
        &self,
        key: &Key,
        uid: Option<&str>,
        absent: Absent<'_>,
        mut change: impl FnMut(Option<Base<'_>>) -> Result<Map<String, Value>, Status> + Send,
    ) -> Result<Done, Status> {
        let resource = self.resource;
        let mut _holds = None;
        let may_create = if absent == Absent::NotFound {
            Err(Status::not_found(resource.gr(), self.name))
        } else {
            self.may_create().await.map(|holds| _holds = Some(holds))
        };
        let mut progress = Progress::default();
        let done = loop {
            match self.attempt(key, uid, absent, &may_create, &mut change, &mut progress).await {
                Ok(done) => break done,
                Err(Interruption::TooLarge(_))
                    if self.managed_fields == ManagedFields::Untracked && !progress.without_managed_fields =>
                {
                    progress.without_managed_fields = true;
                }
                Err(Interruption::TooLarge(status) | Interruption::Abandoned(status)) => {
                    progress.grant.release(self.backend).await;
                    return Err(*status);
                }
                // The claims stay, and are taken over once it is known that the service is not stored.
                Err(Interruption::Unknown(status)) => return Err(*status),
                Err(Interruption::Status(status)) => {
                    match progress.existing.as_ref().map(store::parse) {
                        // It may be this very object: the store was asked again when it did not answer.
                        Some(Ok(existing)) => progress.grant.keep_used(self.backend, &existing).await,
                        // An object that cannot be read may have anything.
                        Some(Err(_)) => {}
                        None => progress.grant.release(self.backend).await,
                    }
                    return Err(*status);
                }
            }
        };
        let Progress { grant, before, after, .. } = progress;
        if !self.dry_run {
            let (gone, at) = match &done {
                Done::Deleted { revision, .. } => (true, *revision),
                Done::Updated { revision, .. } => (false, Some(*revision)),
                Done::Created { .. } | Done::Unchanged(_) | Done::Absent => (false, None),
            };
            if gone {
                grant.release(self.backend).await;
            } else {
                grant.keep_used(self.backend, &after).await;
            }
            if let Some(at) = at {
                let after = (!gone).then_some(&after);
                release_unused(self.backend, self.registry, resource, &before, after, at).await;
            }
        }
        Ok(match done {
            // The client sees what it made of the object, at the version it made it of.
            Done::Deleted { previous, .. } => {
                Done::Updated { value: store::encode(&after), revision: previous.modified }
            }
            done => done,
        })
    }

    /// Checks that objects may be created. The namespace and the definition of the resource stay while the caller
    /// holds the result. A write that is refused here holds neither: refused writes must not delay their removal.
    async fn may_create(&self) -> Result<(Option<CreatingIn<'_>>, Option<Creating>), Status> {
        let in_namespace = match self.namespace.filter(|_| self.resource.namespaced) {
            Some(namespace) => {
                let (backend, registry) = (self.backend, self.registry);
                namespace_lifecycle::check_create(backend, registry, self.resource, namespace, self.name).await?
            }
            None => None,
        };
        // The hold comes first: a definition that is deleted after the check waits for it.
        let creating = self.resource.creating();
        definition_lifecycle::check_create(self.backend, self.resource, self.name)?;
        Ok((in_namespace, creating))
    }

    /// Drives the optimistic retry until something was written, or nothing has to be.
    async fn attempt(
        &self,
        key: &Key,
        uid: Option<&str>,
        absent: Absent<'_>,
        may_create: &Result<(), Status>,
        change: &mut Change<'_>,
        progress: &mut Progress,
    ) -> Result<Done, Interruption> {
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
                    let present = if is_post { storage.get(key).await.map(|(found, _)| found) } else { Ok(None) };
                    match present {
                        Ok(None) => return Ok(Done::Created { value, revision: None }),
                        Ok(Some(current)) => {
                            update.created(Err(CreateError::AlreadyExists { key: key.clone(), current }))
                        }
                        Err(error) => return Err(store::read_failed(&error, self.resource.gr()).into()),
                    }
                }
                Step::Update { value, expected, .. } if self.dry_run => {
                    return Ok(Done::Updated { value, revision: expected });
                }
                Step::Delete { .. } if self.dry_run => {
                    return match current {
                        Some(previous) => Ok(Done::Deleted { previous, revision: None }),
                        None => Ok(Done::Absent),
                    };
                }
                Step::Create { value, ttl } => update.created(storage.create(key, value, ttl).await),
                Step::Update { expected, value, ttl } => {
                    update.updated(storage.update(key, expected, value, ttl).await)
                }
                Step::Delete { expected } => update.deleted(storage.delete(key, expected).await),
            };
            if let Some(outcome) = answered {
                break outcome;
            }
        };
        store::done(outcome, if is_post { "create" } else { "update" }, self.resource)
    }

    /// A decision that was cut short has no effect, and a dry run finds out what the store would say of its size.
    fn check(&self, decision: Result<Decision, Interruption>) -> Result<Decision, Interruption> {
        // Nor has the error of one, which may be wrong.
        if fuel::is_exhausted() {
            return Err(Interruption::Abandoned(Box::new(compute::timed_out())));
        }
        let decision = decision?;
        if let (true, Decision::Write { value, .. }) = (self.dry_run, &decision) {
            store::check_size(value)?;
        }
        Ok(decision)
    }

    /// A pass for an object that is absent.
    async fn decide_absent(
        &self,
        key: &Key,
        uid: Option<&str>,
        absent: Absent<'_>,
        may_create: &Result<(), Status>,
        change: &mut Change<'_>,
        progress: &mut Progress,
    ) -> Result<Decision, Interruption> {
        let resource = self.resource;
        check_uid(resource, key, uid.filter(|_| absent != Absent::NotFound), "")?;
        may_create.clone()?;
        let mut object = change(None)?;
        self.prepare(None, &mut object)?;
        self.mutate(Operation::Create, &mut object, None).await?;
        let mut claims_version = false;
        if let Absent::Post { generated_name } = absent {
            if let Some(name) = generated_name {
                metadata_mut(&mut object).insert("name".to_owned(), Value::String(name.to_owned()));
            }
            claims_version = self::claims_version(metadata(&object));
        }
        let (new_uid, now) = (new_uid(self.clock), self.clock.now());
        let context = CreateContext { uid: &new_uid, now: &now, user: self.user };
        let errors = before_create(&*resource.strategy, &mut object, context);
        self.refuse(&object, &errors)?;
        if claims_version {
            return Err(Status::unknown("resourceVersion should not be set on objects to be created").into());
        }
        self.allocate(&mut object, None, &mut progress.grant).await?;
        self.admit(Operation::Create, &object, None).await?;
        resource.to_stored(&mut object);
        if progress.without_managed_fields {
            ownership::forget(&mut object);
        }
        let value = store::encode(&object);
        (progress.before, progress.after) = (Map::new(), object);
        Ok(Decision::Write { value, ttl: create::ttl(resource) })
    }

    /// A pass for an object that is present.
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
        if let Absent::Post { generated_name } = absent {
            progress.existing = Some(found.clone());
            return Err(create::already_exists(resource, key.name(), generated_name.is_some(), found).into());
        }
        let stored = Value::Object(store::parse(found)?);
        let shown = match resource.read_stored(ownership::as_map(&stored)) {
            Cow::Borrowed(_) => None,
            Cow::Owned(tree) => Some(Value::Object(tree)),
        };
        let live = shown.as_ref().unwrap_or(&stored);
        let old = ownership::as_map(live);
        check_uid(resource, key, uid, meta::text(metadata(old), "uid"))?;
        let mut object = change(Some(Base { object: old, revision: found.modified }))?;
        self.check_version(metadata(&object), found.modified)?;
        self.prepare(Some(live), &mut object)?;
        // Both states are validated in the stored version.
        let old = if resource.conversion.is_some() { ownership::as_map(&stored) } else { old };
        self.mutate(Operation::Update, &mut object, Some(old)).await?;
        let context = UpdateContext { subresource: self.subresource, now: self.clock.time() };
        let errors = before_update(&*resource.strategy, &mut object, old, context);
        self.refuse(&object, &errors)?;
        self.allocate(&mut object, Some(old), &mut progress.grant).await?;
        self.admit(Operation::Update, &object, Some(old)).await?;
        let settled = if progress.without_managed_fields {
            ownership::forget(&mut object);
            true
        } else {
            ownership::settle(old, &mut object)
        };
        let completes = completes_deletion(&*resource.strategy, &object, old);
        resource.to_stored(&mut object);
        let may_be_same = settled || shown.is_some() || resource.conversion.is_some();
        let decision = if completes {
            Decision::Delete
        } else if may_be_same && object == *ownership::as_map(&stored) {
            Decision::Nothing
        } else {
            Decision::Write { value: store::encode(&object), ttl: create::ttl(resource) }
        };
        (progress.before, progress.after) = (ownership::into_map(stored), object);
        Ok(decision)
    }

    /// Applies defaults, gives changed fields to the manager, and converts to the stored version.
    fn prepare(&self, live: Option<&Value>, object: &mut Map<String, Value>) -> Result<(), Status> {
        let strategy = &*self.resource.strategy;
        let sent = Sent::of(self.resource, object);
        strategy.apply_defaults(object).map_err(|why| self.undecodable(object, &why))?;
        if self.managed_fields == ManagedFields::Untracked {
            ownership::account(self, live, object, &sent);
        }
        strategy.to_storage_version(object).map_err(|why| self.undecodable(object, &why))
    }

    /// Runs the mutating plugins. They cannot change the object's name and namespace.
    async fn mutate(
        &self,
        operation: Operation,
        object: &mut Map<String, Value>,
        old_object: Option<&Map<String, Value>>,
    ) -> Result<(), Interruption> {
        check_fuel()?;
        let identity = |object: &Map<String, Value>| {
            let text = |member: &str| meta::text(metadata(object), member).to_owned();
            (text("name"), text("namespace"))
        };
        let (name, namespace) = identity(object);
        self.backend.admission().mutate(&self.admission_request(operation, &name, old_object), object).await?;
        if identity(object) != (name, namespace) {
            return Err(Status::internal("an admission plugin changed the name or the namespace of the object").into());
        }
        Ok(())
    }

    /// Runs the validating plugins.
    async fn admit(
        &self,
        operation: Operation,
        object: &Map<String, Value>,
        old_object: Option<&Map<String, Value>>,
    ) -> Result<(), Interruption> {
        check_fuel()?;
        let name = meta::text(metadata(object), "name");
        self.backend.admission().validate(&self.admission_request(operation, name, old_object), object).await?;
        Ok(())
    }

    fn admission_request<'r>(
        &'r self,
        operation: Operation,
        name: &'r str,
        old_object: Option<&'r Map<String, Value>>,
    ) -> AdmissionRequest<'r> {
        let resource = self.resource;
        AdmissionRequest {
            operation,
            group: &resource.group,
            version: &resource.version,
            resource: &resource.plural,
            kind: &resource.kind,
            subresource: self.subresource.map(Subresource::name),
            namespace: self.namespace.filter(|_| resource.namespaced),
            name,
            user: self.user,
            dry_run: self.dry_run,
            old_object,
            objects: self.backend,
        }
    }

    /// 422 when there are errors.
    fn refuse(&self, object: &Map<String, Value>, errors: &Errors) -> Result<(), Status> {
        if errors.is_empty() {
            return Ok(());
        }
        let stored = self.resource.stored();
        Err(Status::invalid(&stored.group, &stored.kind, meta::text(metadata(object), "name"), errors))
    }

    /// Allocates the addresses and ports that a service needs and writes them into the service.
    async fn allocate(
        &self,
        object: &mut Map<String, Value>,
        old: Option<&Map<String, Value>>,
        grant: &mut Grant,
    ) -> Result<(), Interruption> {
        loop {
            match grant.fill(self.resource, object, old) {
                Ok(()) => return Ok(()),
                Err(Unfilled::Status(status)) => return Err(Interruption::Status(status)),
                // A computation that was cut short has no effect.
                Err(Unfilled::Wants(_)) if fuel::is_exhausted() => {
                    return Err(Interruption::Abandoned(Box::new(compute::timed_out())));
                }
                Err(Unfilled::Wants(wanted)) => {
                    grant.add(wanted.claim(self.backend, self.registry, self.dry_run, self.clock).await?);
                }
            }
        }
    }

    fn undecodable(&self, object: &mut Map<String, Value>, why: &str) -> Status {
        // The converter leaves what is no text to the decoder, and says so.
        let converted = || if why.starts_with("illegal base64") { "error decoding from json: " } else { "" };
        match self.decode_errors {
            DecodeErrorStyle::Body => decode::cannot_handle(object, Expected::of(self.resource), why),
            DecodeErrorStyle::Patch => {
                ownership::spell_out(object);
                not_decodable(object, why)
            }
            DecodeErrorStyle::StrategicPatch(patch) => match ParsedPatch::parse(PatchType::StrategicMerge, patch) {
                Ok(parsed) => not_decodable_from(&parsed.patch.shown(), &format!("{}{why}", converted())),
                Err(status) => status,
            },
            DecodeErrorStyle::Apply(described) => not_convertible(described, &format!("{}{why}", converted())),
        }
    }

    /// Checks that the version that a client claims is the present one, or none where the kind allows that.
    fn check_version(&self, metadata: &Map<String, Value>, present: Revision) -> Result<(), Status> {
        let resource = self.resource;
        let claimed = ResourceVersion::new(meta::text(metadata, "resourceVersion")).revision().map_err(|error| {
            // The plain error of Go's parser is all that kube-apiserver says.
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

    /// The warnings of the strategy for the client that writes `new`.
    pub(super) fn warnings(&self, new: &Map<String, Value>, old: Option<&Map<String, Value>>) -> Vec<String> {
        if self.subresource.is_some() { Vec::new() } else { self.resource.strategy.warnings(new, old) }
    }
}

/// Fails when the fuel is used up: the object may then be incomplete, and no plugin sees it.
fn check_fuel() -> Result<(), Interruption> {
    if fuel::is_exhausted() { Err(Interruption::Abandoned(Box::new(compute::timed_out()))) } else { Ok(()) }
}

/// A version that is no number is no version: kube-apiserver ignores it, too.
fn claims_version(metadata: &Map<String, Value>) -> bool {
    meta::text(metadata, "resourceVersion").parse::<u64>().is_ok_and(|version| version > 0)
}

fn check_uid(resource: &Resource, key: &Key, wanted: Option<&str>, found: &str) -> Result<(), Status> {
    match wanted {
        Some(wanted) if wanted != found => Err(Status::conflict(
            resource.gr(),
            key.name(),
            format_args!(
                "StorageError: invalid object, Code: 4, Key: /registry{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
            ),
        )),
        _ => Ok(()),
    }
}
