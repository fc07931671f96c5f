//! A fake etcd in the test's process, whose answers the test determines: [`FakeEtcd`].
//!
//! The fake executes the store's requests as etcd does, on a history of all versions, and records each request.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use listwatch_meta::Revision;
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tonic::Code;

use super::raw::proto::{
    self, AuthenticateResponse, CompactionRequest, CompactionResponse, Event, KeyValue, LeaseGrantResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, RangeResponse, RequestOp, RequestUnion,
    ResponseHeader, ResponseOp, StatusResponse, TargetUnion, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
    WatchResponse, path,
};

/// The time limit for a request of the store.
const PATIENCE: Duration = Duration::from_secs(60);

/// The answer to a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The request is executed.
    Executed,
    /// The request fails with this status.
    Status(Code, &'static str),
    /// The request is not executed, and this message is returned.
    Message(Vec<u8>),
    /// The request is executed by a member with this cluster id and revision.
    Header(u64, i64),
    /// The request is never answered.
    Silence,
}

/// A fake member.
pub(crate) struct FakeEtcd {
    /// `http://127.0.0.1:port`.
    pub(crate) url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    state: Mutex<State>,
    recorded: Notify,
    /// Closes the current connections.
    hang_up: watch::Sender<u64>,
}

/// The state of a fake member.
pub(crate) struct State {
    pub(crate) cluster: u64,
    pub(crate) version: &'static str,
    /// The current revision.
    pub(crate) now: i64,
    pub(crate) compacted: i64,
    /// The remaining seconds of each lease.
    pub(crate) ttls: BTreeMap<i64, i64>,
    /// The number of accepted connections.
    pub(crate) connections: usize,
    /// Whether the member has a leader. Without one, every request except for its status fails.
    pub(crate) has_leader: bool,
    /// Whether a further watch on a stream is rejected, as by etcd. If false, the request is not answered.
    pub(crate) answers_probes: bool,
    /// All versions of all keys; the version 0 is a removal.
    versions: Vec<KeyValue>,
    /// The path and message of each request, and each message of a watch stream.
    requests: Vec<(String, Bytes)>,
    answers: VecDeque<(&'static str, Answer)>,
    streams: Vec<Stream>,
}

/// A watch stream with its first watch.
struct Stream {
    watch: WatchCreateRequest,
    id: i64,
    responses: mpsc::UnboundedSender<Result<WatchResponse, Refused>>,
}

impl FakeEtcd {
    /// Starts an empty etcd.
    pub(crate) async fn start() -> FakeEtcd {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound socket"));
        let state = State {
            cluster: 7,
            version: "3.5.20",
            now: 1,
            compacted: 0,
            ttls: BTreeMap::new(),
            connections: 0,
            has_leader: true,
            answers_probes: true,
            versions: Vec::new(),
            requests: Vec::new(),
            answers: VecDeque::new(),
            streams: Vec::new(),
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), recorded: Notify::new(), hang_up: watch::Sender::new(0) });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                accepting.lock().connections += 1;
                let shared = accepting.clone();
                let mut hang_up = shared.hang_up.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        () = serve(client, shared) => {}
                        _ = hang_up.changed() => {}
                    }
                });
            }
        });
        FakeEtcd { url, shared, task }
    }

    /// The state, to read and change.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Sets the next answers to requests of this path. Later requests are executed.
    pub(crate) fn answer(&self, path: &'static str, answers: impl IntoIterator<Item = Answer>) {
        self.state().answers.extend(answers.into_iter().map(|answer| (path, answer)));
    }

    /// Writes a key below the default prefix, as another client.
    pub(crate) fn put(&self, key: &str, value: &str) -> Revision {
        self.put_leased(key, value, 0)
    }

    /// Writes a key with a lease.
    pub(crate) fn put_leased(&self, key: &str, value: &str, lease: i64) -> Revision {
        let revision = self.state().write(format!("/registry{key}").as_bytes(), Some(value.into()), lease);
        Revision::new(revision.unsigned_abs())
    }

    /// All requests of a path.
    pub(crate) fn requests<M: Message + Default>(&self, path: &str) -> Vec<M> {
        let state = self.state();
        let of_path = state.requests.iter().filter(|(of, _)| of == path);
        of_path.map(|(_, message)| M::decode(message.clone()).expect("a valid message")).collect()
    }

    /// Waits until this number of requests of a path has arrived. Returns all of them.
    pub(crate) async fn wait_for<M: Message + Default>(&self, path: &str, count: usize) -> Vec<M> {
        let arrived = async {
            loop {
                let recorded = self.shared.recorded.notified();
                let requests = self.requests(path);
                if requests.len() >= count {
                    return requests;
                }
                recorded.await;
            }
        };
        tokio::time::timeout(PATIENCE, arrived).await.unwrap_or_else(|_| panic!("the store sent no request {path}"))
    }

    /// The creations of watches, in order.
    pub(crate) fn watches(&self) -> Vec<WatchCreateRequest> {
        let requests = self.requests::<WatchRequest>(path::WATCH).into_iter();
        let created = requests.filter_map(|request| match request.request_union {
            Some(RequestUnion::Create(create)) => Some(create),
            _ => None,
        });
        created.collect()
    }

    /// Sends a response on the newest watch stream.
    pub(crate) fn send(&self, response: WatchResponse) {
        let state = self.state();
        let stream = state.streams.last().expect("a watch stream");
        stream.responses.send(Ok(response)).expect("an open watch stream");
    }

    /// Sends these events on the newest watch stream, in one response of etcd that is cut into fragments of so many events.
    pub(crate) fn send_in_fragments(&self, events: &[Event], fragment_events: usize) {
        let header = self.state().header();
        let watch_id = self.state().streams.last().expect("a watch stream").id;
        let mut fragments = events.chunks(fragment_events).peekable();
        while let Some(events) = fragments.next() {
            let fragment = fragments.peek().is_some();
            self.send(WatchResponse {
                header,
                watch_id,
                fragment,
                events: events.to_vec(),
                ..WatchResponse::default()
            });
        }
    }

    /// Ends all watch streams with a status.
    pub(crate) fn end_streams(&self, code: Code, text: &'static str) {
        for stream in self.state().streams.drain(..) {
            let _ = stream.responses.send(Err((code, text)));
        }
    }

    /// Waits until the store has closed all watch streams.
    pub(crate) async fn wait_until_streams_end(&self) {
        let ended = async {
            while self.state().streams.iter().any(|stream| !stream.responses.is_closed()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("a watch stream stays open");
    }

    /// Removes the version of this revision from the history.
    pub(crate) fn remove_version(&self, revision: Revision) {
        self.state().versions.retain(|kv| kv.mod_revision.unsigned_abs() != revision.get());
    }

    /// Closes the current connections.
    pub(crate) fn hang_up(&self) {
        self.state().streams.clear();
        self.shared.hang_up.send_modify(|count| *count += 1);
    }
}

impl Drop for FakeEtcd {
    fn drop(&mut self) {
        self.task.abort();
        self.hang_up();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds the state")
    }

    fn record(&self, path: &str, message: Bytes) {
        self.lock().requests.push((path.to_owned(), message));
        self.recorded.notify_waiters();
    }

    fn next_answer(&self, path: &str) -> Answer {
        let answers = &mut self.lock().answers;
        let index = answers.iter().position(|(of, _)| *of == path);
        index.and_then(|index| answers.remove(index)).map_or(Answer::Executed, |(_, answer)| answer)
    }
}

type Refused = (Code, &'static str);

const COMPACTED: Refused = (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");

impl State {
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { cluster_id: self.cluster, member_id: 1, revision: self.now, raft_term: 2 })
    }

    fn execute(&mut self, path: &str, message: &Bytes) -> Result<Vec<u8>, Refused> {
        fn read<M: Message + Default>(message: &Bytes) -> M {
            M::decode(message.clone()).expect("a valid message")
        }
        if !self.has_leader && path != path::STATUS {
            return Err((Code::Unavailable, "etcdserver: no leader"));
        }
        Ok(match path {
            path::STATUS => {
                let version = self.version.to_owned();
                StatusResponse { header: self.header(), version, db_size: 4_096, leader: 1 }.encode_to_vec()
            }
            path::RANGE => self.range(&read(message))?.encode_to_vec(),
            path::TXN => self.txn(read(message))?.encode_to_vec(),
            path::COMPACT => {
                let CompactionRequest { revision, .. } = read(message);
                self.check_revision(revision)?;
                if revision == self.compacted {
                    return Err(COMPACTED);
                }
                self.compacted = revision;
                CompactionResponse { header: self.header() }.encode_to_vec()
            }
            path::LEASE_GRANT => {
                let id = 1_000 + i64::try_from(self.ttls.len()).expect("few leases");
                self.ttls.insert(id, 60);
                LeaseGrantResponse { header: self.header(), id, ttl: 60 }.encode_to_vec()
            }
            path::LEASE_TIME_TO_LIVE => {
                let LeaseTimeToLiveRequest { id } = read(message);
                let ttl = self.ttls.get(&id).copied().unwrap_or(-1);
                LeaseTimeToLiveResponse { header: self.header(), id, ttl }.encode_to_vec()
            }
            path::AUTHENTICATE => {
                AuthenticateResponse { header: self.header(), token: "a-token".to_owned() }.encode_to_vec()
            }
            _ => return Err((Code::Unimplemented, "unknown method")),
        })
    }

    fn check_revision(&self, revision: i64) -> Result<(), Refused> {
        if revision > self.now {
            return Err((Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"));
        }
        if revision < self.compacted { Err(COMPACTED) } else { Ok(()) }
    }

    fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Refused> {
        let at = if request.revision == 0 { self.now } else { request.revision };
        self.check_revision(at)?;
        let mut found = BTreeMap::new();
        for kv in &self.versions {
            if kv.mod_revision <= at && is_within(&kv.key, &request.key, &request.range_end) {
                found.insert(&kv.key, kv);
            }
        }
        let found: Vec<&KeyValue> = found.into_values().filter(|kv| kv.version > 0).collect();
        let limit = usize::try_from(request.limit).expect("a limit");
        let limit = if limit == 0 { found.len() } else { limit.min(found.len()) };
        let mut kvs: Vec<KeyValue> = found[..limit].iter().map(|kv| (*kv).clone()).collect();
        if request.count_only {
            kvs.clear();
        }
        if request.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value.clear());
        }
        let count = i64::try_from(found.len()).expect("a count");
        Ok(RangeResponse { header: self.header(), kvs, more: limit < found.len(), count })
    }

    fn txn(&mut self, request: TxnRequest) -> Result<TxnResponse, Refused> {
        let compare = &request.compare[0];
        let current = self.current(&compare.key);
        let succeeded = match compare.target_union {
            Some(TargetUnion::ModRevision(expected)) => current.map_or(0, |kv| kv.mod_revision) == expected,
            Some(TargetUnion::Version(expected)) => current.map_or(0, |kv| kv.version) == expected,
            _ => return Err((Code::Unimplemented, "unknown comparison")),
        };
        let operations = if succeeded { request.success } else { request.failure };
        let mut responses = Vec::new();
        for RequestOp { request } in operations {
            match request {
                Some(proto::Request::Put(put)) => {
                    self.write(&put.key, Some(put.value.to_vec()), put.lease);
                }
                Some(proto::Request::DeleteRange(delete)) => {
                    self.write(&delete.key, None, 0);
                }
                Some(proto::Request::Range(range)) => {
                    responses.push(ResponseOp { response: Some(proto::Response::Range(self.range(&range)?)) });
                }
                None => {}
            }
        }
        Ok(TxnResponse { header: self.header(), succeeded, responses })
    }

    fn current(&self, key: &[u8]) -> Option<&KeyValue> {
        self.versions.iter().rfind(|kv| kv.key == key).filter(|kv| kv.version > 0)
    }

    /// Writes or removes a key at the next revision.
    pub(crate) fn write(&mut self, key: &[u8], value: Option<Vec<u8>>, lease: i64) -> i64 {
        self.now += 1;
        let before = self.current(key).cloned();
        let mut kv = KeyValue { key: key.to_vec(), mod_revision: self.now, ..KeyValue::default() };
        let r#type = i32::from(value.is_none());
        if let Some(value) = value {
            kv.create_revision = before.as_ref().map_or(self.now, |before| before.create_revision);
            kv.version = before.as_ref().map_or(1, |before| before.version + 1);
            (kv.value, kv.lease) = (value, lease);
        }
        self.versions.push(kv.clone());
        let event = Event { r#type, kv: Some(kv), prev_kv: before };
        let header = self.header();
        for stream in self.streams.iter().filter(|stream| is_within(key, &stream.watch.key, &stream.watch.range_end)) {
            let (watch_id, events) = (stream.id, vec![event.clone()]);
            let response = WatchResponse { header, watch_id, events, ..WatchResponse::default() };
            let _ = stream.responses.send(Ok(response));
        }
        self.now
    }

    /// The changes since a revision, for a new watch.
    fn changes(&self, watch: &WatchCreateRequest) -> Vec<Event> {
        let mut events = Vec::new();
        for (index, kv) in self.versions.iter().enumerate() {
            if kv.mod_revision >= watch.start_revision && is_within(&kv.key, &watch.key, &watch.range_end) {
                let before = self.versions[..index].iter().rfind(|before| before.key == kv.key);
                let prev_kv = before.filter(|before| before.version > 0).cloned();
                events.push(Event { r#type: i32::from(kv.version == 0), kv: Some(kv.clone()), prev_kv });
            }
        }
        events
    }
}

fn is_within(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    if end.is_empty() { key == start } else { key >= start && key < end }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(respond(request, shared).await) }
    });
    let connection =
        hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(client), service);
    let _ = connection.await;
}

