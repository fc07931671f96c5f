//! Role-based access control: [`RbacAuthorizer`] decides from Roles, ClusterRoles and their bindings
//! (`plugin/pkg/auth/authorizer/rbac/rbac.go`, `pkg/registry/rbac/validation/rule.go`).
//!
//! ```text
//!  object (JSON) ─▶ RbacState ─▶ RbacIndex: subject ─▶ namespace ─▶ grants ─▶ role ─▶ rules by resource
//!                       ▲
//!  Attributes ──────────┴─▶ Authorization
//! ```
//!
//! RBAC only allows. A request that no rule allows gets no opinion, and the reason names the roles that bindings
//! refer to and that do not exist.

mod authorizer;
mod covers;
mod index;
mod policy;
mod role_rules;
#[cfg(test)]
mod tests;

pub use self::authorizer::{RbacAuthorizer, RbacKind, RbacState};
pub use self::covers::{TooManyRules, uncovered_rules};
pub use self::index::RbacIndex;
pub use self::policy::{InvalidRbacObject, PolicyRule, RoleRef, Subject, SubjectKind};
