//! The order in which workers receive ready keys: [`Ready`].
//!
//! ```text
//!   priority  7:  [ns a: k1 k4] [ns b: k2]      groups take turns; within one, first in first out
//!   priority  0:  [ns a: k3] …
//!   by age        k1 k2 k3 k4                   overdue ones come from here, every other turn
//! ```
//!
//! Two rules, both without scanning. The highest priority that has keys is served; its groups take
//! turns, so that a namespace with ten thousand keys delays another one by one key. And when the
//! oldest key of all is overdue, every other turn is its: so a key that is overdue with `n` older
//! ones before it is served within `2n + 2` turns, whatever arrives; and half of all turns still go
//! by priority, however far behind the queue is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// The group of a key, as a hash: keys of groups that collide share a turn, no more.
pub(super) type Group = u64;

/// The position of a ready key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) priority: i32,
    pub(super) group: Group,
    pub(super) sequence: u64,
    pub(super) since: Instant,
}

/// Ready keys. Memory is O(keys in it).
#[derive(Debug)]
pub(super) struct Ready<K> {
    levels: BTreeMap<Reverse<i32>, Level<K>>,
    by_age: BTreeMap<(Instant, u64), (K, Place)>,
    /// Whether the last turn was given to an overdue key.
    overdue_served: bool,
}

#[derive(Debug)]
struct Level<K> {
    /// Groups with keys, in order of their turns; the first one is served next. Each group occurs
    /// once.
    turns: BTreeMap<u64, Group>,
    groups: HashMap<Group, Members<K>>,
    next_turn: u64,
}

#[derive(Debug)]
struct Members<K> {
    turn: u64,
    /// By sequence, with since when each is ready. Never empty.
    keys: BTreeMap<u64, (K, Instant)>,
}

impl<K> Level<K> {
    fn new() -> Self {
        Level { turns: BTreeMap::new(), groups: HashMap::new(), next_turn: 0 }
    }

    fn take_turn(&mut self, group: Group) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.turns.insert(turn, group);
        turn
    }

    fn insert(&mut self, key: K, place: &Place) {
        let member = (key, place.since);
        if let Some(members) = self.groups.get_mut(&place.group) {
            members.keys.insert(place.sequence, member);
            return;
        }
        let turn = self.take_turn(place.group);
        self.groups.insert(place.group, Members { turn, keys: BTreeMap::from([(place.sequence, member)]) });
    }

    fn remove(&mut self, place: &Place) {
        let Some(members) = self.groups.get_mut(&place.group) else { return };
        members.keys.remove(&place.sequence);
        if members.keys.is_empty() {
            self.turns.remove(&members.turn);
            self.groups.remove(&place.group);
        }
    }

    /// The first key of the group whose turn it is; the group goes to the end of the turns.
    fn pop(&mut self) -> Option<(K, Group, u64, Instant)> {
        let (_, group) = self.turns.pop_first()?;
        let mut members = self.groups.remove(&group)?;
        let (sequence, (key, since)) = members.keys.pop_first()?;
        if !members.keys.is_empty() {
            members.turn = self.take_turn(group);
            self.groups.insert(group, members);
        }
        Some((key, group, sequence, since))
    }
}

impl<K: Clone> Ready<K> {
    pub(super) fn new() -> Self {
        Ready { levels: BTreeMap::new(), by_age: BTreeMap::new(), overdue_served: false }
    }

    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Since when the oldest key has been ready.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.by_age.first_key_value().map(|((since, _), _)| *since)
    }

    pub(super) fn insert(&mut self, key: K, place: Place) {
        self.by_age.insert((place.since, place.sequence), (key.clone(), place));
        self.levels.entry(Reverse(place.priority)).or_insert_with(Level::new).insert(key, &place);
    }

    /// Removes the key at this position.
    pub(super) fn remove(&mut self, place: &Place) {
        self.by_age.remove(&(place.since, place.sequence));
        if let Some(level) = self.levels.get_mut(&Reverse(place.priority)) {
            level.remove(place);
            if level.groups.is_empty() {
                self.levels.remove(&Reverse(place.priority));
            }
        }
    }

    /// The key whose turn it is.
    pub(super) fn pop(&mut self, now: Instant, overdue_after: Duration) -> Option<(K, Place)> {
        let (_, (key, place)) = self.by_age.first_key_value()?;
        let overdue = now.saturating_duration_since(place.since) >= overdue_after;
        if overdue && !self.overdue_served {
            self.overdue_served = true;
            let (key, place) = (key.clone(), *place);
            self.remove(&place);
            return Some((key, place));
        }
        self.overdue_served = false;
        let mut level = self.levels.first_entry()?;
        let priority = level.key().0;
        let (key, group, sequence, since) = level.get_mut().pop()?;
        if level.get().groups.is_empty() {
            level.remove();
        }
        self.by_age.remove(&(since, sequence));
        Some((key, Place { priority, group, sequence, since }))
    }
}
