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

/// `ValidateListOptions` in `apiserver/pkg/storage/interfaces.go`: the legacy rule needs a recursive read.
#[test]
fn limited_list_of_one_name_reads_the_latest_state_and_not_exactly_the_version() {
    for start in ["start", "direct"] {
        check(&format!(
            "
            put a/x
            > r2
            {start}
            put a/x
            > r3
            put b/x
            > r4
            list a rv=2 limit=1 fields=metadata.name=x
            > r4: a/x@3
            list all rv=2 limit=1 fields=metadata.name=x,metadata.namespace=a
            > r4: a/x@3
            list all rv=2 limit=1 fields=metadata.name=x
            > r2: a/x@2
            list a rv=2 limit=1
            > r2: a/x@2
            list a rv=2 limit=1 match=Exact fields=metadata.name=x
            > r2: a/x@2
            list a rv=9 limit=1 fields=metadata.name=x
            > Timeout: Too large resource version: 9, current: 4 (504 Timeout)
            compact 4
            list a rv=2 limit=1 fields=metadata.name=x
            > r4: a/x@3
            "
        ));
    }
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

#[test]
fn list_at_a_revision_that_the_cache_has_or_reaches_is_served_by_the_cache() {
    check(
        "
        put a/1
        > r2
        compact 2
        start
        list all rv=2 match=Exact
        > r2: a/1@2
        other
        > r3
        list all rv=3 match=Exact
        > r3: a/1@2
        stats store_lists pinned_snapshots
        > store_lists: 0
        > pinned_snapshots: 2
        ",
    );
}

#[test]
fn list_at_a_revision_that_a_store_without_progress_does_not_report_is_served_by_the_store() {
    check(
        "
        old
        put a/1
        > r2
        start
        list all rv=2 match=Exact
        > r2: a/1@2
        stats store_lists
        > store_lists: 0
        other
        > r3
        list all rv=3 match=Exact
        > r3: a/1@2
        stats store_lists
        > store_lists: 1
        ",
    );
}

#[test]
fn former_revision_is_rebuilt_from_at_most_the_limit_of_events() {
    check_with(
        Limits { undo_events_max: 2, ..quiet() },
        "
        put a/1
        > r2
        start
        put a/2
        > r3
        put a/3
        > r4
        put a/4
        > r5
        list all rv=3 match=Exact
        > r3: a/1@2 a/2@3
        stats store_lists
        > store_lists: 0
        list all rv=2 match=Exact
        > r2: a/1@2
        stats store_lists
        > store_lists: 1
        ",
    );
}

#[test]
fn get_from_an_unfilled_cache_is_served_by_the_store() {
    check(
        "
        put a/x
        > r2
        put a/x app=new
        > r3
        hold
        start
        get a/x rv=0
        > a/x[new]@3
        get a/x rv=2
        > a/x[new]@3
        stats ready
        > ready: false
        ",
    );
}

#[test]
fn page_without_a_selector_does_not_wait_for_an_unfilled_cache() {
    check(
        "
        put a/x app=web
        > r2
        hold
        start
        list all limit=1
        > r2: a/x[web]@2
        stats ready store_lists
        > ready: false
        > store_lists: 1
        list all limit=1 labels=app=web
        > r2: a/x[web]@2
        stats ready store_lists
        > ready: true
        > store_lists: 1
        ",
    );
}

#[test]
fn field_selector_of_the_namespace_selects_objects() {
    for start in ["start", "direct"] {
        check(&format!(
            "
            put a/x
            > r2
            put b/y
            > r3
            {start}
            list all fields=metadata.namespace=a
            > r3: a/x@2
            list all fields=metadata.namespace!=a
            > r3: b/y@3
            list a fields=metadata.namespace=a
            > r3: a/x@2
            list a fields=metadata.namespace=b
            > r3:
            "
        ));
    }
}

#[test]
fn get_at_an_exact_revision_returns_the_former_state_until_compaction() {
    for start in [Cacher::start, Cacher::direct] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (store, key) = (TestStore::new(), key("a/x"));
            let first = store.create(&key, value("a/x", &[]).into_bytes().into(), None).await.unwrap();
            let second = store.update(&key, first, value("a/x", &[]).into_bytes().into(), None).await.unwrap();
            let cacher = start(store.clone(), config(quiet()));
            cacher.wait_ready().await.unwrap();
            let get = async |revision| {
                let object = cacher.get(&key, ReadAt::Exact(revision)).await;
                object.map(|object| object.map(|object| object.revision()))
            };
            assert_eq!(get(first.previous()).await, Ok(None), "it was created later");
            assert_eq!(get(first).await, Ok(Some(first)));
            assert_eq!(get(second).await, Ok(Some(second)));
            store.compact(second).await.unwrap();
            assert_eq!(get(first).await, Err(ReadError::Expired { requested: first }));
        });
    }
}

#[test]
fn uncached_list_reads_each_page_of_the_store_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let store = TestStore::new();
        for n in 0..9 {
            store.create(&key(&format!("a/x{n}")), value("a/x", &[]).into_bytes().into(), None).await.unwrap();
        }
        let cacher = Cacher::direct(store.clone(), config(Limits { list_page_objects: 3, ..quiet() }));
        let request = options(&[]).list(cacher.shape()).unwrap();
        assert_eq!(cacher.list(&scope("all"), &request).await.unwrap().items.count(), 9);
        assert_eq!(store.lists(), 3);
    });
}

#[test]
fn list_names_at_most_a_hundred_undecodable_keys() {
    for start in [Cacher::start, Cacher::direct] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let store = TestStore::new();
            for n in 0..102 {
                store.create(&key(&format!("a/x{n:03}")), "no object".into(), None).await.unwrap();
            }
            let cacher = start(store.clone(), config(quiet()));
            let request = options(&[]).list(cacher.shape()).unwrap();
            let list = cacher.list(&scope("all"), &request).await.unwrap();
            let expected: Vec<_> = (0..100).map(|n| key(&format!("a/x{n:03}"))).collect();
            let found: Vec<_> = list.undecodable.into_iter().map(|value| value.key).collect();
            assert_eq!(found, expected);
        });
    }
}
