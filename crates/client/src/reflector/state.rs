//! The state of a reflector as reported to others: a value and its text.

use std::time::Instant;

use crate::problem::Problem;

/// The state of a reflector, with the reason if its copy is not current.
#[derive(Clone, Debug, PartialEq)]
pub enum ReflectorState {
    /// Nothing was asked yet.
    Starting,
    /// Waiting for page `page` (from 1) of a list.
    Listing {
        /// The page.
        page: u32,
        /// Items so far, over all pages.
        items: u64,
        /// Since when.
        since: Instant,
    },
    /// Initial events arrive through a watch; its end marker has not come.
    AwaitingInitialEvents {
        /// Events so far.
        events: u64,
        /// Since when.
        since: Instant,
    },
    /// The server is being asked whether it has reached the resume version.
    Checking {
        /// Since when.
        since: Instant,
    },
    /// A watch was requested and is not answered yet.
    Connecting {
        /// Since when.
        since: Instant,
    },
    /// The copy follows the server.
    Watching {
        /// Since when.
        since: Instant,
    },
    /// A problem occurred; the next try is at `until`.
    BackingOff {
        /// The last problem.
        problem: Problem,
        /// Tries since the last progress.
        attempts: u32,
        /// The time of the next try.
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
