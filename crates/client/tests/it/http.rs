//! Tests the client over real sockets: TLS with HTTP/2 and HTTP/1.1, a bearer token, discovery, a
//! list, a watch, and a server that restarts on the same port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use listwatch_client::config::{Auth, Certificate, Config, TlsOptions};
use listwatch_client::{Change, Client, DiscoverError, Notice, Reflection, ReflectorConfig, Scope};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

const TOKEN: &str = "a-token";
/// The time limit of each step, which only a hang reaches.
const TIMEOUT: Duration = Duration::from_secs(30);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// An API server with pods only. The state is the list of all events, which a watch replays and follows.
struct Pods {
    history: Mutex<Vec<String>>,
    news: broadcast::Sender<()>,
    requests: Mutex<Vec<String>>,
    versions: Mutex<Vec<http::Version>>,
}

impl Pods {
    fn new() -> Arc<Self> {
        Arc::new(Pods {
            history: Mutex::default(),
            news: broadcast::channel(64).0,
            requests: Mutex::default(),
            versions: Mutex::default(),
        })
    }

    /// Appends an event, whose position is its version.
    fn append(&self, kind: &str, name: &str) {
        let mut history = self.history.lock().unwrap();
        let version = history.len() + 1;
        history.push(format!(
            "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"shop\",\"uid\":\"{name}\",\"resourceVersion\":\"{version}\"}}}}}}\n"
        ));
        drop(history);
        let _ = self.news.send(());
    }

    fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Response<Body> {
        let full = |status: StatusCode, text: String| {
            let mut response = Response::new(Full::new(Bytes::from(text)).boxed_unsync());
            *response.status_mut() = status;
            response
        };
        self.versions.lock().unwrap().push(request.version());
        if !authorized(request.headers()) {
            let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;
            return full(StatusCode::UNAUTHORIZED, status.to_owned());
        }
        let query = request.uri().query().unwrap_or_default();
        self.requests.lock().unwrap().push(format!("{}?{query}", request.uri().path()));
        match request.uri().path() {
            "/api/v1" => full(StatusCode::OK, r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list","watch"],"shortNames":["po"]}]}"#.to_owned()),
            "/apis" => full(StatusCode::OK, r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"away.example.com","versions":[{"groupVersion":"away.example.com/v1","version":"v1"}],"preferredVersion":{"groupVersion":"away.example.com/v1","version":"v1"}}]}"#.to_owned()),
            "/api/v1/pods" | "/api/v1/namespaces/shop/pods" if query.contains("sendInitialEvents") => {
                full(StatusCode::UNPROCESSABLE_ENTITY, r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"sendInitialEvents is forbidden","reason":"Invalid","code":422}"#.to_owned())
            }
            "/api/v1/pods" | "/api/v1/namespaces/shop/pods" if query.contains("watch=true") => {
                let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap_or("0");
                self.watch(from.parse().unwrap())
            }
            "/api/v1/pods" | "/api/v1/namespaces/shop/pods" => {
                let version = self.history.lock().unwrap().len();
                full(
                    StatusCode::OK,
                    format!("{{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"{version}\"}},\"items\":[]}}\n"),
                )
            }
            _ => full(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        }
    }

    fn watch(self: &Arc<Self>, from: usize) -> Response<Body> {
        let (pods, news) = (self.clone(), self.news.subscribe());
        let frames = stream::unfold((pods, news, from), |(pods, mut news, mut at)| async move {
            loop {
                let frame = pods.history.lock().unwrap().get(at).cloned();
                if let Some(frame) = frame {
                    at += 1;
                    return Some((Ok(Frame::data(Bytes::from(frame))), (pods, news, at)));
                }
                let _ = news.recv().await;
            }
        });
        Response::new(StreamBody::new(frames.boxed()).boxed_unsync())
    }

    /// Serves until the handle is aborted, which also cuts every connection.
    async fn serve(self: &Arc<Self>, address: SocketAddr, tls: TlsAcceptor) -> JoinHandle<()> {
        let listener = TcpListener::bind(address).await.unwrap();
        let pods = self.clone();
        tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (pods, tls) = (pods.clone(), tls.clone());
                connections.spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let service = service_fn(move |request: Request<Incoming>| {
                        let answer = pods.answer(&request);
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    let _ =
                        auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
                });
            }
        })
    }
}

/// An address that nobody else uses while a server restarts.
fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], listwatch_test_ports::free_port().unwrap()))
}

fn authorized(headers: &HeaderMap) -> bool {
    headers.get(http::header::AUTHORIZATION).is_some_and(|value| value == &format!("Bearer {TOKEN}"))
}

struct Certified {
    acceptor: TlsAcceptor,
    authority: rustls_pki_types::CertificateDer<'static>,
}

