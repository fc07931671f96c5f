//! Flow control: limits the number of requests in flight (`filters/maxinflight.go`), and the total memory of the bodies
//! of writes.
//!
//! ```text
//!  read   ──▶ slot ─────────────────────────────────────▶ handler ──▶ response is sent ──▶ free
//!  write  ──▶ body is received ──▶ slot ──▶ memory ──▶ handler ──▶ response is sent ──▶ free
//!  long-running, health, version ──────────────────────────────▶ handler
//! ```
//!
//! A write takes its slot only after its body has arrived, so that a slow client holds no slot.

use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::request::in_flight::{InFlightLimit, InFlightSlot};
use crate::request::info::RequestInfo;
use crate::response::body::{Body, Hold};
use crate::response::respond;

/// The largest number of reads in flight until their responses are sent, without watches (`--max-requests-inflight`). A
/// further read takes the slot of a slow response, or is answered with 429.
pub(crate) const READS_IN_FLIGHT_MAX: usize = 400;
/// The largest number of writes in flight until their responses are sent (`--max-mutating-requests-inflight`). A
/// further write takes the slot of a slow response, or is answered with 429.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 200;

/// The largest total memory of all parsed bodies of writes, and then of their responses until they are sent, in bytes.
/// A body is charged with the largest memory that a body of its length can need. Further writes wait until their
/// deadline.
const WRITES_BYTES_MAX: usize = 512 * 1024 * 1024;
/// The largest body that is parsed without a share of [`WRITES_BYTES_MAX`], in bytes.
const SMALL_BODY_BYTES_MAX: usize = 16 * 1024;
/// The interval in which a write that waits for memory aborts one slow response.
const WRITES_BYTES_RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

/// All slots are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyRequests;

impl TooManyRequests {
    /// Returns the 429 without a Status, as in kube-apiserver.
    pub(crate) fn response(self) -> Response<Body> {
        let text = "Too many requests, please try again later.\n".to_owned();
        let mut response = respond::text(StatusCode::TOO_MANY_REQUESTS, text);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        response
    }
}

/// The slots and the memory of one server.
pub(crate) struct FlowControl {
    reads: Arc<InFlightLimit>,
    writes: Arc<InFlightLimit>,
    /// The free part of [`WRITES_BYTES_MAX`], in bytes.
    writes_bytes: Arc<Semaphore>,
}

impl FlowControl {
    /// Creates slots for the given numbers of reads and writes. All slots and all memory are free.
    pub(crate) fn new(reads: usize, writes: usize) -> Self {
        FlowControl {
            reads: InFlightLimit::new(reads),
            writes: InFlightLimit::new(writes),
            writes_bytes: Arc::new(Semaphore::new(WRITES_BYTES_MAX)),
        }
    }

    /// Admits a request. A read takes a slot.
    ///
    /// # Errors
    /// [`TooManyRequests`] if no slot is free and no slow response can be aborted.
    pub(crate) fn admit(
        &self,
        info: &RequestInfo<'_>,
        now: impl FnOnce() -> Instant,
    ) -> Result<Admission<'_>, TooManyRequests> {
        // A watch and a connect have limits of their own.
        let takes_slot = !info.long_running && !info.is_mutating() && !info.is_health_or_version();
        let slot = if takes_slot { Some(self.reads.acquire(now).ok_or(TooManyRequests)?) } else { None };
        Ok(Admission { control: self, slot, memory: None })
    }

    /// Aborts the responses past their deadline.
    #[cfg(feature = "serve")]
    pub(crate) fn abort_expired(&self, now: Instant) {
        self.reads.abort_expired(now);
        self.writes.abort_expired(now);
    }

    /// The numbers of reads and writes in flight.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.reads.taken(), self.writes.taken())
    }
}

/// The slot and the memory that a request holds until its response is sent.
pub(crate) struct Admission<'a> {
    control: &'a FlowControl,
    slot: Option<InFlightSlot>,
    memory: Option<OwnedSemaphorePermit>,
}

impl Admission<'_> {
    /// Takes a slot for a write whose body has arrived.
    ///
    /// # Errors
    /// [`TooManyRequests`] if no slot is free and no slow response can be aborted.
    pub(crate) fn take_write_slot(&mut self) -> Result<(), TooManyRequests> {
        self.slot = Some(self.control.writes.acquire(Instant::now).ok_or(TooManyRequests)?);
        Ok(())
    }

    /// Waits for the memory of a large body, which needs up to `parsed_bytes` when it is parsed. A small body does not
    /// wait.
    pub(crate) async fn wait_for_memory(&mut self, body_bytes: usize, parsed_bytes: usize) {
        // A small write, such as that of a lease, never waits for large ones. The slots limit the memory of small
        // bodies to 200 times 1.6 MiB.
        if body_bytes <= SMALL_BODY_BYTES_MAX {
            return;
        }
        // No body needs more than the whole memory, and the semaphore is never closed.
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

    /// Moves the slot and the memory to the response, which holds them until it is sent.
    pub(crate) fn hold_until_sent(self, response: &mut Response<Body>, deadline: Instant) {
        let Some(slot) = self.slot else { return };
        let bytes = usize::try_from(http_body::Body::size_hint(response.body()).lower()).unwrap_or(usize::MAX);
        let memory = self.memory.and_then(|mut memory| memory.split(bytes.min(memory.num_permits())));
        response.body_mut().hold(Hold::new(slot, deadline, memory));
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
    fn only_reads_take_a_slot_on_admission() {
        let control = FlowControl::new(1, 1);
        let streams =
            ["GET /api/v1/pods?watch=1", "POST /api/v1/namespaces/a/pods/x/exec", "GET /api/v1/nodes/x/proxy/a"];
        let others = ["GET /readyz", "GET /version", "POST /api/v1/namespaces/a/pods"];
        for exempt in streams.into_iter().chain(others) {
            let _admission = admit(&control, exempt).unwrap();
            assert_eq!(control.in_flight(), (0, 0), "{exempt}");
        }
        for read in ["GET /api/v1/pods", "GET /apis", "GET /metrics"] {
            let first = admit(&control, read).unwrap();
            assert_eq!(control.in_flight(), (1, 0), "{read}");
            assert_eq!(admit(&control, "GET /api/v1/nodes").err(), Some(TooManyRequests));
            drop(first);
        }
    }

    #[test]
    fn write_takes_a_slot_only_after_its_body_has_arrived() {
        let control = FlowControl::new(1, 1);
        let mut first = admit(&control, "POST /api/v1/namespaces").unwrap();
        let mut second = admit(&control, "PUT /api/v1/namespaces/a").unwrap();
        assert_eq!(first.take_write_slot(), Ok(()));
        assert_eq!(second.take_write_slot(), Err(TooManyRequests));
        let mut response = Response::new(Body::empty());
        first.hold_until_sent(&mut response, Instant::now());
        assert_eq!(control.in_flight(), (0, 1), "the response holds the slot");
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
        assert!(soon.is_err(), "no memory is free for a large body");
        assert_eq!(send(1).await, StatusCode::CREATED, "a small write does not wait behind large ones");
        drop(taken);
        assert_eq!(waiting.await, StatusCode::CREATED);
        assert_eq!(memory.available_permits(), WRITES_BYTES_MAX);
    }
}
