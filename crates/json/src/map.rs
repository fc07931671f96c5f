//! JSON objects: [`Map`].

use std::hash::{Hash, Hasher};
use std::mem;

use crate::{JsonString, Value};

mod entry;
mod indexed;
mod iter;

use indexed::Indexed;

pub use entry::{Entry, OccupiedEntry, VacantEntry};
pub use iter::{IntoIter, IntoValues, Iter, IterMut, Keys, Values, ValuesMut};

/// The number of members up to which a lookup compares all names. An object with more members gets an index. Objects of
/// Kubernetes rarely have more: a container has 24 fields.
const LINEAR_MEMBERS_MAX: usize = 24;

/// The members of an object in the order of their insertion. Names are unique.
///
/// A lookup among up to 24 members compares the lengths of the names before their bytes. Beyond 24 members, the object
/// gets an index of hashes, which it keeps when it shrinks. The hashes are keyed at random, so that a client cannot
/// choose names that collide.
#[derive(Clone, Default)]
pub struct Map {
    members: Members,
}

type Member = (JsonString, Value);

#[derive(Clone)]
enum Members {
    Linear(Vec<Member>),
    Indexed(Box<Indexed>),
}

impl Default for Members {
    fn default() -> Self {
        Members::Linear(Vec::new())
    }
}

/// Whether two names are equal. Most names differ in length or in the first letter, so that few comparisons need a call.
fn is_same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.as_bytes().first() == b.as_bytes().first() && a == b
}

impl Map {
    /// An object without members, which allocates nothing.
    pub const fn new() -> Self {
        Map { members: Members::Linear(Vec::new()) }
    }

    /// An object without members, with room for some.
    pub fn with_capacity(capacity: usize) -> Self {
        Map { members: Members::Linear(Vec::with_capacity(capacity)) }
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Estimates the bytes that the members have allocated. Copies of a long string count its text each.
    pub fn heap_bytes(&self) -> usize {
        let own = match &self.members {
            Members::Linear(members) => members.capacity() * size_of::<Member>(),
            Members::Indexed(indexed) => size_of::<Indexed>() + indexed.own_bytes(),
        };
        own + self.iter().map(|(name, value)| name.heap_bytes() + value.heap_bytes()).sum::<usize>()
    }

    /// Removes all members.
    pub fn clear(&mut self) {
        *self = Map::new();
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.position(name).map(|at| &self.as_slice()[at].1)
    }

    /// The mutable value of a name.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.position(name).map(|at| &mut self.as_mut_slice()[at].1)
    }

    /// The name as it is stored, with its value.
    pub fn get_key_value(&self, name: &str) -> Option<(&JsonString, &Value)> {
        self.position(name).map(|at| &self.as_slice()[at]).map(|(name, value)| (name, value))
    }

    /// Whether a member has the name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// Sets the value of a name and returns the former one. A new name becomes the last one.
    pub fn insert(&mut self, name: impl Into<JsonString>, value: Value) -> Option<Value> {
        let name = name.into();
        match self.position(&name) {
            Some(at) => Some(mem::replace(&mut self.as_mut_slice()[at].1, value)),
            None => {
                self.push((name, value));
                None
            }
        }
    }

    /// Sets the value of a name, moves the member to a position, and returns the former value. The members from this
    /// position on move back by one.
    ///
    /// # Panics
    /// If the position is larger than the number of the other members.
    pub fn shift_insert(&mut self, at: usize, name: impl Into<JsonString>, value: Value) -> Option<Value> {
        let name = name.into();
        let former = self.shift_remove(&name);
        match &mut self.members {
            Members::Linear(members) if members.len() < LINEAR_MEMBERS_MAX => members.insert(at, (name, value)),
            _ => self.index().shift_insert(at, (name, value)),
        }
        former
    }

