//! [`Trace`]: everything that happened in a run, in order, with its virtual time.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use listwatch_history::{EndReason, Freshness, Outcome, Record, Selector, Start};
use parking_lot::Mutex;
use tokio::time::Instant;

/// One entry of a trace.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A record of the history.
    Record(Record),
    /// A fault, or the start or end of a server.
    Note(String),
    /// A client saw something that breaks a guarantee.
    Broken(String),
}

/// The entries of a run, each with its time in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Pairs of a time in microseconds and an entry.
    pub entries: Vec<(u64, Entry)>,
}

impl Trace {
    /// A hash of all entries and their times (FNV-1a, 64 bits).
    pub fn hash(&self) -> u64 {
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        for (at, entry) in &self.entries {
            let _ = write!(hash, "{at} {entry:?}");
        }
        hash.0
    }

    /// The history records of the trace, without faults and notes.
    pub fn records(&self) -> Vec<Record> {
        let record = |(_, entry): &(u64, Entry)| match entry {
            Entry::Record(record) => Some(record.clone()),
            _ => None,
        };
        self.entries.iter().filter_map(record).collect()
    }

    /// The recording in the format of `listwatch-history`: JSON objects, one per line.
    pub fn json_lines(&self) -> String {
        let mut lines = String::new();
        for record in self.records() {
            lines.push_str(&serde_json::to_string(&record).unwrap_or_default());
            lines.push('\n');
        }
        lines
    }
}

struct Fnv(u64);

impl fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

/// Prints the trace for people, one line per entry.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, entry) in &self.entries {
            write!(f, "{:>10.3} ms  ", *at as f64 / 1_000.0)?;
            match entry {
                Entry::Note(note) => writeln!(f, "-- {note}")?,
                Entry::Broken(evidence) => writeln!(f, "!! {evidence}")?,
                Entry::Record(record) => {
                    story(f, record)?;
                    writeln!(f)?;
                }
            }
        }
        Ok(())
    }
}

fn story(f: &mut fmt::Formatter<'_>, record: &Record) -> fmt::Result {
    match record {
        Record::Change(change) => {
            let state = change.state.as_ref();
            let what =
                state.map_or_else(|| "deleted".to_owned(), |state| format!("= {} {:?}", state.value, state.labels));
            write!(f, "store    r{} {} {what}", change.revision, change.object)
        }
        Record::Compaction(compaction) => write!(f, "store    compacted, oldest is r{}", compaction.revision),
        Record::Write(write) => {
            let what = write.value.as_ref().map_or_else(|| "delete".to_owned(), |value| format!("write {value}"));
            let outcome = match write.outcome {
                Outcome::Applied { revision: Some(revision) } => format!("applied as r{revision}"),
                Outcome::Applied { revision: None } => "applied".to_owned(),
                Outcome::Rejected => "rejected".to_owned(),
                Outcome::Unknown => "unknown".to_owned(),
            };
            write!(f, "{:<8} {what} to {}: {outcome}", write.client, write.object)
        }
        Record::Get(get) => {
            let found = get.found.as_ref();
            let what = found.map_or_else(|| "not found".to_owned(), |(at, state)| format!("r{at} {}", state.value));
            write!(f, "{:<8} get {}: {what}", get.client, get.object)
        }
        Record::List(list) => {
            let freshness = match list.freshness {
                Freshness::MostRecent => "most recent".to_owned(),
                Freshness::Any => "any".to_owned(),
                Freshness::NotOlderThan(revision) => format!("not older than r{revision}"),
                Freshness::Exact(revision) => format!("exactly r{revision}"),
            };
            let (count, revision, selector) = (list.items.len(), list.revision, selected(&list.selector));
            write!(f, "{:<8} list {selector}({freshness}): {count} objects at r{revision}", list.client)
        }
        Record::Watch(watch) => {
            let start = match watch.start {
                Start::After(revision) => format!("after r{revision}"),
                Start::InitialEvents(revision) => format!("with initial events of r{revision} or later"),
            };
            write!(f, "{:<8} watch #{} {}{start}", watch.client, watch.watch, selected(&watch.selector))
        }
        Record::Event(event) => {
            let (kind, object, state) = (event.kind, &event.object, &event.state);
            write!(f, "  #{:<5} {kind:?} {object} r{} {} {:?}", event.watch, event.revision, state.value, state.labels)
        }
        Record::Bookmark(bookmark) => {
            let end = if bookmark.ends_initial_events { ", end of the initial events" } else { "" };
            write!(f, "  #{:<5} bookmark r{}{end}", bookmark.watch, bookmark.revision)
        }
        Record::End(end) => {
            let reason = match end.reason {
                EndReason::Closed => "closed by the server",
                EndReason::Cut => "cut",
                EndReason::Expired => "410 Expired",
                EndReason::Failed => "failed",
            };
            write!(f, "  #{:<5} {reason}", end.watch)
        }
    }
}

fn selected(selector: &Selector) -> String {
    let namespace = selector.namespace.iter().map(|namespace| format!("in {namespace} "));
    let labels = selector.labels.iter().map(|(key, value)| format!("{key}={value} "));
    namespace.chain(labels).collect()
}

/// Appends entries to the trace of a run. Clones append to the same trace.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    start: Instant,
    trace: Arc<Mutex<Trace>>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Recorder { start: Instant::now(), trace: Arc::default() }
    }

    /// The virtual time in microseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn record(&self, record: Record) {
        self.push(Entry::Record(record));
    }

    pub(crate) fn note(&self, note: impl Into<String>) {
        self.push(Entry::Note(note.into()));
    }

    /// Records a broken guarantee: its name, and the evidence.
    pub(crate) fn broken(&self, guarantee: &str, evidence: impl fmt::Display) {
        self.push(Entry::Broken(format!("{guarantee}: {evidence}")));
    }

    fn push(&self, entry: Entry) {
        self.trace.lock().entries.push((self.now(), entry));
    }

    pub(crate) fn trace(&self) -> Trace {
        self.trace.lock().clone()
    }
}
