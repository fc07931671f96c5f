//! What becomes of an object between decoding and storing: [`create`] and [`update`], the order of
//! steps of `rest.BeforeCreate` and `rest.BeforeUpdate`. Pure: ids and times are arguments.
//!
//! ```text
//!  decode ─▶ defaults ─▶ what only the server sets ─▶ the kind's own steps ─▶ validate ─▶ canonical
//! ```

use listwatch_meta::{FieldError, Status};
use serde_json::{Map, Value};

use listwatch_kinds::{CreateContext, UpdateContext, defaults};

use super::Clock;
use crate::crd::{objects, strategy, validation};
use crate::registry::{Resource, Subresource};
use listwatch_validation::Errors;
use listwatch_validation::object_meta as meta;
use listwatch_validation::{metadata, metadata_mut};

/// Objects whose contents are of free form, so that a `null` in them means something.
const FREE_FORM: [&str; 1] = ["ControllerRevision"];

fn rules(resource: &Resource) -> meta::Rules {
    meta::Rules { namespaced: resource.namespaced, names: resource.strategy.names, custom: resource.custom }
}

/// Fills in what kube-apiserver fills in while it decodes.
///
/// # Errors
/// What a decoder says about the kind's own fields.
pub(super) fn complete(resource: &Resource, object: &mut Map<String, Value>) -> Result<(), String> {
    if resource.custom {
        return Ok(());
    }
    if let Some(conversion) = &resource.conversion {
        defaults::drop_nulls(object);
        conversion.default(object);
        return Ok(());
    }
    if strategy::is_definition(resource) {
        strategy::check_types(object)?;
        strategy::default(object);
        return Ok(());
    }
    if !FREE_FORM.contains(&resource.kind.as_str()) {
        defaults::drop_nulls(object);
    }
    if let Some(kind) = resource.builtin {
        (kind.normalize)(object)?;
        defaults::apply(kind.defaults, object);
    }
    Ok(())
}

/// Brings a completed body into the version by whose rules it is judged: the stored one, where a
/// built-in kind has two.
///
/// # Errors
/// What a decoder of that version says.
pub(super) fn keep(resource: &Resource, object: &mut Map<String, Value>) -> Result<(), String> {
    let Some(conversion) = &resource.conversion else { return Ok(()) };
    conversion.keep_tree(object);
    complete(conversion.stored(), object)
}

/// Makes a completed body a new object, ready to be stored.
///
/// # Errors
/// 422 naming each field that is not valid.
pub(super) fn create(
    asked: &Resource,
    object: &mut Map<String, Value>,
    context: CreateContext<'_>,
) -> Result<(), Status> {
    let resource = asked.stored();
    meta::begin(metadata_mut(object), context.uid.to_owned(), context.now.to_owned());
    if has_status(resource) {
        if resource.custom {
            object.shift_remove("status");
        } else if let Some(status) = resource.builtin.and_then(|kind| (kind.initial_status)()) {
            object.shift_remove("status");
            object.insert("status".to_owned(), status);
        }
    }
    if resource.strategy.generation {
        meta::raise_generation(metadata_mut(object));
    }
    if let Some(kind) = resource.builtin {
        (kind.prepare_for_create)(object, context);
    }
    if strategy::is_definition(resource) {
        strategy::create(object);
    }
    let mut errors = Errors::default();
    meta::validate(metadata(object), rules(asked), &mut errors);
    if strategy::is_definition(resource) {
        errors.extend(validation::create(object));
    } else if let Some(kind) = resource.builtin {
        (kind.validate)(object, None, &mut errors);
        if let Some(conversion) = &asked.conversion {
            (conversion.version.validate)(object, None, &mut errors);
        }
    }
    errors.extend(objects::create(resource, object));
    finish(resource, object, &errors)
}

