//! ClusterRole (`rbac.authorization.k8s.io/v1`): permissions in the whole cluster.
//!
//! Source: `pkg/registry/rbac/clusterrole`, `ValidateClusterRole` in `pkg/apis/rbac/validation`.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::formats::label_selector;
use listwatch_validation::names::NameRule;
use listwatch_validation::{Errors, Object, given, items};

use super::rules::{self, validate_rules};
use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    names: NameRule::PathSegment,
    create_on_update: true,
    defaults: &rules::DEFAULTS,
    validate,
    ..Kind::cluster("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole")
};

fn validate(role: &Object, _: Option<&Object>, errors: &mut Errors) {
    validate_rules(role, false, errors);
    let Some(Value::Object(aggregation)) = given(role, "aggregationRule") else { return };
    let at = Path::root("aggregationRule");
    let at = at.child("clusterRoleSelectors");
    if items(aggregation, "clusterRoleSelectors").is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.required(&at, why);
    }
    for (position, selector) in items(aggregation, "clusterRoleSelectors").iter().enumerate() {
        let at = at.index(position);
        let before = errors.len();
        label_selector(Some(selector), true, &at, errors);
        if errors.len() > before {
            // Upstream prints the nil selector that the conversion returns.
            errors.invalid_value(&at, "null", "invalid label selector.");
        }
    }
}
