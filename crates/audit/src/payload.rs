//! [`Payload`]: an object of a request or a response, which is converted to compact JSON when its event is written.
//!
//! A request passes bytes or a function, so that no request waits for the conversion.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use listwatch_json::Value;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The largest object in an event, in bytes of JSON. A larger object is omitted, and the event is marked as truncated.
/// kube-apiserver has no such limit.
pub const OBJECT_BYTES_MAX: usize = 10 << 20;

/// The reason why an object cannot be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadError {
    /// The object has more than [`OBJECT_BYTES_MAX`] bytes.
    TooLarge,
    /// The object is not JSON, and cannot be converted to JSON.
    Invalid,
}

/// Produces the JSON of an object, or at least more than the given number of bytes of it.
type Produce = dyn Fn(usize) -> Option<Vec<u8>> + Send + Sync;

/// An object of a request or a response. Clones share it.
#[derive(Clone)]
pub struct Payload {
    source: Source,
    bytes: usize,
}

#[derive(Clone)]
enum Source {
    Json(Bytes),
    Produced(Arc<Produce>),
}

impl Payload {
    /// An object in JSON, which may be indented.
    pub fn json(json: Bytes) -> Self {
        Payload { bytes: json.len(), source: Source::Json(json) }
    }

    /// An object that is converted when its event is written. `bytes` is the memory that the payload holds until then.
    /// `produce` returns JSON, or `None` for an object without JSON. `produce` may stop when the JSON has more bytes
    /// than its argument.
    pub fn produced(bytes: usize, produce: impl Fn(usize) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Payload { bytes, source: Source::Produced(Arc::new(produce)) }
    }

    /// The memory that the payload holds, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The object as one line of JSON.
    ///
    /// # Errors
    /// [`PayloadError`].
    pub(crate) fn to_json(&self, omit_managed_fields: bool) -> Result<Box<RawValue>, PayloadError> {
        let produced;
        let json: &[u8] = match &self.source {
            Source::Json(json) => json,
            Source::Produced(produce) => {
                produced = produce(OBJECT_BYTES_MAX).ok_or(PayloadError::Invalid)?;
                &produced
            }
        };
        if json.len() > OBJECT_BYTES_MAX {
            return Err(PayloadError::TooLarge);
        }
        let text = match omit_managed_fields {
            true => {
                let mut value: Value = serde_json::from_slice(json).map_err(|_| PayloadError::Invalid)?;
                remove_managed_fields(&mut value);
                value.to_string()
            }
            false => {
                // The bytes are a client's. Only JSON may stand in the event, and only on its line.
                serde_json::from_slice::<serde::de::IgnoredAny>(json).map_err(|_| PayloadError::Invalid)?;
                String::from_utf8(compact(json)).map_err(|_| PayloadError::Invalid)?
            }
        };
        RawValue::from_string(text).map_err(|_| PayloadError::Invalid)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The contents may be a Secret.
        write!(f, "Payload({} bytes)", self.bytes)
    }
}

/// Removes the whitespace between tokens of valid JSON.
fn compact(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let (mut in_string, mut is_escaped) = (false, false);
    for &byte in json {
        match in_string {
            true if is_escaped => is_escaped = false,
            true => (is_escaped, in_string) = (byte == b'\\', byte != b'"'),
            false if byte.is_ascii_whitespace() => continue,
            false => in_string = byte == b'"',
        }
        out.push(byte);
    }
    out
}

/// Removes the managed fields of an object, of the items of a list, and of the objects of a Table
/// (`copyWithoutManagedFields`).
fn remove_managed_fields(value: &mut Value) {
    fn of_object(object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove("managedFields");
        }
    }
    of_object(value);
    for item in value.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        of_object(item);
    }
    for row in value.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        row.get_mut("object").into_iter().for_each(of_object);
    }
}

/// The metadata of an object that fills the reference of an event.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ObjectMeta {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

/// The metadata of an object in JSON; empty if it has none.
pub(crate) fn metadata(json: &RawValue) -> ObjectMeta {
    #[derive(Deserialize)]
    struct Object {
        #[serde(default)]
        metadata: Option<ObjectMeta>,
    }
    serde_json::from_str::<Object>(json.get()).ok().and_then(|object| object.metadata).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &'static str, omit: bool) -> Result<String, PayloadError> {
        Payload::json(Bytes::from_static(text.as_bytes())).to_json(omit).map(|json| json.get().to_owned())
    }

    #[test]
    fn payload_is_one_line_of_valid_json() {
        let forged = "{\n \"a b\" : \"x\\\" \\n y\\\\\",\r\n\t\"c\": [1, 2 ]}\n";
        assert_eq!(json(forged, false).as_deref(), Ok(r#"{"a b":"x\" \n y\\","c":[1,2]}"#));
        for invalid in ["", "{", "{}{}", "{}\n{\"kind\":\"Event\"}", "a: b"] {
            assert_eq!(json(invalid, false), Err(PayloadError::Invalid), "{invalid}");
            assert_eq!(json(invalid, true), Err(PayloadError::Invalid), "{invalid}");
        }
    }

    #[test]
    fn managed_fields_are_removed_from_objects_lists_and_tables() {
        let object = r#"{"metadata":{"name":"a","managedFields":[1],"uid":"u"}}"#;
        let kept = r#"{"metadata":{"name":"a","uid":"u"}}"#;
        for form in ["O", r#"{"items":[O,O]}"#, r#"{"rows":[{"object":O},{"object":null},{}]}"#] {
            let (given, expected) = (form.replace('O', object), form.replace('O', kept));
            let found = Payload::json(given.into()).to_json(true).map(|json| json.get().to_owned());
            assert_eq!(found.as_deref(), Ok(expected.as_str()));
        }
    }

    #[test]
    fn object_above_the_size_limit_is_omitted() {
        let large = Payload::produced(1, |bytes_max| Some(vec![b' '; bytes_max + 1]));
        assert_eq!(large.to_json(false).err(), Some(PayloadError::TooLarge));
        assert_eq!(Payload::produced(1, |_| None).to_json(false).err(), Some(PayloadError::Invalid));
    }
}
