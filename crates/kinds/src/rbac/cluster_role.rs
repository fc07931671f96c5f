//! `ClusterRole (rbac.authorization.k8s.io/v1)`: clusterroles.

use crate::{Kind, Unenforced, UnenforcedPart};
use listwatch_validation::names::NameRule;

pub(crate) static KIND: Kind = Kind {
    names: NameRule::PathSegment,
    create_on_update: true,
    defaults: &crate::defaults::table::ROLE,
    validate: crate::validate::rbac::cluster_role,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "it grants no permission" }),
    ..Kind::cluster("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole")
};
