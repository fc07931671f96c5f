//! `StorageClass (storage.k8s.io/v1)`: storageclasses.

use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    short_names: &["sc"],
    defaults: &crate::defaults::table::STORAGE_CLASS,
    validate: crate::validate::csi::storage_class,
    printer: &crate::printers::storage::STORAGE_CLASS,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Annotation("storageclass.kubernetes.io/is-default-class"),
        consequence: "claims without a class do not get it as their default",
    }),
    returns_deleted: true,
    ..Kind::cluster("storage.k8s.io", "v1", "storageclasses", "StorageClass")
};
