//! [`Catalog`]: all definitions at one moment, which names each of them holds, what is served of
//! them, and what is to be written into their status. Pure: objects and changes go in, work comes
//! out.
//!
//! ```text
//!  handle(change, object) … ─▶ settle() ─▶ resources()      what is served now
//!                                      └─▶ work()           status to be written, objects to be removed
//! ```
//!
//! The rules of names are those of the naming controller of kube-apiserver: within a group no two
//! definitions hold the same resource name (plural, singular, short names), nor the same kind (kind,
//! list kind). Who holds a name keeps it; who comes later waits. A definition is established with its
//! first accepted names and stays so.
//!
//! Several servers on one store come to the same result, for they see the same events in the same
//! order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use listwatch_meta::{Change, Object, Revision};

use super::kind::CustomKind;
use super::resources;
use crate::registry::Resource;
use listwatch_kinds::definitions::{Condition, Definition, Names, approval_condition, condition};

/// A definition's state that this server has arrived at.
#[derive(Debug)]
struct Entry {
    object: Object,
    definition: Definition,
    /// The names it holds, which its status is to say.
    accepted: Names,
    /// What its status is to say about them.
    names_accepted: Condition,
    established: bool,
    kind: Option<Arc<CustomKind>>,
    resources: Vec<Arc<Resource>>,
}

/// All definitions, by name.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    entries: BTreeMap<String, Entry>,
    /// Who holds which name, by group.
    held: HashMap<String, Held>,
    /// What changed since it was last settled.
    unsettled: BTreeSet<String>,
    /// What may need work since it was last asked for.
    unworked: BTreeSet<String>,
    reserved: Reserved,
    /// What is served has changed since it was last asked for.
    changed: bool,
}

/// What definitions may not take the place of.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    group_versions: BTreeSet<(String, String)>,
    prefixes: BTreeSet<String>,
}

impl Reserved {
    /// What the built-in resources take.
    pub(crate) fn of(resources: &[Arc<Resource>]) -> Self {
        Reserved {
            group_versions: resources.iter().map(|r| (r.group.clone(), r.version.clone())).collect(),
            prefixes: resources.iter().map(|r| r.storage_prefix.clone()).collect(),
        }
    }
}

/// The names of a group, each with the definition that holds it.
#[derive(Debug, Default)]
struct Held {
    resources: HashMap<String, String>,
    kinds: HashMap<String, String>,
}

/// Something to be done about a definition.
#[derive(Debug, PartialEq)]
pub(crate) enum Work {
    /// Its status is to say this.
    Status(StatusWork),
    /// Its objects are to be removed, and then its finalizer.
    Clean(String),
}

/// What a definition's status is to say, as long as it is of this generation.
#[derive(Debug, PartialEq)]
pub(crate) struct StatusWork {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) accepted: Names,
    /// Only those that differ.
    pub(crate) conditions: Vec<Condition>,
}

impl Catalog {
    /// A catalog of nothing.
    pub(crate) fn new(reserved: Reserved) -> Self {
        Catalog { reserved, ..Catalog::default() }
    }

