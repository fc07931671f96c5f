//! OpenAPI: the documents that describe the API to kubectl and other clients. [`OpenApi`] is a pure function of a
//! [`Registry`].
//!
//! ```text
//!  /openapi/v3                    index: each group version's document by the hash of its bytes
//!  /openapi/v3/api/v1             OpenAPI 3.0, JSON        OpenApi::v3, Answer
//!  /openapi/v3/apis/{g}/{v}
//!  /openapi/v2                    all resources, JSON or gnostic protobuf     OpenApi::v2
//! ```
//!
//! The documents describe paths, verbs, parameters, media types and kinds. For the objects of a built-in kind they
//! describe names, types, values, defaults, and how lists and maps merge. kubectl explains objects and computes
//! strategic merge patches with these descriptions. The documents differ from kube-apiserver's:
//!
//! - Descriptions are short texts of this project (`descriptions.txt`, `descriptions_by_name.txt`).
//! - A custom resource without a schema is an object with metadata and any other members. In version 2, the schemas of
//!   custom resources have at most [`CUSTOM_BYTES_MAX`] in total. Schemas above the limit are published as objects
//!   without properties.
//! - Version 2 describes POST, PUT and PATCH only. Clients of version 2 read no other operations.
//! - Group discovery, `/version` and the deprecated watch paths (`/api/v1/watch/...`) have no description.
//!
//! A document is built when the first request needs it, once per registry. The documents of built-in groups are built
//! once per server. A document of custom resources is built for each request. The hash of such a document is that of
//! its definitions, so that the index needs no document. Clients cache a document by its hash.

mod descriptions;
mod paths;
mod protobuf;
mod schema;
mod spec3;
mod structural_v2;
#[cfg(test)]
mod tests;
mod v2;
mod v3;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use listwatch_json::json;

use listwatch_registry::{Registry, Resource};

use crate::document::Document;

/// The `Content-Type` of `/openapi/v2` as protobuf.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The deprecated media type of `/openapi/v2` as protobuf. Clients still send it in `Accept`.
const V2_PROTOBUF_DEPRECATED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The `Content-Type` of all other documents.
pub const JSON: &str = "application/json";

/// The maximum size of the schemas of all custom resources in the document of version 2, in bytes of JSON. The document
/// is kept in both forms. A schema above the limit is published as an object without properties, so that clients accept
/// any members.
const CUSTOM_BYTES_MAX: usize = 16 << 20;

/// All OpenAPI documents of one registry. Each is built when the first request needs it.
#[derive(Debug)]
pub struct OpenApi {
    resources: Vec<Arc<Resource>>,
    /// The documents of the base registry of built-in kinds, which this registry extends.
    base: Option<Arc<OpenApi>>,
    v2: OnceLock<Version2>,
    v3: OnceLock<Version3>,
}

#[derive(Debug)]
struct Version2 {
    json: Document,
    protobuf: Bytes,
}

#[derive(Debug)]
struct Version3 {
    index: Document,
    /// The documents by their path below `/openapi/v3/`: `api/v1`, `apis/apps/v1`.
    documents: BTreeMap<String, Published>,
}

/// A version 3 document.
#[derive(Debug)]
enum Published {
    /// The document is built.
    Made(Document),
    /// The document is built from these resources for each request, and has this ETag.
    OnDemand(Vec<Arc<Resource>>, String),
}

impl Published {
    fn new(resources: Vec<Arc<Resource>>) -> Self {
        let named: Option<Vec<String>> = resources.iter().map(|resource| resource.openapi_name()).collect();
        match named {
            Some(names) => {
                let etag = Document::new(names.join("\n")).etag;
                Published::OnDemand(resources, etag)
            }
            None => Published::Made(make(&resources)),
        }
    }

    fn etag(&self) -> &str {
        match self {
            Published::Made(document) => &document.etag,
            Published::OnDemand(_, etag) => etag,
        }
    }

    fn document(&self) -> Cow<'_, Document> {
        match self {
            Published::Made(document) => Cow::Borrowed(document),
            Published::OnDemand(resources, etag) => {
                Cow::Owned(Document { body: make(resources).body, etag: etag.clone() })
            }
        }
    }
}

fn make(resources: &[Arc<Resource>]) -> Document {
    let resources: Vec<&Resource> = resources.iter().map(|resource| &**resource).collect();
    Document::new(serde_json::to_vec(&v3::document(&resources)).expect("a JSON value serializes"))
}

