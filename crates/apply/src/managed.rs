//! Decodes and encodes `metadata.managedFields`: [`Managed`] maps each manager to its fields.
//!
//! Source: `apimachinery/pkg/util/managedfields/internal/{managedfields,capmanagers,stripmeta}.go`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use listwatch_json::{Map, Value};
use listwatch_meta::go::quote;
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::encoded_set::EncodedSet;
use crate::fields_v1::{FieldsSeed, write_plain};
use crate::path::{Path, PathElement, Room};
use crate::set::Set;
use crate::value;

/// The largest number of update entries of an object. Above it, the oldest entries are merged into
/// one entry per version, whose manager is [`ANCIENT_CHANGES`].
pub const UPDATE_MANAGERS_MAX: usize = 10;

/// The manager name of entries that were merged because of [`UPDATE_MANAGERS_MAX`].
pub const ANCIENT_CHANGES: &str = "ancient-changes";

/// The kind of write by which a manager owns a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A server-side apply.
    Apply,
    /// Any other write.
    Update,
}

impl Operation {
    /// The operation's name: `Apply` or `Update`.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// The identity of a manager. One client may be several managers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Manager {
    /// The client's name, from the request or its `User-Agent`.
    pub name: String,
    /// An applier and an updater of the same name are different managers.
    pub operation: Operation,
    /// The version of the write; empty for appliers, which are the same manager in every version.
    pub api_version: String,
    /// The written subresource; empty for the object itself.
    pub subresource: String,
}

impl Manager {
    /// The manager of this name that writes in a version to a subresource (`""` for none).
    pub fn new(name: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let api_version = if operation == Operation::Apply { "" } else { api_version };
        Manager {
            name: name.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    /// The manager as Go's `BuildManagerIdentifier` encodes it. The result is also used as a sort key.
    pub(crate) fn identifier(&self) -> String {
        let mut out = String::from("{");
        let parts = [
            ("manager", &*self.name),
            ("operation", self.operation.name()),
            ("apiVersion", &self.api_version),
            ("subresource", &self.subresource),
        ];
        for (name, text) in parts {
            if !text.is_empty() {
                if out.len() > 1 {
                    out.push(',');
                }
                value::write_text(name, true, &mut out);
                out.push(':');
                value::write_text(text, true, &mut out);
            }
        }
        out.push('}');
        out
    }
}

/// Formats a manager as in conflicts: `"kubectl" using apps/v1`.
impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote(&self.name))?;
        if !self.subresource.is_empty() {
            write!(f, " with subresource {}", quote(&self.subresource))?;
        }
        if self.operation == Operation::Update {
            write!(f, " using {}", self.api_version)?;
        }
        Ok(())
    }
}

/// The fields of a manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedFields {
    /// The fields, named as in `api_version`.
    pub fields: EncodedSet,
    /// The version of the field names.
    pub api_version: String,
    /// The time when the manager last gained or lost a field, in whole seconds.
    pub time: Option<OffsetDateTime>,
}

impl OwnedFields {
    /// Removes fields. If the manager owns none of them, the text of its fields is kept.
    pub(crate) fn lose(&mut self, gone: &Set) {
        if self.fields.intersects(gone) {
            self.fields.subtract(gone);
        }
    }
}

/// The managers of an object and their fields.
pub type Managed = BTreeMap<Manager, OwnedFields>;

/// Estimates the bytes that managed fields have allocated.
pub fn heap_bytes(managed: &Managed) -> usize {
    const ENTRY_BYTES: usize = size_of::<(Manager, OwnedFields)>();
    /// The entries for which a node of the standard library's map has room.
    const NODE_ENTRIES: usize = 11;
    let entry = |(manager, owned): (&Manager, &OwnedFields)| {
        let texts = [&manager.name, &manager.api_version, &manager.subresource, &owned.api_version];
        texts.iter().map(|text| text.len()).sum::<usize>() + owned.fields.heap_bytes()
    };
    managed.len().next_multiple_of(NODE_ENTRIES) * ENTRY_BYTES + managed.iter().map(entry).sum::<usize>()
}

/// Decodes the time of an entry: whole seconds in UTC. `None` for a time that has no such form.
fn time_of(text: &str) -> Option<OffsetDateTime> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?.checked_to_offset(time::UtcOffset::UTC)?;
    Some(time.truncate_to_second()).filter(|time| (0..=9999).contains(&time.year()))
}

