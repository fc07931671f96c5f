//! Tests of the watch state machine: tables of small cases, then random cuts, fragments and
//! reconnects compared with a model.

use bytes::Bytes;
use listwatch_meta::Key;
use proptest::prelude::*;

use super::*;
use crate::types::KeyValue;

const ID: i64 = 0;

fn rev(number: u64) -> Revision {
    Revision::new(number)
}

fn put(revision: u64, name: &str) -> StoreEvent {
    StoreEvent::Put {
        current: KeyValue {
            key: Key::new("pods", Some("ns"), name).unwrap(),
            value: Bytes::from(format!("{name}@{revision}")),
            created: rev(revision),
            modified: rev(revision),
            stale: false,
        },
        previous: None,
    }
}

fn events(changes: impl IntoIterator<Item = (u64, &'static str)>) -> Response {
    let events = changes.into_iter().map(|(revision, name)| Decoded::Event(put(revision, name))).collect();
    Response { watch_id: ID, events, revision: rev(1_000), ..Response::default() }
}

fn fragment(changes: impl IntoIterator<Item = (u64, &'static str)>) -> Response {
    Response { fragment: true, ..events(changes) }
}

fn created() -> Response {
    Response { watch_id: ID, created: true, ..Response::default() }
}

fn progress(watch_id: i64, revision: u64) -> Response {
    Response { watch_id, revision: rev(revision), ..Response::default() }
}

fn compacted(at: u64) -> Response {
    Response { watch_id: ID, canceled: true, compact_revision: rev(at), ..Response::default() }
}

fn canceled(reason: &str) -> Response {
    Response { watch_id: ID, canceled: true, cancel_reason: reason.to_owned(), ..Response::default() }
}

/// A step of a scripted test.
enum Step {
    /// The connection is established, and etcd confirmed the watch.
    Open,
    Say(Response),
    Cut,
    /// etcd's history was found to be replaced.
    Replaced,
    /// The pause after a lost connection is over.
    Rested,
}
use Step::{Cut, Open, Replaced, Rested, Say};

/// Runs a script from revision 10 on and formats the effects: `open>10`, `+11 a`, `progress 12`,
/// `rest`, `expired 20`, `lost`, `close`.
fn run(script: Vec<Step>) -> String {
    let mut now = Instant::now();
    let mut core = WatchCore::new(rev(10));
    let mut trace = Vec::new();
    let mut drain = |core: &mut WatchCore, now: &mut Instant| {
        while let Some(effect) = core.poll() {
            trace.push(match effect {
                Effect::Open { after, renew_token } => format!("open>{after}{}", if renew_token { "!" } else { "" }),
                Effect::Rest(until) => {
                    *now = until;
                    "rest".to_owned()
                }
                Effect::Emit(WatchItem::Event(event)) => format!("+{} {}", event.revision(), event.key().name()),
                Effect::Emit(WatchItem::Progress(revision)) => format!("progress {revision}"),
                Effect::Emit(WatchItem::Expired { oldest }) => {
                    format!("expired {}", oldest.map_or("?".to_owned(), |r| r.to_string()))
                }
                Effect::Emit(WatchItem::Lost(fault)) => format!("lost: {fault}"),
                Effect::Close => "close".to_owned(),
            });
        }
    };
    drain(&mut core, &mut now);
    for step in script {
        match step {
            Open => {
                core.handle_opened(rev(10));
                core.handle_progress_reliability(true);
                assert_eq!(core.handle_response(created()), None);
            }
            Say(response) => {
                if let Some(end) = core.handle_response(response) {
                    core.handle_ended(now, 0.5, end);
                }
            }
            Cut => core.handle_ended(now, 0.5, End::Lost("cut".into())),
            Replaced => core.handle_ended(now, 0.5, End::Replaced),
            Rested => core.handle_timeout(now),
        }
        drain(&mut core, &mut now);
    }
    trace.join(", ")
}

#[test]
fn etcd_watch_responses_are_converted_to_items_in_order() {
    for (what, script, expected) in [
        ("plain events", vec![Open, Say(events([(11, "a"), (12, "b")]))], "open>10, +11 a, +12 b"),
        ("a transaction stays together", vec![Open, Say(events([(11, "a"), (11, "b")]))], "open>10, +11 a, +11 b"),
        (
            "what is not after the start is dropped",
            vec![Open, Say(events([(9, "a"), (10, "b"), (11, "c")]))],
            "open>10, +11 c",
        ),
        (
            "what came before is not told again",
            vec![Open, Say(events([(11, "a")])), Say(events([(11, "a"), (12, "b")]))],
            "open>10, +11 a, +12 b",
        ),
        ("before the answer to the creation nothing is ours", vec![Say(events([(11, "a")]))], "open>10"),
        ("another watch's events", vec![Open, Say(Response { watch_id: 7, ..events([(11, "a")]) })], "open>10"),
    ] {
        assert_eq!(run(script), expected, "{what}");
    }
}

#[test]
fn watch_delivers_a_revision_only_when_it_is_complete() {
    for (what, script, expected) in [
        (
            "the next revision completes it",
            vec![Open, Say(fragment([(11, "a"), (12, "b")])), Say(events([(13, "c")]))],
            "open>10, +11 a, +12 b, +13 c",
        ),
        ("its last revision waits for the rest", vec![Open, Say(fragment([(11, "a"), (12, "b")]))], "open>10, +11 a"),
        (
            "a revision cut by a fragment comes as a whole",
            vec![Open, Say(fragment([(11, "a")])), Say(fragment([(11, "b")])), Say(events([(11, "c")]))],
            "open>10, +11 a, +11 b, +11 c",
        ),
        (
            "a lost connection throws the unfinished revision away and asks for it again",
            vec![Open, Say(fragment([(11, "a"), (12, "b")])), Cut, Rested, Open, Say(events([(12, "b"), (12, "c")]))],
            "open>10, +11 a, rest, open>11, +12 b, +12 c",
        ),
        (
            "progress does not overtake an unfinished revision",
            vec![
                Open,
                Say(fragment([(11, "a")])),
                Say(progress(ID, 12)),
                Say(events([(11, "b")])),
                Say(progress(ID, 12)),
            ],
            "open>10, +11 a, +11 b, progress 12",
        ),
    ] {
        assert_eq!(run(script), expected, "{what}");
    }
}

#[test]
fn progress_is_reported_only_if_reliable() {
    for (what, script, expected) in [
        ("periodic", vec![Open, Say(progress(ID, 15))], "open>10, progress 15"),
        ("on demand", vec![Open, Say(progress(NO_WATCH, 15))], "open>10, progress 15"),
        ("another watch's", vec![Open, Say(progress(3, 15))], "open>10"),
        ("before the start", vec![Open, Say(progress(ID, 9))], "open>10"),
        ("at the start", vec![Open, Say(progress(ID, 10))], "open>10, progress 10"),
        ("never backwards", vec![Open, Say(progress(ID, 15)), Say(progress(ID, 14))], "open>10, progress 15"),
        (
            "moves the place to resume from",
            vec![Open, Say(progress(ID, 15)), Cut, Rested],
            "open>10, progress 15, rest, open>15",
        ),
        (
            "an event's header is no progress",
            vec![Open, Say(events([(11, "a")])), Cut, Rested],
            "open>10, +11 a, rest, open>11",
        ),
    ] {
        assert_eq!(run(script), expected, "{what}");
    }

    let mut core = WatchCore::new(rev(10));
    core.handle_opened(rev(10));
    assert_eq!(core.handle_response(created()), None);
    assert_eq!(core.handle_response(progress(NO_WATCH, 15)), None);
    assert_eq!(core.position(), rev(10), "an old etcd's answers overtake events and are not believed");
    assert_eq!(core.handle_response(progress(ID, 15)), None);
    assert_eq!(core.position(), rev(15), "its periodic notifications are in order");
}

/// The progress that a watch from revision 10 reports, at once and after `next`, if etcd is at
/// revision `now` and answers no progress request.
fn unanswered(now: u64, next: impl FnOnce(&mut WatchCore)) -> [Option<u64>; 2] {
    let mut core = WatchCore::new(rev(10));
    core.handle_opened(rev(now));
    core.handle_progress_reliability(true);
    assert_eq!(core.handle_response(created()), None);
    let ask = |core: &mut WatchCore| {
        while core.poll().is_some() {}
        core.handle_unanswered();
        core.poll().map(|effect| match effect {
            Effect::Emit(WatchItem::Progress(revision)) => revision.get(),
            other => panic!("{other:?}"),
        })
    };
    let first = ask(&mut core);
    next(&mut core);
    [first, ask(&mut core)]
}

#[test]
fn unanswered_progress_request_never_reports_a_client_claimed_revision() {
    let event = |core: &mut WatchCore| assert_eq!(core.handle_response(events([(11, "a")])), None);
    let notice = |core: &mut WatchCore| assert_eq!(core.handle_response(progress(ID, 12)), None);
    let reconnect = |now: u64| {
        move |core: &mut WatchCore| {
            core.handle_ended(Instant::now(), 0.0, End::Lost("cut".into()));
            core.handle_timeout(Instant::now() + REST_MAX);
            core.handle_opened(rev(now));
            core.handle_progress_reliability(true);
            assert_eq!(core.handle_response(created()), None);
        }
    };
    assert_eq!(unanswered(10, |_| ()), [Some(10), Some(10)], "a watch from the present says what is known");
    assert_eq!(unanswered(99, reconnect(99)), [Some(10), Some(10)]);
    let cut = |core: &mut WatchCore| core.handle_ended(Instant::now(), 0.0, End::Lost("cut".into()));
    let part = |core: &mut WatchCore| assert_eq!(core.handle_response(fragment([(11, "a")])), None);
    assert_eq!(unanswered(10, cut), [Some(10), None], "a lost connection reports nothing");
    assert_eq!(unanswered(10, part), [Some(10), None], "a revision is incomplete");
    assert_eq!(unanswered(9, |_| ()), [None, None], "etcd is behind what the client named");
    assert_eq!(unanswered(9, reconnect(9)), [None, None]);
    assert_eq!(unanswered(9, reconnect(10)), [None, Some(10)], "etcd got there, as a new connection shows");
    assert_eq!(unanswered(9, event), [None, Some(11)], "etcd got there, as an event shows");
    assert_eq!(unanswered(9, notice), [None, Some(12)], "etcd got there, as its own notice shows");
}

#[test]
fn ended_watch_stream_is_classified_as_retried_expired_or_lost() {
    for (what, script, expected) in [
        ("compacted", vec![Open, Say(compacted(20))], "open>10, expired 20, close"),
        (
            "what came before the compaction is told first",
            vec![Open, Say(events([(11, "a")])), Say(compacted(20))],
            "open>10, +11 a, expired 20, close",
        ),
        (
            "a former state that is gone",
            vec![
                Open,
                Say(Response {
                    events: vec![
                        Decoded::Event(put(11, "a")),
                        Decoded::Unknowable(rev(12)),
                        Decoded::Event(put(13, "c")),
                    ],
                    ..events([])
                }),
            ],
            "open>10, +11 a, expired ?, close",
        ),
        (
            "a key that is not ours moves the place and is not told",
            vec![Open, Say(Response { events: vec![Decoded::Foreign(rev(12))], ..events([]) }), Cut, Rested],
            "open>10, rest, open>12",
        ),
        ("ended by the server", vec![Open, Say(canceled("etcdserver: no leader")), Rested], "open>10, rest, open>10"),
        ("a loss during the pause is the same loss", vec![Open, Cut, Cut, Rested], "open>10, rest, open>10"),
        ("out of order once", vec![Open, Say(fragment([(12, "a"), (11, "b")])), Rested], "open>10, rest, open>10"),
        (
            "out of order always",
            vec![
                Open,
                Say(fragment([(12, "a"), (11, "b")])),
                Rested,
                Open,
                Say(fragment([(12, "a"), (11, "b")])),
                Rested,
                Open,
                Say(fragment([(12, "a"), (11, "b")])),
            ],
            "open>10, rest, open>10, rest, open>10, lost: the store is corrupt: etcd sent revision 11 after revision 12, close",
        ),
        (
            "a token that ran out is renewed",
            vec![
                Open,
                Say(canceled("etcdserver: invalid auth token")),
                Rested,
                Open,
                Say(events([(11, "a")])),
                Cut,
                Rested,
            ],
            "open>10, rest, open>10!, +11 a, rest, open>11",
        ),
        (
            "a credential that stays refused",
            vec![
                Open,
                Say(canceled("etcdserver: permission denied")),
                Rested,
                Open,
                Say(canceled("etcdserver: permission denied")),
                Rested,
                Open,
                Say(canceled("etcdserver: permission denied")),
            ],
            "open>10, rest, open>10!, rest, open>10!, lost: the store refuses this server's credential: etcdserver: permission denied, close",
        ),
        ("the answer to a probe", vec![Open, Say(Response { watch_id: -1, canceled: true, ..created() })], "open>10"),
        (
            "another history, while the watch runs",
            vec![Open, Say(fragment([(11, "a")])), Replaced],
            "open>10, expired ?, close",
        ),
        ("another history, while it rests", vec![Open, Cut, Replaced, Rested], "open>10, rest, expired ?, close"),
        ("another history, while it opens", vec![Replaced, Open], "open>10, expired ?, close"),
        (
            "after the end nothing is told",
            vec![Open, Say(compacted(20)), Say(events([(21, "a")])), Cut],
            "open>10, expired 20, close",
        ),
    ] {
        assert_eq!(run(script), expected, "{what}");
    }
}

#[test]
fn reconnect_pauses_grow_to_a_limit_and_reset_on_success() {
    for (failures, jitter, expected_ms) in [
        (0, 0.0, 50),
        (0, 1.0, 100),
        (1, 1.0, 200),
        (3, 0.5, 600),
        (5, 1.0, 3_000),
        (63, 1.0, 3_000),
        (u32::MAX, 0.0, 1_500),
    ] {
        assert_eq!(rest(failures, jitter), Duration::from_millis(expected_ms), "{failures} failures, jitter {jitter}");
    }

    let mut now = Instant::now();
    let mut core = WatchCore::new(rev(10));
    let mut rest_after_cut = |core: &mut WatchCore| {
        core.handle_ended(now, 1.0, End::Lost("cut".into()));
        let Some(Effect::Rest(until)) = std::iter::from_fn(|| core.poll()).last() else { panic!("no rest") };
        let rest = until - now;
        now = until;
        core.handle_timeout(now);
        rest
    };
    assert_eq!(rest_after_cut(&mut core), REST_MIN);
    assert_eq!(rest_after_cut(&mut core), REST_MIN * 2);
    core.handle_opened(rev(10));
    core.handle_progress_reliability(true);
    assert_eq!(core.handle_response(created()), None);
    assert_eq!(rest_after_cut(&mut core), REST_MIN * 4, "standing alone is no success");
    core.handle_opened(rev(10));
    core.handle_progress_reliability(true);
    assert_eq!(core.handle_response(created()), None);
    assert_eq!(core.handle_response(Response { watch_id: -1, canceled: true, ..created() }), None);
    assert_eq!(rest_after_cut(&mut core), REST_MIN, "the answer to a probe is");
}

// --------------------------------------------------------------------------------------------- The
// model: etcd's history is a list of revisions, each a list of changes.

/// The numbers that determine a random run, used in turn.
struct Choices(std::vec::IntoIter<u8>);

impl Choices {
    /// A number below `bound`; zero when the numbers are used up.
    fn below(&mut self, bound: usize) -> usize {
        self.0.next().map_or(0, |choice| choice as usize % bound.max(1))
    }
}

/// All responses of one uncut connection: everything after `after`, split and mixed with progress
/// at random.
fn transcript(history: &[Vec<Decoded>], after: Revision, choices: &mut Choices) -> Vec<Response> {
    let mut responses = vec![created()];
    let mut next = after.get() as usize;
    while next < history.len() {
        // One response has the changes of a few revisions.
        let upto = (next + 1 + choices.below(4)).min(history.len());
        let mut rest: Vec<Decoded> = history[next..upto].concat();
        next = upto;
        while !rest.is_empty() {
            // A response may be cut into fragments at any change, also within a revision.
            let cut = 1 + choices.below(rest.len() * 2);
            let tail = rest.split_off(cut.min(rest.len()));
            responses.push(Response { fragment: !tail.is_empty(), events: rest, ..events([]) });
            rest = tail;
        }
        if choices.below(3) == 0 {
            let watch_id = if choices.below(2) == 0 { ID } else { NO_WATCH };
            responses.push(progress(watch_id, next as u64));
        }
        if choices.below(5) == 0 {
            responses.push(Response { watch_id: -1, canceled: true, ..created() });
        }
    }
    responses
}

fn history() -> impl Strategy<Value = Vec<Vec<Decoded>>> {
    proptest::collection::vec(proptest::collection::vec(0u8..8, 0..4), 1..30).prop_map(|revisions| {
        let mut history = Vec::new();
        for (index, changes) in revisions.into_iter().enumerate() {
            let revision = index as u64 + 1;
            history.push(
                changes
                    .into_iter()
                    .map(|change| match change {
                        0 => Decoded::Foreign(rev(revision)),
                        name => Decoded::Event(put(revision, &format!("pod-{name}"))),
                    })
                    .collect(),
            );
        }
        history
    })
}

fn events_after(history: &[Vec<Decoded>], after: Revision) -> Vec<StoreEvent> {
    history
        .iter()
        .flatten()
        .filter_map(|decoded| match decoded {
            Decoded::Event(event) if event.revision() > after => Some(event.clone()),
            _ => None,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// The guarantees hold for any cuts: complete, ordered, unique, atomic, bookmarkable,
    /// resumable.
    #[test]
    fn any_interleaving_delivers_the_history_or_expired(
        history in history(),
        start in 0usize..30,
        compact_after in 0usize..12,
        compact_at in 0u64..30,
        choices in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let start = rev(start.min(history.len()) as u64);
        let mut choices = Choices(choices.into_iter());
        let mut now = Instant::now();
        let mut core = WatchCore::new(start);
        let mut items = Vec::new();
        let mut connections = 0;
        let mut compact_revision = 0;

        'run: loop {
            let mut open = None;
            while let Some(effect) = core.poll() {
                match effect {
                    Effect::Open { after, .. } => open = Some(after),
                    Effect::Rest(until) => {
                        prop_assert!(until >= now);
                        now = until;
                        core.handle_timeout(now);
                    }
                    Effect::Emit(item) => items.push(item),
                    Effect::Close => break 'run,
                }
            }
            let Some(after) = open else { break };
            connections += 1;
            if connections == compact_after {
                compact_revision = compact_at.min(history.len() as u64);
            }
            core.handle_opened(rev(10));
    core.handle_progress_reliability(true);
            if after.get() + 1 < compact_revision {
                let end = core.handle_response(created()).or_else(|| core.handle_response(compacted(compact_revision)));
                core.handle_ended(now, 0.3, end.expect("a compacted place ends the watch"));
                continue;
            }
            let script = transcript(&history, after, &mut choices);
            // The first connections may be cut after any response; the twentieth is not cut.
            let cut = if connections < 20 { choices.below(script.len() * 2) } else { usize::MAX };
            for response in script.into_iter().take(cut) {
                prop_assert_eq!(core.handle_response(response), None, "a true etcd is never blamed");
            }
            if cut != usize::MAX {
                core.handle_ended(now, 0.3, End::Lost("cut".into()));
            }
        }

        let expected = events_after(&history, start);
        let mut told = Vec::new();
        let mut floor = start;
        let mut expired = false;
        for item in items {
            prop_assert!(!expired, "after the last item nothing comes");
            match item {
                WatchItem::Event(event) => {
                    prop_assert!(event.revision() > floor, "an event at {:?} after progress at {floor:?}", event.revision());
                    told.push(event);
                }
                WatchItem::Progress(revision) => {
                    prop_assert!(revision >= floor, "progress goes backwards");
                    let due = expected.iter().filter(|event| event.revision() <= revision).count();
                    prop_assert_eq!(told.len(), due, "progress at {:?} before everything up to it was told", revision);
                    floor = revision;
                }
                WatchItem::Expired { .. } => expired = true,
                WatchItem::Lost(fault) => prop_assert!(false, "lost without a reason: {fault}"),
            }
        }
        if expired {
            prop_assert!(compact_revision > 0, "expired although nothing was compacted");
            prop_assert!(expected.starts_with(&told), "what was told before is not the beginning of the history");
            let next = expected.get(told.len()).map(StoreEvent::revision);
            if let (Some(last), Some(next)) = (told.last().map(StoreEvent::revision), next) {
                prop_assert!(next > last, "a revision was torn apart");
            }
        } else {
            prop_assert_eq!(told, expected, "the watch is not the history");
        }
    }
}
