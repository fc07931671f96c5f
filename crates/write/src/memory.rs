//! Limits on a parsed document: the bytes of its tree, its fuel, and the number of reported duplicate fields.

use std::cell::Cell;

use listwatch_json::{JsonString, Value};

/// Maximum bytes of memory for the tree of one document, with [`VALUE_BYTES`] per scalar. A larger document is
/// rejected. Any JSON of 1 MiB fits. JSON of 1.5 MiB, the limit of etcd, fits unless it is full of lists and objects of one
/// item.
pub(crate) const DOCUMENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of memory that every document may take in addition to the allowance per byte of its body.
pub(super) const DOCUMENT_BYTES_MIN: usize = 1024 * 1024;

/// Bytes of memory allowed per byte of a body. The worst case in JSON are nested lists of one item (`[[[…]]]`): two bytes
/// for a list with room for four items. Only YAML with aliases that multiply values needs more.
const BYTES_PER_BYTE: usize = 64;

/// Bytes of JSON processed per unit of fuel, including all other work that is linear in the body.
pub(super) const JSON_BYTES_PER_UNIT: usize = 8;

/// Bytes of memory per value, without its text.
pub(super) const VALUE_BYTES: usize = size_of::<Value>();

/// Bytes of memory per member of an object, without the text of the name: name, value, and place in the index of a large
/// object.
pub(super) const MEMBER_BYTES: usize = size_of::<JsonString>() + VALUE_BYTES + 2 * size_of::<usize>();

/// Returns the maximum memory for the tree of a body of `body_bytes` bytes, in bytes. A write never uses much more
/// memory.
pub(crate) fn bytes_max(body_bytes: usize) -> usize {
    body_bytes.saturating_mul(BYTES_PER_BYTE).saturating_add(DOCUMENT_BYTES_MIN).min(DOCUMENT_BYTES_MAX)
}

/// Estimates the bytes of memory that a tree takes.
pub(super) fn bytes_of(value: &Value) -> usize {
    VALUE_BYTES
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => spare_items(items.len()) + items.iter().map(bytes_of).sum::<usize>(),
            Value::Object(members) => {
                let member =
                    |(name, value): (&JsonString, &Value)| MEMBER_BYTES - VALUE_BYTES + name.len() + bytes_of(value);
                spare_members(members.len()) + members.iter().map(member).sum::<usize>()
            }
        }
}

/// Bytes of memory for the items that a list has room for, beyond its `len` items.
fn spare_items(len: usize) -> usize {
    spare(len) * VALUE_BYTES
}

/// Bytes of memory for the members that an object has room for, beyond its `len` members.
fn spare_members(len: usize) -> usize {
    spare(len) * MEMBER_BYTES
}

/// A growing `Vec` has room for four entries at first, and then for twice as many as before.
fn spare(len: usize) -> usize {
    if len == 0 { 0 } else { len.next_power_of_two().max(4) - len }
}

/// Maximum number of duplicate fields in the report of one document. Further duplicates are not
/// reported, but the document still keeps their last value.
pub(super) const DUPLICATES_MAX: usize = 64;

/// Approximate limit in bytes on the total length of examined duplicate field paths. The report ends after the path
/// that exceeds the limit. Paths can be long, because each may contain a very long name.
pub(super) const DUPLICATES_BYTES_MAX: usize = 256 * 1024;

/// The memory limit of one tree, and the remaining bytes.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) left: Cell<usize>,
    bytes_max: usize,
}

impl Memory {
    pub(super) fn new(bytes_max: usize) -> Self {
        Memory { left: Cell::new(bytes_max), bytes_max }
    }

    /// Reserves memory for a value with `text_bytes` bytes of text. Fails beyond the limit.
    pub(super) fn take_value(&self, text_bytes: usize) -> Result<(), String> {
        self.take(VALUE_BYTES + text_bytes)
    }

    /// Reserves memory for a member of an object without its value. Fails beyond the limit.
    pub(super) fn take_member(&self, name_bytes: usize) -> Result<(), String> {
        self.take(MEMBER_BYTES - VALUE_BYTES + name_bytes)
    }

    /// Reserves memory for what a list has room for, beyond its `len` items. Fails beyond the limit.
    pub(super) fn take_spare_items(&self, len: usize) -> Result<(), String> {
        self.take(spare_items(len))
    }

    /// Reserves memory for what an object has room for, beyond its `len` members. Fails beyond the limit.
    pub(super) fn take_spare_members(&self, len: usize) -> Result<(), String> {
        self.take(spare_members(len))
    }

    /// Reserves memory for a copy of a tree. Fails beyond the limit.
    pub(super) fn take_tree(&self, value: &Value) -> Result<(), String> {
        self.take(bytes_of(value))
    }

    /// Reserves `bytes` bytes of memory. Fails beyond the limit.
    pub(super) fn take(&self, bytes: usize) -> Result<(), String> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(format!("the document takes more than {} bytes of memory", self.bytes_max)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;

    #[test]
    fn bytes_of_a_list_are_those_of_its_allocation() {
        for len in (0..40).chain([1_000, 1_024, 1_025]) {
            let text = format!("[{}]", vec!["0"; len].join(","));
            let value = Document::from_json(text.as_bytes()).unwrap().value;
            let Value::Array(items) = &value else { unreachable!("it is a list") };
            assert_eq!(bytes_of(&value), VALUE_BYTES * (1 + items.capacity()), "{len} items");
        }
    }

    #[test]
    fn bytes_of_a_small_object_exceed_its_allocation() {
        for len in (0..40).chain([1_000, 1_024, 1_025]) {
            let members: Vec<String> = (0..len).map(|at| format!("\"{at:04}\":0")).collect();
            let value = Document::from_json(format!("{{{}}}", members.join(",")).as_bytes()).unwrap().value;
            let allocated = VALUE_BYTES + value.heap_bytes();
            assert!((allocated..=2 * allocated).contains(&bytes_of(&value)), "{len} members: {}", bytes_of(&value));
        }
    }

    #[test]
    fn any_json_of_1_mib_fits() {
        let depth = 115;
        for (open, close) in [("[", "]"), (r#"{"":"#, "}"), ("[{},", "]")] {
            let nested = open.repeat(depth) + "0" + &close.repeat(depth);
            let text = format!("[{}]", vec![nested.as_str(); (1 << 20) / (nested.len() + 1)].join(","));
            assert!(Document::from_json(text.as_bytes()).is_ok(), "{open}");
        }
    }
}
