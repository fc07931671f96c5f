//! Carries out StorageVersionMigrations: rewrites all objects of a resource, so that each has the current storage
//! version, encoding and encryption key (`pkg/controller/storageversionmigrator`).
//!
//! ```text
//!  new migration ──▶ Running, with the revision at which it begins
//!                      │ for each object that was not written since:
//!                      │   apply an empty configuration, which writes the object if its stored form is outdated
//!                      ▼
//!                  Succeeded, or Failed with the error of the first object that cannot be written
//! ```
//!
//! The definition of a custom resource has the condition `StorageMigrating` meanwhile. After a success, its
//! `status.storedVersions` is the storage version, unless the definition was changed since the begin
//! (`migrationrunner.go`).
//!
//! An interrupted migration starts again with the first object. Objects that already have the current form are not
//! written again. Several servers on one store may all run this controller.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use listwatch_apiextensions::{begin_storage_migration, end_storage_migration};
use listwatch_json::{Map, Value, json};
use listwatch_kinds::conditions::{NewCondition, set};
use listwatch_meta::{Revision, Status, UserInfo};
use listwatch_registry::{Registry, Resource};
use listwatch_storage::{KeyValue, ListQuery, ReadError};
use listwatch_validation::clock::{Clock, parse_timestamp};
use listwatch_validation::{Object, child, metadata, objects, text};
use listwatch_wire::query::Query;
use listwatch_write::{Amendment, WriteRequest, WriteVerb, Writer};
use serde::Deserialize;

use crate::changed_names::ChangedNames;
use crate::feed;
use crate::objects::{get_versioned, is_conflict, patch_status};

const GROUP: &str = "storagemigration.k8s.io";
const VERSION: &str = "v1beta1";
const PLURAL: &str = "storageversionmigrations";

/// The field manager of migrated objects and of the status.
const CONTROLLER: &str = "storage-version-migrator-controller";
/// Delay before the next attempt after a retriable failure.
const RETRY: Duration = Duration::from_secs(1);
/// Time to wait for the definition of a resource that is not served yet.
const RESOURCE_WAIT: time::Duration = time::Duration::minutes(1);
/// Number of objects per page. With the largest objects that etcd accepts, a page has 75 MiB.
const PAGE: usize = 50;

/// Carries out migrations, one after the other, until the future is dropped. Does nothing if the server does not serve
/// StorageVersionMigrations.
pub async fn run(writer: Arc<Writer>) {
    let changed = ChangedNames::of(GROUP, VERSION, PLURAL);
    let copies = [&changed];
    let migrate_all = async {
        loop {
            for name in changed.take().await {
                if let Err(status) = migrate(&writer, &name).await {
                    tracing::warn!(%status, migration = name, "a storage version migration is tried again");
                    tokio::time::sleep(RETRY).await;
                    changed.add([name]);
                }
            }
        }
    };
    if writer.backend().registry().find(GROUP, VERSION, PLURAL).is_none() {
        // The built-in kinds of a running server do not change.
        return std::future::pending().await;
    }
    tokio::join!(feed::follow(&writer, &copies), migrate_all);
}

