//! Applies strategic merge patches, which merge keyed lists item by item (apimachinery `util/strategicpatch`).
//!
//! | directive | effect |
//! |---|---|
//! | `"$patch": "replace"` in an object | the object becomes the rest of the patch |
//! | `"$patch": "delete"` in an object | the object is emptied |
//! | `{"$patch": "replace"}` in a keyed list | the list becomes the patch's other items |
//! | `{"$patch": "delete", "<key>": v}` in a keyed list | the item with that key is removed |
//! | `"$retainKeys": [..]` | only these fields of the object are kept |
//! | `"$setElementOrder/<list>": [..]` | the order of the list's items |
//! | `"$deleteFromPrimitiveList/<list>": [..]` | these scalars are removed from the list |
//! | `null` | the field is removed |
//!
//! Nulls and directives take effect where a patch meets an existing value. For other values:
//! - A new field loses its nulls and its `$patch` directives. Other directives stay.
//! - A replaced value and a new item of a keyed list are taken unchanged.
//!
//! Remaining nulls and directives reach the decoder, which ignores nulls and reports directives as unknown fields.
//!
//! [`super::merge_keys`] contains the merge keys of lists. Every step takes time linear in the size of its input,
//! because removed members are collected and removed in one pass.

use foldhash::quality::RandomState;
use listwatch_json::{JsonString, Map, Value};

use super::merge_keys::{At, Field, Rule};
use listwatch_meta::go;

/// Items and names are found by hashes that are seeded at random for each map, so that a client cannot compute colliding items
/// in advance.
type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
type HashSet<T> = std::collections::HashSet<T, RandomState>;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

/// Go's name for the type of an object.
const OBJECT: &str = "map[string]interface {}";

/// The reason why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StrategicError {
    /// The patch is malformed: 400.
    Malformed(&'static str),
    /// Lists of lists cannot be merged: 422.
    ListOfLists,
    /// Any other error: 500 with this text, as in kube-apiserver.
    Other(String),
}

type Result<T> = std::result::Result<T, StrategicError>;

/// Applies the strategic merge patch `patch` to `object`, whose type is `at`.
///
/// # Errors
/// [`StrategicError`]. After an error, `object` is partly merged and must be discarded.
pub(super) fn merge(object: &mut Map, patch: Map, at: At) -> Result<()> {
    let whole = std::mem::take(object);
    *object = merge_objects(whole, patch, at)?;
    Ok(())
}

