//! Defines [`ProxyBody`] of responses and the boxed body of requests.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

/// An error of any type.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// The body of a request on its way to a backend.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// Holds the text of the error that interrupted the body of a request.
pub(crate) type BodyFailure = Arc<Mutex<Option<String>>>;

/// Boxes the body of a request. `failure` records an error of the body, to distinguish faults of the client from those
/// of the backend.
pub(crate) fn request_body<B>(body: B, failure: BodyFailure) -> RequestBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let note = move |error: B::Error| {
        let error: BoxError = error.into();
        *failure.lock() = Some(error.to_string());
        error
    };
    body.map_err(note).boxed_unsync()
}

/// The body of a response, streamed as frames arrive. Dropping the body ends the exchange with the backend.
pub struct ProxyBody {
    source: Source,
}

enum Source {
    Bytes(Bytes),
    /// Frames and trailers of the backend, streamed until the deadline.
    Backend {
        body: Incoming,
        bytes_left: Option<usize>,
        deadline: Option<Pin<Box<Sleep>>>,
    },
}

/// The body ended early, because of the backend or a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body of the backend was interrupted: {0}")]
pub struct IncompleteBody(String);

impl ProxyBody {
    pub(crate) fn backend(body: Incoming, cut_at: Option<Instant>) -> Self {
        let deadline = cut_at.map(|at| Box::pin(tokio::time::sleep_until(at)));
        ProxyBody { source: Source::Backend { body, bytes_left: None, deadline } }
    }

    /// The body of a backend's response that rejects an upgrade, bounded in bytes and time.
    pub(crate) fn bounded(body: Incoming, bytes_max: usize, timeout: Duration) -> Self {
        let deadline = Some(Box::pin(tokio::time::sleep(timeout)));
        ProxyBody { source: Source::Backend { body, bytes_left: Some(bytes_max), deadline } }
    }
}

/// Converts bytes to a body, for responses without a backend.
impl From<Bytes> for ProxyBody {
    fn from(bytes: Bytes) -> Self {
        ProxyBody { source: Source::Bytes(bytes) }
    }
}

impl fmt::Debug for ProxyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProxyBody")
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = IncompleteBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        match &mut self.source {
            Source::Bytes(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Source::Backend { body, bytes_left, deadline } => {
                // The deadline comes first: it also ends a body that always has a next frame.
                if let Some(deadline) = deadline
                    && deadline.as_mut().poll(cx).is_ready()
                {
                    return Poll::Ready(Some(Err(IncompleteBody("it exceeded its time limit".to_owned()))));
                }
                let frame = ready!(Pin::new(body).poll_frame(cx));
                if let (Some(left), Some(Ok(frame))) = (bytes_left, &frame) {
                    match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                        Some(remaining) => *left = remaining,
                        None => return Poll::Ready(Some(Err(IncompleteBody("it is too large".to_owned())))),
                    }
                }
                Poll::Ready(frame.map(|frame| frame.map_err(|error| IncompleteBody(error.to_string()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Bytes(bytes) => bytes.is_empty(),
            Source::Backend { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Backend { body, .. } => body.size_hint(),
        }
    }
}
