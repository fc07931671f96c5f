//! Property test of the core under every order of calls that locks would allow. Events are applied
//! and dispatched while readers read the history, return results and attach, each as a separate
//! step. The test has no time, tasks or locks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use listwatch_meta::{Change, FieldSelector, Key, LabelSelector, Object, ObjectShape, Revision, Status};
use proptest::prelude::*;

use crate::cache::{Cache, DecodeError, Input, Listing};
use crate::delivery::SharedEvent;
use crate::filter::{EventLabels, Filter, Scope};
use crate::history::{Evicted, WindowStart};
use crate::hub::{Due, Hub, WatcherId};
use crate::limits::Limits;
use crate::watcher::{Mailbox, Queued, Step};

#[derive(Clone, Debug)]
enum Op {
    /// One transaction: changes of these objects at one revision. `None` is a value that is not an
    /// object.
    Write(Vec<(usize, Option<bool>)>),
    /// Dispatches the oldest undispatched event.
    Dispatch,
    /// Starts a watcher from `back` revisions ago. The watcher selects `app=p`, or everything.
    Watch { back: u64, selects: bool },
    /// Runs the next step of a reader.
    Read(usize),
    /// Queues all bookmarks.
    Bookmarks,
    /// Ends a watch, as a deadline or a stop does.
    Close(usize),
}

/// The state of a reader between two steps.
enum Reader {
    Idle,
    Look(u64),
    Bring(u64, Result<Vec<Arc<SharedEvent>>, Evicted>, WindowStart),
}

struct Watch {
    id: WatcherId,
    mailbox: Mailbox,
    filter: Arc<Filter>,
    reader: Reader,
    from: u64,
    selects: bool,
    /// The position of every delivered event.
    seen: Vec<u64>,
    bookmark: u64,
    expired: bool,
    closed: bool,
}

struct World {
    shape: Arc<ObjectShape>,
    limits: Limits,
    cache: Cache,
    hub: Hub<usize>,
    watches: Vec<Watch>,
    revision: u64,
    /// All events, and the undispatched ones.
    log: Vec<Arc<SharedEvent>>,
    undispatched: VecDeque<Arc<SharedEvent>>,
    now: Instant,
}

const READERS: usize = 3;

fn written() -> impl Strategy<Value = Option<bool>> {
    prop_oneof![1 => Just(None), 8 => any::<bool>().prop_map(Some)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => prop::collection::vec((0..4usize, written()), 1..3).prop_map(Op::Write),
        8 => Just(Op::Dispatch),
        2 => (0..4u64, any::<bool>()).prop_map(|(back, selects)| Op::Watch { back, selects }),
        16 => (0..READERS).prop_map(Op::Read),
        2 => Just(Op::Bookmarks),
        1 => (0..READERS).prop_map(Op::Close),
    ]
}

