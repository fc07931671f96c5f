//! Sets of fields: [`Set`], a tree of sorted path elements, and its set operations.
//!
//! A path may be in a set without its parents and vice versa: owning `.spec` does not imply owning
//! `.spec.replicas`.
//!
//! Source: `structured-merge-diff/v6/fieldpath/set.go`.

use std::cmp::Ordering;
use std::fmt;

use crate::path::{Path, PathElement};
use crate::typing::{Schema, TypeId};

/// A set of fields of an object. The root object is never a member.
#[derive(Clone, Debug, Default)]
pub struct Set {
    /// The members at this level, sorted.
    members: Vec<PathElement>,
    /// The elements with members below them, sorted. These elements need not be members.
    children: Vec<(PathElement, Set)>,
}

/// Walks two sorted lists in parallel.
fn walk<A, B>(a: &[A], b: &[B], order: impl Fn(&A, &B) -> Ordering, mut visit: impl FnMut(Option<&A>, Option<&B>)) {
    let (mut at, mut to) = (0, 0);
    while at < a.len() && to < b.len() {
        match order(&a[at], &b[to]) {
            Ordering::Less => {
                visit(Some(&a[at]), None);
                at += 1;
            }
            Ordering::Greater => {
                visit(None, Some(&b[to]));
                to += 1;
            }
            Ordering::Equal => {
                visit(Some(&a[at]), Some(&b[to]));
                at += 1;
                to += 1;
            }
        }
    }
    a[at..].iter().for_each(|left| visit(Some(left), None));
    b[to..].iter().for_each(|left| visit(None, Some(left)));
}

/// Finds an item in the rest of a sorted list; successive searches must be in order. The steps of a search grow, so that a
/// few searches of a long list do not read all of it.
fn seek<'a, T>(left: &mut &'a [T], order: impl Fn(&T) -> Ordering) -> Option<&'a T> {
    let list = *left;
    // The items before `from` precede the wanted one; those from `to` on do not.
    let (mut from, mut to) = (0, 0);
    while let Some(item) = list.get(to) {
        match order(item) {
            Ordering::Less => from = to + 1,
            Ordering::Equal => {
                *left = &list[to..];
                return Some(item);
            }
            Ordering::Greater => break,
        }
        to = 2 * from - 1;
    }
    let to = to.min(list.len());
    from += list[from..to].partition_point(|item| order(item).is_lt());
    *left = &list[from..];
    list.get(from).filter(|item| order(item).is_eq())
}

/// Merges a sorted list into another; equal items are joined.
fn merge<T>(ours: &mut Vec<T>, theirs: Vec<T>, order: impl Fn(&T, &T) -> Ordering, join: impl Fn(&mut T, T)) {
    let (Some(last), Some(first)) = (ours.last(), theirs.first()) else {
        ours.extend(theirs);
        return;
    };
    if order(last, first).is_lt() {
        ours.extend(theirs);
        return;
    }
    let mut merged = Vec::with_capacity(ours.len() + theirs.len());
    let mut theirs = theirs.into_iter().peekable();
    for mut own in ours.drain(..) {
        merged.extend(std::iter::from_fn(|| theirs.next_if(|their| order(their, &own).is_lt())));
        if let Some(same) = theirs.next_if(|their| order(their, &own).is_eq()) {
            join(&mut own, same);
        }
        merged.push(own);
    }
    merged.extend(theirs);
    *ours = merged;
}

fn by_element(a: &(PathElement, Set), b: &(PathElement, Set)) -> Ordering {
    a.0.cmp(&b.0)
}

impl Set {
    /// Creates an empty set.
    pub fn new() -> Self {
        Set::default()
    }

    /// The members at this level, sorted.
    pub(crate) fn members(&self) -> &[PathElement] {
        &self.members
    }

    /// The elements with members below them, sorted.
    pub(crate) fn children(&self) -> &[(PathElement, Set)] {
        &self.children
    }

