//! How a client wants to see objects: negotiated once per request ([`ObjectView`], [`ListView`],
//! [`WatchView`]), then applied to each object, list or event.
//!
//! The whole object in JSON is the path that costs nothing: the bytes are the cache's own.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{Response, StatusCode};
use listwatch_cacher::{Delivered, EncodingId, List};
use listwatch_meta::{Change, Object, ResourceVersion, Revision, Status};
use listwatch_wire::Bookmark;
use listwatch_wire::list::{ListBody, ListMeta, ListStyle};
use listwatch_wire::media_type::{Encoding, Negotiated, Purpose, Served, View, negotiate, wants_pretty};
use time::OffsetDateTime;

use crate::body::Body;
use crate::registry::Resource;
use crate::respond;
use crate::service::Asker;
use crate::table::{self, IncludeObject, MetaVersion, TableView, partial};
use crate::yaml;

fn served(resource: &Resource) -> Served {
    if resource.custom { Served::CUSTOM_JSON } else { Served::BUILTIN_JSON }
}

fn meta_version(v1beta1: bool) -> MetaVersion {
    if v1beta1 { MetaVersion::V1Beta1 } else { MetaVersion::V1 }
}

/// How one object is shown.
pub(crate) struct ObjectView {
    negotiated: Negotiated,
    pretty: bool,
    include: IncludeObject,
}

impl ObjectView {
    /// What the client accepts for an object of a resource.
    ///
    /// # Errors
    /// 406 when it accepts nothing this server has; 400 for a bad `includeObject`.
    pub(crate) fn negotiate(asker: &Asker, resource: &Resource) -> Result<Self, Status> {
        Self::from(asker, served(resource))
    }

    /// What the client accepts for an object that has no other views, such as a Scale.
    ///
    /// # Errors
    /// 406 when it accepts nothing this server has.
    pub(crate) fn plain(asker: &Asker) -> Result<Self, Status> {
        Self::from(asker, Served { table: false, partial: false, ..Served::BUILTIN_JSON })
    }

    fn from(asker: &Asker, served: Served) -> Result<Self, Status> {
        let negotiated = negotiate(asker.accept(), Purpose::Object, &served)?;
        let pretty = wants_pretty(asker.pretty(), &negotiated, asker.user_agent());
        Ok(ObjectView { negotiated, pretty, include: include(asker, negotiated.view)? })
    }

    /// An object of the resource.
    ///
    /// # Errors
    /// 500 when it cannot be shown as YAML.
    pub(crate) fn object(
        &self,
        code: u16,
        resource: &Arc<Resource>,
        object: &Object,
    ) -> Result<Response<Body>, Status> {
        let json = match self.negotiated.view {
            View::Full => object.json(),
            View::Table { v1beta1 } => {
                let view = TableView::new(resource, self.include, meta_version(v1beta1));
                return self.document(code, &view.object(object.json_slice(), OffsetDateTime::now_utc()));
            }
            View::PartialMetadata { v1beta1 } => partial::object(object.json_slice(), meta_version(v1beta1)),
        };
        self.json(code, json)
    }

    /// Any other object, as its JSON without a final newline.
    ///
    /// # Errors
    /// 500 when it cannot be shown as YAML.
    pub(crate) fn json(&self, code: u16, json: Bytes) -> Result<Response<Body>, Status> {
        let mut document = BytesMut::with_capacity(json.len() + 1);
        document.put_slice(&json);
        document.put_u8(b'\n');
        self.document(code, &document)
    }

    fn document(&self, code: u16, document: &[u8]) -> Result<Response<Body>, Status> {
        let body = body(document, self.negotiated.encoding, self.pretty)?;
        let mut response = respond::ok(self.negotiated.content_type(Purpose::Object), body);
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
        Ok(response)
    }
}

/// How a collection is shown.
pub(crate) struct ListView {
    negotiated: Negotiated,
    pretty: bool,
    include: IncludeObject,
}

impl ListView {
    /// What the client accepts for a collection of a resource.
    ///
    /// # Errors
    /// 406 when it accepts nothing this server has; 400 for a bad `includeObject`.
    pub(crate) fn negotiate(asker: &Asker, resource: &Resource) -> Result<Self, Status> {
        let negotiated = negotiate(asker.accept(), Purpose::List, &served(resource))?;
        let pretty = wants_pretty(asker.pretty(), &negotiated, asker.user_agent());
        Ok(ListView { negotiated, pretty, include: include(asker, negotiated.view)? })
    }

    /// The response that shows a list. Whole objects in JSON are streamed from the cache's bytes;
    /// the other views are made whole first.
    ///
    /// # Errors
    /// 500 when it cannot be shown as YAML.
    pub(crate) fn list(&self, resource: &Arc<Resource>, list: List) -> Result<Response<Body>, Status> {
        let content_type = self.negotiated.content_type(Purpose::List);
        let now = OffsetDateTime::now_utc();
        let version = ResourceVersion::from(list.revision).as_str().to_owned();
        let table_meta = table::ListMeta {
            resource_version: version.clone(),
            continue_token: list.continue_token.clone(),
            remaining_item_count: list.remaining,
        };
        let document = match self.negotiated.view {
            View::Full => {
                let meta = ListMeta {
                    api_version: resource.api_version(),
                    kind: resource.list_kind.clone(),
                    resource_version: version,
                    continue_token: list.continue_token.unwrap_or_default(),
                    remaining_item_count: list.remaining.and_then(|count| i64::try_from(count).ok()),
                };
                let style = if resource.custom { ListStyle::Unstructured } else { ListStyle::Typed };
                let chunks = ListBody::new(&meta, style, list.items);
                if self.negotiated.encoding == Encoding::Json {
                    return Ok(respond::ok(content_type, Body::chunks(chunks, self.pretty)));
                }
                chunks.fold(BytesMut::new(), |mut whole, chunk| {
                    whole.put_slice(&chunk);
                    whole
                })
            }
            View::Table { v1beta1 } => {
                let items: Vec<Object> = list.items.collect();
                let view = TableView::new(resource, self.include, meta_version(v1beta1));
                view.list(items.iter().map(Object::json_slice), &table_meta, now).into()
            }
            View::PartialMetadata { v1beta1 } => {
                let items: Vec<Object> = list.items.collect();
                partial::list(items.iter().map(Object::json_slice), &table_meta, meta_version(v1beta1)).into()
            }
        };
        Ok(respond::ok(content_type, body(&document, self.negotiated.encoding, self.pretty)?))
    }
}