impl World {
    fn new(history_events: usize) -> Self {
        let shape = Arc::new(ObjectShape::new(true, Vec::new()));
        let limits = Limits {
            watcher_queue_events_max: 2,
            history_events_min: history_events,
            history_age: Duration::ZERO,
            ..Limits::default()
        };
        World {
            cache: Cache::new(shape.clone(), Vec::new(), limits.clone(), Arc::default()),
            hub: Hub::new(&[]),
            watches: Vec::new(),
            revision: 0,
            log: Vec::new(),
            undispatched: VecDeque::new(),
            now: Instant::now(),
            shape,
            limits,
        }
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        self.now += Duration::from_millis(1);
        match op {
            Op::Write(objects) => {
                self.revision += 1;
                let mut undispatched = Vec::new();
                for (n, selected) in objects {
                    let key = Key::new("pods", Some("a"), &format!("p{n}")).unwrap();
                    let revision = Revision::new(self.revision);
                    let input = match selected {
                        Some(selected) => {
                            let app = if *selected { "p" } else { "q" };
                            let json = format!(r#"{{"metadata":{{"labels":{{"app":"{app}"}}}}}}"#);
                            let json = json.as_bytes();
                            Input::Put(Object::from_stored(key, revision, Change::Added, json, &self.shape).unwrap())
                        }
                        None => Input::Undecodable(key, revision, DecodeError::Protobuf),
                    };
                    self.cache.handle_input(self.now, input, &mut undispatched);
                }
                self.log.extend(undispatched.iter().cloned());
                self.undispatched.extend(undispatched);
            }
            Op::Dispatch => self.dispatch(),
            Op::Watch { back, selects } => self.watch(self.revision.saturating_sub(*back), *selects),
            Op::Read(reader) => self.read(*reader)?,
            Op::Bookmarks => self.bookmarks(),
            Op::Close(reader) => {
                if let Some(watch) = self.watches.get_mut(*reader) {
                    drop(watch.mailbox.handle_close(None, self.hub.dispatched()));
                    watch.closed = true;
                }
            }
        }
        Ok(())
    }

    fn dispatch(&mut self) {
        let Some(event) = self.undispatched.pop_front() else { return };
        let (watches, limit) = (&mut self.watches, self.limits.watcher_queue_events_max);
        self.hub.handle_event(&event, &self.shape, |n, change| {
            let mailbox = &mut watches[*n].mailbox;
            match event.undecodable {
                true => mailbox.handle_undecodable(&event, |seen| expired(seen, event.revision())),
                false => mailbox.handle_event(&event, change, limit),
            }
        });
        if self.undispatched.is_empty() {
            self.hub.handle_progress(self.cache.revision(), self.cache.history().end());
        }
    }

    fn watch(&mut self, from: u64, selects: bool) {
        let Ok(position) = self.cache.history().position_after(Revision::new(from)) else { return };
        if self.watches.len() < READERS {
            self.register(Mailbox::from_history(position, Revision::new(from)), from, selects);
        }
    }

    fn register(&mut self, mailbox: Mailbox, from: u64, selects: bool) {
        let labels = LabelSelector::parse(if selects { "app=p" } else { "" }).unwrap();
        let filter = Arc::new(Filter::new("pods", &self.shape, &[], &Scope::All, labels, &FieldSelector::default()));
        let deadline = self.now + Duration::from_secs(1_000_000);
        let n = self.watches.len();
        let id = self.hub.handle_watch(self.now, n, filter.clone(), deadline, true, &self.limits);
        let (seen, reader) = (Vec::new(), Reader::Idle);
        self.watches.push(Watch {
            id,
            mailbox,
            filter,
            reader,
            from,
            selects,
            seen,
            bookmark: 0,
            expired: false,
            closed: false,
        });
    }

    fn read(&mut self, n: usize) -> Result<(), String> {
        let World { watches, cache, hub, log, shape, .. } = self;
        let Some(watch) = watches.get_mut(n) else { return Ok(()) };
        watch.reader = match std::mem::replace(&mut watch.reader, Reader::Idle) {
            Reader::Idle => match watch.mailbox.poll_delivery() {
                Step::NeedHistory(position) => Reader::Look(position),
                Step::Deliver(Queued::Event(event, _)) => {
                    if event.revision().get() <= watch.bookmark {
                        return Err(format!("bookmarkable: {event:?} after a bookmark at {}", watch.bookmark));
                    }
                    watch.seen.push(event.sequence);
                    Reader::Idle
                }
                Step::Deliver(Queued::Bookmark(revision)) => {
                    watch.bookmark = revision.get();
                    let promised = watch.expected(log, shape, |event| event.revision() <= revision);
                    if watch.end(log).is_some_and(|end| end <= revision) {
                        return Err(format!(
                            "complete: a bookmark at {revision} hides an object that became unreadable"
                        ));
                    }
                    if watch.seen != promised {
                        return Err(format!(
                            "atomic: {:?} seen at a bookmark at {revision}, not {promised:?}",
                            watch.seen
                        ));
                    }
                    Reader::Idle
                }
                Step::LastStatus(status) => {
                    watch.expired = status.code == 410;
                    Reader::Idle
                }
                Step::End if !watch.expired => {
                    let expected = watch.expected(log, shape, |_| true);
                    let undispatched = |position: &u64| log[*position as usize].revision();
                    let (last, next) =
                        (watch.seen.last().map(undispatched), expected.get(watch.seen.len()).map(undispatched));
                    if last.is_some() && (last == next || last == watch.end(log)) {
                        return Err(format!("atomic: the watch ends within revision {last:?}"));
                    }
                    Reader::Idle
                }
                Step::Wait | Step::End => Reader::Idle,
                other => return Err(format!("never asked for: {other:?}")),
            },
            Reader::Look(position) => {
                Reader::Bring(position, cache.history().read(position, 2), cache.history().window_start())
            }
            Reader::Bring(position, Err(Evicted), window_start) => {
                watch.mailbox.handle_gone(position, window_start, |seen| expired(seen, window_start.floor));
                Reader::Idle
            }
            Reader::Bring(position, Ok(events), _) if events.is_empty() => {
                if hub.handle_attach(watch.id, position) && !watch.mailbox.handle_attached(position) {
                    hub.handle_detach(watch.id);
                }
                Reader::Idle
            }
            Reader::Bring(position, Ok(events), _) => {
                let filter = watch.filter.clone();
                let view = |event: &SharedEvent| filter.view(&EventLabels::new(&event.event, shape));
                watch.mailbox.handle_history(position, &events, view, expired);
                Reader::Idle
            }
        };
        let expected = watch.expected(log, shape, |_| true);
        if !expected.starts_with(&watch.seen) {
            return Err(format!("ordered, unique, complete: {:?} seen, not {expected:?}", watch.seen));
        }
        Ok(())
    }

    /// Replaces the state, as after a restore of the store, at this revision.
    fn replace(&mut self, revision: u64) {
        self.revision = revision;
        let listing = Listing { revision: Revision::new(revision), ..Listing::default() };
        let plan = self.cache.plan_list(listing, false);
        drop(self.cache.handle_list(plan));
    }

    /// Closes all registered watches, as the driver does after it replaced the state.
    fn close_all(&mut self) {
        for watch in &mut self.watches {
            let last_status = expired(watch.mailbox.last(), self.cache.history().floor());
            drop(watch.mailbox.handle_close(Some(last_status), self.hub.dispatched()));
        }
        self.hub.handle_reset();
        self.hub.handle_progress(self.cache.revision(), self.cache.history().end());
    }

    fn bookmarks(&mut self) {
        self.now += self.limits.bookmark_interval * 2;
        let (watches, limit) = (&mut self.watches, self.limits.watcher_queue_events_max);
        self.hub.handle_timeout(self.now, &self.limits, |due| {
            if let Due::Bookmark(n, revision) = due {
                watches[*n].mailbox.handle_bookmark(revision, limit);
            }
        });
    }

    /// Dispatches and reads everything, then checks that nothing is missing.
    fn finish(&mut self) -> Result<(), String> {
        while !self.undispatched.is_empty() {
            self.dispatch();
        }
        for n in 0..self.watches.len() {
            for _ in 0..10 * (self.log.len() + 10) {
                self.read(n)?;
            }
            let watch = &self.watches[n];
            let expected = watch.expected(&self.log, &self.shape, |_| true);
            let whole = watch.seen == expected && watch.end(&self.log).is_none();
            if !watch.expired && !watch.closed && !whole {
                return Err(format!("complete: {:?} seen, not {expected:?}", watch.seen));
            }
        }
        Ok(())
    }
}

fn expired(seen: Revision, floor: Revision) -> Status {
    Status::expired_watch(seen.get(), floor.get())
}

impl Watch {
    /// The revision at which an object of this watch became undecodable. The watch ends there.
    fn end(&self, log: &[Arc<SharedEvent>]) -> Option<Revision> {
        let event = log.iter().find(|event| event.undecodable && self.sees(event))?;
        Some(event.revision())
    }

