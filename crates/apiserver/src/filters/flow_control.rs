//! Flow control: how many requests are served at once (`filters/maxinflight.go`), and how much memory
//! the bodies of writes take together.
//!
//! ```text
//!  read   ──▶ seat ─────────────────────────────────────▶ handler ──▶ response is sent ──▶ free
//!  write  ──▶ body is received ──▶ seat ──▶ memory ──▶ handler ──▶ response is sent ──▶ free
//!  watch, health, version ──────────────────────────────▶ handler
//! ```
//!
//! A write takes its seat when its body has arrived, so that a client that sends slowly holds none.

use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::body::{Body, Hold};
use crate::request_info::RequestInfo;
use crate::respond;
use crate::seats::{Seat, Seats};

/// Reads served at once, until their responses are sent, watches not counted
/// (`--max-requests-inflight`). A further one takes the seat of a slow response or is a 429.
const READS_IN_FLIGHT_MAX: usize = 400;
/// Writes served at once, until their responses are sent (`--max-mutating-requests-inflight`). A further
/// one takes the seat of a slow response or is a 429.
const WRITES_IN_FLIGHT_MAX: usize = 200;

/// Bytes of memory of all parsed bodies of writes, each counted as the most that one of its length can take,
/// and then of their responses until they are sent. Further writes wait, within the time of their request.
const WRITES_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Bytes of a body that is parsed without room of [`WRITES_BYTES_MAX`].
const SMALL_BODY_BYTES_MAX: usize = 16 * 1024;
/// A write that waits for that memory cuts one slow response each such time.
const WRITES_BYTES_RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

/// All seats are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyRequests;

impl TooManyRequests {
    /// The 429: no Status, as in kube-apiserver.
    pub(crate) fn response(self) -> Response<Body> {
        let text = "Too many requests, please try again later.\n".to_owned();
        let mut response = respond::text(StatusCode::TOO_MANY_REQUESTS, text);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        response
    }
}

/// The seats and the memory of one server.
pub(crate) struct FlowControl {
    reads: Arc<Seats>,
    writes: Arc<Seats>,
    /// Bytes of memory that are left for bodies of writes, parsed, and their responses.
    writes_bytes: Arc<Semaphore>,
}

impl FlowControl {
    /// All seats and all memory are free.
    pub(crate) fn new() -> Self {
        FlowControl {
            reads: Seats::new(READS_IN_FLIGHT_MAX),
            writes: Seats::new(WRITES_IN_FLIGHT_MAX),
            writes_bytes: Arc::new(Semaphore::new(WRITES_BYTES_MAX)),
        }
    }

    /// Admits a request: a read takes its seat.
    ///
    /// # Errors
    /// [`TooManyRequests`] when there is no seat, and no slow response that holds one.
    pub(crate) fn admit(
        &self,
        info: &RequestInfo<'_>,
        now: impl FnOnce() -> Instant,
    ) -> Result<Admission<'_>, TooManyRequests> {
        let takes_seat = !info.is_watch() && !info.is_mutating() && !info.is_health_or_version();
        let seat = if takes_seat { Some(self.reads.take(now).ok_or(TooManyRequests)?) } else { None };
        Ok(Admission { control: self, seat, memory: None })
    }

    /// Cuts the responses whose time is over.
    pub(crate) fn sweep(&self, now: Instant) {
        self.reads.sweep(now);
        self.writes.sweep(now);
    }

    /// How many reads and writes are in flight.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.reads.taken(), self.writes.taken())
    }
}

/// What a request holds until its response is sent.
pub(crate) struct Admission<'a> {
    control: &'a FlowControl,
    seat: Option<Seat>,
    memory: Option<OwnedSemaphorePermit>,
}

