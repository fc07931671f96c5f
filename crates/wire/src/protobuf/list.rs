//! List bodies from encoded items: `ListMeta`, then each item's message without its envelope.
//!
//! ```text
//!   k8s\0 Unknown{ TypeMeta, raw: │ ListMeta │ 2 len item │ 2 len item │ … │ }
//!   └────────────── list_head ───────────────┘ └ push_item ┘               └ LIST_TAIL
//! ```
//!
//! The head contains the length of the whole list. [`ListBody`] writes a list from the JSON of its
//! objects without holding all of it; [`encode_list`] writes one from existing envelopes.

use std::fmt;

use bytes::Bytes;
use listwatch_meta::Object;

use super::EncodeError;
use super::encodable;
use super::encode::{Encoder, push_varint, varint_bytes};
use super::envelope::{Envelope, TAIL, field_bytes, head, push_head};
use crate::list::{CHUNK_BYTES, ListMeta};
use listwatch_k8s_types::{Id, Shape, Type};

/// The bytes after the last item of a list.
pub const LIST_TAIL: &[u8] = TAIL;

/// The bytes of an item of `raw_bytes` in a list, with its tag and length.
pub(crate) const fn item_bytes(raw_bytes: usize) -> usize {
    field_bytes(raw_bytes)
}

/// The bytes before the first item of a list whose items have `items_bytes` in total, each counted
/// with [`item_bytes`].
///
/// # Errors
/// [`EncodeError::UnknownKind`] for a list without protobuf.
pub fn list_head(meta: &ListMeta, items_bytes: usize) -> Result<Vec<u8>, EncodeError> {
    encodable(&meta.api_version, &meta.kind)?;
    let (version, token) = (&meta.resource_version, &meta.continue_token);
    // A negative count takes ten bytes, as every 64-bit varint.
    let remaining = meta.remaining_item_count.map(|count| count as u64);
    let shard = Some(&meta.shard_selector).filter(|selector| !selector.is_empty());
    let meta_bytes = field_bytes(0)
        + field_bytes(version.len())
        + field_bytes(token.len())
        + remaining.map_or(0, |count| 1 + varint_bytes(count))
        + shard.map_or(0, |selector| field_bytes(field_bytes(selector.len())));
    let mut out = head(&meta.api_version, &meta.kind, field_bytes(meta_bytes) + items_bytes);
    push_head(&mut out, 1, meta_bytes);
    // `selfLink` was removed, but Go still writes it.
    push_head(&mut out, 1, 0);
    for (number, text) in [(2, version), (3, token)] {
        push_head(&mut out, number, text.len());
        out.extend_from_slice(text.as_bytes());
    }
    if let Some(count) = remaining {
        out.push(4 << 3);
        push_varint(&mut out, count);
    }
    if let Some(selector) = shard {
        push_head(&mut out, 5, field_bytes(selector.len()));
        push_head(&mut out, 1, selector.len());
        out.extend_from_slice(selector.as_bytes());
    }
    Ok(out)
}

/// Writes the bytes before an item of `raw_bytes`.
pub(crate) fn push_item_head(out: &mut Vec<u8>, raw_bytes: usize) {
    push_head(out, 2, raw_bytes);
}

/// Writes an item: its message as returned by [`Envelope::raw`].
pub fn push_item(out: &mut Vec<u8>, raw: &[u8]) {
    push_item_head(out, raw.len());
    out.extend_from_slice(raw);
}

/// Encodes a list of objects in envelopes; every object is copied once.
///
/// # Errors
/// [`EncodeError::UnknownKind`] for a list without protobuf, [`EncodeError::Item`] for an item that
/// is not an envelope.
pub fn encode_list<I: AsRef<[u8]>>(meta: &ListMeta, envelopes: &[I]) -> Result<Vec<u8>, EncodeError> {
    let mut raws = Vec::with_capacity(envelopes.len());
    for (index, envelope) in envelopes.iter().enumerate() {
        let body = envelope.as_ref();
        let opened = Envelope::parse(body).map_err(|why| EncodeError::Item { index, why })?;
        raws.push(opened.raw(body));
    }
    let mut out = list_head(meta, raws.iter().map(|raw| item_bytes(raw.len())).sum())?;
    for raw in raws {
        push_item(&mut out, raw);
    }
    out.extend_from_slice(LIST_TAIL);
    Ok(out)
}

/// Bytes of encoded items that a [`ListBody`] keeps between measuring and sending. A list up to
/// this size is encoded once. Further items of a longer list are encoded twice, because the length
/// must be known before the first byte is sent.
pub const LIST_KEPT_BYTES: usize = 256 << 10;

/// The number of JSON bytes that [`ListBody::measure`] reads in one call: a few milliseconds of work.
pub const MEASURE_STEP_BYTES: usize = 1 << 20;

