//! [`chunks`]: the body of a collection in every encoding and view.
//!
//! ```text
//!  ListItems (a walk through a snapshot) ──▶ head │ item item … │ item … │ tail
//!                                            └─── chunk of about 64 KiB ──┘
//! ```
//!
//! A list that is being sent holds one chunk and one item in memory, regardless of its length. A protobuf list begins
//! with its length, so the items are encoded twice: first to measure them, then to send them. Some encoded items are
//! kept from the first pass ([`protobuf::LIST_KEPT_BYTES`]). Table rows, metadata and protobuf messages of cached
//! objects are also cached for later lists ([`EncodingCache`]). The JSON of complete objects needs no encoding, because
//! the watch cache holds JSON.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_cacher::{EncodingCache, EncodingId, List, ListItems};
use listwatch_meta::{Object, ResourceVersion, ShardSelector, Status};
use listwatch_table::{self as table, IncludeObject, MetaVersion, TableView, partial};
use listwatch_wire::list::{CHUNK_BYTES, ListBody, ListMeta, ListSource, ListStyle};
use listwatch_wire::media_type::{Encoding, View};
use listwatch_wire::{cbor, protobuf, yaml};
use time::OffsetDateTime;

use crate::response::chunks::{BodyError, Chunks};
use crate::response::encoding_ids::EncodingIds;
use listwatch_registry::Resource;

/// The form of a collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListForm {
    pub(crate) encoding: Encoding,
    pub(crate) view: View,
    pub(crate) include: IncludeObject,
    /// Whether the chunks are compressed. If so, similar lists should be split into the same chunks.
    pub(crate) gzip: bool,
}

/// Creates the body of a list.
///
/// # Errors
/// 500 if an object cannot be encoded.
pub(crate) async fn chunks(
    resource: &Arc<Resource>,
    list: List,
    shard: Option<&ShardSelector>,
    form: ListForm,
    cache: &EncodingCache,
) -> Result<Chunks, Status> {
    let version = ResourceVersion::from(list.revision).as_str().to_owned();
    let items = Items::new(list.items, resource);
    let (api_version, kind) = match form.view {
        View::PartialMetadata { v1beta1 } => {
            (MetaVersion::from(v1beta1).api_version().to_owned(), "PartialObjectMetadataList".to_owned())
        }
        _ => (resource.api_version(), resource.list_kind.clone()),
    };
    let meta = ListMeta {
        api_version,
        kind,
        resource_version: version,
        continue_token: list.continue_token.unwrap_or_default(),
        remaining_item_count: list.remaining.and_then(|count| i64::try_from(count).ok()),
        shard_selector: shard.map(ShardSelector::to_string).unwrap_or_default(),
    };
    match form.encoding {
        Encoding::Json => Ok(json(resource, &meta, items, form, cache)),
        Encoding::Yaml => yaml(resource, &meta, items, form),
        Encoding::Protobuf => {
            let ids = EncodingIds::of(resource);
            let id = match form.view {
                View::PartialMetadata { v1beta1 } => ids.protobuf_metadata(v1beta1.into()),
                View::Full | View::Table { .. } => ids.protobuf(),
            };
            protobuf(&meta, items, cache, id).await
        }
        Encoding::Cbor => cbor(resource, &meta, items, form, cache),
    }
}

/// Iterates over the objects of a list in the requested version, converted one by one.
#[derive(Clone)]
struct Items {
    cached: ListItems,
    /// The resource, if its version differs from the version of the cached objects.
    resource: Option<Arc<Resource>>,
}

impl Items {
    fn new(cached: ListItems, resource: &Arc<Resource>) -> Self {
        Items { cached, resource: (!resource.is_as_cached()).then(|| Arc::clone(resource)) }
    }

    /// Whether the items are the cached objects themselves, so that later lists can share their encodings.
    fn are_cached(&self) -> bool {
        self.resource.is_none()
    }
}

/// Iterates over items by reference, without a clone.
struct ItemsInPlace(Items);

impl ListSource for ItemsInPlace {
    fn show(&mut self, take: &mut dyn FnMut(&Object) -> bool) -> bool {
        let Items { cached, resource } = &mut self.0;
        match resource {
            Some(resource) => cached.show(&mut |object| take(&resource.shown(object))),
            None => cached.show(take),
        }
    }
}

impl Iterator for Items {
    type Item = Object;

    fn next(&mut self) -> Option<Object> {
        let object = self.cached.next()?;
        Some(match &self.resource {
            Some(resource) => resource.shown(&object).into_owned(),
            None => object,
        })
    }
}

