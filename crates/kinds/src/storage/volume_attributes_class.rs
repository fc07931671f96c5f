//! `VolumeAttributesClass (storage.k8s.io/v1)`: volumeattributesclasses.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    short_names: &["vac"],
    validate: crate::validate::csi::volume_attributes_class,
    printer: &crate::printers::storage::VOLUME_ATTRIBUTES_CLASS,
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass")
};
