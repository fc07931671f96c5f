//! The floor: a server of hyper and rustls alone that sends the same bytes to every stream. The
//! difference to a server's figure is the cost of that server; only another HTTP or TLS library
//! could be below the floor.
//!
//! | asked for | it answers |
//! |---|---|
//! | a watch | streams a frame of `--frame-bytes` per write to the same group (see [`GROUP_HEADER`]) |
//! | a watch with `sendInitialEvents` | `?bytes=N` of ready frames and a bookmark first |
//! | any write | gives it the next revision, pushes it, answers with a body of the same size |
//! | any other GET | `?bytes=N` of a prepared body, at most 256 MiB |

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::Outcome;
use crate::target::GROUP_HEADER;

/// The maximum size of a prepared body in bytes.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The size at which a batch of coalesced frames is sent, in bytes.
const BATCH_BYTES_MAX: usize = 64 * 1024;
/// The number of bytes of a prepared body that are passed to hyper at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Settings for many watchers, equal to listwatch's own, so that the difference shows the server's
/// cost.
const STREAMS_MAX: u32 = 2_000;
const STREAM_BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Run the floor
#[derive(Debug, clap::Args)]
pub(crate) struct Floor {
    /// Size of one event in bytes
    #[arg(long, default_value_t = 1_650)]
    frame_bytes: usize,

    /// Send waiting events as one body frame of up to 64 KiB
    #[arg(long)]
    coalesce: bool,
}

impl Floor {
    /// Serves until standard input ends, so that the floor exits together with the program that started it.
    pub(crate) async fn run(self) -> Outcome<()> {
        let (tls, ca) = tls()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        // Reads exactly the answer: nothing may be printed after the reader has closed the pipe.
        print!("{}\n{ca}", listener.local_addr()?);
        std::io::stdout().flush()?;
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
        let state = Arc::new(State {
            frame_bytes: self.frame_bytes.max(200),
            coalesce: self.coalesce,
            revision: AtomicU64::new(1),
            groups: Mutex::default(),
        });
        loop {
            let (tcp, _) = listener.accept().await?;
            let _ = tcp.set_nodelay(true);
            let (tls, state) = (tls.clone(), state.clone());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(tcp).await else { return };
                let service = hyper::service::service_fn(move |request| {
                    let state = state.clone();
                    async move { Ok::<_, Infallible>(state.answer(request).await) }
                });
                let mut builder = auto::Builder::new(TokioExecutor::new());
                builder.http2().max_concurrent_streams(STREAMS_MAX).max_send_buf_size(STREAM_BUFFER_BYTES_MAX);
                // A disconnected client is not an error.
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }
}

struct State {
    frame_bytes: usize,
    coalesce: bool,
    revision: AtomicU64,
    groups: Mutex<HashMap<usize, Vec<Arc<Mutex<Queue>>>>>,
}

/// The waiting frames of one stream.
#[derive(Default)]
struct Queue {
    frames: VecDeque<Bytes>,
    waker: Option<Waker>,
    /// The response was dropped.
    closed: bool,
}

impl State {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let group = request.headers().get(GROUP_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let group: usize = group.unwrap_or(0);
        let query = request.uri().query().unwrap_or_default().to_owned();
        let bytes = query.split('&').find_map(|pair| pair.strip_prefix("bytes=")?.parse().ok()).unwrap_or(0_usize);
        if *request.method() != Method::GET {
            // The whole request is read, as by any server.
            let _ = request.into_body().collect().await;
            return json(Body::full(self.push(group)));
        }
        if !query.contains("watch=") {
            let body = if bytes == 0 {
                Bytes::from(format!(
                    "{{\"metadata\":{{\"resourceVersion\":\"{}\"}}}}",
                    self.revision.load(Ordering::Relaxed)
                ))
            } else {
                ready(bytes.min(BODY_BYTES_MAX))
            };
            return json(Body::full(body));
        }
        let queue = Arc::new(Mutex::new(Queue::default()));
        self.groups.lock().entry(group).or_default().push(queue.clone());
        let initial = if query.contains("sendInitialEvents") { self.initial(bytes) } else { Bytes::new() };
        json(Body { ready: initial, queue: Some(queue), coalesce: self.coalesce })
    }

