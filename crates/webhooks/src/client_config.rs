//! The address of a webhook (`WebhookClientConfig`, `apiserver/pkg/util/webhook/client.go`).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use listwatch_validation::{Object, child, number, text};

/// The HTTPS port of a service or a URL without a port.
const PORT_DEFAULT: u16 = 443;

/// The address of a webhook, and the CA bundle that verifies its certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfig {
    url: String,
    service: Option<ServiceTarget>,
    path: String,
    ca_bundle: Vec<u8>,
}

/// The service of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceTarget {
    /// The namespace of the service.
    pub namespace: String,
    /// The name of the service.
    pub name: String,
    /// The port of the service.
    pub port: u16,
}

/// The destination of one request to a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The service whose address the caller dials; `None`: the caller dials `host`.
    pub service: Option<ServiceTarget>,
    /// The TLS server name and HTTP host. For a service: `<name>.<namespace>.svc`. An IPv6 address has no brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The path, with the query parameter `timeout` if the destination has a timeout.
    pub path_and_query: String,
    /// The URL in error messages.
    pub shown_url: String,
}

impl Target {
    /// Formats a transport error as Go's HTTP client does: `Post "<url>": <cause>`.
    pub fn transport_error(&self, cause: impl std::fmt::Display) -> String {
        format!("Post {}: {cause}", listwatch_meta::go::quote(&self.shown_url))
    }
}

impl ClientConfig {
    /// Reads a `clientConfig` that has passed validation.
    pub fn parse(config: &Object) -> Self {
        let service = child(config, "service");
        let target = (!service.is_empty()).then(|| ServiceTarget {
            namespace: text(service, "namespace").to_owned(),
            name: text(service, "name").to_owned(),
            port: number(service, "port").and_then(|port| u16::try_from(port).ok()).unwrap_or(PORT_DEFAULT),
        });
        ClientConfig {
            url: text(config, "url").to_owned(),
            service: target,
            path: text(service, "path").to_owned(),
            // Validation rejects anything but base64.
            ca_bundle: STANDARD.decode(text(config, "caBundle")).unwrap_or_default(),
        }
    }

    /// The CA certificates in PEM. If empty, the CA certificates of the system are used.
    pub fn ca_bundle(&self) -> &[u8] {
        &self.ca_bundle
    }

    /// Returns the destination of a request with a timeout. The query parameter `timeout` has whole seconds, rounded
    /// up.
    ///
    /// # Errors
    /// The reason why the configuration has no usable address.
    pub fn target(&self, timeout: Duration) -> Result<Target, String> {
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        self.target_with(&format!("?timeout={seconds}s"))
    }

    /// Returns the destination of a request without the query parameter `timeout`, as for conversion webhooks.
    ///
    /// # Errors
    /// The reason why the configuration has no usable address.
    pub fn target_without_timeout(&self) -> Result<Target, String> {
        self.target_with("")
    }

    fn target_with(&self, query: &str) -> Result<Target, String> {
        if let Some(service) = &self.service {
            let host = format!("{}.{}.svc", service.name, service.namespace);
            let path = format!("{}{query}", clean_path(&self.path));
            let shown_url = format!("https://{host}:{}{path}", service.port);
            return Ok(Target {
                port: service.port,
                service: Some(service.clone()),
                host,
                path_and_query: path,
                shown_url,
            });
        }
        if self.url.is_empty() {
            return Err("webhook configuration must have either service or URL".to_owned());
        }
        let unparsable = || format!("Unparsable URL: {}", self.url);
        let (scheme, rest) = self.url.split_once("://").ok_or_else(unparsable)?;
        if !scheme.eq_ignore_ascii_case("https") {
            return Err(unparsable());
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = split_authority(authority).ok_or_else(unparsable)?;
        let path = format!("{}{query}", clean_path(path));
        Ok(Target {
            service: None,
            host: host.to_owned(),
            port,
            shown_url: format!("https://{authority}{path}"),
            path_and_query: path,
        })
    }
}

/// Cleans a path as client-go does (`path.Join("/", path)`): one leading slash, no trailing slash, no empty segment, no
/// `.` or `..`.
fn clean_path(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

/// Splits `host`, `host:port`, `[v6]` or `[v6]:port`.
fn split_authority(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        None | Some("") => PORT_DEFAULT,
        Some(port) => port.parse().ok().filter(|port| *port > 0)?,
    };
    (!host.is_empty()).then_some((host, port))
}
