//! [`WebhookMetrics`] counts calls under upstream's names and labels (`apiserver/pkg/admission/metrics`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use parking_lot::Mutex;

/// The upper bounds of the duration buckets, in seconds, as in kube-apiserver.
const DURATION_BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];

/// Maximum number of series per metric. Calls that need a further series are not counted.
pub const SERIES_MAX: usize = 10_000;

/// Maximum rejection code in a label. Larger codes are counted under this code.
const REJECTION_CODE_MAX: u16 = 600;

/// The metrics of the webhook calls of one server.
#[derive(Debug, Default)]
pub struct WebhookMetrics(Mutex<AllSeries>);

#[derive(Clone, Debug, Default, PartialEq)]
struct AllSeries {
    /// `apiserver_admission_webhook_admission_duration_seconds`, by name, type, operation and rejected.
    durations: BTreeMap<(String, &'static str, &'static str, bool), CallSeries>,
    /// `apiserver_admission_webhook_request_total`, by name, type, operation, code and rejected.
    requests: BTreeMap<(String, &'static str, &'static str, u16, bool), u64>,
    /// `apiserver_admission_webhook_rejection_count`, by the labels of [`RejectionSeries`].
    rejections: BTreeMap<RejectionSeries, u64>,
    /// `apiserver_admission_webhook_fail_open_count`, by name and type.
    failed_open: BTreeMap<(String, &'static str), u64>,
}

/// The histogram of one series.
#[derive(Clone, Debug, Default, PartialEq)]
struct CallSeries {
    /// The number of calls per bucket of [`DURATION_BUCKETS`]; each call is counted in one bucket only.
    buckets: [u64; DURATION_BUCKETS.len()],
    /// The number of calls.
    count: u64,
    /// The sum of the durations, in seconds.
    seconds: f64,
}

/// The labels of rejected requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RejectionSeries {
    /// The name of the webhook.
    pub(crate) name: String,
    /// `admit` or `validating`.
    pub(crate) webhook_type: &'static str,
    /// The operation, e.g. `CREATE`.
    pub(crate) operation: &'static str,
    /// `calling_webhook_error`, `apiserver_internal_error` or `no_error`.
    pub(crate) error_type: &'static str,
    /// The code of the rejection; 0 for an internal error.
    pub(crate) code: u16,
}

/// Returns the value of a series, or `None` for a new series at the limit.
fn series<K: Ord, V: Default>(all: &mut BTreeMap<K, V>, key: K) -> Option<&mut V> {
    (all.len() < SERIES_MAX || all.contains_key(&key)).then(|| all.entry(key).or_default())
}

impl WebhookMetrics {
    /// Counts a call. `code` is 200 for a response that allows the request.
    pub(crate) fn observe_call(
        &self,
        name: &str,
        webhook_type: &'static str,
        operation: &'static str,
        (code, rejected): (u16, bool),
        took: Duration,
    ) {
        let mut all = self.0.lock();
        if let Some(calls) = series(&mut all.durations, (name.to_owned(), webhook_type, operation, rejected)) {
            let seconds = took.as_secs_f64();
            if let Some(bucket) = DURATION_BUCKETS.iter().position(|bound| seconds <= *bound) {
                calls.buckets[bucket] += 1;
            }
            calls.count += 1;
            calls.seconds += seconds;
        }
        let key = (name.to_owned(), webhook_type, operation, code.min(REJECTION_CODE_MAX), rejected);
        if let Some(count) = series(&mut all.requests, key) {
            *count += 1;
        }
    }

    /// Counts a request that was rejected because of a call.
    pub(crate) fn observe_rejection(&self, rejection: RejectionSeries) {
        let rejection = RejectionSeries { code: rejection.code.min(REJECTION_CODE_MAX), ..rejection };
        if let Some(count) = series(&mut self.0.lock().rejections, rejection) {
            *count += 1;
        }
    }

    /// Counts a failed call whose failure policy is `Ignore`.
    pub(crate) fn observe_fail_open(&self, name: &str, webhook_type: &'static str) {
        if let Some(count) = series(&mut self.0.lock().failed_open, (name.to_owned(), webhook_type)) {
            *count += 1;
        }
    }

