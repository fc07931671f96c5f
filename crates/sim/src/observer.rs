//! The watchers: a simple client that lists, watches, reads slowly, loses its connection, switches
//! servers, and records every event ([`Trace`]).

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use listwatch_apiserver::{ApiService, Body};
use listwatch_meta::Revision;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::traffic::TIERS;
use crate::truth::{Objects, State, parse};

/// The behavior of an observer.
#[derive(Debug, Clone)]
pub struct ObserverPlan {
    /// The only namespace to watch.
    pub namespace: Option<&'static str>,
    /// The only tier to watch.
    pub tier: Option<&'static str>,
    /// Whether to begin with a WatchList instead of a list.
    pub watch_list: bool,
    /// Whether to request bookmarks.
    pub bookmarks: bool,
    /// Longest pause before a read, in virtual milliseconds.
    pub pause_ms_max: u64,
    /// The approximate number of events after which the connection is cut; 0 for never.
    pub cut_after: usize,
    /// The `timeoutSeconds` of the watches.
    pub timeout_seconds: u64,
}

impl ObserverPlan {
    /// Draws a random plan.
    pub fn draw(rng: &mut StdRng) -> Self {
        ObserverPlan {
            namespace: rng.random_bool(0.3).then_some("default"),
            tier: rng.random_bool(0.5).then(|| TIERS[rng.random_range(0..TIERS.len())]),
            watch_list: rng.random_bool(0.5),
            bookmarks: rng.random_bool(0.7),
            pause_ms_max: if rng.random_bool(0.4) { 2_000 } else { 0 },
            cut_after: if rng.random_bool(0.5) { 15 } else { 0 },
            timeout_seconds: rng.random_range(5..120),
        }
    }
}

/// One received event.
#[derive(Debug, Clone)]
pub enum Received {
    /// `ADDED`, `MODIFIED`.
    Put {
        /// `namespace/name`.
        object: String,
        /// The event's type.
        kind: String,
        /// The event's resource version.
        revision: Revision,
        /// The object's content.
        state: State,
    },
    /// `DELETED`.
    Deleted {
        /// `namespace/name`.
        object: String,
        /// The event's resource version.
        revision: Revision,
    },
    /// `BOOKMARK`.
    Bookmark {
        /// The event's resource version.
        revision: Revision,
        /// Whether the bookmark ends the initial events (`k8s.io/initial-events-end`).
        initial_events_end: bool,
    },
}

/// The start of one watch and its events.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The revision of the state from which the watch began; `None` if the watch had initial
    /// events.
    pub start: Option<Revision>,
    /// The items of the list with which the segment began, if any.
    pub listed: Option<(Revision, Objects)>,
    /// The received events.
    pub received: Vec<Received>,
    /// The watch ended with `410 Expired`.
    pub expired: bool,
}

/// All events of one observer.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The observer's plan.
    pub plan: ObserverPlan,
    /// The watches of the observer, in order.
    pub segments: Vec<Segment>,
    /// The observer's copy at the end.
    pub copy: Objects,
    /// The revision of the copy.
    pub as_of: Revision,
}

/// The handle of a running observer task.
#[derive(Debug)]
pub struct Observer {
    until: watch::Sender<Option<Revision>>,
    task: JoinHandle<Trace>,
}

impl Observer {
    /// Starts an observer.
    pub fn start(plan: ObserverPlan, services: Vec<ApiService>, seed: u64) -> Self {
        let (until, stop) = watch::channel(None);
        let client = Client { services, rng: StdRng::seed_from_u64(seed), stop };
        Observer { until, task: tokio::spawn(client.observe(plan)) }
    }

    /// Waits until the observer has seen everything up to `last`, and returns its trace.
    pub async fn finish(self, last: Revision) -> Trace {
        let _ = self.until.send(Some(last));
        self.task.await.expect("an observer does not panic")
    }
}

struct Client {
    services: Vec<ApiService>,
    rng: StdRng,
    stop: watch::Receiver<Option<Revision>>,
}

impl Client {
    async fn observe(mut self, plan: ObserverPlan) -> Trace {
        let mut trace = Trace { plan: plan.clone(), segments: Vec::new(), copy: Objects::new(), as_of: Revision::ZERO };
        let mut resume = None;
        while !self.is_done(&trace).await {
            let from = match resume.take() {
                Some(revision) => Some(revision),
                None if plan.watch_list => None,
                None => match self.list(&plan, &mut trace).await {
                    Some(revision) => Some(revision),
                    None => {
                        self.pause().await;
                        continue;
                    }
                },
            };
            resume = self.watch(&plan, from, &mut trace).await;
            self.pause().await;
        }
        trace
    }

    /// Whether the observer is done. Without bookmarks, it makes a final consistent list to detect that
    /// no event follows.
    async fn is_done(&mut self, trace: &Trace) -> bool {
        let until = *self.stop.borrow();
        matches!(until, Some(last) if trace.as_of >= last)
    }

