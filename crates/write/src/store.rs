//! Converts between trees and stored bytes, and runs the optimistic loop that writes one key
//! ([`listwatch_storage::guaranteed_update`]).

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use bytes::Bytes;
use listwatch_meta::fuel;
use listwatch_meta::{Change, GroupResource, Key, Object, Revision, Status};
use listwatch_storage::{
    Decision, GuaranteedUpdateError, KeyValue, Outcome, StoreFault, UpdateLimits, VALUE_BYTES_MAX, guaranteed_update,
    unreadable_reason,
};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::memory::JSON_BYTES_PER_UNIT;
use super::request::{WriteBody, WriteResponse};
use listwatch_registry::Backend;
use listwatch_registry::Resource;
use listwatch_validation::clock::Clock;

/// Returns a random UUID, or a constant if the clock is fixed.
pub(super) fn new_uid(clock: &Clock) -> String {
    if clock.is_fixed() { uuid::Uuid::nil().to_string() } else { uuid::Uuid::new_v4().to_string() }
}

/// The metadata field of the managed fields.
pub(super) const MANAGED_FIELDS: &str = "managedFields";

/// The outcome of a write.
#[derive(Debug)]
pub(super) enum WriteOutcome {
    /// The object was created. A dry run has no revision.
    Created { value: Bytes, revision: Option<Revision> },
    /// The object was updated. A dry run has the former revision.
    Updated { value: Bytes, revision: Revision },
    /// The object needed no change.
    Unchanged(KeyValue),
    /// The object was deleted. A dry run has no revision.
    Deleted { previous: KeyValue, revision: Option<Revision> },
    /// The object was absent, and the write did not create it.
    Absent,
}

/// An error of the store in [`run`], by its effect on the claims of the write, with the Status for the client.
pub(super) enum StoreError {
    /// The object exceeds the size limit of the store.
    TooLarge(Status),
    /// The fuel was used up before any write.
    Abandoned(Status),
    /// The outcome is unknown: the store may have written the object.
    Unknown(Status),
    /// The object was not written, for another reason.
    Other(Status),
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::TooLarge(status)
            | StoreError::Abandoned(status)
            | StoreError::Unknown(status)
            | StoreError::Other(status) => status,
        }
    }
}

/// Applies `decide` to the state of one key, and retries when another write changed the key. A `dry_run` writes
/// nothing.
///
/// # Errors
/// The error of `decide` on the current state in the store; a [`Status`] when the store fails.
pub(super) async fn run<E: From<Status> + From<StoreError>>(
    backend: &Backend,
    resource: &Resource,
    key: &Key,
    dry_run: bool,
    mut decide: impl FnMut(Option<&KeyValue>) -> Result<Decision, E>,
) -> Result<WriteOutcome, E> {
    let storage = &**backend.storage();
    let decide = |found: Option<&KeyValue>| {
        let decision = decide(found);
        // Without fuel neither the decision nor its error counts: the error may request claims.
        if fuel::is_exhausted() {
            return Err(E::from(StoreError::Abandoned(Status::request_timed_out())));
        }
        let decision = decision?;
        if let (true, Decision::Write { value, .. }) = (dry_run, &decision) {
            check_size(value)?;
        }
        Ok(decision)
    };
    if dry_run {
        let mut decide = decide;
        let (found, _) = storage.get(key).await.map_err(|error| read_failed(&error, resource.gr()))?;
        return Ok(match (decide(found.as_ref())?, found) {
            (Decision::Write { value, .. }, None) => WriteOutcome::Created { value, revision: None },
            (Decision::Write { value, .. }, Some(found)) => WriteOutcome::Updated { value, revision: found.modified },
            (Decision::Delete, Some(previous)) => WriteOutcome::Deleted { previous, revision: None },
            (Decision::Nothing, Some(found)) => WriteOutcome::Unchanged(found),
            (_, None) => WriteOutcome::Absent,
        });
    }
    let suggestion = suggestion(backend, resource, key);
    let outcome = guaranteed_update(storage, key, suggestion, UpdateLimits::default(), decide).await;
    done(outcome, "update", resource)
}

