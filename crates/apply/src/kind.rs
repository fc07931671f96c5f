//! Tracks field ownership for the writes of one kind: [`Kind::update`] and [`Kind::apply`].
//!
//! ```text
//!  update: live, new ─ compare ─▶ the writer takes over the changed fields
//!  apply:  live, config ─ merge ─ prune ─▶ new ─ compare ─▶ conflicts, or the applier takes over
//! ```
//!
//! Sources: `structured-merge-diff/v6/merge/update.go` and
//! `apimachinery/pkg/util/managedfields/internal`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use listwatch_json::{Map, Value};
use time::OffsetDateTime;

use crate::managed::{self, Managed, Manager, Operation, OwnedFields};
use crate::path::Path;
use crate::set::Set;
use crate::typed::{Comparison, ValidationError, View};
use crate::typing::Typing;

/// The manager of an object's untracked fields at the first apply.
pub const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The annotation in which client-side `kubectl apply` stores the last applied configuration.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The largest total size of all annotations, in bytes. A last-applied configuration that exceeds it is dropped
/// (`validation.TotalAnnotationSizeLimitB`).
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// The manager whose server-side apply takes over the fields of its client-side applies.
const KUBECTL: &str = "kubectl";

/// A kind, in the version of the write.
#[derive(Clone, Debug)]
pub struct Kind {
    api_version: String,
    kind: String,
    typing: Typing,
    /// The kind's other versions.
    others: Vec<(String, Typing)>,
    /// Converts an object to another version. `None` if versions differ only in `apiVersion`, which no manager owns.
    convert: Option<Conversion>,
    view: View,
}

/// Converts an object of any version of a kind to the named version (`v1`, `g/v`).
pub type Convert = fn(&Value, &str) -> Value;

/// Converts an object of any version of a kind to the named version (`g/v`), or returns why that fails.
pub type TryConvert = Arc<dyn Fn(&Value, &str) -> Result<Value, String> + Send + Sync>;

/// The function that converts objects between versions.
#[derive(Clone)]
enum Conversion {
    Infallible(Convert),
    Fallible(TryConvert),
}

impl fmt::Debug for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Conversion")
    }
}

/// The reason why the changed fields of a write cannot be computed.
enum ChangesError {
    /// An object cannot be converted to the version of a manager. Contains the complete error text.
    Unconvertible(String),
    /// An object does not match the type of its version.
    Incomparable(ValidationError),
}

impl From<ValidationError> for ChangesError {
    fn from(misfit: ValidationError) -> Self {
        ChangesError::Incomparable(misfit)
    }
}

impl fmt::Display for ChangesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangesError::Unconvertible(why) => f.write_str(why),
            ChangesError::Incomparable(misfit) => misfit.fmt(f),
        }
    }
}

/// The writer of a request.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The field manager's name. An empty name becomes `unknown`.
    pub manager: &'a str,
    /// The written subresource; `""` for the object itself.
    pub subresource: &'a str,
    /// The time of the write.
    pub now: OffsetDateTime,
    /// Fields that a write to this subresource cannot change and therefore never owns (`GetResetFields`).
    pub reset: &'a Set,
}

/// A field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The owner of the field.
    pub manager: Manager,
    /// The field.
    pub path: Path,
}

/// The error of an apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// The configuration is invalid: a 400.
    BadRequest(String),
    /// Other managers own fields that the configuration changes, and the apply was not forced: a
    /// 409. The list is never empty.
    Conflicts(Vec<Conflict>),
    /// The configuration does not match the kind, or the stored object is unusable: a 500 without a
    /// reason, as in kube-apiserver.
    Other(String),
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::BadRequest(why) | ApplyError::Other(why) => f.write_str(why),
            ApplyError::Conflicts(conflicts) => write_conflicts(conflicts, f),
        }
    }
}

impl std::error::Error for ApplyError {}

