//! One running watch: two tasks and two bounded channels around the pure fold of [`super::watch`].
//!
//! ```text
//!                    reader                          driver                        caller
//!  gRPC stream ─▶ decode ─▶ incoming channel ─▶ WatchCore ─▶ result channel ─▶ Watch::next
//!   ≤ 512 KiB     Liveness     ≤ 100 responses                ≤ 100 messages
//!   on the wire                └────────── ≤ 16 MiB together ──────────┘
//! ```
//!
//! What one response made the fold hand out crosses the result channel as one message, and the
//! fold hands out whole revisions only. So the changes of one revision (a transaction, the keys of
//! one lease) are ready together, as [`WatchItem::Event`] promises: neither a full channel nor the
//! turn of another task comes between them.
//!
//! Nothing here grows with a slow caller: a full result channel stops the driver, a full incoming
//! channel (or a spent byte budget) stops the reader, a reader that does not read closes the
//! HTTP/2 window of its stream, and etcd then keeps the watcher's place in its own history. The
//! caller catches up from there, or is told Expired when etcd compacted it away.
//!
//! The reader does the decoding: the connection's own task only moves frames, and the driver only
//! decides. An object's bytes are copied once, from the frame into the buffer that the caller gets.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Streaming;

use super::client::WatchRequests;
use super::endpoints::Connection;
use super::fault::{Cause, Failure};
use super::history::Floor;
use super::keys::{Keyspace, number, revision};
use super::liveness::{Duty, Liveness};
use super::proto::{self, WatchCreateRequest, WatchResponse};
use super::watch::{Decoded, Effect, End, Response, WatchCore};
use super::{Shared, version::Version};
use crate::error::{StoreFault, WatchError};
use crate::types::{KeyValue, StoreEvent, Watch, WatchItem};

/// The incoming channel holds this many responses of etcd, as in Kubernetes. When it is full the
/// stream is not read.
pub const INCOMING_RESPONSES: usize = 100;

/// The result channel holds this many messages, each of the items that one response of etcd
/// brought. When it is full the fold stands.
pub const RESULT_MESSAGES: usize = 100;

/// The items in both channels weigh at most this much, keys and values, before and after. A
/// single response that is larger passes alone.
pub const WATCH_BYTES: usize = 16 << 20;

/// A member has to open a watch within this time, else the next one is asked.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a watch and starts the tasks that keep it.
///
/// Every member is asked before this fails; afterwards the watch heals itself.
pub(super) async fn start(shared: &Arc<Shared>, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
    let wish = Arc::new(Notify::new());
    let (results, items) = mpsc::channel(RESULT_MESSAGES);
    let mut driver = Driver {
        shared: shared.clone(),
        range,
        core: WatchCore::new(after),
        link: None,
        budget: Arc::new(Semaphore::new(WATCH_BYTES)),
        wish: wish.clone(),
        results,
        floor: shared.history.floor(),
        witness: None,
        complained: false,
    };
    if !driver.range.is_empty() {
        driver.open_first(after).await?;
    }
    let task = AbortOnDrop(tokio::spawn(driver.run()));
    Ok(Watch::new(Items { items, ready: Delivered::default(), _task: Some(task) }, move || wish.notify_one()))
}

/// Tasks end with whoever needed them.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What waits in the result channel: whole revisions, and their share of the byte budget.
#[derive(Default)]
struct Delivered {
    items: std::vec::IntoIter<WatchItem>,
    _hold: Option<OwnedSemaphorePermit>,
}

struct Items {
    items: mpsc::Receiver<Delivered>,
    /// The message that is being handed out; it keeps its share of the budget until it is spent.
    ready: Delivered,
    /// `None` only in tests.
    _task: Option<AbortOnDrop>,
}

impl Stream for Items {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        loop {
            // Before the channel is asked: its cooperative budget may say Pending at any time.
            if let Some(item) = self.ready.items.next() {
                return Poll::Ready(Some(item));
            }
            // What it held of the budget must not be held while nothing is ready.
            self.ready = Delivered::default();
            match ready!(self.items.poll_recv(cx)) {
                Some(delivered) => self.ready = delivered,
                None => return Poll::Ready(None),
            }
        }
    }
}

