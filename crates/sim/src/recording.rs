//! Records the clients of the simulation on real servers, for tests that break a real etcd or kill a real server.
//!
//! ```text
//!  record: writers, readers, watchers ──HTTP/2, TLS──▶ servers ──▶ etcd ──etcdctl watch──▶ changes_of_etcd_watch
//!               │ records                                                                       │ changes
//!               └──────────────────────────▶ listwatch-history ◀────────────────────────────────┘
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use listwatch_client::Config;
use listwatch_client::config::Auth;
use listwatch_client::transport::HttpTransport;
use listwatch_history::{Change, Record};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cluster::{Connector, RealServer};
use crate::objects::{collection, name, revision, state, state_of_json};
use crate::reader::Reader;
use crate::trace::{Recorder, Trace};
use crate::watcher::Watcher;
use crate::world::create_namespaces;
use crate::writer::Writer;

/// Time within which every watcher must have the last state after the writes.
const CONVERGENCE_WAIT: Duration = Duration::from_secs(90);

/// The longest `timeoutSeconds` of a watch.
const WATCH_SECONDS_MAX: u64 = 12;

/// The options of a recording.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// A kubeconfig for each server; all servers have one store.
    pub kubeconfigs: Vec<PathBuf>,
    /// The seed of the random decisions of clients.
    pub seed: u64,
    /// The duration of the writes.
    pub time: Duration,
    /// The number of clients that write.
    pub writers: usize,
    /// The pause of a writer after each write.
    pub pause: Duration,
    /// The number of clients that get and list.
    pub readers: usize,
    /// The number of clients that watch.
    pub watchers: usize,
}

/// Runs the clients, calls `begun` when the first write can be sent, and returns what they saw.
///
/// # Errors
/// The message for the user, if a kubeconfig cannot be used.
pub fn record(options: &RecordOptions, begun: impl FnOnce()) -> Result<Trace, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    runtime.block_on(play(options, begun))
}

fn connect(options: &RecordOptions) -> Result<Arc<Vec<RealServer>>, String> {
    let server = |file: &PathBuf| {
        let config = Config::load(Some(file), None).map_err(|error| format!("{}: {error}", file.display()))?;
        if config.impersonation.is_some() {
            return Err(format!("{}: impersonation is not supported", file.display()));
        }
        let token = match &config.auth {
            Auth::Token(token) => HeaderValue::from_str(&format!("Bearer {token}")).ok(),
            _ => None,
        };
        let transport = HttpTransport::new(&config.server, config.tls, config.transport);
        let transport = transport.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(RealServer { transport, token })
    };
    options.kubeconfigs.iter().map(server).collect::<Result<Vec<_>, String>>().map(Arc::new)
}

async fn play(options: &RecordOptions, begun: impl FnOnce()) -> Result<Trace, String> {
    let servers = connect(options)?;
    let seed = options.seed;
    create_namespaces(&Connector::real(&servers, seed)).await;
    let recorder = Recorder::new();
    let (last, watch_last) = watch::channel(None);
    let mut connector = {
        let mut number = seed;
        move || {
            number = number.wrapping_add(1);
            Connector::real(&servers, number)
        }
    };
    let mut watchers = JoinSet::new();
    for number in 0..options.watchers as u64 {
        let watcher = Watcher::new(number, connector(), &recorder, seed ^ (number << 16), false, watch_last.clone());
        let watcher = watcher.with_timeout_max(WATCH_SECONDS_MAX);
        let (name, selector) = (watcher.name.clone(), watcher.selector().clone());
        watchers.spawn(async move { (name, selector, watcher.run().await) });
    }
    let mut readers = JoinSet::new();
    for number in 0..options.readers {
        readers.spawn(Reader::new(number, connector(), &recorder, seed ^ (number as u64) << 24).run());
    }
    let (stop, stopped) = watch::channel(None);
    let mut writers = JoinSet::new();
    for number in 0..options.writers {
        let writer = Writer::new(number, connector(), &recorder, seed ^ (number as u64) << 32);
        let writer = writer.named(format!("writer{number}-{seed}"));
        writers.spawn(writer.run_until(options.pause, stopped.clone()));
    }
    begun();
    tokio::time::sleep(options.time).await;
    stop.send_replace(Some(0));
    while writers.join_next().await.is_some() {}
    readers.shutdown().await;

    // Any watcher must reach the most recent state.
    let final_list = most_recent(&connector()).await.ok_or("the servers answer no list after the run")?;
    last.send_replace(Some(revision(&final_list)));
    let items = || final_list["items"].as_array().into_iter().flatten().map(|item| (name(item), state(item)));
    let deadline = tokio::time::Instant::now() + CONVERGENCE_WAIT;
    while let Ok(ended) = tokio::time::timeout_at(deadline, watchers.join_next()).await {
        let Some(ended) = ended else { break };
        let (watcher, selector, copy) = ended.map_err(|error| format!("a watcher panicked: {error}"))?;
        let expected: Vec<_> = items().filter(|(object, state)| selector.matches(object, state)).collect();
        let copy: Vec<_> = copy.into_iter().map(|(object, (_, state))| (object, state)).collect();
        if copy != expected {
            recorder.broken("Converging", format!("{watcher} ends with another copy than the store"));
        }
    }
    if !watchers.is_empty() {
        recorder.broken("Converging", format!("{} watchers do not reach the last state", watchers.len()));
    }
    Ok(recorder.trace())
}

