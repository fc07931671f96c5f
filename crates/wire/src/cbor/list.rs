//! List bodies from objects in JSON.
//!
//! ```text
//!   d9d9f7 a4 │ kind │ items: len, item item item … │ metadata │ apiVersion
//! ```

use bytes::Bytes;
use listwatch_meta::Object;

use super::encode::{EncodeError, push_json, push_string, push_without};
use super::{ARRAY, MAP, SELF_DESCRIBED, push_head};
use crate::list::{CHUNK_BYTES, ListMeta, ListStyle};

/// A list body in chunks: an iterator of bytes over an iterator of objects.
///
/// Each object is encoded when its chunk is requested, so the work stops when a client stops
/// reading. The body holds at most a chunk of [`CHUNK_BYTES`] and one object. A list contains its number
/// of items before the first one, so `items` is cloned and iterated once to count them.
#[derive(Debug)]
pub struct ListBody<I> {
    items: I,
    count: usize,
    done: usize,
    head: Option<Vec<u8>>,
    tail: Option<Vec<u8>>,
    without: &'static [&'static [u8]],
    chunk_bytes: usize,
}

impl<I: Iterator<Item = Object> + Clone> ListBody<I> {
    /// Creates the body of a list with these items. In a typed list, items have no type.
    pub fn new(meta: &ListMeta, style: ListStyle, items: I) -> Self {
        ListBody::with_chunk_bytes(meta, style, items, CHUNK_BYTES)
    }

    /// As [`ListBody::new`], with chunks of another size.
    pub fn with_chunk_bytes(meta: &ListMeta, style: ListStyle, items: I, chunk_bytes: usize) -> Self {
        let count = items.clone().count();
        let mut head = SELF_DESCRIBED.to_vec();
        push_head(&mut head, MAP, 4);
        for text in ["kind", &*meta.kind, "items"] {
            push_string(&mut head, text.as_bytes());
        }
        push_head(&mut head, ARRAY, count as u64);
        let mut tail = Vec::new();
        push_string(&mut tail, b"metadata");
        push_json(&mut tail, meta.metadata_json(style).as_bytes()).expect("the metadata is JSON");
        for text in ["apiVersion", &*meta.api_version] {
            push_string(&mut tail, text.as_bytes());
        }
        let without: &[&[u8]] = match style {
            ListStyle::Typed => &[b"kind", b"apiVersion"],
            ListStyle::Unstructured => &[],
        };
        ListBody { items, count, done: 0, head: Some(head), tail: Some(tail), without, chunk_bytes }
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, EncodeError> {
        if self.tail.is_none() {
            return Ok(None);
        }
        let mut chunk = Vec::with_capacity(self.chunk_bytes);
        chunk.append(&mut self.head.take().unwrap_or_default());
        while chunk.len() < self.chunk_bytes {
            let Some(object) = self.items.next() else {
                chunk.append(&mut self.tail.take().unwrap_or_default());
                if self.done < self.count {
                    return Err(EncodeError::ListChanged);
                }
                break;
            };
            if self.done == self.count {
                return Err(EncodeError::ListChanged);
            }
            push_without(&mut chunk, object.json_slice(), self.without)
                .map_err(|why| EncodeError::ListItem { index: self.done, why: Box::new(why) })?;
            self.done += 1;
        }
        Ok(Some(chunk.into()))
    }
}

impl<I: Iterator<Item = Object> + Clone> Iterator for ListBody<I> {
    type Item = Result<Bytes, EncodeError>;

    /// The next chunk; never empty. No chunk follows an error.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_chunk();
        if next.is_err() {
            self.tail = None;
        }
        next.transpose()
    }
}