fn write_conflicts(conflicts: &[Conflict], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let [only] = conflicts {
        return write!(f, "Apply failed with 1 conflict: conflict with {}: {}", only.manager, only.path);
    }
    let mut by_manager: BTreeMap<String, Vec<&Conflict>> = BTreeMap::new();
    for conflict in conflicts {
        by_manager.entry(conflict.manager.identifier()).or_default().push(conflict);
    }
    write!(f, "Apply failed with {} conflicts:", conflicts.len())?;
    for (at, conflicts) in by_manager.values().enumerate() {
        let space = if at == 0 { " " } else { "\n" };
        write!(f, "{space}conflicts with {}:", conflicts[0].manager)?;
        for conflict in conflicts {
            write!(f, "\n- {}", conflict.path)?;
        }
    }
    Ok(())
}

impl Kind {
    /// A built-in kind, which kube-apiserver decodes into a Go struct.
    pub fn built_in(api_version: &str, kind: &str, typing: Typing) -> Self {
        Kind { view: View::Struct, ..Kind::custom(api_version, kind, typing, Vec::new()) }
    }

    /// A custom kind. `others` are its other versions (`g/v`), served or not, which differ only in
    /// `apiVersion`.
    pub fn custom(api_version: &str, kind: &str, typing: Typing, others: Vec<(String, Typing)>) -> Self {
        Kind {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            typing,
            others,
            convert: None,
            view: View::Plain,
        }
    }

    /// Adds another version (`v1`, `g/v`). Objects are converted to it to determine the fields of
    /// its managers.
    #[must_use]
    pub fn with_version(mut self, api_version: &str, typing: Typing, convert: Convert) -> Self {
        self.others.push((api_version.to_owned(), typing));
        self.convert = Some(Conversion::Infallible(convert));
        self
    }

    /// Converts objects between all versions of this custom kind by a function that may fail. A failure ends an apply;
    /// another write then leaves the object without managed fields, as upstream's `UpdateNoErrors`.
    #[must_use]
    pub fn with_converter(mut self, convert: TryConvert) -> Self {
        self.convert = Some(Conversion::Fallible(convert));
        self
    }

