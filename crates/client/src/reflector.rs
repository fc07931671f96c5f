//! The reflector: the state machine that keeps a local copy up to date.
//!
//! ```text
//!            ┌────────────── WatchList refused, cut twice, or without its marker ──────────────┐
//!            │                                                                                 ▼
//!  start ─▶ Initial ── ADDED… ── bookmark "initial-events-end" ─▶ commit       Listing ◀── page, page, …
//!            ▲                                                      │             │ last page
//!            │                                                      ▼             ▼
//!            │                                                   Watching ◀──── commit
//!            │                                                    │   ▲
//!            │  410, or k fruitless watches                       │   │ resume at the last complete version:
//!            └──────────── (one backoff step) ◀───────────────────┤   │ at once after a clean end,
//!                                                                 └───┘ after a backoff otherwise,
//!                                                                       Checking first if in doubt
//! ```
//!
//! The reflector is pure. Inputs and a [`TimeAndRandom`] (the time and a random number) are passed
//! to the `handle_*` methods. [`Reflector::poll_action`] returns the next action, and
//! [`Reflector::poll_timeout`] the time of the next call without other input. The reflector owns no
//! task, channel, clock or random generator, so a test can produce any interleaving as an order of
//! calls. [`crate::driver`] shows the recommended order: after each `handle_*`, perform all
//! actions; then wait for the open request or the timeout.
//!
//! Rules that differ from client-go's:
//! - A watch that fails with anything but 410 is resumed, because lists make an outage worse. Only
//!   [`RESUME_LIMIT`] watches in a row without events cause a relist.
//! - A watch resumes at the last version whose changes are known to be complete, not at the version of the last event.
//!   A server can change several objects at one version, e.g. when a lease expires, and a connection can be cut between
//!   their events. The events of the last version arrive again; [`DeltaFifo`](crate::DeltaFifo) drops them.
//! - A 410 causes a relist at any place: HTTP status, ERROR event, page, WatchList.
//! - The wait for the end of the initial events is bounded ([`ReflectorConfig::marker_wait`]). Then
//!   the state is listed instead, and [`ServerMemory`] records the failure.
//! - Only progress resets a backoff: an event of a newer version, a bookmark, or a watch that lasted
//!   [`STABLE_WATCH_MIN`]. An event that arrives again is not progress, and neither is a completed list. Otherwise
//!   watches or lists could follow each other without a delay.
//! - After a broken or short stream, a list of one item checks whether the server has reached the version to resume
//!   from ([`ReflectorConfig::check_server`]). A server can lose its history if it is restored from a backup or stores
//!   in memory. Such a server would accept the watch, and send nothing until its version exceeds the client's.
//! - The first list requests the most recent state by default. Otherwise a restarted client could begin with an older
//!   state than it has seen.

mod server_memory;
mod state;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use listwatch_meta::{ListOptions, ResourceVersion, canary};
use listwatch_wire::{EventKind, ListMeta, Metadata};

use crate::backoff::{Backoff, BackoffPolicy};
use crate::deadline::{WAIT_MAX, deadline};
use crate::object::{TypeName, compare_versions};
use crate::pager::{Page, Pager};
use crate::problem::Problem;

pub use self::server_memory::{SILENT_WATCH_LISTS, ServerMemory, WATCH_LIST_MEMORY};
pub use self::state::ReflectorState;

/// The number of watches in a row without a bookmark or an event of a newer version (opened or rejected) after which
/// the state is listed again. Lost connections and responses of an overloaded server do not count.
pub const RESUME_LIMIT: u32 = 5;

/// The number of truncated streams of initial events after which the state is listed instead.
pub const INITIAL_CUTS_LIMIT: u32 = 2;

/// The duration of a watch after which it resets the backoff, even without events.
pub const STABLE_WATCH_MIN: Duration = Duration::from_secs(60);

/// A watch that ends within this time without events is treated as failed.
pub const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Time after the requested end of a watch at which the client closes it, because the server did
/// not.
pub const WATCH_END_GRACE: Duration = Duration::from_secs(30);

