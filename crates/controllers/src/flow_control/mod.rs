//! The controllers of API priority and fairness.
//!
//! | functions | purpose | upstream |
//! |---|---|---|
//! | [`load`], [`follow`] | configure the server's flow control from the stored objects, and write the condition `Dangling` | `configController` in `util/flowcontrol/apf_controller.go` |
//! | [`ensure_objects`], [`maintain_objects`] | create and reset the objects that every cluster has | `pkg/registry/flowcontrol/rest/storage_flowcontrol.go` |
//!
//! The server's priority and fairness implements [`FlowConfiguration`]. Several servers on one store may all run these
//! controllers.

mod conditions;
mod ensure;
mod feed;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use listwatch_flow_control::{BootstrapKind, DanglingCondition, FlowSchema, PriorityLevel};
use listwatch_registry::Resource;
use listwatch_write::Writer;

pub use self::ensure::{CHECK, ensure_objects, maintain_objects};
pub use self::feed::{follow, load};

/// The group and version of the kinds.
const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const VERSION: &str = "v1";

/// The priority and fairness of a server, which is configured from the stored objects.
pub trait FlowConfiguration: Send + Sync {
    /// Replaces the configuration. Returns the conditions that must be written to the schemas.
    fn configure(&self, levels: Vec<PriorityLevel>, schemas: Vec<FlowSchema>) -> Vec<DanglingCondition>;

    /// Whether a deleted level is idle. The next [`FlowConfiguration::configure`] then removes the level.
    fn has_removable_level(&self) -> bool;
}

fn plural(kind: BootstrapKind) -> &'static str {
    match kind {
        BootstrapKind::PriorityLevel => "prioritylevelconfigurations",
        BootstrapKind::FlowSchema => "flowschemas",
    }
}

fn resource(writer: &Writer, kind: BootstrapKind) -> Option<Arc<Resource>> {
    writer.backend().registry().find(GROUP, VERSION, plural(kind)).cloned()
}
