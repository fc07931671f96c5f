//! The objects that every cluster has, made at start and kept as kube-apiserver's own controllers keep them.
//!
//! | object | after the start | rule's source in Kubernetes |
//! |---|---|---|
//! | the four system namespaces | created again when missing | `pkg/controlplane/controller/systemnamespaces` |
//! | Service `default/kubernetes` | created again when missing, never changed | `pkg/controlplane/controller/kubernetesservice` |
//! | ServiceCIDR `kubernetes` | created again when missing; `Ready` is set once | `pkg/controlplane/controller/defaultservicecidr` |
//! | PriorityClasses `system-*` | left alone | `pkg/registry/scheduling/rest` |
//! | ConfigMap `kube-system/extension-apiserver-authentication` | created again; this server's CA is merged in | `pkg/controlplane/controller/clusterauthenticationtrust` |
//! | ConfigMap `kube-system/kube-apiserver-legacy-service-account-token-tracking` | created again at most every 30 minutes; a broken date is replaced | `pkg/controlplane/controller/legacytokentracking` |
//! | APIServices | see [`api_services`] | `kube-aggregator/pkg/controllers/autoregister` |
//!
//! Everything is written through the server's own write path. Several servers on one store may all do this:
//! each object is only created where it is missing, and that another server was faster is no error. An
//! object that cannot be read is there.

mod api_services;
mod authentication;
mod objects;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use listwatch_meta::{Key, KeyRange, Revision, Status};
use listwatch_storage::{Watch, WatchItem};
use listwatch_wire::query::Query;
use serde_json::{Map, Value};
use tokio::time::Instant;

use self::api_services::ApiServices;
use self::objects::Wanted;
use crate::auth::User;
use crate::backend::Backend;
use crate::namespaces;
use crate::registry::Resource;
use crate::write::{self, Amendment, WriteRequest, WriteVerb};

/// How often everything is looked at, besides when something is known to have changed (kube-apiserver's
/// period for the service and its range).
const SYNC_INTERVAL: Duration = Duration::from_secs(10);
/// At most so often: a client that changes these objects all the time costs one look in this time.
const SYNC_PAUSE: Duration = Duration::from_millis(100);
/// After a failed watch the next one begins so much later.
const WATCH_RETRY: Duration = Duration::from_secs(1);
/// A deleted ConfigMap about legacy tokens is created again at most so often.
const TRACKING_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// How the writes are signed: the name of the field manager.
const USER_AGENT: &str = "kube-apiserver";

/// kube-apiserver's health checks for what has no entry in a list of objects here.
const NAMESPACES_CHECK: &str = "poststarthook/start-system-namespaces-controller";
const TRACKING_CHECK: &str = "poststarthook/start-legacy-token-tracking-controller";

/// What the objects say of this server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The certificates, in PEM, that extension servers are told to trust for clients.
    pub(crate) client_ca: Option<String>,
    /// The port at which this server is reached over TLS.
    pub(crate) secure_port: u16,
}

/// Keeps the objects of one server.
pub(crate) struct Bootstrap {
    backend: Arc<Backend>,
    settings: Settings,
    api_services: ApiServices,
    /// Whether the published client CAs include this server's.
    client_ca: authentication::Membership,
    /// The priority classes were there once.
    classes_made: bool,
    /// When this server last created the ConfigMap about legacy tokens.
    tracking_made: Option<Instant>,
}

impl Bootstrap {
    pub(crate) fn new(backend: Arc<Backend>, settings: Settings) -> Self {
        Bootstrap {
            backend,
            settings,
            api_services: ApiServices::default(),
            client_ca: authentication::Membership::default(),
            classes_made: false,
            tracking_made: None,
        }
    }

