//! What can be done with values whose type is known: validate, name their fields, compare, merge,
//! and take fields away.
//!
//! Rules: `structured-merge-diff/v6/typed`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map as Object, Value};

use crate::path::PathElement;
use crate::set::Set;
use crate::typing::{Field, List, Map, Presence, Relation, Scalar, Schema, Type, TypeId, Typing, Zero};
use crate::value;

/// A value that does not fit its type: where, and what is wrong. Shown as Go shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    problems: Vec<(String, String)>,
}

impl Misfit {
    fn of(why: impl Into<String>) -> Self {
        Misfit { problems: vec![(String::new(), why.into())] }
    }

    fn below(mut self, element: &PathElement) -> Self {
        for (path, _) in &mut self.problems {
            path.insert_str(0, &element.to_string());
        }
        self
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |f: &mut fmt::Formatter<'_>, (path, why): &(String, String)| match path.as_str() {
            "" => f.write_str(why),
            path => write!(f, "{path}: {why}"),
        };
        if let [only] = &*self.problems {
            return show(f, only);
        }
        f.write_str("errors:")?;
        for problem in &self.problems {
            f.write_str("\n  ")?;
            show(f, problem)?;
        }
        Ok(())
    }
}

impl std::error::Error for Misfit {}

/// Joins what went wrong at several places.
fn join(problems: Vec<Misfit>) -> Result<(), Misfit> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(Misfit { problems: problems.into_iter().flat_map(|misfit| misfit.problems).collect() })
}

/// What changed from one object to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// What was there and is no more.
    pub removed: Set,
    /// What was there with another value.
    pub modified: Set,
    /// What was not there.
    pub added: Set,
}

/// A type, with the way it takes for one value.
#[derive(Clone, Copy, PartialEq)]
enum Form<'a> {
    Map(&'a Map),
    Scalar(Scalar),
    List(&'a List),
    /// A type that fits nothing.
    None,
}

/// The form of a type that a value has; any value that has none gets the first form there is.
fn form<'a>(of: &'a Type, value: Option<&Value>) -> Form<'a> {
    let map = of.map.as_ref().map(Form::Map);
    let list = of.list.as_ref().map(Form::List);
    let scalar = of.scalar.map(Form::Scalar);
    let own = match value {
        None | Some(Value::Null) => None,
        Some(Value::Array(_)) => list,
        Some(Value::Object(_)) => map,
        Some(_) => scalar,
    };
    own.or(map).or(scalar).or(list).unwrap_or(Form::None)
}

/// How an object is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// As the Go struct that was decoded from it: without zeros that Go leaves out.
    Struct,
    /// As it stands.
    Plain,
}

static NULL: Value = Value::Null;
static EMPTY_TEXT: Value = Value::String(String::new());
static FALSE: Value = Value::Bool(false);

fn zero(zero: Zero) -> &'static Value {
    static EMPTY: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| Value::Object(Object::new()));
    static NOUGHT: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| Value::from(0));
    match zero {
        Zero::Null => &NULL,
        Zero::Struct => &EMPTY,
        Zero::Text => &EMPTY_TEXT,
        Zero::Number => &NOUGHT,
        Zero::Flag => &FALSE,
    }
}

/// A member of a map as it is looked at: `value` is what stands under the name of `field`.
fn seen<'a>(map: &Map, field: Option<&Field>, value: Option<&'a Value>, view: View) -> Option<&'a Value> {
    let Some(field) = field else { return value };
    match (field.presence, value) {
        (Presence::NonZero, Some(value)) if view == View::Struct && value::is_zero(value) => None,
        (Presence::Plain, Some(Value::Null)) if view == View::Struct && map.is_struct() => None,
        (Presence::Always(nothing), None | Some(Value::Null)) => Some(zero(nothing)),
        _ => value,
    }
}

/// Has a map nothing in it, as it is looked at?
fn is_bare(map: &Map, object: Option<&Object<String, Value>>, view: View) -> bool {
    let Some(object) = object else { return true };
    object.iter().all(|(name, value)| seen(map, map.field(name), Some(value), view).is_none())
        && !map.fields().iter().any(|field| matches!(field.presence, Presence::Always(_)))
}