impl Admission<'_> {
    /// Takes the seat of a write whose body has arrived.
    ///
    /// # Errors
    /// [`TooManyRequests`] when there is no seat, and no slow response that holds one.
    pub(crate) fn take_write_seat(&mut self) -> Result<(), TooManyRequests> {
        self.seat = Some(self.control.writes.take(Instant::now).ok_or(TooManyRequests)?);
        Ok(())
    }

    /// Waits until there is memory for a large body, which takes up to `parsed_bytes` when it is parsed. A small
    /// one waits for none.
    pub(crate) async fn wait_for_memory(&mut self, body_bytes: usize, parsed_bytes: usize) {
        // A small write, such as a lease, never waits behind large ones. The seats bound what small ones take
        // together: 200 times 1.6 MiB.
        if body_bytes <= SMALL_BODY_BYTES_MAX {
            return;
        }
        // No body asks for more than there is, and the semaphore is never closed.
        let bytes = u32::try_from(parsed_bytes.min(WRITES_BYTES_MAX)).unwrap_or(u32::MAX);
        let mut memory = std::pin::pin!(Arc::clone(&self.control.writes_bytes).acquire_many_owned(bytes));
        loop {
            match tokio::time::timeout(WRITES_BYTES_RECLAIM_INTERVAL, &mut memory).await {
                Ok(memory) => {
                    self.memory = memory.ok();
                    return;
                }
                Err(_) => self.control.writes.reclaim(Instant::now()),
            }
        }
    }

    /// Leaves the seat, and the memory that the response itself takes, with the response until it is sent.
    pub(crate) fn hold_until_sent(self, response: &mut Response<Body>, deadline: Instant) {
        let Some(seat) = self.seat else { return };
        let bytes = usize::try_from(http_body::Body::size_hint(response.body()).lower()).unwrap_or(usize::MAX);
        let memory = self.memory.and_then(|mut memory| memory.split(bytes.min(memory.num_permits())));
        response.body_mut().hold(Hold::new(seat, deadline, memory));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{Method, Request};
    use listwatch_wire::query::Query;

    use super::*;

    fn admit<'a>(control: &'a FlowControl, line: &str) -> Result<Admission<'a>, TooManyRequests> {
        let (method, target) = line.split_once(' ').unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let method: Method = method.parse().unwrap();
        control.admit(&RequestInfo::new(&method, path, &Query::parse(query)), Instant::now)
    }

    #[test]
    fn reads_take_seats_and_watches_and_health_take_none() {
        let control = FlowControl { reads: Seats::new(1), ..FlowControl::new() };
        for exempt in ["GET /api/v1/pods?watch=1", "GET /readyz", "GET /version", "POST /api/v1/namespaces/a/pods"] {
            let _admission = admit(&control, exempt).unwrap();
            assert_eq!(control.in_flight(), (0, 0), "{exempt}");
        }
        for read in ["GET /api/v1/pods", "GET /apis", "GET /metrics", "POST /api/v1/namespaces/a/pods/x/exec"] {
            let first = admit(&control, read).unwrap();
            assert_eq!(control.in_flight(), (1, 0), "{read}");
            assert_eq!(admit(&control, "GET /api/v1/nodes").err(), Some(TooManyRequests));
            drop(first);
        }
    }

    #[test]
    fn write_takes_its_seat_when_its_body_has_arrived() {
        let control = FlowControl { writes: Seats::new(1), ..FlowControl::new() };
        let mut first = admit(&control, "POST /api/v1/namespaces").unwrap();
        let mut second = admit(&control, "PUT /api/v1/namespaces/a").unwrap();
        assert_eq!(first.take_write_seat(), Ok(()));
        assert_eq!(second.take_write_seat(), Err(TooManyRequests));
        let mut response = Response::new(Body::empty());
        first.hold_until_sent(&mut response, Instant::now());
        assert_eq!(control.in_flight(), (0, 1), "the response holds the seat");
        drop(response);
        assert_eq!(control.in_flight(), (0, 0));
    }

    #[tokio::test]
    async fn large_write_waits_for_memory_and_small_write_does_not() {
        let server = &crate::ApiServer::builder().build().await.unwrap();
        let send = |annotation: usize| async move {
            let annotations = format!(r#"{{"a":"{}"}}"#, "x".repeat(annotation));
            let body = format!(r#"{{"metadata":{{"generateName":"n","annotations":{annotations}}}}}"#);
            let body = http_body_util::Full::new(Bytes::from(body));
            let request = Request::post("/api/v1/namespaces").header("content-type", "application/json");
            server.service().handle(request.body(body).unwrap()).await.status()
        };
        let memory = &server.shared.flow_control.writes_bytes;
        let taken = Arc::clone(memory).acquire_many_owned(WRITES_BYTES_MAX as u32).await.unwrap();
        let mut waiting = std::pin::pin!(send(100_000));
        let soon = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
        assert!(soon.is_err(), "there is room for no large body");
        assert_eq!(send(1).await, StatusCode::CREATED, "a small write does not wait behind large ones");
        drop(taken);
        assert_eq!(waiting.await, StatusCode::CREATED);
        assert_eq!(memory.available_permits(), WRITES_BYTES_MAX);
    }
}
