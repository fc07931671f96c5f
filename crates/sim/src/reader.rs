//! The clients that get and list. Their lists request the most recent state, any state, a minimum revision, or pages.

use std::time::Duration;

use listwatch_history::{Freshness, Get, List, Record};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;

use crate::cluster::Connector;
use crate::objects::{NAMES, NAMESPACES, Objects, TIERS, collection, label_query, name, revision, selector, state};
use crate::trace::Recorder;

/// A client that reads.
pub(crate) struct Reader {
    name: String,
    connector: Connector,
    recorder: Recorder,
    rng: StdRng,
    /// The newest revision of a list that this client has read.
    seen: u64,
}

impl Reader {
    pub(crate) fn new(number: usize, connector: Connector, recorder: &Recorder, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Reader { name: format!("reader{number}"), connector, recorder: recorder.clone(), rng, seen: 0 }
    }

    /// Reads until the task is aborted.
    pub(crate) async fn run(mut self) {
        loop {
            if self.rng.random_bool(0.4) {
                self.get().await
            } else {
                self.list().await
            }
            let ms = self.rng.random_range(0..300);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    async fn get(&mut self) {
        let namespace = NAMESPACES.choose(&mut self.rng).copied().unwrap_or_default();
        let name = NAMES.choose(&mut self.rng).copied().unwrap_or_default();
        let (object, path) = (format!("{namespace}/{name}"), format!("{}/{name}", collection(Some(namespace))));
        let from = self.recorder.now();
        let Some((status, body)) = self.connector.call("GET", &path, "application/json", String::new()).await else {
            return;
        };
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let found = match status {
            200 => Some((revision(&body), state(&body))),
            404 => None,
            _ => return,
        };
        let (client, to) = (self.name.clone(), self.recorder.now());
        self.recorder.record(Record::Get(Get { client, from, to, object, found }));
    }

    async fn list(&mut self) {
        let namespace =
            self.rng.random_bool(0.4).then(|| NAMESPACES.choose(&mut self.rng).copied().unwrap_or_default());
        let tier = self.rng.random_bool(0.4).then(|| TIERS.choose(&mut self.rng).copied().unwrap_or_default());
        let selector = selector(namespace, tier);
        let (freshness, query) = match self.rng.random_range(0..6) {
            0 => (Freshness::Any, "resourceVersion=0".to_owned()),
            1 if self.seen > 0 => (Freshness::NotOlderThan(self.seen), format!("resourceVersion={}", self.seen)),
            2 if self.seen > 0 => {
                (Freshness::Exact(self.seen), format!("resourceVersion={}&resourceVersionMatch=Exact", self.seen))
            }
            _ => (Freshness::MostRecent, String::new()),
        };
        let limit = if self.rng.random_bool(0.5) { self.rng.random_range(1..4) } else { 0 };
        let collection = collection(namespace);
        let labels = label_query(&selector);
        let from = self.recorder.now();
        let mut path = format!("{collection}?{query}{labels}&limit={limit}");
        let (mut items, mut at) = (Objects::new(), None);
        loop {
            let Some((200, body)) = self.connector.call("GET", &path, "application/json", String::new()).await else {
                return;
            };
            let page: Value = serde_json::from_slice(&body).unwrap_or_default();
            let revision_of_page = revision(&page);
            if at.is_some_and(|at| at != revision_of_page) {
                let evidence = format!("{} reads pages of {at:?} and {revision_of_page} in one list", self.name);
                self.recorder.broken("NoTimeTravel", evidence);
                return;
            }
            at = Some(revision_of_page);
            for item in page["items"].as_array().into_iter().flatten() {
                if items.insert(name(item), (revision(item), state(item))).is_some() {
                    self.recorder.broken("Unique", format!("{} reads {} on two pages", self.name, name(item)));
                }
            }
            let Some(token) = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) else { break };
            path = format!("{collection}?limit={limit}{labels}&continue={token}");
            if self.rng.random_bool(0.5) {
                let ms = self.rng.random_range(0..500);
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
        }
        let (client, to, revision) = (self.name.clone(), self.recorder.now(), at.unwrap_or_default());
        if freshness == Freshness::MostRecent {
            self.seen = revision;
        }
        self.recorder.record(Record::List(List { client, from, to, freshness, selector, revision, items }));
    }
}