/// Converts the result of an optimistic loop. `operation` is the name of the write in errors.
///
/// # Errors
/// The error of the decision, or the fault of the store.
pub(super) fn done<E: From<Status> + From<StoreError>>(
    outcome: Result<Outcome, GuaranteedUpdateError<E>>,
    operation: &str,
    resource: &Resource,
) -> Result<WriteOutcome, E> {
    Ok(match outcome {
        Ok(Outcome::Created(current)) => {
            WriteOutcome::Created { value: current.value, revision: Some(current.modified) }
        }
        Ok(Outcome::Updated { current, .. }) => {
            WriteOutcome::Updated { value: current.value, revision: current.modified }
        }
        Ok(Outcome::Deleted { previous, revision }) => WriteOutcome::Deleted { previous, revision: Some(revision) },
        Ok(Outcome::Unchanged(Some(found))) => WriteOutcome::Unchanged(found),
        Ok(Outcome::Unchanged(None)) => WriteOutcome::Absent,
        Err(GuaranteedUpdateError::Refused(refusal)) => return Err(refusal),
        Err(GuaranteedUpdateError::Contended { .. }) => {
            return Err(Status::server_timeout(operation, resource.gr()).into());
        }
        Err(GuaranteedUpdateError::Fault(fault)) => {
            let status = store_failed(operation, &fault, resource.gr());
            let error = match fault {
                StoreFault::TooLarge(_) => StoreError::TooLarge(status),
                // A store may detect a corrupt answer after it has written.
                StoreFault::Unavailable(_) | StoreFault::NoSpace(_) | StoreFault::Closed | StoreFault::Corrupt(_) => {
                    StoreError::Unknown(status)
                }
                _ => StoreError::Other(status),
            };
            return Err(error.into());
        }
    })
}

/// Returns the cached state of a key, which saves the first read. The cached JSON contains the resource version, which
/// [`parse`] removes.
pub(super) fn suggestion(backend: &Backend, resource: &Resource, key: &Key) -> Option<KeyValue> {
    let object = backend.running_cacher(resource)?.peek(key)?;
    if object.is_normalized() {
        // Normalized bytes differ from the bytes in the store, and the comparison needs the latter.
        return None;
    }
    Some(KeyValue {
        key: key.clone(),
        value: object.json(),
        // The cache does not know the creation revision, and no caller reads it.
        created: Revision::ZERO,
        modified: object.revision(),
        stale: false,
    })
}

/// Parses a stored or cached object into a tree without resource version. `metadata.managedFields` stays a text, as
/// [`super::ownership`] explains.
///
/// # Errors
/// 500 when the stored bytes are not an object.
pub(super) fn parse(found: &KeyValue) -> Result<Map<String, Value>, Status> {
    if !fuel::charge_bytes(found.value.len(), JSON_BYTES_PER_UNIT) {
        return Err(Status::request_timed_out());
    }
    let corrupt = |why: String| Status::internal(format_args!("the object at {} cannot be read: {why}", found.key));
    if let Some(why) = unreadable_reason(&found.value) {
        return Err(corrupt(why.to_owned()));
    }
    let mut parser = serde_json::Deserializer::from_slice(&found.value);
    let object = parser.deserialize_map(StoredObject).map_err(|error| corrupt(error.to_string()))?;
    parser.end().map_err(|error| corrupt(error.to_string()))?;
    match object.get("metadata") {
        Some(Value::Object(_)) => Ok(object),
        _ => Err(corrupt("it has no metadata".to_owned())),
    }
}

/// Whether a stored value is one complete JSON object with metadata. Builds no tree.
pub(super) fn is_readable(value: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Probe<'a> {
        #[serde(borrow)]
        metadata: HashMap<Cow<'a, str>, IgnoredAny>,
    }
    serde_json::from_slice::<Probe<'_>>(value).is_ok_and(|probe| !probe.metadata.is_empty())
}

