//! Publishes the addresses of the running servers in the Endpoints and the EndpointSlice of the Service
//! `default/kubernetes` (`--endpoint-reconciler-type=lease`).
//!
//! Source: `pkg/controlplane/reconcilers/{lease,endpointsadapter}.go`,
//! `pkg/controlplane/controller/kubernetesservice/controller.go`.
//!
//! ```text
//!  start  delete the lease that a crash left ─┐
//!  ready  renew the lease, every 10 s ────────┼─▶ list the leases ─▶ Endpoints ─▶ EndpointSlice
//!  stop   delete the lease ───────────────────┘                   (written where they differ)
//! ```

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use listwatch_json::{Map, Value, json};
use listwatch_meta::Status;
use listwatch_registry::Resource;
use listwatch_write::{Removal, Writer};
use tokio::sync::Mutex;

use crate::master_leases;
use crate::objects::{get_versioned, is_conflict, write};

/// Interval between two renewals (`EndpointInterval`).
const INTERVAL: Duration = Duration::from_secs(10);
/// The time limit of [`EndpointReconciler::stop`], so that a store that does not respond cannot delay a shutdown.
const STOP_MAX: Duration = Duration::from_secs(20);
/// Maximum number of attempts to write one object after conflicts with other servers.
const ATTEMPTS_MAX: usize = 5;
/// The field manager of the objects.
const USER_AGENT: &str = "kube-apiserver";

const NAMESPACE: &str = "default";
/// The name of the service, of its Endpoints and of its EndpointSlice.
const NAME: &str = "kubernetes";
const ENDPOINTS: (&str, &str, &str) = ("", "v1", "endpoints");
const SLICES: (&str, &str, &str) = ("discovery.k8s.io", "v1", "endpointslices");
/// The label that prevents kube-controller-manager from mirroring the Endpoints.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The controller on one server. Several servers on one store each run one, with different addresses.
#[derive(Debug)]
pub(crate) struct EndpointReconciler {
    writer: Arc<Writer>,
    address: IpAddr,
    port: u16,
    /// Whether [`EndpointReconciler::stop`] was called. The lock orders the stop after a running renewal.
    stopped: Mutex<bool>,
}

impl EndpointReconciler {
    /// Creates a controller that publishes `address` and `port` (`--advertise-address`, `--secure-port`).
    pub(crate) fn new(writer: Arc<Writer>, address: IpAddr, port: u16) -> Self {
        EndpointReconciler { writer, address, port, stopped: Mutex::new(false) }
    }

