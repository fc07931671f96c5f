//! [`Catalog`]: all known definitions with their names, the resources served for them, and the required status updates.
//! The catalog performs no I/O: the input is objects and changes, the output is work.
//!
//! ```text
//!  handle(change, object) … ─▶ assign_names() ─▶ resources()      served resources
//!                                      └─▶ work()           status updates and cleanups
//! ```
//!
//! Names follow the rules of kube-apiserver's naming controller. Within a group no two definitions hold the same
//! resource name (plural, singular, short names), nor the same kind (kind, list kind). The first holder keeps a
//! name; later definitions wait. A definition is established when its names are accepted for the first time, and
//! stays established.
//!
//! Several servers on one store reach the same result, because all see the same events in the same order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use listwatch_meta::{Change, Object, Revision};

use super::kind::CustomKind;
use super::resources;
use super::structural_check::StructuralCheck;
use crate::conversion::ConversionCallers;
use crate::resource::Resource;
use listwatch_apiextensions::{Condition, Definition, NON_STRUCTURAL_SCHEMA, Names, approval_condition, condition};

/// A definition with the state that this server computed for it.
#[derive(Debug)]
struct Entry {
    object: Object,
    definition: Definition,
    /// The accepted names, to be written to the definition's status.
    accepted: Names,
    /// The condition `NamesAccepted`, to be written to the definition's status.
    names_accepted: Condition,
    established: bool,
    /// Whether the schemas of this generation are structural.
    structural: StructuralCheck,
    kind: Option<Arc<CustomKind>>,
    resources: Vec<Arc<Resource>>,
}

/// All known definitions, by name.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    entries: BTreeMap<String, Entry>,
    /// The holders of names, by API group.
    held: HashMap<String, HeldNames>,
    /// Definitions that changed since the last call to `assign_names`.
    unsettled: BTreeSet<String>,
    /// Definitions that may have new work since the last call to `work`.
    unworked: BTreeSet<String>,
    reserved: Reserved,
    /// The converters of definitions with the conversion strategy `Webhook`.
    conversion: Arc<ConversionCallers>,
    /// True if the served resources changed since the last call to `take_changed`.
    changed: bool,
}

/// Group versions and storage prefixes of built-in resources, reserved against definitions.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    group_versions: BTreeSet<(String, String)>,
    prefixes: BTreeSet<String>,
}

impl Reserved {
    /// Collects the reserved group versions and storage prefixes of these resources.
    pub(crate) fn of(resources: &[Arc<Resource>]) -> Self {
        Reserved {
            group_versions: resources.iter().map(|r| (r.group.clone(), r.version.clone())).collect(),
            prefixes: resources.iter().map(|r| r.storage_prefix.clone()).collect(),
        }
    }
}

/// The names held in one API group, each with the definition that holds the name.
#[derive(Debug, Default)]
struct HeldNames {
    resources: HashMap<String, String>,
    kinds: HashMap<String, String>,
}

/// A task that a definition needs.
#[derive(Debug, PartialEq)]
pub enum Work {
    /// Write this status to the definition.
    Status(StatusWork),
    /// Check the schemas of the definition.
    CheckSchemas(SchemaWork),
    /// Delete the objects of the definition with this name, then remove the definition's finalizer.
    Clean(String),
}

/// A status update of a definition, valid for one generation of the definition.
#[derive(Debug, PartialEq)]
pub struct StatusWork {
    /// The name of the definition.
    pub name: String,
    /// The uid of the definition.
    pub uid: String,
    /// The generation of the definition for which the status was computed.
    pub generation: i64,
    /// The accepted names of the definition.
    pub accepted: Names,
    /// The conditions that differ from the stored ones.
    pub conditions: Vec<Condition>,
    /// The types of the stored conditions that no longer apply.
    pub removed_conditions: Vec<&'static str>,
}

/// A check whether the schemas of one generation of a definition are structural
/// ([`non_structural_condition`](listwatch_apiextensions::non_structural_condition)). The result is reported by
/// [`Definitions::schemas_checked`](crate::Definitions::schemas_checked).
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaWork {
    /// The name of the definition.
    pub name: String,
    /// The uid of the definition.
    pub uid: String,
    /// The generation of the definition.
    pub generation: i64,
    /// The JSON of the definition.
    pub source: Bytes,
}

impl Catalog {
    /// Creates an empty catalog.
    pub(crate) fn new(reserved: Reserved, conversion: Arc<ConversionCallers>) -> Self {
        Catalog { reserved, conversion, ..Catalog::default() }
    }

