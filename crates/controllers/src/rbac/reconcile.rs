//! Creates the default roles and bindings, and adds missing rules and subjects to stored ones.
//!
//! Source: `ensureRBACPolicy` in `pkg/registry/rbac/rest/storage_rbac.go`,
//! `component-helpers/auth/rbac/reconciliation`.
//!
//! | stored object | action |
//! |---|---|
//! | missing | created |
//! | annotation `rbac.authorization.kubernetes.io/autoupdate: "false"` | not changed |
//! | lacks rules, subjects, labels, annotations or aggregation selectors | missing parts are added; nothing is removed |
//! | binding refers to another role | deleted and created again |
//!
//! Before that, [`SPLIT_BINDING`] is created as a copy if only the binding exists from which it was split off.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use listwatch_access::rbac::{PolicyRule, RbacKind, uncovered_rules};
use listwatch_json::{Map, Value, json};
use listwatch_meta::Status;
use listwatch_write::{Removal, Writer};

use super::feed::resource;
use super::policy::{self, DefaultObject};
use crate::objects::{get, is_conflict, write};

/// The health check of the default roles and bindings, with the name from kube-apiserver.
pub const CHECK: &str = "poststarthook/rbac/bootstrap-roles";

/// A binding of a former release, and the binding that was split off it in 1.14 (`clusterRoleBindingsToSplit`).
const SPLIT_BINDING: (&str, &str) = ("system:discovery", "system:public-info-viewer");

/// The field manager of the objects.
const USER_AGENT: &str = "kube-apiserver";
/// The annotation with which users disable updates of an object.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// Number of objects that are written concurrently.
const WRITES_AT_ONCE: usize = 64;
/// Maximum number of attempts to write one object after conflicts with other writers.
const ATTEMPTS_MAX: usize = 5;
/// Time limit for retries when the server starts. kube-apiserver has the same limit.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Delay between two attempts.
const RETRY: Duration = Duration::from_secs(1);

/// Creates and amends the default roles and bindings. A failing store is retried for [`RETRY_MAX`]. The health check
/// [`CHECK`] fails from a failure to the next success.
///
/// # Errors
/// The last error of the store or of a write.
pub async fn ensure_policy(writer: &Arc<Writer>) -> Result<(), Status> {
    let deadline = tokio::time::Instant::now() + RETRY_MAX;
    loop {
        let outcome = ensure_once(writer).await;
        let problem = outcome.as_ref().err().map(|status| status.message.clone());
        writer.backend().bootstrap().set(CHECK, problem);
        match outcome {
            Err(status) if tokio::time::Instant::now() + RETRY < deadline => {
                tracing::warn!(%status, "cannot reconcile the default roles and bindings yet");
                tokio::time::sleep(RETRY).await;
            }
            outcome => return outcome,
        }
    }
}

async fn ensure_once(writer: &Arc<Writer>) -> Result<(), Status> {
    ensure_split_binding(writer).await?;
    // A store on disk or across a network orders concurrent writes in one batch.
    let writes = futures_util::stream::iter(policy::all())
        .map(|object| async move { ensure(writer, &object).await })
        .buffer_unordered(WRITES_AT_ONCE);
    writes.try_collect::<()>().await
}

/// Creates the second binding of [`SPLIT_BINDING`] with the subjects, labels and annotations of the first, if only the
/// first exists. So a change of users to the first binding stays in effect (`primeSplitClusterRoleBindings`).
async fn ensure_split_binding(writer: &Arc<Writer>) -> Result<(), Status> {
    let kind = RbacKind::ClusterRoleBinding;
    let Some(resource) = resource(writer, kind) else { return Ok(()) };
    let (former, name) = SPLIT_BINDING;
    let Some(former) = get(writer, &resource.key(None, former)?).await? else { return Ok(()) };
    if get(writer, &resource.key(None, name)?).await?.is_some() {
        return Ok(());
    }
    let default = policy::all().into_iter().find(|object| object.kind == kind && object.name == name);
    let Some(default) = default else { return Ok(()) };
    match write(writer, &resource, None, None, &split_off(&former, default.body()), USER_AGENT).await {
        // Another server was faster.
        Err(status) if is_conflict(&status) => Ok(()),
        written => written,
    }
}