async fn respond(request: Request<Incoming>, shared: Arc<Shared>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let answer = shared.next_answer(&path);
    if path == path::WATCH && matches!(answer, Answer::Executed) {
        return open_watch(request.into_body(), shared);
    }
    let mut message = Bytes::new();
    // The requests of a refused watch stream have no end.
    if path != path::WATCH {
        let Ok(body) = request.into_body().collect().await else { return refusal(Code::Cancelled, "") };
        message = body.to_bytes().slice(5..);
    }
    shared.record(&path, message.clone());
    let executed = match answer {
        Answer::Status(code, text) => return refusal(code, text),
        Answer::Silence => return std::future::pending().await,
        Answer::Message(message) => Ok(message),
        Answer::Executed => shared.lock().execute(&path, &message),
        Answer::Header(cluster, revision) => {
            let mut state = shared.lock();
            let own = (state.cluster, state.now);
            (state.cluster, state.now) = (cluster, revision);
            let executed = state.execute(&path, &message);
            (state.cluster, state.now) = own;
            executed
        }
    };
    match executed {
        Ok(message) => {
            let frames = [Ok(Frame::data(framed(&message))), Ok(trailers(Code::Ok, ""))];
            response(StreamBody::new(stream::iter(frames)).boxed_unsync())
        }
        Err((code, text)) => refusal(code, text),
    }
}

