//! Negotiates the form of objects, lists and errors once per request, and applies the form ([`ObjectView`],
//! [`ListView`], [`StatusView`]). [`WatchView`](super::watch_view::WatchView) is the form of events.

use std::sync::Arc;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use listwatch_cacher::{EncodingCache, List};
use listwatch_json::{Map, json};
use listwatch_meta::{Object, ShardSelector, Status};
use listwatch_table::{IncludeObject, ListMeta, MetaVersion, TableView, partial};
use listwatch_wire::list::{ListBody, ListMeta as ListBodyMeta};
use listwatch_wire::media_type::{Encoding, Negotiated, Purpose, Served, View, negotiate, wants_pretty};
use listwatch_wire::pretty::Indenter;
use listwatch_wire::protobuf;
use time::OffsetDateTime;

use crate::audit::{AuditedRequest, json_payload, list_payload};
use crate::response::body::{Body, Format};
use crate::response::encode::encode;
use crate::response::encoding_ids::EncodingIds;
use crate::response::kept_message::with_message;
use crate::response::list::{self, ListForm};
use crate::response::preferences::ResponsePreferences;
use crate::response::respond;
use listwatch_registry::Resource;

/// The form of one object.
pub(crate) struct ObjectView {
    negotiated: Negotiated,
    format: Format,
    include: IncludeObject,
    audited: Option<Arc<AuditedRequest>>,
}

impl ObjectView {
    /// Negotiates the form of an object of a resource.
    ///
    /// # Errors
    /// 406 if the client accepts no form of the server; 400 for an unsupported `includeObject`.
    pub(crate) fn negotiate(preferences: &ResponsePreferences, resource: &Resource) -> Result<Self, Status> {
        Self::from(preferences, preferences.served(resource))
    }

    /// Negotiates the form of a Scale of a resource. A Scale is a typed object, so protobuf is also served for a custom
    /// resource. The router checks the header for built-in resources only (`customresource_handler.go`, `scaleScope`).
    ///
    /// # Errors
    /// 406 if the client accepts no form of the server; 400 for an unsupported `includeObject`.
    pub(crate) fn negotiate_scale(preferences: &ResponsePreferences, resource: &Resource) -> Result<Self, Status> {
        Self::from(preferences, Served { builtin: !resource.custom, cbor: preferences.cbor(), ..Served::BUILTIN })
    }

    /// Negotiates the form of an object without Table and metadata views, such as a review.
    ///
    /// # Errors
    /// 406 if the client accepts no form of the server.
    pub(crate) fn plain(preferences: &ResponsePreferences) -> Result<Self, Status> {
        Self::from(preferences, Served { table: false, partial: false, cbor: preferences.cbor(), ..Served::BUILTIN })
    }

    fn from(preferences: &ResponsePreferences, served: Served) -> Result<Self, Status> {
        let negotiated = negotiate(preferences.accept(), Purpose::Object, &served)?;
        let pretty = wants_pretty(preferences.pretty(), &negotiated, preferences.user_agent());
        let format = Format { pretty, gzip: preferences.compressed_blocks() };
        let include = preferences.include_object(negotiated.view)?;
        Ok(ObjectView { negotiated, format, include, audited: preferences.audited_response() })
    }

    /// Returns the response with an object.
    ///
    /// # Errors
    /// 500 when the object cannot be encoded.
    pub(crate) fn object(
        &self,
        code: u16,
        resource: &Arc<Resource>,
        object: &Object,
    ) -> Result<Response<Body>, Status> {
        self.bytes(code, resource, resource.shown(object).json())
    }

