//! [`HttpsCaller`] calls webhooks over HTTPS (`apiserver/pkg/util/webhook/client.go`).
//!
//! Connections are kept alive for each CA bundle and host. The protocol is HTTP/1.1, with which the requests of several
//! connections spread over the backends of a service. Differences from upstream: HTTP/2 is not negotiated with URLs of
//! `localhost` and loopback addresses, redirects are not followed, and the proxies of the environment are not used.
//!
//! Only webhooks that the server itself serves receive a credential ([`LoopbackClient`]).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use listwatch_aggregator::{ServiceReference, ServiceResolver};
use listwatch_proxy::{
    AddressFuture, AddressResolver, Destination, Limits, Proxy, ProxyBody, ProxyErrorKind, Redirects, TlsSettings,
    Transport,
};
use listwatch_webhooks::{CallFuture, Target, WebhookAnswer, WebhookCall, WebhookCaller};
use parking_lot::Mutex;

use crate::loopback::{LoopbackClient, LoopbackClients, LoopbackRegistration, OwnAddress, is_own_webhook};

/// Maximum size of a response body, in bytes. A call with a larger body fails. The limit leaves room for a patch that
/// replaces the largest object that etcd stores.
pub const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum number of pairs of CA bundle and host whose connections are kept (`defaultCacheSize`). At the limit, all
/// idle connections are closed.
const TRANSPORTS_MAX: usize = 200;

/// The header `User-Agent` of calls, as in `setGlobalDefaults` of upstream.
const USER_AGENT_VALUE: HeaderValue = HeaderValue::from_static("kube-apiserver-admission");
/// The header `User-Agent` of calls to this server itself. A server that shuts down rejects new requests, except those
/// whose user agent begins with `kube-apiserver/` (`isKubeApiserverUserAgent` of upstream).
const LOOPBACK_USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("kube-apiserver/listwatch-", env!("CARGO_PKG_VERSION")));

/// Maximum number of further attempts after responses with `Retry-After` (`maxRetries` in `client-go/rest`). After the
/// last attempt, its response counts.
const RETRIES_MAX: usize = 10;

/// Maximum size of the body of a response that is read before a retry, in bytes (`maxBodySlurpSize`). The connection of
/// a larger one is closed.
const SKIPPED_BYTES_MAX: usize = 2 * 1024;

/// Calls webhooks over HTTPS.
pub struct HttpsCaller {
    proxy: Proxy,
    services: ServiceResolver,
    /// The clients of the webhooks that this server serves. Without any, they are called like other webhooks.
    loopback: Arc<Mutex<LoopbackClients>>,
    transports: Mutex<HashMap<TransportKey, Transport>>,
}

/// The settings of a [`Transport`].
#[derive(Clone, PartialEq, Eq, Hash)]
struct TransportKey {
    ca_bundle: Vec<u8>,
    /// The TLS server name.
    server_name: String,
    dialed: DialedAddress,
}

/// The address that a transport dials.
#[derive(Clone, PartialEq, Eq, Hash)]
enum DialedAddress {
    /// The host of a URL.
    Host,
    /// The address of a service.
    Service { namespace: String, name: String },
    /// The listener of this server.
    Own(SocketAddr),
}

impl TransportKey {
    /// Returns the settings for a target. With a loopback client, its values replace those of the webhook.
    fn new(ca_bundle: &[u8], target: &Target, loopback: Option<&LoopbackClient>) -> Self {
        if let Some(client) = loopback {
            let ca_bundle = client.certificate_pem.clone().into_bytes();
            let (server_name, dialed) = (client.server_name.clone(), DialedAddress::Own(client.address));
            return TransportKey { ca_bundle, server_name, dialed };
        }
        let dialed = match target.service.clone() {
            Some(service) => DialedAddress::Service { namespace: service.namespace, name: service.name },
            None => DialedAddress::Host,
        };
        TransportKey { ca_bundle: ca_bundle.to_vec(), server_name: target.host.clone(), dialed }
    }
}

/// Finds the address of one service.
struct ServiceAddress {
    services: ServiceResolver,
    namespace: String,
    name: String,
}

impl AddressResolver for ServiceAddress {
    fn resolve<'a>(&'a self, _: &'a str, port: u16) -> AddressFuture<'a> {
        let reference = ServiceReference { namespace: self.namespace.clone(), name: self.name.clone(), port };
        Box::pin(async move {
            let address = self.services.resolve(&reference).await.map_err(|error| error.to_string())?;
            Ok((address.host, address.port))
        })
    }
}

impl std::fmt::Debug for HttpsCaller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpsCaller").finish_non_exhaustive()
    }
}

impl HttpsCaller {
    /// Creates a caller. `services` finds the addresses of webhooks whose `clientConfig` names a service. A service is
    /// resolved only when a connection is opened.
    pub fn new(services: ServiceResolver) -> Self {
        let proxy = Proxy::new(Limits::default());
        HttpsCaller { proxy, services, loopback: Arc::default(), transports: Mutex::default() }
    }

