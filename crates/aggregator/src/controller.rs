//! The loops around an [`Aggregator`]: routes follow the APIServices, conditions follow the probes, and documents
//! follow the extension servers.
//!
//! ```text
//!  ApiServiceObjects::changed ─▶ routes ─┬─▶ availability: 5 at once, every 30 s, backoff 5 ms to 30 s
//!                                        └─▶ documents: 2 at once, every 60 s, backoff 500 ms to 60 s
//! ```
//!
//! Rules: `kube-aggregator/pkg/controllers/status/remote`, `…/pkg/apiserver/handler_discovery.go`,
//! `…/pkg/controllers/openapi`. Upstream backs off OpenAPI downloads for up to an hour; here all documents of a server
//! are refreshed together.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use listwatch_meta::UserInfo;
use listwatch_proxy::Transport;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::aggregator::{Aggregator, destination};
use crate::availability::{ProbeResult, check_objects, check_probes};
use crate::documents::RemoteDocument;
use crate::fetch::{Fetch, FetchError, Fetched, fetch};
use crate::objects::{ApiServiceObjects, EndpointSlice, Service};
use crate::resolve::Address;
use crate::schedule::{Delays, Schedule};
use crate::{ApiService, ServiceReference};

/// The largest number of APIServices whose availability is checked concurrently (`remote.Run(5, …)`).
const AVAILABILITY_WORKERS: usize = 5;
/// The number of concurrent probes of one APIService.
const PROBES: usize = 5;
/// The time limit of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest number of bytes that are read from the response to a probe. Only the status code is used, so a longer
/// response also succeeds.
const PROBE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The largest number of APIServices whose documents are fetched concurrently.
const DOCUMENT_WORKERS: usize = 2;
/// The time limit of a request for discovery.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit of a request for OpenAPI (`specDownloadTimeout`).
const OPENAPI_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest discovery document, in bytes. A larger document fails the refresh.
const DISCOVERY_BYTES_MAX: usize = 1024 * 1024;
/// The largest OpenAPI v3 index, in bytes. A larger index fails the refresh.
const OPENAPI_INDEX_BYTES_MAX: usize = 1024 * 1024;
/// The largest OpenAPI v2 document, in bytes. A larger document fails the refresh.
const OPENAPI_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Changes within this time are processed together.
const COALESCE: Duration = Duration::from_millis(50);
/// The delay before a failed list of the APIServices is repeated.
const LIST_RETRY: Duration = Duration::from_secs(1);

const AVAILABILITY_DELAYS: Delays = Delays {
    period: Duration::from_secs(30),
    backoff_min: Duration::from_millis(5),
    backoff_max: Duration::from_secs(30),
};
const DOCUMENT_DELAYS: Delays = Delays {
    period: Duration::from_secs(60),
    backoff_min: Duration::from_millis(500),
    backoff_max: Duration::from_secs(60),
};

const ACCEPT_AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                                 application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
                                 application/json";
const ACCEPT_JSON: &str = "application/json";

fn user(name: &str, groups: &[&str]) -> UserInfo {
    let groups = groups.iter().map(|&group| group.to_owned()).collect();
    UserInfo { username: name.to_owned(), groups, ..UserInfo::default() }
}

/// The objects that determine a route. A change of any of them makes the APIService due.
#[derive(Clone, PartialEq)]
struct Observation {
    /// The APIService without its condition, which the controller itself writes.
    api_service: ApiService,
    service: Result<Option<Service>, String>,
    slices: Result<Arc<Vec<EndpointSlice>>, String>,
}

/// Creates a request for discovery.
fn discovery<'a>(user: &'a UserInfo, accept: &'static str, etag: &'a str) -> Fetch<'a> {
    Fetch { user, accept, etag, timeout: DISCOVERY_TIMEOUT, bytes_max: DISCOVERY_BYTES_MAX }
}

/// Creates a request for OpenAPI.
fn openapi<'a>(user: &'a UserInfo, etag: &'a str, bytes_max: usize) -> Fetch<'a> {
    Fetch { user, accept: ACCEPT_JSON, etag, timeout: OPENAPI_TIMEOUT, bytes_max }
}

