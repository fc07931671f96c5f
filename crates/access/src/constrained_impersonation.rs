//! Authorizes impersonation: modes with separate permissions, and the classic mode (KEP 5284,
//! `apiserver/pkg/endpoints/filters/impersonation/mode.go`).
//!
//! ```text
//!  associated-node ─▶ arbitrary-node ─▶ serviceaccount ─▶ user-info ─▶ classic
//!     each but the classic one asks: impersonate-on:<mode>:<verb>  with the attributes of the request
//!                                    impersonate:<mode>            for each part of the impersonated user
//! ```
//!
//! The first mode that allows the request is used. If none does, the request fails with the error of the first mode
//! that fits the user. kube-apiserver tries the last successful mode of a sender first, and keeps successes for ten
//! seconds; here each request is decided anew.

use listwatch_meta::UserInfo;
use listwatch_meta::go::quote;
use listwatch_meta::selector::dns_subdomain_problems;

use crate::authorizer::{Attributes, Authorization, AuthorizerChain};
use crate::impersonation::{AUTHENTICATION_GROUP, Impersonation};

const NODE_PREFIX: &str = "system:node:";
const NODES_GROUP: &str = "system:nodes";
const MASTERS: &str = "system:masters";

/// The extra of a service account that names the node of its pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// The only extra key that authorizers see when a service account impersonates its own node. The value lists the
/// original extra keys of the account.
const NODE_KEYS: &str = "authentication.kubernetes.io/associated-node-keys";

/// With this number of groups or extra values, the permission for `*` is checked before the single
/// permissions (`manyAuthorizationChecksInLoop`).
const MANY: usize = 4;

/// An allowed impersonation: the impersonated user, and the verb that allowed the impersonation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedImpersonation {
    /// The user.
    pub user: UserInfo,
    /// The verb of the mode that allowed the impersonation, `impersonate:<mode>`; empty for the classic mode.
    pub constraint: &'static str,
}

/// A way to impersonate, in the order of the attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A service account acts as the node of its pod.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Any user that is neither a node nor a service account, with groups, uid and extra.
    UserInfo,
    Classic,
}

impl Mode {
    const ALL: [Mode; 5] =
        [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Classic];

    /// The verb for the parts of the user.
    fn verb(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "impersonate:associated-node",
            Mode::ArbitraryNode => "impersonate:arbitrary-node",
            Mode::ServiceAccount => "impersonate:serviceaccount",
            Mode::UserInfo => "impersonate:user-info",
            Mode::Classic => "impersonate",
        }
    }

    /// The name in `impersonate-on:<mode>:<verb>`.
    fn name(self) -> Option<&'static str> {
        self.verb().split_once(':').map(|(_, name)| name)
    }

    fn is_classic(self) -> bool {
        self == Mode::Classic
    }

    /// Whether the mode can impersonate a user for a sender.
    fn fits(self, wanted: &Impersonation, sender: &UserInfo) -> bool {
        let is_plain = wanted.has_only_a_name();
        let node = node_name(&wanted.user().username);
        let is_account = wanted.user().service_account().is_some();
        match self {
            Mode::AssociatedNode => {
                let own = match sender.extra.get(NODE_NAME).map(Vec::as_slice) {
                    Some([name]) => Some(name.as_str()),
                    _ => None,
                };
                is_plain && node.is_some() && node == own && sender.service_account().is_some()
            }
            Mode::ArbitraryNode => is_plain && node.is_some(),
            Mode::ServiceAccount => is_plain && is_account,
            Mode::UserInfo => node.is_none() && !is_account,
            Mode::Classic => true,
        }
    }
}

/// Returns the node name in the username `system:node:<name>`.
fn node_name(username: &str) -> Option<&str> {
    username.strip_prefix(NODE_PREFIX).filter(|name| dns_subdomain_problems(name).is_empty())
}