/// Decodes `metadata.managedFields`. If a manager has several entries, the last is used.
///
/// # Errors
/// The reason why the list is invalid, with the text of the Go code.
pub fn decode(entries: &Value) -> Result<Managed, String> {
    let mut managed = Managed::new();
    let room = Room::new();
    let entries = match entries {
        Value::Array(entries) => entries.as_slice(),
        _ => &[],
    };
    for (at, entry) in entries.iter().enumerate() {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err("operation must be `Apply` or `Update`".to_owned()),
        };
        if text("apiVersion").is_empty() {
            return Err("apiVersion must not be empty".to_owned());
        }
        match text("fieldsType") {
            "FieldsV1" => {}
            "" => return Err(format!("missing fieldsType in managed fields entry {at}")),
            other => {
                return Err(format!("invalid fieldsType {} in managed fields entry {at}", quote(other)));
            }
        }
        let fields = match entry.get("fieldsV1") {
            None | Some(Value::Null) => Set::new(),
            Some(fields) => {
                let because = |why: String| {
                    format!(
                        "error decoding versioned set from {}: error decoding set: {why}",
                        value::format_plain(entry)
                    )
                };
                Set::from_fields(fields, &room).map_err(because)?
            }
        };
        let manager = Manager::new(text("manager"), operation, text("apiVersion"), text("subresource"));
        let time = time_of(text("time"));
        let fields = fields.into();
        managed.insert(manager, OwnedFields { fields, api_version: text("apiVersion").to_owned(), time });
    }
    Ok(managed)
}

/// Decodes the text of `metadata.managedFields` without building a JSON tree first.
///
/// # Errors
/// As [`decode`].
pub fn from_text(text: &str) -> Result<Managed, String> {
    let mut parser = serde_json::Deserializer::from_str(text);
    if let Ok(managed) = parser.deserialize_seq(Entries(&Room::new()))
        && parser.end().is_ok()
    {
        return Ok(managed);
    }
    // Unusual or invalid input is left to the decoder of trees, which has the error texts.
    decode(&serde_json::from_str(text).map_err(|error| error.to_string())?)
}

/// Decodes a list of entries in the form that [`encode`] writes; fails for any other form.
struct Entries<'a>(&'a Room);

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = Managed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Managed, A::Error> {
        let mut managed = Managed::new();
        while let Some((manager, owned)) = entries.next_element_seed(Entry(self.0))? {
            managed.insert(manager, owned);
        }
        Ok(managed)
    }
}

/// The string members of an entry.
const ENTRY_TEXTS: [&str; 6] = ["manager", "operation", "apiVersion", "time", "fieldsType", "subresource"];

/// Decodes the name of a member of an entry to the index in [`ENTRY_TEXTS`], or to `None` for `fieldsV1`.
struct Member;

impl<'de> DeserializeSeed<'de> for Member {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<usize>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Member {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member of an entry")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Option<usize>, E> {
        if name == "fieldsV1" {
            return Ok(None);
        }
        let known = ENTRY_TEXTS.iter().position(|known| *known == name);
        known.map(Some).ok_or_else(|| E::custom("another member"))
    }
}

/// Decodes one entry.
struct Entry<'a>(&'a Room);

impl<'de> DeserializeSeed<'de> for Entry<'_> {
    type Value = (Manager, OwnedFields);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entry<'_> {
    type Value = (Manager, OwnedFields);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut texts: [Option<String>; ENTRY_TEXTS.len()] = Default::default();
        let mut fields = None;
        while let Some(member) = members.next_key_seed(Member)? {
            match member {
                Some(at) => texts[at] = Some(members.next_value()?),
                None => fields = members.next_value_seed(FieldsSeed::whole(self.0))?.0,
            }
        }
        let [manager, operation, api_version, time, fields_type, subresource] = texts.map(Option::unwrap_or_default);
        let operation = match &*operation {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err(A::Error::custom("another operation")),
        };
        if api_version.is_empty() || fields_type != "FieldsV1" {
            return Err(A::Error::custom("no version, or another type of fields"));
        }
        let manager = Manager::new(&manager, operation, &api_version, &subresource);
        let time = time_of(&time);
        Ok((manager, OwnedFields { fields: fields.unwrap_or_default().into(), api_version, time }))
    }
}

