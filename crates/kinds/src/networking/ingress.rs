//! `Ingress (networking.k8s.io/v1)`: ingresses.

use crate::Kind;
use crate::Subresource;
use serde_json::json;

pub(crate) static KIND: Kind = Kind {
    short_names: &["ing"],
    storage_prefix: "ingress",
    generation: true,
    subresources: &[Subresource::Status],
    initial_status: || Some(json!({"loadBalancer": {}})),
    validate: crate::validate::networking::ingress,
    validate_status: crate::validate::networking::ingress_status,
    printer: &crate::printers::network::INGRESS,
    ..Kind::namespaced("networking.k8s.io", "v1", "ingresses", "Ingress")
};