    /// Whether the response is a complete object in protobuf.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.negotiated, Negotiated { encoding: Encoding::Protobuf, view: View::Full, .. })
    }

    /// Returns the response with a stored object. In protobuf, the message is shared with events and lists of the same
    /// object.
    ///
    /// # Errors
    /// 500 when the object cannot be encoded.
    pub(crate) fn stored_object(
        &self,
        code: u16,
        resource: &Arc<Resource>,
        object: &Object,
        cache: &EncodingCache,
    ) -> Result<Response<Body>, Status> {
        if !self.is_message() || !resource.is_as_cached() || self.audited.is_some() {
            return self.object(code, resource, object);
        }
        let (api_version, kind) = (resource.api_version(), resource.kind.as_str());
        let kept = (cache, EncodingIds::of(resource).protobuf());
        let body = with_message(kept, (&api_version, kind), object, |message| {
            Bytes::from(protobuf::body(&api_version, kind, message))
        });
        self.body(code, body.map_err(Status::internal)?)
    }

    /// Returns the response with an object, which is given as JSON in the requested version.
    ///
    /// # Errors
    /// 500 when the object cannot be encoded.
    pub(crate) fn bytes(&self, code: u16, resource: &Arc<Resource>, json: Bytes) -> Result<Response<Body>, Status> {
        self.viewed(code, json, |version| TableView::new(resource, self.include, version))
    }

    /// Returns the response with a Scale of a resource, which is given as JSON.
    ///
    /// # Errors
    /// 500 when the Scale cannot be encoded.
    pub(crate) fn scale(&self, code: u16, resource: &Arc<Resource>, json: Bytes) -> Result<Response<Body>, Status> {
        self.viewed(code, json, |version| TableView::of_scale(resource, self.include, version))
    }

    /// Returns the response with an object in the negotiated view. `table` creates the Table view.
    fn viewed(
        &self,
        code: u16,
        json: Bytes,
        table: impl FnOnce(MetaVersion) -> TableView,
    ) -> Result<Response<Body>, Status> {
        let json = match self.negotiated.view {
            View::Full => json,
            View::Table { v1beta1 } => table(v1beta1.into()).event_object(&json, true, OffsetDateTime::now_utc()),
            View::PartialMetadata { v1beta1 } => partial::object(&json, v1beta1.into()),
        };
        self.json(code, json)
    }

    /// Returns the response with a list of a few objects in the negotiated view, e.g. those that a deletecollection has
    /// deleted.
    ///
    /// # Errors
    /// 500 when the list cannot be encoded.
    pub(crate) fn list(
        &self,
        code: u16,
        resource: &Arc<Resource>,
        meta: &ListBodyMeta,
        objects: &[Object],
    ) -> Result<Response<Body>, Status> {
        let shown: Vec<_> = objects.iter().map(|object| resource.shown(object)).collect();
        let rows = shown.iter().map(|object| object.json_slice());
        let mut json = match self.negotiated.view {
            View::Full => {
                let items = shown.iter().map(|object| Object::clone(object));
                let chunks: Vec<_> = ListBody::new(meta, resource.list_style(), items).collect();
                Bytes::from(chunks.concat())
            }
            View::Table { v1beta1 } => {
                let view = TableView::new(resource, self.include, v1beta1.into());
                view.list(rows, &list::table_meta(meta), OffsetDateTime::now_utc())
            }
            View::PartialMetadata { v1beta1 } => partial::list(rows, &list::table_meta(meta), v1beta1.into()),
        };
        // The encoder adds the final newline.
        if json.last() == Some(&b'\n') {
            json.truncate(json.len() - 1);
        }
        self.json(code, json)
    }

    /// Returns the response with a document, which is given as JSON without a final newline.
    ///
    /// # Errors
    /// 500 when the object cannot be encoded.
    pub(crate) fn json(&self, code: u16, json: Bytes) -> Result<Response<Body>, Status> {
        let body = encode(&json, self.negotiated.encoding)?;
        if let Some(audited) = &self.audited {
            audited.set_response_object(json_payload(json.clone()));
        }
        self.body(code, body)
    }

    fn body(&self, code: u16, body: Bytes) -> Result<Response<Body>, Status> {
        let body = Body::chunks(Box::new(std::iter::once(Ok(body))), &self.format).map_err(Status::internal)?;
        let mut response = respond::ok(self.negotiated.content_type(Purpose::Object), body);
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
        Ok(response)
    }
}

/// Returns the response with a Status, in a form that the client accepts or otherwise as indented JSON.
pub(crate) fn status_response(preferences: &ResponsePreferences, status: &Status) -> Response<Body> {
    if let Some(audited) = preferences.audited() {
        audited.set_status(status);
    }
    if let Some(audited) = preferences.audited_response() {
        audited.set_response_object(json_payload(status.to_json().into()));
    }
    let mut response = StatusView::negotiate(preferences).status(status);
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::OK);
    if let Some(seconds) = status.retry_after_seconds() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The form of a Status: the encoding, and whether JSON is indented. `None` is the default form.
struct StatusView(Option<(Encoding, bool)>);

