//! Converts field sets from an older schema, in which managers owned the fields of a value that is
//! now atomic.

use super::{Form, form};
use crate::path::PathElement;
use crate::set::Set;
use crate::typing::{Relation, Schema, TypeId};

/// Finds owned fields below values that are now atomic, and adds the paths of these values to
/// `gone` and `come`. The caller removes everything below `gone` and adds `come`. Leaves are not
/// visited, because they do not change.
pub(super) fn reconcile<'a>(
    schema: &Schema,
    of: TypeId,
    fields: &'a Set,
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
            if list.relation == Relation::Atomic {
                becomes_a_leaf(path);
                return;
            }
            for (element, below) in fields.children() {
                path.push(element);
                reconcile(schema, list.items, below, path, gone, come);
                path.pop();
            }
        }
        Form::Map(map) => {
            // A deduced type never changes.
            if map.fields().is_empty() && map.rest().is_some_and(|rest| rest == Schema::DEDUCED) {
                return;
            }
            if map.is_atomic() {
                if !fields.is_empty() {
                    becomes_a_leaf(path);
                }
                return;
            }
            for (element, below) in fields.children() {
                let member = match element {
                    PathElement::Field(name) => map.member(name),
                    _ => map.rest(),
                };
                let Some(member) = member else { continue };
                path.push(element);
                reconcile(schema, member, below, path, gone, come);
                path.pop();
            }
        }
    }
}
