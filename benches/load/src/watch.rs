//! Many watches at once with little client work: [`Watching`].
//!
//! One task per connection reads into one buffer and checks all its watches ([`Tally`]). The time
//! of an event is the time of the read that received it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::chunked::Response;
use crate::h2::{Connection, Event};
use crate::http::Http;
use crate::tally::Tally;
use crate::target::{GROUP_HEADER, Target};

/// The buffer sizes of a connection with many watches and with a single watch, in bytes.
const H2_BUFFER_BYTES: usize = 128 * 1024;
const H1_BUFFER_BYTES: usize = 16 * 1024;
/// The number of events whose times are kept, over all connections: 16 bytes each.
const RECEIPTS_MAX: usize = 8_000_000;
/// The number of connections that are opened concurrently.
const OPENING_MAX: usize = 64;
/// The time limit for opening all watches.
const OPEN_WAIT: Duration = Duration::from_secs(120);

/// The parameters of one watch.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) group: usize,
    /// Whether the watch begins with the initial state.
    pub(crate) initial: bool,
}

/// The counters that all connections share.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    epoch: Instant,
    /// The number of watches whose response has begun, and of those whose initial state is
    /// complete.
    pub(crate) opened: AtomicUsize,
    pub(crate) synced: AtomicUsize,
    /// The number of events received by all watches.
    pub(crate) delivered: AtomicU64,
    /// The number of objects in the initial states of all watches.
    pub(crate) initial: AtomicU64,
    /// The reasons of watches that ended unexpectedly.
    problems: Mutex<Vec<String>>,
}

impl SharedCounters {
    /// The time since the start in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Returns the first problem, if any.
    pub(crate) fn check(&self) -> Outcome<()> {
        let problems = self.problems.lock();
        match problems.first() {
            Some(first) => Err(format!("{} watches failed; the first: {first}", problems.len()).into()),
            None => Ok(()),
        }
    }
}

/// A set of open watches.
pub(crate) struct Watching {
    pub(crate) board: Arc<SharedCounters>,
    stop: watch::Sender<bool>,
    connections: JoinSet<WatchResults>,
}

/// The results of the watches of one connection.
#[derive(Debug, Default)]
pub(crate) struct WatchResults {
    /// The group and the tally of each watch.
    pub(crate) tallies: Vec<(usize, Tally)>,
    /// The revisions and times of received events.
    pub(crate) receipts: Vec<(u64, u64)>,
}

