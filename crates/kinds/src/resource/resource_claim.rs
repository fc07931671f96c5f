//! ResourceClaim (`resource.k8s.io/v1`): requests devices, and records which devices are allocated.
//!
//! Upstream: `pkg/registry/resource/resourceclaim/strategy.go`, `pkg/apis/resource/v1/defaults.go`,
//! `ValidateResourceClaim` in `pkg/apis/resource/validation`.

use listwatch_validation::Object;
use serde_json::json;

use crate::defaults::Default::{Do, Each, If, In, Text};
use crate::defaults::Defaults;
use crate::printers::Printer;
use crate::table::{AGE, Column, NAME};
use crate::validate::devices;
use crate::{Kind, Subresource, UpdateContext, WriteScope};

pub(crate) static KIND: Kind = Kind {
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    prepare_for_update,
    validate: devices::claim,
    validate_status: devices::claim_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &PRINTER,
    returns_deleted: true,
    ..Kind::namespaced("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
};

static DEFAULTS: Defaults = Defaults(&[("spec", If(&SPEC_DEFAULTS))]);

static DEVICE_REQUEST: Defaults = Defaults(&[
    ("allocationMode", Text("ExactCount")),
    ("count", Do(default_count)),
    ("tolerations", Each(&DEVICE_TOLERATION)),
]);
static DEVICE_TOLERATION: Defaults = Defaults(&[("operator", Text("Equal"))]);

/// Sets the count of a request in mode `ExactCount` to 1 where the count is missing or 0.
fn default_count(request: &mut Object) {
    let is_missing = request.get("count").is_none_or(|count| count.as_i64() == Some(0));
    if is_missing && request.get("allocationMode") == Some(&json!("ExactCount")) {
        request.insert("count".to_owned(), json!(1));
    }
}

static REQUEST: Defaults = Defaults(&[("exactly", If(&DEVICE_REQUEST)), ("firstAvailable", Each(&DEVICE_REQUEST))]);
static DEVICES: Defaults = Defaults(&[("requests", Each(&REQUEST))]);
/// The defaults of the spec of a claim, also inside a ResourceClaimTemplate.
pub(super) static SPEC_DEFAULTS: Defaults = Defaults(&[("devices", In(&DEVICES))]);

/// Removes the status of devices that a write to `/status` deallocates.
fn prepare_for_update(new: &mut Object, old: &Object, context: UpdateContext<'_>) {
    if context.subresource == Some(&Subresource::Status) {
        devices::drop_deallocated(new, old);
    }
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("State", "Whether devices are allocated and reserved."), AGE],
    cells: |claim| {
        let status = claim.status();
        let allocated = status.get("allocation").exists();
        let states = [
            (claim.is_being_deleted(), "deleted"),
            (!allocated && !claim.is_being_deleted(), "pending"),
            (allocated, "allocated"),
            (allocated && status.get("reservedFor").len() > 0, "reserved"),
        ];
        let state: Vec<&str> = states.into_iter().filter(|(is, _)| *is).map(|(_, state)| state).collect();
        vec![claim.name().into(), state.join(",").into(), claim.age().into()]
    },
};