fn open_watch(requests: Incoming, shared: Arc<Shared>) -> Response<Body> {
    let (responses, receiver) = mpsc::unbounded_channel();
    tokio::spawn(read_watch(requests, shared, responses));
    let frames = stream::unfold(Some(receiver), |receiver| async {
        let mut receiver: mpsc::UnboundedReceiver<Result<WatchResponse, Refused>> = receiver?;
        match receiver.recv().await? {
            Ok(response) => Some((Ok(Frame::data(framed(&response.encode_to_vec()))), Some(receiver))),
            Err((code, text)) => Some((Ok(trailers(code, text)), None)),
        }
    });
    response(StreamBody::new(frames).boxed_unsync())
}

async fn read_watch(
    mut requests: Incoming,
    shared: Arc<Shared>,
    responses: mpsc::UnboundedSender<Result<WatchResponse, Refused>>,
) {
    let mut buffer = Vec::new();
    let mut watched = false;
    while let Some(Ok(frame)) = requests.frame().await {
        buffer.extend_from_slice(&frame.into_data().unwrap_or_default());
        while let Some(length) =
            buffer.first_chunk::<5>().map(|head| u32::from_be_bytes([head[1], head[2], head[3], head[4]]))
        {
            let length = 5 + length as usize;
            if buffer.len() < length {
                break;
            }
            let message = Bytes::from(buffer.drain(..length).skip(5).collect::<Vec<u8>>());
            let request = WatchRequest::decode(message.clone()).expect("a valid message");
            shared.record(path::WATCH, message);
            let mut state = shared.lock();
            let header = state.header();
            let response = WatchResponse { header, ..WatchResponse::default() };
            match request.request_union {
                Some(RequestUnion::Create(watch)) if !watched => {
                    watched = true;
                    let id = 5;
                    let send = |response| drop(responses.send(Ok(WatchResponse { watch_id: id, ..response })));
                    send(WatchResponse { created: true, ..response.clone() });
                    let compact_revision = state.compacted;
                    if watch.start_revision > 0 && watch.start_revision < compact_revision {
                        send(WatchResponse { canceled: true, compact_revision, ..response });
                        continue;
                    }
                    let events = state.changes(&watch);
                    if watch.start_revision > 0 && !events.is_empty() {
                        send(WatchResponse { events, ..response });
                    }
                    state.streams.push(Stream { watch, id, responses: responses.clone() });
                }
                // etcd rejects a watch of an empty range.
                Some(RequestUnion::Create(_)) if state.answers_probes => {
                    let response = WatchResponse { created: true, canceled: true, watch_id: -1, ..response };
                    let _ = responses.send(Ok(response));
                }
                Some(RequestUnion::Progress(_)) => {
                    let _ = responses.send(Ok(WatchResponse { watch_id: -1, ..response }));
                }
                _ => {}
            }
        }
    }
}

/// A gRPC message: not compressed, and its length.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

fn trailers(code: Code, text: &str) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", (code as i32).into());
    trailers.insert("grpc-message", text.parse().expect("a header value"));
    Frame::trailers(trailers)
}

fn response(body: Body) -> Response<Body> {
    Response::builder().header("content-type", "application/grpc").body(body).expect("a response")
}

/// A response without a message.
fn refusal(code: Code, text: &str) -> Response<Body> {
    let mut refusal = response(Empty::new().boxed_unsync());
    refusal.headers_mut().insert("grpc-status", (code as i32).into());
    refusal.headers_mut().insert("grpc-message", text.parse().expect("a header value"));
    refusal
}
