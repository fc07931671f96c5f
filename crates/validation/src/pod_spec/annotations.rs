//! Validates the annotations of pods that Kubernetes defines.
//!
//! Rules: `ValidatePodSpecificAnnotations` and `validateSeccompAnnotationsAndFields` in
//! `pkg/apis/core/validation`.

use listwatch_json::Value;
use listwatch_schema::Path;

use super::{each_container, placement};
use crate::field_rules::descending_path;
use crate::{Errors, Object, child, given, text};
use listwatch_meta::go;

/// The annotation of a mirror pod, which represents a static pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// The prefix of the annotations that hold the AppArmor profiles of containers. The name of the container follows.
pub const APPARMOR_OF_CONTAINER: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Validates the annotations of a pod or a template. `old` is the metadata before an update.
pub(super) fn validate(metadata: &Object, spec: &Object, old: Option<&Object>, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(notes)) = metadata.get("annotations") else { return };
    if notes.contains_key(MIRROR_ANNOTATION) && text(spec, "nodeName").is_empty() {
        let why = "must set spec.nodeName if mirror pod annotation is set";
        errors.invalid(&at.key(MIRROR_ANNOTATION), text(notes, MIRROR_ANNOTATION), why);
    }
    let listed = text(notes, TOLERATIONS);
    if !listed.is_empty() {
        // Go reads `null` as an empty list.
        match serde_json::from_str::<Option<Vec<Value>>>(listed) {
            Ok(tolerations) => {
                placement::tolerations(&tolerations.unwrap_or_default(), &at.child(TOLERATIONS), errors);
            }
            Err(error) => errors.invalid(at, TOLERATIONS, error),
        }
    }
    // An object that has an invalid cost already may keep it or get another (`GetValidationOptionsFromPodSpecAndMeta`).
    if let Some(cost) = invalid_deletion_cost(notes)
        && old.is_none_or(|old| invalid_deletion_cost(child(old, "annotations")).is_none())
    {
        errors.invalid(&at.key(DELETION_COST), cost, "must be a 32bit integer");
    }
    if notes.contains_key(SECCOMP_OF_POD) {
        seccomp_profile(text(notes, SECCOMP_OF_POD), &at.child(SECCOMP_OF_POD), errors);
    }
    for name in notes.keys() {
        if name.starts_with(SECCOMP_OF_CONTAINER) {
            seccomp_profile(text(notes, name), &at.child(name), errors);
        }
        let Some(container) = name.strip_prefix(APPARMOR_OF_CONTAINER) else { continue };
        let (at, profile) = (at.key(name), text(notes, name));
        if !each_container(spec).any(|(.., found)| text(found, "name") == container) {
            errors.invalid(&at, container, "container not found");
        }
        if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with("localhost/") {
            errors.invalid(&at, profile, format_args!("invalid AppArmor profile name: {}", go::quote(profile)));
        }
    }
}

/// The deletion cost, if it is invalid (`GetDeletionCostFromPodAnnotations`).
fn invalid_deletion_cost(notes: &Object) -> Option<&str> {
    let cost = notes.get(DELETION_COST)?.as_str()?;
    let canonical = cost == "0" || cost.starts_with(|first: char| matches!(first, '-' | '1'..='9'));
    (!canonical || cost.parse::<i32>().is_err()).then_some(cost)
}

fn seccomp_profile(profile: &str, at: &Path<'_>, errors: &mut Errors) {
    if matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(path) => descending_path(path, at, errors),
        None => errors.invalid(at, profile, "must be a valid seccomp profile"),
    }
}

/// Reports seccomp and AppArmor annotations that contradict the fields.
pub(super) fn match_fields(metadata: &Object, spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(notes)) = metadata.get("annotations") else { return };
    let note = |prefix: &str, container: &str| notes.get(&format!("{prefix}{container}")).and_then(Value::as_str);
    let profile = |holder: &'_ Object, name: &str| {
        given(child(holder, "securityContext"), name).and_then(Value::as_object).cloned()
    };
    if let (Some(profile), Some(note)) = (profile(spec, "seccompProfile"), note(SECCOMP_OF_POD, "")) {
        let at = at.child("securityContext");
        match_profile(
            &profile,
            note,
            &["runtime/default", "docker/default"],
            "seccomp",
            &at.child("seccompProfile"),
            errors,
        );
    }
    for (list, position, container) in each_container(spec) {
        let Some(profile) = profile(container, "seccompProfile") else { continue };
        let Some(note) = note(SECCOMP_OF_CONTAINER, text(container, "name")) else { continue };
        let (at, known) = (at.child(list), ["runtime/default", "docker/default"]);
        let at = at.index(position);
        let at = at.child("securityContext");
        match_profile(&profile, note, &known, "seccomp", &at.child("seccompProfile"), errors);
    }
    if text(child(spec, "os"), "name") == "windows" {
        return;
    }
    for (list, position, container) in each_container(spec) {
        let own = profile(container, "appArmorProfile").or_else(|| profile(spec, "appArmorProfile"));
        let Some(profile) = own else { continue };
        let Some(note) = note(APPARMOR_OF_CONTAINER, text(container, "name")) else { continue };
        let at = at.child(list);
        let at = at.index(position);
        let at = at.child("securityContext");
        match_profile(&profile, note, &["runtime/default"], "apparmor", &at.child("appArmorProfile"), errors);
    }
}

fn match_profile(profile: &Object, note: &str, defaults: &[&str], what: &str, at: &Path<'_>, errors: &mut Errors) {
    let fits = match text(profile, "type") {
        "Unconfined" => note == "unconfined",
        "RuntimeDefault" => defaults.contains(&note),
        "Localhost" => match note.strip_prefix("localhost/") {
            None => false,
            Some(path) => {
                if given(profile, "localhostProfile").and_then(Value::as_str) != Some(path) {
                    let why = format!("{what} profile in annotation and field must match");
                    errors.forbidden(&at.child("localhostProfile"), &why);
                }
                return;
            }
        },
        _ => true,
    };
    if !fits {
        errors.forbidden(&at.child("type"), &format!("{what} type in annotation and field must match"));
    }
}
