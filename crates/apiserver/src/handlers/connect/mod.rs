//! Requests that the server forwards to a kubelet, a pod, a node or an endpoint of a service.
//!
//! ```text
//!  log                        ─▶ options ─▶ pod ─▶ node ─▶ kubelet ─▶ text, streamed
//!  exec, attach, portforward  ─▶ permission ─▶ pod ─▶ node ─▶ kubelet ─▶ 101, bytes both ways
//!  proxy                      ─▶ pod, node or service ─▶ any request, streamed both ways; upgrades too
//! ```
//!
//! The target is computed from the objects ([`location`]), and `listwatch-proxy` makes the connection. The deadline of
//! the request applies only to the lookup of the target. If the client or the target disconnects, the other connection
//! is closed too.
//!
//! Upstream: `pkg/registry/core/{pod,node,service}`. One difference: kube-apiserver translates WebSocket streams to
//! SPDY for kubelets that do not declare the feature `ExtendWebSocketsToKubelet`. This server forwards them unchanged.
//! A kubelet that does not support the subprotocol rejects the request, and kubectl falls back to SPDY.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::upgrade::OnUpgrade;
use listwatch_access::{Attributes, ensure_authorized};
use listwatch_connect::location::{self, Location, LocationError, ProxyId, Via};
use listwatch_connect::{LogOptions, kubelet_error, port_forward_query, stream_query};
use listwatch_json::{Map, Value};
use listwatch_meta::Status;
use listwatch_meta::go::quote;
use listwatch_proxy::{Destination, ExternalLocation, ProxyBody, ProxyError, ProxyErrorKind, is_upgrade_request};
use listwatch_registry::Subresource;
use listwatch_wire::query::{Query, encode_path_segment};
use listwatch_write::{ConnectRequest, ProxiedPath, WriteContext, connect_options, query_of_options};

use super::context::RequestContext;
use crate::audit::admission_recorder;
use crate::filters::rejection::Rejection;
use crate::filters::warnings::WarningRecorder;
use crate::request::client_address::client_address;
use crate::request::forwarded_headers::forwarded_headers;
use crate::request::routing::ResourceRoute;
use crate::request::upload::{RequestBody, Upload};
use crate::response::body::Body;
use crate::shared::Shared;

/// The time limit for reading the body of a kubelet's error response.
const ERROR_TIMEOUT: Duration = Duration::from_secs(10);

/// Forwards a request.
///
/// # Errors
/// 400 for invalid options, names and containers; 403 without the permission to create the stream; 404 if a referenced
/// object does not exist; 422 for invalid log options; 429 at the limits of connections; 500 and 503 if the target does
/// not respond.
pub(crate) async fn answer<B: RequestBody>(
    request: &RequestContext<'_>,
    route: &ResourceRoute<'_>,
    warnings: &WarningRecorder,
    upload: &mut Upload<B>,
) -> Result<Response<Body>, Rejection> {
    let subresource = route.subresource.and_then(|name| route.resource.subresource(name));
    let subresource = subresource.ok_or_else(Status::no_such_resource)?;
    if *subresource != Subresource::Log && request.query.get("dryRun").is_some() {
        return Err(Status::bad_request("dryRun is not supported").into());
    }
    let reader = Reader { shared: request.shared, namespace: route.namespace };
    if *subresource == Subresource::Log {
        return Ok(log(request, route, &reader).await?);
    }
    let rest = ProxiedPath::of_request(request.parts.uri.path(), proxy_segments(route))?;
    let changed = request.deadline.enforce(pin!(admit(request, route, subresource, rest.as_str(), warnings))).await?;
    match subresource {
        Subresource::Proxy { .. } => {
            let rest = changed.as_ref().map_or(rest, ProxiedPath::of_options);
            proxy(request, route, &reader, &rest.encoded(), upload).await
        }
        _ => {
            let query = changed.as_ref().map(query_of_options);
            let query = query.as_deref().map(Query::parse);
            stream(request, route, &reader, (subresource, query.as_ref().unwrap_or(request.query)), upload).await
        }
    }
}

