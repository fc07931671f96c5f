//! Sets the audit id: each response carries the id of its request (`filters/request_received_time.go`,
//! `filters/audit_init.go`).

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Returns the audit id from the request headers, or a new one.
pub(crate) fn id(headers: &HeaderMap) -> HeaderValue {
    headers
        .get(&AUDIT_ID)
        .filter(|value| !value.is_empty())
        .cloned()
        .unwrap_or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).expect("a UUID is plain ASCII"))
}

/// Adds the audit id to a response.
pub(crate) fn add(headers: &mut HeaderMap, id: HeaderValue) {
    headers.insert(AUDIT_ID, id);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_id_of_the_client_is_kept_or_else_generated() {
        let mut request = HeaderMap::new();
        let (one, other) = (id(&request), id(&request));
        assert!(one.len() == 36 && one != other, "{one:?} {other:?}");
        request.insert(AUDIT_ID, HeaderValue::from_static(""));
        assert_eq!(id(&request).len(), 36, "an empty id is none");
        request.insert(AUDIT_ID, HeaderValue::from_static("mine"));
        let mut response = HeaderMap::new();
        add(&mut response, id(&request));
        assert_eq!(response["audit-id"], "mine");
    }
}
