//! Reads and writes the stored objects that aggregation needs: Services, EndpointSlices and APIServices.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::select_all;
use listwatch_aggregator::{
    ApiService, ApiServiceObjects, Condition, EndpointSlice, Service, ServiceObjects, set_condition,
};
use listwatch_json::Value;
use listwatch_registry::Resource;
use listwatch_storage::{KeyValue, ListQuery, StoreEvent, Watch, WatchItem};
use listwatch_write::{Amendment, Clock, Writer};
use tokio::sync::Mutex;

/// Group, version and plural.
type Gvr = (&'static str, &'static str, &'static str);
const API_SERVICES: Gvr = ("apiregistration.k8s.io", "v1", "apiservices");
const SERVICES: Gvr = ("", "v1", "services");
const ENDPOINT_SLICES: Gvr = ("discovery.k8s.io", "v1", "endpointslices");
/// The watched resources, in the order of [`Watches::running`].
const WATCHED: [Gvr; 3] = [API_SERVICES, SERVICES, ENDPOINT_SLICES];
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// The delay before a failed watch is restarted.
const WATCH_RETRY: Duration = Duration::from_secs(1);

/// Reads and writes the objects of one server.
pub(super) struct StoredObjects {
    writer: Arc<Writer>,
    /// The namespaces and names of the services that APIServices refer to. Other Services and EndpointSlices are
    /// ignored.
    named: parking_lot::Mutex<HashSet<(String, String)>>,
    watches: Mutex<Watches>,
}

#[derive(Default)]
struct Watches {
    running: Vec<Watch>,
    with_services: bool,
}

impl Watches {
    /// Discards the events that are ready. Restarts a watch that has ended.
    fn drain(&mut self) {
        for position in 0..self.running.len() {
            loop {
                match self.running[position].next().now_or_never() {
                    None => break,
                    Some(Some(WatchItem::Event(_) | WatchItem::Progress(_))) => {}
                    Some(Some(WatchItem::Expired { .. } | WatchItem::Lost(_)) | None) => {
                        self.running.clear();
                        return;
                    }
                }
            }
        }
    }
}

/// Whether an event can change a route or a condition. The filter is needed because other Services and EndpointSlices
/// change often.
fn is_relevant(gvr: Gvr, event: &StoreEvent, named: &HashSet<(String, String)>) -> bool {
    let key = event.key();
    let is_named = |name: &str| named.contains(&(key.namespace().to_owned(), name.to_owned()));
    if gvr == API_SERVICES {
        return true;
    }
    if gvr == SERVICES {
        return is_named(key.name());
    }
    let (current, previous) = match event {
        StoreEvent::Put { current, previous } => (Some(current), previous.as_ref()),
        StoreEvent::Delete { previous, .. } => (None, previous.as_ref()),
    };
    if current.is_none() && previous.is_none() {
        // The store no longer knows the slice.
        return true;
    }
    if !named.iter().any(|(namespace, _)| namespace == key.namespace()) {
        return false;
    }
    [current, previous].into_iter().flatten().any(|state| {
        let slice: Value = serde_json::from_slice(&state.value).unwrap_or_default();
        slice["metadata"]["labels"][SERVICE_NAME_LABEL].as_str().is_some_and(is_named)
    })
}

impl StoredObjects {
    pub(super) fn new(writer: Arc<Writer>) -> Self {
        StoredObjects { writer, named: parking_lot::Mutex::default(), watches: Mutex::default() }
    }

    fn resource(&self, (group, version, plural): Gvr) -> Result<Arc<Resource>, String> {
        let registry = self.writer.backend().registry();
        let found = registry.find(group, version, plural).cloned();
        found.ok_or_else(|| format!("{plural} are not served"))
    }

    /// Lists the objects of a resource. An unreadable object is an error, because callers must not treat the object as
    /// deleted.
    async fn list(&self, gvr: Gvr, namespace: Option<&str>) -> Result<Vec<Value>, String> {
        let query = ListQuery { range: self.resource(gvr)?.range(namespace), at: None, limit: 0 };
        let page = self.writer.backend().storage().list(query).await.map_err(|error| error.to_string())?;
        let parse = |item: &KeyValue| {
            serde_json::from_slice(&item.value).map_err(|error| format!("cannot read {}: {error}", item.key))
        };
        page.items.iter().map(parse).collect()
    }

    async fn watch(&self, with_services: bool) -> Result<Vec<Watch>, String> {
        let storage = self.writer.backend().storage();
        let after = storage.current_revision().await.map_err(|error| error.to_string())?;
        let wanted = if with_services { &WATCHED[..] } else { &WATCHED[..1] };
        let mut watches = Vec::new();
        for gvr in wanted {
            let range = self.resource(*gvr)?.range(None);
            watches.push(storage.watch(range, after).await.map_err(|error| error.to_string())?);
        }
        Ok(watches)
    }
}

#[async_trait]
impl ServiceObjects for StoredObjects {
    async fn service(&self, namespace: &str, name: &str) -> Result<Option<Service>, String> {
        let key = self.resource(SERVICES)?.key(Some(namespace), name).map_err(|status| status.message)?;
        let (found, _) = self.writer.backend().storage().get(&key).await.map_err(|error| error.to_string())?;
        let Some(found) = found else { return Ok(None) };
        let object: Value = serde_json::from_slice(&found.value).map_err(|error| error.to_string())?;
        Ok(Some(Service::from_object(&object)))
    }

    async fn endpoint_slices(&self, namespace: &str, service: &str) -> Result<Vec<EndpointSlice>, String> {
        let slices = self.list(ENDPOINT_SLICES, Some(namespace)).await?;
        let of_service = |slice: &&Value| slice["metadata"]["labels"][SERVICE_NAME_LABEL] == service;
        Ok(slices.iter().filter(of_service).map(EndpointSlice::from_object).collect())
    }
}

#[async_trait]
impl ApiServiceObjects for StoredObjects {
    async fn api_services(&self) -> Result<Vec<ApiService>, String> {
        // This list and the reads after it show what has changed up to now.
        self.watches.lock().await.drain();
        let objects = self.list(API_SERVICES, None).await?;
        // Validation keeps unreadable ones out.
        let services: Vec<ApiService> =
            objects.iter().filter_map(|object| ApiService::from_object(object).ok()).collect();
        let references = services.iter().filter_map(|service| service.service.as_ref());
        let named = references.map(|service| (service.namespace.clone(), service.name.clone())).collect();
        *self.named.lock() = named;
        Ok(services)
    }

    async fn set_available(&self, name: &str, condition: &Condition) -> Result<(), String> {
        let resource = self.resource(API_SERVICES)?;
        let key = resource.key(None, name).map_err(|status| status.message)?;
        let now = Clock::default().now();
        let change = |object: &mut listwatch_json::Map| match set_condition(object, condition, &now) {
            true => Amendment::Write,
            false => Amendment::Leave,
        };
        self.writer.amend(&resource, &key, change).await.map_err(|status| status.message)
    }

    async fn changed(&self) {
        let mut watches = self.watches.lock().await;
        let with_services = !self.named.lock().is_empty();
        if watches.running.is_empty() || watches.with_services != with_services {
            match self.watch(with_services).await {
                // The list that follows shows changes made before the watch began.
                Ok(running) => *watches = Watches { running, with_services },
                Err(error) => {
                    tracing::warn!(error, "cannot watch the objects of aggregation");
                    tokio::time::sleep(WATCH_RETRY).await;
                }
            }
            return;
        }
        loop {
            let items = watches.running.iter_mut().map(|watch| Box::pin(watch.next()));
            let (item, position, _) = select_all(items).await;
            match item {
                Some(WatchItem::Event(event)) if is_relevant(WATCHED[position], &event, &self.named.lock()) => return,
                Some(WatchItem::Event(_) | WatchItem::Progress(_)) => {}
                Some(WatchItem::Expired { .. } | WatchItem::Lost(_)) | None => {
                    watches.running.clear();
                    tokio::time::sleep(WATCH_RETRY).await;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use listwatch_json::json;
    use listwatch_meta::{Key, Revision};

    use super::*;

    #[test]
    fn changes_of_services_without_an_api_service_are_ignored() {
        let named = HashSet::from([("ns".to_owned(), "api".to_owned())]);
        let event = |namespace: &str, name: &str, before: Option<&str>, after: Option<&str>| {
            let key = Key::new("x", Some(namespace), name).unwrap();
            let state = |service: &str| {
                let slice = json!({"metadata": {"labels": {SERVICE_NAME_LABEL: service}}});
                let revision = Revision::new(1);
                KeyValue {
                    key: key.clone(),
                    value: Bytes::from(slice.to_string()),
                    created: revision,
                    modified: revision,
                    stale: false,
                }
            };
            match after {
                Some(after) => StoreEvent::Put { current: state(after), previous: before.map(state) },
                None => {
                    StoreEvent::Delete { key: key.clone(), revision: Revision::new(2), previous: before.map(state) }
                }
            }
        };
        let check = |gvr: Gvr, event: &StoreEvent, expected: bool| {
            assert_eq!(is_relevant(gvr, event, &named), expected, "{gvr:?} {event:?}");
        };
        check(API_SERVICES, &event("any", "any", None, Some("")), true);
        check(SERVICES, &event("ns", "api", None, Some("")), true);
        check(SERVICES, &event("ns", "other", None, Some("")), false);
        check(SERVICES, &event("other", "api", None, Some("")), false);
        check(ENDPOINT_SLICES, &event("ns", "api-x1", None, Some("api")), true);
        check(ENDPOINT_SLICES, &event("ns", "api-x1", Some("api"), Some("other")), true);
        check(ENDPOINT_SLICES, &event("ns", "api-x1", Some("api"), None), true);
        check(ENDPOINT_SLICES, &event("ns", "api-x1", None, None), true);
        check(ENDPOINT_SLICES, &event("ns", "x", Some("other"), Some("other")), false);
        check(ENDPOINT_SLICES, &event("other", "api-x1", None, Some("api")), false);
    }
}
