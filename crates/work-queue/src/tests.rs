//! Compares the queue with client-go's rules and with a simple model, and checks its wake-ups in
//! random interleavings.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A core with a test clock, controlled by a small script language.
struct Script {
    core: WorkQueueCore<String>,
    start: Instant,
    now: Duration,
}

impl Script {
    fn new(config: QueueConfig<String>) -> Self {
        Script { core: WorkQueueCore::new(config), start: Instant::now(), now: Duration::ZERO }
    }

    fn at(&self) -> Instant {
        self.start + self.now
    }

    /// Runs a script. `+a` adds, `+a@7` adds with priority 7, `+a~5` adds in 5 ms, `!a` fails, `?a`
    /// resets failures, `.a` is done, `*20` advances 20 ms, `#` shuts down, `>` takes, `x` is a
    /// worker that stops waiting, `w` returns the number of workers to wake. Returns the outputs as
    /// text.
    fn run(&mut self, words: &str) -> String {
        let mut out = Vec::new();
        for word in words.split_whitespace() {
            let (verb, rest) = word.split_at(1);
            let at = self.at();
            match verb {
                "+" => match rest.split_once('~') {
                    Some((key, delay)) => {
                        self.core.handle_add_after(at, key.to_owned(), millis(delay.parse().unwrap()), 0);
                    }
                    None => {
                        let (key, priority) = rest.split_once('@').unwrap_or((rest, "0"));
                        self.core.handle_add(at, key.to_owned(), priority.parse().unwrap());
                    }
                },
                "!" => {
                    let delay = self.core.handle_failure(at, rest.to_owned(), 0);
                    out.push(format!("{}ms", delay.as_millis()));
                }
                "?" => self.core.handle_forget(&rest.to_owned()),
                "." => assert!(self.core.handle_done(at, &rest.to_owned()), "no worker held {rest}"),
                "*" => self.now += millis(rest.parse().unwrap()),
                "#" => self.core.handle_shut_down(at),
                "x" => self.core.handle_cancel(),
                "w" => out.push(match self.core.poll_wakes() {
                    usize::MAX => "all".to_owned(),
                    wakes => wakes.to_string(),
                }),
                ">" => out.push(match self.core.poll_take(at) {
                    PollTake::Key(taken) => taken.key,
                    PollTake::Wait(None) => "-".to_owned(),
                    PollTake::Wait(Some(due)) => format!("-{}ms", (due - at).as_millis()),
                    PollTake::Closed => "closed".to_owned(),
                }),
                _ => panic!("{word} is no operation"),
            }
        }
        out.join(" ")
    }
}

fn check(promise: &str, words: &str, expected: &str) {
    assert_eq!(Script::new(QueueConfig::default()).run(words), expected, "{promise}\n  {words}");
}

#[test]
fn queue_deduplicates_and_requeues_like_client_go() {
    check("keys come in the order they were added", "+a +b +c > > > >", "a b c -");
    check("a key that is ready is not added again", "+a +b +a > > >", "a b -");
    check("no two workers hold one key", "+a > +a >", "a -");
    check("a key added while processing is ready at done, once", "+a > +a +a > .a > >", "a - a -");
    check("a key that is done and was not added is gone", "+a > .a >", "a -");
    check("done puts a dirty key behind what is ready", "+a > +a +b .a > >", "a b a");
}

#[test]
fn delayed_adds_behave_like_client_go() {
    check("a delayed key waits for its time", "+a~10 > *9 > *1 >", "-10ms -1ms a");
    check("the earlier of two times wins, whichever came first", "+a~10 +a~5 > *5 > .a *5 >", "-5ms a -");
    check("the earlier of two times wins, whichever came first", "+a~5 +a~10 > *5 > .a *5 >", "-5ms a -");
    check("no delay is an add", "+a~0 >", "a");
    check("an add does not take a delayed one back", "+a~10 +a > .a > *10 >", "a -10ms a");
    check("keys come in the order of their times", "+a~10 +b~5 *20 > >", "b a");
    check("a delayed key that becomes due while processed is ready at done", "+a +a~5 > *5 > .a >", "a - a");
}