fn json(resource: &Arc<Resource>, meta: &ListMeta, items: Items, form: ListForm, cache: &EncodingCache) -> Chunks {
    let ids = EncodingIds::of(resource);
    // A converted object is made for this list only.
    let cache = items.are_cached().then(|| cache.clone());
    let separated = |out: &mut BytesMut, first: bool| {
        if !first {
            out.put_u8(b',');
        }
    };
    let tail = Bytes::from_static(table::TAIL);
    match form.view {
        View::Full => {
            let body = ListBody::new(meta, resource.list_style(), ItemsInPlace(items));
            Box::new(if form.gzip { body.with_aligned_chunks() } else { body }.map(Ok))
        }
        View::Table { v1beta1 } => {
            let (view, now) = (TableView::new(resource, form.include, v1beta1.into()), OffsetDateTime::now_utc());
            let (head, id) = (view.head(&table_meta(meta)), ids.table(form.include, v1beta1.into()));
            let write = move |out: &mut BytesMut, object: &Object, first| {
                separated(out, first);
                match &cache {
                    Some(cache) => view.write_kept_row(out, object, now, cache, id),
                    None => view.write_row(out, object.json_slice(), now),
                }
                Ok(())
            };
            Joined::boxed(items, head, write, [tail.clone(), tail])
        }
        View::PartialMetadata { v1beta1 } => {
            let head = partial::head(&table_meta(meta), v1beta1.into());
            let id = ids.metadata(v1beta1.into());
            let write = move |out: &mut BytesMut, object: &Object, first| {
                separated(out, first);
                let kept = cache.as_ref().and_then(|cache| cache.read(object, id, |kept| out.put_slice(kept)));
                if kept.is_none() {
                    let start = out.len();
                    partial::write_object(out, object.json_slice(), v1beta1.into());
                    cache.as_ref().map(|cache| cache.keep(object, id, &out[start..]));
                }
                Ok(())
            };
            Joined::boxed(items, head, write, [tail.clone(), tail])
        }
    }
}

/// Returns the metadata of a list as a Table has them.
pub(crate) fn table_meta(meta: &ListMeta) -> table::ListMeta {
    table::ListMeta {
        resource_version: meta.resource_version.clone(),
        continue_token: Some(meta.continue_token.clone()).filter(|token| !token.is_empty()),
        remaining_item_count: meta.remaining_item_count.and_then(|count| u64::try_from(count).ok()),
    }
}

/// Creates a list in YAML, with sorted keys. The text before and after the items is the text of the empty list, split
/// at the position of the items.
fn yaml(resource: &Arc<Resource>, meta: &ListMeta, items: Items, form: ListForm) -> Result<Chunks, Status> {
    let (key, skeleton) = match form.view {
        View::Full | View::PartialMetadata { .. } => {
            ("items", [meta.head(resource.list_style()), meta.tail(resource.list_style())].concat())
        }
        View::Table { v1beta1 } => {
            let view = TableView::new(resource, form.include, v1beta1.into());
            ("rows", view.list([], &table_meta(meta), OffsetDateTime::UNIX_EPOCH).to_vec())
        }
    };
    let document = yaml::from_json(&skeleton)?;
    let text = std::str::from_utf8(&document).map_err(Status::internal)?;
    let empty = format!("\n{key}: []\n");
    let (head, tail) = text.split_once(&empty).ok_or_else(|| Status::internal("a list without items"))?;
    let head = BytesMut::from(format!("{head}\n").as_str());
    let tails = [tail.to_owned().into(), format!("{key}: []\n{tail}").into()];
    let now = OffsetDateTime::now_utc();
    let table = match form.view {
        View::Table { v1beta1 } => Some(TableView::new(resource, form.include, v1beta1.into())),
        _ => None,
    };
    // Items of a built-in resource have no `apiVersion` and `kind`.
    let type_meta = match (form.view, resource.list_style()) {
        (View::Full, ListStyle::Typed) => ["kind", "apiVersion"].as_slice(),
        _ => &[],
    };
    let write = move |out: &mut BytesMut, object: &Object, first: bool| {
        if first {
            out.put_slice(key.as_bytes());
            out.put_slice(b":\n");
        }
        let item = match (&table, form.view) {
            (Some(view), _) => {
                let mut row = BytesMut::new();
                view.write_row(&mut row, object.json_slice(), now);
                yaml::item_from_json(&row, &[])
            }
            (None, View::PartialMetadata { v1beta1 }) => {
                yaml::item_from_json(&partial::object(object.json_slice(), v1beta1.into()), &[])
            }
            (None, _) => yaml::item_from_json(object.json_slice(), type_meta),
        };
        out.put_slice(&item.map_err(|status| BodyError(status.message))?);
        Ok(())
    };
    Ok(Joined::boxed(items, head, write, tails))
}

async fn protobuf(meta: &ListMeta, items: Items, cache: &EncodingCache, id: EncodingId) -> Result<Chunks, Status> {
    let are_cached = items.are_cached();
    let mut body = protobuf::ListBody::new(meta, items).map_err(Status::internal)?;
    if are_cached {
        body = body.with_cache(KeptMessages { cache: cache.clone(), id });
    }
    while !body.measure().map_err(Status::internal)? {
        tokio::task::yield_now().await;
    }
    Ok(Box::new(body.map(|chunk| chunk.map_err(|error| BodyError(error.to_string())))))
}

