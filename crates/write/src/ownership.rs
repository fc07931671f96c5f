//! Tracks `metadata.managedFields` for every write and for server-side apply. [`listwatch_apply`] implements the rules;
//! this module provides the data about the resource and the request.
//!
//! In trees that come from the store or go to the store, `metadata.managedFields` is a string with the JSON text.
//! [`super::store`] reads and writes that text unparsed, because the parsed tree would be large. Only
//! [`managed::from_text`] parses the text. A client sends a tree. If a patch may read the field,
//! [`expand_managed_fields`] replaces the text by the tree.

use std::borrow::Cow;
use std::sync::LazyLock;

use listwatch_apply::managed::{self, Managed};
use listwatch_apply::{Kind, Path, Set, Typing, Writer};
use listwatch_json::{JsonString, Map, Value};
use listwatch_kinds::versions;
use listwatch_registry::{Resource, Subresource};
use listwatch_validation::{metadata, metadata_mut};
use time::OffsetDateTime;

use super::store::MANAGED_FIELDS;
use super::version_conversions::VersionConversions;

/// Returns the merge rules of a resource. The first write to the resource builds them.
pub(super) fn kind(resource: &Resource) -> &Kind {
    resource.merging.get_or_init(|| {
        let api_version = resource.api_version();
        if !resource.custom {
            let built_in = |version: &str| Typing::of_built_in(version, &resource.kind).unwrap_or_else(Typing::deduced);
            let kind = Kind::built_in(&api_version, &resource.kind, built_in(&api_version));
            // Upstream converts only within a group: a write of an event through one of its groups removes the fields
            // that managers own through the other one.
            let is_same_group = |other: &str| other.rsplit_once('/').map_or("", |(group, _)| group) == resource.group;
            return match versions::other(&api_version, &resource.kind) {
                Some((other, convert)) if is_same_group(&other) => kind.with_version(&other, built_in(&other), convert),
                _ => kind,
            };
        }
        // A version that is no longer served may still have managers (`buildOpenAPIModelsForApply`).
        let preserves_unknown_fields = resource.preserves_unknown_fields();
        let typing = |schema: Option<&Value>| match schema {
            Some(schema) => Typing::of_custom_resource(schema, preserves_unknown_fields),
            None => Typing::deduced(),
        };
        let others = resource.form.iter().flat_map(|form| {
            let kind = form.kind();
            let others = kind.versions().iter().filter(|version| **version != resource.version);
            others
                .map(|version| (format!("{}/{version}", resource.group), typing(kind.openapi_schema(version).as_ref())))
        });
        let own = typing(resource.openapi_schema().as_deref());
        Kind::custom(&api_version, &resource.kind, own, others.collect())
    })
}

/// Returns the merge rules of a resource, with the conversions of one write if a webhook converts.
pub(super) fn convertible_kind<'a>(resource: &'a Resource, conversions: Option<&VersionConversions>) -> Cow<'a, Kind> {
    let kind = kind(resource);
    match conversions {
        Some(conversions) => Cow::Owned(conversions.kind(kind)),
        None => Cow::Borrowed(kind),
    }
}

/// Returns the merge rules of the kind `autoscaling/v1` Scale.
pub(super) fn scale_kind() -> &'static Kind {
    static SCALE: LazyLock<Kind> = LazyLock::new(|| {
        let typing = Typing::of_built_in(managed::SCALE_VERSION, "Scale").unwrap_or_else(Typing::deduced);
        Kind::built_in(managed::SCALE_VERSION, "Scale", typing)
    });
    &SCALE
}

/// The fields that the client did not set and that admission may set.
pub(super) struct Sent {
    absent: Vec<&'static str>,
}

impl Sent {
    /// Records the absent fields of an object before admission changes the object.
    pub(super) fn of(resource: &Resource, object: &Map) -> Self {
        let fields = resource.strategy.admission_fields().iter().copied();
        let spec = object.get("spec");
        Sent { absent: fields.filter(|name| spec.is_none_or(|spec| spec.get(name).is_none())).collect() }
    }
}

