//! `NetworkPolicy (networking.k8s.io/v1)`: networkpolicies.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    short_names: &["netpol"],
    generation: true,
    defaults: &crate::defaults::table::NETWORK_POLICY,
    validate: crate::validate::networking::network_policy,
    printer: &crate::printers::network::NETWORK_POLICY,
    ..Kind::namespaced("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
};
