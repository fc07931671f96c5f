//! Compares two objects: [`compare`] walks both and records the changed fields in a [`Comparison`].

use std::cell::Cell;
use std::collections::BTreeMap;

use listwatch_json::{JsonString, Map as Object, Value};

use super::{Form, OrderedMembers, ValidationError, as_list, as_map, check_scalar, form, item_element, join};
use crate::path::PathElement;
use crate::set::Set;
use crate::typing::{Field, List, Map, Presence, Relation, Schema, TypeId, Typing, Zero};
use crate::value;

/// The changed fields between two objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields only in the old object.
    pub removed: Set,
    /// Fields with a changed value.
    pub modified: Set,
    /// Fields only in the new object.
    pub added: Set,
}

/// The representation in which an object is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The Go struct decoded from the JSON, without the zero values that Go omits.
    Struct,
    /// The JSON as received.
    Plain,
}

static NULL: Value = Value::Null;
static EMPTY_TEXT: Value = Value::String(JsonString::from_static(""));
static FALSE: Value = Value::Bool(false);

fn zero(zero: Zero) -> &'static Value {
    static EMPTY: Value = Value::Object(Object::new());
    static NOUGHT: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| Value::from(0));
    match zero {
        Zero::Null => &NULL,
        Zero::Struct => &EMPTY,
        Zero::Text => &EMPTY_TEXT,
        Zero::Number => &NOUGHT,
        Zero::Flag => &FALSE,
    }
}

/// Returns the value of a map's member in a representation.
fn seen<'a>(map: &Map, field: Option<&Field>, value: Option<&'a Value>, view: View) -> Option<&'a Value> {
    let Some(field) = field else { return value };
    match (field.presence, value) {
        (Presence::NonZero, Some(value)) if view == View::Struct && value::is_zero(value) => None,
        (Presence::Plain, Some(Value::Null)) if view == View::Struct && map.is_struct() => None,
        (Presence::Always(nothing), None | Some(Value::Null)) => Some(zero(nothing)),
        _ => value,
    }
}

/// Whether a map is empty in a representation.
fn is_bare(map: &Map, object: Option<&Object>, view: View) -> bool {
    let Some(object) = object else { return true };
    object.iter().all(|(name, value)| seen(map, map.field(name), Some(value), view).is_none())
        && !map.fields().iter().any(|field| matches!(field.presence, Presence::Always(_)))
}

/// The change of one value as a whole.
#[derive(Clone, Copy, Debug, Default)]
struct Notes {
    removed: bool,
    modified: bool,
    added: bool,
}

impl Notes {
    fn any(self) -> bool {
        self.removed || self.modified || self.added
    }
}

/// The name of a value within its parent. The path element is built only if a change is recorded.
#[derive(Clone)]
enum Step<'a> {
    Field(&'a str),
    Item(PathElement),
}

impl Step<'_> {
    fn element(self) -> PathElement {
        match self {
            Step::Field(name) => PathElement::field(name),
            Step::Item(element) => element,
        }
    }
}