/// Runs the admission plugins with the options of the connection as the object. Returns the options if a plugin has
/// changed them. `rest` is the decoded rest of a proxied path.
async fn admit(
    request: &RequestContext<'_>,
    route: &ResourceRoute<'_>,
    subresource: &Subresource,
    rest: &str,
    warnings: &WarningRecorder,
) -> Result<Option<Map>, Status> {
    let options = connect_options(subresource, &route.resource.kind, request.query, rest);
    let connect = ConnectRequest {
        resource: &route.resource,
        subresource: subresource.name(),
        namespace: route.namespace,
        name: route.name.unwrap_or_default(),
        user: request.user,
        options: &options,
    };
    let deadline = Some(request.deadline.at().into_std());
    let context = WriteContext { deadline, recorder: admission_recorder(request.preferences.audited()) };
    let admitted = request.shared.writer.admit_connect(&connect, &context).await;
    if let Some(audited) = request.preferences.audited() {
        audited.annotate_admission(&context.recorder);
    }
    warnings.add(context.recorder.take_warnings());
    Ok(Some(admitted?).filter(|admitted| *admitted != options))
}

/// Returns the number of path segments up to the subresource: `/api/v1/nodes/n/proxy` or
/// `/api/v1/namespaces/ns/pods/p/proxy`.
fn proxy_segments(route: &ResourceRoute<'_>) -> usize {
    if route.namespace.is_some() { 7 } else { 5 }
}

/// Streams the log of a container.
async fn log(
    request: &RequestContext<'_>,
    route: &ResourceRoute<'_>,
    reader: &Reader<'_>,
) -> Result<Response<Body>, Status> {
    let connections = &request.shared.connections;
    let name = route.name.unwrap_or_default();
    let options = LogOptions::from_query(request.query, name)?;
    let locate = async {
        let pod = reader.object("pods", name).await?;
        let container = location::container(&pod, &options.container)?;
        let Ok(node) = location::node_of(&pod) else { return Ok::<_, Status>(None) };
        let mut kubelet = reader.kubelet(node).await?;
        if options.insecure_skip_tls_verify_backend {
            kubelet.via = Via::UnverifiedKubelet;
        }
        let path = pod_path("containerLogs", route, Some(container));
        Ok(Some(connections.destination(&kubelet, format!("{path}{}", options.to_query()))))
    };
    let Some(to) = request.deadline.enforce(pin!(locate)).await? else {
        // The pod has no log yet.
        let mut empty = Response::new(Body::empty());
        *empty.status_mut() = StatusCode::NO_CONTENT;
        return Ok(empty);
    };
    let slot = connections.take_slot(request.user)?;
    // The kubelet sees nothing of the client's request.
    let outgoing = Request::new(Empty::<Bytes>::new());
    let response = connections.proxy.handle(outgoing, &to).await.map_err(|error| log_failure(&to, &error))?;
    if response.status().is_redirection() && response.headers().contains_key(LOCATION) {
        return Err(Status::unknown(format!("{}: redirects forbidden", get(&to))));
    }
    let code = response.status().as_u16();
    if !kubelet_error::is_log(code) {
        return Err(kubelet_error::to_status(code, &error_text(response.into_body()).await, name));
    }
    let mut streamed = Response::new(Body::proxied(response.into_body(), Some(slot)));
    streamed.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(streamed)
}

/// Returns the prefix of the error message of Go's HTTP client.
fn get(to: &Destination) -> String {
    format!("Get {}", quote(&format!("https://{}{}", to.authority(), to.path_and_query)))
}

/// Returns the Status for a log whose kubelet does not respond: 500 with the error message of Go's HTTP client. `proxy`
/// requests have other messages.
fn log_failure(to: &Destination, error: &ProxyError) -> Status {
    match error.kind() {
        ProxyErrorKind::TooManyConnections(_) => error.to_status(),
        kind => Status::unknown(format!("{}: {kind}", get(to))),
    }
}

