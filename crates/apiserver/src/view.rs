//! How a client wants to see objects: negotiated once per request ([`ObjectView`], [`ListView`],
//! [`WatchView`], [`StatusView`]), then applied to each object, list or event.
//!
//! The whole object in JSON is the path that costs nothing: the bytes are the cache's own. Every other
//! form of an event is made at most once, whoever watches it.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{Response, StatusCode};
use listwatch_cacher::{Delivered, EncodingId, List};
use listwatch_meta::scan::{self, PathSet, Span};
use listwatch_meta::{Change, Object, Revision, ShardSelector, Status};
use listwatch_wire::media_type::{Encoding, Negotiated, Purpose, Served, View, negotiate, wants_pretty};
use listwatch_wire::{Bookmark, EventKind, cbor, protobuf};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use crate::body::{self, Body};
use crate::list::{self, Shown};
use crate::preferences::ResponsePreferences;
use crate::pretty::Indenter;
use crate::registry::Resource;
use crate::respond;
use crate::table::{IncludeObject, ListMeta, MetaVersion, TableView, partial};
use crate::yaml;

fn served(preferences: &ResponsePreferences, resource: &Resource) -> Served {
    Served { cbor: preferences.cbor(), ..if resource.custom { Served::CUSTOM_JSON } else { Served::BUILTIN } }
}

const PARTIAL: &str = "PartialObjectMetadata";

/// How one object is shown.
pub(crate) struct ObjectView {
    negotiated: Negotiated,
    form: body::Form,
    include: IncludeObject,
}

impl ObjectView {
    /// What the client accepts for an object of a resource.
    ///
    /// # Errors
    /// 406 when it accepts nothing this server has; 400 for a bad `includeObject`.
    pub(crate) fn negotiate(preferences: &ResponsePreferences, resource: &Resource) -> Result<Self, Status> {
        Self::from(preferences, served(preferences, resource))
    }

    /// What the client accepts for an object that has no other views, such as a Scale.
    ///
    /// # Errors
    /// 406 when it accepts nothing this server has.
    pub(crate) fn plain(preferences: &ResponsePreferences) -> Result<Self, Status> {
        Self::from(preferences, Served { table: false, partial: false, cbor: preferences.cbor(), ..Served::BUILTIN })
    }

    fn from(preferences: &ResponsePreferences, served: Served) -> Result<Self, Status> {
        let negotiated = negotiate(preferences.accept(), Purpose::Object, &served)?;
        let pretty = wants_pretty(preferences.pretty(), &negotiated, preferences.user_agent());
        let form = body::Form { pretty, gzip: preferences.gzip() };
        Ok(ObjectView { negotiated, form, include: include(preferences, negotiated.view)? })
    }

    /// An object of the resource.
    ///
    /// # Errors
    /// 500 when it has no form in the encoding that was asked for.
    pub(crate) fn object(
        &self,
        code: u16,
        resource: &Arc<Resource>,
        object: &Object,
    ) -> Result<Response<Body>, Status> {
        self.bytes(code, resource, resource.shown(object).json())
    }

    /// An object of the resource, as the JSON that it is shown as.
    ///
    /// # Errors
    /// 500 when it has no form in the encoding that was asked for.
    pub(crate) fn bytes(&self, code: u16, resource: &Arc<Resource>, json: Bytes) -> Result<Response<Body>, Status> {
        let json = match self.negotiated.view {
            View::Full => json,
            View::Table { v1beta1 } => {
                let view = TableView::new(resource, self.include, v1beta1.into());
                view.event_object(&json, true, OffsetDateTime::now_utc())
            }
            View::PartialMetadata { v1beta1 } => partial::object(&json, v1beta1.into()),
        };
        self.json(code, json)
    }

    /// Any other object, as its JSON without a final newline.
    ///
    /// # Errors
    /// 500 when it has no form in the encoding that was asked for.
    pub(crate) fn json(&self, code: u16, json: Bytes) -> Result<Response<Body>, Status> {
        let body = document(&json, self.negotiated.encoding)?;
        let body = Body::chunks(Box::new(std::iter::once(Ok(body))), self.form).map_err(Status::internal)?;
        let mut response = respond::ok(self.negotiated.content_type(Purpose::Object), body);
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
        Ok(response)
    }
}

