//! Opens connections to one server, directly or through a proxy ([`ProxyUrl`]), with TLS if
//! required.
//!
//! The kernel detects a connection with an unreachable peer within
//! [`super::TransportOptions::silence_limit`]: by keep-alive probes while nothing is sent, and by
//! the user timeout otherwise. HTTP/2 pings also detect a middlebox that acknowledges packets and
//! forwards nothing.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tower_service::Service;

use super::addresses;
use super::reloaded_tls::ReloadedTls;
use super::tls::{self, TlsStream};

/// The longest response of a proxy to CONNECT, in bytes. A longer response is an error.
const PROXY_ANSWER_LIMIT_BYTES: usize = 16 * 1024;

/// The URL of a proxy: `http://[user:password@]host:port` (CONNECT) or
/// `socks5://[user:password@]host:port`.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    kind: ProxyKind,
    host: String,
    port: u16,
    login: Option<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyKind {
    Http,
    Socks5,
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyUrl({:?} {}:{})", self.kind, self.host, self.port)
    }
}

impl ProxyUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// The reason why the URL cannot be used.
    pub fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text.trim_end_matches('/').parse().map_err(|error| format!("is no URL: {error}"))?;
        let (kind, port) = match uri.scheme_str() {
            Some("http") => (ProxyKind::Http, 80),
            Some("socks5" | "socks5h") => (ProxyKind::Socks5, 1080),
            Some(other) => return Err(format!("proxies are reached by http:// or socks5://, not by {other}://")),
            None => return Err("has no scheme; write http://host:port or socks5://host:port".to_owned()),
        };
        let authority = uri.authority().ok_or("has no host")?;
        let login = authority.as_str().rsplit_once('@').map(|(login, _)| {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            (unescape(user), unescape(password))
        });
        let host = bare(authority.host()).to_owned();
        if host.is_empty() {
            return Err("has no host".to_owned());
        }
        Ok(ProxyUrl { kind, host, port: authority.port_u16().unwrap_or(port), login })
    }

    /// Connects to a host through the proxy.
    async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let mut stream = addresses::connect(&self.host, self.port).await?;
        let opened = match self.kind {
            ProxyKind::Http => self.ask_http(&mut stream, host, port).await,
            ProxyKind::Socks5 => self.ask_socks5(&mut stream, host, port).await,
        };
        opened.map_err(|error| {
            io::Error::new(error.kind(), format!("the proxy {}:{} did not connect: {error}", self.host, self.port))
        })?;
        Ok(stream)
    }

    async fn ask_http(&self, stream: &mut TcpStream, host: &str, port: u16) -> io::Result<()> {
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some((user, password)) = &self.login {
            let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            request.push_str(&format!("Proxy-Authorization: Basic {pair}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        // Read byte by byte, because the bytes after the response belong to TLS.
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() >= PROXY_ANSWER_LIMIT_BYTES {
                return Err(io::Error::other("its answer has no end"));
            }
            answer.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&answer);
        let line = line.lines().next().unwrap_or_default();
        let agreed = line.split(' ').nth(1).is_some_and(|code| code.starts_with('2'));
        if agreed { Ok(()) } else { Err(io::Error::other(format!("it said {line:?}"))) }
    }

    /// Requests a connection: RFC 1928, and RFC 1929 if there is a password. The proxy resolves the
    /// name.
    async fn ask_socks5(&self, stream: &mut TcpStream, host: &str, port: u16) -> io::Result<()> {
        let offer: &[u8] = if self.login.is_some() { &[5, 2, 0, 2] } else { &[5, 1, 0] };
        stream.write_all(offer).await?;
        let mut chosen = [0; 2];
        stream.read_exact(&mut chosen).await?;
        match (chosen, &self.login) {
            ([5, 0], _) => {}
            ([5, 2], Some((user, password))) => {
                let mut login = vec![1];
                for text in [user, password] {
                    let length = u8::try_from(text.len()).map_err(|_| io::Error::other("the login is too long"))?;
                    login.push(length);
                    login.extend_from_slice(text.as_bytes());
                }
                stream.write_all(&login).await?;
                let mut accepted = [0; 2];
                stream.read_exact(&mut accepted).await?;
                if accepted[1] != 0 {
                    return Err(io::Error::other("it refused the login"));
                }
            }
            _ => return Err(io::Error::other("it accepts no way to log in that this client has")),
        }
        let mut request = vec![5, 1, 0];
        match host.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(address)) => {
                request.push(1);
                request.extend_from_slice(&address.octets());
            }
            Ok(std::net::IpAddr::V6(address)) => {
                request.push(4);
                request.extend_from_slice(&address.octets());
            }
            Err(_) => {
                request.push(3);
                request.push(u8::try_from(host.len()).map_err(|_| io::Error::other("the host's name is too long"))?);
                request.extend_from_slice(host.as_bytes());
            }
        }
        request.extend_from_slice(&port.to_be_bytes());
        stream.write_all(&request).await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        if answer[1] != 0 {
            return Err(io::Error::other(format!("it answered with code {}", answer[1])));
        }
        let length = match answer[3] {
            1 => 4,
            4 => 16,
            _ => usize::from(stream.read_u8().await?),
        };
        let mut bound = vec![0; length + 2];
        stream.read_exact(&mut bound).await?;
        Ok(())
    }
}

