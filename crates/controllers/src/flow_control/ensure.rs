//! Creates the flow schemas and priority levels that every cluster has. Resets changed objects unless users maintain
//! them. [`BootstrapObject`] contains the rules.
//!
//! Source: `ensureAPFBootstrapConfiguration` and `runMaintenance` in
//! `pkg/registry/flowcontrol/rest/storage_flowcontrol.go`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use listwatch_flow_control::{BootstrapKind, BootstrapObject, is_obsolete};
use listwatch_json::{Map, Value};
use listwatch_meta::Status;
use listwatch_write::Writer;

use super::resource;
use crate::objects::{convert, get_versioned, is_conflict, list, write};

/// The health check of the objects, with the name from kube-apiserver.
pub const CHECK: &str = "poststarthook/priority-and-fairness-config-producer";

/// The field manager of the objects.
const USER_AGENT: &str = "api-priority-and-fairness-config-producer-v1";
/// Interval between two checks of all objects.
const INTERVAL: Duration = Duration::from_secs(60);
/// Delay before the next check after a failed one.
const RETRY: Duration = Duration::from_secs(1);
/// Number of objects that are written concurrently.
const WRITES_AT_ONCE: usize = 16;
/// Maximum number of attempts to write one object after conflicts with other writers.
const ATTEMPTS_MAX: usize = 5;

/// Creates the missing objects, resets changed objects, and deletes the objects of other releases. The health check
/// [`CHECK`] fails from a failure to the next success.
///
/// # Errors
/// The error of the store or of a write.
pub async fn ensure_objects(writer: &Arc<Writer>) -> Result<(), Status> {
    let outcome = ensure_once(writer).await;
    writer.backend().bootstrap().set(CHECK, outcome.as_ref().err().map(|status| status.message.clone()));
    outcome
}

async fn ensure_once(writer: &Arc<Writer>) -> Result<(), Status> {
    for kind in [BootstrapKind::PriorityLevel, BootstrapKind::FlowSchema] {
        let objects = BootstrapObject::all().into_iter().filter(|object| object.kind() == kind);
        let writes = futures_util::stream::iter(objects)
            .map(|object| async move { ensure(writer, &object).await })
            .buffer_unordered(WRITES_AT_ONCE);
        writes.try_collect::<()>().await?;
    }
    // Schemas are deleted first, so that none dangles.
    for kind in [BootstrapKind::FlowSchema, BootstrapKind::PriorityLevel] {
        remove_obsolete(writer, kind).await?;
    }
    Ok(())
}

/// Repeats [`ensure_objects`] every minute until the future is dropped. A failure is logged and retried after a second.
/// After the first success, as kube-apiserver's hook ends with it, a failure no longer fails the health check.
pub async fn maintain_objects(writer: Arc<Writer>) {
    let is_missing = || writer.backend().bootstrap().get(CHECK).is_some();
    let mut pause = if is_missing() { RETRY } else { INTERVAL };
    loop {
        tokio::time::sleep(pause).await;
        let outcome = if is_missing() { ensure_objects(&writer).await } else { ensure_once(&writer).await };
        pause = match outcome {
            Ok(()) => INTERVAL,
            Err(status) => {
                tracing::warn!(%status, "cannot maintain the flow schemas and priority levels that every cluster has");
                RETRY
            }
        };
    }
}

async fn ensure(writer: &Arc<Writer>, wanted: &BootstrapObject) -> Result<(), Status> {
    let Some(resource) = resource(writer, wanted.kind()) else { return Ok(()) };
    let key = resource.key(None, wanted.name())?;
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS_MAX {
        let written = match get_versioned(writer, &key).await? {
            None => write(writer, &resource, None, None, &wanted.manifest(), USER_AGENT).await,
            Some(mut stored) => {
                if !wanted.revise(&mut stored) {
                    return Ok(());
                }
                write(writer, &resource, None, Some(wanted.name()), &Value::Object(stored), USER_AGENT).await
            }
        };
        match written {
            // Another server or a user was faster.
            Err(status) if is_conflict(&status) => outcome = Err(status),
            written => return written,
        }
    }
    outcome
}

async fn remove_obsolete(writer: &Arc<Writer>, kind: BootstrapKind) -> Result<(), Status> {
    let Some(resource) = resource(writer, kind) else { return Ok(()) };
    let name_of_obsolete = |stored: Map| {
        let name = stored.get("metadata").and_then(|metadata| metadata["name"].as_str()).unwrap_or_default();
        is_obsolete(kind, name, &stored).then(|| name.to_owned())
    };
    for name in convert(list(writer, &resource).await?, name_of_obsolete)?.into_iter().flatten() {
        writer.remove(&resource, &resource.key(None, &name)?).await?;
    }
    Ok(())
}
