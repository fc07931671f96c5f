//! `/metrics` in the Prometheus text format.
//!
//! A metric that kube-apiserver has keeps its name and labels, so that dashboards and alerts work. The
//! names of other metrics begin with `listwatch_`.

mod audit;
mod flow_control;
mod process;
mod slis;

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::fmt::{Display, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use listwatch_audit::AuditCounters;
use listwatch_cacher::CacherStats;
use listwatch_storage::StoreStats;
use parking_lot::Mutex;

pub(crate) use self::process::process_text;
use crate::flow_control::Fairness;
use crate::request::routing::{ResourceRoute, Verb};
use listwatch_registry::{Registry, Resource};
use listwatch_write::WriteVerb;

/// The media type of the text format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the duration buckets, in seconds, as in kube-apiserver.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// Resource versions are reported modulo this number, because a double cannot represent more digits.
const VERSION_MODULO: u64 = 1_000_000_000_000_000;

/// The labels of one request. The value keeps the resource and its definition alive while the request runs. A
/// [`Series`] holds only names.
#[derive(Debug)]
pub(crate) struct Labels {
    resource: Arc<Resource>,
    verb: &'static str,
    subresource: Option<&'static str>,
    scope: &'static str,
    dry_run: bool,
}

impl Labels {
    /// Creates the labels of a request. `apply` distinguishes a server-side apply from other patches.
    pub(crate) fn new(route: &ResourceRoute<'_>, apply: bool, dry_run: bool) -> Self {
        let verb = match route.verb {
            Verb::Get => "GET",
            Verb::Collection if route.is_watch() => "WATCH",
            Verb::Collection => "LIST",
            Verb::Connect => "CONNECT",
            Verb::Write(WriteVerb::Create) => "POST",
            Verb::Write(WriteVerb::Update) => "PUT",
            Verb::Write(WriteVerb::Patch) if apply => "APPLY",
            Verb::Write(WriteVerb::Patch) => "PATCH",
            Verb::Write(WriteVerb::Delete) => "DELETE",
            Verb::Write(WriteVerb::DeleteCollection) => "DELETECOLLECTION",
        };
        // As in upstream's `CleanScope`, a list that selects one name by a field selector has the scope of an object.
        let scope = match (&*route.info.name, &*route.info.verb, &*route.info.namespace) {
            ("", "create", _) => "resource",
            ("", _, "") => "cluster",
            ("", ..) => "namespace",
            _ => "resource",
        };
        Labels { resource: Arc::clone(&route.resource), verb, subresource: route.subresource, scope, dry_run }
    }

    fn series(&self) -> Series {
        let Resource { group, version, plural, .. } = &*self.resource;
        Series {
            group: group.as_str().into(),
            version: version.as_str().into(),
            plural: plural.as_str().into(),
            verb: self.verb,
            subresource: self.subresource,
            scope: self.scope,
            dry_run: self.dry_run,
        }
    }
}

/// The labels of a series of requests. The number of series is bounded by the served resources, verbs and scopes, so
/// clients cannot create arbitrarily many.
#[derive(Debug)]
struct Series {
    group: Box<str>,
    version: Box<str>,
    plural: Box<str>,
    verb: &'static str,
    subresource: Option<&'static str>,
    scope: &'static str,
    dry_run: bool,
}

impl Series {
    /// Returns the resource; `None` if it is no longer served.
    fn resource<'a>(&self, registry: &'a Registry) -> Option<&'a Arc<Resource>> {
        let Series { group, version, plural, .. } = self;
        registry.find(group, version, plural).or_else(|| registry.find_unstored(group, version, plural))
    }

    /// Whether the resource is still served.
    fn is_served(&self, registry: &Registry) -> bool {
        self.resource(registry).is_some()
    }

    /// Returns the labels of `apiserver_requested_deprecated_apis`; `None` for a resource that is not deprecated. No
    /// served version of a built-in kind has a release that removes it, and those of custom resources never have one.
    fn deprecated_text(&self, registry: &Registry) -> Option<String> {
        self.resource(registry)?.deprecation.as_ref()?;
        let Series { group, version, plural, .. } = self;
        let subresource = self.subresource.unwrap_or_default();
        Some(format!(
            "group=\"{group}\",removed_release=\"\",resource=\"{plural}\",subresource=\"{subresource}\",\
             version=\"{version}\""
        ))
    }

    fn text(&self) -> String {
        let Series { group, version, plural, verb, scope, .. } = self;
        let dry_run = if self.dry_run { "All" } else { "" };
        let subresource = self.subresource.unwrap_or_default();
        format!(
            "component=\"apiserver\",dry_run=\"{dry_run}\",group=\"{group}\",resource=\"{plural}\",scope=\"{scope}\",\
             subresource=\"{subresource}\",verb=\"{verb}\",version=\"{version}\""
        )
    }
}