/// Decodes percent-encoding; invalid escapes stay unchanged.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let escaped = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The host for the resolver: an IPv6 address without its brackets.
pub(super) fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Opens connections to one server.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) tls: Option<Arc<ReloadedTls>>,
    pub(super) host: String,
    pub(super) proxy: Option<ProxyUrl>,
    pub(super) connect_limit: Duration,
    pub(super) ping_interval: Duration,
    pub(super) ping_limit: Duration,
}

impl Connector {
    pub(super) async fn connect(self, port: u16) -> io::Result<ServerStream> {
        if let Some(tls) = &self.tls {
            tls.refresh().await;
        }
        let stream = match &self.proxy {
            Some(proxy) => proxy.connect(&self.host, port).await?,
            None => addresses::connect(&self.host, port).await?,
        };
        stream.set_nodelay(true)?;
        self.keep_alive(&stream);
        Ok(match &self.tls {
            Some(tls) => ServerStream::Tls(Box::new(tls.current().connect(stream).await?)),
            None => ServerStream::Plain(stream),
        })
    }

    /// Sets the keep-alive options. A system that does not support one keeps its own value.
    fn keep_alive(&self, stream: &TcpStream) {
        const PROBES: u32 = 3;
        let socket = SockRef::from(stream);
        // The kernel counts in whole seconds.
        let seconds = |duration: Duration| duration.max(Duration::from_secs(1));
        let keep_alive = TcpKeepalive::new().with_time(seconds(self.ping_interval));
        #[cfg(target_os = "linux")]
        let keep_alive = keep_alive.with_interval(seconds(self.ping_limit / PROBES)).with_retries(PROBES);
        if let Err(error) = socket.set_tcp_keepalive(&keep_alive) {
            tracing::debug!(%error, "no keep-alive probes");
        }
        #[cfg(target_os = "linux")]
        if let Err(error) = socket.set_tcp_user_timeout(Some(self.ping_interval + self.ping_limit)) {
            tracing::debug!(%error, "no user timeout");
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ServerStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<ServerStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        let port = uri.port_u16().unwrap_or(if connector.tls.is_some() { 443 } else { 80 });
        let limit = connector.connect_limit;
        Box::pin(async move {
            match tokio::time::timeout(limit, connector.connect(port)).await {
                Ok(stream) => stream.map(TokioIo::new),
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no connection within {} s", limit.as_secs_f64()),
                )),
            }
        })
    }
}

