//! [`Documents`]: discovery, OpenAPI, version and index of the current registry. The route selects a document. The
//! crate [`listwatch_discovery`] builds the documents.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use listwatch_discovery::openapi::{self, OpenApi};
use listwatch_discovery::{AGGREGATED_CONTENT_TYPE, Discovery, VersionInfo};
use listwatch_meta::Status;
use listwatch_registry::Registry;
use listwatch_wire::query::Query;
use parking_lot::Mutex;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::request::routing::Route;

/// A document and its headers.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
    pub(crate) etag: Option<String>,
    pub(crate) cache_control: Option<&'static str>,
    pub(crate) expires: Option<String>,
    /// The target of a redirect (301).
    pub(crate) location: Option<String>,
}

const JSON: &str = "application/json";

impl Document {
    pub(crate) fn json(body: Bytes) -> Self {
        Document { content_type: JSON, body, ..Document::default() }
    }

    pub(crate) fn of(content_type: &'static str, document: &listwatch_discovery::Document) -> Self {
        Document { content_type, body: document.body.clone(), etag: Some(document.etag.clone()), ..Document::default() }
    }
}

/// The time for which clients may cache a document with its hash in the URL, in seconds.
const IMMUTABLE_SECONDS: i64 = 365 * 24 * 3600;

impl Document {
    /// Marks the document as immutable. Used if the request contains the hash of the document.
    fn immutable(mut self) -> Self {
        let expires = OffsetDateTime::now_utc() + time::Duration::seconds(IMMUTABLE_SECONDS);
        // RFC 9110 IMF-fixdate.
        let format =
            format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");
        self.cache_control = Some("public, immutable");
        self.expires = expires.format(format).ok();
        self
    }
}

/// The parts of a request that select the form of a document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DocumentRequest<'a> {
    /// The `Accept` header, all its lines joined.
    pub(crate) accept: Option<&'a str>,
    /// The `Host` header, for documents that name the server.
    pub(crate) host: Option<&'a str>,
    pub(crate) query: &'a Query<'a>,
}

/// The documents of the current registry. Each document is built at its first request.
#[derive(Debug, Default)]
pub(crate) struct Documents(Mutex<Option<Arc<RegistryDocuments>>>);

/// The documents of one registry.
#[derive(Debug)]
struct RegistryDocuments {
    registry: Arc<Registry>,
    /// The documents of the base registry. They are shared, so that the documents of built-in groups are built only
    /// once.
    base: Option<Arc<RegistryDocuments>>,
    discovery: OnceLock<Discovery>,
    openapi: OnceLock<Arc<OpenApi>>,
}

impl RegistryDocuments {
    fn new(registry: Arc<Registry>, base: Option<Arc<RegistryDocuments>>) -> Arc<Self> {
        Arc::new(RegistryDocuments { registry, base, discovery: OnceLock::new(), openapi: OnceLock::new() })
    }

    fn discovery(&self) -> &Discovery {
        self.discovery.get_or_init(|| Discovery::new(&self.registry))
    }

    fn openapi(&self) -> &Arc<OpenApi> {
        self.openapi.get_or_init(|| {
            let base = self.base.as_ref().map(|base| Arc::clone(base.openapi()));
            Arc::new(OpenApi::new(&self.registry, base))
        })
    }
}

impl Documents {
    /// Returns the documents of a registry, and drops the documents of the previous registry.
    fn of(&self, registry: &Arc<Registry>) -> Arc<RegistryDocuments> {
        let mut current = self.0.lock();
        if let Some(documents) = current.as_ref().filter(|documents| Arc::ptr_eq(&documents.registry, registry)) {
            return Arc::clone(documents);
        }
        let base = registry.base().map(|base| {
            let known = current.iter().flat_map(|documents| documents.base.iter().chain([documents]));
            let known = known.into_iter().find(|documents| Arc::ptr_eq(&documents.registry, base));
            known.map_or_else(|| RegistryDocuments::new(Arc::clone(base), None), Arc::clone)
        });
        Arc::clone(current.insert(RegistryDocuments::new(Arc::clone(registry), base)))
    }

    /// Returns the aggregated form of `/apis`.
    pub(crate) fn aggregated_apis(&self, registry: &Arc<Registry>) -> Bytes {
        self.of(registry).discovery().aggregated_apis().body.clone()
    }

    /// Returns the OpenAPI documents.
    pub(crate) fn openapi(&self, registry: &Arc<Registry>) -> Arc<OpenApi> {
        Arc::clone(self.of(registry).openapi())
    }

    /// Returns the document of a route.
    ///
    /// # Errors
    /// 404 for a group or version that is not served; 406 if the client accepts no form of the document.
    pub(crate) fn document(
        &self,
        registry: &Arc<Registry>,
        route: &Route<'_>,
        request: DocumentRequest<'_>,
    ) -> Result<Document, Status> {
        document(&self.of(registry), route, request)
    }
}

