//! Backends with scripted connections, so that a test controls every byte and every delay.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use listwatch_proxy::{Destination, Proxy, ProxyBody, ProxyError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A listening backend. The tasks of the backend end with the runtime of the test.
pub(crate) struct Backend {
    pub(crate) port: u16,
    connections: Arc<AtomicUsize>,
}

impl Backend {
    /// Listens, and runs the script for each connection.
    pub(crate) async fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(TcpStream) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(script(stream));
            }
        });
        Backend { port, connections }
    }

    /// Sends these bytes to each connection after its request header, and keeps the connection open.
    pub(crate) async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Backend::start(move |mut stream| {
            let answer = Arc::clone(&answer);
            async move {
                while !read_header(&mut stream).await.is_empty() {
                    stream.write_all(&answer).await.unwrap();
                }
            }
        })
        .await
    }

    /// The number of accepted connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// This backend as a destination without TLS.
    pub(crate) fn at(&self, proxy: &Proxy, path: &str) -> Destination {
        Destination::new(proxy.plain_transport(), "127.0.0.1", self.port, path)
    }
}

/// Reads up to the end of a request header; empty at the end of the connection.
pub(crate) async fn read_header(stream: &mut TcpStream) -> String {
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte).await {
            Ok(1) => header.push(byte[0]),
            _ => return String::new(),
        }
    }
    String::from_utf8(header).unwrap()
}

/// The value of the limit that expires in a test. The other limits keep their defaults, so that none of them expires
/// earlier on a slow machine.
pub(crate) const MOMENT: Duration = Duration::from_millis(300);

pub(crate) fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(path).body(Empty::new()).unwrap()
}

/// The code and the body of a response, or the text of a failure.
pub(crate) async fn outcome(sent: Result<http::Response<ProxyBody>, ProxyError>) -> Result<(u16, String), String> {
    let response = sent.map_err(|error| error.to_string())?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
    Ok((code, String::from_utf8(body.to_bytes().to_vec()).unwrap()))
}
