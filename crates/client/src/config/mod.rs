//! The address and credentials of a server: [`Config`], from a kubeconfig or from inside a cluster.
//!
//! This module parses kubeconfig itself, because a client library would add another HTTP stack.
//! Unsupported features (auth providers that client-go also dropped, proxies behind TLS) are
//! rejected with a message.

mod certificate;
#[cfg(feature = "exec")]
mod exec;
mod impersonation;
#[cfg(feature = "kubeconfig")]
mod kubeconfig;
#[cfg(feature = "kubeconfig")]
mod proxy;

#[cfg(feature = "kubeconfig")]
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use http::Uri;

pub use self::certificate::{Certificate, Identity};
#[cfg(feature = "exec")]
pub use self::exec::{
    ExecCredentials, ExecError, ExecPlugin, ExecVersion, INTERACTIVE_LIMIT, InteractiveMode, OUTPUT_LIMIT_BYTES,
    RUN_LIMIT, Secret,
};
pub use self::impersonation::Impersonation;
#[cfg(feature = "kubeconfig")]
pub use self::kubeconfig::Kubeconfig;

use self::certificate::parse_certificates;
use crate::transport::{BoxError, TransportOptions};

/// The directory of a pod's credentials.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The address, credentials and connection options of one API server.
#[derive(Debug)]
pub struct Config {
    /// `https://host:port`, with an optional path prefix of the API.
    pub server: Uri,
    /// The TLS options.
    pub tls: TlsOptions,
    /// The authentication of requests.
    pub auth: Auth,
    /// The user that every request of [`crate::Client`] impersonates; `None` for the authenticated user itself. A
    /// kubeconfig names the user in `as`, `as-uid`, `as-groups` and `as-user-extra`.
    pub impersonation: Option<Impersonation>,
    /// The default namespace.
    pub namespace: String,
    /// The connection options.
    pub transport: TransportOptions,
    /// Requests lists as gzip, which saves traffic and costs CPU time on both sides.
    /// `disable-compression` in a kubeconfig turns it off. Compression is off for servers in the same
    /// cluster or on this machine.
    pub compression: bool,
}

impl Config {
    /// A configuration for this server, with defaults for everything else: the system's CAs, no credentials, the
    /// namespace `default`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when `server` is not an `http://` or `https://` URL.
    pub fn new(server: &str) -> Result<Self, ConfigError> {
        let server = parse_server(server)?;
        Ok(Config {
            compression: !is_local(&server),
            server,
            tls: TlsOptions::default(),
            auth: Auth::None,
            impersonation: None,
            namespace: "default".to_owned(),
            transport: TransportOptions::default(),
        })
    }
}

/// The options of TLS connections.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// The certificate authorities that are trusted; empty for the system's.
    pub authorities: Vec<Certificate>,
    /// Accepts any certificate. The server's identity is not verified. Together with authorities this is an error.
    pub insecure_skip_verify: bool,
    /// The name in the server's certificate, if it is not the host of the URL.
    pub server_name: Option<String>,
    /// The client's own certificate chain and key.
    pub identity: Option<Identity>,
    /// The files from which the fields above were read, and which are read again.
    pub files: TlsFiles,
}

/// The files of [`TlsOptions`]. They are read again before the first request, and then at most once per
/// [`TLS_FILES_INTERVAL`](crate::transport::TLS_FILES_INTERVAL), when a request is sent or a connection is opened. If
/// their contents changed, later requests use new connections; running ones keep the old connection until they end. If
/// a file cannot be read or parsed, its old contents are kept. The default names no file.
///
/// As in client-go (`loadTLSFiles` of transport/transport.go), options that a kubeconfig embeds (`*-data`) have no file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The file of [`TlsOptions::authorities`], in PEM.
    pub authorities: Option<PathBuf>,
    /// The files of [`TlsOptions::identity`], in PEM: the certificate chain, and the key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The authentication of requests, besides a client certificate.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Auth {
    /// No credentials besides a client certificate.
    #[default]
    None,
    /// A bearer token: `Authorization: Bearer …`.
    Token(String),
    /// A bearer token from a file. Service account tokens rotate, so the file is read again every
    /// minute and when the server rejects the token.
    TokenFile(PathBuf),
    /// A program that provides tokens, client certificates, or both. The program runs before the first
    /// request, before its credentials expire, and when the server rejects them.
    #[cfg(feature = "exec")]
    Exec(Box<ExecPlugin>),
    /// HTTP basic authentication: `Authorization: Basic …`.
    Basic {
        /// The user name.
        username: String,
        /// The password.
        password: String,
    },
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Credentials must not reach logs.
        f.write_str(match self {
            Auth::None => "None",
            Auth::Token(_) => "Token(…)",
            Auth::TokenFile(_) => "TokenFile(…)",
            #[cfg(feature = "exec")]
            Auth::Exec(_) => "Exec(…)",
            Auth::Basic { .. } => "Basic(…)",
        })
    }
}

