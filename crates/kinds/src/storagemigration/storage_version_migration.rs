//! StorageVersionMigration (`storagemigration.k8s.io/v1beta1`): a request to store all objects of a resource again, in
//! the current storage version.
//!
//! Not served by default, as in kube-apiserver (`--runtime-config=storagemigration.k8s.io/v1beta1=true`). The objects are
//! written by the controller `storage-version-migrator-controller`.
//!
//! Source: `pkg/registry/storagemigration/storagemigration/strategy.go`, `pkg/apis/storagemigration/validation`.

use listwatch_meta::FieldError;
use listwatch_meta::selector::{dns_1035_label_problems, dns_subdomain_problems};
use listwatch_schema::Path;
use listwatch_validation::formats::{IMMUTABLE, json as go_json};
use listwatch_validation::{Errors, Object, child, conditions, objects, quoted, text};

use crate::{Kind, Subresource, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::{Column, Json, NAME};

/// The types of the conditions.
const TYPES: [&str; 3] = ["Running", "Failed", "Succeeded"];

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    subresources: &[Subresource::Status],
    validate,
    validate_update,
    validate_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &PRINTER,
    ..Kind::cluster("storagemigration.k8s.io", "v1beta1", "storageversionmigrations", "StorageVersionMigration")
};

fn validate(migration: &Object, _: Option<&Object>, errors: &mut Errors) {
    let resource = child(child(migration, "spec"), "resource");
    let mut check = |member: &str, problems: Vec<String>| {
        if !problems.is_empty() {
            let field = format!("spec.resource.{member}");
            errors.push(FieldError::invalid(field, quoted(text(resource, member)), problems.join(",")));
        }
    };
    match text(resource, "group") {
        "" => {}
        group => check("group", dns_subdomain_problems(group)),
    }
    match text(resource, "resource") {
        "" => errors.push(FieldError::required("spec.resource.resource", "resource is required to be set")),
        plural => check("resource", dns_1035_label_problems(plural)),
    }
}

fn validate_update(new: &Object, old: &Object, errors: &mut Errors) {
    if child(new, "spec") != child(old, "spec") {
        errors.invalid_value(&Path::root("spec"), go_json(new.get("spec")), IMMUTABLE);
    }
}

fn validate_status(new: &Object, old: Option<&Object>, errors: &mut Errors) {
    let status = child(new, "status");
    let at = Path::root("status");
    let version = text(status, "resourceVersion");
    if let Err(why) = check_resource_version(version) {
        errors.invalid(&at.child("resourceVersion"), version, why);
    }
    conditions(status, "status.", errors);
    let before = old.map(|old| child(old, "status"));
    let had_version = before.map(|before| text(before, "resourceVersion")).unwrap_or_default();
    if !had_version.is_empty() && had_version != version {
        errors.invalid(&at.child("resourceVersion"), version, IMMUTABLE);
    }
    let mut refuse = |why| errors.invalid_value(&at.child("conditions"), go_json(status.get("conditions")), why);
    if is_true(status, "Succeeded") && is_true(status, "Failed") {
        refuse("Both success and failed conditions cannot be true at the same time");
    }
    let was_true = |kind| before.is_some_and(|before| is_true(before, kind));
    if was_true("Succeeded") && !is_true(status, "Succeeded") {
        refuse("Success condition cannot be set to false once it is true");
    }
    if was_true("Failed") && !is_true(status, "Failed") {
        refuse("Failed condition cannot be set to false once it is true");
    }
}

/// Checks that a resource version can be compared (`CompareResourceVersion`): a decimal number without leading zeros.
fn check_resource_version(version: &str) -> Result<(), String> {
    match version.as_bytes() {
        [] => Ok(()),
        [b'0', ..] => Err(format!("resource version is not well formed: {version}")),
        bytes if bytes.iter().all(u8::is_ascii_digit) => Ok(()),
        _ => Err(format!("resource version is not well formed: {version}")),
    }
}

fn is_true(status: &Object, kind: &str) -> bool {
    objects(status, "conditions")
        .any(|(_, condition)| text(condition, "type") == kind && text(condition, "status") == "True")
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Resource", "GroupResource to migrate"),
        Column::text("Status", "Status of the migration"),
    ],
    cells: |migration| {
        let group = migration.at("spec.resource.group").string();
        let resource = migration.at("spec.resource.resource").string();
        let resource = if group.is_empty() { resource } else { format!("{resource}.{group}") };
        let conditions = migration.at("status.conditions").items();
        let is_reached = |condition: &Json<'_>| {
            condition.get("status").is("True") && TYPES.contains(&&*condition.get("type").string())
        };
        let state = conditions.into_iter().rev().find(is_reached);
        let state = state.map_or_else(|| "Unknown".to_owned(), |condition| condition.get("type").string());
        vec![migration.name().into(), resource.into(), state.into()]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::*;
    use crate::testing::map;

    fn texts(check: impl FnOnce(&mut Errors)) -> Vec<String> {
        let mut errors = Errors::default();
        check(&mut errors);
        errors.iter().map(FieldError::to_string).collect()
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "R"})
    }

    #[test]
    fn migration_resource_is_required_and_immutable() {
        let of =
            |group: &str, resource: &str| map(json!({"spec": {"resource": {"group": group, "resource": resource}}}));
        assert_eq!(texts(|errors| validate(&of("apps", "deployments"), None, errors)), Vec::<String>::new());
        assert_eq!(texts(|errors| validate(&of("", "pods"), None, errors)), Vec::<String>::new());
        let found = texts(|errors| validate(&of("A_", ""), None, errors)).join("\n");
        assert!(found.contains("spec.resource.group: Invalid value: \"A_\""), "{found}");
        assert!(found.contains("spec.resource.resource: Required value: resource is required to be set"), "{found}");
        let changed = texts(|errors| validate_update(&of("", "pods"), &of("", "nodes"), errors)).join("\n");
        assert!(changed.contains("spec: Invalid value") && changed.contains(IMMUTABLE), "{changed}");
    }

    #[test]
    fn migration_status_rejects_reverted_or_contradictory_conditions() {
        let of = |version: &str, conditions: Value| {
            map(json!({"status": {"resourceVersion": version, "conditions": conditions}}))
        };
        let done = of("7", json!([condition("Succeeded", "True")]));
        for (new, old, expected) in [
            (of("7", json!([condition("Running", "True")])), of("", json!([])), ""),
            (of("x7", json!([])), of("", json!([])), "status.resourceVersion: Invalid value: \"x7\""),
            (of("07", json!([])), of("", json!([])), "status.resourceVersion: Invalid value: \"07\""),
            (of("8", json!([])), of("7", json!([])), "field is immutable"),
            (
                of("7", json!([condition("Succeeded", "True"), condition("Failed", "True")])),
                of("7", json!([])),
                "Both success and failed",
            ),
            (
                of("7", json!([condition("Succeeded", "False")])),
                done.clone(),
                "Success condition cannot be set to false",
            ),
            (done.clone(), done, ""),
            (
                of("7", json!([])),
                of("7", json!([condition("Failed", "True")])),
                "Failed condition cannot be set to false",
            ),
        ] {
            let found = texts(|errors| validate_status(&new, Some(&old), errors)).join("\n");
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{new:?}: {found}");
        }
    }
}
