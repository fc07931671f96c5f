//! The common parts of the tests of plugins: requests, and a reader of a few objects.

use std::sync::{LazyLock, Mutex};

use bytes::Bytes;
use listwatch_json::{Map, Value};
use listwatch_meta::{Status, UserInfo};
use listwatch_validation::{metadata, text};

use super::details::{KindName, NoDetails};
use super::{AdmissionFuture, AdmissionRecorder, AdmissionRequest, ListedObjects, ObjectReader, Operation};

/// The stored objects of a test, by plural name.
#[derive(Default)]
pub(super) struct Fixture {
    pub(super) objects: Mutex<Vec<(String, Map)>>,
    /// Whether all reads fail.
    pub(super) failing: bool,
    /// The number of further status writes that fail because of a concurrent write.
    pub(super) conflicts: Mutex<u32>,
    pub(super) recorder: AdmissionRecorder,
}

impl Fixture {
    pub(super) fn new(objects: &[(&str, Value)]) -> Self {
        let objects = objects.iter().map(|(plural, value)| ((*plural).to_owned(), object(value.clone()))).collect();
        Fixture { objects: Mutex::new(objects), ..Fixture::default() }
    }

    fn check(&self) -> Result<(), Status> {
        if self.failing { Err(Status::internal("the store is down")) } else { Ok(()) }
    }

    fn find(&self, resource: &str, namespace: Option<&str>, name: &str) -> Option<Map> {
        let is = |found: &Map| {
            text(metadata(found), "name") == name && namespace.is_none_or(|ns| text(metadata(found), "namespace") == ns)
        };
        let objects = self.objects.lock().unwrap();
        objects.iter().find(|(plural, found)| plural == resource && is(found)).map(|(_, found)| found.clone())
    }
}

impl ObjectReader for Fixture {
    fn get<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> AdmissionFuture<'a, Option<Map>> {
        Box::pin(async move {
            self.check()?;
            Ok(self.find(resource, namespace, name))
        })
    }

    fn get_cached<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> AdmissionFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            self.check()?;
            let found = self.find(resource, namespace, name);
            Ok(found.map(|found| Bytes::from(serde_json::to_vec(&found).unwrap())))
        })
    }

    fn list<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        limit: usize,
    ) -> AdmissionFuture<'a, ListedObjects> {
        Box::pin(async move {
            self.check()?;
            let objects = self.objects.lock().unwrap();
            let found = objects.iter().filter(|(plural, _)| plural == resource).map(|(_, object)| object);
            let found: Vec<&Map> =
                found.filter(|found| namespace.is_none_or(|ns| text(metadata(found), "namespace") == ns)).collect();
            let json = found.iter().take(limit).map(|found| Bytes::from(serde_json::to_vec(found).unwrap())).collect();
            Ok(ListedObjects { json, remaining: found.len().saturating_sub(limit) })
        })
    }

    fn resources_of_kind(&self, kind: KindName<'_>) -> Vec<(String, bool)> {
        let served = [("apps", "ReplicaSet", "replicasets", true), ("", "Node", "nodes", false)];
        let found = served
            .iter()
            .filter(|(group, name, ..)| kind.version == "v1" && (*group, *name) == (kind.group, kind.kind));
        found.map(|(_, _, plural, namespaced)| ((*plural).to_owned(), *namespaced)).collect()
    }

    fn swap_quota_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        old: &'a Map,
        status: Value,
    ) -> AdmissionFuture<'a, bool> {
        Box::pin(async move {
            let mut conflicts = self.conflicts.lock().unwrap();
            if *conflicts > 0 {
                *conflicts -= 1;
                return Ok(false);
            }
            if self.find("resourcequotas", Some(namespace), name).as_ref() != Some(old) {
                return Ok(false);
            }
            for (plural, found) in self.objects.lock().unwrap().iter_mut() {
                if plural == "resourcequotas" && found == old {
                    found.insert("status", status.clone());
                }
            }
            Ok(true)
        })
    }
}

/// Converts a JSON value to an object.
pub(super) fn object(value: Value) -> Map {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is not an object"),
    }
}

/// A request that creates an object in the namespace `ns`.
pub(super) fn create<'a>(
    fixture: &'a Fixture,
    group: &'a str,
    resource: &'a str,
    kind: &'a str,
    name: &'a str,
) -> AdmissionRequest<'a> {
    static USER: LazyLock<UserInfo> =
        LazyLock::new(|| UserInfo { username: "alice".to_owned(), ..UserInfo::default() });
    AdmissionRequest {
        operation: Operation::Create,
        group,
        version: "v1",
        resource,
        kind,
        subresource: None,
        namespace: Some("ns"),
        name,
        user: &USER,
        dry_run: false,
        old_object: None,
        objects: fixture,
        recorder: &fixture.recorder,
        details: &NoDetails { verb: "", path_name: "" },
        reinvocation: None,
    }
}
