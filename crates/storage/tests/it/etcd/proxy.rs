//! A TCP proxy that misbehaves on command: it cuts connections, and it swallows bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicUsize, Ordering};

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
    /// Every connection is cut after so many bytes towards the client; negative: never.
    cut_after: AtomicI64,
    /// Connections that exist now carry nothing any more, and are not closed.
    blackhole: watch::Sender<u64>,
    /// Connections that exist now are closed.
    hang_up: watch::Sender<u64>,
    /// What becomes of new connections: a [`Door`].
    door: AtomicU8,
    cuts: AtomicUsize,
}

/// What becomes of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Door {
    /// They are carried.
    Open,
    /// They are closed at once.
    Closed,
    /// They stand and carry nothing.
    BlackHole,
}

impl Proxy {
    /// A proxy in front of `target` (`http://host:port`) that does no harm yet.
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

    /// From now on new connections lead elsewhere.
    pub(crate) fn redirect(&self, target: &str) {
        self.target.send_replace(address(target));
    }

    /// From now on every new connection is cut after so many bytes towards the client, wherever
    /// in a frame that may be.
    pub(crate) fn cut_every(&self, bytes: i64) {
        self.faults.cut_after.store(bytes, Ordering::Relaxed);
    }

    /// Closes the connections of now.
    pub(crate) fn hang_up(&self) {
        self.faults.hang_up.send_modify(|generation| *generation += 1);
    }

    /// From now on this becomes of new connections.
    pub(crate) fn set_door(&self, door: Door) {
        self.faults.door.store(door as u8, Ordering::SeqCst);
    }

    /// How often a connection was cut.
    pub(crate) fn cuts(&self) -> usize {
        self.faults.cuts.load(Ordering::Relaxed)
    }

    /// The connections of now carry nothing any more and stay open: what a pulled cable looks like.
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
    if door == Door::Closed as u8 {
        return;
    }
    if door == Door::BlackHole as u8 {
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
