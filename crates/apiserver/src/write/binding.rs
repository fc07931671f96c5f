//! `/binding` of pods: a POST that puts a pod onto a node. And what all such POSTs, whose bodies are kinds
//! of their own, have in common.

use listwatch_meta::{GroupResource, Status};
use listwatch_storage::{Decision, KeyValue};
use serde_json::{Map, Value, json};

use super::decode::{Expected, decode};
use super::options::Options;
use super::pipeline::Write;
use super::store;
use super::{WriteBody, WriteRequest, WriteResponse, create};
use listwatch_meta::go::Words;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{child_mut, metadata, metadata_mut};

const BINDING: Expected<'static> =
    Expected { group: "", version: "v1", kind: "Binding", custom: false, form: None, words: Words::Decoder };
/// The name under which errors of a binding go.
const BINDINGS: GroupResource<'_> = GroupResource { group: "", resource: "pods/binding" };

/// 201 with a Status that says nothing but that it went well.
pub(super) fn success(warnings: Vec<String>) -> WriteResponse {
    let mut status = Status::failure(201, "", "");
    status.status = "Success".into();
    WriteResponse { code: 201, body: WriteBody::Status(Box::new(status)), warnings }
}

/// A body of a kind of its own, and the options it came with.
pub(super) struct Posted {
    pub(super) object: Map<String, Value>,
    pub(super) options: Options,
    pub(super) warnings: Vec<String>,
}

/// Decodes a body whose kind need not be registered: these are no resources.
///
/// # Errors
/// 400 and 415 for a body that is not of this kind, 422 for options that are not valid.
pub(super) fn body(write: &Write<'_>, request: &WriteRequest<'_>, expected: Expected<'_>) -> Result<Posted, Status> {
    let options = Options::parse("CreateOptions", request.query)?;
    let decoded = decode(write.registry, expected, request.content_type, &request.body, options.field_validation)?;
    let mut object = decoded.object;
    create::place(write.resource, request.namespace, metadata_mut(&mut object))?;
    Ok(Posted { object, options, warnings: decoded.warnings })
}

/// POST of a Binding: the pod is put onto a node. Which pod says the path, or the binding alone where that
/// is posted to `bindings`.
///
/// # Errors
/// 404 when the pod is not there, 409 when it is on a node already, on its way out or another one, 400 and
/// 500 when the binding says no pod or no node.
pub(super) async fn bind(write: &Write<'_>, request: &WriteRequest<'_>) -> Result<WriteResponse, Status> {
    let Posted { object: binding, options, warnings } = body(write, request, BINDING)?;
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
    let uid = meta::text(metadata(&binding), "uid");
    let version = meta::text(metadata(&binding), "resourceVersion");
    let key = write.resource.key(request.namespace, name)?;
    let now = write.clock.now();
    let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
        let found = found.ok_or_else(|| Status::not_found(write.resource.gr(), name))?;
        let mut pod = store::parse(found)?;
        let conflict = |why: String| Err(Status::conflict(BINDINGS, name, why));
        let have = meta::text(metadata(&pod), "uid");
        if !uid.is_empty() && uid != have {
            return conflict(format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {have}"));
        }
        if !version.is_empty() && version != found.modified.to_string() {
            return conflict(format!(
                "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {}",
                found.modified
            ));
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
        spec.insert("nodeName".to_owned(), json!(node));
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
        Ok(Decision::Write { value: store::encode(&pod), ttl: None })
    };
    store::run(write.backend, write.resource, &key, options.dry_run, decide).await?;
    Ok(success(warnings))
}

/// Puts a condition where the one of its type is, or at the end.
pub(super) fn set_condition(status: &mut Map<String, Value>, condition: Value) {
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if let Value::Array(conditions) = conditions {
        listwatch_kinds::conditions::put(conditions, condition);
    }
}
