//! The connection options of etcd: [`Etcd3Options`], and their errors: [`ConnectError`].

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use listwatch_grpc::{Channel, Connector, Settings, TlsSource, Uri, error_chain};

use super::tls::{TlsFiles, TlsPaths};
use crate::error::StoreFault;

/// The key prefix of Kubernetes.
pub const DEFAULT_PREFIX: &str = "/registry";

/// Bytes of a watch on the wire and in HTTP/2 buffers that were not read yet. A stalled watch stops
/// only its own stream, because the connection's window is much larger.
pub const WATCH_WINDOW_BYTES: u32 = 512 << 10;

/// The largest unread part of the response to a read or write, in bytes, as [`WATCH_WINDOW_BYTES`].
const ANSWER_WINDOW_BYTES: u32 = 4 << 20;

/// The addresses and credentials of an etcd.
///
/// # Example
/// ```
/// use listwatch_storage::etcd3::Etcd3Options;
///
/// let mut options = Etcd3Options::new(["https://10.0.0.1:2379", "https://10.0.0.2:2379"]);
/// options.ca_file = Some("/etc/kubernetes/pki/etcd/ca.crt".into());
/// options.cert_file = Some("/etc/kubernetes/pki/apiserver-etcd-client.crt".into());
/// options.key_file = Some("/etc/kubernetes/pki/apiserver-etcd-client.key".into());
/// assert_eq!(options.prefix, "/registry");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Etcd3Options {
    /// The members, `http://host:port` or `https://host:port`; one is enough to start. The default
    /// scheme is `https` with TLS files, else `http`.
    pub endpoints: Vec<String>,
    /// The key prefix of all objects, normalized as a path: `a/../b` is `/b`, and an empty prefix covers all keys of
    /// etcd, as in kube-apiserver. Default [`DEFAULT_PREFIX`].
    pub prefix: String,
    /// PEM file of the CAs that sign etcd's certificates. The default is the operating system's
    /// trusted CAs. Each new connection reads the TLS files again; while they are unusable, it uses
    /// those that were read before.
    pub ca_file: Option<PathBuf>,
    /// PEM file of this server's client certificate. Needs [`Etcd3Options::key_file`].
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client certificate's private key.
    pub key_file: Option<PathBuf>,
    /// User and password, if etcd requires them.
    pub user: Option<(String, String)>,
    /// Time to establish a connection. Default 5 s.
    pub dial_timeout: Duration,
    /// Time limit for the response to a read or write. Default 10 s; etcd's own limit is about 7 s.
    pub request_timeout: Duration,
    /// Interval of HTTP/2 pings while a call is open. Default 30 s, as in Kubernetes; etcd rejects
    /// less than 5 s.
    pub keep_alive_interval: Duration,
    /// Time without an answer to a ping after which the connection is closed. Default 10 s.
    pub keep_alive_timeout: Duration,
}

impl Etcd3Options {
    /// Options with Kubernetes' defaults for these endpoints.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Etcd3Options {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: DEFAULT_PREFIX.to_owned(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            user: None,
            dial_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            keep_alive_interval: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(10),
        }
    }

    /// Validates the endpoints and reads the TLS files; opens no connection.
    pub(super) fn prepare(&self) -> Result<Vec<Dial>, ConnectError> {
        let tls = self.tls()?;
        let dials: Vec<Dial> = self
            .endpoints
            .iter()
            .map(|endpoint| endpoint.trim().trim_end_matches('/'))
            .filter(|endpoint| !endpoint.is_empty())
            .map(|endpoint| self.dial(endpoint, tls.as_ref()))
            .collect::<Result<_, _>>()?;
        if dials.is_empty() {
            return Err(ConnectError::NoEndpoints);
        }
        if tls.is_some() && dials.iter().all(|dial| dial.url.starts_with("http://")) {
            return Err(ConnectError::Endpoint {
                endpoint: dials[0].url.clone(),
                reason: "TLS files are given, but no endpoint is https://".into(),
            });
        }
        Ok(dials)
    }

    fn dial(&self, endpoint: &str, tls: Option<&Arc<TlsFiles>>) -> Result<Dial, ConnectError> {
        let url = match endpoint.split_once("://") {
            Some(("http" | "https", _)) => endpoint.to_owned(),
            Some((scheme, _)) => {
                let reason = format!("{scheme}:// is neither http:// nor https://");
                return Err(ConnectError::Endpoint { endpoint: endpoint.to_owned(), reason });
            }
            None if tls.is_some() => format!("https://{endpoint}"),
            None => format!("http://{endpoint}"),
        };
        let refuse = |reason: String| ConnectError::Endpoint { endpoint: url.clone(), reason };
        let uri: Uri = url.parse().map_err(|error| refuse(error_chain(&error)))?;
        let authority = uri.authority().cloned().ok_or_else(|| refuse("it names no host".to_owned()))?;
        if authority.port_u16().is_none() {
            return Err(refuse("it names no port from 0 to 65535; etcd listens on 2379 by default".to_owned()));
        }
        let tls: Option<Arc<dyn TlsSource>> = match tls {
            _ if url.starts_with("http://") => None,
            Some(files) => Some(files.clone()),
            None => Some(Arc::new(TlsFiles::load(TlsPaths::default())?)),
        };
        let connector = Connector::new(authority, tls, self.dial_timeout);
        let settings = Settings {
            stream_window_bytes: ANSWER_WINDOW_BYTES,
            keep_alive_interval: self.keep_alive_interval,
            keep_alive_timeout: self.keep_alive_timeout,
        };
        Ok(Dial { url, connector, settings })
    }

    fn tls(&self) -> Result<Option<Arc<TlsFiles>>, ConnectError> {
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(file), None) => {
                return Err(ConnectError::File {
                    file: file.clone(),
                    reason: "a certificate needs its key file".into(),
                });
            }
            (None, Some(file)) => {
                return Err(ConnectError::File {
                    file: file.clone(),
                    reason: "a key needs its certificate file".into(),
                });
            }
        };
        if self.ca_file.is_none() && identity.is_none() {
            return Ok(None);
        }
        let paths = TlsPaths { authorities: self.ca_file.clone(), identity };
        Ok(Some(Arc::new(TlsFiles::load(paths)?)))
    }
}

