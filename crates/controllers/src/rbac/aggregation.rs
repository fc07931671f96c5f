//! Writes the rules of aggregated ClusterRoles: the union of the rules of all roles that match their selectors.
//!
//! Source: `pkg/controller/clusterroleaggregation/clusterroleaggregation_controller.go`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use listwatch_access::rbac::{PolicyRule, RbacKind};
use listwatch_cacher::{Delivery, Scope};
use listwatch_json::{Map, Value, json};
use listwatch_meta::{FieldSelector, LabelSelector, Status, UserInfo, WatchFrom, WatchRequest};
use listwatch_registry::Resource;
use listwatch_validation::label_selector::LabelSelector as ObjectSelector;
use listwatch_wire::query::Query;
use listwatch_write::{WriteBody, WriteRequest, WriteVerb, Writer};
use serde::Deserialize;
use tokio::time::Instant;

use super::feed::{GROUP, VERSION, resource};
use crate::objects::{convert, is_conflict, list};

/// The field manager of the rules.
const MANAGER: &str = "clusterrole-aggregation-controller";
/// Maximum duration of one watch. Any value is correct, because an ended watch is restarted.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// Delay before the next attempt after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Delay between a change and a pass, so that one pass handles several changes. A pass reads all ClusterRoles.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum length of a chain of aggregated roles that one pass completes. The events of its writes start a further pass
/// for a longer chain. The limit also ends the comparison of roles that aggregate each other.
const ROUNDS_MAX: usize = 8;

/// Runs one pass: writes the rules of all aggregated ClusterRoles, also of those that aggregate others. A role gets only
/// rules that other roles have in the store: after a write that fails or that admission changes, roles of later rounds
/// get the rules of stored roles alone, and the next pass completes them.
///
/// # Errors
/// The error of the store, or the last error of a write.
pub async fn aggregate(writer: &Arc<Writer>) -> Result<(), Status> {
    let Some(resource) = resource(writer, RbacKind::ClusterRole) else { return Ok(()) };
    let stored = list(writer, &resource).await?;
    // Many roles take long to parse and compare, and the I/O workers answer requests.
    let changes = tokio::task::spawn_blocking(move || convert(stored, Role::of).map(settled));
    let (mut outcome, mut failed_round) = (Ok(()), None);
    for change in changes.await.map_err(Status::internal)?? {
        let Some(rules) = change.rules(failed_round) else { continue };
        match write(writer, &resource, &change, rules).await {
            Ok(true) => {}
            Ok(false) => failed_round = failed_round.or(Some(change.round)),
            // The role was deleted or replaced: a further change follows.
            Err(status) if is_conflict(&status) || status.code == 404 => {
                failed_round = failed_round.or(Some(change.round));
            }
            Err(status) => {
                tracing::warn!(%status, role = change.name, "cannot write the rules of an aggregated ClusterRole");
                failed_round = failed_round.or(Some(change.round));
                outcome = Err(status);
            }
        }
    }
    outcome
}

