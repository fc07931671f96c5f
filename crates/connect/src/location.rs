//! The targets of connect requests, as pure functions of objects, options and addresses.
//!
//! | request | function | upstream |
//! |---|---|---|
//! | `pods/log`, `exec`, `attach`, `portforward` | [`container`], [`node_of`], [`kubelet`] | `pkg/registry/core/pod/strategy.go` |
//! | `pods/proxy` | [`pod`] | `pkg/registry/core/pod/strategy.go:ResourceLocation` |
//! | `nodes/proxy` | [`node`], [`proxyable`] | `pkg/registry/core/node/strategy.go:ResourceLocation` |
//! | `services/proxy` | [`service_port`], [`candidates`] | `pkg/registry/core/service/storage/storage.go` |
//!
//! A `proxy` request can never reach this machine or a link-local address, because addresses must be global unicast
//! (`pkg/proxy/util/utils.go`). As in upstream, only the address of a kubelet at the kubelet's own port is not checked.

use std::net::IpAddr;

use listwatch_json::Value;
use listwatch_meta::Status;
use listwatch_meta::go::quote;

/// The default port of a kubelet (`ports.KubeletPort`), if the node reports no port.
const KUBELET_PORT: u16 = 10_250;

/// The protocol of a connection, and the credentials of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// TLS with the certificate for kubelets.
    Kubelet,
    /// Like `Kubelet`, without verification of the kubelet's certificate.
    UnverifiedKubelet,
    /// TLS without a client certificate and without verification, used for pods.
    Https,
    /// No TLS.
    Http,
}

/// The target of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The protocol and the credentials.
    pub via: Via,
    /// A host name, or an address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// The reason why a request has no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// The name in the path is not `[scheme:]name[:port]`. The client is at fault.
    #[error("invalid {kind} request {}", quote(.id))]
    InvalidId {
        /// `pod`, `node` or `service`.
        kind: &'static str,
        /// The name in the path.
        id: String,
    },
    /// The pod has several containers, or none. The client must choose one.
    #[error("a container name must be specified for pod {pod}{}", choose_one_of(.names))]
    ContainerRequired {
        /// The name of the pod.
        pod: String,
        /// The names of its containers.
        names: Vec<String>,
    },
    /// The pod has no container of this name. The client is at fault.
    #[error("container {container} is not valid for pod {pod}")]
    UnknownContainer {
        /// The name of the pod.
        pod: String,
        /// The name in the request.
        container: String,
    },
    /// The pod has no node yet.
    #[error("pod {0} does not have a host assigned")]
    NoHost(String),
    /// The address is not global unicast, or the host name has such an address.
    #[error("address not allowed")]
    AddressNotAllowed,
    /// The host name has no address.
    #[error("no addresses for hostname")]
    NoAddresses,
    /// The host name cannot be looked up.
    #[error("{0}")]
    Lookup(String),
    /// The node reports no address of a preferred type.
    #[error("no preferred addresses found; known addresses: [{0}]")]
    NoPreferredAddress(String),
    /// The service does not have the port.
    #[error("no service port {port} found for service {}", quote(.service))]
    NoServicePort {
        /// The name of the service.
        service: String,
        /// The number in the request.
        port: i64,
    },
    /// The service has no ready endpoint that is a pod of its namespace.
    #[error("no endpoints available for service {}", quote(.0))]
    NoEndpoints(String),
}

fn choose_one_of(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(", choose one of: [{}]", names.join(" ")) }
}

impl From<LocationError> for Status {
    fn from(error: LocationError) -> Self {
        use LocationError as Error;
        let text = error.to_string();
        match error {
            Error::NoServicePort { .. } | Error::NoEndpoints(_) => Status::unavailable(text),
            // Upstream has no type for it: 500 without a reason.
            Error::NoPreferredAddress(_) => Status::unknown(text),
            Error::InvalidId { .. }
            | Error::ContainerRequired { .. }
            | Error::UnknownContainer { .. }
            | Error::NoHost(_)
            | Error::AddressNotAllowed
            | Error::NoAddresses
            | Error::Lookup(_) => Status::bad_request(text),
        }
    }
}

/// The name in the path of a `proxy` request: `name`, `name:port` or `scheme:name:port`
/// (`apimachinery/pkg/util/net/port_split.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyId<'a> {
    kind: &'static str,
    /// The whole text.
    id: &'a str,
    is_https: bool,
    /// The name of the object.
    pub name: &'a str,
    /// A number or a name; empty if the path has none.
    port: &'a str,
}

