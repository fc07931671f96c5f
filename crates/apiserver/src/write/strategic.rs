//! Strategic merge patch: Kubernetes' own merge, which knows the keys of lists
//! (apimachinery `util/strategicpatch`).
//!
//! | in the patch | does |
//! |---|---|
//! | `"$patch": "replace"` in an object | the object becomes the rest of the patch |
//! | `"$patch": "delete"` in an object | the object is emptied |
//! | `{"$patch": "replace"}` in a keyed list | the list becomes the patch's other items |
//! | `{"$patch": "delete", "<key>": v}` in a keyed list | the item with that key goes |
//! | `"$retainKeys": [..]` | only these fields of the object are kept |
//! | `"$setElementOrder/<list>": [..]` | the order of the list's items |
//! | `"$deleteFromPrimitiveList/<list>": [..]` | these scalars leave the list |
//! | `null` | the field goes |
//!
//! Nulls and directives mean something where a patch meets what is there. Where nothing was, nulls and
//! `$patch` go and the other directives stay; what replaces a value as a whole, and a new item of a keyed
//! list, is taken as it is. What then stays is left to the decoder: a null is nothing, and a directive is a
//! field that no type knows.
//!
//! Which lists have keys says [`super::merge_keys`]. Every step is linear in the size of what it
//! merges (members that go are gathered and leave in one pass), so a large patch costs what its
//! size says.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::merge_keys::{At, Field, Rule};
use listwatch_meta::go;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

/// How Go calls the type of an object.
const OBJECT: &str = "map[string]interface {}";

/// Why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StrategicError {
    /// The patch is malformed: 400.
    Malformed(&'static str),
    /// Lists of lists cannot be merged: 422.
    ListOfLists,
    /// Anything else: kube-apiserver answers 500 with this text, and so do we.
    Other(String),
}

type Result<T> = std::result::Result<T, StrategicError>;

/// Merges `patch` into `object`, whose type is `at`.
///
/// # Errors
/// [`StrategicError`]; `object` is then half merged and must be thrown away.
pub(super) fn merge(object: &mut Map<String, Value>, patch: Map<String, Value>, at: At) -> Result<()> {
    let whole = std::mem::take(object);
    *object = merge_objects(whole, patch, at)?;
    Ok(())
}

/// What is left of a patch when it is applied: no directives of objects that were merged, and no lists that
/// an order came with. It is for the text of a refusal, and taken as if each object of the patch had been merged into one.
pub(super) fn obeyed(patch: &Map<String, Value>) -> Map<String, Value> {
    let ordered: HashSet<&str> = patch.keys().filter_map(|name| strip_prefix(name, SET_ORDER).flatten()).collect();
    let replaces = patch.get(DIRECTIVE).is_some_and(|directive| directive == "replace");
    let left = patch.iter().filter(|(name, _)| match name.as_str() {
        DIRECTIVE => !replaces,
        RETAIN_KEYS => false,
        name => !ordered.contains(name) && strip_prefix(name, SET_ORDER).is_none(),
    });
    left.map(|(name, value)| match value {
        Value::Object(below) => (name.clone(), Value::Object(obeyed(below))),
        other => (name.clone(), other.clone()),
    })
    .collect()
}

