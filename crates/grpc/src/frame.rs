//! Messages in frames: a byte for compression, four bytes for the length, and the message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::status::Status;

/// The bytes before a message.
const PREFIX_BYTES: usize = 5;

/// The largest message that is accepted, in bytes: a range of etcd has any number of objects, and its own client
/// has this limit (etcd, `client/v3/options.go`, `defaultMaxCallRecvMsgSize`).
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// The room that is reserved for a message before its bytes arrive.
const RESERVED_BYTES_MAX: usize = 1 << 20;

/// Encodes a message as a frame.
///
/// # Errors
/// The message is longer than the largest that a server of gRPC can accept.
pub(crate) fn encode(message: &impl Message) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    if length > MESSAGE_BYTES_MAX {
        return Err(Status::internal(format!("a request of {length} bytes cannot be sent")));
    }
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(length as u32);
    message.encode_raw(&mut frame);
    Ok(frame.freeze())
}

/// The messages in the bytes of a stream.
///
/// A message that lies in one chunk is decoded from it. The bytes of other messages are gathered first.
#[derive(Default)]
pub(crate) struct Frames {
    /// The unread bytes of the last chunk, if none are gathered.
    chunk: Bytes,
    /// The beginning of a message whose end has not arrived.
    gathered: BytesMut,
}

impl Frames {
    /// Adds bytes of the stream. All messages before them must have been read.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        if self.gathered.is_empty() && self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            if self.gathered.is_empty() {
                let first = std::mem::take(&mut self.chunk);
                let length = length(&first).ok().flatten().unwrap_or_default().min(RESERVED_BYTES_MAX);
                self.gathered.reserve((PREFIX_BYTES + length).max(first.len() + chunk.len()));
                self.gathered.extend_from_slice(&first);
            }
            self.gathered.extend_from_slice(&chunk);
        }
    }

    /// Whether no bytes of an incomplete message are left.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunk.is_empty() && self.gathered.is_empty()
    }

    /// Takes the next complete message.
    ///
    /// # Errors
    /// The message is compressed, too large, or not one of this type.
    pub(crate) fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Status> {
        if self.gathered.is_empty() {
            return take(&mut self.chunk);
        }
        let message = take(&mut self.gathered);
        if self.gathered.is_empty() {
            // An idle stream keeps no room for the largest message that it had.
            self.gathered = BytesMut::new();
        }
        message
    }
}

/// The length of the first message, if its prefix is complete.
fn length(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some((&[compressed, a, b, c, d], _)) = bytes.split_first_chunk() else { return Ok(None) };
    if compressed != 0 {
        return Err(Status::internal("the server compresses its messages, which it was not asked to do"));
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(Status::internal(format!("the server sends a message of {length} bytes")));
    }
    Ok(Some(length))
}

fn take<M: Message + Default>(bytes: &mut (impl Buf + AsRef<[u8]>)) -> Result<Option<M>, Status> {
    let Some(length) = length(bytes.as_ref())? else { return Ok(None) };
    let Some(message) = bytes.as_ref()[PREFIX_BYTES..].get(..length) else { return Ok(None) };
    let message = M::decode(message).map_err(|error| Status::internal(error.to_string()))?;
    bytes.advance(PREFIX_BYTES + length);
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::status::Code;

    #[derive(Clone, PartialEq, Message)]
    struct RangeRequest {
        #[prost(bytes = "vec", tag = "1")]
        key: Vec<u8>,
        #[prost(int64, tag = "3")]
        limit: i64,
    }

    fn request(key: Vec<u8>) -> RangeRequest {
        RangeRequest { key, limit: 7 }
    }

    proptest! {
        /// Promise: messages are read as they were written, however the stream is cut.
        #[test]
        fn messages_are_read_as_written_in_chunks_of_any_size(
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            cuts in prop::collection::vec(1_usize..60, 1..8),
        ) {
            let sent: Vec<RangeRequest> = keys.into_iter().map(request).collect();
            let mut stream = Bytes::from(sent.iter().flat_map(|one| encode(one).unwrap()).collect::<Vec<u8>>());
            let mut frames = Frames::default();
            let mut received = Vec::new();
            let mut cuts = cuts.iter().cycle();
            while !stream.is_empty() {
                let cut = (*cuts.next().unwrap()).min(stream.len());
                frames.push(stream.split_to(cut));
                while let Some(message) = frames.next::<RangeRequest>().unwrap() {
                    received.push(message);
                }
            }
            prop_assert_eq!(sent, received);
            prop_assert!(frames.is_empty());
            prop_assert_eq!(frames.gathered.capacity(), 0);
        }
    }

    #[test]
    fn damaged_frame_is_an_error() {
        for (bytes, expected) in [
            (&[1, 0, 0, 0, 0][..], "compresses"),
            (&[0, 0x80, 0, 0, 0], "a message of 2147483648 bytes"),
            (&[0, 0, 0, 0, 1, 0xff], "invalid"),
        ] {
            let mut frames = Frames::default();
            frames.push(Bytes::copy_from_slice(bytes));
            let error = frames.next::<RangeRequest>().unwrap_err();
            assert_eq!(error.code, Code::Internal);
            assert!(error.message.contains(expected), "{error} without {expected:?}");
        }
    }

    #[test]
    fn announced_length_reserves_a_bounded_amount_of_memory() {
        let mut frames = Frames::default();
        frames.push(Bytes::from_static(&[0, 0x7f, 0xff, 0xff, 0xff]));
        assert_eq!(frames.next::<RangeRequest>().unwrap(), None);
        frames.push(Bytes::from_static(&[0]));
        assert!(frames.gathered.capacity() < 2 * RESERVED_BYTES_MAX);
    }
}
