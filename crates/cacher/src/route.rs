//! Decides for every list whether the cache or the store serves it; one row per kind of read ([`list`]).
//!
//! | reads | cache filled | answered by |
//! |---|---|---|
//! | `Any` | yes | cache |
//! | `NotOlderThan(N)` | yes | cache, once it is at N |
//! | `MostRecent` | yes | cache, once it is at the store's revision; without reliable progress: store |
//! | `MostRecent`, while the cache lists again | yes | one object, or with a limit and no selector: store; else the cache after its list, or `429` |
//! | `Exact(N)`, further pages | yes | snapshot at N, else the store at N |
//! | `Exact(N)` of one object | – | store at N |
//! | `LegacyExact(N)` of one object | – | store, which has to be at N |
//! | `LegacyExact(N)` | yes | as `Exact(N)` |
//! | any, with a limit and no selector | no | store |
//! | any other | no | `429` |
//!
//! (`pkg/storage/cacher/delegator/interface.go`, `ShouldDelegateList`)

use listwatch_meta::{ReadAt, Revision};

/// The inputs of the decision besides [`ReadAt`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteInput {
    /// Whether the cache is filled.
    pub(crate) ready: bool,
    /// Whether the store's progress is reliable.
    pub(crate) progress: bool,
    /// Whether the cache lists again, because its state does not continue in the store.
    pub(crate) relisting: bool,
    /// Whether the read covers only one key.
    pub(crate) single: bool,
    /// Whether the read is a page without a selector, which bounds the work of the store.
    pub(crate) bounded: bool,
}

/// The source of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The cache in its current state.
    Cache,
    /// The cache, once it has reached the store's current revision.
    CacheConsistent,
    /// The cache, once it has reached this revision.
    CacheAt(Revision),
    /// A snapshot of exactly this revision, else the store.
    Snapshot(Revision),
    /// The store.
    Store,
    /// The cache, after it has listed again. The store would have to list a namespace or the whole resource for each such
    /// read, which can delay the cache's own list forever.
    Relisted,
    /// No source yet: the client should retry.
    NotReady,
}

/// Decides which source serves a list.
pub(crate) fn list(at: ReadAt, situation: RouteInput) -> Route {
    let RouteInput { ready, progress, relisting, single, bounded } = situation;
    match at {
        ReadAt::Exact(_) | ReadAt::LegacyExact(_) if single => Route::Store,
        _ if !ready && bounded => Route::Store,
        _ if !ready => Route::NotReady,
        ReadAt::Any => Route::Cache,
        ReadAt::NotOlderThan(revision) => Route::CacheAt(revision),
        ReadAt::MostRecent if !progress => Route::Store,
        ReadAt::MostRecent if !relisting => Route::CacheConsistent,
        ReadAt::MostRecent if single || bounded => Route::Store,
        ReadAt::MostRecent => Route::Relisted,
        ReadAt::Exact(revision) | ReadAt::LegacyExact(revision) => Route::Snapshot(revision),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_route_depends_on_readiness_and_requested_revision() {
        let n = Revision::new(7);
        let normal = RouteInput { ready: true, progress: true, relisting: false, single: false, bounded: false };
        let relisting = RouteInput { relisting: true, ..normal };
        let old_store = RouteInput { progress: false, ..normal };
        let single = RouteInput { single: true, ..normal };
        let empty = RouteInput { ready: false, ..normal };
        let empty_bounded = RouteInput { bounded: true, ..empty };
        for (at, situation, route) in [
            (ReadAt::Any, normal, Route::Cache),
            (ReadAt::Any, old_store, Route::Cache),
            (ReadAt::NotOlderThan(n), normal, Route::CacheAt(n)),
            (ReadAt::MostRecent, normal, Route::CacheConsistent),
            (ReadAt::MostRecent, single, Route::CacheConsistent),
            (ReadAt::MostRecent, old_store, Route::Store),
            (ReadAt::MostRecent, relisting, Route::Relisted),
            (ReadAt::MostRecent, RouteInput { single: true, ..relisting }, Route::Store),
            (ReadAt::MostRecent, RouteInput { bounded: true, ..relisting }, Route::Store),
            (ReadAt::MostRecent, RouteInput { progress: false, ..relisting }, Route::Store),
            (ReadAt::Any, relisting, Route::Cache),
            (ReadAt::Exact(n), normal, Route::Snapshot(n)),
            (ReadAt::Exact(n), single, Route::Store),
            (ReadAt::LegacyExact(n), normal, Route::Snapshot(n)),
            (ReadAt::LegacyExact(n), single, Route::Store),
            (ReadAt::Any, empty, Route::NotReady),
            (ReadAt::Any, empty_bounded, Route::Store),
            (ReadAt::MostRecent, empty_bounded, Route::Store),
            (ReadAt::Exact(n), empty, Route::NotReady),
        ] {
            assert_eq!(list(at, situation), route, "{at:?} {situation:?}");
        }
    }
}