#[test]
fn rate_limited_adds_behave_like_client_go() {
    check("a key's delay doubles with each failure", "!a *5 > .a !a *10 > .a !a", "5ms a 10ms a 20ms");
    check("reset starts the backoff again", "!a *5 > !a .a ?a *10 > .a !a", "5ms a 10ms a 5ms");
    check("keys fail on their own", "!a !a !b", "5ms 10ms 5ms");
    let mut words: String = (0..100).map(|n| format!("!k{n} ")).collect();
    words.push_str("!x !y");
    let out = Script::new(QueueConfig::default()).run(&words);
    assert!(out.ends_with("5ms 100ms 200ms"), "after a burst of a hundred, ten retries a second: {out}");
}

#[test]
fn shutdown_behaves_like_client_go() {
    check("a shut queue takes nothing", "# +a +b~5 !c *10 >", "0ms closed");
    check("what is ready is still handed out", "+a +b # > > >", "a b closed");
    check("what is delayed is lost", "+a~5 # *10 >", "closed");
    check("what became dirty before is handed out again", "+a > +a # > .a > .a >", "a - a closed");
    check("an add after shutdown does not make a key dirty", "+a > # +a .a >", "a closed");
    let mut script = Script::new(QueueConfig::default());
    script.run("+a #");
    assert_eq!(script.core.phase(), Phase::ShuttingDown, "a queue is not drained while a key is ready");
    script.run(">");
    assert_eq!(script.core.phase(), Phase::ShuttingDown, "a queue is not drained while a worker holds a key");
    script.run(".a");
    assert_eq!(script.core.phase(), Phase::Drained);
}

#[test]
fn every_key_and_every_timer_has_a_worker_that_is_awake() {
    check("each ready key wakes a worker", "+a +b w", "2");
    check("a key that is already ready wakes none", "+a w +a w", "1 0");
    check("a worker with a key wakes another for the next key", "+a +b w > w", "2 a 1");
    check("a worker with a key wakes another for the next timer", "+a +b~10 w > w", "2 a 1");
    check("a worker with the last key wakes none", "+a w > w", "1 a 0");
    check("a worker that stops waiting passes a key on", "+a w x w", "1 1");
    check("a worker that stops waiting passes a timer on", "+a~10 w x w", "1 1");
    check("a worker that stops waiting for nothing wakes none", "x w", "0");
    check("only an earlier timer wakes a worker", "+a~10 w +b~20 w +c~10 w +d~5 w", "1 0 0 1");
    check("a shutdown wakes all workers", "# w", "all");
    check("the last key of a shut queue wakes all workers", "+a # w > w", "all a all");
}

#[test]
fn higher_priorities_come_first_without_starving_lower_ones() {
    check("a higher priority comes first", "+a@-100 +b +c@7 > > >", "c b a");
    check("a higher priority moves a ready key up", "+a@-100 +b@-100 +b@5 > > >", "b a -");
    check("a lower one does not move it down", "+a@5 +b@4 +a@1 > >", "a b");
    check("a dirty key has the highest priority it was added with", "+a > +a@9 +a@3 +b@5 .a > >", "a a b");
    // Keys are overdue after 10 s: every other turn belongs to the oldest.
    check(
        "an overdue key gets every other turn",
        "+old@-9 +older@-9 *10000 +a@5 +b@5 +c@5 > > > > >",
        "old a older b c",
    );
}

#[test]
fn groups_are_served_in_turn() {
    let by_namespace = || QueueConfig::default().fair_by(|key: &String| key.chars().next());
    let mut script = Script::new(by_namespace());
    assert_eq!(
        script.run("+a1 +a2 +a3 +a4 +b1 +c1 +c2 > > > > > > >"),
        "a1 b1 c1 a2 c2 a3 a4",
        "a crowded namespace delays another one by one key"
    );
    let mut script = Script::new(by_namespace());
    assert_eq!(script.run("+a1 +a2 +b1@3 > > >"), "b1 a1 a2", "a priority is worth more than a turn");
}

