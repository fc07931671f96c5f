//! `cluster`: the cost of the requests of a cluster's components, without the components.
//!
//! Each component is one HTTP/2 connection: kube-controller-manager, kube-scheduler, and for each node a kubelet and a
//! kube-proxy. Objects and events are protobuf. A pod passes through its components in this order:
//!
//! ```text
//!   controller manager   POST pod                                   DELETE pod
//!   scheduler                      POST binding, event
//!   kubelet of the node                      GET, PATCH status (2-3)    GET, PATCH status (2), GET, DELETE pod
//! ```
//! The other requests of the mix (`mix.rs`) are sent between the last status before the deletion and the deletion.

mod bodies;
mod component;
mod mix;
mod watches;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use listwatch_benches::cluster::{Lease, REPLICA_SET, binding, node_status_patch};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::bodies::{NAMESPACE, Step, node_name, pod_name};
use self::component::{Component, Recorder, identity_of};
use self::mix::{MIX, RequestType};
use self::watches::Watches;
use crate::Outcome;
use crate::http::{Client, Extras, Http};
use crate::objects::create_if_absent;
use crate::report::{Metrics, Report};
use crate::run::{Common, percentile};
use crate::target::Target;

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/load-cluster/pods";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/load-cluster/events";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/load-cluster/deployments";
const REPLICA_SETS: &str = "/apis/apps/v1/namespaces/load-cluster/replicasets";
const ENDPOINT_SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/load-cluster/endpointslices";
/// The leases of leader elections. They are in the namespace of the load, so that no real component is disturbed.
const LEADER_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/load-cluster/leases";
const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// The nodes of the load, also those of an earlier run with more nodes.
const ALL_NODES: &str = "/api/v1/nodes?labelSelector=load%3Dcluster";

/// The maximum number of pods that exist at once.
const PODS_MAX: usize = 64;
/// The longest time without events after the last request. Events that are missing then count as lost.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The time without events after which the events of all watches have arrived.
const QUIET: Duration = Duration::from_millis(200);
/// The time between the preparation and the measurement.
const SETTLE: Duration = Duration::from_millis(500);

/// Send the requests of a cluster's components: CPU per request with the events of all watches
///
/// Each pod is created, bound, run, deleted and ended by the requests of the ReplicaSet controller, the scheduler and a
/// kubelet, in protobuf over HTTP/2. The mix of requests is that of a recorded cluster; a second table counts them. No
/// component may run on the server. The objects are in the namespace load-cluster; those of an earlier run are deleted
/// first. --seconds has no effect.
#[derive(Debug, clap::Args)]
pub(crate) struct Cluster {
    /// Number of nodes, each with a kubelet and a kube-proxy
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,

    /// Number of pods; each of them lives once
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    pods: u32,

    /// Pods created per second; 0 for as many as the server can take with 64 pods at once
    #[arg(long, default_value_t = 30.0)]
    rate: f64,

    /// Watch each resource of the controller manager once more as metadata, like a garbage collector that does not
    /// share the informers of the other controllers
    #[arg(long)]
    metadata: bool,
}

/// The figures of the request types in each round, by server.
type ByType = HashMap<String, Vec<[Metrics; MIX.len()]>>;

impl Cluster {
    pub(crate) async fn run(&self, common: &Common) -> Outcome<Report> {
        let mut report = Report::new();
        // The floor has no pods.
        let common = common.without_floor();
        let targets = common.start()?;
        let parameters = [
            ("nodes", self.nodes.to_string()),
            ("pods", self.pods.to_string()),
            ("pods/s", if self.rate > 0.0 { self.rate.to_string() } else { "most".to_owned() }),
        ];
        let by_type = Mutex::new(ByType::new());
        let measure = async |target: &Arc<Target>, _: Option<&Metrics>| {
            let (metrics, types) = self.measure(target).await?;
            by_type.lock().entry(target.name.clone()).or_default().push(types);
            Ok(metrics)
        };
        common.row(&mut report, "Cluster", &parameters, &targets, false, measure).await?;
        let by_type = by_type.into_inner();
        for (index, (kind, name, _)) in MIX.iter().enumerate() {
            if kind.numbers(self.pods as usize - 1).end == 0 {
                continue;
            }
            for target in &targets {
                let rounds: Vec<Metrics> = by_type[&target.name].iter().map(|types| types[index].clone()).collect();
                report.add("Requests of the cluster", &[("request", (*name).to_owned())], &target.name, &rounds);
            }
        }
        Ok(report)
    }

