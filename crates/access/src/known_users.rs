//! [`KnownUserAuthorizer`]: users that the server knows may do everything, others what a cluster without
//! role bindings grants to everyone.

use listwatch_meta::UserInfo;
use listwatch_meta::user::SYSTEM_MASTERS;

use crate::authorizer::{Attributes, Authorization, Authorizer};
use crate::maybe_future::MaybeFuture;

/// Whether the server knows a user: members of `system:masters`, the administrator by name, and service
/// accounts.
pub fn is_known_user(user: &UserInfo) -> bool {
    user.groups.iter().any(|group| group == SYSTEM_MASTERS)
        || user.username == UserInfo::admin().username
        || user.service_account().is_some()
}

/// Allows everything to known users ([`is_known_user`]). Others may read what is served and review their
/// own access (`system:discovery`, `system:basic-user`).
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownUserAuthorizer;

impl Authorizer for KnownUserAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        let allowed = is_known_user(attributes.user) || is_granted_to_everyone(attributes);
        MaybeFuture::ready(if allowed { Authorization::allow("") } else { Authorization::no_opinion() })
    }
}

fn is_granted_to_everyone(attributes: &Attributes<'_>) -> bool {
    if !attributes.is_resource_request {
        return attributes.path.trim_matches('/') != "metrics";
    }
    let reviews = match attributes.api_group {
        "authentication.k8s.io" => &["selfsubjectreviews"][..],
        "authorization.k8s.io" => &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
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
}
