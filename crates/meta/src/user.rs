//! [`UserInfo`]: an authenticated user (`authentication.k8s.io/v1 UserInfo`).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Serialize;

use crate::selector::{validate_dns_label, validate_dns_subdomain};

/// An authenticated user, with the JSON form of `authentication.k8s.io/v1 UserInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UserInfo {
    /// The name that identifies the user, e.g. `system:serviceaccount:kube-system:replicaset-controller`.
    pub username: String,
    /// Distinguishes users that had the same name at different times; mostly empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The names of the groups that the user belongs to.
    pub groups: Vec<String>,
    /// Further attributes that the authenticator provides, e.g. the pod of a service account token.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The group whose members may do everything (`user.SystemPrivilegedGroup`).
pub const SYSTEM_MASTERS: &str = "system:masters";

impl UserInfo {
    /// The administrator of a server: the holder of the admin token, and the server's own controllers.
    pub fn admin() -> &'static Self {
        static ADMIN: LazyLock<UserInfo> = LazyLock::new(|| UserInfo {
            username: "admin".to_owned(),
            groups: vec![SYSTEM_MASTERS.to_owned(), "system:authenticated".to_owned()],
            ..UserInfo::default()
        });
        &ADMIN
    }

    /// The namespace and name of a service account, from the username
    /// (`k8s.io/apiserver/pkg/authentication/serviceaccount.SplitUsername`). `None` for other users and for
    /// malformed usernames of this form.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.username.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        let valid = validate_dns_label(namespace).is_ok() && validate_dns_subdomain(name).is_ok();
        valid.then_some((namespace, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_account_is_read_from_username() {
        for (username, expected) in [
            ("system:serviceaccount:a:b", Some(("a", "b"))),
            ("system:serviceaccount:a:b.c", Some(("a", "b.c"))),
            ("system:serviceaccount:a", None),
            ("system:serviceaccount:A:b", None),
            ("system:serviceaccount:a:b:c", None),
            ("admin", None),
        ] {
            let user = UserInfo { username: username.to_owned(), ..UserInfo::default() };
            assert_eq!(user.service_account(), expected, "{username}");
        }
    }

    #[test]
    fn user_info_omits_empty_uid_and_extra_in_json() {
        let json = serde_json::to_string(UserInfo::admin()).unwrap();
        assert_eq!(json, r#"{"username":"admin","groups":["system:masters","system:authenticated"]}"#);
    }
}
