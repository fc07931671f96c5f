//! Detects dead watch connections: [`Liveness`] decides when to probe and when to give up.
//!
//! A TCP connection whose peer was cut off stays open if nothing is written, and a stopped etcd
//! process keeps its sockets. A reader that only reads would wait forever (etcd-client #48).
//! Therefore a watch without input for [`PROBE_AFTER`] sends a probe on its own stream. Without a
//! response within [`PROBE_PATIENCE`] the watch counts as dead. **The bound is [`DEAD_AFTER`]**, 20
//! s. HTTP/2 pings (30 s and 10 s by default) are a second line of defense.
//!
//! The probe is the creation of a watch over an empty range. Every version of etcd rejects it with
//! a response and keeps no state. A progress request is unsuitable. Since 3.6.2, etcd does not
//! respond while the watch begins in the future, as every watch of an idle store does.

use std::time::Duration;

use tokio::time::Instant;

/// Time without input after which a watch sends a probe.
pub(super) const PROBE_AFTER: Duration = Duration::from_secs(10);

/// Time for the answer to a probe.
pub(super) const PROBE_PATIENCE: Duration = Duration::from_secs(10);

/// Time within which a silent peer is detected, while the watch is read.
pub const DEAD_AFTER: Duration = Duration::from_secs(20);

const _: () = assert!(PROBE_AFTER.as_secs() + PROBE_PATIENCE.as_secs() == DEAD_AFTER.as_secs());

/// Time after which a progress request is treated as unanswered. At most one is in flight. Requests
/// that arrive meanwhile cause one more request afterwards, because the pending response may be too
/// old for them.
pub(super) const PROGRESS_PATIENCE: Duration = Duration::from_millis(100);

/// The next action of a connection's reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReaderAction {
    /// Send a probe, which etcd always answers.
    SendProbe,
    /// Send a progress request.
    SendProgressRequest,
    /// etcd does not answer the progress request (while the watch begins in the future or catches
    /// up): report the known position.
    ReportPosition,
    /// The peer is dead: drop the connection.
    Dead,
}

/// The liveness of one connection, as its reader sees it.
#[derive(Debug)]
pub(super) struct Liveness {
    /// The time of the last input, or when reading resumed.
    heard: Instant,
    /// The time of the unanswered probe.
    probed: Option<Instant>,
    /// Whether a progress request is waiting to be sent.
    progress_wanted: bool,
    /// The time of the unanswered progress request.
    progress_asked: Option<Instant>,
    dead: bool,
}

impl Liveness {
    /// Creates the state of a new connection.
    pub(super) fn new(now: Instant) -> Self {
        Liveness { heard: now, probed: None, progress_wanted: false, progress_asked: None, dead: false }
    }

    /// Records input. `progress` is true if the input may answer a progress request.
    pub(super) fn handle_heard(&mut self, now: Instant, progress: bool) {
        self.heard = now;
        self.probed = None;
        if progress {
            self.progress_asked = None;
        }
    }

    /// Records that reading resumed after a wait for room, during which silence does not count.
    pub(super) fn handle_resumed(&mut self, now: Instant) {
        self.heard = now;
        if let Some(probed) = &mut self.probed {
            *probed = now;
        }
    }

    /// Records a progress request.
    pub(super) fn handle_progress_wanted(&mut self) {
        self.progress_wanted = true;
    }

    /// The next action, or `None` until [`Liveness::poll_timeout`].
    pub(super) fn poll(&mut self, now: Instant) -> Option<ReaderAction> {
        if self.dead {
            return None;
        }
        match self.progress_due() {
            Some(due) if now >= due => {
                self.progress_asked = None;
                return Some(ReaderAction::ReportPosition);
            }
            None if self.progress_wanted => {
                self.progress_wanted = false;
                self.progress_asked = Some(now);
                return Some(ReaderAction::SendProgressRequest);
            }
            _ => {}
        }
        match self.probed {
            Some(probed) if now >= probed + PROBE_PATIENCE => {
                self.dead = true;
                Some(ReaderAction::Dead)
            }
            None if now >= self.heard + PROBE_AFTER => {
                self.probed = Some(now);
                Some(ReaderAction::SendProbe)
            }
            _ => None,
        }
    }

    /// The time of the next call of [`Liveness::poll`] without further input.
    pub(super) fn poll_timeout(&self) -> Instant {
        let silence = match self.probed {
            Some(probed) => probed + PROBE_PATIENCE,
            None => self.heard + PROBE_AFTER,
        };
        self.progress_due().map_or(silence, |due| silence.min(due))
    }

    fn progress_due(&self) -> Option<Instant> {
        self.progress_asked.map(|asked| asked + PROGRESS_PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Instant {
        // The start is arbitrary, because only differences count.
        Instant::now()
    }

    #[test]
    fn silent_peer_is_dead_within_the_bound() {
        let t = start();
        let mut live = Liveness::new(t);
        assert_eq!(live.poll(t), None);
        assert_eq!(live.poll_timeout(), t + PROBE_AFTER);
        assert_eq!(live.poll(t + PROBE_AFTER), Some(ReaderAction::SendProbe));
        assert_eq!(live.poll(t + PROBE_AFTER), None, "one probe at a time");
        assert_eq!(live.poll_timeout(), t + DEAD_AFTER);
        assert_eq!(live.poll(t + DEAD_AFTER), Some(ReaderAction::Dead));
        assert_eq!(live.poll(t + DEAD_AFTER), None, "dead once");
    }

    #[test]
    fn probe_answer_keeps_the_connection_alive() {
        let t = start();
        let mut live = Liveness::new(t);
        for round in 1..100 {
            let now = t + PROBE_AFTER * round;
            assert_eq!(live.poll(now), Some(ReaderAction::SendProbe), "round {round}");
            live.handle_heard(now, false);
            assert_eq!(live.poll(now), None);
        }
    }

    #[test]
    fn silence_while_the_reader_waits_for_room_does_not_count() {
        let t = start();
        let mut live = Liveness::new(t);
        assert_eq!(live.poll(t + PROBE_AFTER), Some(ReaderAction::SendProbe));
        let back = t + PROBE_AFTER * 60;
        live.handle_resumed(back);
        assert_eq!(live.poll(back), None, "ten minutes behind a slow consumer are not ten minutes of silence");
        assert_eq!(live.poll(back + PROBE_PATIENCE), Some(ReaderAction::Dead));
    }

    #[test]
    fn progress_requests_are_merged_and_none_is_lost() {
        let t = start();
        let mut live = Liveness::new(t);
        live.handle_progress_wanted();
        live.handle_progress_wanted();
        assert_eq!(live.poll(t), Some(ReaderAction::SendProgressRequest));
        assert_eq!(live.poll(t), None, "two wishes, one request");

        live.handle_progress_wanted();
        assert_eq!(live.poll(t), None, "one request at a time");
        assert_eq!(live.poll_timeout(), t + PROGRESS_PATIENCE);
        live.handle_heard(t, true);
        assert_eq!(
            live.poll(t),
            Some(ReaderAction::SendProgressRequest),
            "what was progress_requested for meanwhile is asked for"
        );

        assert_eq!(live.poll(t), None);
        let later = t + PROGRESS_PATIENCE;
        assert_eq!(live.poll(later), Some(ReaderAction::ReportPosition), "nobody waits for an answer for ever");
        live.handle_progress_wanted();
        assert_eq!(live.poll(later), Some(ReaderAction::SendProgressRequest), "and the next request goes out");
    }
}