    /// Applies a change of one definition, or its initial state from a list. Changes older than the known revision are
    /// ignored.
    pub(crate) fn handle(&mut self, change: Change, object: &Object) {
        let name = object.name();
        let known = self.entries.get(name);
        if known.is_some_and(|entry| entry.object.revision() > object.revision()) {
            return;
        }
        if change == Change::Deleted {
            self.remove(name);
            return;
        }
        let definition = match Definition::parse(object.json_slice()) {
            Ok(definition) => definition,
            Err(error) => {
                // Validation rejects such a definition, so another writer stored it.
                tracing::warn!(definition = name, %error, "a definition cannot be understood");
                self.remove(name);
                return;
            }
        };
        if known.is_some_and(|entry| entry.definition.metadata.uid != definition.metadata.uid) {
            self.remove(name);
        }
        let old = self.entries.remove(name);
        if let Some(old) = &old {
            self.release(name, &old.definition.spec.group, &old.accepted);
        }
        let is_same = |old: &Entry| old.definition.metadata.generation == definition.metadata.generation;
        let checked = old.as_ref().filter(|old| is_same(old)).map(|old| old.structural.clone());
        let (kind, resources, established) =
            old.map_or((None, Vec::new(), false), |old| (old.kind, old.resources, old.established));
        if let Some(kind) = kind.as_ref().filter(|kind| kind.describes(&definition, &definition.status.accepted_names))
        {
            kind.refresh(object.json());
        }
        // The stored status takes precedence over the state computed by this server, because another server or a
        // user may have written the status.
        self.hold(name, &definition.spec.group, &definition.status.accepted_names);
        let entry = Entry {
            object: object.clone(),
            accepted: definition.status.accepted_names.clone(),
            names_accepted: definition.condition("NamesAccepted").cloned().unwrap_or_default(),
            established: established || definition.is("Established"),
            structural: StructuralCheck::of(&definition, checked),
            kind,
            resources,
            definition,
        };
        self.entries.insert(name.to_owned(), entry);
        self.unsettled.insert(name.to_owned());
    }

    /// Removes the definitions for which `there` returns false. After a relist, this removes the definitions that are
    /// not in the list.
    pub(crate) fn retain(&mut self, there: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.entries.keys().filter(|name| !there(name)).cloned().collect();
        gone.iter().for_each(|name| self.remove(name));
    }

    fn remove(&mut self, name: &str) {
        let Some(entry) = self.entries.remove(name) else { return };
        self.changed |= !entry.resources.is_empty();
        let group = entry.definition.spec.group;
        self.release(name, &group, &entry.accepted);
        self.requeue_waiting(&group);
    }

    /// Marks the definitions in this group that wait for a name as changed, because a name became free.
    fn requeue_waiting(&mut self, group: &str) {
        let waits = |entry: &Entry| entry.definition.spec.group == group && entry.names_accepted.status == "False";
        let waiting = self.entries.iter().filter(|(_, entry)| waits(entry)).map(|(name, _)| name.clone());
        self.unsettled.extend(waiting);
    }

    fn hold(&mut self, name: &str, group: &str, names: &Names) {
        let held = self.held.entry(group.to_owned()).or_default();
        for (class, texts) in [(&mut held.resources, resource_names(names)), (&mut held.kinds, kind_names(names))] {
            for text in texts.filter(|text| !text.is_empty()) {
                class.entry(text.clone()).or_insert_with(|| name.to_owned());
            }
        }
    }

    fn release(&mut self, name: &str, group: &str, names: &Names) {
        let Some(held) = self.held.get_mut(group) else { return };
        for (class, texts) in [(&mut held.resources, resource_names(names)), (&mut held.kinds, kind_names(names))] {
            for text in texts {
                if class.get(text).is_some_and(|owner| owner == name) {
                    class.remove(text);
                }
            }
        }
        if held.resources.is_empty() && held.kinds.is_empty() {
            self.held.remove(group);
        }
    }

    /// Assigns names to the changed definitions, the oldest definition first, and builds their resources.
    pub(crate) fn assign_names(&mut self) {
        while !self.unsettled.is_empty() {
            let mut names: Vec<String> = std::mem::take(&mut self.unsettled).into_iter().collect();
            names.sort_by_cached_key(|name| {
                let created = self.entries.get(name).map(|entry| entry.definition.metadata.creation_timestamp.clone());
                (created, name.clone())
            });
            for name in names {
                self.assign_names_of(&name);
            }
        }
    }

