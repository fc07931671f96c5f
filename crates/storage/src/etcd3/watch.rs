//! The fold of etcd's watch responses into the store's [`WatchItem`]s: a state machine without a
//! task, channel, clock or random number of its own.
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
//! One rule carries the promises: `position` is the revision up to which everything was handed
//! out, it moves only when a revision is complete, and a new connection begins right after it. So
//! a connection can be lost anywhere, in the middle of a revision too, and nothing is lost or told
//! twice: what was held of the unfinished revision is thrown away and comes again as a whole.
//!
//! Call order: `handle_*` for whatever happened, then [`WatchCore::poll`] until it returns `None`.
//! What is emitted between two inputs is whole revisions: who passes it on in one piece keeps each
//! of them together.

use std::collections::VecDeque;
use std::time::Duration;

use listwatch_meta::Revision;
use tokio::time::Instant;

use crate::error::StoreFault;
use crate::types::{StoreEvent, WatchItem};

/// The first rest after a lost connection; each further one in a row is twice as long.
pub(super) const REST_MIN: Duration = Duration::from_millis(100);

/// The longest rest between two attempts to reach etcd again.
pub(super) const REST_MAX: Duration = Duration::from_secs(3);

/// So many refusals of our credential in a row, each with a new token, end the watch.
pub(super) const DENIALS_MAX: u32 = 3;

/// So many connections in a row that break etcd's own order end the watch.
pub(super) const DISORDERS_MAX: u32 = 3;

/// The watch id of answers that belong to no single watch.
const NO_WATCH: i64 = -1;

/// One change, already in the store's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// A change of one of our keys.
    Event(StoreEvent),
    /// A change of a key that is not ours: not handed out, but its revision has passed.
    Foreign(Revision),
    /// A change whose former state etcd has compacted away, so that it cannot be told truthfully.
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
    /// Which watch of the stream.
    pub(super) watch_id: i64,
    /// The header's revision. What it means depends on the kind of response.
    pub(super) revision: Revision,
    /// This answers the creation of a watch.
    pub(super) created: bool,
    /// This watch is over.
    pub(super) canceled: bool,
    /// Not zero: the watch is over because its place is compacted up to here.
    pub(super) compact_revision: Revision,
    /// Why the watch is over, in etcd's words.
    pub(super) cancel_reason: String,
    /// More of the same revisions follows in the next response.
    pub(super) fragment: bool,
    /// The changes, revisions rising.
    pub(super) events: Vec<Decoded>,
}

impl Response {
    /// The answer to a probe or to a progress request, or a periodic progress notification.
    pub(super) fn is_progress(&self) -> bool {
        self.events.is_empty() && !self.created && !self.canceled && !self.fragment && self.compact_revision.is_zero()
    }
}

/// Why a connection is of no more use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It broke, fell silent, or etcd ended it: try again.
    Lost(String),
    /// etcd refuses our credential: try again with a new token.
    Denied(String),
    /// etcd sent revisions out of order.
    Disorder(String),
    /// Our place is compacted; the oldest place that is held, where etcd said so.
    Compacted(Option<Revision>),
    /// Our place is in a history that is no longer the store's.
    Replaced,
}

/// What the shell has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Open a watch that begins right after this revision, then call
    /// [`WatchCore::handle_opened`] or [`WatchCore::handle_ended`].
    Open {
        /// Everything up to here was handed out.
        after: Revision,
        /// Fetch a new token first: the last one was refused.
        renew_token: bool,
    },
    /// Drop the connection and call [`WatchCore::handle_timeout`] at this time.
    Rest(Instant),
    /// Hand this out.
    Emit(WatchItem),
    /// Nothing more will come.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    Running,
    Resting(Instant),
    Closed,
}

/// One watch, across all the connections that it needs.
#[derive(Debug)]
pub(super) struct WatchCore {
    state: State,
    /// Everything at or below was handed out. Never falls. At first it is what the caller asked for,
    /// which may be a number that etcd has not reached.
    position: Revision,
    /// etcd itself has shown that it is at `position` or later. Until then `position` is a client's
    /// claim, of which nothing is said to others.
    confirmed: bool,
    /// Events of one revision, `held_revision`, of which more may come. All above `position`.
    held: Vec<StoreEvent>,
    /// Zero when no revision is under way.
    held_revision: Revision,
    /// The id that etcd gave this connection's watch.
    watch_id: Option<i64>,
    /// Answers on behalf of the whole stream may be believed ([`super::version`]).
    trust_answers: bool,
    /// Connections in a row that brought nothing.
    failures: u32,
    /// Refused credentials in a row.
    denials: u32,
    /// Disorderly connections in a row.
    disorders: u32,
    effects: VecDeque<Effect>,
}

impl WatchCore {
    /// A watch of everything after `after`. Its first effect is [`Effect::Open`].
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

    /// The next thing to do, or `None` until something happens.
    pub(super) fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Everything up to here was handed out.
    #[cfg(test)]
    pub(super) fn position(&self) -> Revision {
        self.position
    }

    /// The connection stands. `trust_answers`: this server's answers to progress requests are true.
    /// `now`: the store's revision, read linearizably when the connection was made.
    pub(super) fn handle_opened(&mut self, trust_answers: bool, now: Revision) {
        if self.state == State::Opening {
            self.state = State::Running;
            self.trust_answers = trust_answers;
            self.confirmed |= self.position <= now;
        }
    }

    /// A response of this connection. `Some` says that the connection is of no more use: drop it
    /// and hand the reason to [`WatchCore::handle_ended`].
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
        // Whatever came after the creation shows that the connection works.
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

    /// etcd did not answer a progress request. What is known is told instead: everything up to
    /// `position` was handed out. That is enough for a watch that begins at the present, which etcd
    /// leaves without an answer since 3.6.2. A watch that begins in the future stays silent: whoever
    /// hears of progress takes it for a revision that etcd has reached.
    pub(super) fn handle_unanswered(&mut self) {
        if self.state == State::Running && self.held_revision.is_zero() && self.confirmed {
            self.effects.push_back(Effect::Emit(WatchItem::Progress(self.position)));
        }
    }

    /// The connection is gone. `jitter` is a random number in `[0, 1)` that spreads the watchers
    /// of one etcd over time.
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
                // What was about to be done belongs to the history that is gone.
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

    /// Time has passed.
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
            // The answer to a probe: alive, and nothing else.
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
        // A revision of which only a part has come is not complete, whatever etcd says; and a watch
        // that begins in the future is told of the present, which is none of its business.
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
                continue; // Handed out before, or not asked for.
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

    /// The held revision is complete: hand it out.
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
    if super::fault::is_denied(tonic::Code::Unknown, reason) {
        return End::Denied(reason.to_owned());
    }
    End::Lost(if reason.is_empty() { "etcd ended the watch".to_owned() } else { reason.to_owned() })
}

/// How long to rest after so many failures in a row: between half and the whole of a doubling step.
fn rest(failures: u32, jitter: f64) -> Duration {
    let step = REST_MIN.saturating_mul(1 << failures.min(8)).min(REST_MAX);
    step.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
