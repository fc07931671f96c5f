//! The planted bugs. Each is a plausible mistake behind [`listwatch_meta::canary!`], in the crate that contains the
//! mistake.

/// A planted bug.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// The name in [`listwatch_meta::canary!`], which begins with the name of the crate.
    pub name: &'static str,
    /// The guarantees that a run with the bug may break first.
    pub breaks: &'static [&'static str],
    /// A description of the mistake.
    pub what: &'static str,
}

const fn bug(name: &'static str, breaks: &'static [&'static str], what: &'static str) -> Bug {
    Bug { name, breaks, what }
}

/// All planted bugs.
pub const BUGS: &[Bug] = &[
    bug(
        "cacher-sends-bookmarks-ahead",
        &["Bookmarkable", "Ordered", "Complete", "Unique"],
        "a bookmark names the revision after the dispatched one",
    ),
    bug(
        "cacher-loses-a-full-queue",
        &["Complete", "Bookmarkable"],
        "a watcher whose queue overflows continues after the queue",
    ),
    bug("cacher-repeats-the-start", &["Unique", "Complete"], "a watch begins with the event of its start revision"),
    bug(
        "cacher-skips-after-initial-events",
        &["Complete", "Bookmarkable", "Converging"],
        "the first event after the initial events is skipped",
    ),
    bug(
        "cacher-continues-after-eviction",
        &["Complete", "Bookmarkable", "Converging"],
        "a lagging watcher continues after events that were evicted",
    ),
    bug(
        "cacher-resumes-after-eviction",
        &["Complete", "Bookmarkable", "Converging"],
        "a watch resumes after changes that were evicted",
    ),
    bug(
        "cacher-expires-held-versions",
        &["Resumable"],
        "410 Expired for every second version, although its changes are held",
    ),
    bug(
        "cacher-raises-the-floor-too-late",
        &["Complete", "Bookmarkable", "Converging"],
        "the oldest version is one less than the evicted event allows",
    ),
    bug(
        "cacher-hides-the-gap-of-a-relist",
        &["Complete", "Bookmarkable", "Converging"],
        "watches continue although a relist replaced the state",
    ),
    bug(
        "cacher-forgets-the-previous-state",
        &["FilteredTruthfully", "Complete"],
        "an update has no previous state, so no object leaves a selector",
    ),
    bug("cacher-rebuilds-another-revision", &["Complete"], "a former state is rebuilt one revision too late"),
    bug(
        "cacher-ignores-objects-that-leave",
        &["FilteredTruthfully", "Complete", "Bookmarkable"],
        "an object that no longer matches is not DELETED",
    ),
    bug("cacher-shows-entering-as-modified", &["FilteredTruthfully"], "an object that begins to match is MODIFIED"),
    bug(
        "cacher-deletes-with-the-new-state",
        &["Complete"],
        "DELETED of an object that no longer matches shows the new state",
    ),
    bug(
        "cacher-lists-without-waiting",
        &["ReadYourWrites", "NoTimeTravel"],
        "a consistent list does not wait for the store's revision",
    ),
    bug(
        "cacher-loses-the-item-after-a-burst",
        &["Complete", "Bookmarkable", "Converging"],
        "the item behind a full burst of the store is dropped",
    ),
    bug(
        "cacher-pages-the-current-state",
        &["Complete", "NoTimeTravel"],
        "a page shows the current state instead of that of the first page",
    ),
    bug(
        "cacher-watches-from-now",
        &["Complete", "Bookmarkable", "Converging"],
        "a watch begins at the current revision instead of the requested one",
    ),
    bug(
        "cacher-starts-each-page-at-the-beginning",
        &["Unique", "Converging", "Available"],
        "the continue token's key is ignored",
    ),
    bug(
        "storage-overwrites-on-conflict",
        &["Durable"],
        "a conflict is answered by writing the same value over the new state",
    ),
    bug("storage-repeats-unanswered-creates", &["Durable"], "a create without an answer is sent again"),
    bug("storage-acknowledges-unanswered-deletes", &["Durable"], "a delete without an answer is acknowledged"),
    bug(
        "storage-joins-watches-at-the-end",
        &["Complete", "Bookmarkable", "Converging", "ReadYourWrites"],
        "a watch of the store skips the changes before its start",
    ),
    bug("storage-ignores-the-expected-revision", &["Durable"], "an update does not compare the expected revision"),
    bug(
        "storage-lists-the-current-state",
        &["Complete", "NoTimeTravel", "Unique"],
        "a list of a former revision shows the current state",
    ),
    bug("write-ignores-the-resource-version", &["Durable"], "PUT with an outdated resourceVersion is accepted"),
    bug("client-reads-only-the-first-page", &["Converging", "Complete"], "a paged list ends after its first page"),
    bug(
        "client-resumes-from-the-last-bookmark",
        &["NoTimeTravel", "Unique", "Complete", "Converging"],
        "a watch resumes at the last bookmark instead of the last event",
    ),
    bug(
        "client-watches-on-after-expiry",
        &["Converging", "Complete", "Unique"],
        "after 410 Expired, a watch without a version replaces the relist",
    ),
    bug("client-keeps-vanished-objects", &["Converging"], "a relist does not delete the objects that vanished"),
    bug("client-drops-live-updates", &["Converging", "Complete"], "the indexer takes each update for an old one"),
    bug(
        "client-forgets-adds-while-processing",
        &["Processed"],
        "a key that is added while a worker has it is not processed again",
    ),
    bug("client-gives-a-key-to-two-workers", &["Processed"], "a key that a worker has is given to another worker"),
    bug(
        "client-starts-late-handlers-empty",
        &["Converging", "Complete"],
        "a handler that joins late does not receive the initial state",
    ),
    bug(
        "client-merges-deletions-away",
        &["Converging", "Complete", "Unique"],
        "a deletion that is merged with waiting changes is not delivered",
    ),
];
