//! Is the other end of a watch still there? [`Liveness`] decides when to ask, and when to give up.
//!
//! A TCP connection whose peer was cut off stays open for ever when nobody writes, and an etcd
//! process that is stopped keeps its sockets: a reader that only reads waits for ever
//! (etcd-client #48). So a watch that hears nothing for [`PROBE_AFTER`] sends a question on its own
//! stream, and one that gets no answer within [`PROBE_PATIENCE`] is dead. **The bound is
//! [`DEAD_AFTER`]**, 20 s; HTTP/2 pings (30 s and 10 s by default) stand behind it.
//!
//! The question is the creation of a watch over an empty range. etcd refuses it with an answer, on
//! every version, and keeps nothing. A progress request would not do: since 3.6.2 etcd leaves it
//! unanswered while the watch begins in the future, which is every watch of an idle store.

use std::time::Duration;

use tokio::time::Instant;

/// Silence for this long makes a watch ask whether anybody is there.
pub(super) const PROBE_AFTER: Duration = Duration::from_secs(10);

/// The answer may take this long.
pub(super) const PROBE_PATIENCE: Duration = Duration::from_secs(10);

/// A peer that fell silent is noticed after at most this time, while the watch is being read.
pub const DEAD_AFTER: Duration = Duration::from_secs(20);

const _: () = assert!(PROBE_AFTER.as_secs() + PROBE_PATIENCE.as_secs() == DEAD_AFTER.as_secs());

/// A progress request may stay unanswered for this long. At most one is on its way; what is asked
/// for meanwhile is asked for once more afterwards, because an answer that was already on its way
/// may be too old for who asked later.
pub(super) const PROGRESS_PATIENCE: Duration = Duration::from_millis(100);

/// What the reader of a connection has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// Send the question that etcd always answers.
    SendProbe,
    /// Send a progress request.
    SendProgressRequest,
    /// etcd leaves the progress request unanswered (it does while the watch begins in the future,
    /// and while it catches up): tell what is known.
    TellWhatIsKnown,
    /// Nobody is there: drop the connection.
    Dead,
}

/// The liveness of one connection, from the view of its reader.
#[derive(Debug)]
pub(super) struct Liveness {
    /// When something was last heard, or when listening began again.
    heard: Instant,
    /// When the unanswered probe was sent.
    probed: Option<Instant>,
    /// Somebody wants progress that is not yet asked for.
    progress_wanted: bool,
    /// When the unanswered progress request was sent.
    progress_asked: Option<Instant>,
    dead: bool,
}

impl Liveness {
    /// A connection that has just been opened.
    pub(super) fn new(now: Instant) -> Self {
        Liveness { heard: now, probed: None, progress_wanted: false, progress_asked: None, dead: false }
    }

    /// Something came. `progress`: it may be the answer to a progress request.
    pub(super) fn handle_heard(&mut self, now: Instant, progress: bool) {
        self.heard = now;
        self.probed = None;
        if progress {
            self.progress_asked = None;
        }
    }

    /// Listening begins again after the reader had waited for room: silence did not count.
    pub(super) fn handle_resumed(&mut self, now: Instant) {
        self.heard = now;
        if let Some(probed) = &mut self.probed {
            *probed = now;
        }
    }

    /// Somebody wants to know how far the watch is.
    pub(super) fn handle_progress_wanted(&mut self) {
        self.progress_wanted = true;
    }

    /// The next thing to do now, or `None` until [`Liveness::poll_timeout`].
    pub(super) fn poll(&mut self, now: Instant) -> Option<Duty> {
        if self.dead {
            return None;
        }
        match self.progress_due() {
            Some(due) if now >= due => {
                self.progress_asked = None;
                return Some(Duty::TellWhatIsKnown);
            }
            None if self.progress_wanted => {
                self.progress_wanted = false;
                self.progress_asked = Some(now);
                return Some(Duty::SendProgressRequest);
            }
            _ => {}
        }
        match self.probed {
            Some(probed) if now >= probed + PROBE_PATIENCE => {
                self.dead = true;
                Some(Duty::Dead)
            }
            None if now >= self.heard + PROBE_AFTER => {
                self.probed = Some(now);
                Some(Duty::SendProbe)
            }
            _ => None,
        }
    }

    /// When [`Liveness::poll`] has something to do if nothing happens before.
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
        // Any instant does: only differences matter.
        Instant::now()
    }

    #[test]
    fn a_silent_peer_is_dead_within_the_bound() {
        let t = start();
        let mut live = Liveness::new(t);
        assert_eq!(live.poll(t), None);
        assert_eq!(live.poll_timeout(), t + PROBE_AFTER);
        assert_eq!(live.poll(t + PROBE_AFTER), Some(Duty::SendProbe));
        assert_eq!(live.poll(t + PROBE_AFTER), None, "one probe at a time");
        assert_eq!(live.poll_timeout(), t + DEAD_AFTER);
        assert_eq!(live.poll(t + DEAD_AFTER), Some(Duty::Dead));
        assert_eq!(live.poll(t + DEAD_AFTER), None, "dead once");
    }

    #[test]
    fn an_answer_keeps_it_alive() {
        let t = start();
        let mut live = Liveness::new(t);
        for round in 1..100 {
            let now = t + PROBE_AFTER * round;
            assert_eq!(live.poll(now), Some(Duty::SendProbe), "round {round}");
            live.handle_heard(now, false);
            assert_eq!(live.poll(now), None);
        }
    }

    #[test]
    fn a_reader_that_waited_for_room_does_not_blame_the_peer() {
        let t = start();
        let mut live = Liveness::new(t);
        assert_eq!(live.poll(t + PROBE_AFTER), Some(Duty::SendProbe));
        let back = t + PROBE_AFTER * 60;
        live.handle_resumed(back);
        assert_eq!(live.poll(back), None, "ten minutes behind a slow consumer are not ten minutes of silence");
        assert_eq!(live.poll(back + PROBE_PATIENCE), Some(Duty::Dead));
    }

    #[test]
    fn progress_requests_are_merged_and_none_is_forgotten() {
        let t = start();
        let mut live = Liveness::new(t);
        live.handle_progress_wanted();
        live.handle_progress_wanted();
        assert_eq!(live.poll(t), Some(Duty::SendProgressRequest));
        assert_eq!(live.poll(t), None, "two wishes, one request");

        live.handle_progress_wanted();
        assert_eq!(live.poll(t), None, "one request at a time");
        assert_eq!(live.poll_timeout(), t + PROGRESS_PATIENCE);
        live.handle_heard(t, true);
        assert_eq!(live.poll(t), Some(Duty::SendProgressRequest), "what was wished for meanwhile is asked for");

        assert_eq!(live.poll(t), None);
        let later = t + PROGRESS_PATIENCE;
        assert_eq!(live.poll(later), Some(Duty::TellWhatIsKnown), "nobody waits for an answer for ever");
        live.handle_progress_wanted();
        assert_eq!(live.poll(later), Some(Duty::SendProgressRequest), "and the next request goes out");
    }
}
