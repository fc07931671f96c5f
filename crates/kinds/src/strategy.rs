//! [`Strategy`]: the rules by which objects of a resource are written, and the order in which they apply
//! ([`before_create`], [`before_update`]). Pure: ids and times are arguments.
//!
//! ```text
//!  decode ─▶ apply_defaults ─▶ to_storage_version ─▶ prepare_for_create │ prepare_for_update ─▶ validate ─▶ store
//! ```
//!
//! Source: `RESTCreateStrategy`, `RESTUpdateStrategy` and `RESTDeleteStrategy` of
//! `apiserver/pkg/registry/rest`, `BeforeCreate` and `BeforeUpdate` there.

use std::fmt;

use listwatch_validation::names::NameRule;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{Errors, Object, metadata, metadata_mut};
use serde_json::Value;

use crate::defaults;
use crate::kind::{CreateContext, Kind, UpdateContext};
use crate::subresource::Subresource;
use crate::versions::SecondVersion;
use crate::write_scope::ResourceWrites;

/// The write rules of a resource that are plain values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRules {
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// PUT without a resource version overwrites; otherwise it is a 422.
    pub unconditional_update: bool,
    /// PUT of an absent object creates it.
    pub create_on_update: bool,
    /// The rule for names.
    pub names: NameRule,
    /// Finalizers need a domain (custom resources).
    pub qualified_finalizers: bool,
    /// `metadata.generation` is kept: 1 on create, +1 when anything but metadata and status changes.
    pub generation: bool,
    /// Changes of annotations raise `metadata.generation`, too.
    pub generation_counts_annotations: bool,
    /// Changes of the status raise `metadata.generation`, too: it is a field like the others.
    pub generation_counts_status: bool,
    /// Deletion waits: pods take `spec.terminationGracePeriodSeconds` (once bound to a node).
    pub graceful_delete: bool,
    /// Objects expire after this many seconds (events).
    pub ttl_seconds: Option<u64>,
}

/// How the deletion of an object begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// Nothing of the kind precedes it; finalizers and grace periods count as for any object.
    Unheld,
    /// The object was marked. A controller does what precedes the deletion.
    Marked,
    /// The object was marked before, and what precedes its deletion is not done.
    Pending,
}

/// The rules by which objects of one resource are written. Object-safe and pure.
pub trait Strategy: fmt::Debug + Send + Sync {
    /// The rules that are plain values.
    fn rules(&self) -> WriteRules;

    /// The rules for updates, where they differ: names of stored objects follow the stored version's rule.
    fn update_rules(&self) -> WriteRules {
        self.rules()
    }

    /// What writes to the resource and to its subresources can change.
    fn writes(&self) -> ResourceWrites;

    /// Completes a decoded body in the version of the request.
    ///
    /// # Errors
    /// What upstream's decoder says.
    fn apply_defaults(&self, _object: &mut Object) -> Result<(), String> {
        Ok(())
    }

    /// Converts a completed body to the version that is validated and stored.
    ///
    /// # Errors
    /// What upstream's decoder of that version says.
    fn to_storage_version(&self, _object: &mut Object) -> Result<(), String> {
        Ok(())
    }

    /// Applies defaults that depend on other fields and that the writer comes to own.
    fn late_defaults(&self, _object: &mut Object) {}

    /// Fields of the spec that admission fills in. A client that leaves them out does not own them.
    fn admission_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// Warnings for the client that writes an object; `old` is the object that it replaces.
    fn warnings(&self, _new: &Object, _old: Option<&Object>) -> Vec<String> {
        Vec::new()
    }

