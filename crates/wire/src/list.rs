//! List bodies: written around encoded items, and read without parsing the items.
//!
//! ```text
//!  built-in   {"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[ i , i , i ]}\n
//!  custom     {"apiVersion":"…","items":[ i , i , i ],"kind":"…List","metadata":{"resourceVersion":"7"}}\n
//!             └──────────── head ────────────┘                └─────────────── tail ──────────────────┘
//! ```
//!
//! Go prints a typed list in the order of its fields and an unstructured one with sorted keys
//! (apimachinery `serializer/json/collections.go`). [`ListBody`] returns chunks of about
//! [`CHUNK_BYTES`]. Small items are copied together, because a write per item would cost more than
//! the copy; large items are sent as their own shared bytes. So a response in flight holds one
//! chunk instead of the list. [`ListDecoder`] reads list bodies.

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_meta::{Object, Revision};

use crate::cut::ValueSplitter;
use crate::event::push_json_string;
use crate::frame::{FRAME_LIMIT_BYTES, FrameError};
use crate::metadata::MetadataSpans;

/// Size of the chunks of a list body in bytes. A chunk is complete when the next small item does
/// not fit.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// Items of at least this size in bytes are sent without a copy.
pub const SHARED_ITEM_BYTES: usize = 8 * 1024;

/// The metadata of a list and its type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListMeta {
    /// `apiVersion` of the list.
    pub api_version: String,
    /// `kind` of the list, e.g. `PodList`.
    pub kind: String,
    /// `metadata.resourceVersion`: the version of the list.
    pub resource_version: String,
    /// `metadata.continue`: the token of the next page; empty on the last one.
    pub continue_token: String,
    /// `metadata.remainingItemCount`, if known.
    pub remaining_item_count: Option<i64>,
    /// `metadata.shardInfo.selector`: the shards of the list; empty for the whole collection.
    pub shard_selector: String,
}

/// The order in which Go prints the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListStyle {
    /// Built-in resources: kind, apiVersion, metadata, items.
    Typed,
    /// Custom resources: members sorted.
    Unstructured,
}

impl ListMeta {
    /// The bytes before the first item.
    pub fn head(&self, style: ListStyle) -> Bytes {
        let mut head = String::with_capacity(160 + self.continue_token.len());
        match style {
            ListStyle::Typed => {
                head.push_str("{\"kind\":");
                push_json_string(&mut head, &self.kind);
                head.push_str(",\"apiVersion\":");
                push_json_string(&mut head, &self.api_version);
                head.push_str(",\"metadata\":");
                self.push_metadata(&mut head, style);
                head.push_str(",\"items\":[");
            }
            ListStyle::Unstructured => {
                head.push_str("{\"apiVersion\":");
                push_json_string(&mut head, &self.api_version);
                head.push_str(",\"items\":[");
            }
        }
        head.into()
    }

    /// The bytes after the last item, with the newline that ends every body.
    pub fn tail(&self, style: ListStyle) -> Bytes {
        match style {
            ListStyle::Typed => Bytes::from_static(b"]}\n"),
            ListStyle::Unstructured => {
                let mut tail = String::from("],\"kind\":");
                push_json_string(&mut tail, &self.kind);
                tail.push_str(",\"metadata\":");
                self.push_metadata(&mut tail, style);
                tail.push_str("}\n");
                tail.into()
            }
        }
    }

    /// The JSON of `metadata`.
    #[cfg(feature = "cbor")]
    pub(crate) fn metadata_json(&self, style: ListStyle) -> String {
        let mut json = String::new();
        self.push_metadata(&mut json, style);
        json
    }

    fn push_metadata(&self, out: &mut String, style: ListStyle) {
        let member = |name: &str, value: &str| {
            let mut member = format!("\"{name}\":");
            push_json_string(&mut member, value);
            member
        };
        let text = |name: &str, value: &str| (!value.is_empty()).then(|| member(name, value));
        let version = text("resourceVersion", &self.resource_version);
        let token = match style {
            ListStyle::Typed => text("continue", &self.continue_token),
            // The setter of `UnstructuredList` keeps an empty token as a member.
            ListStyle::Unstructured => Some(member("continue", &self.continue_token)),
        };
        let remaining = self.remaining_item_count.map(|count| format!("\"remainingItemCount\":{count}"));
        let shard = text("selector", &self.shard_selector).map(|selector| format!("\"shardInfo\":{{{selector}}}"));
        let members = match style {
            ListStyle::Typed => [version, token, remaining, shard],
            ListStyle::Unstructured => [token, remaining, version, shard],
        };
        out.push('{');
        out.push_str(&members.into_iter().flatten().collect::<Vec<_>>().join(","));
        out.push('}');
    }
}