/// A document, given as its JSON without a final newline, in an encoding.
fn document(json: &[u8], encoding: Encoding) -> Result<Bytes, Status> {
    match encoding {
        Encoding::Json => {
            let mut document = BytesMut::with_capacity(json.len() + 1);
            document.put_slice(json);
            document.put_u8(b'\n');
            Ok(document.freeze())
        }
        Encoding::Yaml => yaml::from_json(json),
        Encoding::Protobuf => {
            let (api_version, kind) = type_of(json);
            Ok(protobuf::encode(&api_version, &kind, json).map_err(Status::internal)?.into())
        }
        Encoding::Cbor => Ok(cbor::encode(json).map_err(Status::internal)?.into()),
    }
}

/// `apiVersion` and `kind` of a document.
fn type_of(json: &[u8]) -> (String, String) {
    static PATHS: std::sync::LazyLock<PathSet> = std::sync::LazyLock::new(|| {
        let mut paths = PathSet::new();
        paths.add(&["apiVersion"]);
        paths.add(&["kind"]);
        paths
    });
    let mut spans = [Span::default(); 2];
    // What is no JSON has no type either, and is refused by whoever encodes it.
    let _ = scan::find(json, &PATHS, &mut spans);
    let [api_version, kind] = spans.map(|span| {
        if span.is_absent() { String::new() } else { serde_json::from_slice(span.of(json)).unwrap_or_default() }
    });
    (api_version, kind)
}

/// How a failure is shown: in what the client accepts, else as indented JSON.
pub(crate) struct StatusView(Option<(Encoding, bool)>);

impl StatusView {
    pub(crate) fn negotiate(preferences: &ResponsePreferences) -> Self {
        let negotiated =
            negotiate(preferences.accept(), Purpose::Object, &Served { cbor: preferences.cbor(), ..Served::STATUS })
                .ok();
        StatusView(negotiated.map(|negotiated| {
            (negotiated.encoding, wants_pretty(preferences.pretty(), &negotiated, preferences.user_agent()))
        }))
    }

    /// The status as a 200; the code is the caller's.
    pub(crate) fn status(&self, status: &Status) -> Response<Body> {
        let json = status.to_json();
        if let Some((encoding, pretty)) = self.0
            && let Ok(body) = document(&json, encoding)
        {
            let body = if pretty { Indenter::default().chunk(&body) } else { body };
            return respond::ok(encoding.media_type(), Body::full(body));
        }
        respond::ok(Encoding::Json.media_type(), Body::full(Indenter::default().chunk(&json)))
    }
}

/// How a collection is shown.
pub(crate) struct ListView {
    negotiated: Negotiated,
    form: body::Form,
    include: IncludeObject,
}

impl ListView {
    /// What the client accepts for a collection of a resource.
    ///
    /// # Errors
    /// 406 when it accepts nothing this server has; 400 for a bad `includeObject`.
    pub(crate) fn negotiate(preferences: &ResponsePreferences, resource: &Resource) -> Result<Self, Status> {
        let negotiated = negotiate(preferences.accept(), Purpose::List, &served(preferences, resource))?;
        let pretty = wants_pretty(preferences.pretty(), &negotiated, preferences.user_agent());
        let form = body::Form { pretty, gzip: preferences.gzip() };
        Ok(ListView { negotiated, form, include: include(preferences, negotiated.view)? })
    }

    /// The response that shows a list, streamed.
    ///
    /// # Errors
    /// 500 when it has no form in the encoding that was asked for.
    pub(crate) async fn list(
        &self,
        resource: &Arc<Resource>,
        list: List,
        shard: Option<&ShardSelector>,
    ) -> Result<Response<Body>, Status> {
        let Negotiated { encoding, view, .. } = self.negotiated;
        let chunks = list::chunks(resource, list, shard, Shown { encoding, view, include: self.include }).await?;
        let body = Body::chunks(chunks, self.form).map_err(Status::internal)?;
        Ok(respond::ok(self.negotiated.content_type(Purpose::List), body))
    }

