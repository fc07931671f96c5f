//! OpenAPI: what kubectl and other clients ask about the API's form, as [`OpenApi`], a pure
//! function of a [`Registry`].
//!
//! ```text
//!  /openapi/v3                    index: each group version's document by the hash of its bytes
//!  /openapi/v3/api/v1             OpenAPI 3.0, JSON        OpenApi::v3, Answer
//!  /openapi/v3/apis/{g}/{v}
//!  /openapi/v2                    everything, JSON or gnostic protobuf     OpenApi::v2
//! ```
//!
//! The documents say which paths, verbs, parameters and media types there are, which kind each is for,
//! and what a built-in kind's objects hold: names, types, values, defaults, and how lists and maps
//! merge, so that kubectl explains them and works out strategic merge patches from them. Where they
//! differ from kube-apiserver's:
//!
//! - Descriptions are our own and short (`descriptions.txt`, `descriptions_by_name.txt`).
//! - A custom resource that brings no schema is an object with metadata and anything else. In version
//!   2 custom resources are not tied to a kind (`x-kubernetes-group-version-kind`): older clients skip
//!   validation of kinds that they do not find.
//! - Version 2 describes POST, PUT and PATCH alone, which is what clients of version 2 look at.
//! - Group discovery, `/version` and watch paths of old (`/api/v1/watch/...`) have no description.
//!
//! Documents are made when first asked for, once per registry ([`Registry::openapi`]); those of
//! built-in kinds once for all registries that a server has one after the other. A document of custom
//! resources is made for each request: it is named after the definitions that it is made of, so that
//! the index costs none of them, and clients keep what they have by that name.

mod descriptions;
mod paths;
mod protobuf;
mod schema;
mod spec3;
#[cfg(test)]
mod tests;
mod v2;
mod v3;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::discovery::Document;
use crate::registry::{Registry, Resource};

/// The `Content-Type` of `/openapi/v2` as protobuf.
pub const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The name by which clients still ask for it.
const V2_PROTOBUF_DEPRECATED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The `Content-Type` of everything else.
pub const JSON: &str = "application/json";

/// All OpenAPI documents of one registry; each is made when first asked for.
#[derive(Debug)]
pub struct OpenApi {
    resources: Vec<Arc<Resource>>,
    /// The registry of built-in kinds that this one extends.
    base: Option<Arc<Registry>>,
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
    /// By path below `/openapi/v3/`: `api/v1`, `apis/apps/v1`.
    documents: BTreeMap<String, Published>,
}

/// A version 3 document.
#[derive(Debug)]
enum Published {
    /// It is there.
    Made(Document),
    /// It is made of these resources whenever it is asked for, and has this ETag.
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

/// What to answer to a request for a version 3 document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The document. `immutable` when the request named its hash: the answer may be kept for ever
    /// (`Cache-Control: public, immutable`, `Expires` a year ahead).
    Document {
        /// The bytes and their ETag.
        document: Cow<'a, Document>,
        /// The request named the hash of these bytes.
        immutable: bool,
    },
    /// The request named another hash: 301 to this path and query.
    Moved(String),
    /// No such group version: 200 with an empty body, as kube-apiserver has it.
    Unknown,
}

impl OpenApi {
    /// The documents of a registry, none of them made yet.
    pub fn new(registry: &Registry) -> Self {
        let base = registry.base().cloned();
        OpenApi { resources: registry.resources().to_vec(), base, v2: OnceLock::new(), v3: OnceLock::new() }
    }

    /// `/openapi/v2` as the client would have it: the content type and the document. Both forms have
    /// the ETag of the JSON. `None` when the client accepts neither: 406 without a body.
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

    /// `/openapi/v3`: which documents there are.
    pub fn v3_index(&self) -> &Document {
        &self.version3().index
    }

    /// `/openapi/v3/{path}`, e.g. `api/v1` or `apis/apps/v1`, with the `hash` parameter if the
    /// request has one. Always JSON.
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
                by_path.entry(root(resource)[1..].to_owned()).or_default().push(Arc::clone(resource));
            }
            let base = self.base.as_ref().map(|base| base.openapi().version3());
            let publish = |(path, resources): (String, Vec<Arc<Resource>>)| {
                let known = base.and_then(|base| base.documents.get(&path));
                // Definitions are kept out of the group versions that are built in.
                let published = match known {
                    Some(known) => Published::Made(known.document().into_owned()),
                    None => Published::new(resources),
                };
                (path, published)
            };
            let documents: BTreeMap<String, Published> = by_path.into_iter().map(publish).collect();
            let paths: serde_json::Map<String, Value> = documents
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

/// `/api/v1`, `/apis/apps/v1`: where a resource's group version is served.
fn root(resource: &Resource) -> String {
    match resource.group.as_str() {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    }
}

/// Which form of version 2 an `Accept` header asks for; `None` for neither. The clause with the
/// highest `q` counts, the first of equals.
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
