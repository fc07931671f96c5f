//! Statistics of a cache: [`CacherStats`], and the counters behind it.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use listwatch_meta::{Key, Revision};

/// The state of a cache at one instant. Counts are since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacherStats {
    /// The resource's name, as configured.
    pub name: String,
    /// Whether the cache is filled and serves reads.
    pub ready: bool,
    /// Number of successful lists of the store; above 1, the cache had to list again.
    pub generation: u64,
    /// The newest revision up to which the cache is complete.
    pub revision: Revision,
    /// Objects in the current state.
    pub objects: usize,
    /// Bytes of the current state.
    pub object_bytes: usize,
    /// Events in the history window.
    pub history_events: usize,
    /// Bytes that only the history window keeps alive.
    pub history_bytes: usize,
    /// Age of the oldest event in the window.
    pub history_span: Duration,
    /// The oldest revision a watch can begin after.
    pub oldest: Revision,
    /// Snapshots of former revisions, pinned for paged lists.
    pub pinned_snapshots: usize,
    /// The number of lists and initial states that are being read. Each keeps its snapshot or
    /// its objects in memory. A list with a limit counts until its objects were examined.
    pub open_walks: usize,
    /// Watchers by state.
    pub watchers: WatcherStats,
    /// Reads that wait for a revision.
    pub waiting_reads: usize,
    /// Events received from the store.
    pub events_received: u64,
    /// Events put into the queues of live watchers.
    pub events_queued: u64,
    /// Events that lagging watchers read from the history.
    pub events_caught_up: u64,
    /// Watches that began with the current state as initial events.
    pub replays: u64,
    /// Objects delivered as initial events.
    pub initial_events: u64,
    /// Bookmarks delivered, including those that end the initial events.
    pub bookmarks: u64,
    /// Wake-ups of watchers: at most one per watcher and burst of events.
    pub wake_ups: u64,
    /// Encodings made of events, not counting the JSON frame within each object.
    pub encodings: u64,
    /// Bytes of the encodings that are cached with their events.
    pub encodings_bytes: usize,
    /// Queue overflows, each of which turned a live watcher into a lagging one.
    pub overflows: u64,
    /// Watches that were ended with `410 Expired`.
    pub expired_watches: u64,
    /// Watches that were started.
    pub watches_started: u64,
    /// Lists served from the cache.
    pub cache_lists: u64,
    /// Lists served by the store.
    pub store_lists: u64,
    /// Consistent lists that exceeded their wait and were served by the store.
    pub consistent_fallbacks: u64,
    /// Former revisions that were rebuilt from the history.
    pub rebuilt_snapshots: u64,
    /// Progress requests to the store.
    pub progress_requests: u64,
    /// Store watches that broke and were resumed.
    pub resumed_watches: u64,
    /// Duplicate events from the store, which were dropped.
    pub repeated_events: u64,
    /// The first hundred keys whose stored values are not objects.
    pub undecodable: Vec<Key>,
    /// Completed comparisons of cache and store.
    pub audits: u64,
    /// Comparisons that found a difference. The first one is repeated at once; the cache starts
    /// over only after a second one in a row.
    pub audit_mismatches: u64,
    /// Comparisons that did not complete, because the store could not be read at the cache's revision.
    pub failed_audits: u64,
}

/// The watchers of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatcherStats {
    /// Watchers that read the initial state.
    pub replaying: usize,
    /// Watchers at the end of the history. New events are pushed to their queues.
    pub live: usize,
    /// Watchers that read the history.
    pub lagging: usize,
    /// Closed watchers whose last deliveries have not been read.
    pub closed: usize,
    /// The number of revisions that the slowest watcher lags.
    pub slowest_lag_revisions: u64,
    /// Age of the next event of the slowest watcher.
    pub slowest_lag: Duration,
}

/// Counters shared by tasks. All accesses are relaxed: the values are statistics, not
/// synchronization.
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
    pub(crate) failed_audits: AtomicU64,
}
