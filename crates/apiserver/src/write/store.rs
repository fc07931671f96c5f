//! Between trees and the store: stored bytes become trees, trees become bytes, and one optimistic
//! loop carries a decision out ([`listwatch_storage::guaranteed_update`]).

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use bytes::Bytes;
use listwatch_meta::fuel;
use listwatch_meta::{Change, GroupResource, Key, Object, Revision, Status};
use listwatch_storage::{
    Decision, GuaranteedUpdateError, KeyValue, Outcome, StoreFault, UpdateLimits, VALUE_BYTES_MAX, guaranteed_update,
};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::document::JSON_BYTES_PER_UNIT;
use super::ownership::MANAGED_FIELDS;
use super::{WriteBody, WriteResponse};
use crate::backend::Backend;
use crate::compute;
use crate::registry::Resource;

/// How deep the lists and objects of an object nest, the object itself included. A body that nests deeper is a
/// 400 with `exceeded max depth`, as beyond the 10,000 levels of Go's decoders; a patch that would nest an object
/// deeper is a 422. serde_json parses 127 levels: five are for what `metadata.managedFields` says of the deepest
/// field, two for the list in which a client reads the object. So recursion over any object stays within any
/// stack. Kubernetes' own kinds need a quarter of it.
pub(super) const OBJECT_DEPTH_MAX: usize = 120;

/// True when lists and objects are nested more than `levels` deep in a value; a scalar has no level.
/// Adds to `visited` how many values were looked at. Does not recurse.
pub(super) fn is_deeper(value: &Value, levels: usize, visited: &mut usize) -> bool {
    let mut left = vec![(value, 0)];
    while let Some((value, above)) = left.pop() {
        *visited += 1;
        if above == levels && (value.is_array() || value.is_object()) {
            return true;
        }
        match value {
            Value::Array(items) => left.extend(items.iter().map(|item| (item, above + 1))),
            Value::Object(members) => left.extend(members.values().map(|member| (member, above + 1))),
            _ => {}
        }
    }
    false
}

/// What came of a write.
#[derive(Debug)]
pub(super) enum Done {
    /// The object was not there and is now; without a revision when only tried.
    Created { value: Bytes, revision: Option<Revision> },
    /// The object was changed, or would be: then the revision is the former one.
    Updated { value: Bytes, revision: Revision },
    /// Nothing had to be changed.
    Unchanged(KeyValue),
    /// The object is gone, or would be: then there is no revision.
    Deleted { previous: KeyValue, revision: Option<Revision> },
    /// Nothing was there, and nothing had to be.
    Absent,
}

/// What a client is told of a store that failed in [`run`], by what the server may do about it.
pub(super) enum Faulted {
    /// The object is too large.
    TooLarge(Status),
    /// Its fuel was used up before anything was written.
    Abandoned(Status),
    /// Whether it was written is unknown.
    Unknown(Status),
    /// Nothing was written, for another reason.
    Other(Status),
}

impl From<Faulted> for Status {
    fn from(faulted: Faulted) -> Self {
        match faulted {
            Faulted::TooLarge(status)
            | Faulted::Abandoned(status)
            | Faulted::Unknown(status)
            | Faulted::Other(status) => status,
        }
    }
}

/// Carries out what `decide` says about the state of one key, however often others change it
/// meanwhile. With `dry_run` it only finds out.
///
/// # Errors
/// What `decide` refuses with, confirmed on the state in the store; a [`Status`] when the store
/// fails.
pub(super) async fn run<E: From<Status> + From<Faulted>>(
    backend: &Backend,
    resource: &Resource,
    key: &Key,
    dry_run: bool,
    mut decide: impl FnMut(Option<&KeyValue>) -> Result<Decision, E>,
) -> Result<Done, E> {
    let storage = &**backend.storage();
    let decide = |found: Option<&KeyValue>| {
        let decision = decide(found);
        // A computation that was cut short has no effect. Nor does its error, which may ask for one, such as claims.
        if fuel::is_exhausted() {
            return Err(E::from(Faulted::Abandoned(compute::timed_out())));
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
            (Decision::Write { value, .. }, None) => Done::Created { value, revision: None },
            (Decision::Write { value, .. }, Some(found)) => Done::Updated { value, revision: found.modified },
            (Decision::Delete, Some(previous)) => Done::Deleted { previous, revision: None },
            (Decision::Nothing, Some(found)) => Done::Unchanged(found),
            (_, None) => Done::Absent,
        });
    }
    let suggestion = suggestion(backend, resource, key);
    let outcome = guaranteed_update(storage, key, suggestion, UpdateLimits::default(), decide).await;
    done(outcome, "update", resource)
}

