//! The script language of the scenarios: commands on a cache and their output, line by line.
//!
//! A script has commands and, below each, the expected output (`> …`). Time advances only by
//! `advance` and while a command waits for a timeout.
//!
//! ```text
//! put a/x app=web            > r2            create or update; prints the revision
//! watch w all rv=2 bookmarks                 scope: all, a namespace, or namespace/name
//! read w                     > ADDED a/x@2   what is ready; `∎` is the end of the stream
//! list all limit=2           > r5: a/x@2 a/y@3 (more, 1 remaining)
//! next                                       the next page of the list before
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use listwatch_cacher::{Cacher, Delivery, Limits, List, Watcher};
use listwatch_meta::{GroupResource, Key, ListOptions, Object, Revision};
use listwatch_storage::Storage;

use super::store::TestStore;
use super::{config, drain, key, options, quiet, scope, settle};

const PODS: GroupResource<'_> = GroupResource { group: "", resource: "pods" };

struct World {
    store: Arc<TestStore>,
    limits: Limits,
    cacher: Option<Cacher>,
    watchers: HashMap<String, Watcher>,
    last_list: Option<(Vec<String>, Option<String>)>,
}

/// Runs a script and compares its output.
pub fn check(script: &str) {
    check_with(quiet(), script);
}

/// As [`check`], with other limits.
pub fn check_with(limits: Limits, script: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let printed = runtime.block_on(async {
        let store = TestStore::new();
        let mut world = World { store, limits, cacher: None, watchers: HashMap::new(), last_list: None };
        let mut printed = String::new();
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('>')) {
            let _ = writeln!(printed, "{line}");
            for output in world.run(line).await {
                let _ = writeln!(printed, "> {output}");
            }
        }
        printed
    });
    let expected: String =
        script.lines().map(str::trim).filter(|line| !line.is_empty()).fold(String::new(), |mut expected, line| {
            let _ = writeln!(expected, "{line}");
            expected
        });
    assert!(printed == expected, "expected:\n{expected}\nprinted:\n{printed}");
}

impl World {
    async fn run(&mut self, line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = match words.as_slice() {
            ["start"] => {
                self.cacher = Some(Cacher::start(self.store.clone(), config(self.limits.clone())));
                Vec::new()
            }
            ["direct"] => {
                self.cacher = Some(Cacher::direct(self.store.clone(), config(self.limits.clone())));
                Vec::new()
            }
            ["put", path, fields @ ..] => vec![self.put(&key(path), &value(path, fields)).await],
            ["garbage", path] => vec![self.put(&key(path), "no object").await],
            ["delete", path] => {
                let (found, _) = self.store.get(&key(path)).await.unwrap();
                let revision = self.store.delete(&key(path), found.expect("it is there").modified).await.unwrap();
                vec![format!("{revision:?}")]
            }
            ["other"] => {
                let node = Key::new("nodes", None, "n").unwrap();
                vec![self.put(&node, "{}").await]
            }
            ["compact", revision] => {
                self.store.compact(Revision::new(revision.parse().unwrap())).await.unwrap();
                Vec::new()
            }
            ["hold"] => {
                self.store.hold(true);
                Vec::new()
            }
            ["release"] => {
                self.store.hold(false);
                Vec::new()
            }
            ["lose"] => {
                self.store.lose();
                Vec::new()
            }
            ["expire"] => {
                self.store.expire();
                Vec::new()
            }
            ["old"] => {
                self.store.old();
                Vec::new()
            }
            ["down"] => {
                self.store.down(true);
                Vec::new()
            }
            ["up"] => {
                self.store.down(false);
                Vec::new()
            }
            ["forget"] => {
                self.store.forget();
                Vec::new()
            }
            ["hide", path] => {
                self.store.hide(Some(key(path)));
                Vec::new()
            }
            ["show"] => {
                self.store.hide(None);
                Vec::new()
            }
            ["advance", seconds] => {
                settle().await;
                let until = tokio::time::Instant::now() + Duration::from_secs_f64(seconds.parse().unwrap());
                // In steps, so that timers in between run at their times.
                while tokio::time::Instant::now() < until {
                    tokio::time::advance(Duration::from_millis(250)).await;
                    settle().await;
                }
                Vec::new()
            }
            ["stop"] => {
                self.cacher().stop(None);
                Vec::new()
            }
            ["break"] => {
                self.store.break_down();
                Vec::new()
            }
            ["stopped"] => vec![self.cacher().is_stopped().to_string()],
            ["watch", name, within, rest @ ..] => self.watch(name, within, rest).await,
            ["drop", name] => {
                self.watchers.remove(*name).expect("a watcher");
                Vec::new()
            }
            ["read", name] => {
                settle().await;
                let (deliveries, ended) = drain(self.watchers.get_mut(*name).expect("a watcher")).await;
                deliveries.iter().map(delivery).chain(ended.then(|| "∎".to_owned())).collect()
            }
            ["list", within, rest @ ..] => {
                let words: Vec<String> = [within].into_iter().chain(rest).map(|word| (*word).to_owned()).collect();
                self.list(words).await
            }
            ["next"] => {
                let (mut words, token) = self.last_list.take().expect("a list");
                words.retain(|word| !word.starts_with("rv=") && !word.starts_with("continue="));
                words.push(format!("continue={}", token.expect("another page")));
                self.list(words).await
            }
            ["get", path, rest @ ..] => {
                let at = options(rest).get().unwrap();
                match self.cacher().get(&key(path), at).await {
                    Ok(None) => vec!["nothing".to_owned()],
                    Ok(Some(found)) => vec![object(&found)],
                    Err(error) => vec![error.status(PODS).to_string()],
                }
            }
            ["stats", names @ ..] => {
                settle().await;
                let stats = format!("{:?}", self.cacher().stats());
                names
                    .iter()
                    .map(|name| {
                        let from = stats.find(&format!(" {name}: ")).expect("a figure") + 1;
                        let rest = &stats[from..];
                        rest[..rest.find([',', '}']).unwrap()].trim().to_owned()
                    })
                    .collect()
            }
            other => panic!("no command {other:?}"),
        };
        settle().await;
        output
    }

