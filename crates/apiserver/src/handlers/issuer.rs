//! Serves the documents with which other servers verify service account tokens
//! (`pkg/routes/openidmetadata.go`).

use bytes::Bytes;
use http::{Response, StatusCode};
use listwatch_access::IssuerDocuments;

use super::context::RequestContext;
use super::documents;
use crate::documents::Document;
use crate::request::routing::IssuerDocument;
use crate::response::body::Body;
use crate::response::respond;
use crate::response::view::status_response;

/// The time for which clients may cache a document (`GetCacheAgeMaxSeconds`).
const CACHE_CONTROL: &str = "public, max-age=3600";

/// Responds with a document of the token issuer. If the issuer is not an `https` URL, there are no documents.
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
    documents::response(request, document)
}
