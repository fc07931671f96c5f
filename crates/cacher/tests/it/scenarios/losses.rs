//! Scenarios of watches and reads with a store that is lost, compacts, lags or returns wrong data,
//! and of the end of a cache.

use super::*;

#[test]
fn lost_store_watch_resumes_without_gap() {
    check(
        "
        start
        watch w all
        put a/1
        > r2
        read w
        > ADDED a/1@2
        hold
        put a/2
        > r3
        lose
        put a/3
        > r4
        release
        advance 1
        read w
        > ADDED a/2@3
        > ADDED a/3@4
        stats generation resumed_watches repeated_events
        > generation: 1
        > resumed_watches: 1
        > repeated_events: 1
        ",
    );
}

#[test]
fn client_watch_continues_after_the_store_watch_is_lost_at_the_compacted_revision() {
    // The store has compacted up to the last event, so no watch can begin before it.
    check(
        "
        start
        watch w all
        put a/x
        > r2
        read w
        > ADDED a/x@2
        compact 2
        lose
        advance 1
        put a/y
        > r3
        read w
        > ADDED a/y@3
        stats generation live
        > generation: 2
        > live: 1
        ",
    );
}

#[test]
fn compacted_store_watch_expires_all_watches_and_new_ones_begin_at_the_list() {
    check(
        "
        put a/gone
        > r2
        put a/same
        > r3
        start
        watch live all rv=3 bookmarks
        watch stalled all
        read live
        hold
        delete a/gone
        > r4
        put a/new
        > r5
        expire
        release
        advance 1
        read live
        > ERROR too old resource version: 3 (5) (410 Expired)
        > ∎
        read stalled
        > ERROR too old resource version: 3 (5) (410 Expired)
        > ∎
        stats generation
        > generation: 2
        watch late all rv=4
        read late
        > ERROR too old resource version: 4 (5) (410 Expired)
        > ∎
        watch behind all rv=5
        put a/last
        > r6
        read behind
        > ADDED a/last@6
        ",
    );
}

#[test]
fn relist_without_changes_keeps_watches_running() {
    check(
        "
        put a/x
        > r2
        start
        watch w all rv=2
        expire
        advance 1
        read w
        put a/x
        > r3
        read w
        > MODIFIED a/x@3
        ",
    );
}

#[test]
fn watch_ahead_of_the_listed_store_receives_410_expired() {
    check(
        "
        put a/x
        > r2
        start
        watch ahead all rv=9
        watch w all rv=2
        expire
        advance 1
        read ahead
        > ERROR too old resource version: 9 (1) (410 Expired)
        > ∎
        read w
        put a/x
        > r3
        read w
        > MODIFIED a/x@3
        ",
    );
}

#[test]
fn store_without_progress_serves_consistent_reads_itself() {
    check(
        "
        old
        put a/x
        > r2
        start
        other
        > r3
        list all
        > r3: a/x@2
        watch w all bookmarks
        watch now all sie=false match=NotOlderThan
        put a/y
        > r4
        read w
        > initial ADDED a/x@2
        > END r3
        > ADDED a/y@4
        read now
        > ADDED a/y@4
        list all rv=4
        > r4: a/x@2 a/y@4
        watch two all bookmarks
        read two
        > initial ADDED a/x@2
        > initial ADDED a/y@4
        > END r4
        stats store_lists consistent_fallbacks
        > store_lists: 2
        > consistent_fallbacks: 0
        ",
    );
}

#[test]
fn lagging_cache_delivers_no_event_twice() {
    check(
        "
        old
        put a/x
        > r2
        start
        hold
        put a/y
        > r3
        put a/x app=1
        > r4
        watch w all bookmarks
        read w
        > initial ADDED a/x[1]@4
        > initial ADDED a/y@3
        > END r4
        release
        put a/z
        > r5
        read w
        > ADDED a/z@5
        ",
    );
}

#[test]
fn read_of_unfilled_cache_waits_then_returns_429() {
    check(
        "
        put a/x
        > r2
        down
        start
        list all
        > storage is (re)initializing: the store is not reachable: down (429 TooManyRequests)
        watch w all
        > storage is (re)initializing: the store is not reachable: down (429 TooManyRequests)
        up
        list all
        > r2: a/x@2
        ",
    );
}

#[test]
fn first_list_and_watch_of_a_starting_cache_are_served() {
    check(
        "
        put a/x
        > r2
        start
        list all
        > r2: a/x@2
        watch w all
        read w
        > initial ADDED a/x@2
        ",
    );
}