/// What waits in the incoming channel.
enum Incoming {
    Response(Response, OwnedSemaphorePermit),
    /// A progress request stayed unanswered.
    Unanswered,
    /// The last message of a connection.
    End(End),
}

/// What the fold wants done, apart from handing out.
enum Task {
    Open { after: Revision, renew_token: bool },
    Rest(Instant),
    Close,
}

/// One connection's stream, being read by a task.
struct Link {
    incoming: mpsc::Receiver<Incoming>,
    _reader: AbortOnDrop,
}

/// A watch that a member has opened.
struct Opened {
    link: Link,
    /// The member's answers to progress requests are true.
    truthful: bool,
    /// The store's revision when the watch was opened, read linearizably.
    now: Revision,
}

struct Driver {
    shared: Arc<Shared>,
    range: KeyRange,
    core: WatchCore,
    link: Option<Link>,
    budget: Arc<Semaphore>,
    /// Somebody wants progress.
    wish: Arc<Notify>,
    results: mpsc::Sender<Delivered>,
    /// The history that this watch tells.
    floor: Floor,
    /// The last object that was handed out: it must be there when the watch is resumed.
    witness: Option<(Key, Revision)>,
    /// The present trouble was reported; only the first of a row is.
    complained: bool,
}

impl Driver {
    /// The first connection: its failure is the caller's to know.
    async fn open_first(&mut self, after: Revision) -> Result<(), WatchError> {
        self.core.poll(); // The wish to open, which is granted here.
        let mut tried = Vec::new();
        loop {
            let index = self.shared.endpoints.pick(&tried);
            tried.push(index);
            let failure = match self.open(index, after, false).await {
                Ok(opened) => {
                    self.handle_opened(opened);
                    return Ok(());
                }
                Err(failure) => failure,
            };
            if matches!(failure.cause, Cause::Compacted | Cause::Replaced(_)) {
                self.core.handle_ended(Instant::now(), rand::random(), end_of(failure));
                return Ok(());
            }
            if !failure.elsewhere || tried.len() >= self.shared.endpoints.len() {
                return Err(WatchError::Fault(failure.into_fault()));
            }
        }
    }

    async fn run(mut self) {
        if self.range.is_empty() {
            // No key can be in it, and etcd refuses such a watch. It ends with its caller.
            return self.results.closed().await;
        }
        let (shared, floor) = (self.shared.clone(), self.floor);
        let driven = async {
            tokio::select! {
                () = self.drive() => return,
                () = shared.history.replaced(floor) => {}
            }
            // Its last word; whatever was on its way belongs to a history that is gone.
            self.core.handle_ended(Instant::now(), rand::random(), End::Replaced);
            self.drive().await;
        };
        tokio::select! {
            () = driven => {}
            () = shared.closed() => {}
        }
    }

    async fn drive(&mut self) {
        let mut hold = None;
        loop {
            loop {
                let (items, task) = handed_out(&mut self.core);
                if let Some(WatchItem::Expired { oldest: Some(oldest) }) = items.last() {
                    self.shared.learn_compacted(*oldest);
                }
                if !items.is_empty() {
                    self.note_handed_out(&items);
                    let delivered = Delivered { items: items.into_iter(), _hold: hold.take() };
                    if self.results.send(delivered).await.is_err() {
                        return;
                    }
                }
                let Some(task) = task else { break };
                match task {
                    Task::Open { after, renew_token } => self.reopen(after, renew_token).await,
                    Task::Rest(until) => {
                        self.link = None;
                        tokio::select! {
                            () = tokio::time::sleep_until(until) => self.core.handle_timeout(Instant::now()),
                            () = self.results.closed() => return,
                        }
                    }
                    Task::Close => return,
                }
            }
            hold = None;
            let Some(link) = &mut self.link else { return };
            let message = tokio::select! {
                message = link.incoming.recv() => message,
                () = self.results.closed() => return,
            };
            let end = match message {
                Some(Incoming::Response(response, permit)) => {
                    if self.complained && !response.created {
                        self.complained = false;
                        tracing::info!(range = ?self.range, "watch of etcd goes on");
                    }
                    hold = Some(permit);
                    self.core.handle_response(response)
                }
                Some(Incoming::Unanswered) => {
                    self.core.handle_unanswered();
                    None
                }
                Some(Incoming::End(end)) => Some(end),
                None => Some(End::Lost("the reader stopped".to_owned())),
            };
            if let Some(end) = end {
                self.handle_ended(end);
            }
        }
    }