    /// The response that shows a few objects that are stored nowhere, each given as its JSON.
    ///
    /// # Errors
    /// 500 when they have no form in the encoding that was asked for.
    pub(crate) fn documents(&self, resource: &Arc<Resource>, items: &[Bytes]) -> Result<Response<Body>, Status> {
        let Negotiated { encoding, view, .. } = self.negotiated;
        let (api_version, kind) = match view {
            View::PartialMetadata { v1beta1 } => {
                (MetaVersion::from(v1beta1).api_version().to_owned(), format!("{PARTIAL}List"))
            }
            _ => (resource.api_version(), resource.list_kind.clone()),
        };
        let list = match view {
            View::Table { v1beta1 } => {
                let table = TableView::new(resource, self.include, v1beta1.into());
                let rows = items.iter().map(|item| &item[..]);
                table.list(rows, &ListMeta::default(), OffsetDateTime::now_utc())
            }
            View::Full | View::PartialMetadata { .. } => {
                let mut shown = Vec::with_capacity(items.len());
                for item in items {
                    let item = match view {
                        View::PartialMetadata { v1beta1 } => partial::object(item, v1beta1.into()),
                        _ => item.clone(),
                    };
                    let mut item: Map<String, Value> = serde_json::from_slice(&item).map_err(Status::internal)?;
                    if view == View::Full {
                        // The items of a list are of its kind.
                        item.retain(|name, _| !matches!(name.as_str(), "kind" | "apiVersion"));
                    }
                    shown.push(item);
                }
                json!({"kind": kind, "apiVersion": api_version, "metadata": {}, "items": shown}).to_string().into()
            }
        };
        let body = document(list.trim_ascii_end(), encoding)?;
        let body = Body::chunks(Box::new(std::iter::once(Ok(body))), self.form).map_err(Status::internal)?;
        Ok(respond::ok(self.negotiated.content_type(Purpose::List), body))
    }
}

fn include(preferences: &ResponsePreferences, view: View) -> Result<IncludeObject, Status> {
    match view {
        View::Table { .. } => IncludeObject::parse(preferences.include_object()),
        View::Full | View::PartialMetadata { .. } => Ok(IncludeObject::default()),
    }
}

/// How the events of a watch are shown.
pub(crate) struct WatchView {
    negotiated: Negotiated,
    shown: EventsShown,
    /// Of a version that shows its objects in another form than the cache has them in.
    other: Option<Arc<Resource>>,
    /// Tells the encodings of this version from those of others.
    version: u64,
}

enum EventsShown {
    /// The object, as JSON or CBOR.
    Whole,
    Table {
        view: Box<TableView>,
        id: u64,
        /// The next event is the first: it says what the columns are.
        first: bool,
    },
    /// The metadata, as JSON or CBOR.
    Partial(MetaVersion),
    /// Protobuf of a kind: of the object, or of its metadata.
    Protobuf { api_version: String, kind: String, id: u64 },
}

/// Names the encodings that are shared by all watchers of an event.
mod encoding_ids {
    /// Tables: one per version and `includeObject`.
    pub(super) const TABLE: u64 = 0x100;
    /// `PartialObjectMetadata`: one per version.
    pub(super) const PARTIAL: u64 = 0x200;
    /// Whole objects in protobuf.
    pub(super) const PROTOBUF: u64 = 0x300;
    /// `PartialObjectMetadata` in protobuf: one per version.
    pub(super) const PROTOBUF_PARTIAL: u64 = 0x400;
    /// Whole objects in CBOR.
    pub(super) const CBOR: u64 = 0x500;
    /// `PartialObjectMetadata` in CBOR: one per version.
    pub(super) const CBOR_PARTIAL: u64 = 0x600;
    /// Whole objects in a version that is not the cache's.
    pub(super) const CONVERTED: u64 = 0x700;
    /// Above all of these stands the version, where a kind has several.
    pub(super) const VERSION_SHIFT: u32 = 16;
}