    /// Removes the address if an earlier process has left it after a crash, and waits until this server is ready. Then
    /// publishes the address until [`EndpointReconciler::stop`] is called or the future is dropped. Failures are logged
    /// and retried at the next renewal.
    pub(crate) async fn run(&self, ready: impl Future<Output = ()>) {
        match self.withdraw().await {
            Ok(true) => {
                tracing::warn!(address = %self.address, "removed the address of a server that did not stop cleanly")
            }
            Ok(false) => {}
            Err(status) => tracing::warn!(%status, "cannot remove the address of a former server"),
        }
        ready.await;
        loop {
            match self.renew().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(status) => tracing::warn!(%status, "cannot publish the addresses of the API servers"),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Ends the publication and removes the address, so that clients inside the cluster use the other servers. Returns
    /// after 20 seconds if the store does not respond.
    pub(crate) async fn stop(&self) {
        let stop = async {
            *self.stopped.lock().await = true;
            self.withdraw().await
        };
        match tokio::time::timeout(STOP_MAX, stop).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => tracing::warn!(%status, "cannot remove the address of this server"),
            Err(_) => tracing::warn!("the store does not respond; the address of this server expires by itself"),
        }
    }

    /// Renews the lease of this server, and updates the objects. Returns false after [`EndpointReconciler::stop`].
    async fn renew(&self) -> Result<bool, Status> {
        let stopped = self.stopped.lock().await;
        if *stopped {
            return Ok(false);
        }
        // Other servers publish this address even if the following writes fail.
        master_leases::renew(&**self.writer.backend().storage(), self.address).await?;
        self.reconcile(false, false).await?;
        Ok(true)
    }

    /// Deletes the lease of this server, and updates the objects. Returns false if there was no lease.
    async fn withdraw(&self) -> Result<bool, Status> {
        let stopped = *self.stopped.lock().await;
        let removed = master_leases::remove(&**self.writer.backend().storage(), self.address).await?;
        if removed {
            self.reconcile(true, stopped).await?;
        }
        Ok(removed)
    }

    /// Updates the objects from the leases. `may_be_empty` allows an empty list, which occurs when the last server
    /// stops.
    async fn reconcile(&self, correct_ports: bool, may_be_empty: bool) -> Result<(), Status> {
        let addresses = master_leases::addresses(&**self.writer.backend().storage()).await?;
        if addresses.is_empty() && !may_be_empty {
            return Err(Status::internal(
                "no API server IP addresses were listed in storage, refusing to erase all endpoints for the kubernetes Service",
            ));
        }
        let port = self.port;
        let endpoints =
            self.update(ENDPOINTS, |found| revised_endpoints(found, &addresses, port, correct_ports)).await?;
        let wanted = endpoint_slice(&endpoints);
        self.remove_slice_of_other_family(&wanted).await?;
        self.update(SLICES, |found| revised_slice(found, &wanted)).await?;
        Ok(())
    }

    /// Creates or replaces an object if `revise` returns a new version. Returns the current object.
    async fn update(
        &self,
        (group, version, plural): (&str, &str, &str),
        revise: impl Fn(Option<&Map>) -> Option<Map>,
    ) -> Result<Map, Status> {
        let resource = self.resource(group, version, plural)?;
        let key = resource.key(Some(NAMESPACE), NAME)?;
        let mut outcome = Err(Status::internal("no attempt was made"));
        for _ in 0..ATTEMPTS_MAX {
            let found = get_versioned(&self.writer, &key).await?;
            let Some(revised) = revise(found.as_ref()) else { return Ok(found.unwrap_or_default()) };
            let name = found.is_some().then_some(NAME);
            let object = Value::Object(revised);
            match write(&self.writer, &resource, Some(NAMESPACE), name, &object, USER_AGENT).await {
                // Another server was faster, perhaps with the same object.
                Err(status) if is_conflict(&status) => outcome = Err(status),
                Err(status) => return Err(status),
                Ok(()) => {
                    let Value::Object(written) = object else { return Ok(Map::new()) };
                    return Ok(written);
                }
            }
        }
        outcome
    }

    /// Deletes a slice of the other IP family, because the address type of a slice is immutable.
    async fn remove_slice_of_other_family(&self, wanted: &Map) -> Result<(), Status> {
        let resource = self.resource(SLICES.0, SLICES.1, SLICES.2)?;
        let key = resource.key(Some(NAMESPACE), NAME)?;
        let found = get_versioned(&self.writer, &key).await?;
        if found.is_some_and(|found| found.get("addressType") != wanted.get("addressType"))
            && self.writer.remove(&resource, &key).await? == Removal::Held
        {
            return Err(Status::internal("finalizers hold the EndpointSlice of another address type"));
        }
        Ok(())
    }

    fn resource(&self, group: &str, version: &str, plural: &str) -> Result<Arc<Resource>, Status> {
        let registry = self.writer.backend().registry();
        registry.find(group, version, plural).cloned().ok_or_else(Status::no_such_resource)
    }
}

/// Returns the Endpoints with these addresses; `None` if `found` is already correct. The ports of existing Endpoints
/// change only if `correct_ports` is set, because servers may have different ports (`doReconcile`).
fn revised_endpoints(found: Option<&Map>, addresses: &[String], port: u16, correct_ports: bool) -> Option<Map> {
    let wanted_ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let mut endpoints = found.cloned().unwrap_or_else(|| named(json!({})));
    let labels = &mut endpoints["metadata"]["labels"];
    if !labels.is_object() {
        *labels = json!({});
    }
    labels[SKIP_MIRROR] = json!("true");
    let subset = match endpoints.get("subsets").and_then(Value::as_array).map(Vec::as_slice) {
        Some([subset]) => Some(subset),
        _ => None,
    };
    let present: Vec<&str> = subset.into_iter().flat_map(|subset| ips(subset, "addresses")).collect();
    let has_addresses = present.len() == addresses.len()
        && addresses.iter().all(|address| present.contains(&address.as_str()))
        && subset.is_some_and(|subset| ips(subset, "notReadyAddresses").is_empty());
    let ports = match subset.map(|subset| &subset["ports"]) {
        Some(ports) if !correct_ports && ports.as_array().is_some_and(|ports| !ports.is_empty()) => ports.clone(),
        _ => wanted_ports,
    };
    if addresses.is_empty() {
        endpoints.remove("subsets");
    } else if !has_addresses {
        let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        endpoints.insert("subsets", json!([{"addresses": addresses, "ports": ports}]));
    } else if let Some(subset) = endpoints.get_mut("subsets").and_then(|subsets| subsets.get_mut(0)) {
        subset["ports"] = ports;
    }
    (found != Some(&endpoints)).then_some(endpoints)
}

fn ips<'a>(subset: &'a Value, list: &str) -> Vec<&'a str> {
    let addresses = subset[list].as_array().map(Vec::as_slice).unwrap_or_default();
    addresses.iter().map(|address| address["ip"].as_str().unwrap_or_default()).collect()
}