#[test]
fn unreadable_value_ends_watches_with_expired_and_is_never_shown_as_deleted() {
    check(
        "
        put a/x
        > r2
        garbage a/bad
        > r3
        start
        list all
        > r3: a/x@2 undecodable: [/pods/a/bad]
        get a/bad rv=0
        > Internal error occurred: malformed JSON at byte 0 (500 InternalError)
        watch initial all
        read initial
        > ERROR failed to read one or more pods from the storage: /pods/a/bad: malformed JSON at byte 0 (500 StorageReadError)
        > ∎
        watch w all rv=3
        garbage a/x
        > r4
        put a/bad
        > r5
        read w
        > ERROR too old resource version: 3 (4) (410 Expired)
        > ∎
        watch resumed all rv=3
        read resumed
        > ERROR too old resource version: 3 (4) (410 Expired)
        > ∎
        list all
        > r5: a/bad@5 undecodable: [/pods/a/x]
        watch behind all rv=3
        read behind
        > ERROR too old resource version: 3 (4) (410 Expired)
        > ∎
        watch later all rv=4
        garbage a/x
        > r6
        put a/x app=mended
        > r7
        read later
        > ADDED a/bad@5
        > ADDED a/x[mended]@7
        list all
        > r7: a/bad@5 a/x[mended]@7
        watch all all
        read all
        > initial ADDED a/bad@5
        > initial ADDED a/x[mended]@7
        ",
    );
}

#[test]
fn unreadable_value_ends_only_the_watches_that_showed_the_object() {
    check(
        "
        put a/x app=one
        > r2
        put b/y app=two
        > r3
        start
        watch all all rv=3
        watch a a rv=3
        watch b b rv=3
        watch one all labels=app=one rv=3
        watch two all labels=app=two rv=3
        watch initial all
        read initial
        > initial ADDED a/x[one]@2
        > initial ADDED b/y[two]@3
        garbage a/new
        > r4
        garbage a/new
        > r5
        put b/z
        > r6
        read all
        > ADDED b/z@6
        read initial
        > ADDED b/z@6
        garbage a/x
        > r7
        put b/y app=two
        > r8
        read all
        > ERROR too old resource version: 6 (7) (410 Expired)
        > ∎
        read initial
        > ERROR too old resource version: 6 (7) (410 Expired)
        > ∎
        read a
        > ERROR too old resource version: 6 (7) (410 Expired)
        > ∎
        read one
        > ERROR too old resource version: 6 (7) (410 Expired)
        > ∎
        read b
        > ADDED b/z@6
        > MODIFIED b/y[two]@8
        read two
        > MODIFIED b/y[two]@8
        list all rv=6 match=Exact
        > r6: a/x[one]@2 b/y[two]@3 b/z@6 undecodable: [/pods/a/new]
        put a/new app=two
        > r9
        put a/x app=two
        > r10
        read b
        read two
        > ADDED a/new[two]@9
        > ADDED a/x[two]@10
        list all rv=8 match=Exact
        > r8: b/y[two]@8 b/z@6 undecodable: [/pods/a/new, /pods/a/x]
        stats generation expired_watches
        > generation: 1
        > expired_watches: 4
        ",
    );
}

#[test]
fn unreadable_value_ends_only_the_uncached_watches_that_showed_the_object() {
    check(
        "
        put a/x app=one
        > r2
        put b/y app=two
        > r3
        direct
        watch all all rv=3
        watch b b rv=3
        watch one all rv=3 labels=app=one
        watch two all rv=3 labels=app=two
        garbage a/new
        > r4
        garbage a/new
        > r5
        put a/new app=one
        > r6
        garbage a/x
        > r7
        garbage a/x
        > r8
        put b/y app=two
        > r9
        read all
        > ADDED a/new[one]@6
        > ERROR The resourceVersion for the provided watch is too old. (410 Expired)
        > ∎
        read one
        > ADDED a/new[one]@6
        > ERROR The resourceVersion for the provided watch is too old. (410 Expired)
        > ∎
        read b
        > MODIFIED b/y[two]@9
        read two
        > MODIFIED b/y[two]@9
        ",
    );
}

#[test]
fn uncached_watch_ends_at_the_deletion_of_an_object_that_cannot_be_decoded() {
    let error = "saw a DELETED event, but object data is corrupt - /pods/a/x cannot be decoded (500 StorageReadError)";
    let script = "
        garbage a/x
        > r2
        put a/y
        > r3
        direct
        watch all all rv=3
        watch b b rv=3
        watch one all rv=3 labels=app=one
        CHANGE
        > r4
        put a/z
        > r5
        put b/z
        > r6
        read all
        > ERROR MESSAGE
        > ∎
        read one
        > ERROR MESSAGE
        > ∎
        read b
        > ADDED b/z@6
        ";
    for change in ["delete a/x", "garbage a/x"] {
        check(&script.replace("CHANGE", change).replace("MESSAGE", error));
    }
}

