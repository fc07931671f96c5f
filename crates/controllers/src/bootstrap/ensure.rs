//! Creates missing bootstrap objects and amends stored ones.

use std::sync::Arc;

use bytes::Bytes;
use listwatch_json::{Map, Value};
use listwatch_meta::{Key, Status, UserInfo};
use listwatch_registry::Resource;
use listwatch_wire::query::Query;
use listwatch_write::{Amendment, WriteRequest, WriteVerb, Writer};

/// User agent of the writes, from which the field manager is derived.
const USER_AGENT: &str = "kube-apiserver";

/// An object that every cluster has.
#[derive(Debug)]
pub(super) struct BootstrapObject {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) plural: &'static str,
    pub(super) namespace: Option<&'static str>,
    pub(super) name: &'static str,
    pub(super) body: Value,
    /// The health check of kube-apiserver that reports a failure to create the object.
    pub(super) check: &'static str,
}

/// Creates an object if it is missing. Returns true if this server created the object.
pub(super) async fn ensure(writer: &Arc<Writer>, wanted: &BootstrapObject) -> Result<bool, Status> {
    let registry = writer.backend().registry();
    let Some(resource) = registry.find(wanted.group, wanted.version, wanted.plural) else { return Ok(false) };
    let key = resource.key(wanted.namespace, wanted.name)?;
    if exists(writer, &key).await? {
        return Ok(false);
    }
    match create(writer, resource, wanted.namespace, &wanted.body).await {
        Ok(()) => Ok(true),
        // Another server may have claimed the address already but not yet created the service.
        Err(status) if status.code == 409 || exists(writer, &key).await? => Ok(false),
        Err(status) => Err(status),
    }
}

/// Changes an object with [`Writer::amend`]. An unreadable object stays unchanged without an error. Another server may
/// have stored that object, so this server must not replace the object.
pub(super) async fn amend(
    writer: &Writer,
    resource: &Resource,
    key: &Key,
    change: impl FnMut(&mut Map) -> Amendment,
) -> Result<(), Status> {
    match writer.amend(resource, key, change).await {
        Err(_) if listwatch_write::is_unreadable(writer.backend(), key).await? => Ok(()),
        done => done,
    }
}

pub(super) async fn exists(writer: &Writer, key: &Key) -> Result<bool, Status> {
    let (found, _) = writer.backend().storage().get(key).await.map_err(Status::internal)?;
    Ok(found.is_some())
}

pub(super) async fn create(
    writer: &Arc<Writer>,
    resource: &Arc<Resource>,
    namespace: Option<&str>,
    body: &Value,
) -> Result<(), Status> {
    let request = WriteRequest {
        verb: WriteVerb::Create,
        resource,
        namespace,
        name: None,
        subresource: None,
        query: &Query::default(),
        content_type: None,
        user: UserInfo::admin(),
        user_agent: Some(USER_AGENT),
        body: Bytes::from(body.to_string()),
    };
    writer.write(request).await.map(drop)
}
