//! [`Documents`]: discovery, OpenAPI, version and index of the current registry. The route selects a document. The
//! crate [`listwatch_discovery`] builds the documents. Discovery documents are negotiated as objects are
//! (`WriteObjectNegotiated`; apiserver `endpoints/discovery`, kube-aggregator `handler_apis.go`).

mod custom_openapi;
mod encoded_forms;
mod openapi_v2;
mod single_flight;

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use listwatch_discovery::openapi::{self, OpenApi, V3Document, V3Form};
use listwatch_discovery::{AGGREGATED_CONTENT_TYPE, Discovery, ServedZpages, VersionInfo, etag_matches, root_paths};
use listwatch_meta::Status;
use listwatch_registry::Registry;
use listwatch_wire::media_type::{
    Encoding, Negotiated, Purpose, Served, negotiate, negotiate_aggregated_discovery, wants_pretty,
};
use listwatch_wire::pretty::Indenter;
use listwatch_wire::query::Query;
use parking_lot::Mutex;
use time::OffsetDateTime;
use time::macros::format_description;

use self::custom_openapi::CustomOpenApi;
pub(crate) use self::encoded_forms::EncodedForms;
use self::encoded_forms::{CustomOpenApiForm, DiscoveryForm};
pub(crate) use self::openapi_v2::OpenApiV2;
use self::single_flight::SingleFlight;
pub(crate) use self::single_flight::build_failed;
use crate::request::routing::Route;
use crate::response::encode::encode;
use crate::response::preferences::ResponsePreferences;

/// A document and its headers.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
    pub(crate) etag: Option<String>,
    pub(crate) cache_control: Option<&'static str>,
    pub(crate) expires: Option<String>,
    /// Whether a large body is compressed for a client that accepts gzip. kube-apiserver compresses discovery
    /// (`responsewriters.SerializeObject`) and OpenAPI v2 (`kube-openapi/pkg/handler`), and no other document.
    pub(crate) compressible: bool,
    /// The target of a redirect (301).
    pub(crate) location: Option<String>,
    /// Whether the client accepts no form of the document: 406 without a body, as in kube-openapi.
    pub(crate) is_not_acceptable: bool,
    /// Whether the client has the document with this ETag: 304 without a body.
    pub(crate) is_not_modified: bool,
}

const JSON: &str = "application/json";

impl Document {
    pub(crate) fn json(body: Bytes) -> Self {
        Document { content_type: JSON, body, ..Document::default() }
    }

    /// Creates a discovery document in the form that the client accepts. The document is given as JSON.
    ///
    /// # Errors
    /// 406 if the client accepts no form of the document; 500 if the document cannot be encoded.
    pub(crate) fn negotiated(request: DocumentRequest<'_>, json: Bytes) -> Result<Self, Status> {
        let preferences = request.preferences;
        let served = Served { cbor: preferences.cbor(), ..Served::STATUS };
        let negotiated = negotiate(preferences.accept(), Purpose::Object, &served)?;
        let (encoding, body) = in_form(request, &negotiated, json)?;
        Ok(Document { content_type: encoding.media_type(), body, compressible: true, ..Document::default() })
    }

    fn not_acceptable() -> Self {
        Document { is_not_acceptable: true, ..Document::default() }
    }

    /// Creates the response to a client that has the document with this ETag.
    fn not_modified(etag: &str) -> Self {
        Document { etag: Some(etag.to_owned()), is_not_modified: true, ..Document::default() }
    }

    /// Creates an OpenAPI document. A client that has the document receives no body.
    pub(crate) fn with_etag(
        request: DocumentRequest<'_>,
        content_type: &'static str,
        document: &listwatch_discovery::Document,
    ) -> Self {
        if request.has(&document.etag) {
            return Document::not_modified(&document.etag);
        }
        Document { content_type, body: document.body.clone(), etag: Some(document.etag.clone()), ..Document::default() }
    }
}

/// The largest discovery document that is served indented, as YAML or as protobuf, in bytes of JSON. A form that is not
/// in [`EncodedForms`] is encoded on the thread of the connection. A larger document is served as compact JSON, and as 406
/// to a client that does not accept JSON.
const ENCODED_BYTES_MAX: usize = 512 * 1024;

