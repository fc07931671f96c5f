//! The watches of the components ([`Watches`]): in protobuf, with the initial state first (WatchList), as the informers
//! of client-go v1.36 open them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use listwatch_benches::cluster::ACCEPT;
use listwatch_wire::protobuf::WatchMessage;
use listwatch_wire::{EventKind, LengthFrames};
use memchr::memmem;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::component::{Component, message_of};
use crate::Outcome;

/// The `Accept` header of an informer that needs only the metadata of objects.
const ACCEPT_METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                               application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// The query of each watch.
const QUERY: &str = "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true\
                     &timeoutSeconds=86400&watch=true";
/// The annotation of the bookmark that ends the initial events.
const INITIAL_END: &[u8] = b"k8s.io/initial-events-end";
/// The time limit until all watches have their initial state.
const SYNC_WAIT: Duration = Duration::from_secs(60);

/// The resources that kube-controller-manager watches.
const OF_CONTROLLER_MANAGER: [&str; 33] = [
    "/api/v1/configmaps",
    "/api/v1/endpoints",
    "/api/v1/limitranges",
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/persistentvolumes",
    "/api/v1/pods",
    "/api/v1/podtemplates",
    "/api/v1/replicationcontrollers",
    "/api/v1/resourcequotas",
    "/api/v1/secrets",
    "/api/v1/serviceaccounts",
    "/api/v1/services",
    "/apis/apps/v1/controllerrevisions",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
    "/apis/autoscaling/v2/horizontalpodautoscalers",
    "/apis/batch/v1/cronjobs",
    "/apis/batch/v1/jobs",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/networking.k8s.io/v1/ingresses",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/volumeattachments",
];

/// The resources that kube-scheduler watches, besides pods.
const OF_SCHEDULER: [&str; 14] = [
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/persistentvolumes",
    "/api/v1/replicationcontrollers",
    "/api/v1/services",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/storage.k8s.io/v1/csidrivers",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/csistoragecapacities",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/volumeattachments",
];

/// The pods that kube-scheduler watches.
const SCHEDULED_PODS: &str = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";

/// The resources that a kubelet watches, besides its node and its pods.
const OF_KUBELET: [&str; 3] =
    ["/api/v1/services", "/apis/node.k8s.io/v1/runtimeclasses", "/apis/storage.k8s.io/v1/csidrivers"];

/// The resources that kube-proxy watches.
const OF_PROXY: [&str; 2] = ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"];

/// The events of a kubelet's pods by type, after the initial state.
#[derive(Debug, Default)]
pub(super) struct PodEvents {
    added: AtomicU64,
    modified: AtomicU64,
    deleted: AtomicU64,
}

impl PodEvents {
    /// The number of `ADDED`, `MODIFIED` and `DELETED` events.
    pub(super) fn counts(&self) -> [u64; 3] {
        [&self.added, &self.modified, &self.deleted].map(|count| count.load(Ordering::Relaxed))
    }