/// The first bytes of stored objects of a built-in type.
fn type_meta(kind: &str, api_version: &str) -> Vec<u8> {
    let mut head = String::from("{\"kind\":");
    push_json_string(&mut head, kind);
    head.push_str(",\"apiVersion\":");
    push_json_string(&mut head, api_version);
    head.push(',');
    head.into_bytes()
}

/// A source of a list's items. Every iterator of objects implements it; a source that returns
/// objects by reference saves two reference count updates per object.
pub trait ListSource {
    /// Passes the next items to `take` until it returns false or no items remain. Passed items are
    /// consumed. Returns whether more may follow.
    fn show(&mut self, take: &mut dyn FnMut(&Object) -> bool) -> bool;
}

impl<I: Iterator<Item = Object>> ListSource for I {
    fn show(&mut self, take: &mut dyn FnMut(&Object) -> bool) -> bool {
        self.any(|item| !take(&item))
    }
}

/// A list body in chunks: an iterator of bytes over objects.
///
/// The body holds at most one chunk of [`CHUNK_BYTES`] and one item. Objects are taken from `items` only
/// as chunks are requested, so the work stops when a client stops reading.
#[derive(Debug)]
pub struct ListBody<I> {
    items: I,
    /// The next bytes: the head, or a large item after its separator.
    next: Option<Bytes>,
    tail: Option<Bytes>,
    first: bool,
    chunk_bytes: usize,
    /// Whether chunks end where the items say, so that equal runs of items are in equal chunks.
    aligned: bool,
    /// The type at the beginning of every item of a typed list, which Go omits because it follows from the kind of the
    /// list.
    type_meta: Vec<u8>,
}

impl<I: ListSource> ListBody<I> {
    /// Creates the body of a list with these items.
    pub fn new(meta: &ListMeta, style: ListStyle, items: I) -> Self {
        ListBody::with_chunk_bytes(meta, style, items, CHUNK_BYTES)
    }

    /// As [`ListBody::new`], with chunks of another size.
    pub fn with_chunk_bytes(meta: &ListMeta, style: ListStyle, items: I, chunk_bytes: usize) -> Self {
        let type_meta = match (style, meta.kind.strip_suffix("List")) {
            (ListStyle::Typed, Some(kind)) => type_meta(kind, &meta.api_version),
            _ => Vec::new(),
        };
        let (next, tail) = (Some(meta.head(style)), Some(meta.tail(style)));
        ListBody { items, next, tail, first: true, chunk_bytes, aligned: false, type_meta }
    }

    /// Ends chunks at objects that their revisions select, where the size permits. Lists that differ in a few objects
    /// then have most chunks in common, byte by byte, and a compressed chunk can be used again.
    #[must_use]
    pub fn with_aligned_chunks(mut self) -> Self {
        self.aligned = true;
        self
    }
}

impl<I: ListSource> Iterator for ListBody<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.tail.as_ref()?;
        let mut chunk = match self.next.take() {
            // A large item is sent by itself without a copy.
            Some(large) if large.len() >= SHARED_ITEM_BYTES && !self.first => return Some(large),
            Some(small) => {
                let mut chunk = BytesMut::with_capacity(self.chunk_bytes.max(small.len()));
                chunk.put_slice(&small);
                chunk
            }
            None => BytesMut::with_capacity(self.chunk_bytes),
        };
        let ListBody { items, next, first, chunk_bytes, aligned, type_meta, .. } = self;
        let more = items.show(&mut |item| {
            let mut json = item.json_slice();
            // An item with another beginning was written by another program and stays unchanged.
            let cut = if !type_meta.is_empty() && json.starts_with(type_meta) { type_meta.len() } else { 0 };
            json = &json[cut..];
            // One write for both characters: each write checks the capacity.
            chunk.put_slice(match (std::mem::take(first), cut > 0) {
                (true, false) => b"",
                (true, true) => b"{",
                (false, false) => b",",
                (false, true) => b",{",
            });
            let is_full = chunk.len() + json.len() > *chunk_bytes
                || (*aligned && chunk.len() > *chunk_bytes / 2 && begins_chunk(item.revision()));
            if json.len() >= SHARED_ITEM_BYTES || is_full {
                *next = Some(item.json().slice(cut..));
                return false;
            }
            chunk.put_slice(json);
            true
        });
        if !more {
            chunk.put_slice(&self.tail.take()?);
        }
        Some(chunk.freeze()).filter(|chunk| !chunk.is_empty()).or_else(|| self.next.take())
    }
}

