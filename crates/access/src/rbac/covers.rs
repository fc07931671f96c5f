//! Comparison of rules: [`uncovered_rules`] finds the permissions that other rules do not include
//! (`component-helpers/auth/rbac/validation/policy_comparator.go`, `pkg/registry/rbac/validation/policy_compact.go`).

use std::collections::BTreeMap;

use super::policy::{ALL, PolicyRule};

/// The largest number of single permissions into which rules are split. Without this bound, a rule of 1 MB has 10^12 of
/// them.
const COVER_PERMISSIONS_MAX: usize = 20_000;

/// The largest number of comparisons of a single permission with a rule.
const COVER_COMPARISONS_MAX: usize = 2_000_000;

/// The error of rules with too many combinations of verbs, groups, resources and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rules have too many combinations of verbs, API groups, resources and names to be compared")]
pub struct TooManyRules;

/// The permissions of `wanted` that no rule of `held` covers, split into single permissions and merged by verb
/// (`Covers`, `CompactRules`). `*` is covered only by `*`.
///
/// # Errors
/// [`TooManyRules`] if the comparison would take too long.
///
/// ```
/// use listwatch_access::rbac::{PolicyRule, uncovered_rules};
///
/// let held = [PolicyRule::resources(&["get", "list"], &["*"], &["pods"])];
/// let wanted = [PolicyRule::resources(&["get", "delete"], &[""], &["pods"])];
/// assert_eq!(uncovered_rules(&held, &wanted)?, [PolicyRule::resources(&["delete"], &[""], &["pods"])]);
/// # Ok::<(), listwatch_access::rbac::TooManyRules>(())
/// ```
pub fn uncovered_rules(held: &[PolicyRule], wanted: &[PolicyRule]) -> Result<Vec<PolicyRule>, TooManyRules> {
    uncovered_by(&held.iter().collect::<Vec<_>>(), wanted)
}

/// Like [`uncovered_rules`], with borrowed rules, which may belong to several roles.
pub(super) fn uncovered_by(held: &[&PolicyRule], wanted: &[PolicyRule]) -> Result<Vec<PolicyRule>, TooManyRules> {
    let mut permissions = 0_usize;
    let mut comparisons = 0_usize;
    let mut missing = Vec::new();
    for rule in wanted {
        comparisons = held.iter().fold(comparisons, |sum, held| sum.saturating_add(comparisons_count(held, rule)));
        if comparisons > COVER_COMPARISONS_MAX {
            return Err(TooManyRules);
        }
        if held.iter().any(|held| covers(held, rule)) {
            continue;
        }
        permissions = permissions.saturating_add(permissions_count(rule));
        if permissions > COVER_PERMISSIONS_MAX || permissions.saturating_mul(held.len()) > COVER_COMPARISONS_MAX {
            return Err(TooManyRules);
        }
        missing.extend(split(rule).into_iter().filter(|one| !held.iter().any(|held| covers(held, one))));
    }
    Ok(merge_verbs(missing))
}

/// The number of single permissions of a rule.
fn permissions_count(rule: &PolicyRule) -> usize {
    let groups = rule.api_groups.len().saturating_mul(rule.resources.len());
    let objects = groups.saturating_mul(rule.resource_names.len().max(1));
    objects.saturating_add(rule.non_resource_urls.len()).saturating_mul(rule.verbs.len())
}

/// The maximum number of comparisons in [`covers`].
fn comparisons_count(held: &PolicyRule, wanted: &PolicyRule) -> usize {
    let lists = |rule: &PolicyRule| {
        let PolicyRule { verbs, api_groups, resources, resource_names, non_resource_urls } = rule;
        [verbs.len(), api_groups.len(), resources.len(), resource_names.len(), non_resource_urls.len()]
    };
    let products = lists(held).into_iter().zip(lists(wanted)).map(|(held, wanted)| held.saturating_mul(wanted));
    products.fold(1, usize::saturating_add)
}

