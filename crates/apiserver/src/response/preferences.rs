//! [`ResponsePreferences`]: the headers and query parameters of a request that select the form of its response.

use std::sync::{Arc, OnceLock};

use http::header::{ACCEPT, HeaderName, USER_AGENT};
use http::{HeaderMap, Method};
use listwatch_audit::Level;
use listwatch_meta::Status;
use listwatch_table::IncludeObject;
use listwatch_wire::media_type::{Served, View};
use listwatch_wire::query::Query;

use crate::audit::AuditedRequest;
use crate::response::compressed_blocks::CompressedBlocks;
use crate::response::gzip;
use listwatch_registry::Resource;

/// The parts of a request that select the form of its response: media types, indentation, Table options, compression.
pub(crate) struct ResponsePreferences {
    accept: Option<String>,
    user_agent: Option<String>,
    pretty: Option<String>,
    include_object: Option<String>,
    gzip: Option<CompressedBlocks>,
    cbor: bool,
    /// The audit record of the request. Views add the response object to the record.
    audited: OnceLock<Arc<AuditedRequest>>,
}

impl ResponsePreferences {
    /// Reads the headers and the query. `cbor` states whether the server supports CBOR. `blocks` is the server's cache
    /// of compressed blocks.
    pub(crate) fn new(
        method: &Method,
        headers: &HeaderMap,
        query: &Query<'_>,
        cbor: bool,
        blocks: &CompressedBlocks,
    ) -> Self {
        let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        ResponsePreferences {
            accept: (!accept.is_empty()).then(|| accept.join(",")),
            user_agent: header(headers, &USER_AGENT).map(str::to_owned),
            pretty: query.get("pretty").map(str::to_owned),
            include_object: query.get("includeObject").map(str::to_owned),
            gzip: (method == Method::GET && gzip::is_accepted(headers)).then(|| blocks.clone()),
            cbor,
            audited: OnceLock::new(),
        }
    }

    /// Sets the audit record of the request.
    pub(crate) fn set_audited(&self, audited: Option<&Arc<AuditedRequest>>) {
        if let Some(audited) = audited {
            // A request has one record.
            let _ = self.audited.set(Arc::clone(audited));
        }
    }

    /// Returns the audit record of the request, if the policy selects the request.
    pub(crate) fn audited(&self) -> Option<&Arc<AuditedRequest>> {
        self.audited.get()
    }

    /// Returns the audit record, if the policy records the response object.
    pub(crate) fn audited_response(&self) -> Option<Arc<AuditedRequest>> {
        self.audited().filter(|audited| audited.level() >= Level::RequestResponse).cloned()
    }

    /// Whether the server supports CBOR.
    pub(crate) fn cbor(&self) -> bool {
        self.cbor
    }

    /// Returns the cache of compressed blocks, if the response may be compressed: the request is a read of a client that
    /// accepts gzip.
    pub(crate) fn compressed_blocks(&self) -> Option<CompressedBlocks> {
        self.gzip.clone()
    }

    /// Returns the `Accept` header, with all lines joined.
    pub(crate) fn accept(&self) -> Option<&str> {
        self.accept.as_deref()
    }

    pub(crate) fn user_agent(&self) -> Option<&str> {
        self.user_agent.as_deref()
    }

    /// Returns the value of `?pretty=`.
    pub(crate) fn pretty(&self) -> Option<&str> {
        self.pretty.as_deref()
    }

    /// Returns the forms that the server offers for objects of a resource.
    pub(crate) fn served(&self, resource: &Resource) -> Served {
        Served { cbor: self.cbor, ..resource.served() }
    }

    /// Parses `?includeObject=` of a Table. Other views ignore the parameter.
    ///
    /// # Errors
    /// 400 for an unsupported value.
    pub(crate) fn include_object(&self, view: View) -> Result<IncludeObject, Status> {
        match view {
            View::Table { .. } => IncludeObject::parse(self.include_object.as_deref()),
            View::Full | View::PartialMetadata { .. } => Ok(IncludeObject::default()),
        }
    }
}

/// Returns the value of a header, if it is plain text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
