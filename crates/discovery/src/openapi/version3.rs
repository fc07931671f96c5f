//! [`Version3`]: the documents below `/openapi/v3/`. Each document has two forms.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use listwatch_json::Value;
use listwatch_registry::Resource;
use listwatch_wire::media_type::preferred;

use super::{JSON, protobuf_v3, v3};
use crate::document::Document;

/// The `Content-Type` of a version 3 document as protobuf.
pub(super) const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
/// The deprecated media type of a version 3 document as protobuf. client-go sends it in `Accept`.
const V3_PROTOBUF_DEPRECATED: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// The form of a version 3 document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum V3Form {
    /// JSON.
    Json,
    /// The messages of gnostic.
    Protobuf,
}

impl V3Form {
    /// Returns the form that an `Accept` header prefers; `None` if it accepts neither form (406 without a body).
    pub fn negotiate(accept: Option<&str>) -> Option<Self> {
        let protobuf = V3Form::Protobuf;
        preferred(accept, &[(JSON, V3Form::Json), (V3_PROTOBUF, protobuf), (V3_PROTOBUF_DEPRECATED, protobuf)])
    }

    /// The `Content-Type` of the form.
    pub fn content_type(self) -> &'static str {
        match self {
            V3Form::Json => JSON,
            V3Form::Protobuf => V3_PROTOBUF,
        }
    }
}

#[derive(Debug)]
pub(super) struct Version3 {
    pub(super) index: Document,
    /// The documents by their path below `/openapi/v3/`: `api/v1`, `apis/apps/v1`, `version`.
    pub(super) documents: BTreeMap<String, Arc<V3Document>>,
}

/// The version 3 document of one group version, or of a path without resources. Both forms have one ETag.
///
/// | document | ETag | kept in memory |
/// |---|---|---|
/// | of built-in kinds, or of a path without resources | SHA-512 of the JSON | the JSON, and the protobuf after its first request |
/// | of custom resources | SHA-512 of the names and generations of the definitions | no form |
#[derive(Debug)]
pub struct V3Document {
    source: Source,
    etag: String,
    /// `None` for a document of custom resources.
    kept: Option<KeptForms>,
}

/// The source of a document.
#[derive(Debug)]
pub(super) enum Source {
    /// The resources of one group version.
    Resources(Vec<Arc<Resource>>),
    /// A function that always builds the same document.
    Fixed(fn() -> Value),
}

impl Source {
    fn encode(&self, form: V3Form) -> Bytes {
        let document: Value = match self {
            Source::Resources(resources) => {
                let resources: Vec<&Resource> = resources.iter().map(|resource| &**resource).collect();
                v3::document(&resources)
            }
            Source::Fixed(build) => build(),
        };
        match form {
            V3Form::Json => serde_json::to_vec(&document).expect("a JSON value serializes").into(),
            V3Form::Protobuf => protobuf_v3::document(&document).into(),
        }
    }
}

#[derive(Debug)]
struct KeptForms {
    json: Bytes,
    protobuf: OnceLock<Bytes>,
}

impl V3Document {
    pub(super) fn new(source: Source) -> Self {
        let definitions: Option<Vec<String>> = match &source {
            Source::Resources(resources) => resources.iter().map(|resource| resource.openapi_name()).collect(),
            Source::Fixed(_) => None,
        };
        let (etag, kept) = match definitions {
            Some(definitions) => (Document::new(definitions.join("\n")).etag, None),
            None => {
                let Document { body, etag } = Document::new(source.encode(V3Form::Json));
                (etag, Some(KeptForms { json: body, protobuf: OnceLock::new() }))
            }
        };
        V3Document { source, etag, kept }
    }

    /// The value of the `ETag` header with its quotes.
    pub fn etag(&self) -> &str {
        &self.etag
    }

    /// Whether the document keeps the forms that are encoded. The documents of custom resources keep none.
    pub fn keeps_forms(&self) -> bool {
        self.kept.is_some()
    }

    /// Returns a form that is kept; `None` if the form must be encoded.
    pub fn kept(&self, form: V3Form) -> Option<&Bytes> {
        let kept = self.kept.as_ref()?;
        match form {
            V3Form::Json => Some(&kept.json),
            V3Form::Protobuf => kept.protobuf.get(),
        }
    }

    /// Returns a form, and encodes the form if it is not kept. Encoding a large document takes tens of milliseconds.
    pub fn encode(&self, form: V3Form) -> Bytes {
        match (&self.kept, form) {
            (Some(kept), V3Form::Json) => kept.json.clone(),
            (Some(kept), V3Form::Protobuf) => kept.protobuf.get_or_init(|| self.source.encode(form)).clone(),
            (None, form) => self.source.encode(form),
        }
    }
}
