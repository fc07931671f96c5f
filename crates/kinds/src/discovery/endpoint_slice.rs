//! `EndpointSlice (discovery.k8s.io/v1)`: endpointslices.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    generation: true,
    defaults: &crate::defaults::table::ENDPOINT_SLICE,
    prepare_for_create: |slice, _| crate::validate::endpoints::drop_topology(slice, None),
    prepare_for_update: |slice, old, _| crate::validate::endpoints::drop_topology(slice, Some(old)),
    validate: crate::validate::endpoints::endpoint_slice,
    printer: &crate::printers::network::ENDPOINT_SLICE,
    ..Kind::namespaced("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
};
