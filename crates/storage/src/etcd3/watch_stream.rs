//! One running watch: two tasks and two bounded channels around the state machine of
//! [`super::watch`].
//!
//! ```text
//!                    reader                          driver                        caller
//!  gRPC stream ─▶ decode ─▶ incoming channel ─▶ WatchCore ─▶ result channel ─▶ Watch::next
//!   ≤ 512 KiB     Liveness     ≤ 100 responses                ≤ 100 messages
//!   on the wire                └────────── ≤ 16 MiB together ──────────┘
//! ```
//!
//! The bytes of all watches are bounded, too ([`super::watch_budget`]).
//!
//! The items produced by one response cross the result channel as one message, and the state machine emits only whole
//! revisions. So the changes of one revision (a transaction, the keys of one lease) are ready together, as
//! [`WatchItem::Event`] guarantees. Neither a full channel nor the scheduling of tasks separates them.
//!
//! A slow caller causes no growth. A full result channel stops the driver. A full incoming channel (or a used-up byte
//! budget) stops the reader. Then the reader's HTTP/2 window closes, and etcd keeps the watcher's position in its own
//! history. The caller catches up from there, or receives Expired when etcd has compacted it.
//!
//! The reader decodes: the connection's own task only moves frames, and the driver only decides. An
//! object's bytes are copied once, from the frame to the caller's buffer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::client::{WatchAnswers, WatchRequests};
use super::endpoints::{Connection, Endpoints};
use super::fault::{Cause, Failure};
use super::history::Floor;
use super::keys::{Keyspace, number, revision};
use super::liveness::{Liveness, ReaderAction};
use super::proto::{self, WatchCreateRequest, WatchResponse};
use super::watch::{Decoded, Effect, End, Response, WatchCore};
use super::watch_budget::{Deliverable, Share, WatchBudget};
use super::{Shared, version::Version};
use crate::error::{StoreFault, WatchError};
use crate::types::{KeyValue, StoreEvent, Watch, WatchItem};

/// The number of responses in the incoming channel, as in Kubernetes. When the channel is full, the stream is not
/// read.
pub const INCOMING_RESPONSES: usize = 100;

/// The number of messages in the result channel, each with the items of one response. When the channel is full, the
/// state machine waits.
pub const RESULT_MESSAGES: usize = 100;

/// Time for a member to open a watch, after which the next member is tried.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a watch and starts the tasks that keep it.
///
/// Fails only after every member was tried. A started watch recovers by itself.
pub(super) async fn start(shared: &Arc<Shared>, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
    let progress_wanted = Arc::new(Notify::new());
    let (results, items) = mpsc::channel(RESULT_MESSAGES);
    let mut driver = Driver {
        shared: shared.clone(),
        range,
        core: WatchCore::new(after),
        link: None,
        budget: shared.watch_budget.watch(),
        progress_wanted: progress_wanted.clone(),
        results,
        floor: shared.history.floor(),
        witness: None,
        problem_logged: false,
    };
    if !driver.range.is_empty() {
        driver.open_first(after).await?;
    }
    let task = AbortOnDrop(tokio::spawn(driver.run()));
    Ok(Watch::new(Items { items, ready: Delivered::default(), _task: Some(task) }, move || {
        progress_wanted.notify_one()
    }))
}

/// Aborts the task when dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A message of the result channel: whole revisions, and their share of the byte budget.
#[derive(Default)]
struct Delivered {
    items: std::vec::IntoIter<WatchItem>,
    _hold: Vec<Share>,
    /// `None` if no share is held. After the shares, so that they are free when the reader sees the guard dropped.
    _deliverable: Option<Deliverable>,
}

struct Items {
    items: mpsc::Receiver<Delivered>,
    /// The current message, which keeps its share of the budget until it is delivered.
    ready: Delivered,
    /// `None` only in tests.
    _task: Option<AbortOnDrop>,
}

impl Stream for Items {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        loop {
            // Before the channel is polled, because tokio's cooperative budget may return Pending
            // at any time.
            if let Some(item) = self.ready.items.next() {
                return Poll::Ready(Some(item));
            }
            // No share of the budget may be held while no item is ready.
            self.ready = Delivered::default();
            match ready!(self.items.poll_recv(cx)) {
                Some(delivered) => self.ready = delivered,
                None => return Poll::Ready(None),
            }
        }
    }
}

/// A message of the incoming channel.
enum Incoming {
    Response(Response, Share),
    /// A progress request was not answered.
    Unanswered,
    /// The last message of a connection.
    End(End),
}

/// An action of the state machine other than delivery.
enum Task {
    Open { after: Revision, renew_token: bool },
    Rest(Instant),
    Close,
}

