//! Tests the controllers of priority and fairness on one store.

use std::sync::Mutex;
use std::time::Duration;

use listwatch_json::{Value, json};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};
use listwatch_write::testing;

use super::*;
use crate::objects::{get_versioned, write};

/// Records the names of the configured objects.
#[derive(Default)]
struct Recorder {
    controller: Mutex<Option<listwatch_flow_control::FlowController<()>>>,
    names: Mutex<Vec<(usize, usize)>>,
}

impl FlowConfiguration for Recorder {
    fn configure(&self, levels: Vec<PriorityLevel>, schemas: Vec<FlowSchema>) -> Vec<DanglingCondition> {
        self.names.lock().unwrap().push((levels.len(), schemas.len()));
        let now = std::time::Instant::now();
        let mut controller = self.controller.lock().unwrap();
        let controller = controller.get_or_insert_with(|| listwatch_flow_control::FlowController::new(now, 600, 1).0);
        controller.configure(now, levels, schemas).conditions
    }

    fn has_removable_level(&self) -> bool {
        self.controller.lock().unwrap().as_ref().is_some_and(|controller| controller.has_removable_level())
    }
}

impl Recorder {
    fn last(&self) -> Option<(usize, usize)> {
        self.names.lock().unwrap().last().copied()
    }
}

async fn stored(storage: &MemoryStorage, path: &str) -> Option<Value> {
    let (found, _) = storage.get(&Key::from_path(path).unwrap()).await.unwrap();
    found.map(|found| serde_json::from_slice(&found.value).unwrap())
}

fn path(kind: BootstrapKind, name: &str) -> String {
    format!("/{}/{name}", plural(kind))
}

async fn put(writer: &Arc<Writer>, kind: BootstrapKind, name: Option<&str>, object: &Value) -> Result<(), String> {
    let resource = resource(writer, kind).unwrap();
    write(writer, &resource, None, name, object, "test").await.map_err(|status| status.message)
}