/// Looks up members of an object by the names of another one, of which most have the same members in
/// the same order: then nothing is searched for.
struct InStep<'a> {
    object: Option<&'a Object<String, Value>>,
    next: std::iter::Peekable<serde_json::map::Iter<'a>>,
    found: usize,
}

impl<'a> InStep<'a> {
    fn new(object: Option<&'a Object<String, Value>>) -> Self {
        static EMPTY: std::sync::LazyLock<Object<String, Value>> = std::sync::LazyLock::new(Object::new);
        InStep { object, next: object.unwrap_or(&EMPTY).iter().peekable(), found: 0 }
    }

    /// The member of this name; no name is asked for twice.
    fn get(&mut self, name: &str) -> Option<&'a Value> {
        let found = match self.next.next_if(|(next, _)| *next == name) {
            Some((_, value)) => Some(value),
            None => self.object?.get(name),
        };
        self.found += usize::from(found.is_some());
        found
    }

    /// Were all members asked for?
    fn is_done(&self) -> bool {
        self.object.is_none_or(|object| object.len() == self.found)
    }
}

/// The members sorted by name: a set that is built in order costs no search and no shift.
fn by_name(object: &Object<String, Value>) -> Vec<(&String, &Value)> {
    let mut members: Vec<(&String, &Value)> = object.iter().collect();
    if !members.is_sorted_by_key(|(name, _)| *name) {
        members.sort_unstable_by_key(|(name, _)| *name);
    }
    members
}

fn as_map(value: Option<&Value>) -> Option<&Object<String, Value>> {
    value.and_then(Value::as_object)
}

fn as_list(value: Option<&Value>) -> Option<&Vec<Value>> {
    value.and_then(Value::as_array)
}

/// What an item is called in its list.
fn item_element(schema: &Schema, list: &List, item: &Value) -> Result<PathElement, String> {
    match &list.relation {
        Relation::Atomic => Err("invalid indexing of non-associative list".to_owned()),
        Relation::Set => match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
            scalar => Ok(PathElement::Value(Arc::new(scalar.clone()))),
        },
        Relation::Keyed(keys) => {
            let item = match item {
                Value::Object(item) => item,
                Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
                _ => return Err("associative list with keys may not have non-map elements".to_owned()),
            };
            let map = schema.get(list.items).map.as_ref();
            let mut fields = Vec::with_capacity(keys.len());
            for key in keys {
                let field = map.and_then(|map| map.field(key));
                let value = item.get(&**key).or_else(|| field.and_then(|field| field.default.as_ref()));
                if let Some(value) = value {
                    fields.push(((**key).into(), value.clone()));
                }
            }
            if fields.is_empty() && !keys.is_empty() {
                let keys: Vec<String> = keys.iter().map(|key| value::quoted(key)).collect();
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                    keys.join(" ")
                ));
            }
            Ok(PathElement::key(fields))
        }
    }
}

fn check_scalar(scalar: Scalar, value: &Value) -> Result<(), Misfit> {
    let fits = match (scalar, value) {
        (_, Value::Null) => true,
        (Scalar::Text, value) => value.is_string(),
        (Scalar::Number, value) => value.is_number(),
        (Scalar::Flag, value) => value.is_boolean(),
        (Scalar::Any, value) => !value.is_array() && !value.is_object(),
    };
    if fits {
        return Ok(());
    }
    Err(Misfit::of(match scalar {
        Scalar::Text => {
            format!("expected string, got &value.valueUnstructured{{Value:{}}}", value::in_go_syntax(value))
        }
        Scalar::Number => format!("expected numeric (int or float), got {}", value::go_type(value)),
        Scalar::Flag => format!("expected boolean, got &{{{}}}", value::printed(value)),
        Scalar::Any => format!("expected any scalar, got &{{{}}}", value::printed(value)),
    }))
}

impl Typing {
    /// Checks that an object fits: scalars are what they should be, structs have no member that the
    /// schema does not know, items of lists can be told apart. With `duplicates` an item may be in
    /// a set or keyed list more than once, as objects in the store may have it.
    ///
    /// # Errors
    /// Every place that does not fit.
    pub fn validate(&self, object: &Value, duplicates: bool) -> Result<(), Misfit> {
        validate(self.schema(), self.root(), object, duplicates)
    }