/// The version of the member at the other end of a stream.
#[derive(Clone, Copy)]
struct StreamVersion {
    /// The version when the stream was opened, if known.
    opened: Option<Version>,
    /// The member's index.
    member: usize,
}

impl StreamVersion {
    /// Whether this stream's responses to progress requests are reliable. Later connections may reach another member
    /// through a load balancer, so what they show counts only if the version was unknown at the opening.
    fn is_progress_reliable(self, endpoints: &Endpoints) -> bool {
        self.opened.map_or_else(|| endpoints.is_progress_reliable(self.member), Version::has_reliable_progress)
    }
}

/// One connection's stream, read by a task.
struct Link {
    incoming: mpsc::Receiver<Incoming>,
    version: StreamVersion,
    _reader: AbortOnDrop,
}

/// A watch opened at a member.
struct Opened {
    link: Link,
    /// The store's revision when the watch was opened, read linearizably.
    now: Revision,
}

struct Driver {
    shared: Arc<Shared>,
    range: KeyRange,
    core: WatchCore,
    link: Option<Link>,
    budget: WatchBudget,
    /// Notified by progress requests of the caller.
    progress_wanted: Arc<Notify>,
    results: mpsc::Sender<Delivered>,
    /// The known state of the history when this watch began.
    floor: Floor,
    /// The last delivered object, which must exist when the watch is resumed.
    witness: Option<(Key, Revision)>,
    /// Whether the current problem was logged. Only the first problem in a row is logged.
    problem_logged: bool,
}

impl Driver {
    /// Opens the first connection, whose failure is returned to the caller.
    async fn open_first(&mut self, after: Revision) -> Result<(), WatchError> {
        self.core.poll(); // The first effect is Open, which this function performs.
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
        let (shared, floor) = (self.shared.clone(), self.floor);
        if self.range.is_empty() {
            // etcd rejects such a watch. It ends with its caller or with the store.
            tokio::select! {
                () = self.results.closed() => {}
                () = shared.closed() => {}
            }
            return;
        }
        let driven = async {
            tokio::select! {
                () = self.drive() => return,
                () = shared.history.replaced(floor) => {}
            }
            // The final item; items in flight belong to a replaced history.
            self.core.handle_ended(Instant::now(), rand::random(), End::Replaced);
            self.drive().await;
        };
        tokio::select! {
            () = driven => {}
            () = shared.closed() => {}
        }
    }

