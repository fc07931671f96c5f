//! Scenario tests and random histories on the in-memory store with a paused clock. A sleep of two minutes ends after
//! all pending jobs, so a test observes the collector's final state.

mod random;
mod unreadable;

use listwatch_storage::MemoryStorage;

use super::*;
use listwatch_write::testing;

/// Longer than the maximum retry delay of a job.
const REST: Duration = Duration::from_secs(120);

/// A server without HTTP, the namespaces `a` and `b`, and the collectors of several servers on one store.
struct World {
    writer: Arc<Writer>,
    collectors: JoinSet<()>,
}

impl World {
    async fn new(collectors: usize) -> Self {
        let storage = MemoryStorage::new();
        let new = || Arc::new(testing::writer(storage.clone()));
        let mut world = World { writer: new(), collectors: JoinSet::new() };
        for name in ["a", "b"] {
            world.write("POST /api/v1/namespaces", json!({"metadata": {"name": name}})).await.unwrap();
        }
        for _ in 0..collectors {
            world.collectors.spawn(run(new()));
        }
        world
    }

    /// Sends a request of the form `<method> <path>`.
    async fn write(&self, line: &str, body: Value) -> Result<(), Status> {
        let (method, path) = line.split_once(' ').unwrap();
        let registry = self.writer.backend().registry();
        let query = Query::default();
        let found = testing::address(&registry, method, path);
        let request = WriteRequest {
            verb: found.verb,
            resource: &found.resource,
            namespace: found.namespace,
            name: found.name,
            subresource: None,
            query: &query,
            content_type: (found.verb == WriteVerb::Patch).then_some("application/merge-patch+json"),
            user: UserInfo::admin(),
            user_agent: None,
            body: if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) },
        };
        self.writer.write(request).await.map(drop)
    }

    async fn raw(&self, path: &str) -> Option<Bytes> {
        let (found, _) = self.writer.backend().storage().get(&Key::from_path(path).unwrap()).await.unwrap();
        found.map(|found| found.value)
    }

    async fn stored(&self, path: &str) -> Option<Value> {
        self.raw(path).await.map(|value| serde_json::from_slice(&value).unwrap())
    }

    /// Returns an owner reference to the stored object at `path`.
    async fn owner(&self, path: &str, blocks: bool) -> Value {
        reference(&self.stored(path).await.unwrap(), blocks)
    }

    /// Creates a ConfigMap in namespace `a` with these owner references.
    async fn map(&self, name: &str, owners: &[Value]) {
        let body = json!({"metadata": {"name": name, "ownerReferences": owners}});
        self.write("POST /api/v1/namespaces/a/configmaps", body).await.unwrap();
    }

    /// Returns the ConfigMaps of namespace `a` with their deletion mark, owners and finalizers, e.g.
    /// `a!<owner:orphan`.
    async fn maps(&self) -> String {
        let query = ListQuery { range: KeyRange::namespace("configmaps", "a"), at: None, limit: 0 };
        let page = self.writer.backend().storage().list(query).await.unwrap();
        let show = |item: &KeyValue| {
            let object: Value = serde_json::from_slice(&item.value).unwrap();
            let names = |list: &Value, field: Option<&str>| {
                let items = list.as_array().into_iter().flatten();
                let name = |item: &Value| field.map_or(item, |field| &item[field]).as_str().unwrap().to_owned();
                items.map(name).collect::<Vec<_>>().join("+")
            };
            let metadata = &object["metadata"];
            let deleted = if metadata["deletionTimestamp"].is_null() { "" } else { "!" };
            let owners = names(&metadata["ownerReferences"], Some("name"));
            let finalizers = names(&metadata["finalizers"], None);
            let about = |sign: &str, text: String| if text.is_empty() { text } else { format!("{sign}{text}") };
            format!("{}{deleted}{}{}", item.key.name(), about("<", owners), about(":", finalizers))
        };
        page.items.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    async fn delete(&self, name: &str, policy: &str) {
        let line = format!("DELETE /api/v1/namespaces/a/configmaps/{name}");
        self.write(&line, json!({"propagationPolicy": policy})).await.unwrap();
    }

    /// Waits until no work is left, then compares the ConfigMaps with `expected`.
    async fn check(&self, expected: &str) {
        tokio::time::sleep(REST).await;
        assert_eq!(self.maps().await, expected);
    }
}

/// Returns an owner reference to this object.
fn reference(object: &Value, blocks: bool) -> Value {
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "blockOwnerDeletion": blocks})
}

const MAPS: &str = "/configmaps/a";

