//! Creates the objects that every cluster has, and maintains these objects as kube-apiserver's own controllers do.
//!
//! | object | after the start | rule's source in Kubernetes |
//! |---|---|---|
//! | the four system namespaces | created again when missing | `pkg/controlplane/controller/systemnamespaces` |
//! | Service `default/kubernetes` | created again when missing, never changed; its endpoints: [`kubernetes_endpoints`](crate::kubernetes_endpoints) | `pkg/controlplane/controller/kubernetesservice` |
//! | ServiceCIDR `kubernetes` | created again when missing; `Ready` is set once | `pkg/controlplane/controller/defaultservicecidr` |
//! | PriorityClasses `system-*` | not changed | `pkg/registry/scheduling/rest` |
//! | ConfigMap `kube-system/extension-apiserver-authentication` | created again when missing; this server's CA is merged in | `pkg/controlplane/controller/clusterauthenticationtrust` |
//! | ConfigMap `kube-system/kube-apiserver-legacy-service-account-token-tracking` | created again at most every 30 minutes; an invalid date is replaced | `pkg/controlplane/controller/legacytokentracking` |
//! | APIServices | see [`api_services`] | `kube-aggregator/pkg/controllers/autoregister` |
//!
//! All writes use the server's own write path. Several servers on one store may all run this controller. Only missing
//! objects are created, and a conflict with another server is not an error. An unreadable object is treated as
//! existing.

mod api_services;
mod authentication;
mod ensure;
mod objects;
mod request_header;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use listwatch_meta::{KeyRange, Revision};
use listwatch_storage::{Watch, WatchItem};
use tokio::time::Instant;

use self::api_services::ApiServices;
use self::ensure::ensure;
pub use self::request_header::RequestHeader;
use crate::namespaces;
use listwatch_write::Writer;

/// Interval between two syncs of all objects. kube-apiserver uses the same interval for the service and the
/// ServiceCIDR. A known change triggers an earlier sync.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time between two syncs. Limits the load caused by a client that changes these objects constantly.
const SYNC_PAUSE: Duration = Duration::from_millis(100);
/// Delay before the next watch after a failed one.
const WATCH_RETRY: Duration = Duration::from_secs(1);
/// Minimum time between two creations of the ConfigMap that tracks legacy tokens.
const TRACKING_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// kube-apiserver's health check for the system namespaces, which are not in the lists of objects here.
const NAMESPACES_CHECK: &str = "poststarthook/start-system-namespaces-controller";
const TRACKING_CHECK: &str = "poststarthook/start-legacy-token-tracking-controller";

/// Settings of this server that are published in bootstrap objects.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The CA certificates, in PEM, with which extension servers verify clients.
    pub client_ca: Option<String>,
    /// The settings with which extension servers recognize this server as a front proxy.
    pub request_header: Option<RequestHeader>,
    /// The port on which this server accepts TLS connections.
    pub secure_port: u16,
}

/// The controller of bootstrap objects on one server.
pub struct Bootstrap {
    writer: Arc<Writer>,
    settings: Settings,
    api_services: ApiServices,
    /// Whether the published lists contain this server's CAs.
    memberships: authentication::Memberships,
    /// True if the priority classes have been created since the server started.
    classes_made: bool,
    /// Time when this server last created the ConfigMap that tracks legacy tokens.
    tracking_made: Option<Instant>,
}

impl Bootstrap {
    /// Creates a controller that has not synced yet.
    pub fn new(writer: Arc<Writer>, settings: Settings) -> Self {
        Bootstrap {
            writer,
            settings,
            api_services: ApiServices::default(),
            memberships: authentication::Memberships::default(),
            classes_made: false,
            tracking_made: None,
        }
    }

