//! Tests the reflector's rules with one short exchange each. Most rules are those of client-go's reflector; a comment
//! names each intentional difference.

use std::time::{Duration, Instant};

use listwatch_client::Problem;
use listwatch_client::reflector::{
    Action, EventAction, FirstRead, RESUME_LIMIT, Reflector, ReflectorConfig, ReflectorState, SkipReason,
    TimeAndRandom, WATCH_END_GRACE, WATCH_LIST_MEMORY,
};
use listwatch_client::{Backoff, BackoffPolicy, TypeName};
use listwatch_meta::Status;
use listwatch_wire::{EventKind, ListMeta, Metadata, print_list_options};

/// The parameters of every watch request, with a random number of 0.
const WATCH: &str = "WATCH watch=true&allowWatchBookmarks=true";

struct ReflectorTest {
    reflector: Reflector,
    now: Instant,
    random: f64,
}

impl ReflectorTest {
    /// Starts a reflector; `expected` is its first request.
    fn start(config: ReflectorConfig, expected: &[&str]) -> Self {
        let mut talk = ReflectorTest { reflector: Reflector::new(config), now: Instant::now(), random: 0.0 };
        let at = talk.at();
        talk.reflector.handle_start(at);
        talk.expect("start", expected);
        talk
    }

    /// A reflector that has listed at version 7 and watches.
    fn watching() -> Self {
        let mut talk = ReflectorTest::start(list_first(), &["BEGIN", "LIST limit=500"]);
        talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
        talk.open();
        talk
    }

    fn at(&self) -> TimeAndRandom {
        TimeAndRandom { now: self.now, random: self.random }
    }

    fn expect(&mut self, input: &str, expected: &[&str]) {
        let mut found = Vec::new();
        while let Some(action) = self.reflector.poll_action() {
            found.push(match action {
                Action::Begin => "BEGIN".to_owned(),
                Action::Close => "CLOSE".to_owned(),
                Action::Commit { version } => format!("COMMIT {version}"),
                Action::List(options) => format!("LIST {}", print_list_options(&options)),
                Action::Watch(options) => {
                    let plain = format!("{WATCH}&resourceVersion={}&timeoutSeconds=300", options.resource_version);
                    let whole = format!("WATCH {}", print_list_options(&options));
                    if plain == whole { format!("WATCH {}", options.resource_version) } else { whole }
                }
            });
        }
        assert_eq!(found, expected, "after: {input}");
    }

    fn list(&mut self, version: &str, token: &str, expected: &[&str]) {
        let meta =
            ListMeta { resource_version: version.to_owned(), continue_token: token.to_owned(), ..ListMeta::default() };
        let at = self.at();
        self.reflector.handle_list_end(at, &meta);
        self.expect(&format!("a list at {version}"), expected);
    }

    fn open(&mut self) {
        let at = self.at();
        self.reflector.handle_watch_open(at);
        self.expect("the watch is open", &[]);
    }

    fn event(&mut self, kind: EventKind, name: &str, version: &str) -> EventAction {
        let metadata = Metadata {
            name: name.to_owned().into(),
            resource_version: version.to_owned().into(),
            ..Metadata::default()
        };
        let at = self.at();
        self.reflector.handle_event(at, kind, &metadata)
    }

    fn marker(&mut self, version: &str, expected: &[&str]) {
        let metadata =
            Metadata { resource_version: version.to_owned().into(), initial_events_end: true, ..Metadata::default() };
        let at = self.at();
        assert_eq!(self.reflector.handle_event(at, EventKind::Bookmark, &metadata), EventAction::Bookmark);
        self.expect("the end of the initial events", expected);
    }

    fn end(&mut self, expected: &[&str]) {
        let at = self.at();
        self.reflector.handle_stream_end(at);
        self.expect("the watch ended", expected);
    }

    fn fail(&mut self, problem: Problem, expected: &[&str]) {
        let at = self.at();
        let text = problem.to_string();
        self.reflector.handle_problem(at, problem);
        self.expect(&text, expected);
    }

    /// Advances the time to the next timeout and handles it. Returns the elapsed time.
    fn pass(&mut self, expected: &[&str]) -> Duration {
        let due = self.reflector.poll_timeout().expect("a reflector always waits for something");
        let waited = due.saturating_duration_since(self.now);
        self.now = self.now.max(due);
        let at = self.at();
        self.reflector.handle_timeout(at);
        self.expect(&format!("{} ms went by", waited.as_millis()), expected);
        waited
    }
}

/// The configuration without the version check after a broken stream, like client-go.
fn list_first() -> ReflectorConfig {
    ReflectorConfig { watch_list: false, check_server: false, ..ReflectorConfig::default() }
}

fn watch_list_first() -> ReflectorConfig {
    ReflectorConfig { check_server: false, ..ReflectorConfig::default() }
}

fn disconnected() -> Problem {
    Problem::disconnected("connection reset")
}

fn expired() -> Problem {
    Problem::refused(Status::expired_watch(7, 9))
}

const WATCH_LIST: &str = "WATCH watch=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=300&sendInitialEvents=true";

