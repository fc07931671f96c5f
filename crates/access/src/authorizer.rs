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
    /// The field selector of a list, watch or deletion of a collection. The terms are joined by AND, so each term
    /// narrows the request. Empty if the selector is absent or invalid (`AttributesRecord.FieldSelectorRequirements`).
    pub field_selector: &'a [FieldTerm],
    /// The label selector, by the rules of `field_selector` (`AttributesRecord.LabelSelectorRequirements`).
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
    /// The request ends with 403; later authorizers are not called.
    Deny,
    /// Other authorizers decide. If none allows the request, it ends with 403.
    NoOpinion,
}

/// The reason of a decision. A copy shares the text, because a decision is made for each request.
#[derive(Clone)]
pub struct Reason(ReasonText);

#[derive(Clone)]
enum ReasonText {
    Static(&'static str),
    Shared(Arc<str>),
}

impl std::ops::Deref for Reason {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            ReasonText::Static(text) => text,
            ReasonText::Shared(text) => text,
        }
    }
}

impl From<&'static str> for Reason {
    fn from(text: &'static str) -> Self {
        Reason(ReasonText::Static(text))
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Reason(ReasonText::Shared(text.into()))
    }
}

impl From<Arc<str>> for Reason {
    fn from(text: Arc<str>) -> Self {
        Reason(ReasonText::Shared(text))
    }
}

impl PartialEq for Reason {
    fn eq(&self, other: &Reason) -> bool {
        **self == **other
    }
}

impl Eq for Reason {}

impl PartialEq<&str> for Reason {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl std::fmt::Debug for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&**self, f)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self)
    }
}

/// A decision and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    /// The decision.
    pub decision: Decision,
    /// The reason, which the client receives if the request is forbidden; may be empty.
    pub reason: Reason,
    /// The error that prevented a decision; empty without an error. If no authorizer allows the request, the response
    /// is 500 instead of 403.
    pub error: Cow<'static, str>,
}

impl Authorization {
    /// Allows the request.
    pub fn allow(reason: impl Into<Reason>) -> Self {
        Authorization { decision: Decision::Allow, reason: reason.into(), error: Cow::Borrowed("") }
    }

    /// Forbids the request.
    pub fn deny(reason: impl Into<Reason>) -> Self {
        Authorization { decision: Decision::Deny, reason: reason.into(), error: Cow::Borrowed("") }
    }

    /// Leaves the decision to other authorizers.
    pub fn no_opinion() -> Self {
        Authorization { decision: Decision::NoOpinion, reason: "".into(), error: Cow::Borrowed("") }
    }

    /// Adds an error.
    #[must_use]
    pub fn with_error(self, error: impl Into<Cow<'static, str>>) -> Self {
        Authorization { error: error.into(), ..self }
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

/// Calls several authorizers in order, until one allows or denies (`union.New`). The reasons and errors of the
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

    /// Calls the authorizers in order.
    pub async fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let (mut reasons, mut errors) = (String::new(), Vec::new());
        for authorizer in &self.0 {
            let answer = authorizer.authorize(attributes).await;
            if answer.decision != Decision::NoOpinion {
                return answer;
            }
            if !answer.error.is_empty() {
                errors.push(answer.error);
            }
            if !answer.reason.is_empty() {
                if !reasons.is_empty() {
                    reasons.push('\n');
                }
                reasons.push_str(&answer.reason);
            }
        }
        Authorization { decision: Decision::NoOpinion, reason: reasons.into(), error: aggregate(errors) }
    }

    /// Joins the rules of all authorizers.
    pub async fn rules(&self, user: &UserInfo, namespace: &str) -> UserRules {
        let (mut rules, mut errors) = (UserRules::default(), Vec::new());
        for authorizer in &self.0 {
            let mut found = authorizer.rules(user, namespace).await;
            errors.push(Cow::Owned(std::mem::take(&mut found.evaluation_error)));
            rules.extend(found);
        }
        rules.evaluation_error = aggregate(errors).into_owned();
        rules
    }
}

/// Joins the texts of errors, as Go's `utilerrors.NewAggregate`: several different ones are listed in brackets.
fn aggregate(errors: Vec<Cow<'static, str>>) -> Cow<'static, str> {
    let mut distinct: Vec<Cow<'static, str>> = Vec::new();
    for error in errors {
        if !error.is_empty() && !distinct.contains(&error) {
            distinct.push(error);
        }
    }
    match distinct.len() {
        0 | 1 => distinct.pop().unwrap_or_default(),
        _ => Cow::Owned(format!("[{}]", distinct.join(", "))),
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
            (vec![unsure("").with_error("e"), unsure("a")], unsure("a").with_error("e")),
            (vec![unsure("").with_error("e"), unsure("").with_error("f")], unsure("").with_error("[e, f]")),
            (vec![unsure("").with_error("e"), unsure("").with_error("e")], unsure("").with_error("e")),
            (vec![unsure("").with_error("e"), Authorization::allow("b")], Authorization::allow("b")),
        ] {
            let chain = answers.into_iter().fold(AuthorizerChain::new(), |chain, answer| chain.with(Fixed(answer)));
            assert_eq!(chain.authorize(&attributes).await, expected);
        }
    }

    #[tokio::test]
    async fn evaluation_errors_of_several_authorizers_are_listed_in_brackets() {
        struct Failing(&'static str);
        impl Authorizer for Failing {
            fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
                MaybeFuture::ready(Authorization::no_opinion())
            }

            fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> MaybeFuture<'a, UserRules> {
                MaybeFuture::ready(UserRules { evaluation_error: self.0.to_owned(), ..UserRules::default() })
            }
        }
        let user = UserInfo::default();
        for (errors, expected) in [
            (&["", ""][..], ""),
            (&["", "a"], "a"),
            (&["a", "b"], "[a, b]"),
            (&["a", "b", "a"], "[a, b]"),
            (&["a", "a"], "a"),
        ] {
            let chain = errors.iter().fold(AuthorizerChain::new(), |chain, error| chain.with(Failing(error)));
            assert_eq!(chain.rules(&user, "default").await.evaluation_error, expected, "{errors:?}");
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
