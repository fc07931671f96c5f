//! Carries out DELETE of an object or of a collection.
//!
//! ```text
//!  DELETE ─▶ preconditions ─▶ namespace?  ─▶ Terminating; the built-in controller does the rest
//!                             definition? ─▶ a finalizer; the built-in controller removes its objects first
//!                             pod, bound? ─▶ deletionTimestamp = now + grace; the kubelet does the rest
//!                             finalizers? ─▶ deletionTimestamp = now; removing the last one removes the object
//!                             else        ─▶ removed
//! ```
//!
//! Rules: `pkg/registry/rest/delete.go`, `pkg/registry/generic/registry/store.go`, and for pods and
//! namespaces `pkg/registry/core/{pod,namespace}`.

use std::borrow::Cow;

use listwatch_admission::{AdmissionRequest, Operation};
use listwatch_cacher::Scope;
use listwatch_json::{Map, Value};
use listwatch_meta::{Change, Key, ListRequest, Object, ReadAt, Revision, Status, fuel};
use listwatch_storage::{Decision, KeyValue, Step, UpdateLimits, UpdateLoop};
use listwatch_wire::list::ListMeta;
use listwatch_wire::query::list_options;
use time::{Duration, OffsetDateTime};

use super::action::{Action, ActionFuture};
use super::admission::namespace_lifecycle;
use super::options::{DeleteOptions, Propagation};
use super::ownership::ParsedManagedFields;
use super::pipeline::Write;
use super::recent::RecentObject;
use super::request::{WriteBody, WriteRequest, WriteResponse};
use super::request_details::Details;
use super::services;
use super::store::{self, WriteOutcome};
use listwatch_kinds::Deletion;
use listwatch_registry::Resource;
use listwatch_validation::clock::{parse_timestamp, timestamp};
use listwatch_validation::object_meta::{self as meta, FINALIZER_FOREGROUND, FINALIZER_ORPHAN};
use listwatch_validation::{metadata, metadata_mut};

/// Number of objects per page of a deletecollection without a `limit`.
const COLLECTION_PAGE_ITEMS: u64 = 10_000;

/// The result of deleting one object.
#[derive(Debug)]
pub(super) struct Deleted {
    /// The last state of the object, for the response.
    pub(super) object: Object,
    /// Whether the object was removed. False while a finalizer or a grace period delays the removal.
    pub(super) gone: bool,
}

/// The decision how to delete one object.
pub(super) struct DeletionPlan {
    pub(super) decision: Decision,
    /// The state of the object after the decision, for the response.
    shown: Map,
    /// Whether to remove the object directly after it was marked. Watchers receive the marked object first.
    then_remove: bool,
}

/// Whether a deletion runs the admission plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plugins {
    Run,
    Skip,
}

/// A plan, and the managed fields of the object if they were parsed before.
type Planned = (DeletionPlan, Option<ParsedManagedFields>);

/// The action for a DELETE of one object.
pub(super) struct Delete;

impl Action for Delete {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(delete(write, request))
    }
}

/// The action for a DELETE of a collection.
pub(super) struct DeleteCollection;

impl Action for DeleteCollection {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(delete_collection(write, request))
    }
}

/// Deletes the object that the path names.
///
/// # Errors
/// The [`Status`] for the client, such as 409 for a failed precondition.
async fn delete(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let resource = write.resource;
    let options = DeleteOptions::parse(request.query, request.content_type, &request.body)?;
    let name = write.name;
    let key = resource.key(request.namespace, name)?;
    let deleted = write.delete(&key, &options).await?;
    let code = if !deleted.gone && options.orphan_dependents == Some(false) { 202 } else { 200 };
    let body = if deleted.gone && !returns_object(resource) {
        WriteBody::Status(Box::new(Status::deleted(resource.gr(), name, &deleted.object.uid())))
    } else {
        WriteBody::Object(write.cached_form_of(deleted.object).await?)
    };
    Ok(WriteResponse { code, body, warnings: warnings(resource, &options) })
}

/// Returns the warning for a delete of this kind without a propagation policy.
fn warnings(resource: &Resource, options: &DeleteOptions) -> Vec<String> {
    let warning = resource.builtin.and_then(|kind| kind.delete_warning);
    warning.filter(|_| options.propagation.is_none()).map(str::to_owned).into_iter().collect()
}