/// The result of an optimistic loop. `operation` is the name of the write in errors.
///
/// # Errors
/// The refusal, or what the store failed with.
pub(super) fn done<E: From<Status> + From<Faulted>>(
    outcome: Result<Outcome, GuaranteedUpdateError<E>>,
    operation: &str,
    resource: &Resource,
) -> Result<Done, E> {
    Ok(match outcome {
        Ok(Outcome::Created(current)) => Done::Created { value: current.value, revision: Some(current.modified) },
        Ok(Outcome::Updated { current, .. }) => Done::Updated { value: current.value, revision: current.modified },
        Ok(Outcome::Deleted { previous, revision }) => Done::Deleted { previous, revision: Some(revision) },
        Ok(Outcome::Unchanged(Some(found))) => Done::Unchanged(found),
        Ok(Outcome::Unchanged(None)) => Done::Absent,
        Err(GuaranteedUpdateError::Refused(refusal)) => return Err(refusal),
        Err(GuaranteedUpdateError::Contended { .. }) => {
            return Err(Status::server_timeout(operation, resource.gr()).into());
        }
        Err(GuaranteedUpdateError::Fault(fault)) => {
            let status = store_failed(operation, &fault, resource.gr());
            let faulted = match fault {
                StoreFault::TooLarge(_) => Faulted::TooLarge(status),
                // A store may find out behind its write that an answer is corrupt.
                StoreFault::Unavailable(_) | StoreFault::Closed | StoreFault::Corrupt(_) => Faulted::Unknown(status),
                _ => Faulted::Other(status),
            };
            return Err(faulted.into());
        }
    })
}

/// The cached state of a key: a first guess that saves a read. Its JSON holds the resource
/// version, which [`parse`] takes out.
pub(super) fn suggestion(backend: &Backend, resource: &Resource, key: &Key) -> Option<KeyValue> {
    let object = backend.running_cacher(resource)?.peek(key)?;
    if object.is_normalized() {
        // These are not the bytes in the store, and what they are to be compared with is.
        return None;
    }
    Some(KeyValue {
        key: key.clone(),
        value: object.json(),
        // Unknown here, and nothing asks for it.
        created: Revision::ZERO,
        modified: object.revision(),
    })
}

/// The tree of a stored (or cached) object, without resource version. Its `metadata.managedFields` is a
/// text ([`super::ownership`] says why).
///
/// # Errors
/// 500 when the store holds something that is no object.
pub(super) fn parse(found: &KeyValue) -> Result<Map<String, Value>, Status> {
    if !fuel::charge_bytes(found.value.len(), JSON_BYTES_PER_UNIT) {
        return Err(compute::timed_out());
    }
    let corrupt = |why: String| Status::internal(format_args!("the object at {} cannot be read: {why}", found.key));
    let mut parser = serde_json::Deserializer::from_slice(&found.value);
    let object = parser.deserialize_map(StoredObject).map_err(|error| corrupt(error.to_string()))?;
    parser.end().map_err(|error| corrupt(error.to_string()))?;
    match object.get("metadata") {
        Some(Value::Object(_)) => Ok(object),
        _ => Err(corrupt("it has no metadata".to_owned())),
    }
}

/// Is a stored value an object, all of it? Builds nothing.
pub(super) fn is_readable(value: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Probe<'a> {
        #[serde(borrow)]
        metadata: HashMap<Cow<'a, str>, IgnoredAny>,
    }
    serde_json::from_slice::<Probe<'_>>(value).is_ok_and(|probe| !probe.metadata.is_empty())
}

/// The reader of a stored object.
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

/// The reader of the metadata of a stored object.
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
                MANAGED_FIELDS => match account(members.next_value::<&RawValue>()?.get()) {
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

/// The text of an account of who owns what, compact as all that is stored. `None` for what says nothing.
fn account(text: &str) -> Option<String> {
    if !text.starts_with('[') || text == "[]" {
        return None;
    }
    // Others may have stored it in several lines. A space may also be part of a name, and then stays.
    if text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return serde_json::from_str(text).map(|entries: Value| entries.to_string()).ok();
    }
    Some(text.to_owned())
}