impl<'a> ProxyId<'a> {
    /// Parses the name in a path. `kind` is `pod`, `node` or `service`.
    ///
    /// # Errors
    /// [`LocationError::InvalidId`].
    pub fn parse(kind: &'static str, id: &'a str) -> Result<Self, LocationError> {
        let invalid = || LocationError::InvalidId { kind, id: id.to_owned() };
        let parts: Vec<&str> = id.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme @ ("" | "http" | "https"), name, port] => (scheme, name, port),
            _ => return Err(invalid()),
        };
        if name.is_empty() {
            return Err(invalid());
        }
        Ok(ProxyId { kind, id, is_https: scheme == "https", name, port })
    }

    fn via(&self) -> Via {
        if self.is_https { Via::Https } else { Via::Http }
    }

    /// Returns the port as a number. If the path has no port, returns the default port of the scheme.
    fn number(&self) -> Result<u16, LocationError> {
        let invalid = || LocationError::InvalidId { kind: self.kind, id: self.id.to_owned() };
        match self.port {
            "" => Ok(if self.is_https { 443 } else { 80 }),
            port => port.parse().ok().filter(|port| *port > 0).ok_or_else(invalid),
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn port_number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

/// Returns the container in the request, or the only container of the pod (`validateContainer`).
///
/// # Errors
/// [`LocationError::UnknownContainer`], [`LocationError::ContainerRequired`].
pub fn container<'a>(pod: &'a Value, named: &'a str) -> Result<&'a str, LocationError> {
    let names = |list: &str| items(&pod["spec"][list]).iter().map(|container| text(&container["name"]));
    let all = ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(names);
    let pod_name = || text(&pod["metadata"]["name"]).to_owned();
    if !named.is_empty() {
        return match all.into_iter().any(|name| name == named) {
            true => Ok(named),
            false => Err(LocationError::UnknownContainer { pod: pod_name(), container: named.to_owned() }),
        };
    }
    match items(&pod["spec"]["containers"]) {
        [only] => Ok(text(&only["name"])),
        [] => Err(LocationError::ContainerRequired { pod: pod_name(), names: Vec::new() }),
        _ => Err(LocationError::ContainerRequired { pod: pod_name(), names: all.map(str::to_owned).collect() }),
    }
}

/// Returns the name of the node that runs a pod.
///
/// # Errors
/// [`LocationError::NoHost`].
pub fn node_of(pod: &Value) -> Result<&str, LocationError> {
    match text(&pod["spec"]["nodeName"]) {
        "" => Err(LocationError::NoHost(text(&pod["metadata"]["name"]).to_owned())),
        node => Ok(node),
    }
}

/// Returns the location of the kubelet of a node: the first address of the most preferred type that the node reports,
/// and the kubelet's port (`pkg/kubelet/client/kubelet_client.go:GetConnectionInfo`, `pkg/util/node/node.go`).
///
/// # Errors
/// [`LocationError::NoPreferredAddress`], and [`LocationError::AddressNotAllowed`] for an address that is no host name.
pub fn kubelet(node: &Value, preferred_types: &[String]) -> Result<Location, LocationError> {
    let addresses = items(&node["status"]["addresses"]);
    let of_type = |wanted: &String| addresses.iter().find(|address| address["type"] == wanted.as_str());
    let Some(address) = preferred_types.iter().find_map(of_type) else {
        let known = addresses.iter().map(|known| format!("{{{} {}}}", text(&known["type"]), text(&known["address"])));
        return Err(LocationError::NoPreferredAddress(known.collect::<Vec<_>>().join(" ")));
    };
    let host = text(&address["address"]);
    // A kubelet reports its address itself; it must not choose a path.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if host.parse::<IpAddr>().is_err() && (host.is_empty() || !host.bytes().all(is_name)) {
        return Err(LocationError::AddressNotAllowed);
    }
    let port = port_number(&node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]).unwrap_or(KUBELET_PORT);
    Ok(Location { via: Via::Kubelet, host: host.to_owned(), port })
}

/// Returns the location of `nodes/proxy`: the kubelet, or another port of the node. For another port, the caller checks
/// the addresses with [`proxyable`].
///
/// # Errors
/// Those of [`kubelet`], and [`LocationError::InvalidId`] for an invalid port.
pub fn node(node: &Value, id: &ProxyId<'_>, preferred_types: &[String]) -> Result<Location, LocationError> {
    let kubelet = kubelet(node, preferred_types)?;
    if id.port.is_empty() || id.port == kubelet.port.to_string() {
        return Ok(kubelet);
    }
    Ok(Location { via: id.via(), host: kubelet.host, port: id.number()? })
}

/// Returns the location of `pods/proxy`: the address of the pod with the port of the path, or with the first declared
/// port.
///
/// # Errors
/// [`LocationError::AddressNotAllowed`], [`LocationError::InvalidId`].
pub fn pod(pod: &Value, id: &ProxyId<'_>) -> Result<Location, LocationError> {
    let containers = items(&pod["spec"]["containers"]).iter();
    let declared =
        || containers.clone().find_map(|container| port_number(&items(&container["ports"]).first()?["containerPort"]));
    let port = match id.port {
        "" => declared().map_or_else(|| id.number(), Ok)?,
        _ => id.number()?,
    };
    let address = text(&pod["status"]["podIPs"][0]["ip"]);
    if !address.parse().is_ok_and(is_global_unicast) {
        return Err(LocationError::AddressNotAllowed);
    }
    Ok(Location { via: id.via(), host: address.to_owned(), port })
}

