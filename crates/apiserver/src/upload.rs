//! The body of a request: [`Upload`], read whole where something is written, and to its end where it
//! is not wanted.
//!
//! A body is read before its request takes a seat, so that a client that sends slowly holds up nobody.
//! It holds memory, which [`crate::body_budget`] bounds, and has to arrive at a minimum rate.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::HeaderMap;
use http::header::EXPECT;
use http_body_util::BodyExt as _;
use listwatch_meta::{Status, status};
use tokio::time::Instant;

use crate::body_budget::{BodyBudget, BodyCharge, ConnectionBodies, Exhausted};

/// Bytes of a request body taken; more is a 413 (`MaxRequestBodyBytes`).
pub const REQUEST_BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// In each such time a body that is not complete has to bring [`RATE_BYTES_MIN`]; one that does not is
/// refused with a 408.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// See [`RATE_WINDOW`]: 1 KiB a second. The largest body at this rate would take 50 minutes; the
/// time of its request is over before.
const RATE_BYTES_MIN: usize = 10 * 1024;
/// Bytes of a refused request that are read and forgotten before the answer (Go's 256 KiB). A client
/// that has more to send sees its stream reset behind the answer.
const DRAIN_BYTES_MAX: usize = 256 * 1024;
/// Bytes that are reserved for a body before they have come.
const RESERVED_BYTES_MAX: usize = 64 * 1024;
/// How long they may take to come; the answer waits no longer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A request's body, and how far it was read.
pub(crate) struct Upload<B> {
    body: Pin<Box<B>>,
    ended: bool,
    connection: Option<ConnectionBodies>,
}

/// A body that was received whole, charged until it is dropped.
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    _charge: BodyCharge,
}

impl<B> Upload<B>
where
    B: http_body::Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) fn new(body: B) -> Self {
        let ended = body.is_end_stream();
        Upload { body: Box::pin(body), ended, connection: None }
    }

    /// The connection that it comes by, which has a bound of its own.
    pub(crate) fn of_connection(mut self, connection: Option<ConnectionBodies>) -> Self {
        self.connection = connection;
        self
    }

    /// Has the client sent all of it?
    pub(crate) fn is_ended(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    /// The whole body.
    ///
    /// # Errors
    /// 413 above [`REQUEST_BODY_BYTES_MAX`], 400 when it breaks off, 408 when it comes too slowly, 429
    /// when there is no room for it.
    pub(crate) async fn collect(&mut self, budget: &Arc<BodyBudget>) -> Result<Received, Status> {
        let too_large = || Status::request_entity_too_large(REQUEST_BODY_BYTES_MAX);
        if self.announced() > REQUEST_BODY_BYTES_MAX {
            return Err(too_large());
        }
        let mut charge = budget.begin(self.connection.clone());
        let mut rate = None;
        let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
        while let Some(mut data) = self.next_in_time(&mut charge, &mut rate).await? {
            let bytes = data.remaining();
            if first.len() + joined.len() + bytes > REQUEST_BODY_BYTES_MAX {
                return Err(too_large());
            }
            charge.add(bytes, Instant::now).map_err(no_room)?;
            if let Some(rate) = &mut rate {
                rate.bytes += bytes;
            }
            if first.is_empty() && joined.is_empty() {
                // Most bodies come in one piece and are not copied.
                first = data.copy_to_bytes(bytes);
                continue;
            }
            if joined.is_empty() {
                // What is announced may never come; it grows with what has.
                joined.reserve(self.announced().min(RESERVED_BYTES_MAX).max(first.len() + bytes));
                joined.extend_from_slice(&std::mem::take(&mut first));
            }
            joined.extend_from_slice(&data.copy_to_bytes(bytes));
        }
        charge.complete().map_err(no_room)?;
        let bytes = if joined.is_empty() { first } else { joined.freeze() };
        Ok(Received { bytes, _charge: charge })
    }

    /// The next piece, if it comes at the minimum rate and the body is not given up for others.
    async fn next_in_time(
        &mut self,
        charge: &mut BodyCharge,
        rate: &mut Option<Rate>,
    ) -> Result<Option<B::Data>, Status> {
        // Most bodies have arrived whole when they are asked for.
        if let Some(ready) = self.next().now_or_never() {
            return ready;
        }
        charge.wait(Instant::now());
        // Measured from the first wait on.
        let rate = rate.get_or_insert_with(|| Rate::new(Instant::now()));
        loop {
            tokio::select! {
                biased;
                next = self.next() => return next,
                () = charge.reclaimed() => return Err(no_room(Exhausted)),
                () = tokio::time::sleep_until(rate.window_end) => {
                    if !rate.next_window() {
                        let message = "the request body arrives too slowly";
                        return Err(Status::failure(408, status::reason::TIMEOUT, message));
                    }
                }
            }
        }
    }

    /// Reads what nobody has read and forgets it, if that is little and comes soon. A client that
    /// waits for a `100 Continue` is not asked for what nobody wants.
    pub(crate) async fn drain(&mut self, headers: &HeaderMap) {
        if self.ended || headers.contains_key(EXPECT) || self.announced() > DRAIN_BYTES_MAX {
            return;
        }
        let read = async {
            let mut left = DRAIN_BYTES_MAX;
            while let Ok(Some(data)) = self.next().await {
                let Some(less) = left.checked_sub(data.remaining()) else { return };
                left = less;
            }
        };
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, read).await;
    }

    /// How many bytes will come at least.
    fn announced(&self) -> usize {
        if self.ended { 0 } else { usize::try_from(self.body.size_hint().lower()).unwrap_or(usize::MAX) }
    }

    async fn next(&mut self) -> Result<Option<B::Data>, Status> {
        while !self.ended {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Err(Status::bad_request(format!("unable to read the request body: {}", error.into())));
                }
                None => self.ended = true,
            }
        }
        Ok(None)
    }
}

