//! Decompresses response bodies: [`decompressed`].
//!
//! Compression reduces lists of objects to about a tenth of their size. Compression pays on slow or
//! metered connections. Close to the server, compression costs both sides more than it saves, so
//! each request decides. Compressed responses are always accepted.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use flate2::write::MultiGzDecoder;
use http::Response;
use http::header::CONTENT_ENCODING;
use http_body::{Body, Frame};

use super::{BoxError, ResponseBody};

/// The number of input bytes per decompression step. The output is at most a thousand times as
/// large, which bounds memory for any body.
const STEP_BYTES: usize = 2 * 1024;

/// Decompresses the body of a response with `Content-Encoding: gzip`. Other responses are
/// unchanged.
pub(crate) fn decompressed(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let coded = response.headers().get(CONTENT_ENCODING);
    if !coded.is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"gzip")) {
        return response;
    }
    response.headers_mut().remove(CONTENT_ENCODING);
    response.map(|body| {
        ResponseBody::new(Gunzip { body, input: Bytes::new(), decoder: MultiGzDecoder::new(Vec::new()), over: false })
    })
}

struct Gunzip {
    body: ResponseBody,
    /// The received bytes that are not decompressed yet.
    input: Bytes,
    decoder: MultiGzDecoder<Vec<u8>>,
    over: bool,
}

impl Body for Gunzip {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            if this.over {
                return Poll::Ready(None);
            }
            let done = if this.input.is_empty() {
                match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data() {
                            this.input = data;
                        }
                        continue;
                    }
                    Some(Err(error)) => Err(error),
                    // The end of the stream is an error if the last member is incomplete.
                    None => {
                        this.over = true;
                        this.decoder.try_finish().map_err(BoxError::from)
                    }
                }
            } else {
                let step = this.input.len().min(STEP_BYTES);
                match this.decoder.write(&this.input[..step]) {
                    Ok(0) => Err(BoxError::from("there are bytes after the compressed body")),
                    Ok(taken) => {
                        this.input.advance(taken);
                        Ok(())
                    }
                    Err(error) => Err(error.into()),
                }
            };
            // Flushes the decoder, so that an event of a watch does not wait for later input.
            let done =
                done.and_then(|()| if this.over { Ok(()) } else { this.decoder.flush().map_err(BoxError::from) });
            if let Err(error) = done {
                this.over = true;
                return Poll::Ready(Some(Err(error)));
            }
            let out = std::mem::take(this.decoder.get_mut());
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    async fn unpack(coding: &str, chunks: Vec<Vec<u8>>) -> Result<Vec<u8>, String> {
        let frames = chunks.into_iter().map(|chunk| Ok::<_, BoxError>(Frame::data(Bytes::from(chunk))));
        let body = ResponseBody::new(StreamBody::new(futures_util::stream::iter(frames)));
        let response = Response::builder().header(CONTENT_ENCODING, coding).body(body).unwrap();
        let body = decompressed(response).into_body();
        body.collect().await.map(|body| body.to_bytes().to_vec()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn compressed_body_is_decoded_for_any_chunking() {
        let text: Vec<u8> = (0..200_000_u32).flat_map(|n| (n % 977).to_string().into_bytes()).collect();
        let packed = packed(&text);
        for size in [1, 7, 1_000, packed.len()] {
            let chunks = packed.chunks(size).map(<[u8]>::to_vec).collect();
            assert_eq!(unpack("gzip", chunks).await.as_deref(), Ok(&text[..]), "chunks of {size}");
        }
        assert_eq!(unpack("identity", vec![b"plain".to_vec()]).await.as_deref(), Ok(&b"plain"[..]));
    }

    #[tokio::test]
    async fn several_gzip_members_form_one_body() {
        let chunks = vec![[packed(b"one "), packed(b"two")].concat()];
        assert_eq!(unpack("GZIP", chunks).await.as_deref(), Ok(&b"one two"[..]));
    }

    #[tokio::test]
    async fn truncated_or_invalid_gzip_is_an_error() {
        let whole = packed(&[b'x'; 100_000]);
        assert!(
            unpack("gzip", vec![whole[..whole.len() - 9].to_vec()]).await.is_err(),
            "a cut body was taken for whole"
        );
        assert!(unpack("gzip", vec![b"no gzip at all".to_vec()]).await.is_err());
    }

    #[tokio::test]
    async fn flushed_data_is_decoded_immediately() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(b"event\n").unwrap();
        encoder.flush().unwrap();
        let sent = encoder.get_ref().clone();
        let first = futures_util::stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from(sent)))]);
        let body = futures_util::StreamExt::chain(first, futures_util::stream::pending());
        let body = ResponseBody::new(StreamBody::new(body));
        let response = Response::builder().header(CONTENT_ENCODING, "gzip").body(body).unwrap();
        let mut body = decompressed(response).into_body();
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "event\n");
    }
}