/// The entries of `metadata.managedFields`, in Go's order: appliers first, then by time and name.
pub fn encode(managed: &Managed) -> Vec<Value> {
    in_order(managed).into_iter().map(|(manager, owned)| entry(manager, owned)).collect()
}

/// The text of the entries that [`encode`] returns. Each entry keeps the text of its fields until the fields change.
pub fn to_text(managed: &mut Managed) -> String {
    let mut out = String::with_capacity(1024);
    out.push('[');
    let mut entries: Vec<(&Manager, &mut OwnedFields)> = managed.iter_mut().collect();
    entries.sort_by(|(a, owned_a), (b, owned_b)| by_order((a, owned_a), (b, owned_b)));
    for (at, (manager, owned)) in entries.into_iter().enumerate() {
        out.push_str(if at > 0 { ",{" } else { "{" });
        let time = owned.time.map(timestamp).unwrap_or_default();
        let texts = [
            ("manager", &*manager.name),
            ("operation", manager.operation.name()),
            ("apiVersion", &owned.api_version),
            ("time", &time),
            ("fieldsType", "FieldsV1"),
        ];
        for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            put_text(name, text, &mut out);
            out.push(',');
        }
        out.push_str("\"fieldsV1\":");
        owned.fields.write_fields(&mut out);
        if !manager.subresource.is_empty() {
            out.push(',');
            put_text("subresource", &manager.subresource, &mut out);
        }
        out.push('}');
    }
    out.push(']');
    out
}

fn put_text(name: &str, text: &str, out: &mut String) {
    write_plain(name, out);
    out.push(':');
    write_plain(text, out);
}

fn in_order(managed: &Managed) -> Vec<(&Manager, &OwnedFields)> {
    let mut entries: Vec<(&Manager, &OwnedFields)> = managed.iter().collect();
    entries.sort_by(|a, b| by_order(*a, *b));
    entries
}

/// Go's order of entries: appliers first, then by time and name.
fn by_order((a, owned_a): (&Manager, &OwnedFields), (b, owned_b): (&Manager, &OwnedFields)) -> Ordering {
    a.operation
        .name()
        .cmp(b.operation.name())
        .then_with(|| seconds(owned_a).cmp(&seconds(owned_b)))
        .then_with(|| a.name.cmp(&b.name))
        .then_with(|| owned_a.api_version.cmp(&owned_b.api_version))
        .then_with(|| a.subresource.cmp(&b.subresource))
}

fn seconds(owned: &OwnedFields) -> i64 {
    owned.time.map_or(0, OffsetDateTime::unix_timestamp)
}

fn entry(manager: &Manager, owned: &OwnedFields) -> Value {
    let mut entry = Map::with_capacity(7);
    let mut put = |name: &str, text: &str| {
        if !text.is_empty() {
            entry.insert(name, Value::from(text));
        }
    };
    put("manager", &manager.name);
    put("operation", manager.operation.name());
    put("apiVersion", &owned.api_version);
    if let Some(time) = owned.time {
        put("time", &timestamp(time));
    }
    put("fieldsType", "FieldsV1");
    entry.insert("fieldsV1", owned.fields.to_fields());
    if !manager.subresource.is_empty() {
        entry.insert("subresource", Value::from(manager.subresource.as_str()));
    }
    Value::Object(entry)
}

fn timestamp(time: OffsetDateTime) -> String {
    let time = time.to_offset(time::UtcOffset::UTC).truncate_to_second();
    // Years beyond 9999 have no RFC 3339 form, and clocks do not reach them.
    time.format(&Rfc3339).unwrap_or_default()
}