/// The rate at which a body arrives.
struct Rate {
    window_end: Instant,
    /// Received in this window.
    bytes: usize,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Rate { window_end: now + RATE_WINDOW, bytes: 0 }
    }

    /// The window is over. Has enough come in it?
    fn next_window(&mut self) -> bool {
        self.window_end += RATE_WINDOW;
        std::mem::take(&mut self.bytes) >= RATE_BYTES_MIN
    }
}

fn no_room(_: Exhausted) -> Status {
    Status::too_many_requests("too many request bodies are being received, please try again later", 1)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn pieces(pieces: Vec<Vec<u8>>) -> Upload<impl http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static> {
        Upload::new(StreamBody::new(stream::iter(pieces).map(|piece| Ok(Frame::data(Bytes::from(piece))))))
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_are_joined_up_to_the_limit() {
        let budget = BodyBudget::new(usize::MAX / 2);
        let collect = async |body: Vec<Vec<u8>>| {
            let received = pieces(body).collect(&budget).await;
            received.map(|received| {
                assert_eq!(budget.bytes(), received.bytes.len(), "charged while it is there");
                received.bytes
            })
        };
        assert_eq!(collect(vec![]).await.unwrap(), "");
        assert_eq!(collect(vec![b"one".to_vec()]).await.unwrap(), "one");
        let many = [b"one".to_vec(), vec![], b"two".to_vec(), b"three".to_vec()];
        assert_eq!(collect(many.to_vec()).await.unwrap(), "onetwothree");
        let most = vec![vec![b'x'; REQUEST_BODY_BYTES_MAX / 2]; 2];
        assert_eq!(collect(most.clone()).await.unwrap().len(), REQUEST_BODY_BYTES_MAX);
        let more = collect([most, vec![b"y".to_vec()]].concat()).await;
        assert_eq!(more.unwrap_err().code, 413);
        assert_eq!(budget.bytes(), 0);
    }

    /// A body of which so many bytes come each second, for so long.
    async fn trickle(bytes: usize, seconds: usize) -> (Result<usize, u16>, Duration) {
        let budget = BodyBudget::new(usize::MAX / 2);
        let tick = move |_| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b' '; bytes])))
        };
        let ticks = stream::iter(0..seconds).then(tick);
        let begun = Instant::now();
        let mut upload = Upload::new(StreamBody::new(Box::pin(ticks)));
        let received = upload.collect(&budget).await;
        (received.map(|received| received.bytes.len()).map_err(|status| status.code), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn body_slower_than_the_minimum_rate_is_refused_with_408() {
        assert_eq!(trickle(1, 100).await, (Err(408), RATE_WINDOW));
        assert_eq!(trickle(1_000, 100).await, (Err(408), RATE_WINDOW));
        assert_eq!(trickle(2_000, 100).await, (Ok(200_000), Duration::from_secs(100)));
        assert_eq!(trickle(1, 9).await, (Ok(9), Duration::from_secs(9)), "a small body may take a window");
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_body_is_given_up_when_others_need_its_room() {
        let budget = BodyBudget::new(REQUEST_BODY_BYTES_MAX);
        let stuck = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b' '; 2 << 20])))]);
        let mut stuck = Upload::new(StreamBody::new(stuck.chain(stream::pending())));
        let mut stuck = std::pin::pin!(stuck.collect(&budget));
        assert!((&mut stuck).now_or_never().is_none());
        let large = || pieces(vec![vec![b' '; 2 << 20]]);
        assert_eq!(large().collect(&budget).await.err().map(|status| status.code), Some(429), "too soon");
        tokio::time::advance(crate::body_budget::RECEIVING_GRACE).await;
        assert!(large().collect(&budget).await.is_ok());
        assert_eq!(stuck.await.err().map(|status| status.code), Some(429));
        assert_eq!(budget.bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_wants_is_read_to_its_end_if_it_is_little_and_comes_soon() {
        let mut little = pieces(vec![vec![0; DRAIN_BYTES_MAX / 2]; 2]);
        little.drain(&HeaderMap::new()).await;
        assert!(little.ended);
        let mut much = pieces(vec![vec![0; DRAIN_BYTES_MAX / 2]; 4]);
        much.drain(&HeaderMap::new()).await;
        assert!(!much.ended);
        let mut asking = pieces(vec![vec![0]]);
        asking.drain(&HeaderMap::from_iter([(EXPECT, "100-continue".parse().unwrap())])).await;
        assert!(!asking.ended, "a client that waits for a word is told no, not yes");
        let begun = tokio::time::Instant::now();
        Upload::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>()))
            .drain(&HeaderMap::new())
            .await;
        assert_eq!(begun.elapsed(), DRAIN_TIMEOUT);
    }
}