/// The field manager of a write, and the object that it writes.
pub(super) struct FieldWriter<'a> {
    pub(super) resource: &'a Resource,
    pub(super) subresource: Option<&'a Subresource>,
    /// The conversions to the versions of other field managers, if a webhook converts.
    pub(super) conversions: Option<&'a VersionConversions>,
    pub(super) manager: &'a str,
    pub(super) now: OffsetDateTime,
}

impl FieldWriter<'_> {
    /// Returns the [`Writer`] for the Scale of the object, with the same field manager and time.
    pub(super) fn of_scale<'s>(&'s self, reset: &'s Set) -> Writer<'s> {
        Writer { manager: self.manager, subresource: "scale", now: self.now, reset }
    }

    /// Makes the manager the owner of all fields that differ between `old` (`None`: absent) and `new`. If `parsed` holds
    /// the managed fields of `old`, their text is not parsed. Returns the managed fields of `new`; `None` if `new` has
    /// none.
    pub(super) fn track_managed_fields(
        &self,
        old: Option<&Value>,
        new: &mut Map,
        sent: &Sent,
        parsed: Option<ParsedManagedFields>,
    ) -> Option<ParsedManagedFields> {
        self.resource.strategy.late_defaults(new);
        let absent = sent.absent.iter();
        let subresource = self.subresource.map_or("", Subresource::name);
        // A text is the stored value, which the patch did not touch.
        let sent = metadata_mut(new).shift_remove(MANAGED_FIELDS).filter(|sent| !sent.is_string());
        let object = Value::Object(std::mem::take(new));
        let mut reset = self.resource.strategy.writes().reset_fields(self.subresource, &object);
        absent.for_each(|name| reset.insert(&Path::of_fields(&["spec", name]).0));
        let by = Writer { manager: self.manager, subresource, now: self.now, reset: &reset };
        let before = || {
            let Some(old) = old.map(as_map) else { return Managed::new() };
            let parsed = parsed.and_then(|parsed| parsed.of(old));
            if let Some(parsed) = &parsed {
                debug_assert_eq!(
                    *parsed,
                    managed_fields_of(old),
                    "the kept managed fields are not those of their text"
                );
            }
            parsed.unwrap_or_else(|| managed_fields_of(old))
        };
        let kind = convertible_kind(self.resource, self.conversions);
        let managed = kind.track_update(old, &object, sent.as_ref(), before, by);
        *new = into_map(object);
        let mut managed = managed?;
        let text = set_managed_fields(new, &mut managed)?;
        Some(ParsedManagedFields { text, managed })
    }
}

/// Managed fields with their text in a tree.
pub(super) struct ParsedManagedFields {
    text: JsonString,
    pub(super) managed: Managed,
}

impl ParsedManagedFields {
    /// Returns the managed fields if they are those of a tree.
    fn of(self, tree: &Map) -> Option<Managed> {
        self.is_of(tree).then_some(self.managed)
    }

    /// Whether these are the managed fields of a tree.
    pub(super) fn is_of(&self, tree: &Map) -> bool {
        matches!(metadata(tree).get(MANAGED_FIELDS), Some(Value::String(text)) if *text == self.text)
    }

    /// The managed fields of the text.
    #[cfg(test)]
    pub(crate) fn read_again(&self) -> Managed {
        managed::from_text(&self.text).expect("managed fields")
    }

    /// Estimates the bytes of memory without the text.
    pub(super) fn bytes(&self) -> usize {
        managed::heap_bytes(&self.managed)
    }
}

/// Reads the managed fields of a tree. Returns an empty set if the managed fields are absent or malformed.
fn managed_fields_of(tree: &Map) -> Managed {
    metadata(tree).get(MANAGED_FIELDS).map(managed_fields_from).unwrap_or_default()
}

fn managed_fields_from(entries: &Value) -> Managed {
    decode_managed_fields(entries).unwrap_or_default()
}

pub(super) fn decode_managed_fields(entries: &Value) -> Result<Managed, String> {
    match entries {
        Value::String(text) => managed::from_text(text),
        entries => managed::decode(entries),
    }
}

