//! Bodies of requests and responses: [`RequestBody`] and [`ResponseBody`].

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

/// A boxed error of a body or a service.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The body of a request, complete before the request is sent. The default is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestBody {
    bytes: Bytes,
}

impl RequestBody {
    /// A body without content.
    pub fn empty() -> Self {
        RequestBody::default()
    }
}

impl<B: Into<Bytes>> From<B> for RequestBody {
    fn from(bytes: B) -> Self {
        RequestBody { bytes: bytes.into() }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = std::mem::take(&mut self.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// The body of a response, in chunks as they arrive. Dropping the body cancels the request.
pub struct ResponseBody {
    body: UnsyncBoxBody<Bytes, BoxError>,
}

impl ResponseBody {
    /// Wraps a body of any type.
    pub fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        ResponseBody { body: body.map_err(Into::into).boxed_unsync() }
    }

    /// The next bytes; `None` at the end of the body. Cancel-safe.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            match poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await? {
                Ok(frame) => match frame.into_data() {
                    Ok(bytes) => return Some(Ok(bytes)),
                    // Trailers are ignored; Kubernetes sends none.
                    Err(_) => continue,
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseBody")
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn request_body_ends_after_its_bytes() {
        assert!(RequestBody::empty().is_end_stream());
        assert!(!RequestBody::from("abc").is_end_stream(), "the bytes would not be sent");
        assert!(ResponseBody::new(RequestBody::empty()).is_end_stream());
        let mut body = ResponseBody::new(RequestBody::from("abc"));
        assert!(!body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(3));
        assert_eq!(body.chunk().await.unwrap().unwrap(), "abc");
        assert!(body.chunk().await.is_none());
    }
}