/// A configuration cannot be used. Each message names the file or variable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is not a kubeconfig.
    #[error("{}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
        /// The parser's error.
        source: BoxError,
    },
    /// A context, cluster or user does not exist.
    #[error("the kubeconfig has no {what} {name:?}; it has: {}", known.join(", "))]
    Unknown {
        /// `context`, `cluster` or `user`.
        what: &'static str,
        /// The name.
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// There is no kubeconfig, and the process does not run in a cluster.
    #[error("no kubeconfig at {} and not inside a cluster; name a file with --kubeconfig or KUBECONFIG", tried.display())]
    Nothing {
        /// The paths that were searched.
        tried: PathBuf,
    },
    /// The kubeconfig requires an unsupported feature.
    #[error("{what} is not supported by this client{advice}")]
    Unsupported {
        /// The unsupported feature.
        what: String,
        /// The alternative, beginning with `; `; may be empty.
        advice: String,
    },
    /// A value cannot be used.
    #[error("{what}: {why}")]
    Invalid {
        /// The name of the value.
        what: String,
        /// The problem.
        why: String,
        /// The parser's error, if any.
        source: Option<BoxError>,
    },
}

impl ConfigError {
    /// A value that cannot be used.
    pub(crate) fn invalid(what: impl Into<String>, why: impl ToString) -> Self {
        ConfigError::Invalid { what: what.into(), why: why.to_string(), source: None }
    }

    /// Adds the cause of the error. Only [`ConfigError::Invalid`] keeps it.
    pub(crate) fn caused_by(mut self, error: impl Into<BoxError>) -> Self {
        if let ConfigError::Invalid { source, .. } = &mut self {
            *source = Some(error.into());
        }
        self
    }
}

impl Config {
    /// Finds the configuration as kubectl does: `kubeconfig` if given, else the files of
    /// `KUBECONFIG`, else `~/.kube/config`, else the cluster of this pod. `context` selects a
    /// context of the kubeconfig; `None` is the current one. If the kubeconfig names no proxy,
    /// `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` apply.
    ///
    /// # Errors
    /// [`ConfigError`].
    #[cfg(feature = "kubeconfig")]
    pub fn load(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Self, ConfigError> {
        let mut config = Config::find(kubeconfig, context, &|name| std::env::var_os(name))?;
        if config.transport.proxy.is_none() {
            config.transport.proxy = proxy::from_environment(&config.server, &|name| std::env::var(name).ok())?;
        }
        Ok(config)
    }

    #[cfg(feature = "kubeconfig")]
    fn find(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        if let Some(path) = kubeconfig {
            return Kubeconfig::read(path)?.config(context);
        }
        if let Some(paths) = variable("KUBECONFIG").filter(|paths| !paths.is_empty()) {
            return Kubeconfig::read_all(std::env::split_paths(&paths))?.config(context);
        }
        let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
        let tried = home.join(".kube").join("config");
        if tried.exists() {
            return Kubeconfig::read(&tried)?.config(context);
        }
        if variable("KUBERNETES_SERVICE_HOST").is_some() {
            return Config::in_cluster();
        }
        Err(ConfigError::Nothing { tried })
    }

    /// The configuration of a pod: `KUBERNETES_SERVICE_HOST` and `_PORT`, and the mounted service
    /// account.
    ///
    /// # Errors
    /// [`ConfigError`] when a variable or a file is missing.
    pub fn in_cluster() -> Result<Self, ConfigError> {
        let variable = |name: &str| {
            std::env::var(name).map_err(|error| {
                let what = format!("the environment variable {name}");
                ConfigError::invalid(what, "is not set; this process runs in no cluster").caused_by(error)
            })
        };
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        Config::from_service_account(Path::new(SERVICE_ACCOUNT), &host, &port)
    }

    fn from_service_account(folder: &Path, host: &str, port: &str) -> Result<Self, ConfigError> {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let authority = folder.join("ca.crt");
        let token = folder.join("token");
        read(&token)?;
        let namespace = read(&folder.join("namespace")).unwrap_or_default();
        let namespace = String::from_utf8_lossy(&namespace).trim().to_owned();
        Ok(Config {
            tls: TlsOptions {
                authorities: parse_certificates(&read(&authority)?, &authority.display().to_string())?,
                files: TlsFiles { authorities: Some(authority), identity: None },
                ..TlsOptions::default()
            },
            auth: Auth::TokenFile(token),
            namespace: if namespace.is_empty() { "default".to_owned() } else { namespace },
            compression: false,
            ..Config::new(&format!("https://{host}:{port}"))?
        })
    }
}

/// True if the server is on this machine.
fn is_local(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })
}