    /// Removes a member and returns its value. The last member takes its place, as in `serde_json`. Clients can see this
    /// order.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        self.swap_remove(name)
    }

    /// Removes a member. The last member takes its place.
    pub fn swap_remove(&mut self, name: &str) -> Option<Value> {
        self.position(name).map(|at| self.swap_remove_at(at).1)
    }

    /// Removes a member. The later ones keep their order, so that this takes time in proportion to their number.
    pub fn shift_remove(&mut self, name: &str) -> Option<Value> {
        let at = self.position(name)?;
        let (_, value) = match &mut self.members {
            Members::Linear(members) => members.remove(at),
            Members::Indexed(indexed) => indexed.shift_remove(at),
        };
        Some(value)
    }

    /// Removes a member and returns it whole. The last member takes its place.
    pub fn remove_entry(&mut self, name: &str) -> Option<(JsonString, Value)> {
        self.position(name).map(|at| self.swap_remove_at(at))
    }

    /// The place of a name, with or without a value.
    pub fn entry(&mut self, name: impl Into<JsonString>) -> Entry<'_> {
        let name = name.into();
        match self.position(&name) {
            Some(at) => Entry::Occupied(OccupiedEntry { map: self, at }),
            None => Entry::Vacant(VacantEntry { map: self, name }),
        }
    }

    /// Moves all members of `other` into this object. Values of `other` replace those of the same name.
    pub fn append(&mut self, other: &mut Map) {
        self.extend(mem::take(other));
    }

    /// Keeps the members for which `keeps` is true, in their order.
    pub fn retain(&mut self, mut keeps: impl FnMut(&JsonString, &mut Value) -> bool) {
        match &mut self.members {
            Members::Linear(members) => members.retain_mut(|(name, value)| keeps(name, value)),
            Members::Indexed(indexed) => indexed.retain(keeps),
        }
    }

    /// Sorts the members by the bytes of their names.
    pub fn sort_keys(&mut self) {
        match &mut self.members {
            Members::Linear(members) => members.sort_unstable_by(by_name),
            Members::Indexed(indexed) => indexed.sort_by(by_name),
        }
    }

    /// The members in their order.
    pub fn iter(&self) -> Iter<'_> {
        Iter::new(self.as_slice())
    }

    /// The members in their order, with mutable values.
    pub fn iter_mut(&mut self) -> IterMut<'_> {
        IterMut::new(self.as_mut_slice())
    }

    /// The names in their order.
    pub fn keys(&self) -> Keys<'_> {
        Keys::new(self.as_slice())
    }

    /// The values in their order.
    pub fn values(&self) -> Values<'_> {
        Values::new(self.as_slice())
    }

    /// The mutable values in their order.
    pub fn values_mut(&mut self) -> ValuesMut<'_> {
        ValuesMut::new(self.as_mut_slice())
    }

    /// The values in their order.
    pub fn into_values(self) -> IntoValues {
        IntoValues::new(self.into_vec())
    }

    fn as_slice(&self) -> &[Member] {
        match &self.members {
            Members::Linear(members) => members,
            Members::Indexed(indexed) => indexed.as_slice(),
        }
    }

    /// The members, whose names may not be changed.
    fn as_mut_slice(&mut self) -> &mut [Member] {
        match &mut self.members {
            Members::Linear(members) => members,
            Members::Indexed(indexed) => indexed.as_mut_slice(),
        }
    }

    fn into_vec(self) -> Vec<Member> {
        match self.members {
            Members::Linear(members) => members,
            Members::Indexed(indexed) => indexed.into_vec(),
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        match &self.members {
            Members::Linear(members) => members.iter().position(|(member, _)| is_same(member.as_str(), name)),
            Members::Indexed(indexed) => indexed.position(name),
        }
    }

    /// Adds a member whose name no other one has.
    fn push(&mut self, member: Member) {
        match &mut self.members {
            Members::Linear(members) if members.len() < LINEAR_MEMBERS_MAX => members.push(member),
            _ => self.index().push(member),
        }
    }

    /// The members with an index, which is built if there is none.
    fn index(&mut self) -> &mut Indexed {
        if let Members::Linear(members) = &mut self.members {
            self.members = Members::Indexed(Box::new(Indexed::new(mem::take(members))));
        }
        match &mut self.members {
            Members::Indexed(indexed) => indexed,
            Members::Linear(_) => unreachable!("the index was built"),
        }
    }

    fn swap_remove_at(&mut self, at: usize) -> Member {
        match &mut self.members {
            Members::Linear(members) => members.swap_remove(at),
            Members::Indexed(indexed) => indexed.swap_remove(at),
        }
    }
}

/// The order of names by their bytes.
fn by_name((a, _): &Member, (b, _): &Member) -> std::cmp::Ordering {
    a.as_str().cmp(b.as_str())
}

impl PartialEq for Map {
    /// Whether both objects have the same names with the same values, in any order.
    fn eq(&self, other: &Self) -> bool {
        let (these, others) = (self.as_slice(), other.as_slice());
        these.len() == others.len()
            && these.iter().zip(others).all(|((name, value), (at_same_place, other_value))| {
                let other_value = if name == at_same_place { Some(other_value) } else { other.get(name) };
                other_value == Some(value)
            })
    }
}

impl Eq for Map {}

impl Hash for Map {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut members: Vec<&Member> = self.as_slice().iter().collect();
        members.sort_unstable_by(|a, b| by_name(a, b));
        members.hash(state);
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl std::ops::Index<&str> for Map {
    type Output = Value;

    /// # Panics
    /// If no member has the name.
    fn index(&self, name: &str) -> &Value {
        self.get(name).unwrap_or_else(|| panic!("no member {name:?}"))
    }
}

impl std::ops::IndexMut<&str> for Map {
    /// # Panics
    /// If no member has the name.
    fn index_mut(&mut self, name: &str) -> &mut Value {
        self.get_mut(name).unwrap_or_else(|| panic!("no member {name:?}"))
    }
}

impl<K: Into<JsonString>> FromIterator<(K, Value)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(members: I) -> Self {
        let members = members.into_iter();
        let mut map = Map::with_capacity(members.size_hint().0);
        map.extend(members);
        map
    }
}

impl<K: Into<JsonString>> Extend<(K, Value)> for Map {
    fn extend<I: IntoIterator<Item = (K, Value)>>(&mut self, members: I) {
        for (name, value) in members {
            self.insert(name, value);
        }
    }
}

impl IntoIterator for Map {
    type Item = (JsonString, Value);
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        IntoIter::new(self.into_vec())
    }
}

impl<'a> IntoIterator for &'a Map {
    type Item = (&'a JsonString, &'a Value);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Map {
    type Item = (&'a JsonString, &'a mut Value);
    type IntoIter = IterMut<'a>;

    fn into_iter(self) -> IterMut<'a> {
        self.iter_mut()
    }
}
