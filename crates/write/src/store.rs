//! Converts between trees and stored bytes, and runs the optimistic loop that writes one key
//! ([`listwatch_storage::guaranteed_update`]).

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use listwatch_json::{Map, Value};
use listwatch_meta::fuel;
use listwatch_meta::{Change, GroupResource, Key, Object, Revision, Status};
use listwatch_storage::{
    Decision, GuaranteedUpdateError, KeyValue, Outcome, StoreFault, UpdateLimits, VALUE_BYTES_MAX, guaranteed_update,
    unreadable_reason,
};
use serde::de::IgnoredAny;

use super::memory::JSON_BYTES_PER_UNIT;
use super::pipeline::Write;
use super::recent::{RecentObject, RecentObjects, is_same_state};
use super::request::{WriteBody, WriteResponse};
pub(super) use listwatch_registry::encode_tree as encode;
use listwatch_registry::{Backend, Resource, parse_tree};
use listwatch_validation::clock::Clock;
use listwatch_validation::metadata;
use listwatch_validation::object_meta::text;

/// Returns a random UUID, or a constant if the clock is fixed.
pub(super) fn new_uid(clock: &Clock) -> String {
    if clock.is_fixed() { uuid::Uuid::nil().to_string() } else { uuid::Uuid::new_v4().to_string() }
}

/// The name of the metadata field with the managed fields.
pub(super) const MANAGED_FIELDS: &str = "managedFields";

/// The outcome of a write.
#[derive(Debug)]
pub(super) enum WriteOutcome {
    /// The object was created. A dry run has no revision.
    Created { value: Bytes, revision: Option<Revision> },
    /// The object was updated. A dry run has the previous revision.
    Updated { value: Bytes, revision: Revision },
    /// The object needed no change.
    Unchanged(KeyValue),
    /// The object was deleted. A dry run has no revision.
    Deleted { previous: KeyValue, revision: Option<Revision> },
    /// The object was absent, and the write did not create it.
    Absent,
}

/// The error of a failed write in [`run`]. Each variant states whether the object may have been stored, which decides
/// whether allocated addresses and ports are released.
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
    if resource.converts_by_webhook() {
        // The caches hold converted objects.
        return None;
    }
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

/// An existing object before a write.
pub(super) struct Existing {
    /// The object in the stored version, with the defaults of its kind.
    pub(super) object: RecentObject,
    /// Whether the stored value is known to have these defaults. If not, [`has_all_defaults`] decides.
    pub(super) is_complete: bool,
}

/// Returns the tree of a stored or cached object like [`parse`], with the defaults of its kind. Upstream applies them
/// whenever it decodes an object, which an older release may have stored without some of them.
///
/// An object that was written recently is not parsed, and has all defaults. The write has applied the defaults of its
/// kind. It has also changed the fields that upstream changes at each read ([`listwatch_kinds::Kind::default_on_read`]):
/// `clusterIPs`, `ipFamilies`, `ipFamilyPolicy` and `internalTrafficPolicy` of services, `dataSource` and `dataSourceRef`
/// of claims of volumes, and the labels in the pod template of jobs.
///
/// # Errors
/// The errors of [`parse`].
pub(super) fn take_or_parse(recent: &RecentObjects, resource: &Resource, found: &KeyValue) -> Result<Existing, Status> {
    // The rest of a write takes time for each byte, too.
    if !fuel::charge_bytes(found.value.len(), JSON_BYTES_PER_UNIT) {
        return Err(Status::request_timed_out());
    }
    let Some(object) = recent.take(found) else {
        let mut tree = parse_free(found)?;
        resource.strategy.apply_stored_defaults(&mut tree);
        // `Resource::read_stored` applies the defaults of custom resources.
        let is_complete = resource.builtin.is_none();
        return Ok(Existing { object: RecentObject { tree, managed: None }, is_complete });
    };
    debug_assert_eq!(
        parse_tree(&found.value).ok().map(|tree| (encode(&tree), tree)),
        Some((encode(&object.tree), object.tree.clone())),
        "the kept tree is not that of its bytes"
    );
    Ok(Existing { object, is_complete: true })
}

