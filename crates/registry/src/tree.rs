//! Parses and encodes stored objects as JSON trees: [`parse_tree`] and [`encode_tree`].

use std::cell::RefCell;
use std::fmt;

use bytes::Bytes;
use listwatch_json::{JsonString, Map, Value, is_plain};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::Serialize;
use serde_json::de::Read;
use serde_json::value::RawValue;

/// The capacity that the buffer of a thread keeps between two objects, in bytes.
const BUFFER_BYTES_KEPT: usize = 64 << 10;

thread_local! {
    /// The buffer in which objects are encoded before their size is known. It is empty between two calls.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The name of the metadata field with the managed fields.
pub(crate) const MANAGED_FIELDS: &str = "managedFields";

/// Parses a stored or cached object into a tree without the resource version. `metadata.managedFields` stays a JSON
/// text in a string, because a tree of the managed fields would be large. An empty or malformed list is omitted.
///
/// # Errors
/// The bytes are not one JSON object, or its metadata is not an object.
pub fn parse_tree(value: &[u8]) -> Result<Map, serde_json::Error> {
    // One check of all bytes takes less time than one of each string.
    match str::from_utf8(value) {
        Ok(text) => parse(serde_json::Deserializer::from_str(text)),
        Err(_) => parse(serde_json::Deserializer::from_slice(value)),
    }
}

fn parse<'de, R: Read<'de>>(mut parser: serde_json::Deserializer<R>) -> Result<Map, serde_json::Error> {
    let tree = parser.deserialize_map(StoredObject)?;
    parser.end()?;
    Ok(tree)
}

/// Deserializes a stored object without its resource version.
struct StoredObject;

impl<'de> Visitor<'de> for StoredObject {
    type Value = Map;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::with_capacity(8);
        while let Some(name) = members.next_key::<JsonString>()? {
            let value =
                if name == "metadata" { members.next_value_seed(StoredMetadata)? } else { members.next_value()? };
            object.insert(name, value);
        }
        Ok(object)
    }
}

/// Deserializes the metadata of a stored object, with the managed fields as text.
struct StoredMetadata;

impl<'de> DeserializeSeed<'de> for StoredMetadata {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for StoredMetadata {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut metadata = Map::with_capacity(10);
        while let Some(name) = members.next_key::<JsonString>()? {
            let value = match name.as_str() {
                "resourceVersion" => {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                }
                MANAGED_FIELDS => match compact_managed_fields(members.next_value::<&RawValue>()?.get()) {
                    Some(text) => Value::String(text),
                    None => continue,
                },
                _ => members.next_value()?,
            };
            metadata.insert(name, value);
        }
        Ok(Value::Object(metadata))
    }
}

/// Returns the text of stored managed fields as compact JSON. `None` if the list is empty or the value is not a list.
fn compact_managed_fields(text: &str) -> Option<JsonString> {
    if !text.starts_with('[') || text == "[]" {
        return None;
    }
    // Other writers may store whitespace. A space inside a string must stay, so the text is parsed.
    if text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return serde_json::from_str(text).map(|entries: Value| entries.to_string().into()).ok();
    }
    Some(text.into())
}

/// Encodes a tree as compact JSON for the store, in memory of exactly its size. `metadata.managedFields` may be a JSON
/// text in a string, as [`parse_tree`] returns.
pub fn encode_tree(object: &Map) -> Bytes {
    // After a panic the buffer is lost, so that no later object begins with a part of this one.
    let mut out = BUFFER.take();
    write_tree(object, &mut out);
    let encoded = Bytes::copy_from_slice(&out);
    out.clear();
    out.shrink_to(BUFFER_BYTES_KEPT);
    BUFFER.set(out);
    encoded
}

fn write_tree(object: &Map, out: &mut Vec<u8>) {
    write_members(object, out, |name, value, out| match value {
        Value::Object(metadata) if name == "metadata" => {
            write_members(metadata, out, |name, value, out| match value {
                Value::String(text) if name == MANAGED_FIELDS => out.extend_from_slice(text.as_bytes()),
                value => write_value(value, out),
            });
        }
        value => write_value(value, out),
    });
}

fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::String(text) => write_text(text, out),
        Value::Object(members) => write_members(members, out, |_, value, out| write_value(value, out)),
        Value::Array(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_value(item, out);
            }
            out.push(b']');
        }
        other => write_json(other, out),
    }
}

fn write_members(members: &Map, out: &mut Vec<u8>, mut write: impl FnMut(&str, &Value, &mut Vec<u8>)) {
    out.push(b'{');
    for (at, (name, value)) in members.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_text(name, out);
        out.push(b':');
        write(name, value, out);
    }
    out.push(b'}');
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    if is_plain(text.as_bytes()) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        write_json(text, out);
    }
}

fn write_json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    // Scalars and strings always encode, and a `Vec` accepts every write.
    let _ = serde_json::to_writer(out, value);
}