impl WatchView {
    /// What the client accepts for a stream of events.
    ///
    /// # Errors
    /// 406 when it accepts no encoding that can stream; 400 for a bad `includeObject`.
    pub(crate) fn negotiate(preferences: &ResponsePreferences, resource: &Arc<Resource>) -> Result<Self, Status> {
        let negotiated = negotiate(preferences.accept(), Purpose::Watch, &served(preferences, resource))?;
        let protobuf = negotiated.encoding == Encoding::Protobuf;
        let shown = match negotiated.view {
            View::Full if protobuf => EventsShown::Protobuf {
                api_version: resource.api_version(),
                kind: resource.kind.clone(),
                id: encoding_ids::PROTOBUF,
            },
            View::Full => EventsShown::Whole,
            View::Table { v1beta1 } => {
                let (include, version) = (include(preferences, negotiated.view)?, v1beta1.into());
                let id = encoding_ids::TABLE + 8 * u64::from(v1beta1) + include as u64;
                EventsShown::Table { view: Box::new(TableView::new(resource, include, version)), id, first: true }
            }
            View::PartialMetadata { v1beta1 } if protobuf => EventsShown::Protobuf {
                api_version: MetaVersion::from(v1beta1).api_version().to_owned(),
                kind: PARTIAL.to_owned(),
                id: encoding_ids::PROTOBUF_PARTIAL + u64::from(v1beta1),
            },
            View::PartialMetadata { v1beta1 } => EventsShown::Partial(v1beta1.into()),
        };
        let version = u64::from(resource.encoding_position()) << encoding_ids::VERSION_SHIFT;
        let other = (!resource.is_as_cached()).then(|| Arc::clone(resource));
        Ok(WatchView { negotiated, shown, other, version })
    }