/// The number of checks in which a server may report not to have reached the last version. After
/// the last one the reflector reads the most recent state.
pub const CHECK_LIMIT: u32 = 3;

/// The number of missed bookmark intervals after which a silent watch is closed, if that is sooner
/// than [`ReflectorConfig::idle_limit`].
pub const BOOKMARKS_MISSED: u32 = 3;

/// The shortest silence that is treated as missed bookmarks, for any interval.
pub const BOOKMARK_WAIT_MIN: Duration = Duration::from_secs(30);

/// The consistency of a first list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstRead {
    /// The most recent state: all writes that were acknowledged before the request.
    MostRecent,
    /// Any state of the server, as client-go requests it. Cheaper on old servers, but possibly
    /// older than the state that a previous run of this program saw.
    Any,
}

/// The options of a reflector. The defaults suit a controller.
#[derive(Clone, Debug)]
pub struct ReflectorConfig {
    /// The consistency of the first list.
    pub first_read: FirstRead,
    /// Try a WatchList (initial events through the watch) before a list.
    pub watch_list: bool,
    /// Items per page of a list.
    pub page_size: i64,
    /// The shortest requested duration of a watch. The requested duration is random between this
    /// and twice this, so that watches opened together do not end together.
    pub min_watch_timeout: Duration,
    /// A watch without input for this time is reopened at its last complete version. Set it below the idle
    /// limit of load balancers on the path. `None` relies on HTTP/2 pings alone.
    pub idle_limit: Option<Duration>,
    /// Time for the response to a request, and for the next item of a list.
    pub request_wait: Duration,
    /// The time limit without input before the end marker of a WatchList.
    pub marker_wait: Duration,
    /// Whether to check after a broken or short stream that the server has reached the resume
    /// version.
    pub check_server: bool,
    /// The delays after failures.
    pub backoff: BackoffPolicy,
    /// The type of the resource's objects, if known from discovery. Events of another type are
    /// skipped.
    pub type_name: Option<TypeName>,
    /// Knowledge about the server. Share it only between reflectors of the same server.
    pub server: ServerMemory,
}

impl Default for ReflectorConfig {
    fn default() -> Self {
        ReflectorConfig {
            first_read: FirstRead::MostRecent,
            watch_list: true,
            page_size: 500,
            min_watch_timeout: Duration::from_secs(300),
            idle_limit: Some(Duration::from_secs(225)),
            request_wait: Duration::from_secs(60),
            marker_wait: Duration::from_secs(15),
            check_server: true,
            backoff: BackoffPolicy::default(),
            type_name: None,
            server: ServerMemory::new(),
        }
    }
}

/// The time of an input, and a random number for its handling.
#[derive(Clone, Copy, Debug)]
pub struct TimeAndRandom {
    /// The time; never decreases.
    pub now: Instant,
    /// Uniform in `[0, 1)`.
    pub random: f64,
}

/// The next action of the driver. Opening a request closes the previous one.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Begin to collect a new state, and drop an incomplete one.
    Begin,
    /// Request a list page.
    List(ListOptions),
    /// Open a watch.
    Watch(ListOptions),
    /// Close the open request.
    Close,
    /// Replace the current state with the collected state.
    Commit {
        /// The resource version of the collected state.
        version: String,
    },
}

/// The handling of one event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventAction {
    /// Apply the event to the store.
    Apply,
    /// Collect the object: it belongs to a state that is not complete.
    Collect,
    /// The event is a bookmark without an object; the version may have advanced.
    Bookmark,
    /// The object belongs to the response of a version check: drop the object.
    Ignore,
    /// Skip the event.
    Skip(SkipReason),
}

/// The reason why an event is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The object is of another kind than the resource. The version does not advance.
    ForeignType,
    /// The object has no name or no resource version.
    Unidentified,
    /// The event belongs to an abandoned watch.
    NotWatching,
}

