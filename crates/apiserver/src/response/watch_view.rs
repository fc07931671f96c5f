//! [`WatchView`]: the form of the events of one watch, negotiated once and applied to each event.
//!
//! Complete objects in JSON need no encoding, because the cache holds these bytes. Any other form of an event is
//! encoded at most once for all watchers.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_cacher::{Delivered, EncodingCache, EncodingId};
use listwatch_meta::{Change, Object, Revision, Status};
use listwatch_table::{IncludeObject, MetaVersion, TableView, partial};
use listwatch_wire::media_type::{Encoding, Negotiated, Purpose, View, negotiate};
use listwatch_wire::{Bookmark, EventKind, cbor, protobuf};
use time::OffsetDateTime;

use crate::response::encoding_ids::EncodingIds;
use crate::response::kept_message::with_message;
use crate::response::preferences::ResponsePreferences;
use listwatch_registry::Resource;

/// The form of the events of a watch.
pub(crate) struct WatchView {
    negotiated: Negotiated,
    form: EventForm,
    /// The resource, if its version differs from the version of the cached objects.
    converted: Option<Arc<Resource>>,
    ids: EncodingIds,
}

enum EventForm {
    /// The object, as JSON or CBOR.
    Whole,
    Table {
        view: Box<TableView>,
        include: IncludeObject,
        version: MetaVersion,
        /// Whether the next event is the first one, which contains the column definitions.
        first: bool,
    },
    /// The metadata, as JSON or CBOR.
    Partial(MetaVersion),
    /// Protobuf of the object or of its metadata.
    Protobuf { api_version: String, kind: String, id: EncodingId, cache: EncodingCache },
}

impl WatchView {
    /// Negotiates the form of a stream of events.
    ///
    /// # Errors
    /// 406 if the client accepts no encoding that can be streamed; 400 for an unsupported `includeObject`.
    pub(crate) fn negotiate(
        preferences: &ResponsePreferences,
        resource: &Arc<Resource>,
        cache: &EncodingCache,
    ) -> Result<Self, Status> {
        let negotiated = negotiate(preferences.accept(), Purpose::Watch, &preferences.served(resource))?;
        let protobuf = negotiated.encoding == Encoding::Protobuf;
        let ids = EncodingIds::of(resource);
        let form = match negotiated.view {
            View::Full if protobuf => EventForm::Protobuf {
                api_version: resource.api_version(),
                kind: resource.kind.clone(),
                id: ids.protobuf(),
                cache: cache.clone(),
            },
            View::Full => EventForm::Whole,
            View::Table { v1beta1 } => {
                let (include, version) = (preferences.include_object(negotiated.view)?, v1beta1.into());
                EventForm::Table {
                    view: Box::new(TableView::new(resource, include, version)),
                    include,
                    version,
                    first: true,
                }
            }
            View::PartialMetadata { v1beta1 } if protobuf => EventForm::Protobuf {
                api_version: MetaVersion::from(v1beta1).api_version().to_owned(),
                kind: "PartialObjectMetadata".to_owned(),
                id: ids.protobuf_metadata(v1beta1.into()),
                cache: cache.clone(),
            },
            View::PartialMetadata { v1beta1 } => EventForm::Partial(v1beta1.into()),
        };
        let converted = (!resource.is_as_cached()).then(|| Arc::clone(resource));
        Ok(WatchView { negotiated, form, converted, ids })
    }