/// Whether a client requests that all ownership is reset: by an empty list, or a list of one empty
/// entry.
pub(crate) fn is_reset(entries: Option<&Value>) -> bool {
    match entries {
        Some(Value::Array(entries)) => match &**entries {
            [] => true,
            [Value::Object(entry)] => entry.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

/// Whether two states of ownership differ at most in their times.
pub fn differ_in_time_only(old: &Managed, new: &Managed) -> bool {
    let (old, new) = (in_order(old), in_order(new));
    let same = |((old_manager, old), (new_manager, new)): (&(&Manager, &OwnedFields), &(&Manager, &OwnedFields))| {
        old_manager == new_manager && old.api_version == new.api_version && old.fields == new.fields
    };
    old.len() == new.len() && old.iter().zip(&new).all(same)
}

/// Merges the oldest update entries until at most [`UPDATE_MANAGERS_MAX`] remain, or one per
/// version.
pub(crate) fn cap(managed: &mut Managed) {
    let updaters = || managed.keys().filter(|manager| manager.operation == Operation::Update);
    let mut left = updaters().count();
    if left <= UPDATE_MANAGERS_MAX {
        return;
    }
    let mut oldest: Vec<(i64, String, Manager)> =
        updaters().map(|manager| (seconds(&managed[manager]), manager.identifier(), manager.clone())).collect();
    oldest.sort();
    let mut first_of: BTreeMap<String, Manager> = BTreeMap::new();
    let mut ancient_fields: BTreeMap<Manager, Vec<Set>> = BTreeMap::new();
    for (_, _, manager) in oldest {
        if left <= UPDATE_MANAGERS_MAX {
            break;
        }
        let version = managed[&manager].api_version.clone();
        let Some(first) = first_of.get(&version) else {
            first_of.insert(version, manager);
            continue;
        };
        let bucket = Manager::new(ANCIENT_CHANGES, Operation::Update, &version, "");
        left -= 1;
        if manager == bucket {
            // The fields lose their owner, as upstream, where the entry is merged into itself and then deleted.
            managed.remove(&bucket);
            ancient_fields.remove(&bucket);
            continue;
        }
        if !managed.contains_key(&bucket)
            && let Some(owned) = managed.remove(first)
        {
            managed.insert(bucket.clone(), owned);
        }
        let Some(merged) = managed.remove(&manager) else { continue };
        match managed.get_mut(&bucket) {
            Some(ancient) => {
                // Entries that are merged later are newer.
                ancient.time = merged.time;
                ancient_fields.entry(bucket).or_default().push(merged.fields.into_set());
            }
            None => {
                managed.insert(bucket, merged);
            }
        }
    }
    for (bucket, fields) in ancient_fields {
        if let Some(ancient) = managed.get_mut(&bucket) {
            ancient.fields.absorb(Set::union_of(fields));
        }
    }
}

/// Removes the fields that managers cannot own: the object's identity, and fields that only the
/// server sets. Returns the removed fields.
pub(crate) fn strip_meta(fields: &mut Set) -> Set {
    static STRIPPED: LazyLock<Set> = LazyLock::new(|| {
        let metadata = [
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
        ];
        let top = ["apiVersion", "kind", "metadata"].map(|name| Path::of_fields(&[name]));
        let paths: Vec<Path> =
            top.into_iter().chain(metadata.map(|name| Path::of_fields(&["metadata", name]))).collect();
        paths.iter().collect()
    });
    let stripped = fields.intersection(&STRIPPED);
    if !stripped.is_empty() {
        fields.subtract(&stripped);
    }
    stripped
}

/// The path of a Scale's replicas.
fn scale_replicas() -> Vec<PathElement> {
    Path::of_fields(&["spec", "replicas"]).0
}

/// The API version of Scale.
pub const SCALE_VERSION: &str = "autoscaling/v1";

/// Whether both versions have the same group. The path of the replicas is the same in all versions
/// of a group.
fn same_group(a: &str, b: &str) -> bool {
    let group = |version: &str| version.rsplit_once('/').map_or(String::new(), |(group, _)| group.to_owned());
    group(a) == group(b)
}

/// Converts the owners of an object's replicas to the managers of its Scale. `replicas` is the path
/// within the object, `api_version` its version.
pub fn to_scale(parent: &Managed, api_version: &str, replicas: &Path) -> Managed {
    let known = |owned: &OwnedFields| same_group(&owned.api_version, api_version) && owned.fields.has(&replicas.0);
    let owners = parent.iter().filter(|(_, owned)| known(owned));
    let scaled = owners.map(|(manager, owned)| {
        let mut fields = Set::new();
        fields.insert(&scale_replicas());
        (
            manager.clone(),
            OwnedFields { fields: fields.into(), api_version: SCALE_VERSION.to_owned(), time: owned.time },
        )
    });
    scaled.collect()
}

/// The managers of an object after a write to its Scale; `scale` are the Scale's managers after the
/// write. The inverse of [`to_scale`].
pub fn from_scale(parent: &Managed, mut scale: Managed, api_version: &str, replicas: &Path) -> Managed {
    let mut managed = Managed::new();
    for (manager, owned) in parent {
        if !same_group(&owned.api_version, api_version) {
            continue;
        }
        let mut owned = owned.clone();
        if owned.fields.has(&replicas.0) && scale.remove(manager).is_none() {
            let mut stolen = Set::new();
            stolen.insert(&replicas.0);
            owned.fields.subtract(&stolen);
            if owned.fields.is_empty() {
                continue;
            }
        }
        managed.insert(manager.clone(), owned);
    }
    for (manager, owned) in scale {
        if owned.fields.has(&scale_replicas()) {
            let mut fields = Set::new();
            fields.insert(&replicas.0);
            // kube-apiserver does not keep the time of the Scale's write either.
            let time = parent.get(&manager).and_then(|owned| owned.time);
            let fields = fields.into();
            managed.insert(manager, OwnedFields { fields, api_version: api_version.to_owned(), time });
        }
    }
    managed
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn managed_fields_decoded_from_text_equal_those_decoded_from_values() {
        let entry = |change: &dyn Fn(&mut Value)| {
            let mut entry = json!({"manager": "a \"b\"\u{8}", "operation": "Update", "apiVersion": "v1",
                "time": "2026-01-02T03:04:05Z", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:a": {}, "f:b": {".": {}, "k:{\"name\":\"x\\u000c\"}": {"f:c": {}}}},
                "subresource": "status"});
            change(&mut entry);
            entry
        };
        let without = |name: &'static str| {
            entry(&move |entry: &mut Value| {
                entry.as_object_mut().unwrap().shift_remove(name);
            })
        };
        let with = |name: &'static str, value: Value| entry(&move |entry: &mut Value| entry[name] = value.clone());
        let whole = || with("operation", json!("Apply"));
        for entries in [
            json!([]),
            json!([whole(), entry(&|_| {})]),
            json!([entry(&|_| {}), whole(), entry(&|_| {}), with("time", json!("2025-01-02T03:04:05.5+01:00"))]),
            json!([without("manager"), without("time"), without("subresource"), without("fieldsV1")]),
            json!([without("apiVersion")]),
            json!([without("operation")]),
            json!([without("fieldsType")]),
            json!([with("fieldsType", json!("FieldsV2"))]),
            json!([with("time", json!(null)), with("manager", json!(7))]),
            json!([with("more", json!({"a": 1}))]),
            json!([with("fieldsV1", json!(null))]),
            json!([with("fieldsV1", json!({"f:a": 5}))]),
            json!([with("fieldsV1", json!({"f:b": {}, "f:a": {"f:c": {}, "f:b": {}}, "x:c": [1], ".": 1}))]),
            json!([with("fieldsV1", json!({"v:1.0": {}, "v:1": {"f:a": {}}}))]),
            json!([1, null]),
            json!({"a": 1}),
            json!(null),
        ] {
            let (tree, text) = (decode(&entries), from_text(&entries.to_string()));
            assert_eq!(text, tree, "{entries}");
            if let Ok(mut managed) = tree {
                let expected = Value::Array(encode(&managed)).to_string();
                assert_eq!(to_text(&mut managed), expected);
                assert_eq!(to_text(&mut managed), expected, "from the kept texts");
            }
        }
        assert!(from_text("[{]").is_err());
        let twice = r#"[{"operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:a":{"f:b":{}},"f:a":{}}}]"#;
        assert_eq!(from_text(twice), decode(&serde_json::from_str(twice).unwrap()), "the last of a name counts");
    }

    fn updater(name: &str, second: i64, fields: impl IntoIterator<Item = String>) -> (Manager, OwnedFields) {
        let mut set = Set::new();
        fields.into_iter().for_each(|field| set.insert(&[PathElement::field(&field)]));
        let time = OffsetDateTime::from_unix_timestamp(second).ok();
        let owned = OwnedFields { fields: set.into(), api_version: "v1".to_owned(), time };
        (Manager::new(name, Operation::Update, "v1", ""), owned)
    }

    fn names(managed: &Managed) -> Vec<&str> {
        managed.keys().map(|manager| &*manager.name).collect()
    }

    #[test]
    fn oldest_update_entries_are_merged_into_one_entry() {
        let mut managed: Managed = (0..13).map(|at| updater(&format!("m{at:02}"), at, [format!("f{at:02}")])).collect();
        cap(&mut managed);
        let left: Vec<String> = (4..13).map(|at| format!("m{at:02}")).collect();
        assert_eq!(names(&managed)[1..], left);
        let ancient = &managed[&Manager::new(ANCIENT_CHANGES, Operation::Update, "v1", "")];
        assert_eq!(ancient.fields.to_json(), r#"{"f:f00":{},"f:f01":{},"f:f02":{},"f:f03":{}}"#);
        assert_eq!(ancient.time.unwrap().unix_timestamp(), 3, "the time of the newest merged entry");
    }

    /// apimachinery merges such an entry into itself and then removes it (`capmanagers.go`, `capUpdateManagers`).
    #[test]
    fn merged_entry_that_is_not_the_oldest_is_dropped() {
        let mut managed: Managed = (2..11).map(|at| updater(&format!("m{at:02}"), at, [format!("f{at:02}")])).collect();
        managed.extend([updater(ANCIENT_CHANGES, 1, ["old".to_owned()]), updater("scale", 0, ["replicas".to_owned()])]);
        cap(&mut managed);
        let left: Vec<String> = (2..11).map(|at| format!("m{at:02}")).chain(["scale".to_owned()]).collect();
        assert_eq!(names(&managed), left);
    }

    #[test]
    fn merging_many_update_entries_copies_a_large_entry_few_times() {
        let time_with = |fields: usize| {
            let large = updater("a", 0, (0..fields).map(|at| format!("x{at:06}")));
            let small = (1..20_000).map(|at| updater(&format!("b{at:06}"), at, ["f".to_owned()]));
            let mut managed: Managed = std::iter::once(large).chain(small).collect();
            let start = std::time::Instant::now();
            cap(&mut managed);
            let took = start.elapsed();
            let ancient = &managed[&Manager::new(ANCIENT_CHANGES, Operation::Update, "v1", "")];
            assert_eq!((managed.len(), ancient.fields.len()), (UPDATE_MANAGERS_MAX, fields + 1));
            took
        };
        let short = time_with(1);
        // A copy for each small entry would take 100 times as long. A stall of the machine can spoil one measurement,
        // but hardly three.
        let is_fast = (0..3).any(|_| time_with(50_000) < 10 * short);
        assert!(is_fast, "a large entry is copied for each small entry; without a large entry, {short:?} are needed");
    }

    #[test]
    fn keys_and_values_of_managed_fields_take_bounded_memory() {
        let entries = |values: usize| {
            let fields: Map = (0..values).map(|at| (format!("v:[{at}{}]", ",[]".repeat(1_000)), json!({}))).collect();
            let entry = |manager: &str, fields: &Map| {
                json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                    "fieldsV1": fields})
            };
            json!([entry("a", &fields), entry("b", &fields)])
        };
        let few = entries(10);
        let decoded = decode(&few).unwrap();
        assert_eq!(from_text(&few.to_string()), Ok(decoded.clone()));
        let value = size_of::<Value>();
        assert!(heap_bytes(&decoded) > 20 * 1_001 * value, "{}", heap_bytes(&decoded));
        // Each entry alone would fit.
        let many = entries(80);
        assert!(decode(&many).unwrap_err().contains("too much memory"));
        assert!(from_text(&many.to_string()).unwrap_err().contains("too much memory"));
    }

    #[test]
    fn differ_in_time_only_ignores_only_timestamps() {
        let managed = |manager: &str, field: &str, second: i64| {
            let mut fields = Set::new();
            fields.insert(&[PathElement::field(field)]);
            let time = OffsetDateTime::from_unix_timestamp(second).ok();
            let owned = OwnedFields { fields: fields.into(), api_version: "v1".to_owned(), time };
            Managed::from([(Manager::new(manager, Operation::Update, "v1", ""), owned)])
        };
        let one = managed("a", "x", 1);
        assert!(differ_in_time_only(&one, &managed("a", "x", 2)));
        assert!(!differ_in_time_only(&one, &managed("a", "y", 1)));
        assert!(!differ_in_time_only(&one, &managed("b", "x", 1)));
        assert!(!differ_in_time_only(&one, &Managed::new()));
        let two = |second: i64| managed("a", "x", 2).into_iter().chain(managed("b", "x", second)).collect::<Managed>();
        assert!(differ_in_time_only(&two(3), &two(4)));
        assert!(!differ_in_time_only(&two(3), &two(1)), "the order of entries goes by time");
    }
}
