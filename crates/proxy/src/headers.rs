//! Headers of proxied requests and responses: hop-by-hop headers, `X-Forwarded-*`, CORS, `Location`.
//!
//! Rules: Go's `net/http/httputil.ReverseProxy`, `apimachinery/pkg/util/proxy/{transport,upgradeaware}.go`,
//! RFC 9110 §7.6.1.

use std::net::IpAddr;

use http::header::{CONNECTION, TE, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The hop-by-hop headers (`hopHeaders`). `Trailer` is absent, because trailers are passed on.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The CORS headers, which are removed from responses, because the API server sets its own (`removeCORSHeaders`).
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// The address under which clients reach the location of a proxied request (`proxy.Transport`).
///
/// The `X-Forwarded-*` headers of the request are made from it, and `Location` headers of responses are moved below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalLocation {
    /// `http` or `https`; empty if unknown. Then the backend receives no `X-Forwarded-Proto`.
    pub scheme: String,
    /// `host:port`; empty if unknown. Then the backend receives no `X-Forwarded-Host`.
    pub host: String,
    /// The part of the client's path before the path at the backend, e.g. `/api/v1/namespaces/a/pods/b/proxy`.
    pub path_prefix: String,
}

/// Whether a request has an upgrade in its `Connection` header (`httpstream.IsUpgradeRequest`).
pub fn is_upgrade_request(headers: &HeaderMap) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .any(|value| value.as_bytes().to_ascii_lowercase().windows(7).any(|w| w == b"upgrade"))
}

/// Removes the hop-by-hop headers and the headers that `Connection` lists.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

