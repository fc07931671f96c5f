//! Converts field sets from an older schema, in which managers owned the fields of a value that is
//! now atomic.

use super::{Form, form};
use crate::path::PathElement;
use crate::set::Set;
use crate::typing::{Relation, Schema, TypeId};

/// Adds the fields below a value that is now atomic to `gone`, and the value itself, which replaces
/// them, to `come`.
pub(super) fn reconcile<'a>(
    schema: &Schema,
    of: TypeId,
    fields: Option<&'a Set>,
    whole: bool,
    path: &mut Vec<&'a PathElement>,
    gone: &mut Set,
    come: &mut Set,
) {
    let mut becomes_a_leaf = |path: &[&PathElement]| {
        let path: Vec<PathElement> = path.iter().copied().cloned().collect();
        gone.insert(&path);
        come.insert(&path);
    };
    let of = schema.get(of);
    // An absent value is treated as a map, if the type allows one.
    match form(of, None) {
        Form::Scalar(_) | Form::None => {}
        Form::List(list) => {
            if !whole && list.relation == Relation::Atomic {
                becomes_a_leaf(path);
                return;
            }
            let Some(fields) = fields else { return };
            for (element, below, whole) in parts(fields) {
                path.push(element);
                reconcile(schema, list.items, below, whole, path, gone, come);
                path.pop();
            }
        }
        Form::Map(map) => {
            // A deduced type never changes.
            if map.fields().is_empty() && map.rest().is_some_and(|rest| rest == Schema::DEDUCED) {
                return;
            }
            if !whole && map.is_atomic() {
                if fields.is_some_and(|fields| !fields.is_empty()) {
                    becomes_a_leaf(path);
                }
                return;
            }
            let Some(fields) = fields else { return };
            for (element, below, whole) in parts(fields) {
                let member = match element {
                    PathElement::Field(name) => map.member(name),
                    _ => map.rest(),
                };
                let Some(member) = member else { continue };
                path.push(element);
                reconcile(schema, member, below, whole, path, gone, come);
                path.pop();
            }
        }
    }
}

/// Lists one level of a set: each element, its children, and whether the element is a member
/// without children.
fn parts(fields: &Set) -> impl Iterator<Item = (&PathElement, Option<&Set>, bool)> {
    let only_children = fields.children().iter().filter(move |(element, _)| !fields.has_member(element));
    let only_children = only_children.map(|(element, below)| (element, Some(below), false));
    let members = fields.members().iter().map(move |element| {
        let below = fields.child(element);
        (element, below, below.is_none())
    });
    only_children.chain(members)
}
