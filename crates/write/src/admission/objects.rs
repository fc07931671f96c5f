//! Implements [`ObjectReader`] for [`Backend`].

use listwatch_meta::Status;

use super::super::store;
use super::{AdmissionFuture, ObjectReader};
use listwatch_registry::Backend;

impl ObjectReader for Backend {
    fn get<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> AdmissionFuture<'a, Option<serde_json::Map<String, serde_json::Value>>> {
        Box::pin(async move {
            let registry = self.registry();
            let resource = registry.find(group, version, resource).ok_or_else(Status::no_such_resource)?.stored();
            let Ok(key) = resource.key(namespace, name) else { return Ok(None) };
            let found = self.storage().get(&key).await;
            let (found, _) = found.map_err(|error| store::read_failed(&error, resource.gr()))?;
            found.map(|found| store::parse(&found)).transpose()
        })
    }
}