/// Reads the beginning of the body of an error response.
async fn error_text(body: ProxyBody) -> String {
    let mut limited = pin!(Limited::new(body, kubelet_error::ERROR_BYTES_MAX));
    let mut text = Vec::new();
    let read = async {
        while let Some(Ok(frame)) = limited.frame().await {
            if let Ok(data) = frame.into_data() {
                text.extend_from_slice(&data);
            }
        }
    };
    // The bytes that arrived until then are the text.
    let _ = tokio::time::timeout(ERROR_TIMEOUT, read).await;
    String::from_utf8_lossy(&text).into_owned()
}

/// Connects the streams of a client to a container or to the ports of a pod.
async fn stream<B: RequestBody>(
    request: &RequestContext<'_>,
    route: &ResourceRoute<'_>,
    reader: &Reader<'_>,
    (subresource, query): (&Subresource, &Query<'_>),
    upload: &mut Upload<B>,
) -> Result<Response<Body>, Rejection> {
    let name = route.name.unwrap_or_default();
    let locate = async {
        if request.parts.method == Method::GET {
            ensure_may_create(request).await?;
        }
        let (endpoint, options) = match subresource {
            Subresource::Exec => ("exec", stream_query(query, true)),
            Subresource::Attach => ("attach", stream_query(query, false)),
            _ => ("portForward", port_forward_query(query)?),
        };
        let pod = reader.object("pods", name).await?;
        let container = match subresource {
            Subresource::PortForward => None,
            _ => Some(location::container(&pod, query.get("container").unwrap_or_default())?),
        };
        let kubelet = reader.kubelet(location::node_of(&pod)?).await?;
        let path = pod_path(endpoint, route, container);
        Ok::<_, Status>(request.shared.connections.destination(&kubelet, format!("{path}{options}")))
    };
    let mut to = request.deadline.enforce(pin!(locate)).await?;
    if !is_upgrade_request(&request.parts.headers) {
        return Err(Status::bad_request("Upgrade request required").into());
    }
    // A kubelet that does not complete the handshake does not hold the request for hours.
    to.header_timeout = None;
    forward(request, upload, to).await
}

/// Checks that the user may create the stream. Browsers can open WebSockets only by GET, but the permission to read a
/// pod must not allow running a program in the pod. See `pkg/registry/core/pod/rest/authorize.go` and the feature gate
/// AuthorizePodWebsocketUpgradeCreatePermission.
async fn ensure_may_create(request: &RequestContext<'_>) -> Result<(), Status> {
    let attributes = Attributes { verb: "create", ..request.info.attributes(request.user) };
    let answer = request.shared.access.authorizers.authorize(&attributes).await;
    ensure_authorized(&attributes, &answer)
}

/// Forwards a request to a pod, a node or a service. `rest` is the percent-encoded path at the target.
async fn proxy<B: RequestBody>(
    request: &RequestContext<'_>,
    route: &ResourceRoute<'_>,
    reader: &Reader<'_>,
    rest: &str,
    upload: &mut Upload<B>,
) -> Result<Response<Body>, Rejection> {
    let (parts, id) = (request.parts, route.name.unwrap_or_default());
    let locate = async {
        Ok::<_, Status>(match &*route.resource.plural {
            "pods" => {
                let id = ProxyId::parse("pod", id)?;
                location::pod(&reader.object("pods", id.name).await?, &id)?
            }
            "nodes" => reader.node(&ProxyId::parse("node", id)?).await?,
            _ => reader.service(&ProxyId::parse("service", id)?).await?,
        })
    };
    let location = request.deadline.enforce(pin!(locate)).await?;
    let path = parts.uri.path();
    let segments = proxy_segments(route);
    let query =
        parts.uri.query().filter(|query| !query.is_empty()).map_or_else(String::new, |query| format!("?{query}"));
    let is_read = matches!(parts.method, Method::GET | Method::HEAD);
    if rest.is_empty() && is_read && !is_upgrade_request(&parts.headers) {
        return Ok(moved_permanently(&format!("{path}/{query}"))?);
    }
    let slash = if rest.is_empty() { "/" } else { "" };
    let mut to = request.shared.connections.destination(&location, format!("{slash}{rest}{query}"));
    to.external =
        ExternalLocation { path_prefix: location::leading_path(path, segments), ..ExternalLocation::default() };
    forward(request, upload, to).await
}

/// Redirects to the same path with a final slash, so that relative links of the target resolve below that path.
fn moved_permanently(target: &str) -> Result<Response<Body>, Status> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response.headers_mut().insert(LOCATION, HeaderValue::try_from(target).map_err(Status::internal)?);
    Ok(response)
}