    /// Converts an object to one of the kind's versions.
    fn at_version<'a>(&self, object: &'a Value, api_version: &str) -> Result<Cow<'a, Value>, String> {
        if object.get("apiVersion").is_none_or(|is| is == api_version) {
            return Ok(Cow::Borrowed(object));
        }
        Ok(match &self.convert {
            Some(Conversion::Infallible(convert)) => Cow::Owned(convert(object, api_version)),
            Some(Conversion::Fallible(convert)) => Cow::Owned(convert(object, api_version)?),
            None => Cow::Borrowed(object),
        })
    }

    /// Converts like [`Kind::at_version`], but consumes the object.
    fn in_version(&self, object: Value, api_version: &str) -> Result<Value, String> {
        let converted = match self.at_version(&object, api_version)? {
            Cow::Owned(converted) => Some(converted),
            Cow::Borrowed(_) => None,
        };
        Ok(converted.unwrap_or(object))
    }

    /// The typing of objects of this version.
    pub fn typing(&self) -> &Typing {
        &self.typing
    }

    fn typing_at(&self, api_version: &str) -> Option<&Typing> {
        if api_version == self.api_version {
            return Some(&self.typing);
        }
        self.others.iter().find(|(version, _)| version == api_version).map(|(_, typing)| typing)
    }

    /// Tracks the ownership of a create, an update or a patch: updates the `metadata.managedFields` of `new`. `live` is
    /// the object before the write; `None` for a create. Managed fields that a client sends are used, except in writes
    /// to a subresource. `[]` and `[{}]` reset all ownership.
    ///
    /// Never fails: an object that does not match its type gets no `managedFields`.
    pub fn update(&self, live: Option<&Value>, new: &mut Value, by: Writer<'_>) {
        let sent = take_managed_fields(new);
        let kept = || live.and_then(managed_fields).map(managed::decode).and_then(Result::ok).unwrap_or_default();
        if let Some(managed) = self.track_update(live, new, sent.as_ref(), kept, by) {
            put_managed_fields(new, &managed);
        }
    }

    /// Tracks ownership like [`Kind::update`], for objects whose managed fields are stored separately. `sent` contains
    /// the managed fields from the client. `kept` decodes the stored managed fields, if they are needed. Returns `None`
    /// if the new object has no managed fields.
    pub fn track_update(
        &self,
        live: Option<&Value>,
        new: &Value,
        sent: Option<&Value>,
        kept: impl FnOnce() -> Managed,
        by: Writer<'_>,
    ) -> Option<Managed> {
        let managed = if !by.subresource.is_empty() {
            kept()
        } else if managed::is_reset(sent) {
            Managed::new()
        } else {
            match sent.map(managed::decode) {
                Some(Ok(managed)) if !managed.is_empty() => managed,
                _ => kept(),
            }
        };
        // An existing object without managed fields stays untracked.
        if live.is_some() && managed.is_empty() {
            return None;
        }
        let nothing = Value::Object(Map::new());
        self.updated(live.unwrap_or(&nothing), new, managed, by).ok()
    }

    fn updated(&self, live: &Value, new: &Value, managed: Managed, by: Writer<'_>) -> Result<Managed, ChangesError> {
        let mut managed = self.reconciled(managed);
        let mut changes = self.changes(live, new, self.view, by.reset, &managed)?;
        drop_unknown(&mut managed, &changes);
        let me = Manager::new(name_of(by.manager), Operation::Update, &self.api_version, by.subresource);
        let mine = managed.remove(&me);
        for owned in managed.values_mut() {
            let Some(change) = changes.get(&owned.api_version) else { continue };
            for gone in [&change.modified, &change.added, &change.removed] {
                owned.lose(gone);
            }
        }
        managed.retain(|_, owned| !owned.fields.is_empty());
        let change = changes.remove(&self.api_version).unwrap_or_default();
        let mut fields = change.modified;
        fields.absorb(change.added);
        let unownable = managed::strip_meta(&mut fields);
        // The writer's entry gets the fields that this write changed, except those that no manager can own. If no such
        // field changed, the entry keeps its time.
        let empty = || OwnedFields { fields: Set::new().into(), api_version: self.api_version.clone(), time: None };
        let mut mine = mine.unwrap_or_else(empty);
        mine.lose(&change.removed);
        mine.lose(&unownable);
        if !fields.is_empty() {
            mine.time = Some(by.now);
        }
        if !fields.is_within(&mine.fields) {
            mine.fields.absorb(fields);
        }
        if !mine.fields.is_empty() {
            managed.insert(me, mine);
        }
        managed::cap(&mut managed);
        Ok(managed)
    }

    /// Applies a configuration to `live` (`None` if there is no object yet). Returns the new object
    /// with its `managedFields`. If only ownership changes, the object equals `live` and the time
    /// of the writer's entry stays.
    ///
    /// # Errors
    /// [`ApplyError`].
    pub fn apply(
        &self,
        live: Option<&Value>,
        config: &Value,
        by: Writer<'_>,
        force: bool,
    ) -> Result<Value, ApplyError> {
        let mut live = live.cloned();
        let entries = live.as_mut().and_then(take_managed_fields).unwrap_or_default();
        let (mut object, managed) = self.apply_to(live.as_ref(), || managed::decode(&entries), config, by, force)?;
        put_managed_fields(&mut object, &managed);
        Ok(object)
    }

    /// Applies like [`Kind::apply`], to an object whose managed fields are stored separately: `kept` decodes them.
    /// Returns the new object and its managed fields.
    ///
    /// # Errors
    /// [`ApplyError`].
    pub fn apply_to(
        &self,
        live: Option<&Value>,
        kept: impl FnOnce() -> Result<Managed, String>,
        config: &Value,
        by: Writer<'_>,
        force: bool,
    ) -> Result<(Value, Managed), ApplyError> {
        let text = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
        if text("apiVersion") != self.api_version || text("kind") != self.kind {
            let version = text("apiVersion");
            // A core version has an empty group, which Go prints as nothing.
            let version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
            return Err(ApplyError::BadRequest(format!("invalid object type: {version}, Kind={}", text("kind"))));
        }
        let mut managed = kept().map_err(|why| ApplyError::Other(format!("failed to decode managed fields: {why}")))?;
        let base = live.map_or_else(
            || {
                let kind = [("apiVersion", &self.api_version), ("kind", &self.kind)];
                Cow::Owned(kind.into_iter().map(|(name, text)| (name.to_owned(), Value::from(text.as_str()))).collect())
            },
            Cow::Borrowed,
        );
        if managed.is_empty() && live.is_some() {
            let before = Writer { manager: BEFORE_FIRST_APPLY, ..by };
            let nothing = Value::Object(Map::new());
            managed = self.updated(&nothing, &base, managed, before).map_err(|misfit| {
                ApplyError::Other(format!("failed to create manager for existing fields: {misfit}"))
            })?;
        }
        // Only kubectl's apply is retried.
        let again = (by.manager == KUBECTL).then(|| managed.clone());
        let applied = match (self.applied(&base, config, managed, by, force), again) {
            (Err(ApplyError::Conflicts(conflicts)), Some(managed)) => {
                let Some(own) = self.own_by_last_applied(&base) else {
                    return Err(ApplyError::Conflicts(conflicts));
                };
                let left: Vec<Conflict> = conflicts.into_iter().filter(|conflict| !own.has(&conflict.path.0)).collect();
                if !left.is_empty() {
                    return Err(ApplyError::Conflicts(left));
                }
                self.applied(&base, config, managed, by, true)
            }
            (applied, _) => applied,
        };
        let (mut object, managed) = applied?;
        if by.manager == KUBECTL {
            renew_last_applied(&mut object, config);
        }
        Ok((object, managed))
    }

    fn applied(
        &self,
        live: &Value,
        config: &Value,
        managed: Managed,
        by: Writer<'_>,
        force: bool,
    ) -> Result<(Value, Managed), ApplyError> {
        // A value that is not a list of entries is rejected by the type check.
        let entries = config.get("metadata").and_then(|metadata| metadata.get("managedFields")?.as_array());
        if entries.is_some_and(|entries| entries.iter().all(Value::is_object)) {
            return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()));
        }
        self.typing.validate(config, false).map_err(|misfit| {
            ApplyError::Other(format!("failed to create typed patch object ({}): {misfit}", self.described(config)))
        })?;
        let other = |what: &'static str| move |misfit: ValidationError| ApplyError::Other(format!("{what}: {misfit}"));
        if let Some(Conversion::Fallible(_)) = self.convert {
            // Upstream reconciles managers with the object in their version, so a converter fails here first.
            for owned in managed.values().filter(|owned| self.typing_at(&owned.api_version).is_some()) {
                self.at_version(live, &owned.api_version).map_err(ApplyError::Other)?;
            }
        }
        let mut managed = self.reconciled(managed);
        let merged = self.typing.merge(live, config).map_err(other("failed to merge config"))?;
        let me = Manager::new(name_of(by.manager), Operation::Apply, &self.api_version, by.subresource);
        let fields = self.typing.field_set(config).recursive_difference(by.reset).into();
        let before = managed.remove(&me);
        let time = before.as_ref().and_then(|owned| owned.time);
        managed.insert(me.clone(), OwnedFields { fields, api_version: self.api_version.clone(), time });
        // The usual case: everything applied before is applied again, so nothing is removed.
        let given_up_nothing = before.as_ref().is_some_and(|before| {
            before.fields.is_within(&managed[&me].fields)
                && managed.values().all(|owned| owned.api_version == self.api_version)
        });
        let mut object = if given_up_nothing {
            debug_assert_eq!(Ok(&merged), self.pruned(merged.clone(), &managed, before.as_ref()).as_ref());
            merged
        } else {
            let pruned = self.pruned(merged, &managed, before.as_ref());
            pruned.map_err(|why| ApplyError::Other(format!("failed to prune fields: {why}")))?
        };

        let changes = self.changes(live, &object, View::Plain, by.reset, &managed).map_err(|error| match error {
            ChangesError::Unconvertible(why) => ApplyError::Other(why),
            ChangesError::Incomparable(misfit) => other("failed to compare objects")(misfit),
        })?;
        drop_unknown(&mut managed, &changes);
        let mut conflicts = Vec::new();
        for (manager, owned) in managed.iter_mut().filter(|(manager, _)| **manager != me) {
            let change = &changes[&owned.api_version];
            let mut taken = owned.fields.intersection(&change.modified);
            taken.absorb(owned.fields.intersection(&change.added));
            conflicts.extend(taken.paths().into_iter().map(|path| Conflict { manager: manager.clone(), path }));
            owned.lose(&taken);
            owned.lose(&change.removed);
        }
        if !force && !conflicts.is_empty() {
            conflicts.sort_by_cached_key(|conflict| conflict.manager.identifier());
            return Err(ApplyError::Conflicts(conflicts));
        }
        managed.retain(|_, owned| !owned.fields.is_empty());
        if let Some(owned) = managed.get_mut(&me) {
            managed::strip_meta(&mut owned.fields);
            if owned.fields.is_empty() {
                managed.remove(&me);
            }
        }
        let same = crate::value::equal(live, &object);
        if !same && let Some(owned) = managed.get_mut(&me) {
            owned.time = Some(by.now);
        }
        if self.view == View::Struct {
            self.typing.drop_zeros(&mut object);
        }
        if crate::value::equal(live, &object) {
            object = live.clone();
            // The applied fields are zero values that are not serialized, and were so before.
            if let (Some(owned), Some(before)) = (managed.get_mut(&me), &before)
                && owned.fields == before.fields
                && conflicts.is_empty()
            {
                owned.time = before.time;
            }
        }
        Ok((object, managed))
    }

    /// Computes the changes in each version in which a manager owns fields.
    fn changes(
        &self,
        live: &Value,
        new: &Value,
        new_view: View,
        reset: &Set,
        managed: &Managed,
    ) -> Result<BTreeMap<String, Comparison>, ChangesError> {
        let mut changes = BTreeMap::new();
        let versions = managed.values().map(|owned| &owned.api_version).chain([&self.api_version]);
        for version in versions {
            if changes.contains_key(version) {
                continue;
            }
            let Some(typing) = self.typing_at(version) else { continue };
            let failed = |which: &str, why: String| {
                ChangesError::Unconvertible(format!("failed to convert {which} object: {why}"))
            };
            let live = self.at_version(live, version).map_err(|why| failed("old", why))?;
            let new = self.at_version(new, version).map_err(|why| failed("new", why))?;
            let change = if self.view == View::Struct && new_view == View::Struct {
                // Built-in objects were decoded by type, so a comparison of the skipped members cannot fail.
                let change = without(reset, typing.compare_without(reset, &live, &new, self.view)?);
                debug_assert!(
                    !matches!(
                        typing.compare_as(&live, self.view, &new, self.view),
                        Ok(all) if without(reset, all.clone()) != change
                    ),
                    "the skipped fields have changes that are not subtracted"
                );
                change
            } else {
                without(reset, typing.compare_as(&live, self.view, &new, new_view)?)
            };
            changes.insert(version.clone(), change);
        }
        Ok(changes)
    }

    /// Removes fields that the applier applied before, does not apply now, and no other manager
    /// owns.
    ///
    /// # Errors
    /// The reason why an object cannot be converted.
    fn pruned(&self, merged: Value, managed: &Managed, before: Option<&OwnedFields>) -> Result<Value, String> {
        let Some(before) = before.filter(|owned| !owned.fields.is_empty()) else { return Ok(merged) };
        let Some(typing) = self.typing_at(&before.api_version) else { return Ok(merged) };
        let named = |typing: &Typing, set: &Set| set.with_named_fields(typing.schema(), Some(typing.root()));
        let last_version =
            |which: &str, why: String| format!("failed to convert {which} object to last applied version: {why}");
        let merged = self.in_version(merged, &before.api_version).map_err(|why| last_version("merged", why))?;
        let last = named(typing, &before.fields);
        let mut pruned = typing.remove(&merged, &last);

        // Restores fields owned by others, or by this applier in its new configuration.
        let mut owned_at: BTreeMap<&str, Cow<'_, Set>> = BTreeMap::new();
        for owned in managed.values() {
            let all = match owned_at.get(&*owned.api_version) {
                Some(all) => Cow::Owned(all.union(&owned.fields)),
                None => Cow::Borrowed(&*owned.fields),
            };
            owned_at.insert(&owned.api_version, all);
        }
        let first = owned_at.remove(&*before.api_version).map(|owned| (&*before.api_version, owned));
        for (version, owned) in first.into_iter().chain(owned_at) {
            let Some(typing) = self.typing_at(version) else { continue };
            let failed = |which: &str, why: String| {
                format!("failed add back owned items: failed to convert {which} object at version {version}: {why}")
            };
            let merged = self.at_version(&merged, version).map_err(|why| failed("merged", why))?;
            let left = self.at_version(&pruned, version).map_err(|why| failed("pruned", why))?;
            let all = named(typing, &typing.field_set(&merged));
            let kept = named(typing, &typing.field_set(&left)).union(&named(typing, &owned));
            pruned = typing.remove(&merged, &all.difference(&kept));
        }

        // Restores fields that this applier did not own before.
        let left = self.at_version(&pruned, &before.api_version);
        let left = left.map_err(|why| format!("failed add back dangling items: {}", last_version("pruned", why)))?;
        let kept = named(typing, &typing.field_set(&left));
        let all = named(typing, &typing.field_set(&merged));
        let pruned = typing.remove(&merged, &all.difference(&kept).intersection(&last));
        self.in_version(pruned, &self.api_version)
    }

    /// Converts the managed fields to the current types.
    fn reconciled(&self, mut managed: Managed) -> Managed {
        for owned in managed.values_mut() {
            if let Some(fields) = self.typing_at(&owned.api_version).and_then(|typing| typing.reconcile(&owned.fields))
            {
                owned.fields = fields.into();
            }
        }
        managed
    }

    /// The fields that kubectl owns by client-side apply: those last applied and unchanged since.
    fn own_by_last_applied(&self, live: &Value) -> Option<Set> {
        let text = live.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
        let last: Value = serde_json::from_str(text).ok()?;
        self.typing.validate(live, false).ok()?;
        if last.get("apiVersion")?.as_str()? != self.api_version {
            return None;
        }
        self.typing.validate(&last, false).ok()?;
        let change = self.typing.compare_as(&last, View::Plain, live, self.view).ok()?;
        let fields = self.typing.field_set(&last);
        Some(fields.difference(&change.modified).difference(&change.added).difference(&change.removed))
    }

    /// Formats the object for errors: `default/a; apps/v1, Kind=Deployment`.
    pub fn described(&self, object: &Value) -> String {
        let metadata =
            |name: &str| object.get("metadata").and_then(|metadata| metadata.get(name)?.as_str()).unwrap_or_default();
        let version =
            if self.api_version.contains('/') { self.api_version.clone() } else { format!("/{}", self.api_version) };
        format!("{}/{}; {version}, Kind={}", metadata("namespace"), metadata("name"), self.kind)
    }
}

