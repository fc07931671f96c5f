//! Checks the records against the store's log, with one module per kind of record.

pub(crate) mod reads;
pub(crate) mod watches;
pub(crate) mod writes;

use crate::record::{Outcome, Record};
use crate::{Guarantee, Violation};

fn violation(guarantee: Guarantee, evidence: String) -> Violation {
    Violation { guarantee, evidence }
}

/// The newest revision that any client knew at each time, from all responses and events.
struct KnownRevisions {
    /// Pairs of a time and the newest revision known up to that time. Both numbers increase.
    steps: Vec<(u64, u64)>,
}

impl KnownRevisions {
    fn new(records: &[Record]) -> Self {
        let mut seen: Vec<(u64, u64)> = records
            .iter()
            .filter_map(|record| match record {
                Record::Write(write) => match write.outcome {
                    Outcome::Applied { revision: Some(revision) } => Some((write.to, revision)),
                    _ => None,
                },
                Record::Get(get) => get.found.as_ref().map(|(revision, _)| (get.to, *revision)),
                Record::List(list) => Some((list.to, list.revision)),
                Record::Event(event) => Some((event.at, event.revision)),
                Record::Bookmark(bookmark) => Some((bookmark.at, bookmark.revision)),
                _ => None,
            })
            .collect();
        seen.sort_unstable();
        let mut newest = 0;
        for (_, revision) in &mut seen {
            newest = newest.max(*revision);
            *revision = newest;
        }
        KnownRevisions { steps: seen }
    }

    /// The newest revision that any client knew before a time.
    fn before(&self, at: u64) -> u64 {
        match self.steps.partition_point(|(time, _)| *time < at) {
            0 => 0,
            after => self.steps[after - 1].1,
        }
    }
}
