//! ClusterRoleBinding (`rbac.authorization.k8s.io/v1`): grants a ClusterRole in the whole cluster.
//!
//! Source: `pkg/registry/rbac/clusterrolebinding`, `ValidateClusterRoleBinding` in `pkg/apis/rbac/validation`.

use listwatch_validation::names::NameRule;

use super::bindings::{self, validate_binding};
use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    names: NameRule::PathSegment,
    create_on_update: true,
    defaults: &bindings::DEFAULTS,
    validate: |binding, _, errors| validate_binding(binding, &["ClusterRole"], errors),
    validate_update: bindings::validate_update,
    printer: &bindings::PRINTER,
    ..Kind::cluster("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding")
};