/// Encodes a discovery document. Compact JSON, the common case, is one buffer that all responses share.
fn in_form(request: DocumentRequest<'_>, negotiated: &Negotiated, json: Bytes) -> Result<(Encoding, Bytes), Status> {
    let preferences = request.preferences;
    let pretty = wants_pretty(preferences.pretty(), negotiated, preferences.user_agent());
    let is_compact_json = negotiated.encoding == Encoding::Json && !pretty;
    if is_compact_json || json.len() > ENCODED_BYTES_MAX {
        let accepts_json = |accept: &str| accept.contains("json") || accept.contains("*/*");
        let is_json = negotiated.encoding == Encoding::Json || preferences.accept().is_none_or(accepts_json);
        return if is_json { Ok((Encoding::Json, json)) } else { Err(not_acceptable()) };
    }
    let encode = || {
        let body = encode(&json, negotiated.encoding)?;
        Ok(if pretty { Indenter::default().chunk(&body) } else { body })
    };
    let body = match request.forms {
        Some(forms) => {
            let key = DiscoveryForm { json: json.clone(), encoding: negotiated.encoding, pretty };
            forms.get_or_encode(&key, encode)?
        }
        None => encode()?,
    };
    Ok((negotiated.encoding, body))
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
#[derive(Clone, Copy)]
pub(crate) struct DocumentRequest<'a> {
    /// The media types and the indentation that the client asks for.
    pub(crate) preferences: &'a ResponsePreferences,
    /// The `Host` header, for documents that name the server.
    pub(crate) host: Option<&'a str>,
    /// The `If-None-Match` header: the ETag of the document that the client has.
    pub(crate) if_none_match: Option<&'a str>,
    pub(crate) query: &'a Query<'a>,
    /// The cache of the server's discovery documents. `None` for a document that contains the `Host` header, because
    /// each header would be another entry.
    pub(crate) forms: Option<&'a EncodedForms>,
    /// The pages about the process, for the index.
    pub(crate) zpages: ServedZpages,
}

impl DocumentRequest<'_> {
    /// Whether the client has the OpenAPI document with this ETag. kube-openapi serves documents with
    /// `http.ServeContent`.
    pub(crate) fn has(&self, etag: &str) -> bool {
        self.if_none_match.is_some_and(|header| etag_matches(etag, header))
    }
}

/// The documents of the current registry. Each document is built at its first request.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    current: Mutex<Option<Arc<RegistryDocuments>>>,
    /// The encoded forms of discovery documents, including documents that are merged with those of extension servers.
    pub(crate) forms: EncodedForms,
    custom_openapi: Arc<CustomOpenApi>,
}

/// The documents of one registry.
#[derive(Debug)]
struct RegistryDocuments {
    registry: Arc<Registry>,
    /// The documents of the base registry. They are shared, so that the documents of built-in groups are built only
    /// once.
    base: Option<Arc<RegistryDocuments>>,
    discovery: OnceLock<Discovery>,
    openapi: OnceLock<Arc<OpenApi>>,
    openapi_v2: OnceLock<OpenApiV2>,
    /// Builds the documents of OpenAPI v3, and encodes those of built-in kinds.
    building_v3: SingleFlight,
}

impl RegistryDocuments {
    fn new(registry: Arc<Registry>, base: Option<Arc<RegistryDocuments>>) -> Arc<Self> {
        Arc::new(RegistryDocuments {
            registry,
            base,
            discovery: OnceLock::new(),
            openapi: OnceLock::new(),
            openapi_v2: OnceLock::new(),
            building_v3: SingleFlight::default(),
        })
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

    /// Returns the document of `/openapi/v3`.
    async fn openapi_v3_index(&self, request: DocumentRequest<'_>) -> Result<Document, Status> {
        self.build_openapi_v3().await?;
        Ok(Document::with_etag(request, JSON, self.openapi().v3_index()))
    }

    /// Builds the index and the documents of built-in kinds.
    async fn build_openapi_v3(&self) -> Result<(), Status> {
        let openapi = Arc::clone(self.openapi());
        let build = move || {
            openapi.v3_index();
        };
        self.building_v3.run(|| self.openapi().is_v3_built().then_some(()), build).await
    }

    /// Returns the document of `/openapi/v3/{path}` in the form that the client accepts (`HandleGroupVersion` of
    /// `kube-openapi/pkg/handler3`).
    async fn openapi_v3(
        &self,
        path: &str,
        request: DocumentRequest<'_>,
        custom: &Arc<CustomOpenApi>,
    ) -> Result<Document, Status> {
        let Some(form) = V3Form::negotiate(request.preferences.accept()) else {
            return Ok(Document::not_acceptable());
        };
        self.build_openapi_v3().await?;
        let (document, immutable) = match self.openapi().v3(path, request.query.get("hash")) {
            openapi::Answer::Document { document, immutable } => (document, immutable),
            openapi::Answer::Moved(location) => {
                return Ok(Document { location: Some(location), ..Document::default() });
            }
            openapi::Answer::Unknown => return Ok(Document::json(Bytes::new())),
        };
        let etag = document.etag();
        let response = if request.has(etag) {
            Document::not_modified(etag)
        } else {
            let body = self.openapi_v3_form(path, document, form, custom).await?;
            let content_type = form.content_type();
            Document { content_type, body, etag: Some(etag.to_owned()), ..Document::default() }
        };
        Ok(if immutable { response.immutable() } else { response })
    }

    /// Returns a form of an OpenAPI v3 document. A form that is not in memory is encoded on another thread.
    async fn openapi_v3_form(
        &self,
        path: &str,
        document: &Arc<V3Document>,
        form: V3Form,
        custom: &Arc<CustomOpenApi>,
    ) -> Result<Bytes, Status> {
        let source = Arc::clone(document);
        let encode = move || source.encode(form);
        if document.keeps_forms() {
            return self.building_v3.run(|| document.kept(form).cloned(), encode).await;
        }
        let key = CustomOpenApiForm { path: path.to_owned(), etag: document.etag().to_owned(), form };
        custom.get_or_encode(key, encode).await
    }

    fn openapi_v2(&self) -> &OpenApiV2 {
        self.openapi_v2.get_or_init(|| OpenApiV2::new(Arc::clone(self.openapi().version2())))
    }
}

impl Documents {
    /// Returns the documents of a registry, and drops the documents of the previous registry.
    fn for_registry(&self, registry: &Arc<Registry>) -> Arc<RegistryDocuments> {
        let mut current = self.current.lock();
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
        self.for_registry(registry).discovery().aggregated_apis().body.clone()
    }