    /// Returns all series in the text format of Prometheus.
    pub fn to_text(&self) -> String {
        let all = self.0.lock().clone();
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: Vec<String>| {
            let name = format!("apiserver_admission_{name}");
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            for sample in samples {
                let _ = writeln!(out, "{name}{sample}");
            }
        };
        let durations = all.durations.iter().flat_map(|((name, webhook_type, operation, rejected), calls)| {
            let labels =
                format!("name={name:?},operation=\"{operation}\",rejected=\"{rejected}\",type=\"{webhook_type}\"");
            let mut below = 0;
            let mut samples: Vec<String> = Vec::new();
            for (bound, count) in DURATION_BUCKETS.iter().zip(&calls.buckets) {
                below += count;
                samples.push(format!("_bucket{{{labels},le=\"{bound}\"}} {below}"));
            }
            samples.push(format!("_bucket{{{labels},le=\"+Inf\"}} {}", calls.count));
            samples.push(format!("_sum{{{labels}}} {}", calls.seconds));
            samples.push(format!("_count{{{labels}}} {}", calls.count));
            samples
        });
        let help = "How long calls of admission webhooks took.";
        family("webhook_admission_duration_seconds", "histogram", help, durations.collect());
        let requests = all.requests.iter().map(|((name, webhook_type, operation, code, rejected), count)| {
            format!(
                "{{code=\"{code}\",name={name:?},operation=\"{operation}\",rejected=\"{rejected}\",\
                 type=\"{webhook_type}\"}} {count}"
            )
        });
        family("webhook_request_total", "counter", "Calls of admission webhooks.", requests.collect());
        let rejections = all.rejections.iter().map(|(rejection, count)| {
            let RejectionSeries { name, webhook_type, operation, error_type, code } = rejection;
            format!(
                "{{error_type=\"{error_type}\",name={name:?},operation=\"{operation}\",rejection_code=\"{code}\",\
                 type=\"{webhook_type}\"}} {count}"
            )
        });
        let help = "Requests that admission webhooks rejected.";
        family("webhook_rejection_count", "counter", help, rejections.collect());
        let failed_open = all.failed_open.iter();
        let failed_open = failed_open
            .map(|((name, webhook_type), count)| format!("{{name={name:?},type=\"{webhook_type}\"}} {count}"));
        let help = "Failed calls of admission webhooks that were ignored.";
        family("webhook_fail_open_count", "counter", help, failed_open.collect());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_webhook_operation_and_outcome() {
        let metrics = WebhookMetrics::default();
        metrics.observe_call("a", "admit", "CREATE", (200, false), Duration::from_millis(20));
        metrics.observe_call("a", "admit", "CREATE", (200, false), Duration::from_secs(60));
        metrics.observe_call("a", "admit", "CREATE", (999, true), Duration::ZERO);
        let snapshot = metrics.0.lock().clone();
        let calls = &snapshot.durations[&("a".to_owned(), "admit", "CREATE", false)];
        assert_eq!((calls.buckets, calls.count), ([0, 1, 0, 0, 0, 0, 0, 0], 2));
        assert_eq!(snapshot.requests[&("a".to_owned(), "admit", "CREATE", 600, true)], 1, "codes end at 600");
        let text = metrics.to_text();
        let sample = |sample: &str| assert!(text.lines().any(|line| line == sample), "no {sample} in\n{text}");
        let labels = r#"name="a",operation="CREATE",rejected="false",type="admit""#;
        sample(&format!("apiserver_admission_webhook_admission_duration_seconds_bucket{{{labels},le=\"0.025\"}} 1"));
        sample(&format!("apiserver_admission_webhook_admission_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 2"));
        sample(&format!("apiserver_admission_webhook_admission_duration_seconds_count{{{labels}}} 2"));
        sample(&format!("apiserver_admission_webhook_request_total{{code=\"200\",{labels}}} 2"));
        for number in 0..=SERIES_MAX {
            metrics.observe_fail_open(&number.to_string(), "admit");
        }
        assert_eq!(metrics.0.lock().failed_open.len(), SERIES_MAX);
    }
}
