//! Authorizers without a policy: [`PrivilegedGroups`], [`AlwaysAllow`] and [`AlwaysDeny`]
//! (`apiserver/pkg/authorization/authorizerfactory/builtin.go`).

use listwatch_meta::UserInfo;

use crate::authorizer::{Attributes, Authorization, Authorizer};
use crate::maybe_future::MaybeFuture;
use crate::rules::{NonResourceRule, ResourceRule, UserRules};

/// Allows everything to everyone, anonymous requests included (`--authorization-mode=AlwaysAllow`).
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysAllow;

impl Authorizer for AlwaysAllow {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        MaybeFuture::ready(Authorization::allow(""))
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        MaybeFuture::ready(all_rules())
    }
}

/// Has no opinion on any request, so requests need another authorizer (`--authorization-mode=AlwaysDeny`).
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        MaybeFuture::ready(Authorization { reason: "Everything is forbidden.".into(), ..Authorization::no_opinion() })
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        MaybeFuture::ready(UserRules::default())
    }
}

/// Allows everything to the members of some groups, and has no opinion on other users.
///
/// ```
/// use listwatch_access::{Attributes, Authorizer, PrivilegedGroups};
/// use listwatch_meta::UserInfo;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let authorizer = PrivilegedGroups::new(["admins"]);
/// let admin = UserInfo { groups: vec!["admins".to_owned()], ..UserInfo::default() };
/// assert!(authorizer.authorize(&Attributes::resource(&admin, "delete", "", "pods")).await.is_allowed());
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct PrivilegedGroups(Vec<String>);

impl PrivilegedGroups {
    /// An authorizer for the members of these groups.
    pub fn new<G: Into<String>>(groups: impl IntoIterator<Item = G>) -> Self {
        PrivilegedGroups(groups.into_iter().map(Into::into).collect())
    }

    fn has(&self, user: &UserInfo) -> bool {
        user.groups.iter().any(|group| self.0.contains(group))
    }
}

impl Authorizer for PrivilegedGroups {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        MaybeFuture::ready(match self.has(attributes.user) {
            true => Authorization::allow(""),
            false => Authorization::no_opinion(),
        })
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        // Upstream's superuser authorizer is no rule resolver. The roles of the groups give the rules.
        MaybeFuture::ready(UserRules::default())
    }
}

fn all_rules() -> UserRules {
    UserRules {
        resource_rules: vec![ResourceRule::new(&["*"], &["*"], &["*"])],
        non_resource_rules: vec![NonResourceRule::new(&["*"], &["*"])],
        ..UserRules::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorizer::Decision;

    #[tokio::test]
    async fn members_of_privileged_groups_may_do_everything() {
        let of = |groups: &[&str]| UserInfo {
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..UserInfo::default()
        };
        let authorizer = PrivilegedGroups::new(["system:authenticated"]);
        for (groups, decision) in [
            (&["a", "system:authenticated"][..], Decision::Allow),
            (&["system:unauthenticated"], Decision::NoOpinion),
            (&[], Decision::NoOpinion),
        ] {
            let user = of(groups);
            let found = authorizer.authorize(&Attributes::resource(&user, "delete", "", "pods")).await;
            assert_eq!(found.decision, decision, "{groups:?}");
            let rules = authorizer.rules(&user, "default").await;
            assert_eq!(rules, UserRules::default(), "{groups:?}: the rules are those of roles");
        }
    }

    #[tokio::test]
    async fn always_deny_mode_has_no_opinion_so_later_modes_still_decide() {
        let user = UserInfo::admin();
        let found = AlwaysDeny.authorize(&Attributes::path(user, "get", "/metrics")).await;
        assert_eq!((found.decision, &*found.reason), (Decision::NoOpinion, "Everything is forbidden."));
        assert_eq!(AlwaysDeny.rules(user, "default").await, UserRules::default());
    }

    #[tokio::test]
    async fn always_allow_allows_anonymous_requests() {
        let anonymous = UserInfo::default();
        assert!(AlwaysAllow.authorize(&Attributes::path(&anonymous, "get", "/metrics")).await.is_allowed());
    }
}