    /// Prepares the cluster, lets all pods live, and returns the figures of the row and those of each request type.
    async fn measure(&self, target: &Arc<Target>) -> Outcome<(Metrics, [Metrics; MIX.len()])> {
        let (nodes, pods) = (self.nodes as usize, self.pods as usize);
        clean(target).await?;
        let components = Arc::new(Components::prepare(target, nodes).await?);
        let mut watches = Watches::new(nodes);
        components.open_watches(&mut watches, self.metadata);
        let opened = watches.synced().await?;
        eprintln!("  {opened} watches have their initial state");
        tokio::time::sleep(SETTLE).await;

        let events = watches.events();
        let (before, begun) = (target.usage(), Instant::now());
        self.churn(&components, &watches, begun).await?;
        let took = begun.elapsed().as_secs_f64();
        let expected = expected_events(pods, nodes);
        arrived(&watches, &expected).await;
        let after = target.usage();
        watches.check()?;
        verify_absence(target).await?;

        let events = (watches.events() - events) as f64;
        let mut times = components.recorder.take();
        let requests = times.iter().map(Vec::len).sum::<usize>() as f64;
        let mut metrics = Metrics::new();
        if let Some((before, after)) = before.zip(after) {
            metrics.push(("cpu_us_per_request", (after.cpu - before.cpu).as_secs_f64() * 1e6 / requests));
            metrics.push(("rss_mib", after.rss_kib as f64 / 1024.0));
        }
        metrics.extend([("requests", requests), ("events", events), ("requests_per_s", requests / took)]);
        let mut percentiles = |kind: RequestType, p50, p99| {
            let times = &mut times[kind as usize];
            metrics.extend([(p50, percentile(times, 0.5)), (p99, percentile(times, 0.99))]);
        };
        percentiles(RequestType::PatchPodStatus, "status_p50_ms", "status_p99_ms");
        percentiles(RequestType::CreatePod, "create_p50_ms", "create_p99_ms");
        let (lost, duplicate) = differences(&watches, &expected);
        metrics.extend([("lost", lost as f64), ("duplicate", duplicate as f64)]);
        let types = times.map(|mut times| {
            let count = times.len() as f64;
            let share = ("share_percent", count * 100.0 / requests);
            let (p50, p99) = (percentile(&mut times, 0.5), percentile(&mut times, 0.99));
            Metrics::from([("requests", count), share, ("p50_ms", p50), ("p99_ms", p99)])
        });
        Ok((metrics, types))
    }

    /// Lets all pods live. Returns after the last request.
    async fn churn(&self, components: &Arc<Components>, watches: &Watches, begun: Instant) -> Outcome<()> {
        let places = Arc::new(Semaphore::new(PODS_MAX));
        let mut lives = JoinSet::new();
        for pod in 0..self.pods as usize {
            if self.rate > 0.0 {
                tokio::time::sleep_until((begun + Duration::from_secs_f64(pod as f64 / self.rate)).into()).await;
            }
            let place = places.clone().acquire_owned().await?;
            while let Some(ended) = lives.try_join_next() {
                Outcome::Ok(ended??)?;
            }
            watches.check()?;
            let components = components.clone();
            lives.spawn(async move {
                let _place = place;
                components.live(pod).await
            });
        }
        while let Some(ended) = lives.join_next().await {
            Outcome::Ok(ended??)?;
        }
        Ok(())
    }
}

/// An object that a component updates again and again.
struct Updated {
    path: String,
    uid: String,
    /// The resource version. Updates of one object wait for each other.
    version: tokio::sync::Mutex<String>,
}

impl Updated {
    /// Creates the object.
    async fn create(component: &Component, collection: &str, name: &str, body: Bytes) -> Outcome<Self> {
        let (uid, version) = identity_of(&component.post(collection, body).await?)?;
        Ok(Updated { path: format!("{collection}/{name}"), uid, version: tokio::sync::Mutex::new(version) })
    }

