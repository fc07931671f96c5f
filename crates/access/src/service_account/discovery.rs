//! The documents with which other servers verify service account tokens: OpenID discovery and a JSON Web Key Set
//! (`pkg/serviceaccount/openidmetadata.go`).

use listwatch_json::{Value, json};

use super::keys::VerificationKey;

/// The path of the discovery document.
pub const OPENID_CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";

/// The path of the key set.
pub const JWKS_PATH: &str = "/openid/v1/jwks";

/// The discovery document and the key set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerDocuments {
    /// `/.well-known/openid-configuration`.
    pub configuration: String,
    /// `/openid/v1/jwks`.
    pub keys: String,
}

/// The reason why an issuer has no discovery documents. The server runs without the documents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDiscoverable {
    /// The issuer is not an `https` URL.
    #[error("issuer URL must use https scheme, got: {0}")]
    Scheme(String),
    /// The issuer has a query.
    #[error("issuer URL may not include a query, got: {0}")]
    Query(String),
    /// The issuer has a fragment.
    #[error("issuer URL may not include a fragment, got: {0}")]
    Fragment(String),
    /// The address of the key set is not an `https` URL.
    #[error("jwksURI requires https scheme, parsed as: {0}")]
    JwksUri(String),
}

impl IssuerDocuments {
    /// The documents of an issuer with these keys. `jwks_uri` is the URL of the key set for clients.
    ///
    /// # Errors
    /// [`NotDiscoverable`].
    pub fn new(issuer: &str, jwks_uri: &str, keys: &[VerificationKey]) -> Result<Self, NotDiscoverable> {
        if !is_https(issuer) {
            return Err(NotDiscoverable::Scheme(issuer.to_owned()));
        }
        let (url, fragment) = issuer.split_once('#').unwrap_or((issuer, ""));
        if url.split_once('?').is_some_and(|(_, query)| !query.is_empty()) {
            return Err(NotDiscoverable::Query(issuer.to_owned()));
        }
        if !fragment.is_empty() {
            return Err(NotDiscoverable::Fragment(issuer.to_owned()));
        }
        if !is_https(jwks_uri) {
            return Err(NotDiscoverable::JwksUri(jwks_uri.to_owned()));
        }
        let mut algorithms: Vec<&str> = keys.iter().map(VerificationKey::algorithm).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let configuration = json!({
            "issuer": issuer,
            "jwks_uri": jwks_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        });
        let keys: Vec<Value> = keys.iter().filter_map(VerificationKey::to_jwk).collect();
        Ok(IssuerDocuments { configuration: configuration.to_string(), keys: json!({"keys": keys}).to_string() })
    }
}

/// Whether a string is an `https` URL with a host.
fn is_https(url: &str) -> bool {
    let host = url.get(..8).filter(|scheme| scheme.eq_ignore_ascii_case("https://")).map(|_| &url[8..]);
    host.is_some_and(|host| !host.is_empty() && !host.contains(|c: char| c.is_ascii_control() || c == ' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_without_https_or_with_a_query_has_no_discovery_documents() {
        let documents = |issuer: &str| IssuerDocuments::new(issuer, "https://a/openid/v1/jwks", &[]);
        assert!(documents("https://kubernetes.default.svc").is_ok());
        for (issuer, error) in [
            ("kubernetes/serviceaccount", "issuer URL must use https scheme, got: kubernetes/serviceaccount"),
            ("http://a", "issuer URL must use https scheme, got: http://a"),
            ("https://a?b=c", "issuer URL may not include a query, got: https://a?b=c"),
            ("https://a#b", "issuer URL may not include a fragment, got: https://a#b"),
        ] {
            assert_eq!(documents(issuer).unwrap_err().to_string(), error);
        }
        let error = IssuerDocuments::new("https://a", "http://a/jwks", &[]).unwrap_err();
        assert_eq!(error.to_string(), "jwksURI requires https scheme, parsed as: http://a/jwks");
    }
}