/// Advances a migration to the next state. An error is retriable.
async fn migrate(writer: &Writer, name: &str) -> Result<(), Status> {
    let registry = writer.backend().registry();
    let Some(resource) = registry.find(GROUP, VERSION, PLURAL) else { return Ok(()) };
    let Some(migration) = get_versioned(writer, &resource.key(None, name)?).await? else { return Ok(()) };
    let write = Progress { writer, resource, migration: &migration };
    let status = child(&migration, "status");
    if is_true(status, "Succeeded") || is_true(status, "Failed") {
        return Ok(());
    }
    let wanted = child(child(&migration, "spec"), "resource");
    let Some(migrated) = find(&registry, text(wanted, "group"), text(wanted, "resource")) else {
        let created = parse_timestamp(text(metadata(&migration), "creationTimestamp"));
        if created.is_some_and(|created| Clock::default().time() < created + RESOURCE_WAIT) {
            return Err(Status::internal("the server does not serve the resource, or not yet"));
        }
        return write.failed("unable to obtain GVR from discovery").await;
    };
    let definition = Definition { writer, migrated: &migrated, migration: name };
    let begin = text(status, "resourceVersion");
    if begin.is_empty() {
        definition.begin().await?;
        // The write of the status leads to the next call.
        let page = ListQuery { range: migrated.range(None), at: None, limit: 1 };
        let page = writer.backend().storage().list(page).await.map_err(Status::internal)?;
        return write.running(page.revision).await;
    }
    let Ok(begin) = begin.parse().map(Revision::new) else {
        return write.failed("the resourceVersion of the status is too large").await;
    };
    match store_again(writer, &migrated, begin).await {
        Ok(()) => {
            definition.end(true).await?;
            write.succeeded().await
        }
        Err(status) if may_pass(&status) => Err(status),
        Err(status) => {
            definition.end(false).await?;
            write.failed(&status.message).await
        }
    }
}

/// The status of the definition of the migrated resource, if that is a custom resource.
struct Definition<'a> {
    writer: &'a Writer,
    migrated: &'a Resource,
    migration: &'a str,
}

impl Definition<'_> {
    /// Records in the definition that the migration begins.
    async fn begin(&self) -> Result<(), Status> {
        self.amend(|definition, _, now| {
            begin_storage_migration(definition, self.migration, now);
            Amendment::Write
        })
        .await
    }

    /// Records in the definition that the migration ended.
    async fn end(&self, succeeded: bool) -> Result<(), Status> {
        self.amend(|definition, generation, now| {
            match end_storage_migration(definition, self.migration, generation, succeeded, now) {
                true => Amendment::Write,
                false => Amendment::Leave,
            }
        })
        .await
    }

    /// Changes the definition, unless another resource than a custom resource is migrated. `change` receives the stored
    /// definition, the generation in whose storage version this server stores objects, and the time.
    async fn amend(&self, change: impl Fn(&mut Map, i64, &str) -> Amendment) -> Result<(), Status> {
        let Some(form) = &self.migrated.form else { return Ok(()) };
        let Some(definitions) = self.writer.backend().definitions_resource() else { return Ok(()) };
        let key = definitions.key(None, &format!("{}.{}", self.migrated.plural, self.migrated.group))?;
        let (generation, now) = (form.kind().generation(), Clock::default().now());
        self.writer.amend(&definitions, &key, |definition| change(definition, generation, &now)).await
    }
}

/// Returns the resource in its storage version, or in any version if the storage version is not served.
fn find(registry: &Registry, group: &str, plural: &str) -> Option<Arc<Resource>> {
    let mut versions = registry.resources().iter().filter(|found| found.group == group && found.plural == plural);
    let is_stored =
        |found: &&Arc<Resource>| found.form.is_none() || found.storage_version.as_ref() == Some(&found.version);
    let first = versions.clone().next();
    versions.find(is_stored).or(first).cloned()
}

/// Rewrites each object of a resource whose last write was at `begin` or earlier.
async fn store_again(writer: &Writer, resource: &Arc<Resource>, begin: Revision) -> Result<(), Status> {
    let mut range = resource.range(None);
    let mut at = None;
    loop {
        let query = ListQuery { range: range.clone(), at, limit: PAGE };
        let page = match writer.backend().storage().list(query).await {
            Err(ReadError::Compacted { .. }) if at.is_some() => {
                // What was written since is in the current form. The rest is read at a new revision.
                at = None;
                continue;
            }
            page => page.map_err(Status::internal)?,
        };
        for object in page.items.iter().filter(|object| object.modified <= begin) {
            match apply_nothing(writer, resource, object).await {
                // The object was written or deleted meanwhile.
                Err(status) if is_conflict(&status) || status.code == 404 => {}
                done => done?,
            }
        }
        let Some(last) = page.items.last().filter(|_| page.more) else { return Ok(()) };
        range = range.starting_at(&format!("{}\0", last.key));
        at = Some(page.revision);
    }
}

