//! Requests that a kube-apiserver forwards to a kubelet, a pod, a node or the endpoints of a service.
//!
//! This server cannot connect to any of them. It responds like a kube-apiserver whose connections fail: it checks the
//! referenced objects with upstream's texts (`pkg/registry/core/{pod,node,service}`), and then reports that the
//! connection failed.

use std::net::IpAddr;

use http::{Response, StatusCode};
use listwatch_meta::Status;
use listwatch_wire::query::Query;
use serde_json::Value;

use crate::request::routing::ResourceRoute;
use crate::response::body::Body;
use crate::shared::Shared;
use listwatch_registry::Subresource;

/// Responds to a request that a kube-apiserver would forward.
///
/// # Errors
/// 400 for an invalid name or container; 404 if a referenced object does not exist; 500 and 503 if only the connection
/// is missing.
pub(crate) async fn answer(
    shared: &Shared,
    route: &ResourceRoute<'_>,
    query: &Query<'_>,
) -> Result<Response<Body>, Status> {
    let id = route.name.unwrap_or_default();
    let subresource = route.subresource.and_then(|name| route.resource.subresource(name));
    let reader = Reader { shared, namespace: route.namespace };
    match subresource {
        Some(Subresource::Proxy { .. }) => Err(reader.proxy(&route.resource.plural, id).await?),
        Some(subresource) => {
            let pod = reader.object("pods", id).await?;
            if *subresource != Subresource::PortForward {
                container(&pod, query.get("container").unwrap_or_default())?;
            }
            match (text(&pod["spec"]["nodeName"]), subresource) {
                // A pod that is not running has no log.
                ("", Subresource::Log) => {
                    let mut empty = Response::new(Body::empty());
                    *empty.status_mut() = StatusCode::NO_CONTENT;
                    Ok(empty)
                }
                ("", _) => Err(Status::bad_request(format!("pod {id} does not have a host assigned"))),
                (node, _) => {
                    reader.node(node).await?;
                    Err(Status::unknown(format!("error dialing backend: {NO_CONNECTION} the kubelet of node {node}")))
                }
            }
        }
        None => Err(Status::no_such_resource()),
    }
}

/// The beginning of the error texts about missing connections.
const NO_CONNECTION: &str = "this server has no way to";

/// Reads the objects that a request references.
struct Reader<'a> {
    shared: &'a Shared,
    namespace: Option<&'a str>,
}

impl Reader<'_> {
    async fn object(&self, plural: &str, name: &str) -> Result<Value, Status> {
        let registry = self.shared.backend.registry();
        let resource = registry.find("", "v1", plural).ok_or_else(Status::no_such_resource)?;
        let key = resource.key(self.namespace, name)?;
        let (found, _) = self.shared.backend.storage().get(&key).await.map_err(Status::internal)?;
        let found = found.ok_or_else(|| Status::not_found(resource.gr(), name))?;
        serde_json::from_slice(&found.value).map_err(Status::internal)
    }

    /// Checks that the node has an address.
    async fn node(&self, name: &str) -> Result<(), Status> {
        let node = self.object("nodes", name).await?;
        match node["status"]["addresses"].as_array() {
            Some(addresses) if !addresses.is_empty() => Ok(()),
            _ => Err(Status::unknown("no preferred addresses found; known addresses: []")),
        }
    }

    /// Returns the failure to connect to a target (`name`, `name:port`, `scheme:name:port`).
    ///
    /// # Errors
    /// The first check that fails before the connection.
    async fn proxy(&self, plural: &str, id: &str) -> Result<Status, Status> {
        let kind = plural.trim_end_matches('s');
        let parts: Vec<&str> = id.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => ("?", "", ""),
        };
        if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
            return Err(Status::bad_request(format!("invalid {kind} request {id:?}")));
        }
        match plural {
            "nodes" => self.node(name).await?,
            "pods" => {
                let pod = self.object(plural, name).await?;
                if !is_global(text(&pod["status"]["podIPs"][0]["ip"])) {
                    return Err(Status::bad_request("address not allowed"));
                }
            }
            _ => {
                let service = self.object(plural, name).await?;
                let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
                let number = port.parse::<u64>().ok();
                let is_it = |found: &Value| text(&found["name"]) == port || number.is_some_and(|n| found["port"] == n);
                let why = match port.is_empty() || ports.iter().any(is_it) {
                    true => format!("no endpoints available for service {name:?}"),
                    false => format!("no service port {port:?} found for service {name:?}"),
                };
                return Ok(Status::unavailable(why));
            }
        }
        Ok(Status::unavailable(format!("error trying to reach service: {NO_CONNECTION} {kind} {name}")))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether requests may be forwarded to an address (`net.IP.IsGlobalUnicast`).
fn is_global(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok_and(|address| match address {
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
    })
}

