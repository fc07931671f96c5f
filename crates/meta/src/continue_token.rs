//! The position and revision at which a paged list resumes: [`ContinueToken`].
//!
//! The format is that of kube-apiserver (`pkg/storage/continue.go`): unpadded URL-safe base64 of
//! `{"v":"meta.k8s.io/v1","rv":<revision>,"start":"<key after the collection's prefix>"}`. A
//! negative `rv` resumes at the latest state; the server returns such a token in place of an
//! expired one.

use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, NO_PAD, URL_SAFE_NO_PAD};
use base64::{DecodeError, Engine as _};
use serde::{Deserialize, Serialize};

use crate::revision::Revision;

const VERSION: &str = "meta.k8s.io/v1";

/// Decodes as Go's `base64.RawURLEncoding` does: leftover bits of the last character are ignored.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, GeneralPurposeConfig::with_decode_allow_trailing_bits(NO_PAD, true));

/// A position in a paged list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinueToken {
    /// The revision of all pages; `None` resumes at the latest state.
    pub at: Option<Revision>,
    /// The first key that may be on the page, relative to the collection's prefix, without a
    /// leading slash: `ns/name\0` or `name\0`.
    pub start: String,
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    v: String,
    rv: i64,
    #[serde(default)]
    start: String,
}

impl ContinueToken {
    /// The token of the page after the object `last`, a key relative to the collection.
    pub fn after(at: Revision, last: &str) -> Self {
        ContinueToken { at: Some(at), start: format!("{last}\0") }
    }

    /// The same position at the latest state, for the token in a 410 response.
    #[must_use]
    pub fn inconsistent(&self) -> Self {
        ContinueToken { at: None, start: self.start.clone() }
    }

    /// The encoded token, as clients see it.
    pub fn encode(&self) -> String {
        let encoded = Encoded {
            v: VERSION.to_owned(),
            rv: self.at.map_or(-1, |revision| revision.get() as i64),
            start: self.start.clone(),
        };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&encoded).expect("plain strings and numbers"))
    }

    /// Parses a token.
    ///
    /// # Errors
    /// [`InvalidContinueToken`] when the text was not created by [`encode`](Self::encode) or would
    /// address keys outside its collection.
    pub fn decode(text: &str) -> Result<Self, InvalidContinueToken> {
        let bytes = LENIENT.decode(text).map_err(|error| {
            // Go's error has the position of the bad byte and nothing else.
            let at = match error {
                DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
                DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => text.len().saturating_sub(1),
            };
            InvalidContinueToken(format!("illegal base64 data at input byte {at}"))
        })?;
        let encoded: Encoded = serde_json::from_slice(&bytes)
            .map_err(|error| InvalidContinueToken(no_json(&bytes).unwrap_or_else(|| error.to_string())))?;
        if encoded.v != VERSION {
            let message = format!("server does not recognize this encoded version {}", encoded.v);
            return Err(InvalidContinueToken(message));
        }
        if encoded.rv == 0 {
            let message = format!("incorrect encoded start resourceVersion (version {VERSION})");
            return Err(InvalidContinueToken(message));
        }
        if encoded.start.is_empty() {
            return Err(InvalidContinueToken(format!("encoded start key empty (version {VERSION})")));
        }
        let start = encoded.start.strip_prefix('/').unwrap_or(&encoded.start);
        let clean = start
            .split('/')
            .enumerate()
            .all(|(position, part)| part != "." && part != ".." && (!part.is_empty() || position == 0));
        if !clean || start.starts_with('/') {
            return Err(InvalidContinueToken(encoded.start));
        }
        let at = u64::try_from(encoded.rv).ok().map(Revision::new);
        Ok(ContinueToken { at, start: start.to_owned() })
    }
}

/// Go's error for bytes whose first byte does not begin a JSON value; `None` for a later syntax
/// error.
fn no_json(bytes: &[u8]) -> Option<String> {
    let Some(first) = bytes.iter().find(|byte| !b" \t\r\n".contains(byte)) else {
        return Some("unexpected end of JSON input".to_owned());
    };
    if b"{[\"-tfn0123456789".contains(first) {
        return None;
    }
    // Go converts the byte to a code point and quotes it as a string literal.
    let shown = match char::from(*first) {
        c @ ('\'' | '\\') => format!("\\{c}"),
        c if c == '"' || !c.is_control() => c.to_string(),
        c if *first < 0x80 => format!("\\x{:02x}", u32::from(c)),
        c => format!("\\u{:04x}", u32::from(c)),
    };
    Some(format!("invalid character '{shown}' looking for beginning of value"))
}

/// The error for a continue token that this server did not issue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid continue token: continue key is not valid: {0}")]
pub struct InvalidContinueToken(String);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encoded_token_keeps_revision_and_position() {
        let token = ContinueToken::after(Revision::new(42), "default/web");
        let decoded = ContinueToken::decode(&token.encode()).unwrap();
        assert_eq!(decoded, token);
        assert_eq!(ContinueToken::decode(&token.inconsistent().encode()).unwrap().at, None);
        let text = URL_SAFE_NO_PAD.decode(token.encode()).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "{\"v\":\"meta.k8s.io/v1\",\"rv\":42,\"start\":\"default/web\\u0000\"}"
        );
    }

    #[test]
    fn decode_rejects_continue_tokens_with_invalid_version_revision_or_start() {
        let token = |json: &str| ContinueToken::decode(&URL_SAFE_NO_PAD.encode(json));
        assert!(token(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"/a/b\u0000"}"#).is_ok());
        for bad in [
            r#"{"v":"meta.k8s.io/v2","rv":1,"start":"a"}"#,
            r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#,
            r#"{"v":"meta.k8s.io/v1","rv":1,"start":""}"#,
            r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../x"}"#,
            r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a//b"}"#,
            r#"{"v":"meta.k8s.io/v1","rv":1,"start":"//b"}"#,
            "{}",
            "x",
        ] {
            assert!(token(bad).is_err(), "{bad}");
        }
        assert!(ContinueToken::decode("%%%").is_err());
    }

    #[test]
    fn decode_of_garbage_fails_with_gos_error_text() {
        for (text, why) in [
            ("garbage", "invalid character '\\u0081' looking for beginning of value"),
            ("no token", "illegal base64 data at input byte 2"),
            ("eHh4", "invalid character 'x' looking for beginning of value"),
            ("IA", "unexpected end of JSON input"),
        ] {
            let error = ContinueToken::decode(text).unwrap_err().to_string();
            assert_eq!(error, format!("invalid continue token: continue key is not valid: {why}"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn continue_token_decode_never_panics(text in ".{0,60}") {
            let _ = ContinueToken::decode(&text);
        }
    }
}
