//! Random writes by many managers, checked against a simple model: an object maps names to values, and each manager
//! owns a set of names. A manager can also own the map itself, under the name [`THE_MAP`]. An update that creates the
//! map owns the map, even after an applier removed the last name. Kubernetes 1.36 does the same. The next applier of
//! any name is then rejected with a conflict.

use std::collections::{BTreeMap, BTreeSet};

use listwatch_apply::{ApplyError, Kind, PathElement, Set, Typing, Writer, managed};
use listwatch_json::{Value, json};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use time::{Duration, OffsetDateTime};

type Data = BTreeMap<String, String>;

/// The name of the map itself in the model and in [`read`]; no other name equals it.
const THE_MAP: &str = ".";

#[derive(Clone, Debug)]
enum Write {
    Apply { manager: u8, data: Data, force: bool },
    Update { manager: u8, data: Data },
}

/// The names of each applier (`true`) and updater.
type Owners = BTreeMap<(u8, bool), BTreeSet<String>>;

/// A bug that the comparison must find.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PlantedBug {
    /// A forced apply does not take changed fields from their former owners.
    ForcedApplyKeepsFormerOwners,
    /// A field that the applier omits stays, although nobody else owns the field.
    OmittedFieldStays,
    /// A field that the applier omits is removed, although another manager owns the field.
    SharedFieldIsRemoved,
    /// An update takes no ownership of changed fields.
    UpdateTakesNoOwnership,
    /// An apply takes changed fields from their owners without `force`.
    ConflictIsNotReported,
    /// An apply without `force` is rejected if another manager owns a field with the same value.
    EqualValueIsAConflict,
    /// The repetition of an apply omits all fields.
    RepeatedApplyOmitsFields,
}

#[derive(Clone, Debug, Default)]
struct Model {
    data: Data,
    owners: Owners,
    planted_bug: Option<PlantedBug>,
}

impl Model {
    fn has(&self, bug: PlantedBug) -> bool {
        self.planted_bug == Some(bug)
    }

