//! DELETE of an object and of a collection.
//!
//! ```text
//!  DELETE ─▶ preconditions ─▶ namespace?  ─▶ Terminating; the built-in loop does the rest
//!                             definition? ─▶ a finalizer; the built-in loop removes its objects first
//!                             pod, bound? ─▶ deletionTimestamp = now + grace; its node does the rest
//!                             finalizers? ─▶ deletionTimestamp = now; who removes the last one ends it
//!                             else        ─▶ gone
//! ```
//!
//! Rules: `pkg/registry/rest/delete.go`, `pkg/registry/generic/registry/store.go`, and for pods and
//! namespaces `pkg/registry/core/{pod,namespace}`.

use listwatch_cacher::Scope;
use listwatch_meta::{Change, Key, ListRequest, Object, Status, UserInfo};
use listwatch_storage::{Decision, KeyValue};
use listwatch_wire::list::ListMeta;
use listwatch_wire::query::list_options;
use serde_json::{Map, Value};
use time::{Duration, OffsetDateTime};

use super::admission::{AdmissionRequest, Operation, namespace_lifecycle};
use super::options::{DeleteOptions, Propagation};
use super::store::{self, Done};
use super::{Clock, WriteBody, WriteRequest, WriteResponse, services};
use crate::backend::Backend;
use crate::registry::{Registry, Resource};
use listwatch_kinds::Deletion;
use listwatch_validation::object_meta::{self as meta, FINALIZER_FOREGROUND, FINALIZER_ORPHAN};
use listwatch_validation::{metadata, metadata_mut};

/// A deletecollection without a limit lists so many objects at a time.
const COLLECTION_PAGE_ITEMS: u64 = 10_000;

/// The object to be deleted.
pub(super) struct Target<'a> {
    pub(super) backend: &'a Backend,
    pub(super) registry: &'a Registry,
    pub(super) resource: &'a Resource,
    /// The user who deletes.
    pub(super) user: &'a UserInfo,
    pub(super) clock: &'a Clock,
}

/// What deleting one object came to.
#[derive(Debug)]
pub(super) struct Deleted {
    /// The last state, as the answer shows it.
    pub(super) object: Object,
    /// False while something still holds the object up.
    pub(super) gone: bool,
}

/// What one look at the object decides.
struct Verdict {
    decision: Decision,
    /// The state after it, as the answer shows it.
    shown: Map<String, Value>,
    /// The object was marked only so that watchers see it marked: now it goes.
    then_remove: bool,
}

/// DELETE of one object.
///
/// # Errors
/// The [`Status`] the client is told.
pub(super) async fn delete(
    backend: &Backend,
    request: &WriteRequest<'_>,
    clock: &Clock,
) -> Result<WriteResponse, Status> {
    let resource = &**request.resource;
    let options = DeleteOptions::parse(request.query, request.content_type, &request.body)?;
    let name = request.name.unwrap_or_default();
    let key = resource.key(request.namespace, name)?;
    let registry = backend.registry();
    let target = Target { backend, registry: &registry, resource, user: request.user, clock };
    let deleted = target.delete(&key, &options).await?;
    let code = if !deleted.gone && options.orphan_dependents == Some(false) { 202 } else { 200 };
    let body = if deleted.gone && !returns_object(resource) {
        WriteBody::Status(Box::new(Status::deleted(resource.gr(), name, &deleted.object.uid())))
    } else {
        WriteBody::Object(deleted.object)
    };
    Ok(WriteResponse { code, body, warnings: warnings(resource, &options) })
}

/// What a client is told that deletes objects of the kind without a word about what they own.
fn warnings(resource: &Resource, options: &DeleteOptions) -> Vec<String> {
    let warning = resource.builtin.and_then(|kind| kind.delete_warning);
    warning.filter(|_| options.propagation.is_none()).map(str::to_owned).into_iter().collect()
}

/// Whether objects of the kind leave behind what they own, when the client does not say
/// (`DefaultGarbageCollectionPolicy`).
fn orphans_by_default(resource: &Resource) -> bool {
    resource.builtin.is_some_and(|kind| kind.orphans_dependents)
}

fn returns_object(resource: &Resource) -> bool {
    resource.builtin.is_some_and(|kind| kind.returns_deleted)
}

