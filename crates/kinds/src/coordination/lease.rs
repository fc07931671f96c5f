//! Lease (`coordination.k8s.io/v1`): a lock with a holder and a duration.
//!
//! Source: `pkg/registry/coordination/lease`, `ValidateLeaseSpec` in `pkg/apis/coordination/validation`. The fields of
//! the feature CoordinatedLeaderElection are removed from new objects, and not validated.

use listwatch_schema::Path;
use listwatch_validation::field_rules::drop_unless_used;
use listwatch_validation::formats::NOT_NEGATIVE;
use listwatch_validation::{Errors, Object, child, number};

use crate::Kind;
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    create_on_update: true,
    prepare_for_create: |lease, _| drop_unless_used(lease, None, &["spec"], &ELECTION_FIELDS),
    prepare_for_update: |lease, old, _| drop_unless_used(lease, Some(old), &["spec"], &ELECTION_FIELDS),
    validate,
    printer: &PRINTER,
    ..Kind::namespaced("coordination.k8s.io", "v1", "leases", "Lease")
};

/// The fields of the feature CoordinatedLeaderElection, which is off by default.
const ELECTION_FIELDS: [&str; 2] = ["strategy", "preferredHolder"];

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

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};
    use time::OffsetDateTime;

    use super::*;
    use crate::testing::map;
    use crate::{CreateContext, UpdateContext};

    #[test]
    fn election_fields_are_dropped_unless_the_old_lease_has_them() {
        let lease = |spec: Value| map(json!({"spec": spec}));
        let full = || json!({"holderIdentity": "a", "strategy": "OldestEmulationVersion", "preferredHolder": "b"});
        let mut created = lease(full());
        let user = listwatch_meta::UserInfo::admin();
        (KIND.prepare_for_create)(&mut created, CreateContext { uid: "u", now: "", user });
        assert_eq!(created, lease(json!({"holderIdentity": "a"})));
        for (old, expected) in [
            (json!({}), json!({"holderIdentity": "a"})),
            (json!({"preferredHolder": "c"}), json!({"holderIdentity": "a", "preferredHolder": "b"})),
            (full(), full()),
        ] {
            let mut new = lease(full());
            let context = UpdateContext { subresource: None, now: OffsetDateTime::UNIX_EPOCH };
            (KIND.prepare_for_update)(&mut new, &lease(old.clone()), context);
            assert_eq!(new, lease(expected), "{old}");
        }
    }
}