#[test]
fn memory_is_bounded_by_keys_and_unused_failure_counts_expire() {
    let mut script = Script::new(QueueConfig::default());
    for _ in 0..1_000 {
        script.run("+a +b~50 +b~30 !c");
    }
    assert_eq!(script.core.len(), 3, "a queue's memory is its keys, not its adds");
    let metrics = script.core.metrics(script.at());
    assert_eq!((metrics.depth, metrics.delayed, metrics.failing), (1, 2, 1));
    assert!(!script.core.is_empty());
    // After the longest delay (1,000 s), and twice that time without a failure.
    script.run("*1001000 > > > .a .b .c");
    assert_eq!(script.core.len(), 1, "failures are remembered");
    script.run("*2000000 >");
    assert!(script.core.is_empty(), "failure counts that are not reset expire");
}

#[test]
fn metrics_count_adds_retries_and_latencies() {
    let mut script = Script::new(QueueConfig::default());
    script.run("+a +a +b *7 > *30 > *10 .a !c +d~9");
    let metrics = script.core.metrics(script.at());
    assert_eq!((metrics.adds, metrics.retries, metrics.ignored), (2, 1, 0));
    assert_eq!((metrics.depth, metrics.processing, metrics.delayed), (0, 1, 2));
    assert_eq!(metrics.queue_duration.sum(), millis(7 + 37));
    assert_eq!(metrics.work_duration.max(), millis(40));
    assert_eq!((metrics.longest_running, metrics.unfinished_work), (millis(10), millis(10)));
    assert_eq!(metrics.oldest_ready, Duration::ZERO);
    script.run("+e *4 +f *1");
    assert_eq!(script.core.metrics(script.at()).oldest_ready, millis(5));
    script.run("# +g +h~5 !i");
    assert_eq!(script.core.metrics(script.at()).ignored, 3, "an add, a delayed add and a retry after the shutdown");
}

#[test]
fn huge_delays_do_not_overflow() {
    let mut script = Script::new(QueueConfig::default());
    let at = script.at();
    script.core.handle_add_after(at, "a".to_owned(), Duration::MAX, 0);
    assert!(matches!(script.core.poll_take(at), PollTake::Wait(Some(due)) if due > at));
}

// ---- against a model ----

#[derive(Clone, Debug)]
enum Op {
    Add(u8, i32),
    AddAfter(u8, u64),
    Fail(u8),
    Forget(u8),
    Take,
    /// The n-th key in processing is done.
    Done(usize),
    Advance(u64),
    ShutDown,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0_u8..9;
    prop_oneof![
        6 => (key.clone(), -1_i32..2).prop_map(|(key, priority)| Op::Add(key, priority)),
        3 => (key.clone(), 0_u64..40).prop_map(|(key, delay)| Op::AddAfter(key, delay)),
        2 => key.clone().prop_map(Op::Fail),
        1 => key.prop_map(Op::Forget),
        8 => Just(Op::Take),
        6 => (0_usize..4).prop_map(Op::Done),
        4 => (0_u64..30).prop_map(Op::Advance),
    ]
}

/// A slow model of the queue: a table of keys, searched linearly.
#[derive(Default)]
struct Model {
    keys: BTreeMap<u8, Row>,
    /// The groups with keys as (priority, group), in the order of their turns.
    turns: Vec<(i32, u8)>,
    sequence: u64,
    overdue_served: bool,
    shut: bool,
}

#[derive(Clone, Default)]
struct Row {
    /// The time at which the key became ready, its sequence number and its priority.
    ready: Option<(u64, u64, i32)>,
    processing: bool,
    dirty: Option<i32>,
    delayed: Option<(u64, u64, i32)>,
    failures: u32,
}

const OVERDUE: u64 = 25;

fn group(key: u8) -> u8 {
    key / 3
}

impl Model {
    fn add(&mut self, now: u64, key: u8, priority: i32) {
        self.sequence += 1;
        let sequence = self.sequence;
        let row = self.keys.entry(key).or_default();
        if row.processing {
            row.dirty = Some(row.dirty.map_or(priority, |known| known.max(priority)));
            return;
        }
        match row.ready {
            None => row.ready = Some((now, sequence, priority)),
            Some((since, order, known)) => row.ready = Some((since, order, known.max(priority))),
        }
        self.update_turns();
    }

