//! Merges several lists and watches into one state. Pure functions: [`fold`], [`removal_deltas`].
//!
//! The parts of a merged informer are namespaces or shards. Each part is a separate copy, and the
//! merged state is their union. Parts are not synchronized with each other. A name that was deleted
//! and created again may be in another shard. That shard may report the creation before the first
//! shard reports the deletion. A deletion therefore removes only the uid that it names. If two
//! parts have a name with different uids, the newer version is shown. There is one exception: a
//! relist of the part with the shown object finds it deleted. The server may have been restored to
//! an older state, so the object of the other part is shown.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::delta_fifo::Delta;
use crate::indexer::{Change, Origin, Snapshot};
use crate::object::{ObjectKey, compare_versions};
use crate::stored::Stored;

/// The versions of deleted names, while a part may still report earlier states. Bounded by the
/// number of deletions between the slowest and the fastest part: see [`DeletedVersions::forget`].
#[derive(Debug, Default)]
pub(crate) struct DeletedVersions(HashMap<ObjectKey, u64>);

impl DeletedVersions {
    /// Records a deletion whose version is known.
    pub(crate) fn note<S: Stored>(&mut self, change: &Change<S>) {
        if let Change::Deleted { last, last_is_final: true, .. } = change
            && let Ok(version) = last.resource_version().parse()
        {
            self.0.insert(last.key().clone(), version);
        }
    }

    /// Drops the versions that every part has passed.
    pub(crate) fn forget(&mut self, oldest: u64) {
        self.0.retain(|_, version| *version > oldest);
    }

    fn is_below<S: Stored>(&self, object: &S) -> bool {
        let Some(floor) = self.0.get(object.key()) else { return false };
        object.resource_version().parse::<u64>().is_ok_and(|version| version < *floor)
    }
}

/// Returns the effect of a part's change on the merged state. `others` are the parts that may have
/// the same key; none for namespaces, whose keys differ.
pub(crate) fn fold<'o, S: Stored>(
    merged: &Snapshot<S>,
    change: &Change<S>,
    floors: &DeletedVersions,
    others: impl IntoIterator<Item = &'o Snapshot<S>>,
) -> Vec<Delta<S>> {
    let key = change.key();
    let shown = merged.get(key.as_str());
    match change {
        Change::Added { object: new, origin } | Change::Updated { new, origin, .. } => {
            let Some(shown) = shown else {
                // The part lags: it has yet to report the deletion that preceded this object's
                // successor.
                let late = *origin == Origin::Live && floors.is_below(new);
                return if late { Vec::new() } else { vec![Delta::Upsert(new.clone())] };
            };
            let older = compare_versions(&new.resource_version(), &shown.resource_version()) == Some(Ordering::Less);
            if !older {
                return vec![Delta::Upsert(new.clone())];
            }
            // A relist of this part is authoritative, also after a backup was restored. An object
            // with another uid is an older one.
            if shown.uid() == new.uid() && *origin != Origin::Live {
                let gone = Delta::Delete { key: key.clone(), last: None };
                return vec![gone, Delta::Upsert(new.clone())];
            }
            Vec::new()
        }
        Change::Deleted { last, last_is_final, origin } => {
            if shown.is_none_or(|shown| shown.uid() != last.uid()) {
                return Vec::new();
            }
            let last = last_is_final.then(|| last.clone());
            let mut deltas = vec![Delta::Delete { key: key.clone(), last }];
            if *origin == Origin::Live {
                return deltas;
            }
            let others = others.into_iter().filter_map(|other| other.get(key.as_str()));
            let newest = others.reduce(|a, b| {
                let newer = compare_versions(&b.resource_version(), &a.resource_version()) == Some(Ordering::Greater);
                if newer { b } else { a }
            });
            deltas.extend(newest.cloned().map(Delta::Upsert));
            deltas
        }
    }
}

