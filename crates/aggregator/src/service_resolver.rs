//! [`ServiceResolver`]: finds the address of a service for extension servers and webhooks (`buildServiceResolver` in
//! `cmd/kube-apiserver/app/server.go`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crate::ServiceReference;
use crate::objects::{EndpointSlice, Service, ServiceObjects};
use crate::resolve::{Address, ResolveError, resolve_cluster, resolve_endpoint};

/// Finds the addresses of services. The address is the cluster address, or that of a ready endpoint with endpoint
/// routing (`--enable-aggregator-routing`). Port 443 of the service `default/kubernetes` is this server.
#[derive(Clone)]
pub struct ServiceResolver {
    pub(crate) objects: Arc<dyn ServiceObjects>,
    pub(crate) endpoint_routing: bool,
    loopback: Option<SocketAddr>,
}

impl fmt::Debug for ServiceResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceResolver { endpoint_routing, loopback, .. } = self;
        let mut shown = f.debug_struct("ServiceResolver");
        shown.field("endpoint_routing", endpoint_routing).field("loopback", loopback).finish_non_exhaustive()
    }
}

impl ServiceResolver {
    /// Creates a resolver that returns cluster addresses.
    pub fn new(objects: Arc<dyn ServiceObjects>) -> Self {
        ServiceResolver { objects, endpoint_routing: false, loopback: None }
    }

    /// Sets whether the address is that of a ready endpoint (`--enable-aggregator-routing`). Default: no.
    #[must_use]
    pub fn with_endpoint_routing(mut self, endpoint_routing: bool) -> Self {
        self.endpoint_routing = endpoint_routing;
        self
    }

    /// Sets the address of this server, which replaces that of `default/kubernetes`. An unspecified address becomes the
    /// loopback address of its family. Default: none.
    #[must_use]
    pub fn with_loopback(mut self, loopback: Option<SocketAddr>) -> Self {
        self.loopback = loopback.filter(|address| address.port() != 0);
        self
    }

    /// Reads the objects of a service and returns its address. Slices are read with endpoint routing only.
    ///
    /// # Errors
    /// [`ResolveError`] if the service cannot be read, or has no usable port or endpoint.
    pub async fn resolve(&self, reference: &ServiceReference) -> Result<Address, ResolveError> {
        if let Some(address) = self.own_address(reference) {
            return Ok(address);
        }
        let ServiceReference { namespace, name, .. } = reference;
        let service = self.objects.service(namespace, name).await;
        let slices = match self.endpoint_routing {
            true => self.objects.endpoint_slices(namespace, name).await,
            false => Ok(Vec::new()),
        };
        self.address_of(service, slices.as_deref().map_err(Clone::clone), reference)
    }

    /// Returns the address of this server for port 443 of `default/kubernetes` (`loopbackResolver`).
    pub(crate) fn own_address(&self, reference: &ServiceReference) -> Option<Address> {
        let ServiceReference { namespace, name, port } = reference;
        let bound = self.loopback.filter(|_| namespace == "default" && name == "kubernetes" && *port == 443)?;
        let address = loopback_address(bound);
        Some(Address { host: address.ip().to_string(), port: address.port() })
    }

    /// Returns the address of a service that was read.
    pub(crate) fn address_of(
        &self,
        service: Result<Option<Service>, String>,
        slices: Result<&[EndpointSlice], String>,
        reference: &ServiceReference,
    ) -> Result<Address, ResolveError> {
        let service = service.map_err(ResolveError::Access)?;
        let service = service.ok_or_else(|| ResolveError::ServiceNotFound(reference.name.clone()))?;
        if !self.endpoint_routing {
            return resolve_cluster(&service, reference);
        }
        let slices = slices.map_err(ResolveError::Access)?;
        resolve_endpoint(&service, slices, reference, |count| rand::random_range(0..count))
    }
}

/// Returns the address at which a process reaches its own listener: the loopback address of the family instead of an
/// unspecified address (`LoopbackHostPort` in `apiserver/pkg/server/config_selfclient.go`).
pub fn loopback_address(bound: SocketAddr) -> SocketAddr {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, bound.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((Ipv6Addr::LOCALHOST, bound.port())),
        _ => bound,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;

    use super::*;

    /// The services `default/kubernetes`, `ns/hook` and the headless `ns/headless`, each with one endpoint.
    #[derive(Default)]
    struct Objects {
        slice_reads: AtomicUsize,
    }

    #[async_trait]
    impl ServiceObjects for Objects {
        async fn service(&self, _: &str, name: &str) -> Result<Option<Service>, String> {
            let cluster_ip = if name == "headless" { "None" } else { "10.96.0.9" };
            let found = matches!(name, "kubernetes" | "hook" | "headless").then(|| Service {
                service_type: "ClusterIP".to_owned(),
                cluster_ip: cluster_ip.to_owned(),
                ports: vec![("https".to_owned(), 443)],
                ..Service::default()
            });
            Ok(found)
        }

        async fn endpoint_slices(&self, _: &str, _: &str) -> Result<Vec<EndpointSlice>, String> {
            self.slice_reads.fetch_add(1, Ordering::Relaxed);
            Ok(vec![EndpointSlice {
                address_type: "IPv4".to_owned(),
                ports: vec![("https".to_owned(), 8443)],
                ready_addresses: vec!["10.1.0.1".to_owned()],
            }])
        }
    }

    #[tokio::test]
    async fn service_resolves_to_its_cluster_address_unless_endpoint_routing_is_enabled() {
        let objects = Arc::new(Objects::default());
        let resolver = ServiceResolver::new(Arc::clone(&objects) as Arc<dyn ServiceObjects>);
        let own = resolver.clone().with_loopback(Some("0.0.0.0:6443".parse().unwrap()));
        let check = async |resolver: &ServiceResolver, (namespace, name, port): (&str, &str, u16), expected: &str| {
            let reference = ServiceReference { namespace: namespace.to_owned(), name: name.to_owned(), port };
            let shown = match resolver.resolve(&reference).await {
                Ok(Address { host, port }) => format!("{host} {port}"),
                Err(error) => error.to_string(),
            };
            assert_eq!(shown, expected, "{resolver:?}");
        };
        check(&resolver, ("ns", "hook", 443), "10.96.0.9 443").await;
        check(&resolver, ("ns", "headless", 443), "cannot route to service with ClusterIP \"None\"").await;
        check(&resolver, ("ns", "none", 443), "service \"none\" not found").await;
        check(&resolver, ("default", "kubernetes", 443), "10.96.0.9 443").await;
        assert_eq!(objects.slice_reads.load(Ordering::Relaxed), 0, "cluster addresses need no slices");
        check(&own, ("default", "kubernetes", 443), "127.0.0.1 6443").await;
        check(&own, ("default", "kubernetes", 80), "no service port 80 found for service \"kubernetes\"").await;
        check(&own, ("other", "kubernetes", 443), "10.96.0.9 443").await;
        let v6 = own.with_loopback(Some("[::]:6443".parse().unwrap()));
        check(&v6, ("default", "kubernetes", 443), "::1 6443").await;
        let bound = v6.with_loopback(Some("192.0.2.1:6443".parse().unwrap())).with_endpoint_routing(true);
        check(&bound, ("default", "kubernetes", 443), "192.0.2.1 6443").await;
        check(&bound, ("ns", "hook", 443), "10.1.0.1 8443").await;
        check(&bound, ("ns", "headless", 443), "10.1.0.1 8443").await;
    }
}