/// The state machine that keeps a copy current by lists and watches; see the [module](self).
#[derive(Debug)]
pub struct Reflector {
    config: ReflectorConfig,
    phase: Phase,
    actions: VecDeque<Action>,
    backoff: Backoff,
    /// The version of the last list, applied event or bookmark; empty before the first. A state of this version is not
    /// older than the copy, so relists and checks request it.
    version: String,
    /// The newest version up to which all changes have arrived; watches resume at it. More events of `version` may
    /// follow an event, so this is the version before. A list or bookmark of a version is complete.
    resume_version: String,
    /// The server rejected `version` as expired or too large, so the next list must request the
    /// most recent state.
    version_unavailable: bool,
    /// The server rejected a WatchList, and the list that follows has not arrived. If that is rejected too, the reason
    /// is another one, e.g. a field selector.
    watch_list_rejected: bool,
    /// A list of any state was paged, so this server does not list from a watch cache.
    paged: bool,
    /// The longest interval between two bookmarks of this server.
    bookmark_interval: Option<Duration>,
    /// The number of watches in a row without progress.
    fruitless: u32,
    /// A stream broke or ended early, so the server may have another state than before.
    server_unverified: bool,
    synced: bool,
    /// The type of list items without a type.
    item_type: Option<TypeName>,
    /// The required type of every event. This type is never derived from a list, because a custom resource
    /// may give its list any kind.
    event_type: Option<TypeName>,
    problem: Option<Problem>,
}

#[derive(Debug)]
enum Phase {
    Starting,
    Listing(Listing),
    Initial(Initial),
    Checking(Checking),
    Watching(Watching),
    Waiting { until: Instant, then: AfterWait },
}

/// The next request after a wait.
#[derive(Debug)]
enum AfterWait {
    /// Get the complete state by WatchList or by list.
    Refresh,
    /// Request the same page of the same list.
    Page(Box<Listing>),
    /// Request the initial events again. Earlier truncations count.
    InitialEvents { cuts: u32 },
    /// Check the version again, then watch.
    Check { refusals: u32 },
    /// Watch again from the last complete version.
    Resume,
}

#[derive(Debug)]
struct Listing {
    pager: Pager,
    items: u64,
    since: Instant,
    heard: Instant,
}

#[derive(Debug)]
struct Initial {
    open: bool,
    /// The request had no version, so the state is already the most recent one.
    consistent: bool,
    events: u64,
    cuts: u32,
    since: Instant,
    heard: Instant,
    /// The requested duration.
    timeout: Duration,
}

#[derive(Debug)]
struct Checking {
    /// The number of checks in which the server had not reached the version.
    refusals: u32,
    since: Instant,
    heard: Instant,
}

#[derive(Debug)]
struct Watching {
    open: bool,
    /// The number of bookmarks, and of events of a newer version.
    events: u64,
    since: Instant,
    heard: Instant,
    /// The time of the last bookmark of this watch.
    bookmark: Option<Instant>,
    /// The requested duration.
    timeout: Duration,
}

impl Reflector {
    /// A reflector without a state.
    pub fn new(config: ReflectorConfig) -> Self {
        let backoff = Backoff::new(config.backoff);
        Reflector {
            item_type: config.type_name.clone(),
            event_type: config.type_name.clone(),
            config,
            phase: Phase::Starting,
            actions: VecDeque::new(),
            backoff,
            version: String::new(),
            resume_version: String::new(),
            version_unavailable: false,
            watch_list_rejected: false,
            paged: false,
            bookmark_interval: None,
            fruitless: 0,
            server_unverified: false,
            synced: false,
            problem: None,
        }
    }

    // ===== questions =====

    /// The state of the reflector.
    pub fn state(&self) -> ReflectorState {
        match &self.phase {
            Phase::Starting => ReflectorState::Starting,
            Phase::Listing(listing) => {
                ReflectorState::Listing { page: listing.pager.page(), items: listing.items, since: listing.since }
            }
            Phase::Initial(initial) if initial.open => {
                ReflectorState::AwaitingInitialEvents { events: initial.events, since: initial.since }
            }
            Phase::Checking(checking) => ReflectorState::Checking { since: checking.since },
            Phase::Watching(watching) if watching.open => ReflectorState::Watching { since: watching.since },
            Phase::Initial(Initial { since, .. }) | Phase::Watching(Watching { since, .. }) => {
                ReflectorState::Connecting { since: *since }
            }
            Phase::Waiting { until, .. } => ReflectorState::BackingOff {
                problem: self.problem.clone().unwrap_or(Problem::ShortWatch),
                attempts: self.backoff.attempts(),
                until: *until,
            },
        }
    }

