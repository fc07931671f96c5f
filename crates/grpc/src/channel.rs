//! [`Channel`]: a connection that is established by the first call, and again after it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::connection::{Connection, Settings};
use crate::connector::Connector;
use crate::status::Status;

/// The calls of one server. Clones share the connection.
#[derive(Clone)]
pub struct Channel(Arc<Shared>);

struct Shared {
    connector: Connector,
    settings: Settings,
    current: Mutex<Option<Connection>>,
    /// Held while a connection is made. The error of the last attempt; `None` if it succeeded.
    dialing: tokio::sync::Mutex<Option<Status>>,
    /// The number of finished attempts to connect.
    attempts: AtomicU64,
}

impl Channel {
    /// A channel without a connection.
    pub fn new(connector: Connector, settings: Settings) -> Self {
        Channel(Arc::new(Shared {
            connector,
            settings,
            current: Mutex::new(None),
            dialing: tokio::sync::Mutex::new(None),
            attempts: AtomicU64::new(0),
        }))
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.0.connector
    }

    /// A connection on which a call can begin.
    ///
    /// # Errors
    /// The server was not reached, and received nothing.
    pub(crate) async fn ready(&self) -> Result<Connection, Status> {
        if let Some(connection) = self.0.current().await {
            return Ok(connection);
        }
        let before = self.0.attempts.load(Ordering::Acquire);
        let shared = self.0.clone();
        // The attempt goes on if this call is cancelled, because others may wait for it.
        let connecting = tokio::spawn(async move { shared.connect(before).await });
        connecting.await.unwrap_or_else(|error| Err(Status::unconnected(&error)))
    }
}

impl Shared {
    /// The connection, unless it has ended.
    async fn current(&self) -> Option<Connection> {
        let mut connection = self.current.lock().clone()?;
        connection.streams = connection.streams.ready().await.ok()?;
        Some(connection)
    }

    /// Establishes a connection. Calls at the same time share the attempt and its error: `before` is the number of
    /// finished attempts when the call began.
    async fn connect(&self, before: u64) -> Result<Connection, Status> {
        let mut last_error = self.dialing.lock().await;
        if let Some(connection) = self.current().await {
            return Ok(connection);
        }
        if let Some(status) = &*last_error
            && self.attempts.load(Ordering::Acquire) != before
        {
            return Err(status.clone());
        }
        let opened = Connection::open(&self.connector, &self.settings).await;
        let opened = opened.map_err(|error| Status::unconnected(&error));
        *self.current.lock() = opened.as_ref().ok().cloned();
        *last_error = opened.as_ref().err().cloned();
        self.attempts.fetch_add(1, Ordering::Release);
        opened
    }
}
