//! The local copy: one [`StoreWriter`], any number of [`Store`] readers, and the [`Change`]s
//! between two states.
//!
//! ```text
//!   live      apply(MODIFIED b) ─────────────▶ Updated { old: b@3, new: b@5 }
//!
//!   relist    before   a@1  b@3  c@4
//!             list     a@1       c@9 (new uid)  d@8
//!             commit   ───────▶ Deleted b@3, Deleted c@4, Added c@9, Added d@8      (a@1: nothing)
//! ```
//!
//! A reader takes a snapshot: an immutable ordered map that costs one pointer and stays as it is
//! while the writer goes on. The writer builds the next state beside it and publishes a batch at
//! once, so readers never wait and never see half a batch. A replacement is collected apart from
//! the state in use; objects that did not change keep their allocation, so a relist costs the
//! difference, not a second copy.
//!
//! Every change that happened while nobody watched is reported: what vanished is a typed delete
//! with its last known state, and a name that came back with another uid is a delete and an add.

use std::sync::Arc;

use arc_swap::ArcSwap;
use imbl::OrdMap;
use listwatch_meta::Change as EventChange;

use crate::object::{Object, ObjectKey, RawObject, TypeName, compare_versions};

/// Why a change is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The first state ever loaded.
    Initial,
    /// A watch event.
    Live,
    /// The difference found by listing again after a gap; states in between were not seen.
    Relist,
}

/// One difference between two states of the store.
#[derive(Clone, Debug)]
pub enum Change {
    /// The object was not there before.
    Added {
        /// The object.
        object: Object,
        /// Why it is reported.
        origin: Origin,
    },
    /// The same object (same uid) in another version.
    Updated {
        /// The state before.
        old: Object,
        /// The state now.
        new: Object,
        /// Why it is reported.
        origin: Origin,
    },
    /// The object is gone.
    Deleted {
        /// The last state: for [`Origin::Live`] with an unchanged uid the one at its deletion,
        /// otherwise the last one this store knew.
        last: Object,
        /// True when `last` is the state at the deletion, false when it may be older.
        last_is_final: bool,
        /// Why it is reported.
        origin: Origin,
    },
}

impl Change {
    /// The key of the object that changed.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Change::Added { object, .. } => object.key(),
            Change::Updated { new, .. } => new.key(),
            Change::Deleted { last, .. } => last.key(),
        }
    }

    /// Why the change is reported.
    pub fn origin(&self) -> Origin {
        match self {
            Change::Added { origin, .. } | Change::Updated { origin, .. } | Change::Deleted { origin, .. } => *origin,
        }
    }
}

/// One published state.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    objects: OrdMap<ObjectKey, Object>,
    version: String,
    synced: bool,
}

impl Snapshot {
    /// The object with this key (`namespace/name`, or `name`).
    pub fn get(&self, key: &str) -> Option<&Object> {
        self.objects.get(key)
    }

    /// Every object, in key order.
    pub fn iter(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// The objects of one namespace, in key order.
    pub fn namespace<'s>(&'s self, namespace: &'s str) -> impl Iterator<Item = &'s Object> {
        let first = ObjectKey::new(namespace, "");
        self.objects.range(first..).map(|(_, object)| object).take_while(move |object| object.namespace() == namespace)
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True when there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The resource version this state is known to be current for; empty before the first.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// True once the initial state was loaded.
    pub fn is_synced(&self) -> bool {
        self.synced
    }
}

/// A reader of the local copy. Cheap to clone; never blocks, and nothing blocks it.
#[derive(Clone, Debug)]
pub struct Store {
    published: Arc<ArcSwap<Snapshot>>,
}

impl Store {
    /// The state as of now. Later changes do not show in it.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.published.load_full()
    }
}

/// What became of an object that was handed to [`StoreWriter::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The state changed.
    Changed,
    /// The store holds this version already, or never held what was deleted.
    Unchanged,
    /// The store holds a newer version; the object was passed over.
    Stale,
}

/// The only one who changes the store.
#[derive(Debug)]
pub struct StoreWriter {
    current: Snapshot,
    published: Arc<ArcSwap<Snapshot>>,
    type_name: Option<TypeName>,
    /// The readers do not see `current` yet.
    unpublished: bool,
    /// The state that is being collected; `None` when none is.
    replacement: Option<OrdMap<ObjectKey, Object>>,
}

impl StoreWriter {
    /// An empty store.
    pub fn new() -> Self {
        let published = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
        StoreWriter { current: Snapshot::default(), published, type_name: None, unpublished: false, replacement: None }
    }

    /// A reader.
    pub fn reader(&self) -> Store {
        Store { published: self.published.clone() }
    }