fn include(asker: &Asker, view: View) -> Result<IncludeObject, Status> {
    match view {
        View::Table { .. } => IncludeObject::parse(asker.include_object()),
        View::Full | View::PartialMetadata { .. } => Ok(IncludeObject::default()),
    }
}

fn body(document: &[u8], encoding: Encoding, pretty: bool) -> Result<Body, Status> {
    match encoding {
        Encoding::Yaml => Ok(Body::full(yaml::from_json(document)?)),
        _ if pretty => Ok(Body::full(crate::pretty::Indenter::default().chunk(document))),
        _ => Ok(Body::full(Bytes::copy_from_slice(document))),
    }
}

/// How the events of a watch are shown.
pub(crate) struct WatchView {
    content_type: &'static str,
    shown: Shown,
}

enum Shown {
    Full,
    Table {
        view: Box<TableView>,
        id: EncodingId,
        /// The next event is the first: it says what the columns are.
        first: bool,
    },
    Partial(MetaVersion),
}

/// Names the encodings that are shared by all watchers of an event.
mod encoding_ids {
    /// Tables: one per version and `includeObject`.
    pub(super) const TABLE: u64 = 0x100;
    /// `PartialObjectMetadata`: one per version.
    pub(super) const PARTIAL: u64 = 0x200;
}

impl WatchView {
    /// What the client accepts for a stream of events.
    ///
    /// # Errors
    /// 406 when it accepts no encoding that can stream; 400 for a bad `includeObject`.
    pub(crate) fn negotiate(asker: &Asker, resource: &Arc<Resource>) -> Result<Self, Status> {
        let negotiated = negotiate(asker.accept(), Purpose::Watch, &served(resource))?;
        let shown = match negotiated.view {
            View::Full => Shown::Full,
            View::Table { v1beta1 } => {
                let (include, version) = (include(asker, negotiated.view)?, meta_version(v1beta1));
                let id = EncodingId::new(encoding_ids::TABLE + 8 * u64::from(v1beta1) + include as u64);
                Shown::Table { view: Box::new(TableView::new(resource, include, version)), id, first: true }
            }
            View::PartialMetadata { v1beta1 } => Shown::Partial(meta_version(v1beta1)),
        };
        Ok(WatchView { content_type: negotiated.content_type(Purpose::Watch), shown })
    }

    /// The `Content-Type` of the stream.
    pub(crate) fn content_type(&self) -> &'static str {
        self.content_type
    }

    /// The frame of an event. Encoded at most once per view, shared by all watchers.
    pub(crate) fn event(&mut self, event: &Delivered) -> Bytes {
        match &mut self.shown {
            Shown::Full => event.json_frame(),
            Shown::Table { view, id, first } => {
                // Ages are as of the moment of the event; a second's difference between watchers
                // is not worth a second encoding.
                let encode = |change: Change, object: &Object, first: bool| {
                    frame(
                        change.frame_head(),
                        &view.event_object(object.json_slice(), first, OffsetDateTime::now_utc()),
                    )
                };
                if std::mem::take(first) {
                    return encode(event.change(), event.object(), true);
                }
                event.encoded(*id, |change, object| encode(change, object, false))
            }
            Shown::Partial(version) => {
                let id = EncodingId::new(encoding_ids::PARTIAL + u64::from(*version == MetaVersion::V1Beta1));
                event.encoded(id, |change, object| {
                    frame(change.frame_head(), &partial::object(object.json_slice(), *version))
                })
            }
        }
    }

    /// The frame of a bookmark.
    pub(crate) fn bookmark(&mut self, resource: &Resource, revision: Revision, initial_events_end: bool) -> Bytes {
        let api_version = resource.api_version();
        let bookmark = Bookmark {
            api_version: &api_version,
            kind: &resource.kind,
            revision,
            initial_events_end,
            zero_members: zero_members(resource),
        };
        let head = b"{\"type\":\"BOOKMARK\",\"object\":";
        match &mut self.shown {
            Shown::Full => bookmark.encode(),
            Shown::Table { view, first, .. } => {
                let first = std::mem::take(first);
                frame(head, &view.event_object(&bookmark.object(), first, OffsetDateTime::now_utc()))
            }
            Shown::Partial(version) => frame(head, &partial::object(&bookmark.object(), *version)),
        }
    }
}

/// What Go prints for an empty object of these kinds besides its metadata.
fn zero_members(resource: &Resource) -> &'static str {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => r#""spec":{"containers":null},"status":{}"#,
        ("", "Service") => r#""spec":{},"status":{"loadBalancer":{}}"#,
        ("", "Node" | "Namespace" | "PersistentVolume") => r#""spec":{},"status":{}"#,
        ("", "PersistentVolumeClaim") => r#""spec":{"resources":{}},"status":{}"#,
        _ => "",
    }
}

fn frame(head: &[u8], object: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(head.len() + object.len() + 2);
    frame.put_slice(head);
    frame.put_slice(object);
    frame.put_slice(b"}\n");
    frame.freeze()
}
