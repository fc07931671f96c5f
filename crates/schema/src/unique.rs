//! Checks the uniqueness of items in lists of type set and map.
//! Rules: apiextensions-apiserver `pkg/apiserver/schema/listtype`, Kubernetes 1.36.

use std::collections::HashMap;

use listwatch_json::{Map, Value};
use listwatch_meta::FieldError;

use crate::field_errors;
use crate::golang;
use crate::limits::FIELD_ERRORS_MAX;
use crate::path::Path;
use crate::schema::{ListType, Node};

/// Finds duplicate items of sets, and items of list maps with equal keys.
pub(crate) fn validate(value: &Value, node: &Node, at: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Value::Object(members) = value {
        object(members, node, at, &mut errors);
    }
    errors
}

fn object(members: &Map, node: &Node, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !node.unique {
        return;
    }
    if let Some(more) = node.additional_schema() {
        for (name, value) in members {
            below(value, more, &at.key(name), errors);
        }
    }
    for (name, property) in &node.properties {
        if let Some(value) = members.get(name.as_ref()) {
            below(value, property, &at.child(name), errors);
        }
    }
}

fn below(value: &Value, node: &Node, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(members) => object(members, node, at, errors),
        Value::Array(items) if node.unique => {
            match node.list_type {
                ListType::Atomic => {}
                ListType::Set => set(items, items.iter(), at, errors),
                ListType::Map => list_map(items, node, at, errors),
            }
            if let Some(node) = node.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    below(item, node, &at.index(index), errors);
                }
            }
        }
        _ => {}
    }
}

/// Reports the second of two equal items; `shown` contains the texts for errors.
fn set<'v>(shown: &[Value], items: impl Iterator<Item = &'v Value>, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut times: HashMap<String, usize> = HashMap::with_capacity(shown.len());
    for (index, item) in items.enumerate() {
        let times = times.entry(identity(item)).or_default();
        *times += 1;
        if *times == 2 && errors.len() < FIELD_ERRORS_MAX {
            errors.push(field_errors::duplicate(at.index(index), &shown[index]));
        }
    }
}

/// The identity of an item as text. Within an item, an integer differs from an equal float.
fn identity(item: &Value) -> String {
    match item {
        Value::Number(number) => match golang::Number::of(number) {
            golang::Number::Int(int) => format!("i{int}"),
            golang::Number::Float(float) => format!("f{float:?}"),
        },
        other => golang::json(other),
    }
}

fn list_map(items: &[Value], node: &Node, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some((index, item)) = items.iter().enumerate().find(|(_, item)| !item.is_object() && !item.is_null()) {
        let detail = "must be an object for an array of list-type map";
        errors.push(field_errors::invalid(at.index(index), item, detail));
        return;
    }
    if items.len() <= 1 {
        return;
    }
    let names = node.list_map_keys();
    let keys: Vec<Value> = items
        .iter()
        .map(|item| {
            let field = |name: &str| item.get(name).cloned();
            let keys = names.iter().filter_map(|name| Some((name.as_ref().to_owned(), field(name)?)));
            Value::Object(keys.collect())
        })
        .collect();
    set(&keys, keys.iter(), at, errors);
}