/// Splits a rule into rules with one verb, one group, one resource and at most one name (`BreakdownRule`).
fn split(rule: &PolicyRule) -> Vec<PolicyRule> {
    let one = |text: &String| vec![text.clone()];
    let mut single = Vec::with_capacity(permissions_count(rule));
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let rule_of = |resource_names| PolicyRule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names,
                    non_resource_urls: Vec::new(),
                };
                match rule.resource_names.is_empty() {
                    true => single.push(rule_of(Vec::new())),
                    false => single.extend(rule.resource_names.iter().map(|name| rule_of(one(name)))),
                }
            }
        }
    }
    for url in &rule.non_resource_urls {
        for verb in &rule.verbs {
            single.push(PolicyRule { verbs: one(verb), non_resource_urls: one(url), ..PolicyRule::default() });
        }
    }
    single
}

/// Whether one rule covers all permissions of another one (`ruleCovers`).
fn covers(held: &PolicyRule, wanted: &PolicyRule) -> bool {
    let within = |held: &[String], wanted: &[String]| {
        held.iter().any(|one| one == ALL) || wanted.iter().all(|text| held.contains(text))
    };
    let names = held.resource_names.is_empty()
        || (!wanted.resource_names.is_empty()
            && wanted.resource_names.iter().all(|name| held.resource_names.contains(name)));
    names
        && within(&held.verbs, &wanted.verbs)
        && within(&held.api_groups, &wanted.api_groups)
        && wanted.resources.iter().all(|resource| resource_is_covered(&held.resources, resource))
        && wanted.non_resource_urls.iter().all(|url| held.non_resource_urls.iter().any(|one| path_covers(one, url)))
}

fn resource_is_covered(held: &[String], resource: &str) -> bool {
    held.iter().any(|one| {
        one == ALL
            || one == resource
            || matches!(
                (one.strip_prefix("*/"), resource.split_once('/')),
                (Some(held), Some((_, subresource))) if held == subresource
            )
    })
}

/// Whether a path pattern covers a path or another pattern (`nonResourceURLCovers`).
fn path_covers(held: &str, path: &str) -> bool {
    held == path || (held.ends_with('*') && path.starts_with(held.trim_end_matches('*')))
}