/// Returns a patch without the directives of merged objects and without ordered lists, for error messages. Assumes that
/// each object in the patch was merged into an existing object.
pub(super) fn obeyed(patch: &Map) -> Map {
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

fn merge_objects(mut original: Map, mut patch: Map, at: At) -> Result<Map> {
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

    // Removed members become null until the end, because each single removal shifts the members behind it.
    let mut gone: HashSet<JsonString> = HashSet::default();
    let leave = |original: &mut Map, gone: &mut HashSet<JsonString>, name: JsonString| {
        if let Some(value) = original.get_mut(&name) {
            *value = Value::Null;
            gone.insert(name);
        }
    };
    for (name, value) in patch {
        let (name, removing) = match strip_prefix(&name, DELETE_FROM) {
            Some(list) => {
                (list.ok_or(StrategicError::Malformed("invalid patch format of primitive list"))?.into(), true)
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
            // A value to delete from a scalar of the same type replaces that scalar.
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
        original.retain(|name, _| !gone.contains(name.as_str()));
    }
    Ok(original)
}

/// `$retainKeys`: removes the fields of `original` that are not in the list.
fn retain_keys(original: &mut Map, patch: &mut Map) -> Result<()> {
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

/// `$setElementOrder`: merges the named lists and sorts them. Removes the directive and the list from the patch.
fn merge_ordered_lists(original: &mut Map, patch: &mut Map, at: At) -> Result<()> {
    const MALFORMED: StrategicError = StrategicError::Malformed("invalid patch format of setElementOrder list");
    if !patch.keys().any(|name| name.starts_with(SET_ORDER)) {
        return Ok(());
    }
    let (directives, rest): (Map, Map) =
        std::mem::take(patch).into_iter().partition(|(name, _)| name.starts_with(SET_ORDER));
    *patch = rest;
    let mut merged_lists: HashSet<String> = HashSet::default();
    for (directive, order) in directives {
        let Value::Array(order) = order else { return Err(bad_type("[]interface {}", &order)) };
        let name = strip_prefix(&directive, SET_ORDER).flatten().ok_or(MALFORMED)?;
        let list_at = |map: &mut Map| match map.get_mut(name) {
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
        original.insert(name, Value::Array(in_order(merged, &order, &index(server), field)?));
    }
    if !merged_lists.is_empty() {
        patch.retain(|name, _| !merged_lists.contains(name.as_str()));
    }
    Ok(())
}

/// Checks that the items of the patch have the same order as in `order`.
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

/// Merges two lists. If `removing` is set, deletes the scalars of the patch from the list. Also returns the keys that
/// `$setElementOrder` treats as the keys of the live list, if they differ from the keys of `original`.
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
            let mut seen = HashSet::with_capacity_and_hasher(merged.len(), RandomState::default());
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
    let AppliedDirectives { left, patch, replaced } = obey_directives(original, patch, field)?;
    let (mut merged, patch) = match replaced {
        None => (left, patch),
        Some(items) => {
            check_items(&items, field)?;
            return Ok((items, keys(&left, field)));
        }
    };
    let mut server = keys(&merged, field);
    let patch_order = keys(&patch, field);

    let mut places: HashMap<Value, usize> = HashMap::with_capacity_and_hasher(merged.len(), RandomState::default());
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
    // In kube-apiserver, new items fill the slots of deleted items, and an order treats them as items of the live list.
    let freed = before - on_server;
    let taken = keys(merged.get(on_server..).unwrap_or_default(), field).into_iter().take(freed);
    let on_server = index(server.clone());
    server.extend(taken);
    Ok((in_order(merged, &index(patch_order), &on_server, field)?, server))
}

/// A keyed list and its patch after the directives were applied.
struct AppliedDirectives {
    /// The items of the list that no directive deleted.
    left: Vec<Value>,
    /// The items of the patch without directives; empty if `replaced` is set.
    patch: Vec<Value>,
    /// The new items of the list, if a directive replaces the whole list.
    replaced: Option<Vec<Value>>,
}

/// Applies the `$patch` items of a keyed list and removes them from the patch.
fn obey_directives(mut original: Vec<Value>, patch: Vec<Value>, field: Field) -> Result<AppliedDirectives> {
    let mut replace = false;
    let mut gone: HashSet<Value> = HashSet::default();
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
    Ok(AppliedDirectives { left: original, patch, replaced })
}

/// The type of the items of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    Objects,
    Scalars,
}

/// Returns the common type of all items of two lists, or `None` if both lists are empty.
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

/// Checks that each item is an object with the list's key.
fn check_items(items: &[Value], field: Field) -> Result<()> {
    items.iter().try_for_each(|item| key_of(item, field).map(drop))
}

/// Searches each item in `order`, from the start. Fails if a search reaches an entry that is not an object.
fn check_named(items: &[Value], order: &[Value], field: Field) -> Result<()> {
    let Some(place) = order.iter().position(|item| !item.is_object()) else { return Ok(()) };
    let named: HashSet<&Value> = order.iter().take(place).filter_map(|item| key(item, field)).collect();
    if items.iter().filter_map(|item| key(item, field)).all(|key| named.contains(key)) {
        return Ok(());
    }
    Err(StrategicError::Other(format!("value for key {place} is not a map")))
}

/// Sorts items. Items in `wanted` get that order. The other items keep their live order: each is placed before the
/// first wanted item that follows in the live list.
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

/// Returns the identity of an item: the value of the list's merge key, or the whole item.
fn key(item: &Value, field: Field) -> Option<&Value> {
    match field.rule {
        Rule::Key(name) => item.get(name),
        _ => Some(item),
    }
}

/// The identity of each item of a list; `None` where an item has no key.
type Keys = Vec<Option<Value>>;

fn keys(items: &[Value], field: Field) -> Keys {
    items.iter().map(|item| key(item, field).cloned()).collect()
}

/// Returns the first index of each key.
fn index(keys: impl IntoIterator<Item = Option<Value>>) -> HashMap<Value, usize> {
    let mut places = HashMap::default();
    for (place, key) in keys.into_iter().enumerate() {
        if let Some(key) = key {
            places.entry(key).or_insert(place);
        }
    }
    places
}

/// Prepares a value of the patch for a field that is absent or has another type. Removes null members, but not null
/// items, and removes values with a `$patch` directive. Other directives stay. Returns `None` if the value itself has a
/// `$patch` directive.
fn bare(value: Value) -> Option<Value> {
    match value {
        Value::Object(members) => {
            let members: Map = members.into_iter().filter(|(_, value)| !value.is_null()).collect();
            if members.contains_key(DIRECTIVE) {
                return None;
            }
            Some(members.into_iter().filter_map(|(name, value)| bare(value).map(|value| (name, value))).collect())
        }
        Value::Array(items) => Some(items.into_iter().filter_map(bare).collect()),
        scalar => Some(scalar),
    }
}

/// Prepares the items of a new list with `$setElementOrder`: like [`bare`], but keeps nulls.
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

/// Returns the list name in `<prefix>/<list>`: `None` for another prefix, `Some(None)` for a malformed name.
fn strip_prefix<'a>(name: &'a str, prefix: &str) -> Option<Option<&'a str>> {
    name.strip_prefix(prefix).map(|rest| rest.strip_prefix('/'))
}

fn unknown_directive(map: &Map) -> StrategicError {
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

/// Returns the key of an item. Fails if the item is not an object or has no key.
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
