//! Merges a configuration into a live value.

use std::collections::BTreeMap;

use listwatch_json::{Map as Object, Value};

use super::{Form, OrderedMembers, ValidationError, as_list, as_map, check_scalar, form, item_element, join};
use crate::path::PathElement;
use crate::typing::{List, Relation, Schema, TypeId};

/// Merges two present values. If one is absent, the other is the result.
pub(super) fn merge(schema: &Schema, of: TypeId, live: &Value, config: &Value) -> Result<Value, ValidationError> {
    let of = schema.get(of);
    let wanted = if config.is_null() { form(of, Some(live)) } else { form(of, Some(config)) };
    match wanted {
        Form::None => Err(ValidationError::of("schema error: invalid atom: inlined")),
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
            // Each value is copied once, to its final position.
            let mut merged = Object::with_capacity(before.map_or(0, Object::len).max(after.map_or(0, Object::len)));
            let mut configured = OrderedMembers::new(after);
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

/// Merges two lists. Items of both lists have the order of `config`. Items of `live` alone stay
/// next to their former neighbors.
fn merge_items(schema: &Schema, list: &List, live: &[Value], config: &[Value]) -> Result<Value, ValidationError> {
    let name = |items: &[Value]| -> Result<Vec<PathElement>, ValidationError> {
        let named = items.iter().enumerate().map(|(at, item)| {
            item_element(schema, list, item).map_err(|why| ValidationError::of(format!("element {at}: {why}")))
        });
        named.collect()
    };
    let (live_names, config_names) = (name(live)?, name(config)?);
    // The position of each item; `None` if it occurs more than once.
    let mut in_live: BTreeMap<&PathElement, Option<usize>> = BTreeMap::new();
    for (at, element) in live_names.iter().enumerate() {
        in_live.entry(element).and_modify(|known| *known = None).or_insert(Some(at));
    }
    let mut in_config: BTreeMap<&PathElement, usize> = BTreeMap::new();
    for (at, element) in config_names.iter().enumerate() {
        if in_config.insert(element, at).is_some() {
            return Err(ValidationError::of(format!("duplicate entries for key {element}")));
        }
    }
    let mut shared = config_names.iter().filter(|element| in_live.contains_key(element));
    let mut next_shared = shared.next();
    let mut taken = vec![false; config.len()];
    let mut merged = Vec::with_capacity(live.len().max(config.len()));
    let take = |at: usize| -> Result<Value, ValidationError> {
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
                // The item is in both lists, but comes later in `config`.
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