    /// A definition was seen to change, or to be there from the beginning. States older than the one
    /// known are passed over.
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
                // Validation keeps these out; something else wrote it.
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
        let (kind, resources, established) =
            old.map_or((None, Vec::new(), false), |old| (old.kind, old.resources, old.established));
        if let Some(kind) = kind.as_ref().filter(|kind| kind.describes(&definition, &definition.status.accepted_names))
        {
            kind.refresh(object.json());
        }
        // What the status says counts more than what this server came to: another one may have
        // written it, or a user.
        self.hold(name, &definition.spec.group, &definition.status.accepted_names);
        let entry = Entry {
            object: object.clone(),
            accepted: definition.status.accepted_names.clone(),
            names_accepted: definition.condition("NamesAccepted").cloned().unwrap_or_default(),
            established: established || definition.is("Established"),
            kind,
            resources,
            definition,
        };
        self.entries.insert(name.to_owned(), entry);
        self.unsettled.insert(name.to_owned());
    }

    /// Forgets the definitions for which `there` is false: a watch began anew, and they were not
    /// among what it began with.
    pub(crate) fn retain(&mut self, there: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.entries.keys().filter(|name| !there(name)).cloned().collect();
        gone.iter().for_each(|name| self.remove(name));
    }

    fn remove(&mut self, name: &str) {
        let Some(entry) = self.entries.remove(name) else { return };
        self.changed |= !entry.resources.is_empty();
        let group = entry.definition.spec.group;
        self.release(name, &group, &entry.accepted);
        self.reconsider(&group);
    }

    /// Names became free: those who wait for one in this group are looked at again.
    fn reconsider(&mut self, group: &str) {
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

    /// Decides about the names of what changed, the oldest definition first, and makes its resources.
    pub(crate) fn settle(&mut self) {
        while !self.unsettled.is_empty() {
            let mut names: Vec<String> = std::mem::take(&mut self.unsettled).into_iter().collect();
            names.sort_by_cached_key(|name| {
                let created = self.entries.get(name).map(|entry| entry.definition.metadata.creation_timestamp.clone());
                (created, name.clone())
            });
            for name in names {
                self.settle_one(&name);
            }
        }
    }

    fn settle_one(&mut self, name: &str) {
        let Some(mut entry) = self.entries.remove(name) else { return };
        let group = entry.definition.spec.group.clone();
        let empty = Held::default();
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
        self.changed |= self.reserved.serve(&mut entry);
        let had_names = !entry.definition.status.accepted_names.plural.is_empty();
        self.entries.insert(name.to_owned(), entry);
        self.unworked.insert(name.to_owned());
        if freed && had_names {
            self.reconsider(&group);
        }
    }

    /// What is served of all definitions, if that changed since this was last asked.
    pub(crate) fn take_changed(&mut self) -> Option<Vec<Arc<Resource>>> {
        std::mem::take(&mut self.changed)
            .then(|| self.entries.values().flat_map(|entry| entry.resources.iter().cloned()).collect())
    }

    /// What is to be done, each once until its definition changes again.
    pub(crate) fn work(&mut self) -> Vec<Work> {
        let names = std::mem::take(&mut self.unworked);
        names.into_iter().filter_map(|name| self.work_of(&name)).collect()
    }

    /// What is to be done about one definition as it is now.
    pub(crate) fn work_of(&self, name: &str) -> Option<Work> {
        let entry = self.entries.get(name)?;
        if entry.definition.awaits_cleanup() {
            return Some(Work::Clean(name.to_owned()));
        }
        let conditions = entry.conditions();
        let told = conditions.is_empty() && entry.accepted == entry.definition.status.accepted_names;
        (!told && !entry.definition.is_deleting()).then(|| {
            Work::Status(StatusWork {
                name: name.to_owned(),
                uid: entry.definition.metadata.uid.clone(),
                generation: entry.definition.metadata.generation,
                accepted: entry.accepted.clone(),
                conditions,
            })
        })
    }

    /// Whether a definition is known in this state or a later one, and its status says all that it is to say.
    pub(crate) fn is_settled(&self, name: &str, revision: Revision) -> bool {
        let written = !matches!(self.work_of(name), Some(Work::Status(_)));
        self.revision(name).is_some_and(|known| known >= revision) && written
    }

    /// The state of a definition that is known.
    pub(crate) fn revision(&self, name: &str) -> Option<Revision> {
        self.entries.get(name).map(|entry| entry.object.revision())
    }
}

impl Entry {
    /// The conditions that its status does not have like that.
    fn conditions(&self) -> Vec<Condition> {
        let established = match self.definition.condition("Established") {
            Some(present) if present.status == "True" => None,
            _ if self.names_accepted.status == "True" => {
                Some(condition("Established", true, "InitialNamesAccepted", "the initial names have been accepted"))
            }
            Some(_) => None,
            None => Some(condition("Established", false, "NotAccepted", "not all names are accepted")),
        };
        let approval = approval_condition(&self.definition);
        let wanted = [Some(self.names_accepted.clone()), established, approval].into_iter().flatten();
        wanted.filter(|wanted| self.definition.condition(&wanted.kind) != Some(wanted)).collect()
    }
}

impl Reserved {
    /// Makes the resources of an entry anew where they are not what they should be. True when they
    /// changed.
    fn serve(&self, entry: &mut Entry) -> bool {
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
        let kind =
            present.cloned().unwrap_or_else(|| Arc::new(CustomKind::new(definition, accepted, entry.object.json())));
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

/// Which of the names a definition asks for it gets, having some already, and what is to be said
/// about that: of several conflicts the last one.
fn accept(wanted: &Names, has: &Names, held: &Held) -> (Names, Condition) {
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

/// Takes a name if it is free, or one's own already.
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
