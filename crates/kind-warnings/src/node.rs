//! Warnings about Nodes and RuntimeClasses.
//!
//! Source: `nodeWarnings` in `pkg/registry/core/node/strategy.go`, `GetWarningsForRuntimeClass` in
//! `pkg/api/node/util.go`.

use listwatch_schema::Path;
use listwatch_validation::{Object, child, given, text, texts};

use crate::Warnings;
use crate::addresses::add_cidr;
use crate::node_labels::deprecation;

/// Warnings of Nodes.
pub fn of_node(node: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    let spec = child(node, "spec");
    if given(spec, "configSource").is_some() {
        warnings.add(format_args!("spec.configSource: the feature is removed"));
    }
    if !text(spec, "externalID").is_empty() {
        warnings.add(format_args!("spec.externalID: this field is deprecated, and is unused by Kubernetes"));
    }
    let at = Path::root("spec");
    let at = at.child("podCIDRs");
    for (index, range) in texts(spec, "podCIDRs").enumerate() {
        add_cidr(range, &at.index(index), warnings);
    }
}

/// Warnings of RuntimeClasses.
pub fn of_runtime_class(class: &Object, _: Option<&Object>, warnings: &mut Warnings) {
    for key in child(child(class, "scheduling"), "nodeSelector").keys() {
        if let Some(why) = deprecation(key) {
            warnings.add(format_args!("scheduling.nodeSelector: {why}"));
        }
    }
}