    /// Remembers what a resumed watch can be checked by.
    fn note_handed_out(&mut self, items: &[WatchItem]) {
        let newest = items.iter().rev().find_map(|item| match item {
            WatchItem::Event(event) => Some(event.revision()),
            WatchItem::Progress(revision) => Some(*revision),
            _ => None,
        });
        if let Some(newest) = newest {
            self.shared.history.learn(self.floor, newest);
        }
        let put = items.iter().rev().find_map(|item| match item {
            WatchItem::Event(StoreEvent::Put { current, .. }) => Some((current.key.clone(), current.modified)),
            _ => None,
        });
        self.witness = put.or(self.witness.take());
    }

    async fn reopen(&mut self, after: Revision, renew_token: bool) {
        self.link = None;
        let index = self.shared.endpoints.pick(&[]);
        match self.open(index, after, renew_token).await {
            Ok(opened) => self.handle_opened(opened),
            Err(failure) => self.handle_ended(end_of(failure)),
        }
    }

    fn handle_opened(&mut self, opened: Opened) {
        self.link = Some(opened.link);
        self.core.handle_opened(opened.truthful, opened.now);
    }

    fn handle_ended(&mut self, end: End) {
        if self.complained {
            tracing::debug!(range = ?self.range, ?end, "watch of etcd not resumed yet");
        } else if !matches!(end, End::Compacted(_) | End::Replaced) {
            self.complained = true;
            tracing::warn!(range = ?self.range, ?end, "watch of etcd was interrupted, resuming");
        }
        self.core.handle_ended(Instant::now(), rand::random(), end);
    }

    /// Opens the watch at one member.
    async fn open(&self, index: usize, after: Revision, renew_token: bool) -> Result<Opened, Failure> {
        let endpoints = &self.shared.endpoints;
        let opened = async {
            let connection = endpoints.connection(index).await?;
            if renew_token {
                connection.renew_watch_token().await?;
            }
            // Asked each time: a member may have been replaced by another version meanwhile, and the
            // store by another history.
            let version = self.shared.learn_version(index, OPEN_TIMEOUT);
            let check = self.shared.check_history(index, OPEN_TIMEOUT, after, self.witness.as_ref());
            let (version, now) = tokio::try_join!(version, check)?;
            let begin = first_revision(after, version.is_some_and(Version::keeps_removal_at_compaction));
            let (start, end) = self.shared.keys.full_range(&self.range);
            let create = WatchCreateRequest {
                key: start,
                range_end: end,
                start_revision: begin,
                prev_kv: true,
                progress_notify: true,
                fragment: true,
            };
            let stream = connection.watches.watch(create).await;
            let stream = stream.map_err(|status| Failure::from_status(&connection.url, &status))?;
            Ok((connection, stream, version.is_some_and(Version::answers_progress_truly), now))
        };
        // On the heap, and gone when the watch stands: a watch's task is small for the rest of its life.
        let opened = match tokio::time::timeout(OPEN_TIMEOUT, Box::pin(opened)).await {
            Ok(opened) => opened,
            Err(_) => {
                // Whatever of it was under way can no longer say so itself.
                endpoints.handle_silent(index);
                Err(Failure::timeout(endpoints.url(index), OPEN_TIMEOUT))
            }
        };
        let (connection, stream, truthful, now) = opened.inspect_err(|failure| {
            if failure.elsewhere {
                endpoints.handle_failed(index);
            }
        })?;
        let (incoming, receiver) = mpsc::channel(INCOMING_RESPONSES);
        let (requests, stream) = stream;
        let reader = Reader {
            shared: self.shared.clone(),
            connection,
            requests,
            stream,
            live: Liveness::new(Instant::now()),
            watch_id: None,
            wish: truthful.then(|| self.wish.clone()),
            incoming,
            budget: self.budget.clone(),
        };
        let reader = AbortOnDrop(tokio::spawn(reader.run()));
        Ok(Opened { link: Link { incoming: receiver, _reader: reader }, truthful, now })
    }
}