/// Returns whether a delete without a propagation policy orphans the dependents of this kind
/// (`DefaultGarbageCollectionPolicy`).
fn orphans_by_default(resource: &Resource) -> bool {
    resource.builtin.is_some_and(|kind| kind.orphans_dependents)
}

fn returns_object(resource: &Resource) -> bool {
    resource.builtin.is_some_and(|kind| kind.returns_deleted)
}

impl Write<'_> {
    /// Converts an object in the stored version to the version that caches and responses contain, if a webhook
    /// converts.
    async fn cached_form_of(&self, object: Object) -> Result<Object, Status> {
        let resource = self.resource;
        if !resource.converts_by_webhook() {
            return Ok(object);
        }
        let value = store::cached_form(resource, object.json(), self.context.deadline).await?;
        store::object(resource, object.key(), object.revision(), object.change(), &value)
    }

    /// Deletes one object. If finalizers or a grace period delay the removal, only marks the object.
    ///
    /// # Errors
    /// 404 when the object does not exist, 409 when a precondition fails, 403 for a protected namespace.
    pub(super) async fn delete(&self, key: &Key, options: &DeleteOptions) -> Result<Deleted, Status> {
        self.delete_with(key, options, Plugins::Run).await
    }

    /// Deletes one object like [`Write::delete`], without the admission plugins.
    ///
    /// # Errors
    /// The errors of [`Write::delete`].
    pub(super) async fn delete_without_admission(&self, key: &Key, options: &DeleteOptions) -> Result<Deleted, Status> {
        self.delete_with(key, options, Plugins::Skip).await
    }

    async fn delete_with(&self, key: &Key, options: &DeleteOptions, plugins: Plugins) -> Result<Deleted, Status> {
        let resource = self.resource;
        let (done, plan) = self.try_delete(key, options, plugins).await?;
        let Some((DeletionPlan { shown, then_remove, .. }, managed)) = plan else {
            return Err(Status::not_found(resource.gr(), key.name()));
        };
        let revision = match &done {
            WriteOutcome::Updated { revision, .. } => *revision,
            WriteOutcome::Unchanged(found) => found.modified,
            WriteOutcome::Deleted { previous, revision } => revision.unwrap_or(previous.modified),
            WriteOutcome::Created { .. } | WriteOutcome::Absent => {
                return Err(Status::not_found(resource.gr(), key.name()));
            }
        };
        let mut gone = matches!(done, WriteOutcome::Deleted { .. });
        let mut revision = revision;
        if then_remove {
            gone = true;
            if !options.dry_run {
                let uid = meta::text(metadata(&shown), "uid").to_owned();
                if let Some(at) = self.remove_marked(key, &uid).await? {
                    revision = at;
                }
            }
        }
        if let (WriteOutcome::Updated { value, .. }, false, false) = (&done, gone, options.dry_run) {
            let object = store::written_object(self.backend, resource, key, revision, Change::Modified, value)?;
            let value = if store::has_stored_form(resource, &object) { object.json() } else { value.clone() };
            self.keep(key, revision, value, RecentObject { tree: shown, managed });
            return Ok(Deleted { object, gone });
        }
        let change = if gone { Change::Deleted } else { Change::Modified };
        let object = store::object(resource, key, revision, change, &store::encode(&shown))?;
        Ok(Deleted { object, gone })
    }

    /// Deletes an object with retries after conflicts. After each conflict, preconditions and admission check the new
    /// state. The deleted state has therefore always passed both (`deleteValidation` of `GuaranteedUpdate` and
    /// `Delete`).
    async fn try_delete(
        &self,
        key: &Key,
        options: &DeleteOptions,
        plugins: Plugins,
    ) -> Result<(WriteOutcome, Option<Planned>), Status> {
        let (backend, resource) = (self.backend, self.resource);
        let storage = &**backend.storage();
        let suggestion = if options.dry_run { None } else { store::suggestion(backend, resource, key) };
        let mut update = UpdateLoop::new(key.clone(), suggestion, UpdateLimits::default());
        let mut plan = None;
        let mut current = None;
        let outcome = loop {
            let Some(step) = update.step() else {
                return Err(Status::internal("the deletion ended without a result"));
            };
            let ended = match step {
                Step::Read => update.read(storage.get(key).await.map(|(found, _)| found)),
                Step::Decide(found) => {
                    let planned = self.plan_present(key, options, found.as_ref(), plugins).await;
                    // Without fuel neither the plan nor its error counts.
                    let planned = if fuel::is_exhausted() { Err(Status::request_timed_out()) } else { planned };
                    current = found;
                    update.decided(planned.map(|planned| plan.insert(planned).0.decision.clone()))
                }
                Step::Update { expected, value, .. } if options.dry_run => {
                    store::check_size(&value)?;
                    return Ok((WriteOutcome::Updated { value, revision: expected }, plan));
                }
                Step::Delete { .. } if options.dry_run => {
                    let done = current
                        .map_or(WriteOutcome::Absent, |previous| WriteOutcome::Deleted { previous, revision: None });
                    return Ok((done, plan));
                }
                Step::Update { expected, value, ttl } => {
                    update.updated(storage.update(key, expected, value, ttl).await)
                }
                Step::Delete { expected } => update.deleted(self.delete_stored(key, expected, current.as_ref()).await),
                Step::Create { .. } => return Err(Status::internal("a deletion cannot create an object")),
            };
            if let Some(outcome) = ended {
                break outcome;
            }
        };
        store::done(outcome, "update", resource).map(|done| (done, plan))
    }

    /// Decides how to delete the current object. Checks preconditions and runs admission.
    async fn plan_present(
        &self,
        key: &Key,
        options: &DeleteOptions,
        found: Option<&KeyValue>,
        plugins: Plugins,
    ) -> Result<Planned, Status> {
        let found = found.ok_or_else(|| Status::not_found(self.resource.gr(), key.name()))?;
        let RecentObject { tree: object, managed } = store::take_or_parse(self.recent, self.resource, found)?.object;
        self.check_deletion(&object, found, options)?;
        if plugins == Plugins::Run && !is_pending(self.resource, &object, options) {
            self.admit_deletion(key, &object, found.modified, options).await?;
        }
        Ok((plan_deletion(self.resource, object, options, self.clock.time())?, managed))
    }

    /// Runs the admission plugins that handle deletions of this resource. `revision` is the revision of the object.
    async fn admit_deletion(
        &self,
        key: &Key,
        object: &Map,
        revision: Revision,
        options: &DeleteOptions,
    ) -> Result<(), Status> {
        let resource = self.resource;
        // Plugins see a custom resource in the version of the request, as on update.
        let object = match resource.custom && (resource.converts_by_webhook() || !resource.is_as_cached()) {
            true => resource.read_stored(object, self.context.deadline).await?,
            false => Cow::Borrowed(object),
        };
        let details = Details {
            operation: Operation::Delete,
            body: None,
            deletion: Some(options),
            dry_run: options.dry_run,
            revision: Some(revision),
            ..self.details(None)
        };
        let request = AdmissionRequest {
            subresource: None,
            namespace: Some(key.namespace()).filter(|namespace| !namespace.is_empty()),
            dry_run: options.dry_run,
            ..self.admission_request(self.name, Some(&object), &details)
        };
        self.admission.admit_deletion(&request, &object).await
    }

    /// Removes a marked object, unless another request has removed or replaced the object. Returns the revision of the
    /// removal. Only pods are removed in this way: other kinds have no grace period.
    async fn remove_marked(&self, key: &Key, uid: &str) -> Result<Option<Revision>, Status> {
        debug_assert!(!services::is_service(self.resource), "the removal does not release the values of a service");
        let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
            let Some(found) = found else { return Ok(Decision::Nothing) };
            Ok(if store::uid_of(found)? == uid { Decision::Delete } else { Decision::Nothing })
        };
        match store::run(self.backend, self.resource, key, false, decide).await? {
            WriteOutcome::Deleted { revision, .. } => Ok(revision),
            _ => Ok(None),
        }
    }

    /// Checks the preconditions, and that the object is not a protected namespace.
    ///
    /// # Errors
    /// 409 when a precondition fails, 403 for a protected namespace.
    pub(super) fn check_deletion(&self, object: &Map, found: &KeyValue, options: &DeleteOptions) -> Result<(), Status> {
        let metadata = metadata(object);
        let name = meta::text(metadata, "name");
        let uid = meta::text(metadata, "uid");
        let version = found.modified.to_string();
        if is_namespace(self.resource) || self.backend.definitions().is_resource(self.resource) {
            // kube-apiserver checks these kinds before the store does, with other texts.
            let failed = |what: &str, wanted: &str, found: &str| {
                Status::conflict(
                    self.resource.gr(),
                    name,
                    format_args!(
                        "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
                    ),
                )
            };
            if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
                return Err(failed("UID", wanted, uid));
            }
            if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| *wanted != version) {
                return Err(failed("ResourceVersion", wanted, &version));
            }
        }
        // kube-apiserver puts the kind in place of the resource in this error.
        let gr = listwatch_meta::GroupResource { group: &self.resource.group, resource: &self.resource.kind };
        if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
            return Err(Status::conflict(
                gr,
                name,
                format_args!(
                    "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
                ),
            ));
        }
        if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| *wanted != version) {
            return Err(Status::conflict(
                gr,
                name,
                format_args!(
                    "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
                ),
            ));
        }
        namespace_lifecycle::check_delete(self.resource, name)
    }
}