    /// Replaces the object, or its subresource (`/status`). `body` receives the present resource version.
    async fn replace(
        &self,
        call: (&Recorder, RequestType),
        component: &Component,
        subresource: &str,
        body: impl FnOnce(&str) -> Bytes,
    ) -> Outcome<()> {
        let mut version = self.version.lock().await;
        let body = body(&version);
        let (recorder, kind) = call;
        let put = async { component.put(&format!("{}{subresource}", self.path), body).await };
        (_, *version) = identity_of(&recorder.timed(kind, put).await?)?;
        Ok(())
    }
}

/// A node: its kubelet, its kube-proxy and its lease.
struct Node {
    name: String,
    kubelet: Arc<Component>,
    proxy: Arc<Component>,
    uid: String,
    lease: Updated,
}

/// The components, and the objects that they update.
struct Components {
    manager: Arc<Component>,
    scheduler: Arc<Component>,
    nodes: Vec<Node>,
    deployment: Updated,
    replica_set: Updated,
    endpoint_slice: Updated,
    /// The leases of the leader elections, of controller manager and scheduler.
    leaders: [Updated; 2],
    recorder: Recorder,
}

impl Components {
    /// Connects the components, and creates the nodes, their leases and the owners of the pods.
    async fn prepare(target: &Arc<Target>, count: usize) -> Outcome<Self> {
        let manager = Component::connect(target, "kube-controller-manager/v1.36.2 (linux/amd64) load").await?;
        let scheduler = Component::connect(target, "kube-scheduler/v1.36.2 (linux/amd64) load").await?;
        let mut nodes = Vec::with_capacity(count);
        for number in 0..count {
            let name = node_name(number);
            let kubelet = Component::connect(target, "kubelet/v1.36.2 (linux/amd64) load").await?;
            let proxy = Component::connect(target, "kube-proxy/v1.36.2 (linux/amd64) load").await?;
            let (uid, _) = identity_of(&kubelet.post(NODES, bodies::node_body(number)).await?)?;
            let lease = node_lease(&name, &uid, "", 0);
            let lease = Updated::create(&kubelet, NODE_LEASES, &name, lease).await?;
            nodes.push(Node { name, kubelet, proxy, uid, lease });
        }
        let deployment = Updated::create(&manager, DEPLOYMENTS, "web", bodies::deployment_body("", 0)).await?;
        let body = bodies::replica_set_body(&deployment.uid, "", 0);
        let replica_set = Updated::create(&manager, REPLICA_SETS, REPLICA_SET, body).await?;
        let slice = bodies::endpoint_slice_body("", 0);
        let endpoint_slice = Updated::create(&manager, ENDPOINT_SLICES, "web-x2v5q", slice).await?;
        let [first, second] = [("kube-controller-manager", &manager), ("kube-scheduler", &scheduler)];
        let leader = async |(name, component): (&str, &Arc<Component>)| {
            Updated::create(component, LEADER_LEASES, name, leader_lease(name, "", 0)).await
        };
        let leaders = [leader(first).await?, leader(second).await?];
        let recorder = Recorder::default();
        Ok(Components { manager, scheduler, nodes, deployment, replica_set, endpoint_slice, leaders, recorder })
    }

    fn open_watches(&self, watches: &mut Watches, metadata: bool) {
        watches.open_controller_manager(&self.manager, metadata);
        watches.open_scheduler(&self.scheduler);
        for (number, node) in self.nodes.iter().enumerate() {
            watches.open_kubelet(&node.kubelet, number, &node.name);
            watches.open_proxy(&node.proxy);
        }
    }