fn merge_objects(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    at: At,
) -> Result<Map<String, Value>> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.shift_remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Map::new()),
            _ => Err(unknown_directive(&patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(&mut original, &mut patch, at)?;

    // What goes leaves its place empty until the end: taking out one member moves all behind it.
    let mut gone: HashSet<String> = HashSet::new();
    let leave = |original: &mut Map<String, Value>, gone: &mut HashSet<String>, name: String| {
        if let Some(value) = original.get_mut(&name) {
            *value = Value::Null;
            gone.insert(name);
        }
    };
    for (name, value) in patch {
        let (name, removing) = match strip_prefix(&name, DELETE_FROM) {
            Some(list) => {
                (list.ok_or(StrategicError::Malformed("invalid patch format of primitive list"))?.to_owned(), true)
            }
            None => (name, false),
        };
        if value.is_null() {
            leave(&mut original, &mut gone, name);
            continue;
        }
        match (original.get_mut(&name), value) {
            (Some(Value::Object(present)), Value::Object(patch)) => {
                let field = at.field(&name);
                *present = match field.rule {
                    Rule::Replace => patch,
                    _ => merge_objects(std::mem::take(present), patch, At::below(field))?,
                };
            }
            (Some(Value::Array(present)), Value::Array(patch)) => {
                *present = merge_lists(std::mem::take(present), patch, at.field(&name), removing)?.0;
            }
            // What is to be taken from a scalar of the same type takes its place.
            (Some(present), value) if removing => {
                if !gone.contains(&name) && go::type_name(present) == go::type_name(&value) {
                    *present = value;
                }
            }
            (None, _) if removing => {}
            (_, value) => match bare(value) {
                Some(value) => {
                    gone.remove(&name);
                    original.insert(name, value);
                }
                None => leave(&mut original, &mut gone, name),
            },
        }
    }
    if !gone.is_empty() {
        original.retain(|name, _| !gone.contains(name));
    }
    Ok(original)
}

/// `$retainKeys`: drops from `original` what the list does not name.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<()> {
    const MALFORMED: StrategicError = StrategicError::Malformed("invalid patch format of retainKeys");
    let Some(kept) = patch.shift_remove(RETAIN_KEYS) else { return Ok(()) };
    let kept = kept.as_array().ok_or(MALFORMED)?;
    let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
    let directive = |name: &str| name.starts_with(DELETE_FROM) || name.starts_with(SET_ORDER);
    if patch.iter().any(|(name, value)| !value.is_null() && !directive(name) && !kept.contains(name.as_str())) {
        return Err(MALFORMED);
    }
    original.retain(|name, _| kept.contains(name.as_str()));
    Ok(())
}

/// `$setElementOrder`: merges the lists it names and puts them in order; takes both out of the
/// patch.
fn merge_ordered_lists(original: &mut Map<String, Value>, patch: &mut Map<String, Value>, at: At) -> Result<()> {
    const MALFORMED: StrategicError = StrategicError::Malformed("invalid patch format of setElementOrder list");
    if !patch.keys().any(|name| name.starts_with(SET_ORDER)) {
        return Ok(());
    }
    let (directives, rest): (Map<_, _>, Map<_, _>) =
        std::mem::take(patch).into_iter().partition(|(name, _)| name.starts_with(SET_ORDER));
    *patch = rest;
    let mut merged_lists: HashSet<String> = HashSet::new();
    for (directive, order) in directives {
        let Value::Array(order) = order else { return Err(bad_type("[]interface {}", &order)) };
        let name = strip_prefix(&directive, SET_ORDER).flatten().ok_or(MALFORMED)?;
        let list_at = |map: &mut Map<String, Value>| match map.get_mut(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(std::mem::take(list))),
            Some(other) => Err(bad_type("[]interface {}", other)),
        };
        let present = list_at(original)?;
        let patched = list_at(patch)?;
        if patched.is_some() {
            merged_lists.insert(name.to_owned());
        }
        let field = at.field(name);
        check_order(patched.as_deref().unwrap_or_default(), &order, field)?;
        let kind = |present: &[Value], patched: &[Value]| {
            elements(present, patched)?
                .ok_or_else(|| StrategicError::Other("no elements in any of the given slices".to_owned()))
        };
        let (merged, server, of) = match (present, patched) {
            (None, None) => continue,
            (Some(present), None) => {
                let (server, of) = (keys(&present, field), kind(&present, &[])?);
                (present, server, of)
            }
            (None, Some(patched)) => {
                let of = kind(&[], &patched)?;
                (undirected_items(patched), Vec::new(), of)
            }
            (Some(present), Some(patched)) => {
                let of = kind(&present, &patched)?;
                let server = keys(&present, field);
                let (merged, changed) = merge_lists(present, patched, field, false)?;
                (merged, changed.unwrap_or(server), of)
            }
        };
        if let Rule::Key(_) = field.rule {
            check_items(&merged, field)?;
            check_named(&merged, &order, field)?;
        }
        if of == Elements::Objects {
            check_items(&order, field)?;
        }
        let order = index(keys(&order, field));
        original.insert(name.to_owned(), Value::Array(in_order(merged, &order, &index(server), field)?));
    }
    if !merged_lists.is_empty() {
        patch.retain(|name, _| !merged_lists.contains(name));
    }
    Ok(())
}

