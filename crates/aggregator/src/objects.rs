//! The objects that resolve a service reference to an address, and the traits that read and write them.

use async_trait::async_trait;
use listwatch_json::Value;
use serde::Deserialize;

use crate::ApiService;
use crate::condition::Condition;

/// The parts of a Service (`v1`) that routing needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub service_type: String,
    /// An IP address, or the text `None` for a headless service.
    pub cluster_ip: String,
    /// The DNS name of a service of type `ExternalName`.
    pub external_name: String,
    /// The primary address family, `IPv4` or `IPv6`; empty if the service has none.
    pub ip_family: String,
    /// The ports with their names; a name may be empty.
    pub ports: Vec<(String, u16)>,
}

/// The parts of an EndpointSlice (`discovery.k8s.io/v1`) that routing needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSlice {
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    /// The ports with their names. Ports without a name or a number are omitted, because they match no service port.
    pub ports: Vec<(String, u16)>,
    /// The first address of each ready endpoint. An endpoint without the condition `ready` counts as ready.
    pub ready_addresses: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ServiceObject {
    spec: ServiceSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec {
    r#type: Option<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    external_name: Option<String>,
    ip_families: Option<Vec<String>>,
    ports: Option<Vec<Port>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SliceObject {
    address_type: Option<String>,
    ports: Option<Vec<Port>>,
    endpoints: Option<Vec<EndpointObject>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EndpointObject {
    addresses: Option<Vec<String>>,
    conditions: Option<Conditions>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
}

impl Service {
    /// Reads a Service from its JSON. A malformed object becomes a service without a type, which receives no requests.
    pub fn from_object(object: &Value) -> Self {
        let spec = ServiceObject::deserialize(object).unwrap_or_default().spec;
        let ports = spec.ports.unwrap_or_default().into_iter();
        Service {
            service_type: spec.r#type.unwrap_or_default(),
            cluster_ip: spec.cluster_ip.unwrap_or_default(),
            external_name: spec.external_name.unwrap_or_default(),
            ip_family: spec.ip_families.unwrap_or_default().into_iter().next().unwrap_or_default(),
            ports: ports.filter_map(|port| Some((port.name.unwrap_or_default(), port.port?))).collect(),
        }
    }
}

impl EndpointSlice {
    /// Reads an EndpointSlice from its JSON. A malformed object becomes an empty slice.
    pub fn from_object(object: &Value) -> Self {
        let slice = SliceObject::deserialize(object).unwrap_or_default();
        let ports = slice.ports.unwrap_or_default().into_iter();
        let ready =
            |endpoint: &EndpointObject| endpoint.conditions.as_ref().and_then(|found| found.ready) != Some(false);
        let endpoints = slice.endpoints.unwrap_or_default().into_iter().filter(ready);
        EndpointSlice {
            address_type: slice.address_type.unwrap_or_default(),
            ports: ports.filter_map(|port| Some((port.name?, port.port?))).collect(),
            ready_addresses: endpoints.filter_map(|endpoint| endpoint.addresses?.into_iter().next()).collect(),
        }
    }
}

/// Reads Services and EndpointSlices.
#[async_trait]
pub trait ServiceObjects: Send + Sync {
    /// Reads a service by its name; `None` if the service does not exist.
    ///
    /// # Errors
    /// The text of a failed read.
    async fn service(&self, namespace: &str, name: &str) -> Result<Option<Service>, String>;

    /// Reads the slices with the label `kubernetes.io/service-name: <service>`.
    ///
    /// # Errors
    /// The text of a failed read.
    async fn endpoint_slices(&self, namespace: &str, service: &str) -> Result<Vec<EndpointSlice>, String>;
}

/// Reads and writes APIServices.
#[async_trait]
pub trait ApiServiceObjects: Send + Sync {
    /// Reads all valid APIServices.
    ///
    /// # Errors
    /// The text of a failed read.
    async fn api_services(&self) -> Result<Vec<ApiService>, String>;

    /// Sets the condition `Available` of an APIService, by [`set_condition`](crate::set_condition). Succeeds if the
    /// APIService does not exist.
    ///
    /// # Errors
    /// The text of a failed write. The controller then retries.
    async fn set_available(&self, name: &str, condition: &Condition) -> Result<(), String>;

    /// Waits until an APIService, a Service or an EndpointSlice may have changed. A spurious return is harmless.
    async fn changed(&self);
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn service_is_parsed_with_its_primary_ip_family() {
        let service = Service::from_object(&json!({"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1",
            "ipFamilies": ["IPv6", "IPv4"], "ports": [{"port": 443}, {"name": "web", "port": 80}]}}));
        assert_eq!((service.cluster_ip.as_str(), service.ip_family.as_str()), ("10.0.0.1", "IPv6"));
        assert_eq!(service.ports, [(String::new(), 443), ("web".to_owned(), 80)]);
        assert_eq!(Service::from_object(&json!({"spec": 1})), Service::default());
    }

    #[test]
    fn slice_keeps_ready_endpoints_and_named_ports() {
        let slice = EndpointSlice::from_object(&json!({"addressType": "IPv4",
            "ports": [{"name": "", "port": 8443}, {"port": 1}, {"name": "x"}],
            "endpoints": [{"addresses": ["10.1.0.1", "10.1.0.9"]},
                {"addresses": ["10.1.0.2"], "conditions": {"ready": false}},
                {"addresses": ["10.1.0.3"], "conditions": {"ready": true}}, {"addresses": []}]}));
        assert_eq!(slice.ports, [(String::new(), 8443)]);
        assert_eq!(slice.ready_addresses, ["10.1.0.1", "10.1.0.3"]);
        assert_eq!(EndpointSlice::from_object(&json!([])), EndpointSlice::default());
    }
}
