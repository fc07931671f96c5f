//! [`ProxiedPath`]: the part of a proxy request's path that the backend receives (`getRequestOptions` in
//! `endpoints/handlers/get.go`, `JoinPreservingTrailingSlash`).
//!
//! ```text
//!  client      /api/v1/nodes/n/proxy/a%2F..%2F%65xec/x%20y
//!  admission   /exec/x y
//!  backend     /exec/x%20y
//! ```
//!
//! The backend decodes the path that it receives. The path is therefore decoded before admission and encoded again, so
//! that the backend reads the same path as the admission plugins.

use listwatch_json::{Map, Value};
use listwatch_meta::{Status, go};
use percent_encoding::percent_decode_str;

/// A path at the backend of a proxy request, percent-decoded. `.`, `..` and empty segments are resolved, so that no
/// request leaves the authorized part. Empty if nothing, not even a slash, follows the subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxiedPath(String);

impl ProxiedPath {
    /// Reads the path after the first `skipped` segments of a request's path. As upstream, an encoded slash separates
    /// segments.
    ///
    /// # Errors
    /// 400 if the decoded path is not UTF-8: the options of the connection could not contain it.
    pub fn of_request(path: &str, skipped: usize) -> Result<Self, Status> {
        let rest = path.trim_start_matches('/').splitn(skipped + 1, '/').nth(skipped).unwrap_or_default();
        let decoded = percent_decode_str(rest).decode_utf8();
        let decoded = decoded.map_err(|_| Status::bad_request("the path of a proxy request must be UTF-8"))?;
        // `rest` is empty for a path that ends with the slash after the subresource.
        let slash = if path.ends_with('/') { "/" } else { "" };
        Ok(ProxiedPath(clean(&format!("{decoded}{slash}"))))
    }

    /// Reads the path of a connection's options. An admission plugin may have changed it.
    pub fn of_options(options: &Map) -> Self {
        ProxiedPath(clean(options.get("path").and_then(Value::as_str).unwrap_or_default()))
    }

    /// Returns the decoded path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the percent-encoded path, without `?` and `#` (Go's `URL.EscapedPath`).
    pub fn encoded(&self) -> String {
        go::escape_path(&self.0)
    }
}

/// Resolves the `.`, `..` and empty segments of a decoded path. Keeps a slash at the end.
fn clean(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(segment),
        }
    }
    let slash = if path.ends_with('/') { "/" } else { "" };
    kept.iter().flat_map(|segment| ["/", segment]).chain([slash]).collect()
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn proxied_path_is_decoded_for_admission_and_encoded_for_the_backend() {
        let check = |path: &str, admitted: &str, forwarded: &str| {
            let found = ProxiedPath::of_request(&format!("/api/v1/nodes/n/proxy{path}"), 5).unwrap();
            assert_eq!((found.as_str(), &*found.encoded()), (admitted, forwarded), "{path}");
        };
        check("", "", "");
        check("/", "/", "/");
        check("/a/b", "/a/b", "/a/b");
        check("/a/b/", "/a/b/", "/a/b/");
        check("/%65xec/d/p", "/exec/d/p", "/exec/d/p");
        check("/a%20b", "/a b", "/a%20b");
        check("/a%3Fb=c", "/a?b=c", "/a%3Fb=c");
        check("/a%23b", "/a#b", "/a%23b");
        check("/a%25b", "/a%b", "/a%25b");
        check("/%2565xec", "/%65xec", "/%2565xec");
        check("/a%zz%", "/a%zz%", "/a%25zz%25");
        check("/%C3%A9", "/é", "/%C3%A9");
        check("/$&+,:;=@-_.~", "/$&+,:;=@-_.~", "/$&+,:;=@-_.~");
        check("/a'(b)", "/a'(b)", "/a%27%28b%29");
        check("/%0D%0Aa", "/\r\na", "/%0D%0Aa");
    }

    #[test]
    fn proxied_path_with_dots_stays_below_the_proxy_target() {
        let check = |path: &str, expected: &str| {
            let found = ProxiedPath::of_request(&format!("/api/v1/nodes/n/proxy{path}"), 5).unwrap();
            assert_eq!(found.encoded(), expected, "{path}");
        };
        check("/a/../../../b", "/b");
        check("/a/%2e%2e/%2E./b", "/b");
        check("/./a", "/a");
        check("/..", "");
        check("/../", "/");
        check("/a%2Fb", "/a/b");
        check("/a//b", "/a/b");
        check("//", "/");
        check("/%2f", "/");
        check("/a%2F", "/a/");
        check("/a%2f..%2F..%2f..%2Fb", "/b");
        check("/..%2f..%2Fb", "/b");
        check("/%2e%2e%2f%2E%2e%2Fb", "/b");
        check("/a%252F..%252Fb", "/a%252F..%252Fb");
        check("/a/%252e%252e/b", "/a/%252e%252e/b");
    }

    #[test]
    fn proxied_path_that_is_not_utf_8_is_rejected() {
        for path in ["/%ff", "/a/%C3/b", "/%ff%2f.."] {
            let found = ProxiedPath::of_request(&format!("/api/v1/nodes/n/proxy{path}"), 5);
            assert_eq!(found.unwrap_err().code, 400, "{path}");
        }
    }

    #[test]
    fn path_that_a_plugin_has_changed_is_cleaned_and_encoded() {
        let check = |path: &str, expected: &str| {
            let options = json!({"kind": "NodeProxyOptions", "path": path});
            assert_eq!(ProxiedPath::of_options(options.as_object().unwrap()).encoded(), expected, "{path}");
        };
        check("", "");
        check("other/path", "/other/path");
        check("/a?x=1", "/a%3Fx=1");
        check("/a#b", "/a%23b");
        check("/a b/", "/a%20b/");
        check("/a/../../b", "/b");
        check("/%65xec", "/%2565xec");
        assert_eq!(ProxiedPath::of_options(&Map::new()).as_str(), "");
    }
}