/// The items of the patch must stand in `order` in the same sequence.
fn check_order(patch: &[Value], order: &[Value], field: Field) -> Result<()> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let keyed = matches!(field.rule, Rule::Key(_));
    let mut wanted = Vec::with_capacity(patch.len());
    for item in patch {
        match item {
            Value::Object(members) if keyed => {
                if members.get(DIRECTIVE).is_none_or(|directive| directive != "delete") {
                    wanted.push(item);
                }
            }
            other if keyed => return Err(bad_type(OBJECT, other)),
            item => wanted.push(item),
        }
    }
    let (mut place, mut rest) = (0, order.iter());
    while let (Some(item), true) = (wanted.get(place), rest.len() > 0) {
        if item.get(DIRECTIVE).is_some() {
            place += 1;
        } else if let Some(candidate) = rest.next() {
            let same = match field.rule {
                Rule::Key(_) => key_of(item, field)? == key_of(candidate, field)?,
                _ => *item == candidate,
            };
            place += usize::from(same);
        }
    }
    if place < wanted.len() && rest.len() == 0 {
        let (patch, order) = (go::print_list(patch), go::print_list(order));
        let why = format!("The order in patch list:\n{patch}\n doesn't match {SET_ORDER} list:\n{order}\n");
        return Err(StrategicError::Other(why));
    }
    Ok(())
}

/// Merges two lists, or takes the scalars of the patch out of the other when it is `removing`. Beside
/// the list: the keys that count as the server's for an order, where they are no longer the original's.
fn merge_lists(
    original: Vec<Value>,
    patch: Vec<Value>,
    field: Field,
    removing: bool,
) -> Result<(Vec<Value>, Option<Keys>)> {
    if !removing && matches!(field.rule, Rule::Default | Rule::Replace) {
        return Ok((patch, None));
    }
    match elements(&original, &patch)? {
        None => Ok((original, None)),
        Some(Elements::Objects) => merge_keyed(original, patch, field).map(|(merged, server)| (merged, Some(server))),
        Some(Elements::Scalars) if removing => {
            let gone: HashSet<Value> = patch.into_iter().collect();
            Ok((original.into_iter().filter(|item| !gone.contains(item)).collect(), None))
        }
        Some(Elements::Scalars) => {
            if let (Rule::Key(_), Some(item)) = (field.rule, original.iter().chain(&patch).next()) {
                return Err(bad_type(OBJECT, item));
            }
            let (on_server, wanted) = (index(keys(&original, field)), index(keys(&patch, field)));
            let mut merged = original;
            merged.extend(patch);
            let mut seen = HashSet::with_capacity(merged.len());
            merged.retain(|item| seen.insert(item.clone()));
            Ok((in_order(merged, &wanted, &on_server, field)?, None))
        }
    }
}

fn merge_keyed(original: Vec<Value>, patch: Vec<Value>, field: Field) -> Result<(Vec<Value>, Keys)> {
    let Rule::Key(_) = field.rule else {
        return Err(StrategicError::Other("cannot merge lists without merge key for struct".to_owned()));
    };
    let before = original.len();
    let Obeyed { left, patch, replaced } = obey_directives(original, patch, field)?;
    let (mut merged, patch) = match replaced {
        None => (left, patch),
        Some(items) => {
            check_items(&items, field)?;
            return Ok((items, keys(&left, field)));
        }
    };
    let mut server = keys(&merged, field);
    let patch_order = keys(&patch, field);

    let mut places: HashMap<Value, usize> = HashMap::with_capacity(merged.len());
    for (place, item) in merged.iter().enumerate() {
        if let Some(key) = key(item, field) {
            places.entry(key.clone()).or_insert(place);
        }
    }
    let on_server = merged.len();
    for (item, item_key) in patch.into_iter().zip(&patch_order) {
        let item_key = item_key.clone().ok_or_else(|| no_key(&item, field))?;
        match places.get(&item_key) {
            Some(place) => {
                if let (Value::Object(present), Value::Object(item)) = (&mut merged[*place], item) {
                    *present = merge_objects(std::mem::take(present), item, At::below(field))?;
                }
            }
            None => {
                places.insert(item_key, merged.len());
                merged.push(item);
            }
        }
    }
    check_items(&merged, field)?;
    // In kube-apiserver new items take the places of those that went, as far as these reach, and an order
    // takes them for the server's own.
    let freed = before - on_server;
    let taken = keys(merged.get(on_server..).unwrap_or_default(), field).into_iter().take(freed);
    let on_server = index(server.clone());
    server.extend(taken);
    Ok((in_order(merged, &index(patch_order), &on_server, field)?, server))
}

