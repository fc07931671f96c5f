//! Matches requests with the rules of flow schemas (`flowcontrol/rule.go`).

use listwatch_meta::UserInfo;

/// The attributes of a request that flow schemas match.
#[derive(Clone, Copy, Debug)]
pub struct RequestDigest<'a> {
    /// The user, after impersonation.
    pub user: &'a UserInfo,
    /// Whether the path is that of a resource.
    pub is_resource_request: bool,
    /// The verb of a resource request, or the method in lower case.
    pub verb: &'a str,
    /// The API group.
    pub api_group: &'a str,
    /// The plural name of the resource.
    pub resource: &'a str,
    /// The subresource, or empty.
    pub subresource: &'a str,
    /// The namespace, or empty.
    pub namespace: &'a str,
    /// The path of the URL, percent-decoded.
    pub path: &'a str,
}

/// The attribute that distinguishes the flows of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distinguisher {
    ByUser,
    ByNamespace,
}

/// A list of values. `*` matches every value.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    All,
    OneOf(Vec<String>),
}

impl Values {
    pub(crate) fn new(list: Vec<String>) -> Self {
        if list == ["*"] { Values::All } else { Values::OneOf(list) }
    }

    fn any(&self, is_match: impl Fn(&str) -> bool) -> bool {
        match self {
            Values::All => true,
            Values::OneOf(list) => list.iter().any(|value| is_match(value)),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Everybody,
    User(String),
    Group(String),
    /// Without a name: all service accounts of the namespace.
    ServiceAccount {
        namespace: String,
        name: Option<String>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct ResourceRule {
    pub(crate) verbs: Values,
    pub(crate) api_groups: Values,
    pub(crate) resources: Values,
    pub(crate) namespaces: Values,
    pub(crate) cluster_scope: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct NonResourceRule {
    pub(crate) verbs: Values,
    pub(crate) urls: Vec<String>,
}

/// A rule matches if one of its subjects and one of its resource or non-resource rules match.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) resource_rules: Vec<ResourceRule>,
    pub(crate) non_resource_rules: Vec<NonResourceRule>,
}

impl Rule {
    pub(crate) fn matches(&self, request: &RequestDigest<'_>) -> bool {
        let has_rule = if request.is_resource_request {
            self.resource_rules.iter().any(|rule| rule.matches(request))
        } else {
            self.non_resource_rules.iter().any(|rule| rule.matches(request))
        };
        has_rule && self.subjects.iter().any(|subject| subject.matches(request.user))
    }
}

impl Subject {
    fn matches(&self, user: &UserInfo) -> bool {
        match self {
            Subject::Everybody => true,
            Subject::User(name) => user.username == *name,
            Subject::Group(name) => user.groups.contains(name),
            Subject::ServiceAccount { namespace, name } => {
                let account = user.username.strip_prefix("system:serviceaccount:");
                let account = account.and_then(|account| account.strip_prefix(&**namespace)?.strip_prefix(':'));
                account.is_some_and(|found| name.as_ref().is_none_or(|name| found == name))
            }
        }
    }
}

impl ResourceRule {
    fn matches(&self, request: &RequestDigest<'_>) -> bool {
        self.verbs.any(|verb| verb == request.verb)
            && self.resources.any(|resource| is_resource(resource, request.resource, request.subresource))
            && self.api_groups.any(|group| group == request.api_group)
            && if request.namespace.is_empty() {
                self.cluster_scope
            } else {
                self.namespaces.any(|namespace| namespace == request.namespace)
            }
    }
}

/// Whether a value of a rule is `resource`, or `resource/subresource` if there is a subresource.
fn is_resource(value: &str, resource: &str, subresource: &str) -> bool {
    let Some(rest) = value.strip_prefix(resource) else { return false };
    if subresource.is_empty() { rest.is_empty() } else { rest.strip_prefix('/') == Some(subresource) }
}

impl NonResourceRule {
    fn matches(&self, request: &RequestDigest<'_>) -> bool {
        self.verbs.any(|verb| verb == request.verb) && self.urls.iter().any(|url| is_path(url, request.path))
    }
}

/// Whether a path equals a URL of a rule, or is below the URL. A final `*` or `/` of the URL is ignored. The URL `*`
/// matches all paths (`matchPolicyRuleNonResourceURL`).
fn is_path(url: &str, path: &str) -> bool {
    if url == "*" || url == path {
        return true;
    }
    let prefix = url.strip_suffix('*').unwrap_or(url);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
}
