//! The durations of requests to the store, under upstream's name `etcd_request_duration_seconds`
//! (`apiserver/pkg/storage/etcd3/metrics/metrics.go`) for every store.
//!
//! A request costs two reads of the clock, one search of its resource and a few relaxed additions. It takes no lock and
//! allocates nothing, except the first request for a custom resource.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

const NAME: &str = "etcd_request_duration_seconds";

/// The upper bounds of the buckets, in seconds, as in kube-apiserver.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// Maximum number of custom resources, which bounds the text at about 20 MB. Requests for further custom resources are
/// not timed until a scrape removes one without a definition.
const RESOURCES_MAX: usize = 1_000;

/// A request to the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Create,
    Delete,
    Get,
    List,
    ListOnlyKeys,
    Update,
}

/// The label of each [`Operation`].
const OPERATIONS: [&str; 6] = ["create", "delete", "get", "list", "listOnlyKeys", "update"];

#[derive(Debug, Default)]
struct Histogram {
    /// The number of requests per bucket of [`BUCKETS`], then the number of longer requests. Each request is counted
    /// once.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    /// The sum of the durations, in nanoseconds.
    nanoseconds: AtomicU64,
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Writes the samples, unless there was no request.
    fn write(&self, out: &mut String, labels: &str) {
        let counts = self.buckets.each_ref().map(|count| count.load(Ordering::Relaxed));
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return;
        }
        let mut below = 0;
        for (bound, count) in BUCKETS.iter().zip(counts) {
            below += count;
            let _ = writeln!(out, "{NAME}_bucket{{{labels},le=\"{bound}\"}} {below}");
        }
        let seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(out, "{NAME}_bucket{{{labels},le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{NAME}_sum{{{labels}}} {seconds}");
        let _ = writeln!(out, "{NAME}_count{{{labels}}} {total}");
    }
}

/// The durations of the requests for one resource.
#[derive(Debug)]
pub(super) struct ResourceRequests {
    group: String,
    resource: String,
    operations: [Histogram; OPERATIONS.len()],
}

impl ResourceRequests {
    pub(super) fn new(group: &str, resource: &str) -> Arc<Self> {
        let (group, resource) = (group.to_owned(), resource.to_owned());
        Arc::new(ResourceRequests { group, resource, operations: Default::default() })
    }

    /// Starts a request.
    pub(super) fn start(self: Arc<Self>, operation: Operation) -> RequestTimer {
        RequestTimer { requests: self, operation, began: Instant::now() }
    }
}

/// Records the duration of a request when the value is dropped: at the end of the request, or when its caller leaves.
pub(super) struct RequestTimer {
    requests: Arc<ResourceRequests>,
    operation: Operation,
    began: Instant,
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        self.requests.operations[self.operation as usize].observe(self.began.elapsed());
    }
}

/// The requests for custom resources, by storage prefix.
#[derive(Debug, Default)]
pub(super) struct CustomRequests {
    by_prefix: ArcSwap<HashMap<Arc<str>, Arc<ResourceRequests>>>,
    /// A lock that each change of the map holds.
    changing: Mutex<()>,
}

impl CustomRequests {
    /// Returns the requests for the resource with this prefix: `<group>/<plural>`. Returns `None` for another prefix, and
    /// for a new one at [`RESOURCES_MAX`].
    pub(super) fn of(&self, prefix: &str) -> Option<Arc<ResourceRequests>> {
        let known = self.by_prefix.load();
        if let Some(requests) = known.get(prefix) {
            return Some(Arc::clone(requests));
        }
        let (group, resource) = prefix.split_once('/').filter(|_| known.len() < RESOURCES_MAX)?;
        let _changing = self.changing.lock();
        let mut all = (**self.by_prefix.load()).clone();
        let requests = all.entry(Arc::from(prefix)).or_insert_with(|| ResourceRequests::new(group, resource));
        let requests = Arc::clone(requests);
        self.by_prefix.store(Arc::new(all));
        Some(requests)
    }

    /// Removes the resources whose prefix does not satisfy a condition.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        if self.by_prefix.load().keys().all(|prefix| is_known(prefix)) {
            return;
        }
        let _changing = self.changing.lock();
        let mut all = (**self.by_prefix.load()).clone();
        all.retain(|prefix, _| is_known(prefix));
        self.by_prefix.store(Arc::new(all));
    }

    /// Returns the requests of all resources.
    pub(super) fn all(&self) -> Arc<HashMap<Arc<str>, Arc<ResourceRequests>>> {
        self.by_prefix.load_full()
    }
}

/// Writes the durations in the text format of Prometheus.
pub(super) fn text<'a>(resources: impl Iterator<Item = &'a Arc<ResourceRequests>>) -> String {
    let named = resources.map(|requests| ((&*requests.group, &*requests.resource), &requests.operations));
    let sorted: BTreeMap<(&str, &str), &[Histogram; OPERATIONS.len()]> = named.collect();
    let mut out = format!("# HELP {NAME} Duration of requests to the store.\n# TYPE {NAME} histogram\n");
    for ((group, resource), operations) in sorted {
        for (operation, durations) in OPERATIONS.iter().zip(operations) {
            durations.write(&mut out, &format!("group=\"{group}\",operation=\"{operation}\",resource=\"{resource}\""));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_kube_apiservers_buckets() {
        let pods = ResourceRequests::new("", "pods");
        for millis in [5, 30, 70_000] {
            pods.operations[Operation::Get as usize].observe(Duration::from_millis(millis));
        }
        drop(Arc::clone(&pods).start(Operation::ListOnlyKeys));
        let text = text([&pods].into_iter());
        let get = "group=\"\",operation=\"get\",resource=\"pods\"";
        for line in [
            format!("{NAME}_bucket{{{get},le=\"0.005\"}} 1"),
            format!("{NAME}_bucket{{{get},le=\"0.05\"}} 2"),
            format!("{NAME}_bucket{{{get},le=\"60\"}} 2"),
            format!("{NAME}_bucket{{{get},le=\"+Inf\"}} 3"),
            format!("{NAME}_sum{{{get}}} 70.035"),
            format!("{NAME}_count{{{get}}} 3"),
            format!("{NAME}_count{{group=\"\",operation=\"listOnlyKeys\",resource=\"pods\"}} 1"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("operation=\"create\""), "an operation without a request is left out");
    }

    #[test]
    fn requests_for_custom_resources_are_bounded() {
        let custom = CustomRequests::default();
        for number in 0..8 {
            custom.of(&format!("example.com/kind{number}s")).unwrap();
        }
        assert!(Arc::ptr_eq(&custom.of("example.com/kind0s").unwrap(), &custom.of("example.com/kind0s").unwrap()));
        assert_eq!(custom.all().len(), 8);
        assert!(custom.of("").is_none() && custom.of("pods").is_none(), "no prefix of a custom resource");
        let known = custom.of("example.com/kind0s").unwrap();
        let full = (0..RESOURCES_MAX).map(|number| (Arc::<str>::from(number.to_string()), Arc::clone(&known)));
        custom.by_prefix.store(Arc::new(full.collect()));
        assert!(custom.of("example.com/others").is_none());
        custom.retain(|prefix| prefix == "0");
        assert_eq!(custom.all().len(), 1);
        assert!(custom.of("example.com/others").is_some(), "deleted definitions keep others from being timed");
    }
}