/// Decides how to delete one object at the time `now`. Performs no I/O.
pub(super) fn plan_deletion(
    resource: &Resource,
    mut object: Map,
    options: &DeleteOptions,
    now: OffsetDateTime,
) -> Result<DeletionPlan, Status> {
    match resource.strategy.begin_deletion(&mut object, &timestamp(now)) {
        Deletion::Unmarked => {}
        Deletion::Marked => {
            if is_namespace(resource) {
                set_namespace_finalizers(metadata_mut(&mut object), options);
            }
            order_metadata(&mut object);
            let decision = Decision::Write { value: store::encode(&object), ttl: None };
            return Ok(DeletionPlan { decision, shown: object, then_remove: false });
        }
        Deletion::Pending => {
            return Ok(DeletionPlan { decision: Decision::Nothing, shown: object, then_remove: false });
        }
    }
    let before = object.clone();
    let grace = if resource.rules.graceful_delete { grace(&object, options) } else { Grace::None };
    let plan = |object: Map, then_remove: bool| DeletionPlan {
        decision: if object == before {
            Decision::Nothing
        } else {
            Decision::Write { value: store::encode(&object), ttl: resource.ttl() }
        },
        shown: object,
        then_remove,
    };
    if grace == Grace::Pending {
        return Ok(plan(object, false));
    }
    let held = set_finalizers(resource, metadata_mut(&mut object), options);
    if let Grace::Seconds(seconds) = grace {
        mark_gracefully(metadata_mut(&mut object), seconds, now);
        order_metadata(&mut object);
        return Ok(plan(object, seconds == 0 && !held));
    }
    if held {
        mark(metadata_mut(&mut object), now);
        order_metadata(&mut object);
        return Ok(plan(object, false));
    }
    Ok(DeletionPlan { decision: Decision::Delete, shown: object, then_remove: false })
}