/// Streams the request to the destination, and the response to the client.
async fn forward<B: RequestBody>(
    request: &RequestContext<'_>,
    upload: &mut Upload<B>,
    mut to: Destination,
) -> Result<Response<Body>, Rejection> {
    let RequestContext { shared, parts, .. } = *request;
    to.client_address = client_address(parts);
    // The proxy counts upgrades itself, as long as they last.
    let slot = match is_upgrade_request(&parts.headers) {
        true => None,
        false => Some(shared.connections.take_slot(request.user)?),
    };
    let mut outgoing = Request::new(upload.pass_on());
    *outgoing.method_mut() = parts.method.clone();
    *outgoing.headers_mut() =
        forwarded_headers(&parts.headers, shared.access.front_proxy.as_deref(), shared.aggregation.request_header());
    if let Some(upgrade) = parts.extensions.get::<OnUpgrade>() {
        outgoing.extensions_mut().insert(upgrade.clone());
    }
    let response = shared.connections.proxy.handle(outgoing, &to).await.map_err(|error| error.to_status())?;
    Ok(response.map(|body| Body::proxied(body, slot)))
}

/// Returns the path of a kubelet endpoint for the pod of a request.
fn pod_path(endpoint: &str, route: &ResourceRoute<'_>, container: Option<&str>) -> String {
    let names = [route.namespace, route.name, container].into_iter().flatten();
    std::iter::once(endpoint.to_owned())
        .chain(names.map(encode_path_segment))
        .flat_map(|name| ["/".to_owned(), name])
        .collect()
}

/// Reads the objects that a request references.
struct Reader<'a> {
    shared: &'a Shared,
    namespace: Option<&'a str>,
}

impl Reader<'_> {
    async fn object(&self, plural: &str, name: &str) -> Result<Value, Status> {
        let registry = self.shared.backend.registry();
        let resource = registry.find("", "v1", plural).ok_or_else(Status::no_such_resource)?;
        let namespace = self.namespace.filter(|_| resource.namespaced);
        let key = resource.key(namespace, name)?;
        let (found, _) = self.shared.backend.storage().get(&key).await.map_err(Status::internal)?;
        let found = found.ok_or_else(|| Status::not_found(resource.gr(), name))?;
        serde_json::from_slice(&found.value).map_err(Status::internal)
    }

    async fn kubelet(&self, node: &str) -> Result<Location, Status> {
        let node = self.object("nodes", node).await?;
        Ok(location::kubelet(&node, &self.shared.connections.preferred_address_types)?)
    }

    async fn node(&self, id: &ProxyId<'_>) -> Result<Location, Status> {
        let node = self.object("nodes", id.name).await?;
        let mut location = location::node(&node, id, &self.shared.connections.preferred_address_types)?;
        if location.via != Via::Kubelet {
            let host = location.host.as_str();
            let unknown = |_| LocationError::Lookup(format!("lookup {host}: no such host"));
            let addresses = tokio::net::lookup_host((host, location.port)).await.map_err(unknown)?;
            location.host = location::proxyable(addresses.map(|address| address.ip()))?.to_string();
        }
        Ok(location)
    }

    async fn service(&self, id: &ProxyId<'_>) -> Result<Location, Status> {
        let service = self.object("services", id.name).await?;
        let port = location::service_port(&service, id)?;
        let endpoints = self.object("endpoints", id.name).await?;
        let choose = |count| rand::random_range(0..count);
        for candidate in location::candidates(&endpoints, id, port, choose)? {
            match self.object("pods", candidate.pod).await {
                Ok(pod) if candidate.is_address_of(&pod) => return Ok(candidate.location),
                _ => {}
            }
        }
        Err(location::no_candidate(id).into())
    }
}

#[cfg(test)]
mod tests;