#[test]
fn uncached_watch_ends_when_a_value_becomes_an_object_outside_its_selector() {
    // A client may have read the former value as an object that matches.
    check(
        "
        garbage a/x
        > r2
        direct
        watch one all rv=2 labels=app=one
        watch two all rv=2 labels=app=two
        put a/x app=two
        > r3
        read one
        > ERROR saw a DELETED event, but object data is corrupt - /pods/a/x cannot be decoded (500 StorageReadError)
        > ∎
        read two
        > ADDED a/x[two]@3
        ",
    );
}

#[test]
fn uncached_watch_ends_if_the_store_does_not_know_the_former_state() {
    check(
        "
        put a/x
        > r2
        put a/y
        > r3
        direct
        forget
        watch garbage all rv=3
        garbage a/x
        > r4
        read garbage
        > ERROR The resourceVersion for the provided watch is too old. (410 Expired)
        > ∎
        watch deleted all rv=4
        delete a/y
        > r5
        read deleted
        > ERROR saw a DELETED event, but object data is corrupt - /pods/a/y is no longer known (500 StorageReadError)
        > ∎
        watch created all rv=5
        garbage a/z
        > r6
        put a/u
        > r7
        read created
        > ADDED a/u@7
        ",
    );
}

#[test]
fn relist_that_shows_another_state_of_the_same_revision_expires_watches() {
    check(
        "
        put a/x
        > r2
        put a/lost
        > r3
        compact 3
        hide a/lost
        start
        watch w all rv=3
        read w
        show
        expire
        advance 1
        read w
        > ERROR too old resource version: 3 (3) (410 Expired)
        > ∎
        list all rv=0
        > r3: a/lost@3 a/x@2
        ",
    );
}

#[test]
fn store_that_expires_every_watch_is_relisted_only_after_a_pause() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let store = TestStore::new();
        let cacher = Cacher::start(store.clone(), config(Limits { history_refill_revisions_max: 0, ..quiet() }));
        cacher.wait_ready().await.unwrap();
        let lists = async || {
            settle().await;
            store.lists()
        };
        assert_eq!(lists().await, 1);
        store.expire();
        assert_eq!(lists().await, 1, "the last list has just ended");
        tokio::time::advance(Duration::from_millis(51)).await;
        assert_eq!(lists().await, 2);
        tokio::time::advance(Duration::from_secs(10)).await;
        store.expire();
        assert_eq!(lists().await, 3, "the last list is long past");
    });
}

#[test]
fn comparison_with_a_store_that_is_down_is_counted_as_failed() {
    check_with(
        Limits { audit_interval: Some(Duration::from_secs(100)), ..Limits::default() },
        "
        put a/x
        > r2
        start
        list all rv=0
        > r2: a/x@2
        down
        advance 101
        stats audits failed_audits
        > audits: 0
        > failed_audits: 1
        up
        advance 101
        stats audits failed_audits
        > audits: 1
        > failed_audits: 1
        ",
    );
}

#[test]
fn cache_that_differs_from_the_store_closes_its_watches_and_relists() {
    check_with(
        Limits { audit_interval: Some(Duration::from_secs(100)), ..Limits::default() },
        "
        put a/x
        > r2
        put a/lost
        > r3
        compact 3
        hide a/lost
        start
        watch w all
        read w
        > initial ADDED a/x@2
        advance 101
        stats audits audit_mismatches
        > audits: 1
        > audit_mismatches: 0
        show
        advance 101
        stats audit_mismatches generation
        > audit_mismatches: 2
        > generation: 2
        read w
        > ERROR too old resource version: 3 (3) (410 Expired)
        > ∎
        list all rv=0
        > r3: a/lost@3 a/x@2
        ",
    );
}

#[test]
fn page_after_a_restart_of_the_cache_does_not_use_the_old_snapshot() {
    check_with(
        Limits { audit_interval: Some(Duration::from_secs(100)), ..Limits::default() },
        "
        put a/x
        > r2
        put a/y
        > r3
        put a/z
        > r4
        compact 4
        hide a/y
        start
        list all limit=1
        > r4: a/x@2 (more, 1 remaining)
        stats pinned_snapshots
        > pinned_snapshots: 1
        advance 101
        show
        advance 101
        next
        > r4: a/y@3 (more, 1 remaining)
        next
        > r4: a/z@4
        ",
    );
}

