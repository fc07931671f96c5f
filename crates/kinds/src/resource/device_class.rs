//! `DeviceClass (resource.k8s.io/v1)`: deviceclasses.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    generation: true,
    validate: crate::validate::devices::device_class,
    printer: &crate::printers::NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::cluster("resource.k8s.io", "v1", "deviceclasses", "DeviceClass")
};
