//! The order of groups and versions, by priority and then by name.
//!
//! Rules: `kube-aggregator/pkg/apis/apiregistration/v1/helper/helpers.go`.

use std::cmp::Reverse;

use listwatch_meta::compare_versions;

use crate::ApiService;

/// Groups the APIServices, and sorts groups and versions by preference (`SortedByGroupAndVersion`). A group has the
/// highest priority of its versions. Groups of equal priority are sorted by the name of that APIService, and versions
/// of equal priority by [`compare_versions`].
pub fn sorted_by_group_and_version(services: &[ApiService]) -> Vec<Vec<&ApiService>> {
    let mut by_group: Vec<&ApiService> = services.iter().collect();
    by_group.sort_by_key(|service| (Reverse(service.group_priority_minimum), &service.name));
    let mut groups: Vec<Vec<&ApiService>> = Vec::new();
    for service in by_group {
        match groups.iter_mut().find(|group| group[0].group == service.group) {
            Some(group) => group.push(service),
            None => groups.push(vec![service]),
        }
    }
    for group in &mut groups {
        group.sort_by(|a, b| {
            b.version_priority.cmp(&a.version_priority).then_with(|| compare_versions(&a.version, &b.version))
        });
    }
    groups
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn local(group: &str, version: &str, group_priority: i64, version_priority: i64) -> ApiService {
        ApiService::from_object(&json!({
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": group_priority,
                "versionPriority": version_priority},
        }))
        .unwrap()
    }

    #[test]
    fn groups_are_ordered_by_highest_priority_then_name() {
        let services = [
            local("b", "v1", 100, 1),
            local("a", "v1", 100, 1),
            local("high", "v1beta1", 50, 1),
            local("high", "v2", 2_000, 5),
            local("high", "v1", 10, 5),
        ];
        let sorted = sorted_by_group_and_version(&services);
        let names: Vec<Vec<&str>> =
            sorted.iter().map(|group| group.iter().map(|service| service.name.as_str()).collect()).collect();
        assert_eq!(names, [vec!["v2.high", "v1.high", "v1beta1.high"], vec!["v1.a"], vec!["v1.b"]]);
    }
}
