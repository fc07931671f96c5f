//! Writes the status of ValidatingAdmissionPolicies: the result of type checks and the observed generation
//! (`pkg/controller/validatingadmissionpolicystatus/controller.go`).

use std::sync::Arc;
use std::time::Duration;

use listwatch_json::{Value, json};
use listwatch_meta::Status;
use listwatch_policies::{CheckedKind, ObjectSchema, ParamKind, TYPES_MAX, resources_to_check, type_check};
use listwatch_registry::{Registry, Resource};
use listwatch_validation::{Object as Tree, child, given};
use listwatch_write::Writer;

use crate::changed_names::ChangedNames;
use crate::feed;
use crate::objects::{get_versioned, patch_status};

const GROUP: &str = "admissionregistration.k8s.io";
const PLURAL: &str = "validatingadmissionpolicies";

/// The field manager of the status.
const CONTROLLER: &str = "validatingadmissionpolicy-status-controller";

/// The delay before the next attempt after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Writes the status of each policy after a change of its spec, until the future is dropped.
pub async fn run(writer: Arc<Writer>) {
    let changed = ChangedNames::of(GROUP, "v1", PLURAL);
    let copies = [&changed];
    tokio::join!(feed::follow(&writer, &copies), write_all(&writer, &changed));
}

async fn write_all(writer: &Arc<Writer>, changed: &ChangedNames) {
    loop {
        for name in changed.take().await {
            if let Err(status) = write_status(writer, &name).await {
                tracing::warn!(%status, policy = name, "cannot write the status of a ValidatingAdmissionPolicy");
                tokio::time::sleep(RETRY).await;
                changed.add([name]);
            }
        }
    }
}

/// Checks a policy and writes its status, unless the status is current.
async fn write_status(writer: &Arc<Writer>, name: &str) -> Result<(), Status> {
    let registry = writer.backend().registry();
    let Some(resource) = registry.find(GROUP, "v1", PLURAL).cloned() else { return Ok(()) };
    let key = resource.key(None, name)?;
    let Some(policy) = get_versioned(writer, &key).await? else { return Ok(()) };
    let metadata = child(&policy, "metadata");
    let generation = metadata.get("generation").and_then(Value::as_i64).unwrap_or_default();
    let observed = child(&policy, "status").get("observedGeneration").and_then(Value::as_i64).unwrap_or_default();
    if observed >= generation {
        return Ok(());
    }
    let version = metadata.get("resourceVersion").cloned();
    // A check of many expressions takes long, and the I/O workers answer requests.
    let warnings = tokio::task::spawn_blocking(move || check(&registry, &policy)).await.map_err(Status::internal)?;
    // `null` removes the warnings of an earlier generation.
    let warnings = if warnings.is_empty() { Value::Null } else { Value::Array(warnings) };
    let body = json!({
        "metadata": {"resourceVersion": version},
        "status": {"observedGeneration": generation, "typeChecking": {"expressionWarnings": warnings}},
    });
    patch_status(writer, &resource, name, &body, CONTROLLER).await
}

/// Type-checks a policy. Returns the warnings for the status.
fn check(registry: &Registry, policy: &Tree) -> Vec<Value> {
    let resources = resources_to_check(policy);
    let found = resources.iter().filter_map(|(group, version, plural)| registry.find(group, version, plural));
    let mut kinds: Vec<CheckedKind> = found.take(TYPES_MAX).filter_map(|resource| checked_kind(resource)).collect();
    kinds.sort_by(|a, b| (&a.group, &a.version, &a.kind).cmp(&(&b.group, &b.version, &b.kind)));
    let param_kind = given(child(policy, "spec"), "paramKind").and_then(Value::as_object).map(ParamKind::parse);
    let params = param_kind.and_then(|kind| registry.find_kind(&kind.group, &kind.version, &kind.kind));
    let params = params.and_then(|resource| checked_kind(resource)).map(|kind| kind.schema);
    type_check(policy, &kinds, params.as_ref())
}

fn checked_kind(resource: &Resource) -> Option<CheckedKind> {
    let schema = match resource.openapi_schema() {
        Some(schema) => ObjectSchema::of_custom_resource(&schema),
        None => ObjectSchema::of_built_in(&resource.api_version(), &resource.kind)?,
    };
    Some(CheckedKind {
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        kind: resource.kind.to_string(),
        schema,
    })
}