    /// Adds a path. The empty path is not added.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => self.insert_member(last.clone()),
            [first, rest @ ..] => {
                let mut below = Set::new();
                below.insert(rest);
                self.add_child(first.clone(), below);
            }
        }
    }

    /// Whether all elements at this level precede this one.
    pub(crate) fn is_before(&self, element: &PathElement) -> bool {
        self.members.last().is_none_or(|last| last < element)
            && self.children.last().is_none_or(|(last, _)| last < element)
    }

    /// Adds an element at this level. Adding in order is cheap; each other insertion shifts the
    /// later elements.
    pub(crate) fn insert_member(&mut self, element: PathElement) {
        if self.members.last().is_none_or(|last| *last < element) {
            self.members.push(element);
        } else if let Err(at) = self.members.binary_search(&element) {
            self.members.insert(at, element);
        }
    }

    /// Replaces the set below an element. An empty set is omitted. Call in order, as
    /// [`Set::insert_member`].
    pub(crate) fn put_child(&mut self, element: PathElement, set: Set) {
        if !set.is_empty() {
            match self.children.binary_search_by(|(known, _)| known.cmp(&element)) {
                Ok(at) => self.children[at].1 = set,
                Err(at) => self.children.insert(at, (element, set)),
            }
        }
    }

    /// Adds a set below an element. An empty set is omitted. Call in order, as
    /// [`Set::insert_member`].
    pub(crate) fn add_child(&mut self, element: PathElement, set: Set) {
        if set.is_empty() {
            return;
        }
        // The usual case: elements arrive in order.
        if self.children.last().is_none_or(|(last, _)| *last < element) {
            self.children.push((element, set));
            return;
        }
        match self.children.binary_search_by(|(known, _)| known.cmp(&element)) {
            Ok(at) => self.children[at].1.absorb(set),
            Err(at) => self.children.insert(at, (element, set)),
        }
    }

    /// Estimates the bytes that the set has allocated.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.members.capacity() * size_of::<PathElement>()
            + self.children.capacity() * size_of::<(PathElement, Set)>()
            + self.members.iter().map(PathElement::heap_bytes).sum::<usize>()
            + self.children.iter().map(|(element, set)| element.heap_bytes() + set.heap_bytes()).sum::<usize>()
    }

    /// Whether the set has no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.iter().all(|(_, set)| set.is_empty())
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.members.len() + self.children.iter().map(|(_, set)| set.len()).sum::<usize>()
    }

    /// Whether this path is a member.
    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.has_member(last),
            [first, rest @ ..] => self.child(first).is_some_and(|set| set.has(rest)),
        }
    }

    /// Whether this element is a member at this level.
    pub(crate) fn has_member(&self, element: &PathElement) -> bool {
        self.members.binary_search(element).is_ok()
    }

    /// The set below an element, if any.
    pub(crate) fn child(&self, element: &PathElement) -> Option<&Set> {
        let at = self.children.binary_search_by(|(known, _)| known.cmp(element)).ok()?;
        Some(&self.children[at].1)
    }

    /// Calls `visit` with each member: first this level, then those below, in order.
    pub fn for_each(&self, mut visit: impl FnMut(&[PathElement])) {
        self.visit(&mut Vec::new(), &mut visit);
    }

    fn visit(&self, path: &mut Vec<PathElement>, visit: &mut impl FnMut(&[PathElement])) {
        for member in &self.members {
            path.push(member.clone());
            visit(path);
            path.pop();
        }
        for (element, set) in &self.children {
            path.push(element.clone());
            set.visit(path, visit);
            path.pop();
        }
    }

    /// All members, in the order of [`Set::for_each`].
    pub fn paths(&self) -> Vec<Path> {
        let mut paths = Vec::new();
        self.for_each(|path| paths.push(Path(path.to_vec())));
        paths
    }

    /// The members of either set.
    #[must_use]
    pub fn union(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.absorb(other.clone());
        out
    }

    /// Adds the members of another set.
    pub(crate) fn absorb(&mut self, other: Set) {
        merge(&mut self.members, other.members, Ord::cmp, |_, _| {});
        merge(&mut self.children, other.children, by_element, |(_, ours), (_, theirs)| ours.absorb(theirs));
    }

    /// The members of all sets. Each member is moved once for each doubling of the number of sets.
    pub(crate) fn union_of(mut sets: Vec<Set>) -> Set {
        while sets.len() > 1 {
            let mut pairs = sets.into_iter();
            let mut unions = Vec::with_capacity(pairs.len().div_ceil(2));
            while let Some(mut one) = pairs.next() {
                if let Some(other) = pairs.next() {
                    one.absorb(other);
                }
                unions.push(one);
            }
            sets = unions;
        }
        sets.pop().unwrap_or_default()
    }

    /// Whether `other` contains all members.
    pub(crate) fn is_within(&self, other: &Set) -> bool {
        let mut members = other.members.as_slice();
        let mut children = other.children.as_slice();
        self.members.iter().all(|member| seek(&mut members, |their| their.cmp(member)).is_some())
            && self.children.iter().filter(|(_, below)| !below.is_empty()).all(|(element, below)| {
                seek(&mut children, |(their, _)| their.cmp(element)).is_some_and(|(_, theirs)| below.is_within(theirs))
            })
    }

    /// Whether a member is in both sets.
    pub(crate) fn intersects(&self, other: &Set) -> bool {
        let mut members = other.members.as_slice();
        let mut children = other.children.as_slice();
        self.members.iter().any(|member| seek(&mut members, |their| their.cmp(member)).is_some())
            || self.children.iter().any(|(element, below)| {
                seek(&mut children, |(their, _)| their.cmp(element)).is_some_and(|(_, theirs)| below.intersects(theirs))
            })
    }

    /// The members of both sets.
    #[must_use]
    pub(crate) fn intersection(&self, other: &Set) -> Set {
        let mut out = Set::new();
        walk(&self.members, &other.members, Ord::cmp, |a, b| {
            if let (Some(member), Some(_)) = (a, b) {
                out.members.push(member.clone());
            }
        });
        walk(&self.children, &other.children, by_element, |a, b| {
            if let (Some((element, a)), Some((_, b))) = (a, b) {
                out.add_child(element.clone(), a.intersection(b));
            }
        });
        out
    }

    /// The members that are not in `other`. Members below a path of `other` stay.
    #[must_use]
    pub fn difference(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.subtract(other);
        out
    }

    /// The members that are neither in `other` nor below a member of `other`.
    #[must_use]
    pub(crate) fn recursive_difference(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.subtract_recursively(other);
        out
    }

    /// Removes the members of `other`; [`Set::difference`] in place.
    pub(crate) fn subtract(&mut self, other: &Set) {
        self.take_away(other, false);
    }

    /// Removes the members of `other` and everything below them; [`Set::recursive_difference`] in
    /// place.
    pub(crate) fn subtract_recursively(&mut self, other: &Set) {
        self.take_away(other, true);
    }

    fn take_away(&mut self, other: &Set, below: bool) {
        if other.members.is_empty() && other.children.is_empty() {
            return;
        }
        let mut members = other.members.as_slice();
        self.members.retain(|member| seek(&mut members, |their| their.cmp(member)).is_none());
        let (mut members, mut children) = (other.members.as_slice(), other.children.as_slice());
        self.children.retain_mut(|(element, set)| {
            if below && seek(&mut members, |their| their.cmp(element)).is_some() {
                return false;
            }
            match seek(&mut children, |(their, _)| their.cmp(element)) {
                Some((_, theirs)) => {
                    set.take_away(theirs, below);
                    !set.is_empty()
                }
                None => true,
            }
        });
    }

    /// Adds each named field of a struct that has members below it.
    pub(crate) fn with_named_fields(&self, schema: &Schema, of: Option<TypeId>) -> Set {
        let of = of.map(|id| schema.get(id));
        let map = of.and_then(|of| of.map.as_ref());
        let mut out = Set { members: self.members.clone(), children: Vec::with_capacity(self.children.len()) };
        for (element, set) in &self.children {
            let below = match element {
                PathElement::Field(name) => {
                    if map.is_some_and(|map| map.field(name).is_some()) {
                        out.insert_member(element.clone());
                    }
                    map.and_then(|map| map.member(name))
                }
                PathElement::Key(_) => of.and_then(|of| of.list.as_ref()).map(|list| list.items),
                PathElement::Value(_) | PathElement::Index(_) => None,
            };
            out.children.push((element.clone(), set.with_named_fields(schema, below)));
        }
        out
    }
}

