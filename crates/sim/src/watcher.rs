//! The clients that list and watch with requests of their own, and record each event.

use std::time::Duration;

use listwatch_client::transport::ResponseBody;
use listwatch_history::{Bookmark, End, EndReason, Event, EventType, Freshness, List, Record, Selector, Start, Watch};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::Connector;
use crate::objects::{NAMESPACES, Objects, TIERS, collection, label_query, name, revision, selector, state};
use crate::trace::Recorder;

/// Time within which a watch delivers all changes that happened before the watch.
const WHOLE_WATCH: Duration = Duration::from_secs(10);

/// The number of revisions from which [`Watcher::watch_from_the_past`] selects one.
const PAST_REVISIONS: u64 = 30;

/// A client that watches.
pub(crate) struct Watcher {
    pub(crate) name: String,
    number: u64,
    watches: u64,
    connector: Connector,
    recorder: Recorder,
    rng: StdRng,
    is_slow: bool,
    /// The longest `timeoutSeconds` of this client's watches.
    timeout_max: u64,
    selector: Selector,
    namespace: Option<&'static str>,
    /// The client's copy of the objects, complete up to `position`.
    copy: Objects,
    position: u64,
    /// Whether the client must list again before the next watch.
    must_list: bool,
    /// The revision that the copy must reach, when the run ends.
    last: watch::Receiver<Option<u64>>,
}

impl Watcher {
    pub(crate) fn new(
        number: u64,
        connector: Connector,
        recorder: &Recorder,
        seed: u64,
        is_slow: bool,
        last: watch::Receiver<Option<u64>>,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let namespace = rng.random_bool(0.3).then(|| NAMESPACES.choose(&mut rng).copied().unwrap_or_default());
        let tier = rng.random_bool(0.5).then(|| TIERS.choose(&mut rng).copied().unwrap_or_default());
        Watcher {
            name: format!("watch{number}"),
            number,
            watches: 0,
            connector,
            recorder: recorder.clone(),
            rng,
            is_slow,
            timeout_max: 40,
            selector: selector(namespace, tier),
            namespace,
            copy: Objects::new(),
            position: 0,
            must_list: true,
            last,
        }
    }

    /// Limits the `timeoutSeconds` of all watches, so that a run in real time ends soon.
    pub(crate) fn with_timeout_max(self, seconds: u64) -> Self {
        Watcher { timeout_max: seconds, ..self }
    }

