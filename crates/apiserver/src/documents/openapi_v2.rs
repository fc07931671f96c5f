//! [`OpenApiV2`]: serves `/openapi/v2`, and encodes each form of the document at its first request.

use std::sync::Arc;

use listwatch_discovery::openapi::{V2Form, Version2};
use listwatch_meta::Status;

use super::single_flight::SingleFlight;
use super::{Document, DocumentRequest};

/// The version 2 document of one registry, or of one merge with the documents of extension servers. A form is encoded
/// once for all clients, which takes tens of milliseconds on a separate thread.
#[derive(Debug)]
pub(crate) struct OpenApiV2 {
    document: Arc<Version2>,
    encoding: SingleFlight,
}

impl OpenApiV2 {
    pub(crate) fn new(document: Arc<Version2>) -> Self {
        OpenApiV2 { document, encoding: SingleFlight::default() }
    }

    /// Returns the document in the form that the client accepts; 406 if the client accepts no form. A client that has
    /// the document receives it without a body.
    ///
    /// # Errors
    /// 500 if the encoding failed.
    pub(crate) async fn answer(&self, request: DocumentRequest<'_>) -> Result<Document, Status> {
        let Some(form) = V2Form::negotiate(request.preferences.accept()) else {
            return Ok(Document::not_acceptable());
        };
        let document = match self.document.etag().filter(|etag| request.has(etag)) {
            Some(etag) => Document::not_modified(etag),
            None => {
                let source = Arc::clone(&self.document);
                let encoded = self.encoding.run(|| self.document.encoded(form), move || source.in_form(form)).await;
                let (content_type, document) = encoded?;
                Document::with_etag(request, content_type, &document)
            }
        };
        Ok(Document { compressible: true, ..document })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use http::{HeaderMap, Method, header};
    use listwatch_discovery::ServedZpages;
    use listwatch_json::json;
    use listwatch_wire::query::Query;

    use super::*;
    use crate::documents::EncodedForms;
    use crate::response::compressed_blocks::CompressedBlocks;
    use crate::response::preferences::ResponsePreferences;

    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

    async fn get(document: &OpenApiV2, accept: &str, if_none_match: Option<&str>) -> Document {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        let query = Query::default();
        let blocks = CompressedBlocks::new(0);
        let preferences = ResponsePreferences::new(&Method::GET, &headers, &query, false, &blocks);
        let forms = EncodedForms::default();
        let request = DocumentRequest {
            preferences: &preferences,
            host: None,
            if_none_match,
            query: &query,
            forms: Some(&forms),
            zpages: ServedZpages::default(),
        };
        document.answer(request).await.unwrap()
    }

    #[tokio::test]
    async fn concurrent_requests_encode_each_form_of_openapi_v2_once() {
        let builds = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&builds);
        let document = Arc::new(OpenApiV2::new(Arc::new(Version2::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            json!({"swagger": "2.0", "paths": {}})
        }))));
        assert_eq!(builds.load(Ordering::Relaxed), 0, "the document is built before its first request");
        for (accept, expected) in [(PROTOBUF, 1), ("application/json", 2), (PROTOBUF, 2)] {
            let requested = Arc::clone(&document);
            let disconnected = tokio::spawn(async move { get(&requested, accept, None).await });
            tokio::task::yield_now().await;
            disconnected.abort();
            let all = futures_util::future::join_all((0..8).map(|_| get(&document, accept, None))).await;
            assert!(all.iter().all(|one| one.body == all[0].body && !one.body.is_empty()), "{accept}");
            assert_eq!(builds.load(Ordering::Relaxed), expected, "{accept}");
            let etag = all[0].etag.as_deref().unwrap();
            for header in [etag, &format!("\"other\", W/{etag}"), "*"] {
                let known = get(&document, "application/json", Some(header)).await;
                assert!(known.is_not_modified && known.compressible && known.body.is_empty(), "{header}");
                assert_eq!(known.etag.as_deref(), Some(etag), "{header}");
            }
            assert_eq!(builds.load(Ordering::Relaxed), expected, "a known document was encoded");
        }
    }
}
