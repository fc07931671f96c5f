//! `Endpoints (v1)`: endpoints.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    short_names: &["ep"],
    storage_prefix: "services/endpoints",
    create_on_update: true,
    deprecation: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    defaults: &crate::defaults::table::ENDPOINTS,
    validate: crate::validate::endpoints::endpoints,
    printer: &crate::printers::network::ENDPOINTS,
    ..Kind::namespaced("", "v1", "endpoints", "Endpoints")
};
