//! Converts etcd's watch responses to [`WatchItem`]: a state machine without tasks, channels,
//! clocks or random numbers.
//!
//! ```text
//!              handle_opened                       handle_ended: lost, refused
//!   ┌─────────┐ ──────────────▶ ┌─────────┐ ─────────────────────────────▶ ┌──────────┐
//!   │ Opening │                 │ Running │                                │ Resting  │
//!   └─────────┘ ◀────────────── └─────────┘     handle_timeout(now ≥ t)    │ until t  │
//!        ▲       Expired, Lost       │      ┌──────────────────────────────└──────────┘
//!        └───────────────────────────┼──────┘
//!                                    ▼
//!                               ┌────────┐
//!                               │ Closed │
//!                               └────────┘
//! ```
//!
//! One rule ensures the guarantees: `position` is the revision up to which everything was
//! delivered. The position moves only when a revision is complete, and a new connection begins
//! right after the position. So a connection can be lost anywhere, even within a revision, without
//! loss or repetition. The incomplete revision is dropped and received again as a whole.
//!
//! Call order: `handle_*` for each input, then [`WatchCore::poll`] until it returns `None`. The
//! items emitted between two inputs are whole revisions; a caller that passes them on together
//! keeps each revision together.

use std::collections::VecDeque;
use std::time::Duration;

use listwatch_meta::Revision;
use tokio::time::Instant;

use crate::error::StoreFault;
use crate::types::{StoreEvent, WatchItem};

/// The first pause after a lost connection. Each further loss in a row doubles the pause.
pub(super) const REST_MIN: Duration = Duration::from_millis(100);

/// The longest pause between two attempts to reach etcd.
pub(super) const REST_MAX: Duration = Duration::from_secs(3);

/// The number of rejected credentials in a row, each with a new token, after which the watch ends.
pub(super) const DENIALS_MAX: u32 = 3;

/// The number of connections in a row with out-of-order revisions, after which the watch ends.
pub(super) const DISORDERS_MAX: u32 = 3;

/// The watch id of responses that belong to no single watch.
const NO_WATCH: i64 = -1;

/// One decoded change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// A change of a key of this store.
    Event(StoreEvent),
    /// A change of a foreign key: not delivered, but its revision counts.
    Foreign(Revision),
    /// A change whose previous state etcd has compacted, so that its type is unknown.
    Unknowable(Revision),
}

impl Decoded {
    fn revision(&self) -> Revision {
        match self {
            Decoded::Event(event) => event.revision(),
            Decoded::Foreign(revision) | Decoded::Unknowable(revision) => *revision,
        }
    }
}

/// One response of etcd's watch stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Response {
    /// The id of the watch within the stream.
    pub(super) watch_id: i64,
    /// The header's revision. The meaning of the revision depends on the kind of response.
    pub(super) revision: Revision,
    /// The response confirms a created watch.
    pub(super) created: bool,
    /// The watch has ended.
    pub(super) canceled: bool,
    /// Nonzero if the watch ended because its revision is compacted up to here.
    pub(super) compact_revision: Revision,
    /// The reason why the watch ended, as etcd's text.
    pub(super) cancel_reason: String,
    /// The next response continues this one. Then the last revision here may be incomplete.
    pub(super) fragment: bool,
    /// The changes, in ascending revisions.
    pub(super) events: Vec<Decoded>,
}

impl Response {
    /// Whether this answers a probe or a progress request, or is a periodic progress notification.
    pub(super) fn is_progress(&self) -> bool {
        self.events.is_empty() && !self.created && !self.canceled && !self.fragment && self.compact_revision.is_zero()
    }
}

/// The reason why a connection is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The connection broke or was silent, or etcd ended the watch: try again.
    Lost(String),
    /// etcd rejects the credential: try again with a new token.
    Denied(String),
    /// etcd sent revisions out of order.
    Disorder(String),
    /// The position is compacted; the oldest available revision, if etcd reported it.
    Compacted(Option<Revision>),
    /// The position belongs to a replaced history.
    Replaced,
}