    /// Completes a new object in the stored version.
    fn prepare_for_create(&self, _object: &mut Object, _context: CreateContext<'_>) {}

    /// Validates a new object. The object is as before when the function returns.
    fn validate(&self, object: &mut Object, errors: &mut Errors);

    /// Completes a changed object in the stored version. Fields that the write cannot change are reset already.
    fn prepare_for_update(&self, _new: &mut Object, _old: &Object, _context: UpdateContext<'_>) {}

    /// Validates a changed object. `is_unchanged`: nothing that `metadata.generation` counts has changed. The
    /// object is as before when the function returns.
    fn validate_update(
        &self,
        new: &mut Object,
        old: &Object,
        context: UpdateContext<'_>,
        is_unchanged: bool,
        errors: &mut Errors,
    );

    /// Begins the deletion of an object at `now`.
    fn begin_deletion(&self, _object: &mut Object, _now: &str) -> Deletion {
        Deletion::Unheld
    }

    /// Whether the object must stay although nothing else holds its deletion.
    fn holds_deletion(&self, _object: &Object) -> bool {
        false
    }
}

/// Makes a completed body a new object, ready to be stored. Returns its errors (`rest.BeforeCreate`).
pub fn before_create(strategy: &dyn Strategy, object: &mut Object, context: CreateContext<'_>) -> Errors {
    let rules = strategy.rules();
    meta::begin(metadata_mut(object), context.uid.to_owned(), context.now.to_owned());
    if rules.generation {
        meta::raise_generation(metadata_mut(object));
    }
    strategy.prepare_for_create(object, context);
    let mut errors = Errors::default();
    meta::validate(metadata(object), meta_rules(rules), &mut errors);
    strategy.validate(object, &mut errors);
    order_metadata(object);
    errors
}

/// Makes a completed body the new state of `old`, ready to be stored. Returns its errors (`rest.BeforeUpdate`). Both
/// are in the stored version.
pub fn before_update(strategy: &dyn Strategy, new: &mut Object, old: &Object, context: UpdateContext<'_>) -> Errors {
    let rules = strategy.update_rules();
    strategy.writes().reset_unwritable_fields(context.subresource, new, old);
    strategy.prepare_for_update(new, old, context);
    meta::carry_over(metadata_mut(new), metadata(old));
    let is_unchanged =
        has_same_fields(rules, new, old) && (context.subresource.is_some() || has_same_annotations(rules, new, old));
    if rules.generation && !is_unchanged {
        meta::raise_generation(metadata_mut(new));
    }
    let mut errors = Errors::default();
    meta::validate(metadata(new), meta_rules(rules), &mut errors);
    meta::validate_update(metadata(new), metadata(old), &mut errors);
    strategy.validate_update(new, old, context, is_unchanged, &mut errors);
    order_metadata(new);
    errors
}

/// Whether this update removes the object, because nothing holds its deletion any more.
pub fn completes_deletion(strategy: &dyn Strategy, new: &Object, old: &Object) -> bool {
    let (new_meta, old_meta) = (metadata(new), metadata(old));
    let grace = old_meta.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    meta::is_set(old_meta, "deletionTimestamp")
        && grace == 0
        && meta::finalizers(new_meta).is_empty()
        && !strategy.holds_deletion(new)
}

fn meta_rules(rules: WriteRules) -> meta::Rules {
    meta::Rules { namespaced: rules.namespaced, names: rules.names, custom: rules.qualified_finalizers }
}

fn order_metadata(object: &mut Object) {
    let metadata = std::mem::take(metadata_mut(object));
    *metadata_mut(object) = meta::canonical(metadata);
}

fn has_same_annotations(rules: WriteRules, new: &Object, old: &Object) -> bool {
    fn annotations(object: &Object) -> Option<&Object> {
        metadata(object).get("annotations")?.as_object().filter(|all| !all.is_empty())
    }
    !rules.generation_counts_annotations || annotations(new) == annotations(old)
}

/// Whether an update leaves alone what `metadata.generation` counts, but for annotations.
fn has_same_fields(rules: WriteRules, new: &Object, old: &Object) -> bool {
    let counted = |name: &str| match name {
        "kind" | "apiVersion" | "metadata" => false,
        "status" => rules.generation_counts_status,
        _ => true,
    };
    let members = |object: &Object| object.keys().filter(|name| counted(name)).count();
    members(new) == members(old)
        && new.iter().filter(|(name, _)| counted(name)).all(|(name, value)| old.get(name) == Some(value))
}

impl Strategy for Kind {
    fn rules(&self) -> WriteRules {
        WriteRules {
            namespaced: self.namespaced,
            unconditional_update: self.unconditional_update,
            create_on_update: self.create_on_update,
            names: self.names,
            qualified_finalizers: false,
            generation: self.generation,
            generation_counts_annotations: self.generation_counts_annotations,
            generation_counts_status: false,
            graceful_delete: self.graceful_delete,
            ttl_seconds: self.ttl_seconds,
        }
    }

    fn writes(&self) -> ResourceWrites {
        ResourceWrites {
            has_status: self.has_subresource("status"),
            keeps_spec: self.keeps_spec,
            status: self.status_write,
        }
    }

    fn apply_defaults(&self, object: &mut Object) -> Result<(), String> {
        if !self.keeps_nulls {
            defaults::drop_nulls(object);
        }
        (self.normalize)(object)?;
        defaults::apply(self.defaults, object);
        Ok(())
    }

    fn late_defaults(&self, object: &mut Object) {
        (self.late_defaults)(object);
    }

    fn admission_fields(&self) -> &'static [&'static str] {
        self.admission_fields
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>) -> Vec<String> {
        (self.warnings)(new)
    }

    fn prepare_for_create(&self, object: &mut Object, context: CreateContext<'_>) {
        if self.has_subresource("status")
            && let Some(status) = (self.initial_status)()
        {
            object.shift_remove("status");
            object.insert("status".to_owned(), status);
        }
        (self.prepare_for_create)(object, context);
    }

    fn validate(&self, object: &mut Object, errors: &mut Errors) {
        (self.validate)(object, None, errors);
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object, context: UpdateContext<'_>) {
        (self.prepare_for_update)(new, old, context);
    }

    fn validate_update(
        &self,
        new: &mut Object,
        old: &Object,
        context: UpdateContext<'_>,
        is_unchanged: bool,
        errors: &mut Errors,
    ) {
        let subresource = context.subresource;
        let writes_spec = matches!(subresource, None | Some(Subresource::EphemeralContainers | Subresource::Resize));
        // An invalid object can still lose its finalizers, as long as the rest stays.
        if writes_spec && !(is_unchanged && meta::is_set(metadata(old), "deletionTimestamp")) {
            (self.validate)(new, Some(old), errors);
        }
        if subresource.is_none() {
            (self.validate_update)(new, old, errors);
        }
        if subresource == Some(&Subresource::Status) {
            (self.validate_status)(new, Some(old), errors);
        }
        (self.validate_transition)(new, old, context, errors);
    }

    fn begin_deletion(&self, object: &mut Object, now: &str) -> Deletion {
        (self.begin_deletion)(object, now)
    }

    fn holds_deletion(&self, object: &Object) -> bool {
        (self.holds_deletion)(object)
    }
}

/// The strategy of a kind's second version: its own decoder, the stored version's rules.
#[derive(Debug, Clone, Copy)]
pub struct SecondVersionStrategy {
    /// The second version.
    pub version: &'static SecondVersion,
    /// The kind in the version that is stored.
    pub stored: &'static Kind,
}

impl Strategy for SecondVersionStrategy {
    fn rules(&self) -> WriteRules {
        WriteRules { names: self.version.names, ..self.stored.rules() }
    }

