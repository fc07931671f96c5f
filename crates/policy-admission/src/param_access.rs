//! [`ParamAccess`]: requires that users who bind parameters to a policy may read those parameters
//! (`pkg/registry/admissionregistration/{validatingadmissionpolicy,validatingadmissionpolicybinding}/authz.go`).
//! Otherwise the messages of a policy would show objects to users who may not read them.
//!
//! | write | required |
//! |---|---|
//! | a policy with a new `paramKind` | `get` on all objects of the kind |
//! | a binding with a new `paramRef` or `policyName` | `get` on the named object, `list` for a selector |
//!
//! Members of `system:masters` are exempt.

use std::fmt::Write as _;
use std::sync::Arc;

use listwatch_access::{Attributes, AuthorizerChain};
use listwatch_admission::{AdmissionFuture, AdmissionRequest, Operation, ValidatingAdmission};
use listwatch_json::Value;
use listwatch_meta::user::SYSTEM_MASTERS;
use listwatch_meta::{FieldError, Status, UserInfo};
use listwatch_policies::ParamKind;
use listwatch_validation::{Object, child, given, text};

use crate::params::ParamReader;

const GROUP: &str = "admissionregistration.k8s.io";

/// The admission plugin that requires read access to the parameters when a user writes a policy or a binding.
#[derive(Clone)]
pub struct ParamAccess {
    authorizers: AuthorizerChain,
    params: Arc<dyn ParamReader>,
}

impl std::fmt::Debug for ParamAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ParamAccess")
    }
}

/// The resource of a `paramKind`. An unknown part is `*`.
struct ParamResource {
    group: String,
    version: String,
    plural: String,
}

impl ParamAccess {
    /// Creates the plugin.
    pub fn new(authorizers: AuthorizerChain, params: Arc<dyn ParamReader>) -> Self {
        ParamAccess { authorizers, params }
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        if request.user.groups.iter().any(|group| group == SYSTEM_MASTERS) {
            return Ok(());
        }
        let old = request.old_object.map(|old| child(old, "spec"));
        let spec = child(object, "spec");
        let is_policy = matches!(request.resource, "validatingadmissionpolicies" | "mutatingadmissionpolicies");
        if is_policy {
            self.check_policy(request, spec, old).await
        } else {
            self.check_binding(request, spec, old).await
        }
    }

    async fn check_policy(
        &self,
        request: &AdmissionRequest<'_>,
        spec: &Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(param_kind) = given(spec, "paramKind") else { return Ok(()) };
        if old.and_then(|old| given(old, "paramKind")) == Some(param_kind) {
            return Ok(());
        }
        let resource = self.resource(Some(param_kind));
        let attributes = Attributes { name: "*", namespace: "*", ..resource.attributes(request.user, "get") };
        if self.authorizers.authorize(&attributes).await.is_allowed() {
            return Ok(());
        }
        let field = |name: &str| param_kind.get(name).and_then(Value::as_str).unwrap_or_default();
        let why = format!(
            "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
            go_user(request.user),
            field("kind"),
            field("apiVersion")
        );
        Err(forbidden(request, FieldError::forbidden("spec.paramKind", why)))
    }

    async fn check_binding(
        &self,
        request: &AdmissionRequest<'_>,
        spec: &Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(param_ref) = given(spec, "paramRef").and_then(Value::as_object) else { return Ok(()) };
        let is_same = |old: &Object| {
            old.get("paramRef").and_then(Value::as_object) == Some(param_ref)
                && text(old, "policyName") == text(spec, "policyName")
        };
        if old.is_some_and(is_same) {
            return Ok(());
        }
        let policies = request.resource.replace("policybindings", "policies");
        let policy = request.objects.get(GROUP, "v1", &policies, None, text(spec, "policyName")).await?;
        let resource = self.resource(policy.as_ref().and_then(|policy| given(child(policy, "spec"), "paramKind")));
        let name = text(param_ref, "name");
        let verb = if name.is_empty() { "list" } else { "get" };
        // Without a namespace, the parameters may be in any namespace.
        let namespace = text(param_ref, "namespace");
        let attributes = Attributes { name, namespace, ..resource.attributes(request.user, verb) };
        if self.authorizers.authorize(&attributes).await.is_allowed() {
            return Ok(());
        }
        let user = go_user(request.user);
        let why = format!("user {user} does not have \"{verb}\" permission on the object referenced by paramRef");
        Err(forbidden(request, FieldError::forbidden("spec.paramRef", why)))
    }

    fn resource(&self, param_kind: Option<&Value>) -> ParamResource {
        let any = || "*".to_owned();
        let Some(kind) = param_kind.and_then(Value::as_object).map(ParamKind::parse) else {
            return ParamResource { group: any(), version: any(), plural: any() };
        };
        let plural = self.params.resource(&kind).unwrap_or_else(any);
        ParamResource { group: kind.group, version: kind.version, plural }
    }
}

impl ParamResource {
    fn attributes<'a>(&'a self, user: &'a UserInfo, verb: &'a str) -> Attributes<'a> {
        Attributes { api_version: &self.version, ..Attributes::resource(user, verb, &self.group, &self.plural) }
    }
}

/// The 422 for a field that the user may not set.
fn forbidden(request: &AdmissionRequest<'_>, error: FieldError) -> Status {
    Status::invalid(request.group, request.kind, request.name, &[error])
}

/// Formats a user as Go's `%v` does.
fn go_user(user: &UserInfo) -> String {
    let UserInfo { username, uid, groups, extra } = user;
    let mut shown = format!("&{{{username} {uid} [{}] map[", groups.join(" "));
    for (position, (key, values)) in extra.iter().enumerate() {
        let space = if position == 0 { "" } else { " " };
        let _ = write!(shown, "{space}{key}:[{}]", values.join(" "));
    }
    shown + "]}"
}

impl ValidatingAdmission for ParamAccess {
    fn name(&self) -> &str {
        "ParamAccess"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.group == GROUP
            && request.subresource.is_none()
            && matches!(request.operation, Operation::Create | Operation::Update)
            && matches!(
                request.resource,
                "validatingadmissionpolicies"
                    | "validatingadmissionpolicybindings"
                    | "mutatingadmissionpolicies"
                    | "mutatingadmissionpolicybindings"
            )
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Object) -> AdmissionFuture<'a, ()> {
        Box::pin(self.check(request, object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_formatted_as_in_go() {
        let mut user =
            UserInfo { username: "ann".to_owned(), groups: vec!["a".into(), "b".into()], ..UserInfo::default() };
        assert_eq!(go_user(&user), "&{ann  [a b] map[]}");
        user.uid = "7".to_owned();
        user.extra.insert("k".to_owned(), vec!["x".to_owned(), "y".to_owned()]);
        assert_eq!(go_user(&user), "&{ann 7 [a b] map[k:[x y]]}");
    }
}