/// Everything that the fold hands out now, and what it wants done after that.
fn handed_out(core: &mut WatchCore) -> (Vec<WatchItem>, Option<Task>) {
    let mut items = Vec::new();
    loop {
        match core.poll() {
            Some(Effect::Emit(item)) => items.push(item),
            Some(Effect::Open { after, renew_token }) => return (items, Some(Task::Open { after, renew_token })),
            Some(Effect::Rest(until)) => return (items, Some(Task::Rest(until))),
            Some(Effect::Close) => return (items, Some(Task::Close)),
            None => return (items, None),
        }
    }
}

/// Where a watch of everything after `after` begins in etcd. With a server that may have lost a
/// removal at the compacted revision it begins at `after` itself, which the fold drops again: then
/// what follows cannot be the compacted revision.
fn first_revision(after: Revision, keeps_removal_at_compaction: bool) -> i64 {
    let early = number(after).max(1);
    if keeps_removal_at_compaction { number(after).saturating_add(1) } else { early }
}

fn end_of(failure: Failure) -> End {
    match failure.cause {
        Cause::Compacted => End::Compacted(None),
        Cause::Replaced(_) => End::Replaced,
        Cause::Fault(StoreFault::Denied(reason)) => End::Denied(reason),
        _ => End::Lost(failure.into_fault().to_string()),
    }
}

/// Reads one connection's stream into the incoming channel.
struct Reader {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    requests: WatchRequests,
    stream: Streaming<WatchResponse>,
    live: Liveness,
    /// The id that etcd gave our watch; whatever is created after it is a leftover of a probe.
    watch_id: Option<i64>,
    /// Where wishes for progress come in; `None` where this member's answers are not true.
    wish: Option<Arc<Notify>>,
    incoming: mpsc::Sender<Incoming>,
    budget: Arc<Semaphore>,
}

impl Reader {
    async fn run(mut self) {
        let end = self.read().await;
        if let Some(end) = end {
            // The driver may be gone; then nobody needs to know.
            let _ = self.incoming.send(Incoming::End(end)).await;
        }
    }

    /// Returns why the stream is over, or `None` when nobody reads any more.
    async fn read(&mut self) -> Option<End> {
        let incoming = self.incoming.clone();
        let timer = tokio::time::sleep_until(self.live.poll_timeout());
        tokio::pin!(timer);
        loop {
            // Room first: what cannot be passed on is not read.
            let slot = incoming.reserve().await.ok()?;
            self.live.handle_resumed(Instant::now());
            let message = loop {
                tokio::select! {
                    biased;
                    message = self.stream.message() => break message,
                    () = wished(self.wish.as_deref()) => self.live.handle_progress_wanted(),
                    () = &mut timer => {}
                }
                if let Some(end) = self.perform_duties() {
                    return Some(end);
                }
                timer.as_mut().reset(self.live.poll_timeout());
            };
            let response = match message {
                Ok(Some(response)) => response,
                Ok(None) => return Some(End::Lost("etcd closed the stream".to_owned())),
                Err(status) => {
                    let failure = Failure::from_status(&self.connection.url, &status);
                    if failure.elsewhere {
                        self.shared.endpoints.handle_failed(self.connection.index);
                    }
                    return Some(end_of(failure));
                }
            };
            let weight = u32::try_from(weigh(&response).clamp(1, WATCH_BYTES)).unwrap_or(u32::MAX);
            let response = decode(&self.shared.keys, response);
            self.live.handle_heard(Instant::now(), response.is_progress());
            self.cancel_leftover(&response);
            let permit = self.budget.clone().acquire_many_owned(weight).await.ok()?;
            slot.send(Incoming::Response(response, permit));
        }
    }

    fn perform_duties(&mut self) -> Option<End> {
        while let Some(duty) = self.live.poll(Instant::now()) {
            let sent = match duty {
                Duty::SendProbe => {
                    let nothing = self.shared.keys.never();
                    let (key, range_end) = (nothing.clone(), nothing);
                    self.requests.create(WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() })
                }
                Duty::SendProgressRequest => self.requests.request_progress(),
                Duty::TellWhatIsKnown => {
                    // Where there is no room the caller has other things to read first.
                    let _ = self.incoming.try_send(Incoming::Unanswered);
                    true
                }
                Duty::Dead => false,
            };
            if !sent {
                self.shared.endpoints.handle_dead(&self.connection);
                return Some(End::Lost(format!("etcd at {} does not answer", self.connection.url)));
            }
        }
        None
    }

    /// etcd refuses to create what a probe asks for. A server that only speaks etcd's API may
    /// create it; then it is taken away again.
    fn cancel_leftover(&mut self, response: &Response) {
        if !response.created || response.canceled {
            return;
        }
        match self.watch_id {
            None => self.watch_id = Some(response.watch_id),
            Some(ours) if ours != response.watch_id => {
                self.requests.cancel(response.watch_id);
            }
            Some(_) => {}
        }
    }
}