/// The next action of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Open a watch that begins right after this revision, then call
    /// [`WatchCore::handle_opened`] or [`WatchCore::handle_ended`].
    Open {
        /// The revision up to which everything was delivered.
        after: Revision,
        /// Fetch a new token first, because the last one was rejected.
        renew_token: bool,
    },
    /// Drop the connection and call [`WatchCore::handle_timeout`] at this time.
    Rest(Instant),
    /// Deliver this item.
    Emit(WatchItem),
    /// The watch is complete.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    Running,
    Resting(Instant),
    Closed,
}

/// One watch, across all its connections.
#[derive(Debug)]
pub(super) struct WatchCore {
    state: State,
    /// The revision up to which everything was delivered; never decreases. Initially the requested
    /// revision, which etcd may not have reached.
    position: Revision,
    /// Whether etcd has reported a revision at or above `position`. Until then only the client
    /// claims that `position` exists, so the watch reports no progress.
    confirmed: bool,
    /// Events of the incomplete revision `held_revision`, above `position`.
    held: Vec<StoreEvent>,
    /// Zero when no revision is incomplete.
    held_revision: Revision,
    /// The id of this connection's watch.
    watch_id: Option<i64>,
    /// Whether progress on behalf of the whole stream is reliable ([`super::version`]).
    trust_answers: bool,
    /// Connections in a row without input.
    failures: u32,
    /// Rejected credentials in a row.
    denials: u32,
    /// Connections in a row with out-of-order revisions.
    disorders: u32,
    effects: VecDeque<Effect>,
}

impl WatchCore {
    /// Creates a watch of everything after `after`. The first effect is [`Effect::Open`].
    pub(super) fn new(after: Revision) -> Self {
        let mut core = WatchCore {
            state: State::Opening,
            position: after,
            confirmed: false,
            held: Vec::new(),
            held_revision: Revision::ZERO,
            watch_id: None,
            trust_answers: false,
            failures: 0,
            denials: 0,
            disorders: 0,
            effects: VecDeque::new(),
        };
        core.open(false);
        core
    }

    /// The next action, or `None` until the next input.
    pub(super) fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether a revision was received in part, so that it is not delivered yet.
    pub(super) fn is_within_revision(&self) -> bool {
        !self.held_revision.is_zero()
    }

    /// The revision up to which everything was delivered.
    #[cfg(test)]
    pub(super) fn position(&self) -> Revision {
        self.position
    }

    /// Records an established connection. `now`: the store's revision, read linearizably when the
    /// connection was made.
    pub(super) fn handle_opened(&mut self, now: Revision) {
        if self.state == State::Opening {
            self.state = State::Running;
            self.trust_answers = false;
            self.confirmed |= self.position <= now;
        }
    }

    /// Records whether this server's progress is reliable. Call it before each response that
    /// reports progress, because the server's version may become known later than the connection.
    pub(super) fn handle_progress_reliability(&mut self, reliable: bool) {
        self.trust_answers = reliable;
    }

    /// Handles a response of this connection. `Some` if the connection is unusable: drop it and
    /// pass the reason to [`WatchCore::handle_ended`].
    #[must_use]
    pub(super) fn handle_response(&mut self, response: Response) -> Option<End> {
        if self.state != State::Running {
            return None;
        }
        if response.created {
            return self.handle_created(&response);
        }
        let ours = self.watch_id == Some(response.watch_id);
        if response.canceled || !response.compact_revision.is_zero() {
            return if ours { Some(cancel_cause(&response)) } else { None };
        }
        // Any response after the creation shows that the connection works.
        self.failures = 0;
        self.denials = 0;
        if response.is_progress() {
            if ours || (response.watch_id == NO_WATCH && self.trust_answers) {
                self.handle_progress(response.revision);
            }
            return None;
        }
        if !ours {
            return None;
        }
        self.handle_events(response.events, response.fragment)
    }

    /// Handles an unanswered progress request by reporting `position`. That suffices for a watch
    /// that begins at the current revision, to which etcd since 3.6.2 sends no answer. A watch that
    /// begins in the future stays silent, because its position would be taken for a revision that
    /// etcd has reached.
    pub(super) fn handle_unanswered(&mut self) {
        if self.state == State::Running && self.held_revision.is_zero() && self.confirmed {
            self.effects.push_back(Effect::Emit(WatchItem::Progress(self.position)));
        }
    }