impl Target<'_> {
    /// Deletes one object, or marks it for those who hold it up.
    ///
    /// # Errors
    /// 404 when it is not there, 409 when a precondition does not hold, 403 when it may not go.
    pub(super) async fn delete(&self, key: &Key, options: &DeleteOptions) -> Result<Deleted, Status> {
        let (backend, resource) = (self.backend, self.resource);
        self.admit(key, options).await?;
        let mut shown = Map::new();
        let mut then_remove = false;
        let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
            let found = found.ok_or_else(|| Status::not_found(resource.gr(), key.name()))?;
            let object = store::parse(found)?;
            self.check(&object, found, options)?;
            let verdict = judge(resource, object, options, self.clock.time())?;
            (shown, then_remove) = (verdict.shown, verdict.then_remove);
            Ok(verdict.decision)
        };
        let done = store::run(backend, resource, key, options.dry_run, decide).await?;
        let revision = match &done {
            Done::Updated { revision, .. } => *revision,
            Done::Unchanged(found) => found.modified,
            Done::Deleted { previous, revision } => revision.unwrap_or(previous.modified),
            Done::Created { .. } | Done::Absent => return Err(Status::not_found(resource.gr(), key.name())),
        };
        let mut gone = matches!(done, Done::Deleted { .. });
        let mut revision = revision;
        if then_remove {
            gone = true;
            if !options.dry_run {
                let uid = meta::text(metadata(&shown), "uid").to_owned();
                revision = self.remove(key, &uid).await?.unwrap_or(revision);
            }
        }
        if gone && !options.dry_run {
            services::release_unused(backend, self.registry, resource, &shown, None, revision).await;
        }
        let change = if gone { Change::Deleted } else { Change::Modified };
        let object = store::object(resource, key, revision, change, &store::encode(&shown))?;
        Ok(Deleted { object, gone })
    }

    /// Asks the validating admission plugins that handle deletions of this resource, if there are any.
    async fn admit(&self, key: &Key, options: &DeleteOptions) -> Result<(), Status> {
        let (backend, resource) = (self.backend, self.resource);
        let request = AdmissionRequest {
            operation: Operation::Delete,
            group: &resource.group,
            version: &resource.version,
            resource: &resource.plural,
            kind: &resource.kind,
            subresource: None,
            namespace: Some(key.namespace()).filter(|namespace| !namespace.is_empty()),
            name: key.name(),
            user: self.user,
            dry_run: options.dry_run,
            old_object: None,
            objects: backend,
        };
        if !backend.admission().validates(&request) {
            return Ok(());
        }
        let found = backend.storage().get(key).await;
        let (found, _) = found.map_err(|error| store::read_failed(&error, resource.gr()))?;
        // The deletion itself answers for an absent object.
        let Some(found) = found else { return Ok(()) };
        let object = store::parse(&found)?;
        let request = AdmissionRequest { old_object: Some(&object), ..request };
        backend.admission().validate(&request, &object).await
    }

    /// Removes what was marked, unless it is gone or another object took its place.
    async fn remove(&self, key: &Key, uid: &str) -> Result<Option<listwatch_meta::Revision>, Status> {
        let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
            let Some(found) = found else { return Ok(Decision::Nothing) };
            let same = meta::text(metadata(&store::parse(found)?), "uid") == uid;
            Ok(if same { Decision::Delete } else { Decision::Nothing })
        };
        match store::run(self.backend, self.resource, key, false, decide).await? {
            Done::Deleted { revision, .. } => Ok(revision),
            _ => Ok(None),
        }
    }

    /// Do the preconditions hold, and may it go at all?
    ///
    /// # Errors
    /// 409 when a precondition does not hold, 403 for a namespace that stays.
    pub(super) fn check(
        &self,
        object: &Map<String, Value>,
        found: &KeyValue,
        options: &DeleteOptions,
    ) -> Result<(), Status> {
        let metadata = metadata(object);
        let name = meta::text(metadata, "name");
        // The kind stands where the resource should: so it is in kube-apiserver's answer.
        let gr = listwatch_meta::GroupResource { group: &self.resource.group, resource: &self.resource.kind };
        let uid = meta::text(metadata, "uid");
        if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
            return Err(Status::conflict(
                gr,
                name,
                format_args!(
                    "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
                ),
            ));
        }
        let version = found.modified.to_string();
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

