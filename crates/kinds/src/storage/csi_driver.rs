//! CSIDriver (`storage.k8s.io/v1`): the properties of a CSI driver.
//!
//! Source: `pkg/registry/storage/csidriver/strategy.go`, `ValidateCSIDriver` in `pkg/apis/storage/validation`.

use std::collections::HashSet;

use listwatch_json::json;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{drop_unless_used, one_of_if_present};
use listwatch_validation::formats::{IMMUTABLE, json as go_json, same};
use listwatch_validation::{Errors, Object, child, given, items, metadata_mut, number, objects, text};

use crate::Kind;
use crate::defaults::Default::{Flag, From, In, Text};
use crate::defaults::Defaults;
use crate::kind::StoredText::Always;
use listwatch_printers::Printer;
use listwatch_printers::text::{NONE, UNSET, joined, or};
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    generation: true,
    defaults: &DEFAULTS,
    stored_texts: &[
        Always(r#""volumeLifecycleModes":["#),
        Always(r#""storageCapacity":"#),
        Always(r#""fsGroupPolicy":""#),
        Always(r#""requiresRepublish":"#),
        Always(r#""seLinuxMount":"#),
    ],
    // Upstream counts the generation only from the first change of the spec.
    prepare_for_create: |driver, _| {
        metadata_mut(driver).shift_remove("generation");
        drop_prevent_scheduling(driver, None);
    },
    prepare_for_update: |new, old, _| drop_prevent_scheduling(new, Some(old)),
    validate,
    warnings: listwatch_kind_warnings::storage::of_driver,
    printer: &PRINTER,
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
};

/// The smallest lifetime of a token that a driver can request, in seconds.
const TOKEN_SECONDS_MIN: i64 = 600;

/// The largest lifetime of a token that a driver can request, in seconds.
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("attachRequired", Flag(true)),
    ("podInfoOnMount", Flag(false)),
    ("volumeLifecycleModes", From(|_| Some(json!(["Persistent"])))),
    ("storageCapacity", Flag(false)),
    ("fsGroupPolicy", Text("ReadWriteOnceWithFSType")),
    ("requiresRepublish", Flag(false)),
    ("seLinuxMount", Flag(false)),
]);

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

/// Removes the field of the feature gate VolumeLimitScaling, which is off by default, unless the old object has it.
fn drop_prevent_scheduling(driver: &mut Object, old: Option<&Object>) {
    drop_unless_used(driver, old, &["spec"], &["preventPodSchedulingIfMissing"]);
}

fn validate(driver: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(driver, "spec");
    let at = Path::root("spec");
    for (name, shown) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ] {
        if given(spec, name).is_none() {
            errors.required(&at.child(shown), "");
        }
    }
    one_of_if_present(spec, "fsGroupPolicy", &["File", "None", "ReadWriteOnceWithFSType"], &at, errors);
    validate_token_requests(spec, &at.child("tokenRequests"), errors);
    let modes_at = at.child("volumeLifecycleModes");
    for mode in items(spec, "volumeLifecycleModes").iter().map(|mode| mode.as_str().unwrap_or_default()) {
        if !matches!(mode, "Persistent" | "Ephemeral") {
            errors.not_supported(&modes_at, mode, &["Persistent", "Ephemeral"]);
        }
    }
    if given(spec, "seLinuxMount").is_none() {
        errors.required(&at.child("seLinuxMount"), "");
    }
    if let Some(period) = number(spec, "nodeAllocatableUpdatePeriodSeconds").filter(|period| *period < 10) {
        let why = "must be greater than or equal to 10 seconds";
        errors.invalid_value(&at.child("nodeAllocatableUpdatePeriodSeconds"), period, why);
    }
    if let Some(set) = given(spec, "serviceAccountTokenInSecrets")
        && items(spec, "tokenRequests").is_empty()
    {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.invalid_value(&at.child("serviceAccountTokenInSecrets"), set, why);
    }
    let Some(old) = old else { return };
    for (name, shown) in [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")] {
        if !same(spec.get(name), child(old, "spec").get(name)) {
            errors.invalid_value(&at.child(shown), go_json(spec.get(name)), IMMUTABLE);
        }
    }
}

fn validate_token_requests(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let mut audiences = HashSet::new();
    for (index, request) in objects(spec, "tokenRequests") {
        let at = at.index(index);
        let audience = text(request, "audience");
        if !audiences.insert(audience) {
            errors.duplicate(&at.child("audience"), audience);
            continue;
        }
        let Some(seconds) = number(request, "expirationSeconds") else { continue };
        let seconds_at = at.child("expirationSeconds");
        if seconds < TOKEN_SECONDS_MIN {
            errors.invalid_value(&seconds_at, seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > TOKEN_SECONDS_MAX {
            errors.invalid_value(&seconds_at, seconds, "may not specify a duration larger than 2^32 seconds");
        }
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::boolean("AttachRequired", "Whether volumes are attached before they are mounted."),
        Column::boolean("PodInfoOnMount", "Whether the driver is told about the pod."),
        Column::boolean("StorageCapacity", "Whether the driver reports its capacity."),
        Column::text("TokenRequests", "The audiences of the tokens that the driver gets."),
        Column::boolean("RequiresRepublish", "Whether mounts are renewed from time to time."),
        Column::text("Modes", "The kinds of volumes that the driver has."),
        AGE,
    ],
    cells: |driver| {
        let spec = driver.spec();
        let flag = |key: &str, default: bool| spec.get(key).bool().unwrap_or(default);
        let tokens = spec.get("tokenRequests");
        let audiences: Vec<String> = tokens.items().into_iter().map(|token| token.get("audience").string()).collect();
        vec![
            driver.name().into(),
            flag("attachRequired", true).into(),
            flag("podInfoOnMount", false).into(),
            flag("storageCapacity", false).into(),
            if tokens.exists() { audiences.join(",") } else { UNSET.to_owned() }.into(),
            flag("requiresRepublish", false).into(),
            or(joined(spec.get("volumeLifecycleModes"), ","), NONE).into(),
            driver.age().into(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::Value;

    use super::*;
    use crate::testing::map;

    #[test]
    fn prevent_pod_scheduling_is_removed_unless_the_old_object_has_it() {
        let driver = |spec: Value| map(json!({ "spec": spec }));
        let with = || json!({"attachRequired": true, "preventPodSchedulingIfMissing": false});
        let without = || json!({"attachRequired": true});
        for (new, old, expected) in [
            (with(), None, without()),
            (with(), Some(without()), without()),
            (with(), Some(with()), with()),
            (without(), Some(with()), without()),
        ] {
            let (mut new, old) = (driver(new), old.map(driver));
            drop_prevent_scheduling(&mut new, old.as_ref());
            assert_eq!(new, driver(expected), "{old:?}");
        }
    }
}