/// Writes the managed fields into a tree for the store. Returns their text; `None` if there are none.
pub(super) fn set_managed_fields(tree: &mut Map, managed: &mut Managed) -> Option<JsonString> {
    let metadata = metadata_mut(tree);
    if managed.is_empty() {
        metadata.shift_remove(MANAGED_FIELDS);
        return None;
    }
    let text = JsonString::from(managed::to_text(managed));
    metadata.insert(MANAGED_FIELDS, Value::String(text.clone()));
    Some(text)
}

/// Removes the managed fields from a tree that is too large for the store. Returns false if the tree has none.
pub(super) fn remove_managed_fields(tree: &mut Map) -> bool {
    metadata_mut(tree).shift_remove(MANAGED_FIELDS).is_some()
}

/// Replaces the text of the managed fields by the parsed tree, as in responses.
pub(super) fn expand_managed_fields(tree: &mut Map) {
    if let Some(Value::Object(metadata)) = tree.get_mut("metadata")
        && let Some(entries) = metadata.get_mut(MANAGED_FIELDS)
        && let Value::String(text) = entries
    {
        *entries = serde_json::from_str(text).unwrap_or(Value::Null);
    }
}

/// The managed fields of an object, for a write of its Scale.
pub(super) struct ScaleManagedFields {
    parent: Managed,
    api_version: String,
    replicas: Path,
}

impl ScaleManagedFields {
    /// Reads the managed fields of `tree`. `replicas` is the dotted path of the replicas.
    pub(super) fn of(resource: &Resource, tree: &Map, replicas: &str) -> Self {
        let parent = managed_fields_of(tree);
        let replicas = Path::of_fields(&replicas.split('.').collect::<Vec<_>>());
        ScaleManagedFields { parent, api_version: resource.api_version(), replicas }
    }

    /// Writes the managed fields of the Scale into `scale`.
    pub(super) fn show(&self, scale: &mut Map) {
        let entries = managed::encode(&managed::to_scale(&self.parent, &self.api_version, &self.replicas));
        metadata_mut(scale).insert(MANAGED_FIELDS, Value::Array(entries));
    }

    /// Updates the managed fields of `scale` after a PUT or a patch, but not after an apply.
    pub(super) fn update(&self, writer: &FieldWriter<'_>, live: Map, scale: &mut Map) {
        let nothing = Set::new();
        let mut new = Value::Object(std::mem::take(scale));
        scale_kind().update(Some(&Value::Object(live)), &mut new, writer.of_scale(&nothing));
        *scale = into_map(new);
    }

    /// Copies the managed fields of a written Scale back to the parent object.
    pub(super) fn copy_to_parent(&self, scale: &Map, tree: &mut Map) {
        let mut all = managed::from_scale(&self.parent, managed_fields_of(scale), &self.api_version, &self.replicas);
        set_managed_fields(tree, &mut all);
    }
}

/// Restores the old timestamps in the managed fields if only timestamps differ. Returns true if the write then changes
/// nothing.
pub(super) fn restore_unchanged_timestamps(old: &Map, new: &mut Map) -> bool {
    let Some(before) = metadata(old).get(MANAGED_FIELDS) else { return new == old };
    let Some(after) = metadata_mut(new).insert(MANAGED_FIELDS, before.clone()) else {
        metadata_mut(new).shift_remove(MANAGED_FIELDS);
        return false;
    };
    // The cheap comparison comes first, because most writes change something else.
    if new == old
        && (after == *before || managed::differ_in_time_only(&managed_fields_of(old), &managed_fields_from(&after)))
    {
        return true;
    }
    metadata_mut(new).insert(MANAGED_FIELDS, after);
    false
}

/// Returns the map of an object, or an empty map for any other value.
pub(super) fn as_map(value: &Value) -> &Map {
    static EMPTY: Map = Map::new();
    value.as_object().unwrap_or(&EMPTY)
}

/// Converts an object into its map, and any other value into an empty map.
pub(super) fn into_map(value: Value) -> Map {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