    fn assign_names_of(&mut self, name: &str) {
        let Some(mut entry) = self.entries.remove(name) else { return };
        let group = entry.definition.spec.group.clone();
        let empty = HeldNames::default();
        let held = self.held.get(&group).unwrap_or(&empty);
        let (accepted, names_accepted) = accept(&entry.definition.spec.names, &entry.accepted, held);
        let freed = accepted != entry.accepted;
        if freed {
            self.release(name, &group, &entry.accepted);
            self.hold(name, &group, &accepted);
        }
        entry.accepted = accepted;
        entry.established |= names_accepted.status == "True";
        entry.names_accepted = names_accepted;
        self.changed |= self.reserved.serve(&mut entry, &self.conversion);
        let had_names = !entry.definition.status.accepted_names.plural.is_empty();
        self.entries.insert(name.to_owned(), entry);
        self.unworked.insert(name.to_owned());
        if freed && had_names {
            self.requeue_waiting(&group);
        }
    }

    /// Returns the served resources of all definitions if they changed since the last call.
    pub(crate) fn take_changed(&mut self) -> Option<Vec<Arc<Resource>>> {
        std::mem::take(&mut self.changed)
            .then(|| self.entries.values().flat_map(|entry| entry.resources.iter().cloned()).collect())
    }

    /// Returns the pending work. Each task is returned once until its definition changes again.
    pub(crate) fn work(&mut self) -> Vec<Work> {
        let names = std::mem::take(&mut self.unworked);
        names.into_iter().filter_map(|name| self.pending_work(&name)).collect()
    }

    /// Returns the work that one definition needs in its current state.
    pub(crate) fn pending_work(&self, name: &str) -> Option<Work> {
        let entry = self.entries.get(name)?;
        if entry.definition.awaits_cleanup() {
            return Some(Work::Clean(name.to_owned()));
        }
        if entry.definition.is_deleting() {
            return None;
        }
        let metadata = &entry.definition.metadata;
        let conditions = entry.conditions();
        let is_obsolete = entry.structural.is_obsolete(&entry.definition);
        let told = conditions.is_empty() && !is_obsolete && entry.accepted == entry.definition.status.accepted_names;
        if !told {
            return Some(Work::Status(StatusWork {
                name: name.to_owned(),
                uid: metadata.uid.clone(),
                generation: metadata.generation,
                accepted: entry.accepted.clone(),
                conditions,
                removed_conditions: is_obsolete.then_some(NON_STRUCTURAL_SCHEMA).into_iter().collect(),
            }));
        }
        // The check takes long, so the names are accepted first.
        entry.structural.is_pending().then(|| {
            Work::CheckSchemas(SchemaWork {
                name: name.to_owned(),
                uid: metadata.uid.clone(),
                generation: metadata.generation,
                source: entry.object.json(),
            })
        })
    }

    /// Records the condition about the schemas of one generation of a definition; `None` if the schemas are structural.
    pub(crate) fn schemas_checked(&mut self, work: &SchemaWork, condition: Option<Condition>) {
        let Some(entry) = self.entries.get_mut(&work.name) else { return };
        let metadata = &entry.definition.metadata;
        if (&metadata.uid, metadata.generation) == (&work.uid, work.generation) {
            entry.structural = StructuralCheck::done(&entry.definition, condition);
        }
    }

    /// Reports whether the definition is known at this revision or a later one and its stored status is up to date.
    pub(crate) fn is_settled(&self, name: &str, revision: Revision) -> bool {
        let written = !matches!(self.pending_work(name), Some(Work::Status(_) | Work::CheckSchemas(_)));
        self.revision(name).is_some_and(|known| known >= revision) && written
    }

    /// Returns the revision of a known definition.
    pub(crate) fn revision(&self, name: &str) -> Option<Revision> {
        self.entries.get(name).map(|entry| entry.object.revision())
    }
}

impl Entry {
    /// Returns the conditions that differ from those in the stored status.
    fn conditions(&self) -> Vec<Condition> {
        let established = match self.definition.condition("Established") {
            Some(present) if present.status == "True" => None,
            // Upstream's EstablishingController; only this condition of the definition tells the reason.
            _ if self.names_accepted.status == "True" && self.definition.has_invalid_ca_bundle() => {
                let why = "The conversion webhook CABundle is invalid";
                Some(condition("Established", false, "InvalidCABundle", why))
            }
            _ if self.names_accepted.status == "True" => {
                Some(condition("Established", true, "InitialNamesAccepted", "the initial names have been accepted"))
            }
            Some(_) => None,
            None => Some(condition("Established", false, "NotAccepted", "not all names are accepted")),
        };
        let approval = approval_condition(&self.definition);
        let structural = self.structural.condition().cloned();
        let wanted = [Some(self.names_accepted.clone()), established, approval, structural].into_iter().flatten();
        wanted.filter(|wanted| self.definition.condition(&wanted.kind) != Some(wanted)).collect()
    }
}