    /// The set of all leaves and items of an object.
    pub fn field_set(&self, object: &Value) -> Set {
        let mut set = Set::new();
        // The whole object is never a member, so what the top says of itself does not matter.
        name_fields(self.schema(), self.root(), object, &mut set);
        set
    }

    /// What changed from `old` to `new`.
    ///
    /// # Errors
    /// When one of them does not fit the type.
    pub fn compare(&self, old: &Value, new: &Value) -> Result<Comparison, Misfit> {
        self.compare_as(old, View::Plain, new, View::Plain)
    }

    pub(crate) fn compare_as(
        &self,
        old: &Value,
        old_view: View,
        new: &Value,
        new_view: View,
    ) -> Result<Comparison, Misfit> {
        let mut comparison = Comparison::default();
        let comparer = Comparer { schema: self.schema(), old_view, new_view };
        // The whole object is never a member, so what the top says of itself does not matter.
        comparer.compare(self.root(), Some(old), Some(new), &mut comparison)?;
        Ok(comparison)
    }

    /// `live` with everything that `config` says. Nothing is removed. The items of a list are
    /// ordered as in `config` where it names them.
    ///
    /// # Errors
    /// When one of them does not fit the type, or an item is twice in `config`.
    pub fn merge(&self, live: &Value, config: &Value) -> Result<Value, Misfit> {
        merge(self.schema(), self.root(), live, config)
    }

    /// The object without the items and fields in a set. Atomic lists and maps are not looked into.
    pub fn remove(&self, object: &Value, fields: &Set) -> Value {
        remove(self.schema(), self.root(), object, fields).unwrap_or(Value::Null)
    }

    /// Of an object only the items and fields in a set.
    pub fn extract(&self, object: &Value, fields: &Set) -> Value {
        extract(self.schema(), self.root(), object, fields).unwrap_or(Value::Null)
    }

    /// Takes away the members that Go leaves out of a struct because they are zero, at any depth.
    pub(crate) fn drop_zeros(&self, object: &mut Value) {
        drop_zeros(self.schema(), self.root(), object);
    }

    /// A set written when the type was another one, as it is now: what was owned part by part and
    /// is one leaf now is owned as that leaf. `None` where nothing changed.
    pub(crate) fn reconcile(&self, fields: &Set) -> Option<Set> {
        let (mut gone, mut come) = (Set::new(), Set::new());
        reconcile(self.schema(), self.root(), Some(fields), false, &mut Vec::new(), &mut gone, &mut come);
        if gone.is_empty() && come.is_empty() {
            return None;
        }
        let mut fields = fields.recursive_difference(&gone);
        fields.absorb(come);
        Some(fields)
    }
}

fn drop_zeros(schema: &Schema, of: TypeId, value: &mut Value) {
    let of = schema.get(of);
    match (value, &of.map, &of.list) {
        (Value::Object(members), Some(map), _) => {
            members.retain(|name, value| {
                let field = map.field(name);
                let omitted = match field.map(|field| field.presence) {
                    Some(Presence::NonZero) => value::is_zero(value),
                    Some(Presence::Plain) => value.is_null() && map.is_struct(),
                    _ => false,
                };
                if !omitted && let Some(of) = map.member(name) {
                    drop_zeros(schema, of, value);
                }
                !omitted
            });
        }
        (Value::Array(items), _, Some(list)) => items.iter_mut().for_each(|item| drop_zeros(schema, list.items, item)),
        _ => {}
    }
}

