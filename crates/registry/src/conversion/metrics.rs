//! [`ConversionMetrics`] counts conversions under upstream's names
//! (`apiextensions-apiserver/pkg/apiserver/conversion/metrics.go`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use listwatch_apiextensions::ConversionFailureType;
use parking_lot::Mutex;

/// The upper bounds of the duration buckets of all webhooks, in seconds.
const REQUEST_BUCKETS: &[f64] = &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// The upper bounds of the duration buckets of one definition, in seconds: 1 ms, doubled fourteen times.
const DEFINITION_BUCKETS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// Maximum number of series per metric. Conversions that need a further series are not counted.
const SERIES_MAX: usize = 10_000;

/// The metrics of the conversions of one server.
#[derive(Debug, Default)]
pub(super) struct ConversionMetrics(Mutex<AllSeries>);

#[derive(Clone, Debug, Default)]
struct AllSeries {
    /// Durations by the label `failure_type`; `""` for successes.
    requests: BTreeMap<&'static str, Histogram>,
    /// Durations by definition, source version, target version and success.
    definitions: BTreeMap<(String, String, String, bool), Histogram>,
}

#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    seconds: f64,
}

impl Histogram {
    fn observe(&mut self, bounds: &[f64], took: Duration) {
        let seconds = took.as_secs_f64();
        self.buckets.resize(bounds.len(), 0);
        if let Some(bucket) = bounds.iter().position(|bound| seconds <= *bound) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.seconds += seconds;
    }

    fn write(&self, out: &mut String, name: &str, labels: &str, bounds: &[f64]) {
        let mut below = 0;
        for (bound, count) in bounds.iter().zip(&self.buckets) {
            below += count;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", self.seconds);
        let _ = writeln!(out, "{name}_count{{{labels}}} {}", self.count);
    }
}

impl ConversionMetrics {
    /// Counts one review of a definition.
    pub(super) fn observe(
        &self,
        definition: &str,
        (from, to): (&str, &str),
        failure: Option<ConversionFailureType>,
        took: Duration,
    ) {
        let mut all = self.0.lock();
        let label = failure.map_or("", ConversionFailureType::label);
        all.requests.entry(label).or_default().observe(REQUEST_BUCKETS, took);
        let key = (definition.to_owned(), from.to_owned(), to.to_owned(), failure.is_none());
        if all.definitions.len() < SERIES_MAX || all.definitions.contains_key(&key) {
            all.definitions.entry(key).or_default().observe(DEFINITION_BUCKETS, took);
        }
    }

    /// Returns all series in the text format of Prometheus.
    pub(super) fn to_text(&self) -> String {
        let all = self.0.lock().clone();
        let mut out = String::new();
        let result = |failure: &str| {
            let result = if failure.is_empty() { "success" } else { "failure" };
            format!("failure_type=\"{failure}\",result=\"{result}\"")
        };
        let family = |out: &mut String, name: &str, kind: &str, help: &str| {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        };
        let name = "apiserver_conversion_webhook_request_total";
        family(&mut out, name, "counter", "Calls of conversion webhooks.");
        for (failure, calls) in &all.requests {
            let _ = writeln!(out, "{name}{{{}}} {}", result(failure), calls.count);
        }
        let name = "apiserver_conversion_webhook_duration_seconds";
        family(&mut out, name, "histogram", "How long calls of conversion webhooks took.");
        for (failure, calls) in &all.requests {
            calls.write(&mut out, name, &result(failure), REQUEST_BUCKETS);
        }
        let name = "apiserver_crd_conversion_webhook_duration_seconds";
        family(&mut out, name, "histogram", "How long conversions of custom resources took.");
        for ((definition, from, to, succeeded), calls) in &all.definitions {
            let labels =
                format!("crd_name={definition:?},from_version={from:?},succeeded=\"{succeeded}\",to_version={to:?}");
            calls.write(&mut out, name, &labels, DEFINITION_BUCKETS);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_counted_by_definition_versions_and_cause_of_failure() {
        let metrics = ConversionMetrics::default();
        metrics.observe("a.b.c", ("v1", "v2"), None, Duration::from_millis(3));
        metrics.observe("a.b.c", ("v1", "v2"), None, Duration::from_secs(100));
        metrics.observe("a.b.c", ("v1", "v2"), Some(ConversionFailureType::PartialResponse), Duration::ZERO);
        let text = metrics.to_text();
        for line in [
            r#"apiserver_conversion_webhook_request_total{failure_type="",result="success"} 2"#,
            r#"apiserver_conversion_webhook_request_total{failure_type="conversion_webhook_partial_response_failure",result="failure"} 1"#,
            r#"apiserver_conversion_webhook_duration_seconds_bucket{failure_type="",result="success",le="0.005"} 1"#,
            r#"apiserver_conversion_webhook_duration_seconds_bucket{failure_type="",result="success",le="60"} 1"#,
            r#"apiserver_crd_conversion_webhook_duration_seconds_bucket{crd_name="a.b.c",from_version="v1",succeeded="true",to_version="v2",le="0.004"} 1"#,
            r#"apiserver_crd_conversion_webhook_duration_seconds_count{crd_name="a.b.c",from_version="v1",succeeded="true",to_version="v2"} 2"#,
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        for number in 0..SERIES_MAX + 5 {
            metrics.observe(&number.to_string(), ("v1", "v2"), None, Duration::ZERO);
        }
        assert_eq!(metrics.0.lock().definitions.len(), SERIES_MAX);
    }
}