    /// The `Content-Type` of the stream.
    pub(crate) fn content_type(&self) -> &'static str {
        self.negotiated.content_type(Purpose::Watch)
    }

    /// How the events are encoded.
    pub(crate) fn encoding(&self) -> Encoding {
        self.negotiated.encoding
    }

    /// The frame of an event. Encoded at most once per view, shared by all watchers.
    ///
    /// # Errors
    /// A 500 when the object has no form in the encoding that was asked for.
    pub(crate) fn event(&mut self, event: &Delivered) -> Result<Bytes, Status> {
        let encoding = self.negotiated.encoding;
        let unencodable =
            |error| Status::internal(format!("{} cannot be encoded: {error}", event.object().key().as_str()));
        let (other, version) = (self.other.as_deref(), self.version);
        let json = |object: &Object| match other {
            Some(resource) => resource.shown_json(object.json()),
            None => object.json(),
        };
        // What metadata is to be taken of.
        let with_metadata = |object: &Object| match other {
            Some(resource) if !resource.has_cached_metadata() => resource.shown_json(object.json()),
            _ => object.json(),
        };
        let id = |id: u64| EncodingId::new(version | id);
        match &mut self.shown {
            EventsShown::Whole if encoding == Encoding::Cbor => {
                let encode = |change: Change, object: &Object| cbor::event_frame(change.into(), &json(object));
                event.try_encoded(id(encoding_ids::CBOR), encode).map_err(|error| unencodable(error.to_string()))
            }
            EventsShown::Whole if other.is_some() => {
                let encode = |change: Change, object: &Object| frame(change.frame_head(), &json(object));
                Ok(event.encoded(id(encoding_ids::CONVERTED), encode))
            }
            EventsShown::Whole => Ok(event.json_frame()),
            EventsShown::Table { view, id: table, first } => {
                // Ages are as of the moment of the event; a second's difference between watchers
                // is not worth a second encoding.
                let encode = |change: Change, object: &Object, first: bool| {
                    frame(change.frame_head(), &view.event_object(&json(object), first, OffsetDateTime::now_utc()))
                };
                Ok(match std::mem::take(first) {
                    true => encode(event.change(), event.object(), true),
                    false => event.encoded(id(*table), |change, object| encode(change, object, false)),
                })
            }
            EventsShown::Partial(version) if encoding == Encoding::Cbor => {
                let id = id(encoding_ids::CBOR_PARTIAL + u64::from(*version == MetaVersion::V1Beta1));
                let encode = |change: Change, object: &Object| {
                    cbor::event_frame(change.into(), &partial::object(&with_metadata(object), *version))
                };
                event.try_encoded(id, encode).map_err(|error| unencodable(error.to_string()))
            }
            EventsShown::Partial(version) => {
                let id = id(encoding_ids::PARTIAL + u64::from(*version == MetaVersion::V1Beta1));
                Ok(event.encoded(id, |change, object| {
                    frame(change.frame_head(), &partial::object(&with_metadata(object), *version))
                }))
            }
            EventsShown::Protobuf { api_version, kind, id: protobuf } => {
                let encode = |change: Change, object: &Object| {
                    protobuf::event_frame(change.into(), api_version, kind, &with_metadata(object))
                };
                event.try_encoded(id(*protobuf), encode).map_err(|error| unencodable(error.to_string()))
            }
        }
    }

    /// The frame of a bookmark.
    ///
    /// # Errors
    /// A 500 when it has no form in the encoding that was asked for.
    pub(crate) fn bookmark(
        &mut self,
        resource: &Resource,
        revision: Revision,
        initial_events_end: bool,
    ) -> Result<Bytes, Status> {
        let own = resource.api_version();
        let bookmark = Bookmark {
            api_version: &own,
            kind: &resource.kind,
            revision,
            initial_events_end,
            zero_members: resource.builtin.map_or("", |kind| kind.zero_members),
        };
        let head = b"{\"type\":\"BOOKMARK\",\"object\":";
        let cbor = |json: &[u8]| cbor::event_frame(EventKind::Bookmark, json).map_err(Status::internal);
        let is_cbor = self.negotiated.encoding == Encoding::Cbor;
        Ok(match &mut self.shown {
            EventsShown::Whole if is_cbor => cbor(&bookmark.object())?,
            EventsShown::Whole => bookmark.encode(),
            EventsShown::Partial(version) if is_cbor => cbor(&partial::object(&bookmark.object(), *version))?,
            EventsShown::Table { view, first, .. } => {
                let first = std::mem::take(first);
                frame(head, &view.event_object(&bookmark.object(), first, OffsetDateTime::now_utc()))
            }
            EventsShown::Partial(version) => frame(head, &partial::object(&bookmark.object(), *version)),
            EventsShown::Protobuf { api_version, kind, .. } => {
                // What Go writes of an empty object is the encoder's to know.
                let bookmark = Bookmark { api_version, kind, zero_members: "", ..bookmark };
                protobuf::bookmark_frame(&bookmark).map_err(Status::internal)?
            }
        })
    }

    /// The frame that ends a watch; a Status in every view.
    pub(crate) fn error(&self, status: &Status) -> Bytes {
        match self.negotiated.encoding {
            Encoding::Protobuf => protobuf::error_frame(status),
            Encoding::Cbor => cbor::error_frame(status),
            _ => listwatch_wire::error_frame(status),
        }
    }
}

fn frame(head: &[u8], object: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(head.len() + object.len() + 2);
    frame.put_slice(head);
    frame.put_slice(object);
    frame.put_slice(b"}\n");
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use crate::registry::Registry;

    #[test]
    fn every_built_in_kind_has_protobuf() {
        let registry = Registry::builtin();
        let without: Vec<String> = registry
            .resources()
            .iter()
            .filter(|resource| !resource.custom)
            .flat_map(|resource| {
                [&resource.kind, &resource.list_kind].map(|kind| (resource.api_version(), kind.clone()))
            })
            .filter(|(api_version, kind)| listwatch_k8s_types::message_of(api_version, kind).is_none())
            .map(|(api_version, kind)| format!("{api_version} {kind}"))
            .collect();
        assert!(without.is_empty(), "negotiation offers protobuf for all of them: {without:?}");
    }
}
