//! Random writes by many managers, checked against a simple model: an object maps names to values, and each manager
//! owns a set of names. A manager can also own the map itself, under the name [`THE_MAP`]. An update that creates the
//! map owns the map, even after an applier removed the last name. Kubernetes 1.36 does the same. The next applier of
//! any name is then rejected with a conflict.

use std::collections::{BTreeMap, BTreeSet};

use listwatch_apply::{ApplyError, Kind, PathElement, Set, Typing, Writer, managed};
use listwatch_json::{Value, json};
use proptest::prelude::*;
use time::{Duration, OffsetDateTime};

type Data = BTreeMap<String, String>;

/// The name of the map itself in the model and in [`read`]; no other name equals it.
const THE_MAP: &str = ".";

#[derive(Clone, Debug)]
enum Write {
    Apply { manager: u8, data: Data, force: bool },
    Update { manager: u8, data: Data },
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    data: Data,
    /// The names of each applier (`true`) and updater.
    owners: BTreeMap<(u8, bool), BTreeSet<String>>,
}

impl Model {
    /// Applies a write. Returns true if the write is rejected and changes nothing.
    fn write(&mut self, write: &Write) -> bool {
        match write {
            Write::Apply { manager, data, force } => {
                let me = (*manager, true);
                let changed = |name: &String| self.data.get(name) != data.get(name);
                let contested: BTreeSet<String> =
                    data.keys().filter(|name| changed(name)).cloned().chain(self.made_by(data)).collect();
                let others = || self.owners.iter().filter(|(owner, _)| **owner != me);
                if !force && others().any(|(_, owned)| contested.iter().any(|name| owned.contains(name))) {
                    return true;
                }
                let dropped: Vec<String> = self
                    .owners
                    .get(&me)
                    .into_iter()
                    .flatten()
                    .filter(|name| !data.contains_key(*name) && !others().any(|(_, owned)| owned.contains(*name)))
                    .cloned()
                    .collect();
                for (owner, owned) in &mut self.owners {
                    if *owner != me {
                        owned.retain(|name| !contested.contains(name));
                    }
                }
                for name in dropped {
                    self.data.remove(&name);
                }
                self.data.extend(data.clone());
                self.owners.insert(me, data.keys().cloned().collect());
            }
            Write::Update { manager, data } => {
                let changed = |name: &&String| self.data.get(*name) != data.get(*name);
                let taken: BTreeSet<String> = data.keys().filter(changed).cloned().chain(self.made_by(data)).collect();
                let unmade = data.is_empty() && !self.data.is_empty();
                for owned in self.owners.values_mut() {
                    let there = |name: &String| if name == THE_MAP { !unmade } else { data.contains_key(name) };
                    owned.retain(|name| there(name) && !taken.contains(name));
                }
                self.owners.entry((*manager, false)).or_default().extend(taken);
                self.data.clone_from(data);
            }
        }
        self.owners.retain(|_, owned| !owned.is_empty());
        false
    }

    /// The map itself, if this write creates it.
    fn made_by(&self, data: &Data) -> Option<String> {
        (self.data.is_empty() && !data.is_empty()).then(|| THE_MAP.to_owned())
    }
}

fn name(manager: u8) -> String {
    format!("m{manager}")
}

/// The object, without an empty map: the kind's decoding drops one.
fn object(data: &Data) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "u"}});
    if !data.is_empty() {
        object["data"] = json!(data);
    }
    object
}

/// The object's data and owners.
fn read(object: &Value) -> Model {
    let data = object["data"].as_object().into_iter().flatten();
    let data = data.map(|(name, value)| (name.as_str().to_owned(), value.as_str().unwrap().to_owned())).collect();
    let entries = object["metadata"].get("managedFields").cloned().unwrap_or_default();
    let managed = managed::decode(&entries).unwrap();
    assert_eq!(managed::encode(&managed), entries.as_array().cloned().unwrap_or_default(), "managedFields come back");
    let mut owners = BTreeMap::new();
    for (manager, owned) in managed {
        let id = manager.name.trim_start_matches('m').parse().unwrap();
        let mut names = BTreeSet::new();
        owned.fields.for_each(|path| match path {
            [PathElement::Field(map)] if &**map == "data" => drop(names.insert(THE_MAP.to_owned())),
            [_, PathElement::Field(name)] => drop(names.insert(name.to_string())),
            _ => {}
        });
        if !names.is_empty() {
            owners.insert((id, manager.operation == managed::Operation::Apply), names);
        }
    }
    Model { data, owners }
}

fn any_data() -> impl Strategy<Value = Data> {
    prop::collection::btree_map("[a-d]", "[xy]", 0..4)
}

fn any_write() -> impl Strategy<Value = Write> {
    prop_oneof![
        3 => (0..3_u8, any_data(), any::<bool>())
            .prop_map(|(manager, data, force)| Write::Apply { manager, data, force }),
        1 => (0..3_u8, any_data()).prop_map(|(manager, data)| Write::Update { manager, data }),
    ]
}

proptest! {
    #[test]
    fn random_writes_agree_with_a_model_of_owned_names(writes in prop::collection::vec(any_write(), 1..16)) {
        let kind = Kind::built_in("v1", "ConfigMap", Typing::of_built_in("v1", "ConfigMap").unwrap());
        let reset = Set::new();
        let mut model = Model::default();
        let mut live: Option<Value> = None;
        let mut now = OffsetDateTime::UNIX_EPOCH;
        for write in writes {
            now += Duration::SECOND;
            let refused = model.write(&write);
            match &write {
                Write::Apply { manager, data, force } => {
                    let manager = name(*manager);
                    let by = Writer { manager: &manager, subresource: "", now, reset: &reset };
                    // Configurations have no uid.
                    let mut config = object(data);
                    config["metadata"].as_object_mut().unwrap().remove("uid");
                    match kind.apply(live.as_ref(), &config, by, *force) {
                        Err(ApplyError::Conflicts(conflicts)) => {
                            prop_assert!(refused && !conflicts.is_empty(), "no other manager owned the changed fields: {write:?}");
                        }
                        Err(error) => prop_assert!(false, "{error}"),
                        Ok(applied) => {
                            prop_assert!(!refused, "another manager owned the changed fields: {write:?}");
                            let later = Writer { now: now + Duration::DAY, ..by };
                            let again = kind.apply(Some(&applied), &config, later, false).unwrap();
                            prop_assert_eq!(&again, &applied, "applying twice changes nothing");
                            let owned = read(&applied).owners.remove(&(manager[1..].parse().unwrap(), true)).unwrap_or_default();
                            prop_assert_eq!(owned, data.keys().cloned().collect(), "an applier owns what it applied");
                            live = Some(applied);
                        }
                    }
                }
                Write::Update { manager, data } => {
                    let manager = name(*manager);
                    let by = Writer { manager: &manager, subresource: "", now, reset: &reset };
                    let mut new = object(data);
                    kind.update(live.as_ref(), &mut new, by);
                    // A reset of ownership ends the case, because the model does not cover it.
                    if new["metadata"].get("managedFields").is_none() {
                        return Ok(());
                    }
                    live = Some(new);
                }
            }
            let Some(live) = &live else { continue };
            let found = read(live);
            prop_assert_eq!(&found.data, &model.data, "the object is what its writers made of it, after {:?}", write);
            prop_assert_eq!(&found.owners, &model.owners, "each field has the owners that it should have, after {:?}", write);
            // An empty object has no managed fields.
            if live["metadata"].get("managedFields").is_none() {
                return Ok(());
            }
        }
    }
}
