//! Scenarios: what is done to a cache, and what comes out. The language is explained in
//! `support/script.rs`.

mod support;

use std::sync::Arc;
use std::time::Duration;

use listwatch_cacher::{Cacher, Limits};
use listwatch_meta::ReadAt;
use listwatch_storage::Storage as _;
use support::script::{check, check_with, value};
use support::store::TestStore;
use support::{config, key, quiet, scope, settle};

#[test]
fn a_watch_begins_with_the_state_and_goes_on_without_a_gap() {
    check(
        "
        put a/y
        > r2
        put a/x app=web
        > r3
        start
        watch w all bookmarks
        put a/z
        > r4
        delete a/y
        > r5
        read w
        > initial ADDED a/x[web]@3
        > initial ADDED a/y@2
        > END r3
        > ADDED a/z@4
        > DELETED a/y@5
        put a/x app=bank
        > r6
        read w
        > MODIFIED a/x[bank]@6
        read w
        ",
    );
}

#[test]
fn without_bookmarks_there_is_no_end_mark() {
    check(
        "
        put a/x
        > r2
        start
        watch w all
        watch zero all rv=0 bookmarks
        watch none all sie=false match=NotOlderThan rv=0
        put a/y
        > r3
        read w
        > initial ADDED a/x@2
        > ADDED a/y@3
        read zero
        > initial ADDED a/x@2
        > END r2
        > ADDED a/y@3
        read none
        > ADDED a/y@3
        ",
    );
}

#[test]
fn a_selector_turns_entering_into_added_and_leaving_into_deleted() {
    check(
        "
        put a/x app=web
        > r2
        start
        watch web all rv=2 labels=app=web
        watch set all rv=2 labels=app+in+(web,bank)
        watch other a rv=2 labels=app!=web
        put a/x app=bank
        > r3
        put a/x app=bank
        > r4
        put a/x app=web
        > r5
        delete a/x
        > r6
        read web
        > DELETED a/x[web]@3
        > ADDED a/x[web]@5
        > DELETED a/x[web]@6
        read set
        > MODIFIED a/x[bank]@3
        > MODIFIED a/x[bank]@4
        > MODIFIED a/x[web]@5
        > DELETED a/x[web]@6
        read other
        > ADDED a/x[bank]@3
        > MODIFIED a/x[bank]@4
        > DELETED a/x[bank]@5
        ",
    );
}

#[test]
fn scopes_and_indexed_fields_reach_who_is_interested() {
    check(
        "
        start
        watch all all
        watch a a
        watch b b
        watch x a/x
        watch named all fields=metadata.name=x
        watch n1 all fields=spec.nodeName=n1
        watch unset a fields=spec.nodeName=
        put a/x
        > r2
        put a/x node=n1
        > r3
        put b/x node=n2
        > r4
        delete a/x
        > r5
        read all
        > ADDED a/x@2
        > MODIFIED a/x@3
        > ADDED b/x@4
        > DELETED a/x@5
        read a
        > ADDED a/x@2
        > MODIFIED a/x@3
        > DELETED a/x@5
        read b
        > ADDED b/x@4
        read x
        > ADDED a/x@2
        > MODIFIED a/x@3
        > DELETED a/x@5
        read named
        > ADDED a/x@2
        > MODIFIED a/x@3
        > ADDED b/x@4
        > DELETED a/x@5
        read n1
        > ADDED a/x@3
        > DELETED a/x@5
        read unset
        > ADDED a/x@2
        > DELETED a/x@3
        list all fields=spec.nodeName=n2
        > r5: b/x@4
        ",
    );
}

#[test]
fn a_watch_from_a_revision_replays_the_window_and_a_future_one_waits_silently() {
    check(
        "
        put a/x
        > r2
        compact 2
        start
        put a/y
        > r3
        put a/z
        > r4
        watch two all rv=2
        watch three all rv=3
        watch old all rv=1
        watch six all rv=6
        read two
        > ADDED a/y@3
        > ADDED a/z@4
        read three
        > ADDED a/z@4
        read old
        > ERROR too old resource version: 1 (2) (410 Expired)
        > ∎
        put a/u
        > r5
        put a/v
        > r6
        put a/w
        > r7
        read six
        > ADDED a/w@7
        ",
    );
}