/// Whether a stored value has all defaults of `completed`, which is its tree with the defaults. If not, a write that
/// changes nothing else stores them: upstream compares the bytes (`GuaranteedUpdate` of `etcd3/store.go`).
///
/// # Errors
/// The errors of [`parse`].
pub(super) fn has_all_defaults(found: &KeyValue, completed: &Map) -> Result<bool, Status> {
    // Values of this server are encoded to the same bytes, which takes less time than parsing them.
    Ok(is_same_state(&found.value, &encode(completed), found.modified) || parse_free(found)? == *completed)
}

/// Whether a tree has the form that [`parse`] returns: without resource version, and with managed fields as a text.
pub(super) fn is_as_parsed(tree: &Map) -> bool {
    let metadata = metadata(tree);
    metadata.get(MANAGED_FIELDS).is_none_or(Value::is_string) && !metadata.contains_key("resourceVersion")
}

/// Parses a stored or cached object into a tree without resource version. `metadata.managedFields` stays a JSON text in
/// a string; see [`super::ownership`].
///
/// # Errors
/// 500 when the stored bytes are not an object.
pub(super) fn parse(found: &KeyValue) -> Result<Map, Status> {
    if !fuel::charge_bytes(found.value.len(), JSON_BYTES_PER_UNIT) {
        return Err(Status::request_timed_out());
    }
    parse_free(found)
}

/// [`parse`] without a charge of fuel.
pub(super) fn parse_free(found: &KeyValue) -> Result<Map, Status> {
    let corrupt = |why: String| Status::internal(format_args!("the object at {} cannot be read: {why}", found.key));
    if let Some(why) = unreadable_reason(&found.value) {
        return Err(corrupt(why.to_owned()));
    }
    let object = parse_tree(&found.value).map_err(|error| corrupt(error.to_string()))?;
    match object.get("metadata") {
        Some(Value::Object(_)) => Ok(object),
        _ => Err(corrupt("it has no metadata".to_owned())),
    }
}

/// Returns the uid of a stored or cached object, `""` if it has none. Builds no tree.
///
/// # Errors
/// The errors of [`parse`].
pub(super) fn uid_of(found: &KeyValue) -> Result<String, Status> {
    #[derive(serde::Deserialize)]
    struct Probe<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(serde::Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow)]
        uid: Option<Cow<'a, str>>,
    }
    match serde_json::from_slice::<Probe<'_>>(&found.value) {
        Ok(probe) => Ok(probe.metadata.uid.unwrap_or_default().into_owned()),
        // Repeated members, or an error.
        Err(_) => Ok(text(metadata(&parse(found)?), "uid").to_owned()),
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

/// Returns the object of a written state for the response. The watch cache uses the same object for the event of the
/// write.
///
/// # Errors
/// 500 when the bytes are not an object, which is a fault of this server.
pub(super) fn written_object(
    backend: &Backend,
    resource: &Resource,
    key: &Key,
    revision: Revision,
    change: Change,
    value: &Bytes,
) -> Result<Object, Status> {
    let build = || object(resource, key, revision, change, value);
    // The cache of a definition can have another shape than the resource of this write, and that of a second version has.
    let is_same_shape = !resource.custom && resource.is_as_cached();
    match backend.running_cacher(resource).filter(|_| is_same_shape) {
        Some(cacher) => cacher.written(key, revision, value, build),
        None => build(),
    }
}

/// Builds an object for a response.
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

/// Converts a stored value to the version that caches and responses contain, if a webhook converts.
///
/// # Errors
/// 500 if the conversion webhook fails. As in kube-apiserver, the write has already taken effect.
pub(super) async fn cached_form(resource: &Resource, value: Bytes, deadline: Option<Instant>) -> Result<Bytes, Status> {
    if !resource.converts_by_webhook() {
        return Ok(value);
    }
    let stored = parse_tree(&value).map_err(Status::internal)?;
    Ok(encode(&*resource.read_stored(&stored, deadline).await?))
}

/// Whether an object of a write is the one of the watch cache, in the form in which it is stored.
pub(super) fn has_stored_form(resource: &Resource, object: &Object) -> bool {
    !resource.custom && resource.is_as_cached() && !object.is_normalized()
}

/// The outcome of a write of a client, with the key of the written object.
pub(super) struct Written {
    pub(super) key: Key,
    pub(super) outcome: WriteOutcome,
}

