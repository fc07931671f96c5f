//! Creates the users, requests, flow schemas and priority levels of the tests.

use listwatch_flow_control::{FlowSchema, PriorityLevel, RequestDigest};
use listwatch_json::{Value, json};
use listwatch_meta::UserInfo;

pub(crate) fn user(name: &str, groups: &[&str]) -> UserInfo {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    UserInfo { username: name.to_owned(), groups, ..UserInfo::default() }
}

/// A request from `verb path-of-resource`, such as `get apps/deployments/scale in a`, or `get /healthz`.
pub(crate) fn digest<'a>(user: &'a UserInfo, line: &'a str) -> RequestDigest<'a> {
    let (verb, rest) = line.split_once(' ').unwrap();
    let (target, namespace) = rest.split_once(" in ").unwrap_or((rest, ""));
    let mut parts = target.split('/');
    let is_resource_request = !target.starts_with('/');
    let mut next = || if is_resource_request { parts.next().unwrap_or_default() } else { "" };
    let (api_group, resource, subresource) = (next(), next(), next());
    RequestDigest { user, is_resource_request, verb, api_group, resource, subresource, namespace, path: target }
}

pub(crate) fn schema(name: &str, level: &str, precedence: i64, rules: Value) -> FlowSchema {
    let object = json!({
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence,
            "distinguisherMethod": {"type": "ByUser"}, "rules": rules},
    });
    FlowSchema::parse(object.to_string().as_bytes()).unwrap()
}

/// A rule for all requests of all users.
pub(crate) fn everything() -> Value {
    json!([{
        "subjects": [{"kind": "Group", "group": {"name": "*"}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"],
            "clusterScope": true}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }])
}

pub(crate) fn level_json(name: &str, shares: u64, lendable: u64, borrowing: Option<u64>) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "borrowingLimitPercent": borrowing,
            "limitResponse": {"type": "Queue", "queuing": {"queues": 16, "handSize": 4, "queueLengthLimit": 50}}}},
    })
}

pub(crate) fn level(name: &str, shares: u64, lendable: u64, borrowing: Option<u64>) -> PriorityLevel {
    PriorityLevel::parse(level_json(name, shares, lendable, borrowing).to_string().as_bytes()).unwrap()
}
