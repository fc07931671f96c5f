//! [`Routes`]: maps paths to extension servers by the APIServices.
//!
//! Rules: `kube-aggregator/pkg/apiserver/{apiserver,handler_proxy}.go`, `apiserver/pkg/util/proxy/proxy.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use listwatch_meta::go;
use listwatch_proxy::{ClientCertificate, Proxy, TlsSettings, TlsSettingsError, Transport};
use percent_encoding::percent_decode;

use crate::ApiService;

/// The name of the APIService of the core group, which includes all versions below `/api`.
const LEGACY_NAME: &str = "v1.";

/// The name of the APIService that serves a path; `None` for every other path. The aggregator itself serves
/// `/apis/<group>`.
///
/// ```
/// use listwatch_aggregator::api_service_name;
///
/// assert_eq!(api_service_name("/apis/metrics.k8s.io/v1/pods").as_deref(), Some("v1.metrics.k8s.io"));
/// assert_eq!(api_service_name("/api/v1/pods").as_deref(), Some("v1."));
/// assert_eq!(api_service_name("/apis/metrics.k8s.io"), None);
/// ```
pub fn api_service_name(path: &str) -> Option<String> {
    let mut segments = path.strip_prefix('/')?.split('/');
    match segments.next()? {
        "api" => Some(LEGACY_NAME.to_owned()),
        "apis" => {
            let (group, version) = (segments.next()?, segments.next()?);
            (!group.is_empty() && !version.is_empty()).then(|| format!("{version}.{group}"))
        }
        _ => None,
    }
}

/// Percent-decodes a path. `None` for an ambiguous path, because this server could authorize another request than the
/// extension server executes. A path is ambiguous if it has an encoded slash, an empty, `.` or `..` segment, a control
/// character or invalid UTF-8. Go's servers and clients keep such paths unchanged; other servers do not.
pub(crate) fn decode_path(path: &str) -> Option<String> {
    let inner = path.strip_prefix('/')?;
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    let mut decoded = String::with_capacity(path.len());
    for segment in inner.split('/') {
        let segment = String::from_utf8(unescape_path(segment)?).ok()?;
        let is_ambiguous =
            matches!(segment.as_str(), "" | "." | "..") || segment.contains(|c: char| c == '/' || c.is_control());
        if is_ambiguous {
            return None;
        }
        decoded.push('/');
        decoded.push_str(&segment);
    }
    decoded.push_str(if path.ends_with('/') { "/" } else { "" });
    Some(decoded)
}

/// Percent-encodes a path (Go's `URL.EscapedPath`).
pub(crate) fn encode_path(path: &str) -> String {
    go::escape_path(path)
}

/// Whether a path is the discovery document of a group version, which must arrive within 5 seconds
/// (`NewRequestForProxy`).
pub(crate) fn is_discovery(path: &str) -> bool {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    matches!(segments[..], ["apis", _, _])
}

/// Sorts the pairs of a query by key, and re-encodes them (Go's `url.Values.Encode`). Pairs that Go cannot parse are
/// dropped: an extension server must not receive more than the API server authorized.
pub(crate) fn encode_query(query: &str) -> String {
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(key), Some(value)) = (unescape(key), unescape(value)) {
            pairs.push((key, value));
        }
    }
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    let encoded: Vec<String> = pairs.iter().map(|(key, value)| format!("{}={}", escape(key), escape(value))).collect();
    encoded.join("&")
}

/// Percent-decodes a text. `None` for a percent sign without two hexadecimal digits.
fn unescape(text: &str) -> Option<Vec<u8>> {
    unescape_path(&text.replace('+', " "))
}

/// Percent-decodes a text. `+` is not decoded.
fn unescape_path(text: &str) -> Option<Vec<u8>> {
    let is_valid =
        text.split('%').skip(1).all(|rest| rest.len() >= 2 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit));
    is_valid.then(|| percent_decode(text.as_bytes()).collect())
}

