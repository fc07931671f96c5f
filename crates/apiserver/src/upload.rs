//! The body of a request: [`Upload`], read whole where something is written, and to its end where it
//! is not wanted.

use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::EXPECT;
use http_body_util::BodyExt as _;
use listwatch_meta::Status;

/// Bytes of a request body taken; more is a 413 (`MaxRequestBodyBytes`).
pub const REQUEST_BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Bytes of a refused request that are read and forgotten before the answer (Go's 256 KiB). A client
/// that has more to send sees its stream reset behind the answer.
const DRAIN_BYTES_MAX: usize = 256 * 1024;
/// How long they may take to come; the answer waits no longer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A request's body, and how far it was read.
pub(crate) struct Upload<B> {
    body: Pin<Box<B>>,
    ended: bool,
}

impl<B> Upload<B>
where
    B: http_body::Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) fn new(body: B) -> Self {
        let ended = body.is_end_stream();
        Upload { body: Box::pin(body), ended }
    }

    /// The whole body.
    ///
    /// # Errors
    /// 413 above [`REQUEST_BODY_BYTES_MAX`], 400 when it breaks off.
    pub(crate) async fn collect(&mut self) -> Result<Bytes, Status> {
        let too_large = || Status::request_entity_too_large(REQUEST_BODY_BYTES_MAX);
        if self.announced() > REQUEST_BODY_BYTES_MAX {
            return Err(too_large());
        }
        let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
        while let Some(mut data) = self.next().await? {
            let bytes = data.remaining();
            if first.len() + joined.len() + bytes > REQUEST_BODY_BYTES_MAX {
                return Err(too_large());
            }
            if first.is_empty() && joined.is_empty() {
                // Most bodies come in one piece and are not copied.
                first = data.copy_to_bytes(bytes);
                continue;
            }
            if joined.is_empty() {
                joined.reserve(self.announced().max(first.len() + bytes));
                joined.extend_from_slice(&std::mem::take(&mut first));
            }
            joined.extend_from_slice(&data.copy_to_bytes(bytes));
        }
        Ok(if joined.is_empty() { first } else { joined.freeze() })
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
        assert_eq!(pieces(vec![]).collect().await.unwrap(), "");
        assert_eq!(pieces(vec![b"one".to_vec()]).collect().await.unwrap(), "one");
        let many = [b"one".to_vec(), vec![], b"two".to_vec(), b"three".to_vec()];
        assert_eq!(pieces(many.to_vec()).collect().await.unwrap(), "onetwothree");
        let most = vec![vec![b'x'; REQUEST_BODY_BYTES_MAX / 2]; 2];
        assert_eq!(pieces(most.clone()).collect().await.unwrap().len(), REQUEST_BODY_BYTES_MAX);
        let more = pieces([most, vec![b"y".to_vec()]].concat()).collect().await;
        assert_eq!(more.unwrap_err().code, 413);
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