impl Impersonation {
    /// Checks that the sender of a request may impersonate the user. `request` contains the attributes of the request,
    /// with the sender as user. Without `constrained`, only the verb `impersonate` is checked. `forbidden` creates the
    /// error from the denied attributes and the reason.
    ///
    /// # Errors
    /// The error of the first mode that fits the user.
    pub async fn authorize<E>(
        self,
        authorizers: &AuthorizerChain,
        request: &Attributes<'_>,
        constrained: bool,
        forbidden: impl Fn(&Attributes<'_>, &str) -> E,
    ) -> Result<AllowedImpersonation, E> {
        let mut first = None;
        for mode in Mode::ALL.into_iter().filter(|mode| mode.is_classic() || constrained) {
            if !mode.fits(&self, request.user) {
                continue;
            }
            let attempt = Attempt { mode, wanted: &self, authorizers, forbidden: &forbidden };
            match attempt.check(request).await {
                Ok(()) => {
                    let constraint = if mode.is_classic() { "" } else { mode.verb() };
                    return Ok(AllowedImpersonation { user: self.into_user_of(mode), constraint });
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        // The classic mode fits each user, so that there is an error.
        Err(first.unwrap_or_else(|| forbidden(request, "all impersonation modes failed")))
    }

    fn into_user_of(self, mode: Mode) -> UserInfo {
        let mut user = self.into_user();
        if matches!(mode, Mode::AssociatedNode | Mode::ArbitraryNode) {
            // A node has no other groups than this one and that of all authenticated users.
            user.groups.insert(0, NODES_GROUP.to_owned());
        }
        user
    }
}

/// Checks whether one mode allows the impersonation.
struct Attempt<'a, F> {
    mode: Mode,
    wanted: &'a Impersonation,
    authorizers: &'a AuthorizerChain,
    forbidden: &'a F,
}

impl<E, F: Fn(&Attributes<'_>, &str) -> E> Attempt<'_, F> {
    async fn check(&self, request: &Attributes<'_>) -> Result<(), E> {
        let own_node;
        let sender = match self.mode {
            // The answer holds for each node of the service account.
            Mode::AssociatedNode => {
                let keys = request.user.extra.keys().cloned().collect();
                own_node = UserInfo { extra: [(NODE_KEYS.to_owned(), keys)].into(), ..request.user.clone() };
                &own_node
            }
            _ => request.user,
        };
        if let Some(name) = self.mode.name() {
            let verb = format!("impersonate-on:{name}:{}", request.verb);
            self.ask(&Attributes { user: sender, verb: &verb, ..*request }).await?;
        }
        self.check_name(sender).await?;
        let wanted = self.wanted.user();
        if !wanted.uid.is_empty() {
            let uid = self.attributes(sender, AUTHENTICATION_GROUP, "uids");
            self.ask(&Attributes { name: &wanted.uid, ..uid }).await?;
        }
        self.check_groups(sender).await?;
        self.check_extra(sender).await
    }

    fn attributes<'s>(&self, sender: &'s UserInfo, group: &'s str, resource: &'s str) -> Attributes<'s> {
        Attributes { api_version: "v1", ..Attributes::resource(sender, self.mode.verb(), group, resource) }
    }

    /// The API group of users, groups, service accounts and nodes.
    fn group(&self) -> &'static str {
        if self.mode.is_classic() { "" } else { AUTHENTICATION_GROUP }
    }

    async fn ask(&self, attributes: &Attributes<'_>) -> Result<(), E> {
        let answer = self.authorizers.authorize(attributes).await;
        if answer.is_allowed() { Ok(()) } else { Err((self.forbidden)(attributes, &reason(&answer))) }
    }

    async fn check_name(&self, sender: &UserInfo) -> Result<(), E> {
        let username = &self.wanted.user().username;
        let of = |resource, name| Attributes { name, ..self.attributes(sender, self.group(), resource) };
        let node = node_name(username).filter(|_| !self.mode.is_classic());
        let attributes = match (node, self.wanted.user().service_account()) {
            (Some(_), _) if self.mode == Mode::AssociatedNode => of("nodes", "*"),
            (Some(node), _) => of("nodes", node),
            (None, Some((namespace, name))) => Attributes { namespace, ..of("serviceaccounts", name) },
            (None, None) => of("users", username),
        };
        self.ask(&attributes).await
    }

    async fn check_groups(&self, sender: &UserInfo) -> Result<(), E> {
        let groups = self.wanted.requested_groups();
        let of = |name| Attributes { name, ..self.attributes(sender, self.group(), "groups") };
        if !self.mode.is_classic() {
            if groups.iter().any(String::is_empty) {
                return Err((self.forbidden)(&of(""), "impersonating the empty string group is not allowed"));
            }
            if groups.iter().any(|group| group == MASTERS) {
                return Err((self.forbidden)(&of(MASTERS), "impersonating the system:masters group is not allowed"));
            }
            if groups.len() >= MANY && self.ask(&of("*")).await.is_ok() {
                return Ok(());
            }
        }
        for group in groups {
            self.ask(&of(group)).await?;
        }
        Ok(())
    }

    async fn check_extra(&self, sender: &UserInfo) -> Result<(), E> {
        let extra = &self.wanted.user().extra;
        let of = |subresource, name| Attributes {
            subresource,
            name,
            ..self.attributes(sender, AUTHENTICATION_GROUP, "userextras")
        };
        if !self.mode.is_classic() {
            if let Some(why) = extra.iter().find_map(|(key, values)| invalid_extra(key, values)) {
                return Err((self.forbidden)(&of("", ""), &why));
            }
            let is_large = extra.len() >= MANY || extra.values().map(Vec::len).sum::<usize>() >= MANY;
            if is_large && self.ask(&of("*", "*")).await.is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                self.ask(&of(key, value)).await?;
            }
        }
        Ok(())
    }
}