/// Deserializes a stored object without its resource version.
struct StoredObject;

impl<'de> Visitor<'de> for StoredObject {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::with_capacity(8);
        while let Some(name) = members.next_key::<String>()? {
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
        while let Some(name) = members.next_key::<String>()? {
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
fn compact_managed_fields(text: &str) -> Option<String> {
    if !text.starts_with('[') || text == "[]" {
        return None;
    }
    // Other writers may store whitespace. A space inside a string must stay, so the text is parsed.
    if text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return serde_json::from_str(text).map(|entries: Value| entries.to_string()).ok();
    }
    Some(text.to_owned())
}

/// Encodes an object as compact JSON for the store.
pub(super) fn encode(object: &Map<String, Value>) -> Bytes {
    let mut out = Vec::with_capacity(1024);
    write_members(object, &mut out, |name, value, out| match value {
        Value::Object(metadata) if name == "metadata" => {
            write_members(metadata, out, |name, value, out| match value {
                Value::String(text) if name == MANAGED_FIELDS => out.extend_from_slice(text.as_bytes()),
                value => write_value(value, out),
            });
        }
        value => write_value(value, out),
    });
    out.into()
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

fn write_members(members: &Map<String, Value>, out: &mut Vec<u8>, mut write: impl FnMut(&str, &Value, &mut Vec<u8>)) {
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
    // Most texts need no escape. The check of a whole chunk compiles to a few instructions.
    let plain =
        |chunk: &[u8]| !chunk.iter().fold(false, |odd, byte| odd | (*byte < 0x20) | matches!(byte, b'"' | b'\\'));
    if text.as_bytes().chunks(32).all(plain) {
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

/// Builds the object that clients see.
///
/// # Errors
/// 500 when the bytes are not an object, which is a fault of this server.
pub(super) fn object(
    resource: &Resource,
    key: &Key,
    revision: Revision,
    change: Change,
    value: &[u8],
) -> Result<Object, Status> {
    Object::from_stored(key.clone(), revision, change, value, &resource.shape).map_err(Status::internal)
}

impl WriteOutcome {
    /// Builds the response to a create, update or patch.
    ///
    /// # Errors
    /// 500 when the stored bytes are not an object.
    pub(super) fn response(
        self,
        resource: &Resource,
        key: &Key,
        warnings: Vec<String>,
    ) -> Result<WriteResponse, Status> {
        let (code, body) = match self {
            WriteOutcome::Created { value, revision: None } => (201, WriteBody::Json(resource.shown_json(value))),
            WriteOutcome::Created { value, revision: Some(revision) } => {
                (201, WriteBody::Object(object(resource, key, revision, Change::Added, &value)?))
            }
            WriteOutcome::Updated { value, revision } => {
                (200, WriteBody::Object(object(resource, key, revision, Change::Modified, &value)?))
            }
            WriteOutcome::Unchanged(found) | WriteOutcome::Deleted { previous: found, .. } => {
                (200, WriteBody::Object(object(resource, key, found.modified, Change::Modified, &found.value)?))
            }
            WriteOutcome::Absent => return Err(Status::not_found(resource.gr(), key.name())),
        };
        Ok(WriteResponse { code, body, warnings })
    }
}

/// The error for a client when a read of the store fails.
pub(super) fn read_failed(error: &listwatch_storage::ReadError, gr: GroupResource<'_>) -> Status {
    match error {
        listwatch_storage::ReadError::Fault(fault) => store_failed("get", fault, gr),
        other => Status::internal(other),
    }
}

/// The error for an object above [`VALUE_BYTES_MAX`]. kube-apiserver passes on this text of etcd.
pub(super) fn too_large() -> Status {
    Status::unknown("etcdserver: request is too large")
}

/// Checks the size of a value for a dry run, which has no store to check it.
///
/// # Errors
/// [`StoreError::TooLarge`].
pub(super) fn check_size(value: &Bytes) -> Result<(), StoreError> {
    if value.len() > VALUE_BYTES_MAX { Err(StoreError::TooLarge(too_large())) } else { Ok(()) }
}

/// The error for a client when a write to the store fails.
pub(super) fn store_failed(operation: &str, fault: &StoreFault, gr: GroupResource<'_>) -> Status {
    match fault {
        StoreFault::Unavailable(_) => Status::server_timeout(operation, gr),
        StoreFault::TooLarge(_) => too_large(),
        StoreFault::Closed => Status::unavailable("the server is shutting down"),
        StoreFault::NoSpace(_) | StoreFault::Denied(_) | StoreFault::Corrupt(_) => Status::internal(fault),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(value: &str) -> Result<Map<String, Value>, Status> {
        let key = Key::new("things", None, "a").unwrap();
        let revision = Revision::new(7);
        parse(&KeyValue { key, value: value.to_owned().into(), created: revision, modified: revision, stale: false })
    }

    #[test]
    fn managed_fields_stay_a_text_from_parse_to_encode() {
        let entries = r#"[{"manager":"a \"b\"","fieldsV1":{"f:a":{},"k:{\"n\":1}":{}}}]"#;
        let check = |stored: &str, text: Option<&str>, encoded: &str| {
            let object = parsed(stored).unwrap();
            assert_eq!(listwatch_validation::metadata(&object).get(MANAGED_FIELDS).and_then(Value::as_str), text);
            assert_eq!(encode(&object), encoded);
        };
        let whole = |entries: &str| {
            format!(
                r#"{{"kind":"A","metadata":{{"name":"a","managedFields":{entries},"x":"\n"}},"managedFields":"b"}}"#
            )
        };
        check(&whole(entries), Some(entries), &whole(entries));
        check(&whole(&entries.replace(',', ",\n ")), Some(entries), &whole(entries));
        let without = r#"{"metadata":{"name":"a"}}"#;
        for nothing in ["[]", "null", "\"[1]\"", "{}"] {
            let stored = format!(r#"{{"metadata":{{"name":"a","resourceVersion":"7","managedFields":{nothing}}}}}"#);
            check(&stored, None, without);
        }
        check(r#"{"metadata":{}}"#, None, r#"{"metadata":{}}"#);
        assert_eq!(encode(&Map::new()), "{}");
        for broken in
            ["", "[]", "{}", r#"{"metadata":[]}"#, r#"{"metadata":{}} x"#, r#"{"metadata":{"managedFields":[}}"#]
        {
            assert_eq!(parsed(broken).unwrap_err().code, 500, "{broken}");
        }
    }

    #[test]
    fn only_complete_objects_with_metadata_are_readable() {
        assert!(is_readable(br#"{"kind":"A","metadata":{"na\u006de":"a","labels":{"a":"b"}},"spec":[1]}"#));
        for broken in
            ["", "{}", "[]", "k8s\0\n", "k8s:enc:aescbc:v1:key1:x", r#"{"metadata":{}}"#, r#"{"metadata":[]}"#]
        {
            assert!(!is_readable(broken.as_bytes()), "{broken:?}");
        }
        for broken in [r#"{"metadata":{"name":"a"},"spec":{"#, r#"{"metadata":{"name":"a"}}}"#] {
            assert!(!is_readable(broken.as_bytes()), "{broken:?}");
        }
    }

    #[test]
    fn encode_writes_the_same_bytes_as_serde_json() {
        let long = "x".repeat(31);
        let tree = json!({"a\"": [1, -2.5, 1e300, true, null, [], {}, "é\u{1}\n"], "": {"b": [{}, {"c": "\\"}]},
            "metadata": [], "long": [long, format!("{long}\""), format!("{long}x\u{7f}")]});
        let Value::Object(object) = &tree else { panic!("not an object") };
        assert_eq!(encode(object), tree.to_string());
    }
}