#[test]
fn a_cache_that_starts_reaches_back_as_far_as_its_store() {
    check(
        "
        put a/x app=web
        > r2
        put a/y
        > r3
        delete a/y
        > r4
        put a/x app=bank
        > r5
        start
        watch one all rv=1
        watch three all rv=3
        watch web all rv=2 labels=app=web
        list all
        > r5: a/x[bank]@5
        list all rv=3 match=Exact
        > r3: a/x[web]@2 a/y@3
        put a/z
        > r6
        read one
        > ADDED a/x[web]@2
        > ADDED a/y@3
        > DELETED a/y@4
        > MODIFIED a/x[bank]@5
        > ADDED a/z@6
        read three
        > DELETED a/y@4
        > MODIFIED a/x[bank]@5
        > ADDED a/z@6
        read web
        > DELETED a/x[web]@5
        stats generation history_events
        > generation: 1
        > history_events: 5
        compact 4
        start
        watch three all rv=3
        watch four all rv=4
        read three
        > ERROR too old resource version: 3 (4) (410 Expired)
        > ∎
        read four
        > MODIFIED a/x[bank]@5
        > ADDED a/z@6
        other
        > r7
        start
        list all rv=7
        > r7: a/x[bank]@5 a/z@6
        ",
    );
}

#[test]
fn a_cache_that_starts_reaches_back_no_further_than_it_may() {
    let limits = Limits { history_refill_revisions_max: 2, ..quiet() };
    let script = "
        put a/x
        > r2
        put a/y
        > r3
        put a/z
        > r4
        start
        watch one all rv=1
        watch two all rv=2
        read one
        > ERROR too old resource version: 1 (2) (410 Expired)
        > ∎
        read two
        > ADDED a/y@3
        > ADDED a/z@4
        list all
        > r4: a/x@2 a/y@3 a/z@4
        ";
    check_with(limits, script);
    check_with(
        Limits { history_refill_revisions_max: 0, ..quiet() },
        "
        put a/x
        > r2
        start
        watch one all rv=1
        read one
        > ERROR too old resource version: 1 (2) (410 Expired)
        > ∎
        ",
    );
}

#[test]
fn a_history_that_does_not_come_in_time_is_done_without() {
    check(
        "
        put a/x
        > r2
        put a/y
        > r3
        hold
        start
        advance 1.5
        stats ready
        > ready: false
        list all limit=1
        > r3: a/x@2 (more, 1 remaining)
        advance 0.5
        list all rv=0
        > r3: a/x@2 a/y@3
        watch w all rv=0 sie=false match=NotOlderThan
        release
        put a/z
        > r4
        read w
        > ADDED a/z@4
        watch one all rv=1
        read one
        > ERROR too old resource version: 1 (3) (410 Expired)
        > ∎
        stats generation
        > generation: 1
        ",
    );
}

#[test]
fn a_history_that_comes_late_is_waited_for() {
    check(
        "
        put a/x
        > r2
        put a/y
        > r3
        hold
        start
        advance 1.5
        release
        watch one all rv=2
        read one
        > ADDED a/y@3
        list all rv=3
        > r3: a/x@2 a/y@3
        ",
    );
}

#[test]
fn a_store_that_forgets_or_breaks_while_the_history_comes_is_listed_again() {
    for trouble in ["expire", "lose"] {
        check(&format!(
            "
            put a/x
            > r2
            put a/y
            > r3
            hold
            start
            {trouble}
            release
            advance 0.25
            list all
            > r3: a/x@2 a/y@3
            stats generation resumed_watches
            > generation: 1
            > resumed_watches: {}
            ",
            usize::from(trouble == "lose")
        ));
    }
}

#[test]
fn a_store_that_cannot_say_how_far_it_is_is_listed_as_it_is_now() {
    check(
        "
        put a/x
        > r2
        old
        start
        watch one all rv=1
        read one
        > ERROR too old resource version: 1 (2) (410 Expired)
        > ∎
        ",
    );
}

#[test]
fn a_stalled_watcher_catches_up_from_the_history() {
    check_with(
        Limits { watcher_queue_events_max: 2, ..quiet() },
        "
        start
        watch slow all
        watch fast all
        read slow
        put a/1
        > r2
        put a/2
        > r3
        read fast
        > ADDED a/1@2
        > ADDED a/2@3
        put a/3
        > r4
        put a/4
        > r5
        stats lagging overflows
        > lagging: 1
        > overflows: 1
        read slow
        > ADDED a/1@2
        > ADDED a/2@3
        > ADDED a/3@4
        > ADDED a/4@5
        stats live lagging slowest_lag_revisions
        > live: 2
        > lagging: 0
        > slowest_lag_revisions: 2
        put a/5
        > r6
        read slow
        > ADDED a/5@6
        ",
    );
}