/// Checks that the named container exists, or that the pod has only one.
///
/// # Errors
/// 400 for an unknown container, or if the pod has several and the request names none.
fn container(pod: &Value, named: &str) -> Result<(), Status> {
    let names = |list: &str| -> Vec<&str> {
        pod["spec"][list].as_array().into_iter().flatten().map(|container| text(&container["name"])).collect()
    };
    let all = || ["initContainers", "containers", "ephemeralContainers"].map(names).concat();
    let pod_name = text(&pod["metadata"]["name"]);
    let why = match (named, names("containers").len()) {
        ("", 1) => return Ok(()),
        ("", 0) => format!("a container name must be specified for pod {pod_name}"),
        ("", _) => {
            format!("a container name must be specified for pod {pod_name}, choose one of: [{}]", all().join(" "))
        }
        (named, _) if all().contains(&named) => return Ok(()),
        (named, _) => format!("container {named} is not valid for pod {pod_name}"),
    };
    Err(Status::bad_request(why))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt as _, Full};
    use serde_json::json;

    use super::*;
    use crate::ApiServer;

    async fn send(server: &ApiServer, line: &str, body: Value) -> (u16, String) {
        let (method, path) = line.split_once(' ').unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let response = server.service().handle(request).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        (code, status["message"].as_str().map_or_else(|| String::from_utf8_lossy(&bytes).into_owned(), str::to_owned))
    }

    #[tokio::test]
    async fn forwarded_request_fails_at_the_first_check_or_the_connection() {
        let server = ApiServer::builder().build().await.unwrap();
        let pod = |name: &str, node: &str, containers: &[&str]| {
            let containers: Vec<Value> = containers.iter().map(|name| json!({"name": name, "image": "i"})).collect();
            json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers}})
        };
        const PODS: &str = "/api/v1/namespaces/default/pods";
        for (path, body) in [
            (PODS, pod("waits", "", &["c"])),
            (PODS, pod("two", "", &["c", "d"])),
            (PODS, pod("lost", "gone", &["c"])),
            (PODS, pod("placed", "n", &["c"])),
            ("/api/v1/nodes", json!({"metadata": {"name": "n"}})),
            (
                "/api/v1/namespaces/default/services",
                json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}),
            ),
        ] {
            assert_eq!(send(&server, &format!("POST {path}"), body).await.0, 201, "{path}");
        }
        let dialing = "error dialing backend: this server has no way to the kubelet of node n";
        let reaching = "error trying to reach service: this server has no way to";
        let check = async |line: &str, code: u16, text: &str| {
            let line = line.replacen(" pods/", &format!(" {PODS}/"), 1);
            let line = line.replacen(" services/", " /api/v1/namespaces/default/services/", 1);
            assert_eq!(send(&server, &line, Value::Null).await, (code, text.to_owned()), "{line}");
        };
        check("GET pods/none/log", 404, "pods \"none\" not found").await;
        check("GET pods/waits/log", 204, "").await;
        check("GET pods/waits/log?container=x", 400, "container x is not valid for pod waits").await;
        let choose = "a container name must be specified for pod two, choose one of: [c d]";
        check("POST pods/two/exec?command=ls", 400, choose).await;
        check("GET pods/waits/exec?command=ls", 400, "pod waits does not have a host assigned").await;
        check("POST pods/two/portforward", 400, "pod two does not have a host assigned").await;
        check("GET pods/lost/log", 404, "nodes \"gone\" not found").await;
        check("GET pods/placed/log", 500, "no preferred addresses found; known addresses: []").await;
        check("GET /api/v1/nodes/n/proxy/stats", 500, "no preferred addresses found; known addresses: []").await;
        check("PUT pods/placed/proxy/a/b", 400, "address not allowed").await;
        check("GET pods/a:b:c:d/proxy", 400, "invalid pod request \"a:b:c:d\"").await;
        check("GET services/s/proxy/", 503, "no endpoints available for service \"s\"").await;
        check("GET services/https:s:81/proxy", 503, "no service port \"81\" found for service \"s\"").await;
        let status = |body: Value| json!({ "status": body });
        let patch = |line: &str, body: Value| {
            let (server, line) = (&server, line.to_owned());
            async move {
                let request = Request::patch(line).header("content-type", "application/merge-patch+json");
                let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
                assert_eq!(server.service().handle(request).await.status(), 200);
            }
        };
        let address = json!([{"type": "InternalIP", "address": "10.0.0.1"}]);
        patch("/api/v1/nodes/n/status", status(json!({ "addresses": address }))).await;
        patch(&format!("{PODS}/placed/status"), status(json!({"podIPs": [{"ip": "10.0.0.2"}]}))).await;
        check("GET pods/placed/log", 500, dialing).await;
        check("GET pods/placed/attach", 500, dialing).await;
        check("GET pods/placed/proxy", 503, &format!("{reaching} pod placed")).await;
        check("HEAD /api/v1/nodes/n/proxy", 503, "").await;
        // Each subresource has its own methods.
        let method = "the server does not allow this method on the requested resource";
        check("POST pods/placed/log", 405, method).await;
        check("PUT pods/placed/exec", 405, method).await;
        check("GET pods/placed/log/more", 404, "the server could not find the requested resource").await;
    }
}
