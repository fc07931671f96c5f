//! `RoleBinding (rbac.authorization.k8s.io/v1)`: rolebindings.

use crate::{Kind, Unenforced, UnenforcedPart};
use listwatch_validation::names::NameRule;

pub(crate) static KIND: Kind = Kind {
    names: NameRule::PathSegment,
    create_on_update: true,
    defaults: &crate::defaults::table::ROLE_BINDING,
    validate: crate::validate::rbac::role_binding,
    validate_update: crate::validate::rbac::update_binding,
    printer: &crate::printers::extension::ROLE_BINDING,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "it grants no permission" }),
    ..Kind::namespaced("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
};