#[test]
fn only_a_place_that_left_the_window_is_expired_and_that_is_said_aloud() {
    check_with(
        Limits { watcher_queue_events_max: 1, history_events_min: 2, history_age: Duration::from_secs(10), ..quiet() },
        "
        start
        watch slow all
        watch healthy all
        read slow
        read healthy
        put a/1
        > r2
        read healthy
        > ADDED a/1@2
        put a/2
        > r3
        read healthy
        > ADDED a/2@3
        advance 20
        put a/3
        > r4
        put a/4
        > r5
        read healthy
        > ADDED a/3@4
        > ADDED a/4@5
        read slow
        > ERROR too old resource version: 2 (3) (410 Expired)
        > ∎
        ",
    );
}

#[test]
fn a_stalled_initial_state_is_given_up_when_it_cannot_go_on() {
    check_with(
        Limits { history_events_min: 2, history_age: Duration::from_secs(10), ..quiet() },
        "
        put a/x
        > r2
        start
        watch w all
        put a/1
        > r3
        advance 20
        put a/2
        > r4
        put a/3
        > r5
        stats replaying
        > replaying: 1
        advance 6
        stats replaying closed
        > replaying: 0
        > closed: 1
        read w
        > ERROR too old resource version: 2 (3) (410 Expired)
        > ∎
        ",
    );
}

#[test]
fn a_consistent_list_shows_every_acknowledged_write() {
    check(
        "
        put a/x
        > r2
        start
        other
        > r3
        list all
        > r3: a/x@2
        put a/y
        > r4
        list all
        > r4: a/x@2 a/y@4
        hold
        put a/z
        > r5
        list all rv=0
        > r4: a/x@2 a/y@4
        list all
        > r5: a/x@2 a/y@4 a/z@5
        stats consistent_fallbacks
        > consistent_fallbacks: 1
        release
        list all rv=5
        > r5: a/x@2 a/y@4 a/z@5
        ",
    );
}

#[test]
fn a_revision_that_does_not_come_is_too_large() {
    check(
        "
        put a/x
        > r2
        start
        list all rv=9
        > Timeout: Too large resource version: 9, current: 2 (504 Timeout)
        list all rv=9 limit=1
        > Timeout: Too large resource version: 9, current: 2 (504 Timeout)
        get a/x rv=9
        > Timeout: Too large resource version: 9, current: 2 (504 Timeout)
        watch w all rv=9 sie=true match=NotOlderThan
        read w
        > ERROR Timeout: Too large resource version: 9, current: 2 (504 Timeout)
        > ∎
        ",
    );
}

#[test]
fn gets_are_as_fresh_as_they_ask() {
    check(
        "
        put a/x
        > r2
        start
        hold
        put a/x app=new
        > r3
        get a/x rv=0
        > a/x@2
        get a/x rv=2
        > a/x@2
        get a/x
        > a/x[new]@3
        get a/y
        > nothing
        get a/y rv=0
        > nothing
        ",
    );
}

#[test]
fn pages_show_one_revision_whatever_happens_meanwhile() {
    check(
        "
        put a/1
        > r2
        put a/2
        > r3
        put a/3
        > r4
        put b/4
        > r5
        start
        list all limit=2
        > r5: a/1@2 a/2@3 (more, 2 remaining)
        delete a/3
        > r6
        put b/5
        > r7
        next
        > r5: a/3@4 b/4@5
        list a limit=2
        > r7: a/1@2 a/2@3
        list all limit=1 labels=app!=x
        > r7: a/1@2 (more)
        next
        > r7: a/2@3 (more)
        next
        > r7: b/4@5 (more)
        next
        > r7: b/5@7
        list all limit=3
        > r7: a/1@2 a/2@3 b/4@5 (more, 1 remaining)
        next
        > r7: b/5@7
        stats store_lists
        > store_lists: 0
        ",
    );
}

#[test]
fn a_last_page_may_be_empty_when_a_selector_leaves_nothing() {
    check(
        "
        put a/1 app=web
        > r2
        put a/2
        > r3
        start
        list all limit=1 labels=app=web
        > r3: a/1[web]@2 (more)
        next
        > r3:
        ",
    );
}