fn name_of(manager: &str) -> &str {
    if manager.is_empty() { "unknown" } else { manager }
}

/// Removes the fields that the write cannot change from its changes.
fn without(reset: &Set, mut change: Comparison) -> Comparison {
    for set in [&mut change.removed, &mut change.modified, &mut change.added] {
        set.subtract_recursively(reset);
    }
    change
}

/// Removes the managers whose API version is unknown.
fn drop_unknown(managed: &mut Managed, changes: &BTreeMap<String, Comparison>) {
    managed.retain(|_, owned| changes.contains_key(&owned.api_version));
}

fn managed_fields(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.shift_remove("managedFields")
}

fn put_managed_fields(object: &mut Value, managed: &Managed) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if managed.is_empty() {
        metadata.shift_remove("managedFields");
    } else {
        metadata.insert("managedFields", Value::Array(managed::encode(managed)));
    }
}

/// Updates kubectl's last-applied annotation, if the object has it.
fn renew_last_applied(object: &mut Value, config: &Value) {
    let Some(annotations) =
        object.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations")?.as_object_mut())
    else {
        return;
    };
    if annotations.get(LAST_APPLIED).and_then(Value::as_str).is_none_or(str::is_empty) {
        return;
    }
    let mut config = config.clone();
    if let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(Value::Object(own)) = metadata.get_mut("annotations")
    {
        own.shift_remove(LAST_APPLIED);
        if own.is_empty() {
            metadata.shift_remove("annotations");
        }
    }
    let mut text = String::new();
    crate::value::write_json(&config, &mut text);
    text.push('\n');
    annotations.insert(LAST_APPLIED, Value::from(text));
    let bytes: usize = annotations.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > ANNOTATIONS_BYTES_MAX {
        annotations.shift_remove(LAST_APPLIED);
    }
}