#[test]
fn first_list_is_paged_and_the_watch_timeout_is_random() {
    let config = ReflectorConfig { first_read: FirstRead::Any, ..list_first() };
    let mut talk = ReflectorTest::start(config, &["BEGIN", "LIST resourceVersion=0&limit=500"]);
    talk.random = 0.999;
    talk.list("7", "", &["COMMIT 7", "WATCH watch=true&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=599"]);
    // The default does not accept an old state.
    ReflectorTest::start(list_first(), &["BEGIN", "LIST limit=500"]);
}

#[test]
fn expired_version_is_relisted_at_the_last_version_then_at_the_most_recent() {
    let mut talk = ReflectorTest::watching();
    talk.event(EventKind::Modified, "a", "9");
    talk.fail(expired(), &["CLOSE"]);
    assert_eq!(talk.pass(&["BEGIN", "LIST resourceVersion=9"]), Duration::from_millis(800));
    talk.fail(Problem::refused(Status::expired_list()), &["BEGIN", "LIST limit=500"]);
    talk.list("12", "", &["COMMIT 12", "WATCH 12"]);
    talk.open();
    // The success allows the next relist to use its version again.
    talk.event(EventKind::Modified, "a", "13");
    talk.fail(expired(), &["CLOSE"]);
    talk.pass(&["BEGIN", "LIST resourceVersion=13"]);
    talk.fail(Problem::refused(Status::too_large_resource_version(13, 2, 1)), &["BEGIN", "LIST limit=500"]);
}

#[test]
fn status_410_of_a_watch_request_causes_a_relist() {
    // As the HTTP status of the watch request, with any reason.
    for reason in ["Expired", "Gone", "Whatever"] {
        let mut talk = ReflectorTest::start(list_first(), &["BEGIN", "LIST limit=500"]);
        talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
        talk.fail(Problem::refused(Status::failure(410, reason, "old")), &["CLOSE"]);
        talk.pass(&["BEGIN", "LIST resourceVersion=7"]);
    }
}

#[test]
fn status_410_in_a_stream_page_list_or_watch_list_causes_a_relist() {
    // An ERROR event in an open stream that had delivered events.
    let mut talk = ReflectorTest::watching();
    talk.event(EventKind::Modified, "a", "8");
    talk.fail(Problem::refused(Status::failure(410, "Gone", "too old")), &["CLOSE"]);
    talk.pass(&["BEGIN", "LIST resourceVersion=8"]);
    // A list not older than the last version.
    talk.fail(expired(), &["BEGIN", "LIST limit=500"]);
    // A later page: the list in one response. If that is expired too: again after a backoff.
    talk.list("9", "t1", &["LIST limit=500&continue=t1"]);
    talk.fail(Problem::refused(Status::expired_page(None)), &["BEGIN", "LIST "]);
    talk.fail(expired(), &["CLOSE"]);
    talk.pass(&["BEGIN", "LIST "]);
    // A WatchList, as an HTTP status and as an event.
    for open in [false, true] {
        let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
        if open {
            talk.open();
            talk.event(EventKind::Added, "a", "5");
        }
        talk.fail(expired(), &["CLOSE"]);
        talk.pass(&["BEGIN", WATCH_LIST]);
        assert_eq!(talk.reflector.version(), "", "a version of an incomplete state was kept");
    }
}

#[test]
fn deletion_among_initial_events_is_collected() {
    let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    talk.open();
    assert_eq!(talk.event(EventKind::Added, "a", "5"), EventAction::Collect);
    assert_eq!(talk.event(EventKind::Modified, "a", "6"), EventAction::Collect);
    assert_eq!(talk.event(EventKind::Deleted, "a", "7"), EventAction::Collect);
    // A bookmark without the end mark ends nothing.
    assert_eq!(talk.event(EventKind::Bookmark, "", "8"), EventAction::Bookmark);
    assert!(!talk.reflector.is_synced());
    talk.marker("9", &["COMMIT 9"]);
}

#[test]
fn rejected_watch_list_is_remembered_for_all_reflectors_of_a_server() {
    let config = watch_list_first();
    let mut first = ReflectorTest::start(config.clone(), &["BEGIN", WATCH_LIST]);
    first.fail(Problem::refused(Status::bad_request("sendInitialEvents?")), &["BEGIN", "LIST limit=500"]);
    first.list("7", "", &["COMMIT 7", "WATCH 7"]);
    let mut second = ReflectorTest::start(config.clone(), &["BEGIN", "LIST limit=500"]);
    // Another server is tried, and this one again after half an hour.
    ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    second.list("7", "", &["COMMIT 7", "WATCH 7"]);
    second.open();
    second.now += WATCH_LIST_MEMORY;
    second.fail(expired(), &["CLOSE"]);
    let again = format!(
        "{WATCH}&resourceVersion=7&resourceVersionMatch=NotOlderThan&timeoutSeconds=300&sendInitialEvents=true"
    );
    second.pass(&["BEGIN", &again]);
}