/// The shared key of [`Labels`] and [`Series`], so that a request finds its series without copying names.
trait SeriesKey {
    fn key(&self) -> (&str, &str, &str, &str, Option<&str>, &str, bool);
}

impl SeriesKey for Labels {
    fn key(&self) -> (&str, &str, &str, &str, Option<&str>, &str, bool) {
        let Resource { group, version, plural, .. } = &*self.resource;
        (group, version, plural, self.verb, self.subresource, self.scope, self.dry_run)
    }
}

impl SeriesKey for Series {
    fn key(&self) -> (&str, &str, &str, &str, Option<&str>, &str, bool) {
        let Series { group, version, plural, .. } = self;
        (group, version, plural, self.verb, self.subresource, self.scope, self.dry_run)
    }
}

impl PartialEq for dyn SeriesKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for dyn SeriesKey + '_ {}

impl Hash for dyn SeriesKey + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for Series {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Series {}

impl Hash for Series {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl<'a> Borrow<dyn SeriesKey + 'a> for Series {
    fn borrow(&self) -> &(dyn SeriesKey + 'a) {
        self
    }
}

/// The counts of one series.
#[derive(Debug, Default)]
struct Counts {
    /// The number of requests per response code.
    codes: Vec<(u16, u64)>,
    /// The number of requests per bucket of [`BUCKETS`]; each request is counted in one bucket only.
    buckets: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
}

impl Counts {
    fn add(&mut self, code: u16, took: Duration) {
        match self.codes.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => self.codes.push((code, 1)),
        }
        let seconds = took.as_secs_f64();
        if let Some(bucket) = BUCKETS.iter().position(|bound| seconds <= *bound) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.seconds += seconds;
    }
}

/// The metrics that are counted while the server runs. [`Snapshot`] contains the metrics that are read at each scrape.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<Requests>,
    pub(crate) health: slis::HealthCheckMetrics,
}

#[derive(Debug, Default)]
struct Requests {
    served: HashMap<Series, Counts>,
    /// The registry that serves the resources of all series.
    registry: Weak<Registry>,
}

impl Requests {
    /// Removes the series of resources that are no longer served.
    fn follow(&mut self, registry: &Arc<Registry>) {
        if self.registry.as_ptr() != Arc::as_ptr(registry) {
            self.registry = Arc::downgrade(registry);
            self.served.retain(|series, _| series.is_served(registry));
        }
    }
}

impl Metrics {
    /// Counts a request whose response headers are ready after `took`. `registry` holds the served resources.
    pub(crate) fn answered(&self, labels: &Labels, code: u16, took: Duration, registry: &Arc<Registry>) {
        let mut requests = self.requests.lock();
        requests.follow(registry);
        let key: &dyn SeriesKey = labels;
        if let Some(served) = requests.served.get_mut(key) {
            return served.add(code, took);
        }
        let series = labels.series();
        if series.is_served(registry) {
            requests.served.entry(series).or_default().add(code, took);
        }
    }

    /// Forgets the requests that were counted.
    pub(crate) fn reset_requests(&self) {
        self.requests.lock().served.clear();
    }
}

/// The metrics that are read at each scrape.
pub(crate) struct Snapshot<'a> {
    /// The served resources.
    pub(crate) registry: &'a Arc<Registry>,
    pub(crate) reads_in_flight: usize,
    pub(crate) writes_in_flight: usize,
    /// Priority and fairness; `None` if it is off.
    pub(crate) fairness: Option<&'a Fairness>,
    /// The audit log; `None` without a policy.
    pub(crate) audit: Option<&'a AuditCounters>,
    pub(crate) caches: &'a [CacherStats],
    /// The limit of all caches in bytes, and the number of resources without a cache because of that limit.
    pub(crate) cache_budget: Option<(usize, usize)>,
    /// The bytes of cached object encodings, and of cached compressed list blocks.
    pub(crate) encoding_bytes: [usize; 2],
    /// The statistics of the store; `None` if the store does not respond.
    pub(crate) store: Option<&'a StoreStats>,
}