    /// True once a complete state was committed.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The version of the last list, event or bookmark; empty before the first state. All changes before this version
    /// were delivered. After an event, further changes of the same version may follow.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The last problem since the last progress, if any.
    pub fn last_problem(&self) -> Option<&Problem> {
        self.problem.as_ref()
    }

    /// The type of list items without a type, once it is known.
    pub fn item_type(&self) -> Option<&TypeName> {
        self.item_type.as_ref()
    }

    // ===== what happened =====

    /// Starts the reflector. Call this once, before all other methods.
    pub fn handle_start(&mut self, at: TimeAndRandom) {
        if matches!(self.phase, Phase::Starting) {
            self.refresh(at);
        }
    }

    /// Handles the type of the current list, which precedes its items.
    pub fn handle_list_type(&mut self, list: &TypeName) {
        if let Some(kind) = list.kind.strip_suffix("List").filter(|kind| !kind.is_empty() && self.item_type.is_none()) {
            self.item_type = Some(TypeName { api_version: list.api_version.clone(), kind: kind.to_owned() });
        }
    }

    /// Handles an item of a list. The caller collects the item unless the action says otherwise.
    pub fn handle_item(&mut self, at: TimeAndRandom, metadata: &Metadata<'_>) -> EventAction {
        let listing = match &mut self.phase {
            Phase::Listing(listing) => listing,
            Phase::Checking(_) => return EventAction::Ignore,
            _ => return EventAction::Skip(SkipReason::NotWatching),
        };
        listing.items += 1;
        listing.heard = at.now;
        if metadata.name.is_empty() {
            return EventAction::Skip(SkipReason::Unidentified);
        }
        EventAction::Collect
    }

    /// Handles the end of a list page, after all its items.
    pub fn handle_list_end(&mut self, at: TimeAndRandom, meta: &ListMeta) {
        let listing = match &mut self.phase {
            Phase::Listing(listing) => listing,
            Phase::Checking(_) => {
                self.server_unverified = false;
                return self.watch(at);
            }
            _ => return,
        };
        listing.heard = at.now;
        match listing.pager.handle_page(meta) {
            Page::More(options) => {
                self.paged |= listing.pager.requests_any_state();
                self.actions.push_back(Action::List(options));
            }
            Page::Complete { version } => {
                if std::mem::take(&mut self.watch_list_rejected) {
                    self.config.server.remember_refusal(at.now);
                }
                self.commit(version);
                self.watch(at);
            }
            Page::NoVersion => {
                self.handle_problem(at, Problem::malformed("a list carries no resourceVersion"));
            }
        }
    }

    /// Handles the successful response to a watch request.
    pub fn handle_watch_open(&mut self, at: TimeAndRandom) {
        match &mut self.phase {
            Phase::Initial(initial) => {
                initial.open = true;
                initial.heard = at.now;
            }
            Phase::Watching(watching) => {
                watching.open = true;
                watching.since = at.now;
                watching.heard = at.now;
            }
            _ => {}
        }
    }

