//! [`Upload`]: the body of a request. A write reads the whole body; other requests drain the body.
//!
//! A body is read before its request takes a slot, so that a slow client cannot delay other requests.
//! [`crate::request::body_budget`] limits the memory of bodies. A body must arrive at a minimum rate.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::HeaderMap;
use http::header::EXPECT;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use listwatch_meta::{Status, status};
use tokio::time::Instant;

use crate::request::body_budget::{BodyBudget, BodyCharge, ConnectionBodies, Exhausted};

/// The largest request body, in bytes (`MaxRequestBodyBytes`). A larger body is rejected with 413.
pub const REQUEST_BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// The time window in which at least [`RATE_BYTES_MIN`] bytes of an incomplete body must arrive. A slower body is
/// rejected with 408.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Minimum number of bytes that must arrive in each [`RATE_WINDOW`]: 1 KiB per second. The largest body would take 50
/// minutes at this rate, so the request deadline is reached first.
const RATE_BYTES_MIN: usize = 10 * 1024;
/// Maximum number of bytes of a rejected request that are read and discarded before the response (256 KiB, as in Go).
/// If a client sends more, the stream is reset after the response.
const DRAIN_BYTES_MAX: usize = 256 * 1024;
/// The largest buffer that is reserved for a body before its bytes arrive, in bytes.
const RESERVED_BYTES_MAX: usize = 64 * 1024;
/// The time limit for draining a rejected request. After that time the response is sent.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A request body of any HTTP implementation.
pub(crate) trait RequestBody:
    http_body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

impl<B> RequestBody for B where
    B: http_body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

/// The body of a request while it is read.
pub(crate) struct Upload<B> {
    /// The body; `None` after it was moved to a forwarded request.
    body: Option<Pin<Box<B>>>,
    ended: bool,
    connection: Option<ConnectionBodies>,
}

/// A complete body. The memory is charged until the value is dropped.
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    _charge: BodyCharge,
}

impl<B: RequestBody> Upload<B> {
    pub(crate) fn new(body: B) -> Self {
        let ended = body.is_end_stream();
        Upload { body: Some(Box::pin(body)), ended, connection: None }
    }

    /// Sets the connection of the body. Each connection has its own limit.
    pub(crate) fn with_connection(mut self, connection: Option<ConnectionBodies>) -> Self {
        self.connection = connection;
        self
    }

    /// Whether the client has sent the whole body.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended || self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// 413 above [`REQUEST_BODY_BYTES_MAX`]; 400 if the body ends early; 408 if the body arrives too slowly; 429 if the
    /// memory is used up.
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
            charge.add(bytes, Instant::now).map_err(out_of_memory)?;
            if let Some(rate) = &mut rate {
                rate.bytes += bytes;
            }
            if first.is_empty() && joined.is_empty() {
                // Most bodies arrive in one piece, which is not copied.
                first = data.copy_to_bytes(bytes);
                continue;
            }
            if joined.is_empty() {
                // Announced bytes may never arrive, so the buffer grows with the received bytes.
                joined.reserve(self.announced().min(RESERVED_BYTES_MAX).max(first.len() + bytes));
                joined.extend_from_slice(&std::mem::take(&mut first));
            }
            joined.extend_from_slice(&data.copy_to_bytes(bytes));
        }
        charge.complete().map_err(out_of_memory)?;
        let bytes = if joined.is_empty() { first } else { joined.freeze() };
        Ok(Received { bytes, _charge: charge })
    }

    /// Returns the next piece, or an error if the body is too slow or its memory is reclaimed.
    async fn next_in_time(
        &mut self,
        charge: &mut BodyCharge,
        rate: &mut Option<Rate>,
    ) -> Result<Option<B::Data>, Status> {
        // Most bodies have arrived before they are read.
        if let Some(ready) = self.next().now_or_never() {
            return ready;
        }
        charge.wait(Instant::now());
        // The rate is measured from the first wait.
        let rate = rate.get_or_insert_with(|| Rate::new(Instant::now()));
        loop {
            tokio::select! {
                biased;
                next = self.next() => return next,
                () = charge.reclaimed() => return Err(out_of_memory(Exhausted)),
                () = tokio::time::sleep_until(rate.window_end) => {
                    if !rate.next_window() {
                        let message = "the request body arrives too slowly";
                        return Err(Status::failure(408, status::reason::TIMEOUT, message));
                    }
                }
            }
        }
    }

    /// Takes the body, to stream it to another server. Size and duration are not limited.
    pub(crate) fn pass_on(&mut self) -> ForwardedBody<B> {
        let body = self.body.take().filter(|_| !self.ended);
        self.ended = true;
        ForwardedBody(body)
    }

    /// Reads and discards the rest of the body if it is short and arrives soon. A client that waits for `100 Continue`
    /// receives the final response instead.
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

    /// Returns the minimum number of bytes that the client will send, according to the size hint of the body.
    fn announced(&self) -> usize {
        match &self.body {
            Some(body) if !self.ended => usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX),
            _ => 0,
        }
    }

    async fn next(&mut self) -> Result<Option<B::Data>, Status> {
        while let Some(body) = self.body.as_mut().filter(|_| !self.ended) {
            match body.frame().await {
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

/// A body that is forwarded to another server as it arrives.
pub(crate) struct ForwardedBody<B>(Option<Pin<Box<B>>>);

impl<B: RequestBody> http_body::Body for ForwardedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let frame = std::task::ready!(body.as_mut().poll_frame(cx));
        let whole = |mut data: B::Data| data.copy_to_bytes(data.remaining());
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(whole))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), |body| body.size_hint())
    }
}

