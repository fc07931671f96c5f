//! `FlowSchema (flowcontrol.apiserver.k8s.io/v1)`: flowschemas.

use crate::Subresource;
use crate::{Kind, Unenforced, UnenforcedPart, WriteScope};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    generation: true,
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::FLOW_SCHEMA,
    validate: crate::validate::flow_control::flow_schema,
    validate_status: crate::validate::flow_control::status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &crate::printers::extension::FLOW_SCHEMA,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "it classifies no request" }),
    ..Kind::cluster("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "FlowSchema")
};