/// Writes the response body.
pub(crate) fn text(metrics: &Metrics, found: &Snapshot<'_>) -> String {
    let mut out = Text::default();
    requests(&mut out, metrics, found.registry);
    out.family(
        "apiserver_current_inflight_requests",
        "gauge",
        "Requests that are being answered, watches not counted.",
    );
    out.sample("request_kind=\"readOnly\"", found.reads_in_flight);
    out.sample("request_kind=\"mutating\"", found.writes_in_flight);
    if let Some(fairness) = found.fairness {
        flow_control::text(&mut out, fairness);
    }
    if let Some(counters) = found.audit {
        audit::text(&mut out, counters);
    }
    caches(&mut out, found.caches);
    if let Some((bytes_max, without)) = found.cache_budget {
        out.family("listwatch_cache_budget_bytes", "gauge", "What the states of all caches may take together.");
        out.sample("", bytes_max);
        out.family("listwatch_resources_without_cache", "gauge", "Resources served from the store for lack of room.");
        out.sample("", without);
    }
    out.family("listwatch_encoding_cache_bytes", "gauge", "Bytes of encodings that are kept for later requests.");
    for (form, bytes) in ["object", "gzip"].into_iter().zip(found.encoding_bytes) {
        out.sample(&format!("form=\"{form}\""), bytes);
    }
    store(&mut out, found.store);
    out.out
}

fn requests(out: &mut Text, metrics: &Metrics, registry: &Arc<Registry>) {
    let mut requests = metrics.requests.lock();
    requests.follow(registry);
    let mut served: Vec<(String, &Counts)> =
        requests.served.iter().map(|(labels, served)| (labels.text(), served)).collect();
    served.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    out.family("apiserver_request_total", "counter", "Requests for resources that were answered.");
    for (labels, served) in &served {
        for (code, count) in &served.codes {
            out.sample(&format!("code=\"{code}\",{labels}"), count);
        }
    }
    out.family(
        "apiserver_request_duration_seconds",
        "histogram",
        "How long requests for resources took, up to the headers of the answer.",
    );
    for (labels, served) in &served {
        let mut below = 0;
        for (bound, count) in BUCKETS.iter().zip(&served.buckets) {
            below += count;
            out.member("_bucket", &format!("{labels},le=\"{bound}\""), below);
        }
        out.member("_bucket", &format!("{labels},le=\"+Inf\""), served.count);
        out.member("_sum", labels, served.seconds);
        out.member("_count", labels, served.count);
    }
    let help = "1 for each deprecated API that was requested.";
    out.family("apiserver_requested_deprecated_apis", "gauge", help);
    let deprecated = requests.served.keys().filter_map(|series| series.deprecated_text(registry));
    for labels in deprecated.collect::<BTreeSet<_>>() {
        out.sample(&labels, 1);
    }
}