/// Maintains the rules of aggregated ClusterRoles until the future is dropped.
pub async fn run(writer: Arc<Writer>) {
    let Some(resource) = resource(&writer, RbacKind::ClusterRole) else { return };
    loop {
        if let Err(status) = follow(&writer, &resource).await {
            tracing::warn!(%status, "cannot aggregate ClusterRoles");
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Watches the ClusterRoles until the watch ends.
async fn follow(writer: &Arc<Writer>, resource: &Resource) -> Result<(), Status> {
    let cacher = writer.backend().cacher(resource);
    let after = writer.backend().storage().current_revision().await.map_err(Status::internal)?;
    let request = WatchRequest {
        from: WatchFrom::After(after),
        bookmarks: true,
        timeout_seconds: None,
        labels: LabelSelector::default(),
        fields: FieldSelector::default(),
        shard: None,
    };
    let watcher = cacher.watch(&Scope::All, &request, Instant::now() + WATCH_TIME).await;
    let mut watcher = watcher.map_err(|error| error.status(resource.gr()))?;
    // Changes before the watch began.
    aggregate(writer).await?;
    let mut due: Option<Instant> = None;
    loop {
        let pass = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            delivery = watcher.next() => match delivery {
                // A deleted role can leave its rules in others, so each change counts.
                Some(Delivery::Event(_)) => due = due.or_else(|| Some(Instant::now() + PAUSE)),
                Some(Delivery::Bookmark { .. }) => {}
                Some(Delivery::Error(status)) => return Err(*status),
                None => return Ok(()),
            },
            () = pass => {
                due = None;
                aggregate(writer).await?;
            }
        }
    }
}

/// The new rules of an aggregated role.
#[derive(Debug, PartialEq)]
struct NewRules {
    name: String,
    uid: String,
    rules: Vec<PolicyRule>,
}

/// The part of a ClusterRole that aggregation reads.
struct Role {
    name: String,
    uid: String,
    labels: Map,
    /// The selectors of an aggregated role; `None` for any other role.
    selectors: Option<Vec<ObjectSelector>>,
    rules: Vec<PolicyRule>,
}

impl Role {
    fn of(mut tree: Map) -> Self {
        let rule = tree.get("aggregationRule");
        let selectors = rule.and_then(|rule| rule.get("clusterRoleSelectors")?.as_array());
        let selectors =
            selectors.map(|selectors| selectors.iter().filter_map(Value::as_object).map(ObjectSelector::of).collect());
        let rules = tree.remove("rules").and_then(|rules| listwatch_json::from_value(rules).ok()).unwrap_or_default();
        let mut metadata = match tree.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        };
        let labels = match metadata.remove("labels") {
            Some(Value::Object(labels)) => labels,
            _ => Map::new(),
        };
        let mut text = |field: &str| match metadata.remove(field) {
            Some(Value::String(text)) => String::from(text),
            _ => String::new(),
        };
        Role { name: text("name"), uid: text("uid"), labels, selectors, rules }
    }
}

/// The change of one aggregated role in a pass.
#[derive(Debug)]
struct Change {
    name: String,
    uid: String,
    /// The round of the comparison in which the rules changed last. They come from stored roles and from the changes of
    /// earlier rounds.
    round: usize,
    rules: Vec<PolicyRule>,
    /// The union of the rules of stored roles, for a role that changed in the first round and again later.
    rules_of_stored: Option<Vec<PolicyRule>>,
}

impl Change {
    /// The rules to write, if a write of `failed_round` failed; `None` if the role must wait for the next pass.
    fn rules(&self, failed_round: Option<usize>) -> Option<&[PolicyRule]> {
        match failed_round {
            Some(failed) if failed < self.round => self.rules_of_stored.as_deref(),
            _ => Some(&self.rules),
        }
    }
}

/// Returns the changes of the aggregated roles in the order of their rounds. A role may aggregate others that change,
/// too, so the comparison is repeated with the new rules.
fn settled(mut roles: Vec<Role>) -> Vec<Change> {
    let mut changes: BTreeMap<String, Change> = BTreeMap::new();
    for round in 0..ROUNDS_MAX {
        let found = stale(&roles);
        if found.is_empty() {
            break;
        }
        let mut by_name: HashMap<&str, &mut Vec<PolicyRule>> =
            roles.iter_mut().map(|role| (role.name.as_str(), &mut role.rules)).collect();
        for NewRules { name, uid, rules } in found {
            if let Some(present) = by_name.get_mut(name.as_str()) {
                present.clone_from(&rules);
            }
            let rules_of_stored = match changes.remove(&name) {
                Some(Change { round: 0, rules, .. }) => Some(rules),
                Some(earlier) => earlier.rules_of_stored,
                None => None,
            };
            changes.insert(name.clone(), Change { name, uid, round, rules, rules_of_stored });
        }
    }
    let mut changes: Vec<Change> = changes.into_values().collect();
    changes.sort_by_key(|change| change.round);
    changes
}

/// Returns the new rules of the aggregated roles whose rules differ from the union of the matching roles.
fn stale(roles: &[Role]) -> Vec<NewRules> {
    let mut sorted: Vec<&Role> = roles.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let mut stale = Vec::new();
    for role in &sorted {
        let Some(selectors) = &role.selectors else { continue };
        let mut union: Vec<PolicyRule> = Vec::new();
        let mut known: HashSet<&PolicyRule> = HashSet::new();
        for selector in selectors {
            let selects = |other: &&&Role| other.name != role.name && selector.selects(&other.labels) == Some(true);
            let matching = sorted.iter().filter(selects);
            for rule in matching.flat_map(|other| &other.rules) {
                if known.insert(rule) {
                    union.push(rule.clone());
                }
            }
        }
        // The order does not matter. If it did, roles that select each other would be written for ever.
        let is_same = role.rules.len() == union.len() && role.rules.iter().all(|rule| known.contains(rule));
        if !is_same {
            stale.push(NewRules { name: role.name.clone(), uid: role.uid.clone(), rules: union });
        }
    }
    stale
}

/// Writes the rules with a forced server-side apply, as upstream does. Returns whether the stored rules are these rules.
async fn write(
    writer: &Arc<Writer>,
    resource: &Arc<Resource>,
    change: &Change,
    rules: &[PolicyRule],
) -> Result<bool, Status> {
    let body = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "ClusterRole",
        // With the uid, the apply does not create a role that was deleted meanwhile.
        "metadata": {"name": change.name, "uid": change.uid},
        "rules": rules,
    });
    let query = format!("force=true&fieldManager={MANAGER}");
    let request = WriteRequest {
        verb: WriteVerb::Patch,
        resource,
        namespace: None,
        name: Some(&change.name),
        subresource: None,
        query: &Query::parse(&query),
        content_type: Some("application/apply-patch+yaml"),
        user: UserInfo::admin(),
        user_agent: None,
        body: Bytes::from(body.to_string()),
    };
    let WriteBody::Object(written) = writer.write(request).await?.body else { return Ok(false) };
    #[derive(Deserialize)]
    struct Stored {
        #[serde(default)]
        rules: Vec<PolicyRule>,
    }
    Ok(serde_json::from_slice::<Stored>(written.json_slice()).is_ok_and(|stored| stored.rules == rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, labels: Value, selectors: Value, rules: Value) -> Map {
        let mut role = json!({"metadata": {"name": name, "uid": name, "labels": labels}, "rules": rules});
        if !selectors.is_null() {
            role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        }
        role.as_object().unwrap().clone()
    }

    fn rule(resource: &str) -> Value {
        json!({"verbs": ["get"], "apiGroups": [""], "resources": [resource]})
    }

    fn check(roles: &[Map], expected: &[(&str, &[&str])]) {
        let roles: Vec<Role> = roles.iter().cloned().map(Role::of).collect();
        let found = stale(&roles);
        let found: Vec<(&str, Vec<&str>)> = found
            .iter()
            .map(|new| (new.name.as_str(), new.rules.iter().map(|rule| rule.resources[0].as_str()).collect()))
            .collect();
        let expected: Vec<(&str, Vec<&str>)> = expected.iter().map(|(name, rules)| (*name, rules.to_vec())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn aggregated_rules_are_the_union_over_selectors_sorted_by_name() {
        let match_labels = |value: &str| json!({"matchLabels": {"to": value}});
        let expression = json!({"matchExpressions": [{"key": "to", "operator": "Exists"}]});
        let b = role("b", json!({"to": "x"}), Value::Null, json!([rule("pods"), rule("nodes")]));
        let a = role("a", json!({"to": "x"}), Value::Null, json!([rule("services"), rule("pods")]));
        let c = role("c", json!({"to": "y"}), Value::Null, json!([rule("secrets")]));
        let sum = |selectors, rules| role("sum", json!({"to": "x"}), selectors, rules);
        let all = [b.clone(), a.clone(), c.clone(), sum(json!([match_labels("x")]), Value::Null)];
        check(&all, &[("sum", &["services", "pods", "nodes"])]);
        let ordered = [a.clone(), b.clone(), c.clone(), sum(json!([match_labels("y"), match_labels("x")]), json!([]))];
        check(&ordered, &[("sum", &["secrets", "services", "pods", "nodes"])]);
        check(
            &[a.clone(), c.clone(), sum(json!([expression]), json!([rule("services"), rule("pods"), rule("secrets")]))],
            &[],
        );
        // The order does not matter: roles that select each other would be written for ever.
        check(&[a.clone(), sum(json!([match_labels("x")]), json!([rule("pods"), rule("services")]))], &[]);
        let repeated = json!([rule("pods"), rule("services"), rule("pods")]);
        check(&[a.clone(), sum(json!([match_labels("x")]), repeated)], &[("sum", &["services", "pods"])]);
        // Rules of users in an aggregated role are replaced; without a match, no rule remains.
        check(&[c, sum(json!([match_labels("x")]), json!([rule("nodes")]))], &[("sum", &[])]);
        // An unknown operator matches nothing.
        let broken = json!([{"matchExpressions": [{"key": "to", "operator": "Like"}]}]);
        check(&[a, sum(broken, Value::Null)], &[]);
    }

    #[test]
    fn chain_of_aggregated_roles_is_settled_in_the_order_of_its_writes() {
        let select = |value: &str| json!([{"matchLabels": {"to": value}}]);
        let roles = [
            role("view-pods", json!({"to": "view"}), Value::Null, json!([rule("pods")])),
            // Sorted before the roles that they aggregate.
            role("admin", json!({}), select("admin"), json!([rule("secrets")])),
            role("config", json!({"to": "admin"}), Value::Null, json!([rule("configmaps")])),
            role("edit", json!({"to": "admin"}), select("edit"), json!([])),
            role("view", json!({"to": "edit"}), select("view"), json!([])),
            role("unchanged", json!({}), select("view"), json!([rule("pods")])),
        ];
        let changes = settled(roles.into_iter().map(Role::of).collect());
        let written = |failed_round: Option<usize>| -> Vec<(&str, Vec<&str>)> {
            let mut written = Vec::new();
            for change in &changes {
                if let Some(rules) = change.rules(failed_round) {
                    let resources = rules.iter().map(|rule| rule.resources[0].as_str()).collect();
                    written.push((change.name.as_str(), resources));
                }
            }
            written
        };
        let admin = vec!["configmaps", "pods"];
        assert_eq!(written(None), [("view", vec!["pods"]), ("edit", vec!["pods"]), ("admin", admin)]);
        let after_failure = [("view", vec!["pods"]), ("admin", vec!["configmaps"])];
        assert_eq!(written(Some(0)), after_failure, "only rules of stored roles, without a rule that was withdrawn");
        assert_eq!(written(Some(1))[..2], written(None)[..2], "the edit role was written in its round");
    }
}