    /// Sends the requests of one pod's life, one after the other.
    async fn live(&self, pod: usize) -> Outcome<()> {
        let number = pod % self.nodes.len();
        let (kubelet, name) = (&self.nodes[number].kubelet, pod_name(pod));
        let (path, status) = (format!("{PODS}/{name}"), format!("{PODS}/{name}/status"));
        let timed = &self.recorder;
        let created = self.manager.post(PODS, bodies::pod_body(pod, &self.replica_set.uid));
        let (uid, version) = identity_of(&timed.timed(RequestType::CreatePod, created).await?)?;
        let (bindings, body) = (format!("{path}/binding"), binding(NAMESPACE, &name, &self.nodes[number].name));
        timed.timed(RequestType::BindPod, self.scheduler.post(&bindings, body)).await?;
        let event = bodies::scheduled_event(pod, number, &uid, &version);
        timed.timed(RequestType::CreateEvent, self.scheduler.post(EVENTS, event)).await?;

        let patches = RequestType::PatchPodStatus.count(pod);
        let reach = async |steps: &[Step]| {
            for step in steps {
                timed.timed(RequestType::GetPod, kubelet.get(&path)).await?;
                let patch = kubelet.patch(&status, step.patch(pod, number, &uid));
                timed.timed(RequestType::PatchPodStatus, patch).await?;
            }
            Outcome::Ok(())
        };
        let (before, after) = Step::life(patches);
        reach(before).await?;
        self.update_others(pod).await?;
        let delete = self.manager.delete(&path, bodies::delete_gracefully());
        timed.timed(RequestType::DeletePod, delete).await?;
        reach(after).await?;
        // The kubelet reads the pod again and finds that the status is up to date.
        for _ in patches..RequestType::GetPod.count(pod) {
            timed.timed(RequestType::GetPod, kubelet.get(&path)).await?;
        }
        timed.timed(RequestType::DeletePod, kubelet.delete(&path, bodies::delete_now(&uid))).await?;
        Ok(())
    }

    /// Sends the requests that belong to a number of pods and not to one.
    async fn update_others(&self, pod: usize) -> Outcome<()> {
        let (recorder, manager) = (&self.recorder, &*self.manager);
        let kind = RequestType::UpdateEndpointSlice;
        for number in kind.numbers(pod) {
            let body = |version: &str| bodies::endpoint_slice_body(version, number + 1);
            self.endpoint_slice.replace((recorder, kind), manager, "", body).await?;
        }
        let kind = RequestType::UpdateReplicaSetStatus;
        for number in kind.numbers(pod) {
            let body = |version: &str| bodies::replica_set_body(&self.deployment.uid, version, number + 1);
            self.replica_set.replace((recorder, kind), manager, "/status", body).await?;
        }
        let kind = RequestType::UpdateDeploymentStatus;
        for number in kind.numbers(pod) {
            let body = |version: &str| bodies::deployment_body(version, number + 1);
            self.deployment.replace((recorder, kind), manager, "/status", body).await?;
        }
        let kind = RequestType::RenewNodeLease;
        for number in kind.numbers(pod) {
            let node = &self.nodes[number % self.nodes.len()];
            let body = |version: &str| node_lease(&node.name, &node.uid, version, number + 1);
            node.lease.replace((recorder, kind), &node.kubelet, "", body).await?;
        }
        let kind = RequestType::PatchNodeStatus;
        for number in kind.numbers(pod) {
            let node = &self.nodes[number % self.nodes.len()];
            let (path, patch) =
                (format!("{NODES}/{}/status", node.name), node_status_patch(&bodies::heartbeat(number)));
            recorder.timed(kind, node.kubelet.patch(&path, patch)).await?;
        }
        let leaders = [("kube-controller-manager", &self.manager), ("kube-scheduler", &self.scheduler)];
        let kind = RequestType::RenewLeaderLease;
        for number in kind.numbers(pod) {
            let ((name, component), lease) = (leaders[number % 2], &self.leaders[number % 2]);
            let body = |version: &str| leader_lease(name, version, number + 1);
            lease.replace((recorder, kind), component, "", body).await?;
        }
        let kind = RequestType::GetLeaderLease;
        for number in kind.numbers(pod) {
            let ((_, component), lease) = (leaders[number % 2], &self.leaders[number % 2]);
            recorder.timed(kind, component.get(&lease.path)).await?;
        }
        Ok(())
    }
}

fn node_lease(name: &str, uid: &str, version: &str, number: usize) -> Bytes {
    let renew_time = &bodies::micro_time(number);
    Lease { namespace: "kube-node-lease", name, node_uid: Some(uid), renew_time, version }.body()
}

fn leader_lease(name: &str, version: &str, number: usize) -> Bytes {
    let renew_time = &bodies::micro_time(number);
    Lease { namespace: NAMESPACE, name, node_uid: None, renew_time, version }.body()
}

