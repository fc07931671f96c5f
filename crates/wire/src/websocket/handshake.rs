//! The WebSocket handshake as kube-apiserver's library does it (golang.org/x/net/websocket): the
//! check of a request's headers, and the response.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use sha1::{Digest as _, Sha1};

/// The constant that RFC 6455 appends to a key.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Prefix of a subprotocol that carries a bearer token, because browsers cannot set headers.
const BEARER_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// The `Sec-WebSocket-Accept` of a `Sec-WebSocket-Key`.
pub(crate) fn accept_key(key: &str) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

/// Whether a GET requests a WebSocket. Otherwise the watch uses plain HTTP.
pub fn is_upgrade(upgrade: Option<&str>, connection: Option<&str>) -> bool {
    upgrade.is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"))
        && connection.is_some_and(|connection| connection.to_ascii_lowercase().contains("upgrade"))
}

/// The headers of a WebSocket request; `None` for absent ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Upgrade<'a> {
    /// `Sec-WebSocket-Key`.
    pub key: Option<&'a str>,
    /// `Sec-WebSocket-Version`.
    pub version: Option<&'a str>,
    /// `Origin`. kube-apiserver requires it, and accepts any URI.
    pub origin: Option<&'a str>,
    /// `Sec-WebSocket-Protocol` without a token ([`bearer_token`]); several headers joined by
    /// commas.
    pub protocols: Option<&'a str>,
}

/// The headers of the 101 response besides `Upgrade: websocket` and `Connection: Upgrade`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// `Sec-WebSocket-Accept`.
    pub accept: String,
    /// `Sec-WebSocket-Protocol`, if the client offered one.
    pub protocol: Option<String>,
}

/// The response to a rejected request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the WebSocket handshake is refused with {code}: {body}")]
pub struct Refused {
    /// The status code.
    pub code: u16,
    /// The body, plain text; may be empty.
    pub body: &'static str,
    /// Whether to send `Sec-WebSocket-Version: 13`.
    pub names_version: bool,
}

impl Upgrade<'_> {
    /// Checks the headers of a request.
    ///
    /// # Errors
    /// [`Refused`], with the code and text of kube-apiserver's library. The client is at fault.
    pub fn check(&self) -> Result<Accepted, Refused> {
        let refused = |code, body| Err(Refused { code, body, names_version: false });
        let Some(key) = self.key.filter(|key| !key.is_empty()) else {
            return refused(400, "mismatch challenge/response");
        };
        if self.version != Some("13") {
            return Err(Refused { code: 400, body: "missing or bad WebSocket Version", names_version: true });
        }
        if !self.origin.is_some_and(is_uri) {
            return refused(403, "");
        }
        let protocols = self.protocols.unwrap_or_default().trim();
        let offered: Vec<&str> =
            if protocols.is_empty() { Vec::new() } else { protocols.split(',').map(str::trim).collect() };
        match *offered.as_slice() {
            [] => Ok(Accepted { accept: accept_key(key), protocol: None }),
            [protocol] => Ok(Accepted { accept: accept_key(key), protocol: Some(protocol.to_owned()) }),
            // The library does not choose among several, and none has a meaning for a watch.
            _ => refused(400, ""),
        }
    }
}

/// Whether the text is an absolute URI or path, as accepted by Go's `url.ParseRequestURI`.
fn is_uri(text: &str) -> bool {
    if text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return false;
    }
    let Some((scheme, _)) = text.split_once(':') else { return text.starts_with('/') };
    text.starts_with('/')
        || (scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)))
}

/// The error of a token among the subprotocols, with kube-apiserver's text, for a 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BearerError {
    /// There are several tokens.
    #[error("multiple base64.bearer.authorization tokens specified")]
    Several,
    /// The token is not base64url without padding.
    #[error("invalid base64.bearer.authorization token encoding")]
    Encoding,
    /// The token is not UTF-8.
    #[error("invalid base64.bearer.authorization token")]
    NotUtf8,
    /// The client offers no other subprotocol, which the server needs for its response.
    #[error("missing additional subprotocol")]
    Alone,
}