impl Written {
    /// Builds the response to a create, update or patch. A call to a conversion webhook ends at the deadline of the write.
    ///
    /// # Errors
    /// 500 when the stored bytes are not an object, or a conversion webhook fails.
    pub(super) async fn response(self, write: &Write<'_>, warnings: Vec<String>) -> Result<WriteResponse, Status> {
        let resource = write.resource;
        let Written { key, outcome } = self;
        let key = &key;
        let (code, value, shown) = match outcome {
            WriteOutcome::Created { value, revision } => {
                (201, value, revision.map(|revision| (revision, Change::Added)))
            }
            WriteOutcome::Updated { value, revision } => (200, value, Some((revision, Change::Modified))),
            WriteOutcome::Unchanged(found) | WriteOutcome::Deleted { previous: found, .. } => {
                (200, found.value, Some((found.modified, Change::Modified)))
            }
            WriteOutcome::Absent => return Err(Status::not_found(resource.gr(), key.name())),
        };
        let value = cached_form(resource, value, write.context.deadline).await?;
        let body = match shown {
            Some((revision, change)) => {
                let object = written_object(write.backend, resource, key, revision, change, &value)?;
                if has_stored_form(resource, &object) {
                    write.recent.share(key, &value, object.json());
                }
                WriteBody::Object(object)
            }
            None => WriteBody::DryRun(resource.shown_json(value)),
        };
        Ok(WriteResponse { code, body, warnings })
    }
}

/// Returns the error for the client when a read of the store fails.
pub(super) fn read_failed(error: &listwatch_storage::ReadError, gr: GroupResource<'_>) -> Status {
    match error {
        listwatch_storage::ReadError::Fault(fault) => store_failed("get", fault, gr),
        other => Status::internal(other),
    }
}

/// Returns the error for an object larger than [`VALUE_BYTES_MAX`]. The message is etcd's, which kube-apiserver
/// forwards.
pub(super) fn too_large() -> Status {
    Status::unknown("etcdserver: request is too large")
}

/// Checks the size of a value in a dry run, which does not reach the store's own check.
///
/// # Errors
/// [`StoreError::TooLarge`].
pub(super) fn check_size(value: &Bytes) -> Result<(), StoreError> {
    if value.len() > VALUE_BYTES_MAX { Err(StoreError::TooLarge(too_large())) } else { Ok(()) }
}

/// Returns the error for the client when a write to the store fails.
pub(super) fn store_failed(operation: &str, fault: &StoreFault, gr: GroupResource<'_>) -> Status {
    match fault {
        StoreFault::Unavailable(_) => Status::server_timeout(operation, gr),
        StoreFault::TooLarge(_) => too_large(),
        StoreFault::Closed => Status::unavailable("the server is shutting down"),
        StoreFault::Unconvertible(text) => Status::unknown(text.as_str()),
        StoreFault::NoSpace(_) | StoreFault::Denied(_) | StoreFault::Corrupt(_) => Status::internal(fault),
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn parsed(value: &str) -> Result<Map, Status> {
        let key = Key::new("things", None, "a").unwrap();
        let revision = Revision::new(7);
        parse(&KeyValue { key, value: value.to_owned().into(), created: revision, modified: revision, stale: false })
    }

    #[test]
    fn parse_and_encode_keep_managed_fields_as_unparsed_text() {
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
    fn uid_of_equals_the_uid_of_the_parsed_object() {
        for value in [
            r#"{"kind":"A","metadata":{"name":"a","uid":"u-1","labels":{"uid":"x"}},"spec":{"metadata":{"uid":"y"}}}"#,
            r#"{"metadata":{"uid":"a\u002db"}}"#,
            r#"{"metadata":{"uid":"a","uid":"b"}}"#,
            r#"{"metadata":{"uid":"a"},"metadata":{"uid":"b"}}"#,
            r#"{"metadata":{"uid":7}}"#,
            r#"{"metadata":{"uid":null}}"#,
            r#"{"metadata":{"name":"a"}}"#,
            r#"{"metadata":[]}"#,
            r#"{"spec":{}}"#,
            r#"{"metadata":{"uid":"a"}"#,
            "k8s\0",
        ] {
            let key = Key::new("things", None, "a").unwrap();
            let (value, revision) = (Bytes::from(value), Revision::new(7));
            let found = KeyValue { key, value, created: revision, modified: revision, stale: false };
            let expected = parse(&found).map(|object| text(metadata(&object), "uid").to_owned());
            assert_eq!(uid_of(&found), expected, "{found:?}");
        }
    }

    #[test]
    fn is_readable_accepts_only_complete_objects_with_metadata() {
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
