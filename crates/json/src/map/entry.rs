//! The place of one name in an object.

use std::mem;

use super::{JsonString, Map};
use crate::Value;

/// The place of a name: [`Map::entry`].
#[derive(Debug)]
pub enum Entry<'a> {
    /// No member has the name.
    Vacant(VacantEntry<'a>),
    /// A member has the name.
    Occupied(OccupiedEntry<'a>),
}

/// The place of a name without a value.
#[derive(Debug)]
pub struct VacantEntry<'a> {
    pub(super) map: &'a mut Map,
    pub(super) name: JsonString,
}

/// The place of a name with a value.
#[derive(Debug)]
pub struct OccupiedEntry<'a> {
    pub(super) map: &'a mut Map,
    pub(super) at: usize,
}

impl<'a> Entry<'a> {
    /// The name.
    pub fn key(&self) -> &JsonString {
        match self {
            Entry::Vacant(vacant) => vacant.key(),
            Entry::Occupied(occupied) => occupied.key(),
        }
    }

    /// Inserts `value` if the name is vacant, and returns the member's value.
    pub fn or_insert(self, value: Value) -> &'a mut Value {
        self.or_insert_with(|| value)
    }

    /// Inserts the value of `make` if the name is vacant, and returns the member's value.
    pub fn or_insert_with(self, make: impl FnOnce() -> Value) -> &'a mut Value {
        match self {
            Entry::Vacant(vacant) => vacant.insert(make()),
            Entry::Occupied(occupied) => occupied.into_mut(),
        }
    }

    /// Changes the value if there is one.
    #[must_use]
    pub fn and_modify(mut self, change: impl FnOnce(&mut Value)) -> Self {
        if let Entry::Occupied(occupied) = &mut self {
            change(occupied.get_mut());
        }
        self
    }
}

impl<'a> VacantEntry<'a> {
    /// The name.
    pub fn key(&self) -> &JsonString {
        &self.name
    }

    /// Adds the name with a value, as the last member.
    pub fn insert(self, value: Value) -> &'a mut Value {
        let at = self.map.len();
        self.map.push((self.name, value));
        &mut self.map.as_mut_slice()[at].1
    }
}

impl<'a> OccupiedEntry<'a> {
    /// The name.
    pub fn key(&self) -> &JsonString {
        &self.map.as_slice()[self.at].0
    }

    /// The value.
    pub fn get(&self) -> &Value {
        &self.map.as_slice()[self.at].1
    }

    /// The mutable value.
    pub fn get_mut(&mut self) -> &mut Value {
        &mut self.map.as_mut_slice()[self.at].1
    }

    /// The mutable value, for as long as the object is borrowed.
    pub fn into_mut(self) -> &'a mut Value {
        &mut self.map.as_mut_slice()[self.at].1
    }

    /// Replaces the value and returns the former one.
    pub fn insert(&mut self, value: Value) -> Value {
        mem::replace(self.get_mut(), value)
    }

    /// Removes the member and returns its value. The last member takes its place.
    pub fn remove(self) -> Value {
        self.map.swap_remove_at(self.at).1
    }
}