/// Returns the deltas that remove a part from the merged state, with the last known states.
pub(crate) fn removal_deltas<S: Stored>(merged: &Snapshot<S>, part: &Snapshot<S>) -> Vec<Delta<S>> {
    let gone = |object: &S| Change::Deleted { last: object.clone(), last_is_final: false, origin: Origin::Live };
    part.iter().flat_map(|object| fold(merged, &gone(object), &DeletedVersions::default(), [])).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::indexer::Indexer;
    use crate::object::{ObjectKey, RawObject};
    use crate::stored::Typed;

    type Item = Typed<u64>;

    fn item(name: u8, uid: u64, version: u64) -> Item {
        let json = format!(r#"{{"metadata":{{"name":"o{name}","uid":"{uid}","resourceVersion":"{version}"}}}}"#);
        Typed::new(&RawObject::new(Bytes::from(json)).unwrap(), version)
    }

    fn object(uid: u64, version: u64) -> Item {
        item(0, uid, version)
    }

    #[test]
    fn change_of_one_part_is_folded_into_the_merged_state() {
        fn snapshot(object: &Item) -> Indexer<Item> {
            let mut indexer = Indexer::new();
            indexer.apply(Delta::Upsert(object.clone()), &mut Vec::new());
            indexer
        }
        // The shown object, the change of its part, and the objects of the other parts.
        fn check(promise: &str, shown: &Item, change: &Change<Item>, others: &[Item], expected: &[&str]) {
            let shown = snapshot(shown);
            let others: Vec<_> = others.iter().map(snapshot).collect();
            let others = others.iter().map(Indexer::current);
            let deltas = fold(shown.current(), change, &DeletedVersions::default(), others);
            let show = |delta: &Delta<Item>| match delta {
                Delta::Upsert(object) => format!("+{}@{}", object.uid(), **object),
                Delta::Delete { last: Some(last), .. } => format!("-{}@{}", last.uid(), **last),
                Delta::Delete { last: None, .. } => "-".to_owned(),
                other => format!("{other:?}"),
            };
            assert_eq!(deltas.iter().map(show).collect::<Vec<_>>(), expected, "{promise}");
        }
        let added = |new: Item, origin| Change::Added { object: new, origin };
        let deleted = |last: Item, last_is_final, origin| Change::Deleted { last, last_is_final, origin };
        let shown = object(1, 9);
        let (live, relist) = (Origin::Live, Origin::Relist);
        check("a newer object is shown", &shown, &added(object(2, 10), live), &[], &["+2@10"]);
        check("an older event is not shown", &shown, &added(object(1, 5), live), &[], &[]);
        check("an older object is not shown", &shown, &added(object(2, 5), live), &[], &[]);
        check("an older object of a relist is not shown", &shown, &added(object(2, 5), relist), &[], &[]);
        check("a restored object is shown", &shown, &added(object(1, 5), relist), &[], &["-", "+1@5"]);
        check("a deletion is shown", &shown, &deleted(object(1, 12), true, live), &[], &["-1@12"]);
        check("a deletion removes only its uid", &shown, &deleted(object(2, 12), true, live), &[], &[]);
        let others = [object(2, 5), object(3, 7), object(4, 6)];
        check(
            "a live deletion shows no other object",
            &shown,
            &deleted(object(1, 12), true, live),
            &others,
            &["-1@12"],
        );
        let gone = deleted(object(1, 9), false, relist);
        check("a relist without the object shows the newest other one", &shown, &gone, &others, &["-", "+3@7"]);
        let others = [object(3, 7), object(2, 5)];
        check("a relist without the object shows the newest other one", &shown, &gone, &others, &["-", "+3@7"]);
    }

    #[test]
    fn deleted_version_is_forgotten_when_every_part_has_passed_it() {
        let mut floors = DeletedVersions::default();
        floors.note(&Change::Deleted { last: object(1, 5), last_is_final: true, origin: Origin::Live });
        for (passed, version, is_below) in [(0, 4, true), (0, 5, false), (0, 6, false), (4, 4, true), (5, 4, false)] {
            floors.forget(passed);
            let found = floors.is_below(&object(1, version));
            assert_eq!(found, is_below, "version {version}, deleted at 5, every part is at {passed}");
        }
        assert!(floors.0.is_empty(), "a passed deletion uses memory");
        floors.note(&Change::Deleted { last: object(1, 5), last_is_final: false, origin: Origin::Live });
        assert!(!floors.is_below(&object(1, 4)), "the version of this deletion is not known");
    }

    /// Three shards by uid, each with its unreported changes.
    struct World {
        truth: BTreeMap<u8, (u64, u64)>,
        version: u64,
        parts: Vec<Indexer<Item>>,
        waiting: Vec<VecDeque<Delta<Item>>>,
        merged: Indexer<Item>,
        told: BTreeMap<ObjectKey, Item>,
        newest: BTreeMap<ObjectKey, u64>,
        floors: DeletedVersions,
    }

    impl World {
        fn write(&mut self, name: u8, operation: u8) {
            self.version += 1;
            let version = self.version;
            let key = ObjectKey::new("", &format!("o{name}"));
            let shard = |uid: u64| (uid % 3) as usize;
            match (self.truth.get(&name).copied(), operation) {
                (Some((uid, _)), 0) => {
                    self.truth.remove(&name);
                    self.waiting[shard(uid)].push_back(Delta::Delete { key, last: Some(item(name, uid, version)) });
                }
                (known, _) => {
                    let uid = known.map_or(version, |(uid, _)| uid);
                    self.truth.insert(name, (uid, version));
                    self.waiting[shard(uid)].push_back(Delta::Upsert(item(name, uid, version)));
                }
            }
        }

        /// Applies one write to a part, and its changes to the merged state. Returns false if no
        /// write waits.
        fn deliver(&mut self, part: usize) -> bool {
            let Some(delta) = self.waiting[part].pop_front() else { return false };
            let mut changes = Vec::new();
            self.parts[part].apply(delta, &mut changes);
            self.parts[part].publish();
            let others: Vec<_> =
                (0..3).filter(|other| *other != part).map(|other| self.parts[other].current()).collect();
            let mut told = Vec::new();
            for change in &changes {
                for delta in fold(self.merged.current(), change, &self.floors, others.iter().copied()) {
                    self.merged.apply(delta, &mut told);
                }
            }
            self.hear(&told);
            true
        }

        fn hear(&mut self, changes: &[Change<Item>]) {
            for change in changes {
                let key = change.key().clone();
                let newest = self.newest.entry(key.clone()).or_default();
                assert!(**change.object() >= *newest, "broke no time travel: {change:?} after @{newest}");
                *newest = **change.object();
                self.floors.note(change);
                match change {
                    Change::Added { object, .. } => {
                        assert!(self.told.insert(key, object.clone()).is_none(), "broke legal history: added twice");
                    }
                    Change::Updated { old, new, .. } => {
                        let before = self.told.insert(key, new.clone());
                        assert!(before.is_some_and(|before| before.is_same(old)), "broke legal history");
                        assert!(old.uid() == new.uid() && **new > **old, "broke legal history: back in time");
                    }
                    Change::Deleted { last, .. } => {
                        let before = self.told.remove(&key);
                        assert!(before.is_some_and(|before| before.uid() == last.uid()), "broke legal history");
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn merged_shards_converge_to_their_union(
            steps in prop::collection::vec((0_u8..4, 0_u8..3, prop::option::of(0_usize..3)), 0..120),
            removed in prop::option::of(0_usize..3),
        ) {
            let mut world = World {
                truth: BTreeMap::new(),
                version: 0,
                parts: (0..3).map(|_| Indexer::new()).collect(),
                waiting: vec![VecDeque::new(); 3],
                merged: Indexer::new(),
                told: BTreeMap::new(),
                newest: BTreeMap::new(),
                floors: DeletedVersions::default(),
            };
            for (name, operation, deliver) in steps {
                match deliver {
                    None => world.write(name, operation),
                    Some(part) => drop(world.deliver(part)),
                }
            }
            while (0..3).any(|part| world.deliver(part)) {}
            if let Some(part) = removed {
                let mut told = Vec::new();
                for delta in removal_deltas(world.merged.current(), world.parts[part].current()) {
                    world.merged.apply(delta, &mut told);
                }
                world.hear(&told);
                world.truth.retain(|_, (uid, _)| (*uid % 3) as usize != part);
            }
            let truth: Vec<(String, u64)> = world.truth.iter().map(|(name, (_, version))| (format!("o{name}"), *version)).collect();
            let of = |object: &Item| (object.key().to_string(), **object);
            prop_assert_eq!(world.merged.current().iter().map(of).collect::<Vec<_>>(), truth.clone(), "broke converging");
            prop_assert_eq!(world.told.values().map(of).collect::<Vec<_>>(), truth, "broke converging");
        }
    }
}
