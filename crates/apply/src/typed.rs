//! Operations on values with a known type: validate, list fields, compare, merge and remove fields.
//!
//! Source: `structured-merge-diff/v6/typed`.

mod atomic;
mod compare;
mod cut;
mod merge;
mod reconcile;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use listwatch_json::{JsonString, Map as Object, Value};
use listwatch_meta::go::quote;

pub use self::compare::Comparison;
pub(crate) use self::compare::View;
use self::cut::remove;
use self::merge::merge;
use self::reconcile::reconcile;
use crate::path::PathElement;
use crate::set::Set;
use crate::typing::{List, Map, Presence, Relation, Scalar, Schema, Type, TypeId, Typing};
use crate::value;

/// The error for a value that does not match its type: the path and the reason, formatted as in Go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationError {
    problems: Vec<(String, String)>,
}

impl ValidationError {
    fn of(why: impl Into<String>) -> Self {
        ValidationError { problems: vec![(String::new(), why.into())] }
    }

    fn below(mut self, element: &PathElement) -> Self {
        for (path, _) in &mut self.problems {
            path.insert_str(0, &element.to_string());
        }
        self
    }
}

impl fmt::Display for ValidationError {
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

impl std::error::Error for ValidationError {}

/// Succeeds without errors; otherwise joins the errors of several fields into one.
fn join(problems: Vec<ValidationError>) -> Result<(), ValidationError> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(ValidationError { problems: problems.into_iter().flat_map(|misfit| misfit.problems).collect() })
}

/// The form (scalar, list or map) in which a type matches a value.
#[derive(Clone, Copy, PartialEq)]
enum Form<'a> {
    Map(&'a Map),
    Scalar(Scalar),
    List(&'a List),
    /// The type has no form.
    None,
}

/// Returns the form of a type that matches a value; the type's first form if none matches.
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

/// Looks up members of an object in the order of another object. Most objects have the same members
/// in the same order, so that no search is needed.
struct OrderedMembers<'a> {
    object: Option<&'a Object>,
    next: std::iter::Peekable<listwatch_json::map::Iter<'a>>,
    found: usize,
}

impl<'a> OrderedMembers<'a> {
    fn new(object: Option<&'a Object>) -> Self {
        static EMPTY: Object = Object::new();
        OrderedMembers { object, next: object.unwrap_or(&EMPTY).iter().peekable(), found: 0 }
    }

    /// The member of this name; each name may be requested once.
    fn get(&mut self, name: &str) -> Option<&'a Value> {
        let found = match self.next.next_if(|(next, _)| *next == name) {
            Some((_, value)) => Some(value),
            None => self.object?.get(name),
        };
        self.found += usize::from(found.is_some());
        found
    }

    /// Whether all members were requested.
    fn is_done(&self) -> bool {
        self.object.is_none_or(|object| object.len() == self.found)
    }
}

/// The members sorted by name, because building a set in order needs no search and no shift.
fn by_name(object: &Object) -> Vec<(&JsonString, &Value)> {
    let mut members: Vec<(&JsonString, &Value)> = object.iter().collect();
    if !members.is_sorted_by_key(|(name, _)| *name) {
        members.sort_unstable_by_key(|(name, _)| *name);
    }
    members
}

fn as_map(value: Option<&Value>) -> Option<&Object> {
    value.and_then(Value::as_object)
}

fn as_list(value: Option<&Value>) -> Option<&Vec<Value>> {
    value.and_then(Value::as_array)
}

/// The path element of a list's item.
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
                let value = item.get(key).or_else(|| field.and_then(|field| field.default.as_ref()));
                if let Some(value) = value {
                    fields.push(((**key).into(), value.clone()));
                }
            }
            if fields.is_empty() && !keys.is_empty() {
                let keys: Vec<String> = keys.iter().map(|key| quote(key)).collect();
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                    keys.join(" ")
                ));
            }
            Ok(PathElement::key(fields))
        }
    }
}

fn check_scalar(scalar: Scalar, value: &Value) -> Result<(), ValidationError> {
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
    Err(ValidationError::of(match scalar {
        Scalar::Text => {
            format!("expected string, got &value.valueUnstructured{{Value:{}}}", value::format_go_syntax(value))
        }
        Scalar::Number => format!("expected numeric (int or float), got {}", value::go_type(value)),
        Scalar::Flag => format!("expected boolean, got &{{{}}}", value::format_plain(value)),
        Scalar::Any => format!("expected any scalar, got &{{{}}}", value::format_plain(value)),
    }))
}

