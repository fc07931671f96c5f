//! The documents by which others verify service account tokens (`pkg/routes/openidmetadata.go`).

use bytes::Bytes;
use http::{Response, StatusCode};
use listwatch_access::IssuerDocuments;

use super::context::RequestContext;
use super::documents;
use crate::documents::Document;
use crate::response::body::Body;
use crate::response::respond;
use crate::response::view::status_response;

/// The time for which others may cache a document (`GetCacheAgeMaxSeconds`).
const CACHE_CONTROL: &str = "public, max-age=3600";

/// A document of the issuer of service account tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IssuerDocument {
    /// `/.well-known/openid-configuration`.
    Configuration,
    /// `/openid/v1/jwks`.
    Keys,
}

/// Responds with a document. An issuer that is not an URL of https has none.
pub(crate) async fn answer(request: &RequestContext<'_>, document: IssuerDocument) -> Response<Body> {
    let backend = &request.shared.backend;
    let tokens = backend.tokens();
    let keys = match tokens.keys(backend.storage()).await {
        Ok(keys) => keys,
        Err(status) => return status_response(request.preferences, &status),
    };
    let issuer = tokens.options().issuer();
    let Ok(documents) = IssuerDocuments::new(issuer, &request.shared.jwks_uri, &keys.verification) else {
        return respond::text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned());
    };
    let (content_type, body) = match document {
        IssuerDocument::Configuration => ("application/json", documents.configuration),
        IssuerDocument::Keys => ("application/jwk-set+json", documents.keys),
    };
    let document =
        Document { content_type, body: Bytes::from(body), cache_control: Some(CACHE_CONTROL), ..Document::default() };
    documents::response(document, &request.parts.headers)
}
