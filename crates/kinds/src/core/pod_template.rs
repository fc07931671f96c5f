//! `PodTemplate (v1)`: podtemplates.

use crate::Kind;

pub(crate) static KIND: Kind = Kind {
    generation: true,
    defaults: &crate::defaults::table::POD_TEMPLATE,
    validate: crate::validate::workloads::pod_template,
    printer: &crate::printers::workload::POD_TEMPLATE,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "podtemplates", "PodTemplate")
};
