//! `RuntimeClass (node.k8s.io/v1)`: runtimeclasses.

use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    create_on_update: true,
    validate: crate::validate::access::runtime_class,
    validate_update: crate::validate::access::update_runtime_class,
    printer: &crate::printers::core::RUNTIME_CLASS,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Object,
        consequence: "its overhead and scheduling are not added to pods",
    }),
    ..Kind::cluster("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass")
};