    fn update_rules(&self) -> WriteRules {
        self.stored.rules()
    }

    fn writes(&self) -> ResourceWrites {
        Strategy::writes(self.stored)
    }

    fn apply_defaults(&self, object: &mut Object) -> Result<(), String> {
        defaults::drop_nulls(object);
        (self.version.default)(object);
        Ok(())
    }

    fn to_storage_version(&self, object: &mut Object) -> Result<(), String> {
        *object = self.version.kept(std::mem::take(object));
        self.stored.apply_defaults(object)
    }

    fn late_defaults(&self, object: &mut Object) {
        (self.stored.late_defaults)(object);
    }

    fn admission_fields(&self) -> &'static [&'static str] {
        self.stored.admission_fields
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        Strategy::warnings(self.stored, new, old)
    }

    fn prepare_for_create(&self, object: &mut Object, context: CreateContext<'_>) {
        Strategy::prepare_for_create(self.stored, object, context);
    }

    fn validate(&self, object: &mut Object, errors: &mut Errors) {
        Strategy::validate(self.stored, object, errors);
        (self.version.validate)(object, None, errors);
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object, context: UpdateContext<'_>) {
        Strategy::prepare_for_update(self.stored, new, old, context);
    }

    fn validate_update(
        &self,
        new: &mut Object,
        old: &Object,
        context: UpdateContext<'_>,
        is_unchanged: bool,
        errors: &mut Errors,
    ) {
        Strategy::validate_update(self.stored, new, old, context, is_unchanged, errors);
        if context.subresource.is_none() {
            (self.version.validate)(new, Some(old), errors);
        }
    }

    fn begin_deletion(&self, object: &mut Object, now: &str) -> Deletion {
        (self.stored.begin_deletion)(object, now)
    }

    fn holds_deletion(&self, object: &Object) -> bool {
        (self.stored.holds_deletion)(object)
    }
}