#[test]
fn pages_of_a_list_expire_seven_and_a_half_minutes_after_the_first() {
    let expired = "> The provided continue parameter is too old to display a consistent list result. You can start a new list without the co";
    check(&format!(
        "
        put a/x
        > r2
        put a/y
        > r3
        put a/z
        > r4
        start
        list all limit=1
        > r4: a/x@2 (more, 2 remaining)
        advance 200
        next
        > r4: a/y@3 (more, 1 remaining)
        advance 255
        next
        {expired}
        list all limit=1
        > r4: a/x@2 (more, 2 remaining)
        next
        > r4: a/y@3 (more, 1 remaining)
        "
    ));
}

#[test]
fn exact_list_of_a_former_revision_does_not_prolong_its_pages() {
    check(
        "
        put a/x
        > r2
        put a/y
        > r3
        start
        list all limit=1
        > r3: a/x@2 (more, 1 remaining)
        put a/z
        > r4
        advance 200
        list all limit=1 rv=3 match=Exact
        > r3: a/x@2 (more, 1 remaining)
        advance 255
        list all limit=1 rv=3 match=Exact
        > The resourceVersion for the provided list is too old. (410 Expired)
        ",
    );
}

#[test]
fn stop_ends_watches_cleanly_and_fails_reads() {
    check(
        "
        start
        watch w all
        watch late all
        read w
        put a/x
        > r2
        stop
        read w
        > ADDED a/x@2
        > ∎
        read late
        > ∎
        list all
        > the store is closed (503 ServiceUnavailable)
        watch w all
        > the store is closed (503 ServiceUnavailable)
        ",
    );
}

#[test]
fn panic_of_the_driver_ends_watches_with_500() {
    check(
        "
        start
        watch w all
        put a/x
        > r2
        read w
        > ADDED a/x@2
        stopped
        > false
        break
        read w
        > ERROR Internal error occurred: the watch cache failed (500 InternalError)
        > ∎
        stopped
        > true
        list all rv=0
        > the store is closed (503 ServiceUnavailable)
        ",
    );
}

#[test]
fn quiet_cache_resumes_after_a_compaction() {
    check(
        "
        start
        watch w all
        read w
        other
        > r2
        other
        > r3
        advance 61
        stats progress_requests revision
        > progress_requests: 1
        > revision: r3
        compact 3
        lose
        advance 1
        put a/x
        > r4
        read w
        > ADDED a/x@4
        stats generation resumed_watches expired_watches
        > generation: 1
        > resumed_watches: 1
        > expired_watches: 0
        ",
    );
}

#[test]
fn uncached_resource_behaves_like_a_cached_one() {
    check(
        "
        put a/x app=web
        > r2
        direct
        watch w all bookmarks for=100
        watch web all rv=2 labels=app=web
        put a/x app=bank
        > r3
        delete a/x
        > r4
        read w
        > initial ADDED a/x[web]@2
        > END r2
        > MODIFIED a/x[bank]@3
        > DELETED a/x[bank]@4
        read web
        > DELETED a/x[web]@3
        put a/1
        > r5
        put a/2
        > r6
        list all limit=1
        > r6: a/1@5 (more, 1 remaining)
        next
        > r6: a/2@6
        list all rv=3 match=Exact
        > r3: a/x[bank]@3
        list all rv=9
        > Timeout: Too large resource version: 9, current: 6 (504 Timeout)
        other
        > r7
        advance 60
        read w
        > ADDED a/1@5
        > ADDED a/2@6
        > BOOKMARK r7
        compact 6
        watch old all rv=3
        read old
        > ERROR The resourceVersion for the provided watch is too old. (410 Expired)
        > ∎
        advance 60
        read w
        > ∎
        stop
        read web
        > ∎
        ",
    );
}

#[test]
fn cache_stops_when_its_last_handle_and_watcher_are_dropped() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let store = TestStore::new();
        let before = Arc::strong_count(&store);
        let cacher = Cacher::start(store.clone(), config(quiet()));
        let mut watcher = crate::support::watch(&cacher, &scope("all"), &[], Duration::from_secs(60)).await;
        drop(cacher);
        store.create(&key("a/x"), value("a/x", &[]).into_bytes().into(), None).await.unwrap();
        assert!(watcher.next().await.is_some(), "a watcher keeps its cache");
        drop(watcher);
        settle().await;
        assert_eq!(Arc::strong_count(&store), before, "the driver has gone");
        let get = Cacher::direct(store.clone(), config(quiet())).get(&key("a/x"), ReadAt::MostRecent).await;
        assert!(get.unwrap().is_some());
    });
}
