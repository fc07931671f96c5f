//! The members of a large object, with an index of their names.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::{JsonString, Member};
use crate::Value;

/// Members with an index. The index holds positions, and changes without a hash of the names where members only move.
#[derive(Clone, Default)]
pub(super) struct Indexed {
    members: Vec<Member>,
    /// Positions in `members` by the hash of the name.
    positions: HashTable<usize>,
    hasher: RandomState,
}

impl Indexed {
    pub(super) fn new(members: Vec<Member>) -> Self {
        let mut indexed = Indexed { members, ..Indexed::default() };
        indexed.rebuild();
        indexed
    }

    pub(super) fn as_slice(&self) -> &[Member] {
        &self.members
    }

    /// Estimates the bytes of the members and of the index, without what the members have allocated.
    pub(super) fn own_bytes(&self) -> usize {
        // A place of the index has a byte for its hash.
        self.members.capacity() * size_of::<Member>() + self.positions.capacity() * (size_of::<usize>() + 1)
    }

    /// The members, whose names may not be changed.
    pub(super) fn as_mut_slice(&mut self) -> &mut [Member] {
        &mut self.members
    }

    pub(super) fn into_vec(self) -> Vec<Member> {
        self.members
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        let hash = self.hasher.hash_one(name);
        self.positions.find(hash, |position| self.members[*position].0.as_str() == name).copied()
    }

    /// Adds a member whose name no other one has.
    pub(super) fn push(&mut self, member: Member) {
        self.point_to(self.members.len(), member.0.as_str());
        self.members.push(member);
    }

    /// Adds a member whose name no other one has. The members from this position on move back by one.
    pub(super) fn shift_insert(&mut self, at: usize, member: Member) {
        for position in &mut self.positions {
            *position += usize::from(*position >= at);
        }
        let name = member.0.clone();
        self.members.insert(at, member);
        self.point_to(at, &name);
    }

    pub(super) fn swap_remove(&mut self, at: usize) -> Member {
        self.forget(at);
        let last = self.members.len() - 1;
        if at != last {
            let hash = self.hasher.hash_one(self.members[last].0.as_str());
            if let Some(position) = self.positions.find_mut(hash, |position| *position == last) {
                *position = at;
            }
        }
        self.members.swap_remove(at)
    }

    pub(super) fn shift_remove(&mut self, at: usize) -> Member {
        self.forget(at);
        for position in &mut self.positions {
            *position -= usize::from(*position > at);
        }
        self.members.remove(at)
    }

    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&JsonString, &mut Value) -> bool) {
        // The number of members that were removed before each position; `None` at a removed member.
        let mut removed = 0;
        let mut shifts = Vec::with_capacity(self.members.len());
        self.members.retain_mut(|(name, value)| {
            let kept = keeps(name, value);
            shifts.push(kept.then_some(removed));
            removed += usize::from(!kept);
            kept
        });
        if removed > 0 {
            self.positions.retain(|position| match shifts[*position] {
                Some(shift) => {
                    *position -= shift;
                    true
                }
                None => false,
            });
        }
    }

    pub(super) fn sort_by(&mut self, order: impl FnMut(&Member, &Member) -> std::cmp::Ordering) {
        self.members.sort_unstable_by(order);
        self.rebuild();
    }

    /// Adds a position to the index.
    fn point_to(&mut self, at: usize, name: &str) {
        let Indexed { members, positions, hasher } = self;
        let rehash = |position: &usize| hasher.hash_one(members[*position].0.as_str());
        positions.insert_unique(hasher.hash_one(name), at, rehash);
    }

    /// Removes a position from the index.
    fn forget(&mut self, at: usize) {
        let hash = self.hasher.hash_one(self.members[at].0.as_str());
        if let Ok(found) = self.positions.find_entry(hash, |position| *position == at) {
            found.remove();
        }
    }

    fn rebuild(&mut self) {
        self.positions.clear();
        self.positions.reserve(self.members.len(), |_| unreachable!("the index is empty"));
        for at in 0..self.members.len() {
            let hash = self.hasher.hash_one(self.members[at].0.as_str());
            self.positions.insert_unique(hash, at, |_| unreachable!("the index has room for all members"));
        }
    }
}