    /// Assigns the next revision to a write and queues its event for the watchers of its group.
    fn push(&self, group: usize) -> Bytes {
        // The revision is assigned and queued under one lock, so every stream receives ascending
        // revisions.
        let mut groups = self.groups.lock();
        let revision = self.revision.fetch_add(1, Ordering::Relaxed) + 1;
        let frame = frame(revision, self.frame_bytes);
        if let Some(queues) = groups.get_mut(&group) {
            queues.retain(|queue| {
                let mut queue = queue.lock();
                if !queue.closed {
                    queue.frames.push_back(frame.clone());
                    if let Some(waker) = queue.waker.take() {
                        waker.wake();
                    }
                }
                !queue.closed
            });
        }
        frame
    }

    /// An initial state of about `bytes` bytes in frames, followed by the bookmark, built once.
    fn initial(&self, bytes: usize) -> Bytes {
        static INITIAL: Mutex<Option<(usize, Bytes)>> = Mutex::new(None);
        let mut initial = INITIAL.lock();
        if let Some((known, ready)) = &*initial
            && *known == bytes
        {
            return ready.clone();
        }
        let mut all = BytesMut::with_capacity(bytes + 2 * self.frame_bytes);
        while all.len() + self.frame_bytes <= bytes {
            all.extend_from_slice(&frame(1, self.frame_bytes));
        }
        all.extend_from_slice(
            b"{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"1\",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n",
        );
        let ready = all.freeze();
        *initial = Some((bytes, ready.clone()));
        ready
    }
}

fn json(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

/// An event of this size.
fn frame(revision: u64, bytes: usize) -> Bytes {
    let head =
        format!("{{\"type\":\"MODIFIED\",\"object\":{{\"metadata\":{{\"resourceVersion\":\"{revision}\"}},\"data\":\"");
    let padding = bytes.saturating_sub(head.len() + 4);
    let mut frame = BytesMut::with_capacity(bytes.max(head.len() + 4));
    frame.extend_from_slice(head.as_bytes());
    frame.resize(head.len() + padding, b'x');
    frame.extend_from_slice(b"\"}}\n");
    frame.freeze()
}

/// A body of this size. All requests share the buffer.
fn ready(bytes: usize) -> Bytes {
    static READY: Mutex<Bytes> = Mutex::new(Bytes::new());
    let mut ready = READY.lock();
    if ready.len() < bytes {
        *ready = Bytes::from(vec![b'x'; bytes]);
    }
    ready.slice(..bytes)
}

/// A body: prepared bytes, then queued frames.
struct Body {
    ready: Bytes,
    queue: Option<Arc<Mutex<Queue>>>,
    coalesce: bool,
}

impl Body {
    fn full(ready: Bytes) -> Self {
        Body { ready, queue: None, coalesce: false }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.ready.is_empty() {
            let take = self.ready.len().min(CHUNK_BYTES);
            return Poll::Ready(Some(Ok(Frame::data(self.ready.split_to(take)))));
        }
        let Some(queue) = &self.queue else { return Poll::Ready(None) };
        let mut queue = queue.lock();
        let Some(first) = queue.frames.pop_front() else {
            queue.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if !self.coalesce || queue.frames.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let waiting = first.len() + queue.frames.iter().map(Bytes::len).sum::<usize>();
        let mut batch = BytesMut::with_capacity(waiting.min(BATCH_BYTES_MAX + first.len()));
        batch.extend_from_slice(&first);
        while batch.len() < BATCH_BYTES_MAX
            && let Some(frame) = queue.frames.pop_front()
        {
            batch.extend_from_slice(&frame);
        }
        Poll::Ready(Some(Ok(Frame::data(batch.freeze()))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self.queue {
            None => http_body::SizeHint::with_exact(self.ready.len() as u64),
            Some(_) => http_body::SizeHint::default(),
        }
    }
}

/// Dropping the response closes its queue.
impl Drop for Body {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            *queue.lock() = Queue { closed: true, ..Queue::default() };
        }
    }
}

/// A certificate for the loopback address, and its certificate authority.
fn tls() -> Outcome<(TlsAcceptor, String)> {
    let ca_key = KeyPair::generate()?;
    let mut ca_params = CertificateParams::default();
    ca_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = ca_params.clone().self_signed(&ca_key)?;
    let key = KeyPair::generate()?;
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &Issuer::new(ca_params, &ca_key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), ca.pem()))
}