/// The stored form of an object: compact JSON.
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
    // Most texts have nothing to escape. A whole chunk is looked at in a few instructions.
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
    // A scalar always encodes, and memory takes all of it.
    let _ = serde_json::to_writer(out, value);
}

/// An object as clients see it.
///
/// # Errors
/// 500 when the bytes are no object, which would be a fault of this server.
pub(super) fn object(
    resource: &Resource,
    key: &Key,
    revision: Revision,
    change: Change,
    value: &[u8],
) -> Result<Object, Status> {
    Object::from_stored(key.clone(), revision, change, value, &resource.shape).map_err(Status::internal)
}

impl Done {
    /// The answer of a create, update or patch.
    ///
    /// # Errors
    /// 500 when the stored bytes are no object.
    pub(super) fn response(
        self,
        resource: &Resource,
        key: &Key,
        warnings: Vec<String>,
    ) -> Result<WriteResponse, Status> {
        let (code, body) = match self {
            Done::Created { value, revision: None } => (201, WriteBody::Json(resource.shown_json(value))),
            Done::Created { value, revision: Some(revision) } => {
                (201, WriteBody::Object(object(resource, key, revision, Change::Added, &value)?))
            }
            Done::Updated { value, revision } => {
                (200, WriteBody::Object(object(resource, key, revision, Change::Modified, &value)?))
            }
            Done::Unchanged(found) | Done::Deleted { previous: found, .. } => {
                (200, WriteBody::Object(object(resource, key, found.modified, Change::Modified, &found.value)?))
            }
            Done::Absent => return Err(Status::not_found(resource.gr(), key.name())),
        };
        Ok(WriteResponse { code, body, warnings })
    }
}

/// What a client is told when a read of the store fails.
pub(super) fn read_failed(error: &listwatch_storage::ReadError, gr: GroupResource<'_>) -> Status {
    match error {
        listwatch_storage::ReadError::Fault(fault) => store_failed("get", fault, gr),
        other => Status::internal(other),
    }
}

/// What a client is told of an object that is larger than [`VALUE_BYTES_MAX`]: kube-apiserver passes etcd's
/// error on.
pub(super) fn too_large() -> Status {
    Status::unknown("etcdserver: request is too large")
}

/// Checks what only a store would check else, for a dry run.
///
/// # Errors
/// [`Faulted::TooLarge`].
pub(super) fn check_size(value: &Bytes) -> Result<(), Faulted> {
    if value.len() > VALUE_BYTES_MAX { Err(Faulted::TooLarge(too_large())) } else { Ok(()) }
}

/// What a client is told when the store fails.
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
        parse(&KeyValue { key, value: value.to_owned().into(), created: revision, modified: revision })
    }

    #[test]
    fn the_account_of_owners_stays_a_text_between_reading_and_writing() {
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
    fn readable_values_are_whole_objects_with_metadata() {
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
    fn trees_are_written_as_serde_writes_them() {
        let long = "x".repeat(31);
        let tree = json!({"a\"": [1, -2.5, 1e300, true, null, [], {}, "é\u{1}\n"], "": {"b": [{}, {"c": "\\"}]},
            "metadata": [], "long": [long, format!("{long}\""), format!("{long}x\u{7f}")]});
        let Value::Object(object) = &tree else { panic!("not an object") };
        assert_eq!(encode(object), tree.to_string());
    }

    #[test]
    fn depth_counts_lists_and_objects() {
        let check = |value: Value, depth: usize| {
            assert!(!is_deeper(&value, depth, &mut 0), "{value} is not deeper than {depth}");
            assert!(depth == 0 || is_deeper(&value, depth - 1, &mut 0), "{value} is {depth} deep");
        };
        check(json!(1), 0);
        check(json!([]), 1);
        check(json!({"a": 1}), 1);
        check(json!([1, {"a": [], "b": 2}, []]), 3);
        check(json!({"a": [[1]], "b": {}}), 3);
    }

    #[test]
    fn each_value_is_looked_at_once() {
        let mut visited = 1;
        assert!(!is_deeper(&json!({"a": [1, 2], "b": {"c": null}}), 100, &mut visited));
        assert_eq!(visited, 1 + 6);
    }
}
