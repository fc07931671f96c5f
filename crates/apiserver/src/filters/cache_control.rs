//! Disables caching of responses, unless their handler sets `Cache-Control` (`filters/cachecontrol.go`).

use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};

/// Adds the header `Cache-Control` if the response has none.
pub(crate) fn add(headers: &mut HeaderMap) {
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_control_header_set_by_the_handler_is_kept() {
        let mut headers = HeaderMap::new();
        add(&mut headers);
        assert_eq!(headers[CACHE_CONTROL], "no-cache, private");
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        add(&mut headers);
        assert_eq!(headers[CACHE_CONTROL], "public, immutable");
    }
}