    /// Handles the end of the connection. `jitter` is a random number in `[0, 1)` that spreads the
    /// reconnects of many watchers.
    pub(super) fn handle_ended(&mut self, now: Instant, jitter: f64, end: End) {
        match self.state {
            State::Closed => return,
            State::Resting(_) if end != End::Replaced => return,
            _ => {}
        }
        self.held.clear();
        self.held_revision = Revision::ZERO;
        match end {
            End::Compacted(oldest) => return self.close(WatchItem::Expired { oldest }),
            End::Replaced => {
                // Pending effects belong to the replaced history.
                self.effects.clear();
                return self.close(WatchItem::Expired { oldest: None });
            }
            End::Denied(reason) => {
                self.denials += 1;
                if self.denials >= DENIALS_MAX {
                    return self.close(WatchItem::Lost(StoreFault::Denied(reason)));
                }
            }
            End::Disorder(reason) => {
                self.disorders += 1;
                if self.disorders >= DISORDERS_MAX {
                    return self.close(WatchItem::Lost(StoreFault::Corrupt(reason)));
                }
            }
            End::Lost(_) => {}
        }
        let until = now + rest(self.failures, jitter);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Resting(until);
        self.effects.push_back(Effect::Rest(until));
    }

    /// Handles the end of a pause.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let State::Resting(until) = self.state
            && now >= until
        {
            self.open(self.denials > 0);
        }
    }

    fn open(&mut self, renew_token: bool) {
        self.state = State::Opening;
        self.watch_id = None;
        self.effects.push_back(Effect::Open { after: self.position, renew_token });
    }

    fn close(&mut self, last: WatchItem) {
        self.state = State::Closed;
        self.effects.push_back(Effect::Emit(last));
        self.effects.push_back(Effect::Close);
    }

    fn handle_created(&mut self, response: &Response) -> Option<End> {
        if self.watch_id.is_some() {
            // The answer to a probe shows only that the peer is alive.
            self.failures = 0;
            return None;
        }
        if response.canceled {
            return Some(cancel_cause(response));
        }
        self.watch_id = Some(response.watch_id);
        None
    }

    fn handle_progress(&mut self, revision: Revision) {
        // A partly received revision is incomplete, even if etcd reports progress. A watch that begins in
        // the future ignores the current revision.
        if self.held_revision.is_zero() && revision >= self.position {
            self.position = revision;
            self.confirmed = true;
            self.disorders = 0;
            self.effects.push_back(Effect::Emit(WatchItem::Progress(revision)));
        }
    }

    fn handle_events(&mut self, events: Vec<Decoded>, more_follow: bool) -> Option<End> {
        for decoded in events {
            let revision = decoded.revision();
            if revision <= self.position {
                continue; // delivered before, or not requested
            }
            if revision < self.held_revision {
                return Some(End::Disorder(format!(
                    "etcd sent revision {revision} after revision {}",
                    self.held_revision
                )));
            }
            if revision > self.held_revision {
                self.release();
                self.held_revision = revision;
            }
            match decoded {
                Decoded::Event(event) => self.held.push(event),
                Decoded::Foreign(_) => {}
                Decoded::Unknowable(_) => return Some(End::Compacted(None)),
            }
        }
        if !more_follow {
            self.release();
        }
        None
    }

    /// Delivers the completed revision.
    fn release(&mut self) {
        if self.held_revision.is_zero() {
            return;
        }
        self.position = self.held_revision;
        self.confirmed = true;
        self.held_revision = Revision::ZERO;
        self.disorders = 0;
        self.effects.extend(self.held.drain(..).map(|event| Effect::Emit(WatchItem::Event(event))));
    }
}

fn cancel_cause(response: &Response) -> End {
    if !response.compact_revision.is_zero() {
        return End::Compacted(Some(response.compact_revision));
    }
    let reason = response.cancel_reason.as_str();
    if reason.contains("required revision has been compacted") {
        return End::Compacted(None);
    }
    if super::fault::is_denied(listwatch_grpc::Code::Unknown, reason) {
        return End::Denied(reason.to_owned());
    }
    End::Lost(if reason.is_empty() { "etcd ended the watch".to_owned() } else { reason.to_owned() })
}

/// The pause after this many failures in a row: between half and all of a doubling step.
fn rest(failures: u32, jitter: f64) -> Duration {
    let step = REST_MIN.saturating_mul(1 << failures.min(8)).min(REST_MAX);
    step.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