/// The response to a request for a version 3 document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The document. `immutable` is true if the request contains the hash of the document: clients may then cache the
    /// document without limit (`Cache-Control: public, immutable`, `Expires` in a year).
    Document {
        /// The bytes and their ETag.
        document: Cow<'a, Document>,
        /// Whether the request contains the hash of these bytes.
        immutable: bool,
    },
    /// The request contains another hash: a redirect (301) to this path and query.
    Moved(String),
    /// The group version is unknown: 200 with an empty body, as in kube-apiserver.
    Unknown,
}

impl OpenApi {
    /// Creates the documents of a registry without building them. `base` holds the documents of the registry that this
    /// registry extends; its version 3 documents are shared.
    pub fn new(registry: &Registry, base: Option<Arc<OpenApi>>) -> Self {
        OpenApi { resources: registry.resources().to_vec(), base, v2: OnceLock::new(), v3: OnceLock::new() }
    }

    /// `/openapi/v2` in the form that the client accepts: the content type and the document. Both forms have the ETag
    /// of the JSON. `None` if the client accepts neither form (406 without a body).
    pub fn v2(&self, accept: Option<&str>) -> Option<(&'static str, Document)> {
        let protobuf = wants_protobuf(accept)?;
        let documents = self.v2.get_or_init(|| {
            let value = v2::document(&self.resources);
            let json = serde_json::to_vec(&value).expect("a JSON value serializes");
            Version2 { json: Document::new(json), protobuf: protobuf::document(&value).into() }
        });
        Some(if protobuf {
            let document = Document { body: documents.protobuf.clone(), etag: documents.json.etag.clone() };
            (V2_PROTOBUF, document)
        } else {
            (JSON, documents.json.clone())
        })
    }

    /// `/openapi/v3`: the index of the documents.
    pub fn v3_index(&self) -> &Document {
        &self.version3().index
    }

    /// `/openapi/v3/{path}`, such as `api/v1` or `apis/apps/v1`, in JSON. `hash` is the query parameter.
    pub fn v3(&self, path: &str, hash: Option<&str>) -> Answer<'_> {
        let Some(published) = self.version3().documents.get(path) else {
            return Answer::Unknown;
        };
        let own = published.etag().trim_matches('"');
        match hash.filter(|hash| !hash.is_empty()) {
            None => Answer::Document { document: published.document(), immutable: false },
            Some(hash) if hash == own => Answer::Document { document: published.document(), immutable: true },
            Some(_) => Answer::Moved(hashed_url(path, own)),
        }
    }

    fn version3(&self) -> &Version3 {
        self.v3.get_or_init(|| {
            let mut by_path: BTreeMap<String, Vec<Arc<Resource>>> = BTreeMap::new();
            for resource in &self.resources {
                by_path.entry(paths::root(resource)[1..].to_owned()).or_default().push(Arc::clone(resource));
            }
            let base = self.base.as_ref().map(|base| base.version3());
            let publish = |(path, resources): (String, Vec<Arc<Resource>>)| {
                let known = base.and_then(|base| base.documents.get(&path));
                // No custom definition is in a built-in group version.
                let published = match known {
                    Some(known) => Published::Made(known.document().into_owned()),
                    None => Published::new(resources),
                };
                (path, published)
            };
            let documents: BTreeMap<String, Published> = by_path.into_iter().map(publish).collect();
            let paths: listwatch_json::Map = documents
                .iter()
                .map(|(path, document)| {
                    let url = hashed_url(path, document.etag().trim_matches('"'));
                    (path.clone(), json!({ "serverRelativeURL": url }))
                })
                .collect();
            let index = json!({ "paths": paths }).to_string();
            Version3 { index: Document::new(index), documents }
        })
    }
}

fn hashed_url(path: &str, hash: &str) -> String {
    format!("/openapi/v3/{path}?hash={hash}")
}

/// Whether an `Accept` header prefers protobuf for version 2; `None` if it accepts neither form. The clause with the
/// highest `q` is used; among equals, the first one.
fn wants_protobuf(accept: Option<&str>) -> Option<bool> {
    let accept = accept.filter(|accept| !accept.trim().is_empty()).unwrap_or("*/*");
    let mut clauses: Vec<(f32, &str)> = accept
        .split(',')
        .map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let q = parts.find_map(|parameter| parameter.strip_prefix("q=")).and_then(|q| q.parse().ok());
            (q.unwrap_or(1.0), media_type)
        })
        .collect();
    clauses.sort_by(|a, b| b.0.total_cmp(&a.0));
    clauses.into_iter().find_map(|(_, media_type)| match media_type {
        JSON | "*/*" | "application/*" => Some(false),
        V2_PROTOBUF | V2_PROTOBUF_DEPRECATED => Some(true),
        _ => None,
    })
}