    /// Returns the OpenAPI documents.
    pub(crate) fn openapi(&self, registry: &Arc<Registry>) -> Arc<OpenApi> {
        Arc::clone(self.for_registry(registry).openapi())
    }

    /// Returns the document of a route.
    ///
    /// # Errors
    /// 404 for a group or version that is not served; 406 if the client accepts no form of the document.
    pub(crate) async fn document(
        &self,
        registry: &Arc<Registry>,
        route: &Route<'_>,
        request: DocumentRequest<'_>,
    ) -> Result<Document, Status> {
        let documents = self.for_registry(registry);
        match route {
            Route::OpenApiV2 => documents.openapi_v2().answer(request).await,
            Route::OpenApiV3Index => documents.openapi_v3_index(request).await,
            Route::OpenApiV3(path) => documents.openapi_v3(path, request, &self.custom_openapi).await,
            _ => document(&documents, route, request),
        }
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
        Route::Index => Ok(Document::json(root_paths(&documents.registry, request.zpages, []))),
        Route::CoreVersions => {
            let host = request.host.unwrap_or("127.0.0.1:6443");
            aggregated_or(request, discovery.aggregated_api(), || {
                Document::negotiated(DocumentRequest { forms: None, ..request }, Discovery::api(host))
            })
        }
        Route::Groups => {
            aggregated_or(request, discovery.aggregated_apis(), || Document::negotiated(request, discovery.apis()))
        }
        Route::Group(group) => {
            let json = discovery.group(group).ok_or_else(Status::no_such_resource)?;
            Document::negotiated(request, json)
        }
        Route::GroupVersion { group, version } => {
            let json = discovery.resources(group, version).ok_or_else(Status::no_such_resource)?;
            Document::negotiated(request, json)
        }
        // `Documents::document` answers OpenAPI.
        Route::OpenApiV2
        | Route::OpenApiV3Index
        | Route::OpenApiV3(_)
        | Route::Resource(_)
        | Route::Unstored(_)
        | Route::Health { .. }
        | Route::Issuer(_)
        | Route::Metrics(_)
        | Route::ResetMetrics(_)
        | Route::Statusz
        | Route::Flagz => Err(Status::internal("not a document")),
    }
}

/// Returns the aggregated form if the client asks for it, and otherwise the legacy form. Caches may keep the aggregated
/// form. A client that has the document receives no body. The `If-None-Match` header must equal the ETag
/// (`ServeHTTPWithETag` of apiserver `endpoints/discovery/aggregated/etag.go`).
pub(crate) fn aggregated_or(
    request: DocumentRequest<'_>,
    aggregated: &listwatch_discovery::Document,
    legacy: impl FnOnce() -> Result<Document, Status>,
) -> Result<Document, Status> {
    let Some(negotiated) = negotiate_aggregated_discovery(request.preferences.accept()) else {
        return legacy();
    };
    let cached = |document| Document { cache_control: Some("public"), compressible: true, ..document };
    if request.if_none_match == Some(&*aggregated.etag) {
        return Ok(cached(Document::not_modified(&aggregated.etag)));
    }
    let (encoding, body) = in_form(request, &negotiated, aggregated.body.clone())?;
    let content_type = match encoding {
        Encoding::Yaml => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        // CBOR is not negotiated.
        Encoding::Json | Encoding::Cbor => AGGREGATED_CONTENT_TYPE,
    };
    let etag = Some(aggregated.etag.clone());
    Ok(cached(Document { content_type, body, etag, ..Document::default() }))
}

fn not_acceptable() -> Status {
    Status::failure(
        406,
        listwatch_meta::status::reason::NOT_ACCEPTABLE,
        "only the following media types are accepted: application/json",
    )
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Request, Response, StatusCode};
    use http_body_util::{BodyExt as _, Empty, Full};
    use listwatch_json::json;

