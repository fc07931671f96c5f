//! [`Queue`]: the event queue of one backend. A task takes batches of events, encodes them on a blocking thread and
//! writes them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use listwatch_audit::{
    AuditCounters, BatchOptions, Batcher, Event, EventForm, LogFile, Plugin, Truncation, split_batch,
};
use listwatch_outbound::{Backoff, Client};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

/// Maximum number of batches that are sent to one webhook concurrently. Further batches wait in the queue.
pub(crate) const WEBHOOK_BATCHES_MAX: usize = 16;

/// The time limit of one call of an audit webhook.
pub(crate) const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// The memory of the events that wait for room in a full queue although their requests have ended, in bytes. Each event
/// counts at least 1 KiB. Further events are lost and counted.
pub(crate) const DETACHED_BYTES_MAX: usize = 64 << 20;
/// The permits of these events. Each permit is for 1 KiB.
const DETACHED_PERMITS: u32 = (DETACHED_BYTES_MAX >> 10) as u32;

/// The destination of the batches of a queue.
#[derive(Debug)]
pub(super) enum Target {
    /// The log file; `None` while a batch is being written.
    Log(Option<LogFile>),
    Webhook {
        client: Box<Client>,
        initial_backoff: Duration,
    },
}

/// A bounded queue of events with the task that empties it. Dropping the last handle ends the task.
#[derive(Debug)]
pub(super) struct Queue {
    state: Arc<State>,
    counters: Arc<AuditCounters>,
    /// Limits the events that wait for room after the end of their requests.
    detached: Arc<Semaphore>,
}

#[derive(Debug)]
struct State {
    batcher: Mutex<Batcher<Item>>,
    /// Wakes the task when events arrive or the queue is closed.
    changed: Notify,
    /// Wakes one caller that waits for room in the queue for each event that the task takes, and all at the end. A caller
    /// that still finds no room waits for the next batch: a queue without room always has a next batch.
    taken: Notify,
    is_finished: tokio::sync::watch::Sender<bool>,
}

#[derive(Debug)]
struct Item {
    event: Event,
    /// The channel for the result: whether the event was written.
    written: Option<oneshot::Sender<bool>>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.state.batcher.lock().close();
        self.state.changed.notify_one();
    }
}

impl Queue {
    pub(super) fn start(
        target: Target,
        form: EventForm,
        batch: BatchOptions,
        truncation: Option<Truncation>,
        counters: Arc<AuditCounters>,
    ) -> Arc<Queue> {
        let state = Arc::new(State {
            batcher: Mutex::new(Batcher::new(batch)),
            changed: Notify::new(),
            taken: Notify::new(),
            is_finished: tokio::sync::watch::Sender::new(false),
        });
        let writer = Writer {
            target,
            form,
            truncation,
            counters: Arc::clone(&counters),
            calls: Arc::new(Semaphore::new(WEBHOOK_BATCHES_MAX)),
        };
        tokio::spawn(run(Arc::clone(&state), writer));
        Arc::new(Queue { state, counters, detached: Arc::new(Semaphore::new(DETACHED_PERMITS as usize)) })
    }

    /// Adds an event, or drops it if the queue is full.
    pub(super) fn submit(&self, event: Event) {
        if self.push(Item { event, written: None }).is_err() {
            self.counters.lost(Plugin::Buffered, 1, &"audit buffer queue blocked");
        }
    }

    /// Adds an event. If the queue is full, the event waits for room, even if the result is dropped.
    pub(super) fn submit_and_wait(self: &Arc<Self>, event: Event) -> Submission {
        let (sender, written) = oneshot::channel();
        let item = self.push(Item { event, written: Some(sender) }).err();
        Submission { unqueued: Unqueued { queue: Arc::clone(self), item, permit: None }, written }
    }

    fn push(&self, item: Item) -> Result<(), Item> {
        let bytes = item.event.bytes();
        self.state.batcher.lock().push(item, bytes, Instant::now())?;
        self.state.changed.notify_one();
        Ok(())
    }

    /// Writes the waiting events, and accepts no further events.
    pub(super) async fn close(&self) {
        // The events without a request enter the queue first. The semaphore is never closed.
        let _ = self.detached.acquire_many(DETACHED_PERMITS).await;
        self.state.batcher.lock().close();
        self.state.changed.notify_one();
        // The sender lives as long as this value.
        let _ = self.state.is_finished.subscribe().wait_for(|finished| *finished).await;
    }
}

/// An event that was submitted. Dropping the value does not lose the event.
pub(super) struct Submission {
    unqueued: Unqueued,
    written: oneshot::Receiver<bool>,
}

impl Submission {
    /// Waits until the event is written. Returns false if the write failed.
    pub(super) async fn written(mut self) -> bool {
        self.unqueued.enqueue().await;
        self.written.await.unwrap_or(false)
    }
}

/// An event that waits for room in a full queue. `None`: the queue has the event.
struct Unqueued {
    queue: Arc<Queue>,
    item: Option<Item>,
    /// The event's share of [`DETACHED_BYTES_MAX`], after the end of the request.
    permit: Option<OwnedSemaphorePermit>,
}