/// Whether an aligned chunk may begin with an object of this revision: one of sixteen, whatever the pattern of
/// revisions.
fn begins_chunk(revision: Revision) -> bool {
    revision.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == 0
}

/// The member that is read item by item; every other member is read as a whole, within the limit of an item.
const ITEMS: &[u8] = b"\"items\"";

/// Reads a list body in chunks and returns raw items as they are complete.
///
/// Items are slices of the chunks; only an item across chunks is copied.
#[derive(Debug)]
pub struct ListDecoder {
    cutter: ValueSplitter,
    state: State,
    key: Bytes,
    meta: ListMeta,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// After the `{` of the list, or after a `,` between its members.
    Key {
        /// Whether a closing brace may follow.
        may_end: bool,
    },
    Colon,
    Value,
    AfterValue,
    /// Inside the array of items.
    Item {
        may_end: bool,
    },
    AfterItem,
    Done,
}

impl ListDecoder {
    /// Creates a decoder that rejects items above [`FRAME_LIMIT_BYTES`].
    pub fn new() -> Self {
        ListDecoder::with_limit(FRAME_LIMIT_BYTES)
    }

    /// Creates a decoder that rejects items above `limit_bytes`.
    pub fn with_limit(limit_bytes: usize) -> Self {
        ListDecoder {
            cutter: ValueSplitter::new(limit_bytes),
            state: State::Start,
            key: Bytes::new(),
            meta: ListMeta::default(),
        }
    }

    /// Adds bytes of the body.
    pub fn feed(&mut self, chunk: Bytes) {
        self.cutter.feed(chunk);
    }

    /// The next complete item; `None` when more bytes are needed or the list has ended.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`], and [`FrameError::Malformed`] when the body is not a list. Every
    /// further call returns the same error.
    pub fn next_item(&mut self) -> Result<Option<Bytes>, FrameError> {
        Ok(self.step(|_| None::<(usize, ())>)?.map(|(item, _)| item))
    }

    /// As [`ListDecoder::next_item`], with the item's metadata from the same pass. An invalid
    /// object has none.
    ///
    /// # Errors
    /// As [`ListDecoder::next_item`].
    pub fn next_object(&mut self) -> Result<Option<(Bytes, MetadataSpans)>, FrameError> {
        Ok(self.step(MetadataSpans::find_first)?.map(|(item, spans)| {
            let spans = spans.unwrap_or_else(|| MetadataSpans::find(&item).unwrap_or_default());
            (item, spans)
        }))
    }

    fn step<T>(&mut self, find: fn(&[u8]) -> Option<(usize, T)>) -> Result<Option<(Bytes, Option<T>)>, FrameError> {
        loop {
            // A begun value is completed first.
            if !self.cutter.in_value() {
                let Some(byte) = self.cutter.peek() else { return Ok(None) };
                let next = match (self.state, byte) {
                    (State::Start, b'{') => Some(State::Key { may_end: true }),
                    (State::Key { may_end: true } | State::AfterValue, b'}') => Some(State::Done),
                    (State::Colon, b':') => Some(State::Value),
                    (State::Value, b'[') if self.key == ITEMS => Some(State::Item { may_end: true }),
                    (State::AfterValue, b',') => Some(State::Key { may_end: false }),
                    (State::Item { may_end: true } | State::AfterItem, b']') => Some(State::AfterValue),
                    (State::AfterItem, b',') => Some(State::Item { may_end: false }),
                    (State::Item { .. }, b'{') => {
                        if let Some((item, found)) = self.cutter.whole(find) {
                            self.state = State::AfterItem;
                            return Ok(Some((item, Some(found))));
                        }
                        None
                    }
                    (State::Key { .. }, b'"') | (State::Value, _) => None,
                    _ => return self.cutter.malformed(),
                };
                if let Some(next) = next {
                    self.cutter.skip();
                    self.state = next;
                    continue;
                }
            }
            let Some(value) = self.cutter.value()? else { return Ok(None) };
            match self.state {
                State::Key { .. } => {
                    self.key = value;
                    self.state = State::Colon;
                }
                State::Item { .. } => {
                    self.state = State::AfterItem;
                    return Ok(Some((value, None)));
                }
                _ => {
                    self.member(&value)?;
                    self.state = State::AfterValue;
                }
            }
        }
    }

