//! Reads and writes objects for the controllers.

use std::sync::Arc;

use bytes::Bytes;
use listwatch_json::{Map, Value};
use listwatch_meta::{Key, ResourceVersion, Status, UserInfo};
use listwatch_registry::Resource;
use listwatch_storage::{KeyValue, ListQuery};
use listwatch_wire::query::Query;
use listwatch_write::{WriteRequest, WriteVerb, Writer};

/// Returns the stored object, or `None` if the key is absent.
pub(crate) async fn get(writer: &Writer, key: &Key) -> Result<Option<Map>, Status> {
    let (found, _) = writer.backend().storage().get(key).await.map_err(Status::internal)?;
    let parse = |bytes: &[u8]| serde_json::from_slice(bytes).map_err(Status::internal);
    found.map(|found| parse(&found.value)).transpose()
}

/// Returns the stored object with its resource version. An update of this object fails if another writer changes it
/// first.
pub(crate) async fn get_versioned(writer: &Writer, key: &Key) -> Result<Option<Map>, Status> {
    let (found, _) = writer.backend().storage().get(key).await.map_err(Status::internal)?;
    let Some(found) = found else { return Ok(None) };
    let mut object: Map = serde_json::from_slice(&found.value).map_err(Status::internal)?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let version = ResourceVersion::from(found.modified);
        metadata.insert("resourceVersion", Value::from(version.as_str()));
    }
    Ok(Some(object))
}

/// Returns the stored objects of a kind.
pub(crate) async fn list(writer: &Writer, resource: &Resource) -> Result<Vec<KeyValue>, Status> {
    let query = ListQuery { range: resource.range(None), at: None, limit: 0 };
    Ok(writer.backend().storage().list(query).await.map_err(Status::internal)?.items)
}

/// Parses stored objects one after the other and converts each. A parsed object is many times as large as its JSON, so
/// only one is in memory at a time. An unreadable object is an error, because callers must not treat that object as
/// deleted.
pub(crate) fn convert<T>(stored: Vec<KeyValue>, of_object: impl Fn(Map) -> T) -> Result<Vec<T>, Status> {
    let convert = |item: KeyValue| match serde_json::from_slice(&item.value) {
        Ok(object) => Ok(of_object(object)),
        Err(error) => Err(Status::internal(format!("cannot read {}: {error}", item.key))),
    };
    stored.into_iter().map(convert).collect()
}

/// Whether an error is a conflict with another writer.
pub(crate) fn is_conflict(status: &Status) -> bool {
    status.code == 409
}

/// Creates an object, or replaces the object `name`.
pub(crate) async fn write(
    writer: &Arc<Writer>,
    resource: &Arc<Resource>,
    namespace: Option<&str>,
    name: Option<&str>,
    object: &Value,
    user_agent: &str,
) -> Result<(), Status> {
    let request = WriteRequest {
        verb: if name.is_some() { WriteVerb::Update } else { WriteVerb::Create },
        resource,
        namespace,
        name,
        subresource: None,
        query: &Query::default(),
        content_type: None,
        user: UserInfo::admin(),
        user_agent: Some(user_agent),
        body: Bytes::from(object.to_string()),
    };
    writer.write(request).await.map(drop)
}

/// Writes the status of a cluster-scoped object with a merge patch. `body` contains the resource version for which the
/// status was computed. If the object was changed or deleted since then, nothing is written. The change triggers the
/// next attempt.
pub(crate) async fn patch_status(
    writer: &Writer,
    resource: &Arc<Resource>,
    name: &str,
    body: &Value,
    field_manager: &str,
) -> Result<(), Status> {
    let query = format!("fieldManager={field_manager}");
    let query = Query::parse(&query);
    let written = writer.write(WriteRequest {
        verb: WriteVerb::Patch,
        resource,
        namespace: None,
        name: Some(name),
        subresource: Some("status"),
        query: &query,
        content_type: Some("application/merge-patch+json"),
        user: UserInfo::admin(),
        user_agent: None,
        body: Bytes::from(body.to_string()),
    });
    match written.await {
        Err(status) if is_conflict(&status) || status.code == 404 => Ok(()),
        written => written.map(drop),
    }
}
