//! A gRPC gateway in front of an etcd that can reject one method. Some versions of etcd reject
//! `Maintenance.Status` for users without the role `root`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http_body_util::{BodyExt, Empty, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The rejected method.
const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// A gateway in front of one address.
pub(crate) struct Gateway {
    /// `http://127.0.0.1:port`.
    pub(crate) url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    denies: AtomicBool,
    denied: AtomicUsize,
    /// Closes the current connections.
    hang_up: watch::Sender<u64>,
}

impl Gateway {
    /// Starts a gateway in front of `target` (`http://host:port`) that rejects nothing yet.
    pub(crate) async fn start(target: &str) -> Gateway {
        let target = target.split("//").nth(1).expect("a URL").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound socket"));
        let shared = Arc::new(Shared::default());
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (shared, target) = (accepting.clone(), target.clone());
                let mut hang_up = shared.hang_up.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        () = serve(client, &target, shared) => {}
                        _ = hang_up.changed() => {}
                    }
                });
            }
        });
        Gateway { url, shared, task }
    }

    /// Rejects `Maintenance.Status` from now on, or stops doing so.
    pub(crate) fn deny_status(&self, denies: bool) {
        self.shared.denies.store(denies, Ordering::Relaxed);
    }

    /// The number of rejections.
    pub(crate) fn denied(&self) -> usize {
        self.shared.denied.load(Ordering::Relaxed)
    }

    /// Closes the current connections, as a restarted member does.
    pub(crate) fn hang_up(&self) {
        self.shared.hang_up.send_modify(|count| *count += 1);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
        self.hang_up();
    }
}

type Body = BoxBody<Bytes, hyper::Error>;

/// Forwards the calls of one connection.
async fn serve(client: TcpStream, target: &str, shared: Arc<Shared>) {
    let Ok(upstream) = TcpStream::connect(target).await else { return };
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(upstream)).await;
    let Ok((sender, connection)) = handshake else { return };
    let service = service_fn(move |request: Request<Incoming>| {
        let (mut sender, shared) = (sender.clone(), shared.clone());
        async move {
            if request.uri().path() == STATUS && shared.denies.load(Ordering::Relaxed) {
                shared.denied.fetch_add(1, Ordering::Relaxed);
                return Ok::<_, Infallible>(refusal("7", "etcdserver: permission denied"));
            }
            Ok(match sender.send_request(request).await {
                Ok(response) => response.map(BodyExt::boxed),
                Err(error) => refusal("14", &error.to_string()),
            })
        }
    });
    let served =
        hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(client), service);
    // The end of either side ends both.
    tokio::select! {
        _ = served => {}
        _ = connection => {}
    }
}

/// A gRPC response without a message.
fn refusal(code: &str, words: &str) -> Response<Body> {
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code)
        .header("grpc-message", words)
        .body(Empty::new().map_err(|never: Infallible| match never {}).boxed())
        .expect("a response")
}
