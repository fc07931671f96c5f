//! `PriorityClass (scheduling.k8s.io/v1)`: priorityclasses.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    short_names: &["pc"],
    generation: true,
    defaults: &crate::defaults::table::PRIORITY_CLASS,
    validate: crate::validate::access::priority_class,
    validate_update: crate::validate::access::update_priority_class,
    printer: &crate::printers::core::PRIORITY_CLASS,
    ..Kind::cluster("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
};
