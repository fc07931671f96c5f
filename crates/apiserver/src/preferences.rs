//! [`ResponsePreferences`]: what a request says of the form of its response.

use http::header::{ACCEPT, HeaderName, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use listwatch_meta::Status;
use listwatch_wire::query::Query;

use crate::body::Body;
use crate::gzip;
use crate::view::StatusView;

/// What a request says of the form of its response: media types, indentation, Table options, compression.
pub(crate) struct ResponsePreferences {
    accept: Option<String>,
    user_agent: Option<String>,
    pretty: Option<String>,
    include_object: Option<String>,
    gzip: bool,
    cbor: bool,
}

impl ResponsePreferences {
    /// Reads headers and query; `cbor` says whether the server serves CBOR.
    pub(crate) fn new(method: &Method, headers: &HeaderMap, query: &Query<'_>, cbor: bool) -> Self {
        let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        ResponsePreferences {
            accept: (!accept.is_empty()).then(|| accept.join(",")),
            user_agent: header(headers, &USER_AGENT).map(str::to_owned),
            pretty: query.get("pretty").map(str::to_owned),
            include_object: query.get("includeObject").map(str::to_owned),
            gzip: method == Method::GET && gzip::is_accepted(headers),
            cbor,
        }
    }

    /// CBOR is served.
    pub(crate) fn cbor(&self) -> bool {
        self.cbor
    }

    /// A read whose response may be compressed.
    pub(crate) fn gzip(&self) -> bool {
        self.gzip
    }

    /// The `Accept` header, all its lines joined.
    pub(crate) fn accept(&self) -> Option<&str> {
        self.accept.as_deref()
    }

    pub(crate) fn user_agent(&self) -> Option<&str> {
        self.user_agent.as_deref()
    }

    /// `?pretty=` as sent.
    pub(crate) fn pretty(&self) -> Option<&str> {
        self.pretty.as_deref()
    }

    /// `?includeObject=` as sent.
    pub(crate) fn include_object(&self) -> Option<&str> {
        self.include_object.as_deref()
    }

    /// A failure in an accepted form; in JSON where the client accepts no form of the server.
    pub(crate) fn status(&self, status: &Status) -> Response<Body> {
        let mut response = StatusView::negotiate(self).status(status);
        *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::OK);
        if let Some(seconds) = status.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A header that is plain text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
