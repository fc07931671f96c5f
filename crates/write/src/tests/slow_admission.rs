//! Tests writes whose admission plugins are slow.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use listwatch_cacher::Limits;
use listwatch_registry::{Backend, Registry};

use super::*;
use listwatch_admission::{AdmissionChain, AdmissionFuture, AdmissionRequest, ValidatingAdmission};

/// A suspension of the machine, during which the monotonic clock stops.
const SUSPENSION_SECONDS: i64 = 31;

const SERVICES: &str = "/api/v1/namespaces/default/services";

/// An admission plugin that validates objects of one resource slowly. During the validation, another server changes or
/// removes the namespace.
struct Slow {
    storage: Arc<MemoryStorage>,
    resource: &'static str,
    duration: Duration,
    meanwhile: ConcurrentChange,
    /// The time of the wall clock, which advances by [`SUSPENSION_SECONDS`] during the validation.
    clock: Option<Arc<AtomicI64>>,
}

#[derive(Clone, Copy, Debug)]
enum ConcurrentChange {
    Nothing,
    NamespaceTerminates,
    NamespaceIsRemoved,
}

impl ValidatingAdmission for Slow {
    fn name(&self) -> &str {
        "Slow"
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        request.resource == self.resource
    }

    fn validate<'a>(&'a self, _: &'a AdmissionRequest<'_>, _: &'a Map) -> AdmissionFuture<'a, ()> {
        Box::pin(async move {
            tokio::time::sleep(self.duration).await;
            if let Some(clock) = &self.clock {
                clock.fetch_add(SUSPENSION_SECONDS, Ordering::Relaxed);
            }
            let key = Key::from_path("/namespaces/default").unwrap();
            let found = self.storage.get(&key).await.unwrap().0.unwrap();
            match self.meanwhile {
                ConcurrentChange::Nothing => {}
                ConcurrentChange::NamespaceIsRemoved => {
                    self.storage.delete(&key, found.modified).await.unwrap();
                }
                ConcurrentChange::NamespaceTerminates => {
                    let mut namespace: Value = serde_json::from_slice(&found.value).unwrap();
                    namespace["metadata"]["deletionTimestamp"] = NOW.into();
                    self.storage.update(&key, found.modified, namespace.to_string().into(), None).await.unwrap();
                }
            }
            Ok(())
        })
    }
}

async fn slow(resource: &'static str, seconds: u64, meanwhile: ConcurrentChange) -> World {
    slow_with_clock(resource, seconds, meanwhile, None).await
}

async fn slow_with_clock(
    resource: &'static str,
    seconds: u64,
    meanwhile: ConcurrentChange,
    clock: Option<Arc<AtomicI64>>,
) -> World {
    let storage = MemoryStorage::new();
    let duration = Duration::from_secs(seconds);
    let mut admission = AdmissionChain::default();
    admission.add_validating(Arc::new(Slow {
        storage: storage.clone(),
        resource,
        duration,
        meanwhile,
        clock: clock.clone(),
    }));
    let backend = Backend::new(storage, Registry::builtin(), true, Limits::default());
    let writer = Arc::new(Writer::new(Arc::new(backend), admission));
    let clock = clock.map_or_else(|| Clock::fixed(parse_timestamp(NOW).unwrap()), Clock::shared);
    let world = World { writer, clock };
    world.send("POST /api/v1/namespaces", r#"{"metadata":{"name":"default"}}"#).await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn service_is_not_stored_if_its_claims_are_older_than_store_wait() {
    let service = r#"{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":[{"port":80}]}}"#;
    for (seconds, stored) in [(20, true), (31, false), (100, false)] {
        let world = slow("services", seconds, ConcurrentChange::Nothing).await;
        let created = world.send(&post(SERVICES), service).await;
        let claims = world.stored("/ipaddresses/").await.len() + services::allocated_ports(&world).await.len();
        assert_eq!(world.stored("/services/specs/").await.len(), usize::from(stored), "after {seconds} seconds");
        assert_eq!(claims, 2 * usize::from(stored), "after {seconds} seconds");
        let code =
            created.map_or_else(|status| (status.code, status.reason.to_string()), |done| (done.code, String::new()));
        let expected = if stored { (201, "") } else { (500, "ServerTimeout") };
        assert_eq!((code.0, code.1.as_str()), expected, "after {seconds} seconds");
    }
}

#[tokio::test(start_paused = true)]
async fn service_is_not_stored_if_the_machine_was_suspended_after_its_claims() {
    let clock = Arc::new(AtomicI64::new(parse_timestamp(NOW).unwrap().unix_timestamp()));
    let world = slow_with_clock("services", 0, ConcurrentChange::Nothing, Some(clock)).await;
    let service = r#"{"metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}}"#;
    let refused = world.send(&post(SERVICES), service).await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (500, "ServerTimeout"));
    assert_eq!(world.stored("/services/specs/").await.len(), 0);
    assert_eq!(world.stored("/ipaddresses/").await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn slow_create_is_rejected_if_its_namespace_is_deleted_during_admission() {
    for (meanwhile, code) in [
        (ConcurrentChange::Nothing, 201),
        (ConcurrentChange::NamespaceTerminates, 403),
        (ConcurrentChange::NamespaceIsRemoved, 404),
    ] {
        let world = slow("configmaps", 3, meanwhile).await;
        let created = world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await;
        let found = created.map_or_else(|status| status.code, |done| done.code);
        assert_eq!(found, code, "{meanwhile:?}");
        assert_eq!(world.stored("/configmaps/").await.len(), usize::from(code == 201), "{meanwhile:?}");
    }
}

#[tokio::test]
async fn create_with_an_invalid_name_runs_the_mutating_plugins() {
    let world = World::new().await;
    let pod = r#"{"metadata":{"name":"Bad_Name"},"spec":{"priorityClassName":"absent","containers":[{"name":"c","image":"i"}]}}"#;
    let refused = world.send(&post("/api/v1/namespaces/default/pods"), pod).await.unwrap_err();
    assert_eq!(refused.code, 403, "{}", refused.message);
    assert!(refused.message.ends_with("no PriorityClass with name absent was found"), "{}", refused.message);
}
