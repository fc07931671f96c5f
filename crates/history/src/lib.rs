//! Checks recorded histories of list and watch: compares the responses to clients with the changes of the store.
//!
//! ```text
//!  writers, readers, watchers ──Record──▶ lines of JSON ──History::parse──▶ History ──check──▶ [Violation]
//!  the store's own log        ──Change──▶        │                             └ guarantee, evidence
//!                                                └ any program can write them
//! ```
//!
//! The store's log is the truth: a total order of changes by revision. Each operation of a client must fit into it:
//!
//! - an acknowledged write is in the log, and a rejected one is not;
//! - a read of the most recent state shows each change that any client knew before the read began;
//! - a list is the state at its revision;
//! - a watch shows the changes after its start, each once, in order, with the right type and content;
//! - `410 Expired` is answered only if changes were compacted, or exceed the window of the server.
//!
//! Sources: Kubernetes' [resource versions] and the properties of etcd's robustness tests
//! (`tests/robustness/validate`).
//!
//! [resource versions]: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
//!
//! # Example
//! ```
//! use listwatch_history::{Guarantee, History, Limits};
//!
//! // The watch shows revision 3, but not revision 2.
//! let lines = r#"
//!   {"record":"change","revision":2,"object":"default/a","state":{"value":"one"}}
//!   {"record":"change","revision":3,"object":"default/a","state":{"value":"two"}}
//!   {"record":"watch","watch":1,"client":"w","at":0,"start":{"after":1}}
//!   {"record":"event","watch":1,"at":9,"type":"MODIFIED","object":"default/a","revision":3,"state":{"value":"two"}}
//! "#;
//! let history = History::parse(lines).unwrap();
//! let violations = history.check(&Limits::default());
//! assert_eq!(violations[0].guarantee, Guarantee::Complete);
//! assert_eq!(
//!     violations[0].to_string(),
//!     "Complete: watch 1 of w received no event for revision 2, where default/a is ADDED"
//! );
//! ```
#![forbid(unsafe_code)]

mod check;
mod log;
mod record;

use std::fmt;

pub use record::{
    Bookmark, Change, Compaction, End, EndReason, Event, EventType, Freshness, Get, List, Outcome, Record, Selector,
    Start, State, Watch, Write,
};

use log::StoreLog;

/// A guarantee of list and watch, by its name in `docs/guarantees.md` of listwatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Guarantee {
    /// Events arrive in the order of their revisions.
    Ordered,
    /// No event arrives twice.
    Unique,
    /// No change is skipped, and none is invented. A list is the state at its revision.
    Complete,
    /// The events of one revision stay together.
    Atomic,
    /// After a bookmark, no event at or below the bookmark's revision follows.
    Bookmarkable,
    /// `410 Expired` is answered only if the server no longer has changes that the watch needs.
    Resumable,
    /// A client never reads a state older than one that it has already read.
    NoTimeTravel,
    /// A read of the most recent state shows each acknowledged write.
    ReadYourWrites,
    /// A watch shows only selected objects. An object that begins to match the selector is `ADDED`, and one that
    /// ceases to match is `DELETED`.
    FilteredTruthfully,
    /// An acknowledged write is in the store, and a rejected one is not.
    Durable,
}

/// A broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The guarantee.
    pub guarantee: Guarantee,
    /// The contradiction between the records, as text.
    pub evidence: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.guarantee, self.evidence)
    }
}

/// The conditions under which a server may answer `410 Expired`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Only after a compaction of the store.
    #[default]
    Compaction,
    /// After a compaction, or if more changes than this follow the position of the watch.
    Window(u64),
    /// At any time. `410 Expired` is not checked.
    Any,
}

/// Limits of the server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The conditions under which a server may answer `410 Expired`.
    pub expiry: Expiry,
}

/// The error for a line that is not a record.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is not a record: {source}")]
pub struct ParseError {
    line: usize,
    source: serde_json::Error,
}

/// A recorded history: the operations of clients, and the changes of the store.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: Vec<Record>,
}

impl History {
    /// Creates a history of these records. The events of one watch must be in the order of their arrival; other
    /// records may be in any order.
    pub fn new(records: Vec<Record>) -> Self {
        History { records }
    }

    /// Reads lines of JSON. Empty lines are skipped.
    ///
    /// # Errors
    /// [`ParseError`] for the first line that is not a record.
    pub fn parse(lines: &str) -> Result<Self, ParseError> {
        let lines = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let records = lines
            .map(|(at, line)| serde_json::from_str(line).map_err(|source| ParseError { line: at + 1, source }))
            .collect::<Result<_, _>>()?;
        Ok(History { records })
    }

    /// The records.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns the broken guarantees, in the order of the records that show them. The result is empty if the history
    /// is legal.
    pub fn check(&self, limits: &Limits) -> Vec<Violation> {
        let log = StoreLog::new(&self.records);
        let mut violations = check::writes::check(&self.records, &log);
        violations.extend(check::reads::check(&self.records, &log));
        violations.extend(check::watches::check(&self.records, &log, limits));
        violations
    }
}
