//! Runs the same scenario with kube-rs' reflector and with listwatch's.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, reflector};
use listwatch_client::transport::ServiceTransport;
use listwatch_client::{BackoffPolicy, Client, Notice, Reflection, ReflectorConfig, Scope};
use rustix::time::{ClockId, clock_gettime};

use crate::memory;
use crate::server::{Server, Shape};

/// The CPU time of this process.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}

/// The figures of one contender.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// The time and the CPU time of the initial state.
    pub(crate) sync: (Duration, Duration),
    /// The peak of the allocated memory during the initial state, and the memory after it, in
    /// bytes.
    pub(crate) sync_peak: usize,
    pub(crate) steady: usize,
    /// The peak of the allocated memory during the relist, in bytes.
    pub(crate) relist_peak: usize,
    /// The CPU time of the relist.
    pub(crate) relist: Duration,
    /// The CPU time of the events.
    pub(crate) events: Duration,
}

/// Measures the scenario. A contender reports each complete state and each applied event.
struct ScenarioMeter {
    figures: Figures,
    begun: (Instant, Duration),
    base: usize,
    synced: usize,
    events: usize,
    events_wanted: usize,
}

impl ScenarioMeter {
    fn begin(events_wanted: usize) -> Self {
        let base = memory::held();
        memory::start_peak();
        let begun = (Instant::now(), cpu());
        ScenarioMeter { figures: Figures::default(), begun, base, synced: 0, events: 0, events_wanted }
    }

    fn synced(&mut self) {
        let spent = cpu() - self.begun.1;
        let peak = memory::peak().saturating_sub(self.base);
        if self.synced == 0 {
            self.figures.sync = (self.begun.0.elapsed(), spent);
            self.figures.sync_peak = peak;
        } else {
            self.figures.relist = spent;
            self.figures.relist_peak = peak;
        }
        self.synced += 1;
        self.figures.steady = memory::held().saturating_sub(self.base);
        memory::start_peak();
        self.begun.1 = cpu();
    }

    fn applied(&mut self, events: usize) {
        if self.synced == 2 {
            self.events += events;
        }
    }

    /// True after the last event was applied.
    fn is_over(&mut self) -> bool {
        let over = self.synced == 2 && self.events >= self.events_wanted;
        if over {
            self.figures.events = cpu() - self.begun.1;
        }
        over
    }
}

/// Runs listwatch's reflector.
pub(crate) async fn ours(server: Server, events: usize) -> Figures {
    let client = Client::with_transport(ServiceTransport::new(server), "default");
    let resource = listwatch_client::ApiResource {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
        ..Default::default()
    };
    let list_watch = client.list_watch(&resource, &Scope::Cluster);
    // A list, as in kube-rs, and no delay before the relist.
    let backoff = BackoffPolicy { initial: Duration::from_millis(1), ..BackoffPolicy::default() };
    let config = ReflectorConfig { watch_list: false, check_server: false, backoff, ..ReflectorConfig::default() };
    let mut scenario = ScenarioMeter::begin(events);
    let mut reflection = Reflection::new(list_watch, config);
    while !scenario.is_over() {
        match reflection.next().await {
            Notice::Changes(changes) => scenario.applied(changes.len()),
            Notice::Synced => scenario.synced(),
            _ => {}
        }
    }
    scenario.figures
}

/// Runs kube-rs' `watcher` and `reflector`, combined as in its documentation.
pub(crate) async fn kube(server: Server, events: usize, shape: Shape) -> Figures {
    let client = kube::Client::new(server, "default");
    let kind = GroupVersionKind::gvk("", "v1", "ConfigMap");
    let resource = ApiResource::from_gvk_with_plural(&kind, "configmaps");
    match shape {
        Shape::Full => {
            let scenario = ScenarioMeter::begin(events);
            let api: Api<DynamicObject> = Api::all_with(client, &resource);
            let writer = reflector::store::Writer::new(resource);
            let stream = watcher::watcher(api, watcher::Config::default());
            follow(scenario, reflector::reflector(writer, stream)).await
        }
        Shape::Metadata => {
            let scenario = ScenarioMeter::begin(events);
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &resource);
            let writer = reflector::store::Writer::new(resource);
            let stream = watcher::watcher(api, watcher::Config::default());
            follow(scenario, reflector::reflector(writer, stream)).await
        }
    }
}

async fn follow<K>(
    mut scenario: ScenarioMeter,
    stream: impl futures_util::Stream<Item = Result<Event<K>, watcher::Error>>,
) -> Figures {
    // The delay after the 410 does not count, because it is not CPU time.
    let mut stream = std::pin::pin!(stream.default_backoff());
    while !scenario.is_over() {
        match stream.next().await {
            Some(Ok(Event::InitDone)) => scenario.synced(),
            Some(Ok(Event::Apply(_))) => scenario.applied(1),
            Some(_) => {}
            None => break,
        }
    }
    scenario.figures
}
