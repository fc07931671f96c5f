//! Tests the RBAC controllers on one store.

use std::sync::Arc;
use std::time::Duration;

use listwatch_access::Attributes;
use listwatch_access::rbac::{RbacKind, RbacState};
use listwatch_json::{Value, json};
use listwatch_meta::{Key, UserInfo};
use listwatch_storage::{MemoryStorage, Storage};
use listwatch_write::{Amendment, Writer, testing};

use super::feed::resource;
use super::*;
use crate::namespaces;
use crate::objects::write;

const ROLES: &str = "/clusterroles";
const REST: Duration = Duration::from_secs(3);

async fn writer(storage: &Arc<MemoryStorage>) -> Arc<Writer> {
    let writer = Arc::new(testing::writer(storage.clone()));
    namespaces::ensure_system_namespaces(&writer).await.unwrap();
    writer
}

async fn stored(storage: &MemoryStorage, path: &str) -> Option<Value> {
    let (found, _) = storage.get(&Key::from_path(path).unwrap()).await.unwrap();
    found.map(|found| serde_json::from_slice(&found.value).unwrap())
}

async fn create(writer: &Arc<Writer>, kind: RbacKind, namespace: Option<&str>, object: Value) {
    let resource = resource(writer, kind).unwrap();
    write(writer, &resource, namespace, None, &object, "test").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn default_rbac_policy_is_created_once_and_deleted_roles_are_recreated_at_the_next_start() {
    let storage = MemoryStorage::new();
    let server = writer(&storage).await;
    ensure_policy(&server).await.unwrap();
    aggregate(&server).await.unwrap();
    let view = stored(&storage, &format!("{ROLES}/view")).await.unwrap();
    assert_eq!(view["rules"].as_array().unwrap().len(), 12, "{view}");
    let admin = stored(&storage, &format!("{ROLES}/admin")).await.unwrap();
    let has = |resource: &str| admin["rules"].to_string().contains(&format!("\"{resource}\""));
    assert!(has("rolebindings") && has("pods/exec") && has("pods/log"), "{admin}");
    assert_eq!(admin["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
    let reader = "/roles/kube-system/extension-apiserver-authentication-reader";
    assert!(stored(&storage, reader).await.is_some());
    // A second start writes nothing.
    let revision = storage.current_revision().await.unwrap();
    ensure_policy(&server).await.unwrap();
    aggregate(&server).await.unwrap();
    assert_eq!(storage.current_revision().await.unwrap(), revision);
    // Deleted objects return with the next start.
    let key = Key::from_path(reader).unwrap();
    server.remove(&resource(&server, RbacKind::Role).unwrap(), &key).await.unwrap();
    ensure_policy(&server).await.unwrap();
    assert!(stored(&storage, reader).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn two_servers_can_reconcile_rbac_on_one_store_at_once() {
    let storage = MemoryStorage::new();
    let (one, other) = (writer(&storage).await, writer(&storage).await);
    let (first, second) = tokio::join!(ensure_policy(&one), ensure_policy(&other));
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    let (first, second) = tokio::join!(aggregate(&one), aggregate(&other));
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
}

#[tokio::test(start_paused = true)]
async fn binding_to_another_role_is_deleted_and_created_again() {
    let storage = MemoryStorage::new();
    let server = writer(&storage).await;
    let binding = json!({"metadata": {"name": "system:basic-user"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "mallory"}]});
    create(&server, RbacKind::ClusterRoleBinding, None, binding).await;
    ensure_policy(&server).await.unwrap();
    let found = stored(&storage, "/clusterrolebindings/system:basic-user").await.unwrap();
    assert_eq!(found["roleRef"]["name"], "system:basic-user");
    assert_eq!(found["subjects"].as_array().unwrap().len(), 1);
    assert_eq!(found["subjects"][0]["name"], "system:authenticated");
}

#[tokio::test(start_paused = true)]
async fn missing_public_info_viewer_inherits_the_changes_of_the_binding_system_discovery() {
    const VIEWER: &str = "/clusterrolebindings/system:public-info-viewer";
    let storage = MemoryStorage::new();
    let server = writer(&storage).await;
    let group = |name: &str| json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": name});
    let annotations = json!({"rbac.authorization.kubernetes.io/autoupdate": "false", "example.com/changed": "yes"});
    let discovery = json!({
        "metadata": {"name": "system:discovery", "annotations": annotations, "labels": {"a": "b"}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:discovery"},
        "subjects": [group("system:authenticated")],
    });
    create(&server, RbacKind::ClusterRoleBinding, None, discovery).await;
    ensure_policy(&server).await.unwrap();
    let viewer = stored(&storage, VIEWER).await.unwrap();
    assert_eq!(viewer["roleRef"]["name"], "system:public-info-viewer");
    assert_eq!(viewer["subjects"], json!([group("system:authenticated")]), "{viewer}");
    assert_eq!(viewer["metadata"]["annotations"], annotations);
    assert_eq!(viewer["metadata"]["labels"], json!({"a": "b"}));
    // A binding that exists is not changed.
    let revision = storage.current_revision().await.unwrap();
    ensure_policy(&server).await.unwrap();
    assert_eq!(storage.current_revision().await.unwrap(), revision);
}

#[tokio::test(start_paused = true)]
async fn binding_to_another_role_with_finalizers_is_an_error_and_fails_the_health_check() {
    let storage = MemoryStorage::new();
    let server = writer(&storage).await;
    let binding = json!({"metadata": {"name": "system:basic-user", "finalizers": ["example.com/hold"]},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    create(&server, RbacKind::ClusterRoleBinding, None, binding).await;
    let outcome = ensure_policy(&server).await.map_err(|status| status.message);
    let error = "Internal error occurred: system:basic-user refers to another role, and finalizers hold it".to_owned();
    assert_eq!(outcome, Err(error.clone()));
    assert_eq!(server.backend().bootstrap().get(CHECK), Some(error), "the health check fails");
    let bindings = resource(&server, RbacKind::ClusterRoleBinding).unwrap();
    let key = bindings.key(None, "system:basic-user").unwrap();
    server.amend(&bindings, &key, |_| Amendment::Remove).await.unwrap();
    ensure_policy(&server).await.unwrap();
    assert_eq!(server.backend().bootstrap().get(CHECK), None, "the health check passes");
}

#[tokio::test(start_paused = true)]
async fn aggregated_role_is_updated_when_a_selected_role_changes() {
    let storage = MemoryStorage::new();
    let server = writer(&storage).await;
    tokio::spawn(run_aggregation(Arc::clone(&server)));
    let sum = json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]}});
    create(&server, RbacKind::ClusterRole, None, sum).await;
    let part = json!({"metadata": {"name": "part", "labels": {"to": "sum"}},
        "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
    create(&server, RbacKind::ClusterRole, None, part).await;
    tokio::time::sleep(REST).await;
    let found = stored(&storage, &format!("{ROLES}/sum")).await.unwrap();
    assert_eq!(found["rules"], json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]));
    let managers = found["metadata"]["managedFields"].to_string();
    assert!(managers.contains("clusterrole-aggregation-controller"), "{managers}");
    let key = Key::from_path(&format!("{ROLES}/part")).unwrap();
    server.remove(&resource(&server, RbacKind::ClusterRole).unwrap(), &key).await.unwrap();
    tokio::time::sleep(REST).await;
    let found = stored(&storage, &format!("{ROLES}/sum")).await.unwrap();
    assert_eq!(found["rules"].as_array().map(Vec::len), Some(0), "{found}");
}

#[tokio::test(start_paused = true)]
async fn cycle_of_aggregated_roles_converges_to_the_union_of_rules() {
    let storage = MemoryStorage::new();
    let server = writer(&storage).await;
    tokio::spawn(run_aggregation(Arc::clone(&server)));
    let rule = |resource: &str| json!({"verbs": ["get"], "apiGroups": [""], "resources": [resource]});
    for (name, labels, selects) in [
        ("one", json!({"of": "two"}), Some("one")),
        ("two", json!({"of": "one"}), Some("two")),
        ("self", json!({"of": "self"}), Some("self")),
        ("part", json!({"of": "one"}), None),
    ] {
        let mut role = json!({"metadata": {"name": name, "labels": labels}});
        match selects {
            Some(of) => role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"of": of}}]}),
            None => role["rules"] = json!([rule("pods")]),
        }
        create(&server, RbacKind::ClusterRole, None, role).await;
    }
    tokio::time::sleep(REST).await;
    let rules = async |name: &str| stored(&storage, &format!("{ROLES}/{name}")).await.unwrap()["rules"].clone();
    for name in ["one", "two"] {
        assert_eq!(rules(name).await, json!([rule("pods")]), "{name}");
    }
    assert_eq!(rules("self").await.as_array().map_or(0, Vec::len), 0, "a role that selects itself has no rules");
    let revision = storage.current_revision().await.unwrap();
    tokio::time::sleep(20 * REST).await;
    assert_eq!(storage.current_revision().await.unwrap(), revision, "the cycle writes for ever");
}