/// A self-signed server certificate for `localhost`.
fn certify(protocols: &[&[u8]]) -> Certified {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let authority = signed.cert.der().clone();
    let key = rustls_pki_types::PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![authority.clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Certified { acceptor: TlsAcceptor::from(Arc::new(config)), authority }
}

fn client(address: SocketAddr, authority: Option<&rustls_pki_types::CertificateDer<'static>>, token: &str) -> Client {
    let config = Config {
        tls: TlsOptions {
            authorities: authority.into_iter().map(|der| Certificate::from_der(der.to_vec())).collect(),
            ..TlsOptions::default()
        },
        auth: Auth::Token(token.to_owned()),
        namespace: "shop".to_owned(),
        ..Config::new(&format!("https://localhost:{}", address.port())).unwrap()
    };
    Client::new(config).unwrap()
}

/// The next changes, as `+name`, `~name`, `-name`.
async fn changes<L: listwatch_client::ListWatch>(reflection: &mut Reflection<L>) -> Vec<String> {
    loop {
        let notice = tokio::time::timeout(TIMEOUT, reflection.next()).await.expect("no change came");
        if let Notice::Changes(changes) = notice {
            let show = |change: &Change| match change {
                Change::Added { object, .. } => format!("+{}", object.name()),
                Change::Updated { new, .. } => format!("~{}", new.name()),
                Change::Deleted { last, .. } => format!("-{}", last.name()),
            };
            return changes.iter().map(show).collect();
        }
    }
}

async fn survives_a_restart(protocols: &[&[u8]], expected: http::Version) {
    let certified = certify(protocols);
    let pods = Pods::new();
    let address = free_address();
    let serving = pods.serve(address, certified.acceptor.clone()).await;
    let client = client(address, Some(&certified.authority), TOKEN);
    let resource = client.discover("po").await.unwrap();
    assert_eq!(resource.kind, "Pod");

    let config = ReflectorConfig { type_name: Some(resource.type_name()), ..ReflectorConfig::default() };
    let scope = Scope::Namespace("shop".to_owned());
    let mut reflection = Reflection::new(client.list_watch(&resource, &scope).labels("app=shop"), config);
    pods.append("ADDED", "a");
    while !matches!(reflection.next().await, Notice::Synced) {}
    pods.append("ADDED", "b");
    pods.append("MODIFIED", "b");
    assert_eq!(changes(&mut reflection).await, ["+b"]);
    assert_eq!(changes(&mut reflection).await, ["~b"]);

    serving.abort();
    let _ = serving.await;
    pods.append("DELETED", "b");
    let serving = pods.serve(address, certified.acceptor.clone()).await;
    assert_eq!(changes(&mut reflection).await, ["-b"], "exactly the changes in the gap are reported");
    pods.append("ADDED", "c");
    assert_eq!(changes(&mut reflection).await, ["+c"]);
    serving.abort();

    let requests = pods.requests.lock().unwrap();
    let whole_lists = requests.iter().filter(|request| !request.contains("watch=") && request.contains("limit=500"));
    assert_eq!(whole_lists.count(), 1, "a restart was answered with a list: {requests:#?}");
    let reads = requests.iter().filter(|request| request.contains("/pods?"));
    assert!(reads.clone().all(|request| request.ends_with("labelSelector=app%3Dshop")), "{requests:#?}");
    assert!(pods.versions.lock().unwrap().iter().all(|version| *version == expected));
}

#[tokio::test]
async fn watch_survives_server_restart_over_http_2() {
    survives_a_restart(&[b"h2", b"http/1.1"], http::Version::HTTP_2).await;
}

#[tokio::test]
async fn watch_survives_server_restart_over_http_1() {
    survives_a_restart(&[b"http/1.1"], http::Version::HTTP_11).await;
}

#[tokio::test]
async fn failed_connection_names_its_reason() {
    let certified = certify(&[b"h2"]);
    let pods = Pods::new();
    let address = free_address();
    let serving = pods.serve(address, certified.acceptor.clone()).await;

    let unknown = client(address, Some(&certified.authority), TOKEN).discover("crontabs").await.unwrap_err();
    let DiscoverError::Unknown { silent, .. } = &unknown else { panic!("{unknown}") };
    assert_eq!(silent, &["away.example.com"]);

    let unauthorized = client(address, Some(&certified.authority), "wrong").discover("pods").await.unwrap_err();
    assert_eq!(unauthorized.to_string(), "the server refused: Unauthorized (401 Unauthorized)");

    let untrusted = client(address, None, TOKEN).discover("pods").await.unwrap_err().to_string();
    assert!(untrusted.contains("certificate"), "{untrusted}");

    serving.abort();
    let _ = serving.await;
    let refused = client(address, Some(&certified.authority), TOKEN).discover("pods").await.unwrap_err().to_string();
    assert!(refused.contains("refused"), "{refused}");
}
