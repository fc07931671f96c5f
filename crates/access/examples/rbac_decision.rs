//! Measures one decision of [`RbacIndex`] with 100 roles and 10,000 bindings in 500 namespaces.
//!
//! `cargo run --release -p listwatch-access --example rbac_decision`

use std::hint::black_box;
use std::time::Instant;

use listwatch_access::Attributes;
use listwatch_access::rbac::{PolicyRule, RbacIndex, RoleRef, Subject, SubjectKind};
use listwatch_meta::UserInfo;

/// The number of measured decisions.
const ROUNDS: u32 = 1_000_000;

fn main() {
    let mut index = RbacIndex::default();
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete"];
    for role in 0..100 {
        let resources: Vec<String> = (0..10).map(|number| format!("kind{role}-{number}")).collect();
        let texts: Vec<&str> = resources.iter().map(String::as_str).collect();
        let rules = (0..40).map(|group| PolicyRule::resources(&verbs, &[&format!("g{group}")], &texts)).collect();
        index.set_role("", &format!("role{role}"), rules);
    }
    for number in 0..10_000 {
        let namespace = if number % 10 == 0 { String::new() } else { format!("ns{}", number % 500) };
        let role = RoleRef { kind: "ClusterRole".to_owned(), name: format!("role{}", number % 100) };
        let subject =
            Subject { kind: SubjectKind::User, name: format!("user{}", number % 1000), namespace: String::new() };
        index.set_binding(&namespace, &format!("b{number}"), role, vec![subject]);
    }
    let groups: Vec<String> = (0..8).map(|number| format!("group{number}")).collect();
    let user = UserInfo { username: "user7".to_owned(), groups, ..UserInfo::default() };
    for (case, resource) in [("allowed", "kind7-3"), ("refused", "kind8-3")] {
        let attributes = Attributes { namespace: "ns7", ..Attributes::resource(&user, "delete", "g39", resource) };
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            black_box(index.authorize(black_box(&attributes)));
        }
        println!("{case} {}: {:?} per decision", index.authorize(&attributes).reason, begin.elapsed() / ROUNDS);
    }
}