/// A metric family: name, type, help text, and the function that returns the value of a cache.
type CacheFamily = (&'static str, &'static str, &'static str, fn(&CacherStats) -> f64);

const CACHE_FAMILIES: &[CacheFamily] = &[
    ("apiserver_resource_objects", "gauge", "Objects in the current state.", |cache| cache.objects as f64),
    (
        "apiserver_watch_cache_events_received_total",
        "counter",
        "Events that a watch cache took from the store.",
        |cache| cache.events_received as f64,
    ),
    (
        "apiserver_watch_cache_resource_version",
        "gauge",
        "The newest resource version that a watch cache knows to be complete, modulo 10^15.",
        |cache| (cache.revision.get() % VERSION_MODULO) as f64,
    ),
    (
        "apiserver_watch_cache_initializations_total",
        "counter",
        "How often the store was listed to fill a watch cache.",
        |cache| cache.generation as f64,
    ),
    ("apiserver_init_events_total", "counter", "Objects handed out as initial events.", |cache| {
        cache.initial_events as f64
    }),
    (
        "apiserver_terminated_watchers_total",
        "counter",
        "Watches that were ended because their place in the history was gone.",
        |cache| cache.expired_watches as f64,
    ),
    ("listwatch_cache_ready", "gauge", "1 while the cache is filled.", |cache| f64::from(u8::from(cache.ready))),
    ("listwatch_cache_object_bytes", "gauge", "Bytes of the current state.", |cache| cache.object_bytes as f64),
    ("listwatch_cache_history_events", "gauge", "Events in the history.", |cache| cache.history_events as f64),
    ("listwatch_cache_history_bytes", "gauge", "Bytes that only the history keeps.", |cache| {
        cache.history_bytes as f64
    }),
    ("listwatch_cache_history_seconds", "gauge", "How far back the history reaches.", |cache| {
        cache.history_span.as_secs_f64()
    }),
    ("listwatch_cache_oldest_resource_version", "gauge", "The oldest version a watch can begin after.", |cache| {
        (cache.oldest.get() % VERSION_MODULO) as f64
    }),
    ("listwatch_cache_pinned_snapshots", "gauge", "Former states that are kept for paged lists.", |cache| {
        cache.pinned_snapshots as f64
    }),
    ("listwatch_cache_waiting_reads", "gauge", "Reads that wait for a revision.", |cache| cache.waiting_reads as f64),
    ("listwatch_cache_encodings_total", "counter", "Encodings made of events.", |cache| cache.encodings as f64),
    ("listwatch_cache_encodings_bytes", "gauge", "Bytes of encodings that are kept beside events.", |cache| {
        cache.encodings_bytes as f64
    }),
    ("listwatch_cache_fallbacks_total", "counter", "Consistent lists that the store had to answer.", |cache| {
        cache.consistent_fallbacks as f64
    }),
    ("listwatch_cache_rebuilt_snapshots_total", "counter", "Former states rebuilt from the history.", |cache| {
        cache.rebuilt_snapshots as f64
    }),
    ("listwatch_cache_progress_requests_total", "counter", "Times the store was asked for progress.", |cache| {
        cache.progress_requests as f64
    }),
    (
        "listwatch_cache_resumed_watches_total",
        "counter",
        "Watches of the store that were lost and taken up again where they stood.",
        |cache| cache.resumed_watches as f64,
    ),
    ("listwatch_cache_undecodable_objects", "gauge", "Stored values that are no objects, up to 100.", |cache| {
        cache.undecodable.len() as f64
    }),
    ("listwatch_cache_audits_total", "counter", "Comparisons of cache and store.", |cache| cache.audits as f64),
    ("listwatch_cache_audit_mismatches_total", "counter", "Comparisons that found a difference.", |cache| {
        cache.audit_mismatches as f64
    }),
    ("listwatch_watches_started_total", "counter", "Watches that were begun.", |cache| cache.watches_started as f64),
    ("listwatch_watch_events_queued_total", "counter", "Events put into the queues of live watchers.", |cache| {
        cache.events_queued as f64
    }),
    (
        "listwatch_watch_events_caught_up_total",
        "counter",
        "Events that late watchers took from the history.",
        |cache| cache.events_caught_up as f64,
    ),
    ("listwatch_watch_bookmarks_total", "counter", "Bookmarks handed out.", |cache| cache.bookmarks as f64),
    ("listwatch_watch_wake_ups_total", "counter", "Wake-ups of watchers.", |cache| cache.wake_ups as f64),
    ("listwatch_watch_overflows_total", "counter", "Queues that ran over: a watcher began to lag.", |cache| {
        cache.overflows as f64
    }),
    ("listwatch_watch_slowest_lag_seconds", "gauge", "How long the slowest watcher's next event waits.", |cache| {
        cache.watchers.slowest_lag.as_secs_f64()
    }),
];

fn caches(out: &mut Text, caches: &[CacherStats]) {
    let labels = |cache: &CacherStats| {
        let (resource, group) = cache.name.split_once('.').unwrap_or((&cache.name, ""));
        format!("group=\"{group}\",resource=\"{resource}\"")
    };
    for (name, kind, help, value) in CACHE_FAMILIES {
        out.family(name, kind, help);
        for cache in caches {
            out.sample(&labels(cache), value(cache));
        }
    }
    out.family("apiserver_storage_list_total", "counter", "Lists, by who answered them.");
    for cache in caches {
        for (storage, count) in [("watchcache", cache.cache_lists), ("etcd", cache.store_lists)] {
            out.sample(&format!("{},storage=\"{storage}\"", labels(cache)), count);
        }
    }
    let help = "Comparisons of a watch cache with the store, by result.";
    out.family("apiserver_storage_consistency_checks_total", "counter", help);
    for cache in caches {
        let equal = cache.audits.saturating_sub(cache.audit_mismatches);
        for (status, count) in [("success", equal), ("failure", cache.audit_mismatches), ("error", cache.failed_audits)]
        {
            // As in kube-apiserver, a series begins with its first result.
            if count > 0 {
                out.sample(&format!("{},status=\"{status}\"", labels(cache)), count);
            }
        }
    }
    out.family("listwatch_watchers", "gauge", "Open watches, by state.");
    for cache in caches {
        let watchers = &cache.watchers;
        for (state, count) in
            [("replaying", watchers.replaying), ("live", watchers.live), ("lagging", watchers.lagging)]
        {
            out.sample(&format!("{},state=\"{state}\"", labels(cache)), count);
        }
    }
}

fn store(out: &mut Text, store: Option<&StoreStats>) {
    out.family("listwatch_store_up", "gauge", "1 while the store answers.");
    out.sample("", u8::from(store.is_some()));
    let Some(store) = store else { return };
    out.family("listwatch_store_resource_version", "gauge", "The version of the last write, modulo 10^15.");
    out.sample("", store.revision.get() % VERSION_MODULO);
    out.family("listwatch_store_oldest_resource_version", "gauge", "The oldest version that can be read.");
    out.sample("", store.oldest.get() % VERSION_MODULO);
    if let Some(keys) = store.keys {
        out.family("listwatch_store_keys", "gauge", "Live keys.");
        out.sample("", keys);
    }
    if let Some(bytes) = store.disk_bytes {
        out.family("apiserver_storage_size_bytes", "gauge", "Bytes of the store on disk.");
        out.sample("storage_cluster_id=\"\"", bytes);
    }
}

/// Writes the text format: the header of a family, then its samples.
#[derive(Default)]
struct Text {
    out: String,
    family: &'static str,
}

impl Text {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, labels: &str, value: impl Display) {
        self.member("", labels, value);
    }

    /// Writes a sample whose name has a suffix.
    fn member(&mut self, suffix: &str, labels: &str, value: impl Display) {
        let name = self.family;
        let _ = match labels {
            "" => writeln!(self.out, "{name}{suffix} {value}"),
            labels => writeln!(self.out, "{name}{suffix}{{{labels}}} {value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use http::Method;
    use listwatch_wire::query::Query;

    use super::*;
    use crate::request::info::RequestInfo;
    use crate::request::routing::{Route, route};
    use listwatch_discovery::ServedZpages;
    use listwatch_registry::Registry;

    fn labels(method: &Method, target: &str) -> Labels {
        labels_in(&Registry::builtin(), method, target)
    }

    fn labels_in(registry: &Registry, method: &Method, target: &str) -> Labels {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let info = RequestInfo::new(method, path, &Query::parse(query));
        let Ok(Route::Resource(route)) = route(registry, ServedZpages::default(), method, &info) else {
            panic!("{path}")
        };
        Labels::new(&route, false, false)
    }

    #[test]
    fn requests_are_counted_with_kube_apiservers_labels() {
        let (metrics, registry) = (Metrics::default(), Arc::new(Registry::builtin()));
        for (method, target, code, millis) in [
            (Method::GET, "/api/v1/pods", 200, 1),
            (Method::GET, "/api/v1/pods", 200, 30),
            (Method::GET, "/api/v1/pods", 410, 70_000),
            (Method::GET, "/api/v1/namespaces/a/pods?watch=true", 200, 1),
            (Method::POST, "/api/v1/namespaces/a/pods", 201, 1),
            (Method::PUT, "/apis/apps/v1/namespaces/a/deployments/d/scale", 409, 1),
            (Method::GET, "/api/v1/endpoints", 200, 1),
            (Method::GET, "/api/v1/namespaces/a/endpoints/e", 404, 1),
        ] {
            metrics.answered(&labels(&method, target), code, Duration::from_millis(millis), &registry);
        }
        let name = "deployments.apps".to_owned();
        let caches = [CacherStats { name, objects: 7, audits: 3, audit_mismatches: 1, ..CacherStats::default() }];
        let found = Snapshot {
            registry: &registry,
            reads_in_flight: 1,
            writes_in_flight: 2,
            fairness: None,
            audit: None,
            caches: &caches,
            cache_budget: None,
            encoding_bytes: [0, 0],
            store: None,
        };
        let text = text(&metrics, &found);
        let rest = "group=\"\",resource=\"pods\",scope=\"cluster\",subresource=\"\",verb=\"LIST\",version=\"v1\"";
        let list = format!("component=\"apiserver\",dry_run=\"\",{rest}");
        let checks = "apiserver_storage_consistency_checks_total{group=\"apps\",resource=\"deployments\",";
        let deprecated = "apiserver_requested_deprecated_apis{";
        assert_eq!(text.matches(deprecated).count(), 1, "one series for all requests of a deprecated API");
        assert!(!text.contains("status=\"error\""), "a series begins with its first result");
        for line in [
            format!("apiserver_request_total{{code=\"200\",{list}}} 2"),
            format!("apiserver_request_total{{code=\"410\",{list}}} 1"),
            format!("apiserver_request_duration_seconds_bucket{{{list},le=\"0.005\"}} 1"),
            format!("apiserver_request_duration_seconds_bucket{{{list},le=\"0.05\"}} 2"),
            format!("apiserver_request_duration_seconds_bucket{{{list},le=\"60\"}} 2"),
            format!("apiserver_request_duration_seconds_bucket{{{list},le=\"+Inf\"}} 3"),
            format!("apiserver_request_duration_seconds_count{{{list}}} 3"),
            "apiserver_current_inflight_requests{request_kind=\"mutating\"} 2".to_owned(),
            "apiserver_resource_objects{group=\"apps\",resource=\"deployments\"} 7".to_owned(),
            format!("{checks}status=\"success\"}} 2"),
            format!("{checks}status=\"failure\"}} 1"),
            format!(
                "{deprecated}group=\"\",removed_release=\"\",resource=\"endpoints\",subresource=\"\",version=\"v1\"}} 1"
            ),
            "listwatch_store_up 0".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        for part in [
            "scope=\"namespace\",subresource=\"\",verb=\"WATCH\"",
            "scope=\"resource\",subresource=\"\",verb=\"POST\"",
            "scope=\"resource\",subresource=\"scale\",verb=\"PUT\"",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn metric_series_of_a_removed_resource_are_removed_and_release_its_definition() {
        let (metrics, with) = (Metrics::default(), Arc::new(Registry::builtin()));
        let pods = |path: &str| labels_in(&with, &Method::GET, path);
        let (late, holders) = (pods("/api/v1/pods"), Arc::strong_count(with.find("", "v1", "pods").unwrap()));
        metrics.answered(&pods("/api/v1/pods"), 200, Duration::ZERO, &with);
        metrics.answered(&pods("/api/v1/nodes"), 200, Duration::ZERO, &with);
        assert_eq!(Arc::strong_count(with.find("", "v1", "pods").unwrap()), holders, "the series holds the resource");
        let shown = |registry: &Arc<Registry>| {
            let found = Snapshot {
                registry,
                reads_in_flight: 0,
                writes_in_flight: 0,
                fairness: None,
                audit: None,
                caches: &[],
                cache_budget: None,
                encoding_bytes: [0, 0],
                store: None,
            };
            let text = text(&metrics, &found);
            ["pods", "nodes"].map(|plural| text.contains(&format!("resource=\"{plural}\"")))
        };
        assert_eq!(shown(&with), [true, true]);
        let without = Arc::new(Registry::new(vec![Arc::clone(with.find("", "v1", "nodes").unwrap())]));
        assert_eq!(shown(&without), [false, true]);
        // A request that began before the removal of the resource does not create the series again.
        metrics.answered(&late, 200, Duration::ZERO, &without);
        assert_eq!(shown(&without), [false, true]);
    }

    #[test]
    fn each_metric_family_and_sample_is_written_once() {
        let (metrics, registry) = (Metrics::default(), Arc::new(Registry::builtin()));
        metrics.answered(&labels(&Method::GET, "/api/v1/pods"), 200, Duration::ZERO, &registry);
        let fairness = Fairness::new(600);
        let caches = ["pods", "nodes"].map(|name| CacherStats { name: name.to_owned(), ..CacherStats::default() });
        let text = text(
            &metrics,
            &Snapshot {
                registry: &registry,
                reads_in_flight: 0,
                writes_in_flight: 0,
                fairness: Some(&fairness),
                audit: None,
                caches: &caches,
                cache_budget: None,
                encoding_bytes: [0, 0],
                store: None,
            },
        );
        let (mut families, mut seen, mut family) = (HashSet::new(), HashSet::new(), "");
        for line in text.lines() {
            if let Some(head) = line.strip_prefix("# TYPE ") {
                family = head.split(' ').next().unwrap();
                assert!(families.insert(family), "a family is written twice: {family}");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let bare = name.split('{').next().unwrap();
                assert!(bare.starts_with(family), "{line} is not of {family}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(seen.insert(name), "a sample is written twice: {name}");
            }
        }
    }
}