    /// Adds a client of the webhooks that this server serves: those at port 443 of the service `default/kubernetes`,
    /// or of a URL with the host `kubernetes.default.svc`. Their CA bundles then have no effect. Upstream looks up the
    /// host of such a URL; this caller does not. Without a client, these webhooks are called like others, without a
    /// credential.
    ///
    /// Drop the result when the listener of the client closes. Calls use the client that was added first, of those
    /// whose listener is open. If no listener is open, calls use the client of a closed one, so that they fail.
    pub fn add_loopback(&self, client: LoopbackClient) -> LoopbackRegistration {
        LoopbackRegistration::new(&self.loopback, client)
    }

    async fn transport(&self, key: TransportKey) -> Result<Transport, String> {
        if let Some(transport) = self.transports.lock().get(&key) {
            return Ok(transport.clone());
        }
        let (server_name, ca_bundle) = (key.server_name.clone(), key.ca_bundle.clone());
        let settings = TlsSettings { server_name, ca_bundle, ..TlsSettings::default() };
        let (proxy, services, dialed) = (self.proxy.clone(), self.services.clone(), key.dialed.clone());
        // Reading the certificates of the system, or a large bundle, takes long.
        let create = move || match dialed {
            DialedAddress::Host => proxy.tls_transport(settings),
            DialedAddress::Service { namespace, name } => {
                proxy.resolved_tls_transport(settings, Arc::new(ServiceAddress { services, namespace, name }))
            }
            DialedAddress::Own(address) => proxy.resolved_tls_transport(settings, Arc::new(OwnAddress(address))),
        };
        let created = tokio::task::spawn_blocking(create).await;
        let transport = created.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let mut transports = self.transports.lock();
        if transports.len() >= TRANSPORTS_MAX {
            transports.clear();
        }
        transports.insert(key, transport.clone());
        Ok(transport)
    }

    /// Sends a review, again after responses with `Retry-After` (`IsNextRetry` in `client-go/rest/with_retry.go`).
    async fn send(&self, target: &Target, call: &WebhookCall<'_>) -> Result<WebhookAnswer, String> {
        // The transport and the token come from the same client.
        let loopback = is_own_webhook(target).then(|| self.loopback.lock().current()).flatten();
        let transport = self.transport(TransportKey::new(call.ca_bundle, target, loopback.as_deref())).await?;
        let host_header = match target.host.contains(':') {
            true => format!("[{}]:{}", target.host, target.port),
            false => format!("{}:{}", target.host, target.port),
        };
        let mut to = Destination {
            host_header: HeaderValue::try_from(host_header).ok(),
            header_timeout: Some(call.timeout),
            redirects: Redirects::PassOn,
            ..Destination::new(transport, target.host.clone(), target.port, target.path_and_query.clone())
        };
        let mut user_agent = USER_AGENT_VALUE;
        if let Some(loopback) = loopback {
            to.headers.insert(AUTHORIZATION, authorization(&loopback.token)?);
            user_agent = LOOPBACK_USER_AGENT;
        }
        let mut retries = 0;
        loop {
            let response = self.post(&to, user_agent.clone(), call.body.clone()).await?;
            match retry_after(&response).filter(|_| retries < RETRIES_MAX) {
                None => return answer(response).await,
                Some(pause) => {
                    retries += 1;
                    skip_body(response).await;
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    async fn post(
        &self,
        to: &Destination,
        user_agent: HeaderValue,
        body: Bytes,
    ) -> Result<Response<ProxyBody>, String> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        request.headers_mut().insert(CONTENT_TYPE, json);
        request.headers_mut().insert(USER_AGENT, user_agent);
        self.proxy.handle(request, to).await.map_err(|error| match error.kind() {
            ProxyErrorKind::HeaderTimeout { .. } => "context deadline exceeded".to_owned(),
            kind => kind.to_string(),
        })
    }
}

/// Returns the header of a bearer token, which no debug output shows.
fn authorization(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "the token of the loopback client is not a header value".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the pause before the next attempt, if the response asks for one (`checkWait`).
fn retry_after(response: &Response<ProxyBody>) -> Option<Duration> {
    let code = response.status();
    if code != StatusCode::TOO_MANY_REQUESTS && code.as_u16() < 500 {
        return None;
    }
    let seconds: i64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}

/// Reads a small body, so that the connection can be used again.
async fn skip_body(response: Response<ProxyBody>) {
    let mut body = response.into_body();
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > SKIPPED_BYTES_MAX {
            return;
        }
    }
}

async fn answer(response: Response<ProxyBody>) -> Result<WebhookAnswer, String> {
    let code = response.status().as_u16();
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_owned();
    let mut body = response.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > RESPONSE_BYTES_MAX {
            return Err(format!("the response has more than {RESPONSE_BYTES_MAX} bytes"));
        }
        bytes.extend_from_slice(data);
    }
    Ok(WebhookAnswer { code, content_type, body: Bytes::from(bytes) })
}

impl WebhookCaller for HttpsCaller {
    fn call<'a>(&'a self, call: WebhookCall<'a>) -> CallFuture<'a, Result<WebhookAnswer, String>> {
        Box::pin(async move {
            match tokio::time::timeout(call.timeout, self.send(call.target, &call)).await {
                Ok(answered) => answered,
                Err(_) => Err("context deadline exceeded".to_owned()),
            }
        })
    }
}
