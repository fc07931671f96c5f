//! `/metrics/slis`: the service level indicators, which are the results of health checks
//! (`component-base/metrics/prometheus/slis`).

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::Text;

/// Counts the results of health checks, by the name of the check and the endpoint. The server knows all checks and
/// endpoints, so the number of series is bounded.
#[derive(Debug, Default)]
pub(crate) struct HealthCheckMetrics(Mutex<BTreeMap<(String, String), Results>>);

/// The results of one check.
#[derive(Debug, Default)]
struct Results {
    is_healthy: bool,
    successes: u64,
    errors: u64,
}

impl HealthCheckMetrics {
    /// Counts the results of an endpoint (`healthz`, `livez` or `readyz`): each is the name of a check, and whether the
    /// check passed.
    pub(crate) fn observe<'a>(&self, endpoint: &str, results: impl IntoIterator<Item = (&'a str, bool)>) {
        let mut checks = self.0.lock();
        for (name, is_healthy) in results {
            let results = checks.entry((name.to_owned(), endpoint.to_owned())).or_default();
            results.is_healthy = is_healthy;
            *(if is_healthy { &mut results.successes } else { &mut results.errors }) += 1;
        }
    }

    /// Forgets all results.
    pub(crate) fn reset(&self) {
        self.0.lock().clear();
    }

    /// Returns the response body. `started` is the start of the server, in seconds since 1970.
    pub(crate) fn text(&self, started: i64) -> String {
        let checks = self.0.lock();
        let mut out = Text::default();
        let help = "[STABLE] This metric records the result of a single healthcheck.";
        out.family("kubernetes_healthcheck", "gauge", help);
        for ((name, endpoint), results) in &*checks {
            out.sample(&format!("name=\"{name}\",type=\"{endpoint}\""), u8::from(results.is_healthy));
        }
        let help = "[STABLE] This metric records the results of all healthcheck.";
        out.family("kubernetes_healthchecks_total", "counter", help);
        for ((name, endpoint), results) in &*checks {
            for (status, count) in [("error", results.errors), ("success", results.successes)] {
                // As in kube-apiserver, a series begins with its first result.
                if count > 0 {
                    out.sample(&format!("name=\"{name}\",status=\"{status}\",type=\"{endpoint}\""), count);
                }
            }
        }
        let help = "[ALPHA] Start time of the process since unix epoch in seconds.";
        out.family("process_start_time_seconds", "gauge", help);
        out.sample("", started);
        out.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_check_metrics_have_the_last_result_and_count_all_results() {
        let metrics = HealthCheckMetrics::default();
        metrics.observe("readyz", [("ping", true), ("etcd", false)]);
        metrics.observe("readyz", [("ping", true), ("etcd", true)]);
        metrics.observe("livez", [("ping", true)]);
        let text = metrics.text(7);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 1",
                "kubernetes_healthcheck{name=\"ping\",type=\"livez\"} 1",
                "kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1",
                "kubernetes_healthchecks_total{name=\"etcd\",status=\"error\",type=\"readyz\"} 1",
                "kubernetes_healthchecks_total{name=\"etcd\",status=\"success\",type=\"readyz\"} 1",
                "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"livez\"} 1",
                "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"readyz\"} 2",
                "process_start_time_seconds 7",
            ]
        );
        metrics.reset();
        assert!(!metrics.text(7).contains("name="), "a reset forgets the results");
    }
}
