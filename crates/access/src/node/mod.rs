//! The Node authorizer: [`NodeAuthorizer`] gives each kubelet access only to the objects that its node needs
//! (`plugin/pkg/auth/authorizer/node`).
//!
//! ```text
//!  pods, volumes, attachments, slices (JSON) ─▶ references ─▶ Graph ─▶ NodeState
//!                                                                          │
//!  Attributes ─▶ node_identity ─▶ decision by resource ────────────────────┴─▶ Authorization
//! ```
//!
//! A kubelet is a user `system:node:<name>` in the group `system:nodes`. The authorizer has no opinion on other users.
//! The authorizer never denies a request. The reason names the missing relation between node and object.

mod api_references;
mod authorizer;
mod graph;
mod identity;
mod references;
#[cfg(test)]
mod tests;

pub use self::api_references::api_reference;
pub use self::authorizer::{InvalidNodeGraphObject, NodeAuthorizer, NodeState};
pub use self::graph::NodeGraphKind;
pub use self::identity::{NodeIdentity, node_identity};
