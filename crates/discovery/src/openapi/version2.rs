//! [`Version2`]: the document of `/openapi/v2`. Each form is encoded at its first request.

use std::fmt;
use std::io::{BufWriter, Write as _};
use std::sync::OnceLock;

use bytes::Bytes;
use listwatch_json::Value;
use listwatch_wire::media_type::preferred;
use sha2::{Digest as _, Sha512};

use super::{JSON, protobuf_v2};
use crate::document::{self, Document};

/// The `Content-Type` of `/openapi/v2` as protobuf.
pub(super) const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The deprecated media type of `/openapi/v2` as protobuf. Clients still send it in `Accept`.
const V2_PROTOBUF_DEPRECATED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// A version 2 document. A form is encoded at its first request and kept. Both forms have the ETag of the JSON.
///
/// The document of the built-in kinds has megabytes, and most servers serve only one form. Therefore a form does not
/// keep the other form or the tree of values.
pub struct Version2 {
    source: Box<dyn Fn() -> Value + Send + Sync>,
    etag: OnceLock<String>,
    json: OnceLock<Bytes>,
    protobuf: OnceLock<Bytes>,
}

impl Version2 {
    /// Creates a document without encoding it. `source` builds the JSON of the document, and returns the same value at
    /// each call.
    pub fn new(source: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Version2 { source: Box::new(source), etag: OnceLock::new(), json: OnceLock::new(), protobuf: OnceLock::new() }
    }

    /// Returns the ETag; `None` before a form is encoded.
    pub fn etag(&self) -> Option<&str> {
        self.etag.get().map(String::as_str)
    }

    /// Returns the content type and the document in a form; `None` before the form is encoded.
    pub fn encoded(&self, form: V2Form) -> Option<(&'static str, Document)> {
        let body = self.body(form).get()?.clone();
        Some((form.content_type(), Document { body, etag: self.etag.get()?.clone() }))
    }

    /// Returns the content type and the document in a form. The first call of a form encodes the form, which takes tens
    /// of milliseconds. Concurrent calls wait for the first one.
    pub fn in_form(&self, form: V2Form) -> (&'static str, Document) {
        let encode = || match form {
            V2Form::Json => {
                let json = serde_json::to_vec(&(self.source)()).expect("a JSON value serializes");
                self.etag.get_or_init(|| document::etag(&Sha512::digest(&json)));
                json.into()
            }
            V2Form::Protobuf => {
                let value = (self.source)();
                self.etag.get_or_init(|| etag_of_json(&value));
                protobuf_v2::document(&value).into()
            }
        };
        let body = self.body(form).get_or_init(encode).clone();
        let etag = self.etag.get().expect("encoding computes the ETag").clone();
        (form.content_type(), Document { body, etag })
    }

    fn body(&self, form: V2Form) -> &OnceLock<Bytes> {
        match form {
            V2Form::Json => &self.json,
            V2Form::Protobuf => &self.protobuf,
        }
    }
}

impl fmt::Debug for Version2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |form: &OnceLock<Bytes>| form.get().map(Bytes::len);
        f.debug_struct("Version2")
            .field("etag", &self.etag)
            .field("json_bytes", &bytes(&self.json))
            .field("protobuf_bytes", &bytes(&self.protobuf))
            .finish_non_exhaustive()
    }
}

/// The ETag of the JSON of a value, computed without the JSON in memory.
fn etag_of_json(value: &Value) -> String {
    let mut digest = BufWriter::new(Sha512::new());
    serde_json::to_writer(&mut digest, value).expect("a JSON value serializes");
    digest.flush().expect("a digest accepts all bytes");
    document::etag(&digest.get_ref().clone().finalize())
}

/// The form of a version 2 document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum V2Form {
    /// JSON.
    Json,
    /// The messages of gnostic.
    Protobuf,
}

impl V2Form {
    /// The `Content-Type` of the form.
    fn content_type(self) -> &'static str {
        match self {
            V2Form::Json => JSON,
            V2Form::Protobuf => V2_PROTOBUF,
        }
    }

    /// Returns the form that an `Accept` header prefers; `None` if it accepts neither form.
    pub fn negotiate(accept: Option<&str>) -> Option<Self> {
        let protobuf = V2Form::Protobuf;
        preferred(accept, &[(JSON, V2Form::Json), (V2_PROTOBUF_DEPRECATED, protobuf), (V2_PROTOBUF, protobuf)])
    }
}