/// Replaces subjects, labels and annotations of a default binding with those of a stored one.
fn split_off(former: &Map, mut binding: Value) -> Value {
    let part = |value: Option<&Value>| value.cloned().unwrap_or(Value::Null);
    binding["subjects"] = part(former.get("subjects"));
    for name in ["labels", "annotations"] {
        binding["metadata"][name] = part(former.get("metadata").and_then(|metadata| metadata.get(name)));
    }
    binding
}

async fn ensure(writer: &Arc<Writer>, default: &DefaultObject) -> Result<(), Status> {
    let Some(resource) = resource(writer, default.kind) else { return Ok(()) };
    let key = resource.key(default.namespace, &default.name)?;
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS_MAX {
        let written = match get(writer, &key).await? {
            None => write(writer, &resource, default.namespace, None, &default.body(), USER_AGENT).await,
            Some(stored) => match reconciled(default, &stored)? {
                Reconciled::Same => return Ok(()),
                Reconciled::Changed(object) => {
                    let object = Value::Object(object);
                    write(writer, &resource, default.namespace, Some(&default.name), &object, USER_AGENT).await
                }
                Reconciled::OtherRole => {
                    if writer.remove(&resource, &key).await? == Removal::Held {
                        let name = &default.name;
                        return Err(Status::internal(format!("{name} refers to another role, and finalizers hold it")));
                    }
                    continue;
                }
            },
        };
        match written {
            // Another server or a user was faster.
            Err(status) if is_conflict(&status) => outcome = Err(status),
            written => return written,
        }
    }
    outcome
}

/// The result of comparing a default object with the stored object.
#[derive(Debug, PartialEq)]
enum Reconciled {
    /// The object has all parts, or its annotation disables updates.
    Same,
    /// Parts were missing. Contains the object with the added parts.
    Changed(Map),
    /// The binding refers to another role.
    OtherRole,
}

fn reconciled(default: &DefaultObject, stored: &Map) -> Result<Reconciled, Status> {
    let expected = default.body();
    let annotation = stored.get("metadata").and_then(|metadata| metadata.get("annotations")?.get(AUTOUPDATE));
    if annotation.and_then(Value::as_str) == Some("false") {
        return Ok(Reconciled::Same);
    }
    let mut object = stored.clone();
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    for part in ["labels", "annotations"] {
        let Some(wanted) = expected["metadata"][part].as_object() else { continue };
        let present = &mut metadata[part];
        if !present.is_object() {
            *present = json!({});
        }
        for (name, value) in wanted {
            // A value that users changed stays (`merge` in role/reconcile_role.go).
            if present.get(name).is_none() {
                present[name] = value.clone();
            }
        }
    }
    match default.kind {
        RbacKind::ClusterRole | RbacKind::Role => {
            // The controller of aggregation writes the rules of aggregated roles.
            match expected.get("aggregationRule") {
                Some(wanted) => add_missing(&mut object, "aggregationRule", "clusterRoleSelectors", wanted),
                None => add_rules(&mut object, &expected)?,
            }
        }
        RbacKind::ClusterRoleBinding | RbacKind::RoleBinding => {
            let same_role =
                |field: &str| object.get("roleRef").and_then(|role| role.get(field)) == expected["roleRef"].get(field);
            if !(same_role("kind") && same_role("name")) {
                return Ok(Reconciled::OtherRole);
            }
            add_subjects(&mut object, &expected);
        }
    }
    Ok(if object == *stored { Reconciled::Same } else { Reconciled::Changed(object) })
}

/// Adds the missing elements to the list `object[field][list]`.
fn add_missing(object: &mut Map, field: &str, list: &str, wanted: &Value) {
    let present = object.entry(field).or_insert_with(|| json!({}));
    if !present.is_object() {
        *present = json!({});
    }
    let present = &mut present[list];
    if !present.is_array() {
        *present = json!([]);
    }
    let (Some(present), Some(wanted)) = (present.as_array_mut(), wanted[list].as_array()) else { return };
    for one in wanted {
        if !present.contains(one) {
            present.push(one.clone());
        }
    }
}

/// Adds the permissions that the stored rules do not cover.
fn add_rules(object: &mut Map, expected: &Value) -> Result<(), Status> {
    let stored = object.get("rules").filter(|rules| !rules.is_null()).cloned().unwrap_or_else(|| json!([]));
    let held: Vec<PolicyRule> = listwatch_json::from_value(stored).map_err(Status::internal)?;
    let wanted: Vec<PolicyRule> = listwatch_json::from_value(expected["rules"].clone()).map_err(Status::internal)?;
    let missing = uncovered_rules(&held, &wanted).map_err(Status::internal)?;
    if missing.is_empty() {
        return Ok(());
    }
    let rules = held.into_iter().chain(missing).map(|rule| listwatch_json::to_value(rule).map_err(Status::internal));
    object.insert("rules", Value::Array(rules.collect::<Result<_, _>>()?));
    Ok(())
}