fn is_namespace(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "namespaces"
}

/// Whether the object is being deleted, and the delete changes nothing. kube-apiserver then returns the object without a
/// call of admission plugins (`pendingGraceful` of `Store.Delete`; `REST.Delete` of namespaces).
fn is_pending(resource: &Resource, object: &Map, options: &DeleteOptions) -> bool {
    let deleting = || meta::is_set(metadata(object), "deletionTimestamp");
    (resource.rules.graceful_delete && grace(object, options) == Grace::Pending)
        || (resource.strategy.holds_deletion(object) && deleting())
}

/// The effect of a delete on the grace period of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grace {
    /// The kind has no grace period, or the grace period is over.
    None,
    /// The object is being deleted, and this request does not shorten the grace period.
    Pending,
    /// The new grace period in seconds, counted from the first delete request.
    Seconds(i64),
}

/// Computes the grace period of a pod (`podStrategy.CheckGracefulDelete`, `rest.BeforeDelete`).
fn grace(pod: &Map, options: &DeleteOptions) -> Grace {
    let metadata = metadata(pod);
    if meta::is_set(metadata, "deletionTimestamp") {
        // A request can shorten a running grace period, but not extend one.
        let running = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        return match options.grace_period_seconds {
            _ if running == 0 => Grace::None,
            Some(seconds) if seconds < running => Grace::Seconds(seconds),
            _ => Grace::Pending,
        };
    }
    let spec = |field: &str| pod.get("spec").and_then(|spec| spec.get(field));
    let bound = spec("nodeName").and_then(Value::as_str).is_some_and(|node| !node.is_empty());
    let phase = pod.get("status").and_then(|status| status.get("phase")).and_then(Value::as_str);
    if !bound || matches!(phase, Some("Failed" | "Succeeded")) {
        // No kubelet runs the pod, so none would remove the pod after a grace period.
        return Grace::Seconds(0);
    }
    let own = spec("terminationGracePeriodSeconds").and_then(Value::as_i64);
    let seconds = options.grace_period_seconds.or(own).unwrap_or(0);
    Grace::Seconds(if seconds < 0 { 1 } else { seconds })
}