impl PartialEq for Set {
    fn eq(&self, other: &Self) -> bool {
        // Branches without members do not affect equality.
        fn children(set: &Set) -> impl Iterator<Item = &(PathElement, Set)> {
            set.children.iter().filter(|(_, below)| !below.is_empty())
        }
        self.members == other.members && children(self).eq(children(other))
    }
}

impl Eq for Set {}

impl<'a> FromIterator<&'a Path> for Set {
    fn from_iter<I: IntoIterator<Item = &'a Path>>(paths: I) -> Self {
        let mut set = Set::new();
        paths.into_iter().for_each(|path| set.insert(&path.0));
        set
    }
}

/// Prints one path per line.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, path) in self.paths().iter().enumerate() {
            let new_line = if at > 0 { "\n" } else { "" };
            write!(f, "{new_line}{path}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::EncodedSet;

    /// The reference model: a set of paths.
    type Model = BTreeSet<Path>;

    fn set_of(model: &Model) -> Set {
        model.iter().collect()
    }

    fn any_model() -> impl Strategy<Value = Model> {
        let element = prop_oneof![
            3 => "[abc]".prop_map(|name| PathElement::field(&name)),
            1 => (0..3_i64).prop_map(|port| PathElement::key(vec![("port".into(), port.into())])),
            1 => "[ab]".prop_map(|text| PathElement::Value(std::sync::Arc::new(text.into()))),
        ];
        let path = prop::collection::vec(element, 1..4).prop_map(Path);
        prop::collection::btree_set(path, 0..12)
    }

    fn model_of(set: &Set) -> Model {
        set.paths().into_iter().collect()
    }

    proptest! {
        #[test]
        fn searches_in_order_find_what_a_list_has(
            list in prop::collection::btree_set(0..200_u8, 0..60),
            wanted in prop::collection::btree_set(0..200_u8, 0..60),
        ) {
            let items: Vec<u8> = list.iter().copied().collect();
            let mut left = items.as_slice();
            for item in wanted {
                let found = seek(&mut left, |other| other.cmp(&item)).copied();
                prop_assert_eq!(found, list.get(&item).copied(), "{} in {:?}", item, items);
            }
        }

        #[test]
        fn union_of_many_sets_has_the_members_of_each(models in prop::collection::vec(any_model(), 0..9)) {
            let union = Set::union_of(models.iter().map(set_of).collect());
            prop_assert_eq!(model_of(&union), models.into_iter().flatten().collect::<Model>());
        }

        #[test]
        fn set_operations_agree_with_a_set_of_paths(a in any_model(), b in any_model()) {
            let (left, right) = (set_of(&a), set_of(&b));
            prop_assert_eq!(model_of(&left), a.clone(), "a set has what was put into it");
            prop_assert_eq!(left.len(), a.len());
            prop_assert_eq!(left.is_empty(), a.is_empty());
            prop_assert!(a.iter().all(|path| left.has(&path.0)));
            prop_assert_eq!(left == right, a == b);
            prop_assert_eq!(left.is_within(&right), a.is_subset(&b));
            prop_assert!(left.intersection(&right).is_within(&left) && left.is_within(&left.union(&right)));
            prop_assert_eq!(left.intersects(&right), !a.is_disjoint(&b));
            prop_assert_eq!(model_of(&left.union(&right)), &a | &b);
            prop_assert_eq!(model_of(&left.intersection(&right)), &a & &b);
            prop_assert_eq!(model_of(&left.difference(&right)), &a - &b);
            let not_below: Model = a.iter().filter(|path| !b.iter().any(|top| path.0.starts_with(&top.0))).cloned().collect();
            prop_assert_eq!(model_of(&left.recursive_difference(&right)), not_below);
        }

        #[test]
        fn kept_text_of_a_set_is_that_of_its_present_members(a in any_model(), changes in prop::collection::vec((any::<bool>(), any_model()), 0..4)) {
            let mut kept = EncodedSet::from(set_of(&a));
            let nothing = (true, Model::new());
            for (adds, other) in changes.into_iter().chain([nothing]).map(|(adds, other)| (adds, set_of(&other))) {
                for _ in 0..2 {
                    let mut text = String::from("before");
                    kept.write_fields(&mut text);
                    prop_assert_eq!(text, format!("before{}", kept.to_fields()));
                }
                if adds { kept.absorb(other) } else { kept.subtract(&other) }
            }
        }
    }
}
