//! Cleanup of a deleted definition: deletes its objects, then removes the definition's finalizer
//! (`controller/finalizer`).

use std::sync::Arc;
use std::time::Duration;

use listwatch_json::{Map, Value, json};
use listwatch_meta::{Key, Status};
use listwatch_storage::ListQuery;
use tokio::time::Instant;

use listwatch_apiextensions::{Condition, Definition, FINALIZER, condition, set_condition};
use listwatch_registry::{CustomKind, Resource, resources_of};
use listwatch_validation::clock::Clock;
use listwatch_write::Writer;
use listwatch_write::{Amendment, Removal};

/// Number of objects per page of a list.
const PAGE_ITEMS: usize = 500;
/// Delay before remaining objects are deleted again. Each attempt doubles the delay.
const RETRY_MIN: Duration = Duration::from_millis(20);
/// Maximum delay between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Minimum time that a deleted definition stays visible. Some clients send the delete request before they start the
/// watch that waits for the deletion. In kube-apiserver, a deletion takes about a dozen etcd requests, which gives
/// these clients enough time.
const SHOWN_MIN: Duration = Duration::from_millis(50);
/// Time after which remaining objects are reported in a condition of the definition.
const REPORT_AFTER: Duration = Duration::from_secs(60);

/// Deletes the objects of a definition, then removes the definition's finalizer. Returns early if the definition no
/// longer needs cleanup.
///
/// # Errors
/// The error of the store or of a write.
pub(super) async fn clean(writer: &Writer, definitions: &Resource, name: &str) -> Result<(), Status> {
    let key = definitions.key(None, name)?;
    let Some(definition) = read(writer, &key).await? else { return Ok(()) };
    if !definition.awaits_cleanup() {
        return Ok(());
    }
    let begun = Instant::now();
    let progress = terminating(true, "InstanceDeletionInProgress", "CustomResource deletion is in progress");
    write_condition(writer, definitions, &key, &definition, &progress).await?;
    let verdict = if !definition.is("Established") {
        terminating(false, "NeverEstablished", "resource was never established")
    } else if writer.backend().is_built_in_prefix(&definition.storage_prefix()) {
        let text = "instances overlap with built-in resources in storage";
        terminating(false, "OverlappingBuiltInResource", text)
    } else {
        remove_objects(writer, definitions, &key, &definition).await?;
        terminating(false, "InstanceDeletionCompleted", "removed all instances")
    };
    tokio::time::sleep_until(begun + SHOWN_MIN).await;
    let now = Clock::default().now();
    writer
        .amend(definitions, &key, |tree| {
            if !is_same(tree, &definition) {
                return Amendment::Leave;
            }
            set_condition(tree, &verdict, &now);
            release(tree)
        })
        .await
}

fn terminating(truth: bool, reason: &str, message: &str) -> Condition {
    condition("Terminating", truth, reason, message)
}

async fn read(writer: &Writer, key: &Key) -> Result<Option<Definition>, Status> {
    let (found, _) = writer.backend().storage().get(key).await.map_err(Status::internal)?;
    found.map(|found| Definition::parse(&found.value).map_err(Status::internal)).transpose()
}

/// Reports whether a stored tree has the uid of this definition. A definition that another program put into the store
/// may have none.
fn is_same(tree: &Map, definition: &Definition) -> bool {
    let uid = tree.get("metadata").and_then(|metadata| metadata.get("uid")?.as_str());
    uid.unwrap_or_default() == definition.metadata.uid
}

async fn write_condition(
    writer: &Writer,
    definitions: &Resource,
    key: &Key,
    definition: &Definition,
    condition: &Condition,
) -> Result<(), Status> {
    let now = Clock::default().now();
    writer
        .amend(definitions, key, |tree| {
            if !is_same(tree, definition) {
                return Amendment::Leave;
            }
            set_condition(tree, condition, &now);
            Amendment::Write
        })
        .await
}

/// Removes the cleanup finalizer, and removes the definition if no finalizer is left.
fn release(tree: &mut Map) -> Amendment {
    let Some(Value::Object(metadata)) = tree.get_mut("metadata") else { return Amendment::Leave };
    if let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers") {
        finalizers.retain(|name| *name != json!(FINALIZER));
        if !finalizers.is_empty() {
            return Amendment::Write;
        }
    }
    metadata.shift_remove("finalizers");
    Amendment::Remove
}

/// Deletes the objects of a definition and retries until no object is left.
async fn remove_objects(
    writer: &Writer,
    definitions: &Resource,
    key: &Key,
    definition: &Definition,
) -> Result<(), Status> {
    let Some(objects) = stored_resource(writer, definition) else { return Ok(()) };
    // Creations admitted before this server saw the deletion finish soon.
    if let Some(form) = &objects.form {
        while form.kind().is_creating() {
            tokio::time::sleep(RETRY_MIN).await;
        }
    }
    let (begun, mut wait, mut is_reported) = (Instant::now(), RETRY_MIN, false);
    while pass(writer, &objects).await? > 0 {
        if begun.elapsed() >= REPORT_AFTER && !is_reported {
            let text = "could not confirm zero CustomResources remaining: timed out waiting for the condition";
            let late = terminating(true, "InstanceDeletionCheck", text);
            write_condition(writer, definitions, key, definition, &late).await?;
            is_reported = true;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_MAX);
    }
    Ok(())
}

/// Returns the resource of the definition's storage version. Builds the resource if that version is not served.
fn stored_resource(writer: &Writer, definition: &Definition) -> Option<Arc<Resource>> {
    let (spec, version) = (&definition.spec, definition.storage_version()?);
    if let Some(served) = writer.backend().registry().find(&spec.group, &version.name, &spec.names.plural) {
        return Some(Arc::clone(served));
    }
    let mut stored = definition.clone();
    stored.spec.versions.retain(|version| version.storage);
    stored.spec.versions.iter_mut().for_each(|version| version.served = true);
    let kind = Arc::new(CustomKind::new(&stored, &spec.names, bytes::Bytes::new()));
    resources_of(&stored, &spec.names, &kind).into_iter().next()
}

/// Deletes every object once and returns the number of remaining objects. Deletes nothing if one of the objects is
/// unreadable.
async fn pass(writer: &Writer, objects: &Resource) -> Result<usize, Status> {
    let mut range = objects.range(None);
    listwatch_write::check_readable(writer.backend(), objects, &range).await?;
    let mut held = 0;
    loop {
        let query = ListQuery { range: range.clone(), at: None, limit: PAGE_ITEMS };
        let page = writer.backend().storage().list(query).await.map_err(Status::internal)?;
        for item in &page.items {
            if writer.remove(objects, &item.key).await? == Removal::Held {
                held += 1;
            }
        }
        let Some(last) = page.items.last().filter(|_| page.more) else { return Ok(held) };
        range = range.starting_at(&format!("{}\0", last.key));
    }
}
