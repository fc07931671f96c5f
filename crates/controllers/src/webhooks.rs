//! Updates the admission webhooks from the stored configurations, and reads the Services that webhooks refer to.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use listwatch_aggregator::{EndpointSlice, Service, ServiceObjects};
use listwatch_cacher::Scope;
use listwatch_json::Value;
use listwatch_meta::{FieldSelector, LabelSelector, ListRequest, Object, ReadAt, Status};
use listwatch_registry::{Backend, Resource};
use listwatch_webhook_admission::WebhookConfigurations;
use listwatch_write::Writer;

use crate::feed::{self, ObjectCopy};

const GROUP: &str = "admissionregistration.k8s.io";
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The webhooks of both kinds of configurations.
#[derive(Clone, Debug, Default)]
pub struct AdmissionWebhooks {
    /// The webhooks of MutatingWebhookConfigurations.
    pub mutating: Arc<WebhookConfigurations>,
    /// The webhooks of ValidatingWebhookConfigurations.
    pub validating: Arc<WebhookConfigurations>,
}

/// Updates the webhooks from the configurations of one kind.
struct ConfigurationCopy<'a>(&'a WebhookConfigurations, &'static str);

impl ObjectCopy for ConfigurationCopy<'_> {
    fn resource(&self) -> (&'static str, &'static str, &'static str) {
        (GROUP, "v1", self.1)
    }

    fn set(&self, object: &Object) -> bool {
        self.0.set(object.json_slice()).is_ok()
    }

    fn remove(&self, _: &str, name: &str) {
        self.0.remove(name);
    }

    fn replace<'a>(&self, objects: &'a [Object]) -> Vec<(&'a str, &'a str)> {
        let unreadable = self.0.replace(objects.iter().map(|object| (object.name(), object.json_slice())));
        unreadable.into_iter().map(|name| ("", name)).collect()
    }
}

fn copies(webhooks: &AdmissionWebhooks) -> [ConfigurationCopy<'_>; 2] {
    [
        ConfigurationCopy(&webhooks.mutating, "mutatingwebhookconfigurations"),
        ConfigurationCopy(&webhooks.validating, "validatingwebhookconfigurations"),
    ]
}

/// Lists all configurations. A server calls this before the first request, so that webhooks are called for every
/// request.
///
/// # Errors
/// The error of the store, or 504 if the store does not respond in time.
pub async fn load(writer: &Writer, webhooks: &AdmissionWebhooks) -> Result<(), Status> {
    feed::load(writer, &copies(webhooks), "the webhook configurations").await
}

/// Updates the webhooks until the future is dropped. While a watch fails, the last known configurations apply, as in
/// upstream's informers.
pub async fn follow(writer: Arc<Writer>, webhooks: AdmissionWebhooks) {
    feed::follow(&writer, &copies(&webhooks)).await;
}

/// Reads Services and EndpointSlices from the watch caches of a server.
#[derive(Debug)]
pub struct CachedServices(Weak<Backend>);

impl CachedServices {
    /// Creates a reader of the caches of a server. The reader does not keep the server alive, because the server may
    /// hold the reader.
    pub fn new(backend: &Arc<Backend>) -> Self {
        CachedServices(Arc::downgrade(backend))
    }

    fn backend(&self) -> Result<Arc<Backend>, String> {
        self.0.upgrade().ok_or_else(|| "the server has stopped".to_owned())
    }

    fn resource(&self, group: &str, plural: &str) -> Result<Arc<Resource>, String> {
        let registry = self.backend()?.registry();
        registry.find(group, "v1", plural).cloned().ok_or_else(|| format!("{plural} are not served"))
    }

    async fn list(&self, resource: &Arc<Resource>, namespace: &str, labels: &str) -> Result<Vec<Object>, String> {
        let request = ListRequest {
            at: ReadAt::Any,
            limit: None,
            resume: None,
            labels: LabelSelector::parse(labels).map_err(|error| error.to_string())?,
            fields: FieldSelector::default(),
            shard: None,
        };
        let scope = Scope::Namespace(namespace.to_owned());
        let list = self.backend()?.cacher(resource).list(&scope, &request).await;
        Ok(list.map_err(|error| error.status(resource.gr()).message)?.items.collect())
    }

    async fn find_service(&self, namespace: &str, name: &str) -> Result<Option<Service>, String> {
        let resource = self.resource("", "services")?;
        let key = resource.key(Some(namespace), name).map_err(|status| status.message)?;
        let cached = self.backend()?.cacher(&resource).peek(&key);
        let json = match cached {
            Some(object) => object.json_slice().to_vec(),
            // The cache may not have the newest services.
            None => match self.backend()?.storage().get(&key).await.map_err(|error| error.to_string())?.0 {
                Some(found) => found.value.to_vec(),
                None => return Ok(None),
            },
        };
        let object: Value = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
        Ok(Some(Service::from_object(&object)))
    }

    async fn find_slices(&self, namespace: &str, service: &str) -> Result<Vec<EndpointSlice>, String> {
        let resource = self.resource("discovery.k8s.io", "endpointslices")?;
        let slices = self.list(&resource, namespace, &format!("{SERVICE_NAME_LABEL}={service}")).await?;
        let parse = |slice: &Object| {
            let slice: Value = serde_json::from_slice(slice.json_slice()).map_err(|error| error.to_string())?;
            Ok(EndpointSlice::from_object(&slice))
        };
        slices.iter().map(parse).collect()
    }
}

#[async_trait]
impl ServiceObjects for CachedServices {
    async fn service(&self, namespace: &str, name: &str) -> Result<Option<Service>, String> {
        self.find_service(namespace, name).await
    }

    async fn endpoint_slices(&self, namespace: &str, service: &str) -> Result<Vec<EndpointSlice>, String> {
        self.find_slices(namespace, service).await
    }
}
