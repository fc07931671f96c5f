//! DeviceClass (`resource.k8s.io/v1`): selectors and driver parameters that requests for devices refer to.
//!
//! Upstream: `pkg/registry/resource/deviceclass/strategy.go`, `ValidateDeviceClass` in `pkg/apis/resource/validation`.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    generation: true,
    validate: crate::validate::devices::device_class,
    printer: &crate::printers::NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::cluster("resource.k8s.io", "v1", "deviceclasses", "DeviceClass")
};
