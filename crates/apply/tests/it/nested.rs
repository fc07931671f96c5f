//! Random writes of Services, which have keyed lists, sets, and atomic lists and maps, checked
//! against ownership rules on sets of paths.
//!
//! An object is a set of paths. A leaf has a value; a list item and a non-empty list or map are
//! paths without one. Before each write the model reads the owners from the object, and computes
//! object and owners after the write.

use std::collections::{BTreeMap, BTreeSet};

use listwatch_apply::{ApplyError, Kind, Set, Typing, Writer, managed};
use listwatch_json::{Map, Value, json};
use proptest::prelude::*;
use proptest::sample::subsequence;
use time::{Duration, OffsetDateTime};

/// All paths: leaves with their value, others with null.
type Paths = BTreeMap<String, Value>;
type Owners = BTreeMap<(String, bool), BTreeSet<String>>;

#[derive(Clone, Debug)]
struct Write {
    manager: u8,
    /// Whether an apply is forced; `None` is an update.
    apply: Option<bool>,
    object: Value,
}

/// The key fields of a list of maps, by path without items.
fn keys(path: &str) -> Option<&'static [&'static str]> {
    match path {
        ".spec.ports" => Some(&["port", "protocol"]),
        ".status.conditions" => Some(&["type"]),
        _ => None,
    }
}

/// Adds a value and its subtree. The Service, its metadata and its spec always exist, and managers
/// cannot own names.
fn collect(value: &Value, path: &str, paths: &mut Paths) {
    let atomic = matches!(path, ".spec.selector" | ".spec.externalIPs");
    match value {
        Value::Object(members) if !atomic => {
            for (name, value) in members {
                if !matches!((path, &**name), ("", "apiVersion" | "kind") | (".metadata", "name" | "managedFields")) {
                    collect(value, &format!("{path}.{name}"), paths);
                }
            }
            if !matches!(path, "" | ".metadata" | ".spec") {
                paths.insert(path.to_owned(), Value::Null);
            }
        }
        Value::Array(items) if !atomic => {
            for item in items {
                let element = match keys(path) {
                    Some(keys) => {
                        let each: Vec<String> = keys.iter().map(|key| format!("{key}={}", item[key])).collect();
                        each.join(",")
                    }
                    None => format!("={item}"),
                };
                let path = format!("{path}[{element}]");
                collect(item, &path, paths);
                paths.insert(path, Value::Null);
            }
            paths.insert(path.to_owned(), Value::Null);
        }
        leaf => {
            paths.insert(path.to_owned(), leaf.clone());
        }
    }
}

fn paths(object: Option<&Value>) -> Paths {
    let mut paths = Paths::new();
    collect(object.unwrap_or(&json!({})), "", &mut paths);
    paths
}

/// Whether a path is a list or map that exists only because of its content.
fn is_container(path: &str, all: &Paths) -> bool {
    !path.ends_with(']') && all[path].is_null()
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with(['.', '[']))
}

fn owners(object: Option<&Value>) -> Owners {
    let entries = object.and_then(|object| object["metadata"].get("managedFields")).cloned().unwrap_or_default();
    let mut owners = Owners::new();
    for (manager, owned) in managed::decode(&entries).unwrap() {
        let paths = owned.fields.paths().iter().map(ToString::to_string).collect();
        owners.insert((manager.name, manager.operation == managed::Operation::Apply), paths);
    }
    owners
}

/// The object and its owners after a write; `None` when it is rejected.
fn model(live: Option<&Value>, write: &Write) -> Option<(Paths, Owners)> {
    let (before, mut owners) = (paths(live), owners(live));
    let me = (format!("m{}", write.manager), write.apply.is_some());
    let wanted = paths(Some(&write.object));
    let own: BTreeSet<String> = wanted.keys().filter(|path| !is_container(path, &wanted)).cloned().collect();

    let mut after = wanted.clone();
    if write.apply.is_some() {
        // Paths that this applier applied before, does not apply now, and no other manager owns are
        // removed with their subtree.
        let others: BTreeSet<&String> =
            owners.iter().filter(|(owner, _)| **owner != me).flat_map(|(_, owned)| owned).chain(&own).collect();
        let mine = owners.get(&me).cloned().unwrap_or_default();
        let goes = |path: &String| mine.contains(path) && !others.contains(path);
        let gone: Vec<&String> = before.keys().filter(|path| goes(path)).collect();
        after = before.clone();
        after.retain(|path, _| !gone.iter().any(|gone| *gone == path || is_below(path, gone)));
        after.extend(wanted);
        let all = after.clone();
        after.retain(|path, _| !is_container(path, &all) || all.keys().any(|other| is_below(other, path)));
    }
    let changed: BTreeSet<String> =
        after.iter().filter(|(path, value)| before.get(*path) != Some(value)).map(|(path, _)| path.clone()).collect();
    for (owner, owned) in &mut owners {
        if *owner == me && write.apply.is_some() {
            continue;
        }
        let contested = owned.iter().any(|path| changed.contains(path));
        if contested && write.apply == Some(false) {
            return None;
        }
        // The owner of a map keeps it after an apply emptied it; a list is removed then.
        let is_map =
            |path: &String| before.keys().any(|other| is_below(other, path) && other[path.len()..].starts_with('.'));
        let emptied = |path: &String| write.apply.is_some() && is_container(path, &before) && is_map(path);
        let there = |path: &String| after.contains_key(path) || !before.contains_key(path) || emptied(path);
        owned.retain(|path| there(path) && !changed.contains(path));
    }
    match write.apply {
        Some(_) => drop(owners.insert(me, own)),
        None => owners.entry(me).or_default().extend(changed),
    }
    owners.retain(|_, owned| !owned.is_empty());
    Some((after, owners))
}