/// The number of bytes of [`MEASURE_STEP_BYTES`] that an item from a cache uses up.
const KEPT_ITEM_STEP_BYTES: usize = 64;

/// The body of a list in chunks, from the JSON of its objects.
///
/// A protobuf list contains its length before its first item. So all items are first encoded to measure them
/// ([`ListBody::measure`]), and an object of another kind is detected before anything is sent. Memory is bounded by
/// [`LIST_KEPT_BYTES`], a chunk of [`CHUNK_BYTES`] and the largest object, for any length of the list.
///
/// `items` is cloned and iterated twice; both iterations must return the same objects.
///
/// # Example
/// ```
/// use listwatch_meta::{Change, Key, Object, ObjectShape, Revision};
/// use listwatch_wire::ListMeta;
/// use listwatch_wire::protobuf::{self, ListBody};
///
/// let key = Key::new("configmaps", Some("default"), "web")?;
/// let json = br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"web"}}"#;
/// let object = Object::from_stored(key, Revision::new(7), Change::Added, json, &ObjectShape::new(true, vec![]))?;
///
/// let meta = ListMeta { api_version: "v1".into(), kind: "ConfigMapList".into(), ..ListMeta::default() };
/// let mut body = ListBody::new(&meta, vec![object].into_iter())?;
/// while !body.measure()? {} // A server lets others run between two steps.
/// let length = body.body_bytes();
/// let bytes = body.collect::<Result<Vec<_>, _>>()?.concat();
/// assert_eq!(Some(bytes.len()), length);
/// assert_eq!(protobuf::decode(&bytes)?.kind, "ConfigMapList");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ListBody<I> {
    meta: ListMeta,
    state: State<I>,
    items: ItemEncoder,
    chunk_bytes: usize,
    kept_bytes: usize,
    /// Encoded items for the body; all measured ones, while they fit.
    kept: Vec<u8>,
}

/// Keeps the messages of objects from one list to the next. All lists with one cache have items of one kind, version
/// and view.
pub trait ItemCache: Send {
    /// Passes the kept message of an object to `take`. Returns false if there is none.
    fn read(&self, object: &Object, take: &mut dyn FnMut(&[u8])) -> bool;

    /// Keeps the message of an object, if there is room.
    fn keep(&self, object: &Object, message: &[u8]);
}

/// Encodes items, or reads them from a cache.
struct ItemEncoder {
    item: Id,
    encoder: Encoder,
    cache: Option<Box<dyn ItemCache>>,
}

impl ItemEncoder {
    /// Passes the message of an object to `take`, and returns the JSON bytes that were read for it.
    fn encode(&mut self, object: &Object, mut take: impl FnMut(&[u8])) -> Result<usize, EncodeError> {
        if self.cache.as_ref().is_some_and(|cache| cache.read(object, &mut take)) {
            return Ok(KEPT_ITEM_STEP_BYTES);
        }
        let json = object.json_slice();
        let raw = self.encoder.object(self.item, json)?;
        if let Some(cache) = &self.cache {
            cache.keep(object, raw);
        }
        take(raw);
        Ok(json.len())
    }
}

#[derive(Debug)]
enum State<I> {
    /// Encodes each item once, to measure the list. `walk` has the items that are not measured yet.
    /// `unkept` begins with the first item that is not kept.
    Measuring {
        unkept: I,
        walk: I,
        index: usize,
        items_bytes: usize,
        /// An item did not fit, so no later one is kept either.
        full: bool,
    },
    Sending {
        /// The next chunk: the head and the kept items.
        next: Bytes,
        walk: I,
        /// Bytes of the remaining items.
        rest_bytes: usize,
    },
    Done,
}

impl<I: fmt::Debug> fmt::Debug for ListBody<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListBody").field("meta", &self.meta).field("state", &self.state).finish_non_exhaustive()
    }
}

impl<I: Iterator<Item = Object> + Clone> ListBody<I> {
    /// Creates the body of a list with these items. The list's kind determines the items: a
    /// `PartialObjectMetadataList` (of `meta.k8s.io/v1`) is written from whole objects of any kind.
    ///
    /// # Errors
    /// [`EncodeError::UnknownKind`] for a list without protobuf.
    pub fn new(meta: &ListMeta, items: I) -> Result<Self, EncodeError> {
        ListBody::with_limits(meta, items, CHUNK_BYTES, LIST_KEPT_BYTES)
    }