    /// Names the type that list items without one get.
    pub fn set_type_name(&mut self, type_name: &TypeName) {
        if self.type_name.as_ref() != Some(type_name) {
            self.type_name = Some(type_name.clone());
        }
    }

    /// The state as the writer sees it, published or not.
    pub fn current(&self) -> &Snapshot {
        &self.current
    }

    /// Applies a watch event to the state and appends what it changed to `changes`: nothing, one
    /// change, or a delete and an add when the name belongs to another object now.
    ///
    /// An object older than the one in the store is passed over: no reader goes back in time.
    pub fn apply(&mut self, change: EventChange, raw: &RawObject, changes: &mut Vec<Change>) -> Applied {
        let metadata = raw.metadata();
        let key = ObjectKey::new(&metadata.namespace, &metadata.name);
        let stored = self.current.objects.get(&key).cloned();
        if let Some(stored) = &stored
            && compare_versions(&metadata.resource_version, &stored.resource_version())
                .is_some_and(|order| order.is_lt())
        {
            return Applied::Stale;
        }
        let origin = Origin::Live;
        if change == EventChange::Deleted {
            let Some(stored) = stored else { return Applied::Unchanged };
            self.unpublished = true;
            self.current.objects.remove(&key);
            let last_is_final = stored.uid() == metadata.uid;
            let last = if last_is_final { self.keep(raw, stored.key().clone()) } else { stored };
            changes.push(Change::Deleted { last, last_is_final, origin });
            return Applied::Changed;
        }
        let Some(old) = stored else {
            self.unpublished = true;
            let object = self.keep(raw, key.clone());
            self.current.objects.insert(key, object.clone());
            changes.push(Change::Added { object, origin });
            return Applied::Changed;
        };
        let same_uid = old.uid() == metadata.uid;
        // A version that is stored already was seen before, by a list or an earlier watch.
        if same_uid && old.resource_version() == metadata.resource_version {
            return Applied::Unchanged;
        }
        self.unpublished = true;
        let new = self.keep(raw, old.key().clone());
        self.current.objects.insert(old.key().clone(), new.clone());
        difference(old, new, same_uid, origin, changes);
        Applied::Changed
    }

    /// Removes an object that can no longer be read, if it is there.
    pub fn remove(&mut self, key: &str, changes: &mut Vec<Change>) {
        if let Some(last) = self.current.objects.remove(key) {
            self.unpublished = true;
            changes.push(Change::Deleted { last, last_is_final: false, origin: Origin::Live });
        }
    }

    /// Notes that the state is current for this version: a bookmark, or an applied event.
    pub fn set_version(&mut self, version: &str) {
        if self.current.version != version {
            version.clone_into(&mut self.current.version);
            self.unpublished = true;
        }
    }

    /// Begins to collect a new state; what was collected before is dropped. The state in use is
    /// not touched.
    pub fn begin_replace(&mut self) {
        self.replacement = Some(OrdMap::new());
    }

    /// Drops what was collected.
    pub fn discard_replace(&mut self) {
        self.replacement = None;
    }

    /// Collects one object of the new state; `Deleted` takes it out again. Does nothing unless
    /// [`StoreWriter::begin_replace`] was called.
    pub fn collect(&mut self, change: EventChange, raw: &RawObject) {
        let Some(replacement) = &mut self.replacement else { return };
        let metadata = raw.metadata();
        let key = ObjectKey::new(&metadata.namespace, &metadata.name);
        if change == EventChange::Deleted {
            replacement.remove(&key);
            return;
        }
        // An object that did not change keeps its allocation.
        let unchanged = self.current.objects.get(&key).filter(|stored| {
            stored.uid() == metadata.uid
                && stored.resource_version() == metadata.resource_version
                && !metadata.resource_version.is_empty()
        });
        let object = match unchanged {
            Some(stored) => stored.clone(),
            None => Object::keep(raw, key, self.type_name.as_ref()),
        };
        replacement.insert(object.key().clone(), object);
    }

    /// How many objects were collected.
    pub fn collected(&self) -> usize {
        self.replacement.as_ref().map_or(0, OrdMap::len)
    }

    /// Puts the collected state in place of the one in use and appends every difference to
    /// `changes`: first what vanished, then the rest, each in key order.
    pub fn commit_replace(&mut self, version: &str, changes: &mut Vec<Change>) {
        let Some(replacement) = self.replacement.take() else { return };
        let origin = if self.current.synced { Origin::Relist } else { Origin::Initial };
        let before = std::mem::replace(&mut self.current.objects, replacement);
        for (key, last) in &before {
            if !self.current.objects.contains_key(key) {
                changes.push(Change::Deleted { last: last.clone(), last_is_final: false, origin });
            }
        }
        for (key, object) in &self.current.objects {
            match before.get(key) {
                None => changes.push(Change::Added { object: object.clone(), origin }),
                Some(old) if old.is_same(object) => {}
                Some(old) => difference(old.clone(), object.clone(), old.uid() == object.uid(), origin, changes),
            }
        }
        self.current.synced = true;
        self.unpublished = true;
        version.clone_into(&mut self.current.version);
    }