    fn cacher(&self) -> &Cacher {
        self.cacher.as_ref().expect("started")
    }

    async fn put(&self, key: &Key, value: &str) -> String {
        let value = value.as_bytes().to_vec().into();
        let revision = match self.store.get(key).await.unwrap().0 {
            Some(found) => self.store.update(key, found.modified, value, None).await.unwrap(),
            None => self.store.create(key, value, None).await.unwrap(),
        };
        format!("{revision:?}")
    }

    async fn watch(&mut self, name: &str, within: &str, rest: &[&str]) -> Vec<String> {
        let (mut lasts, mut words) = (Duration::from_secs(1800), Vec::new());
        for word in rest {
            match word.strip_prefix("for=") {
                Some(seconds) => lasts = Duration::from_secs(seconds.parse().unwrap()),
                None => words.push(*word),
            }
        }
        let cacher = self.cacher();
        let request = ListOptions { watch: true, ..options(&words) }.watch(cacher.shape(), false).unwrap();
        let deadline = tokio::time::Instant::now() + lasts;
        match cacher.watch(&scope(within), &request, deadline).await {
            Ok(watcher) => {
                self.watchers.insert(name.to_owned(), watcher);
                Vec::new()
            }
            Err(error) => vec![error.status(PODS).to_string()],
        }
    }

    async fn list(&mut self, words: Vec<String>) -> Vec<String> {
        let refs: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        let request = match options(&refs).list(self.cacher().shape()) {
            Ok(request) => request,
            Err(status) => return vec![status.to_string()],
        };
        match self.cacher().list(&scope(&words[0]), &request).await {
            Ok(list) => {
                self.last_list = Some((words, list.continue_token.clone()));
                vec![print_list(list)]
            }
            Err(error) => {
                let status = error.status(PODS);
                let token = Some(status.metadata.continue_token.clone()).filter(|token| !token.is_empty());
                self.last_list = Some((words, token));
                vec![status.to_string().chars().take(119).collect()]
            }
        }
    }
}

pub fn value(path: &str, fields: &[&str]) -> String {
    let (_, name) = path.split_once('/').unwrap();
    let (mut labels, mut node) = (Vec::new(), "");
    for field in fields {
        match field.split_once('=') {
            Some(("node", value)) => node = value,
            Some((label, value)) => labels.push(format!("{label:?}:{value:?}")),
            None => panic!("no field {field:?}"),
        }
    }
    let labels = labels.join(",");
    format!(r#"{{"metadata":{{"name":"{name}","labels":{{{labels}}}}},"spec":{{"nodeName":"{node}"}}}}"#)
}

/// Formats `a/x@5`, with the label `app` in brackets if present.
fn object(object: &Object) -> String {
    let json: String = String::from_utf8(object.json_slice().to_vec()).unwrap();
    let version = format!("\"resourceVersion\":\"{}\"", object.revision());
    assert!(json.contains(&version), "an object carries its own revision: {json}");
    let app = object.label("app").map_or_else(String::new, |app| format!("[{app}]"));
    format!("{}/{}{app}@{}", object.namespace(), object.name(), object.revision())
}

fn delivery(delivery: &Delivery) -> String {
    match delivery {
        Delivery::Event(event) => {
            let frame = String::from_utf8(event.json_frame().to_vec()).unwrap();
            let json = String::from_utf8(event.object().json_slice().to_vec()).unwrap();
            assert_eq!(frame, format!("{{\"type\":\"{}\",\"object\":{json}}}\n", event.change()));
            let initial = if event.is_initial() { "initial " } else { "" };
            format!("{initial}{} {}", event.change(), object(event.object()))
        }
        Delivery::Bookmark { revision, initial_events_end: true } => format!("END {revision:?}"),
        Delivery::Bookmark { revision, .. } => format!("BOOKMARK {revision:?}"),
        Delivery::Error(status) => format!("ERROR {status}"),
    }
}

fn print_list(list: List) -> String {
    let mut text = format!("{:?}:", list.revision);
    let (more, remaining, undecodable) = (list.continue_token.is_some(), list.remaining, list.undecodable);
    for item in list.items {
        let _ = write!(text, " {}", object(&item));
    }
    match (more, remaining) {
        (false, None) => {}
        (false, Some(_)) => panic!("a last page says nothing of what remains"),
        (true, None) => text.push_str(" (more)"),
        (true, Some(remaining)) => {
            let _ = write!(text, " (more, {remaining} remaining)");
        }
    }
    if !undecodable.is_empty() {
        let undecodable: Vec<&Key> = undecodable.iter().map(|value| &value.key).collect();
        let _ = write!(text, " undecodable: {undecodable:?}");
    }
    text
}