/// Applies a response to the documents on a separate thread, because parsing megabytes would delay other requests.
async fn take<T, F>(document: &mut RemoteDocument, fetched: Fetched, apply: F) -> T
where
    T: Send + 'static,
    F: FnOnce(&mut RemoteDocument, &Fetched) -> T + Send + 'static,
{
    let mut taken = std::mem::take(document);
    let applying = tokio::task::spawn_blocking(move || {
        let result = apply(&mut taken, &fetched);
        (taken, result)
    });
    match applying.await {
        Ok((taken, result)) => {
            *document = taken;
            result
        }
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime ends, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

type Observations = Arc<BTreeMap<String, Observation>>;

impl Aggregator {
    /// Updates routes, conditions and documents until the future is dropped.
    pub async fn run(self: Arc<Self>, api_services: Arc<dyn ApiServiceObjects>) {
        let (observed, observations) = watch::channel(Observations::default());
        let (checker, written) = (Arc::clone(&self), Arc::clone(&api_services));
        let check = move |name: String, observation: Observation| {
            let (this, api_services) = (Arc::clone(&checker), Arc::clone(&written));
            async move { this.check_availability(&*api_services, &name, observation).await }
        };
        let refresher = Arc::clone(&self);
        let refresh = move |name: String, observation: Observation| {
            let this = Arc::clone(&refresher);
            async move { this.refresh_documents(&name, &observation.api_service).await }
        };
        // Each loop is a task of its own, so that none delays another. Dropping the set ends them.
        let mut loops = JoinSet::new();
        loops.spawn(async move { self.observe(&*api_services, observed).await });
        loops.spawn(work(observations.clone(), AVAILABILITY_DELAYS, AVAILABILITY_WORKERS, check));
        loops.spawn(work(observations, DOCUMENT_DELAYS, DOCUMENT_WORKERS, refresh));
        if let Some(Err(error)) = loops.join_next().await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }

    /// Lists the objects after each change and marks changed APIServices as due.
    async fn observe(&self, api_services: &dyn ApiServiceObjects, observed: watch::Sender<Observations>) {
        loop {
            match api_services.api_services().await {
                Ok(services) => {
                    let mut observations = BTreeMap::new();
                    let mut targets = BTreeMap::new();
                    for service in &services {
                        let Some(reference) = &service.service else { continue };
                        let observation = self.observation(service).await;
                        let target = (observation.service.clone(), observation.slices.clone());
                        targets.insert((reference.namespace.clone(), reference.name.clone()), target);
                        observations.insert(service.name.clone(), observation);
                    }
                    self.observe_targets(targets);
                    self.update(services);
                    observed.send_if_modified(|present| {
                        let is_changed = **present != observations;
                        *present = Arc::new(observations);
                        is_changed
                    });
                }
                Err(error) => {
                    warn!(%error, "the APIServices cannot be listed");
                    tokio::time::sleep(LIST_RETRY).await;
                    continue;
                }
            }
            api_services.changed().await;
            tokio::time::sleep(COALESCE).await;
        }
    }

    async fn observation(&self, api_service: &ApiService) -> Observation {
        let (mut service, mut slices) = (Ok(None), Ok(Arc::default()));
        if let Some(ServiceReference { namespace, name, .. }) = &api_service.service {
            (service, slices) = self.read_target(namespace, name).await;
        }
        let api_service = ApiService { is_available: false, ..api_service.clone() };
        Observation { api_service, service, slices }
    }

    /// Checks an APIService and writes its condition. Returns whether it is available.
    async fn check_availability(
        &self,
        api_services: &dyn ApiServiceObjects,
        name: &str,
        Observation { api_service, service, slices }: Observation,
    ) -> bool {
        let slices = slices.map(|slices| slices.to_vec());
        let condition = match check_objects(&api_service, &service, &slices) {
            Some(condition) => condition,
            None => check_probes(&self.probe(&api_service).await),
        };
        let is_written = match api_services.set_available(name, &condition).await {
            Ok(()) => true,
            Err(error) => {
                info!(api_service = name, error, "a condition cannot be written");
                false
            }
        };
        // A change of the missing objects triggers the next check. Only failed probes and failed writes are retried
        // soon.
        is_written && condition.reason != "FailedDiscoveryCheck"
    }

    /// Sends several requests for the discovery document at once, and returns the results up to the first success.
    async fn probe(&self, api_service: &ApiService) -> Vec<(String, ProbeResult)> {
        let mut running: FuturesUnordered<_> = (0..PROBES).map(|_| self.probe_once(api_service)).collect();
        let mut results = Vec::new();
        while let Some((url, result)) = running.next().await {
            let is_success = result.is_success();
            results.push((url, result));
            if is_success {
                break;
            }
        }
        results
    }

    async fn probe_once(&self, api_service: &ApiService) -> (String, ProbeResult) {
        let (transport, address) = match self.reach(api_service).await {
            Ok(reached) => reached,
            Err(error) => return (String::new(), ProbeResult::Unresolved(error)),
        };
        let path = api_service.discovery_path();
        let to = destination(transport, &address, path.clone());
        let url = format!("https://{}{path}", to.authority());
        let user = user("system:kube-aggregator", &["system:masters"]);
        let request =
            Fetch { user: &user, accept: "*/*", etag: "", timeout: PROBE_TIMEOUT, bytes_max: PROBE_BYTES_MAX };
        let result = match fetch(&self.probes, &to, &request).await {
            // The server responds; this check ignores the document.
            Ok(Fetched { code, .. }) | Err(FetchError::TooLarge { code, .. }) => ProbeResult::Code(code),
            Err(FetchError::TimedOut) => ProbeResult::TimedOut,
            Err(FetchError::Failed(error)) => ProbeResult::Failed(format!("Get {url:?}: {error}")),
        };
        (url, result)
    }

    async fn reach(&self, api_service: &ApiService) -> Result<(Transport, Address), String> {
        let gone = || "the APIService has gone".to_owned();
        let route = self.route_of(&api_service.name).ok_or_else(gone)?;
        let transport = route.probe_transport.map_err(|error| error.to_string())?;
        let reference = api_service.service.as_ref().ok_or_else(gone)?;
        let address = self.resolve(reference).await.map_err(|error| error.to_string())?;
        Ok((transport, address))
    }

    /// Fetches the documents of an APIService. Returns whether all requests succeeded.
    async fn refresh_documents(&self, name: &str, api_service: &ApiService) -> bool {
        let mut document = self.documents().by_name.get(name).cloned().unwrap_or_default();
        let (transport, address) = match self.reach(api_service).await {
            Ok(reached) => reached,
            Err(error) => {
                debug!(api_service = name, error, "documents cannot be fetched");
                document.fail_discovery();
                self.store_document(name, document);
                return false;
            }
        };
        let discovery_user = user("system:kube-aggregator", &["system:masters"]);
        let openapi_user = user("system:aggregator", &[]);
        let get = |path: &str| destination(transport.clone(), &address, path.to_owned());
        let service = api_service.clone();
        let take_aggregated =
            move |document: &mut RemoteDocument, fetched: &Fetched| document.take_aggregated(&service, fetched);
        let service = api_service.clone();
        let take_openapi_v2 =
            move |document: &mut RemoteDocument, fetched: &Fetched| document.take_openapi_v2(&service, fetched);
        let etag = document.discovery_etag.clone();
        let request = discovery(&discovery_user, ACCEPT_AGGREGATED, &etag);
        let discovered = match fetch(&self.probes, &get("/apis"), &request).await {
            Err(error) => Err(error.to_string()),
            Ok(fetched) => match take(&mut document, fetched, take_aggregated).await {
                Ok(true) => Ok(()),
                Err(error) => Err(error.to_string()),
                Ok(false) => {
                    let user = user("system:kube-aggregator", &[]);
                    let request = discovery(&user, ACCEPT_JSON, "");
                    match fetch(&self.probes, &get(&api_service.discovery_path()), &request).await {
                        Ok(fetched) => take(&mut document, fetched, RemoteDocument::take_resource_list)
                            .await
                            .map_err(|error| error.to_string()),
                        Err(error) => Err(error.to_string()),
                    }
                }
            },
        };
        if let Err(error) = &discovered {
            debug!(api_service = name, error, "discovery is stale");
            document.fail_discovery();
            // If discovery fails, OpenAPI is not requested.
            self.store_document(name, document);
            return false;
        }
        let is_current = document.discovery.as_ref().is_some_and(|discovery| discovery.is_current);

        let request = openapi(&openapi_user, "", OPENAPI_INDEX_BYTES_MAX);
        let has_index = match fetch(&self.probes, &get("/openapi/v3"), &request).await {
            Ok(fetched) => take(&mut document, fetched, RemoteDocument::take_openapi_v3).await,
            Err(_) => false,
        };
        let etag = document.openapi_v2_etag.clone();
        let request = openapi(&openapi_user, &etag, OPENAPI_BYTES_MAX);
        let has_spec = match fetch(&self.probes, &get("/openapi/v2"), &request).await {
            Ok(fetched) => take(&mut document, fetched, take_openapi_v2).await,
            Err(_) => false,
        };
        self.store_document(name, document);
        is_current && has_index && has_spec
    }
}

/// Runs due items concurrently until the sender is dropped. `run` returns whether an item succeeded.
async fn work<F, Fut>(mut observations: watch::Receiver<Observations>, delays: Delays, workers: usize, run: F)
where
    F: Fn(String, Observation) -> Fut,
    Fut: Future<Output = bool>,
{
    let mut schedule = Schedule::new(delays);
    let mut known = Observations::default();
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < workers
            && let Some(name) = schedule.take(Instant::now())
        {
            let Some(observation) = known.get(&name).cloned() else { continue };
            let running_item = run(name.clone(), observation);
            running.push(async move { (name, running_item.await) });
        }
        let due = if running.len() < workers { schedule.next_due() } else { None };
        let wait = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = observations.changed() => {
                if changed.is_err() {
                    return;
                }
                let found = Arc::clone(&observations.borrow_and_update());
                let now = Instant::now();
                schedule.retain(found.keys().map(String::as_str), now);
                for name in found.iter().filter(|(name, found)| known.get(*name) != Some(*found)).map(|(name, _)| name) {
                    schedule.mark_dirty(name, now);
                }
                known = found;
            }
            Some((name, is_success)) = running.next() => schedule.end(&name, is_success, Instant::now()),
            () = wait => {}
        }
    }
}