#[test]
fn rejection_of_one_watch_list_is_no_rule_if_its_list_is_rejected_too() {
    let config = watch_list_first();
    let mut talk = ReflectorTest::start(config.clone(), &["BEGIN", WATCH_LIST]);
    // For example a field selector that the resource does not support.
    let rejected = || Problem::refused(Status::bad_request("field label not supported: spec.x"));
    talk.fail(rejected(), &["BEGIN", "LIST limit=500"]);
    talk.fail(rejected(), &["CLOSE"]);
    ReflectorTest::start(config.clone(), &["BEGIN", WATCH_LIST]);
    talk.pass(&["BEGIN", "LIST limit=500"]);
    ReflectorTest::start(config.clone(), &["BEGIN", WATCH_LIST]);
    // A list that succeeds shows that only the parameters of the WatchList are unknown.
    talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
    ReflectorTest::start(config, &["BEGIN", "LIST limit=500"]);
}

/// One silent stream, for example of a broken network, must not disable WatchList for every reflector
/// of the server.
#[test]
fn silent_watch_list_falls_back_once_and_is_tried_again() {
    let config = watch_list_first();
    let mut talks: Vec<_> = (0..3).map(|_| ReflectorTest::start(config.clone(), &["BEGIN", WATCH_LIST])).collect();
    for talk in &mut talks {
        talk.open();
        assert_eq!(talk.pass(&["BEGIN", "LIST limit=500"]), Duration::from_secs(15));
        talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
        talk.open();
    }
    // The server has not rejected WatchList.
    let now = talks[2].now + Duration::from_secs(1);
    let mut next = ReflectorTest { reflector: Reflector::new(config.clone()), now, random: 0.0 };
    let at = next.at();
    next.reflector.handle_start(at);
    next.expect("start", &["BEGIN", WATCH_LIST]);
    // A second silence means a server or proxy that drops the marker.
    next.open();
    next.pass(&["BEGIN", "LIST limit=500"]);
    let now = next.now + Duration::from_secs(1);
    let mut last = ReflectorTest { reflector: Reflector::new(config), now, random: 0.0 };
    let at = last.at();
    last.reflector.handle_start(at);
    last.expect("start", &["BEGIN", "LIST limit=500"]);
}

#[test]
fn missed_bookmarks_end_a_watch_before_the_idle_limit() {
    let mut talk = ReflectorTest::watching();
    let bookmark = |talk: &mut ReflectorTest, after: u64, version: &str| {
        talk.now += Duration::from_secs(after);
        talk.event(EventKind::Bookmark, "", version);
    };
    bookmark(&mut talk, 5, "8");
    // One bookmark does not define an interval.
    let due = talk.reflector.poll_timeout().unwrap();
    assert_eq!(due.saturating_duration_since(talk.now), Duration::from_secs(225));
    bookmark(&mut talk, 60, "9");
    bookmark(&mut talk, 50, "10");
    assert_eq!(talk.pass(&["WATCH 10"]), Duration::from_secs(180), "three intervals of 60 s");
    // The observed interval may be too short, so it is doubled, up to the idle limit.
    talk.open();
    assert_eq!(talk.pass(&["WATCH 10"]), Duration::from_secs(225));
    // Frequent bookmarks do not shorten the limit below its minimum.
    let mut talk = ReflectorTest::watching();
    bookmark(&mut talk, 1, "8");
    bookmark(&mut talk, 1, "9");
    assert_eq!(talk.pass(&["WATCH 9"]), Duration::from_secs(30));
    talk.open();
    bookmark(&mut talk, 1, "10");
    assert_eq!(talk.pass(&["WATCH 10"]), Duration::from_secs(30));
}

#[test]
fn version_does_not_pass_an_event_that_was_not_applied() {
    let mut talk = ReflectorTest::watching();
    assert_eq!(talk.event(EventKind::Modified, "a", "8"), EventAction::Apply);
    assert_eq!(talk.event(EventKind::Modified, "", "9"), EventAction::Skip(SkipReason::Unidentified));
    assert_eq!(talk.reflector.version(), "8");
    talk.end(&["WATCH 7"]);
    // An event of a closed watch does not advance the version either.
    talk.fail(disconnected(), &["CLOSE"]);
    assert_eq!(talk.event(EventKind::Modified, "a", "11"), EventAction::Skip(SkipReason::NotWatching));
    talk.pass(&["WATCH 7"]);
    assert_eq!(talk.reflector.version(), "8");
}

#[test]
fn backoff_is_reset_by_progress_only() {
    let mut talk = ReflectorTest::start(list_first(), &["BEGIN", "LIST limit=500"]);
    let mut delays = Vec::new();
    for _ in 0..5 {
        // The list succeeds each time, and its watch is expired.
        talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
        talk.open();
        talk.fail(expired(), &["CLOSE"]);
        delays.push(talk.pass(&["BEGIN", "LIST resourceVersion=7"]).as_millis());
    }
    assert_eq!(delays, [800, 1_600, 3_200, 6_400, 12_800], "relists at full speed");
    // A watch of 60 s is progress, even without an event.
    talk.list("8", "", &["COMMIT 8", "WATCH 8"]);
    talk.open();
    talk.now += Duration::from_secs(61);
    talk.end(&["WATCH 8"]);
    talk.open();
    talk.fail(expired(), &["CLOSE"]);
    assert_eq!(talk.pass(&["BEGIN", "LIST resourceVersion=8"]), Duration::from_millis(800));
}

