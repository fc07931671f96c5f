//! Starts an extension server over TLS, and provides the objects that route requests to it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use base64::Engine as _;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use listwatch_aggregator::{
    Aggregator, AggregatorOptions, ApiService, ApiServiceObjects, Condition, EndpointSlice, Service, ServiceObjects,
    set_condition,
};
use listwatch_json::{Value, json};
use listwatch_proxy::{Limits, Proxy};
use parking_lot::Mutex;
use rustls_pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

/// The handler of an extension server.
pub(crate) type Answer = Arc<dyn Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Send + Sync>;

/// Creates a JSON response.
pub(crate) fn json_response(code: u16, content_type: &str, body: &Value) -> Response<Full<Bytes>> {
    let response = Response::builder().status(code).header("content-type", content_type);
    response.body(Full::new(Bytes::from(body.to_string()))).unwrap()
}

/// Starts an extension server as `api.ns.svc`. Returns its port and its certificate in PEM.
pub(crate) async fn start(answer: Answer) -> (u16, String) {
    let certified = rcgen::generate_simple_self_signed(vec!["api.ns.svc".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_no_client_auth().with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer) = (acceptor.clone(), Arc::clone(&answer));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request| {
                    let response = answer(&request);
                    async move { Ok::<_, Infallible>(response) }
                });
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (port, certified.cert.pem())
}

/// The objects of an API server.
#[derive(Default)]
pub(crate) struct Objects {
    state: Mutex<ObjectsState>,
    change: Notify,
    reads: AtomicUsize,
}

#[derive(Default)]
struct ObjectsState {
    services: BTreeMap<String, Service>,
    slices: BTreeMap<String, Vec<EndpointSlice>>,
    api_services: BTreeMap<String, Value>,
}

impl Objects {
    /// Adds the APIService `v1.g` of `ns/api:443`.
    pub(crate) fn put_api_service(&self, certificate: &str) {
        let bundle = base64::engine::general_purpose::STANDARD.encode(certificate);
        let object = json!({"metadata": {"name": "v1.g"}, "spec": {"group": "g", "version": "v1", "caBundle": bundle,
            "groupPriorityMinimum": 100, "versionPriority": 20, "service": {"namespace": "ns", "name": "api"}}});
        self.state.lock().api_services.insert("v1.g".to_owned(), object);
        self.change.notify_one();
    }

    /// Puts the service `ns/api` in front of a port of this machine.
    pub(crate) fn put_service(&self, port: u16) {
        let service = Service {
            service_type: "ClusterIP".to_owned(),
            cluster_ip: "127.0.0.1".to_owned(),
            ports: vec![("https".to_owned(), 443)],
            ..Service::default()
        };
        let slice = EndpointSlice {
            address_type: "IPv4".to_owned(),
            ports: vec![("https".to_owned(), port)],
            ready_addresses: vec!["127.0.0.1".to_owned()],
        };
        let mut state = self.state.lock();
        state.services.insert("ns/api".to_owned(), service);
        state.slices.insert("ns/api".to_owned(), vec![slice]);
        drop(state);
        self.change.notify_one();
    }

    /// The number of services that were read.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    /// The condition of the APIService: status, reason, message.
    pub(crate) fn condition(&self) -> (String, String, String) {
        let state = self.state.lock();
        let condition = &state.api_services["v1.g"]["status"]["conditions"][0];
        let text = |member: &str| condition[member].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"), text("message"))
    }
}

#[async_trait]
impl ServiceObjects for Objects {
    async fn service(&self, namespace: &str, name: &str) -> Result<Option<Service>, String> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(self.state.lock().services.get(&format!("{namespace}/{name}")).cloned())
    }

    async fn endpoint_slices(&self, namespace: &str, service: &str) -> Result<Vec<EndpointSlice>, String> {
        Ok(self.state.lock().slices.get(&format!("{namespace}/{service}")).cloned().unwrap_or_default())
    }
}

#[async_trait]
impl ApiServiceObjects for Objects {
    async fn api_services(&self) -> Result<Vec<ApiService>, String> {
        let state = self.state.lock();
        state.api_services.values().map(|object| ApiService::from_object(object).map_err(|e| e.to_string())).collect()
    }

    async fn set_available(&self, name: &str, condition: &Condition) -> Result<(), String> {
        let mut state = self.state.lock();
        if let Some(object) = state.api_services.get_mut(name).and_then(Value::as_object_mut)
            && set_condition(object, condition, "2026-01-01T00:00:00Z")
        {
            self.change.notify_one();
        }
        Ok(())
    }

    async fn changed(&self) {
        self.change.notified().await;
    }
}

/// An aggregator that sends requests to endpoints.
pub(crate) fn aggregator(objects: &Arc<Objects>) -> Arc<Aggregator> {
    let options = AggregatorOptions { endpoint_routing: true, ..AggregatorOptions::default() };
    let objects: Arc<dyn ServiceObjects> = Arc::<Objects>::clone(objects);
    Arc::new(Aggregator::new(Proxy::new(Limits::default()), objects, options))
}