impl fmt::Debug for Etcd3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd3Options")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("ca_file", &self.ca_file)
            .field("cert_file", &self.cert_file)
            .field("key_file", &self.key_file)
            .field("user", &self.user.as_ref().map(|(user, _)| user)) // Never the password.
            .finish_non_exhaustive()
    }
}

/// One endpoint, ready to be dialed: one connection for calls and one for watches, so that a long
/// list never delays an event.
pub(super) struct Dial {
    pub(super) url: String,
    connector: Connector,
    settings: Settings,
}

impl Dial {
    /// A channel for everything except watches. The channel connects with the first call, and again after a
    /// disconnect.
    pub(super) fn calls(&self) -> Channel {
        self.channel(ANSWER_WINDOW_BYTES)
    }

    /// A channel for watches, like [`Dial::calls`].
    pub(super) fn watches(&self) -> Channel {
        self.channel(WATCH_WINDOW_BYTES)
    }

    fn channel(&self, stream_window_bytes: u32) -> Channel {
        Channel::new(self.connector.clone(), Settings { stream_window_bytes, ..self.settings })
    }
}

/// The error of connecting to etcd at start, as one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The list of endpoints is empty.
    #[error("no etcd endpoint is given")]
    NoEndpoints,
    /// An endpoint is not a valid URL.
    #[error("etcd endpoint {endpoint}: {reason}")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// The problem.
        reason: String,
    },
    /// A TLS file is unusable.
    #[error("TLS file {}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// etcd answers but rejects the credential.
    #[error("{fault}")]
    Denied {
        /// etcd's error.
        fault: StoreFault,
    },
    /// No endpoint answered in time; lists each reason.
    #[error("no etcd endpoint is reachable: {reasons}")]
    Unreachable {
        /// `endpoint: reason`, joined by `; `.
        reasons: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &Etcd3Options, expected: Result<&[&str], &str>) {
        let actual = options.prepare().map(|dials| dials.into_iter().map(|dial| dial.url).collect::<Vec<_>>());
        match (actual, expected) {
            (Ok(urls), Ok(expected)) => assert_eq!(urls, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (actual, expected) => panic!("{options:?}: {actual:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn endpoint_must_be_a_url_with_a_port() {
        for (endpoint, expected) in [
            ("http://127.0.0.1:2379", Ok("http://127.0.0.1:2379")),
            ("127.0.0.1:2379/", Ok("http://127.0.0.1:2379")),
            (" https://etcd.example:2379 ", Ok("https://etcd.example:2379")),
            ("http://[::1]:2379", Ok("http://[::1]:2379")),
            ("", Err("no etcd endpoint is given")),
            ("unix:///run/etcd.sock", Err("unix:// is neither http:// nor https://")),
            ("http://etcd.example", Err("it names no port from 0 to 65535; etcd listens on 2379 by default")),
            ("http://etcd.example:", Err("it names no port")),
            ("http://[::1]", Err("it names no port")),
            ("http://etcd.example:99999", Err("it names no port")),
            ("http://a b:1", Err("etcd endpoint http://a b:1: ")),
        ] {
            let options = Etcd3Options::new([endpoint]);
            check(&options, expected.as_ref().map(std::slice::from_ref).map_err(|e| *e));
        }
        check(&Etcd3Options::new(Vec::<String>::new()), Err("no etcd endpoint is given"));
    }

    #[test]
    fn endpoint_without_a_scheme_uses_tls_if_tls_files_are_given() {
        let dir = tempfile::tempdir().unwrap();
        let ca_file = dir.path().join("ca.pem");
        let ca = rcgen::generate_simple_self_signed(["etcd.example".to_owned()]).unwrap();
        std::fs::write(&ca_file, ca.cert.pem()).unwrap();
        let mut options = Etcd3Options::new(["etcd.example:2379"]);
        options.ca_file = Some(ca_file);
        check(&options, Ok(&["https://etcd.example:2379"]));
        options.endpoints = vec!["http://etcd.example:2379".to_owned()];
        check(&options, Err("TLS files are given, but no endpoint is https://"));
    }

    #[test]
    fn connect_error_names_the_unusable_tls_file() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();

        let mut options = Etcd3Options::new(["https://127.0.0.1:2379"]);
        options.ca_file = Some(dir.path().join("missing.pem"));
        check(&options, Err("missing.pem: No such file"));
        options.ca_file = Some(empty.clone());
        check(&options, Err("empty.pem: it has no PEM block \"CERTIFICATE\""));
        options.ca_file = None;
        options.cert_file = Some(empty.clone());
        check(&options, Err("a certificate needs its key file"));
        options.cert_file = None;
        options.key_file = Some(empty);
        check(&options, Err("a key needs its certificate file"));
    }

    #[test]
    fn debug_output_omits_the_password() {
        let mut options = Etcd3Options::new(["127.0.0.1:2379"]);
        options.user = Some(("root".into(), "hunter2".into()));
        let text = format!("{options:?}");
        assert!(text.contains("root") && !text.contains("hunter2"), "{text}");
    }
}
