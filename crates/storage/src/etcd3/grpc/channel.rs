//! [`Channel`]: a connection that is established by the first call, and again after it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::connection::{Connection, Settings};
use super::status::Status;
use crate::etcd3::connector::Connector;

/// The calls of one server. Clones share the connection.
#[derive(Clone)]
pub(in crate::etcd3) struct Channel(Arc<Shared>);

struct Shared {
    connector: Connector,
    settings: Settings,
    current: Mutex<Option<Connection>>,
    /// Held while a connection is made. The error is that of the last attempt, if that failed.
    dialing: tokio::sync::Mutex<Option<Status>>,
    /// The number of finished attempts to connect.
    attempts: AtomicU64,
}

impl Channel {
    /// A channel without a connection.
    pub(in crate::etcd3) fn new(connector: Connector, settings: Settings) -> Self {
        Channel(Arc::new(Shared {
            connector,
            settings,
            current: Mutex::new(None),
            dialing: tokio::sync::Mutex::new(None),
            attempts: AtomicU64::new(0),
        }))
    }

    pub(super) fn connector(&self) -> &Connector {
        &self.0.connector
    }

    /// A connection on which a call can begin.
    ///
    /// # Errors
    /// The server was not reached, and received nothing.
    pub(super) async fn ready(&self) -> Result<Connection, Status> {
        match self.current().await {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    /// The connection, unless it has ended.
    async fn current(&self) -> Option<Connection> {
        let mut connection = self.0.current.lock().clone()?;
        connection.streams = connection.streams.ready().await.ok()?;
        Some(connection)
    }

    /// Establishes a connection. Calls at the same time share the attempt and its error.
    async fn connect(&self) -> Result<Connection, Status> {
        let before = self.0.attempts.load(Ordering::Acquire);
        let mut last_error = self.0.dialing.lock().await;
        if self.0.attempts.load(Ordering::Acquire) != before {
            if let Some(status) = &*last_error {
                return Err(status.clone());
            }
            if let Some(connection) = self.current().await {
                return Ok(connection);
            }
        }
        let opened = Connection::open(&self.0.connector, &self.0.settings).await;
        let opened = opened.map_err(|error| Status::unconnected(&error));
        *self.0.current.lock() = opened.as_ref().ok().cloned();
        *last_error = opened.as_ref().err().cloned();
        self.0.attempts.fetch_add(1, Ordering::Release);
        opened
    }
}
