//! One HTTP/2 connection: its handshake, and the task that moves its frames and sends its pings.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connector::{Connector, Stream};

/// HTTP/2's largest window. Each stream has its own bound, because with a common bound a few
/// stalled streams would stop all others.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// The maximum size of the headers and of the trailers of a response, in bytes.
const HEADER_BYTES_MAX: u32 = 64 << 10;

/// The maximum number of calls at once until the server has told its own maximum. A server may refuse more.
const FIRST_STREAMS_MAX: usize = 100;

/// The parameters of the connections of a channel.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The bytes of a stream that the server may send before they are read.
    pub stream_window_bytes: u32,
    /// The interval of pings while a call is open. Servers treat pings on a connection without a call as an attack
    /// (gRPC, `doc/keepalive.md`).
    pub keep_alive_interval: Duration,
    /// The time without an answer to a ping after which the connection is closed.
    pub keep_alive_timeout: Duration,
}

impl Default for Settings {
    /// 1 MiB, 30 s and 10 s.
    fn default() -> Self {
        Settings {
            stream_window_bytes: 1 << 20,
            keep_alive_interval: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(10),
        }
    }
}

/// A connection. Clones share it; it is closed after the last of them and the last call.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) streams: SendRequest<Bytes>,
    activity: Arc<Activity>,
}

/// What the keep-alive of a connection knows of its calls.
#[derive(Default)]
struct Activity {
    /// The number of open calls.
    calls: AtomicUsize,
    /// Whether a call has received bytes since this was last read.
    heard: AtomicBool,
}

impl Connection {
    /// Connects, and starts the task of the connection.
    ///
    /// # Errors
    /// The server does not accept the connection.
    pub(crate) async fn open(connector: &Connector, settings: &Settings) -> std::io::Result<Self> {
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
            .initial_max_send_streams(FIRST_STREAMS_MAX)
            .enable_push(false);
        let (streams, mut connection) = builder.handshake(stream).await.map_err(std::io::Error::other)?;
        let pings = connection.ping_pong().expect("the pings of a new connection were not taken");
        let activity = Arc::new(Activity::default());
        let (server, settings, open) = (connector.authority().clone(), *settings, activity.clone());
        tokio::spawn(async move {
            tokio::select! {
                // A pong that has arrived is read before the time is judged.
                biased;
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%server, %error, "the gRPC connection has ended");
                    }
                }
                () = keep_alive(pings, &open, &settings) => {
                    let timeout = settings.keep_alive_timeout;
                    tracing::warn!(%server, ?timeout, "the gRPC server does not answer a ping, so its connection is closed");
                }
            }
        });
        Ok(Connection { streams, activity })
    }

    /// Counts a call until the result is dropped.
    pub(crate) fn begin_call(&self) -> OpenCall {
        self.activity.calls.fetch_add(1, Ordering::Relaxed);
        OpenCall(self.activity.clone())
    }
}

/// A call that was not finished.
pub(crate) struct OpenCall(Arc<Activity>);

impl OpenCall {
    /// Records that the server has sent bytes.
    pub(crate) fn handle_heard(&self) {
        // The usual case changes nothing, so that the calls of several threads share the memory.
        if !self.0.heard.load(Ordering::Relaxed) {
            self.0.heard.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends a ping if a call is open and nothing was received during the interval. Returns when the server neither answers a
/// ping in time nor sends anything else.
async fn keep_alive(mut pings: PingPong, activity: &Activity, settings: &Settings) {
    loop {
        tokio::time::sleep(settings.keep_alive_interval).await;
        let was_heard = activity.heard.swap(false, Ordering::Relaxed);
        if was_heard || activity.calls.load(Ordering::Relaxed) == 0 {
            continue;
        }
        if pings.send_ping(Ping::opaque()).is_err() {
            // The task of the connection reports the error.
            return std::future::pending().await;
        }
        loop {
            let pong = poll_fn(|context| pings.poll_pong(context));
            match tokio::time::timeout(settings.keep_alive_timeout, pong).await {
                Ok(Ok(_)) => break,
                Ok(Err(_)) => return std::future::pending().await,
                // A large response may be before the answer.
                Err(_) if activity.heard.swap(false, Ordering::Relaxed) => {}
                Err(_) => return,
            }
        }
    }
}