impl Comparison {
    /// Whether nothing changed.
    fn is_nothing(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Records the change of one element and its subtree.
    fn note(&mut self, element: &Step<'_>, of: Notes, below: Comparison) {
        let sets = [
            (&mut self.removed, of.removed, below.removed),
            (&mut self.modified, of.modified, below.modified),
            (&mut self.added, of.added, below.added),
        ];
        for (set, member, below) in sets {
            if member {
                set.insert_member(element.clone().element());
            }
            if !below.is_empty() {
                set.add_child(element.clone().element(), below);
            }
        }
    }
}

/// Compares two objects, each in its representation. Members of the objects that are in `skipped` are not compared.
pub(super) fn compare(
    typing: &Typing,
    old: (&Value, View),
    new: (&Value, View),
    skipped: &Set,
) -> Result<Comparison, ValidationError> {
    let is_built_in = old.1 == View::Struct && new.1 == View::Struct;
    let compared = compare_by(typing, old, new, skipped, is_built_in)?;
    if cfg!(debug_assertions)
        && let Ok(whole) = compare_by(typing, old, new, skipped, false)
    {
        assert_eq!(compared, whole, "a comparison that skips equal values finds the same changes");
    }
    Ok(compared)
}

fn compare_by(
    typing: &Typing,
    old: (&Value, View),
    new: (&Value, View),
    skipped: &Set,
    skips_equal: bool,
) -> Result<Comparison, ValidationError> {
    let mut comparison = Comparison::default();
    let comparer =
        Comparer { schema: typing.schema(), old_view: old.1, new_view: new.1, skips_equal, depth: Cell::new(0) };
    let root = typing.schema().get(typing.root());
    if let (Some(before), Some(after), Form::Map(map)) = (old.0.as_object(), new.0.as_object(), form(root, Some(old.0)))
        && !map.is_atomic()
    {
        comparer.members(map, Some(before), Some(after), skipped, &mut comparison)?;
        return Ok(comparison);
    }
    // The root object is never a member of a set, so its own change is ignored.
    comparer.compare(typing.root(), Some(old.0), Some(new.0), &mut comparison)?;
    Ok(comparison)
}

/// Adds the fields below a value that only one of the objects has: all that it serializes.
fn fields_below(schema: &Schema, of: TypeId, value: &Value, view: View, into: &mut Set) -> Result<(), ValidationError> {
    match form(schema.get(of), Some(value)) {
        Form::None => Err(ValidationError::of("schema error: invalid atom: inlined")),
        Form::Scalar(_) => Ok(()),
        Form::List(list) => match as_list(Some(value)) {
            Some(items) if list.relation != Relation::Atomic => add_items(schema, list, items, view, into),
            _ => Ok(()),
        },
        Form::Map(map) => match as_map(Some(value)) {
            Some(object) if !map.is_atomic() => add_members(schema, map, object, view, into),
            _ => Ok(()),
        },
    }
}

fn add_members(schema: &Schema, map: &Map, object: &Object, view: View, into: &mut Set) -> Result<(), ValidationError> {
    let absent = map.fields().iter().filter(|field| matches!(field.presence, Presence::Always(_)));
    let absent = absent.map(|field| &*field.name).filter(|name| !object.contains_key(name)).map(|name| (name, None));
    let mut members: Vec<(&str, Option<&Value>)> =
        object.iter().map(|(name, value)| (name.as_str(), Some(value))).chain(absent).collect();
    // Members come in any order, but a set is built in its own order.
    if !members.is_sorted_by_key(|(name, _)| *name) {
        members.sort_unstable_by_key(|(name, _)| *name);
    }
    for (name, value) in members {
        let field = map.field(name);
        // Unknown members are never owned.
        let Some(of) = field.map(|field| field.of).or(map.rest()) else { continue };
        let Some(value) = seen(map, field, value, view) else { continue };
        let (element, mut below) = (PathElement::field(name), Set::new());
        fields_below(schema, of, value, view, &mut below).map_err(|misfit| misfit.below(&element))?;
        if !below.is_empty() {
            into.add_child(element.clone(), below);
        }
        into.insert_member(element);
    }
    Ok(())
}

fn add_items(schema: &Schema, list: &List, items: &[Value], view: View, into: &mut Set) -> Result<(), ValidationError> {
    let mut elements = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let element =
            item_element(schema, list, item).map_err(|why| ValidationError::of(format!("element {at}: {why}")))?;
        elements.push((element, item));
    }
    elements.sort_by(|(one, _), (other, _)| one.cmp(other));
    for same in elements.chunk_by(|(one, _), (other, _)| one == other) {
        let (element, item) = &same[0];
        // Items with the same keys are owned as a whole.
        if same.len() == 1 {
            let mut below = Set::new();
            fields_below(schema, list.items, item, view, &mut below).map_err(|misfit| misfit.below(element))?;
            if !below.is_empty() {
                into.add_child(element.clone(), below);
            }
        }
        into.insert_member(element.clone());
    }
    Ok(())
}

/// The number of levels, from the root, whose values are checked for equality before they are compared by type. A changed
/// value is checked again at each level above it. This bounds the number of checks of a value.
const EQUAL_LEVELS_MAX: usize = 8;

struct Comparer<'a> {
    schema: &'a Schema,
    old_view: View,
    new_view: View,
    /// Whether equal values are skipped.
    skips_equal: bool,
    /// The depth of the compared value.
    depth: Cell<usize>,
}