fn parse_server(server: &str) -> Result<Uri, ConfigError> {
    let invalid = |why: &dyn fmt::Display| ConfigError::invalid(format!("the server's address {server:?}"), why);
    let uri: Uri = server
        .trim_end_matches('/')
        .parse()
        .map_err(|error: http::uri::InvalidUri| invalid(&error).caused_by(error))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
        return Err(invalid(&"is no http:// or https:// URL"));
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The certificate is decoded, not verified, so any bytes suffice.
    pub(super) const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n";

    #[test]
    fn in_cluster_config_uses_the_service_account() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        assert!(Config::from_service_account(folder.path(), "10.0.0.1", "443").is_err(), "there is no token");
        write("token", "t");
        write("ca.crt", CERTIFICATE);
        write("namespace", "shop\n");
        let config = Config::from_service_account(folder.path(), "fd00::1", "443").unwrap();
        assert_eq!(config.server.to_string(), "https://[fd00::1]:443/");
        assert_eq!(config.namespace, "shop");
        assert!(matches!(config.auth, Auth::TokenFile(_)));
        assert_eq!(config.tls.authorities.len(), 1, "the server is verified by the certificate of the account");
        assert_eq!(config.tls.files.authorities, Some(folder.path().join("ca.crt")), "a rotated authority is not read");
        assert!(!config.compression, "a server in the same cluster is near");
    }

    #[cfg(feature = "kubeconfig")]
    #[test]
    fn kubeconfig_argument_precedes_environment_and_environment_precedes_home() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, server: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = format!(
                "current-context: x\nclusters: [{{name: c, cluster: {{server: 'http://{server}'}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: ''}}}}]\n"
            );
            std::fs::write(&path, text).unwrap();
            path
        };
        let (argument, named) = (write("argument", "argument"), write("named", "named"));
        write("home/.kube/config", "home");
        let find = |argument: Option<&Path>, named: Option<&Path>, home: &str| {
            let found = Config::find(argument, None, &|name| match name {
                "KUBECONFIG" => named.map(Into::into),
                "HOME" => Some(folder.path().join(home).into()),
                _ => None,
            });
            found.map(|config| config.server.host().unwrap_or_default().to_owned())
        };
        assert_eq!(find(Some(&argument), Some(&named), "home").unwrap(), "argument");
        assert_eq!(find(None, Some(&named), "home").unwrap(), "named");
        assert_eq!(find(None, Some(Path::new("")), "home").unwrap(), "home", "an empty KUBECONFIG counts as none");
        assert_eq!(find(None, None, "home").unwrap(), "home");
        let nothing = find(None, None, "nobody").unwrap_err();
        assert!(matches!(nothing, ConfigError::Nothing { .. }), "{nothing}");
    }

    #[test]
    fn debug_output_hides_credentials() {
        let auth = Auth::Basic { username: "u".to_owned(), password: "secret".to_owned() };
        assert!(!format!("{auth:?}").contains("secret"));
        assert!(!format!("{:?}", Auth::Token("secret".to_owned())).contains("secret"));
    }

    #[test]
    fn server_address_must_be_a_url() {
        assert!(parse_server("https://host:6443/prefix/").is_ok());
        for bad in ["host:6443", "", "ftp://x", "https://"] {
            assert!(parse_server(bad).is_err(), "{bad}");
        }
    }
}
