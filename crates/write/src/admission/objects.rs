//! [`StoredObjects`] reads the objects of a server for admission plugins.

use bytes::Bytes;
use listwatch_admission::{AdmissionFuture, KindName, ListedObjects, ObjectReader};
use listwatch_cacher::Scope;
use listwatch_json::{Map, Value};
use listwatch_meta::{FieldSelector, LabelSelector, ListRequest, ReadAt, Status};
use listwatch_registry::{Backend, Resource};
use listwatch_storage::{Decision, KeyValue};
use listwatch_validation::is_same;

use super::super::store::{self, WriteOutcome};

/// The resources that plugins read from the cache. The response to a write of such an object waits until the cache
/// contains the write, so that admission of the next write uses the new state.
const READ_FROM_CACHE: [(&str, &str); 8] = [
    ("", "limitranges"),
    ("", "resourcequotas"),
    ("", "serviceaccounts"),
    ("", "namespaces"),
    ("networking.k8s.io", "ingressclasses"),
    ("node.k8s.io", "runtimeclasses"),
    ("scheduling.k8s.io", "priorityclasses"),
    ("storage.k8s.io", "storageclasses"),
];

/// Whether plugins read this resource from the cache.
pub(crate) fn is_read_from_cache(resource: &Resource) -> bool {
    READ_FROM_CACHE.contains(&(&*resource.group, &*resource.plural))
}

/// Reads the stored objects of a server.
#[derive(Clone, Copy)]
pub(crate) struct StoredObjects<'b>(pub(crate) &'b Backend);

impl ObjectReader for StoredObjects<'_> {
    fn get<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> AdmissionFuture<'a, Option<Map>> {
        Box::pin(async move {
            let registry = self.0.registry();
            let resource = registry.find(group, version, resource).ok_or_else(Status::no_such_resource)?.stored();
            let Ok(key) = resource.key(namespace, name) else { return Ok(None) };
            let found = self.0.storage().get(&key).await;
            let (found, _) = found.map_err(|error| store::read_failed(&error, resource.gr()))?;
            found.map(|found| store::parse(&found)).transpose()
        })
    }

    fn get_cached<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> AdmissionFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let registry = self.0.registry();
            let Some(resource) = registry.find(group, version, resource) else { return Ok(None) };
            let resource = resource.stored();
            let Ok(key) = resource.key(namespace, name) else { return Ok(None) };
            if let Some(object) = self.0.cacher(resource).peek(&key) {
                return Ok(Some(object.json()));
            }
            let found = self.0.storage().get(&key).await;
            let (found, _) = found.map_err(|error| store::read_failed(&error, resource.gr()))?;
            // A plugin may search the bytes only, and must not take an unreadable object for one without a member.
            if let Some(found) = found.as_ref().filter(|found| !store::is_readable(&found.value)) {
                store::parse(found)?;
            }
            Ok(found.map(|found| found.value))
        })
    }

    fn list<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        limit: usize,
    ) -> AdmissionFuture<'a, ListedObjects> {
        let registry = self.0.registry();
        let Some(resource) = registry.find(group, version, resource) else {
            return Box::pin(std::future::ready(Ok(ListedObjects::default())));
        };
        let resource = resource.stored();
        let cacher = self.0.cacher(resource);
        // Most servers have no object of these resources, and most writes end here.
        if cacher.is_ready() && cacher.object_totals() == (0, 0) && !cacher.is_direct() {
            return Box::pin(std::future::ready(Ok(ListedObjects::default())));
        }
        let name = (resource.group.clone(), resource.plural.clone());
        Box::pin(async move {
            let scope = namespace.map_or(Scope::All, |namespace| Scope::Namespace(namespace.to_owned()));
            let request = ListRequest {
                at: ReadAt::Any,
                limit: Some(u64::try_from(limit).unwrap_or(u64::MAX)),
                resume: None,
                labels: LabelSelector::default(),
                fields: FieldSelector::default(),
                shard: None,
            };
            let gr = listwatch_meta::GroupResource { group: &name.0, resource: &name.1 };
            let list = cacher.list(&scope, &request).await.map_err(|error| error.status(gr))?;
            if !list.undecodable.is_empty() {
                return Err(Status::internal(format_args!("some {gr} cannot be read")));
            }
            let more = usize::from(list.continue_token.is_some());
            let remaining = list.remaining.map_or(more, |remaining| usize::try_from(remaining).unwrap_or(usize::MAX));
            Ok(ListedObjects { json: list.items.map(|object| object.json()).collect(), remaining })
        })
    }

    fn resources_of_kind(&self, kind: KindName<'_>) -> Vec<(String, bool)> {
        let registry = self.0.registry();
        let is = |one: &&std::sync::Arc<Resource>| {
            (&*one.group, &*one.version, &*one.kind) == (kind.group, kind.version, kind.kind)
        };
        registry.resources().iter().filter(is).map(|one| (one.plural.clone(), one.namespaced)).collect()
    }

    fn swap_quota_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        old: &'a Map,
        status: Value,
    ) -> AdmissionFuture<'a, bool> {
        Box::pin(async move {
            let registry = self.0.registry();
            let resource = registry.find("", "v1", "resourcequotas").ok_or_else(Status::no_such_resource)?.stored();
            let key = resource.key(Some(namespace), name)?;
            let decide = |found: Option<&KeyValue>| -> Result<Decision, Status> {
                let Some(found) = found else { return Ok(Decision::Nothing) };
                let mut quota = store::parse(found)?;
                let is_old = ["spec", "status"].iter().all(|part| is_same(quota.get(part), old.get(part)));
                if !is_old {
                    return Ok(Decision::Nothing);
                }
                quota.insert("status", status.clone());
                Ok(Decision::Write { value: store::encode(&quota), ttl: resource.ttl() })
            };
            let done: WriteOutcome = store::run(self.0, resource, &key, false, decide).await?;
            Ok(matches!(done, WriteOutcome::Updated { .. }))
        })
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::Key;
    use listwatch_storage::{MemoryStorage, Storage as _};

    use super::*;

    #[tokio::test]
    async fn object_reader_returns_an_error_for_an_unreadable_object() {
        let storage = MemoryStorage::new();
        for (name, value) in [("whole", r#"{"metadata":{"name":"whole"}}"#), ("cut", r#"{"metadata":{"name":"#)] {
            let key = Key::from_path(&format!("/namespaces/{name}")).unwrap();
            storage.create(&key, Bytes::from_static(value.as_bytes()), None).await.unwrap();
        }
        let writer = crate::testing::writer(storage);
        let objects = StoredObjects(writer.backend());
        let read = async |name: &str| objects.get_cached("", "v1", "namespaces", None, name).await;
        assert!(read("whole").await.unwrap().is_some());
        assert!(read("none").await.unwrap().is_none());
        assert_eq!(read("cut").await.unwrap_err().code, 500);
    }
}