#[tokio::test(start_paused = true)]
async fn background_deletion_deletes_dependents_without_other_owners() {
    let world = World::new(1).await;
    world.map("owner", &[]).await;
    let owner = world.owner(&format!("{MAPS}/owner"), false).await;
    world.map("child", std::slice::from_ref(&owner)).await;
    let child = world.owner(&format!("{MAPS}/child"), false).await;
    world.map("grandchild", std::slice::from_ref(&child)).await;
    world.map("other", &[]).await;
    let other = world.owner(&format!("{MAPS}/other"), false).await;
    world.map("shared", &[owner, other]).await;
    world.check("child<owner grandchild<child other owner shared<owner+other").await;
    world.delete("owner", "Background").await;
    world.check("other shared<other").await;
    // A dependent created after the deletion of its owner is deleted as well.
    world.map("late", &[child]).await;
    world.check("other shared<other").await;
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_waits_only_for_blocking_dependents() {
    let world = World::new(1).await;
    world.map("owner", &[]).await;
    let path = format!("{MAPS}/owner");
    world.map("blocks", &[world.owner(&path, true).await]).await;
    world.map("does-not", &[world.owner(&path, false).await]).await;
    let hold = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    for name in ["blocks", "does-not"] {
        let line = format!("PATCH /api/v1/namespaces/a/configmaps/{name}");
        world.write(&line, hold(json!(["x.io/hold"]))).await.unwrap();
    }
    world.map("leaf", &[world.owner(&format!("{MAPS}/blocks"), true).await]).await;
    world.delete("owner", "Foreground").await;
    world.check("blocks!<owner:x.io/hold does-not!<owner:x.io/hold owner!:foregroundDeletion").await;
    world.write("PATCH /api/v1/namespaces/a/configmaps/blocks", hold(json!(null))).await.unwrap();
    world.check("does-not!<owner:x.io/hold").await;
}

#[tokio::test(start_paused = true)]
async fn orphan_deletion_keeps_dependents_and_removes_their_references() {
    let world = World::new(1).await;
    world.map("owner", &[]).await;
    world.map("other", &[]).await;
    let owner = world.owner(&format!("{MAPS}/owner"), true).await;
    world.map("child", std::slice::from_ref(&owner)).await;
    world.map("shared", &[owner.clone(), world.owner(&format!("{MAPS}/other"), true).await]).await;
    for number in 0..600 {
        world.map(&format!("z{number}"), std::slice::from_ref(&owner)).await;
    }
    world.delete("owner", "Orphan").await;
    tokio::time::sleep(REST).await;
    let left = world.maps().await;
    assert!(left.starts_with("child other shared<other z0 z1 z10 "), "{left}");
    assert_eq!(left.matches(" z").count(), 600, "an orphan was lost");
}

#[tokio::test(start_paused = true)]
async fn deleting_a_member_of_an_ownership_cycle_deletes_the_whole_cycle() {
    for (policy, also) in [("Background", None), ("Foreground", None), ("Foreground", Some("b"))] {
        let world = World::new(1).await;
        for name in ["a", "b", "c"] {
            world.map(name, &[]).await;
        }
        for (name, owner) in [("b", "a"), ("c", "b"), ("a", "c")] {
            let owner = world.owner(&format!("{MAPS}/{owner}"), true).await;
            let line = format!("PATCH /api/v1/namespaces/a/configmaps/{name}");
            world.write(&line, json!({"metadata": {"ownerReferences": [owner]}})).await.unwrap();
        }
        world.check("a<c b<a c<b").await;
        world.delete("a", policy).await;
        if let Some(also) = also {
            world.delete(also, policy).await;
        }
        world.check("").await;
    }
}

#[tokio::test(start_paused = true)]
async fn dependent_with_a_mismatched_owner_reference_is_deleted() {
    let world = World::new(1).await;
    let body = json!({"metadata": {"name": "elsewhere"}});
    world.write("POST /api/v1/namespaces/b/configmaps", body).await.unwrap();
    world.map("owner", &[]).await;
    let right = world.owner(&format!("{MAPS}/owner"), false).await;
    let with = |field: &str, value: &str| {
        let mut owner = right.clone();
        owner[field] = json!(value);
        owner
    };
    world.map("right", std::slice::from_ref(&right)).await;
    world.map("wrong-kind", &[with("kind", "Secret")]).await;
    world.map("wrong-name", &[with("name", "ownr")]).await;
    world.map("wrong-uid", &[with("uid", "who")]).await;
    world.map("wrong-group", &[with("apiVersion", "apps/v1")]).await;
    world.map("wrong-namespace", &[world.owner("/configmaps/b/elsewhere", false).await]).await;
    world.map("by-the-cluster", &[world.owner("/namespaces/b", false).await]).await;
    // An owner of an unknown kind cannot be proven absent, so its dependent stays.
    world.check("by-the-cluster<b owner right<owner wrong-group<owner").await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_dependent_of_a_namespaced_owner_is_not_deleted() {
    let world = World::new(1).await;
    world.map("owner", &[]).await;
    let owner = world.owner(&format!("{MAPS}/owner"), true).await;
    let body = json!({"metadata": {"name": "n", "ownerReferences": [owner]}});
    world.write("POST /api/v1/nodes", body).await.unwrap();
    world.delete("owner", "Background").await;
    tokio::time::sleep(REST).await;
    assert!(world.stored("/minions/n").await.is_some(), "an invalid reference deletes nothing");
}

#[tokio::test(start_paused = true)]
async fn dependent_with_an_owner_in_another_namespace_gets_a_warning_event() {
    let world = World::new(1).await;
    world.map("a-keeper", &[]).await;
    let keeper = world.owner(&format!("{MAPS}/a-keeper"), false).await;
    // The valid reference tells the collector the namespace of this owner.
    world.map("right", std::slice::from_ref(&keeper)).await;
    tokio::time::sleep(REST).await;
    let body = json!({"metadata": {"name": "x", "ownerReferences": [keeper.clone()]}});
    world.write("POST /api/v1/namespaces/b/configmaps", body.clone()).await.unwrap();
    tokio::time::sleep(REST).await;
    assert_eq!(world.stored("/configmaps/b/x").await, None, "its owner is not there");
    let query = ListQuery { range: KeyRange::namespace("events", "b"), at: None, limit: 0 };
    let events = world.writer.backend().storage().list(query).await.unwrap().items;
    let event: Value = serde_json::from_slice(&events.first().expect("an event").value).unwrap();
    assert_eq!((event["reason"].as_str(), event["type"].as_str()), (Some("OwnerRefInvalidNamespace"), Some("Warning")));
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: b, name: a-keeper, uid: {}] does not exist in namespace \"b\"",
        keeper["uid"].as_str().unwrap()
    );
    assert_eq!(event["message"], json!(message));
}

