//! [`AbacAuthorizer`]: decides by the lines of a policy file (`pkg/auth/authorizer/abac`, `pkg/apis/abac`).

use listwatch_meta::UserInfo;
use serde::Deserialize;

use crate::authorizer::{Attributes, Authorization, Authorizer};
use crate::maybe_future::MaybeFuture;
use crate::rules::{NonResourceRule, ResourceRule, UserRules};

/// The largest policy file, in bytes. Each request reads all its lines.
pub(crate) const POLICY_BYTES_MAX: usize = 4 << 20;

const ALL: &str = "*";
const ALL_AUTHENTICATED: &str = "system:authenticated";
const API_VERSION: &str = "abac.authorization.kubernetes.io/v1beta1";

/// The error of a policy file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAbacPolicy {
    /// A line is not a policy.
    #[error("error reading policy file line {line}: {why}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The reason.
        why: String,
    },
    /// The file is too long.
    #[error("the policy file has more than {POLICY_BYTES_MAX} bytes")]
    TooLong,
}

/// One policy (`abac.PolicySpec`). Absent texts are empty and match nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    api_group: String,
    resource: String,
    namespace: String,
    non_resource_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    spec: Policy,
}

/// Decides by the policies of a file (`--authorization-mode=ABAC`, `--authorization-policy-file`).
///
/// ```
/// use listwatch_access::{AbacAuthorizer, Attributes, Authorizer};
/// use listwatch_meta::UserInfo;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let line = r#"{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy",
///     "spec":{"user":"bob","namespace":"*","resource":"pods","readonly":true}}"#.replace('\n', "");
/// let authorizer = AbacAuthorizer::parse(&line).unwrap();
/// let bob = UserInfo { username: "bob".to_owned(), ..UserInfo::default() };
/// assert!(authorizer.authorize(&Attributes::resource(&bob, "list", "", "pods")).await.is_allowed());
/// assert!(!authorizer.authorize(&Attributes::resource(&bob, "create", "", "pods")).await.is_allowed());
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbacAuthorizer(Vec<Policy>);

impl AbacAuthorizer {
    /// Reads a policy file: one JSON object per line. Empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// [`InvalidAbacPolicy`].
    pub fn parse(text: &str) -> Result<Self, InvalidAbacPolicy> {
        if text.len() > POLICY_BYTES_MAX {
            return Err(InvalidAbacPolicy::TooLong);
        }
        let lines = (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
        let policies = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let policies =
            policies.map(|(number, line)| policy(line).map_err(|why| InvalidAbacPolicy::Line { line: number, why }));
        Ok(AbacAuthorizer(policies.collect::<Result<_, _>>()?))
    }
}

/// Parses one line. A line without `apiVersion` or `kind` has the format `v0`, in which empty strings match everything.
fn policy(line: &str) -> Result<Policy, String> {
    // serde also reads an array as a struct, and `[]` as a policy that allows everything.
    if !line.starts_with('{') {
        return Err("expected a JSON object".to_owned());
    }
    let read: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let mut policy = match (read.api_version.as_str(), read.kind.as_str()) {
        (API_VERSION, "Policy") => read.spec,
        ("", _) | (_, "") => {
            let mut policy: Policy = serde_json::from_str(line).map_err(|error| error.to_string())?;
            let is_wide = policy.namespace.is_empty() && policy.resource.is_empty();
            policy.non_resource_path = if is_wide { ALL.to_owned() } else { String::new() };
            policy.api_group = ALL.to_owned();
            for text in [&mut policy.namespace, &mut policy.resource] {
                if text.is_empty() {
                    ALL.clone_into(text);
                }
            }
            if policy.user.is_empty() && policy.group.is_empty() {
                ALL_AUTHENTICATED.clone_into(&mut policy.group);
            }
            policy
        }
        (version, kind) => return Err(format!("no kind {kind:?} is registered for version {version:?}")),
    };
    if policy.user == ALL || policy.group == ALL {
        policy.user.clear();
        ALL_AUTHENTICATED.clone_into(&mut policy.group);
    }
    Ok(policy)
}

impl Policy {
    /// Whether the policy applies to a user. If the policy names a user and a group, both must match. A policy without
    /// user and group matches no request.
    fn is_of(&self, user: &UserInfo) -> bool {
        let is_user = self.user.is_empty() || self.user == user.username;
        let is_member = self.group.is_empty() || user.groups.contains(&self.group);
        is_user && is_member && !(self.user.is_empty() && self.group.is_empty())
    }