fn add_subjects(object: &mut Map, expected: &Value) {
    let same = |one: &Value, other: &Value| {
        ["kind", "name", "namespace"]
            .iter()
            .all(|field| one[field].as_str().unwrap_or_default() == other[field].as_str().unwrap_or_default())
    };
    let wanted = expected["subjects"].as_array().cloned().unwrap_or_default();
    let present = object.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
    let missing: Vec<Value> =
        wanted.into_iter().filter(|wanted| !present.iter().any(|present| same(present, wanted))).collect();
    if !missing.is_empty() {
        object.insert("subjects", present.into_iter().chain(missing).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default(name: &str, kind: RbacKind) -> DefaultObject {
        policy::all().into_iter().find(|one| one.name == name && one.kind == kind).expect("it is a default")
    }

    fn check(kind: RbacKind, name: &str, change: impl FnOnce(&mut Value), expected: impl FnOnce(Reconciled)) {
        let default = default(name, kind);
        let mut stored = default.body();
        change(&mut stored);
        expected(reconciled(&default, stored.as_object().unwrap()).unwrap());
    }

    fn changed(found: Reconciled) -> Value {
        match found {
            Reconciled::Changed(object) => Value::Object(object),
            other => panic!("expected a change, found {other:?}"),
        }
    }

    #[test]
    fn missing_default_rules_are_added_and_extra_rules_are_kept() {
        let kind = RbacKind::ClusterRole;
        check(kind, "system:basic-user", |_| {}, |found| assert_eq!(found, Reconciled::Same));
        let own = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        let with_own = |role: &mut Value| role["rules"].as_array_mut().unwrap().push(own.clone());
        check(kind, "system:basic-user", with_own, |found| assert_eq!(found, Reconciled::Same));
        check(
            kind,
            "system:basic-user",
            |role| role["rules"] = json!([own]),
            |found| {
                let rules = &changed(found)["rules"];
                assert_eq!(rules[0], own);
                assert_eq!(rules.as_array().unwrap().len(), 4, "{rules}");
            },
        );
        check(
            kind,
            "system:basic-user",
            |role| role["rules"] = Value::Null,
            |found| {
                assert_eq!(changed(found)["rules"].as_array().unwrap().len(), 3);
            },
        );
    }

    #[test]
    fn rbac_object_with_autoupdate_false_is_not_changed() {
        let frozen = |role: &mut Value| {
            role["rules"] = json!([]);
            role["metadata"]["annotations"][AUTOUPDATE] = json!("false");
        };
        check(RbacKind::ClusterRole, "cluster-admin", frozen, |found| assert_eq!(found, Reconciled::Same));
    }

    #[test]
    fn missing_subjects_labels_and_selectors_are_added() {
        let kind = RbacKind::ClusterRoleBinding;
        let user = json!({"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"});
        check(
            kind,
            "cluster-admin",
            |binding| binding["subjects"] = json!([user]),
            |found| {
                let subjects = &changed(found)["subjects"];
                assert_eq!(
                    (subjects[0]["name"].as_str(), subjects[1]["name"].as_str()),
                    (Some("u"), Some("system:masters"))
                );
            },
        );
        let other = |binding: &mut Value| binding["roleRef"]["name"] = json!("view");
        check(kind, "cluster-admin", other, |found| assert_eq!(found, Reconciled::OtherRole));
        let bare = |role: &mut Value| role["metadata"] = json!({"name": "view"});
        check(RbacKind::ClusterRole, "view", bare, |found| {
            let role = changed(found);
            assert_eq!(role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"], "true");
            assert_eq!(role["metadata"]["annotations"][AUTOUPDATE], "true");
        });
        check(
            RbacKind::ClusterRole,
            "view",
            |role| role["aggregationRule"] = Value::Null,
            |found| {
                let selectors = &changed(found)["aggregationRule"]["clusterRoleSelectors"];
                assert_eq!(selectors[0]["matchLabels"], json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"}));
            },
        );
    }
}
