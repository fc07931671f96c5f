//! `Service (v1)`: services.

use crate::Subresource;
use crate::{Field, Kind};
use listwatch_validation::names::NameRule;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["svc"],
    storage_prefix: "services/specs",
    names: NameRule::Label,
    create_on_update: true,
    categories: &["all"],
    fields: &[Field::new("spec.clusterIP"), Field::with_default("spec.type", "ClusterIP")],
    subresources: &[Subresource::Status, Subresource::Proxy { options: "ServiceProxyOptions" }],
    defaults: &crate::defaults::table::SERVICE,
    initial_status: || Some(json!({"loadBalancer": {}})),
    validate: crate::validate::services::service,
    validate_status: crate::validate::services::service_status,
    printer: &crate::printers::network::SERVICE,
    zero_members: r#""spec":{},"status":{"loadBalancer":{}}"#,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "services", "Service")
};