/// Extracts a bearer token from `Sec-WebSocket-Protocol` (several headers joined by commas): the
/// token, and the remaining subprotocols for [`Upgrade::protocols`]. `None` if there is no token.
///
/// # Errors
/// [`BearerError`]; the client is at fault.
pub fn bearer_token(protocols: &str) -> Result<Option<(String, String)>, BearerError> {
    let (mut token, mut left) = (None, Vec::new());
    for protocol in protocols.split(',').map(str::trim) {
        let Some(encoded) = protocol.strip_prefix(BEARER_PREFIX) else {
            left.push(protocol);
            continue;
        };
        if token.is_some() {
            return Err(BearerError::Several);
        }
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| BearerError::Encoding)?;
        token = Some(String::from_utf8(bytes).map_err(|_| BearerError::NotUtf8)?);
    }
    match token.filter(|token| !token.is_empty()) {
        None => Ok(None),
        Some(_) if left.is_empty() => Err(BearerError::Alone),
        Some(token) => Ok(Some((token, left.join(",")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Upgrade<'static> = Upgrade {
        key: Some("dGhlIHNhbXBsZSBub25jZQ=="),
        version: Some("13"),
        origin: Some("http://localhost"),
        protocols: None,
    };

    #[test]
    fn valid_upgrade_request_is_accepted() {
        // The example of RFC 6455, 1.3.
        let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned();
        for (protocols, protocol) in [(None, None), (Some(""), None), (Some(" chat "), Some("chat"))] {
            let accepted = Accepted { accept: accept.clone(), protocol: protocol.map(str::to_owned) };
            assert_eq!(Upgrade { protocols, ..GOOD }.check(), Ok(accepted), "{protocols:?}");
        }
        for origin in ["https://a.example:8443/x", "/path", "file:///x", "chrome-extension://abc"] {
            assert!(Upgrade { origin: Some(origin), ..GOOD }.check().is_ok(), "{origin}");
        }
    }

    #[test]
    fn invalid_upgrade_request_is_rejected_as_by_kube_apiserver() {
        fn refused(upgrade: Upgrade<'_>, code: u16, body: &str) {
            let refused = upgrade.check().expect_err("a refusal");
            assert_eq!((refused.code, refused.body), (code, body), "{upgrade:?}");
            assert_eq!(refused.names_version, body.contains("Version"));
        }
        refused(Upgrade { key: None, ..GOOD }, 400, "mismatch challenge/response");
        refused(Upgrade { key: Some(""), ..GOOD }, 400, "mismatch challenge/response");
        refused(Upgrade { version: None, ..GOOD }, 400, "missing or bad WebSocket Version");
        refused(Upgrade { version: Some("8"), ..GOOD }, 400, "missing or bad WebSocket Version");
        refused(Upgrade { origin: None, ..GOOD }, 403, "");
        for origin in ["", "null", "localhost", "1http://x", "http://a b"] {
            refused(Upgrade { origin: Some(origin), ..GOOD }, 403, "");
        }
        refused(Upgrade { protocols: Some("a, b"), ..GOOD }, 400, "");
    }

    #[test]
    fn websocket_upgrade_requires_both_headers() {
        for (upgrade, connection, expected) in [
            (Some("WebSocket"), Some("keep-alive, Upgrade"), true),
            (Some("websocket"), Some("upgrade"), true),
            (Some("websocket"), Some("keep-alive"), false),
            (Some("websocket"), None, false),
            (Some("SPDY/3.1"), Some("Upgrade"), false),
            (None, Some("Upgrade"), false),
        ] {
            assert_eq!(is_upgrade(upgrade, connection), expected, "{upgrade:?} {connection:?}");
        }
    }

    #[test]
    fn bearer_token_is_extracted_from_the_subprotocols() {
        const TOKEN: &str = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        fn check(protocols: &str, expected: Result<Option<(&str, &str)>, BearerError>) {
            let found = bearer_token(protocols);
            let expected = expected.map(|found| found.map(|(token, left)| (token.to_owned(), left.to_owned())));
            assert_eq!(found, expected, "{protocols}");
        }
        check("", Ok(None));
        check("chat", Ok(None));
        check(&format!("{TOKEN}, chat"), Ok(Some(("secret", "chat"))));
        check(&format!("a, {TOKEN} ,b"), Ok(Some(("secret", "a,b"))));
        check(TOKEN, Err(BearerError::Alone));
        check(&format!("{TOKEN},{TOKEN},a"), Err(BearerError::Several));
        check(&format!("{BEARER_PREFIX}=,a"), Err(BearerError::Encoding));
        check(&format!("{BEARER_PREFIX}_w,a"), Err(BearerError::NotUtf8));
        check(&format!("{BEARER_PREFIX},a"), Ok(None));
    }
}