    fn member(&mut self, value: &[u8]) -> Result<(), FrameError> {
        let text = |value: &[u8]| serde_json::from_slice::<Option<String>>(value).map(Option::unwrap_or_default);
        let read = match &*self.key {
            b"\"kind\"" => text(value).map(|kind| self.meta.kind = kind),
            b"\"apiVersion\"" => text(value).map(|version| self.meta.api_version = version),
            b"\"metadata\"" => self.read_metadata(value),
            key if key == ITEMS && value != b"null" => return self.cutter.malformed(),
            _ => Ok(()),
        };
        read.or_else(|_| self.cutter.malformed())
    }

    fn read_metadata(&mut self, value: &[u8]) -> Result<(), serde_json::Error> {
        let value: listwatch_json::Value = serde_json::from_slice(value)?;
        let text = |name: &str| value.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
        self.meta.resource_version = text("resourceVersion");
        self.meta.continue_token = text("continue");
        self.meta.remaining_item_count = value.get("remainingItemCount").and_then(listwatch_json::Value::as_i64);
        let shard = value.pointer("/shardInfo/selector").and_then(listwatch_json::Value::as_str);
        self.meta.shard_selector = shard.unwrap_or_default().to_owned();
        Ok(())
    }

    /// The known metadata of the list: complete before the items of a built-in resource, but only
    /// at the end for a custom one.
    pub fn meta(&self) -> &ListMeta {
        &self.meta
    }

    /// Ends the body; to be called after every item was taken.
    ///
    /// # Errors
    /// [`FrameError::Incomplete`] when the list is truncated, [`FrameError::Malformed`] when data
    /// follows it.
    pub fn finish(mut self) -> Result<ListMeta, FrameError> {
        if self.state != State::Done {
            return Err(FrameError::Incomplete { buffered_bytes: self.cutter.buffered() });
        }
        if self.cutter.peek().is_some() {
            return self.cutter.malformed();
        }
        Ok(self.meta)
    }
}

impl Default for ListDecoder {
    fn default() -> Self {
        ListDecoder::new()
    }
}

/// Splits a whole list body into items, which are slices of it.
///
/// # Errors
/// See [`ListDecoder`].
pub fn split_list(body: &Bytes) -> Result<(ListMeta, Vec<Bytes>), FrameError> {
    let mut decoder = ListDecoder::new();
    decoder.feed(body.clone());
    let mut items = Vec::new();
    while let Some(item) = decoder.next_item()? {
        items.push(item);
    }
    Ok((decoder.finish()?, items))
}

#[cfg(test)]
mod tests {
    use listwatch_meta::{Change, Key, ObjectShape, Revision};
    use proptest::prelude::*;

    use super::*;

