//! What happens to the objects of a definition that is being deleted: they are removed, and then the
//! definition's finalizer, and with that the definition (`controller/finalizer`).

use std::sync::Arc;
use std::time::Duration;

use listwatch_meta::{Key, Status};
use listwatch_storage::ListQuery;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::kind::CustomKind;
use super::resources;
use crate::backend::Backend;
use crate::registry::Resource;
use crate::write::{self, Amendment, Removal};
use listwatch_kinds::definitions::{Condition, Definition, FINALIZER, condition, set_condition};

/// Objects are listed in pages of so many.
const PAGE_ITEMS: usize = 500;
/// Objects that were held up are looked at again after this time, then after twice of it, and so on.
const RETRY_MIN: Duration = Duration::from_millis(20);
/// But not later than after this time.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// So long at least a definition is seen to be on its way. Programs delete one and only then begin to
/// watch for its end; kube-apiserver, which asks etcd a dozen times on that way, gives them the time.
const SHOWN_MIN: Duration = Duration::from_millis(50);
/// When objects are still there after this time, the definition says so.
const REPORT_AFTER: Duration = Duration::from_secs(60);

/// Removes the objects of a definition and then what holds the definition itself. Ends when that is
/// done, or when the definition is no longer one to be cleaned up.
///
/// # Errors
/// What the store says.
pub(crate) async fn clean(backend: &Backend, definitions: &Resource, name: &str) -> Result<(), Status> {
    let key = definitions.key(None, name)?;
    let Some(definition) = read(backend, &key).await? else { return Ok(()) };
    if !definition.awaits_cleanup() {
        return Ok(());
    }
    let begun = Instant::now();
    let progress = terminating(true, "InstanceDeletionInProgress", "CustomResource deletion is in progress");
    tell(backend, definitions, &key, &definition, &progress).await?;
    let verdict = if !definition.is("Established") {
        terminating(false, "NeverEstablished", "resource was never established")
    } else if backend.is_built_in_prefix(&definition.storage_prefix()) {
        let text = "instances overlap with built-in resources in storage";
        terminating(false, "OverlappingBuiltInResource", text)
    } else {
        remove_objects(backend, definitions, &key, &definition).await?;
        terminating(false, "InstanceDeletionCompleted", "removed all instances")
    };
    tokio::time::sleep_until(begun + SHOWN_MIN).await;
    let now = write::Clock::default().now();
    write::amend(backend, definitions, &key, |tree| {
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

async fn read(backend: &Backend, key: &Key) -> Result<Option<Definition>, Status> {
    let (found, _) = backend.storage().get(key).await.map_err(Status::internal)?;
    found.map(|found| Definition::parse(&found.value).map_err(Status::internal)).transpose()
}

/// Is a tree still the definition that is being cleaned up?
fn is_same(tree: &Map<String, Value>, definition: &Definition) -> bool {
    tree.get("metadata").and_then(|metadata| metadata.get("uid")?.as_str()) == Some(definition.metadata.uid.as_str())
}

async fn tell(
    backend: &Backend,
    definitions: &Resource,
    key: &Key,
    definition: &Definition,
    condition: &Condition,
) -> Result<(), Status> {
    let now = write::Clock::default().now();
    write::amend(backend, definitions, key, |tree| {
        if !is_same(tree, definition) {
            return Amendment::Leave;
        }
        set_condition(tree, condition, &now);
        Amendment::Write
    })
    .await
}

/// Takes our finalizer off, and removes the definition when it was the last.
fn release(tree: &mut Map<String, Value>) -> Amendment {
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

/// Asks every object to go until none is left.
async fn remove_objects(
    backend: &Backend,
    definitions: &Resource,
    key: &Key,
    definition: &Definition,
) -> Result<(), Status> {
    let Some(objects) = stored_resource(backend, definition) else { return Ok(()) };
    // Whoever was let in to create an object before this server knew of the deletion is through soon.
    if let Some(form) = &objects.form {
        while form.kind().is_creating() {
            tokio::time::sleep(RETRY_MIN).await;
        }
    }
    let (begun, mut wait, mut told) = (Instant::now(), RETRY_MIN, false);
    while pass(backend, &objects).await? > 0 {
        if begun.elapsed() >= REPORT_AFTER && !told {
            let text = "could not confirm zero CustomResources remaining: timed out waiting for the condition";
            let late = terminating(true, "InstanceDeletionCheck", text);
            tell(backend, definitions, key, definition, &late).await?;
            told = true;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_MAX);
    }
    Ok(())
}

/// The resource of the objects in their storage version, as it is served, or as it would be.
fn stored_resource(backend: &Backend, definition: &Definition) -> Option<Arc<Resource>> {
    let (spec, version) = (&definition.spec, definition.storage_version()?);
    if let Some(served) = backend.registry().find(&spec.group, &version.name, &spec.names.plural) {
        return Some(Arc::clone(served));
    }
    let mut stored = definition.clone();
    stored.spec.versions.retain(|version| version.storage);
    stored.spec.versions.iter_mut().for_each(|version| version.served = true);
    let kind = Arc::new(CustomKind::new(&stored, &spec.names, bytes::Bytes::new()));
    resources::of(&stored, &spec.names, &kind).into_iter().next()
}

/// Asks every object to go, and counts those that stay. Asks none while one of them cannot be read.
async fn pass(backend: &Backend, objects: &Resource) -> Result<usize, Status> {
    let mut range = objects.range(None);
    write::check_readable(backend, objects, &range).await?;
    let mut held = 0;
    loop {
        let query = ListQuery { range: range.clone(), at: None, limit: PAGE_ITEMS };
        let page = backend.storage().list(query).await.map_err(Status::internal)?;
        for item in &page.items {
            if write::remove(backend, objects, &item.key).await? == Removal::Held {
                held += 1;
            }
        }
        let Some(last) = page.items.last().filter(|_| page.more) else { return Ok(held) };
        range = range.starting_at(&format!("{}\0", last.key));
    }
}