/// The rate at which a body arrives.
struct Rate {
    window_end: Instant,
    /// The number of bytes received in this window.
    bytes: usize,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Rate { window_end: now + RATE_WINDOW, bytes: 0 }
    }

    /// Starts the next window. Returns whether the last window received enough bytes.
    fn next_window(&mut self) -> bool {
        self.window_end += RATE_WINDOW;
        std::mem::take(&mut self.bytes) >= RATE_BYTES_MIN
    }
}

fn out_of_memory(_: Exhausted) -> Status {
    Status::too_many_requests("too many request bodies are being received, please try again later", 1)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;

    use super::*;

    fn pieces(pieces: Vec<Vec<u8>>) -> Upload<impl http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static> {
        Upload::new(StreamBody::new(stream::iter(pieces).map(|piece| Ok(Frame::data(Bytes::from(piece))))))
    }

    #[tokio::test(start_paused = true)]
    async fn request_body_pieces_are_joined_up_to_the_size_limit() {
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

    /// Receives a body of `bytes` bytes per second, for `seconds` seconds.
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
    async fn request_body_below_the_minimum_rate_is_rejected_with_408() {
        assert_eq!(trickle(1, 100).await, (Err(408), RATE_WINDOW));
        assert_eq!(trickle(1_000, 100).await, (Err(408), RATE_WINDOW));
        assert_eq!(trickle(2_000, 100).await, (Ok(200_000), Duration::from_secs(100)));
        assert_eq!(trickle(1, 9).await, (Ok(9), Duration::from_secs(9)), "a small body may take a window");
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_body_is_rejected_when_other_bodies_need_its_memory() {
        let budget = BodyBudget::new(REQUEST_BODY_BYTES_MAX);
        let stuck = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b' '; 2 << 20])))]);
        let mut stuck = Upload::new(StreamBody::new(stuck.chain(stream::pending())));
        let mut stuck = std::pin::pin!(stuck.collect(&budget));
        assert!((&mut stuck).now_or_never().is_none());
        let large = || pieces(vec![vec![b' '; 2 << 20]]);
        assert_eq!(large().collect(&budget).await.err().map(|status| status.code), Some(429), "too soon");
        tokio::time::advance(crate::request::body_budget::RECEIVING_GRACE).await;
        assert!(large().collect(&budget).await.is_ok());
        assert_eq!(stuck.await.err().map(|status| status.code), Some(429));
        assert_eq!(budget.bytes(), 0);
    }

    #[tokio::test]
    async fn forwarded_body_contains_all_pieces_and_a_second_forward_is_empty() {
        let mut upload = pieces(vec![b"one".to_vec(), b"two".to_vec()]);
        assert!(!upload.is_ended());
        let passed_on = upload.pass_on();
        assert!(upload.is_ended());
        assert_eq!(passed_on.collect().await.unwrap().to_bytes(), "onetwo");
        assert!(http_body::Body::is_end_stream(&upload.pass_on()), "a second body is empty");
    }

    #[tokio::test(start_paused = true)]
    async fn short_unread_request_body_is_drained() {
        let mut little = pieces(vec![vec![0; DRAIN_BYTES_MAX / 2]; 2]);
        little.drain(&HeaderMap::new()).await;
        assert!(little.ended);
        let mut much = pieces(vec![vec![0; DRAIN_BYTES_MAX / 2]; 4]);
        much.drain(&HeaderMap::new()).await;
        assert!(!much.ended);
        let mut asking = pieces(vec![vec![0]]);
        asking.drain(&HeaderMap::from_iter([(EXPECT, "100-continue".parse().unwrap())])).await;
        assert!(!asking.ended, "a client that expects 100-continue receives no 100");
        let begun = tokio::time::Instant::now();
        Upload::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>()))
            .drain(&HeaderMap::new())
            .await;
        assert_eq!(begun.elapsed(), DRAIN_TIMEOUT);
    }
}
