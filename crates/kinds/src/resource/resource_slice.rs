//! `ResourceSlice (resource.k8s.io/v1)`: resourceslices.

use crate::{Field, Kind};
use listwatch_validation::clock::timestamp;

pub(crate) static KIND: Kind = Kind {
    generation: true,
    fields: &[Field { indexed: true, ..Field::new("spec.nodeName") }, Field::new("spec.driver")],
    defaults: &crate::defaults::table::RESOURCE_SLICE,
    prepare_for_create: |slice, context| crate::validate::devices::prepare_slice(slice, context.now),
    prepare_for_update: |slice, _, context| crate::validate::devices::prepare_slice(slice, &timestamp(context.now)),
    validate: crate::validate::devices::resource_slice,
    printer: &crate::printers::extension::RESOURCE_SLICE,
    returns_deleted: true,
    ..Kind::cluster("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
};
