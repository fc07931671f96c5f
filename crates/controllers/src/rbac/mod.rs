//! The controllers of role-based access control.
//!
//! | functions | purpose | upstream |
//! |---|---|---|
//! | [`load`], [`follow`] | update the authorizer's [`RbacState`](listwatch_access::rbac::RbacState) from the stored roles and bindings | the informers of `plugin/pkg/auth/authorizer/rbac` |
//! | [`ensure_policy`] | creates and amends the default roles and bindings | `pkg/registry/rbac/rest/storage_rbac.go` |
//! | [`aggregate`] | writes the rules of ClusterRoles with an `aggregationRule` | `pkg/controller/clusterroleaggregation` |

mod aggregation;
mod feed;
mod policy;
mod reconcile;
#[cfg(test)]
mod tests;

pub use self::aggregation::{aggregate, run as run_aggregation};
pub use self::feed::{follow, load};
pub(crate) use self::policy::default_rules;
pub use self::reconcile::{CHECK, ensure_policy};
