//! PersistentVolumeClaim (`v1`): a request for storage.
//!
//! Source: `pkg/registry/core/persistentvolumeclaim/strategy.go`, `ValidatePersistentVolumeClaim` in
//! `pkg/apis/core/validation`.

use listwatch_json::{Map, Value, json};
use listwatch_k8s_types::Id;
use listwatch_meta::FieldError;
use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::diff::unified;
use listwatch_validation::formats::{
    self, IMMUTABLE, amount, is_invalid_selector, json as go_json, not_negative_amount, qualified_name, same,
};
use listwatch_validation::typed_equality::is_equal;
use listwatch_validation::volume_claim::{ClaimSpecOptions, claim_spec};
use listwatch_validation::{Errors, Object, child, given, items, text};

use crate::core::volumes::{CLASS_ANNOTATION, access_modes_cell, class_cell, validate_basic_amount};
use crate::defaults::Default::{In, Text};
use crate::defaults::Defaults;
use crate::defaults::volume::CLAIM_SPEC;
use crate::kind::StoredText::{Always, With};
use crate::{Kind, Subresource};
use listwatch_printers::Printer;
use listwatch_printers::text::UNSET;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["pvc"],
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    stored_texts: &[
        Always(r#""volumeMode":""#),
        Always(r#""phase":""#),
        With(r#""dataSource":{"#, r#""dataSourceRef":{"#),
        With(r#""dataSourceRef":{"#, r#""dataSource":{"#),
    ],
    default_on_read: |claim| {
        if let Some(Value::Object(spec)) = claim.get_mut("spec") {
            copy_data_sources(spec);
        }
    },
    initial_status: || Some(json!({"phase": "Pending"})),
    prepare_for_create: |claim, _| normalize_data_sources(claim, None),
    prepare_for_update: |claim, old, _| normalize_data_sources(claim, Some(old)),
    validate,
    validate_status,
    warnings: listwatch_kind_warnings::storage::of_claim,
    printer: &PRINTER,
    zero_members: r#""spec":{"resources":{}},"status":{}"#,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
};

static DEFAULTS: Defaults = Defaults(&[("spec", In(&CLAIM_SPEC)), ("status", In(&STATUS_DEFAULTS))]);

static STATUS_DEFAULTS: Defaults = Defaults(&[("phase", Text("Pending"))]);

/// Normalizes the data sources. A `dataSource` without `dataSourceRef` can only be a claim or a snapshot
/// (`EnforceDataSourceBackwardsCompatibility`). References to other namespaces are an alpha feature and are removed.
/// Then the remaining one is copied.
fn normalize_data_sources(claim: &mut Object, old: Option<&Object>) {
    let Some(Value::Object(spec)) = claim.get_mut("spec") else { return };
    let had = |name: &str| old.is_some_and(|old| given(child(old, "spec"), name).is_some());
    if !text(child(spec, "dataSourceRef"), "namespace").is_empty() && !had("dataSourceRef") {
        spec.shift_remove("dataSourceRef");
    }
    let source = child(spec, "dataSource");
    let fine = matches!(
        (text(source, "apiGroup"), text(source, "kind")),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    );
    if !had("dataSource") && !had("dataSourceRef") && given(spec, "dataSourceRef").is_none() && !fine {
        spec.shift_remove("dataSource");
    }
    copy_data_sources(spec);
}

/// Copies `dataSource` and `dataSourceRef` to each other (`NormalizeDataSources`).
fn copy_data_sources(spec: &mut Object) {
    for (from, to) in [("dataSource", "dataSourceRef"), ("dataSourceRef", "dataSource")] {
        if let Some(Value::Object(members)) = given(spec, from)
            && given(spec, to).is_none()
            && text(members, "namespace").is_empty()
        {
            let mut source = members.clone();
            source.shift_remove("namespace");
            spec.insert(to.to_owned(), Value::Object(source));
            return;
        }
    }
}

fn validate(claim: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(claim, "spec");
    let at = Path::root("spec");
    let before = old.map(|old| child(old, "spec"));
    let label_values = before.is_none_or(|before| !is_invalid_selector(before.get("selector")));
    let api_groups = before.is_none_or(|before| {
        ["dataSource", "dataSourceRef"].iter().all(|name| given(child(before, name), "apiGroup").is_none())
    });
    claim_spec(spec, ClaimSpecOptions { label_values, api_groups }, &at, errors);
    if let Some(old) = old {
        validate_changes(claim, old, errors);
    }
}

fn validate_changes(claim: &Object, old: &Object, errors: &mut Errors) {
    let at = Path::root("spec");
    let (spec, before) = (child(claim, "spec"), child(old, "spec"));
    let annotations = |object| child(child(object, "metadata"), "annotations");
    let (was, is) = (annotations(old).get(CLASS_ANNOTATION), annotations(claim).get(CLASS_ANNOTATION));
    let (class_before, class) = (given(before, "storageClassName"), given(spec, "storageClassName"));
    let moved = was.is_some() && class_before.is_none() && class == was && (is.is_none() || is == was);
    if !moved && was.and_then(Value::as_str).unwrap_or_default() != is.and_then(Value::as_str).unwrap_or_default() {
        let field = format!("metadata.annotations.{CLASS_ANNOTATION}");
        errors.push(FieldError::invalid(field, quote(is.and_then(Value::as_str).unwrap_or_default()), IMMUTABLE));
    }
    let class_came = class.is_some() && class_before.is_none() && (was.is_none() || class == was);
    let bound = text(child(claim, "status"), "phase") == "Bound";
    let requests = |spec| child(child(spec, "resources"), "requests");
    // The comparison ignores the fields that can change.
    let mut after = spec.clone();
    let mut then = before.clone();
    // The claim may be older than one of the two fields.
    copy_data_sources(&mut then);
    let keep = |from: &Object, to: &mut Object, name: &str| {
        to.shift_remove(name);
        if let Some(value) = from.get(name) {
            to.insert(name, value.clone());
        }
    };
    if text(before, "volumeName").is_empty() {
        keep(spec, &mut then, "volumeName");
    }
    if moved || class_came {
        keep(before, &mut after, "storageClassName");
    }
    if bound {
        keep(before, &mut after, "volumeAttributesClassName");
        if let Some(requests_after) =
            after.get_mut("resources").and_then(|all| all.get_mut("requests")?.as_object_mut())
        {
            keep(requests(before), requests_after, "storage");
        }
    }
    if !is_equal(Id::CorePersistentVolumeClaimSpec, &after, &then) {
        let (then, after) = (go_claim_spec(&then), go_claim_spec(&after));
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.forbidden(&at, &format!("{why}\n{}", unified(&then, &after)));
    }
    let storage = |amounts: &Object| amounts.get("storage").map_or("0", amount).to_owned();
    let (size, size_before) = (storage(requests(spec)), storage(requests(before)));
    if formats::compare(&size, &size_before).is_lt()
        && formats::compare(&size, &storage(child(child(old, "status"), "capacity"))).is_le()
    {
        errors.push(FieldError::forbidden(
            "spec.resources.requests.storage",
            "field can not be less than status.capacity",
        ));
    }
    if !same(spec.get("volumeMode"), before.get("volumeMode")) {
        errors.invalid_value(&Path::root("volumeMode"), go_json(spec.get("volumeMode")), IMMUTABLE);
    }
    let attributes = given(spec, "volumeAttributesClassName");
    if attributes != given(before, "volumeAttributesClassName")
        && given(child(old, "status"), "currentVolumeAttributesClassName").is_some()
    {
        let why = match attributes.and_then(Value::as_str) {
            None => "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
            Some("") => "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
            Some(_) => return,
        };
        errors.forbidden(&at.child("volumeAttributesClassName"), why);
    }
}

/// The spec of a claim as Go prints upstream's internal type, without JSON names.
fn go_claim_spec(spec: &Object) -> Value {
    let resources = child(spec, "resources");
    let source = |name: &str, members: &[(&str, &str)]| {
        let source = given(spec, name)?.as_object()?;
        let text = |member: &str| {
            source
                .get(member)
                .cloned()
                .unwrap_or_else(|| if matches!(member, "kind" | "name") { Value::from("") } else { Value::Null })
        };
        Some(members.iter().map(|(shown, member)| ((*shown).to_owned(), text(member))).collect::<Map>())
    };
    let reference = [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name"), ("Namespace", "namespace")];
    json!({
        "AccessModes": spec.get("accessModes"),
        "Selector": spec.get("selector"),
        "Resources": {"Limits": resources.get("limits"), "Requests": resources.get("requests")},
        "VolumeName": text(spec, "volumeName"),
        "StorageClassName": spec.get("storageClassName"),
        "VolumeMode": spec.get("volumeMode"),
        "DataSource": source("dataSource", &reference[..3]),
        "DataSourceRef": source("dataSourceRef", &reference),
        "VolumeAttributesClassName": spec.get("volumeAttributesClassName"),
    })
}

fn validate_status(claim: &Object, _: Option<&Object>, errors: &mut Errors) {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizePending",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
    ];
    let status = child(claim, "status");
    let at = Path::root("status");
    if items(child(claim, "spec"), "accessModes").is_empty() {
        errors.push(FieldError::required("Spec.accessModes", ""));
    }
    let capacity_at = at.child("capacity");
    for (name, value) in child(status, "capacity") {
        validate_basic_amount(amount(value), &capacity_at.key(name), errors);
    }
    let states_at = at.child("allocatedResourceStatuses");
    for (name, state) in child(status, "allocatedResourceStatuses") {
        validate_resource(name, &states_at, errors);
        if !STATES.contains(&state.as_str().unwrap_or_default()) {
            let mut sorted = STATES;
            sorted.sort_unstable();
            errors.not_supported(&states_at, name, &sorted);
        }
    }
    let allocated_at = at.child("allocatedResources");
    for (name, value) in child(status, "allocatedResources") {
        if !validate_resource(name, &allocated_at, errors) {
            continue;
        }
        let at = allocated_at.key(name);
        if validate_basic_amount(amount(value), &at, errors) {
            not_negative_amount(amount(value), &at, errors);
        }
    }
}

/// Validates the name of a resource in the status: `storage` or a name with the domain of a vendor. Returns whether it
/// is valid.
fn validate_resource(name: &str, at: &Path<'_>, errors: &mut Errors) -> bool {
    let before = errors.len();
    qualified_name(name, at, errors);
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    if errors.len() == before && native && name != "storage" {
        errors.not_supported(at, name, &["storage"]);
    }
    errors.len() == before
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "Whether the claim is bound."),
        Column::text("Volume", "The volume that the claim is bound to."),
        Column::text("Capacity", "How much the volume holds."),
        Column::text("Access Modes", "How the volume can be mounted."),
        Column::text("StorageClass", "The class that was asked for."),
        Column::text("VolumeAttributesClass", "The class of the volume's changeable attributes."),
        AGE,
        Column::wide("VolumeMode", "Whether the volume is a file system or a block device."),
    ],
    cells: |claim| {
        let (spec, status) = (claim.spec(), claim.status());
        let volume = spec.get("volumeName").string();
        // An unbound claim shows no capacity.
        let (capacity, modes) = match volume.is_empty() {
            true => (String::new(), String::new()),
            false => (
                status.at("capacity.storage").scalar().unwrap_or_else(|| "0".to_owned()),
                access_modes_cell(status.get("accessModes")),
            ),
        };
        let phase = status.get("phase").string_or("Pending");
        vec![
            claim.name().into(),
            if claim.is_being_deleted() { "Terminating".to_owned() } else { phase }.into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            class_cell(claim.annotation(CLASS_ANNOTATION), spec).into(),
            spec.get("volumeAttributesClassName").text().map_or_else(|| UNSET.to_owned(), Into::into).into(),
            claim.age().into(),
            spec.get("volumeMode").string_or("Filesystem").into(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_defaults;

    #[test]
    fn status_without_phase_is_pending() {
        let spec = json!({"volumeMode": "Filesystem"});
        for (status, phase) in
            [(json!({}), "Pending"), (json!({"phase": ""}), "Pending"), (json!({"phase": "Bound"}), "Bound")]
        {
            let expected = json!({"spec": spec, "status": {"phase": phase}});
            check_defaults(&KIND, json!({"spec": spec, "status": status}), expected);
        }
    }

    #[test]
    fn update_rejects_changed_pointers_of_the_spec() {
        let source = json!({"kind": "PersistentVolumeClaim", "name": "other"});
        let claim = |spec: Value| {
            let Value::Object(claim) = json!({ "spec": spec }) else { unreachable!("an object") };
            claim
        };
        for (new, old, is_equal) in [
            (json!({"selector": {}}), json!({}), false),
            (json!({}), json!({"selector": {}}), false),
            (json!({}), json!({"storageClassName": ""}), false),
            (json!({"selector": {"matchLabels": {}}}), json!({"selector": {}}), true),
            (json!({"dataSource": source, "dataSourceRef": source}), json!({"dataSource": source}), true),
            (json!({"dataSource": source, "dataSourceRef": source}), json!({"dataSourceRef": source}), true),
            (json!({"dataSource": source}), json!({}), false),
            (json!({"accessModes": [], "resources": {"limits": {}}, "volumeName": ""}), json!({}), true),
        ] {
            let mut errors = Errors::default();
            validate_changes(&claim(new.clone()), &claim(old.clone()), &mut errors);
            assert_eq!(errors.is_empty(), is_equal, "{old} to {new}");
        }
    }
}