fn mark_gracefully(metadata: &mut Map, seconds: i64, now: OffsetDateTime) {
    let running = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    let until = meta::text(metadata, "deletionTimestamp");
    let (until, seconds) = match parse_timestamp(until) {
        None => {
            if metadata.contains_key("generation") {
                meta::raise_generation(metadata);
            }
            (now.saturating_add(Duration::seconds(seconds)), seconds)
        }
        Some(until) => {
            let shortened = until.saturating_add(Duration::seconds(seconds.saturating_sub(running)));
            // `deletionTimestamp` is never in the past; an expired grace period becomes at most 1 second.
            if shortened < now { (now, seconds.min(1)) } else { (shortened, seconds) }
        }
    };
    metadata.insert("deletionTimestamp", Value::from(timestamp(until)));
    metadata.insert("deletionGracePeriodSeconds", Value::Number(seconds.into()));
}

/// Marks an object for deletion while finalizers remain (`markAsDeleting`).
fn mark(metadata: &mut Map, now: OffsetDateTime) {
    let until = parse_timestamp(meta::text(metadata, "deletionTimestamp"));
    if until.is_none() && metadata.contains_key("generation") {
        meta::raise_generation(metadata);
    }
    if until.is_none_or(|until| until > now) {
        metadata.insert("deletionTimestamp", Value::from(timestamp(now)));
    }
    metadata.insert("deletionGracePeriodSeconds", Value::Number(0.into()));
}

/// Sets the garbage collector's finalizers according to the options. Returns whether any finalizer remains.
fn set_finalizers(resource: &Resource, metadata: &mut Map, options: &DeleteOptions) -> bool {
    // The garbage collector ignores events, which have no owners and no dependents.
    let collected = !matches!((resource.group.as_str(), resource.plural.as_str()), ("" | "events.k8s.io", "events"));
    if collected {
        let wanted = match options.propagation {
            Some(Propagation::Orphan) => Some(FINALIZER_ORPHAN),
            Some(Propagation::Foreground) => Some(FINALIZER_FOREGROUND),
            Some(Propagation::Background) => None,
            // Without a policy, the finalizers of the object decide, then the default of the kind.
            None => meta::finalizers(metadata)
                .into_iter()
                .find_map(|name| [FINALIZER_ORPHAN, FINALIZER_FOREGROUND].into_iter().find(|known| *known == name))
                .or(orphans_by_default(resource).then_some(FINALIZER_ORPHAN)),
        };
        replace_collector_finalizers(metadata, wanted);
    }
    !meta::finalizers(metadata).is_empty()
}

/// Sets the garbage collector's finalizers of a namespace that is marked for deletion. Without an option, the finalizers
/// of the namespace stay (`shouldHaveOrphanFinalizer` of `pkg/registry/core/namespace/storage`).
fn set_namespace_finalizers(metadata: &mut Map, options: &DeleteOptions) {
    let wanted = match (options.orphan_dependents, options.propagation) {
        (Some(true), _) => Some(FINALIZER_ORPHAN),
        (Some(false), _) => Some(FINALIZER_FOREGROUND),
        (None, Some(Propagation::Orphan)) => Some(FINALIZER_ORPHAN),
        (None, Some(Propagation::Foreground)) => Some(FINALIZER_FOREGROUND),
        (None, Some(Propagation::Background)) => None,
        (None, None) => return,
    };
    replace_collector_finalizers(metadata, wanted);
}