    /// Handles an event of the watch. ERROR events go to [`Reflector::handle_problem`].
    pub fn handle_event(&mut self, at: TimeAndRandom, kind: EventKind, metadata: &Metadata<'_>) -> EventAction {
        let foreign = self.is_foreign(metadata);
        match &mut self.phase {
            Phase::Initial(initial) => {
                initial.heard = at.now;
                if foreign {
                    return EventAction::Skip(SkipReason::ForeignType);
                }
                if kind == EventKind::Bookmark {
                    // A bookmark without the end mark does not end the initial events.
                    if metadata.initial_events_end && !metadata.resource_version.is_empty() {
                        let timeout = initial.timeout;
                        self.config.server.remember_end_marker();
                        self.learn_type(metadata);
                        self.commit(metadata.resource_version.clone().into_owned());
                        self.phase = Phase::Watching(Watching {
                            open: true,
                            events: 0,
                            since: at.now,
                            heard: at.now,
                            bookmark: None,
                            timeout,
                        });
                    }
                    return EventAction::Bookmark;
                }
                initial.events += 1;
                if metadata.name.is_empty() {
                    return EventAction::Skip(SkipReason::Unidentified);
                }
                EventAction::Collect
            }
            Phase::Watching(watching) => {
                watching.heard = at.now;
                if foreign {
                    return EventAction::Skip(SkipReason::ForeignType);
                }
                if metadata.resource_version.is_empty() || (metadata.name.is_empty() && kind != EventKind::Bookmark) {
                    return EventAction::Skip(SkipReason::Unidentified);
                }
                let is_bookmark = kind == EventKind::Bookmark;
                if is_bookmark && let Some(before) = watching.bookmark.replace(at.now) {
                    let interval = at.now.saturating_duration_since(before);
                    self.bookmark_interval = self.bookmark_interval.max(Some(interval));
                }
                let order = compare_versions(&metadata.resource_version, &self.version);
                let is_newer = order.map_or_else(|| metadata.resource_version != self.version, Ordering::is_gt);
                // An event of a known version may be a repetition. A server that cuts each watch after its repeated
                // events would be asked at full speed if they counted.
                if is_bookmark || is_newer {
                    watching.events += 1;
                    self.progress();
                }
                // The versions never go back, even if the server's events do.
                if is_newer && (is_bookmark || !canary!("client-resumes-from-the-last-bookmark")) {
                    self.resume_version.clone_from(&self.version);
                    metadata.resource_version.as_ref().clone_into(&mut self.version);
                }
                // No change of the bookmark's version follows. The version may be known from its events.
                if is_bookmark && metadata.resource_version == self.version {
                    self.resume_version.clone_from(&self.version);
                }
                if kind == EventKind::Bookmark { EventAction::Bookmark } else { EventAction::Apply }
            }
            _ => EventAction::Skip(SkipReason::NotWatching),
        }
    }

    /// Handles the end of a watch whose response the server has finished.
    pub fn handle_stream_end(&mut self, at: TimeAndRandom) {
        match &self.phase {
            Phase::Initial(initial) => {
                let cuts = initial.cuts + 1;
                self.problem = Some(Problem::ShortWatch);
                if cuts >= INITIAL_CUTS_LIMIT { self.list(at) } else { self.initial_events(at, cuts) }
            }
            Phase::Watching(watching) => {
                let lived = at.now.saturating_duration_since(watching.since);
                let (of_use, timeout) = (watching.events > 0, watching.timeout);
                if lived >= STABLE_WATCH_MIN {
                    self.progress();
                }
                // A server that ends its streams early is shutting down or has just started.
                self.server_unverified |= lived < timeout.saturating_sub(SHORT_WATCH);
                if of_use || lived >= SHORT_WATCH {
                    self.resume(at);
                } else {
                    self.fail_watch(at, Problem::ShortWatch);
                }
            }
            _ => {}
        }
    }

    /// Handles a failure of the open request, or an ERROR event in its stream.
    pub fn handle_problem(&mut self, at: TimeAndRandom, problem: Problem) {
        match std::mem::replace(&mut self.phase, Phase::Starting) {
            Phase::Listing(listing) => self.fail_list(at, listing, problem),
            Phase::Initial(initial) => self.fail_initial(at, &initial, problem),
            Phase::Checking(checking) => self.fail_check(at, &checking, problem),
            Phase::Watching(watching) => {
                self.server_unverified |= matches!(problem, Problem::Disconnected { .. } | Problem::Silent { .. });
                let lived = at.now.saturating_duration_since(watching.since);
                let of_use = watching.events > 0 || (watching.open && lived >= STABLE_WATCH_MIN);
                if watching.open && lived >= STABLE_WATCH_MIN {
                    self.progress();
                }
                if of_use && matches!(problem, Problem::Disconnected { .. }) {
                    // A working stream was cut, most likely by a restart or a rotation. The next
                    // server is probably available.
                    self.problem = Some(problem);
                    self.resume(at);
                } else {
                    self.fail_watch(at, problem);
                }
            }
            other => self.phase = other,
        }
    }