impl Typing {
    /// Validates an object: scalars have their type, structs have only known members, list items
    /// are unique. With `duplicates` an item may occur more than once in a set or keyed list, as in
    /// stored objects.
    ///
    /// # Errors
    /// All mismatches, joined.
    pub fn validate(&self, object: &Value, duplicates: bool) -> Result<(), ValidationError> {
        validate(self.schema(), self.root(), object, duplicates)
    }

    /// The set of all leaves and items of an object.
    pub(crate) fn field_set(&self, object: &Value) -> Set {
        let mut set = Set::new();
        // The root object is never a member of a set, so the result for the root is ignored.
        name_fields(self.schema(), self.root(), object, &mut set);
        set
    }

    /// The changes from `old` to `new`.
    ///
    /// # Errors
    /// When one of them does not match the type.
    pub fn compare(&self, old: &Value, new: &Value) -> Result<Comparison, ValidationError> {
        self.compare_as(old, View::Plain, new, View::Plain)
    }

    pub(crate) fn compare_as(
        &self,
        old: &Value,
        old_view: View,
        new: &Value,
        new_view: View,
    ) -> Result<Comparison, ValidationError> {
        compare::compare(self, (old, old_view), (new, new_view), &Set::new())
    }

    /// The changes from `old` to `new`, without those of the members of the object that are in `skipped`.
    ///
    /// # Errors
    /// When a member that is not skipped does not match its type.
    pub(crate) fn compare_without(
        &self,
        skipped: &Set,
        old: &Value,
        new: &Value,
        view: View,
    ) -> Result<Comparison, ValidationError> {
        compare::compare(self, (old, view), (new, view), skipped)
    }

    /// Merges `config` into `live`. Nothing is removed. List items have the order of `config` where
    /// it contains them.
    ///
    /// # Errors
    /// When one of them does not match the type, or an item occurs twice in `config`.
    pub fn merge(&self, live: &Value, config: &Value) -> Result<Value, ValidationError> {
        merge(self.schema(), self.root(), live, config)
    }

    /// The object without the items and fields in a set. Atomic lists and maps are kept whole.
    pub fn remove(&self, object: &Value, fields: &Set) -> Value {
        remove(self.schema(), self.root(), object, fields).unwrap_or(Value::Null)
    }

    /// Returns the paths of all atomic lists, maps and structs in an object. A merge replaces each of them as a whole.
    pub fn atomics(&self, object: &Value) -> Vec<String> {
        let mut found = Vec::new();
        atomic::find(self.schema(), self.root(), object, &mut String::new(), &mut found);
        found
    }

    /// Removes the zero members that Go omits from structs, at any depth.
    pub(crate) fn drop_zeros(&self, object: &mut Value) {
        drop_zeros(self.schema(), self.root(), object);
    }

    /// Converts a set that was written under an older schema. The fields below a value that is now
    /// atomic are replaced by that value. `None` if nothing changed.
    pub(crate) fn reconcile(&self, fields: &Set) -> Option<Set> {
        let (mut gone, mut come) = (Set::new(), Set::new());
        reconcile(self.schema(), self.root(), fields, &mut Vec::new(), &mut gone, &mut come);
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

fn validate(schema: &Schema, of: TypeId, value: &Value, duplicates: bool) -> Result<(), ValidationError> {
    match form(schema.get(of), Some(value)) {
        Form::Scalar(scalar) => check_scalar(scalar, value),
        Form::None => Err(ValidationError::of("schema error: invalid atom: inlined")),
        Form::List(list) => {
            let items = match value {
                Value::Array(items) => items,
                Value::Null => return Ok(()),
                other => {
                    return Err(ValidationError::of(format!("expected list, got &{{{}}}", value::format_plain(other))));
                }
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
                            problems.push(ValidationError::of(format!("element {at}: {why}")));
                            break;
                        }
                    }
                };
                if let Err(misfit) = validate(schema, list.items, item, duplicates) {
                    problems.push(misfit.below(&element));
                }
                if list.relation != Relation::Atomic {
                    if !duplicates && found.contains_key(&element) {
                        problems.push(ValidationError::of(format!("duplicate entries for key {element}")));
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
                other => {
                    return Err(ValidationError::of(format!("expected map, got &{{{}}}", value::format_plain(other))));
                }
            };
            let mut problems = Vec::new();
            for (name, value) in members {
                let Some(of) = map.member(name) else {
                    problems.push(ValidationError::of("field not declared in schema").below(&PathElement::field(name)));
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

/// Adds the fields below a value to `set`. Returns true if the value itself is a leaf.
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
                // An item that occurs more than once is a leaf.
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