    /// The selected objects.
    pub(crate) fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Lists and watches until the copy is complete, and returns the copy. The copy is complete at the last revision,
    /// or after a watch of at least [`WHOLE_WATCH`] that began after the last write and ended normally.
    pub(crate) async fn run(mut self) -> Objects {
        loop {
            let is_last = self.last.borrow().is_some();
            if self.last.borrow().is_some_and(|last| self.position >= last) {
                return self.copy;
            }
            if self.must_list && self.rng.random_bool(0.5) {
                self.list().await;
            } else {
                if !self.must_list && self.rng.random_bool(0.3) {
                    self.watch_from_the_past().await;
                }
                let begun = Instant::now();
                let reason = self.watch().await;
                if is_last && reason == EndReason::Closed && begun.elapsed() >= WHOLE_WATCH && !self.must_list {
                    return self.copy;
                }
            }
            let ms = self.rng.random_range(1..150);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    fn path(&self) -> String {
        format!("{}?{}", collection(self.namespace), label_query(&self.selector).trim_start_matches('&'))
    }

    async fn list(&mut self) {
        let from = self.recorder.now();
        let freshness = match self.position {
            0 => Freshness::MostRecent,
            position => Freshness::NotOlderThan(position),
        };
        let version = if self.position == 0 { String::new() } else { format!("&resourceVersion={}", self.position) };
        let path = format!("{}{version}", self.path());
        let Some((200, body)) = self.connector.call("GET", &path, "application/json", String::new()).await else {
            return;
        };
        let list: Value = serde_json::from_slice(&body).unwrap_or_default();
        let items = list["items"].as_array().into_iter().flatten();
        self.copy = items.map(|item| (name(item), (revision(item), state(item)))).collect();
        (self.position, self.must_list) = (revision(&list), false);
        let (client, to, selector) = (self.name.clone(), self.recorder.now(), self.selector.clone());
        let (revision, items) = (self.position, self.copy.clone());
        self.recorder.record(Record::List(List { client, from, to, freshness, selector, revision, items }));
    }

    /// Watches from any of the last revisions and reads a few events, as a client does that starts again with an older
    /// list. The start is often close to the oldest change that the server holds. The copy stays the same.
    async fn watch_from_the_past(&mut self) {
        let version = self.position.saturating_sub(self.rng.random_range(1..=PAST_REVISIONS)).max(1);
        let path = format!("{}&watch=true&timeoutSeconds=1&resourceVersion={version}", self.path());
        let events = self.rng.random_range(1..4);
        self.read_watch(&path, Start::After(version), Some(Objects::new()), events).await;
    }

    async fn watch(&mut self) -> EndReason {
        let is_ending = self.last.borrow().is_some();
        let seconds = if is_ending { WHOLE_WATCH.as_secs() + 1 } else { self.rng.random_range(2..=self.timeout_max) };
        // Without bookmarks, a watch in which nothing changes cannot reach the last revision.
        let bookmarks = self.must_list || is_ending || self.rng.random_bool(0.7);
        let mut path = format!("{}&watch=true&timeoutSeconds={seconds}&allowWatchBookmarks={bookmarks}", self.path());
        let start = if self.must_list {
            path.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
            if self.position > 0 {
                path.push_str(&format!("&resourceVersion={}", self.position));
            }
            Start::InitialEvents(self.position)
        } else {
            path.push_str(&format!("&resourceVersion={}", self.position));
            Start::After(self.position)
        };
        let leaves_after = if self.rng.random_bool(0.2) { self.rng.random_range(1..10) } else { usize::MAX };
        let reason = self.read_watch(&path, start, self.must_list.then(Objects::new), leaves_after).await;
        self.must_list |= reason == EndReason::Expired;
        reason
    }

    /// Opens a watch and reads up to `leaves_after` events. `initial` receives the objects in place of the copy, until the
    /// initial events end.
    async fn read_watch(
        &mut self,
        path: &str,
        start: Start,
        initial: Option<Objects>,
        leaves_after: usize,
    ) -> EndReason {
        self.watches += 1;
        let watch = self.number * 1_000_000 + self.watches;
        let at = self.recorder.now();
        let (client, selector) = (self.name.clone(), self.selector.clone());
        self.recorder.record(Record::Watch(Watch { watch, client, at, start, selector }));
        let reason = match self.connector.get(path).await {
            Some(response) if response.status().as_u16() == 200 => {
                self.read(watch, response.into_body(), initial, leaves_after).await
            }
            Some(response) if response.status().as_u16() == 410 => EndReason::Expired,
            Some(_) => EndReason::Failed,
            None => EndReason::Cut,
        };
        self.recorder.record(Record::End(End { watch, at: self.recorder.now(), reason }));
        reason
    }

    /// Reads the events of a watch until it ends; returns why.
    async fn read(
        &mut self,
        watch: u64,
        mut body: ResponseBody,
        mut initial: Option<Objects>,
        leaves_after: usize,
    ) -> EndReason {
        let mut buffer = Vec::new();
        let mut events = 0;
        loop {
            if self.is_slow && self.rng.random_bool(0.3) {
                let ms = self.rng.random_range(0..2_000);
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            // A silent connection is given up, as HTTP/2 pings do.
            let chunk = match tokio::time::timeout(Duration::from_secs(50), body.chunk()).await {
                Ok(None) => return EndReason::Closed,
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(_))) | Err(_) => return EndReason::Cut,
            };
            buffer.extend_from_slice(&chunk);
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap_or_default();
                events += 1;
                if let Some(reason) = self.event(watch, &event, &mut initial) {
                    return reason;
                }
                if self.last.borrow().is_some_and(|last| self.position >= last) || events >= leaves_after {
                    return EndReason::Cut;
                }
            }
        }
    }

    /// Records an event and updates the copy; returns the reason if the event ends the watch.
    fn event(&mut self, watch: u64, event: &Value, initial: &mut Option<Objects>) -> Option<EndReason> {
        let (object, at) = (&event["object"], self.recorder.now());
        let (revision, object_name) = (revision(object), name(object));
        let kind = match event["type"].as_str() {
            Some("BOOKMARK") => {
                let annotation = &object["metadata"]["annotations"]["k8s.io/initial-events-end"];
                let ends_initial_events = annotation == "true";
                self.recorder.record(Record::Bookmark(Bookmark { watch, at, revision, ends_initial_events }));
                match initial {
                    Some(_) if !ends_initial_events => {}
                    _ => {
                        if let Some(copy) = initial.take() {
                            (self.copy, self.must_list) = (copy, false);
                        }
                        self.position = revision;
                    }
                }
                return None;
            }
            Some("ADDED") => EventType::Added,
            Some("MODIFIED") => EventType::Modified,
            Some("DELETED") => EventType::Deleted,
            _ if object["code"] == 410 => return Some(EndReason::Expired),
            _ => return Some(EndReason::Failed),
        };
        let state = state(object);
        let copy = initial.as_mut().unwrap_or(&mut self.copy);
        match kind {
            EventType::Deleted => drop(copy.remove(&object_name)),
            _ => drop(copy.insert(object_name.clone(), (revision, state.clone()))),
        }
        if initial.is_none() {
            self.position = revision;
        }
        self.recorder.record(Record::Event(Event { watch, at, kind, object: object_name, revision, state }));
        None
    }
}
