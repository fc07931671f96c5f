//! The body of a collection, in every encoding and view, chunk by chunk: [`chunks`].
//!
//! ```text
//!  ListItems (a walk through a snapshot) ──▶ head │ item item … │ item … │ tail
//!                                            └─── chunk of about 64 KiB ──┘
//! ```
//!
//! What a list in flight holds is a chunk and an item, whatever its length. Protobuf says in front how
//! long everything is, so its items are gone through twice, first to be measured, and a few are kept in
//! between ([`protobuf::LIST_KEPT_BYTES`]).

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_cacher::{List, ListItems};
use listwatch_meta::{Object, ResourceVersion, ShardSelector, Status};
use listwatch_wire::list::{CHUNK_BYTES, ListBody, ListMeta, ListSource, ListStyle};
use listwatch_wire::media_type::{Encoding, View};
use listwatch_wire::{cbor, protobuf};
use time::OffsetDateTime;

use crate::body::{BrokenOff, Chunks};
use crate::registry::Resource;
use crate::table::{self, IncludeObject, MetaVersion, TableView, partial};
use crate::yaml;

/// How a collection is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) encoding: Encoding,
    pub(crate) view: View,
    pub(crate) include: IncludeObject,
}

/// The body of a list.
///
/// # Errors
/// 500 when an object has no form in the encoding that was asked for.
pub(crate) async fn chunks(
    resource: &Arc<Resource>,
    list: List,
    shard: Option<&ShardSelector>,
    shown: Shown,
) -> Result<Chunks, Status> {
    let version = ResourceVersion::from(list.revision).as_str().to_owned();
    let items = Items::new(list.items, resource);
    let (api_version, kind) = match shown.view {
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
    match shown.encoding {
        Encoding::Json => Ok(json(resource, &meta, items, shown)),
        Encoding::Yaml => yaml(resource, &meta, items, shown),
        Encoding::Protobuf => protobuf(&meta, items).await,
        Encoding::Cbor => cbor(resource, &meta, items, shown),
    }
}

/// The objects of a list as the resource shows them, one by one as they are asked for.
#[derive(Clone)]
struct Items {
    cached: ListItems,
    /// The resource shows them in another form.
    resource: Option<Arc<Resource>>,
}

impl Items {
    fn new(cached: ListItems, resource: &Arc<Resource>) -> Self {
        Items { cached, resource: (!resource.is_as_cached()).then(|| Arc::clone(resource)) }
    }
}

/// Items that are shown where they lie.
struct Shows(Items);

impl ListSource for Shows {
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

fn style(resource: &Resource) -> ListStyle {
    if resource.custom { ListStyle::Unstructured } else { ListStyle::Typed }
}

fn json(resource: &Arc<Resource>, meta: &ListMeta, items: Items, shown: Shown) -> Chunks {
    let separated = |out: &mut BytesMut, first: bool| {
        if !first {
            out.put_u8(b',');
        }
    };
    let tail = Bytes::from_static(table::TAIL);
    match shown.view {
        View::Full => Box::new(ListBody::new(meta, style(resource), Shows(items)).map(Ok)),
        View::Table { v1beta1 } => {
            let (view, now) = (TableView::new(resource, shown.include, v1beta1.into()), OffsetDateTime::now_utc());
            let head = view.head(&table_meta(meta));
            let write = move |out: &mut BytesMut, object: &Object, first| {
                separated(out, first);
                view.write_row(out, object.json_slice(), now);
                Ok(())
            };
            Joined::boxed(items, head, write, [tail.clone(), tail])
        }
        View::PartialMetadata { v1beta1 } => {
            let head = partial::head(&table_meta(meta), v1beta1.into());
            let write = move |out: &mut BytesMut, object: &Object, first| {
                separated(out, first);
                partial::write_object(out, object.json_slice(), v1beta1.into());
                Ok(())
            };
            Joined::boxed(items, head, write, [tail.clone(), tail])
        }
    }
}

fn table_meta(meta: &ListMeta) -> table::ListMeta {
    table::ListMeta {
        resource_version: meta.resource_version.clone(),
        continue_token: Some(meta.continue_token.clone()).filter(|token| !token.is_empty()),
        remaining_item_count: meta.remaining_item_count.and_then(|count| u64::try_from(count).ok()),
    }
}

/// Keys are sorted in YAML, so that what stands before and behind the items is known beforehand: the
/// document without items, cut where they belong.
fn yaml(resource: &Arc<Resource>, meta: &ListMeta, items: Items, shown: Shown) -> Result<Chunks, Status> {
    let (key, skeleton) = match shown.view {
        View::Full | View::PartialMetadata { .. } => {
            ("items", [meta.head(style(resource)), meta.tail(style(resource))].concat())
        }
        View::Table { v1beta1 } => {
            let view = TableView::new(resource, shown.include, v1beta1.into());
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
    let table = match shown.view {
        View::Table { v1beta1 } => Some(TableView::new(resource, shown.include, v1beta1.into())),
        _ => None,
    };
    // The list names the type of the items of a built-in resource.
    let type_meta = match (shown.view, resource.custom) {
        (View::Full, false) => ["kind", "apiVersion"].as_slice(),
        _ => &[],
    };
    let write = move |out: &mut BytesMut, object: &Object, first: bool| {
        if first {
            out.put_slice(key.as_bytes());
            out.put_slice(b":\n");
        }
        let item = match (&table, shown.view) {
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
        out.put_slice(&item.map_err(|status| BrokenOff(status.message))?);
        Ok(())
    };
    Ok(Joined::boxed(items, head, write, tails))
}

async fn protobuf(meta: &ListMeta, items: Items) -> Result<Chunks, Status> {
    let mut body = protobuf::ListBody::new(meta, items).map_err(Status::internal)?;
    while !body.measure().map_err(Status::internal)? {
        tokio::task::yield_now().await;
    }
    Ok(Box::new(body.map(|chunk| chunk.map_err(|error| BrokenOff(error.to_string())))))
}

/// The metadata of a list is first made as JSON, whole; everything else is streamed.
fn cbor(resource: &Arc<Resource>, meta: &ListMeta, items: Items, shown: Shown) -> Result<Chunks, Status> {
    let broken = |error: cbor::EncodeError| BrokenOff(error.to_string());
    if shown.view == View::Full {
        return Ok(Box::new(cbor::ListBody::new(meta, style(resource), items).map(move |chunk| chunk.map_err(broken))));
    }
    let mut whole = Vec::new();
    for chunk in json(resource, meta, items, shown) {
        whole.extend_from_slice(&chunk.map_err(Status::internal)?);
    }
    let body = cbor::encode(&whole).map_err(Status::internal)?;
    Ok(Box::new(std::iter::once(Ok(body.into()))))
}

/// Items between a head and a tail, in chunks of about [`CHUNK_BYTES`].
struct Joined<W> {
    items: Items,
    head: BytesMut,
    write: W,
    /// What stands behind the items, and what stands there when there are none.
    tails: Option<[Bytes; 2]>,
    first: bool,
}

impl<W> Joined<W>
where
    W: FnMut(&mut BytesMut, &Object, bool) -> Result<(), BrokenOff> + Send + 'static,
{
    fn boxed(items: Items, head: BytesMut, write: W, tails: [Bytes; 2]) -> Chunks {
        Box::new(Joined { items, head, write, tails: Some(tails), first: true })
    }
}

impl<W> Iterator for Joined<W>
where
    W: FnMut(&mut BytesMut, &Object, bool) -> Result<(), BrokenOff>,
{
    type Item = Result<Bytes, BrokenOff>;

    fn next(&mut self) -> Option<Self::Item> {
        self.tails.as_ref()?;
        let mut chunk = std::mem::take(&mut self.head);
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
        }
        Some(Ok(chunk.freeze()))
    }
}