#[tokio::test(start_paused = true)]
async fn rbac_state_is_updated_when_stored_objects_change() {
    let storage = MemoryStorage::new();
    let server = writer(&storage).await;
    let state = Arc::new(RbacState::default());
    let user = UserInfo { username: "u".to_owned(), ..UserInfo::default() };
    let attributes = Attributes { namespace: "default", ..Attributes::resource(&user, "get", "", "pods") };
    let role =
        json!({"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
    create(&server, RbacKind::Role, Some("default"), role).await;
    load(&server, &state).await.unwrap();
    assert!(state.is_synced() && !state.authorize(&attributes).is_allowed());
    tokio::spawn(follow(Arc::clone(&server), Arc::clone(&state)));
    let binding = json!({"metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "u"}]});
    create(&server, RbacKind::RoleBinding, Some("default"), binding).await;
    tokio::time::sleep(REST).await;
    assert!(state.authorize(&attributes).is_allowed());
    let key = Key::from_path("/roles/default/r").unwrap();
    server.remove(&resource(&server, RbacKind::Role).unwrap(), &key).await.unwrap();
    tokio::time::sleep(REST).await;
    let refused = state.authorize(&attributes);
    assert_eq!(
        (refused.is_allowed(), &*refused.reason),
        (false, "RBAC: role.rbac.authorization.k8s.io \"r\" not found")
    );
}
