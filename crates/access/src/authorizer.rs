//! [`Authorizer`]: decides whether a user may do what a request asks for
//! (`apiserver/pkg/authorization/authorizer`).

use std::borrow::Cow;
use std::sync::Arc;

use listwatch_meta::UserInfo;

use crate::maybe_future::MaybeFuture;
use crate::rules::UserRules;

/// The facts that an authorizer decides on. An absent text is empty.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// Who sends the request.
    pub user: &'a UserInfo,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection` or `impersonate` for a
    /// resource; the method in lower case for other paths.
    pub verb: &'a str,
    /// The request is for a resource; otherwise only `verb` and `path` count.
    pub is_resource_request: bool,
    /// The API group; empty for the core group.
    pub api_group: &'a str,
    /// The version of the group.
    pub api_version: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The plural of the resource.
    pub resource: &'a str,
    /// The subresource.
    pub subresource: &'a str,
    /// The name of the object.
    pub name: &'a str,
    /// The path of the request.
    pub path: &'a str,
}

impl<'a> Attributes<'a> {
    /// The attributes of a request for a resource of the whole cluster. Other fields can be set by struct update.
    pub fn resource(user: &'a UserInfo, verb: &'a str, api_group: &'a str, resource: &'a str) -> Self {
        Attributes { api_group, resource, is_resource_request: true, ..Attributes::path(user, verb, "") }
    }

    /// The attributes of a request for a path that is not one of a resource.
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
        }
    }

    /// The request changes nothing (`authorizer.AttributesRecord.IsReadOnly`).
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }
}

/// What an authorizer decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request may proceed.
    Allow,
    /// The request ends with 403, whatever other authorizers would decide.
    Deny,
    /// Other authorizers decide. When none of them does, the request ends with 403.
    NoOpinion,
}

/// A decision and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    /// The decision.
    pub decision: Decision,
    /// The reason, which the client sees when the request is forbidden; empty for none.
    pub reason: Cow<'static, str>,
}

impl Authorization {
    /// The request may proceed.
    pub fn allow(reason: impl Into<Cow<'static, str>>) -> Self {
        Authorization { decision: Decision::Allow, reason: reason.into() }
    }

    /// The request is forbidden.
    pub fn deny(reason: impl Into<Cow<'static, str>>) -> Self {
        Authorization { decision: Decision::Deny, reason: reason.into() }
    }

    /// Other authorizers decide.
    pub fn no_opinion() -> Self {
        Authorization { decision: Decision::NoOpinion, reason: Cow::Borrowed("") }
    }

    /// The decision is [`Decision::Allow`].
    pub fn is_allowed(&self) -> bool {
        self.decision == Decision::Allow
    }
}

/// Decides whether a user may do what a request asks for. The crate's front page has an example.
pub trait Authorizer: Send + Sync {
    /// Decides. An answer without I/O is [`MaybeFuture::ready`].
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization>;

    /// The rules of a user in a namespace, for `kubectl auth can-i --list`. By default they are unknown.
    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        MaybeFuture::ready(UserRules::unknown())
    }
}

/// Authorizers that are asked in order, until one allows or denies (`union.New`). Reasons of those without
/// an opinion are joined.
#[derive(Clone, Default)]
pub struct AuthorizerChain(Vec<Arc<dyn Authorizer>>);

impl AuthorizerChain {
    /// A chain without an opinion on anything.
    pub fn new() -> Self {
        AuthorizerChain::default()
    }

    /// The same chain, with one more at its end.
    #[must_use]
    pub fn with(self, authorizer: impl Authorizer + 'static) -> Self {
        self.with_shared(Arc::new(authorizer))
    }

    /// As [`AuthorizerChain::with`], for one that is shared.
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

    /// The rules of all authorizers.
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
    async fn chain_stops_at_the_first_opinion() {
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
