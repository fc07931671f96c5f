//! Resolves a service reference to an address: [`resolve_cluster`] and [`resolve_endpoint`].
//!
//! Rules and texts: `apiserver/pkg/util/proxy/proxy.go`.

use crate::ServiceReference;
use crate::objects::{EndpointSlice, Service};

/// An address to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A host name, or an IP address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// A service reference cannot be resolved. The aggregator responds with 503 `service unavailable`, and writes the text
/// to the log and the condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The service with this name does not exist.
    #[error("service {0:?} not found")]
    ServiceNotFound(String),
    /// The service or its slices cannot be read.
    #[error("{0}")]
    Access(String),
    /// Services of this type have no endpoints.
    #[error("unsupported service type {0:?}")]
    UnsupportedType(String),
    /// The service is headless.
    #[error("cannot route to service with ClusterIP \"None\"")]
    Headless,
    /// The service does not have the port.
    #[error("no service port {port} found for service {service:?}")]
    NoPort {
        /// The name of the service.
        service: String,
        /// The port of the reference.
        port: u16,
    },
    /// No ready endpoint has the port.
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
}

fn port_name<'a>(service: &'a Service, reference: &ServiceReference) -> Result<&'a str, ResolveError> {
    let found = service.ports.iter().find(|(_, port)| *port == reference.port);
    let missing = || ResolveError::NoPort { service: reference.name.clone(), port: reference.port };
    found.map(|(name, _)| name.as_str()).ok_or_else(missing)
}

/// Returns the cluster address of a service, or the external name of an ExternalName service (`ResolveCluster`).
///
/// # Errors
/// [`ResolveError::Headless`], [`ResolveError::NoPort`], [`ResolveError::UnsupportedType`].
pub fn resolve_cluster(service: &Service, reference: &ServiceReference) -> Result<Address, ResolveError> {
    match service.service_type.as_str() {
        "ClusterIP" if service.cluster_ip == "None" => Err(ResolveError::Headless),
        "ClusterIP" | "LoadBalancer" | "NodePort" => {
            port_name(service, reference)?;
            Ok(Address { host: service.cluster_ip.clone(), port: reference.port })
        }
        "ExternalName" => Ok(Address { host: service.external_name.clone(), port: reference.port }),
        other => Err(ResolveError::UnsupportedType(other.to_owned())),
    }
}

/// Returns a ready endpoint of a service, preferably of its primary address family (`ResolveEndpoint`,
/// `RandomEndpoint`). `choose` returns a number below its argument; a random number spreads the load.
///
/// # Errors
/// [`ResolveError::NoPort`], [`ResolveError::NoEndpoints`], [`ResolveError::UnsupportedType`].
pub fn resolve_endpoint(
    service: &Service,
    slices: &[EndpointSlice],
    reference: &ServiceReference,
    mut choose: impl FnMut(usize) -> usize,
) -> Result<Address, ResolveError> {
    if !matches!(service.service_type.as_str(), "ClusterIP" | "LoadBalancer" | "NodePort") {
        return Err(ResolveError::UnsupportedType(service.service_type.clone()));
    }
    let name = port_name(service, reference)?;
    let usable = slices.iter().filter_map(|slice| {
        let (_, port) = slice.ports.iter().find(|(found, _)| found == name)?;
        (!slice.ready_addresses.is_empty()).then_some((slice, *port))
    });
    let (preferred, others): (Vec<_>, Vec<_>) = usable.partition(|(slice, _)| slice.address_type == service.ip_family);
    let candidates = if preferred.is_empty() { others } else { preferred };
    if candidates.is_empty() {
        return Err(ResolveError::NoEndpoints(reference.name.clone()));
    }
    let (slice, port) = candidates[choose(candidates.len()).min(candidates.len() - 1)];
    let addresses = &slice.ready_addresses;
    let host = addresses[choose(addresses.len()).min(addresses.len() - 1)].clone();
    Ok(Address { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(service_type: &str, cluster_ip: &str) -> Service {
        Service {
            service_type: service_type.to_owned(),
            cluster_ip: cluster_ip.to_owned(),
            external_name: "api.example".to_owned(),
            ip_family: "IPv4".to_owned(),
            ports: vec![("https".to_owned(), 443), ("web".to_owned(), 80)],
        }
    }

    fn reference(port: u16) -> ServiceReference {
        ServiceReference { namespace: "a".to_owned(), name: "api".to_owned(), port }
    }

    fn slice(address_type: &str, port: (&str, u16), addresses: &[&str]) -> EndpointSlice {
        EndpointSlice {
            address_type: address_type.to_owned(),
            ports: vec![(port.0.to_owned(), port.1)],
            ready_addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
        }
    }

    #[test]
    fn cluster_ip_and_external_name_services_resolve_to_their_addresses() {
        let check = |service: Service, port: u16, expected: Result<(&str, u16), &str>| {
            let found = resolve_cluster(&service, &reference(port));
            let found = found.map(|address| (address.host, address.port)).map_err(|error| error.to_string());
            let expected = expected.map(|(host, port)| (host.to_owned(), port)).map_err(str::to_owned);
            assert_eq!(found, expected, "{service:?}");
        };
        for routed in ["ClusterIP", "NodePort", "LoadBalancer"] {
            check(service(routed, "10.0.0.1"), 443, Ok(("10.0.0.1", 443)));
            check(service(routed, "10.0.0.1"), 444, Err("no service port 444 found for service \"api\""));
        }
        check(service("ClusterIP", "None"), 443, Err("cannot route to service with ClusterIP \"None\""));
        check(service("ExternalName", ""), 8443, Ok(("api.example", 8443)));
        check(service("", ""), 443, Err("unsupported service type \"\""));
    }

    #[test]
    fn resolve_endpoint_picks_a_ready_endpoint_of_the_preferred_family() {
        let slices = [
            slice("IPv6", ("https", 6443), &["fd00::1"]),
            slice("IPv4", ("web", 8080), &["10.1.0.9"]),
            slice("IPv4", ("https", 8443), &["10.1.0.1", "10.1.0.2"]),
            slice("IPv4", ("https", 8443), &[]),
        ];
        let service_of = service("ClusterIP", "None");
        let check = |choice: usize, expected: (&str, u16)| {
            let found = resolve_endpoint(&service_of, &slices, &reference(443), |_| choice).unwrap();
            assert_eq!((found.host.as_str(), found.port), expected);
        };
        check(0, ("10.1.0.1", 8443));
        check(1, ("10.1.0.2", 8443));
        let only_v6 = resolve_endpoint(&service_of, &slices[..1], &reference(443), |_| 0).unwrap();
        assert_eq!(only_v6.host, "fd00::1", "another family is better than none");
    }

    #[test]
    fn service_without_endpoints_has_no_address() {
        let check = |service: Service, port: u16, expected: &str| {
            let slices = [slice("IPv4", ("https", 1), &[])];
            let error = resolve_endpoint(&service, &slices, &reference(port), |_| 0).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        check(service("ClusterIP", "10.0.0.1"), 443, "no endpoints available for service \"api\"");
        check(service("ClusterIP", "10.0.0.1"), 1, "no service port 1 found for service \"api\"");
        check(service("ExternalName", ""), 443, "unsupported service type \"ExternalName\"");
        let missing = ResolveError::ServiceNotFound("api".to_owned());
        assert_eq!(missing.to_string(), "service \"api\" not found");
    }
}