impl Watching {
    /// Opens the watches, `streams` per HTTP/2 connection, and waits until each has a response.
    pub(crate) async fn open(
        target: &Arc<Target>,
        http: Http,
        streams: usize,
        requests: Vec<Request>,
    ) -> Outcome<Self> {
        let watching = Watching::begin(target, http, streams, requests.clone());
        let until = Instant::now() + OPEN_WAIT;
        while watching.board.opened.load(Ordering::Relaxed) < requests.len() {
            watching.board.check()?;
            if Instant::now() > until {
                let opened = watching.board.opened.load(Ordering::Relaxed);
                return Err(format!("only {opened} of {} watches were answered", requests.len()).into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(watching)
    }

    /// Starts to open the watches.
    pub(crate) fn begin(target: &Arc<Target>, http: Http, streams: usize, requests: Vec<Request>) -> Self {
        let board = Arc::new(SharedCounters {
            epoch: Instant::now(),
            opened: AtomicUsize::new(0),
            synced: AtomicUsize::new(0),
            delivered: AtomicU64::new(0),
            initial: AtomicU64::new(0),
            problems: Mutex::default(),
        });
        let (stop, stopped) = watch::channel(false);
        let per_connection = if http == Http::H1 { 1 } else { streams.max(1) };
        let receipts_max = RECEIPTS_MAX / requests.len().div_ceil(per_connection).max(1);
        let places = Arc::new(tokio::sync::Semaphore::new(OPENING_MAX));
        let mut connections = JoinSet::new();
        for requests in requests.chunks(per_connection) {
            let reader = Reader {
                target: target.clone(),
                http,
                board: board.clone(),
                tallies: requests.iter().map(|request| (request.group, Tally::new(request.initial))).collect(),
                receipts: Vec::new(),
                receipts_max,
            };
            let (requests, stopped, places) = (requests.to_vec(), stopped.clone(), places.clone());
            connections.spawn(async move { reader.run(requests, stopped, places).await });
        }
        Watching { board, stop, connections }
    }

    /// Closes the watches and returns their results.
    pub(crate) async fn close(mut self) -> Vec<WatchResults> {
        let _ = self.stop.send(true);
        let mut results = Vec::new();
        while let Some(ended) = self.connections.join_next().await {
            results.extend(ended);
        }
        results
    }
}

/// The reader of one connection.
struct Reader {
    target: Arc<Target>,
    http: Http,
    board: Arc<SharedCounters>,
    tallies: Vec<(usize, Tally)>,
    receipts: Vec<(u64, u64)>,
    receipts_max: usize,
}

impl Reader {
    async fn run(
        mut self,
        requests: Vec<Request>,
        mut stopped: watch::Receiver<bool>,
        places: Arc<tokio::sync::Semaphore>,
    ) -> WatchResults {
        let ended = tokio::select! {
            ended = async {
                match self.http {
                    Http::H1 => self.read_h1(&requests, &places).await,
                    Http::H2 => self.read_h2(&requests, &places).await,
                }
            } => ended,
            _ = stopped.changed() => Ok(()),
        };
        if let Err(error) = ended {
            self.board.problems.lock().push(error.to_string());
        }
        WatchResults { tallies: self.tallies, receipts: self.receipts }
    }

    async fn read_h1(&mut self, requests: &[Request], places: &tokio::sync::Semaphore) -> Outcome<()> {
        let place = places.acquire().await?;
        let mut stream = self.target.connect(Http::H1).await?;
        drop(place);
        let mut head = format!("GET {} HTTP/1.1\r\nhost: {}\r\n", requests[0].path, self.target.authority);
        for (name, value) in self.headers(&requests[0]) {
            head = head + &name + ": " + &value + "\r\n";
        }
        stream.write_all((head + "\r\n").as_bytes()).await?;
        let (mut response, mut buffer) = (Response::new(), vec![0; H1_BUFFER_BYTES]);
        loop {
            let read = stream.read(&mut buffer).await?;
            if read == 0 {
                return Err("the server closed the connection".into());
            }
            let (now, opened) = (self.board.now(), response.ok().is_some());
            response.feed(&buffer[..read], |bytes| self.take(0, bytes, now))?;
            if !opened && response.ok() == Some(true) {
                self.board.opened.fetch_add(1, Ordering::Relaxed);
            }
            if response.ended() {
                return Err("the server ended the watch".into());
            }
        }
    }

    async fn read_h2(&mut self, requests: &[Request], places: &tokio::sync::Semaphore) -> Outcome<()> {
        let place = places.acquire().await?;
        let mut stream = self.target.connect(Http::H2).await?;
        drop(place);
        let mut connection = Connection::new();
        for request in requests {
            connection.get(&self.target.authority, &request.path, &self.headers(request));
        }
        let (mut buffer, mut filled) = (vec![0; H2_BUFFER_BYTES], 0);
        let mut problem = None;
        loop {
            let out = connection.take_out();
            if !out.is_empty() {
                stream.write_all(&out).await?;
                stream.flush().await?;
            }
            let read = stream.read(&mut buffer[filled..]).await?;
            if read == 0 {
                return Err("the server closed the connection".into());
            }
            filled += read;
            let now = self.board.now();
            let taken = connection.feed(&buffer[..filled], |event| {
                let wrong = match event {
                    Event::Data { stream, bytes } => return self.take(stream, bytes, now),
                    Event::Head { ok: true, .. } => {
                        self.board.opened.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                    Event::Head { ok: false, .. } => {
                        "a watch was refused; is --streams above what the server allows?".to_owned()
                    }
                    Event::End { .. } => "the server ended the watch".to_owned(),
                    Event::Reset { code, .. } => format!("a stream was reset with code {code}"),
                    Event::GoAway { code } => format!("the server says goodbye with code {code}"),
                };
                problem.get_or_insert(wrong);
            })?;
            buffer.copy_within(taken..filled, 0);
            filled -= taken;
            if let Some(problem) = problem {
                return Err(problem.into());
            }
        }
    }

    fn take(&mut self, stream: usize, bytes: &[u8], now: u64) {
        let Some((_, tally)) = self.tallies.get_mut(stream) else { return };
        let (receipts, room, mut events) = (&mut self.receipts, self.receipts_max, 0);
        let (initial, synced) = (tally.initial_objects, tally.synced());
        tally.feed(bytes, |revision| {
            events += 1;
            if receipts.len() < room {
                receipts.push((revision, now));
            }
        });
        if events > 0 {
            self.board.delivered.fetch_add(events, Ordering::Relaxed);
        }
        if !synced {
            self.board.initial.fetch_add(tally.initial_objects - initial, Ordering::Relaxed);
            if tally.synced() {
                self.board.synced.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn headers(&self, request: &Request) -> Vec<(String, String)> {
        let mut headers = vec![("accept".to_owned(), "application/json".to_owned())];
        headers.push(("user-agent".to_owned(), "load".to_owned()));
        if let Some(authorization) = &self.target.authorization {
            headers.push(("authorization".to_owned(), authorization.clone()));
        }
        if self.target.floor {
            headers.push((GROUP_HEADER.to_owned(), request.group.to_string()));
        }
        headers
    }
}
