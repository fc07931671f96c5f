//! [`Session`]: the connections of one case.
//!
//! ```text
//!  HTTP/2    one connection; requests and watches are streams of it
//!  HTTP/1.1  requests take an idle connection or open one; a watch has its own
//! ```

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONNECTION, HOST, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::target::{HttpVersion, Target};

/// The largest body that is read, in bytes. A larger one fails the step.
const BODY_BYTES_MAX: usize = 64 << 20;

/// A request before it has a connection.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) method: String,
    /// The path with its query, below the prefix of the server.
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

/// A complete response.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) http: &'static str,
    pub(crate) body: Bytes,
}

/// A response whose body is read as it arrives.
pub(crate) struct StreamResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) http: &'static str,
    pub(crate) response: Response<Incoming>,
    /// Keeps the connection open.
    pub(crate) sender: Sender,
}

/// A request without a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The server does not support the protocol that the step requires.
    NotNegotiated(&'static str),
    Failed(String),
}

/// One open connection.
#[derive(Clone)]
pub(crate) enum Sender {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<Full<Bytes>>>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// The connections of one case. They are closed when the session is dropped.
pub(crate) struct Session {
    target: Arc<Target>,
    idle: Mutex<Vec<Sender>>,
    http2: tokio::sync::Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
}

impl Session {
    pub(crate) fn new(target: Arc<Target>) -> Self {
        Session { target, idle: Mutex::default(), http2: tokio::sync::Mutex::default() }
    }

    /// Sends a request and reads the whole response.
    pub(crate) async fn exchange(
        &self,
        outgoing: &Outgoing,
        version: HttpVersion,
        limit: Duration,
    ) -> Result<Exchange, SendError> {
        let answer = async {
            let response = self.open(outgoing, version).await?;
            let StreamResponse { status, headers, http, response, sender } = response;
            let mut body = response.into_body();
            let mut received = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| failed("the response broke off", &error))?;
                if let Some(data) = frame.data_ref() {
                    if received.len() + data.len() > BODY_BYTES_MAX {
                        return Err(SendError::Failed(format!("the body has more than {BODY_BYTES_MAX} bytes")));
                    }
                    received.extend_from_slice(data);
                }
            }
            if matches!(sender, Sender::Http1(_)) {
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
            }
            Ok(Exchange { status, headers, http, body: received.freeze() })
        };
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(SendError::Failed(format!("no complete response within {} s", limit.as_secs()))),
        }
    }

    /// Sends a request, and returns when the response header has arrived.
    pub(crate) async fn open(&self, outgoing: &Outgoing, version: HttpVersion) -> Result<StreamResponse, SendError> {
        let version = if version == HttpVersion::Any { self.target.version } else { version };
        if let Some(sender) = self.reusable(version) {
            match self.send(sender, outgoing).await {
                // The server may have closed an idle connection meanwhile.
                Err(_) if outgoing.method == "GET" => {}
                answer => return answer,
            }
        }
        let sender = self.connect(version).await?;
        self.send(sender, outgoing).await
    }

    /// An idle HTTP/1.1 connection.
    fn reusable(&self, version: HttpVersion) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if version == HttpVersion::Http2 {
            return None;
        }
        while let Some(sender) = idle.pop() {
            let Sender::Http1(shared) = &sender else { continue };
            if shared.try_lock().is_ok_and(|sender| !sender.is_closed() && sender.is_ready()) {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self, version: HttpVersion) -> Result<Sender, SendError> {
        if version != HttpVersion::Http1
            && let Some(sender) = self.http2.lock().await.as_ref().filter(|sender| !sender.is_closed())
        {
            return Ok(Sender::Http2(sender.clone()));
        }
        // Concurrent steps share the connection that the first of them opens.
        let mut shared = self.http2.lock().await;
        if version != HttpVersion::Http1
            && let Some(sender) = shared.as_ref().filter(|sender| !sender.is_closed())
        {
            return Ok(Sender::Http2(sender.clone()));
        }
        let secure = self.target.scheme == "https";
        let dialed = match self.target.dialer(version).dial().await {
            Ok(dialed) => dialed,
            Err(error) if secure && error.to_string().contains("NoApplicationProtocol") => {
                return Err(SendError::NotNegotiated(version.as_str()));
            }
            Err(error) => return Err(failed("cannot connect", &error)),
        };
        let http2 = match version {
            HttpVersion::Any => dialed.chose_http2(),
            HttpVersion::Http1 => false,
            HttpVersion::Http2 if secure && !dialed.chose_http2() => {
                return Err(SendError::NotNegotiated(version.as_str()));
            }
            HttpVersion::Http2 => true,
        };
        if http2 {
            let handshake = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(4 << 20)
                .initial_connection_window_size(16 << 20)
                .handshake(TokioIo::new(dialed))
                .await;
            let (sender, connection) = handshake.map_err(|_| SendError::NotNegotiated(version.as_str()))?;
            tokio::spawn(connection);
            *shared = Some(sender.clone());
            return Ok(Sender::Http2(sender));
        }
        drop(shared);
        let handshake = http1::Builder::new().preserve_header_case(true).handshake(TokioIo::new(dialed)).await;
        let (sender, connection) = handshake.map_err(|error| failed("the connection failed", &error))?;
        tokio::spawn(connection.with_upgrades());
        Ok(Sender::Http1(Arc::new(tokio::sync::Mutex::new(sender))))
    }

    async fn send(&self, sender: Sender, outgoing: &Outgoing) -> Result<StreamResponse, SendError> {
        let request = self.request(outgoing, matches!(sender, Sender::Http2(_))).map_err(SendError::Failed)?;
        let response = match &sender {
            Sender::Http1(shared) => shared.lock().await.send_request(request).await,
            Sender::Http2(sender) => sender.clone().send_request(request).await,
        };
        let response = response.map_err(|error| failed("no response", &error))?;
        let http = if matches!(sender, Sender::Http2(_)) { "HTTP/2" } else { "HTTP/1.1" };
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(StreamResponse { status, headers, http, response, sender })
    }

    fn request(&self, outgoing: &Outgoing, http2: bool) -> Result<Request<Full<Bytes>>, String> {
        let target = &self.target;
        let path = format!("{}{}", target.prefix, outgoing.path);
        let uri = if http2 { format!("{}://{}{path}", target.scheme, target.authority) } else { path };
        let uri: Uri = uri.parse().map_err(|error| format!("{uri} is no URL: {error}"))?;
        let method = Method::from_bytes(outgoing.method.as_bytes()).map_err(|error| error.to_string())?;
        let mut headers = HeaderMap::new();
        if !http2 {
            let host = HeaderValue::try_from(&target.authority).map_err(|error| error.to_string())?;
            headers.insert(HOST, host);
        }
        if let Some(authorization) = &target.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        for (name, value) in &outgoing.headers {
            let name = HeaderName::try_from(name).map_err(|error| format!("{name}: {error}"))?;
            let value = HeaderValue::try_from(value).map_err(|error| format!("{name}: {error}"))?;
            let connection_header = [CONNECTION, UPGRADE, SEC_WEBSOCKET_PROTOCOL].contains(&name);
            if !(http2 && connection_header) {
                headers.append(name, value);
            }
        }
        let mut request = Request::new(Full::new(outgoing.body.clone()));
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
        Ok(request)
    }
}

/// The text of a failure with its causes, which hyper's own text does not contain.
fn failed(what: &str, error: &dyn std::error::Error) -> SendError {
    let mut text = format!("{what}: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    SendError::Failed(text)
}