#[test]
fn every_wait_has_a_timeout_and_a_state() {
    let mut talk = ReflectorTest::start(ReflectorConfig::default(), &["BEGIN", WATCH_LIST]);
    let now = talk.now;
    let check = |talk: &ReflectorTest, words: &str| {
        assert!(talk.reflector.poll_timeout().is_some(), "{words}: a wait without an end");
        let said = talk.reflector.state().describe(now);
        assert!(said.contains(words), "{said}");
    };
    check(&talk, "waiting for the server to open the watch");
    talk.open();
    check(&talk, "receiving the initial state: 0 objects");
    talk.pass(&["BEGIN", "LIST limit=500"]);
    check(&talk, "waiting for page 1, 0 items");
    talk.fail(Problem::refused(Status::unauthorized()), &["CLOSE"]);
    check(&talk, "(401 Unauthorized); try 1 failed, the next one comes in");
    talk.pass(&["BEGIN", "LIST limit=500"]);
    talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
    check(&talk, "waiting for the server to open the watch");
    talk.open();
    check(&talk, "watching");
    talk.fail(disconnected(), &["CLOSE"]);
    talk.pass(&["LIST resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=1"]);
    check(&talk, "asking the server whether it knows our version");
}

#[test]
fn watch_is_retried_without_a_list_while_the_server_is_down() {
    let mut talk = ReflectorTest::start(list_first(), &["BEGIN", "LIST limit=500"]);
    talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
    let mut delays = Vec::new();
    for _ in 0..8 {
        talk.fail(disconnected(), &["CLOSE"]);
        delays.push(talk.pass(&["WATCH 7"]).as_millis());
    }
    assert_eq!(delays, [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000], "the backoff did not grow");
    for _ in 0..20 {
        talk.fail(Problem::refused(Status::too_many_requests("busy", 40)), &["CLOSE"]);
        assert_eq!(talk.pass(&["WATCH 7"]), Duration::from_secs(40), "Retry-After was not honored");
    }
}

#[test]
fn watch_that_ends_cleanly_after_an_event_resumes_immediately() {
    let mut talk = ReflectorTest::watching();
    for version in 8..18 {
        talk.event(EventKind::Modified, "a", &version.to_string());
        talk.end(&[&format!("WATCH {}", version - 1)]);
        talk.open();
        // The event of the last version arrives again.
        talk.event(EventKind::Modified, "a", &version.to_string());
    }
}

#[test]
fn bookmark_moves_the_resume_version() {
    let mut talk = ReflectorTest::watching();
    assert_eq!(talk.event(EventKind::Bookmark, "", "9"), EventAction::Bookmark);
    talk.end(&["WATCH 9"]);
}

#[test]
fn watch_list_version_moves_only_at_the_end_marker() {
    let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    talk.open();
    assert_eq!(talk.event(EventKind::Added, "a", "5"), EventAction::Collect);
    assert_eq!(talk.event(EventKind::Added, "b", "3"), EventAction::Collect);
    assert_eq!(talk.event(EventKind::Bookmark, "", "6"), EventAction::Bookmark);
    assert_eq!(talk.reflector.version(), "");
    assert!(!talk.reflector.is_synced());
    // A cut before the end drops the collected events; nothing was committed.
    talk.fail(disconnected(), &["CLOSE"]);
    talk.pass(&["BEGIN", WATCH_LIST]);
    talk.open();
    // An object that is deleted before the end is removed again.
    assert_eq!(talk.event(EventKind::Deleted, "a", "8"), EventAction::Collect);
    talk.marker("9", &["COMMIT 9"]);
    assert!(talk.reflector.is_synced());
    // The same stream continues as the watch.
    assert_eq!(talk.event(EventKind::Modified, "b", "10"), EventAction::Apply);
    assert_eq!(talk.reflector.version(), "10");
    talk.end(&["WATCH 9"]);
}

#[test]
fn expired_list_page_causes_one_unpaged_list() {
    let config = ReflectorConfig { first_read: FirstRead::Any, ..list_first() };
    let mut talk = ReflectorTest::start(config, &["BEGIN", "LIST resourceVersion=0&limit=500"]);
    talk.list("7", "t1", &["LIST limit=500&continue=t1"]);
    talk.fail(
        Problem::refused(Status::expired_page(Some("inconsistent".to_owned()))),
        &["BEGIN", "LIST resourceVersion=0"],
    );
    talk.list("8", "", &["COMMIT 8", "WATCH 8"]);
}

#[test]
fn relists_stay_paged_when_the_server_pages_from_its_cache() {
    let config = ReflectorConfig { first_read: FirstRead::Any, ..list_first() };
    let mut talk = ReflectorTest::start(config, &["BEGIN", "LIST resourceVersion=0&limit=500"]);
    talk.list("7", "t1", &["LIST limit=500&continue=t1"]);
    talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
    talk.fail(expired(), &["CLOSE"]);
    talk.pass(&["BEGIN", "LIST resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=500"]);
    // Pages of the most recent state say nothing about the cache.
    let mut talk = ReflectorTest::start(list_first(), &["BEGIN", "LIST limit=500"]);
    talk.list("7", "t1", &["LIST limit=500&continue=t1"]);
    talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
    talk.fail(expired(), &["CLOSE"]);
    talk.pass(&["BEGIN", "LIST resourceVersion=7"]);
}

