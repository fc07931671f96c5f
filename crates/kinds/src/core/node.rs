//! `Node (v1)`: nodes.

use crate::Subresource;
use crate::{Field, Kind};

pub(crate) static KIND: Kind = Kind {
    short_names: &["no"],
    storage_prefix: "minions",
    fields: &[Field::with_default("spec.unschedulable", "false")],
    subresources: &[Subresource::Status, Subresource::Proxy { options: "NodeProxyOptions" }],
    defaults: &crate::defaults::table::NODE,
    initial_status: || None,
    prepare_for_create: |node, _| crate::validate::nodes::prepare_node(node, None),
    prepare_for_update: |node, old, _| crate::validate::nodes::prepare_node(node, Some(old)),
    validate: crate::validate::nodes::node,
    validate_status: crate::validate::nodes::node_status,
    printer: &crate::printers::core::NODE,
    zero_members: r#""spec":{},"status":{}"#,
    ..Kind::cluster("", "v1", "nodes", "Node")
};
