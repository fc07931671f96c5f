//! JSON values: [`Value`].

use std::{fmt, io, mem};

use serde_json::Number;

use crate::{JsonString, Map};

mod compare;
mod from;
mod index;

pub use index::Index;

/// A JSON value.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub enum Value {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number: an integer of 64 bits, or a float.
    Number(Number),
    /// A string.
    String(JsonString),
    /// A list.
    Array(Vec<Value>),
    /// An object.
    Object(Map),
}

impl Value {
    /// The value at a name of an object or at an index of a list, if there is one.
    pub fn get<I: Index>(&self, index: I) -> Option<&Value> {
        index.index_into(self)
    }

    /// The mutable value at a name of an object or at an index of a list.
    pub fn get_mut<I: Index>(&mut self, index: I) -> Option<&mut Value> {
        index.index_into_mut(self)
    }

    /// The value at a JSON pointer (RFC 6901), such as `/metadata/labels/app`. `""` is the whole value.
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        steps(pointer)?.try_fold(self, |value, step| match value {
            Value::Object(map) => map.get(&step),
            Value::Array(items) => items.get(position(&step)?),
            _ => None,
        })
    }

    /// The mutable value at a JSON pointer (RFC 6901).
    pub fn pointer_mut(&mut self, pointer: &str) -> Option<&mut Value> {
        steps(pointer)?.try_fold(self, |value, step| match value {
            Value::Object(map) => map.get_mut(&step),
            Value::Array(items) => items.get_mut(position(&step)?),
            _ => None,
        })
    }

    /// Takes the value and leaves `null`.
    #[must_use]
    pub fn take(&mut self) -> Value {
        mem::take(self)
    }

    /// Estimates the bytes that the value has allocated. Copies of a long string count its text each.
    ///
    /// ```
    /// use listwatch_json::{Value, json};
    ///
    /// assert_eq!(json!("in place").heap_bytes(), 0);
    /// assert!(json!([1, 2, 3]).heap_bytes() >= 3 * size_of::<Value>());
    /// ```
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.heap_bytes(),
            Value::Array(items) => {
                items.capacity() * size_of::<Value>() + items.iter().map(Value::heap_bytes).sum::<usize>()
            }
            Value::Object(members) => members.heap_bytes(),
        }
    }

    /// Whether this is an object.
    pub fn is_object(&self) -> bool {
        matches!(self, Value::Object(_))
    }

    /// The members, if this is an object.
    pub fn as_object(&self) -> Option<&Map> {
        match self {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }

    /// The mutable members, if this is an object.
    pub fn as_object_mut(&mut self) -> Option<&mut Map> {
        match self {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }

    /// Whether this is a list.
    pub fn is_array(&self) -> bool {
        matches!(self, Value::Array(_))
    }

    /// The items, if this is a list.
    pub fn as_array(&self) -> Option<&Vec<Value>> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The mutable items, if this is a list.
    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Value>> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Whether this is a string.
    pub fn is_string(&self) -> bool {
        matches!(self, Value::String(_))
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Whether this is a number.
    pub fn is_number(&self) -> bool {
        matches!(self, Value::Number(_))
    }

    /// The number, if this is one.
    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Whether this is an integer that fits into `i64`.
    pub fn is_i64(&self) -> bool {
        self.as_number().is_some_and(Number::is_i64)
    }

    /// Whether this is an integer that fits into `u64`.
    pub fn is_u64(&self) -> bool {
        self.as_number().is_some_and(Number::is_u64)
    }

    /// Whether this is a number that is stored as a float.
    pub fn is_f64(&self) -> bool {
        self.as_number().is_some_and(Number::is_f64)
    }

    /// The integer, if it fits into `i64`.
    pub fn as_i64(&self) -> Option<i64> {
        self.as_number().and_then(Number::as_i64)
    }

    /// The integer, if it fits into `u64`.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_number().and_then(Number::as_u64)
    }

    /// The number as a float.
    pub fn as_f64(&self) -> Option<f64> {
        self.as_number().and_then(Number::as_f64)
    }

    /// Whether this is `true` or `false`.
    pub fn is_boolean(&self) -> bool {
        matches!(self, Value::Bool(_))
    }

    /// The boolean, if this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }
}

/// The steps of a JSON pointer, unescaped; `None` if it does not start with a slash.
fn steps(pointer: &str) -> Option<impl Iterator<Item = String>> {
    let mut steps = pointer.split('/');
    (steps.next() == Some("")).then(|| steps.map(|step| step.replace("~1", "/").replace("~0", "~")))
}

/// The index that a step of a pointer names. RFC 6901, section 4: digits without leading zeros.
fn position(step: &str) -> Option<usize> {
    let is_plain = step == "0" || !step.starts_with(['0', '+']);
    is_plain.then(|| step.parse().ok()).flatten()
}

impl fmt::Display for Value {
    /// Writes compact JSON, and with `{:#}` JSON with two spaces for each level.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Passes the text on to a formatter. `serde_json` writes whole UTF-8 strings only.
        struct ToFormatter<'a, 'b>(&'a mut fmt::Formatter<'b>);

        impl io::Write for ToFormatter<'_, '_> {
            fn write(&mut self, text: &[u8]) -> io::Result<usize> {
                let text = std::str::from_utf8(text).map_err(io::Error::other)?;
                self.0.write_str(text).map_err(io::Error::other)?;
                Ok(text.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let is_pretty = f.alternate();
        let to = ToFormatter(f);
        let written = if is_pretty { serde_json::to_writer_pretty(to, self) } else { serde_json::to_writer(to, self) };
        written.map_err(|_| fmt::Error)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("Null"),
            Value::Bool(value) => write!(f, "Bool({value})"),
            Value::Number(number) => fmt::Debug::fmt(number, f),
            Value::String(text) => write!(f, "String({text:?})"),
            Value::Array(items) => {
                f.write_str("Array ")?;
                fmt::Debug::fmt(items, f)
            }
            Value::Object(map) => {
                f.write_str("Object ")?;
                fmt::Debug::fmt(map, f)
            }
        }
    }
}
