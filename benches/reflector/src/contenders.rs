//! The same story, told to kube-rs' reflector and to ours.

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

/// CPU time of this process.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}

/// What one contender did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// The initial state: time, CPU time.
    pub(crate) sync: (Duration, Duration),
    /// The most that was held on the way there, and what was held then, in bytes.
    pub(crate) sync_peak: usize,
    pub(crate) steady: usize,
    /// The most that was held during the relist.
    pub(crate) relist_peak: usize,
    /// CPU time of the relist.
    pub(crate) relist: Duration,
    /// CPU time of the events.
    pub(crate) events: Duration,
}

/// Follows the story; told when a whole state is in place, and when an event was applied.
struct Story {
    figures: Figures,
    begun: (Instant, Duration),
    base: usize,
    synced: usize,
    events: usize,
    events_wanted: usize,
}

impl Story {
    fn begin(events_wanted: usize) -> Self {
        let base = memory::held();
        memory::start_peak();
        let begun = (Instant::now(), cpu());
        Story { figures: Figures::default(), begun, base, synced: 0, events: 0, events_wanted }
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

    /// True when the last event was applied.
    fn is_over(&mut self) -> bool {
        let over = self.synced == 2 && self.events >= self.events_wanted;
        if over {
            self.figures.events = cpu() - self.begun.1;
        }
        over
    }
}

/// Ours.
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
    // A list, as kube-rs does it, and no wait before the relist.
    let backoff = BackoffPolicy { initial: Duration::from_millis(1), ..BackoffPolicy::default() };
    let config = ReflectorConfig { watch_list: false, check_server: false, backoff, ..ReflectorConfig::default() };
    let mut story = Story::begin(events);
    let mut reflection = Reflection::new(list_watch, config);
    while !story.is_over() {
        match reflection.next().await {
            Notice::Changes(changes) => story.applied(changes.len()),
            Notice::Synced => story.synced(),
            _ => {}
        }
    }
    story.figures
}

/// kube-rs: `watcher` and `reflector` as its documentation puts them together.
pub(crate) async fn kube(server: Server, events: usize, shape: Shape) -> Figures {
    let client = kube::Client::new(server, "default");
    let kind = GroupVersionKind::gvk("", "v1", "ConfigMap");
    let resource = ApiResource::from_gvk_with_plural(&kind, "configmaps");
    match shape {
        Shape::Full => {
            let story = Story::begin(events);
            let api: Api<DynamicObject> = Api::all_with(client, &resource);
            let writer = reflector::store::Writer::new(resource);
            let stream = watcher::watcher(api, watcher::Config::default());
            follow(story, reflector::reflector(writer, stream)).await
        }
        Shape::Metadata => {
            let story = Story::begin(events);
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &resource);
            let writer = reflector::store::Writer::new(resource);
            let stream = watcher::watcher(api, watcher::Config::default());
            follow(story, reflector::reflector(writer, stream)).await
        }
    }
}

async fn follow<K>(
    mut story: Story,
    stream: impl futures_util::Stream<Item = Result<Event<K>, watcher::Error>>,
) -> Figures {
    // The delay after the 410 counts for neither: it is no CPU time.
    let mut stream = std::pin::pin!(stream.default_backoff());
    while !story.is_over() {
        match stream.next().await {
            Some(Ok(Event::InitDone)) => story.synced(),
            Some(Ok(Event::Apply(_))) => story.applied(1),
            Some(_) => {}
            None => break,
        }
    }
    story.figures
}