/// Merges the verbs of rules that differ only in them.
fn merge_verbs(rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut merged = Vec::new();
    let mut position_of: BTreeMap<[Vec<String>; 3], usize> = BTreeMap::new();
    for rule in rules {
        if !rule.non_resource_urls.is_empty() {
            merged.push(rule);
            continue;
        }
        let key = [rule.api_groups.clone(), rule.resources.clone(), rule.resource_names.clone()];
        match position_of.get(&key) {
            Some(&position) => {
                let known: &mut PolicyRule = &mut merged[position];
                for verb in rule.verbs {
                    if !known.verbs.contains(&verb) {
                        known.verbs.push(verb);
                    }
                }
            }
            None => {
                position_of.insert(key, merged.len());
                merged.push(rule);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(held: &[PolicyRule], wanted: &[PolicyRule], missing: &[&str]) {
        let found = uncovered_rules(held, wanted).unwrap();
        assert_eq!(found.iter().map(PolicyRule::compact_string).collect::<Vec<_>>(), missing);
    }

    #[test]
    fn missing_permissions_are_split_by_resource_and_merged_by_verb() {
        let rule = PolicyRule::resources;
        let reader = &[rule(&["get", "list"], &[""], &["pods", "services"])];
        check(reader, &[rule(&["list"], &[""], &["pods"])], &[]);
        check(reader, &[], &[]);
        check(
            &[],
            reader,
            &[
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#,
                r#"{APIGroups:[""], Resources:["services"], Verbs:["get" "list"]}"#,
            ],
        );
        check(reader, &[rule(&["*"], &[""], &["pods"])], &[r#"{APIGroups:[""], Resources:["pods"], Verbs:["*"]}"#]);
        check(
            reader,
            &[rule(&["get"], &["apps", ""], &["pods"])],
            &[r#"{APIGroups:["apps"], Resources:["pods"], Verbs:["get"]}"#],
        );
        // Two rules cover together what neither covers alone.
        let writer = rule(&["create"], &[""], &["pods"]);
        check(&[reader[0].clone(), writer], &[rule(&["get", "create"], &[""], &["pods"])], &[]);
        check(&[rule(&["*"], &["*"], &["*"])], &[rule(&["*"], &["*"], &["*", "a/b"])], &[]);
        check(
            &[rule(&["*"], &["*"], &["*"])],
            &[PolicyRule::paths(&["get"], &["/a"])],
            &[r#"{NonResourceURLs:["/a"], Verbs:["get"]}"#],
        );
    }

    #[test]
    fn subresource_is_covered_by_its_wildcard_but_not_by_its_resource() {
        let rule = |resource: &str| PolicyRule::resources(&["get"], &[""], &[resource]);
        for (held, wanted, covered) in [
            ("pods", "pods/log", false),
            ("pods/log", "pods", false),
            ("*/log", "pods/log", true),
            ("*/log", "*/log", true),
            ("*/log", "pods/logs", false),
            ("*/log", "log", false),
            ("pods/*", "pods/log", false),
            ("*", "pods/log", true),
            ("pods/log", "*/log", false),
            ("pods", "*", false),
        ] {
            let missing = uncovered_rules(&[rule(held)], &[rule(wanted)]).unwrap();
            assert_eq!(missing.is_empty(), covered, "{held} covers {wanted}");
        }
    }

    #[test]
    fn rule_with_names_covers_only_these_names() {
        let rule = |names: &[&str]| PolicyRule::resources(&["get"], &[""], &["pods"]).with_names(names);
        for (held, wanted, covered) in [
            (&["a"][..], &["a"][..], true),
            (&["a"], &["a", "b"], false),
            (&["a", "b"], &["a"], true),
            (&[], &["a"], true),
            (&["a"], &[], false),
        ] {
            let missing = uncovered_rules(&[rule(held)], &[rule(wanted)]).unwrap();
            assert_eq!(missing.is_empty(), covered, "{held:?} covers {wanted:?}");
        }
    }

    #[test]
    fn path_is_covered_by_a_wildcard_prefix() {
        for (held, wanted, covered) in [
            ("/apis/*", "/apis/apps", true),
            ("/apis/*", "/apis/*", true),
            ("/apis/*", "/apis/apps/*", true),
            ("/apis/*", "/apis", false),
            ("/apis", "/apis/*", false),
            ("*", "/x", true),
            ("/x", "*", false),
        ] {
            let missing =
                uncovered_rules(&[PolicyRule::paths(&["get"], &[held])], &[PolicyRule::paths(&["get"], &[wanted])]);
            assert_eq!(missing.unwrap().is_empty(), covered, "{held} covers {wanted}");
        }
    }

    #[test]
    fn rules_with_too_many_combinations_are_not_compared() {
        let many: Vec<String> = (0..1000).map(|number| format!("a{number}")).collect();
        let rule = PolicyRule { verbs: many.clone(), api_groups: many.clone(), resources: many, ..Default::default() };
        assert_eq!(uncovered_rules(&[], std::slice::from_ref(&rule)), Err(TooManyRules));
        // A rule that covers it as a whole needs no split.
        assert_eq!(uncovered_rules(&[PolicyRule::resources(&["*"], &["*"], &["*"])], &[rule]), Ok(Vec::new()));
    }

    #[test]
    fn long_lists_of_names_are_not_compared() {
        let names = |count: usize| PolicyRule {
            resource_names: (0..count).map(|number| format!("n{number}")).collect(),
            ..PolicyRule::resources(&["get"], &[""], &["pods"])
        };
        let wanted = [names(1_000)];
        assert_eq!(uncovered_rules(&[names(1_000)], &wanted), Ok(Vec::new()));
        assert_eq!(uncovered_rules(&[names(10_000)], &wanted), Err(TooManyRules));
    }
}
