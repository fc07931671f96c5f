//! [`Document`]: the bytes of a document and their ETag.

use bytes::Bytes;
use sha2::{Digest, Sha512};

/// A document with its ETag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The bytes, compact JSON or protobuf.
    pub body: Bytes,
    /// The value of the `ETag` header with its quotes: the SHA-512 of the body in upper-case hexadecimal digits.
    pub etag: String,
}

impl Document {
    /// Creates a document with the ETag of its bytes.
    pub fn new(body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let etag = format!("\"{}\"", sha512_hex(&body));
        Document { body, etag }
    }

    /// Whether an `If-None-Match` header matches this document. The header is one ETag, several separated by commas,
    /// or `*`. Weak ETags match as strong ones do.
    pub fn is_known(&self, if_none_match: &str) -> bool {
        if_none_match.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == self.etag)
    }
}

/// The SHA-512 in upper-case hexadecimal digits, from which kube-apiserver makes the ETags of discovery and OpenAPI.
fn sha512_hex(bytes: &[u8]) -> String {
    Sha512::digest(bytes).iter().map(|byte| format!("{byte:02X}")).collect()
}