/// Reads the most recent list. Retries for about a minute, because a restarted server may not answer at once.
async fn most_recent(connector: &Connector) -> Option<Value> {
    for _ in 0..600 {
        let path = collection(None);
        if let Some((200, body)) = connector.call("GET", &path, "application/json", String::new()).await {
            return serde_json::from_slice(&body).ok();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

/// The changes of ConfigMaps in the output of `etcdctl watch --prefix /registry/configmaps/ --rev 1 --write-out json`:
/// etcd's own history. Objects must be stored as JSON.
///
/// # Errors
/// The message for the user, if a line is not a response of a watch.
pub fn changes_of_etcd_watch(output: &str) -> Result<Vec<Record>, String> {
    let mut changes = Vec::new();
    for line in output.lines().filter(|line| line.starts_with('{')) {
        let response: Value = serde_json::from_str(line).map_err(|error| format!("not a watch response: {error}"))?;
        for event in response["Events"].as_array().into_iter().flatten() {
            let entry = &event["kv"];
            let bytes = |field: &str| {
                let text = entry[field].as_str().unwrap_or_default();
                BASE64_STANDARD.decode(text).map_err(|error| format!("{field} is not base64: {error}"))
            };
            let key = String::from_utf8(bytes("key")?).map_err(|error| format!("a key is not UTF-8: {error}"))?;
            let Some((_, object)) = key.split_once("/configmaps/") else { continue };
            let revision = entry["mod_revision"].as_u64().unwrap_or_default();
            let is_deletion = event["type"] == 1;
            let state = if is_deletion { None } else { Some(state_of_json(&bytes("value")?)) };
            changes.push(Record::Change(Change { revision, object: object.to_owned(), state }));
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use listwatch_history::{Change, Record};

    #[test]
    fn changes_are_read_from_the_output_of_etcdctl() {
        let value = r#"eyJtZXRhZGF0YSI6eyJsYWJlbHMiOnsidGllciI6ImZyb250In19LCJkYXRhIjp7InZhbHVlIjoidzEifX0="#;
        let output = format!(
            "{{\"Header\":{{}},\"Events\":[{{\"kv\":{{\"key\":\"L3JlZ2lzdHJ5L2NvbmZpZ21hcHMvc2hvcC9h\",\
             \"mod_revision\":7,\"value\":\"{value}\"}}}},{{\"type\":1,\"kv\":{{\"key\":\
             \"L3JlZ2lzdHJ5L2NvbmZpZ21hcHMvc2hvcC9h\",\"mod_revision\":8}}}}]}}\n"
        );
        let changes = super::changes_of_etcd_watch(&output).unwrap();
        let [Record::Change(put), Record::Change(deletion)] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((put.revision, put.object.as_str()), (7, "shop/a"));
        let state = put.state.as_ref().unwrap();
        assert_eq!((state.value.as_str(), state.labels["tier"].as_str()), ("w1", "front"));
        assert_eq!(deletion, &Change { revision: 8, object: "shop/a".to_owned(), state: None });
    }
}