/// Prepares the headers of an upgrade request for the backend. Only `Upgrade` survives as a hop-by-hop header.
/// `HTTP2-Settings` is removed, so that the backend does not switch to HTTP/2, over which the client could send other
/// requests (RFC 7540 §3.2.1).
pub(crate) fn prepare_upgrade(headers: &mut HeaderMap) {
    for name in named_by_connection(headers).into_iter().filter(|name| name != UPGRADE) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP.into_iter().filter(|name| *name != "upgrade").chain(["http2-settings"]) {
        headers.remove(name);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
}

/// Replaces headers by those of the caller.
pub(crate) fn replace(headers: &mut HeaderMap, own: &HeaderMap) {
    for name in own.keys() {
        headers.remove(name);
    }
    headers.extend(own.iter().map(|(name, value)| (name.clone(), value.clone())));
}

/// Prepares the headers of a plain request for the backend.
pub(crate) fn prepare_request(headers: &mut HeaderMap) {
    let trailers = headers
        .get_all(TE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers")));
    remove_hop_by_hop(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Prepares the headers of a plain response for the client.
pub(crate) fn prepare_response(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    for name in CORS {
        headers.remove(name);
    }
}

/// Appends the client's address to `X-Forwarded-For`.
pub(crate) fn append_forwarded_for(headers: &mut HeaderMap, client: Option<IpAddr>) {
    let Some(client) = client else { return };
    let mut addresses: Vec<u8> = Vec::new();
    for value in headers.get_all(&X_FORWARDED_FOR) {
        addresses.extend_from_slice(value.as_bytes());
        addresses.extend_from_slice(b", ");
    }
    addresses.extend_from_slice(client.to_string().as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&addresses) {
        headers.insert(X_FORWARDED_FOR, value);
    }
}

/// Sets `X-Forwarded-Uri`, `-Host` and `-Proto` of a request to a path at the backend. The client's values are removed.
pub(crate) fn set_forwarded(headers: &mut HeaderMap, external: &ExternalLocation, path: &str) {
    let mut uri = join(&external.path_prefix, path);
    if path.ends_with('/') {
        uri.push('/');
    }
    for (name, value) in
        [(X_FORWARDED_URI, &uri), (X_FORWARDED_HOST, &external.host), (X_FORWARDED_PROTO, &external.scheme)]
    {
        headers.remove(&name);
        if let (false, Ok(value)) = (value.is_empty(), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
}

/// Moves the target of a `Location` header below the external location, if the target is a path of the backend
/// (`Transport.rewriteURL`). `backend` is the `host:port` of the backend. An unparsable target is returned unchanged.
pub(crate) fn rewrite_location(target: &str, external: &ExternalLocation, backend: &str) -> String {
    let Ok(uri) = target.parse::<Uri>() else { return target.to_owned() };
    let host = uri.authority().map_or("", |authority| authority.as_str());
    // `Uri` reads a relative reference such as `a/b` as an authority: only absolute targets are rewritten.
    let is_absolute = target.starts_with('/') || uri.scheme().is_some();
    let is_foreign = !host.is_empty() && host != backend;
    if !is_absolute || is_foreign || !uri.path().starts_with('/') {
        return target.to_owned();
    }
    let path = match uri.path().starts_with(external.path_prefix.as_str()) {
        true => uri.path().to_owned(),
        false => {
            let mut path = join(&external.path_prefix, uri.path());
            if uri.path().ends_with('/') {
                path.push('/');
            }
            path
        }
    };
    let origin = match (external.scheme.as_str(), external.host.as_str()) {
        (_, "") => String::new(),
        ("", host) => format!("//{host}"),
        (scheme, host) => format!("{scheme}://{host}"),
    };
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let fragment = target.split_once('#').map_or_else(String::new, |(_, fragment)| format!("#{fragment}"));
    format!("{origin}{path}{query}{fragment}")
}

/// Joins two paths and removes empty, `.` and `..` segments (Go's `path.Join`). The root becomes the empty text, so
/// that a final slash can follow.
fn join(first: &str, second: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in first.split('/').chain(second.split('/')) {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    segments.iter().map(|segment| format!("/{segment}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn hop_by_hop_headers_are_removed_from_requests() {
        let mut request = headers(&[
            ("connection", "keep-alive, X-Secret-Hop"),
            ("x-secret-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip, trailers"),
            ("trailer", "X-Sum"),
            ("accept", "*/*"),
        ]);
        prepare_request(&mut request);
        assert_eq!(request, headers(&[("te", "trailers"), ("trailer", "X-Sum"), ("accept", "*/*")]));
        let mut without = headers(&[("te", "gzip")]);
        prepare_request(&mut without);
        assert!(without.is_empty(), "only trailers survive in TE");
    }

    #[test]
    fn cors_headers_are_removed_from_responses() {
        let mut response = headers(&[("access-control-allow-origin", "*"), ("connection", "close"), ("etag", "1")]);
        prepare_response(&mut response);
        assert_eq!(response, headers(&[("etag", "1")]));
    }

    #[test]
    fn upgrade_is_recognized_in_any_connection_header() {
        let check = |lines: &[(&'static str, &str)], expected| {
            assert_eq!(is_upgrade_request(&headers(lines)), expected, "{lines:?}");
        };
        check(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")], true);
        check(&[("connection", "keep-alive"), ("connection", "keep-alive, UPGRADE")], true);
        check(&[("upgrade", "websocket")], false);
        check(&[], false);
    }

    #[test]
    fn forwarded_headers_name_the_external_location() {
        let external = ExternalLocation {
            scheme: "https".to_owned(),
            host: "h:1".to_owned(),
            path_prefix: "/api/v1/pods/b/proxy".to_owned(),
        };
        let check = |path: &str, uri: &str| {
            let mut request = headers(&[("x-forwarded-host", "forged")]);
            set_forwarded(&mut request, &external, path);
            let expected = [("x-forwarded-uri", uri), ("x-forwarded-host", "h:1"), ("x-forwarded-proto", "https")];
            assert_eq!(request, headers(&expected), "{path}");
        };
        check("/x/y", "/api/v1/pods/b/proxy/x/y");
        check("/x//y/", "/api/v1/pods/b/proxy/x/y/");
        check("/", "/api/v1/pods/b/proxy/");
        let mut request = headers(&[("x-forwarded-host", "forged"), ("x-forwarded-proto", "forged")]);
        set_forwarded(&mut request, &ExternalLocation::default(), "/x");
        assert_eq!(request, headers(&[("x-forwarded-uri", "/x")]), "forged headers are passed on");
    }

    #[test]
    fn upgrade_request_keeps_only_its_own_hop_by_hop_headers() {
        let mut request = headers(&[
            ("connection", "keep-alive, Upgrade, X-Secret-Hop"),
            ("upgrade", "websocket"),
            ("x-secret-hop", "1"),
            ("http2-settings", "AAMAAABkAAQAAP__"),
            ("proxy-authorization", "Basic x"),
            ("te", "trailers"),
            ("sec-websocket-key", "k"),
        ]);
        prepare_upgrade(&mut request);
        let expected = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "k")];
        assert_eq!(request, headers(&expected));
    }

    #[test]
    fn client_address_is_appended_to_forwarded_for() {
        let mut request = headers(&[("x-forwarded-for", "10.0.0.1"), ("x-forwarded-for", "10.0.0.2")]);
        append_forwarded_for(&mut request, Some(IpAddr::from([127, 0, 0, 1])));
        assert_eq!(request, headers(&[("x-forwarded-for", "10.0.0.1, 10.0.0.2, 127.0.0.1")]));
        append_forwarded_for(&mut request, None);
        assert_eq!(request.len(), 1, "an unknown client adds nothing");
    }

    #[test]
    fn redirect_location_is_moved_below_the_external_location() {
        let external = ExternalLocation {
            scheme: "https".to_owned(),
            host: "server:6443".to_owned(),
            path_prefix: "/proxy".to_owned(),
        };
        let check = |target: &str, expected: &str| {
            assert_eq!(rewrite_location(target, &external, "10.0.0.1:80"), expected, "{target}");
        };
        check("/a/b?c=d", "https://server:6443/proxy/a/b?c=d");
        check("/a/", "https://server:6443/proxy/a/");
        check("http://10.0.0.1:80/a", "https://server:6443/proxy/a");
        check("/proxy/a", "https://server:6443/proxy/a");
        check("http://elsewhere/a", "http://elsewhere/a");
        check("b/c", "b/c");
        let unknown = ExternalLocation { path_prefix: "/proxy".to_owned(), ..ExternalLocation::default() };
        assert_eq!(rewrite_location("/a", &unknown, "10.0.0.1:80"), "/proxy/a");
    }
}
