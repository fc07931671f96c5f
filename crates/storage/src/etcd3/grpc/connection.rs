//! One HTTP/2 connection: its handshake, and the task that moves its frames and sends its pings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::etcd3::connector::{Connector, Stream};

/// HTTP/2's largest window. Each stream has its own bound, because with a common bound a few
/// stalled watches would stop all others.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// The maximum size of the headers and of the trailers of a response, in bytes.
const HEADER_BYTES_MAX: u32 = 64 << 10;

/// The parameters of the connections of a channel.
#[derive(Clone, Copy, Debug)]
pub(in crate::etcd3) struct Settings {
    /// The bytes of a stream that the server may send before they are read.
    pub(in crate::etcd3) stream_window_bytes: u32,
    /// The interval of pings while a call is open. etcd treats pings on a connection without a call as an attack.
    pub(in crate::etcd3) keep_alive_interval: Duration,
    /// The time without an answer to a ping after which the connection is closed.
    pub(in crate::etcd3) keep_alive_timeout: Duration,
}

/// A connection. Clones share it; it is closed after the last of them and the last call.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) streams: SendRequest<Bytes>,
    calls: Arc<AtomicUsize>,
}

impl Connection {
    /// Connects, and starts the task of the connection.
    ///
    /// # Errors
    /// The server does not accept the connection.
    pub(super) async fn open(connector: &Connector, settings: &Settings) -> std::io::Result<Self> {
        match connector.connect().await? {
            Stream::Plain(tcp) => Self::start(tcp, connector, settings).await,
            Stream::Tls(tls) => Self::start(tls, connector, settings).await,
        }
    }

    async fn start<T>(stream: T, connector: &Connector, settings: &Settings) -> std::io::Result<Self>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(settings.stream_window_bytes)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEADER_BYTES_MAX)
            .enable_push(false);
        let (streams, mut connection) = builder.handshake(stream).await.map_err(std::io::Error::other)?;
        let pings = connection.ping_pong().expect("the pings of a new connection were not taken");
        let calls = Arc::new(AtomicUsize::new(0));
        let (server, settings, open) = (connector.authority().clone(), *settings, calls.clone());
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%server, %error, "the connection to etcd has ended");
                    }
                }
                () = keep_alive(pings, &open, &settings) => {
                    let timeout = settings.keep_alive_timeout;
                    tracing::warn!(%server, ?timeout, "etcd does not answer a ping, so its connection is closed");
                }
            }
        });
        Ok(Connection { streams, calls })
    }

    /// Counts a call until the result is dropped.
    pub(super) fn begin_call(&self) -> OpenCall {
        self.calls.fetch_add(1, Ordering::Relaxed);
        OpenCall(self.calls.clone())
    }
}

/// A call that was not finished.
pub(super) struct OpenCall(Arc<AtomicUsize>);

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends pings while a call is open. Returns when the server does not answer one.
async fn keep_alive(mut pings: PingPong, calls: &AtomicUsize, settings: &Settings) {
    loop {
        tokio::time::sleep(settings.keep_alive_interval).await;
        if calls.load(Ordering::Relaxed) == 0 {
            continue;
        }
        match tokio::time::timeout(settings.keep_alive_timeout, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The task of the connection reports the error.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => return,
        }
    }
}