/// Makes a completed body the successor of `old`, ready to be stored.
/// Both are in the version that is judged ([`keep`]).
///
/// # Errors
/// 422 naming each field that is not valid, or may not change.
pub(super) fn update(
    asked: &Resource,
    subresource: Option<&Subresource>,
    new: &mut Map<String, Value>,
    old: &Map<String, Value>,
    clock: &Clock,
) -> Result<(), Status> {
    let resource = asked.stored();
    resource.writes().reset_unwritable_fields(subresource, new, old);
    let context = UpdateContext { subresource, now: clock.time() };
    if let Some(kind) = resource.builtin {
        (kind.prepare_for_update)(new, old, context);
    }
    if subresource.is_none() && strategy::is_definition(resource) {
        strategy::update(new);
    }
    meta::carry_over(metadata_mut(new), metadata(old));
    let same =
        same_but_for_status(resource, new, old) && (subresource.is_some() || same_annotations(resource, new, old));
    if resource.strategy.generation && !same {
        meta::raise_generation(metadata_mut(new));
    }
    let mut errors = Errors::default();
    meta::validate(metadata(new), rules(resource), &mut errors);
    meta::validate_update(metadata(new), metadata(old), &mut errors);
    if let Some(kind) = resource.builtin {
        let whole = matches!(subresource, None | Some(Subresource::EphemeralContainers | Subresource::Resize));
        // An object that is let go is not held up by what it is, as long as that stays.
        if whole && !(same && meta::is_set(metadata(old), "deletionTimestamp")) {
            (kind.validate)(new, Some(old), &mut errors);
        }
        if subresource.is_none() {
            (kind.validate_update)(new, old, &mut errors);
        }
        if subresource == Some(&Subresource::Status) {
            (kind.validate_status)(new, Some(old), &mut errors);
        }
        (kind.validate_transition)(new, old, context, &mut errors);
        if let (None, Some(conversion)) = (subresource, &asked.conversion) {
            (conversion.version.validate)(new, Some(old), &mut errors);
        }
    }
    if strategy::is_definition(resource) {
        errors.extend(match subresource {
            None => validation::update(new, old),
            Some(_) => validation::status(new),
        });
    }
    errors.extend(objects::update(resource, subresource, new, old));
    finish(resource, new, &errors)
}

/// Should this update remove the object, because nothing holds it up any more?
pub(super) fn completes_deletion(resource: &Resource, new: &Map<String, Value>, old: &Map<String, Value>) -> bool {
    let (new_meta, old_meta) = (metadata(new), metadata(old));
    let grace = old_meta.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    meta::is_set(old_meta, "deletionTimestamp")
        && grace == 0
        && meta::finalizers(new_meta).is_empty()
        && !(is_namespace(resource) && has_spec_finalizers(new))
}

/// Is this the resource of namespaces?
pub(super) fn is_namespace(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "namespaces"
}

/// Has a namespace finalizers in its spec?
pub(super) fn has_spec_finalizers(namespace: &Map<String, Value>) -> bool {
    let finalizers = namespace.get("spec").and_then(|spec| spec.get("finalizers")?.as_array());
    finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

fn has_status(resource: &Resource) -> bool {
    resource.subresource("status").is_some()
}

/// Whether annotations are as they were, where they count as something wanted: those of a deployment,
/// which its controller copies to its replica sets (`pkg/registry/apps/deployment/strategy.go`).
fn same_annotations(resource: &Resource, new: &Map<String, Value>, old: &Map<String, Value>) -> bool {
    fn annotations(object: &Map<String, Value>) -> Option<&Map<String, Value>> {
        metadata(object).get("annotations")?.as_object().filter(|all| !all.is_empty())
    }
    !resource.builtin.is_some_and(|kind| kind.generation_counts_annotations) || annotations(new) == annotations(old)
}

/// Does an update leave alone what `metadata.generation` counts?
fn same_but_for_status(resource: &Resource, new: &Map<String, Value>, old: &Map<String, Value>) -> bool {
    let counts_status = resource.custom && !has_status(resource);
    let counted = |name: &str| match name {
        "kind" | "apiVersion" | "metadata" => false,
        "status" => counts_status,
        _ => true,
    };
    let members = |object: &Map<String, Value>| object.keys().filter(|name| counted(name)).count();
    members(new) == members(old)
        && new.iter().filter(|(name, _)| counted(name)).all(|(name, value)| old.get(name) == Some(value))
}

fn finish(resource: &Resource, object: &mut Map<String, Value>, errors: &[FieldError]) -> Result<(), Status> {
    if !errors.is_empty() {
        let name = meta::text(metadata(object), "name");
        return Err(Status::invalid(&resource.group, &resource.kind, name, errors));
    }
    let metadata = std::mem::take(metadata_mut(object));
    *metadata_mut(object) = meta::canonical(metadata);
    Ok(())
}