fn validate(schema: &Schema, of: TypeId, value: &Value, duplicates: bool) -> Result<(), Misfit> {
    match form(schema.get(of), Some(value)) {
        Form::Scalar(scalar) => check_scalar(scalar, value),
        Form::None => Err(Misfit::of("schema error: invalid atom: inlined")),
        Form::List(list) => {
            let items = match value {
                Value::Array(items) => items,
                Value::Null => return Ok(()),
                other => return Err(Misfit::of(format!("expected list, got &{{{}}}", value::printed(other)))),
            };
            let mut problems = Vec::new();
            let mut found = BTreeMap::new();
            for (at, item) in items.iter().enumerate() {
                let element = if list.relation == Relation::Atomic {
                    PathElement::Index(i64::try_from(at).unwrap_or(i64::MAX))
                } else {
                    match item_element(schema, list, item) {
                        Ok(element) => element,
                        Err(why) => {
                            problems.push(Misfit::of(format!("element {at}: {why}")));
                            break;
                        }
                    }
                };
                if let Err(misfit) = validate(schema, list.items, item, duplicates) {
                    problems.push(misfit.below(&element));
                }
                if list.relation != Relation::Atomic {
                    if !duplicates && found.contains_key(&element) {
                        problems.push(Misfit::of(format!("duplicate entries for key {element}")));
                    }
                    found.insert(element, ());
                }
            }
            join(problems)
        }
        Form::Map(map) => {
            let members = match value {
                Value::Object(members) => members,
                Value::Null => return Ok(()),
                other => return Err(Misfit::of(format!("expected map, got &{{{}}}", value::printed(other)))),
            };
            let mut problems = Vec::new();
            for (name, value) in members {
                let Some(of) = map.member(name) else {
                    problems.push(Misfit::of("field not declared in schema").below(&PathElement::field(name)));
                    break;
                };
                if let Err(misfit) = validate(schema, of, value, duplicates) {
                    problems.push(misfit.below(&PathElement::field(name)));
                }
            }
            join(problems)
        }
    }
}

/// Adds what is below a value to `set`. True when the value itself is a leaf.
fn name_fields(schema: &Schema, of: TypeId, value: &Value, set: &mut Set) -> bool {
    match form(schema.get(of), Some(value)) {
        Form::Scalar(_) => true,
        Form::None => false,
        Form::List(list) if list.relation == Relation::Atomic => true,
        Form::Map(map) if map.is_atomic() => true,
        Form::List(list) => {
            let mut counts: BTreeMap<PathElement, (usize, &Value)> = BTreeMap::new();
            for item in value.as_array().into_iter().flatten() {
                if let Ok(element) = item_element(schema, list, item) {
                    counts.entry(element).or_insert((0, item)).0 += 1;
                }
            }
            for (element, (count, item)) in counts {
                // Of an item that is there more than once only that is known.
                if count == 1 {
                    let mut below = Set::new();
                    name_fields(schema, list.items, item, &mut below);
                    set.add_child(element.clone(), below);
                }
                set.insert_member(element);
            }
            false
        }
        Form::Map(map) => {
            for (name, value) in value.as_object().map(by_name).into_iter().flatten() {
                let Some(of) = map.member(name) else { continue };
                let element = PathElement::field(name);
                let mut below = Set::new();
                let leaf = name_fields(schema, of, value, &mut below);
                let empty = value.is_null() || value.as_object().is_some_and(Object::is_empty);
                if leaf || empty || map.field(name).is_none() {
                    set.insert_member(element.clone());
                }
                set.add_child(element, below);
            }
            false
        }
    }
}

/// What is said of one value as a whole.
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

/// What a value is called in what contains it; an element is made of a name only where something is to
/// be noted.
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
    /// Did nothing change?
    fn is_nothing(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Notes what is said of an element, and of what is below it.
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

struct Comparer<'a> {
    schema: &'a Schema,
    old_view: View,
    new_view: View,
}