    /// Handles the time of [`Reflector::poll_timeout`]. An early call has no effect.
    pub fn handle_timeout(&mut self, at: TimeAndRandom) {
        if self.poll_timeout().is_none_or(|due| at.now < due) {
            return;
        }
        let waited = |heard: Instant| Problem::Silent { waited: at.now.saturating_duration_since(heard) };
        match &self.phase {
            Phase::Starting => {}
            Phase::Listing(Listing { heard, .. })
            | Phase::Checking(Checking { heard, .. })
            | Phase::Watching(Watching { open: false, heard, .. }) => {
                let problem = waited(*heard);
                self.handle_problem(at, problem);
            }
            Phase::Initial(initial) if !initial.open => {
                let problem = waited(initial.heard);
                self.handle_problem(at, problem);
            }
            Phase::Initial(initial) => {
                self.config.server.remember_silence(initial.since, at.now);
                self.problem = Some(Problem::NoInitialEventsEnd);
                self.list(at);
            }
            // An idle watch is not a failure: the version is known, and a new connection is cheap.
            // If bookmarks were missing, their interval may be longer than the observed one.
            Phase::Watching(_) => {
                self.bookmark_interval = self.bookmark_interval.map(|interval| interval.saturating_mul(2));
                self.watch(at);
            }
            Phase::Waiting { .. } => {
                let Phase::Waiting { then, .. } = std::mem::replace(&mut self.phase, Phase::Starting) else { return };
                match then {
                    AfterWait::Refresh => self.refresh(at),
                    AfterWait::Page(listing) => {
                        let options = listing.pager.options();
                        if listing.pager.is_at_start() {
                            self.actions.push_back(Action::Begin);
                        }
                        self.actions.push_back(Action::List(options));
                        self.phase = Phase::Listing(Listing { since: at.now, heard: at.now, ..*listing });
                    }
                    AfterWait::InitialEvents { cuts } => self.initial_events(at, cuts),
                    AfterWait::Check { refusals } => self.check(at, refusals),
                    AfterWait::Resume => self.resume(at),
                }
            }
        }
    }

    // ===== what to do =====