/// A connection with or without TLS.
pub(super) enum ServerStream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Connection for ServerStream {
    fn connected(&self) -> Connected {
        match self {
            ServerStream::Plain(stream) => stream.connected(),
            ServerStream::Tls(stream) => {
                let (tcp, http2) = tls::inspect(stream);
                if http2 { tcp.connected().negotiated_h2() } else { tcp.connected() }
            }
        }
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            ServerStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            ServerStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            ServerStream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ServerStream::Plain(stream) => stream.is_write_vectored(),
            ServerStream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            ServerStream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            ServerStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_address_must_be_a_url() {
        fn check(url: &str, expected: Result<&str, &str>) {
            let found = ProxyUrl::parse(url).map(|proxy| {
                let login = proxy.login.map(|(user, password)| format!(" as {user} with {password}"));
                format!("{} {}{}", proxy.host, proxy.port, login.unwrap_or_default())
            });
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{url}");
        }
        check("http://proxy:3128", Ok("proxy 3128"));
        check("http://proxy/", Ok("proxy 80"));
        check("socks5://[::1]:9", Ok("::1 9"));
        check("http://me:p%40ss@proxy:1", Ok("proxy 1 as me with p@ss"));
        check("https://proxy", Err("proxies are reached by http:// or socks5://, not by https://"));
        check("proxy:80", Err("has no scheme; write http://host:port or socks5://host:port"));
        let shown = format!("{:?}", ProxyUrl::parse("http://me:secret@proxy:1").unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }

    /// Connects through a SOCKS5 proxy that sends `answer`. Returns the bytes that the proxy received.
    async fn through_socks5(login: &str, host: &str, answer: &'static [u8]) -> Result<Vec<u8>, String> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            client.write_all(answer).await.unwrap();
            // The first byte of the tunnel.
            client.write_all(b"T").await.unwrap();
            let mut received = Vec::new();
            client.read_to_end(&mut received).await.unwrap();
            received
        });
        let url = ProxyUrl::parse(&format!("socks5://{login}127.0.0.1:{port}")).unwrap();
        let mut stream = url.connect(host, 443).await.map_err(|error| {
            let text = error.to_string();
            text.split(" did not connect: ").nth(1).unwrap_or(&text).to_owned()
        })?;
        assert_eq!(stream.read_u8().await.unwrap(), b'T', "the tunnel begins at another byte");
        drop(stream);
        Ok(proxy.await.unwrap())
    }

    /// The messages are those of RFC 1928 and, for the login, of RFC 1929.
    #[tokio::test]
    async fn socks5_negotiation_supports_every_address_type_and_login() {
        async fn check(login: &str, host: &str, answer: &'static [u8], expected: Result<&[u8], &str>) {
            let found = through_socks5(login, host, answer).await;
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{login}{host} {answer:?}");
        }
        const OPEN: &[u8] = &[5, 0, 5, 0, 0, 1, 127, 0, 0, 1, 0, 80];
        // The requested host: a name, an IPv4 and an IPv6 address.
        check("", "far", OPEN, Ok(b"\x05\x01\x00\x05\x01\x00\x03\x03far\x01\xbb")).await;
        check("", "10.0.0.7", OPEN, Ok(b"\x05\x01\x00\x05\x01\x00\x01\x0a\0\0\x07\x01\xbb")).await;
        let loopback = b"\x05\x01\x00\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x01\xbb";
        check("", "::1", OPEN, Ok(loopback)).await;
        // The bound address of the proxy: an IPv6 address and a name.
        let far = b"\x05\x01\x00\x05\x01\x00\x03\x03far\x01\xbb";
        check("", "far", b"\x05\x00\x05\x00\x00\x04abcdefghijklmnop\x00\x50", Ok(far)).await;
        check("", "far", b"\x05\x00\x05\x00\x00\x03\x05proxy\x00\x50", Ok(far)).await;
        // A login, which the proxy may want, ignore or refuse.
        let login = b"\x05\x02\x00\x02\x01\x02me\x04pass\x05\x01\x00\x03\x03far\x01\xbb";
        check("me:pass@", "far", &[5, 2, 1, 0, 5, 0, 0, 1, 127, 0, 0, 1, 0, 80], Ok(login)).await;
        let ignored = b"\x05\x02\x00\x02\x05\x01\x00\x03\x03far\x01\xbb";
        check("me:pass@", "far", OPEN, Ok(ignored)).await;
        check("me:pass@", "far", &[5, 2, 1, 1], Err("it refused the login")).await;
        // Other refusals.
        check("", "far", &[5, 2], Err("it accepts no way to log in that this client has")).await;
        check("", "far", &[5, 255], Err("it accepts no way to log in that this client has")).await;
        check("", "far", &[5, 0, 5, 4, 0, 1], Err("it answered with code 4")).await;
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn dead_connection_is_detected_by_the_kernel_within_the_silence_limit() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = Connector {
            tls: None,
            host: "127.0.0.1".to_owned(),
            proxy: None,
            connect_limit: Duration::from_secs(10),
            ping_interval: Duration::from_secs(15),
            ping_limit: Duration::from_secs(9),
        };
        let stream = connector.connect(listener.local_addr().unwrap().port()).await.unwrap();
        let ServerStream::Plain(stream) = stream else { panic!("a connection without TLS") };
        let socket = SockRef::from(&stream);
        // Probes begin after 15 s; three of them are lost in 9 s.
        assert!(socket.keepalive().unwrap(), "a silent connection is never probed");
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(15));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(3));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        // Sent data without an acknowledgement.
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(24)));
        assert!(socket.tcp_nodelay().unwrap());
    }
}
