//! `PriorityLevelConfiguration (flowcontrol.apiserver.k8s.io/v1)`: prioritylevelconfigurations.

use crate::Subresource;
use crate::{Kind, Unenforced, UnenforcedPart, WriteScope};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    generation: true,
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::PRIORITY_LEVEL,
    validate: crate::validate::flow_control::priority_level,
    validate_status: crate::validate::flow_control::status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &crate::printers::extension::PRIORITY_LEVEL,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "it limits no request" }),
    ..Kind::cluster("flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration")
};