    /// Applies a write. Returns true if the write is rejected and changes nothing.
    fn write(&mut self, write: &Write) -> bool {
        match write {
            Write::Apply { manager, data, force } => {
                let me = (*manager, true);
                let changed = |name: &String| self.data.get(name) != data.get(name);
                let contested: BTreeSet<String> =
                    data.keys().filter(|name| changed(name)).cloned().chain(self.made_by(data)).collect();
                let conflicting: BTreeSet<String> = match self.has(PlantedBug::EqualValueIsAConflict) {
                    true => data.keys().cloned().collect(),
                    false => contested.clone(),
                };
                let others = || self.owners.iter().filter(|(owner, _)| **owner != me);
                let is_conflict = others().any(|(_, owned)| conflicting.iter().any(|name| owned.contains(name)));
                if is_conflict && !force && !self.has(PlantedBug::ConflictIsNotReported) {
                    return true;
                }
                let is_shared = |name: &String| {
                    others().any(|(_, owned)| owned.contains(name)) && !self.has(PlantedBug::SharedFieldIsRemoved)
                };
                let dropped: Vec<String> = self
                    .owners
                    .get(&me)
                    .into_iter()
                    .flatten()
                    .filter(|name| !data.contains_key(*name) && !is_shared(name))
                    .cloned()
                    .collect();
                if !self.has(PlantedBug::ForcedApplyKeepsFormerOwners) {
                    for (owner, owned) in &mut self.owners {
                        if *owner != me {
                            owned.retain(|name| !contested.contains(name));
                        }
                    }
                }
                if !self.has(PlantedBug::OmittedFieldStays) {
                    for name in dropped {
                        self.data.remove(&name);
                    }
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
                if !self.has(PlantedBug::UpdateTakesNoOwnership) {
                    self.owners.entry((*manager, false)).or_default().extend(taken);
                }
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
fn read(object: &Value) -> (Data, Owners) {
    let data = object["data"].as_object().into_iter().flatten();
    let data = data.map(|(name, value)| (name.as_str().to_owned(), value.as_str().unwrap().to_owned())).collect();
    let entries = object["metadata"].get("managedFields").cloned().unwrap_or_default();
    let managed = managed::decode(&entries).unwrap();
    assert_eq!(managed::encode(&managed), entries.as_array().cloned().unwrap_or_default(), "managedFields come back");
    let mut owners = Owners::new();
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
    (data, owners)
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

fn any_writes() -> impl Strategy<Value = Vec<Write>> {
    prop::collection::vec(any_write(), 1..16)
}

/// Returns an error that names the guarantee, if `is_kept` is false.
fn ensure(is_kept: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if is_kept { Ok(()) } else { Err(format!("Owned: {}", broken())) }
}

/// Sends the writes to an object and to the model, and compares them after each write.
fn compare(mut model: Model, writes: &[Write]) -> Result<(), String> {
    let kind = Kind::built_in("v1", "ConfigMap", Typing::of_built_in("v1", "ConfigMap").unwrap());
    let reset = Set::new();
    let mut live: Option<Value> = None;
    let mut now = OffsetDateTime::UNIX_EPOCH;
    for write in writes {
        now += Duration::SECOND;
        let refused = model.write(write);
        match write {
            Write::Apply { manager: id, data, force } => {
                let manager = name(*id);
                let by = Writer { manager: &manager, subresource: "", now, reset: &reset };
                // Configurations have no uid.
                let mut config = object(data);
                config["metadata"].as_object_mut().unwrap().remove("uid");
                match kind.apply(live.as_ref(), &config, by, *force) {
                    Err(ApplyError::Conflicts(conflicts)) => {
                        ensure(refused && !conflicts.is_empty(), || {
                            format!("no other manager owned the changed fields: {write:?}")
                        })?;
                    }
                    Err(error) => return Err(format!("Owned: {error}")),
                    Ok(applied) => {
                        ensure(!refused, || format!("another manager owned the changed fields: {write:?}"))?;
                        let later = Writer { now: now + Duration::DAY, ..by };
                        if model.has(PlantedBug::RepeatedApplyOmitsFields) {
                            config.as_object_mut().unwrap().remove("data");
                        }
                        let again = kind.apply(Some(&applied), &config, later, false).unwrap();
                        ensure(again == applied, || {
                            format!("applying twice changes nothing: {again} is not {applied}, after {write:?}")
                        })?;
                        let owned = read(&applied).1.remove(&(*id, true)).unwrap_or_default();
                        ensure(owned.iter().eq(data.keys()), || {
                            format!("an applier owns what it applied: {owned:?} are owned, after {write:?}")
                        })?;
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
        let (data, owners) = read(live);
        ensure(data == model.data, || {
            let expected = &model.data;
            format!("the object is what its writers made of it: {data:?} is not {expected:?}, after {write:?}")
        })?;
        ensure(owners == model.owners, || {
            let expected = &model.owners;
            format!("each field has the owners that it should have: {owners:?} is not {expected:?}, after {write:?}")
        })?;
        // An empty object has no managed fields.
        if live["metadata"].get("managedFields").is_none() {
            return Ok(());
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_writes_agree_with_a_model_of_owned_names(writes in any_writes()) {
        if let Err(broken) = compare(Model::default(), &writes) {
            prop_assert!(false, "{}", broken);
        }
    }
}

#[test]
fn comparison_with_a_faulty_model_finds_each_planted_bug() {
    fn check(bug: PlantedBug, broken: &str) {
        let mut runner = TestRunner::deterministic();
        let found = (0..2000).find_map(|_| {
            let writes = any_writes().new_tree(&mut runner).unwrap().current();
            let faulty = Model { planted_bug: Some(bug), ..Model::default() };
            let difference = compare(faulty, &writes).err()?;
            compare(Model::default(), &writes).unwrap_or_else(|broken| panic!("{broken}"));
            Some(difference)
        });
        let found = found.unwrap_or_else(|| panic!("Owned: the comparison does not find {bug:?}"));
        assert!(found.starts_with(&format!("Owned: {broken}")), "{bug:?} is reported as: {found}");
    }
    check(PlantedBug::ForcedApplyKeepsFormerOwners, "each field has the owners that it should have");
    check(PlantedBug::OmittedFieldStays, "the object is what its writers made of it");
    check(PlantedBug::SharedFieldIsRemoved, "the object is what its writers made of it");
    check(PlantedBug::UpdateTakesNoOwnership, "each field has the owners that it should have");
    check(PlantedBug::ConflictIsNotReported, "no other manager owned the changed fields");
    check(PlantedBug::EqualValueIsAConflict, "another manager owned the changed fields");
    check(PlantedBug::RepeatedApplyOmitsFields, "applying twice changes nothing");
}