/// The fields of an object that a migration reads.
#[derive(Deserialize)]
struct Identity {
    metadata: IdentityMetadata,
}

#[derive(Deserialize)]
struct IdentityMetadata {
    uid: Option<String>,
}

/// Applies a configuration without fields, which changes only the stored form. The uid and the resource version prevent
/// the request from creating an object that was deleted.
async fn apply_nothing(writer: &Writer, resource: &Arc<Resource>, object: &KeyValue) -> Result<(), Status> {
    let identity: Identity = serde_json::from_slice(&object.value).map_err(Status::internal)?;
    let (namespace, name) = (object.key.namespace(), object.key.name());
    let body = json!({
        "apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"name": name, "uid": identity.metadata.uid, "resourceVersion": object.modified.to_string()},
    });
    let query = format!("fieldManager={CONTROLLER}");
    let request = WriteRequest {
        verb: WriteVerb::Patch,
        resource,
        namespace: resource.namespaced.then_some(namespace),
        name: Some(name),
        subresource: None,
        query: &Query::parse(&query),
        content_type: Some("application/apply-patch+yaml"),
        user: UserInfo::admin(),
        user_agent: None,
        body: Bytes::from(body.to_string()),
    };
    writer.write(request).await.map(drop)
}

/// Whether a failed write may succeed later (`isRetriableError`).
fn may_pass(status: &Status) -> bool {
    matches!(status.code, 429 | 500 | 503 | 504)
}

fn is_true(status: &Object, kind: &str) -> bool {
    objects(status, "conditions")
        .any(|(_, condition)| text(condition, "type") == kind && text(condition, "status") == "True")
}

/// Writes the status of one migration.
struct Progress<'a> {
    writer: &'a Writer,
    resource: &'a Arc<Resource>,
    migration: &'a Object,
}

impl Progress<'_> {
    async fn running(&self, begin: Revision) -> Result<(), Status> {
        self.write(Some(begin), "Running", "StorageVersionMigrationInProgress", "").await
    }

    async fn succeeded(&self) -> Result<(), Status> {
        self.write(None, "Succeeded", "StorageVersionMigrationSucceeded", "").await
    }

    async fn failed(&self, why: &str) -> Result<(), Status> {
        let message = format!("migration encountered unhandled error: {why}");
        self.write(None, "Failed", "StorageVersionMigrationFailed", &message).await
    }

    async fn write(&self, begin: Option<Revision>, kind: &str, reason: &str, message: &str) -> Result<(), Status> {
        let mut status = child(self.migration, "status").clone();
        let mut conditions = match status.remove("conditions") {
            Some(Value::Array(conditions)) => conditions,
            _ => Vec::new(),
        };
        let now = Clock::default().now();
        set(&mut conditions, NewCondition { kind, status: "True", reason, message }, &now);
        let is_running = |condition: &Value| condition.get("type").is_some_and(|kind| kind == "Running");
        if begin.is_none() && conditions.iter().any(is_running) {
            let (reason, message) = ("MigrationCompleted", "Migration completed");
            set(&mut conditions, NewCondition { kind: "Running", status: "False", reason, message }, &now);
        }
        status.insert("conditions", Value::Array(conditions));
        if let Some(begin) = begin {
            status.insert("resourceVersion", Value::from(begin.to_string()));
        }
        let metadata = metadata(self.migration);
        let name = text(metadata, "name");
        let body = json!({"metadata": {"resourceVersion": metadata.get("resourceVersion")}, "status": status});
        patch_status(self.writer, self.resource, name, &body, CONTROLLER).await
    }
}