/// A keyed list and its patch once directives are carried out.
struct Obeyed {
    /// What is left of the list.
    left: Vec<Value>,
    /// The items of the patch that are no directives, unless they are `replaced`.
    patch: Vec<Value>,
    /// What stands in place of the whole list.
    replaced: Option<Vec<Value>>,
}

/// Carries out the `$patch` items of a keyed list and takes them out of the patch.
fn obey_directives(mut original: Vec<Value>, patch: Vec<Value>, field: Field) -> Result<Obeyed> {
    let mut replace = false;
    let mut gone: HashSet<Value> = HashSet::new();
    let mut rest = Vec::with_capacity(patch.len());
    for item in patch {
        match item.get(DIRECTIVE).map(Value::as_str) {
            None => rest.push(item),
            Some(Some("replace")) => replace = true,
            Some(Some("delete")) => {
                gone.insert(key_of(&item, field)?.clone());
            }
            Some(Some("merge")) => {
                return Err(StrategicError::Other("merging lists cannot yet be specified in the patch".to_owned()));
            }
            Some(_) => return Err(item.as_object().map_or(StrategicError::ListOfLists, unknown_directive)),
        }
    }
    if !gone.is_empty() {
        original.retain(|item| key(item, field).is_none_or(|key| !gone.contains(key)));
    }
    let (patch, replaced) = if replace { (Vec::new(), Some(rest)) } else { (rest, None) };
    Ok(Obeyed { left: original, patch, replaced })
}

/// What the items of a list are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    Objects,
    Scalars,
}

/// What all items of two lists are; `None`: there are none.
fn elements(original: &[Value], patch: &[Value]) -> Result<Option<Elements>> {
    let mut all = original.iter().chain(patch);
    let Some(first) = all.next() else { return Ok(None) };
    if first.is_array() {
        return Err(StrategicError::ListOfLists);
    }
    let of = go::type_name(first);
    if first.is_null() || all.any(|item| go::type_name(item) != of) {
        let lists = [original, patch].map(go::print_list).join(" ");
        return Err(StrategicError::Other(format!("list element types are not identical: [{lists}]")));
    }
    Ok(Some(if first.is_object() { Elements::Objects } else { Elements::Scalars }))
}

/// Each item must be an object with the list's key.
fn check_items(items: &[Value], field: Field) -> Result<()> {
    items.iter().try_for_each(|item| key_of(item, field).map(drop))
}

/// Each item is looked for in an order until it is found, and what stands there before it must be objects.
fn check_named(items: &[Value], order: &[Value], field: Field) -> Result<()> {
    let Some(place) = order.iter().position(|item| !item.is_object()) else { return Ok(()) };
    let named: HashSet<&Value> = order.iter().take(place).filter_map(|item| key(item, field)).collect();
    if items.iter().filter_map(|item| key(item, field)).all(|key| named.contains(key)) {
        return Ok(());
    }
    Err(StrategicError::Other(format!("value for key {place} is not a map")))
}

/// Items that `wanted` knows stand in its order; the others, which only the server knows, keep
/// theirs, each before the first wanted item that it stood before on the server.
fn in_order(
    items: Vec<Value>,
    wanted: &HashMap<Value, usize>,
    server: &HashMap<Value, usize>,
    field: Field,
) -> Result<Vec<Value>> {
    let mut known = Vec::with_capacity(items.len());
    let mut others = Vec::new();
    for item in items {
        let key = key(&item, field).ok_or_else(|| no_key(&item, field))?;
        let on_server = server.get(key).copied();
        match wanted.get(key) {
            Some(place) => known.push((*place, on_server, item)),
            None => others.push((on_server.unwrap_or(usize::MAX), on_server, item)),
        }
    }
    known.sort_by_key(|(place, ..)| *place);
    others.sort_by_key(|(place, ..)| *place);

    let mut ordered = Vec::with_capacity(known.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, on_server, item) in known {
        while let Some((_, Some(other), _)) = others.peek()
            && on_server.is_some_and(|at| *other < at)
        {
            ordered.extend(others.next().map(|(.., item)| item));
        }
        ordered.push(item);
    }
    ordered.extend(others.map(|(.., item)| item));
    Ok(ordered)
}

