//! `Namespace (v1)`: namespaces.

use crate::Subresource;
use crate::{Field, Kind, Unenforced, UnenforcedPart};
use listwatch_validation::names::NameRule;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["ns"],
    names: NameRule::Label,
    fields: &[Field::with_default("status.phase", "Active")],
    subresources: &[Subresource::Status, Subresource::Finalize],
    initial_status: || Some(json!({"phase": "Active"})),
    late_defaults: crate::hooks::namespaces::name_label,
    prepare_for_create: crate::hooks::namespaces::create,
    prepare_for_update: crate::hooks::namespaces::update,
    validate: crate::validate::namespace,
    validate_transition: crate::hooks::namespaces::judge,
    printer: &crate::printers::core::NAMESPACE,
    zero_members: r#""spec":{},"status":{}"#,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Label("pod-security.kubernetes.io/"),
        consequence: "pods are not checked against the Pod Security Standards",
    }),
    ..Kind::cluster("", "v1", "namespaces", "Namespace")
};