    fn object(revision: u64, padding: usize) -> Object {
        stored(revision, &format!(r#"{{"metadata":{{}},"p":"{}"}}"#, "x".repeat(padding)))
    }

    fn stored(revision: u64, value: &str) -> Object {
        let key = Key::new("pods", Some("default"), "web").unwrap();
        let shape = ObjectShape::new(true, Vec::new());
        Object::from_stored(key, Revision::new(revision), Change::Added, value.as_bytes(), &shape).unwrap()
    }

    fn meta() -> ListMeta {
        ListMeta {
            api_version: "v1".to_owned(),
            kind: "PodList".to_owned(),
            resource_version: "7".to_owned(),
            continue_token: "abc".to_owned(),
            remaining_item_count: Some(3),
            shard_selector: String::new(),
        }
    }

    fn body(meta: &ListMeta, style: ListStyle, objects: &[Object], chunk_bytes: usize) -> Vec<Bytes> {
        ListBody::with_chunk_bytes(meta, style, objects.iter().cloned(), chunk_bytes).collect()
    }

    #[test]
    fn most_aligned_chunks_are_unchanged_when_an_item_changes_its_size() {
        let mut objects: Vec<Object> = (1..600).map(|revision| object(revision, 1_000)).collect();
        let aligned = |objects: &[Object]| -> Vec<Bytes> {
            ListBody::new(&meta(), ListStyle::Typed, objects.iter().cloned()).with_aligned_chunks().collect()
        };
        let before = aligned(&objects);
        assert_eq!(before.concat(), body(&meta(), ListStyle::Typed, &objects, CHUNK_BYTES).concat());
        assert!(before.iter().all(|chunk| chunk.len() <= CHUNK_BYTES + 3));
        // The other size moves all later items.
        objects[20] = object(1_000, 1_717);
        let after = aligned(&objects);
        assert_eq!(after.concat(), body(&meta(), ListStyle::Typed, &objects, CHUNK_BYTES).concat());
        let shared = after.iter().filter(|chunk| before.contains(chunk)).count();
        assert!(shared * 2 > after.len(), "{shared} of {} chunks are shared", after.len());
    }

    #[test]
    fn list_bodies_equal_those_of_kube_apiserver() {
        fn check(meta: &ListMeta, style: ListStyle, objects: &[Object], expected: &str) {
            assert_eq!(body(meta, style, objects, CHUNK_BYTES).concat(), expected.as_bytes(), "{style:?}");
        }
        check(
            &meta(),
            ListStyle::Typed,
            &[object(1, 0), object(2, 1)],
            "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"7\",\"continue\":\"abc\",\"remainingItemCount\":3},\"items\":[{\"metadata\":{\"resourceVersion\":\"1\"},\"p\":\"\"},{\"metadata\":{\"resourceVersion\":\"2\"},\"p\":\"x\"}]}\n",
        );
        let last = ListMeta { continue_token: String::new(), remaining_item_count: None, ..meta() };
        check(
            &last,
            ListStyle::Typed,
            &[],
            "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"7\"},\"items\":[]}\n",
        );
        check(
            &last,
            ListStyle::Unstructured,
            &[],
            "{\"apiVersion\":\"v1\",\"items\":[],\"kind\":\"PodList\",\"metadata\":{\"continue\":\"\",\"resourceVersion\":\"7\"}}\n",
        );
        check(
            &meta(),
            ListStyle::Unstructured,
            &[object(1, 0)],
            "{\"apiVersion\":\"v1\",\"items\":[{\"metadata\":{\"resourceVersion\":\"1\"},\"p\":\"\"}],\"kind\":\"PodList\",\"metadata\":{\"continue\":\"abc\",\"remainingItemCount\":3,\"resourceVersion\":\"7\"}}\n",
        );
    }

    /// Go omits the type of the items of a typed list, which is that of the list.
    #[test]
    fn typed_list_omits_the_type_at_the_beginning_of_its_items() {
        fn check(style: ListStyle, stored_item: &str, expected: &str) {
            for padding in [0, SHARED_ITEM_BYTES] {
                let fill = |item: &str| item.replace("PADDING", &"x".repeat(padding));
                let item = stored(1, &fill(stored_item));
                let found = body(&meta(), style, &[object(1, 0), item.clone(), item], CHUNK_BYTES).concat();
                let (first, expected) = (object(1, 0).json(), fill(expected));
                let items = [&first, expected.as_bytes(), expected.as_bytes()].join(&b","[..]);
                let whole = [&meta().head(style), &items[..], &meta().tail(style)].concat();
                assert!(found == whole, "{style:?}: {stored_item} with {padding} bytes");
            }
        }
        let pod = r#"{"kind":"Pod","apiVersion":"v1","metadata":{},"p":"PADDING"}"#;
        let pod_with_type = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1"},"p":"PADDING"}"#;
        check(ListStyle::Typed, pod, r#"{"metadata":{"resourceVersion":"1"},"p":"PADDING"}"#);
        check(ListStyle::Unstructured, pod, pod_with_type);
        // An item of another type or order keeps its members.
        for kept in [
            r#"{"kind":"Node","apiVersion":"v1","metadata":{RV},"p":"PADDING"}"#,
            r#"{"kind":"Pod","apiVersion":"v2","metadata":{RV},"p":"PADDING"}"#,
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{RV},"p":"PADDING"}"#,
        ] {
            check(ListStyle::Typed, &kept.replace("RV", ""), &kept.replace("RV", r#""resourceVersion":"1""#));
        }
    }

    #[test]
    fn chunk_ends_only_when_the_next_small_item_does_not_fit() {
        let objects: Vec<Object> = (10..50).map(|revision| object(revision, 0)).collect();
        let item_bytes = objects[0].json_slice().len();
        for chunk_bytes in 200..400 {
            let chunks = body(&meta(), ListStyle::Typed, &objects, chunk_bytes);
            for chunk in &chunks[..chunks.len() - 1] {
                let bytes = chunk.len();
                assert!(bytes <= chunk_bytes + 1, "a chunk of {bytes} bytes exceeds {chunk_bytes} and a comma");
                assert!(
                    bytes + item_bytes > chunk_bytes,
                    "a chunk of {bytes} of {chunk_bytes} bytes has room for an item"
                );
            }
        }
    }

    #[test]
    fn aligned_chunk_ends_early_only_if_half_full_and_before_a_selected_item() {
        let objects: Vec<Object> = (10..90).map(|revision| object(revision, 0)).collect();
        let item_bytes = objects[0].json_slice().len();
        for chunk_bytes in 200..600 {
            let list = ListBody::with_chunk_bytes(&meta(), ListStyle::Typed, objects.iter().cloned(), chunk_bytes);
            let chunks: Vec<Bytes> = list.with_aligned_chunks().collect();
            for (chunk, next) in chunks.iter().zip(&chunks[1..]) {
                let bytes = chunk.len();
                let next = objects.iter().find(|object| next.starts_with(object.json_slice())).expect("an item");
                let may_end = bytes > chunk_bytes / 2 && begins_chunk(next.revision());
                let is_full = bytes + item_bytes > chunk_bytes;
                assert!(is_full || may_end, "a chunk of {bytes} of {chunk_bytes} bytes ends early");
            }
        }
    }

    #[test]
    fn chunks_are_bounded_and_large_items_are_shared() {
        let large = object(9, SHARED_ITEM_BYTES);
        let objects = [object(1, 900), object(2, 900), large.clone(), object(3, 10)];
        let chunks = body(&meta(), ListStyle::Typed, &objects, 1024);
        assert!(
            chunks.iter().any(|chunk| chunk.as_ptr() == large.json_slice().as_ptr()),
            "a large item was copied instead of shared"
        );
        for chunk in &chunks {
            assert!(chunk.len() <= 1024 || chunk.len() >= SHARED_ITEM_BYTES, "a chunk of {} bytes", chunk.len());
            assert!(!chunk.is_empty(), "an empty chunk ends nothing and costs a write");
        }
        let joined = Bytes::from(chunks.concat());
        let (found, items) = split_list(&joined).unwrap();
        assert_eq!(found, meta());
        assert_eq!(items, objects.iter().map(Object::json).collect::<Vec<_>>());
    }

    #[test]
    fn list_with_any_member_order_and_whitespace_is_decoded_and_malformed_list_rejected() {
        fn check(body: &str, expected: Result<(&str, &[&str]), FrameError>) {
            let found = split_list(&Bytes::copy_from_slice(body.as_bytes()));
            let found = found.map(|(meta, items)| (meta.resource_version, items));
            let expected = expected.map(|(version, items)| {
                (version.to_owned(), items.iter().map(|item| Bytes::copy_from_slice(item.as_bytes())).collect())
            });
            assert_eq!(found, expected, "{body}");
        }
        check(r#"{"items":[],"metadata":{"resourceVersion":"5"}}"#, Ok(("5", &[])));
        check(
            "{\n \"items\" : [ {\"a\":[1]} ,\n {} ] , \"x\":1.5e3, \"y\":null,\"z\":\"]\"}\n\n",
            Ok(("", &[r#"{"a":[1]}"#, "{}"])),
        );
        check(r#"{"x":[{"a":1},2],"items":[{}]}"#, Ok(("", &["{}"])));
        check(r#"{"items":null}"#, Ok(("", &[])));
        check("{}", Ok(("", &[])));
        check(r#"{"metadata":{"resourceVersion":"5"},"items":[{}]"#, Err(FrameError::Incomplete { buffered_bytes: 0 }));
        check(r#"{"items":[{"a":"#, Err(FrameError::Incomplete { buffered_bytes: 5 }));
        check(r#"{"items":[1]}"#, Err(FrameError::Malformed { at: 10 }));
        check(r#"{"items":{}}"#, Err(FrameError::Malformed { at: 11 }));
        check(r#"{"items":[{},]}"#, Err(FrameError::Malformed { at: 13 }));
        check(r#"{"items":[],"x":y}"#, Err(FrameError::Malformed { at: 16 }));
        check("[]", Err(FrameError::Malformed { at: 0 }));
        check("{} x", Err(FrameError::Malformed { at: 3 }));
        check("", Err(FrameError::Incomplete { buffered_bytes: 0 }));
    }

    #[test]
    fn member_value_of_exactly_the_limit_is_read() {
        fn check(body: &str, expected: Result<(), FrameError>) {
            for piece_bytes in [1, 2, body.len()] {
                let pieces: Vec<&[u8]> = body.as_bytes().chunks(piece_bytes).collect();
                let (_, end) = read_by(&pieces, 3, ListDecoder::next_item);
                assert_eq!(end.map(|_| ()), expected, "{body} in pieces of {piece_bytes} bytes");
            }
        }
        let too_large = Err(FrameError::TooLarge { limit_bytes: 3 });
        check(r#"{"x":123}"#, Ok(()));
        check(r#"{"x":123 , "y":[1]}"#, Ok(()));
        check(r#"{"x":1234}"#, too_large.clone());
        check(r#"{"x":[1,2]}"#, too_large.clone());
        check(r#"{"x":"ab"}"#, too_large);
        check(r#"{"x":[12"#, Err(FrameError::Incomplete { buffered_bytes: 3 }));
        check(r#"{"x":123 y"#, Err(FrameError::Malformed { at: 9 }));
    }

    /// Reads with and without metadata; both must return the same list.
    fn read_pieces(pieces: &[&[u8]]) -> (Vec<Bytes>, Result<ListMeta, FrameError>) {
        let plain = read_by(pieces, 200, ListDecoder::next_item);
        let with_metadata = read_by(pieces, 200, |decoder| {
            let next = decoder.next_object()?;
            Ok(next.map(|(item, spans)| {
                assert_eq!(spans, MetadataSpans::find(&item).unwrap_or_default(), "{item:?}");
                item
            }))
        });
        assert_eq!(plain, with_metadata);
        plain
    }

    fn read_by(
        pieces: &[&[u8]],
        limit_bytes: usize,
        next: impl Fn(&mut ListDecoder) -> Result<Option<Bytes>, FrameError>,
    ) -> (Vec<Bytes>, Result<ListMeta, FrameError>) {
        let mut decoder = ListDecoder::with_limit(limit_bytes);
        let mut items = Vec::new();
        for piece in pieces {
            decoder.feed(Bytes::copy_from_slice(piece));
            loop {
                match next(&mut decoder) {
                    Ok(Some(item)) => items.push(item),
                    Ok(None) => break,
                    Err(error) => return (items, Err(error)),
                }
            }
        }
        let end = decoder.finish();
        (items, end)
    }

    proptest! {
        #[test]
        fn written_lists_decode_from_any_chunks(
            paddings in prop::collection::vec(0_usize..120, 0..12),
            typed in any::<bool>(),
            chunk_bytes in 64_usize..400,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let objects: Vec<Object> = paddings.iter().zip(1..).map(|(padding, revision)| object(revision, *padding)).collect();
            let style = if typed { ListStyle::Typed } else { ListStyle::Unstructured };
            let stream = body(&meta(), style, &objects, chunk_bytes).concat();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).chain([0, stream.len()]).collect();
            places.sort_unstable();
            let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let (items, end) = read_pieces(&pieces);
            prop_assert_eq!(items, objects.iter().map(Object::json).collect::<Vec<_>>());
            prop_assert_eq!(end, Ok(meta()));
        }

        #[test]
        fn any_body_decodes_the_same_from_any_chunks(
            body in "(\\{|\\}|\\[|\\]|\"items\"|\"metadata\"|:|,|\"a\"|1|null| ){0,24}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let stream = body.as_bytes();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).chain([0, stream.len()]).collect();
            places.sort_unstable();
            let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let whole = read_pieces(&[stream]);
            prop_assert_eq!(&whole, &read_pieces(&pieces));
            if let (items, Ok(_)) = &whole {
                let objects = items.iter().all(|item| item.first() == Some(&b'{'));
                prop_assert!(objects, "an item is no object: {:?}", items);
            }
        }
    }
}