    /// Adds groups with keys to the turns, and removes groups without keys.
    fn update_turns(&mut self) {
        let standing: Vec<(i32, u8)> =
            self.keys.iter().filter_map(|(key, row)| Some((row.ready?.2, group(*key)))).collect();
        self.turns.retain(|turn| standing.contains(turn));
        for turn in standing {
            if !self.turns.contains(&turn) {
                self.turns.push(turn);
            }
        }
    }

    fn advance(&mut self, now: u64) {
        loop {
            let due = self.keys.iter().filter_map(|(key, row)| Some((row.delayed?, *key))).min();
            let Some(((_, _, priority), key)) = due.filter(|((at, ..), _)| *at <= now) else { return };
            self.keys.get_mut(&key).unwrap().delayed = None;
            self.add(now, key, priority);
        }
    }

    fn take(&mut self, now: u64) -> Option<u8> {
        self.advance(now);
        let oldest = self.keys.iter().filter_map(|(key, row)| Some((row.ready?, *key))).min();
        let ((since, ..), oldest) = oldest?;
        let key = if now - since >= OVERDUE && !self.overdue_served {
            self.overdue_served = true;
            self.keys.get_mut(&oldest).unwrap().ready = None;
            self.update_turns();
            oldest
        } else {
            self.overdue_served = false;
            let best = self.turns.iter().map(|(priority, _)| *priority).max()?;
            let at = self.turns.iter().position(|(priority, _)| *priority == best)?;
            let turn = self.turns.remove(at);
            let first = self
                .keys
                .iter()
                .filter(|(key, row)| group(**key) == turn.1 && row.ready.is_some_and(|(.., p)| p == best))
                .min_by_key(|(_, row)| row.ready.map(|(_, order, _)| order));
            let key = *first?.0;
            self.keys.get_mut(&key).unwrap().ready = None;
            self.update_turns();
            key
        };
        self.keys.get_mut(&key).unwrap().processing = true;
        Some(key)
    }

    fn done(&mut self, now: u64, key: u8) {
        let row = self.keys.get_mut(&key).unwrap();
        row.processing = false;
        if let Some(priority) = row.dirty.take() {
            self.add(now, key, priority);
        }
    }
}

/// A deliberate bug that the checks must detect.
#[derive(Clone, Copy, PartialEq)]
enum PlantedBug {
    None,
    LosesAdds,
    IgnoresDelays,
    GivesKeysTwice,
    LosesDirtyKeys,
}