    fn sees(&self, event: &SharedEvent) -> bool {
        let selected = |object: &Object| !self.selects || object.label("app").as_deref() == Some("p");
        let now = !event.undecodable && selected(&event.event.object);
        event.revision().get() > self.from && (now || event.event.previous.as_ref().is_some_and(selected))
    }

    /// The positions of the events that a watch sees and that satisfy `which`.
    fn expected(
        &self,
        log: &[Arc<SharedEvent>],
        shape: &ObjectShape,
        which: impl Fn(&SharedEvent) -> bool,
    ) -> Vec<u64> {
        debug_assert!(shape.namespaced());
        let end = self.end(log).unwrap_or(Revision::new(u64::MAX));
        log.iter()
            .filter(|event| event.revision() <= end && which(event))
            .filter(|event| !event.undecodable && self.sees(event))
            .map(|event| event.sequence)
            .collect()
    }
}

/// The store was restored to an older revision while a watch begins after a later one.
#[test]
fn watch_that_begins_before_the_state_is_replaced_never_continues_in_the_new_history() {
    for registered_at in 0..3 {
        let mut world = World::new(1_000);
        let write = |world: &mut World| {
            world.step(&Op::Write(vec![(0, Some(true))])).unwrap();
            world.dispatch();
        };
        (0..6).for_each(|_| write(&mut world));
        let position = world.cache.history().position_after(Revision::new(5)).unwrap();
        let mut mailbox = Some(Mailbox::from_history(position, Revision::new(5)));
        for step in 0..3 {
            if step == registered_at {
                world.register(mailbox.take().unwrap(), 5, false);
            }
            match step {
                0 => world.replace(3),
                1 => world.close_all(),
                _ => (0..3).for_each(|_| write(&mut world)),
            }
        }
        for _ in 0..50 {
            world.read(0).unwrap_or_else(|broken| panic!("{broken}, registered at step {registered_at}"));
        }
        assert!(world.watches[0].expired, "resumable: the watch continues, registered at step {registered_at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn every_order_of_calls_delivers_all_events_in_order(
        ops in prop::collection::vec(op(), 1..120),
        history_events in prop::sample::select(vec![3usize, 1_000]),
    ) {
        let mut world = World::new(history_events);
        let mut verdict = ops.iter().try_for_each(|op| world.step(op));
        if verdict.is_ok() {
            verdict = world.finish();
        }
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}
