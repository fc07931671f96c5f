//! How to reach etcd: [`Etcd3Options`], and why it did not work: [`ConnectError`].

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::fault::chain;
use crate::error::StoreFault;

/// The part of etcd that Kubernetes calls its own.
pub const DEFAULT_PREFIX: &str = "/registry";

/// A watch may have this many bytes on the wire and in HTTP/2 buffers that it has not read.
/// A stalled watch stops its own stream there and nobody else's, because the connection's window
/// is out of the way ([`CONNECTION_WINDOW_BYTES`]).
pub const WATCH_WINDOW_BYTES: u32 = 512 << 10;

/// The same for one answer to a read or write, where it is only read ahead.
const ANSWER_WINDOW_BYTES: u32 = 4 << 20;

/// HTTP/2's largest window. Streams are limited one by one; a common limit would let a few stalled
/// watches stop all others.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// Where etcd is and how to talk to it.
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
    /// The members, `http://host:port` or `https://host:port`; one is enough to begin. Without a
    /// scheme it is `https` when TLS files are given, else `http`.
    pub endpoints: Vec<String>,
    /// Everything is stored below this key prefix, which is normalized as a path: `a/../b` is `/b`, and an empty
    /// one is the whole of etcd, as in kube-apiserver. Default [`DEFAULT_PREFIX`].
    pub prefix: String,
    /// PEM file of the authorities that sign etcd's certificates. Without it, those that the
    /// operating system trusts.
    pub ca_file: Option<PathBuf>,
    /// PEM file of this server's client certificate. Needs [`Etcd3Options::key_file`].
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client certificate's private key.
    pub key_file: Option<PathBuf>,
    /// User and password, where etcd asks for them.
    pub user: Option<(String, String)>,
    /// A connection has to stand within this time. Default 5 s.
    pub dial_timeout: Duration,
    /// A read or write has to be answered within this time. Default 10 s; etcd itself gives up
    /// after about 7 s.
    pub request_timeout: Duration,
    /// HTTP/2 pings are sent this often while anything is open. Default 30 s, as in Kubernetes;
    /// etcd refuses less than 5 s.
    pub keep_alive_interval: Duration,
    /// A ping that is not answered within this time ends the connection. Default 10 s.
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

    /// The endpoints, checked and in gRPC's terms. Reads the TLS files; dials nothing.
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

    fn dial(&self, endpoint: &str, tls: Option<&ClientTlsConfig>) -> Result<Dial, ConnectError> {
        let url = match endpoint.split_once("://") {
            Some(("http" | "https", _)) => endpoint.to_owned(),
            Some((scheme, _)) => {
                let reason = format!("{scheme}:// is neither http:// nor https://");
                return Err(ConnectError::Endpoint { endpoint: endpoint.to_owned(), reason });
            }
            None if tls.is_some() => format!("https://{endpoint}"),
            None => format!("http://{endpoint}"),
        };
        let refuse =
            |error: &dyn std::error::Error| ConnectError::Endpoint { endpoint: url.clone(), reason: chain(error) };
        let mut base = Endpoint::from_shared(url.clone()).map_err(|error| refuse(&error))?;
        if base.uri().port_u16().is_none() && base.uri().authority().is_none_or(|a| !a.as_str().contains(':')) {
            let reason = "it names no port; etcd listens on 2379 by default".to_owned();
            return Err(ConnectError::Endpoint { endpoint: url, reason });
        }
        if url.starts_with("https://") {
            let tls = tls.cloned().unwrap_or_else(|| ClientTlsConfig::new().with_enabled_roots());
            base = base.tls_config(tls).map_err(|error| refuse(&error))?;
        }
        base = base
            .connect_timeout(self.dial_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.keep_alive_interval)
            .keep_alive_timeout(self.keep_alive_timeout)
            // etcd takes pings on a connection without a call for an attack.
            .keep_alive_while_idle(false)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        Ok(Dial {
            calls: base.clone().initial_stream_window_size(ANSWER_WINDOW_BYTES),
            watches: base.initial_stream_window_size(WATCH_WINDOW_BYTES),
            url,
        })
    }

    fn tls(&self) -> Result<Option<ClientTlsConfig>, ConnectError> {
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => {
                Some(Identity::from_pem(pem(cert, "CERTIFICATE-----")?, pem(key, "PRIVATE KEY-----")?))
            }
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
        let ca = self.ca_file.as_ref().map(|file| pem(file, "CERTIFICATE-----")).transpose()?;
        if ca.is_none() && identity.is_none() {
            return Ok(None);
        }
        let mut tls = match ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
            None => ClientTlsConfig::new().with_enabled_roots(),
        };
        if let Some(identity) = identity {
            tls = tls.identity(identity);
        }
        Ok(Some(tls))
    }
}