fn escape(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|&byte| match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            b' ' => "+".to_owned(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// A group version that an extension server serves, and the connections to it.
#[derive(Clone, Debug)]
pub struct RemoteRoute {
    pub(crate) api_service: Arc<ApiService>,
    pub(crate) transport: Result<Transport, TlsSettingsError>,
    /// The connections for probes and documents.
    pub(crate) probe_transport: Result<Transport, TlsSettingsError>,
}

impl RemoteRoute {
    /// The APIService.
    pub fn api_service(&self) -> &ApiService {
        &self.api_service
    }
}

/// The remote group versions by the name of their APIService. Every other path is local.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    remote: BTreeMap<String, (TlsSettings, RemoteRoute)>,
}

impl Routes {
    /// Creates the routes of these APIServices, with transports for requests and for probes. A transport is reused,
    /// with its connection pool, if the TLS settings of the APIService are unchanged.
    pub(crate) fn new(
        (proxy, probes): (&Proxy, &Proxy),
        certificate: Option<&ClientCertificate>,
        services: &[ApiService],
        before: &Routes,
    ) -> Self {
        let mut remote = BTreeMap::new();
        for service in services {
            if !service.is_remote() {
                continue;
            }
            let Some(settings) = service.tls_settings(certificate) else { continue };
            let kept = before.remote.get(&service.name).filter(|(old, _)| *old == settings);
            let (transport, probe_transport) = match kept {
                Some((_, route)) => (route.transport.clone(), route.probe_transport.clone()),
                None => (proxy.tls_transport(settings.clone()), probes.tls_transport(settings.clone())),
            };
            let route = RemoteRoute { api_service: Arc::new(service.clone()), transport, probe_transport };
            remote.insert(service.name.clone(), (settings, route));
        }
        Routes { remote }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.remote.is_empty()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&RemoteRoute> {
        self.remote.get(name).map(|(_, route)| route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_belongs_to_the_api_service_of_its_group_version() {
        let check =
            |path: &str, expected: Option<&str>| assert_eq!(api_service_name(path).as_deref(), expected, "{path}");
        check("/apis/g.example/v1", Some("v1.g.example"));
        check("/apis/g.example/v1/", Some("v1.g.example"));
        check("/apis/g.example/v1/namespaces/a/things/b/status", Some("v1.g.example"));
        check("/api", Some("v1."));
        check("/api/v1/pods", Some("v1."));
        for local in
            ["/apis", "/apis/", "/apis/g.example", "/apis/g.example/", "/apis//v1", "/openapi/v2", "/apixyz", ""]
        {
            check(local, None);
        }
    }

    #[test]
    fn forwarded_path_is_the_encoded_form_of_the_decoded_path() {
        let check = |path: &str, expected: &str| {
            assert_eq!(decode_path(path).map(|path| encode_path(&path)).as_deref(), Some(expected), "{path}");
        };
        for same in ["/apis/g/v1", "/apis/g/v1/things/", "/apis/g/v1/things/system:a@b;c=d", "/apis/g/v1/a%20b%3F%23"] {
            check(same, same);
        }
        check("/apis/g/v1/%74hings/%c3%bc", "/apis/g/v1/things/%C3%BC");
        check("/apis/g/v1/things/a%252Fb", "/apis/g/v1/things/a%252Fb");
        check("/apis/g/v1/things/...", "/apis/g/v1/things/...");
    }

    #[test]
    fn ambiguous_path_is_not_forwarded() {
        for end in [
            "a%2Fb", "a%2fb", "..", ".", "%2e%2E/x", ".%2e", "a//b", "a//", "a%00", "a%0d%0ab", "%7f", "%ff", "%zz",
            "%2",
        ] {
            assert_eq!(decode_path(&format!("/apis/g/v1/things/{end}")), None, "{end}");
        }
        for path in ["", "x", "//apis/g/v1", "*"] {
            assert_eq!(decode_path(path), None, "{path}");
        }
    }

    #[test]
    fn only_group_version_documents_are_discovery_paths() {
        for (path, expected) in
            [("/apis/g/v1", true), ("/apis/g/v1/", true), ("/apis/g/v1/things", false), ("/api/v1/pods", false)]
        {
            assert_eq!(is_discovery(path), expected, "{path}");
        }
    }

    #[test]
    fn query_is_sorted_by_key_and_reencoded() {
        let check = |query: &str, expected: &str| assert_eq!(encode_query(query), expected, "{query}");
        check("watch=true&b=2&b=1&a=x%20y+z", "a=x+y+z&b=2&b=1&watch=true");
        check("labelSelector=a%3Db%2Cc&flag", "flag=&labelSelector=a%3Db%2Cc");
        check("a=%zz&b=1;c=2&&d=%4", "");
        check("%C3%BC=1", "%C3%BC=1");
    }
}