impl Comparer<'_> {
    /// Notes in `into` what changed below a value, and returns what is to be said of the value itself.
    fn compare(
        &self,
        of: TypeId,
        old: Option<&Value>,
        new: Option<&Value>,
        into: &mut Comparison,
    ) -> Result<Notes, Misfit> {
        let of = self.schema.get(of);
        let mut notes = Notes::default();
        let leaf = match (old, new) {
            (None, None) => return Ok(notes),
            (_, None) => self.walk(form(of, old), old, new, &mut notes, into)?,
            (None, _) => self.walk(form(of, new), old, new, &mut notes, into)?,
            (Some(_), Some(_)) => {
                let (before, after) = (form(of, old), form(of, new));
                if before != after && !matches!(old, Some(Value::Null)) && !matches!(new, Some(Value::Null)) {
                    self.walk(before, old, new, &mut notes, into)?;
                }
                let wanted = if matches!(new, Some(Value::Null)) { before } else { after };
                self.walk(wanted, old, new, &mut notes, into)?
            }
        };
        if !leaf {
            if old.is_none() {
                notes.added = true;
            } else if new.is_none() {
                notes.removed = true;
            }
        }
        Ok(notes)
    }

    /// Notes what changed here and below. True when this is a leaf.
    fn walk(
        &self,
        form: Form<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
        notes: &mut Notes,
        into: &mut Comparison,
    ) -> Result<bool, Misfit> {
        match form {
            Form::None => return Err(Misfit::of("schema error: invalid atom: inlined")),
            Form::Scalar(scalar) => {
                let misfit = |value: Option<&Value>| value.and_then(|value| check_scalar(scalar, value).err());
                if let (Some(old), Some(new)) = (misfit(old), misfit(new)) {
                    return join(vec![old, new]).map(|()| true);
                }
            }
            Form::List(list) => {
                let (before, after) = (as_list(old), as_list(new));
                let bare = before.is_none_or(Vec::is_empty) && after.is_none_or(Vec::is_empty);
                if list.relation != Relation::Atomic && !bare {
                    self.items(list, before.map_or(&[], Vec::as_slice), after.map_or(&[], Vec::as_slice), into)?;
                    return Ok(false);
                }
            }
            Form::Map(map) => {
                let (before, after) = (as_map(old), as_map(new));
                let bare = || is_bare(map, before, self.old_view) && is_bare(map, after, self.new_view);
                if !map.is_atomic() && !bare() {
                    self.members(map, before, after, into)?;
                    return Ok(false);
                }
            }
        }
        match (old, new) {
            (None, _) => notes.added = true,
            (_, None) => notes.removed = true,
            (Some(old), Some(new)) => notes.modified |= !value::equal(old, new),
        }
        Ok(true)
    }

    /// What is to be said of an element, and of what is below it.
    fn below(
        &self,
        step: &Step<'_>,
        of: TypeId,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<(Notes, Comparison), Misfit> {
        let mut below = Comparison::default();
        let notes = self.compare(of, old, new, &mut below).map_err(|misfit| misfit.below(&step.clone().element()))?;
        Ok((notes, below))
    }

    fn members<'a>(
        &self,
        map: &'a Map,
        old: Option<&'a Object<String, Value>>,
        new: Option<&'a Object<String, Value>>,
        into: &mut Comparison,
    ) -> Result<(), Misfit> {
        let (old_there, new_there) = (old.is_some(), new.is_some());
        // Members come in any order; a set is built in its own.
        let mut noted: Vec<(&str, Notes, Comparison)> = Vec::new();
        let mut visit = |name: &'a str, old: Option<&Value>, new: Option<&Value>| {
            let field = map.field(name);
            // What always has a member has it where it is there itself.
            let old = if old_there { seen(map, field, old, self.old_view) } else { None };
            let new = if new_there { seen(map, field, new, self.new_view) } else { None };
            match field.map(|field| field.of).or(map.rest()) {
                // Nobody owns what the schema has no room for.
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
        let mut after = InStep::new(new);
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
            let has =
                |object: Option<&Object<String, Value>>| object.is_some_and(|object| object.contains_key(&*field.name));
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

    fn items(&self, list: &List, old: &[Value], new: &[Value], into: &mut Comparison) -> Result<(), Misfit> {
        let mut found: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (side, items) in [old, new].into_iter().enumerate() {
            for (at, item) in items.iter().enumerate() {
                let element =
                    item_element(self.schema, list, item).map_err(|why| Misfit::of(format!("element {at}: {why}")))?;
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

/// Both sides are there; where one is not, the other is the result.
fn merge(schema: &Schema, of: TypeId, live: &Value, config: &Value) -> Result<Value, Misfit> {
    let of = schema.get(of);
    let wanted = if config.is_null() { form(of, Some(live)) } else { form(of, Some(config)) };
    match wanted {
        Form::None => Err(Misfit::of("schema error: invalid atom: inlined")),
        Form::Scalar(scalar) => match (check_scalar(scalar, live), check_scalar(scalar, config)) {
            (Err(live), Err(config)) => join(vec![live, config]).map(|()| Value::Null),
            _ => Ok(config.clone()),
        },
        Form::List(list) => {
            let (before, after) = (as_list(Some(live)), as_list(Some(config)));
            let bare = before.is_none_or(Vec::is_empty) && after.is_none_or(Vec::is_empty);
            if list.relation == Relation::Atomic || bare {
                return Ok(config.clone());
            }
            merge_items(schema, list, before.map_or(&[], Vec::as_slice), after.map_or(&[], Vec::as_slice))
        }
        Form::Map(map) => {
            let (before, after) = (as_map(Some(live)), as_map(Some(config)));
            if map.is_atomic() || (before.is_none_or(Object::is_empty) && after.is_none_or(Object::is_empty)) {
                return Ok(config.clone());
            }
            // Each value is copied once, where it ends up.
            let mut merged = Object::with_capacity(before.map_or(0, Object::len).max(after.map_or(0, Object::len)));
            let mut configured = InStep::new(after);
            for (name, live) in before.into_iter().flatten() {
                let value = match configured.get(name) {
                    None => live.clone(),
                    Some(config) => match map.member(name) {
                        None => config.clone(),
                        Some(of) => {
                            merge(schema, of, live, config).map_err(|misfit| misfit.below(&PathElement::field(name)))?
                        }
                    },
                };
                merged.insert(name.clone(), value);
            }
            if !configured.is_done() {
                for (name, config) in after.into_iter().flatten() {
                    if !before.is_some_and(|before| before.contains_key(name)) {
                        merged.insert(name.clone(), config.clone());
                    }
                }
            }
            Ok(Value::Object(merged))
        }
    }
}

/// Merges two lists. Items of both keep the order of `config`; items that only `live` has stay
/// between those beside which they were.
fn merge_items(schema: &Schema, list: &List, live: &[Value], config: &[Value]) -> Result<Value, Misfit> {
    let name = |items: &[Value]| -> Result<Vec<PathElement>, Misfit> {
        let named = items.iter().enumerate().map(|(at, item)| {
            item_element(schema, list, item).map_err(|why| Misfit::of(format!("element {at}: {why}")))
        });
        named.collect()
    };
    let (live_names, config_names) = (name(live)?, name(config)?);
    // Where each name is; `None` where it is more than once.
    let mut in_live: BTreeMap<&PathElement, Option<usize>> = BTreeMap::new();
    for (at, element) in live_names.iter().enumerate() {
        in_live.entry(element).and_modify(|known| *known = None).or_insert(Some(at));
    }
    let mut in_config: BTreeMap<&PathElement, usize> = BTreeMap::new();
    for (at, element) in config_names.iter().enumerate() {
        if in_config.insert(element, at).is_some() {
            return Err(Misfit::of(format!("duplicate entries for key {element}")));
        }
    }
    let mut shared = config_names.iter().filter(|element| in_live.contains_key(element));
    let mut next_shared = shared.next();
    let mut taken = vec![false; config.len()];
    let mut merged = Vec::with_capacity(live.len().max(config.len()));
    let take = |at: usize| -> Result<Value, Misfit> {
        let element = &config_names[at];
        match in_live.get(element).copied().flatten() {
            Some(there) => merge(schema, list.items, &live[there], &config[at]).map_err(|misfit| misfit.below(element)),
            None => Ok(config[at].clone()),
        }
    };
    let (mut left, mut right) = (0, 0);
    while left < live.len() || right < config.len() {
        if left < live.len() && right < config.len() {
            if live_names[left] == config_names[right] {
                merged.push(take(right)?);
                taken[right] = true;
                left += 1;
                right += 1;
                next_shared = shared.next();
                continue;
            }
            if in_config.contains_key(&live_names[left]) && next_shared.is_some_and(|next| *next != live_names[left]) {
                // It is in both, but its turn comes later.
                left += 1;
                continue;
            }
        }
        if left < live.len() {
            match in_config.get(&live_names[left]) {
                None => {
                    merged.push(live[left].clone());
                    left += 1;
                    continue;
                }
                Some(at) if taken[*at] => left += 1,
                Some(_) => {}
            }
        }
        if right < config.len() {
            merged.push(take(right)?);
            taken[right] = true;
            if next_shared.is_some_and(|next| *next == config_names[right]) {
                next_shared = shared.next();
            }
            right += 1;
        }
    }
    Ok(Value::Array(merged))
}

/// The value without what is in `fields`; `None` where nothing is left of a list or map that had
/// nothing taken from within.
fn remove(schema: &Schema, of: TypeId, value: &Value, fields: &Set) -> Option<Value> {
    /// What stays of something from within which things were taken.
    fn within(schema: &Schema, of: TypeId, value: &Value, fields: &Set) -> Value {
        remove(schema, of, value, fields).unwrap_or_else(|| match value {
            Value::Object(_) => Value::Object(Object::new()),
            Value::Array(_) => Value::Array(Vec::new()),
            _ => Value::Null,
        })
    }
    match (form(schema.get(of), Some(value)), value) {
        (Form::List(list), Value::Array(items)) if list.relation != Relation::Atomic => {
            let mut touched = false;
            let mut kept = Vec::with_capacity(items.len());
            for item in items {
                let Ok(element) = item_element(schema, list, item) else {
                    kept.push(item.clone());
                    continue;
                };
                if fields.has_member(&element) {
                    continue;
                }
                match fields.child(&element).filter(|below| !below.is_empty()) {
                    Some(below) => {
                        touched = true;
                        kept.push(within(schema, list.items, item, below));
                    }
                    None => kept.push(item.clone()),
                }
            }
            (touched || !kept.is_empty()).then_some(Value::Array(kept))
        }
        (Form::Map(map), Value::Object(members)) if !map.is_atomic() => {
            let mut touched = false;
            let mut kept = Object::with_capacity(members.len());
            for (name, value) in members {
                let element = PathElement::field(name);
                if fields.has_member(&element) {
                    continue;
                }
                let value = match (fields.child(&element).filter(|below| !below.is_empty()), map.member(name)) {
                    (Some(below), Some(of)) => {
                        touched = true;
                        within(schema, of, value, below)
                    }
                    _ => value.clone(),
                };
                kept.insert(name.clone(), value);
            }
            (touched || !kept.is_empty()).then_some(Value::Object(kept))
        }
        (Form::List(_) | Form::Map(_), _) => None,
        _ => Some(value.clone()),
    }
}

/// Of the value only what is in `fields`; `None` where that is nothing.
fn extract(schema: &Schema, of: TypeId, value: &Value, fields: &Set) -> Option<Value> {
    match (form(schema.get(of), Some(value)), value) {
        (Form::List(list), Value::Array(items)) if list.relation != Relation::Atomic && !items.is_empty() => {
            let mut kept = Vec::new();
            for item in items {
                let Ok(element) = item_element(schema, list, item) else { continue };
                let below = fields.child(&element).filter(|below| !below.is_empty());
                match below {
                    Some(below) => kept.push(extract(schema, list.items, item, below).unwrap_or(Value::Null)),
                    None if fields.has_member(&element) => kept.push(item.clone()),
                    None => {}
                }
            }
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        (Form::Map(map), Value::Object(members)) if !map.is_atomic() && !members.is_empty() => {
            let mut kept = Object::new();
            for (name, value) in members {
                let element = PathElement::field(name);
                let below = fields.child(&element).filter(|below| !below.is_empty());
                let of = map.member(name).unwrap_or(Schema::DEDUCED);
                let value = match below {
                    Some(below) => extract(schema, of, value, below),
                    None if fields.has_member(&element) => Some(value.clone()),
                    None => continue,
                };
                kept.insert(name.clone(), value.unwrap_or(Value::Null));
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        _ => Some(value.clone()),
    }
}

fn reconcile<'a>(
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
    // As for a value that is not there: a map, if it may be one.
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
            // What is deduced from values was never anything else.
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

/// What a set says of its next level: an element, what is below it, and whether it is a member
/// without anything below.
fn parts(fields: &Set) -> impl Iterator<Item = (&PathElement, Option<&Set>, bool)> {
    let only_children = fields.children().iter().filter(move |(element, _)| !fields.has_member(element));
    let only_children = only_children.map(|(element, below)| (element, Some(below), false));
    let members = fields.members().iter().map(move |element| {
        let below = fields.child(element);
        (element, below, below.is_none())
    });
    only_children.chain(members)
}