/// Removes the garbage collector's finalizers except `wanted`, and adds `wanted`.
fn replace_collector_finalizers(metadata: &mut Map, wanted: Option<&str>) {
    if let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers") {
        finalizers.retain(|name| {
            let collectors = *name == FINALIZER_ORPHAN || *name == FINALIZER_FOREGROUND;
            !collectors || wanted.is_some_and(|wanted| *name == wanted)
        });
        if finalizers.is_empty() {
            metadata.shift_remove("finalizers");
        }
    }
    if let Some(wanted) = wanted {
        add_finalizer(metadata, wanted);
    }
}

fn add_finalizer(metadata: &mut Map, name: &str) {
    if meta::finalizers(metadata).contains(&name) {
        return;
    }
    let finalizers = metadata.entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(finalizers) = finalizers {
        finalizers.push(Value::from(name));
    }
}

fn order_metadata(object: &mut Map) {
    let metadata = std::mem::take(metadata_mut(object));
    *metadata_mut(object) = meta::canonical(metadata);
}

/// Deletes each object of a collection. The UID of each object is a precondition, so that a new object of the same name
/// is not deleted. The deletion is not atomic: watchers receive one event per object. As in upstream's
/// `Store.DeleteCollection`, an object that is already gone is skipped, and any other failure ends the deletion.
///
/// # Errors
/// The [`Status`] for the client. Objects deleted before the error stay deleted.
async fn delete_collection(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let resource = write.resource;
    let options = DeleteOptions::parse(request.query, request.content_type, &request.body)?;
    let (listing, _) = list_options(request.query)?;
    let listing = listing.list(&resource.shape)?;
    let scope = match request.namespace.filter(|_| resource.namespaced) {
        Some(namespace) => Scope::Namespace(namespace.to_owned()),
        None => Scope::All,
    };
    let one_page = listing.limit.is_some();
    let mut page = ListRequest { limit: listing.limit.or(Some(COLLECTION_PAGE_ITEMS)), ..listing };
    let mut removed = Vec::new();
    let mut meta = None;
    loop {
        let list =
            write.backend.cacher(resource).list(&scope, &page).await.map_err(|error| error.status(resource.gr()))?;
        meta.get_or_insert_with(|| ListMeta {
            api_version: resource.api_version(),
            kind: resource.list_kind.clone(),
            resource_version: list.revision.to_string(),
            continue_token: list.continue_token.clone().filter(|_| one_page).unwrap_or_default(),
            remaining_item_count: list.remaining.filter(|_| one_page).and_then(|count| i64::try_from(count).ok()),
            shard_selector: page.shard.as_ref().map(ToString::to_string).unwrap_or_default(),
        });
        for object in list.items {
            let uid = Some(object.uid().into_owned()).filter(|uid| !uid.is_empty());
            // A precondition of the client applies to every object.
            let own = DeleteOptions { uid: options.uid.clone().or(uid), ..options.clone() };
            match write.delete(object.key(), &own).await {
                Ok(_) => {}
                // Another client deleted or replaced the object first.
                Err(status) if status.code == 404 => continue,
                Err(status) if status.code == 409 && options.uid.is_none() && is_replaced(write, &object).await? => {
                    continue;
                }
                Err(status) => return Err(status),
            }
            removed.push(object);
        }
        let Some(token) = list.continue_token.filter(|_| !one_page) else { break };
        let token = listwatch_meta::ContinueToken::decode(&token).map_err(Status::internal)?;
        page.at = token.at.map_or(ReadAt::MostRecent, ReadAt::Exact);
        page.resume = Some(token);
    }
    let body = WriteBody::List(meta.unwrap_or_default(), removed);
    Ok(WriteResponse { code: 200, body, warnings: warnings(resource, &options) })
}

