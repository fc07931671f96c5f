//! The objects of aggregation in the store: Services, EndpointSlices and APIServices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::select_all;
use listwatch_aggregator::{
    ApiService, ApiServiceObjects, Condition, EndpointSlice, Service, ServiceObjects, set_condition,
};
use listwatch_registry::Resource;
use listwatch_storage::{ListQuery, Watch, WatchItem};
use listwatch_write::{Amendment, Clock, Writer};
use serde_json::Value;
use tokio::sync::Mutex;

/// Group, version and plural.
type Gvr = (&'static str, &'static str, &'static str);
const API_SERVICES: Gvr = ("apiregistration.k8s.io", "v1", "apiservices");
const SERVICES: Gvr = ("", "v1", "services");
const ENDPOINT_SLICES: Gvr = ("discovery.k8s.io", "v1", "endpointslices");
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// After a failed watch the next one begins so much later.
const WATCH_RETRY: Duration = Duration::from_secs(1);

/// Reads and writes the objects of one server.
pub(super) struct StoredObjects {
    writer: Arc<Writer>,
    /// Some APIService names a service: Services and EndpointSlices matter.
    has_remote: AtomicBool,
    watches: Mutex<Watches>,
}

#[derive(Default)]
struct Watches {
    running: Vec<Watch>,
    with_services: bool,
}

impl StoredObjects {
    pub(super) fn new(writer: Arc<Writer>) -> Self {
        StoredObjects { writer, has_remote: AtomicBool::new(false), watches: Mutex::default() }
    }

    fn resource(&self, (group, version, plural): Gvr) -> Result<Arc<Resource>, String> {
        let registry = self.writer.backend().registry();
        let found = registry.find(group, version, plural).cloned();
        found.ok_or_else(|| format!("{plural} are not served"))
    }

    /// The readable objects of a resource.
    async fn list(&self, gvr: Gvr, namespace: Option<&str>) -> Result<Vec<Value>, String> {
        let query = ListQuery { range: self.resource(gvr)?.range(namespace), at: None, limit: 0 };
        let page = self.writer.backend().storage().list(query).await.map_err(|error| error.to_string())?;
        Ok(page.items.iter().filter_map(|item| serde_json::from_slice(&item.value).ok()).collect())
    }

    async fn watch(&self, with_services: bool) -> Result<Vec<Watch>, String> {
        let storage = self.writer.backend().storage();
        let after = storage.current_revision().await.map_err(|error| error.to_string())?;
        let wanted = if with_services { &[API_SERVICES, SERVICES, ENDPOINT_SLICES][..] } else { &[API_SERVICES] };
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
        let objects = self.list(API_SERVICES, None).await?;
        // Validation keeps unreadable ones out.
        let services: Vec<ApiService> =
            objects.iter().filter_map(|object| ApiService::from_object(object).ok()).collect();
        let has_remote = services.iter().any(|service| service.service.is_some());
        self.has_remote.store(has_remote, Ordering::Relaxed);
        Ok(services)
    }

    async fn set_available(&self, name: &str, condition: &Condition) -> Result<(), String> {
        let resource = self.resource(API_SERVICES)?;
        let key = resource.key(None, name).map_err(|status| status.message)?;
        let now = Clock::default().now();
        let change = |object: &mut serde_json::Map<String, Value>| match set_condition(object, condition, &now) {
            true => Amendment::Write,
            false => Amendment::Leave,
        };
        self.writer.amend(&resource, &key, change).await.map_err(|status| status.message)
    }

    async fn changed(&self) {
        let mut watches = self.watches.lock().await;
        let with_services = self.has_remote.load(Ordering::Relaxed);
        if watches.running.is_empty() || watches.with_services != with_services {
            match self.watch(with_services).await {
                // A change before the watch began is seen by the next look.
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
            let (item, _, _) = select_all(items).await;
            match item {
                Some(WatchItem::Event(_)) => return,
                Some(WatchItem::Progress(_)) => {}
                Some(WatchItem::Expired { .. } | WatchItem::Lost(_)) | None => {
                    watches.running.clear();
                    tokio::time::sleep(WATCH_RETRY).await;
                    return;
                }
            }
        }
    }
}
