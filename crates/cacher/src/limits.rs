//! Every bound of a cache in one place: [`Limits`] for what an operator may turn, constants for
//! what only this crate's cost model decides. The unit is in the name; the doc says what happens
//! at the bound.

use std::time::Duration;

use crate::budget::HistoryBudget;

/// The bounds of one cache. `Default` is what suits a server; tests turn them down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Events younger than this stay in the history window, as long as
    /// [`history_bytes_max`](Limits::history_bytes_max) allows. A watcher that stalls for a
    /// shorter time loses nothing. 75 s: a bookmark period and a quarter, as in Kubernetes.
    pub history_age: Duration,
    /// The window holds at most this many bytes of states that are no longer current, whatever
    /// their age. At the bound the oldest events leave, and watchers that still needed them get
    /// `410 Expired`.
    pub history_bytes_max: usize,
    /// What this window and those of other caches may take together; `None` is no such bound. Above
    /// it, windows that take more than their share let their oldest events go: [`HistoryBudget`].
    pub history_budget: Option<HistoryBudget>,
    /// The window holds at least this many events, however old they are (the byte bound still
    /// holds), so that a quiet resource can be resumed after hours.
    pub history_events_min: usize,
    /// A cache that starts fills its window with up to this many revisions that the store still
    /// holds, so that watches from before its start go on; 0 is none. How old they are the store
    /// does not tell: they count as new. At most as long as a second is spent on it.
    pub history_refill_revisions_max: u64,
    /// The encodings of events in other media types and views take at most this many bytes; at the
    /// bound those that were made first are given back, and made again for whoever still comes.
    pub encodings_bytes_max: usize,
    /// At most this many deliveries wait in a watcher's queue. One more, and the queue is dropped:
    /// the watcher is `Lagging` and reads the history from where the queue began.
    pub watcher_queue_events_max: usize,
    /// A read that needs a revision waits at most this long for it, then is answered by the store
    /// or with `Too large resource version`.
    pub freshness_wait: Duration,
    /// A request that finds the cache not yet filled waits at most this long, then is answered
    /// `429` (or by the store where that is allowed).
    pub ready_wait: Duration,
    /// While somebody waits for a revision, the store is asked for progress this often.
    pub progress_interval: Duration,
    /// A watcher that takes bookmarks gets one about this often, if its revision has advanced.
    pub bookmark_interval: Duration,
    /// The last bookmark of a watcher is due this long before its deadline.
    pub bookmark_before_deadline: Duration,
    /// How often the cache is compared with the store, entry by entry; `None` is never.
    pub audit_interval: Option<Duration>,
    /// At most this many snapshots of former revisions are kept for paged lists. At the bound the
    /// one that was not used for the longest time is dropped; its next page is rebuilt from the
    /// history or read from the store.
    pub pinned_snapshots_max: usize,
    /// A former revision is rebuilt from the history by undoing at most this many events; further
    /// back, the store is asked.
    pub undo_events_max: usize,
    /// The store is listed in pages of this many objects.
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

/// A cache that starts waits this long for the history that it asked the store for; then it does
/// without, and lists the present: a watch from a version before is told `410 Expired`, also one of
/// a moment ago. etcd on a busy machine was seen to take more than a second. Below
/// [`Limits::ready_wait`], so that the list of the present is there before requests are refused.
pub(crate) const HISTORY_REFILL_WAIT: Duration = Duration::from_secs(2);

/// The driver takes at most this many items from the store before it dispatches them and lets
/// other tasks run: the most events that share one wake-up of a watcher, and, times the number of
/// watchers, the longest time between the first watcher's event and its wake-up. A revision is
/// never split: the burst goes on until the revision changes, and the item that shows the change
/// begins the next burst.
pub(crate) const BURST_EVENTS_MAX: usize = 32;

/// At most this many old events leave the window at once; the rest follows in
/// [`EVICTION_PAUSE`].
pub(crate) const EVICTED_EVENTS_MAX: usize = 1_024;

/// How long other work has its turn while many events are let go.
pub(crate) const EVICTION_PAUSE: Duration = Duration::from_millis(10);

/// A watcher that reads the history takes this many events per look: how long the history is
/// locked for it (well below a microsecond), and how much it can have in hand.
pub(crate) const CATCH_UP_EVENTS: usize = 64;

/// A poll of a watcher looks at this many events of history, then lets other tasks run.
pub(crate) const CATCH_UP_EVENTS_PER_POLL: usize = 4_096;

/// A watcher's queue that ran empty keeps room for this many deliveries; more is given back.
pub(crate) const IDLE_QUEUE_CAPACITY: usize = 16;

/// Encodings of an event are kept while it is among this many newest ones: long enough for every
/// watcher that keeps up, short enough that the window does not hold each event several times.
pub(crate) const MEMO_EVENTS_MAX: usize = 256;

/// Items of a list are taken from its snapshot this many at a time.
pub(crate) const LIST_BATCH_OBJECTS: usize = 64;

/// Timers within this distance of one that fires are served with it: a thousand bookmarks that are
/// due in one second cost one wake-up of the driver.
pub(crate) const TIMER_SLACK: Duration = Duration::from_secs(1);

/// The store is asked for progress this long before a bookmark is due, so that the bookmark of an
/// idle resource is fresh.
pub(crate) const BOOKMARK_PROGRESS_LEAD: Duration = Duration::from_millis(500);

/// The store is asked for progress this long after it was last asked, though nobody waits: else the
/// place of a quiet resource ages, and a store watch that is lost after a compaction cannot be
/// resumed, so that all its watchers would be told `410 Expired` though they missed nothing. Well
/// below the interval of compactions (minutes), and a request per minute and resource is cheap.
/// Where the store cannot be asked nothing happens.
pub(crate) const IDLE_PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

/// How often stalled watchers and unused snapshots are looked for, while there are any.
pub(crate) const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(5);

/// A pinned snapshot that was not used for this long is dropped.
pub(crate) const PINNED_SNAPSHOT_IDLE: Duration = Duration::from_secs(300);

/// The first wait after a failure of the store; it doubles up to [`RETRY_MAX`].
pub(crate) const RETRY_MIN: Duration = Duration::from_millis(50);

/// The longest wait between two tries to reach the store.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(5);

/// [`ReadError::Undecodable`](crate::ReadError::Undecodable) and the statistics name at most this
/// many keys.
pub(crate) const UNDECODABLE_KEYS_MAX: usize = 100;

/// So many stored values of one resource that are no objects are logged by key.
pub(crate) const UNDECODABLE_LOGGED_MAX: usize = 10;
