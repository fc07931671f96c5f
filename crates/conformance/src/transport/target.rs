//! [`Target`]: the tested server, with its address, its connections and the credentials of the
//! user.

use base64::Engine as _;
use http::HeaderValue;
use listwatch_client::Config;
use listwatch_client::config::Auth;
use listwatch_client::transport::{Dialer, Protocols};

/// The HTTP version of a run. Cases about transports select the version themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/2 if the server offers it over TLS, otherwise HTTP/1.1.
    #[default]
    Any,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl HttpVersion {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            HttpVersion::Any => "any",
            HttpVersion::Http1 => "HTTP/1.1",
            HttpVersion::Http2 => "HTTP/2",
        }
    }
}

/// The error of a server that cannot be reached as configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(String);

/// The tested server.
#[derive(Debug)]
pub struct Target {
    dialers: [Dialer; 3],
    pub(crate) version: HttpVersion,
    /// The host and port for the header `Host`.
    pub(crate) authority: String,
    pub(crate) scheme: &'static str,
    /// The path before every path of the API, without a slash at the end.
    pub(crate) prefix: String,
    pub(crate) authorization: Option<HeaderValue>,
}

impl Target {
    /// Creates the target of a configuration. A credential plugin runs once, in this call.
    ///
    /// # Errors
    /// [`TargetError`] if the address, the certificates or the credentials cannot be used.
    pub async fn new(mut config: Config, version: HttpVersion) -> Result<Self, TargetError> {
        let wrong = |error: &dyn std::fmt::Display| TargetError(error.to_string());
        // Cases about impersonation set its headers themselves.
        if config.impersonation.is_some() {
            return Err(TargetError("impersonation in a kubeconfig is not supported".to_owned()));
        }
        let authorization = match std::mem::take(&mut config.auth) {
            Auth::None => None,
            Auth::Token(token) => Some(format!("Bearer {token}")),
            Auth::TokenFile(path) => {
                let token = std::fs::read_to_string(&path)
                    .map_err(|error| TargetError(format!("cannot read {}: {error}", path.display())))?;
                Some(format!("Bearer {}", token.trim()))
            }
            Auth::Basic { username, password } => {
                let pair = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
                Some(format!("Basic {pair}"))
            }
            Auth::Exec(plugin) => {
                let credentials = plugin.run().await.map_err(|error| wrong(&error))?;
                if let Some(identity) = credentials.identity {
                    config.tls.identity = Some(identity);
                }
                credentials.token.map(|token| format!("Bearer {}", token.0))
            }
            other => return Err(TargetError(format!("the credentials {other:?} are not supported"))),
        };
        let authorization = match authorization {
            None => None,
            Some(text) => {
                let value = HeaderValue::try_from(text);
                let mut value =
                    value.map_err(|_| TargetError("the credentials are not valid in a header".to_owned()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let dialer = |protocols| Dialer::new(&config, protocols).map_err(|error| wrong(&error));
        let dialers = [dialer(Protocols::Any)?, dialer(Protocols::Http1)?, dialer(Protocols::Http2)?];
        let authority = config.server.authority().map(ToString::to_string).unwrap_or_default();
        let scheme = if config.server.scheme_str() == Some("https") { "https" } else { "http" };
        let prefix = config.server.path().trim_end_matches('/').to_owned();
        Ok(Target { dialers, version, authority, scheme, prefix, authorization })
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.prefix)
    }

    pub(crate) fn dialer(&self, version: HttpVersion) -> &Dialer {
        &self.dialers[version as usize]
    }
}
