//! Scenarios of watches: how they begin, which events reach them, and how slow ones catch up or
//! expire.

use super::*;

#[test]
fn watch_begins_with_the_state_and_continues_without_gap() {
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
fn watch_without_bookmarks_gets_no_initial_events_end_bookmark() {
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
fn object_entering_a_selector_is_added_and_leaving_it_deleted() {
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
fn events_reach_watchers_by_scope_and_indexed_field() {
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
fn watch_replays_events_after_its_revision_or_waits_for_a_future_one() {
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
fn starting_cache_refills_history_from_the_oldest_stored_revision() {
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
fn starting_cache_refills_at_most_its_limit_of_revisions() {
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
fn history_refill_that_exceeds_its_time_limit_lists_the_latest_state() {
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
fn requests_wait_for_a_refill_within_its_time_limit() {
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
fn store_watch_lost_during_the_refill_lists_again() {
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
fn store_without_progress_is_listed_at_its_latest_state() {
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
fn stalled_watcher_catches_up_from_the_history() {
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
fn watcher_behind_the_window_receives_410_expired() {
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
fn watch_stalled_in_its_initial_state_is_closed_after_eviction() {
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
fn bookmarks_come_every_minute_and_before_the_deadline_if_revision_advanced() {
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
fn initial_state_at_the_latest_revision_is_served_by_the_cache_once_it_reaches_the_revision() {
    check(
        "
        put a/x
        > r2
        start
        other
        > r3
        watch w all bookmarks
        read w
        > initial ADDED a/x@2
        > END r3
        stats store_lists consistent_fallbacks
        > store_lists: 0
        > consistent_fallbacks: 0
        ",
    );
}

#[test]
fn initial_state_at_the_latest_revision_is_served_by_the_store_if_the_cache_is_late() {
    check(
        "
        put a/x
        > r2
        start
        hold
        put a/y
        > r3
        watch w all bookmarks
        read w
        > initial ADDED a/x@2
        > initial ADDED a/y@3
        > END r3
        stats store_lists consistent_fallbacks
        > store_lists: 1
        > consistent_fallbacks: 1
        ",
    );
}

#[test]
fn initial_state_not_older_than_a_revision_fails_if_the_cache_is_late() {
    let script = |store: &str, expected: &str| {
        format!(
            "
            {store}
            put a/x
            > r2
            start
            hold
            put a/y
            > r3
            watch w all rv=3 sie=true match=NotOlderThan
            read w
            {expected}
            "
        )
    };
    // The cache waits, as in kube-apiserver. Without progress it does not know how late it is.
    let too_large = "
            > ERROR Timeout: Too large resource version: 3, current: 2 (504 Timeout)
            > ∎";
    check(&script("", too_large));
    let from_the_store = "
            > initial ADDED a/x@2
            > initial ADDED a/y@3";
    check(&script("old", from_the_store));
}

#[test]
fn initial_state_with_an_undecodable_object_is_refused_without_a_list_of_the_store() {
    check(
        "
        garbage a/x
        > r2
        start
        watch w all
        read w
        > ERROR failed to read one or more pods from the storage: /pods/a/x: malformed JSON at byte 0 (500 StorageReadError)
        > ∎
        stats store_lists consistent_fallbacks
        > store_lists: 0
        > consistent_fallbacks: 0
        ",
    );
}

#[test]
fn idle_cache_requests_progress_once_a_minute() {
    check(
        "
        put a/x
        > r2
        start
        stats ready progress_requests
        > ready: true
        > progress_requests: 1
        advance 59
        stats progress_requests
        > progress_requests: 1
        advance 2
        stats progress_requests
        > progress_requests: 2
        ",
    );
}

#[test]
fn stopped_watch_ends_cleanly_after_events_outside_its_scope_filled_the_window() {
    for end in ["stop", "advance 101"] {
        check_with(
            Limits { history_events_min: 1, history_bytes_max: 1, ..quiet() },
            &format!(
                "
                start
                watch w a for=100
                put a/x
                > r2
                read w
                > ADDED a/x@2
                put b/x
                > r3
                put b/y
                > r4
                read w
                stats history_events
                > history_events: 1
                {end}
                read w
                > ∎
                "
            ),
        );
    }
}

/// Runs a test of [`Cacher`] with paused time.
fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(test)
}

#[test]
fn end_of_the_initial_events_is_marked_if_requested_and_bookmarks_are_accepted() {
    for start in [Cacher::start, Cacher::direct] {
        for (mark_end, bookmarks) in [(true, true), (true, false), (false, true), (false, false)] {
            run(async {
                let store = TestStore::new();
                store.create(&key("a/x"), value("a/x", &[]).into_bytes().into(), None).await.unwrap();
                let cacher = start(store, config(quiet()));
                let from = WatchFrom::InitialEvents { at: ReadAt::MostRecent, mark_end };
                let base = ListOptions { watch: true, ..options(&[]) }.watch(cacher.shape(), false).unwrap();
                let request = WatchRequest { from, bookmarks, ..base };
                let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
                let mut watcher = cacher.watch(&scope("all"), &request, deadline).await.unwrap();
                settle().await;
                let (deliveries, _) = drain(&mut watcher).await;
                let end = |delivery: &Delivery| matches!(delivery, Delivery::Bookmark { initial_events_end: true, .. });
                let marked = deliveries.iter().any(end);
                assert_eq!(marked, mark_end && bookmarks, "mark_end: {mark_end}, bookmarks: {bookmarks}");
            });
        }
    }
}

/// A waker that counts its calls.
#[derive(Default)]
struct WakeUps(AtomicUsize);

impl Wake for WakeUps {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl WakeUps {
    fn poll(self: &Arc<Self>, watcher: &mut Watcher) -> Poll<Option<Delivery>> {
        Pin::new(watcher).poll_next(&mut Context::from_waker(&Waker::from(self.clone())))
    }

    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn try_next_does_not_replace_the_waker_of_a_waiting_task() {
    run(async {
        let store = TestStore::new();
        let cacher = Cacher::start(store.clone(), config(quiet()));
        let mut watcher = crate::support::watch(&cacher, &scope("all"), &["rv=1"], Duration::from_secs(60)).await;
        let wake_ups = Arc::new(WakeUps::default());
        assert!(wake_ups.poll(&mut watcher).is_pending());
        assert!(watcher.try_next().is_none());
        store.create(&key("a/x"), value("a/x", &[]).into_bytes().into(), None).await.unwrap();
        settle().await;
        assert_eq!(wake_ups.take(), 1, "the waiting task is woken");
        assert!(wake_ups.poll(&mut watcher).is_ready());
    });
}

#[test]
fn poll_of_a_watch_examines_a_bounded_number_of_objects_and_events() {
    run(async {
        let store = TestStore::new();
        let cacher = Cacher::start(store.clone(), config(Limits { history_events_min: 10_000, ..quiet() }));
        cacher.wait_ready().await.unwrap();
        for n in 0..5_000 {
            store.create(&key(&format!("a/x{n:04}")), value("a/x", &[]).into_bytes().into(), None).await.unwrap();
        }
        store.create(&key("b/web"), value("b/web", &["app=web"]).into_bytes().into(), None).await.unwrap();
        let lasts = Duration::from_secs(60);
        for words in [&["labels=app=web"][..], &["labels=app=web", "rv=1"]] {
            let mut watcher = crate::support::watch(&cacher, &scope("all"), words, lasts).await;
            let wake_ups = Arc::new(WakeUps::default());
            assert!(wake_ups.poll(&mut watcher).is_pending(), "{words:?}: other tasks run in between");
            assert_eq!(wake_ups.take(), 1, "{words:?}: the watch continues by itself");
            let Poll::Ready(Some(Delivery::Event(event))) = wake_ups.poll(&mut watcher) else {
                panic!("{words:?}: the event follows")
            };
            assert_eq!(event.object().key(), &key("b/web"));
        }
    });
}

#[test]
fn old_events_of_an_idle_cache_are_evicted_in_parts() {
    run(async {
        let store = TestStore::new();
        let limits = Limits { history_events_min: 0, history_age: Duration::from_secs(10), ..quiet() };
        let cacher = Cacher::start(store.clone(), config(limits));
        let (key, json) = (key("a/x"), value("a/x", &[]));
        let mut revision = store.create(&key, json.clone().into_bytes().into(), None).await.unwrap();
        cacher.wait_ready().await.unwrap();
        for _ in 1..3_000 {
            revision = store.update(&key, revision, json.clone().into_bytes().into(), None).await.unwrap();
        }
        let held = async || {
            settle().await;
            cacher.stats().history_events
        };
        assert_eq!(held().await, 3_000);
        let mut lengths = vec![];
        tokio::time::advance(Duration::from_secs(15)).await;
        for _ in 0..4 {
            lengths.push(held().await);
            // Between two parts, other tasks run.
            tokio::time::advance(Duration::from_millis(11)).await;
        }
        assert_eq!(lengths, [3_000 - 1_024, 3_000 - 2_048, 1, 1], "the newest event stays");
    });
}
