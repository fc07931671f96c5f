//! Discovery, OpenAPI, version and index: selects the document of a route ([`document()`]).
//! [`crate::discovery`] and [`crate::openapi`] build the documents.

use bytes::Bytes;
use listwatch_meta::Status;
use listwatch_wire::query::Query;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::discovery::{self, AGGREGATED_CONTENT_TYPE, Discovery, VersionInfo};
use crate::openapi;
use crate::registry::Registry;
use crate::routing::Route;

/// A document and its headers.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
    pub(crate) etag: Option<String>,
    pub(crate) cache_control: Option<&'static str>,
    pub(crate) expires: Option<String>,
    /// Where the document is instead (301).
    pub(crate) location: Option<String>,
}

const JSON: &str = "application/json";

impl Document {
    pub(crate) fn json(body: Bytes) -> Self {
        Document { content_type: JSON, body, ..Document::default() }
    }

    pub(crate) fn of(content_type: &'static str, document: &discovery::Document) -> Self {
        Document { content_type, body: document.body.clone(), etag: Some(document.etag.clone()), ..Document::default() }
    }
}

/// The time for which clients may cache a document that was requested by its hash, in seconds.
const IMMUTABLE_SECONDS: i64 = 365 * 24 * 3600;

impl Document {
    /// Marks the document as immutable: the request named the hash of its bytes.
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

/// The document of a route.
///
/// # Errors
/// 404 for a group or version that is not served, 406 when no form of the document is acceptable.
pub(crate) fn document(
    registry: &Registry,
    route: &Route<'_>,
    request: DocumentRequest<'_>,
) -> Result<Document, Status> {
    let discovery = registry.discovery();
    match route {
        Route::Version => Ok(Document::json(VersionInfo::current().body())),
        Route::Index => Ok(Document::json(index(registry))),
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
            let (content_type, document) = registry.openapi().v2(request.accept).ok_or_else(not_acceptable)?;
            Ok(Document::of(content_type, &document))
        }
        Route::OpenApiV3Index => Ok(Document::of(JSON, registry.openapi().v3_index())),
        Route::OpenApiV3(path) => Ok(match registry.openapi().v3(path, request.query.get("hash")) {
            openapi::Answer::Document { document, immutable } => {
                let answer = Document::of(JSON, &document);
                if immutable { answer.immutable() } else { answer }
            }
            openapi::Answer::Moved(location) => Document { location: Some(location), ..Document::default() },
            openapi::Answer::Unknown => Document::json(Bytes::new()),
        }),
        Route::Resource(_) | Route::Unstored(_) | Route::Health { .. } | Route::Metrics => {
            Err(Status::internal("not a document"))
        }
    }
}

/// The aggregated form where the client prefers it, else the legacy form.
fn aggregated_or(
    accept: Option<&str>,
    aggregated: &discovery::Document,
    legacy: impl FnOnce() -> Bytes,
) -> Result<Document, Status> {
    match discovery_form(accept) {
        Some(Form::Aggregated) => Ok(Document::of(AGGREGATED_CONTENT_TYPE, aggregated)),
        Some(Form::Legacy) => Ok(Document::json(legacy())),
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
enum Form {
    Aggregated,
    Legacy,
}

/// The first form of discovery that the `Accept` header takes. The removed `v2beta1` form is skipped, so
/// that a client that offers plain JSON behind it receives the legacy document.
fn discovery_form(accept: Option<&str>) -> Option<Form> {
    let accept = accept.map(str::trim).filter(|accept| !accept.is_empty());
    let Some(accept) = accept else {
        return Some(Form::Legacy);
    };
    accept.split(',').find_map(|clause| {
        let mut parameters = clause.split(';').map(str::trim);
        let media_type = parameters.next().unwrap_or_default();
        let parameters: Vec<&str> = parameters.collect();
        let has = |parameter: &str| parameters.contains(&parameter);
        match media_type {
            "application/json" if has("as=APIGroupDiscoveryList") => {
                (has("g=apidiscovery.k8s.io") && has("v=v2")).then_some(Form::Aggregated)
            }
            "application/json" | "application/*" | "*/*" => Some(Form::Legacy),
            _ => None,
        }
    })
}

/// `/`: the served paths.
fn index(registry: &Registry) -> Bytes {
    let mut paths: Vec<String> =
        ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
            .map(str::to_owned)
            .to_vec();
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
    serde_json::to_vec(&serde_json::json!({ "paths": paths })).expect("strings").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_acceptable_form_of_discovery_is_sent() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        for (accept, expected) in [
            (None, Some(Form::Legacy)),
            (Some(""), Some(Form::Legacy)),
            (Some("*/*"), Some(Form::Legacy)),
            (Some("application/json"), Some(Form::Legacy)),
            (Some(v2), Some(Form::Aggregated)),
            (Some(&*format!("{beta},{v2},application/json")), Some(Form::Aggregated)),
            (Some(&*format!("{beta}, application/json")), Some(Form::Legacy)),
            (Some(beta), None),
            (Some("text/html"), None),
        ] {
            assert_eq!(discovery_form(accept), expected, "{accept:?}");
        }
    }
}
