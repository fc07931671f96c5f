//! Tests unreadable values: the collector does not change their owners and dependents, and `/readyz` reports the
//! values.

use super::*;

/// Unreadable values: protobuf from kube-apiserver, encrypted, truncated, without metadata, and empty.
pub(super) const UNREADABLE: [&str; 5] =
    ["k8s\0\n\x0f\n\x02v1\x12\tConfigMap", "k8s:enc:aescbc:v1:key1:\u{1}\u{2}", r#"{"metadata":{"uid":"#, "{}", ""];

impl World {
    /// Overwrites a stored value directly in the store. Returns the previous value.
    pub(super) async fn overwrite(&self, path: &str, value: impl Into<Bytes>) -> Bytes {
        let key = Key::from_path(path).unwrap();
        let (storage, value) = (self.writer.backend().storage(), value.into());
        loop {
            let (found, _) = storage.get(&key).await.unwrap();
            let found = found.expect("something is there");
            if storage.update(&key, found.modified, value.clone(), None).await.is_ok() {
                return found.value;
            }
        }
    }

    async fn names(&self) -> Vec<String> {
        let query = ListQuery { range: KeyRange::namespace("configmaps", "a"), at: None, limit: 0 };
        let page = self.writer.backend().storage().list(query).await.unwrap();
        page.items.iter().map(|item| item.key.name().to_owned()).collect()
    }

    /// Starts a collector on this server. Other collectors report their problems to their own backends.
    fn start_own_collector(&mut self) {
        self.collectors.spawn(run(Arc::clone(&self.writer)));
    }
}

#[tokio::test(start_paused = true)]
async fn dependents_of_an_unreadable_owner_are_not_deleted() {
    for unreadable in UNREADABLE {
        let mut world = World::new(1).await;
        world.start_own_collector();
        world.map("owner", &[]).await;
        let owner = world.owner(&format!("{MAPS}/owner"), false).await;
        world.map("before", std::slice::from_ref(&owner)).await;
        world.check("before<owner owner").await;
        assert_eq!(world.writer.backend().problems().text(), None);
        let value = world.overwrite(&format!("{MAPS}/owner"), unreadable).await;
        // One reference is created while the owner is unreadable; the other refers to an absent owner.
        world.map("after", std::slice::from_ref(&owner)).await;
        let mut gone = owner.clone();
        (gone["name"], gone["uid"]) = (json!("gone"), json!("gone"));
        world.map("of-gone", &[gone]).await;
        tokio::time::sleep(REST).await;
        assert_eq!(world.names().await, ["after", "before", "of-gone", "owner"], "{unreadable:?}");
        assert_eq!(
            world.writer.backend().problems().text().as_deref(),
            Some(
                "garbage collector: leaves these kinds alone: cannot read 1 of the stored values of configmaps; the first is /configmaps/a/owner"
            ),
        );
        world.overwrite(&format!("{MAPS}/owner"), value).await;
        world.check("after<owner before<owner owner").await;
        assert_eq!(world.writer.backend().problems().text(), None);
        world.delete("owner", "Background").await;
        world.check("").await;
    }
}

#[tokio::test(start_paused = true)]
async fn dependents_of_an_owner_without_uid_are_not_deleted() {
    let mut world = World::new(0).await;
    world.map("owner", &[]).await;
    world.map("child", &[world.owner(&format!("{MAPS}/owner"), false).await]).await;
    world.overwrite(&format!("{MAPS}/owner"), r#"{"kind":"ConfigMap","metadata":{"name":"owner"}}"#).await;
    world.start_own_collector();
    world.check("child<owner owner").await;
    assert_eq!(world.writer.backend().problems().text(), None, "it can be read");
}

#[tokio::test(start_paused = true)]
async fn collector_deletes_nothing_until_every_value_was_readable_once() {
    for unreadable in UNREADABLE {
        let mut world = World::new(0).await;
        world.map("owner", &[]).await;
        world.map("child", &[world.owner(&format!("{MAPS}/owner"), false).await]).await;
        world.delete("owner", "Background").await;
        world.write("POST /api/v1/namespaces/b/secrets", json!({"metadata": {"name": "s"}})).await.unwrap();
        let value = world.overwrite("/secrets/b/s", unreadable).await;
        world.start_own_collector();
        world.check("child<owner").await;
        let problem = world.writer.backend().problems().text().expect("a problem");
        assert!(problem.starts_with("garbage collector: does not start: cannot read 1 of"), "{problem}");
        world.overwrite("/secrets/b/s", value).await;
        world.check("").await;
        assert_eq!(world.writer.backend().problems().text(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_events_and_unserved_keys_do_not_stop_the_collector() {
    let mut world = World::new(0).await;
    world.map("owner", &[]).await;
    world.map("child", &[world.owner(&format!("{MAPS}/owner"), false).await]).await;
    world.delete("owner", "Background").await;
    for path in ["/ranges/serviceips", "/masterleases/10.0.0.1", "/events/a/e", "/example.com/things/a/x"] {
        world.writer.backend().storage().create(&Key::from_path(path).unwrap(), "k8s\0".into(), None).await.unwrap();
    }
    world.start_own_collector();
    world.check("").await;
}

#[tokio::test(start_paused = true)]
async fn foreground_and_orphan_deletions_wait_for_unreadable_dependents() {
    for (policy, waits) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        let world = World::new(1).await;
        world.map("owner", &[]).await;
        world.map("child", &[world.owner(&format!("{MAPS}/owner"), true).await]).await;
        world.check("child<owner owner").await;
        let value = world.overwrite(&format!("{MAPS}/child"), UNREADABLE[0]).await;
        world.delete("owner", policy).await;
        tokio::time::sleep(REST).await;
        let owner = world.stored(&format!("{MAPS}/owner")).await.expect("the owner waits");
        assert_eq!(owner["metadata"]["finalizers"], json!([waits]));
        assert_eq!(world.names().await, ["child", "owner"]);
        world.overwrite(&format!("{MAPS}/child"), value).await;
        world.check(if policy == "Orphan" { "child" } else { "" }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_continues_after_an_unreadable_dependent_is_deleted() {
    let world = World::new(1).await;
    world.map("owner", &[]).await;
    world.map("child", &[world.owner(&format!("{MAPS}/owner"), true).await]).await;
    world.check("child<owner owner").await;
    world.overwrite(&format!("{MAPS}/child"), UNREADABLE[0]).await;
    world.delete("owner", "Foreground").await;
    tokio::time::sleep(REST).await;
    let key = Key::from_path(&format!("{MAPS}/child")).unwrap();
    let (found, _) = world.writer.backend().storage().get(&key).await.unwrap();
    world.writer.backend().storage().delete(&key, found.unwrap().modified).await.unwrap();
    world.check("").await;
}
