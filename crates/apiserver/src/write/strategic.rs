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
//! Which lists have keys says [`super::merge_keys`]. Every step is linear in the size of what it
//! merges (members that go are gathered and leave in one pass), so a large patch costs what its
//! size says.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::go;
use super::merge_keys::{At, Field, Rule};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

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

fn merge_objects(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    at: At,
) -> Result<Map<String, Value>> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.shift_remove(DIRECTIVE);
                Ok(plain_members(patch))
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
            (Some(Value::Array(present)), Value::Array(items)) if removing => {
                let items: HashSet<Value> = items.into_iter().collect();
                present.retain(|item| !items.contains(item));
            }
            (_, _) if removing => {} // nothing there to remove from
            (Some(Value::Object(present)), Value::Object(patch)) => {
                let field = at.field(&name);
                *present = match field.rule {
                    Rule::Replace => plain_members(patch),
                    _ => merge_objects(std::mem::take(present), patch, At::below(field))?,
                };
            }
            (Some(Value::Array(present)), Value::Array(patch)) => {
                *present = merge_lists(std::mem::take(present), patch, at.field(&name))?;
            }
            (_, value) => match plain(value) {
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
        let order = into_list(order).ok_or(MALFORMED)?;
        let name = strip_prefix(&directive, SET_ORDER).flatten().ok_or(MALFORMED)?;
        let list_at = |map: &mut Map<String, Value>| match map.get_mut(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(std::mem::take(list))),
            Some(Value::Null) => {
                Err(StrategicError::Other("expected a []interface {}, but received a %!s(<nil>)".to_owned()))
            }
            Some(other) => Err(StrategicError::Other(format!(
                "expected a []interface {{}}, but received a {}",
                go::type_name(other)
            ))),
        };
        let present = list_at(original)?;
        let patched = list_at(patch)?;
        if patched.is_some() {
            merged_lists.insert(name.to_owned());
        }
        let field = at.field(name);
        check_order(patched.as_deref().unwrap_or_default(), &order, field)?;
        let server_order = keys(present.as_deref().unwrap_or_default(), field);
        let merged = match (present, patched) {
            (None, None) => continue,
            (Some(present), None) => present,
            (None, Some(patched)) => plain_items(patched),
            (Some(present), Some(patched)) => merge_lists(present, patched, field)?,
        };
        let order = index(keys(&order, field));
        original.insert(name.to_owned(), Value::Array(in_order(merged, &order, &index(server_order), field)?));
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
    let mut rest = order.iter().map(|item| key(item, field));
    for item in patch.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        let wanted = key(item, field).ok_or_else(|| no_key(item, field))?;
        if !rest.any(|candidate| candidate == Some(wanted)) {
            let (patch, order) = (go::print_list(patch), go::print_list(order));
            let why = format!("The order in patch list:\n{patch}\n doesn't match {SET_ORDER} list:\n{order}\n");
            return Err(StrategicError::Other(why));
        }
    }
    Ok(())
}

fn merge_lists(original: Vec<Value>, patch: Vec<Value>, field: Field) -> Result<Vec<Value>> {
    let keyed = match field.rule {
        Rule::Default | Rule::Replace => return Ok(plain_items(patch)),
        Rule::Key(_) => true,
        Rule::Set => false,
    };
    for item in original.iter().chain(&patch) {
        match item {
            Value::Array(_) => return Err(StrategicError::ListOfLists),
            Value::Object(_) if keyed => {}
            other if keyed => {
                let found = go::type_name(other);
                return Err(StrategicError::Other(format!(
                    "expected a map[string]interface {{}}, but received a {found}"
                )));
            }
            _ => {}
        }
    }
    let (mut merged, patch) =
        if keyed { obey_directives(original, patch, field)? } else { (each_once(original), patch) };
    let server_order = index(keys(&merged, field));
    let patch_order = keys(&patch, field);

    let mut places: HashMap<Value, usize> = HashMap::with_capacity(merged.len());
    for (place, item) in merged.iter().enumerate() {
        if let Some(key) = key(item, field) {
            places.entry(key.clone()).or_insert(place);
        }
    }
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
                merged.extend(plain(item));
            }
        }
    }
    in_order(merged, &index(patch_order), &server_order, field)
}

/// The scalars of a set, each where it stands first.
fn each_once(mut items: Vec<Value>) -> Vec<Value> {
    let mut seen = HashSet::with_capacity(items.len());
    items.retain(|item| seen.insert(item.clone()));
    items
}

/// Carries out the `$patch` items of a keyed list and takes them out of the patch.
fn obey_directives(mut original: Vec<Value>, patch: Vec<Value>, field: Field) -> Result<(Vec<Value>, Vec<Value>)> {
    let mut replace = false;
    let mut gone: HashSet<Value> = HashSet::new();
    let mut rest = Vec::with_capacity(patch.len());
    for item in patch {
        match item.get(DIRECTIVE).map(Value::as_str) {
            None => rest.push(item),
            Some(Some("replace")) => replace = true,
            Some(Some("delete")) => {
                gone.insert(key(&item, field).ok_or_else(|| no_key(&item, field))?.clone());
            }
            Some(Some("merge")) => {
                return Err(StrategicError::Other("merging lists cannot yet be specified in the patch".to_owned()));
            }
            Some(_) => return Err(item.as_object().map_or(StrategicError::ListOfLists, unknown_directive)),
        }
    }
    if replace {
        return Ok((plain_items(rest), Vec::new()));
    }
    if !gone.is_empty() {
        original.retain(|item| key(item, field).is_none_or(|key| !gone.contains(key)));
    }
    Ok((original, rest))
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

fn keys(items: &[Value], field: Field) -> Vec<Option<Value>> {
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

/// A value of the patch as it is stored: without nulls and directives. `None` when it is itself a
/// directive.
fn plain(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(plain_members(map))),
        Value::Array(items) => Some(Value::Array(plain_items(items))),
        scalar => Some(scalar),
    }
}

fn plain_items(items: Vec<Value>) -> Vec<Value> {
    items.into_iter().filter_map(plain).collect()
}

fn plain_members(map: Map<String, Value>) -> Map<String, Value> {
    let special = |name: &str| name == RETAIN_KEYS || name.starts_with(SET_ORDER) || name.starts_with(DELETE_FROM);
    map.into_iter()
        .filter(|(name, value)| !value.is_null() && !special(name))
        .filter_map(|(name, value)| plain(value).map(|value| (name, value)))
        .collect()
}

fn into_list(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(list) => Some(list),
        _ => None,
    }
}

/// The list that `<prefix>/<list>` names: `None` for another name, `Some(None)` for a malformed one.
fn strip_prefix<'a>(name: &'a str, prefix: &str) -> Option<Option<&'a str>> {
    name.strip_prefix(prefix).map(|rest| rest.strip_prefix('/'))
}

fn unknown_directive(map: &Map<String, Value>) -> StrategicError {
    let directive = map.get(DIRECTIVE).map(go::print).unwrap_or_default();
    StrategicError::Other(format!("unknown patch type: {directive} in map: {}", go::print_map(map)))
}

fn no_key(item: &Value, field: Field) -> StrategicError {
    let Rule::Key(key) = field.rule else { return StrategicError::ListOfLists };
    StrategicError::Other(format!("map: {} does not contain declared merge key: {key}", go::print(item)))
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