/// Returns the EndpointSlice for Endpoints (`endpointSliceFromEndpoints`).
fn endpoint_slice(endpoints: &Map) -> Map {
    let subset = endpoints.get("subsets").and_then(|subsets| subsets.get(0)).unwrap_or(&Value::Null);
    let addresses = ips(subset, "addresses");
    let is_v6 = !addresses.is_empty() && addresses.iter().all(|ip| ip.contains(':'));
    let ready = |ip: &&str| json!({"addresses": [ip], "conditions": {"ready": true}});
    let mut slice = named(json!({SERVICE_NAME: NAME}));
    slice.insert("addressType", json!(if is_v6 { "IPv6" } else { "IPv4" }));
    slice.insert("endpoints", addresses.iter().map(ready).collect());
    slice.insert("ports", subset.get("ports").cloned().unwrap_or_else(|| json!([])));
    slice
}

/// Returns `found` with the labels, endpoints and ports of `wanted`; `None` if `found` is already equal in these
/// fields.
fn revised_slice(found: Option<&Map>, wanted: &Map) -> Option<Map> {
    let Some(found) = found else { return Some(wanted.clone()) };
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let mut slice = found.clone();
    slice["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
    for list in ["endpoints", "ports"] {
        let present = found.get(list).unwrap_or(&Value::Null);
        if !(is_empty(present) && is_empty(&wanted[list])) {
            slice.insert(list.to_owned(), wanted[list].clone());
        }
    }
    (slice != *found).then_some(slice)
}

/// Returns an object with the name and namespace of the service and these labels.
fn named(labels: Value) -> Map {
    let metadata = json!({"name": NAME, "namespace": NAMESPACE, "labels": labels});
    Map::from_iter([("metadata".to_owned(), metadata)])
}

#[cfg(test)]
mod tests {
    use listwatch_meta::Key;
    use listwatch_storage::{MemoryStorage, Storage as _};
    use listwatch_write::testing;

    use super::*;
    use crate::namespaces;

    const PATH: &str = "/services/endpoints/default/kubernetes";
    const SLICE_PATH: &str = "/endpointslices/default/kubernetes";

    async fn server(storage: &Arc<MemoryStorage>, address: &str) -> Arc<EndpointReconciler> {
        let writer = Arc::new(testing::writer(storage.clone()));
        namespaces::ensure_system_namespaces(&writer).await.unwrap();
        Arc::new(EndpointReconciler::new(writer, address.parse().unwrap(), 6443))
    }

    fn start(server: &Arc<EndpointReconciler>) -> tokio::task::JoinHandle<()> {
        let server = Arc::clone(server);
        tokio::spawn(async move { server.run(async {}).await })
    }

    async fn stored(storage: &MemoryStorage, path: &str) -> Value {
        let (found, _) = storage.get(&Key::from_path(path).unwrap()).await.unwrap();
        found.map(|found| serde_json::from_slice(&found.value).unwrap()).unwrap_or_default()
    }

    /// Returns the addresses in the Endpoints. Asserts that the EndpointSlice has the same addresses.
    async fn published(storage: &MemoryStorage) -> Vec<String> {
        let (endpoints, slice) = (stored(storage, PATH).await, stored(storage, SLICE_PATH).await);
        let found: Vec<String> = ips(&endpoints["subsets"][0], "addresses").into_iter().map(str::to_owned).collect();
        let slice = slice["endpoints"].as_array().cloned().unwrap_or_default();
        let slice: Vec<&str> = slice.iter().map(|endpoint| endpoint["addresses"][0].as_str().unwrap()).collect();
        assert_eq!(slice, found, "the EndpointSlice has the addresses of the Endpoints");
        found
    }

    async fn rest(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn kubernetes_endpoints_and_slice_equal_those_of_kube_apiserver() {
        let storage = MemoryStorage::new();
        start(&server(&storage, "192.0.2.1").await);
        rest(1).await;
        let endpoints = stored(&storage, PATH).await;
        assert_eq!(endpoints["metadata"]["labels"], json!({SKIP_MIRROR: "true"}));
        assert_eq!(endpoints["metadata"]["managedFields"][0]["manager"], "kube-apiserver");
        assert_eq!(
            endpoints["subsets"],
            json!([{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}]}])
        );
        let slice = stored(&storage, SLICE_PATH).await;
        assert_eq!(slice["metadata"]["labels"], json!({SERVICE_NAME: "kubernetes"}));
        assert_eq!(slice["addressType"], "IPv4");
        assert_eq!(slice["endpoints"], json!([{"addresses": ["192.0.2.1"], "conditions": {"ready": true}}]));
        assert_eq!(slice["ports"], json!([{"name": "https", "port": 6443, "protocol": "TCP"}]));
    }

    #[tokio::test(start_paused = true)]
    async fn address_of_a_server_that_stops_renewing_is_removed() {
        let storage = MemoryStorage::new();
        let (one, two) = (server(&storage, "192.0.2.1").await, server(&storage, "192.0.2.2").await);
        let running = start(&one);
        start(&two);
        rest(15).await;
        assert_eq!(published(&storage).await, ["192.0.2.1", "192.0.2.2"]);
        running.abort();
        rest(40).await;
        assert_eq!(published(&storage).await, ["192.0.2.2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_server_removes_its_address_at_once() {
        let storage = MemoryStorage::new();
        let (one, two) = (server(&storage, "192.0.2.1").await, server(&storage, "192.0.2.2").await);
        let (first, second) = (start(&one), start(&two));
        rest(15).await;
        one.stop().await;
        assert_eq!(published(&storage).await, ["192.0.2.2"]);
        first.await.expect("a stopped controller ends");
        two.stop().await;
        assert_eq!(published(&storage).await, [""; 0], "the last server leaves nothing");
        second.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn changed_and_deleted_endpoints_are_restored() {
        let storage = MemoryStorage::new();
        let one = server(&storage, "192.0.2.1").await;
        start(&one);
        rest(1).await;
        for (resource, path) in [(ENDPOINTS, PATH), (SLICES, SLICE_PATH)] {
            let resource = one.resource(resource.0, resource.1, resource.2).unwrap();
            let key = Key::from_path(path).unwrap();
            assert_eq!(one.writer.remove(&resource, &key).await, Ok(Removal::Gone));
            rest(12).await;
            assert_eq!(published(&storage).await, ["192.0.2.1"], "{path}");
        }
        let endpoints = one.resource("", "v1", "endpoints").unwrap();
        let foreign = json!({"metadata": {"name": NAME}, "subsets": [{"addresses": [{"ip": "203.0.113.9"}]}]});
        write(&one.writer, &endpoints, Some(NAMESPACE), Some(NAME), &foreign, "user").await.unwrap();
        rest(12).await;
        assert_eq!(published(&storage).await, ["192.0.2.1"]);
        assert_eq!(stored(&storage, PATH).await["metadata"]["labels"][SKIP_MIRROR], "true");
    }

    #[tokio::test(start_paused = true)]
    async fn address_is_published_only_after_the_server_is_ready() {
        let storage = MemoryStorage::new();
        // A former process at this address did not stop cleanly.
        let address = "192.0.2.1".parse().unwrap();
        master_leases::renew(&*storage, address).await.unwrap();
        let one = server(&storage, "192.0.2.1").await;
        let (ready, waiting) = tokio::sync::oneshot::channel::<()>();
        let running = Arc::clone(&one);
        tokio::spawn(async move { running.run(async { waiting.await.unwrap() }).await });
        rest(5).await;
        assert_eq!(master_leases::addresses(&*storage).await.unwrap(), [""; 0]);
        assert_eq!(published(&storage).await, [""; 0]);
        ready.send(()).unwrap();
        rest(1).await;
        assert_eq!(published(&storage).await, ["192.0.2.1"]);
    }

    #[test]
    fn endpoints_keep_ports_of_other_servers_until_a_server_is_removed() {
        let addresses = ["192.0.2.1".to_owned()];
        let port = |found: Option<&Map>, correct| {
            revised_endpoints(found, &addresses, 6443, correct)
                .map(|endpoints| endpoints["subsets"][0]["ports"].clone())
        };
        let ours = json!([{"name": "https", "port": 6443, "protocol": "TCP"}]);
        assert_eq!(port(None, false), Some(ours.clone()));
        let mut other = revised_endpoints(None, &addresses, 8443, false).unwrap();
        assert_eq!(port(Some(&other), false), None, "nothing to write");
        assert_eq!(port(Some(&other), true), Some(ours));
        other["subsets"][0]["addresses"] = json!([{"ip": "192.0.2.7"}]);
        assert_eq!(port(Some(&other), false).unwrap()[0]["port"], 8443);
    }

    #[tokio::test(start_paused = true)]
    async fn endpoint_slice_of_another_ip_family_is_replaced() {
        let storage = MemoryStorage::new();
        let one = server(&storage, "2001:db8::1").await;
        let slices = one.resource(SLICES.0, SLICES.1, SLICES.2).unwrap();
        let slice = Value::Object(endpoint_slice(&Map::new()));
        write(&one.writer, &slices, Some(NAMESPACE), None, &slice, USER_AGENT).await.unwrap();
        start(&one);
        rest(1).await;
        assert_eq!(published(&storage).await, ["2001:db8::1"]);
        assert_eq!(stored(&storage, SLICE_PATH).await["addressType"], "IPv6");
    }
}
