//! Decides the authorization checks of expressions (`apiserver/pkg/cel/library/authz.go`).

use listwatch_cel::{AuthorizationCheck, AuthorizationDecisions, CheckDecision, CheckTarget, ResourceCheck};
use listwatch_meta::{FieldSelector, LabelSelector, UserInfo};

use crate::authorizer::{Attributes, AuthorizerChain};
use crate::service_account::{service_account_groups, service_account_username};

impl AuthorizerChain {
    /// Decides the check that ended an evaluation, for a user or for the service account of the check. Returns false if
    /// the evaluation has not met an undecided check.
    pub async fn decide_expression(&self, user: &UserInfo, decisions: &mut AuthorizationDecisions) -> bool {
        let Some(check) = decisions.take_undecided() else { return false };
        let decision = self.decide_check(user, &check).await;
        decisions.insert(check, decision);
        true
    }

    async fn decide_check(&self, user: &UserInfo, check: &AuthorizationCheck) -> CheckDecision {
        let account = check.service_account.as_ref().map(|(namespace, name)| UserInfo {
            username: service_account_username(namespace, name),
            groups: service_account_groups(namespace),
            ..UserInfo::default()
        });
        let user = account.as_ref().unwrap_or(user);
        let answer = match &check.target {
            CheckTarget::Path(path) => self.authorize(&Attributes::path(user, &check.verb, path)).await,
            CheckTarget::Resource(resource) => {
                let ResourceCheck { group, resource, subresource, namespace, name, field_selector, label_selector } =
                    resource;
                // A selector that cannot be parsed is left out, so that authorization sees a broader request.
                let fields = FieldSelector::parse(field_selector).unwrap_or_default();
                let labels = LabelSelector::parse(label_selector).unwrap_or_default();
                let attributes = Attributes {
                    api_version: "*",
                    subresource,
                    namespace,
                    name,
                    field_selector: fields.terms(),
                    label_selector: labels.requirements(),
                    ..Attributes::resource(user, &check.verb, group, resource)
                };
                self.authorize(&attributes).await
            }
        };
        CheckDecision {
            allowed: answer.is_allowed(),
            reason: answer.reason.to_string(),
            error: answer.error.into_owned(),
        }
    }
}