/// Returns the name of the service port that a request selects by name or number.
///
/// # Errors
/// [`LocationError::NoServicePort`].
pub fn service_port<'a>(service: &'a Value, id: &ProxyId<'a>) -> Result<&'a str, LocationError> {
    let Ok(number) = id.port.parse::<i64>() else { return Ok(id.port) };
    let found = items(&service["spec"]["ports"]).iter().find(|port| port["port"] == number);
    let missing = || LocationError::NoServicePort { service: id.name.to_owned(), port: number };
    found.map(|port| text(&port["name"])).ok_or_else(missing)
}

/// A ready address of a service, and the pod that must have the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The name of the pod.
    pub pod: &'a str,
    /// The address, with the port of the service.
    pub location: Location,
}

impl Candidate<'_> {
    /// Whether the pod has the address. Without the check, users who write Endpoints could route requests to other
    /// targets (`isValidAddress`).
    pub fn is_address_of(&self, pod: &Value) -> bool {
        items(&pod["status"]["podIPs"]).iter().any(|found| found["ip"] == self.location.host.as_str())
    }
}

/// The largest number of addresses of a service that one request tries. The server reads the pod of each address.
pub const CANDIDATES_MAX: usize = 100;

/// Returns up to [`CANDIDATES_MAX`] ready addresses of a service, in the order in which they are tried. `choose(n)`
/// returns a number below `n`; a random number spreads the load.
///
/// # Errors
/// [`LocationError::NoEndpoints`] if the Endpoints object is empty.
pub fn candidates<'a>(
    endpoints: &'a Value,
    id: &ProxyId<'_>,
    port_name: &str,
    mut choose: impl FnMut(usize) -> usize,
) -> Result<Vec<Candidate<'a>>, LocationError> {
    let namespace = text(&endpoints["metadata"]["namespace"]);
    let subsets = items(&endpoints["subsets"]);
    if subsets.is_empty() {
        return Err(LocationError::NoEndpoints(id.name.to_owned()));
    }
    let mut found = Vec::new();
    for subset in rotated(subsets, &mut choose) {
        let addresses = items(&subset["addresses"]);
        // The names of the ports of a subset are unique.
        let Some(port) = items(&subset["ports"]).iter().find(|port| text(&port["name"]) == port_name) else { continue };
        let Some(port) = port_number(&port["port"]) else { continue };
        for address in rotated(addresses, &mut choose) {
            let (target, host) = (&address["targetRef"], text(&address["ip"]));
            let is_pod = text(&target["namespace"]) == namespace && !text(&target["name"]).is_empty();
            if is_pod && host.parse().is_ok_and(is_global_unicast) {
                let location = Location { via: id.via(), host: host.to_owned(), port };
                found.push(Candidate { pod: text(&target["name"]), location });
                if found.len() == CANDIDATES_MAX {
                    return Ok(found);
                }
            }
        }
    }
    Ok(found)
}

/// Returns the error for a service without a candidate that is the address of a pod.
pub fn no_candidate(id: &ProxyId<'_>) -> LocationError {
    LocationError::NoEndpoints(id.id.to_owned())
}

/// Rotates a list so that a chosen item is the first.
fn rotated<'a, T>(list: &'a [T], choose: &mut impl FnMut(usize) -> usize) -> Vec<&'a T> {
    let start = if list.is_empty() { 0 } else { choose(list.len()) % list.len() };
    list.iter().cycle().skip(start).take(list.len()).collect()
}

/// Checks the addresses of a host name, and returns the address to connect to. The caller must use this address,
/// because a second lookup could return another one (`IsProxyableHostname`).
///
/// # Errors
/// [`LocationError::AddressNotAllowed`], [`LocationError::NoAddresses`].
pub fn proxyable(addresses: impl IntoIterator<Item = IpAddr>) -> Result<IpAddr, LocationError> {
    let addresses: Vec<IpAddr> = addresses.into_iter().collect();
    if !addresses.iter().copied().all(is_global_unicast) {
        return Err(LocationError::AddressNotAllowed);
    }
    addresses.first().copied().ok_or(LocationError::NoAddresses)
}

/// Whether an address is global unicast, including private addresses (Go's `net.IP.IsGlobalUnicast`). An IPv4-mapped
/// IPv6 address is treated as the IPv4 address.
fn is_global_unicast(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(four) => {
            !(four.is_unspecified()
                || four.is_loopback()
                || four.is_multicast()
                || four.is_link_local()
                || four.is_broadcast())
        }
        IpAddr::V6(six) => {
            !(six.is_unspecified() || six.is_loopback() || six.is_multicast() || six.is_unicast_link_local())
        }
    }
}

/// Returns the first `segments` segments of the path of a `proxy` request: the part that is not passed on.
pub fn leading_path(path: &str, segments: usize) -> String {
    path.trim_matches('/').split('/').take(segments).flat_map(|segment| ["/", segment]).collect()
}

#[cfg(test)]
#[path = "location_tests.rs"]
mod tests;
