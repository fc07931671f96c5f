//! [`KnownUserAuthorizer`] allows every request of known users. Other users have the permissions
//! that a cluster without additional role bindings grants to all users.

use listwatch_meta::UserInfo;
use listwatch_meta::user::SYSTEM_MASTERS;

use crate::authorizer::{Attributes, Authorization, Authorizer};
use crate::maybe_future::MaybeFuture;
use crate::rules::{NonResourceRule, ResourceRule, UserRules};

/// Whether the user is the administrator, a service account or a member of `system:masters`.
fn is_known_user(user: &UserInfo) -> bool {
    user.groups.iter().any(|group| group == SYSTEM_MASTERS)
        || user.username == UserInfo::admin().username
        || user.service_account().is_some()
}

/// Allows everything to members of `system:masters`, the user of the administrator, and service
/// accounts. Others may read discovery documents and review their own access (`system:discovery`,
/// `system:basic-user`).
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownUserAuthorizer;

impl Authorizer for KnownUserAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        let allowed = is_known_user(attributes.user) || is_granted_to_everyone(attributes);
        MaybeFuture::ready(if allowed { Authorization::allow("") } else { Authorization::no_opinion() })
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, _namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        let (resource_rules, non_resource_rules) = match is_known_user(user) {
            true => (vec![ResourceRule::new(&["*"], &["*"], &["*"])], vec![NonResourceRule::new(&["*"], &["*"])]),
            false => (
                vec![
                    ResourceRule::new(&["create"], &["authorization.k8s.io"], ACCESS_REVIEWS),
                    ResourceRule::new(&["create"], &["authentication.k8s.io"], USER_REVIEWS),
                ],
                vec![NonResourceRule::new(&["get"], DISCOVERY)],
            ),
        };
        MaybeFuture::ready(UserRules { resource_rules, non_resource_rules, ..UserRules::default() })
    }
}

/// Reviews of the user's own access.
const ACCESS_REVIEWS: &[&str] = &["selfsubjectaccessreviews", "selfsubjectrulesreviews"];
/// Reviews of the user's own identity.
const USER_REVIEWS: &[&str] = &["selfsubjectreviews"];
/// The non-resource paths of `system:discovery`.
const DISCOVERY: &[&str] = &[
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
];

fn is_granted_to_everyone(attributes: &Attributes<'_>) -> bool {
    if !attributes.is_resource_request {
        return attributes.path.trim_matches('/') != "metrics";
    }
    let reviews = match attributes.api_group {
        "authentication.k8s.io" => USER_REVIEWS,
        "authorization.k8s.io" => ACCESS_REVIEWS,
        _ => &[],
    };
    attributes.verb == "create" && attributes.subresource.is_empty() && reviews.contains(&attributes.resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unknown_user_may_read_discovery_and_review_its_own_access() {
        let bob = UserInfo { username: "bob".to_owned(), ..UserInfo::default() };
        let master = UserInfo { groups: vec![SYSTEM_MASTERS.to_owned()], ..bob.clone() };
        let account = UserInfo { username: "system:serviceaccount:a:b".to_owned(), ..UserInfo::default() };
        let malformed = UserInfo { username: "system:serviceaccount:a".to_owned(), ..UserInfo::default() };
        let reviews = "authorization.k8s.io";
        for (user, verb, group, resource, expected) in [
            (&bob, "list", "", "pods", false),
            (&bob, "create", reviews, "selfsubjectaccessreviews", true),
            (&bob, "create", reviews, "selfsubjectrulesreviews", true),
            (&bob, "create", "authentication.k8s.io", "selfsubjectreviews", true),
            (&bob, "list", reviews, "selfsubjectaccessreviews", false),
            (&bob, "create", reviews, "subjectaccessreviews", false),
            (&bob, "create", "example.com", "selfsubjectreviews", false),
            (&malformed, "list", "", "pods", false),
            (&master, "list", "", "pods", true),
            (&account, "delete", "", "pods", true),
            (UserInfo::admin(), "impersonate", "", "users", true),
        ] {
            let attributes = Attributes::resource(user, verb, group, resource);
            let allowed = KnownUserAuthorizer.authorize(&attributes).await.is_allowed();
            assert_eq!(allowed, expected, "{} {verb} {resource}.{group}", user.username);
        }
        for (user, path, expected) in
            [(&bob, "/api", true), (&bob, "/readyz", true), (&bob, "/metrics", false), (&account, "/metrics", true)]
        {
            let allowed = KnownUserAuthorizer.authorize(&Attributes::path(user, "get", path)).await.is_allowed();
            assert_eq!(allowed, expected, "{} {path}", user.username);
        }
    }

    #[tokio::test]
    async fn rules_of_an_unknown_user_allow_discovery_and_own_access_reviews() {
        let bob = UserInfo { username: "bob".to_owned(), ..UserInfo::default() };
        let rules = KnownUserAuthorizer.rules(&bob, "default").await;
        let resources: Vec<&str> =
            rules.resource_rules.iter().flat_map(|rule| &rule.resources).map(|text| &**text).collect();
        assert_eq!(resources, ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"]);
        assert!(!rules.incomplete && rules.non_resource_rules.len() == 1);
        let all = KnownUserAuthorizer.rules(UserInfo::admin(), "default").await;
        assert_eq!(all.resource_rules, [ResourceRule::new(&["*"], &["*"], &["*"])]);
    }
}