impl Unqueued {
    async fn enqueue(&mut self) {
        while let Some(item) = self.item.take() {
            let mut taken = std::pin::pin!(self.queue.state.taken.notified());
            // The task may take a batch between the push and the wait.
            taken.as_mut().enable();
            let Err(full) = self.queue.push(item) else { return };
            if *self.queue.state.is_finished.borrow() {
                return self.queue.counters.lost(Plugin::Buffered, 1, &"the audit log has stopped");
            }
            self.item = Some(full);
            taken.await;
        }
    }
}

impl Drop for Unqueued {
    fn drop(&mut self) {
        let Some(item) = self.item.take() else { return };
        let kib = u32::try_from(item.event.bytes().div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.queue.detached).try_acquire_many_owned(kib.clamp(1, DETACHED_PERMITS));
        match (permit, tokio::runtime::Handle::try_current()) {
            (Ok(permit), Ok(runtime)) if self.permit.is_none() => {
                let (queue, item, permit) = (Arc::clone(&self.queue), Some(item), Some(permit));
                let mut unqueued = Unqueued { queue, item, permit };
                runtime.spawn(async move { unqueued.enqueue().await });
            }
            _ => self.queue.counters.lost(Plugin::Buffered, 1, &"audit buffer queue blocked"),
        }
    }
}

/// Empties the queue until it is closed.
async fn run(state: Arc<State>, mut writer: Writer) {
    loop {
        let (batch, deadline, is_finished) = {
            let (mut batcher, now) = (state.batcher.lock(), Instant::now());
            (batcher.poll_batch(now), batcher.deadline(now), batcher.is_finished())
        };
        if let Some(batch) = batch {
            // One waiter for each event that left, in the order of arrival: most of the others would find a full queue again.
            batch.iter().for_each(|_| state.taken.notify_one());
            writer.deliver(batch).await;
            continue;
        }
        if is_finished {
            break;
        }
        match deadline {
            Some(deadline) => {
                let _ = tokio::time::timeout_at(deadline.into(), state.changed.notified()).await;
            }
            None => state.changed.notified().await,
        }
    }
    // The calls that still run hold their permits.
    let _ = writer.calls.acquire_many(WEBHOOK_BATCHES_MAX as u32).await;
    state.is_finished.send_replace(true);
    state.taken.notify_waiters();
}

struct Writer {
    target: Target,
    form: EventForm,
    truncation: Option<Truncation>,
    counters: Arc<AuditCounters>,
    /// Limits the concurrent calls of the webhook.
    calls: Arc<Semaphore>,
}

impl Writer {
    /// Encodes a batch, and writes it to the file or starts a call of the webhook.
    async fn deliver(&mut self, batch: Vec<Item>) {
        let (form, truncation, counters) = (self.form, self.truncation, Arc::clone(&self.counters));
        let (events, waiting): (Vec<Event>, Vec<_>) = batch.into_iter().map(|item| (item.event, item.written)).unzip();
        let encode = move || {
            let encoded: Vec<_> = events.iter().map(|event| event.encode(form, truncation.as_ref())).collect();
            let lost = encoded.iter().filter(|event| event.is_err()).count();
            if lost > 0 {
                counters.lost(Plugin::Truncate, lost, &listwatch_audit::EventTooLarge);
            }
            encoded.into_iter().filter_map(Result::ok).collect::<Vec<Vec<u8>>>()
        };
        match &mut self.target {
            Target::Log(slot) => {
                let Some(mut file) = slot.take() else { return };
                let write = move || {
                    let lines = encode();
                    let written = file.append(&lines, SystemTime::now());
                    (file, lines.len(), written)
                };
                let Ok((file, count, written)) = tokio::task::spawn_blocking(write).await else {
                    // The runtime ends, or the encoder panicked and took the file with it.
                    return self.counters.lost(Plugin::Log, waiting.len(), &"the audit log has stopped");
                };
                *slot = Some(file);
                if let Err(error) = &written {
                    self.counters.lost(Plugin::Log, count, error);
                }
                acknowledge(waiting, written.is_ok());
            }
            Target::Webhook { client, initial_backoff } => {
                let (client, backoff) = (client.clone(), Backoff::starting_at(*initial_backoff));
                // The semaphore is never closed.
                let Ok(permit) = Arc::clone(&self.calls).acquire_owned().await else { return };
                let (counters, bytes_max) = (
                    Arc::clone(&self.counters),
                    self.truncation.map_or(usize::MAX, |truncation| truncation.batch_bytes_max),
                );
                tokio::spawn(async move {
                    let encoded = tokio::task::spawn_blocking(encode).await.unwrap_or_default();
                    let mut is_written = true;
                    for part in split_batch(encoded, bytes_max) {
                        let count = part.len();
                        let sent = client.post_until_accepted(event_list(&part), WEBHOOK_TIMEOUT, &backoff).await;
                        if let Err(error) = sent {
                            counters.lost(Plugin::Webhook, count, &error);
                            is_written = false;
                        }
                    }
                    acknowledge(waiting, is_written);
                    drop(permit);
                });
            }
        }
    }
}

fn acknowledge(waiting: Vec<Option<oneshot::Sender<bool>>>, is_written: bool) {
    for sender in waiting.into_iter().flatten() {
        // The request may be gone.
        let _ = sender.send(is_written);
    }
}

/// Joins encoded events into an EventList.
fn event_list(events: &[Vec<u8>]) -> Bytes {
    let mut list = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#.to_vec();
    list.extend_from_slice(&events.join(&b','));
    list.extend_from_slice(b"]}");
    list.into()
}
