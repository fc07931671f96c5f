//! The clients that write, one write after another, and record the outcome of each.

use std::time::Duration;

use listwatch_history::{Get, Outcome, Record, Write};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cluster::Connector;
use crate::objects::{NAMES, NAMESPACES, TIERS, collection, revision, state};
use crate::trace::Recorder;

/// A client that writes.
pub(crate) struct Writer {
    name: String,
    connector: Connector,
    recorder: Recorder,
    rng: StdRng,
}

impl Writer {
    pub(crate) fn new(number: usize, connector: Connector, recorder: &Recorder, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Writer { name: format!("writer{number}"), connector, recorder: recorder.clone(), rng }
    }

    /// Sets another prefix of the written values, because a real store may have values of an earlier run.
    pub(crate) fn named(self, name: String) -> Self {
        Writer { name, ..self }
    }

    /// Writes with a pause after each write until `stop` changes, and returns after the last outcome.
    pub(crate) async fn run_until(mut self, pause: Duration, mut stop: watch::Receiver<Option<u64>>) {
        for number in 0.. {
            let value = format!("{}-{number}", self.name);
            self.write(value).await;
            if tokio::time::timeout(pause, stop.changed()).await.is_ok() {
                return;
            }
        }
    }

    /// Writes, and returns after the last outcome.
    pub(crate) async fn run(mut self, writes: usize) {
        for number in 0..writes {
            let value = format!("{}-{number}", self.name);
            self.write(value).await;
            let ms =
                if self.rng.random_bool(0.3) { self.rng.random_range(0..400) } else { self.rng.random_range(0..5) };
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    async fn write(&mut self, value: String) {
        let namespace = NAMESPACES.choose(&mut self.rng).copied().unwrap_or_default();
        let name = NAMES.choose(&mut self.rng).copied().unwrap_or_default();
        let tier = TIERS.choose(&mut self.rng).copied().unwrap_or_default();
        let (object, collection) = (format!("{namespace}/{name}"), collection(Some(namespace)));
        let item = format!("{collection}/{name}");
        let body = json!({"metadata": {"name": name, "labels": {"tier": tier}}, "data": {"value": value}});
        match self.rng.random_range(0..10) {
            0..4 => self.send(("POST", &collection, "application/json"), body, &object, Some(value), None).await,
            4..6 => {
                self.send(("PATCH", &item, "application/merge-patch+json"), body, &object, Some(value), None).await;
            }
            6..8 => self.replace(&item, body, &object, value).await,
            _ => self.send(("DELETE", &item, "application/json"), json!({}), &object, None, None).await,
        }
    }

    /// Reads an object and updates it at the revision that was read.
    async fn replace(&mut self, item: &str, mut body: Value, object: &str, value: String) {
        let from = self.recorder.now();
        let Some((status, found)) = self.connector.call("GET", item, "application/json", String::new()).await else {
            return;
        };
        let found: Value = serde_json::from_slice(&found).unwrap_or_default();
        let known = match status {
            200 => Some((revision(&found), state(&found))),
            404 => None,
            _ => return,
        };
        let (client, to) = (self.name.clone(), self.recorder.now());
        self.recorder.record(Record::Get(Get { client, from, to, object: object.to_owned(), found: known.clone() }));
        let Some((replaces, _)) = known else { return };
        body["metadata"]["resourceVersion"] = Value::String(replaces.to_string());
        self.send(("PUT", item, "application/json"), body, object, Some(value), Some(replaces)).await;
    }

    /// Sends a write and records its outcome.
    async fn send(
        &mut self,
        (method, path, content_type): (&str, &str, &str),
        body: Value,
        object: &str,
        value: Option<String>,
        replaces: Option<u64>,
    ) {
        let from = self.recorder.now();
        let answer = self.connector.call(method, path, content_type, body.to_string()).await;
        let outcome = match &answer {
            Some((200..300, body)) => {
                let object: Value = serde_json::from_slice(body).unwrap_or_default();
                let revision = Some(revision(&object)).filter(|revision| *revision > 0 && value.is_some());
                Outcome::Applied { revision }
            }
            Some((400..500, _)) => Outcome::Rejected,
            _ => Outcome::Unknown,
        };
        let (client, object, to) = (self.name.clone(), object.to_owned(), self.recorder.now());
        self.recorder.record(Record::Write(Write { client, from, to, object, value, replaces, outcome }));
    }
}