    async fn pause(&mut self) {
        let ms = self.rng.random_range(1..300);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    fn path(plan: &ObserverPlan) -> String {
        let scope = plan.namespace.map_or_else(String::new, |namespace| format!("namespaces/{namespace}/"));
        let selector = plan.tier.map_or_else(String::new, |tier| format!("labelSelector=tier%3D{tier}&"));
        format!("/api/v1/{scope}configmaps?{selector}")
    }

    async fn request(&mut self, uri: String) -> Option<Body> {
        let service = self.services[self.rng.random_range(0..self.services.len())].clone();
        let request = Request::get(uri).body(Empty::<Bytes>::new()).expect("a request");
        let response = service.handle(request).await;
        response.status().is_success().then(|| response.into_body())
    }

    async fn list(&mut self, plan: &ObserverPlan, trace: &mut Trace) -> Option<Revision> {
        let body = self.request(Self::path(plan)).await?.collect().await.ok()?.to_bytes();
        let list: Value = serde_json::from_slice(&body).expect("a list is JSON");
        let revision = version(&list);
        let items: Objects = list["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| (name(item), (version(item), parse(item.to_string().as_bytes()))))
            .collect();
        trace.copy = items.clone();
        trace.as_of = revision;
        trace.segments.push(Segment {
            start: Some(revision),
            listed: Some((revision, items)),
            received: Vec::new(),
            expired: false,
        });
        Some(revision)
    }

    /// Watches until the stream ends, is cut, or the run ends; returns the revision to resume from.
    async fn watch(&mut self, plan: &ObserverPlan, from: Option<Revision>, trace: &mut Trace) -> Option<Revision> {
        let mut uri = format!("{}watch=true&timeoutSeconds={}", Self::path(plan), plan.timeout_seconds);
        // A WatchList needs its end mark: without it the end of the initial state is unknown.
        let bookmarks = plan.bookmarks || from.is_none();
        uri.push_str(&format!("&allowWatchBookmarks={bookmarks}"));
        match from {
            Some(revision) => uri.push_str(&format!("&resourceVersion={revision}")),
            None => uri.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
        }
        let Some(mut body) = self.request(uri).await else {
            return from;
        };
        let cut = match plan.cut_after {
            0 => usize::MAX,
            about => self.rng.random_range(1..=about * 2),
        };
        let mut segment = Segment { start: from, listed: None, received: Vec::new(), expired: false };
        let mut initial = from.is_none().then(Objects::new);
        let mut seen = from;
        'stream: loop {
            if plan.pause_ms_max > 0 {
                tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..plan.pause_ms_max))).await;
            }
            let frame = tokio::select! {
                frame = body.frame() => frame,
                // The run may end while no event follows: list once more, then stop.
                _ = tokio::time::sleep(Duration::from_secs(200)) => None,
            };
            let Some(Ok(frame)) = frame else { break };
            let data = frame.into_data().expect("data frames only");
            for line in data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let event: Value = serde_json::from_slice(line).expect("a chunk holds whole events");
                let object = &event["object"];
                let received = match event["type"].as_str().expect("a type") {
                    "ERROR" => {
                        segment.expired = object["code"] == 410;
                        trace.segments.push(segment.clone());
                        return if object["code"] == 410 { None } else { seen };
                    }
                    "BOOKMARK" => Received::Bookmark {
                        revision: version(object),
                        initial_events_end: object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true",
                    },
                    "DELETED" => Received::Deleted { object: name(object), revision: version(object) },
                    kind => Received::Put {
                        object: name(object),
                        kind: kind.to_owned(),
                        revision: version(object),
                        state: parse(object.to_string().as_bytes()),
                    },
                };
                let state = initial.as_mut().unwrap_or(&mut trace.copy);
                match &received {
                    Received::Put { object, revision, state: content, .. } => {
                        state.insert(object.clone(), (*revision, content.clone()));
                    }
                    Received::Deleted { object, .. } => {
                        state.remove(object);
                    }
                    Received::Bookmark { initial_events_end: true, .. } => {
                        trace.copy = initial.take().expect("one end mark in a watch");
                    }
                    Received::Bookmark { .. } => {}
                }
                let (Received::Put { revision, .. }
                | Received::Deleted { revision, .. }
                | Received::Bookmark { revision, .. }) = received;
                if initial.is_none() {
                    seen = Some(revision);
                    trace.as_of = revision;
                }
                segment.received.push(received);
            }
            let finished = matches!(*self.stop.borrow(), Some(last) if trace.as_of >= last);
            if finished || segment.received.len() >= cut {
                break 'stream;
            }
        }
        trace.segments.push(segment);
        // The run has ended and this view may get no further event: list once.
        if self.stop.borrow().is_some_and(|last| trace.as_of < last) {
            return None;
        }
        seen
    }
}

fn version(object: &Value) -> Revision {
    let text = object["metadata"]["resourceVersion"].as_str().expect("every object and list has a version");
    Revision::new(text.parse().expect("a number"))
}

fn name(object: &Value) -> String {
    let part = |field: &str| object["metadata"][field].as_str().expect("a name").to_owned();
    format!("{}/{}", part("namespace"), part("name"))
}