impl Reserved {
    /// Rebuilds the resources of an entry if they are out of date. Returns true if the resources changed.
    fn serve(&self, entry: &mut Entry, conversion: &Arc<ConversionCallers>) -> bool {
        let Entry { definition, accepted, .. } = &*entry;
        let complete = [&accepted.plural, &accepted.singular, &accepted.kind, &accepted.list_kind]
            .iter()
            .all(|name| !name.is_empty());
        let served = entry.established
            && complete
            && definition.storage_version().is_some()
            && !self.prefixes.contains(&definition.storage_prefix());
        if !served {
            entry.kind = None;
            return !std::mem::take(&mut entry.resources).is_empty();
        }
        let present = entry.kind.as_ref().filter(|kind| kind.describes(definition, accepted));
        let terminating = definition.is("Terminating");
        if present.is_some() && entry.resources.iter().all(|resource| resource.terminating == terminating) {
            return false;
        }
        let kind = present.cloned().unwrap_or_else(|| {
            let kind = CustomKind::new(definition, accepted, entry.object.json());
            Arc::new(kind.with_conversion(definition, conversion))
        });
        let mut resources = resources::of(definition, accepted, &kind);
        resources.retain(|r| !self.group_versions.contains(&(r.group.clone(), r.version.clone())));
        entry.kind = Some(kind);
        entry.resources = resources;
        true
    }
}

fn resource_names(names: &Names) -> Box<dyn Iterator<Item = &String> + '_> {
    Box::new([&names.plural, &names.singular].into_iter().chain(&names.short_names))
}

fn kind_names(names: &Names) -> Box<dyn Iterator<Item = &String> + '_> {
    Box::new([&names.kind, &names.list_kind].into_iter())
}

/// Returns the accepted names of a definition and the condition `NamesAccepted`. `has` are the names that the
/// definition already holds. If there are several conflicts, the condition reports the last one.
fn accept(wanted: &Names, has: &Names, held: &HeldNames) -> (Names, Condition) {
    let mut gets = has.clone();
    let mut conflict = None;
    for (wanted, slot, class, reason) in [
        (&wanted.plural, &mut gets.plural, &held.resources, "PluralConflict"),
        (&wanted.singular, &mut gets.singular, &held.resources, "SingularConflict"),
    ] {
        conflict = take(wanted, slot, class, reason).or(conflict);
    }
    let mut taken: Vec<String> = Vec::new();
    for name in wanted.short_names.iter().filter(|name| !has.short_names.contains(name)) {
        let text = in_use(name);
        if held.resources.contains_key(name) && !taken.contains(&text) {
            taken.push(text);
        }
    }
    match &taken[..] {
        [] => gets.short_names.clone_from(&wanted.short_names),
        [single] => conflict = Some(condition("NamesAccepted", false, "ShortNamesConflict", single.as_str())),
        several => {
            let text = format!("[{}]", several.join(", "));
            conflict = Some(condition("NamesAccepted", false, "ShortNamesConflict", text));
        }
    }
    for (wanted, slot, reason) in
        [(&wanted.kind, &mut gets.kind, "KindConflict"), (&wanted.list_kind, &mut gets.list_kind, "ListKindConflict")]
    {
        conflict = take(wanted, slot, &held.kinds, reason).or(conflict);
    }
    gets.categories.clone_from(&wanted.categories);
    let verdict = conflict.unwrap_or_else(|| condition("NamesAccepted", true, "NoConflicts", "no conflicts found"));
    (gets, verdict)
}

/// Takes a name if the name is free or already held by this definition. Returns a condition on conflict.
fn take(wanted: &str, slot: &mut String, held: &HashMap<String, String>, reason: &str) -> Option<Condition> {
    if wanted != slot.as_str() && held.contains_key(wanted) {
        return Some(condition("NamesAccepted", false, reason, in_use(wanted)));
    }
    wanted.clone_into(slot);
    None
}

fn in_use(name: &str) -> String {
    format!("{name:?} is already in use")
}

#[cfg(test)]
mod tests;
