//! A TCP proxy that injects faults: cut connections and lost bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A proxy in front of one address.
pub(crate) struct Proxy {
    /// `http://127.0.0.1:port`.
    pub(crate) url: String,
    target: watch::Sender<String>,
    faults: Arc<Faults>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Faults {
    /// Bytes toward the client after which every connection is cut; negative for never.
    cut_after: AtomicI64,
    /// Makes the current connections stay open without forwarding bytes.
    blackhole: watch::Sender<u64>,
    /// Closes the current connections.
    hang_up: watch::Sender<u64>,
    /// The handling of new connections: a [`NewConnections`].
    door: AtomicU8,
    cuts: AtomicUsize,
}

/// The handling of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NewConnections {
    /// New connections are forwarded.
    Open,
    /// New connections are closed at once.
    Closed,
    /// New connections stay open but forward nothing.
    BlackHole,
}

impl Proxy {
    /// Starts a proxy in front of `target` (`http://host:port`) without faults.
    pub(crate) async fn start(target: &str) -> Proxy {
        let target = watch::Sender::new(address(target));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound socket"));
        let faults = Arc::new(Faults { cut_after: AtomicI64::new(-1), ..Faults::default() });
        let (shared, targets) = (faults.clone(), target.subscribe());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, targets.borrow().clone(), shared.clone()));
            }
        });
        Proxy { url, target, faults, task }
    }

    /// Forwards new connections to another target.
    pub(crate) fn redirect(&self, target: &str) {
        self.target.send_replace(address(target));
    }

    /// Cuts every new connection after this many bytes toward the client, at any position in a
    /// frame.
    pub(crate) fn cut_every(&self, bytes: i64) {
        self.faults.cut_after.store(bytes, Ordering::Relaxed);
    }

    /// Closes the current connections.
    pub(crate) fn hang_up(&self) {
        self.faults.hang_up.send_modify(|generation| *generation += 1);
    }

    /// Waits until no connection is open. A connection that was swallowed stays open.
    pub(crate) async fn wait_until_closed(&self) {
        while self.faults.hang_up.receiver_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Sets the handling of new connections.
    pub(crate) fn set_new_connections(&self, door: NewConnections) {
        self.faults.door.store(door as u8, Ordering::SeqCst);
    }

    /// The number of cut connections.
    pub(crate) fn cuts(&self) -> usize {
        self.faults.cuts.load(Ordering::Relaxed)
    }

    /// Stops forwarding on the current connections without closing them, as after a cut cable.
    pub(crate) fn swallow(&self) {
        self.faults.blackhole.send_modify(|generation| *generation += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `host:port` of a URL.
fn address(url: &str) -> String {
    url.split("//").nth(1).expect("a URL").to_owned()
}

async fn carry(client: TcpStream, target: String, faults: Arc<Faults>) {
    let mut swallowed = faults.blackhole.subscribe();
    let mut hung_up = faults.hang_up.subscribe();
    let door = faults.door.load(Ordering::SeqCst);
    if door == NewConnections::Closed as u8 {
        return;
    }
    if door == NewConnections::BlackHole as u8 {
        return std::future::pending().await;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    let budget = faults.cut_after.load(Ordering::Relaxed);
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    };
    let down = async {
        let mut left = budget;
        let mut buffer = vec![0; 16 << 10];
        loop {
            let Ok(read @ 1..) = from_server.read(&mut buffer).await else { return };
            let keep = if budget < 0 { read } else { read.min(left.max(0) as usize) };
            if to_client.write_all(&buffer[..keep]).await.is_err() {
                return;
            }
            left -= read as i64;
            if budget >= 0 && left <= 0 {
                faults.cuts.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = hung_up.changed() => {}
        _ = swallowed.changed() => std::future::pending::<()>().await,
    }
}
