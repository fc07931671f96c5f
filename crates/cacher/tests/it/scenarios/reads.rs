//! Scenarios of lists and gets: freshness, paging and former revisions.

use super::*;

#[test]
fn consistent_list_shows_every_acknowledged_write() {
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
fn read_of_future_revision_fails_with_too_large() {
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
fn get_is_as_fresh_as_requested() {
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
fn pages_show_one_revision_despite_later_writes() {
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
fn last_page_is_empty_when_no_further_object_matches() {
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
fn former_revisions_come_from_the_history_then_from_the_store() {
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
fn revision_outside_the_window_is_read_from_the_store_until_compaction() {
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