#[test]
fn former_revisions_come_from_the_history_and_then_from_the_store() {
    let script = |pages: &str| {
        format!(
            "
            put a/1
            > r2
            start
            put a/2
            > r3
            delete a/1
            > r4
            put a/1
            > r5
            list all rv=3 match=Exact
            > r3: a/1@2 a/2@3
            list all rv=4 match=Exact
            > r4: a/2@3
            list all rv=2 limit=5
            > r2: a/1@2
            stats store_lists
            > store_lists: {pages}
            compact 5
            list all rv=3 match=Exact limit=1
            > r3: a/1@2 (more, 1 remaining)
            "
        )
    };
    check(&script("0"));
}

#[test]
fn what_the_window_does_not_hold_is_read_from_the_store_until_that_compacts_it() {
    check_with(
        Limits { undo_events_max: 0, pinned_snapshots_max: 0, ..quiet() },
        "
        put a/1
        > r2
        put a/2
        > r3
        start
        list all limit=1
        > r3: a/1@2 (more, 1 remaining)
        put a/3
        > r4
        next
        > r3: a/2@3
        list all limit=1
        > r4: a/1@2 (more, 2 remaining)
        put a/4
        > r5
        compact 5
        next
        > The provided continue parameter is too old to display a consistent list result. You can start a new list without the co
        next
        > r5: a/2@3 (more, 2 remaining)
        list all rv=3 match=Exact
        > The resourceVersion for the provided list is too old. (410 Expired)
        ",
    );
}

#[test]
fn a_lost_watch_is_resumed_where_it_stood() {
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
fn a_watch_lost_at_the_compacted_edge_goes_on() {
    // The store has compacted up to the last event, so it cannot be watched from before it.
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
fn when_the_store_forgot_the_place_every_watch_is_told_and_newcomers_begin_at_the_list() {
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
fn when_nothing_was_written_meanwhile_watches_go_on() {
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
fn a_watch_ahead_of_a_store_that_was_listed_again_is_expired() {
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
fn bookmarks_come_about_every_minute_and_before_the_end_and_only_with_news() {
    check(
        "
        start
        watch w all bookmarks for=200
        read w
        > END r1
        advance 61
        read w
        other
        > r2
        advance 60
        read w
        > BOOKMARK r2
        put a/x
        > r3
        read w
        > ADDED a/x@3
        advance 60
        read w
        other
        > r4
        advance 17.5
        read w
        > BOOKMARK r4
        advance 2
        read w
        > ∎
        ",
    );
}

#[test]
fn an_old_store_serves_consistent_reads_itself_and_watches_attach_behind_them() {
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
fn a_cache_that_lags_its_store_shows_nothing_twice() {
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
fn while_it_is_not_filled_reads_wait_a_little_and_are_then_sent_away() {
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
fn the_first_request_of_a_cache_that_has_just_started_is_served() {
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
fn what_is_no_object_hides_nothing_else() {
    check(
        "
        put a/x
        > r2
        garbage a/bad
        > r3
        start
        watch w all
        list all
        > r3: a/x@2 undecodable: [/pods/a/bad]
        get a/bad rv=0
        > failed to read one or more pods from the storage: /pods/a/bad: the stored bytes are no object (500 StorageReadError)
        garbage a/x
        > r4
        put a/bad
        > r5
        put a/x app=mended
        > r6
        read w
        > initial ADDED a/x@2
        > DELETED a/x@4
        > ADDED a/bad@5
        > ADDED a/x[mended]@6
        list all
        > r6: a/bad@5 a/x[mended]@6
        ",
    );
}

#[test]
fn a_cache_that_is_wrong_says_so_and_starts_over() {
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
fn a_stop_ends_everything_and_is_no_error() {
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
fn a_cache_that_fails_says_so_and_does_not_freeze() {
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
fn a_quiet_cache_keeps_its_place_fresh_and_survives_a_compaction() {
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
fn without_a_cache_the_same_is_seen() {
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
fn a_cacher_ends_with_its_last_handle_and_watcher() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let store = TestStore::new();
        let before = Arc::strong_count(&store);
        let cacher = Cacher::start(store.clone(), config(quiet()));
        let mut watcher = support::watch(&cacher, &scope("all"), &[], Duration::from_secs(60)).await;
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
