//! [`Document`]: the bytes of a document and their ETag.

use bytes::Bytes;
use sha2::{Digest, Sha512};

/// A document with its ETag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The bytes, compact JSON or protobuf.
    pub body: Bytes,
    /// The value of the `ETag` header with its quotes: a SHA-512 in upper-case hexadecimal digits. All forms of a
    /// document have the ETag of its JSON.
    pub etag: String,
}

impl Document {
    /// Creates a document with the ETag of its bytes.
    pub fn new(body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let etag = etag(&Sha512::digest(&body));
        Document { body, etag }
    }

    /// Whether an `If-None-Match` header matches this document. See [`etag_matches`].
    pub fn is_known(&self, if_none_match: &str) -> bool {
        etag_matches(&self.etag, if_none_match)
    }
}

/// Whether an `If-None-Match` header matches an ETag (RFC 9110, section 13.1.2; `checkIfNoneMatch` of Go's `net/http`).
/// The header is one ETag, several separated by commas, or `*`. Weak ETags match as strong ones do.
pub fn etag_matches(etag: &str, if_none_match: &str) -> bool {
    let matches = |tag: &str| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag;
    if_none_match.split(',').map(str::trim).any(matches)
}

/// The ETag of a SHA-512 digest: the digest in upper-case hexadecimal digits, in quotes, as kube-apiserver writes it for
/// discovery and OpenAPI.
pub(crate) fn etag(digest: &[u8]) -> String {
    let digits: String = digest.iter().map(|byte| format!("{byte:02X}")).collect();
    format!("\"{digits}\"")
}
