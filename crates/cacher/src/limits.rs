//! All bounds of a cache. [`Limits`] has the bounds that an operator may change; the constants
//! follow from the cost model of this crate. The name contains the unit, and the doc describes the
//! behavior at the bound.

use std::time::Duration;

use crate::budget::HistoryBudget;

/// The bounds of one cache. `Default` suits a server; tests use lower values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Events younger than this stay in the history window, as long as
    /// [`history_bytes_max`](Limits::history_bytes_max) allows. A watcher that stalls for a shorter
    /// time misses no event. The default of 75 s is a bookmark interval and a quarter, as in
    /// Kubernetes.
    pub history_age: Duration,
    /// Bytes of former states in the window, at any age. At the bound the oldest events are
    /// evicted, and watchers that still need them receive `410 Expired`.
    pub history_bytes_max: usize,
    /// Bytes of this window and those of other caches together; `None` for no such bound. Above it,
    /// windows larger than their share evict their oldest events: [`HistoryBudget`].
    pub history_budget: Option<HistoryBudget>,
    /// Events that the window keeps whatever their age (the byte bound still applies), so that
    /// watches of a quiet resource can resume after hours.
    pub history_events_min: usize,
    /// Revisions with which a starting cache fills its window, if the store still holds them, so
    /// that earlier watches can continue; 0 for none. The store does not return their time, so they
    /// count as new. The refill takes at most two seconds.
    pub history_refill_revisions_max: u64,
    /// Bytes of the encodings of events in other media types and views. At the bound the oldest
    /// encodings are dropped, and made again for later watchers.
    pub encodings_bytes_max: usize,
    /// The largest number of deliveries in a watcher's queue. A further delivery drops the queue:
    /// the watcher becomes `Lagging` and reads the history, starting at the first event of the
    /// queue.
    pub watcher_queue_events_max: usize,
    /// Time for which a read waits for its revision. Then the store answers it, or the read fails
    /// with `Too large resource version`.
    pub freshness_wait: Duration,
    /// Time for which a request waits for an unfilled cache. Then the store answers it where
    /// allowed, or the request fails with `429`.
    pub ready_wait: Duration,
    /// Interval of progress requests to the store while a read waits for a revision.
    pub progress_interval: Duration,
    /// Approximate interval of a watcher's bookmarks, which are sent if its revision has advanced.
    pub bookmark_interval: Duration,
    /// Time between the last bookmark of a watcher and its deadline.
    pub bookmark_before_deadline: Duration,
    /// Interval of comparisons of the cache with the store, entry by entry; `None` for never.
    pub audit_interval: Option<Duration>,
    /// The largest number of snapshots of former revisions that are kept for paged lists. At the
    /// bound, the least recently used snapshot is dropped; its next page is rebuilt from the
    /// history or read from the store.
    pub pinned_snapshots_max: usize,
    /// Events that are undone to rebuild a former revision from the history. The store answers
    /// reads of older revisions.
    pub undo_events_max: usize,
    /// Objects per page when the cache lists the store.
    pub list_page_objects: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            history_age: Duration::from_secs(75),
            history_bytes_max: 64 << 20,
            history_budget: None,
            history_events_min: 100,
            history_refill_revisions_max: 10_000,
            encodings_bytes_max: 4 << 20,
            watcher_queue_events_max: 128,
            freshness_wait: Duration::from_secs(3),
            ready_wait: Duration::from_secs(3),
            progress_interval: Duration::from_millis(100),
            bookmark_interval: Duration::from_secs(60),
            bookmark_before_deadline: Duration::from_secs(2),
            audit_interval: Some(Duration::from_secs(300)),
            pinned_snapshots_max: 8,
            undo_events_max: 20_000,
            list_page_objects: 1_000,
        }
    }
}

/// Time for which a starting cache waits for the former events from the store. Then it lists the
/// latest state, and every watch from an earlier version receives `410 Expired`. etcd on a busy
/// machine took more than a second. The value is below [`Limits::ready_wait`], so that the list is
/// complete before requests fail.
pub(crate) const HISTORY_REFILL_WAIT: Duration = Duration::from_secs(2);

