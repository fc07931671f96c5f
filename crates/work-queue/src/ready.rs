//! The order in which workers receive ready keys: [`Ready`].
//!
//! ```text
//!   priority  7:  [ns a: k1 k4] [ns b: k2]      groups take turns; within one, first in first out
//!   priority  0:  [ns a: k3] …
//!   by age        k1 k2 k3 k4                   overdue ones come from here, every other turn
//! ```
//!
//! Two rules determine the order, both without a scan. The queue serves the highest priority with
//! keys. The groups of this priority are served round-robin, so a namespace with ten thousand keys
//! delays another namespace by one key. If the oldest key is overdue, every other turn belongs to
//! it. A key that is overdue behind `n` older keys is therefore served within `2n + 2` turns. Half
//! of all turns still follow the priorities, however long the queue is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// The group of a key, as a hash. Groups with equal hashes share their turns.
pub(super) type Group = u64;

/// The position of a ready key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) priority: i32,
    pub(super) group: Group,
    pub(super) sequence: u64,
    pub(super) since: Instant,
}

/// The ready keys. Memory is proportional to their number.
#[derive(Debug)]
pub(super) struct Ready<K> {
    levels: BTreeMap<Reverse<i32>, Level<K>>,
    by_age: BTreeMap<(Instant, u64), (K, Position)>,
    /// Whether the last turn belonged to an overdue key.
    overdue_served: bool,
}

#[derive(Debug)]
struct Level<K> {
    /// The groups with keys, in the order of their turns. Each group occurs once.
    turns: BTreeMap<u64, Group>,
    groups: HashMap<Group, Members<K>>,
    next_turn: u64,
}

#[derive(Debug)]
struct Members<K> {
    turn: u64,
    /// The keys by sequence number, each with the time at which it became ready. Never empty.
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

    fn insert(&mut self, key: K, place: &Position) {
        let member = (key, place.since);
        if let Some(members) = self.groups.get_mut(&place.group) {
            members.keys.insert(place.sequence, member);
            return;
        }
        let turn = self.take_turn(place.group);
        self.groups.insert(place.group, Members { turn, keys: BTreeMap::from([(place.sequence, member)]) });
    }

    fn remove(&mut self, place: &Position) {
        let Some(members) = self.groups.get_mut(&place.group) else { return };
        members.keys.remove(&place.sequence);
        if members.keys.is_empty() {
            self.turns.remove(&members.turn);
            self.groups.remove(&place.group);
        }
    }

    /// Takes the first key of the group that is next in turn. The group moves to the end of the
    /// turns.
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

    /// The time at which the oldest key became ready.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.by_age.first_key_value().map(|((since, _), _)| *since)
    }

    pub(super) fn insert(&mut self, key: K, place: Position) {
        self.by_age.insert((place.since, place.sequence), (key.clone(), place));
        self.levels.entry(Reverse(place.priority)).or_insert_with(Level::new).insert(key, &place);
    }

    /// Removes the key at this position.
    pub(super) fn remove(&mut self, place: &Position) {
        self.by_age.remove(&(place.since, place.sequence));
        if let Some(level) = self.levels.get_mut(&Reverse(place.priority)) {
            level.remove(place);
            if level.groups.is_empty() {
                self.levels.remove(&Reverse(place.priority));
            }
        }
    }

    /// Takes the key that is next in turn.
    pub(super) fn pop(&mut self, now: Instant, overdue_after: Duration) -> Option<(K, Position)> {
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
        Some((key, Position { priority, group, sequence, since }))
    }
}
