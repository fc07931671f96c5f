//! Cache or store? The decision for every list, one row per kind of read ([`list`]).
//!
//! | reads | cache filled | answered by |
//! |---|---|---|
//! | `Any` | yes | cache |
//! | `NotOlderThan(N)` | yes | cache, once it is at N |
//! | `MostRecent` | yes | cache, once it is at the store's revision; without truthful progress: store |
//! | `Exact(N)`, further pages | yes | snapshot at N, else the store at N |
//! | `Exact(N)` of one object | – | store at N |
//! | any, with a limit and no selector | no | store |
//! | any other | no | `429` |
//!
//! (`pkg/storage/cacher/delegator.go`, `ShouldDelegateList`)

use listwatch_meta::{ReadAt, Revision};

/// What the decision depends on besides [`ReadAt`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    /// The cache is filled.
    pub(crate) ready: bool,
    /// The store's progress can be relied on.
    pub(crate) progress: bool,
    /// Only one key is asked for.
    pub(crate) single: bool,
    /// A page without a selector: bounded work for the store.
    pub(crate) bounded: bool,
}

/// Who answers a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The cache, as it is.
    Cache,
    /// The cache, once it is at the revision the store has now.
    CacheConsistent,
    /// The cache, once it is at this revision.
    CacheAt(Revision),
    /// A snapshot of exactly this revision, else the store.
    Former(Revision),
    /// The store.
    Store,
    /// Nobody yet.
    NotReady,
}

/// The decision.
pub(crate) fn list(at: ReadAt, situation: Situation) -> Route {
    let Situation { ready, progress, single, bounded } = situation;
    match at {
        ReadAt::Exact(_) if single => Route::Store,
        _ if !ready && bounded => Route::Store,
        _ if !ready => Route::NotReady,
        ReadAt::Any => Route::Cache,
        ReadAt::NotOlderThan(revision) => Route::CacheAt(revision),
        ReadAt::MostRecent if progress => Route::CacheConsistent,
        ReadAt::MostRecent => Route::Store,
        ReadAt::Exact(revision) => Route::Former(revision),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table() {
        let n = Revision::new(7);
        let normal = Situation { ready: true, progress: true, single: false, bounded: false };
        let old_store = Situation { progress: false, ..normal };
        let single = Situation { single: true, ..normal };
        let empty = Situation { ready: false, ..normal };
        let empty_bounded = Situation { bounded: true, ..empty };
        for (at, situation, route) in [
            (ReadAt::Any, normal, Route::Cache),
            (ReadAt::Any, old_store, Route::Cache),
            (ReadAt::NotOlderThan(n), normal, Route::CacheAt(n)),
            (ReadAt::MostRecent, normal, Route::CacheConsistent),
            (ReadAt::MostRecent, single, Route::CacheConsistent),
            (ReadAt::MostRecent, old_store, Route::Store),
            (ReadAt::Exact(n), normal, Route::Former(n)),
            (ReadAt::Exact(n), single, Route::Store),
            (ReadAt::Any, empty, Route::NotReady),
            (ReadAt::Any, empty_bounded, Route::Store),
            (ReadAt::MostRecent, empty_bounded, Route::Store),
            (ReadAt::Exact(n), empty, Route::NotReady),
        ] {
            assert_eq!(list(at, situation), route, "{at:?} {situation:?}");
        }
    }
}
