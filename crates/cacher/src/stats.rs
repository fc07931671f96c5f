//! What a cache says about itself: [`CacherStats`], and the counters behind it.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use listwatch_meta::{Key, Revision};

/// A cache at one moment. Counts are since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacherStats {
    /// The resource's name, as configured.
    pub name: String,
    /// Filled and serving.
    pub ready: bool,
    /// How often the store was listed with success; above 1, it had to be listed again.
    pub generation: u64,
    /// The newest revision the cache knows to be complete.
    pub revision: Revision,
    /// Objects in the current state.
    pub objects: usize,
    /// Bytes of the current state.
    pub object_bytes: usize,
    /// Events in the history window.
    pub history_events: usize,
    /// Bytes that only the history window keeps.
    pub history_bytes: usize,
    /// How far back the window reaches.
    pub history_span: Duration,
    /// The oldest revision a watch can begin after.
    pub oldest: Revision,
    /// Snapshots of former revisions that are kept for paged lists.
    pub pinned_snapshots: usize,
    /// Lists and initial states on their way now. Each keeps the state that it shows.
    pub open_walks: usize,
    /// Watchers by state.
    pub watchers: WatcherStats,
    /// Reads that wait for a revision now.
    pub waiting_reads: usize,
    /// Events taken from the store.
    pub events_received: u64,
    /// Events put into the queues of live watchers.
    pub events_queued: u64,
    /// Events that lagging watchers took from the history.
    pub events_caught_up: u64,
    /// Watches that began with the state (replays).
    pub replays: u64,
    /// Objects handed out as initial events.
    pub initial_events: u64,
    /// Bookmarks handed out, those that end the initial events included.
    pub bookmarks: u64,
    /// Wake-ups of watchers: at most one per watcher and burst of events.
    pub wake_ups: u64,
    /// Encodings made of events, beyond the one each object brings along.
    pub encodings: u64,
    /// Bytes of those that are kept beside their events.
    pub encodings_bytes: usize,
    /// Queues that ran over: a live watcher began to lag.
    pub overflows: u64,
    /// Watches that were ended with `410 Expired`.
    pub expired_watches: u64,
    /// Watches that were begun.
    pub watches_started: u64,
    /// Lists served from the cache.
    pub cache_lists: u64,
    /// Lists served by the store.
    pub store_lists: u64,
    /// Consistent lists that waited in vain and were served by the store.
    pub consistent_fallbacks: u64,
    /// Former revisions that were rebuilt from the history.
    pub rebuilt_snapshots: u64,
    /// Times the store was asked for progress.
    pub progress_requests: u64,
    /// Store watches that were lost and taken up again where they stood.
    pub resumed_watches: u64,
    /// Events the store handed out although it had before, which were left out.
    pub repeated_events: u64,
    /// Stored values that are no objects: the first hundred keys.
    pub undecodable: Vec<Key>,
    /// Comparisons of cache and store that were finished.
    pub audits: u64,
    /// Comparisons that found a difference. The first one is looked into again at once; only a
    /// second in a row makes the cache start over.
    pub audit_mismatches: u64,
}

/// The watchers of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatcherStats {
    /// On their way through the initial state.
    pub replaying: usize,
    /// At the head: events are pushed to them.
    pub live: usize,
    /// Reading the history.
    pub lagging: usize,
    /// Over, their last words not yet taken.
    pub closed: usize,
    /// How many revisions the slowest one is behind.
    pub slowest_lag_revisions: u64,
    /// For how long the event that the slowest one takes next has been waiting.
    pub slowest_lag: Duration,
}

/// The counters that many hands turn. All relaxed: they are figures, not signals.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: AtomicU64,
    pub(crate) queued: AtomicU64,
    pub(crate) caught_up: AtomicU64,
    pub(crate) initial: AtomicU64,
    pub(crate) bookmarks: AtomicU64,
    pub(crate) wake_ups: AtomicU64,
    pub(crate) encodes: AtomicU64,
    pub(crate) encodings_bytes: AtomicUsize,
    pub(crate) replays: AtomicU64,
    pub(crate) open_walks: AtomicUsize,
    pub(crate) overflows: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) started: AtomicU64,
    pub(crate) cache_lists: AtomicU64,
    pub(crate) store_lists: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) rebuilt: AtomicU64,
    pub(crate) progress_requests: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) audits: AtomicU64,
    pub(crate) mismatches: AtomicU64,
}
