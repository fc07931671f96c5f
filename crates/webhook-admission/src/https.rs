//! [`HttpsCaller`] calls webhooks over HTTPS (`apiserver/pkg/util/webhook/client.go`).
//!
//! Connections are kept alive for each CA bundle and host. As in upstream, the protocol is HTTP/1.1, redirects are not
//! followed, and proxies are not used.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt as _, Full};
use listwatch_aggregator::{
    Address, ResolveError, ServiceObjects, ServiceReference, resolve_cluster, resolve_endpoint,
};
use listwatch_proxy::{Destination, Limits, Proxy, ProxyErrorKind, Redirects, TlsSettings, Transport};
use listwatch_webhooks::{CallFuture, ServiceTarget, Target, WebhookAnswer, WebhookCall, WebhookCaller};
use parking_lot::Mutex;

/// Maximum size of a response body, in bytes. A call with a larger body fails. The limit leaves room for a patch that
/// replaces the largest object that etcd stores.
pub const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum number of pairs of CA bundle and host whose connections are kept (`defaultCacheSize`). At the limit, all
/// idle connections are closed.
const TRANSPORTS_MAX: usize = 200;

/// Calls webhooks over HTTPS.
pub struct HttpsCaller {
    proxy: Proxy,
    services: Arc<dyn ServiceObjects>,
    /// The connections by CA bundle and TLS server name.
    transports: Mutex<HashMap<(Vec<u8>, String), Transport>>,
}

impl std::fmt::Debug for HttpsCaller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpsCaller").finish_non_exhaustive()
    }
}

impl HttpsCaller {
    /// Creates a caller. `services` resolves the endpoints of webhooks whose `clientConfig` names a service.
    pub fn new(services: Arc<dyn ServiceObjects>) -> Self {
        HttpsCaller { proxy: Proxy::new(Limits::default()), services, transports: Mutex::default() }
    }

    async fn transport(&self, ca_bundle: &[u8], host: &str) -> Result<Transport, String> {
        let key = (ca_bundle.to_vec(), host.to_owned());
        if let Some(transport) = self.transports.lock().get(&key) {
            return Ok(transport.clone());
        }
        let settings =
            TlsSettings { server_name: host.to_owned(), ca_bundle: ca_bundle.to_vec(), ..TlsSettings::default() };
        // Reading the certificates of the system, or a large bundle, takes long.
        let proxy = self.proxy.clone();
        let created = tokio::task::spawn_blocking(move || proxy.tls_transport(settings)).await;
        let transport = created.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let mut transports = self.transports.lock();
        if transports.len() >= TRANSPORTS_MAX {
            transports.clear();
        }
        transports.insert(key, transport.clone());
        Ok(transport)
    }

    /// Returns a ready endpoint of a service.
    async fn endpoint(&self, target: &ServiceTarget) -> Result<Address, String> {
        let ServiceTarget { namespace, name, port } = target.clone();
        let reference = ServiceReference { namespace, name, port };
        let service = self.services.service(&reference.namespace, &reference.name).await?;
        let service = service.ok_or_else(|| ResolveError::ServiceNotFound(reference.name.clone()).to_string())?;
        if service.service_type == "ExternalName" {
            return resolve_cluster(&service, &reference).map_err(|error| error.to_string());
        }
        let slices = self.services.endpoint_slices(&reference.namespace, &reference.name).await?;
        let choose = |below: usize| rand::random_range(0..below.max(1));
        resolve_endpoint(&service, &slices, &reference, choose).map_err(|error| error.to_string())
    }

    async fn send(&self, target: &Target, call: &WebhookCall<'_>) -> Result<WebhookAnswer, String> {
        let transport = self.transport(call.ca_bundle, &target.host).await?;
        let Address { host, port } = match &target.service {
            Some(service) => self.endpoint(service).await?,
            None => Address { host: target.host.clone(), port: target.port },
        };
        let host_header = match target.host.contains(':') {
            true => format!("[{}]:{}", target.host, target.port),
            false => format!("{}:{}", target.host, target.port),
        };
        let to = Destination {
            host_header: HeaderValue::try_from(host_header).ok(),
            header_timeout: Some(call.timeout),
            redirects: Redirects::PassOn,
            ..Destination::new(transport, host, port, target.path_and_query.clone())
        };
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = Method::POST;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        request.headers_mut().insert(CONTENT_TYPE, json);
        let response = self.proxy.handle(request, &to).await.map_err(|error| match error.kind() {
            ProxyErrorKind::HeaderTimeout { .. } => "context deadline exceeded".to_owned(),
            kind => kind.to_string(),
        })?;
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