#[tokio::test(start_paused = true)]
async fn flow_control_objects_are_created_once_and_reset_after_changes() {
    let storage = MemoryStorage::new();
    let writer = Arc::new(testing::writer(storage.clone()));
    ensure_objects(&writer).await.unwrap();
    let low = path(BootstrapKind::PriorityLevel, "workload-low");
    let read = async |path: &str| {
        let object = get_versioned(&writer, &Key::from_path(path).unwrap()).await.unwrap();
        Value::Object(object.expect("stored"))
    };
    let created = read(&low).await;
    assert_eq!(created["spec"]["limited"]["nominalConcurrencyShares"], 100);
    assert_eq!(created["metadata"]["managedFields"][0]["manager"], "api-priority-and-fairness-config-producer-v1");
    // A second check writes nothing.
    let revision = storage.current_revision().await.unwrap();
    ensure_objects(&writer).await.unwrap();
    assert_eq!(storage.current_revision().await.unwrap(), revision, "the objects are written again without a reason");

    // A user changes one object, takes over another, and deletes a third.
    let mut changed = created.clone();
    changed["spec"]["limited"]["nominalConcurrencyShares"] = json!(7);
    put(&writer, BootstrapKind::PriorityLevel, Some("workload-low"), &changed).await.unwrap();
    let system = path(BootstrapKind::PriorityLevel, "system");
    let mut taken = read(&system).await;
    taken["spec"]["limited"]["nominalConcurrencyShares"] = json!(8);
    taken["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"] = json!("false");
    put(&writer, BootstrapKind::PriorityLevel, Some("system"), &taken).await.unwrap();
    let probes = path(BootstrapKind::FlowSchema, "probes");
    let schemas = resource(&writer, BootstrapKind::FlowSchema).unwrap();
    writer.remove(&schemas, &schemas.key(None, "probes").unwrap()).await.unwrap();
    let mut obsolete = stored(&storage, &path(BootstrapKind::FlowSchema, "service-accounts")).await.unwrap();
    obsolete["metadata"] = json!({"name": "old", "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}});
    put(&writer, BootstrapKind::FlowSchema, None, &obsolete).await.unwrap();

    tokio::spawn(maintain_objects(Arc::clone(&writer)));
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(stored(&storage, &low).await.unwrap()["spec"]["limited"]["nominalConcurrencyShares"], 100);
    assert_eq!(stored(&storage, &system).await.unwrap()["spec"]["limited"]["nominalConcurrencyShares"], 8);
    assert!(stored(&storage, &probes).await.is_some(), "a deleted object is not created again");
    assert!(stored(&storage, &path(BootstrapKind::FlowSchema, "old")).await.is_none(), "an obsolete object stays");
}

#[tokio::test(start_paused = true)]
async fn two_servers_can_create_the_flow_control_objects_at_once() {
    let storage = MemoryStorage::new();
    let writers = [(); 2].map(|()| Arc::new(testing::writer(storage.clone())));
    let (first, second) = tokio::join!(ensure_objects(&writers[0]), ensure_objects(&writers[1]));
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
}

#[tokio::test(start_paused = true)]
async fn health_check_fails_until_the_flow_control_objects_are_created() {
    let storage = MemoryStorage::new();
    let writer = Arc::new(testing::writer(storage.clone()));
    let problem = || writer.backend().bootstrap().get(CHECK);
    let key = Key::from_path(&path(BootstrapKind::PriorityLevel, "workload-low")).unwrap();
    let damaged = storage.create(&key, "damaged".into(), None).await.unwrap();
    assert!(ensure_objects(&writer).await.is_err());
    assert!(problem().is_some());
    tokio::spawn(maintain_objects(Arc::clone(&writer)));
    storage.delete(&key, damaged).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(problem(), None, "a failure at the start is retried after a second");
    // kube-apiserver's hook ends with the first success.
    let created = storage.get(&key).await.unwrap().0.expect("the object is created").modified;
    storage.update(&key, created, "damaged".into(), None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(problem(), None, "a later failure does not make the server unready");
}

#[tokio::test(start_paused = true)]
async fn changed_objects_configure_the_server_and_schemas_get_the_dangling_condition() {
    let storage = MemoryStorage::new();
    let writer = Arc::new(testing::writer(storage.clone()));
    ensure_objects(&writer).await.unwrap();
    let target = Arc::new(Recorder::default());
    load(&writer, &*target).await.unwrap();
    assert_eq!(target.last(), Some((8, 11)), "levels and schemas");
    tokio::spawn(follow(Arc::clone(&writer), Arc::<Recorder>::clone(&target)));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let dangling = async |name: &str| {
        let schema = stored(&storage, &path(BootstrapKind::FlowSchema, name)).await.unwrap();
        schema["status"]["conditions"][0].clone()
    };
    let found = dangling("probes").await;
    assert_eq!((found["type"].as_str(), found["status"].as_str()), (Some("Dangling"), Some("False")), "{found}");

    let spec = json!({"priorityLevelConfiguration": {"name": "mine"}, "matchingPrecedence": 50, "rules": []});
    let schema = json!({"metadata": {"name": "mine"}, "spec": spec});
    put(&writer, BootstrapKind::FlowSchema, None, &schema).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let found = dangling("mine").await;
    let text =
        r#"This FlowSchema references the PriorityLevelConfiguration object named "mine" but there is no such object"#;
    assert_eq!((found["status"].as_str(), found["reason"].as_str()), (Some("True"), Some("NotFound")), "{found}");
    assert_eq!(found["message"], text);
    let queuing = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}});
    let level = json!({"metadata": {"name": "mine"}, "spec": queuing});
    put(&writer, BootstrapKind::PriorityLevel, None, &level).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(dangling("mine").await["status"], "False");
    assert_eq!(target.last(), Some((9, 12)));
    // Servers that disagree do not write the status forever.
    let schemas = resource(&writer, BootstrapKind::FlowSchema).unwrap();
    let key = schemas.key(None, "mine").unwrap();
    for _ in 0..20 {
        let remove = |object: &mut listwatch_json::Map| {
            object.remove("status");
            listwatch_write::Amendment::Write
        };
        writer.amend(&schemas, &key, remove).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(dangling("mine").await.is_null(), "the status was written more than six times in a minute");
}