#[tokio::test(start_paused = true)]
async fn collector_started_after_a_foreground_deletion_completes_it() {
    let mut world = World::new(0).await;
    world.map("owner", &[]).await;
    world.map("child", &[world.owner(&format!("{MAPS}/owner"), true).await]).await;
    world.delete("owner", "Foreground").await;
    world.check("child<owner owner!:foregroundDeletion").await;
    let writer = Arc::clone(&world.writer);
    world.collectors.spawn(run(writer));
    world.check("").await;
}

#[tokio::test(start_paused = true)]
async fn deleted_dependent_with_the_orphan_finalizer_orphans_its_own_dependents() {
    let world = World::new(1).await;
    world.map("owner", &[]).await;
    let owner = world.owner(&format!("{MAPS}/owner"), false).await;
    let body = json!({"metadata": {"name": "child", "ownerReferences": [owner], "finalizers": ["orphan"]}});
    world.write("POST /api/v1/namespaces/a/configmaps", body).await.unwrap();
    world.map("grandchild", &[world.owner(&format!("{MAPS}/child"), false).await]).await;
    world.delete("owner", "Background").await;
    world.check("grandchild").await;
}

#[test]
fn decide_dependent_deletes_only_if_every_owner_is_absent_or_waiting() {
    use OwnerState::{Absent, Invalid, Solid, Unknown, Waiting};
    for (owner_states, owns, expected) in [
        (&[][..], false, DependentAction::Leave),
        (&[Solid], true, DependentAction::Leave),
        (&[Absent], true, DependentAction::Delete),
        (&[Absent, Solid], false, DependentAction::Unlink(vec![0])),
        (&[Waiting, Solid, Absent], false, DependentAction::Unlink(vec![0, 2])),
        (&[Waiting, Absent], false, DependentAction::Delete),
        (&[Waiting, Absent], true, DependentAction::Foreground),
        (&[Absent, Unknown], true, DependentAction::Again),
        (&[Absent, Invalid], true, DependentAction::Leave),
        (&[Invalid, Unknown], true, DependentAction::Leave),
    ] {
        assert_eq!(decide_dependent(owner_states, owns), expected, "{owner_states:?} owns: {owns}");
    }
}

#[test]
fn gc_graph_stores_only_objects_with_owner_references() {
    let mut graph = Graph::default();
    graph.begin_sync();
    let facts = |uid: usize, owner: Option<usize>| Facts {
        uid: uid.to_string(),
        owners: owner
            .map(|owner| OwnerRef {
                api_version: "apps/v1".to_owned(),
                kind: "ReplicaSet".to_owned(),
                name: format!("r{owner}"),
                uid: owner.to_string(),
                blocks: true,
            })
            .into_iter()
            .collect(),
        ..Facts::default()
    };
    let key = |number: usize| Key::new("pods", Some("a"), &format!("p{number}")).unwrap();
    for number in 0..1_000 {
        graph.handle_put(&key(number), "a", facts(number, None));
    }
    assert_eq!(graph.len(), (0, 0), "objects without owners are not remembered");
    for number in 0..1_000 {
        graph.handle_put(&key(number), "a", facts(number, Some(2_000 + number % 10)));
    }
    assert_eq!(graph.len(), (1_000, 10), "dependents share what they say of an owner");
    for number in 0..1_000 {
        match number % 2 {
            0 => graph.handle_delete(&key(number), None),
            _ => graph.handle_put(&key(number), "a", facts(number, None)),
        }
    }
    assert_eq!(graph.len(), (0, 0), "and are forgotten when they have no owners");
}