impl StatusView {
    fn negotiate(preferences: &ResponsePreferences) -> Self {
        let served = Served { cbor: preferences.cbor(), ..Served::STATUS };
        let negotiated = negotiate(preferences.accept(), Purpose::Object, &served).ok();
        StatusView(negotiated.map(|negotiated| {
            (negotiated.encoding, wants_pretty(preferences.pretty(), &negotiated, preferences.user_agent()))
        }))
    }

    fn status(&self, status: &Status) -> Response<Body> {
        let json = status.to_json();
        if let Some((encoding, pretty)) = self.0
            && let Ok(body) = encode(&json, encoding)
        {
            let body = if pretty { Indenter::default().chunk(&body) } else { body };
            return respond::ok(encoding.media_type(), Body::full(body));
        }
        respond::ok(Encoding::Json.media_type(), Body::full(Indenter::default().chunk(&json)))
    }
}

/// The form of a collection.
pub(crate) struct ListView {
    negotiated: Negotiated,
    format: Format,
    include: IncludeObject,
    audited: Option<Arc<AuditedRequest>>,
}

impl ListView {
    /// Negotiates the form of a collection.
    ///
    /// # Errors
    /// 406 if the client accepts no form of the server; 400 for an unsupported `includeObject`.
    pub(crate) fn negotiate(preferences: &ResponsePreferences, resource: &Resource) -> Result<Self, Status> {
        let negotiated = negotiate(preferences.accept(), Purpose::List, &preferences.served(resource))?;
        let pretty = wants_pretty(preferences.pretty(), &negotiated, preferences.user_agent());
        let format = Format { pretty, gzip: preferences.compressed_blocks() };
        let include = preferences.include_object(negotiated.view)?;
        Ok(ListView { negotiated, format, include, audited: preferences.audited_response() })
    }

    /// Returns the response that streams a list.
    ///
    /// # Errors
    /// 500 when the object cannot be encoded.
    pub(crate) async fn list(
        &self,
        resource: &Arc<Resource>,
        list: List,
        shard: Option<&ShardSelector>,
        cache: &EncodingCache,
    ) -> Result<Response<Body>, Status> {
        let Negotiated { encoding, view, .. } = self.negotiated;
        if let Some(audited) = &self.audited {
            let copy = List {
                revision: list.revision,
                continue_token: list.continue_token.clone(),
                remaining: list.remaining,
                items: list.items.clone(),
                undecodable: Vec::new(),
            };
            let form = ListForm { encoding: Encoding::Json, view, include: self.include, gzip: false };
            audited.set_response_object(list_payload(list::chunks(resource, copy, shard, form, cache).await?));
        }
        let form = ListForm { encoding, view, include: self.include, gzip: self.format.gzip.is_some() };
        let chunks = list::chunks(resource, list, shard, form, cache).await?;
        let body = Body::chunks(chunks, &self.format).map_err(Status::internal)?;
        Ok(respond::ok(self.negotiated.content_type(Purpose::List), body))
    }

    /// Returns the response with a list of computed objects that are not stored. Each object is given as JSON.
    ///
    /// # Errors
    /// 500 when an object cannot be encoded.
    pub(crate) fn documents(&self, resource: &Arc<Resource>, items: &[Bytes]) -> Result<Response<Body>, Status> {
        let Negotiated { encoding, view, .. } = self.negotiated;
        let (api_version, kind) = match view {
            View::PartialMetadata { v1beta1 } => {
                (MetaVersion::from(v1beta1).api_version().to_owned(), "PartialObjectMetadataList".to_owned())
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
                    let mut item: Map = serde_json::from_slice(&item).map_err(Status::internal)?;
                    if view == View::Full {
                        // Items of a list have no `apiVersion` and `kind`.
                        item.retain(|name, _| !matches!(name.as_str(), "kind" | "apiVersion"));
                    }
                    shown.push(item);
                }
                json!({"kind": kind, "apiVersion": api_version, "metadata": {}, "items": shown}).to_string().into()
            }
        };
        if let Some(audited) = &self.audited {
            audited.set_response_object(json_payload(list.clone()));
        }
        let body = encode(list.trim_ascii_end(), encoding)?;
        let body = Body::chunks(Box::new(std::iter::once(Ok(body))), &self.format).map_err(Status::internal)?;
        Ok(respond::ok(self.negotiated.content_type(Purpose::List), body))
    }
}

#[cfg(test)]
mod tests {
    use listwatch_registry::Registry;

    #[test]
    fn every_built_in_kind_can_be_encoded_as_protobuf() {
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