impl Comparer<'_> {
    /// Whether two values are equal, so that nothing below them changed. Only values of built-in kinds are checked, which
    /// were decoded by type. A comparison by type refuses a list item without keys. In an equal list, such an item is not
    /// seen, and the object keeps its managed fields.
    fn is_unchanged(&self, old: Option<&Value>, new: Option<&Value>) -> bool {
        self.skips_equal && self.depth.get() < EQUAL_LEVELS_MAX && old == new
    }

    /// Records the changes below a value in `into`, and returns the change of the value itself.
    fn compare(
        &self,
        of: TypeId,
        old: Option<&Value>,
        new: Option<&Value>,
        into: &mut Comparison,
    ) -> Result<Notes, ValidationError> {
        let mut notes = Notes::default();
        match (old, new) {
            (None, None) => {}
            (Some(old), None) => {
                notes.removed = true;
                fields_below(self.schema, of, old, self.old_view, &mut into.removed)?;
            }
            (None, Some(new)) => {
                notes.added = true;
                fields_below(self.schema, of, new, self.new_view, &mut into.added)?;
            }
            (Some(old), Some(new)) => {
                let of = self.schema.get(of);
                let (before, after) = (form(of, Some(old)), form(of, Some(new)));
                if before != after && !old.is_null() && !new.is_null() {
                    notes.modified |= self.walk(before, old, new, into)?;
                }
                notes.modified |= self.walk(if new.is_null() { before } else { after }, old, new, into)?;
            }
        }
        Ok(notes)
    }

    /// Records the changes below a value. Returns whether the value itself is modified, which only a leaf is.
    fn walk(&self, form: Form<'_>, old: &Value, new: &Value, into: &mut Comparison) -> Result<bool, ValidationError> {
        match form {
            Form::None => return Err(ValidationError::of("schema error: invalid atom: inlined")),
            Form::Scalar(scalar) => {
                if let (Err(old), Err(new)) = (check_scalar(scalar, old), check_scalar(scalar, new)) {
                    return join(vec![old, new]).map(|()| false);
                }
            }
            Form::List(list) => {
                let (before, after) = (as_list(Some(old)), as_list(Some(new)));
                let bare = before.is_none_or(Vec::is_empty) && after.is_none_or(Vec::is_empty);
                if list.relation != Relation::Atomic && !bare {
                    self.items(list, before.map_or(&[], Vec::as_slice), after.map_or(&[], Vec::as_slice), into)?;
                    return Ok(false);
                }
            }
            Form::Map(map) => {
                let (before, after) = (as_map(Some(old)), as_map(Some(new)));
                let bare = || is_bare(map, before, self.old_view) && is_bare(map, after, self.new_view);
                if !map.is_atomic() && !bare() {
                    self.members(map, before, after, &Set::new(), into)?;
                    return Ok(false);
                }
            }
        }
        Ok(!value::equal(old, new))
    }

    /// Compares one element and its subtree.
    fn below(
        &self,
        step: &Step<'_>,
        of: TypeId,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<(Notes, Comparison), ValidationError> {
        let mut below = Comparison::default();
        self.depth.update(|depth| depth + 1);
        let notes = self.compare(of, old, new, &mut below).map_err(|misfit| misfit.below(&step.clone().element()));
        self.depth.update(|depth| depth - 1);
        Ok((notes?, below))
    }

    fn members<'a>(
        &self,
        map: &'a Map,
        old: Option<&'a Object>,
        new: Option<&'a Object>,
        skipped: &Set,
        into: &mut Comparison,
    ) -> Result<(), ValidationError> {
        let (old_there, new_there) = (old.is_some(), new.is_some());
        // Members come in any order, but a set is built in its own order.
        let mut noted: Vec<(&str, Notes, Comparison)> = Vec::new();
        let mut visit = |name: &'a str, old: Option<&Value>, new: Option<&Value>| {
            if old.is_some() && self.is_unchanged(old, new) {
                return Ok(());
            }
            if !skipped.is_empty() && skipped.has_member(&PathElement::field(name)) {
                return Ok(());
            }
            let field = map.field(name);
            // An always serialized member exists if its struct exists.
            let old = if old_there { seen(map, field, old, self.old_view) } else { None };
            let new = if new_there { seen(map, field, new, self.new_view) } else { None };
            match field.map(|field| field.of).or(map.rest()) {
                // Unknown members are never owned.
                None => Ok(()),
                Some(_) if old.is_none() && new.is_none() => Ok(()),
                Some(of) => {
                    let (notes, below) = self.below(&Step::Field(name), of, old, new)?;
                    if notes.any() || !below.is_nothing() {
                        noted.push((name, notes, below));
                    }
                    Ok(())
                }
            }
        };
        let mut after = OrderedMembers::new(new);
        for (name, before) in old.into_iter().flatten() {
            visit(name, Some(before), after.get(name))?;
        }
        if !after.is_done() {
            for (name, after) in new.into_iter().flatten() {
                if !old.is_some_and(|old| old.contains_key(name)) {
                    visit(name, None, Some(after))?;
                }
            }
        }
        for field in map.fields().iter().filter(|field| matches!(field.presence, Presence::Always(_))) {
            let has = |object: Option<&Object>| object.is_some_and(|object| object.contains_key(&field.name));
            if !has(old) && !has(new) {
                visit(&field.name, None, None)?;
            }
        }
        if !noted.is_sorted_by_key(|(name, ..)| *name) {
            noted.sort_unstable_by_key(|(name, ..)| *name);
        }
        for (name, notes, below) in noted {
            into.note(&Step::Field(name), notes, below);
        }
        Ok(())
    }

    /// Pairs the items of two lists in the order of their elements, if both have the same keys in the same order and no
    /// key twice: the usual change of a list.
    fn pairs<'v>(
        &self,
        list: &List,
        old: &'v [Value],
        new: &'v [Value],
    ) -> Option<Vec<(PathElement, &'v Value, &'v Value)>> {
        let Relation::Keyed(keys) = &list.relation else { return None };
        if old.len() != new.len() {
            return None;
        }
        let mut pairs = Vec::with_capacity(old.len());
        for (old, new) in old.iter().zip(new) {
            let (before, after) = (old.as_object()?, new.as_object()?);
            if keys.iter().any(|key| before.get(key) != after.get(key)) {
                return None;
            }
            pairs.push((item_element(self.schema, list, old).ok()?, old, new));
        }
        pairs.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        pairs.is_sorted_by(|(one, ..), (other, ..)| one < other).then_some(pairs)
    }

    fn items(&self, list: &List, old: &[Value], new: &[Value], into: &mut Comparison) -> Result<(), ValidationError> {
        if let Some(pairs) = self.skips_equal.then(|| self.pairs(list, old, new)).flatten() {
            for (element, old, new) in
                pairs.into_iter().filter(|(_, old, new)| !self.is_unchanged(Some(old), Some(new)))
            {
                let step = Step::Item(element);
                let (of, below) = self.below(&step, list.items, Some(old), Some(new))?;
                into.note(&step, of, below);
            }
            return Ok(());
        }
        let mut found: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (side, items) in [old, new].into_iter().enumerate() {
            for (at, item) in items.iter().enumerate() {
                let element = item_element(self.schema, list, item)
                    .map_err(|why| ValidationError::of(format!("element {at}: {why}")))?;
                let both = found.entry(element).or_default();
                if side == 0 { both.0.push(item) } else { both.1.push(item) }
            }
        }
        for (element, (old, new)) in found {
            let step = Step::Item(element);
            let mut notes = Notes::default();
            match (&*old, &*new) {
                ([] | [_], [] | [_]) => {
                    let (of, below) = self.below(&step, list.items, old.first().copied(), new.first().copied())?;
                    into.note(&step, of, below);
                }
                ([_, _, ..], [_, _, ..]) => {
                    let same = old.len() == new.len() && old.iter().zip(&new).all(|(old, new)| value::equal(old, new));
                    notes.modified = !same;
                }
                ([_, _, ..], _) => {
                    if let Some(new) = new.first() {
                        let (of, below) = self.below(&step, list.items, None, Some(new))?;
                        into.note(&step, of, below);
                    }
                    notes.removed = true;
                }
                (_, [_, _, ..]) => {
                    if let Some(old) = old.first() {
                        let (of, below) = self.below(&step, list.items, Some(old), None)?;
                        into.note(&step, of, below);
                    }
                    notes.added = true;
                }
            }
            into.note(&step, notes, Comparison::default());
        }
        Ok(())
    }
}