/// Decides about one object, as of `now`. Pure.
fn judge(
    resource: &Resource,
    mut object: Map<String, Value>,
    options: &DeleteOptions,
    now: OffsetDateTime,
) -> Result<Verdict, Status> {
    match resource.strategy.begin_deletion(&mut object, &super::timestamp(now)) {
        Deletion::Unheld => {}
        Deletion::Marked => {
            if options.propagation == Some(Propagation::Orphan) {
                add_finalizer(metadata_mut(&mut object), FINALIZER_ORPHAN);
            }
            order_metadata(&mut object);
            let decision = Decision::Write { value: store::encode(&object), ttl: None };
            return Ok(Verdict { decision, shown: object, then_remove: false });
        }
        Deletion::Pending => return Ok(Verdict { decision: Decision::Nothing, shown: object, then_remove: false }),
    }
    let before = object.clone();
    let grace = if resource.rules.graceful_delete { grace(&object, options) } else { Grace::None };
    let verdict = |object: Map<String, Value>, then_remove: bool| Verdict {
        decision: if object == before {
            Decision::Nothing
        } else {
            Decision::Write { value: store::encode(&object), ttl: super::create::ttl(resource) }
        },
        shown: object,
        then_remove,
    };
    if grace == Grace::Pending {
        return Ok(verdict(object, false));
    }
    let held = set_finalizers(resource, metadata_mut(&mut object), options);
    if let Grace::Seconds(seconds) = grace {
        mark_gracefully(metadata_mut(&mut object), seconds, now);
        order_metadata(&mut object);
        return Ok(verdict(object, seconds == 0 && !held));
    }
    if held {
        mark(metadata_mut(&mut object), now);
        order_metadata(&mut object);
        return Ok(verdict(object, false));
    }
    Ok(Verdict { decision: Decision::Delete, shown: object, then_remove: false })
}

/// What is to be said about the grace of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grace {
    /// The kind knows no grace, or its grace is over.
    None,
    /// It is being deleted, and this request changes nothing about it.
    Pending,
    /// So many seconds from now, or (when it is being deleted) from when it began.
    Seconds(i64),
}

/// The grace of a pod (`podStrategy.CheckGracefulDelete`, `rest.BeforeDelete`).
fn grace(pod: &Map<String, Value>, options: &DeleteOptions) -> Grace {
    let metadata = metadata(pod);
    if meta::is_set(metadata, "deletionTimestamp") {
        // Only a shorter grace may be asked for, once it runs.
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
        // Nobody runs it, so nobody would end it.
        return Grace::Seconds(0);
    }
    let own = spec("terminationGracePeriodSeconds").and_then(Value::as_i64);
    let seconds = options.grace_period_seconds.or(own).unwrap_or(0);
    Grace::Seconds(if seconds < 0 { 1 } else { seconds })
}

fn mark_gracefully(metadata: &mut Map<String, Value>, seconds: i64, now: OffsetDateTime) {
    let running = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    let until = meta::text(metadata, "deletionTimestamp");
    let (until, seconds) = match super::parse_timestamp(until) {
        None => {
            if metadata.contains_key("generation") {
                meta::raise_generation(metadata);
            }
            (now.saturating_add(Duration::seconds(seconds)), seconds)
        }
        Some(until) => {
            let shortened = until.saturating_add(Duration::seconds(seconds.saturating_sub(running)));
            // The end never lies in the past; a graceful end leaves at least a second.
            if shortened < now { (now, seconds.min(1)) } else { (shortened, seconds) }
        }
    };
    metadata.insert("deletionTimestamp".to_owned(), Value::String(super::timestamp(until)));
    metadata.insert("deletionGracePeriodSeconds".to_owned(), Value::Number(seconds.into()));
}

/// Marks an object that finalizers hold up (`markAsDeleting`).
fn mark(metadata: &mut Map<String, Value>, now: OffsetDateTime) {
    let until = super::parse_timestamp(meta::text(metadata, "deletionTimestamp"));
    if until.is_none() && metadata.contains_key("generation") {
        meta::raise_generation(metadata);
    }
    if until.is_none_or(|until| until > now) {
        metadata.insert("deletionTimestamp".to_owned(), Value::String(super::timestamp(now)));
    }
    metadata.insert("deletionGracePeriodSeconds".to_owned(), Value::Number(0.into()));
}

