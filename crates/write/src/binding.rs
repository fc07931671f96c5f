//! Carries out POSTs to the `/binding` subresource of pods, which assign a pod to a node.

use listwatch_json::{Value, json};
use listwatch_meta::{GroupResource, Status};
use listwatch_storage::{Decision, KeyValue};

use super::action::{Action, ActionFuture};
use super::conflicts::check_precondition;
use super::expected::Expected;
use super::pipeline::Write;
use super::recent::RecentObject;
use super::request::{WriteRequest, WriteResponse};
use super::store::{self, WriteOutcome};
use super::subresource_body::{SubresourceBody, body, set_condition, success};
use listwatch_validation::object_meta as meta;
use listwatch_validation::{child_mut, metadata, metadata_mut};

const BINDING: Expected<'static> = Expected::builtin("", "v1", "Binding");
/// The resource in error messages about a binding.
const BINDINGS: GroupResource<'_> = GroupResource { group: "", resource: "pods/binding" };

/// The action for a POST of a Binding.
pub(super) struct Bind;

impl Action for Bind {
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a> {
        Box::pin(bind(write, request))
    }
}

/// Assigns a pod to the target node of a Binding. The name of the pod comes from the path, or from the Binding for a
/// POST to `bindings`.
///
/// # Errors
/// - 400 when the Binding names no pod, or another pod than the path.
/// - 404 when the pod does not exist.
/// - 409 when the pod is already assigned, is being deleted, has scheduling gates or fails a precondition.
/// - 500 when the target is missing or is not a node.
async fn bind(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let SubresourceBody { object: binding, options, warnings } = body(write, request, BINDING).await?;
    let name = meta::text(metadata(&binding), "name");
    if request.name.is_some_and(|path| path != name) {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let of_target = |field: &str| binding.get("target").and_then(|target| target.get(field)).and_then(Value::as_str);
    if !matches!(of_target("kind"), None | Some("" | "Node")) {
        return Err(Status::unknown(format!(
            "target.kind: Unsupported value: {:?}: supported values: \"Node\", \"<empty>\"",
            of_target("kind").unwrap_or_default()
        )));
    }
    let node = of_target("name").unwrap_or_default();
    if node.is_empty() {
        return Err(Status::unknown("target.name: Required value"));
    }
    // A POST to `bindings` loses the uid, as a POST to any resource.
    let uid = if request.name.is_some() { meta::text(metadata(&binding), "uid") } else { "" };
    let version = meta::text(metadata(&binding), "resourceVersion");
    let key = write.resource.key(request.namespace, name)?;
    let now = write.clock.now();
    let mut bound = None;
    let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
        let found = found.ok_or_else(|| Status::not_found(write.resource.gr(), name))?;
        let RecentObject { tree: mut pod, managed } = store::take_or_parse(write.recent, write.resource, found)?.object;
        let conflict = |why: String| Err(Status::conflict(BINDINGS, name, why));
        if !uid.is_empty() {
            check_precondition(write.resource, &key, "UID", Some(uid), meta::text(metadata(&pod), "uid"))?;
        }
        if !version.is_empty() {
            let revision = found.modified.to_string();
            check_precondition(write.resource, &key, "ResourceVersion", Some(version), &revision)?;
        }
        if meta::is_set(metadata(&pod), "deletionTimestamp") {
            return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
        }
        let spec = child_mut(&mut pod, "spec");
        match meta::text(spec, "nodeName") {
            "" => {}
            present => return conflict(format!("pod {name} is already assigned to node {present:?}")),
        }
        if spec.get("schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty()) {
            return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
        }
        spec.insert("nodeName", json!(node));
        for map in ["annotations", "labels"] {
            if let Some(Value::Object(added)) = metadata(&binding).get(map) {
                child_mut(metadata_mut(&mut pod), map).extend(added.clone());
            }
        }
        let status = child_mut(&mut pod, "status");
        status.shift_remove("nominatedNodeName");
        set_condition(
            status,
            json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now}),
        );
        let metadata = std::mem::take(metadata_mut(&mut pod));
        *metadata_mut(&mut pod) = meta::canonical(metadata);
        let value = store::encode(&pod);
        bound = Some(RecentObject { tree: pod, managed });
        Ok(Decision::Write { value, ttl: None })
    };
    let done = store::run(write.backend, write.resource, &key, options.dry_run, decide).await?;
    if let (WriteOutcome::Updated { value, revision }, Some(object), false) = (done, bound, options.dry_run) {
        write.keep(&key, revision, value, object);
    }
    Ok(success(warnings))
}