/// Resolves when somebody wants progress; never where it cannot be had.
async fn wished(wish: Option<&Notify>) {
    match wish {
        Some(wish) => wish.notified().await,
        None => std::future::pending().await,
    }
}

fn weigh(response: &WatchResponse) -> usize {
    let kv = |kv: &Option<proto::KeyValue>| kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len());
    response.events.iter().map(|event| kv(&event.kv) + kv(&event.prev_kv)).sum()
}

fn decode(keys: &Keyspace, response: WatchResponse) -> Response {
    Response {
        watch_id: response.watch_id,
        revision: revision(response.header.map_or(0, |header| header.revision)),
        created: response.created,
        canceled: response.canceled,
        compact_revision: revision(response.compact_revision),
        cancel_reason: response.cancel_reason,
        fragment: response.fragment,
        events: response.events.into_iter().map(|event| decode_event(keys, event)).collect(),
    }
}

fn decode_event(keys: &Keyspace, event: proto::Event) -> Decoded {
    const DELETE: i32 = 1;
    // An event without a key does not occur; its zero revision is behind every watch.
    let Some(kv) = event.kv else { return Decoded::Foreign(Revision::ZERO) };
    let modified = revision(kv.mod_revision);
    let Some(key) = keys.relative(&kv.key) else { return Decoded::Foreign(modified) };
    let previous = event.prev_kv.map(|previous| KeyValue {
        key: key.clone(),
        value: Bytes::from(previous.value),
        created: revision(previous.create_revision),
        modified: revision(previous.mod_revision),
    });
    if event.r#type == DELETE {
        return Decoded::Event(StoreEvent::Delete { key, revision: modified, previous });
    }
    if previous.is_none() && kv.create_revision != kv.mod_revision {
        return Decoded::Unknowable(modified);
    }
    let current = KeyValue { key, value: Bytes::from(kv.value), created: revision(kv.create_revision), modified };
    Decoded::Event(StoreEvent::Put { current, previous })
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// A response with `count` removals at one revision.
    fn removals(revision: u64, count: usize, fragment: bool) -> Response {
        let removal = |n| StoreEvent::Delete {
            key: Key::new("pods", Some("ns"), &format!("p{n}")).unwrap(),
            revision: Revision::new(revision),
            previous: None,
        };
        Response { fragment, events: (0..count).map(|n| Decoded::Event(removal(n))).collect(), ..Response::default() }
    }

    /// Reads until the stream is not ready, in one go; returns the revisions.
    async fn ready_now(items: &mut Items) -> Vec<u64> {
        let mut seen = Vec::new();
        poll_fn(|cx| {
            while let Poll::Ready(Some(WatchItem::Event(event))) = Pin::new(&mut *items).poll_next(cx) {
                seen.push(event.revision().get());
            }
            Poll::Ready(())
        })
        .await;
        seen
    }

    /// Far more keys than fit the channel one by one, and than tokio lets a task read in one go.
    const MANY: usize = 3 * RESULT_MESSAGES;

    #[tokio::test]
    async fn the_changes_of_one_revision_are_ready_together() {
        let (results, items) = mpsc::channel(1);
        let mut items = Items { items, ready: Delivered::default(), _task: None };
        let mut core = WatchCore::new(Revision::new(10));
        core.poll();
        core.handle_opened(true, Revision::new(10));
        assert_eq!(core.handle_response(Response { created: true, ..Response::default() }), None);
        for (what, responses, expected) in [
            ("one transaction", vec![removals(11, MANY, false)], vec![11; MANY]),
            ("the first part of one", vec![removals(12, MANY, true)], vec![]),
            ("the rest of it", vec![removals(12, MANY, false)], vec![12; 2 * MANY]),
        ] {
            for response in responses {
                assert_eq!(core.handle_response(response), None);
                let (ready, task) = handed_out(&mut core);
                assert!(task.is_none());
                if !ready.is_empty() {
                    assert!(results.try_send(Delivered { items: ready.into_iter(), _hold: None }).is_ok());
                }
            }
            // In a task of its own, under a fresh cooperative budget that is smaller than a revision.
            let (seen, back) = tokio::spawn(async move { (ready_now(&mut items).await, items) }).await.unwrap();
            items = back;
            assert_eq!(seen, expected, "promise: what happened at once is ready at once ({what})");
        }
    }

    #[tokio::test]
    async fn a_message_gives_its_bytes_back_when_it_is_spent() {
        let budget = Arc::new(Semaphore::new(1));
        let permit = budget.clone().try_acquire_owned().unwrap();
        let (results, items) = mpsc::channel(1);
        let mut items = Items { items, ready: Delivered::default(), _task: None };
        let progress = vec![WatchItem::Progress(Revision::new(11)), WatchItem::Progress(Revision::new(12))];
        assert!(results.try_send(Delivered { items: progress.into_iter(), _hold: Some(permit) }).is_ok());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut items).poll_next(&mut cx).is_ready());
        assert_eq!(budget.available_permits(), 0, "half of it is still here");
        assert!(Pin::new(&mut items).poll_next(&mut cx).is_ready());
        assert!(Pin::new(&mut items).poll_next(&mut cx).is_pending());
        assert_eq!(budget.available_permits(), 1, "bounded: nothing is held for what was handed out");
    }

    fn kv(key: &str, value: &str, created: i64, modified: i64) -> proto::KeyValue {
        proto::KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: created,
            mod_revision: modified,
            ..proto::KeyValue::default()
        }
    }

    fn check(r#type: i32, kv: Option<proto::KeyValue>, prev_kv: Option<proto::KeyValue>, expected: &str) {
        let decoded = decode_event(&Keyspace::new("/registry"), proto::Event { r#type, kv, prev_kv });
        let text = match decoded {
            Decoded::Event(StoreEvent::Put { current, previous }) => format!("put {current:?}, before {previous:?}"),
            Decoded::Event(StoreEvent::Delete { key, revision, previous }) => {
                format!("delete {key} at {revision:?}, before {previous:?}")
            }
            other => format!("{other:?}"),
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn events_become_changes() {
        let pod = |value, created, modified| Some(kv("/registry/pods/a/b", value, created, modified));
        check(0, pod("{}", 5, 5), None, "put /pods/a/b@r5 (2 bytes), before None");
        check(0, pod("{}", 5, 7), pod("{", 5, 6), "put /pods/a/b@r7 (2 bytes), before Some(/pods/a/b@r6 (1 bytes))");
        check(1, pod("", 0, 9), pod("{}", 5, 7), "delete /pods/a/b at r9, before Some(/pods/a/b@r7 (2 bytes))");
        check(1, pod("", 0, 9), None, "delete /pods/a/b at r9, before None");
    }

    #[test]
    fn what_cannot_be_told_truthfully_is_not_told_as_something_else() {
        check(0, Some(kv("/registry/pods/a/b", "{}", 5, 7)), None, "Unknowable(r7)");
        check(0, Some(kv("/registry/pods//b", "{}", 5, 5)), None, "Foreign(r5)");
        check(0, None, None, "Foreign(r0)");
    }

    #[test]
    fn a_watch_begins_behind_its_place_or_on_it() {
        for (after, keeps, expected) in [
            (0, true, 1),
            (0, false, 1),
            (7, true, 8),
            (7, false, 7),
            (u64::MAX, true, i64::MAX),
            (u64::MAX, false, i64::MAX),
        ] {
            assert_eq!(first_revision(Revision::new(after), keeps), expected, "after {after}, keeps {keeps}");
        }
    }

    #[test]
    fn a_response_weighs_what_its_objects_weigh() {
        let event = |value: &str, prev: &str| proto::Event {
            r#type: 0,
            kv: Some(kv("k", value, 1, 2)),
            prev_kv: Some(kv("k", prev, 1, 1)),
        };
        let response = WatchResponse { events: vec![event("abc", "de"), event("", "")], ..WatchResponse::default() };
        assert_eq!(weigh(&response), 9);
    }
}