    /// Makes what is missing. What fails is logged, and tried again by [`Bootstrap::run`].
    pub(crate) async fn sync(&mut self) {
        let backend = &self.backend;
        let mut wanted = vec![objects::kubernetes_service(self.settings.secure_port)];
        if !self.classes_made {
            wanted.extend(objects::priority_classes());
        }
        let made = join_all(wanted.iter().map(|wanted| async move { (wanted, ensure(backend, wanted).await) }));
        let tracked = self.tracking_made.is_none_or(|made| made.elapsed() >= TRACKING_INTERVAL);
        let (made, range, authentication, tracking, api_services) = tokio::join!(
            made,
            objects::ensure_service_range(backend),
            authentication::sync(backend, self.settings.client_ca.as_deref(), &mut self.client_ca),
            objects::sync_tracking(backend, tracked),
            self.api_services.sync(backend),
        );
        self.classes_made |= made.iter().all(|(wanted, made)| wanted.plural != "priorityclasses" || made.is_ok());
        for (wanted, made) in made {
            backend.bootstrap().set(wanted.check, made.err().map(|status| status.message));
        }
        for (check, done) in [
            ("poststarthook/start-kubernetes-service-cidr-controller", range),
            ("poststarthook/start-cluster-authentication-info-controller", authentication),
            ("autoregister-completion", api_services),
        ] {
            backend.bootstrap().set(check, done.err().map(|status| status.message));
        }
        match tracking {
            Ok(created) => {
                if created {
                    self.tracking_made = Some(Instant::now());
                }
                backend.bootstrap().set(TRACKING_CHECK, None);
            }
            Err(status) => backend.bootstrap().set(TRACKING_CHECK, Some(status.message)),
        }
    }

    /// Keeps the objects as they are to be, for as long as it is polled.
    pub(crate) async fn run(mut self) {
        let mut watches: Option<[Watch; 2]> = None;
        loop {
            let Some([services, maps]) = &mut watches else {
                match watch(&self.backend).await {
                    // What happened before it began is looked at now.
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
                () = self.backend.registry_changed() => true,
                () = tokio::time::sleep(SYNC_INTERVAL) => true,
            };
            tokio::time::sleep(SYNC_PAUSE).await;
            if !alive {
                watches = None;
                continue;
            }
            // What came meanwhile is seen by the same look.
            if !(drain(services) && drain(maps)) {
                watches = None;
            }
            self.sync_all().await;
        }
    }

    async fn sync_all(&mut self) {
        let done = namespaces::ensure_system_namespaces(&self.backend).await;
        self.backend.bootstrap().set(NAMESPACES_CHECK, done.err().map(|status| status.message));
        self.sync().await;
    }
}

fn is_alive(item: Option<&WatchItem>) -> bool {
    matches!(item, Some(WatchItem::Event(_) | WatchItem::Progress(_)))
}

/// Takes what is ready; false when the watch is over.
fn drain(watch: &mut Watch) -> bool {
    while let Some(item) = watch.next().now_or_never() {
        if !is_alive(item.as_ref()) {
            return false;
        }
    }
    true
}

/// Watches the APIServices and the ConfigMaps of `kube-system`.
async fn watch(backend: &Backend) -> Result<[Watch; 2], String> {
    let registry = backend.registry();
    let storage = backend.storage();
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

/// Creates an object where it is missing. True when this server created it.
async fn ensure(backend: &Arc<Backend>, wanted: &Wanted) -> Result<bool, Status> {
    let registry = backend.registry();
    let Some(resource) = registry.find(wanted.group, wanted.version, wanted.plural) else { return Ok(false) };
    let key = resource.key(wanted.namespace, wanted.name)?;
    if exists(backend, &key).await? {
        return Ok(false);
    }
    match create(backend, resource, wanted.namespace, &wanted.body).await {
        Ok(()) => Ok(true),
        // Another server may be between the claim of the address and the service.
        Err(status) if status.code == 409 || exists(backend, &key).await? => Ok(false),
        Err(status) => Err(status),
    }
}

/// Changes an object as [`write::amend`] does. An object that cannot be read counts as it is to be: another
/// server stored it, and this one must not judge it.
async fn amend(
    backend: &Backend,
    resource: &Resource,
    key: &Key,
    change: impl FnMut(&mut Map<String, Value>) -> Amendment,
) -> Result<(), Status> {
    match write::amend(backend, resource, key, change).await {
        Err(_) if write::is_unreadable(backend, key).await? => Ok(()),
        done => done,
    }
}

async fn exists(backend: &Backend, key: &Key) -> Result<bool, Status> {
    let (found, _) = backend.storage().get(key).await.map_err(Status::internal)?;
    Ok(found.is_some())
}

async fn create(
    backend: &Arc<Backend>,
    resource: &Arc<Resource>,
    namespace: Option<&str>,
    body: &Value,
) -> Result<(), Status> {
    let request = WriteRequest {
        verb: WriteVerb::Create,
        resource,
        namespace,
        name: None,
        subresource: None,
        query: &Query::default(),
        content_type: None,
        user: User::admin(),
        user_agent: Some(USER_AGENT),
        body: Bytes::from(body.to_string()),
    };
    write::write(backend, request).await.map(drop)
}