fn document(
    documents: &RegistryDocuments,
    route: &Route<'_>,
    request: DocumentRequest<'_>,
) -> Result<Document, Status> {
    let discovery = documents.discovery();
    match route {
        Route::Version => Ok(Document::json(VersionInfo::current().body())),
        Route::Index => Ok(Document::json(index(&documents.registry))),
        Route::CoreVersions => {
            let host = request.host.unwrap_or("127.0.0.1:6443");
            aggregated_or(request.accept, discovery.aggregated_api(), || Discovery::api(host))
        }
        Route::Groups => aggregated_or(request.accept, discovery.aggregated_apis(), || discovery.apis()),
        Route::Group(group) => discovery.group(group).map(Document::json).ok_or_else(Status::no_such_resource),
        Route::GroupVersion { group, version } => {
            discovery.resources(group, version).map(Document::json).ok_or_else(Status::no_such_resource)
        }
        Route::OpenApiV2 => {
            let (content_type, document) = documents.openapi().v2(request.accept).ok_or_else(not_acceptable)?;
            Ok(Document::of(content_type, &document))
        }
        Route::OpenApiV3Index => Ok(Document::of(JSON, documents.openapi().v3_index())),
        Route::OpenApiV3(path) => Ok(match documents.openapi().v3(path, request.query.get("hash")) {
            openapi::Answer::Document { document, immutable } => {
                let answer = Document::of(JSON, &document);
                if immutable { answer.immutable() } else { answer }
            }
            openapi::Answer::Moved(location) => Document { location: Some(location), ..Document::default() },
            openapi::Answer::Unknown => Document::json(Bytes::new()),
        }),
        Route::Resource(_) | Route::Unstored(_) | Route::Health { .. } | Route::Issuer(_) | Route::Metrics => {
            Err(Status::internal("not a document"))
        }
    }
}

/// Returns the aggregated form if the client prefers it, and otherwise the legacy form.
pub(crate) fn aggregated_or(
    accept: Option<&str>,
    aggregated: &listwatch_discovery::Document,
    legacy: impl FnOnce() -> Bytes,
) -> Result<Document, Status> {
    match discovery_form(accept) {
        Some(DiscoveryForm::Aggregated) => Ok(Document::of(AGGREGATED_CONTENT_TYPE, aggregated)),
        Some(DiscoveryForm::Legacy) => Ok(Document::json(legacy())),
        None => Err(not_acceptable()),
    }
}

fn not_acceptable() -> Status {
    Status::failure(
        406,
        listwatch_meta::status::reason::NOT_ACCEPTABLE,
        "only the following media types are accepted: application/json",
    )
}

#[derive(Debug, PartialEq, Eq)]
enum DiscoveryForm {
    Aggregated,
    Legacy,
}

/// Returns the first form of discovery in the `Accept` header. The removed `v2beta1` form is skipped, so that a client
/// that also accepts plain JSON receives the legacy document.
fn discovery_form(accept: Option<&str>) -> Option<DiscoveryForm> {
    let accept = accept.map(str::trim).filter(|accept| !accept.is_empty());
    let Some(accept) = accept else {
        return Some(DiscoveryForm::Legacy);
    };
    accept.split(',').find_map(|clause| {
        let mut parameters = clause.split(';').map(str::trim);
        let media_type = parameters.next().unwrap_or_default();
        let parameters: Vec<&str> = parameters.collect();
        let has = |parameter: &str| parameters.contains(&parameter);
        match media_type {
            "application/json" if has("as=APIGroupDiscoveryList") => {
                (has("g=apidiscovery.k8s.io") && has("v=v2")).then_some(DiscoveryForm::Aggregated)
            }
            "application/json" | "application/*" | "*/*" => Some(DiscoveryForm::Legacy),
            _ => None,
        }
    })
}

/// Creates the document of `/`: the list of served paths.
fn index(registry: &Registry) -> Bytes {
    let fixed = [
        "/.well-known/openid-configuration",
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ];
    let mut paths: Vec<String> = fixed.map(str::to_owned).to_vec();
    for resource in registry.resources().iter().chain(registry.unstored()) {
        if resource.group.is_empty() {
            paths.push(format!("/api/{}", resource.version));
        } else {
            paths.push(format!("/apis/{}", resource.group));
            paths.push(format!("/apis/{}/{}", resource.group, resource.version));
        }
    }
    paths.sort();
    paths.dedup();
    serde_json::to_vec(&listwatch_json::json!({ "paths": paths })).expect("strings").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_supported_discovery_form_in_accept_is_sent() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        for (accept, expected) in [
            (None, Some(DiscoveryForm::Legacy)),
            (Some(""), Some(DiscoveryForm::Legacy)),
            (Some("*/*"), Some(DiscoveryForm::Legacy)),
            (Some("application/json"), Some(DiscoveryForm::Legacy)),
            (Some(v2), Some(DiscoveryForm::Aggregated)),
            (Some(&*format!("{beta},{v2},application/json")), Some(DiscoveryForm::Aggregated)),
            (Some(&*format!("{beta}, application/json")), Some(DiscoveryForm::Legacy)),
            (Some(beta), None),
            (Some("text/html"), None),
        ] {
            assert_eq!(discovery_form(accept), expected, "{accept:?}");
        }
    }
}