fn any_object() -> impl Strategy<Value = Value> {
    let text = || prop_oneof![Just("x"), Just("y")];
    let texts = move || prop::option::of(prop::collection::btree_map("[ab]", text(), 1..3));
    // Go always serializes a target port, so every port here has one.
    let port = |port: u16, protocol: &'static str| {
        (prop::option::of(text()), 1..3).prop_map(move |(name, target)| {
            let mut item = json!({"port": port, "protocol": protocol, "targetPort": target});
            item.as_object_mut().unwrap().extend(name.map(|name| ("name".to_owned(), json!(name))));
            item
        })
    };
    let ports = [port(80, "TCP").boxed(), port(80, "UDP").boxed(), port(81, "TCP").boxed()];
    let ports = subsequence(ports.to_vec(), 0..=3).prop_flat_map(|ports| ports);
    let finalizers = subsequence(vec!["f", "g"], 0..=2).prop_shuffle();
    let spec = (texts(), prop::option::of(subsequence(vec!["1", "2"], 1..=2)), prop::option::of(text()), ports);
    (texts(), finalizers, spec).prop_map(|(labels, finalizers, (selector, addresses, kind, ports))| {
        let list = |items: Vec<Value>| (!items.is_empty()).then(|| Value::from(items));
        let members = |all: Vec<(&str, Option<Value>)>| -> Map {
            all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
        };
        let metadata = members(vec![
            ("name", Some(json!("a"))),
            ("labels", labels.map(|labels| json!(labels))),
            ("finalizers", list(finalizers.into_iter().map(Value::from).collect())),
        ]);
        let spec = members(vec![
            ("selector", selector.map(|selector| json!(selector))),
            ("externalIPs", addresses.map(|addresses| json!(addresses))),
            ("type", kind.map(|kind| json!(kind))),
            ("ports", list(ports)),
        ]);
        let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
        // An applied empty map is a leaf of its own, which these paths cannot express.
        if !spec.is_empty() {
            object["spec"] = Value::Object(spec);
        }
        object
    })
}

fn any_write() -> impl Strategy<Value = Write> {
    let apply = prop_oneof![3 => any::<bool>().prop_map(Some), 1 => Just(None)];
    (0..3_u8, apply, any_object()).prop_map(|(manager, apply, object)| Write { manager, apply, object })
}

proptest! {
    #[test]
    fn random_writes_agree_with_a_model_of_owned_paths(writes in prop::collection::vec(any_write(), 1..12)) {
        let kind = Kind::built_in("v1", "Service", Typing::of_built_in("v1", "Service").unwrap());
        let reset = Set::new();
        let mut live: Option<Value> = None;
        let mut now = OffsetDateTime::UNIX_EPOCH;
        for write in writes {
            now += Duration::SECOND;
            let expected = model(live.as_ref(), &write);
            let manager = format!("m{}", write.manager);
            let by = Writer { manager: &manager, subresource: "", now, reset: &reset };
            let new = match write.apply {
                None => {
                    let mut new = write.object.clone();
                    kind.update(live.as_ref(), &mut new, by);
                    new
                }
                Some(force) => match kind.apply(live.as_ref(), &write.object, by, force) {
                    Ok(new) => new,
                    Err(ApplyError::Conflicts(_)) => {
                        prop_assert_eq!(expected, None, "refused: {:?} of {:?}", write, live);
                        continue;
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                },
            };
            let found = (paths(Some(&new)), owners(Some(&new)));
            prop_assert_eq!(Some(found), expected, "{:?} of {:?}", write, live);
            // A path without an owner is skipped, and an item that lost its keys is a different
            // item.
            let keyless = |port: &Value| port.get("port").is_none() || port.get("protocol").is_none();
            let ports = new["spec"]["ports"].as_array();
            if new["metadata"].get("managedFields").is_none() || ports.into_iter().flatten().any(keyless) {
                return Ok(());
            }
            live = Some(new);
        }
    }
}