    /// As [`ListBody::new`], with chunks of `chunk_bytes` and `kept_bytes` instead of
    /// [`LIST_KEPT_BYTES`].
    ///
    /// # Errors
    /// As [`ListBody::new`].
    pub fn with_limits(meta: &ListMeta, items: I, chunk_bytes: usize, kept_bytes: usize) -> Result<Self, EncodeError> {
        let item = item_of(encodable(&meta.api_version, &meta.kind)?).ok_or_else(|| EncodeError::UnknownKind {
            api_version: meta.api_version.clone(),
            kind: meta.kind.clone(),
        })?;
        let state = State::Measuring { unkept: items.clone(), walk: items, index: 0, items_bytes: 0, full: false };
        let items = ItemEncoder { item, encoder: Encoder::default(), cache: None };
        let kept = Vec::new();
        Ok(ListBody { meta: meta.clone(), state, items, chunk_bytes: chunk_bytes.max(1), kept_bytes, kept })
    }

    /// Keeps the encoded items in `cache`, and takes those that it has.
    #[must_use]
    pub fn with_cache(mut self, cache: impl ItemCache + 'static) -> Self {
        self.items.cache = Some(Box::new(cache));
        self
    }

    /// Measures about [`MEASURE_STEP_BYTES`] of JSON; `true` when the list's length is known and
    /// chunks can be taken. Taking a chunk earlier measures all remaining items at once.
    ///
    /// # Errors
    /// [`EncodeError::ListItem`] for an object of another kind. Nothing was sent yet, so a server
    /// returns 500.
    pub fn measure(&mut self) -> Result<bool, EncodeError> {
        let State::Measuring { unkept, walk, index, items_bytes, full } = &mut self.state else { return Ok(true) };
        let mut read = 0;
        while read < MEASURE_STEP_BYTES {
            let Some(object) = walk.next() else {
                let head = list_head(&self.meta, *items_bytes)?;
                let rest_bytes = *items_bytes - self.kept.len();
                let mut next = Vec::with_capacity(head.len() + self.kept.len() + LIST_TAIL.len());
                next.extend_from_slice(&head);
                next.append(&mut self.kept);
                self.kept = Vec::new();
                self.state = State::Sending { next: next.into(), walk: unkept.clone(), rest_bytes };
                return Ok(true);
            };
            let (kept, kept_bytes) = (&mut self.kept, self.kept_bytes);
            read += self
                .items
                .encode(&object, |raw| {
                    let bytes = item_bytes(raw.len());
                    *items_bytes += bytes;
                    *full |= kept.len() + bytes > kept_bytes;
                    if !*full {
                        push_item(kept, raw);
                    }
                })
                .map_err(|why| EncodeError::ListItem { index: *index, why: Box::new(why) })?;
            *index += 1;
            if !*full {
                unkept.next();
            }
        }
        Ok(false)
    }

    /// The length of the whole body, after measuring and until the first chunk is taken.
    pub fn body_bytes(&self) -> Option<usize> {
        match &self.state {
            State::Sending { next, rest_bytes, .. } => Some(next.len() + rest_bytes + LIST_TAIL.len()),
            State::Measuring { .. } | State::Done => None,
        }
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, EncodeError> {
        while !self.measure()? {}
        let State::Sending { next, walk, rest_bytes } = &mut self.state else { return Ok(None) };
        if next.len() > self.chunk_bytes {
            return Ok(Some(next.split_to(self.chunk_bytes)));
        }
        let mut chunk = Vec::with_capacity(self.chunk_bytes.max(next.len() + LIST_TAIL.len()));
        chunk.extend_from_slice(&std::mem::take(next));
        while *rest_bytes > 0 {
            let Some(object) = walk.next() else { return Err(EncodeError::ListChanged) };
            let before = chunk.len();
            let encoded = self.items.encode(&object, |raw| {
                // A longer item than measured is not sent.
                if item_bytes(raw.len()) <= *rest_bytes {
                    push_item(&mut chunk, raw);
                }
            });
            if encoded.is_err() || chunk.len() == before {
                return Err(EncodeError::ListChanged);
            }
            *rest_bytes -= chunk.len() - before;
            if chunk.len() >= self.chunk_bytes {
                let mut chunk = Bytes::from(chunk);
                *next = chunk.split_off(self.chunk_bytes);
                return Ok(Some(chunk));
            }
        }
        chunk.extend_from_slice(LIST_TAIL);
        self.state = State::Done;
        Ok(Some(chunk.into()))
    }
}

/// The message of a list's items.
fn item_of(list: Id) -> Option<Id> {
    let field = list.message().fields().iter().find(|field| field.name() == "items")?;
    match (field.shape(), field.of()) {
        (Shape::Repeated, Type::Message(item)) => Some(item),
        _ => None,
    }
}

impl<I: Iterator<Item = Object> + Clone> Iterator for ListBody<I> {
    type Item = Result<Bytes, EncodeError>;

    /// The next chunk; never empty. No chunk follows an error.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_chunk();
        if next.is_err() {
            self.state = State::Done;
        }
        next.transpose()
    }
}
