//! [`node_identity`]: recognizes the user of a kubelet (`pkg/auth/nodeidentifier/default.go`).

use listwatch_meta::UserInfo;

/// The group of all nodes.
const NODES: &str = "system:nodes";
/// The start of the user names of nodes.
const USERNAME_PREFIX: &str = "system:node:";

/// The node whose kubelet is the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeIdentity<'a> {
    /// The node of this name, which is not empty.
    Named(&'a str),
    /// A user `system:node:` without a name.
    Unnamed,
}

/// Returns the node whose kubelet is the user. A kubelet is in the group `system:nodes` and has a user name
/// `system:node:<name>`; the result is `None` for every other user.
pub fn node_identity(user: &UserInfo) -> Option<NodeIdentity<'_>> {
    let name = user.username.strip_prefix(USERNAME_PREFIX)?;
    if !user.groups.iter().any(|group| group == NODES) {
        return None;
    }
    Some(if name.is_empty() { NodeIdentity::Unnamed } else { NodeIdentity::Named(name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_recognized_by_user_name_and_group_together() {
        for (username, groups, expected) in [
            ("system:node:a", &["system:nodes"][..], Some(NodeIdentity::Named("a"))),
            ("system:node:a", &["x", "system:nodes", "system:authenticated"], Some(NodeIdentity::Named("a"))),
            ("system:node:a:b", &["system:nodes"], Some(NodeIdentity::Named("a:b"))),
            ("system:node: a", &["system:nodes"], Some(NodeIdentity::Named(" a"))),
            ("system:node:", &["system:nodes"], Some(NodeIdentity::Unnamed)),
            ("system:node:a", &[], None),
            ("system:node:a", &["system:node"], None),
            ("system:node:a", &["System:Nodes"], None),
            ("system:Node:a", &["system:nodes"], None),
            ("system:node", &["system:nodes"], None),
            ("asystem:node:a", &["system:nodes"], None),
            ("a", &["system:nodes"], None),
            ("", &["system:nodes"], None),
        ] {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let user = UserInfo { username: username.to_owned(), groups, ..UserInfo::default() };
            assert_eq!(node_identity(&user), expected, "{username}");
        }
    }
}
