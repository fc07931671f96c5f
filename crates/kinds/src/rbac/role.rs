//! Role (`rbac.authorization.k8s.io/v1`): permissions in one namespace.
//!
//! Source: `pkg/registry/rbac/role`, `ValidateRole` in `pkg/apis/rbac/validation`.

use listwatch_validation::names::NameRule;

use super::rules;
use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    names: NameRule::PathSegment,
    create_on_update: true,
    defaults: &rules::DEFAULTS,
    validate: |role, _, errors| rules::validate_rules(role, true, errors),
    ..Kind::namespaced("rbac.authorization.k8s.io", "v1", "roles", "Role")
};