    /// Shows the state to the readers, if it is not what they see already. Called once per batch,
    /// so that a batch costs one snapshot.
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.unpublished) {
            self.published.store(Arc::new(self.current.clone()));
        }
    }

    fn keep(&self, raw: &RawObject, key: ObjectKey) -> Object {
        Object::keep(raw, key, self.type_name.as_ref())
    }
}

impl Default for StoreWriter {
    fn default() -> Self {
        StoreWriter::new()
    }
}

/// A name whose uid changed is two changes: nobody may mistake one object for another.
fn difference(old: Object, new: Object, same_uid: bool, origin: Origin, changes: &mut Vec<Change>) {
    if same_uid {
        changes.push(Change::Updated { old, new, origin });
    } else {
        changes.push(Change::Deleted { last: old, last_is_final: false, origin });
        changes.push(Change::Added { object: new, origin });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn raw(name: &str, uid: &str, version: u64) -> RawObject {
        let json = format!(
            r#"{{"metadata":{{"namespace":"n","name":"{name}","uid":"{uid}","resourceVersion":"{version}"}}}}"#
        );
        RawObject::new(Bytes::from(json)).unwrap()
    }

    fn show(changes: &[Change]) -> Vec<String> {
        changes
            .iter()
            .map(|change| match change {
                Change::Added { object, origin } => format!("+{object:?} {origin:?}"),
                Change::Updated { old, new, origin } => {
                    format!("{}@{}>{} {origin:?}", new.key(), old.resource_version(), new.resource_version())
                }
                Change::Deleted { last, last_is_final, origin } => {
                    format!(
                        "-{}@{} {} {origin:?}",
                        last.key(),
                        last.resource_version(),
                        if *last_is_final { "final" } else { "known" }
                    )
                }
            })
            .map(|line| {
                line.split(" (").next().unwrap_or_default().to_owned()
                    + line.rsplit_once(')').map_or("", |(_, rest)| rest)
            })
            .collect()
    }

    fn replace(writer: &mut StoreWriter, objects: &[RawObject], version: &str) -> Vec<String> {
        writer.begin_replace();
        for object in objects {
            writer.collect(EventChange::Added, object);
        }
        let mut changes = Vec::new();
        writer.commit_replace(version, &mut changes);
        show(&changes)
    }

    #[test]
    fn a_relist_reports_exactly_what_happened_in_the_gap() {
        let mut writer = StoreWriter::new();
        let first = [raw("a", "1", 1), raw("b", "2", 3), raw("c", "3", 4)];
        assert_eq!(replace(&mut writer, &first, "4"), ["+n/a@1 Initial", "+n/b@3 Initial", "+n/c@4 Initial"]);
        let second = [raw("a", "1", 1), raw("c", "9", 9), raw("d", "4", 8)];
        let expected = ["-n/b@3 known Relist", "-n/c@4 known Relist", "+n/c@9 Relist", "+n/d@8 Relist"];
        assert_eq!(replace(&mut writer, &second, "10"), expected);
        assert_eq!(replace(&mut writer, &second, "11"), Vec::<String>::new(), "an equal relist is no news");
        assert_eq!(writer.current().version(), "11");
    }

    #[test]
    fn live_events_give_typed_changes() {
        use EventChange::{Added, Deleted, Modified};
        fn check(
            stored: Option<RawObject>,
            change: EventChange,
            object: RawObject,
            applied: Applied,
            expected: &[&str],
        ) {
            let mut writer = StoreWriter::new();
            replace(&mut writer, stored.as_slice(), "1");
            let mut changes = Vec::new();
            assert_eq!(writer.apply(change, &object, &mut changes), applied, "{change:?} {object:?}");
            assert_eq!(show(&changes), expected, "{change:?} {object:?}");
        }
        let stored = || Some(raw("a", "1", 5));
        check(None, Added, raw("a", "1", 5), Applied::Changed, &["+n/a@5 Live"]);
        check(None, Modified, raw("a", "1", 5), Applied::Changed, &["+n/a@5 Live"]);
        check(None, Deleted, raw("a", "1", 5), Applied::Unchanged, &[]);
        check(stored(), Modified, raw("a", "1", 6), Applied::Changed, &["n/a@5>6 Live"]);
        check(stored(), Added, raw("a", "1", 6), Applied::Changed, &["n/a@5>6 Live"]);
        check(stored(), Added, raw("a", "1", 5), Applied::Unchanged, &[]);
        check(stored(), Modified, raw("a", "1", 4), Applied::Stale, &[]);
        check(stored(), Deleted, raw("a", "1", 4), Applied::Stale, &[]);
        check(stored(), Deleted, raw("a", "1", 7), Applied::Changed, &["-n/a@7 final Live"]);
        check(stored(), Deleted, raw("a", "2", 7), Applied::Changed, &["-n/a@5 known Live"]);
        check(stored(), Added, raw("a", "2", 7), Applied::Changed, &["-n/a@5 known Live", "+n/a@7 Live"]);
    }

    #[test]
    fn an_unchanged_object_keeps_its_allocation_over_a_relist() {
        let mut writer = StoreWriter::new();
        replace(&mut writer, &[raw("a", "1", 1)], "1");
        let before = writer.current().get("n/a").unwrap().clone();
        replace(&mut writer, &[raw("a", "1", 1)], "2");
        assert!(before.is_same(writer.current().get("n/a").unwrap()), "a relist copied what had not changed");
    }

    #[test]
    fn readers_see_whole_batches_and_keep_their_snapshot() {
        let mut writer = StoreWriter::new();
        let reader = writer.reader();
        replace(&mut writer, &[raw("a", "1", 1), raw("b", "2", 2)], "2");
        assert!(reader.snapshot().is_empty(), "an unpublished state was visible");
        writer.publish();
        let snapshot = reader.snapshot();
        assert!(snapshot.is_synced());
        writer.apply(EventChange::Deleted, &raw("a", "1", 3), &mut Vec::new());
        writer.publish();
        assert_eq!((snapshot.len(), reader.snapshot().len()), (2, 1));
        assert_eq!(snapshot.iter().map(Object::name).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(snapshot.namespace("n").count(), 2);
        assert_eq!(snapshot.namespace("m").count(), 0);
    }

    #[test]
    fn initial_events_can_take_an_object_back() {
        let mut writer = StoreWriter::new();
        writer.begin_replace();
        writer.collect(EventChange::Added, &raw("a", "1", 1));
        writer.collect(EventChange::Added, &raw("b", "2", 2));
        writer.collect(EventChange::Deleted, &raw("a", "1", 3));
        let mut changes = Vec::new();
        writer.commit_replace("3", &mut changes);
        assert_eq!(show(&changes), ["+n/b@2 Initial"]);
    }

    proptest! {
        #[test]
        fn applying_the_changes_gives_the_state(
            steps in prop::collection::vec((0_u8..4, 0_u8..4, 0_u8..2, any::<bool>()), 1..60),
        ) {
            // A reader that knows only the changes must end with the same objects as the store.
            let mut writer = StoreWriter::new();
            let mut mirror = std::collections::BTreeMap::new();
            for (version, (name, operation, uid, relist)) in (1_u64..).zip(steps) {
                let object = raw(&format!("o{name}"), &uid.to_string(), version);
                let mut changes = Vec::new();
                if relist {
                    writer.begin_replace();
                    let kept: Vec<Object> = writer.current().iter().filter(|o| !o.name().ends_with('1')).cloned().collect();
                    for kept in kept {
                        writer.collect(EventChange::Added, &RawObject::new(kept.json().clone()).unwrap());
                    }
                    writer.collect(EventChange::Added, &object);
                    writer.commit_replace(&version.to_string(), &mut changes);
                } else {
                    let change = [EventChange::Added, EventChange::Modified, EventChange::Deleted][usize::from(operation.min(2))];
                    writer.apply(change, &object, &mut changes);
                }
                for change in &changes {
                    let key = change.key().clone();
                    match change {
                        Change::Added { object, .. } => {
                            prop_assert!(mirror.insert(key, object.clone()).is_none(), "added twice");
                        }
                        Change::Updated { old, new, .. } => {
                            let before = mirror.insert(key, new.clone());
                            prop_assert!(before.is_some_and(|before| before.is_same(old)), "the old state was not the last one");
                            prop_assert_eq!(old.uid(), new.uid());
                        }
                        Change::Deleted { last, .. } => {
                            let before = mirror.remove(&key);
                            prop_assert!(before.is_some_and(|before| before.uid() == last.uid()), "deleted what was not there");
                        }
                    }
                }
                let store: Vec<&Object> = writer.current().iter().collect();
                prop_assert_eq!(store.len(), mirror.len());
                prop_assert!(store.iter().zip(mirror.values()).all(|(a, b)| a.is_same(b)), "the changes lead elsewhere");
            }
        }
    }
}
