//! Requests with finite responses over hyper: writes, lists, and the preparation of a load.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::Outcome;
use crate::tally;
use crate::target::{GROUP_HEADER, Target};

/// The flow control window of the HTTP/2 client, large enough for any list.
const WINDOW_BYTES: u32 = 64 * 1024 * 1024;

/// The HTTP version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Http {
    /// HTTP/1.1: one request or watch per connection at a time.
    H1,
    /// HTTP/2: many streams per connection.
    H2,
}

impl Http {
    /// The ALPN name.
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Http::H1 => b"http/1.1",
            Http::H2 => b"h2",
        }
    }
}

impl fmt::Display for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Http::H1 => "h1",
            Http::H2 => "h2",
        })
    }
}

/// A connection for sequential requests.
pub(crate) struct Client<'a> {
    target: &'a Target,
    sender: Sender,
    identity: Option<Identity>,
}

/// The user that the requests of a client impersonate.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) user: String,
    pub(crate) groups: &'static [&'static str],
}

enum Sender {
    H1(http1::SendRequest<Full<Bytes>>),
    H2(http2::SendRequest<Full<Bytes>>),
}

/// The options of a request besides method and path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    pub(crate) accept: Option<&'static str>,
    pub(crate) gzip: bool,
    pub(crate) content_type: Option<&'static str>,
    /// The group of a write or watch; for the floor.
    pub(crate) group: Option<usize>,
    pub(crate) body: Bytes,
}

/// Opens an HTTP/2 connection for any number of concurrent requests.
pub(crate) async fn connect_h2(target: &Target) -> Outcome<http2::SendRequest<Full<Bytes>>> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(TokioIo::new(target.connect(Http::H2).await?))
        .await?;
    tokio::spawn(connection);
    Ok(sender)
}

impl<'a> Client<'a> {
    pub(crate) async fn connect(target: &'a Target, http: Http) -> Outcome<Self> {
        let sender = match http {
            Http::H1 => {
                let io = TokioIo::new(target.connect(http).await?);
                let (sender, connection) = http1::handshake(io).await?;
                tokio::spawn(connection);
                Sender::H1(sender)
            }
            Http::H2 => Sender::H2(connect_h2(target).await?),
        };
        Ok(Client { target, sender, identity: None })
    }

    /// Impersonates a user in all requests of this client.
    pub(crate) fn with_identity(self, identity: Identity) -> Self {
        Client { identity: Some(identity), ..self }
    }

    async fn send(&mut self, method: Method, path: &str, extras: Extras) -> Outcome<Response<Incoming>> {
        let uri = match self.sender {
            Sender::H1(_) => path.to_owned(),
            Sender::H2(_) => format!("https://{}{path}", self.target.authority),
        };
        let mut request = Request::builder().method(method).uri(uri);
        if matches!(self.sender, Sender::H1(_)) {
            request = request.header("host", &self.target.authority);
        }
        if let Some(authorization) = &self.target.authorization {
            request = request.header("authorization", authorization);
        }
        if let Some(Identity { user, groups }) = &self.identity {
            request = request.header("impersonate-user", user);
            request = groups.iter().fold(request, |request, group| request.header("impersonate-group", *group));
        }
        request = request.header("accept", extras.accept.unwrap_or("application/json")).header("user-agent", "load");
        if extras.gzip {
            request = request.header("accept-encoding", "gzip");
        }
        if let Some(group) = extras.group.filter(|_| self.target.floor) {
            request = request.header(GROUP_HEADER, group);
        }
        if !extras.body.is_empty() {
            request = request.header("content-type", extras.content_type.unwrap_or("application/json"));
        }
        let request = request.body(Full::new(extras.body))?;
        Ok(match &mut self.sender {
            Sender::H1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::H2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        })
    }

    /// Sends a request and returns the complete response.
    pub(crate) async fn request(&mut self, method: Method, path: &str, extras: Extras) -> Outcome<(StatusCode, Bytes)> {
        let mut response = self.send(method, path, extras).await?;
        let mut body = BytesMut::new();
        while let Some(frame) = response.frame().await {
            if let Some(data) = frame?.data_ref() {
                body.extend_from_slice(data);
            }
        }
        Ok((response.status(), body.freeze()))
    }

    /// As [`Client::request`]; an unsuccessful status is an error.
    pub(crate) async fn expect(&mut self, method: Method, path: &str, extras: Extras) -> Outcome<Bytes> {
        let what = format!("{method} {path}");
        let (status, body) = self.request(method, path, extras).await?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&body[..body.len().min(400)]).into_owned();
            return Err(format!("{what} on {}: {status}: {text}", self.target.name).into());
        }
        Ok(body)
    }

    /// Reads and drops a response. Returns the size of its body in bytes.
    pub(crate) async fn drain(&mut self, path: &str, extras: Extras) -> Outcome<u64> {
        let mut response = self.send(Method::GET, path, extras).await?;
        if !response.status().is_success() {
            return Err(format!("GET {path} on {}: {}", self.target.name, response.status()).into());
        }
        let mut bytes = 0;
        while let Some(frame) = response.frame().await {
            bytes += frame?.data_ref().map_or(0, |data| data.len() as u64);
        }
        Ok(bytes)
    }

    /// Reads and drops a response. Returns its status, whatever it is.
    pub(crate) async fn drain_any(&mut self, path: &str) -> Outcome<StatusCode> {
        let mut response = self.send(Method::GET, path, Extras::default()).await?;
        while let Some(frame) = response.frame().await {
            frame?;
        }
        Ok(response.status())
    }

    /// Opens a watch and closes it after the response head.
    pub(crate) async fn open_and_close(&mut self, path: &str) -> Outcome<()> {
        let response = self.send(Method::GET, path, Extras::default()).await?;
        match response.status() {
            StatusCode::OK => Ok(()),
            status => Err(format!("GET {path} on {}: {status}", self.target.name).into()),
        }
    }

    /// The current resource version of a list of `path`.
    pub(crate) async fn version(&mut self, path: &str) -> Outcome<u64> {
        let list = self.expect(Method::GET, &format!("{path}?limit=1"), Extras::default()).await?;
        tally::revision(&list).ok_or_else(|| format!("{path} has no resource version").into())
    }
}
