//! Warnings about the containers of pods and pod templates, except about ports.
//!
//! Source: `warningsForPodSpecAndMeta` in `pkg/api/pod/warnings.go`.

use listwatch_json::Value;
use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::{Object, child, given, items, objects, text};

use crate::{Warnings, add_fractional, each_duplicate};

/// The lists of containers in the order in which upstream visits them.
pub(crate) const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The prefixes of the annotations that fields of containers replaced.
pub(crate) const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
pub(crate) const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Adds the warnings of all containers. `replaced` says whether there are annotations for seccomp and for AppArmor.
pub(crate) fn add_containers(
    spec: &Object,
    annotations: &Object,
    replaced: (bool, bool),
    at: &Path<'_>,
    warnings: &mut Warnings,
) {
    let (has_seccomp, has_apparmor) = replaced;
    let annotations_at = at.child("metadata");
    let annotations_at = annotations_at.child("annotations");
    let spec_at = at.child("spec");
    let pod_profile = child(spec, "securityContext").get("appArmorProfile").and_then(Value::as_object);
    for list in LISTS {
        let list_at = spec_at.child(list);
        for (index, container) in objects(spec, list) {
            if warnings.is_full() {
                return;
            }
            let (name, context) = (text(container, "name"), child(container, "securityContext"));
            if has_seccomp && given(context, "seccompProfile").is_none() {
                let key = format!("{SECCOMP}{name}");
                if annotations.contains_key(&key) {
                    let at = annotations_at.key(&key);
                    warnings
                        .add(format_args!(r#"{at}: non-functional in v1.27+; use the "seccompProfile" field instead"#));
                }
            }
            if has_apparmor && given(context, "appArmorProfile").is_none() {
                let key = format!("{APPARMOR}{name}");
                let annotation = annotations.get(&key).and_then(Value::as_str);
                // An annotation that says the same as the profile of the pod is no problem.
                if annotation.is_some_and(|annotation| !pod_profile.is_some_and(|pod| is_profile(pod, annotation))) {
                    let at = annotations_at.key(&key);
                    warnings
                        .add(format_args!(r#"{at}: deprecated since v1.30; use the "appArmorProfile" field instead"#));
                }
            }
            let at = list_at.index(index);
            add_resources(child(container, "resources"), &at, warnings);
            add_variables(items(container, "env"), &at, warnings);
        }
    }
}

/// Whether an AppArmor annotation means this profile (`ApparmorFieldForAnnotation`).
fn is_profile(profile: &Object, annotation: &str) -> bool {
    let localhost = given(profile, "localhostProfile").and_then(Value::as_str);
    match (text(profile, "type"), annotation) {
        ("Unconfined", "unconfined") | ("RuntimeDefault", "runtime/default") => localhost.is_none(),
        ("Localhost", annotation) => {
            annotation.strip_prefix("localhost/").is_some_and(|path| !path.is_empty() && localhost == Some(path))
        }
        _ => false,
    }
}

fn add_resources(resources: &Object, at: &Path<'_>, warnings: &mut Warnings) {
    if resources.is_empty() {
        return;
    }
    let at = at.child("resources");
    for name in ["memory", "ephemeral-storage"] {
        for list in ["limits", "requests"] {
            add_fractional(child(resources, list), name, &at.child(list), warnings);
        }
    }
}

/// Warns of environment variables that replace an earlier variable without a reference to it.
fn add_variables(variables: &[Value], at: &Path<'_>, warnings: &mut Warnings) {
    let at = at.child("env");
    each_duplicate(variables, "name", |index, variable, name| {
        let (value, reference) = (text(variable, "value"), format!("$({name})"));
        let extends = given(variable, "valueFrom").is_none() && value != reference && value.contains(&reference);
        if !extends {
            let (at, name) = (at.index(index), quote(name));
            warnings
                .add(format_args!("{at}: hides previous definition of {name}, which may be dropped when using apply"));
        }
    });
}