#[test]
fn state_of_a_list_counts_its_items_and_the_time_of_its_request() {
    fn check(talk: &ReflectorTest, page: u32, items: u64, since: Instant) {
        assert_eq!(talk.reflector.state(), ReflectorState::Listing { page, items, since });
    }
    let mut talk = ReflectorTest::start(list_first(), &["BEGIN", "LIST limit=500"]);
    let start = talk.now;
    let item = Metadata { name: "a".into(), ..Metadata::default() };
    for _ in 0..3 {
        let at = talk.at();
        assert_eq!(talk.reflector.handle_item(at, &item), EventAction::Collect);
    }
    check(&talk, 1, 3, start);
    talk.list("7", "t1", &["LIST limit=500&continue=t1"]);
    check(&talk, 2, 3, start);
    talk.fail(disconnected(), &["CLOSE"]);
    talk.pass(&["LIST limit=500&continue=t1"]);
    check(&talk, 2, 3, start + Duration::from_millis(800));
    talk.fail(Problem::refused(Status::bad_request("invalid continue token")), &["CLOSE"]);
    talk.pass(&["BEGIN", "LIST limit=500"]);
    check(&talk, 1, 0, talk.now);
}

#[test]
fn rejected_watch_list_falls_back_to_list_and_is_remembered() {
    let invalid = || Problem::refused(Status::invalid("meta.k8s.io", "ListOptions", "", &[]));
    let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    talk.fail(invalid(), &["BEGIN", "LIST limit=500"]);
    talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
    talk.open();
    talk.fail(expired(), &["CLOSE"]);
    // client-go does not remember this and would request it again.
    talk.pass(&["BEGIN", "LIST resourceVersion=7"]);
    talk.list("8", "", &["COMMIT 8", "WATCH 8"]);
    talk.open();
    talk.now += WATCH_LIST_MEMORY;
    talk.fail(expired(), &["CLOSE"]);
    let again = format!(
        "{WATCH}&resourceVersion=8&resourceVersionMatch=NotOlderThan&timeoutSeconds=300&sendInitialEvents=true"
    );
    talk.pass(&["BEGIN", &again]);
}

#[test]
fn wait_for_the_end_marker_is_bounded() {
    // A server or proxy drops the marker.
    let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    talk.open();
    talk.now += Duration::from_secs(10);
    talk.event(EventKind::Added, "a", "5");
    assert!(matches!(talk.reflector.state(), ReflectorState::AwaitingInitialEvents { events: 1, .. }));
    assert_eq!(talk.pass(&["BEGIN", "LIST limit=500"]), Duration::from_secs(15));
    assert_eq!(talk.reflector.last_problem(), Some(&Problem::NoInitialEventsEnd));
    // A server ends the stream instead: the second time suffices.
    let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    talk.open();
    talk.end(&["BEGIN", WATCH_LIST]);
    talk.open();
    talk.end(&["BEGIN", "LIST limit=500"]);
}

#[test]
fn watch_list_that_is_not_answered_is_requested_again() {
    let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    for _ in 0..4 {
        assert_eq!(talk.pass(&["CLOSE"]), Duration::from_secs(60), "the wait for an answer");
        assert!(matches!(talk.reflector.last_problem(), Some(Problem::Silent { .. })));
        talk.pass(&["BEGIN", WATCH_LIST]);
    }
}

#[test]
fn watch_list_that_is_cut_twice_is_replaced_by_a_list() {
    let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    talk.open();
    talk.fail(disconnected(), &["CLOSE"]);
    talk.pass(&["BEGIN", WATCH_LIST]);
    // A connection that was not opened cuts nothing.
    talk.fail(disconnected(), &["CLOSE"]);
    talk.pass(&["BEGIN", WATCH_LIST]);
    talk.open();
    talk.fail(disconnected(), &["BEGIN", "LIST limit=500"]);
}

#[test]
fn expired_watch_list_is_retried_at_the_most_recent_version() {
    let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    talk.open();
    talk.marker("9", &["COMMIT 9"]);
    talk.fail(expired(), &["CLOSE"]);
    let at_nine = format!(
        "{WATCH}&resourceVersion=9&resourceVersionMatch=NotOlderThan&timeoutSeconds=300&sendInitialEvents=true"
    );
    talk.pass(&["BEGIN", &at_nine]);
    talk.open();
    talk.fail(Problem::refused(Status::too_large_resource_version(9, 2, 1)), &["BEGIN", WATCH_LIST]);
}

