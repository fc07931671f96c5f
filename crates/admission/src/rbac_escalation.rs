//! The escalation checks of RBAC: a user can only grant permissions that the user holds.
//!
//! Source: `pkg/registry/rbac/{role,clusterrole,rolebinding,clusterrolebinding}/policybased`,
//! `pkg/registry/rbac/escalation_check.go`.
//!
//! | write | allowed for |
//! |---|---|
//! | any | members of `system:masters`; updates of fields that the garbage collector needs |
//! | a role | users with the verb `escalate` on it, or with all permissions in it |
//! | a ClusterRole with an `aggregationRule` | users who, in addition, hold all permissions |
//! | a binding | users with the verb `bind` on its role, or with all permissions of that role |

use std::sync::Arc;

use listwatch_access::rbac::{PolicyRule, RbacState};
use listwatch_access::{Attributes, AuthorizerChain};
use listwatch_json::{Map, Value};
use listwatch_meta::user::SYSTEM_MASTERS;
use listwatch_meta::{GroupResource, Status};
use listwatch_validation::{Object, child, text};

use super::{AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};

const GROUP: &str = "rbac.authorization.k8s.io";

/// The plugin that checks writes of roles and bindings. Servers with RBAC add it to their chain.
#[derive(Debug)]
pub struct RbacEscalation {
    authorizers: AuthorizerChain,
    state: Arc<RbacState>,
}

impl RbacEscalation {
    /// Creates a plugin. The authorizers decide on the verbs `escalate` and `bind`; permissions are compared with the
    /// rules of `state`.
    pub fn new(authorizers: AuthorizerChain, state: Arc<RbacState>) -> Self {
        RbacEscalation { authorizers, state }
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        let is_master = request.user.groups.iter().any(|group| group == SYSTEM_MASTERS);
        if is_master || request.old_object.is_some_and(|old| differs_only_for_deletion(object, old)) {
            return Ok(());
        }
        match request.resource {
            "roles" | "clusterroles" => self.check_role(request, object).await,
            _ => self.check_binding(request, object).await,
        }
    }

    async fn check_role(&self, request: &AdmissionRequest<'_>, role: &Object) -> Result<(), Status> {
        let namespace = request.namespace.unwrap_or_default();
        let escalate = Attributes {
            api_version: "*",
            namespace,
            // The path of a POST has no name, so that a permission for one name does not allow the POST.
            name: request.details.path_name(),
            ..Attributes::resource(request.user, "escalate", GROUP, request.resource)
        };
        if self.authorizers.authorize(&escalate).await.is_allowed() {
            return Ok(());
        }
        self.confirm(request, &rules(role)?)?;
        let aggregates = |role: &Object| role.get("aggregationRule").is_some_and(|rule| !rule.is_null());
        if aggregates(role) || request.old_object.is_some_and(aggregates) {
            let everything = [PolicyRule::resources(&["*"], &["*"], &["*"]), PolicyRule::paths(&["*"], &["*"])];
            let held = self.state.confirm_no_escalation(request.user, namespace, &everything);
            held.map_err(|_| request.forbidden("must have cluster-admin privileges to use the aggregationRule"))?;
        }
        Ok(())
    }

    async fn check_binding(&self, request: &AdmissionRequest<'_>, binding: &Object) -> Result<(), Status> {
        let role_ref = child(binding, "roleRef");
        let (kind, name) = (text(role_ref, "kind"), text(role_ref, "name"));
        let (resource, namespace) = match kind {
            "ClusterRole" => ("clusterroles", None),
            "Role" => ("roles", request.namespace),
            kind => return Err(Status::internal(format!("unsupported role reference kind: {kind:?}"))),
        };
        let bind = Attributes {
            api_version: "*",
            // The permission is needed where the binding grants.
            namespace: request.namespace.unwrap_or_default(),
            name,
            ..Attributes::resource(request.user, "bind", text(role_ref, "apiGroup"), resource)
        };
        if self.authorizers.authorize(&bind).await.is_allowed() {
            return Ok(());
        }
        // The store has roles that the authorizer's caches may not have seen yet.
        let role = request.objects.get(GROUP, "v1", resource, namespace, name).await?;
        let role = role.ok_or_else(|| Status::not_found(GroupResource { group: GROUP, resource }, name))?;
        self.confirm(request, &rules(&role)?)
    }

    fn confirm(&self, request: &AdmissionRequest<'_>, wanted: &[PolicyRule]) -> Result<(), Status> {
        let namespace = request.namespace.unwrap_or_default();
        let held = self.state.confirm_no_escalation(request.user, namespace, wanted);
        held.map_err(|why| request.forbidden(why))
    }
}

impl ValidatingAdmission for RbacEscalation {
    fn name(&self) -> &str {
        "RBACEscalation"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.group == GROUP
            && request.subresource.is_none()
            && matches!(request.operation, Operation::Create | Operation::Update)
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(self.check(request, object))
    }
}

fn rules(role: &Object) -> Result<Vec<PolicyRule>, Status> {
    match role.get("rules") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(rules) => listwatch_json::from_value(rules.clone()).map_err(Status::internal),
    }
}

/// Whether an update changes only fields that the garbage collector needs (`IsOnlyMutatingGCFields`).
fn differs_only_for_deletion(object: &Object, old: &Object) -> bool {
    let without = |object: &Object| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                metadata.shift_remove(field);
            }
        }
        object
    };
    without(object) == without(old)
}

#[cfg(test)]
mod tests {
    use listwatch_access::{Authorization, Authorizer, MaybeFuture};
    use listwatch_json::json;

    use super::super::details::NoDetails;
    use super::super::testing::{Fixture, create, object};
    use super::*;

    /// Allows `escalate` on the role `r` only.
    struct EscalateOne;

    impl Authorizer for EscalateOne {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            let may_escalate = attributes.verb == "escalate" && attributes.name == "r";
            MaybeFuture::ready(if may_escalate { Authorization::allow("") } else { Authorization::no_opinion() })
        }
    }

    #[tokio::test]
    async fn escalate_for_one_name_allows_a_create_with_that_name_in_the_path() {
        let plugin = RbacEscalation::new(AuthorizerChain::new().with(EscalateOne), Arc::new(RbacState::default()));
        let fixture = Fixture::new(&[]);
        let role = object(json!({
            "metadata": {"name": "r"},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}],
        }));
        for (path_name, expected) in [("r", None), ("other", Some(403)), ("", Some(403))] {
            let details = NoDetails { path_name, ..NoDetails::default() };
            let request = AdmissionRequest { details: &details, ..create(&fixture, GROUP, "roles", "Role", "r") };
            let found = plugin.validate(&request, &role).await.err().map(|status| status.code);
            assert_eq!(found, expected, "{path_name:?}");
        }
    }
}
