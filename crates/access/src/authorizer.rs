//! Authorization: [`Authorizer`] decides whether a user may perform a request
//! (`apiserver/pkg/authorization/authorizer`).

use std::borrow::Cow;
use std::sync::Arc;

use listwatch_meta::UserInfo;
use listwatch_meta::selector::{FieldTerm, LabelRequirement};

use crate::maybe_future::MaybeFuture;
use crate::rules::UserRules;

/// The facts that an authorizer decides on. Absent strings are empty.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The user who sends the request.
    pub user: &'a UserInfo,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection` or `impersonate` for a
    /// resource; the method in lower case for other paths.
    pub verb: &'a str,
    /// Whether the request is for a resource. Otherwise only `verb` and `path` are set.
    pub is_resource_request: bool,
    /// The API group; empty for the core group.
    pub api_group: &'a str,
    /// The version of the group.
    pub api_version: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The plural name of the resource.
    pub resource: &'a str,
    /// The subresource.
    pub subresource: &'a str,
    /// The name of the object.
    pub name: &'a str,
    /// The path of the request.
    pub path: &'a str,
    /// The field selector of a list, watch or deletion of a collection. Its terms are joined by AND, so that a term may
    /// only narrow the request. Empty if there is none, or if it cannot be parsed
    /// (`AttributesRecord.FieldSelectorRequirements`).
    pub field_selector: &'a [FieldTerm],
    /// The label selector, with the same meaning (`AttributesRecord.LabelSelectorRequirements`).
    pub label_selector: &'a [LabelRequirement],
}

impl<'a> Attributes<'a> {
    /// The attributes of a request for a cluster-scoped resource. Struct update sets other fields.
    pub fn resource(user: &'a UserInfo, verb: &'a str, api_group: &'a str, resource: &'a str) -> Self {
        Attributes { api_group, resource, is_resource_request: true, ..Attributes::path(user, verb, "") }
    }

    /// The attributes of a request for a non-resource path.
    pub fn path(user: &'a UserInfo, verb: &'a str, path: &'a str) -> Self {
        Attributes {
            user,
            verb,
            is_resource_request: false,
            api_group: "",
            api_version: "",
            namespace: "",
            resource: "",
            subresource: "",
            name: "",
            path,
            field_selector: &[],
            label_selector: &[],
        }
    }

    /// True if the request changes nothing (`authorizer.AttributesRecord.IsReadOnly`).
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }
}

/// The decision of an authorizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request may proceed.
    Allow,
    /// The request ends with 403; later authorizers are not asked.
    Deny,
    /// Other authorizers decide. If none allows the request, it ends with 403.
    NoOpinion,
}

/// A decision and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    /// The decision.
    pub decision: Decision,
    /// The reason, which the client receives if the request is forbidden; may be empty.
    pub reason: Cow<'static, str>,
}

impl Authorization {
    /// Allows the request.
    pub fn allow(reason: impl Into<Cow<'static, str>>) -> Self {
        Authorization { decision: Decision::Allow, reason: reason.into() }
    }

    /// Forbids the request.
    pub fn deny(reason: impl Into<Cow<'static, str>>) -> Self {
        Authorization { decision: Decision::Deny, reason: reason.into() }
    }

    /// Leaves the decision to other authorizers.
    pub fn no_opinion() -> Self {
        Authorization { decision: Decision::NoOpinion, reason: Cow::Borrowed("") }
    }

    /// True if the decision is [`Decision::Allow`].
    pub fn is_allowed(&self) -> bool {
        self.decision == Decision::Allow
    }
}

/// Decides whether a user may perform a request. The crate's front page has an example.
pub trait Authorizer: Send + Sync {
    /// Decides on a request. A result without I/O is [`MaybeFuture::ready`].
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization>;

    /// The rules of a user in a namespace, for `kubectl auth can-i --list`. The default is
    /// [`UserRules::unknown`].
    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        MaybeFuture::ready(UserRules::unknown())
    }
}

/// Asks several authorizers in order, until one allows or denies (`union.New`). The reasons of the
/// others are joined.
#[derive(Clone, Default)]
pub struct AuthorizerChain(Vec<Arc<dyn Authorizer>>);

impl AuthorizerChain {
    /// An empty chain, which has no opinion.
    pub fn new() -> Self {
        AuthorizerChain::default()
    }

    /// Appends an authorizer.
    #[must_use]
    pub fn with(self, authorizer: impl Authorizer + 'static) -> Self {
        self.with_shared(Arc::new(authorizer))
    }

    /// Appends a shared authorizer.
    #[must_use]
    pub fn with_shared(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.0.push(authorizer);
        self
    }

    /// Asks the authorizers in order.
    pub async fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let mut reasons = String::new();
        for authorizer in &self.0 {
            let answer = authorizer.authorize(attributes).await;
            if answer.decision != Decision::NoOpinion {
                return answer;
            }
            if !answer.reason.is_empty() {
                if !reasons.is_empty() {
                    reasons.push('\n');
                }
                reasons.push_str(&answer.reason);
            }
        }
        Authorization { decision: Decision::NoOpinion, reason: reasons.into() }
    }

    /// Joins the rules of all authorizers.
    pub async fn rules(&self, user: &UserInfo, namespace: &str) -> UserRules {
        let mut rules = UserRules::default();
        for authorizer in &self.0 {
            rules.extend(authorizer.rules(user, namespace).await);
        }
        rules
    }
}

impl std::fmt::Debug for AuthorizerChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AuthorizerChain({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Authorization);

    impl Authorizer for Fixed {
        fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            MaybeFuture::ready(self.0.clone())
        }
    }

    #[tokio::test]
    async fn authorizer_chain_stops_at_the_first_opinion() {
        let user = UserInfo::default();
        let attributes = Attributes::resource(&user, "get", "", "pods");
        let unsure = |reason: &'static str| Authorization { reason: reason.into(), ..Authorization::no_opinion() };
        for (answers, expected) in [
            (vec![], unsure("")),
            (vec![unsure("a"), unsure(""), unsure("b")], unsure("a\nb")),
            (vec![unsure("a"), Authorization::allow("b"), Authorization::deny("c")], Authorization::allow("b")),
            (vec![Authorization::deny("c"), Authorization::allow("b")], Authorization::deny("c")),
        ] {
            let chain = answers.into_iter().fold(AuthorizerChain::new(), |chain, answer| chain.with(Fixed(answer)));
            assert_eq!(chain.authorize(&attributes).await, expected);
        }
    }

    #[test]
    fn only_get_list_and_watch_are_read_only() {
        let user = UserInfo::default();
        for (verb, expected) in [("get", true), ("list", true), ("watch", true), ("create", false), ("", false)] {
            assert_eq!(Attributes::resource(&user, verb, "", "pods").is_read_only(), expected, "{verb}");
        }
    }
}