    fn allows(&self, attributes: &Attributes<'_>) -> bool {
        let is = |text: &str, found: &str| text == ALL || text == found;
        if !self.is_of(attributes.user) || (self.readonly && !attributes.is_read_only()) {
            return false;
        }
        if attributes.is_resource_request {
            return is(&self.namespace, attributes.namespace)
                && is(&self.resource, attributes.resource)
                && is(&self.api_group, attributes.api_group);
        }
        let prefix = self.non_resource_path.strip_suffix(ALL).map(|path| path.trim_end_matches(ALL));
        is(&self.non_resource_path, attributes.path) || prefix.is_some_and(|prefix| attributes.path.starts_with(prefix))
    }

    fn verbs(&self) -> &'static [&'static str] {
        if self.readonly { &["get", "list", "watch"] } else { &[ALL] }
    }
}

impl Authorizer for AbacAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        MaybeFuture::ready(match self.0.iter().any(|policy| policy.allows(attributes)) {
            true => Authorization::allow(""),
            false => Authorization { reason: "No policy matched.".into(), ..Authorization::no_opinion() },
        })
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        let mut rules = UserRules::default();
        let texts = |list: &[&'static str]| list.iter().map(|text| (*text).into()).collect();
        for policy in self.0.iter().filter(|policy| policy.is_of(user)) {
            if !policy.resource.is_empty() && (policy.namespace == ALL || policy.namespace == namespace) {
                rules.resource_rules.push(ResourceRule {
                    verbs: texts(policy.verbs()),
                    api_groups: vec![policy.api_group.clone().into()],
                    resources: vec![policy.resource.clone().into()],
                    resource_names: Vec::new(),
                });
            }
            if !policy.non_resource_path.is_empty() && (policy.namespace == ALL || policy.namespace == namespace) {
                rules.non_resource_rules.push(NonResourceRule {
                    verbs: texts(policy.verbs()),
                    non_resource_urls: vec![policy.non_resource_path.clone().into()],
                });
            }
        }
        MaybeFuture::ready(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        UserInfo { username: name.to_owned(), groups, ..UserInfo::default() }
    }

    fn v1(spec: &str) -> String {
        format!(r#"{{"apiVersion":"{API_VERSION}","kind":"Policy","spec":{{{spec}}}}}"#)
    }

    #[tokio::test]
    async fn abac_policy_allows_only_its_subject_verbs_and_resources() {
        let authenticated = &[ALL_AUTHENTICATED][..];
        let (bob, ann) = (user("bob", authenticated), user("ann", &["dev", ALL_AUTHENTICATED]));
        let anonymous = user("system:anonymous", &["system:unauthenticated"]);
        let pods = |user| Attributes { namespace: "a", ..Attributes::resource(user, "list", "", "pods") };
        let of_bob = r#""user":"bob","namespace":"a","resource":"pods""#;
        for (line, attributes, expected) in [
            (v1(of_bob), pods(&bob), true),
            (v1(of_bob), pods(&ann), false),
            (v1(of_bob), Attributes { namespace: "b", ..pods(&bob) }, false),
            (v1(of_bob), Attributes { resource: "nodes", ..pods(&bob) }, false),
            (v1(of_bob), Attributes { api_group: "apps", ..pods(&bob) }, false),
            (v1(of_bob), Attributes { verb: "delete", ..pods(&bob) }, true),
            (v1(&format!(r#"{of_bob},"readonly":true"#)), Attributes { verb: "delete", ..pods(&bob) }, false),
            (v1(&format!(r#"{of_bob},"readonly":true"#)), Attributes { verb: "watch", ..pods(&bob) }, true),
            (v1(&format!(r#"{of_bob},"group":"dev""#)), pods(&bob), false),
            (v1(r#""user":"ann","group":"dev","namespace":"*","resource":"*","apiGroup":"*""#), pods(&ann), true),
            (v1(r#""group":"dev","namespace":"*","resource":"*","apiGroup":"*""#), pods(&ann), true),
            (v1(r#""group":"*","namespace":"*","resource":"*","apiGroup":"*""#), pods(&bob), true),
            (v1(r#""user":"*","namespace":"*","resource":"*","apiGroup":"*""#), pods(&anonymous), false),
            (v1(r#""namespace":"*","resource":"*","apiGroup":"*""#), pods(&bob), false),
            (
                v1(r#""user":"bob","namespace":"*","resource":"*","apiGroup":"*""#),
                Attributes::path(&bob, "get", "/api"),
                false,
            ),
            (v1(r#""user":"bob","nonResourcePath":"/api""#), Attributes::path(&bob, "get", "/api"), true),
            (v1(r#""user":"bob","nonResourcePath":"/api""#), Attributes::path(&bob, "get", "/api/v1"), false),
            (v1(r#""user":"bob","nonResourcePath":"/api*""#), Attributes::path(&bob, "get", "/api/v1"), true),
            (v1(r#""user":"bob","nonResourcePath":"*""#), Attributes::path(&bob, "post", "/x"), true),
            (v1(r#""user":"bob","nonResourcePath":"*""#), pods(&bob), false),
            (r#"{"user":"bob"}"#.to_owned(), pods(&bob), true),
            (r#"{"user":"bob"}"#.to_owned(), Attributes::path(&bob, "get", "/x"), true),
            (r#"{"user":"bob","namespace":"a"}"#.to_owned(), Attributes { api_group: "apps", ..pods(&bob) }, true),
            (r#"{"user":"bob","namespace":"a"}"#.to_owned(), Attributes::path(&bob, "get", "/x"), false),
            ("{}".to_owned(), pods(&ann), true),
            ("{}".to_owned(), pods(&anonymous), false),
            (r#"{"user":"*","resource":"pods","readonly":true}"#.to_owned(), pods(&anonymous), false),
            ("# a remark\n\n".to_owned(), pods(&bob), false),
        ] {
            let found = AbacAuthorizer::parse(&line).unwrap().authorize(&attributes).await;
            assert_eq!(found.is_allowed(), expected, "{line} {attributes:?}");
            assert_eq!(&*found.reason, if expected { "" } else { "No policy matched." });
        }
    }

    #[test]
    fn invalid_policy_is_rejected_with_its_line() {
        for (text, expected) in [
            ("{}\n{", "error reading policy file line 2: "),
            ("\n#\n[]", "error reading policy file line 3: "),
            (&*v1(r#""user":7"#), "error reading policy file line 1: "),
            (
                r#"{"apiVersion":"v9","kind":"Policy"}"#,
                "error reading policy file line 1: no kind \"Policy\" is registered for version \"v9\"",
            ),
        ] {
            let error = AbacAuthorizer::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        assert_eq!(AbacAuthorizer::parse(&"#".repeat(POLICY_BYTES_MAX + 1)), Err(InvalidAbacPolicy::TooLong));
    }

    #[tokio::test]
    async fn rules_of_a_user_come_from_the_abac_policies_of_the_namespace() {
        let lines = [
            v1(r#""user":"bob","namespace":"a","resource":"pods","readonly":true"#),
            v1(r#""user":"bob","namespace":"b","resource":"nodes""#),
            v1(r#""user":"bob","namespace":"*","nonResourcePath":"/api""#),
            v1(r#""user":"ann","namespace":"*","resource":"*""#),
        ];
        let authorizer = AbacAuthorizer::parse(&lines.join("\n")).unwrap();
        let rules = authorizer.rules(&user("bob", &[]), "a").await;
        assert_eq!(rules.resource_rules, [ResourceRule::new(&["get", "list", "watch"], &[""], &["pods"])]);
        assert_eq!(rules.non_resource_rules, [NonResourceRule::new(&["*"], &["/api"])]);
    }
}