/// Returns whether a listed object no longer exists, or an object with another UID has its name.
async fn is_replaced(write: &Write<'_>, listed: &Object) -> Result<bool, Status> {
    let cacher = write.backend.cacher(write.resource);
    let found =
        cacher.get(listed.key(), ReadAt::MostRecent).await.map_err(|error| error.status(write.resource.gr()))?;
    Ok(found.is_none_or(|found| found.uid() != listed.uid()))
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;
    use listwatch_registry::Registry;

    const NOW: &str = "2024-01-01T00:00:00Z";

    /// Asserts the decision and the resulting metadata of one delete.
    fn check(plural: &str, object: Value, query: &str, expected: &str) {
        let registry = Registry::builtin();
        let group = if plural == "jobs" { "batch" } else { "" };
        let resource = registry.find(group, "v1", plural).unwrap();
        let options = DeleteOptions::parse(&listwatch_wire::query::Query::parse(query), None, b"").unwrap();
        let Value::Object(object) = object else { panic!("not an object") };
        let now = parse_timestamp(NOW).unwrap();
        let plan = plan_deletion(resource, object, &options, now).unwrap();
        let decision = match plan.decision {
            Decision::Write { .. } if plan.then_remove => "write, remove",
            Decision::Write { .. } => "write",
            Decision::Delete => "remove",
            Decision::Nothing => "nothing",
        };
        let shown = format!("{decision} {}", Value::Object(metadata(&plan.shown).clone()));
        assert_eq!(shown, expected);
    }

    #[test]
    fn delete_of_object_with_finalizers_only_sets_deletion_timestamp() {
        let object = |metadata: Value| json!({"metadata": metadata});
        check("configmaps", object(json!({"name": "a"})), "", r#"remove {"name":"a"}"#);
        check(
            "configmaps",
            object(json!({"name": "a", "generation": 1, "finalizers": ["x/y"]})),
            "",
            r#"write {"name":"a","generation":2,"deletionTimestamp":"2024-01-01T00:00:00Z","deletionGracePeriodSeconds":0,"finalizers":["x/y"]}"#,
        );
        check(
            "configmaps",
            object(
                json!({"name": "a", "deletionTimestamp": "2023-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0, "finalizers": ["x/y"]}),
            ),
            "",
            r#"nothing {"name":"a","deletionTimestamp":"2023-01-01T00:00:00Z","deletionGracePeriodSeconds":0,"finalizers":["x/y"]}"#,
        );
    }

    #[test]
    fn delete_with_propagation_policy_sets_matching_finalizer() {
        let object = || json!({"metadata": {"name": "a"}});
        let marked = r#""deletionTimestamp":"2024-01-01T00:00:00Z","deletionGracePeriodSeconds":0"#;
        let orphan = format!(r#"write {{"name":"a",{marked},"finalizers":["orphan"]}}"#);
        check("configmaps", object(), "propagationPolicy=Orphan", &orphan);
        check("configmaps", object(), "orphanDependents=true", &orphan);
        let foreground = format!(r#"write {{"name":"a",{marked},"finalizers":["foregroundDeletion"]}}"#);
        check("configmaps", object(), "propagationPolicy=Foreground", &foreground);
        let orphaned = json!({"metadata": {"name": "a", "finalizers": ["orphan"]}});
        check("configmaps", orphaned.clone(), "propagationPolicy=Foreground", &foreground);
        check("configmaps", orphaned.clone(), "propagationPolicy=Background", r#"remove {"name":"a"}"#);
        check("configmaps", orphaned, "", &orphan);
        check("events", object(), "propagationPolicy=Orphan", r#"remove {"name":"a"}"#);
    }

    #[test]
    fn delete_of_job_orphans_its_pods_by_default() {
        let object = || json!({"metadata": {"name": "a"}});
        let held = |finalizer: &str| {
            format!(
                r#"write {{"name":"a","deletionTimestamp":"2024-01-01T00:00:00Z","deletionGracePeriodSeconds":0,"finalizers":["{finalizer}"]}}"#
            )
        };
        let gone = r#"remove {"name":"a"}"#;
        for plural in ["jobs", "replicationcontrollers"] {
            check(plural, object(), "", &held("orphan"));
            check(plural, object(), "propagationPolicy=Background", gone);
            check(plural, object(), "orphanDependents=false", gone);
            check(plural, object(), "propagationPolicy=Foreground", &held("foregroundDeletion"));
            let foreground = json!({"metadata": {"name": "a", "finalizers": ["foregroundDeletion"]}});
            check(plural, foreground, "", &held("foregroundDeletion"));
        }
        check("podtemplates", object(), "", gone);
    }

    #[test]
    fn delete_of_pod_waits_for_grace_period_only_if_bound_to_a_node() {
        let pod = |metadata: Value, spec: Value| json!({"metadata": metadata, "spec": spec});
        let bound = || json!({"nodeName": "n", "terminationGracePeriodSeconds": 30});
        let name = || json!({"name": "p", "generation": 1});
        check(
            "pods",
            pod(name(), json!({"terminationGracePeriodSeconds": 30})),
            "",
            r#"write, remove {"name":"p","generation":2,"deletionTimestamp":"2024-01-01T00:00:00Z","deletionGracePeriodSeconds":0}"#,
        );
        check(
            "pods",
            pod(name(), bound()),
            "",
            r#"write {"name":"p","generation":2,"deletionTimestamp":"2024-01-01T00:00:30Z","deletionGracePeriodSeconds":30}"#,
        );
        check(
            "pods",
            pod(name(), bound()),
            "gracePeriodSeconds=0",
            r#"write, remove {"name":"p","generation":2,"deletionTimestamp":"2024-01-01T00:00:00Z","deletionGracePeriodSeconds":0}"#,
        );
        let running = || json!({"name": "p", "generation": 2, "deletionTimestamp": "2024-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30});
        check(
            "pods",
            pod(running(), bound()),
            "gracePeriodSeconds=5",
            r#"write {"name":"p","generation":2,"deletionTimestamp":"2024-01-01T00:00:05Z","deletionGracePeriodSeconds":5}"#,
        );
        for longer in ["", "gracePeriodSeconds=60"] {
            check(
                "pods",
                pod(running(), bound()),
                longer,
                r#"nothing {"name":"p","generation":2,"deletionTimestamp":"2024-01-01T00:00:30Z","deletionGracePeriodSeconds":30}"#,
            );
        }
        check(
            "pods",
            pod(running(), bound()),
            "gracePeriodSeconds=0",
            r#"write, remove {"name":"p","generation":2,"deletionTimestamp":"2024-01-01T00:00:00Z","deletionGracePeriodSeconds":0}"#,
        );
        let held = json!({"name": "p", "finalizers": ["x/y"]});
        check(
            "pods",
            pod(held, json!({})),
            "",
            r#"write {"name":"p","deletionTimestamp":"2024-01-01T00:00:00Z","deletionGracePeriodSeconds":0,"finalizers":["x/y"]}"#,
        );
    }

    #[test]
    fn delete_of_namespace_with_spec_finalizers_only_marks_it() {
        let namespace =
            |metadata: Value, finalizers: Value| json!({"metadata": metadata, "spec": {"finalizers": finalizers}});
        check(
            "namespaces",
            namespace(json!({"name": "n"}), json!(["kubernetes"])),
            "",
            r#"write {"name":"n","deletionTimestamp":"2024-01-01T00:00:00Z"}"#,
        );
        let marked = |query: &str, finalizers: &str| {
            let namespace = namespace(json!({"name": "n", "finalizers": ["orphan", "x/y"]}), json!(["kubernetes"]));
            let expected = format!(
                r#"write {{"name":"n","deletionTimestamp":"2024-01-01T00:00:00Z","finalizers":[{finalizers}]}}"#
            );
            check("namespaces", namespace, query, &expected);
        };
        marked("", r#""orphan","x/y""#);
        marked("propagationPolicy=Orphan", r#""orphan","x/y""#);
        marked("propagationPolicy=Background", r#""x/y""#);
        marked("propagationPolicy=Foreground", r#""x/y","foregroundDeletion""#);
        marked("orphanDependents=false", r#""x/y","foregroundDeletion""#);
        let terminating = || json!({"name": "n", "deletionTimestamp": "2023-01-01T00:00:00Z"});
        check(
            "namespaces",
            namespace(terminating(), json!(["kubernetes"])),
            "",
            r#"nothing {"name":"n","deletionTimestamp":"2023-01-01T00:00:00Z"}"#,
        );
        check(
            "namespaces",
            namespace(terminating(), json!([])),
            "",
            r#"remove {"name":"n","deletionTimestamp":"2023-01-01T00:00:00Z"}"#,
        );
    }
}