    async fn drive(&mut self) {
        // The shares of the responses whose revisions are not delivered. The parts of a revision are kept together.
        let mut hold = Vec::new();
        loop {
            loop {
                let (items, task) = handed_out(&mut self.core);
                if let Some(WatchItem::Expired { oldest: Some(oldest) }) = items.last() {
                    self.shared.learn_compacted(*oldest);
                }
                if !items.is_empty() {
                    self.note_handed_out(&items);
                    // The last response may also have a part of the next revision.
                    let is_split = self.core.is_within_revision();
                    let rest = hold.split_off(hold.len() - usize::from(is_split && !hold.is_empty()));
                    let hold = std::mem::replace(&mut hold, rest);
                    let deliverable = (!hold.is_empty()).then(|| self.budget.deliverable());
                    let delivered = Delivered { items: items.into_iter(), _hold: hold, _deliverable: deliverable };
                    if self.results.send(delivered).await.is_err() {
                        return;
                    }
                }
                if !self.core.is_within_revision() {
                    hold.clear();
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
            // Only the newest response can be one that was not examined before.
            if let Some(share) = hold.last_mut() {
                share.handle_incomplete();
            }
            let Some(link) = &mut self.link else { return };
            let message = tokio::select! {
                message = link.incoming.recv() => message,
                () = self.results.closed() => return,
            };
            let end = match message {
                Some(Incoming::Response(response, share)) => {
                    if self.problem_logged && !response.created {
                        self.problem_logged = false;
                        tracing::info!(range = ?self.range, "watch of etcd was resumed");
                    }
                    hold.push(share);
                    if response.is_progress() {
                        let reliable = link.version.is_progress_reliable(&self.shared.endpoints);
                        self.core.handle_progress_reliability(reliable);
                    }
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

    /// Remembers an object by which a resumed watch can be checked.
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
        self.core.handle_opened(opened.now);
    }

    fn handle_ended(&mut self, end: End) {
        if self.problem_logged {
            tracing::debug!(range = ?self.range, ?end, "watch of etcd not resumed yet");
        } else if !matches!(end, End::Compacted(_) | End::Replaced) {
            self.problem_logged = true;
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
            // Queried each time: the member may run another version meanwhile, and the store may
            // have another history.
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
            Ok((connection, stream, version, now))
        };
        // On the heap and freed afterwards, so that the task of an established watch stays small.
        let opened = match tokio::time::timeout(OPEN_TIMEOUT, Box::pin(opened)).await {
            Ok(opened) => opened,
            Err(_) => {
                // A request in flight on it can no longer report the failure itself.
                endpoints.handle_silent(index);
                Err(Failure::timeout(endpoints.url(index), OPEN_TIMEOUT))
            }
        };
        let (connection, stream, version, now) = opened.inspect_err(|failure| {
            if failure.elsewhere {
                endpoints.handle_failed(index);
            }
        })?;
        let (incoming, receiver) = mpsc::channel(INCOMING_RESPONSES);
        let version = StreamVersion { opened: version, member: connection.index };
        let (requests, stream) = stream;
        let reader = Reader {
            shared: self.shared.clone(),
            connection,
            requests,
            stream,
            live: Liveness::new(Instant::now()),
            version,
            watch_id: None,
            progress_wanted: self.progress_wanted.clone(),
            incoming,
            budget: self.budget.clone(),
        };
        let reader = AbortOnDrop(tokio::spawn(reader.run()));
        Ok(Opened { link: Link { incoming: receiver, version, _reader: reader }, now })
    }
}

/// All items that the state machine delivers now, and its next action.
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

/// The start revision in etcd of a watch of everything after `after`. If the server may have lost a removal at the
/// compacted revision, the watch begins at `after` itself. The state machine drops that revision, so that the next
/// revision cannot be the compacted one.
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
    stream: WatchAnswers,
    live: Liveness,
    version: StreamVersion,
    /// The id of this watch; any later created watch is a leftover of a probe.
    watch_id: Option<i64>,
    /// Notified by progress requests. They are dropped while this member's progress is unreliable.
    progress_wanted: Arc<Notify>,
    incoming: mpsc::Sender<Incoming>,
    budget: WatchBudget,
}

impl Reader {
    async fn run(mut self) {
        let end = self.read().await;
        if let Some(end) = end {
            // If the driver is gone, the reason is of no interest.
            let _ = self.incoming.send(Incoming::End(end)).await;
        }
    }

    /// Returns the reason of the stream's end, or `None` if the receiver was dropped.
    async fn read(&mut self) -> Option<End> {
        let incoming = self.incoming.clone();
        let timer = tokio::time::sleep_until(self.live.poll_timeout());
        tokio::pin!(timer);
        // Whether the next response continues the last one. A fragmented response of etcd has up to 1,000 revisions, of
        // which the last one received may be incomplete.
        let mut is_continued = false;
        loop {
            // Waits for room first, because an item without room must not be read.
            let slot = incoming.reserve().await.ok()?;
            self.live.handle_resumed(Instant::now());
            let message = loop {
                tokio::select! {
                    biased;
                    message = self.stream.next() => break message,
                    () = self.progress_wanted.notified() => {
                        if self.version.is_progress_reliable(&self.shared.endpoints) {
                            self.live.handle_progress_wanted();
                        }
                    }
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
            let bytes = weigh(&response);
            let response = decode(&self.shared.keys, response);
            self.live.handle_heard(Instant::now(), response.is_progress());
            self.cancel_leftover(&response);
            let share = if is_continued {
                self.budget.acquire_for_continuation(bytes).await?
            } else {
                self.budget.acquire(bytes).await?
            };
            if !response.is_progress() {
                is_continued = response.fragment;
            }
            slot.send(Incoming::Response(response, share));
        }
    }

    fn perform_duties(&mut self) -> Option<End> {
        while let Some(duty) = self.live.poll(Instant::now()) {
            let sent = match duty {
                ReaderAction::SendProbe => {
                    let nothing = self.shared.keys.never();
                    let (key, range_end) = (nothing.clone(), nothing);
                    self.requests.create(WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() })
                }
                ReaderAction::SendProgressRequest => self.requests.request_progress(),
                ReaderAction::ReportPosition => {
                    // Without room, the caller has other items to read first.
                    let _ = self.incoming.try_send(Incoming::Unanswered);
                    true
                }
                ReaderAction::Dead => false,
            };
            if !sent {
                self.shared.endpoints.handle_dead(&self.connection);
                return Some(End::Lost(format!("etcd at {} does not answer", self.connection.url)));
            }
        }
        None
    }

    /// Cancels a watch that a probe has created. etcd rejects a probe, but another implementation of etcd's API may
    /// create a watch for it.
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
    // An event without a key does not occur; revision zero precedes every watch.
    let Some(kv) = event.kv else { return Decoded::Foreign(Revision::ZERO) };
    let modified = revision(kv.mod_revision);
    let Some(key) = keys.relative(&kv.key) else { return Decoded::Foreign(modified) };
    let previous = event.prev_kv.map(|previous| KeyValue {
        key: key.clone(),
        value: Bytes::from(previous.value),
        created: revision(previous.create_revision),
        modified: revision(previous.mod_revision),
        stale: false,
    });
    if event.r#type == DELETE {
        return Decoded::Event(StoreEvent::Delete { key, revision: modified, previous });
    }
    if previous.is_none() && kv.create_revision != kv.mod_revision {
        return Decoded::Unknowable(modified);
    }
    let current =
        KeyValue { key, value: Bytes::from(kv.value), created: revision(kv.create_revision), modified, stale: false };
    Decoded::Event(StoreEvent::Put { current, previous })
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::super::watch_budget::{SharedBudget, WATCH_BYTES, WATCH_RESERVE_BYTES};
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

    /// Reads until the stream is not ready; returns the revisions.
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

    /// A number of keys that exceeds both the channel and the items that tokio lets a task read in one
    /// poll.
    const MANY: usize = 3 * RESULT_MESSAGES;

    #[tokio::test]
    async fn changes_of_one_revision_are_ready_together() {
        let (results, items) = mpsc::channel(1);
        let mut items = Items { items, ready: Delivered::default(), _task: None };
        let mut core = WatchCore::new(Revision::new(10));
        core.poll();
        core.handle_opened(Revision::new(10));
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
                    assert!(
                        results
                            .try_send(Delivered { items: ready.into_iter(), _hold: Vec::new(), _deliverable: None })
                            .is_ok()
                    );
                }
            }
            // In another task with a fresh cooperative budget, which is smaller than a revision.
            let (seen, back) = tokio::spawn(async move { (ready_now(&mut items).await, items) }).await.unwrap();
            items = back;
            assert_eq!(seen, expected, "promise: what happened at once is ready at once ({what})");
        }
    }

    #[tokio::test]
    async fn delivered_message_releases_its_share_of_the_byte_budget() {
        let budget = SharedBudget::new().watch();
        let share = budget.try_acquire(WATCH_RESERVE_BYTES).unwrap();
        let is_held = || budget.try_acquire(WATCH_BYTES).is_none();
        let borrowed = budget.try_acquire(1).unwrap();
        let (results, items) = mpsc::channel(1);
        let mut items = Items { items, ready: Delivered::default(), _task: None };
        let progress = vec![WatchItem::Progress(Revision::new(11)), WatchItem::Progress(Revision::new(12))];
        assert!(
            results
                .try_send(Delivered { items: progress.into_iter(), _hold: vec![share, borrowed], _deliverable: None })
                .is_ok()
        );
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut items).poll_next(&mut cx).is_ready());
        assert!(is_held(), "half of it is still here");
        assert!(Pin::new(&mut items).poll_next(&mut cx).is_ready());
        assert!(Pin::new(&mut items).poll_next(&mut cx).is_pending());
        assert!(!is_held(), "bounded: nothing is held for what was handed out");
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
    fn events_are_decoded_to_changes() {
        let pod = |value, created, modified| Some(kv("/registry/pods/a/b", value, created, modified));
        check(0, pod("{}", 5, 5), None, "put /pods/a/b@r5 (2 bytes), before None");
        check(0, pod("{}", 5, 7), pod("{", 5, 6), "put /pods/a/b@r7 (2 bytes), before Some(/pods/a/b@r6 (1 bytes))");
        check(1, pod("", 0, 9), pod("{}", 5, 7), "delete /pods/a/b at r9, before Some(/pods/a/b@r7 (2 bytes))");
        check(1, pod("", 0, 9), None, "delete /pods/a/b at r9, before None");
    }

    #[test]
    fn event_without_its_previous_state_is_not_decoded_as_a_create() {
        check(0, Some(kv("/registry/pods/a/b", "{}", 5, 7)), None, "Unknowable(r7)");
        check(0, Some(kv("/registry/pods//b", "{}", 5, 5)), None, "Foreign(r5)");
        check(0, None, None, "Foreign(r0)");
    }

    #[test]
    fn watch_starts_one_revision_earlier_at_servers_that_lose_removals() {
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
    fn response_weight_is_the_size_of_its_objects() {
        let event = |value: &str, prev: &str| proto::Event {
            r#type: 0,
            kv: Some(kv("k", value, 1, 2)),
            prev_kv: Some(kv("k", prev, 1, 1)),
        };
        let response = WatchResponse { events: vec![event("abc", "de"), event("", "")], ..WatchResponse::default() };
        assert_eq!(weigh(&response), 9);
    }
}