    /// Returns the next action. Call it until it returns `None` after every `handle_*`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The time of the next call of [`Reflector::handle_timeout`] without other input.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Some(match &self.phase {
            Phase::Starting => return None,
            Phase::Listing(listing) => deadline(listing.heard, self.config.request_wait),
            Phase::Checking(checking) => deadline(checking.heard, self.config.request_wait),
            Phase::Initial(initial) if initial.open => deadline(initial.heard, self.config.marker_wait),
            Phase::Initial(initial) => deadline(initial.heard, self.config.request_wait),
            Phase::Watching(watching) if watching.open => {
                let end = deadline(watching.since, watching.timeout.saturating_add(WATCH_END_GRACE));
                let silence = [self.config.idle_limit, self.bookmark_wait()].into_iter().flatten().min();
                silence.map_or(end, |silence| end.min(deadline(watching.heard, silence)))
            }
            Phase::Watching(watching) => deadline(watching.heard, self.config.request_wait),
            Phase::Waiting { until, .. } => *until,
        })
    }

    // ===== transitions =====

    /// Gets the complete state, by WatchList if the server supports it.
    fn refresh(&mut self, at: TimeAndRandom) {
        self.fruitless = 0;
        let refused = self.config.server.refuses_watch_list(at.now);
        if self.config.watch_list && !refused { self.initial_events(at, 0) } else { self.list(at) }
    }

    fn initial_events(&mut self, at: TimeAndRandom, cuts: u32) {
        self.watch_list_rejected = false;
        let version = if self.version_unavailable { "" } else { &self.version };
        let options = ListOptions {
            send_initial_events: Some(true),
            resource_version_match: "NotOlderThan".to_owned(),
            ..self.watch_options(at, version)
        };
        self.phase = Phase::Initial(Initial {
            open: false,
            consistent: version.is_empty(),
            events: 0,
            cuts,
            since: at.now,
            heard: at.now,
            timeout: requested_timeout(&options),
        });
        self.actions.push_back(Action::Begin);
        self.actions.push_back(Action::Watch(options));
    }

    fn list(&mut self, at: TimeAndRandom) {
        let version = match () {
            () if self.version_unavailable => "",
            () if !self.version.is_empty() => &self.version,
            () => match self.config.first_read {
                FirstRead::MostRecent => "",
                FirstRead::Any => "0",
            },
        };
        let pager = Pager::new(version, self.config.page_size, self.paged);
        self.start_list(at, pager);
    }

    fn start_list(&mut self, at: TimeAndRandom, pager: Pager) {
        self.actions.push_back(Action::Begin);
        self.actions.push_back(Action::List(pager.options()));
        self.phase = Phase::Listing(Listing { pager, items: 0, since: at.now, heard: at.now });
    }

    /// Resumes the watch at the last complete version.
    fn resume(&mut self, at: TimeAndRandom) {
        if self.server_unverified && self.config.check_server { self.check(at, 0) } else { self.watch(at) }
    }

    /// Lists one item, not older than the last version.
    fn check(&mut self, at: TimeAndRandom, refusals: u32) {
        self.actions.push_back(Action::List(ListOptions {
            resource_version: ResourceVersion::new(self.version.as_str()),
            resource_version_match: "NotOlderThan".to_owned(),
            limit: 1,
            ..ListOptions::default()
        }));
        self.phase = Phase::Checking(Checking { refusals, since: at.now, heard: at.now });
    }

    fn watch(&mut self, at: TimeAndRandom) {
        let options = self.watch_options(at, &self.resume_version);
        self.phase = Phase::Watching(Watching {
            open: false,
            events: 0,
            since: at.now,
            heard: at.now,
            bookmark: None,
            timeout: requested_timeout(&options),
        });
        self.actions.push_back(Action::Watch(options));
    }

    fn watch_options(&self, at: TimeAndRandom, version: &str) -> ListOptions {
        let timeout = self.config.min_watch_timeout.min(WAIT_MAX).mul_f64(1.0 + at.random.clamp(0.0, 0.999_999));
        ListOptions {
            watch: true,
            allow_watch_bookmarks: true,
            resource_version: ResourceVersion::new(version),
            timeout_seconds: Some(i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX)),
            ..ListOptions::default()
        }
    }

    /// The silence after which a server that sends bookmarks has missed too many.
    fn bookmark_wait(&self) -> Option<Duration> {
        let interval = self.bookmark_interval?;
        Some(interval.saturating_mul(BOOKMARKS_MISSED).max(BOOKMARK_WAIT_MIN))
    }

    fn commit(&mut self, version: String) {
        self.version.clone_from(&version);
        self.resume_version.clone_from(&version);
        self.version_unavailable = false;
        self.server_unverified = false;
        self.synced = true;
        self.actions.push_back(Action::Commit { version });
    }

    /// Records progress. A server that sends later changes has reached the version.
    fn progress(&mut self) {
        self.fruitless = 0;
        self.problem = None;
        self.backoff.reset();
    }

    fn wait(&mut self, at: TimeAndRandom, problem: Problem, then: AfterWait) {
        let delay = self.backoff.next_delay(at.random, problem.retry_after());
        self.problem = Some(problem);
        self.phase = Phase::Waiting { until: deadline(at.now, delay), then };
        self.actions.push_back(Action::Close);
    }

    fn fail_list(&mut self, at: TimeAndRandom, mut listing: Listing, problem: Problem) {
        let unavailable = problem.is_expired() || problem.is_too_large_version();
        if problem.is_expired()
            && let Some(whole) = listing.pager.whole_list()
        {
            // The version expired while the pages were read, so the list is requested in one
            // response.
            self.problem = Some(problem);
            self.start_list(at, whole);
        } else if unavailable && !listing.pager.requests_most_recent() {
            // The server cannot return a state that is not older than the last version; the most
            // recent one it can.
            self.version_unavailable = true;
            self.problem = Some(problem);
            self.list(at);
        } else if listing.pager.is_at_start() || (!problem.is_temporary() && problem.status().is_some()) {
            listing.pager.restart();
            listing.items = 0;
            self.wait(at, problem, AfterWait::Page(Box::new(listing)));
        } else {
            // The collected items stay, and the same page is requested at the same version.
            self.wait(at, problem, AfterWait::Page(Box::new(listing)));
        }
    }

    fn fail_initial(&mut self, at: TimeAndRandom, initial: &Initial, problem: Problem) {
        if problem.is_expired() || problem.is_too_large_version() {
            if initial.consistent {
                // The most recent state cannot be expired, so the server needs time.
                self.wait(at, problem, AfterWait::Refresh);
            } else {
                self.version_unavailable = true;
                self.problem = Some(problem);
                self.initial_events(at, initial.cuts);
            }
        } else if problem.is_temporary() {
            let cuts = initial.cuts + u32::from(initial.open);
            if cuts >= INITIAL_CUTS_LIMIT {
                self.problem = Some(problem);
                self.list(at);
            } else {
                self.wait(at, problem, AfterWait::InitialEvents { cuts });
            }
        } else {
            // A server that does not know the parameters rejects them in one of these ways.
            if problem.status().is_some_and(|status| matches!(status.code, 400 | 405 | 406 | 422)) {
                self.watch_list_rejected = true;
            }
            self.problem = Some(problem);
            self.list(at);
        }
    }

    fn fail_check(&mut self, at: TimeAndRandom, checking: &Checking, problem: Problem) {
        if problem.is_too_large_version() {
            let refusals = checking.refusals + 1;
            if refusals < CHECK_LIMIT {
                // A lagging cache catches up; a server that lost its history does not.
                self.wait(at, problem, AfterWait::Check { refusals });
            } else {
                self.version_unavailable = true;
                self.problem = Some(problem);
                self.refresh(at);
            }
        } else if problem.is_temporary() {
            self.wait(at, problem, AfterWait::Check { refusals: checking.refusals });
        } else {
            // The check was rejected, not answered. The watch will show the server's state.
            self.server_unverified = false;
            self.problem = Some(problem);
            self.watch(at);
        }
    }

    /// Handles a failed watch: resume after a backoff, or list again if the problem requires it.
    fn fail_watch(&mut self, at: TimeAndRandom, problem: Problem) {
        if problem.is_expired() && canary!("client-watches-on-after-expiry") {
            self.version.clear();
            self.resume_version.clear();
            return self.wait(at, problem, AfterWait::Resume);
        }
        if problem.is_expired() {
            self.wait(at, problem, AfterWait::Refresh);
            return;
        }
        if !problem.is_temporary() {
            self.fruitless += 1;
        }
        let then = if self.fruitless >= RESUME_LIMIT { AfterWait::Refresh } else { AfterWait::Resume };
        self.wait(at, problem, then);
    }

    fn is_foreign(&self, metadata: &Metadata<'_>) -> bool {
        // Without a known type, or without a type in the object, no object is foreign.
        self.event_type.as_ref().is_some_and(|own| {
            !metadata.kind.is_empty() && (own.kind != metadata.kind || own.api_version != metadata.api_version)
        })
    }

    fn learn_type(&mut self, metadata: &Metadata<'_>) {
        if self.event_type.is_none() && !metadata.kind.is_empty() {
            self.event_type = Some(TypeName {
                api_version: metadata.api_version.clone().into_owned(),
                kind: metadata.kind.clone().into_owned(),
            });
        }
    }
}

fn requested_timeout(options: &ListOptions) -> Duration {
    Duration::from_secs(options.timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default())
}