/// Creates the namespaces and the ServiceAccount of the pods, and deletes the objects of an earlier run.
async fn clean(target: &Target) -> Outcome<()> {
    let mut client = Client::connect(target, Http::H1).await?;
    for name in [NAMESPACE, "kube-node-lease"] {
        let body = format!("{{\"apiVersion\":\"v1\",\"kind\":\"Namespace\",\"metadata\":{{\"name\":\"{name}\"}}}}");
        create_if_absent(&mut client, "/api/v1/namespaces", body.into()).await?;
    }
    // Without controllers nothing else creates it.
    let account = "{\"apiVersion\":\"v1\",\"kind\":\"ServiceAccount\",\"metadata\":{\"name\":\"default\"}}";
    let accounts = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    create_if_absent(&mut client, &accounts, account.into()).await?;
    for name in names(&mut client, ALL_NODES).await? {
        for path in [format!("{NODE_LEASES}/{name}"), format!("{NODES}/{name}")] {
            let (status, _) = client.request(Method::DELETE, &path, Extras::default()).await?;
            if !status.is_success() && status != StatusCode::NOT_FOUND {
                return Err(format!("DELETE {path} on {}: {status}", target.name).into());
            }
        }
    }
    let pods = format!("{PODS}?gracePeriodSeconds=0");
    for path in [DEPLOYMENTS, REPLICA_SETS, &pods, ENDPOINT_SLICES, EVENTS, LEADER_LEASES] {
        client.expect(Method::DELETE, path, Extras::default()).await?;
    }
    verify_absence(target).await
}

/// Fails if a pod of the load exists.
async fn verify_absence(target: &Target) -> Outcome<()> {
    match names(&mut Client::connect(target, Http::H1).await?, PODS).await?.as_slice() {
        [] => Ok(()),
        pods => Err(format!("{} pods are left on {}, such as {}", pods.len(), target.name, pods[0]).into()),
    }
}

/// The names of the objects of a list.
async fn names(client: &mut Client<'_>, path: &str) -> Outcome<Vec<String>> {
    let list: Value = serde_json::from_slice(&client.expect(Method::GET, path, Extras::default()).await?)?;
    let items = list["items"].as_array().ok_or_else(|| format!("GET {path} is not a list"))?;
    Ok(items.iter().filter_map(|item| Some(item["metadata"]["name"].as_str()?.to_owned())).collect())
}

/// The `ADDED`, `MODIFIED` and `DELETED` events that each kubelet receives for its pods. The binding adds a pod to the
/// watch. Each patch changes the pod, and so does each deletion: the first one sets the grace period, and the last one
/// shortens the period to 0 before the pod is removed (`BeforeDelete` in `registry/rest/delete.go`).
fn expected_events(pods: usize, nodes: usize) -> Vec<[u64; 3]> {
    let mut expected = vec![[0; 3]; nodes];
    for pod in 0..pods {
        let [added, modified, deleted] = &mut expected[pod % nodes];
        *added += 1;
        *modified += RequestType::PatchPodStatus.count(pod) as u64 + 2;
        *deleted += 1;
    }
    expected
}

/// The numbers of lost and of surplus events of the kubelets' pods.
fn differences(watches: &Watches, expected: &[[u64; 3]]) -> (u64, u64) {
    let seen = watches.pods().iter().flat_map(|pods| pods.counts());
    seen.zip(expected.iter().flatten()).fold((0, 0), |(lost, duplicate), (seen, expected)| {
        (lost + expected.saturating_sub(seen), duplicate + seen.saturating_sub(*expected))
    })
}

/// Waits until the kubelets have all events of their pods and no watch receives more, or nothing arrives any more.
async fn arrived(watches: &Watches, expected: &[[u64; 3]]) {
    let (mut last, mut at) = (watches.events(), Instant::now());
    loop {
        let limit = if differences(watches, expected).0 == 0 { QUIET } else { SILENCE_MAX };
        if at.elapsed() > limit {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        if watches.events() != last {
            (last, at) = (watches.events(), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::expected_events;

    #[test]
    fn expected_events_of_a_kubelet_are_those_of_its_pods() {
        // Pod 0 has four patches, pods 1 to 4 have five.
        assert_eq!(expected_events(5, 2), [[3, 6 + 7 + 7, 3], [2, 7 + 7, 2]]);
        assert_eq!(expected_events(1, 2), [[1, 6, 1], [0, 0, 0]]);
    }
}