/// The maximum number of items that the driver takes from the store before it dispatches them and
/// lets other tasks run. This bounds the events per wake-up of a watcher and, times the number of
/// watchers, the time between the first watcher's event and its wake-up. A revision is never split:
/// the burst continues until the revision changes, and the item that shows the change begins the
/// next burst.
pub(crate) const BURST_EVENTS_MAX: usize = 32;

/// The maximum number of old events that are evicted at once; the rest follows after
/// [`EVICTION_PAUSE`].
pub(crate) const EVICTED_EVENTS_MAX: usize = 1_024;

/// Pause between two evictions, in which other tasks run.
pub(crate) const EVICTION_PAUSE: Duration = Duration::from_millis(10);

/// The number of events that a watcher reads from the history at once. This bounds the time for
/// which the history is locked (well below a microsecond) and the watcher's memory.
pub(crate) const CATCH_UP_EVENTS: usize = 64;

/// The number of events of the history that one poll of a watcher examines before other tasks run.
pub(crate) const CATCH_UP_EVENTS_PER_POLL: usize = 4_096;

/// The capacity that an empty watcher queue keeps, in deliveries; more is freed.
pub(crate) const IDLE_QUEUE_CAPACITY: usize = 16;

/// Number of newest events whose encodings are cached. The number suffices for watchers that keep
/// up, without several copies of each event in the window.
pub(crate) const MEMO_EVENTS_MAX: usize = 256;

/// The number of items of a list that are taken from its snapshot at once.
pub(crate) const LIST_BATCH_OBJECTS: usize = 64;

/// The number of objects that a list examines before other tasks run. A selector may match none of them. With labels of
/// the usual size, this takes well below a millisecond.
pub(crate) const LIST_EXAMINED_PER_POLL: usize = 1_024;

/// The bytes of JSON of the objects that a list with a selector examines before other tasks run. The labels of one
/// object can have the size of the largest object, so the number of objects alone does not bound the time. Usual objects
/// have few labels, and a pause is cheap, so the whole JSON counts. The last object may exceed the limit.
pub(crate) const LIST_EXAMINED_BYTES_PER_POLL: usize = 4 * 1024 * 1024;

/// Timers within this distance of an expired timer are handled together. A thousand bookmarks that
/// are due in one second need one wake-up of the driver.
pub(crate) const TIMER_SLACK: Duration = Duration::from_secs(1);

/// Time between a progress request to the store and the bookmark that needs it, so that the
/// bookmark of an idle resource is fresh.
pub(crate) const BOOKMARK_PROGRESS_LEAD: Duration = Duration::from_millis(500);

/// Interval of progress requests while no read waits. Without them the revision of a quiet resource ages. A store
/// watch that breaks after a compaction could then not resume, and all watchers would receive `410 Expired` although
/// they missed no event. The value is well below the interval of compactions (minutes), and one request per minute
/// and resource is cheap. Stores without progress support receive no requests.
pub(crate) const IDLE_PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

/// Interval of the checks for stalled watchers and idle snapshots, while there are any.
pub(crate) const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(5);

/// Idle time after which a pinned snapshot is dropped.
pub(crate) const PINNED_SNAPSHOT_IDLE: Duration = Duration::from_secs(300);

/// Time after which the further pages of a list expire. kube-apiserver's expire by compaction, after 5 to 10 minutes.
pub(crate) const PAGED_LIST_MAX: Duration = Duration::from_secs(450);

/// The first wait after a failure of the store; doubles up to [`RETRY_MAX`].
pub(crate) const RETRY_MIN: Duration = Duration::from_millis(50);

/// The longest wait between two attempts to reach the store.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(5);

/// The largest number of values in [`ReadError::Undecodable`](crate::ReadError::Undecodable), in a
/// [`List`](crate::List) and in the statistics.
pub const UNDECODABLE_KEYS_MAX: usize = 100;

/// The largest size of the reason that is kept for an undecodable value, in bytes. The rest of a longer reason is left out.
pub(crate) const UNDECODABLE_REASON_BYTES_MAX: usize = 512;

/// The largest number of undecodable values of one resource that are logged by key.
pub(crate) const UNDECODABLE_LOGGED_MAX: usize = 10;
