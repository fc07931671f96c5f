//! Lease (`coordination.k8s.io/v1`): a lock with a holder and a duration.
//!
//! Source: `pkg/registry/coordination/lease`, `ValidateLeaseSpec` in `pkg/apis/coordination/validation`. The fields of
//! the feature CoordinatedLeaderElection are not validated.

use listwatch_schema::Path;
use listwatch_validation::formats::NOT_NEGATIVE;
use listwatch_validation::{Errors, Object, child, number};

use crate::Kind;
use crate::printers::Printer;
use crate::table::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    create_on_update: true,
    validate,
    printer: &PRINTER,
    ..Kind::namespaced("coordination.k8s.io", "v1", "leases", "Lease")
};

fn validate(lease: &Object, _: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(lease, "spec"), Path::root("spec"));
    if let Some(seconds) = number(spec, "leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        errors.invalid_value(&at.child("leaseDurationSeconds"), seconds, "must be greater than 0");
    }
    if let Some(count) = number(spec, "leaseTransitions").filter(|count| *count < 0) {
        errors.invalid_value(&at.child("leaseTransitions"), count, NOT_NEGATIVE);
    }
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("Holder", "Who holds the lease."), AGE],
    cells: |lease| vec![lease.name().into(), lease.at("spec.holderIdentity").string().into(), lease.age().into()],
};