    use super::*;
    use crate::{ApiServer, Body};

    #[tokio::test]
    async fn known_aggregated_discovery_is_answered_with_304_without_an_encoding() {
        let server = ApiServer::builder().build().await.unwrap();
        let get = async |encoding: &str, etag: &str| -> Response<Body> {
            let accept = format!("{encoding};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
            let request = Request::get("/apis").header("accept", accept).header("if-none-match", etag);
            server.service().handle(request.body(Empty::<Bytes>::new()).unwrap()).await
        };
        let forms = || server.shared.documents.forms.len();
        let etag = get(JSON, "").await.headers()["etag"].to_str().unwrap().to_owned();
        for encoding in [JSON, "application/yaml", "application/vnd.kubernetes.protobuf"] {
            let response = get(encoding, &etag).await;
            assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{encoding}");
            let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
            assert_eq!([header("etag"), header("cache-control")], [&etag, "public"].map(Some));
            let vary: Vec<_> = response.headers().get_all("vary").iter().collect();
            assert_eq!(vary, ["Accept", "Accept-Encoding"], "{encoding}");
            assert_eq!(header("content-type"), None, "{encoding}");
            assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty(), "{encoding}");
        }
        assert_eq!(forms(), 0, "a known document was encoded");
        for expected in [1, 1] {
            assert_eq!(get("application/yaml", "\"other\"").await.status(), StatusCode::OK);
            assert_eq!(forms(), expected, "the encoded form is cached");
        }
    }

    /// Responds to a GET with status, headers and body.
    async fn get(server: &ApiServer, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, Bytes) {
        let request = headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
        let response = server.service().handle(request.body(Empty::<Bytes>::new()).unwrap()).await;
        let (head, body) = response.into_parts();
        (head.status.as_u16(), head.headers, body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn api_versions_with_the_host_header_are_not_cached() {
        let server = ApiServer::builder().build().await.unwrap();
        for host in ["one.example", "two.example"] {
            let (code, _, body) = get(&server, "/api", &[("accept", "application/yaml"), ("host", host)]).await;
            assert!(code == 200 && String::from_utf8_lossy(&body).contains(host), "{host}");
        }
        assert_eq!(server.shared.documents.forms.len(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn openapi_v3_of_a_custom_resource_is_built_once_and_only_for_a_client_that_needs_a_body() {
        let server = ApiServer::builder().build().await.unwrap();
        let version = json!({"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}});
        let definition = json!({"metadata": {"name": "gadgets.example.com"}, "spec": {"group": "example.com",
            "scope": "Cluster", "names": {"plural": "gadgets", "kind": "Gadget"}, "versions": [version]}});
        let request = Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
        let request = request.header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(definition.to_string()))).unwrap();
        assert_eq!(server.service().handle(request).await.status(), 201);

        let index: listwatch_json::Value = serde_json::from_slice(&get(&server, "/openapi/v3", &[]).await.2).unwrap();
        let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap();
        let (path, hash) = url.split_once("?hash=").unwrap();
        let etag = format!("\"{hash}\"");
        let cached = || server.shared.documents.custom_openapi.len();
        for header in [&etag, &format!("\"other\", W/{etag}"), "*"] {
            let (code, headers, body) = get(&server, path, &[("if-none-match", header)]).await;
            assert_eq!((code, headers["etag"].to_str().ok(), body.is_empty()), (304, Some(&*etag), true), "{header}");
        }
        let (code, headers, _) = get(&server, &format!("{path}?hash=0"), &[]).await;
        assert_eq!((code, headers["location"].to_str().ok()), (301, Some(url)));
        assert_eq!(cached(), 0, "a document without a client was built");

        const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
        for (accept, expected) in [(JSON, 1), (PROTOBUF, 2)] {
            let headers = [("accept", accept), ("if-none-match", "\"other\"")];
            let (code, headers, body) = get(&server, path, &headers).await;
            assert_eq!(
                (code, headers["content-type"].to_str().ok(), headers["etag"].to_str().ok()),
                (200, Some(accept), Some(&*etag))
            );
            // The field `openapi` has the number 1.
            assert_eq!(body.starts_with(b"\x0a\x053.0.0"), accept == PROTOBUF, "{accept}");
            assert!(String::from_utf8_lossy(&body).contains("com.example.v1.Gadget"), "{accept}");
            assert_eq!(get(&server, path, &[("accept", accept)]).await.2, body, "{accept}");
            assert_eq!(cached(), expected, "{accept}");
        }
    }
}