    /// Returns the `Content-Type` of the stream.
    pub(crate) fn content_type(&self) -> &'static str {
        self.negotiated.content_type(Purpose::Watch)
    }

    /// Returns the encoding of the events.
    pub(crate) fn encoding(&self) -> Encoding {
        self.negotiated.encoding
    }

    /// Returns the frame of an event, encoded at most once per form and shared by all watchers.
    ///
    /// # Errors
    /// 500 when the object cannot be encoded.
    pub(crate) fn event(&mut self, event: &Delivered) -> Result<Bytes, Status> {
        let encoding = self.negotiated.encoding;
        let unencodable =
            |error| Status::internal(format!("{} cannot be encoded: {error}", event.object().key().as_str()));
        let (converted, ids) = (self.converted.as_deref(), self.ids);
        let json = |object: &Object| match converted {
            Some(resource) => resource.shown_json(object.json()),
            None => object.json(),
        };
        // The JSON that contains the metadata.
        let with_metadata = |object: &Object| match converted {
            Some(resource) if !resource.has_cached_metadata() => resource.shown_json(object.json()),
            _ => object.json(),
        };
        match &mut self.form {
            EventForm::Whole if encoding == Encoding::Cbor => {
                let encode = |change: Change, object: &Object| cbor::event_frame(change.into(), &json(object));
                event.try_encoded(ids.cbor(), encode).map_err(|error| unencodable(error.to_string()))
            }
            EventForm::Whole if converted.is_some() => {
                let encode = |change: Change, object: &Object| frame(change.frame_head(), &json(object));
                Ok(event.encoded(ids.converted(), encode))
            }
            EventForm::Whole => Ok(event.json_frame()),
            EventForm::Table { view, include, version, first } => {
                // An age is that of the first encoding. A difference of a second between watchers does not justify a
                // second encoding.
                let id = ids.table(*include, *version);
                let encode = |change: Change, object: &Object, first: bool| {
                    frame(change.frame_head(), &view.event_object(&json(object), first, OffsetDateTime::now_utc()))
                };
                Ok(match std::mem::take(first) {
                    true => encode(event.change(), event.object(), true),
                    false => event.encoded(id, |change, object| encode(change, object, false)),
                })
            }
            EventForm::Partial(version) if encoding == Encoding::Cbor => {
                let id = ids.cbor_metadata(*version);
                let encode = |change: Change, object: &Object| {
                    cbor::event_frame(change.into(), &partial::object(&with_metadata(object), *version))
                };
                event.try_encoded(id, encode).map_err(|error| unencodable(error.to_string()))
            }
            EventForm::Partial(version) => Ok(event.encoded(ids.metadata(*version), |change, object| {
                frame(change.frame_head(), &partial::object(&with_metadata(object), *version))
            })),
            EventForm::Protobuf { api_version, kind, id, cache } => {
                let encode = |change: Change, object: &Object| {
                    let event = EventKind::from(change);
                    // A deleted object has no later reader, and a converted one is made for this event.
                    if change == Change::Deleted || converted.is_some() {
                        return protobuf::event_frame(event, api_version, kind, &with_metadata(object));
                    }
                    let frame = |message: &[u8]| protobuf::message_frame(event, api_version, kind, message);
                    with_message((cache, *id), (api_version, kind), object, frame)
                };
                event.try_encoded(*id, encode).map_err(|error| unencodable(error.to_string()))
            }
        }
    }

    /// Returns the frame of a bookmark.
    ///
    /// # Errors
    /// 500 when the bookmark cannot be encoded.
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
        Ok(match &mut self.form {
            EventForm::Whole if is_cbor => cbor(&bookmark.object())?,
            EventForm::Whole => bookmark.encode(),
            EventForm::Partial(version) if is_cbor => cbor(&partial::object(&bookmark.object(), *version))?,
            EventForm::Table { view, first, .. } => {
                let first = std::mem::take(first);
                frame(head, &view.event_object(&bookmark.object(), first, OffsetDateTime::now_utc()))
            }
            EventForm::Partial(version) => frame(head, &partial::object(&bookmark.object(), *version)),
            EventForm::Protobuf { api_version, kind, .. } => {
                // The encoder adds the members that Go writes for an empty object.
                let bookmark = Bookmark { api_version, kind, zero_members: "", ..bookmark };
                protobuf::bookmark_frame(&bookmark).map_err(Status::internal)?
            }
        })
    }

    /// Returns the ERROR frame that ends a watch. The object is a Status in every form.
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