    /// Creates the missing objects. Failures are logged, and [`Bootstrap::run`] retries them.
    pub async fn sync(&mut self) {
        let writer = &self.writer;
        let mut wanted = vec![objects::kubernetes_service(writer.service_ranges(), self.settings.secure_port)];
        if !self.classes_made {
            wanted.extend(objects::priority_classes());
        }
        let made = join_all(wanted.iter().map(|wanted| async move { (wanted, ensure(writer, wanted).await) }));
        let tracked = self.tracking_made.is_none_or(|made| made.elapsed() >= TRACKING_INTERVAL);
        let (made, range, authentication, tracking, api_services) = tokio::join!(
            made,
            objects::ensure_service_range(writer),
            authentication::sync(
                writer,
                self.settings.client_ca.as_deref(),
                self.settings.request_header.as_ref(),
                &mut self.memberships,
            ),
            objects::sync_tracking(writer, tracked),
            self.api_services.sync(writer),
        );
        self.classes_made |= made.iter().all(|(wanted, made)| wanted.plural != "priorityclasses" || made.is_ok());
        for (wanted, made) in made {
            writer.backend().bootstrap().set(wanted.check, made.err().map(|status| status.message));
        }
        for (check, done) in [
            ("poststarthook/start-kubernetes-service-cidr-controller", range),
            ("poststarthook/start-cluster-authentication-info-controller", authentication),
            ("autoregister-completion", api_services),
        ] {
            writer.backend().bootstrap().set(check, done.err().map(|status| status.message));
        }
        match tracking {
            Ok(created) => {
                if created {
                    self.tracking_made = Some(Instant::now());
                }
                writer.backend().bootstrap().set(TRACKING_CHECK, None);
            }
            Err(status) => writer.backend().bootstrap().set(TRACKING_CHECK, Some(status.message)),
        }
    }

    /// Maintains the objects until the future is dropped.
    pub async fn run(mut self) {
        let mut watches: Option<[Watch; 2]> = None;
        loop {
            let Some([services, maps]) = &mut watches else {
                match watch(&self.writer).await {
                    // Changes before the watches began are covered by the next sync.
                    Ok(begun) => watches = Some(begun),
                    Err(why) => {
                        tracing::warn!(why, "cannot watch the objects that every cluster has");
                        tokio::time::sleep(WATCH_RETRY).await;
                    }
                }
                self.sync_all().await;
                continue;
            };
            let alive = tokio::select! {
                item = services.next() => is_alive(item.as_ref()),
                item = maps.next() => is_alive(item.as_ref()),
                () = self.writer.backend().registry_changed() => true,
                () = tokio::time::sleep(SYNC_INTERVAL) => true,
            };
            tokio::time::sleep(SYNC_PAUSE).await;
            if !alive {
                watches = None;
                continue;
            }
            // One sync covers all events received meanwhile.
            if !(drain(services) && drain(maps)) {
                watches = None;
            }
            self.sync_all().await;
        }
    }

    async fn sync_all(&mut self) {
        let done = namespaces::ensure_system_namespaces(&self.writer).await;
        self.writer.backend().bootstrap().set(NAMESPACES_CHECK, done.err().map(|status| status.message));
        self.sync().await;
    }
}

fn is_alive(item: Option<&WatchItem>) -> bool {
    matches!(item, Some(WatchItem::Event(_) | WatchItem::Progress(_)))
}

/// Discards the events that are ready. Returns false if the watch has ended.
fn drain(watch: &mut Watch) -> bool {
    while let Some(item) = watch.next().now_or_never() {
        if !is_alive(item.as_ref()) {
            return false;
        }
    }
    true
}

/// Watches the APIServices and the ConfigMaps of `kube-system`.
async fn watch(writer: &Writer) -> Result<[Watch; 2], String> {
    let registry = writer.backend().registry();
    let storage = writer.backend().storage();
    let after: Revision = storage.current_revision().await.map_err(|error| error.to_string())?;
    let range = |(group, version, plural): (&str, &str, &str), namespace| match registry.find(group, version, plural) {
        Some(resource) => resource.range(namespace),
        None => KeyRange::resource(plural),
    };
    let services = range(api_services::RESOURCE, None);
    let maps = range(objects::CONFIG_MAPS, Some(objects::SYSTEM_NAMESPACE));
    let services = storage.watch(services, after).await.map_err(|error| error.to_string())?;
    let maps = storage.watch(maps, after).await.map_err(|error| error.to_string())?;
    Ok([services, maps])
}