/// Encodes objects as protobuf messages, and caches the messages under one id.
struct KeptMessages {
    cache: EncodingCache,
    id: EncodingId,
}

impl protobuf::ItemCache for KeptMessages {
    fn read(&self, object: &Object, take: &mut dyn FnMut(&[u8])) -> bool {
        self.cache.read(object, self.id, take).is_some()
    }

    fn keep(&self, object: &Object, message: &[u8]) {
        self.cache.keep(object, self.id, message);
    }
}

/// Creates a list in CBOR. Tables and partial objects are encoded as a whole from their JSON; full objects are
/// streamed.
fn cbor(
    resource: &Arc<Resource>,
    meta: &ListMeta,
    items: Items,
    form: ListForm,
    cache: &EncodingCache,
) -> Result<Chunks, Status> {
    let failed = |error: cbor::EncodeError| BodyError(error.to_string());
    if form.view == View::Full {
        return Ok(Box::new(
            cbor::ListBody::new(meta, resource.list_style(), items).map(move |chunk| chunk.map_err(failed)),
        ));
    }
    let mut whole = Vec::new();
    for chunk in json(resource, meta, items, form, cache) {
        whole.extend_from_slice(&chunk.map_err(Status::internal)?);
    }
    let body = cbor::encode(&whole).map_err(Status::internal)?;
    Ok(Box::new(std::iter::once(Ok(body.into()))))
}

/// Joins a head, items and a tail into chunks of about [`CHUNK_BYTES`].
struct Joined<W> {
    items: Items,
    head: BytesMut,
    write: W,
    /// The bytes after the items, and the bytes after the head if the list is empty.
    tails: Option<[Bytes; 2]>,
    first: bool,
}

impl<W> Joined<W>
where
    W: FnMut(&mut BytesMut, &Object, bool) -> Result<(), BodyError> + Send + 'static,
{
    fn boxed(items: Items, head: BytesMut, write: W, tails: [Bytes; 2]) -> Chunks {
        Box::new(Joined { items, head, write, tails: Some(tails), first: true })
    }
}

impl<W> Iterator for Joined<W>
where
    W: FnMut(&mut BytesMut, &Object, bool) -> Result<(), BodyError>,
{
    type Item = Result<Bytes, BodyError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.tails.as_ref()?;
        let mut chunk = std::mem::take(&mut self.head);
        if !self.first {
            // The former chunk was whole, so this one is expected to be.
            chunk.reserve(WHOLE_CHUNK);
        }
        while chunk.len() < CHUNK_BYTES {
            let Some(object) = self.items.next() else {
                let [tail, empty] = self.tails.take()?;
                chunk.put_slice(if self.first { &empty } else { &tail });
                break;
            };
            if let Err(error) = (self.write)(&mut chunk, &object, std::mem::take(&mut self.first)) {
                self.tails = None;
                return Some(Err(error));
            }
            reserve_whole_chunk(&mut chunk);
        }
        Some(Ok(chunk.freeze()))
    }
}

/// The memory of a whole chunk, which ends with the first item behind [`CHUNK_BYTES`].
const WHOLE_CHUNK: usize = CHUNK_BYTES + CHUNK_BYTES / 16;

/// Reserves the memory of a whole first chunk once a list is not short. Without it, the chunk grows by doubling, and a
/// long list copies each byte about once more.
fn reserve_whole_chunk(chunk: &mut BytesMut) {
    /// Bytes of items above which a chunk is expected to become whole.
    const LONG: usize = CHUNK_BYTES / 8;

    if chunk.len() >= LONG && chunk.capacity() < WHOLE_CHUNK {
        chunk.reserve(WHOLE_CHUNK.saturating_sub(chunk.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_is_reserved_once_and_only_for_a_long_list() {
        let mut chunk = BytesMut::with_capacity(64);
        chunk.extend_from_slice(&[7; CHUNK_BYTES / 8 - 1]);
        reserve_whole_chunk(&mut chunk);
        assert!(chunk.capacity() < CHUNK_BYTES / 2, "a short list reserved {} bytes", chunk.capacity());
        chunk.extend_from_slice(&[7; 1]);
        reserve_whole_chunk(&mut chunk);
        let start = chunk.as_ptr();
        while chunk.len() < CHUNK_BYTES {
            chunk.extend_from_slice(&[7; 1024]);
            reserve_whole_chunk(&mut chunk);
        }
        assert_eq!(chunk.as_ptr(), start, "a chunk of a long list moved while it grew");
        assert!(chunk.capacity() <= CHUNK_BYTES * 5 / 4, "a chunk reserved {} bytes", chunk.capacity());
    }
}