/// What makes an item of the list itself: the member that the list is keyed by, or the whole.
fn key(item: &Value, field: Field) -> Option<&Value> {
    match field.rule {
        Rule::Key(name) => item.get(name),
        _ => Some(item),
    }
}

/// What makes each item of a list itself; `None` where an item has no key.
type Keys = Vec<Option<Value>>;

fn keys(items: &[Value], field: Field) -> Keys {
    items.iter().map(|item| key(item, field).cloned()).collect()
}

/// The first place of each key.
fn index(keys: impl IntoIterator<Item = Option<Value>>) -> HashMap<Value, usize> {
    let mut places = HashMap::new();
    for (place, key) in keys.into_iter().enumerate() {
        if let Some(key) = key {
            places.entry(key).or_insert(place);
        }
    }
    places
}

/// A value of the patch as it is put where nothing, or something else, was: without nulls, but for those
/// that are items of lists, and without what a `$patch` directive stands in. Other directives stay, as
/// fields that no type knows. `None` when it is itself a `$patch` directive.
fn bare(value: Value) -> Option<Value> {
    match value {
        Value::Object(members) => {
            let members: Map<_, _> = members.into_iter().filter(|(_, value)| !value.is_null()).collect();
            if members.contains_key(DIRECTIVE) {
                return None;
            }
            Some(members.into_iter().filter_map(|(name, value)| bare(value).map(|value| (name, value))).collect())
        }
        Value::Array(items) => Some(items.into_iter().filter_map(bare).collect()),
        scalar => Some(scalar),
    }
}

/// Items as they are put where no list was but an order is given: as [`bare`], with their nulls.
fn undirected_items(items: Vec<Value>) -> Vec<Value> {
    items.into_iter().filter_map(undirected).collect()
}

fn undirected(value: Value) -> Option<Value> {
    match value {
        Value::Object(members) if members.contains_key(DIRECTIVE) => None,
        Value::Object(members) => {
            Some(members.into_iter().filter_map(|(name, value)| undirected(value).map(|value| (name, value))).collect())
        }
        Value::Array(items) => Some(Value::Array(undirected_items(items))),
        scalar => Some(scalar),
    }
}

/// The list that `<prefix>/<list>` names: `None` for another name, `Some(None)` for a malformed one.
fn strip_prefix<'a>(name: &'a str, prefix: &str) -> Option<Option<&'a str>> {
    name.strip_prefix(prefix).map(|rest| rest.strip_prefix('/'))
}

fn unknown_directive(map: &Map<String, Value>) -> StrategicError {
    let directive = map.get(DIRECTIVE).map(go::print_as_text).unwrap_or_default();
    StrategicError::Other(format!("unknown patch type: {directive} in map: {}", go::print_map(map)))
}

fn bad_type(expected: &str, found: &Value) -> StrategicError {
    let found = match found {
        Value::Null => "%!s(<nil>)",
        other => go::type_name(other),
    };
    StrategicError::Other(format!("expected a {expected}, but received a {found}"))
}

fn no_key(item: &Value, field: Field) -> StrategicError {
    let Rule::Key(key) = field.rule else { return StrategicError::ListOfLists };
    StrategicError::Other(format!("map: {} does not contain declared merge key: {key}", go::print(item)))
}

/// The key of an item, which must be an object that has one.
fn key_of(item: &Value, field: Field) -> Result<&Value> {
    match (field.rule, item) {
        (Rule::Key(_), Value::Object(_)) => key(item, field).ok_or_else(|| no_key(item, field)),
        (Rule::Key(_), other) => Err(bad_type(OBJECT, other)),
        (_, item) => Ok(item),
    }
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
