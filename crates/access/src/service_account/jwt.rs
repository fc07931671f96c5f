//! JSON Web Tokens in compact form (RFC 7515, section 7.1; RFC 7519).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde::Deserialize;

use super::keys::{SigningKey, VerificationKey};

/// The longest token that is read, in bytes. A longer one is not recognized. Tokens of service accounts have about 1 KiB.
pub(crate) const TOKEN_BYTES_MAX: usize = 64 << 10;

/// A token whose signature is not verified.
pub(crate) struct UnverifiedToken<'a> {
    /// The part that is signed.
    pub(crate) signed: &'a str,
    pub(crate) header: &'a str,
    pub(crate) payload: Vec<u8>,
    pub(crate) signature: &'a str,
    /// The claimed issuer.
    pub(crate) issuer: String,
}

#[derive(Deserialize)]
pub(crate) struct Header {
    pub(crate) alg: String,
    #[serde(default)]
    pub(crate) kid: String,
    /// Extensions that the reader must understand. This reader supports no extensions.
    pub(crate) crit: Option<serde::de::IgnoredAny>,
}

/// The reason why a token has no valid signature.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SignatureError {
    /// The header cannot be read: the token is not of this kind.
    Header,
    /// No key has the id of the token.
    UnknownKey,
    /// No key verifies the signature.
    Invalid,
}

impl<'a> UnverifiedToken<'a> {
    /// Splits a token into its parts. `None` for a string of another form.
    pub(crate) fn parse(token: &'a str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Issuer {
            iss: String,
        }
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if payload.contains('.') {
            return None;
        }
        let payload = BASE64.decode(payload).ok()?;
        let Issuer { iss: issuer } = serde_json::from_slice(&payload).ok()?;
        Some(UnverifiedToken { signed, header, payload, signature, issuer })
    }

    /// Returns the claims if one of the keys signed them. The algorithm must be that of the key. So a token with `alg:
    /// none`, or with an HMAC keyed by the public key, is invalid.
    ///
    /// # Errors
    /// [`SignatureError`].
    pub(super) fn verify(&self, keys: &[VerificationKey]) -> Result<&[u8], SignatureError> {
        let header = BASE64.decode(self.header).map_err(|_| SignatureError::Header)?;
        let header: Header = serde_json::from_slice(&header).map_err(|_| SignatureError::Header)?;
        let signature = BASE64.decode(self.signature).map_err(|_| SignatureError::Header)?;
        if header.crit.is_some() {
            return Err(SignatureError::Invalid);
        }
        let mut keys = keys.iter().filter(|key| header.kid.is_empty() || key.id() == header.kid).peekable();
        if keys.peek().is_none() {
            return Err(SignatureError::UnknownKey);
        }
        match keys.any(|key| key.verify(&header.alg, self.signed.as_bytes(), &signature)) {
            true => Ok(&self.payload),
            false => Err(SignatureError::Invalid),
        }
    }
}

/// Signs claims. `None` if the system has no random numbers.
pub(crate) fn sign(key: &SigningKey, claims: &[u8]) -> Option<String> {
    let public = key.public();
    let header = listwatch_json::json!({"alg": public.algorithm(), "kid": public.id()}).to_string();
    let mut token = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let signature = key.sign(token.as_bytes())?;
    token.push('.');
    token.push_str(&BASE64.encode(signature));
    Some(token)
}