/// The reason of a refusal, with the error of an authorizer before it.
fn reason(answer: &Authorization) -> String {
    match (&*answer.error, &*answer.reason) {
        ("", reason) => reason.to_owned(),
        (error, "") => error.to_owned(),
        (error, reason) => format!("{error}: {reason}"),
    }
}

/// Returns the reason why an extra key or value cannot be impersonated (`validateExtra`, `IsDomainPrefixedPath`).
fn invalid_extra(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    let invalid = |value: &str, why: &str| {
        let value = quote(value);
        Some(format!("impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {value}: {why}"))
    };
    match key.split_once('/') {
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => {
            if let Some(problem) = dns_subdomain_problems(&domain.to_lowercase()).first() {
                return invalid(domain, problem);
            }
            if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || br"/-._~%!$&'()*+,;=:".contains(&byte)) {
                let why = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";
                return invalid(path, why);
            }
        }
        _ => return invalid(key, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
    if key.chars().any(char::is_uppercase) {
        return Some(format!("impersonating a non-lowercase key in extra is not allowed: {}", quote(key)));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".to_owned());
    }
    let has_empty = values.iter().any(String::is_empty);
    has_empty.then(|| "impersonating the empty string value in extra is not allowed".to_owned())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;
    use crate::authorizer::Authorizer;
    use crate::maybe_future::MaybeFuture;

    /// Allows the requests of these lines: `verb group:resource/subresource namespace/name`.
    struct Lines(&'static [&'static str]);

    fn line(attributes: &Attributes<'_>) -> String {
        let Attributes { verb, api_group, resource, subresource, namespace, name, .. } = attributes;
        let subresource = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
        format!("{verb} {api_group}:{resource}{subresource} {namespace}/{name}")
    }

    impl Authorizer for Lines {
        fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
            let is_allowed = self.0.contains(&&*line(attributes));
            MaybeFuture::ready(if is_allowed { Authorization::allow("") } else { Authorization::no_opinion() })
        }
    }

    /// Impersonates a user for a list of the pods in the namespace `a`. Returns `name [groups] constraint`, or the
    /// denied attributes and the reason.
    async fn ask(sender: &UserInfo, allowed: &'static [&'static str], headers: &[(&str, &str)]) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        let wanted = Impersonation::from_headers(&map).unwrap().unwrap();
        let authorizers = AuthorizerChain::new().with(Lines(allowed));
        let request = Attributes { namespace: "a", ..Attributes::resource(sender, "list", "", "pods") };
        let refuse = |attributes: &Attributes<'_>, why: &str| format!("refused: {} {why}", line(attributes));
        match wanted.authorize(&authorizers, &request, true, refuse).await {
            Ok(AllowedImpersonation { user, constraint }) => {
                format!("{} [{}] {constraint}", user.username, user.groups.join(" "))
            }
            Err(refused) => refused,
        }
    }

    fn user(name: &str) -> UserInfo {
        UserInfo { username: name.to_owned(), ..UserInfo::default() }
    }

    const ON_USER: &str = "impersonate-on:user-info:list :pods a/";
    const BOB: &str = "impersonate:user-info authentication.k8s.io:users /bob";

    #[tokio::test]
    async fn impersonation_needs_the_permissions_of_one_mode() {
        let eve = user("eve");
        let bob = ("impersonate-user", "bob");
        let group = |name| ("impersonate-group", name);
        for (allowed, headers, expected) in [
            (&[][..], &[bob][..], "refused: impersonate-on:user-info:list :pods a/ "),
            (&[ON_USER], &[bob], "refused: impersonate:user-info authentication.k8s.io:users /bob "),
            (&[BOB], &[bob], "refused: impersonate-on:user-info:list :pods a/ "),
            (&[ON_USER, BOB], &[bob], "bob [system:authenticated] impersonate:user-info"),
            (&["impersonate :users /bob"], &[bob], "bob [system:authenticated] "),
            (
                &["impersonate authentication.k8s.io:users /bob"],
                &[bob],
                "refused: impersonate-on:user-info:list :pods a/ ",
            ),
            (
                &[ON_USER, BOB],
                &[bob, group("dev")],
                "refused: impersonate:user-info authentication.k8s.io:groups /dev ",
            ),
            (
                &[ON_USER, BOB, "impersonate:user-info authentication.k8s.io:groups /dev"],
                &[bob, group("dev")],
                "bob [dev system:authenticated] impersonate:user-info",
            ),
            (
                &[ON_USER, BOB, "impersonate:user-info authentication.k8s.io:groups /*"],
                &[bob, group("a"), group("b"), group("c"), group("d")],
                "bob [a b c d system:authenticated] impersonate:user-info",
            ),
            (
                &[ON_USER, BOB, "impersonate:user-info authentication.k8s.io:groups /*"],
                &[bob, group("a")],
                "refused: impersonate:user-info authentication.k8s.io:groups /a ",
            ),
            (
                &[ON_USER, BOB, "impersonate:user-info authentication.k8s.io:groups /system:masters"],
                &[bob, group("system:masters")],
                "refused: impersonate:user-info authentication.k8s.io:groups /system:masters impersonating the system:masters group is not allowed",
            ),
            (
                &["impersonate :users /bob", "impersonate :groups /system:masters"],
                &[bob, group("system:masters")],
                "bob [system:masters system:authenticated] ",
            ),
            (
                &[ON_USER, BOB],
                &[bob, group("")],
                "refused: impersonate:user-info authentication.k8s.io:groups / impersonating the empty string group is not allowed",
            ),
            (
                &[ON_USER, BOB, "impersonate:user-info authentication.k8s.io:uids /7"],
                &[bob, ("impersonate-uid", "7")],
                "bob [system:authenticated] impersonate:user-info",
            ),
            (
                &[ON_USER, BOB],
                &[bob, ("impersonate-uid", "7")],
                "refused: impersonate:user-info authentication.k8s.io:uids /7 ",
            ),
        ] {
            assert_eq!(ask(&eve, allowed, headers).await, expected, "{allowed:?} {headers:?}");
        }
    }

    #[tokio::test]
    async fn constrained_impersonation_requires_lowercase_extra_keys_with_a_domain() {
        let eve = user("eve");
        let extra = async |name: &str, value: &str, allowed| {
            ask(&eve, allowed, &[("impersonate-user", "bob"), (name, value)]).await
        };
        let one = &[ON_USER, BOB, "impersonate:user-info authentication.k8s.io:userextras/example.com/a /v"][..];
        let all = "bob [system:authenticated] impersonate:user-info";
        assert_eq!(extra("impersonate-extra-example.com%2fa", "v", one).await, all);
        let other = "refused: impersonate:user-info authentication.k8s.io:userextras/example.com/b /v ";
        assert_eq!(extra("impersonate-extra-example.com%2fb", "v", one).await, other);
        for (name, value, why) in [
            ("impersonate-extra-", "v", "impersonating the empty string key in extra is not allowed"),
            (
                "impersonate-extra-scopes",
                "v",
                "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: \"scopes\": must be a domain-prefixed path (such as \"acme.io/foo\")",
            ),
            (
                "impersonate-extra-example.com%2f%41",
                "v",
                "impersonating a non-lowercase key in extra is not allowed: \"example.com/A\"",
            ),
            ("impersonate-extra-example.com%2fa", "", "impersonating the empty string value in extra is not allowed"),
        ] {
            let expected = format!("refused: impersonate:user-info authentication.k8s.io:userextras / {why}");
            assert_eq!(extra(name, value, one).await, expected, "{name}");
        }
        let classic = &["impersonate :users /bob", "impersonate authentication.k8s.io:userextras/scopes /v"];
        assert_eq!(extra("impersonate-extra-scopes", "v", classic).await, "bob [system:authenticated] ");
    }

    #[tokio::test]
    async fn impersonation_of_a_node_or_service_account_needs_its_own_mode() {
        let node = &[("impersonate-user", "system:node:n")][..];
        let account = &[("impersonate-user", "system:serviceaccount:b:c")][..];
        let agent = UserInfo {
            extra: [(NODE_NAME.to_owned(), vec!["n".to_owned()]), ("x".to_owned(), vec!["y".to_owned()])].into(),
            ..user("system:serviceaccount:a:agent")
        };
        let eve = user("eve");
        let arbitrary = &[
            "impersonate-on:arbitrary-node:list :pods a/",
            "impersonate:arbitrary-node authentication.k8s.io:nodes /n",
        ][..];
        let own = &[
            "impersonate-on:associated-node:list :pods a/",
            "impersonate:associated-node authentication.k8s.io:nodes /*",
        ][..];
        let of_account = &[
            "impersonate-on:serviceaccount:list :pods a/",
            "impersonate:serviceaccount authentication.k8s.io:serviceaccounts b/c",
        ][..];
        let as_node = |mode: &str| format!("system:node:n [system:nodes system:authenticated] {mode}");
        for (sender, allowed, headers, expected) in [
            (&eve, arbitrary, node, as_node("impersonate:arbitrary-node")),
            (&agent, arbitrary, node, as_node("impersonate:arbitrary-node")),
            (&agent, own, node, as_node("impersonate:associated-node")),
            (&eve, own, node, "refused: impersonate-on:arbitrary-node:list :pods a/ ".to_owned()),
            (
                &agent,
                own,
                &[("impersonate-user", "system:node:m")][..],
                "refused: impersonate-on:arbitrary-node:list :pods a/ ".to_owned(),
            ),
            (&agent, &[][..], node, "refused: impersonate-on:associated-node:list :pods a/ ".to_owned()),
            (
                &eve,
                &["impersonate :users /system:node:n"][..],
                node,
                "system:node:n [system:authenticated] ".to_owned(),
            ),
            (
                &eve,
                of_account,
                account,
                "system:serviceaccount:b:c [system:serviceaccounts system:serviceaccounts:b system:authenticated] impersonate:serviceaccount".to_owned(),
            ),
            (
                &eve,
                of_account,
                &[account[0], ("impersonate-group", "g")][..],
                "refused: impersonate :serviceaccounts b/c ".to_owned(),
            ),
            (
                &eve,
                arbitrary,
                &[node[0], ("impersonate-uid", "1")][..],
                "refused: impersonate :users /system:node:n ".to_owned(),
            ),
        ] {
            assert_eq!(ask(sender, allowed, headers).await, expected, "{sender:?} {allowed:?} {headers:?}");
        }
    }

    #[tokio::test]
    async fn associated_node_check_passes_only_the_extra_keys_of_the_sender() {
        struct Keys;
        impl Authorizer for Keys {
            fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
                let keys = vec![NODE_NAME.to_owned(), "x".to_owned()];
                let is_own = attributes.user.extra == [(NODE_KEYS.to_owned(), keys)].into();
                MaybeFuture::ready(if is_own { Authorization::allow("") } else { Authorization::no_opinion() })
            }
        }
        let sender = UserInfo {
            extra: [(NODE_NAME.to_owned(), vec!["n".to_owned()]), ("x".to_owned(), vec!["y".to_owned()])].into(),
            ..user("system:serviceaccount:a:agent")
        };
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static("impersonate-user"),
            HeaderValue::from_static("system:node:n"),
        )]);
        let wanted = Impersonation::from_headers(&headers).unwrap().unwrap();
        let request = Attributes::resource(&sender, "get", "", "pods");
        let authorizers = AuthorizerChain::new().with(Keys);
        let found = wanted.clone().authorize(&authorizers, &request, true, |_, _| ()).await.unwrap();
        assert_eq!(found.constraint, "impersonate:associated-node");
        assert!(wanted.authorize(&authorizers, &request, false, |_, _| ()).await.is_err(), "the classic mode alone");
    }
}
