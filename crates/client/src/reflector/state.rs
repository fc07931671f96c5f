//! The state of a reflector for its users: a value and its text.

use std::time::Instant;

use crate::problem::Problem;

/// The state of a reflector, with the reason if its copy is not current.
#[derive(Clone, Debug, PartialEq)]
pub enum ReflectorState {
    /// The reflector has sent no request yet.
    Starting,
    /// The reflector waits for page `page` (from 1) of a list.
    Listing {
        /// The page number, from 1.
        page: u32,
        /// Items so far, over all pages.
        items: u64,
        /// The start of the request.
        since: Instant,
    },
    /// Initial events arrive through a watch. The end marker has not arrived.
    AwaitingInitialEvents {
        /// Events so far.
        events: u64,
        /// The start of the request.
        since: Instant,
    },
    /// The reflector checks whether the server has reached the resume version.
    Checking {
        /// The start of the request.
        since: Instant,
    },
    /// A watch was requested, and the server has not responded yet.
    Connecting {
        /// The start of the request.
        since: Instant,
    },
    /// The watch is open and the copy is current.
    Watching {
        /// The start of the watch.
        since: Instant,
    },
    /// A problem occurred; the next attempt is at `until`.
    BackingOff {
        /// The last problem.
        problem: Problem,
        /// Attempts since the last progress.
        attempts: u32,
        /// The time of the next attempt.
        until: Instant,
    },
}

impl ReflectorState {
    /// The state as text, for a log line or a status page.
    pub fn describe(&self, now: Instant) -> String {
        let for_seconds = |since: &Instant| now.saturating_duration_since(*since).as_secs();
        match self {
            ReflectorState::Starting => "starting".to_owned(),
            ReflectorState::Listing { page, items, since } => {
                format!("listing: waiting for page {page}, {items} items so far, for {} s", for_seconds(since))
            }
            ReflectorState::AwaitingInitialEvents { events, since } => {
                format!("receiving the initial state: {events} objects so far, for {} s", for_seconds(since))
            }
            ReflectorState::Checking { since } => {
                format!("asking the server whether it knows our version, for {} s", for_seconds(since))
            }
            ReflectorState::Connecting { since } => {
                format!("waiting for the server to open the watch, for {} s", for_seconds(since))
            }
            ReflectorState::Watching { since } => format!("watching, for {} s", for_seconds(since)),
            ReflectorState::BackingOff { problem, attempts, until } => format!(
                "{problem}; try {attempts} failed, the next one comes in {:.1} s",
                until.saturating_duration_since(now).as_secs_f64()
            ),
        }
    }
}