    fn add(&self, kind: EventKind) {
        let count = match kind {
            EventKind::Added => &self.added,
            EventKind::Modified => &self.modified,
            EventKind::Deleted => &self.deleted,
            EventKind::Bookmark | EventKind::Error => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The counters of all watches.
#[derive(Debug)]
struct Counters {
    /// The number of watches whose initial state is complete.
    synced: AtomicUsize,
    /// The number of events after the initial states, without bookmarks.
    events: AtomicU64,
    /// One for each node.
    pods: Vec<PodEvents>,
    /// The reasons of watches that ended.
    problems: Mutex<Vec<String>>,
}

/// A set of open watches. Dropping the value closes them.
pub(super) struct Watches {
    counters: Arc<Counters>,
    readers: JoinSet<()>,
}

impl Watches {
    pub(super) fn new(nodes: usize) -> Self {
        let counters = Counters {
            synced: AtomicUsize::new(0),
            events: AtomicU64::new(0),
            pods: (0..nodes).map(|_| PodEvents::default()).collect(),
            problems: Mutex::default(),
        };
        Watches { counters: Arc::new(counters), readers: JoinSet::new() }
    }

    /// Opens the watches of kube-controller-manager; with `metadata`, each resource once more as metadata.
    pub(super) fn open_controller_manager(&mut self, component: &Arc<Component>, metadata: bool) {
        for accept in [Some(ACCEPT), metadata.then_some(ACCEPT_METADATA)].into_iter().flatten() {
            for collection in OF_CONTROLLER_MANAGER {
                self.open(component, collection, accept, None);
            }
        }
    }

    /// Opens the watches of kube-scheduler.
    pub(super) fn open_scheduler(&mut self, component: &Arc<Component>) {
        for collection in OF_SCHEDULER.into_iter().chain([SCHEDULED_PODS]) {
            self.open(component, collection, ACCEPT, None);
        }
    }

    /// Opens the watches of the kubelet of a node.
    pub(super) fn open_kubelet(&mut self, component: &Arc<Component>, node: usize, name: &str) {
        for collection in OF_KUBELET {
            self.open(component, collection, ACCEPT, None);
        }
        self.open(component, &format!("/api/v1/nodes?fieldSelector=metadata.name%3D{name}"), ACCEPT, None);
        self.open(component, &format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{name}"), ACCEPT, Some(node));
    }

    /// Opens the watches of a kube-proxy.
    pub(super) fn open_proxy(&mut self, component: &Arc<Component>) {
        for collection in OF_PROXY {
            self.open(component, collection, ACCEPT, None);
        }
    }

    /// Opens a watch. `node` is the number of the node whose pods the watch selects.
    fn open(&mut self, component: &Arc<Component>, collection: &str, accept: &'static str, node: Option<usize>) {
        let separator = if collection.contains('?') { '&' } else { '?' };
        let path = format!("{collection}{separator}{QUERY}");
        let (component, counters) = (component.clone(), self.counters.clone());
        self.readers.spawn(async move {
            let ended = read(&component, &path, accept, &counters, node).await;
            let why = ended.err().map_or_else(|| "the server ended the stream".to_owned(), |error| error.to_string());
            counters.problems.lock().push(format!("{path}: {why}"));
        });
    }

    /// Waits until all watches have their initial state. Returns their number.
    pub(super) async fn synced(&self) -> Outcome<usize> {
        let (begun, opened) = (Instant::now(), self.readers.len());
        loop {
            self.check()?;
            let synced = self.counters.synced.load(Ordering::Relaxed);
            if synced == opened {
                return Ok(opened);
            }
            if begun.elapsed() > SYNC_WAIT {
                return Err(format!("only {synced} of {opened} watches have their initial state").into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the first problem, if any.
    pub(super) fn check(&self) -> Outcome<()> {
        let problems = self.counters.problems.lock();
        match problems.first() {
            Some(first) => Err(format!("{} watches failed; the first: {first}", problems.len()).into()),
            None => Ok(()),
        }
    }

    /// The number of events of all watches after the initial states.
    pub(super) fn events(&self) -> u64 {
        self.counters.events.load(Ordering::Relaxed)
    }

    /// The events of the pods of each node.
    pub(super) fn pods(&self) -> &[PodEvents] {
        &self.counters.pods
    }
}

/// Reads a watch until the server ends it.
async fn read(
    component: &Component,
    path: &str,
    accept: &str,
    counters: &Counters,
    node: Option<usize>,
) -> Outcome<()> {
    let mut response = component.watch(path, accept).await?;
    let (mut frames, mut is_initial) = (LengthFrames::new(), true);
    while let Some(frame) = response.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        frames.feed(data);
        while let Some(message) = frames.next_frame()? {
            let event = WatchMessage::parse(&message)?;
            match event.kind {
                EventKind::Bookmark => {
                    if is_initial && memmem::find(&event.envelope, INITIAL_END).is_some() {
                        is_initial = false;
                        counters.synced.fetch_add(1, Ordering::Relaxed);
                    }
                }
                EventKind::Error => {
                    return Err(message_of(&event.envelope).unwrap_or_else(|| "an ERROR event".to_owned()).into());
                }
                _ if is_initial => {}
                kind => {
                    counters.events.fetch_add(1, Ordering::Relaxed);
                    if let Some(node) = node {
                        counters.pods[node].add(kind);
                    }
                }
            }
        }
    }
    Ok(())
}
