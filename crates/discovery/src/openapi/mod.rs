//! OpenAPI: the documents that describe the API to kubectl and other clients. [`OpenApi`] is a pure function of a
//! [`Registry`].
//!
//! ```text
//!  /openapi/v3                    index: each group version's document by its hash
//!  /openapi/v3/api/v1             OpenAPI 3.0, JSON or gnostic protobuf       OpenApi::v3, Answer
//!  /openapi/v3/apis/{g}/{v}
//!  /openapi/v3/version            `/version` and the documents of the token issuer: `fixed.rs`
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
//! - Group discovery and the deprecated watch paths (`/api/v1/watch/...`) have no description, in version 2 also not
//!   `/version` and the documents of the token issuer.
//!
//! A document is built when the first request needs it, once per registry. Each form of version 2 is also encoded at its
//! first request. The documents of built-in groups are built once per server. A document of custom resources is built
//! whenever a form is encoded; the caller may cache the form. The hash of such a document is that of its definitions, so
//! that the index needs no document. The hash of every other document is that of its JSON. Clients cache a document by
//! its hash.

mod descriptions;
mod fixed;
mod paths;
mod protobuf;
#[cfg(test)]
mod protobuf_tests;
mod protobuf_v2;
mod protobuf_v3;
mod schema;
mod spec3;
mod structural_v2;
#[cfg(test)]
mod tests;
mod v2;
mod v3;
mod version2;
mod version3;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use listwatch_json::{Value, json};

use listwatch_registry::{Registry, Resource};

pub use self::version2::{V2Form, Version2};
use self::version3::{Source, Version3};
pub use self::version3::{V3Document, V3Form};
use crate::document::Document;

/// The `Content-Type` of all other documents.
pub const JSON: &str = "application/json";

/// The maximum size of the schemas of all custom resources in the document of version 2, in bytes of JSON. Each form
/// that a client has requested is kept. A schema above the limit is published as an object without properties, so that
/// clients accept any members.
const CUSTOM_BYTES_MAX: usize = 16 << 20;

/// All OpenAPI documents of one registry. Each is built when the first request needs it.
#[derive(Debug)]
pub struct OpenApi {
    resources: Vec<Arc<Resource>>,
    /// The documents of the base registry of built-in kinds, which this registry extends.
    base: Option<Arc<OpenApi>>,
    v2: Arc<Version2>,
    v3: OnceLock<Version3>,
}

/// The response to a request for a version 3 document.
#[derive(Debug, Clone)]
pub enum Answer<'a> {
    /// The document of a group version, or of a path without resources.
    Document {
        /// The document, which is encoded in the form that the client accepts.
        document: &'a Arc<V3Document>,
        /// Whether the request contains the hash of the document. Clients may then cache the document without limit
        /// (`Cache-Control: public, immutable`, `Expires` in a year).
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
        let resources = registry.resources().to_vec();
        let described = resources.clone();
        let v2 = Arc::new(Version2::new(move || v2::document(&described)));
        OpenApi { resources, base, v2, v3: OnceLock::new() }
    }

    /// `/openapi/v2` in the form that the client accepts: the content type and the document. Both forms have the ETag
    /// of the JSON. `None` if the client accepts neither form (406 without a body).
    pub fn v2(&self, accept: Option<&str>) -> Option<(&'static str, Document)> {
        V2Form::negotiate(accept).map(|form| self.v2.in_form(form))
    }

    /// `/openapi/v2`, of which each form is encoded at its first use.
    pub fn version2(&self) -> &Arc<Version2> {
        &self.v2
    }

    /// Builds the JSON of `/openapi/v2`, to merge it with other documents.
    pub fn v2_json(&self) -> Value {
        v2::document(&self.resources)
    }

    /// `/openapi/v3`: the index of the documents.
    pub fn v3_index(&self) -> &Document {
        &self.version3().index
    }

    /// `/openapi/v3/{path}`, such as `api/v1`, `apis/apps/v1` or `version`. `hash` is the query parameter. The document
    /// is not encoded before the caller asks for a form.
    pub fn v3(&self, path: &str, hash: Option<&str>) -> Answer<'_> {
        let Some(document) = self.version3().documents.get(path) else {
            return Answer::Unknown;
        };
        let current = document.etag().trim_matches('"');
        match hash.filter(|hash| !hash.is_empty()) {
            Some(hash) if hash != current => Answer::Moved(hashed_url(path, current)),
            hash => Answer::Document { document, immutable: hash.is_some() },
        }
    }

    /// Whether [`OpenApi::v3_index`] and [`OpenApi::v3`] return at once.
    pub fn is_v3_built(&self) -> bool {
        self.v3.get().is_some()
    }

    fn version3(&self) -> &Version3 {
        self.v3.get_or_init(|| {
            let mut by_path: BTreeMap<String, Vec<Arc<Resource>>> = BTreeMap::new();
            for resource in &self.resources {
                by_path.entry(paths::root(resource)[1..].to_owned()).or_default().push(Arc::clone(resource));
            }
            let base = self.base.as_ref().map(|base| base.version3());
            let describe = |(path, source): (String, Source)| {
                let shared = base.and_then(|base| base.documents.get(&path));
                // No custom definition is in a built-in group version.
                (path, shared.cloned().unwrap_or_else(|| Arc::new(V3Document::new(source))))
            };
            let group_versions = by_path.into_iter().map(|(path, resources)| (path, Source::Resources(resources)));
            let fixed = fixed::DOCUMENTS.map(|(path, build)| (path.to_owned(), Source::Fixed(build)));
            let documents: BTreeMap<String, Arc<V3Document>> = group_versions.chain(fixed).map(describe).collect();
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