/// Sets the garbage collector's finalizers as the options say. True when any finalizer remains.
fn set_finalizers(resource: &Resource, metadata: &mut Map<String, Value>, options: &DeleteOptions) -> bool {
    // Events own nothing and are owned by nothing: the garbage collector does not look at them.
    let collected = !matches!((resource.group.as_str(), resource.plural.as_str()), ("" | "events.k8s.io", "events"));
    if collected {
        let wanted = match options.propagation {
            Some(Propagation::Orphan) => Some(FINALIZER_ORPHAN),
            Some(Propagation::Foreground) => Some(FINALIZER_FOREGROUND),
            Some(Propagation::Background) => None,
            // Without a word, what the object says counts, and then what is usual for its kind.
            None => meta::finalizers(metadata)
                .into_iter()
                .find_map(|name| [FINALIZER_ORPHAN, FINALIZER_FOREGROUND].into_iter().find(|known| *known == name))
                .or(orphans_by_default(resource).then_some(FINALIZER_ORPHAN)),
        };
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
    !meta::finalizers(metadata).is_empty()
}

fn add_finalizer(metadata: &mut Map<String, Value>, name: &str) {
    if meta::finalizers(metadata).contains(&name) {
        return;
    }
    let finalizers = metadata.entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(finalizers) = finalizers {
        finalizers.push(Value::String(name.to_owned()));
    }
}

fn order_metadata(object: &mut Map<String, Value>) {
    let metadata = std::mem::take(metadata_mut(object));
    *metadata_mut(object) = meta::canonical(metadata);
}

/// DELETE of a collection: each object on its own, by uid, so that one that was replaced meanwhile
/// stays. Not atomic; watchers see each deletion.
///
/// # Errors
/// The [`Status`] the client is told; what was deleted until then stays deleted.
pub(super) async fn delete_collection(
    backend: &Backend,
    request: &WriteRequest<'_>,
    clock: &Clock,
) -> Result<WriteResponse, Status> {
    let resource = &**request.resource;
    let options = DeleteOptions::parse(request.query, request.content_type, &request.body)?;
    let (listing, _) = list_options(request.query)?;
    let listing = listing.list(&resource.shape)?;
    let registry = backend.registry();
    let target = Target { backend, registry: &registry, resource, user: request.user, clock };
    let scope = match request.namespace.filter(|_| resource.namespaced) {
        Some(namespace) => Scope::Namespace(namespace.to_owned()),
        None => Scope::All,
    };
    let one_page = listing.limit.is_some();
    let mut page = ListRequest { limit: listing.limit.or(Some(COLLECTION_PAGE_ITEMS)), ..listing };
    let mut removed = Vec::new();
    let mut meta = None;
    loop {
        let list = backend.cacher(resource).list(&scope, &page).await.map_err(|error| error.status(resource.gr()))?;
        meta.get_or_insert_with(|| ListMeta {
            api_version: resource.api_version(),
            kind: resource.list_kind.clone(),
            resource_version: list.revision.to_string(),
            continue_token: list.continue_token.clone().filter(|_| one_page).unwrap_or_default(),
            remaining_item_count: list.remaining.filter(|_| one_page).and_then(|count| i64::try_from(count).ok()),
            shard_selector: page.shard.as_ref().map(ToString::to_string).unwrap_or_default(),
        });
        for object in list.items {
            let uid = object.uid().into_owned();
            let own = DeleteOptions { uid: Some(uid).filter(|uid| !uid.is_empty()), ..options.clone() };
            match target.delete(object.key(), &own).await {
                Ok(_) => {}
                // Somebody was faster, or it is another object now.
                Err(status) if status.code == 404 => continue,
                Err(status) if status.code == 409 && options.uid.is_none() => continue,
                Err(status) => return Err(status),
            }
            removed.push(object);
        }
        let Some(token) = list.continue_token.filter(|_| !one_page) else { break };
        let token = listwatch_meta::ContinueToken::decode(&token).map_err(Status::internal)?;
        page.at = token.at.map_or(listwatch_meta::ReadAt::MostRecent, listwatch_meta::ReadAt::Exact);
        page.resume = Some(token);
    }
    let body = WriteBody::List(meta.unwrap_or_default(), removed);
    Ok(WriteResponse { code: 200, body, warnings: warnings(resource, &options) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::Registry;

    const NOW: &str = "2024-01-01T00:00:00Z";

    /// Judges a pod, and shows decision and metadata as text.
    fn check(plural: &str, object: Value, query: &str, expected: &str) {
        let registry = Registry::builtin();
        let group = if plural == "jobs" { "batch" } else { "" };
        let resource = registry.find(group, "v1", plural).unwrap();
        let options = DeleteOptions::parse(&listwatch_wire::query::Query::parse(query), None, b"").unwrap();
        let Value::Object(object) = object else { panic!("not an object") };
        let now = super::super::parse_timestamp(NOW).unwrap();
        let verdict = judge(resource, object, &options, now).unwrap();
        let decision = match verdict.decision {
            Decision::Write { .. } if verdict.then_remove => "write, remove",
            Decision::Write { .. } => "write",
            Decision::Delete => "remove",
            Decision::Nothing => "nothing",
        };
        let shown = format!("{decision} {}", Value::Object(metadata(&verdict.shown).clone()));
        assert_eq!(shown, expected);
    }

    #[test]
    fn finalizers_hold_an_object_up() {
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
    fn propagation_becomes_a_finalizer() {
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
    fn jobs_leave_their_pods_behind_unless_told_otherwise() {
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
    fn pods_are_given_time_once_they_run() {
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
    fn namespaces_are_emptied_first() {
        let namespace =
            |metadata: Value, finalizers: Value| json!({"metadata": metadata, "spec": {"finalizers": finalizers}});
        check(
            "namespaces",
            namespace(json!({"name": "n"}), json!(["kubernetes"])),
            "",
            r#"write {"name":"n","deletionTimestamp":"2024-01-01T00:00:00Z"}"#,
        );
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