/// Runs the core beside the model. The obligations of each key are tracked separately from both.
fn run(ops: &[Op], plant: PlantedBug) -> Result<(), TestCaseError> {
    let mut config = QueueConfig::default().fair_by(|key: &u8| group(*key));
    config.overdue_after = millis(OVERDUE);
    let policy = config.retry;
    let mut bucket = config.bucket.clone();
    let mut core = WorkQueueCore::new(config);
    let mut model = Model::default();
    let start = Instant::now();
    let mut now = 0_u64;
    let mut processing: Vec<u8> = Vec::new();
    // Keys that were added after they were last taken, with their earliest times.
    let mut owed: BTreeMap<u8, u64> = BTreeMap::new();
    let mut adds_ready = 0_u64;

    let finish = (0..200)
        .flat_map(|n| [Op::Advance(if n == 0 { 0 } else { 5_000_000 }), Op::Take, Op::Done(0), Op::Take, Op::Done(0)]);
    let close = [Op::ShutDown];
    for (step, op) in ops.iter().cloned().chain(close).chain(finish).enumerate() {
        let at = start + millis(now);
        let owe = |owed: &mut BTreeMap<u8, u64>, key: u8, due: u64| {
            owed.entry(key).and_modify(|known| *known = (*known).min(due)).or_insert(due);
        };
        match op {
            Op::Add(key, priority) => {
                if plant == PlantedBug::GivesKeysTwice {
                    core.handle_done(at, &key);
                }
                let lost = plant == PlantedBug::LosesDirtyKeys && processing.contains(&key);
                if plant != PlantedBug::LosesAdds && !lost {
                    core.handle_add(at, key, priority);
                }
                model.add(now, key, priority);
                owe(&mut owed, key, now);
            }
            Op::AddAfter(key, delay) => {
                let told = if plant == PlantedBug::IgnoresDelays { Duration::ZERO } else { millis(delay) };
                core.handle_add_after(at, key, told, 0);
                owe(&mut owed, key, now + delay);
                if delay == 0 {
                    model.add(now, key, 0);
                } else {
                    model.sequence += 1;
                    let sequence = model.sequence;
                    let row = model.keys.entry(key).or_default();
                    let (due, priority) = row.delayed.map_or((now + delay, 0), |(due, _, p)| (due.min(now + delay), p));
                    row.delayed = Some((due, sequence, priority));
                }
            }
            Op::Fail(key) => {
                let delay = core.handle_failure(at, key, 0);
                let row = model.keys.entry(key).or_default();
                let expected = policy.delay(row.failures).max(bucket.reserve(at));
                prop_assert_eq!(delay, expected, "a failure doubles its key's delay (step {})", step);
                row.failures += 1;
                let due = now + delay.as_millis() as u64;
                model.sequence += 1;
                row.delayed = Some(
                    row.delayed.map_or((due, model.sequence, 0), |(known, _, _)| (known.min(due), model.sequence, 0)),
                );
                owe(&mut owed, key, due);
            }
            Op::Forget(key) => {
                core.handle_forget(&key);
                if let Some(row) = model.keys.get_mut(&key) {
                    row.failures = 0;
                }
            }
            Op::Take => {
                let expected = model.take(now);
                match core.poll_take(at) {
                    PollTake::Key(taken) => {
                        prop_assert!(
                            !processing.contains(&taken.key),
                            "two workers hold {} (step {})",
                            taken.key,
                            step
                        );
                        let due = owed.remove(&taken.key);
                        prop_assert!(due.is_some(), "{} was returned but not added (step {})", taken.key, step);
                        prop_assert!(due <= Some(now), "{} came before its time (step {})", taken.key, step);
                        prop_assert_eq!(Some(taken.key), expected, "keys come in their order (step {})", step);
                        // A pending delayed add is a separate obligation.
                        if let Some((due, ..)) = model.keys[&taken.key].delayed {
                            owe(&mut owed, taken.key, due);
                        }
                        processing.push(taken.key);
                        adds_ready += 1;
                    }
                    PollTake::Wait(due) => {
                        prop_assert_eq!(expected, None, "a ready key was not handed out (step {})", step);
                        let first = model.keys.values().filter_map(|row| row.delayed).map(|(at, ..)| at).min();
                        prop_assert_eq!(
                            due,
                            first.map(|at| start + millis(at)),
                            "a worker sleeps until the first time (step {})",
                            step
                        );
                    }
                    PollTake::Closed => {
                        prop_assert!(
                            model.shut && expected.is_none(),
                            "an open queue said it was closed (step {})",
                            step
                        );
                        let dirty: Vec<u8> = processing.iter().filter(|key| owed.contains_key(key)).copied().collect();
                        prop_assert!(dirty.is_empty(), "closed, and {:?} will be ready at done (step {})", dirty, step);
                    }
                }
            }
            Op::Done(n) => {
                if processing.is_empty() {
                    continue;
                }
                let key = processing.remove(n % processing.len());
                prop_assert!(core.handle_done(at, &key), "{} is held (step {})", key, step);
                model.done(now, key);
            }
            Op::Advance(by) => now += by,
            Op::ShutDown => {
                // Due keys are not delayed any more. The shutdown drops the others, as documented.
                model.advance(now);
                core.handle_shut_down(at);
                model.shut = true;
                for (key, row) in &mut model.keys {
                    if row.delayed.take().is_some() && row.ready.is_none() && row.dirty.is_none() {
                        owed.remove(key);
                    }
                }
            }
        }
        // A planted bug must be detected by its effect on users, not by a metric.
        if plant == PlantedBug::None {
            let counted = core.metrics(at).processing;
            prop_assert_eq!(counted, processing.len(), "processing is counted (step {})", step);
        }
        if !model.shut {
            let known = model.keys.get(&0).map_or(0, |row| row.failures);
            prop_assert_eq!(core.failures(&0), known, "failures are counted and forgotten (step {})", step);
        }
    }
    prop_assert!(owed.is_empty(), "shutdown with drain lost {:?}", owed.keys());
    prop_assert_eq!(core.phase(), Phase::Drained, "nothing is left, and the queue does not say so");
    prop_assert_eq!(core.metrics(start + millis(now)).queue_duration.count(), adds_ready, "every wait is counted");
    prop_assert!(core.is_empty(), "an idle queue remembers {} keys", core.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn queue_behaves_like_a_simple_model(ops in prop::collection::vec(op(), 1..160)) {
        run(&ops, PlantedBug::None)?;
    }
}

#[test]
fn checker_reports_each_planted_bug_by_its_name() {
    fn check(plant: PlantedBug, ops: &[Op], promise: &str) {
        assert!(run(ops, PlantedBug::None).is_ok(), "the queue itself fails");
        let failure = run(ops, plant).expect_err("the bug was not noticed").to_string();
        assert!(failure.contains(promise), "{promise:?} is not what broke in {failure}");
    }
    check(PlantedBug::LosesAdds, &[Op::Add(1, 0), Op::Take], "a ready key was not handed out");
    check(PlantedBug::IgnoresDelays, &[Op::AddAfter(1, 30), Op::Take], "came before its time");
    check(PlantedBug::GivesKeysTwice, &[Op::Add(1, 0), Op::Take, Op::Add(1, 0), Op::Take], "two workers hold 1");
    check(
        PlantedBug::LosesDirtyKeys,
        &[Op::Add(1, 0), Op::Take, Op::Add(1, 0), Op::Done(0), Op::Take],
        "was not handed out",
    );
}

// ---- wake-ups ----

/// A waker that records its call.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

type Getting = Pin<Box<dyn Future<Output = Option<WorkItem<u8>>>>>;

/// A waiting worker that is polled by hand, and only after a wake-up.
struct Worker {
    getting: Getting,
    flag: Arc<Flag>,
}

impl Worker {
    fn new(queue: &WorkQueue<u8>) -> Self {
        let queue = queue.clone();
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        Worker { getting: Box::pin(async move { queue.get().await }), flag }
    }

    fn poll(&mut self) -> Poll<Option<WorkItem<u8>>> {
        if !self.flag.0.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        let waker = Waker::from(self.flag.clone());
        self.getting.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

#[derive(Clone, Debug)]
enum Act {
    Get,
    /// Polls the n-th waiting worker, if it was woken.
    Poll(usize),
    /// Drops the n-th waiting worker.
    Cancel(usize),
    Add(u8),
    AddAfter(u8, u64),
    Done(usize),
    Retry(usize),
    Advance(u64),
    /// Polls woken workers until none is woken. Then no ready key may remain.
    Settle,
    ShutDown,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Get),
        4 => (0_usize..6).prop_map(Act::Poll),
        3 => (0_usize..6).prop_map(Act::Cancel),
        4 => (0_u8..6).prop_map(Act::Add),
        4 => (0_u8..6, 1_u64..20).prop_map(|(key, delay)| Act::AddAfter(key, delay)),
        3 => (0_usize..6).prop_map(Act::Done),
        1 => (0_usize..6).prop_map(Act::Retry),
        4 => (0_u64..12).prop_map(Act::Advance),
        3 => Just(Act::Settle),
    ]
}

/// Polls woken workers until none is woken.
fn settle(workers: &mut Vec<Worker>, held: &mut Vec<WorkItem<u8>>) -> usize {
    let mut ended = 0;
    while workers.iter().any(|worker| worker.flag.0.load(Ordering::SeqCst)) {
        let mut still = Vec::new();
        for mut worker in workers.drain(..) {
            match worker.poll() {
                Poll::Ready(Some(item)) => held.push(item),
                Poll::Ready(None) => ended += 1,
                Poll::Pending => still.push(worker),
            }
        }
        *workers = still;
    }
    ended
}

async fn interleave(acts: Vec<Act>) -> Result<(), TestCaseError> {
    let queue: WorkQueue<u8> = WorkQueue::default();
    let (mut workers, mut held) = (Vec::<Worker>::new(), Vec::<WorkItem<u8>>::new());
    let end = [Act::Settle, Act::ShutDown, Act::Settle];
    for (step, act) in acts.into_iter().chain(end).enumerate() {
        match act {
            Act::Get => workers.push(Worker::new(&queue)),
            Act::Poll(n) if !workers.is_empty() => {
                let n = n % workers.len();
                if let Poll::Ready(item) = workers[n].poll() {
                    held.extend(item);
                    workers.remove(n);
                }
            }
            Act::Cancel(n) if !workers.is_empty() => drop(workers.remove(n % workers.len())),
            Act::Add(key) => queue.add(key),
            Act::AddAfter(key, delay) => queue.add_after(key, millis(delay)),
            Act::Done(n) if !held.is_empty() => held.remove(n % held.len()).finish(),
            Act::Retry(n) if !held.is_empty() => {
                held.remove(n % held.len()).retry();
            }
            Act::Advance(by) => tokio::time::advance(millis(by)).await,
            Act::Settle => {
                settle(&mut workers, &mut held);
                let depth = queue.depth();
                prop_assert!(
                    workers.is_empty() || depth == 0,
                    "{depth} keys are ready and no worker was woken (step {step})"
                );
                // A waiting worker also runs the timers of delayed keys.
                let delayed = queue.metrics().delayed;
                if !workers.is_empty() && delayed > 0 {
                    tokio::time::advance(Duration::from_secs(2_000)).await;
                    let before = held.len();
                    settle(&mut workers, &mut held);
                    let still = queue.metrics().delayed;
                    prop_assert!(
                        workers.is_empty() || still == 0,
                        "{still} keys are due and no worker woke up (step {step}, {before} held)"
                    );
                }
            }
            Act::ShutDown => {
                held.clear();
                settle(&mut workers, &mut held);
                queue.shut_down();
                while queue.phase() != Phase::Drained {
                    let waiting = workers.len();
                    settle(&mut workers, &mut held);
                    if held.is_empty() && waiting == 0 {
                        workers.push(Worker::new(&queue));
                    }
                    held.clear();
                }
                settle(&mut workers, &mut held);
                prop_assert!(workers.is_empty(), "{} workers wait for a queue that is drained", workers.len());
            }
            _ => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn no_worker_sleeps_while_a_key_is_ready(acts in prop::collection::vec(act(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(interleave(acts))?;
    }
}

#[tokio::test(start_paused = true)]
async fn key_is_requeued_when_its_worker_panics() {
    let queue: WorkQueue<&str> = WorkQueue::default();
    queue.add("a");
    let taken = queue.clone();
    let worker = tokio::spawn(async move {
        let _item = taken.get().await;
        panic!("on purpose");
    });
    assert!(worker.await.is_err());
    queue.add("a");
    assert_eq!(*queue.get().await.unwrap().key(), "a", "a key was held for ever");
}

#[tokio::test(start_paused = true)]
async fn timer_of_a_dropped_worker_is_taken_over() {
    let queue: WorkQueue<u8> = WorkQueue::default();
    let [mut first, mut second] = [Worker::new(&queue), Worker::new(&queue)];
    assert!(first.poll().is_pending() && second.poll().is_pending());
    queue.add_after(1, millis(10));
    // Now one worker waits with a timer.
    assert!(first.poll().is_pending() && second.poll().is_pending());
    drop(first);
    assert!(second.poll().is_pending(), "the key is not due");
    tokio::time::advance(millis(11)).await;
    let Poll::Ready(Some(item)) = second.poll() else { panic!("no worker has the timer of a delayed key") };
    assert_eq!(*item.key(), 1);
}

#[tokio::test(start_paused = true)]
async fn item_reports_its_priority_wait_and_failures() {
    let queue: WorkQueue<&str> = WorkQueue::default();
    queue.add_with_priority("a", -7);
    tokio::time::advance(millis(30)).await;
    assert_eq!(queue.depth(), 1);
    let item = queue.get().await.unwrap();
    assert_eq!((item.priority(), item.waited(), item.failures()), (-7, millis(30), 0));
    assert_eq!((item.retry(), queue.failures(&"a")), (millis(5), 1));
    let item = queue.get().await.unwrap();
    assert_eq!((item.priority(), item.failures()), (-7, 1), "a retry keeps the priority");
    item.finish();
    assert_eq!(queue.failures(&"a"), 0, "a success resets the failures");
    assert_eq!([queue.add_rate_limited("b"), queue.add_rate_limited("b")], [millis(5), millis(10)]);
    assert_eq!(queue.failures(&"b"), 2);
    queue.forget(&"b");
    assert_eq!(queue.failures(&"b"), 0);
    let begun = tokio::time::Instant::now();
    assert_eq!(*queue.get().await.unwrap().key(), "b");
    assert!((millis(5)..millis(7)).contains(&begun.elapsed()), "the earlier of two delays applies");
}

#[tokio::test(start_paused = true)]
async fn shutdown_with_drain_ends_when_the_last_item_is_dropped() {
    let queue: WorkQueue<&str> = WorkQueue::default();
    queue.add("a");
    let item = queue.get().await.unwrap();
    let drain = tokio::spawn({
        let queue = queue.clone();
        async move { queue.shut_down_with_drain().await }
    });
    tokio::time::sleep(millis(100)).await;
    assert!(!drain.is_finished(), "a drained queue has a key in processing");
    drop(item);
    tokio::time::timeout(millis(100), drain).await.expect("a drained queue is still waited for").unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_with_drain_waits_for_the_last_worker() {
    let queue: WorkQueue<&str> = WorkQueue::default();
    queue.add("a");
    queue.add("b");
    let first = queue.get().await.unwrap();
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            let mut worked = Vec::new();
            while let Some(item) = queue.get().await {
                tokio::time::sleep(millis(20)).await;
                worked.push(*item.key());
                item.finish();
            }
            worked
        }
    });
    queue.add("a");
    let drain = tokio::spawn({
        let queue = queue.clone();
        async move { queue.shut_down_with_drain().await }
    });
    tokio::time::sleep(millis(100)).await;
    assert!(!drain.is_finished(), "a drained queue has a key in processing");
    first.finish();
    assert_eq!(worker.await.unwrap(), ["b", "a"], "what became dirty before the shutdown was lost");
    drain.await.unwrap();
}

#[tokio::test]
async fn concurrent_workers_and_producers_lose_no_key() {
    const KEYS: u64 = 40;
    const ROUNDS: u64 = 50;
    let queue: WorkQueue<u64> = WorkQueue::default();
    // The last requested value of each key, and the last value that its worker saw.
    let wanted: Arc<Vec<std::sync::atomic::AtomicU64>> = Arc::new((0..KEYS).map(|_| 0.into()).collect());
    let seen: Arc<Vec<std::sync::atomic::AtomicU64>> = Arc::new((0..KEYS).map(|_| 0.into()).collect());
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (queue, wanted, seen) = (queue.clone(), wanted.clone(), seen.clone());
            tokio::spawn(async move {
                while let Some(item) = queue.get().await {
                    let key = *item.key() as usize;
                    let state = wanted[key].load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    seen[key].store(state, Ordering::SeqCst);
                    item.finish();
                }
            })
        })
        .collect();
    let producers: Vec<_> = (0..4)
        .map(|producer| {
            let (queue, wanted) = (queue.clone(), wanted.clone());
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    for key in (0..KEYS).filter(|key| key % 4 == producer) {
                        wanted[key as usize].fetch_add(1, Ordering::SeqCst);
                        queue.add(key);
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
    queue.shut_down_with_drain().await;
    for worker in workers {
        worker.await.unwrap();
    }
    for key in 0..KEYS as usize {
        let state = seen[key].load(Ordering::SeqCst);
        assert_eq!(state, ROUNDS, "key {key} was not worked on after its last add");
    }
}