/// A PEM file that holds at least one block of this kind. An empty file would otherwise show only
/// as a refused handshake.
fn pem(file: &PathBuf, kind: &str) -> Result<Vec<u8>, ConnectError> {
    let refuse = |reason: String| ConnectError::File { file: file.clone(), reason };
    let bytes = std::fs::read(file).map_err(|error| refuse(error.to_string()))?;
    if !String::from_utf8_lossy(&bytes).lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(kind)) {
        return Err(refuse(format!("it holds no PEM block \"{}\"", kind.trim_end_matches('-'))));
    }
    Ok(bytes)
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

/// One endpoint, ready to be dialled: once for calls, once for watches, so that a long list never
/// stands in front of an event.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    pub(super) url: String,
    pub(super) calls: Endpoint,
    pub(super) watches: Endpoint,
}

/// Why etcd could not be reached at start. Each is one line that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The list of endpoints is empty.
    #[error("no etcd endpoint is given")]
    NoEndpoints,
    /// An endpoint is no usable URL.
    #[error("etcd endpoint {endpoint}: {reason}")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A TLS file cannot be used.
    #[error("TLS file {}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// etcd answers, and refuses the credential.
    #[error("{fault}")]
    Denied {
        /// What etcd said.
        fault: StoreFault,
    },
    /// No endpoint answered in time; each with its reason.
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
    fn endpoints_are_urls_with_a_port() {
        for (endpoint, expected) in [
            ("http://127.0.0.1:2379", Ok("http://127.0.0.1:2379")),
            ("127.0.0.1:2379/", Ok("http://127.0.0.1:2379")),
            (" https://etcd.example:2379 ", Ok("https://etcd.example:2379")),
            ("http://[::1]:2379", Ok("http://[::1]:2379")),
            ("", Err("no etcd endpoint is given")),
            ("unix:///run/etcd.sock", Err("unix:// is neither http:// nor https://")),
            ("http://etcd.example", Err("it names no port; etcd listens on 2379 by default")),
            ("http://a b:1", Err("etcd endpoint http://a b:1: ")),
        ] {
            let options = Etcd3Options::new([endpoint]);
            check(&options, expected.as_ref().map(std::slice::from_ref).map_err(|e| *e));
        }
        check(&Etcd3Options::new(Vec::<String>::new()), Err("no etcd endpoint is given"));
    }

    #[test]
    fn a_tls_file_that_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();

        let mut options = Etcd3Options::new(["https://127.0.0.1:2379"]);
        options.ca_file = Some(dir.path().join("missing.pem"));
        check(&options, Err("missing.pem: No such file"));
        options.ca_file = Some(empty.clone());
        check(&options, Err("empty.pem: it holds no PEM block \"CERTIFICATE\""));
        options.ca_file = None;
        options.cert_file = Some(empty.clone());
        check(&options, Err("a certificate needs its key file"));
        options.cert_file = None;
        options.key_file = Some(empty);
        check(&options, Err("a key needs its certificate file"));
    }

    #[test]
    fn the_password_is_not_printed() {
        let mut options = Etcd3Options::new(["127.0.0.1:2379"]);
        options.user = Some(("root".into(), "hunter2".into()));
        let text = format!("{options:?}");
        assert!(text.contains("root") && !text.contains("hunter2"), "{text}");
    }
}