#[test]
fn event_of_another_kind_is_skipped_without_moving_the_version() {
    let pod = TypeName { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
    let mut talk =
        ReflectorTest::start(ReflectorConfig { type_name: Some(pod), ..list_first() }, &["BEGIN", "LIST limit=500"]);
    talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
    talk.open();
    let mut table = Metadata {
        kind: "Table".into(),
        api_version: "meta.k8s.io/v1".into(),
        name: "a".into(),
        resource_version: "9".into(),
        ..Metadata::default()
    };
    let at = talk.at();
    let verdict = talk.reflector.handle_event(at, EventKind::Added, &table);
    assert_eq!(verdict, EventAction::Skip(SkipReason::ForeignType));
    assert_eq!(talk.reflector.version(), "7");
    // The same kind in another version, as after a conversion, is another type too.
    (table.kind, table.api_version) = ("Pod".into(), "v2".into());
    assert_eq!(talk.reflector.handle_event(at, EventKind::Added, &table), EventAction::Skip(SkipReason::ForeignType));
    (table.kind, table.api_version) = ("Pod".into(), "v1".into());
    assert_eq!(talk.reflector.handle_event(at, EventKind::Added, &table), EventAction::Apply);
    assert_eq!(talk.event(EventKind::Added, "", "10"), EventAction::Skip(SkipReason::Unidentified));
    assert_eq!(talk.event(EventKind::Added, "b", ""), EventAction::Skip(SkipReason::Unidentified));
    assert_eq!(talk.reflector.version(), "9", "the version passed an event that was not applied");
}

#[test]
fn type_of_events_is_learned_from_the_end_marker() {
    fn check(marker: &str, event: &str, expected: EventAction) {
        let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
        talk.open();
        let typed = |kind: &str, version: &str| Metadata {
            kind: kind.to_owned().into(),
            api_version: if kind.is_empty() { "" } else { "v1" }.into(),
            resource_version: version.to_owned().into(),
            ..Metadata::default()
        };
        let at = talk.at();
        let end = Metadata { initial_events_end: true, ..typed(marker, "7") };
        talk.reflector.handle_event(at, EventKind::Bookmark, &end);
        let event = Metadata { name: "a".into(), ..typed(event, "8") };
        assert_eq!(talk.reflector.handle_event(at, EventKind::Added, &event), expected, "{marker:?}, then {event:?}");
    }
    check("Pod", "Pod", EventAction::Apply);
    check("Pod", "Table", EventAction::Skip(SkipReason::ForeignType));
    check("Pod", "", EventAction::Apply);
    // A marker without a type says nothing.
    check("", "Pod", EventAction::Apply);
    check("", "", EventAction::Apply);
}

#[test]
fn type_of_list_items_is_the_configured_one_or_that_of_the_list() {
    fn check(configured: Option<&str>, list: &str, expected: Option<&str>) {
        let of = |kind: &str| TypeName { api_version: "v1".to_owned(), kind: kind.to_owned() };
        let config = ReflectorConfig { type_name: configured.map(of), ..list_first() };
        let mut talk = ReflectorTest::start(config, &["BEGIN", "LIST limit=500"]);
        talk.reflector.handle_list_type(&of(list));
        assert_eq!(talk.reflector.item_type(), expected.map(of).as_ref(), "{configured:?}, then {list}");
    }
    check(None, "PodList", Some("Pod"));
    // kubectl's own list of mixed objects, and a kind that names no list.
    check(None, "List", None);
    check(None, "Pods", None);
    // A custom resource may give its list any kind.
    check(Some("Pod"), "ThingList", Some("Pod"));
}

#[test]
fn short_watches_back_off_and_the_fifth_causes_a_relist() {
    let mut talk = ReflectorTest::watching();
    for _ in 1..RESUME_LIMIT {
        talk.end(&["CLOSE"]);
        talk.pass(&["WATCH 7"]);
        talk.open();
    }
    talk.end(&["CLOSE"]);
    talk.pass(&["BEGIN", "LIST resourceVersion=7"]);
    // A list is not progress: the next delay continues to grow.
    talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
    talk.open();
    talk.end(&["CLOSE"]);
    assert_eq!(talk.pass(&["WATCH 7"]), Duration::from_millis(25_600));
    talk.open();
    talk.event(EventKind::Bookmark, "", "8");
    talk.fail(Problem::refused(Status::internal("x")), &["CLOSE"]);
    assert_eq!(talk.pass(&["WATCH 8"]), Duration::from_millis(800), "a bookmark is progress");
}

#[test]
fn refused_watch_is_resumed_before_a_relist() {
    let mut talk = ReflectorTest::watching();
    for _ in 1..RESUME_LIMIT {
        talk.fail(Problem::refused(Status::internal("etcd is away")), &["CLOSE"]);
        talk.pass(&["WATCH 7"]);
    }
    talk.fail(Problem::refused(Status::unauthorized()), &["CLOSE"]);
    assert!(matches!(talk.reflector.state(), ReflectorState::BackingOff { attempts: 5, .. }));
    talk.pass(&["BEGIN", "LIST resourceVersion=7"]);
}

#[test]
fn cut_stream_that_delivered_events_resumes_immediately() {
    let mut talk = ReflectorTest::watching();
    talk.event(EventKind::Added, "a", "8");
    talk.fail(disconnected(), &["WATCH 7"]);
    // The next watch is rejected, so a backoff follows.
    talk.fail(disconnected(), &["CLOSE"]);
    assert_eq!(talk.pass(&["WATCH 7"]), Duration::from_millis(800));
}

/// client-go resumes at the version of the last event, and loses the other events of that version.
#[test]
fn watch_resumes_before_the_version_of_its_last_event() {
    let mut talk = ReflectorTest::watching();
    talk.event(EventKind::Deleted, "a", "8");
    talk.event(EventKind::Deleted, "b", "9");
    talk.event(EventKind::Deleted, "c", "9");
    talk.fail(disconnected(), &["WATCH 8"]);
    assert_eq!(talk.reflector.version(), "9");
    talk.open();
    // A bookmark completes the version of the events before it, and its own.
    talk.event(EventKind::Bookmark, "", "9");
    talk.end(&["WATCH 9"]);
    talk.open();
    talk.event(EventKind::Bookmark, "", "12");
    talk.end(&["WATCH 12"]);
    talk.open();
    // The copy is not older than version 13, so neither may the next list be.
    talk.event(EventKind::Modified, "a", "13");
    talk.fail(expired(), &["CLOSE"]);
    talk.pass(&["BEGIN", "LIST resourceVersion=13"]);
    talk.list("13", "", &["COMMIT 13", "WATCH 13"]);
    talk.open();
    // Versions that are not numbers.
    talk.event(EventKind::Modified, "a", "x");
    talk.event(EventKind::Modified, "b", "x");
    talk.end(&["WATCH 13"]);
}

#[test]
fn events_that_arrive_again_are_not_progress() {
    let mut talk = ReflectorTest::watching();
    talk.event(EventKind::Deleted, "a", "8");
    talk.fail(disconnected(), &["WATCH 7"]);
    let mut delays = Vec::new();
    for _ in 0..3 {
        talk.open();
        assert_eq!(talk.event(EventKind::Deleted, "a", "8"), EventAction::Apply);
        talk.fail(disconnected(), &["CLOSE"]);
        delays.push(talk.pass(&["WATCH 7"]).as_millis());
    }
    assert_eq!(delays, [800, 1_600, 3_200], "a server that cuts each watch is asked at full speed");
    // Streams that end cleanly after repeated events cause a relist.
    for _ in 1..RESUME_LIMIT {
        talk.open();
        talk.event(EventKind::Deleted, "a", "8");
        talk.end(&["CLOSE"]);
        talk.pass(&["WATCH 7"]);
    }
    talk.open();
    talk.event(EventKind::Deleted, "a", "8");
    talk.end(&["CLOSE"]);
    talk.pass(&["BEGIN", "LIST resourceVersion=8"]);
}

#[test]
fn silent_watch_is_reopened_and_silent_request_is_abandoned() {
    let mut talk = ReflectorTest::watching();
    assert_eq!(talk.pass(&["WATCH 7"]), Duration::from_secs(225), "the idle limit");
    assert_eq!(talk.pass(&["CLOSE"]), Duration::from_secs(60), "the wait for an answer");
    assert!(matches!(talk.reflector.last_problem(), Some(Problem::Silent { .. })));
    talk.pass(&["WATCH 7"]);
    // Without an idle limit, the requested duration and its grace period apply.
    let mut talk =
        ReflectorTest::start(ReflectorConfig { idle_limit: None, ..list_first() }, &["BEGIN", "LIST limit=500"]);
    talk.list("7", "", &["COMMIT 7", "WATCH 7"]);
    talk.open();
    assert_eq!(talk.pass(&["WATCH 7"]), Duration::from_secs(300) + WATCH_END_GRACE);
}

#[test]
fn failed_page_is_retried_and_failed_first_page_restarts_the_list() {
    let mut talk = ReflectorTest::start(list_first(), &["BEGIN", "LIST limit=500"]);
    talk.fail(disconnected(), &["CLOSE"]);
    talk.pass(&["BEGIN", "LIST limit=500"]);
    talk.list("7", "t1", &["LIST limit=500&continue=t1"]);
    let retry = |talk: &mut ReflectorTest| talk.pass(&["LIST limit=500&continue=t1"]);
    talk.fail(disconnected(), &["CLOSE"]);
    retry(&mut talk);
    talk.fail(Problem::refused(Status::too_many_requests("busy", 1)), &["CLOSE"]);
    retry(&mut talk);
    // A page without a readable end is no rejection of its token.
    talk.fail(Problem::malformed("<html>"), &["CLOSE"]);
    retry(&mut talk);
    assert_eq!(talk.pass(&["CLOSE"]), Duration::from_secs(60), "the retried page has its own time limit");
    retry(&mut talk);
    // The server rejects the token: the list starts again.
    talk.fail(Problem::refused(Status::bad_request("invalid continue token")), &["CLOSE"]);
    talk.pass(&["BEGIN", "LIST limit=500"]);
    talk.list("", "", &["CLOSE"]);
    assert!(matches!(talk.reflector.last_problem(), Some(Problem::Malformed { .. })), "a list without a version");
}

#[test]
fn resume_version_never_decreases() {
    let mut talk = ReflectorTest::watching();
    talk.event(EventKind::Modified, "a", "12");
    talk.event(EventKind::Modified, "b", "9");
    assert_eq!(talk.reflector.version(), "12");
}

#[test]
fn one_hour_of_outage_causes_fewer_than_200_requests() {
    let mut talk = ReflectorTest::start(watch_list_first(), &["BEGIN", WATCH_LIST]);
    let begun = talk.now;
    let mut requests = 1;
    while talk.now < begun + Duration::from_secs(3_600) {
        let at = talk.at();
        // Every request is rejected at once.
        talk.reflector.handle_problem(
            at,
            Problem::refused(Status::forbidden(
                listwatch_meta::GroupResource { group: "", resource: "pods" },
                "",
                "no",
            )),
        );
        let mut asked = false;
        while let Some(action) = talk.reflector.poll_action() {
            asked |= matches!(action, Action::List(_) | Action::Watch(_));
        }
        if asked {
            requests += 1;
            continue;
        }
        let due = talk.reflector.poll_timeout().unwrap();
        assert!(due > talk.now, "a wait of nothing");
        talk.now = due;
        let at = talk.at();
        talk.reflector.handle_timeout(at);
        requests += 1;
        while talk.reflector.poll_action().is_some() {}
    }
    assert!(requests < 200, "{requests} requests");
}

#[test]
fn longest_durations_of_the_configuration_do_not_overflow() {
    let config = ReflectorConfig {
        min_watch_timeout: Duration::MAX,
        idle_limit: Some(Duration::MAX),
        request_wait: Duration::MAX,
        marker_wait: Duration::MAX,
        ..ReflectorConfig::default()
    };
    let mut reflector = Reflector::new(config);
    let at = TimeAndRandom { now: Instant::now(), random: 0.999 };
    let far = |reflector: &Reflector| {
        let due = reflector.poll_timeout().expect("a reflector always waits for something");
        assert!(due >= at.now + Duration::from_secs(180 * 24 * 3_600), "the wait is not long");
    };
    reflector.handle_start(at);
    far(&reflector);
    reflector.handle_watch_open(at);
    far(&reflector);
    let marker = Metadata { resource_version: "7".into(), initial_events_end: true, ..Metadata::default() };
    reflector.handle_event(at, EventKind::Bookmark, &marker);
    far(&reflector);
    reflector.handle_problem(
        at,
        Problem::Refused { status: Box::new(Status::internal("x")), retry_after: Some(Duration::MAX) },
    );
    assert!(reflector.poll_timeout().is_some());
    let mut backoff =
        Backoff::new(BackoffPolicy { initial: Duration::MAX, cap: Duration::MAX, ..BackoffPolicy::default() });
    assert!(backoff.next_delay(0.999, Some(Duration::MAX)) >= Duration::from_secs(180 * 24 * 3_600));
}

const CHECK: &str = "LIST resourceVersion=9&resourceVersionMatch=NotOlderThan&limit=1";

/// A reflector whose stream broke at version 9.
fn in_doubt() -> ReflectorTest {
    let config = ReflectorConfig { watch_list: false, ..ReflectorConfig::default() };
    let mut talk = ReflectorTest::start(config, &["BEGIN", "LIST limit=500"]);
    talk.list("9", "", &["COMMIT 9", "WATCH 9"]);
    talk.open();
    talk.fail(disconnected(), &["CLOSE"]);
    talk.pass(&[CHECK]);
    talk
}

#[test]
fn broken_stream_causes_a_version_check() {
    let mut talk = in_doubt();
    assert!(matches!(talk.reflector.state(), ReflectorState::Checking { .. }));
    let item = Metadata { name: "a".into(), ..Metadata::default() };
    let at = talk.at();
    assert_eq!(talk.reflector.handle_item(at, &item), EventAction::Ignore, "the question's answer is no state");
    talk.list("12", "", &["WATCH 9"]);
    talk.open();
    assert_eq!(talk.reflector.version(), "9");
    // An early end, even a clean one, causes a check; an end in time does not.
    talk.event(EventKind::Bookmark, "", "9");
    talk.end(&[CHECK]);
    talk.list("12", "", &["WATCH 9"]);
    talk.open();
    talk.now += Duration::from_secs(300);
    talk.end(&["WATCH 9"]);
    // A server's clock may be up to a second ahead.
    for (lived, expected) in [(299_000, "WATCH 9"), (298_999, CHECK)] {
        talk.open();
        talk.now += Duration::from_millis(lived);
        talk.end(&[expected]);
    }
}

#[test]
fn server_that_lost_its_history_is_accepted_at_the_third_check() {
    let behind = || Problem::refused(Status::too_large_resource_version(9, 2, 1));
    let mut talk = in_doubt();
    talk.fail(behind(), &["CLOSE"]);
    talk.pass(&[CHECK]);
    // Lost connections in between do not change the count.
    talk.fail(disconnected(), &["CLOSE"]);
    talk.pass(&[CHECK]);
    talk.fail(behind(), &["CLOSE"]);
    talk.pass(&[CHECK]);
    talk.fail(behind(), &["BEGIN", "LIST limit=500"]);
    talk.list("3", "", &["COMMIT 3", "WATCH 3"]);
    assert_eq!(talk.reflector.version(), "3");
}

#[test]
fn rejected_version_check_resumes_the_watch() {
    let mut talk = in_doubt();
    talk.fail(Problem::refused(Status::bad_request("what?")), &["WATCH 9"]);
    let mut talk = in_doubt();
    assert_eq!(talk.pass(&["CLOSE"]), Duration::from_secs(60), "a silent server is waited for");
    talk.pass(&[CHECK]);
}
