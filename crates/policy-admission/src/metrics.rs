//! [`PolicyMetrics`] counts evaluations under upstream's names and labels (`policy/{validating,mutating}/metrics`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use listwatch_policies::{PolicyCheck, error_type};
use parking_lot::Mutex;

/// The upper bounds of the duration buckets, in seconds, as in kube-apiserver.
const DURATION_BUCKETS: [f64; 5] = [0.0000005, 0.001, 0.01, 0.1, 1.0];

/// Maximum number of series per metric. Evaluations that need a further series are not counted.
pub const SERIES_MAX: usize = 10_000;

/// The metrics of the policy evaluations of one server.
#[derive(Debug, Default)]
pub struct PolicyMetrics {
    validating: Mutex<BTreeMap<Labels, Series>>,
    mutating: Mutex<BTreeMap<Labels, Series>>,
}

/// The labels of a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    policy: String,
    binding: String,
    error_type: &'static str,
    /// The action, e.g. `deny`; empty for a mutating policy.
    enforcement_action: &'static str,
}

/// The histogram of one series.
#[derive(Clone, Debug, Default)]
struct Series {
    /// The number of evaluations per bucket of [`DURATION_BUCKETS`]; each evaluation is counted in one bucket only.
    buckets: [u64; DURATION_BUCKETS.len()],
    count: u64,
    seconds: f64,
}

fn observe(all: &Mutex<BTreeMap<Labels, Series>>, labels: Labels, took: Duration) {
    let mut all = all.lock();
    if all.len() >= SERIES_MAX && !all.contains_key(&labels) {
        return;
    }
    let series = all.entry(labels).or_default();
    let seconds = took.as_secs_f64();
    if let Some(bucket) = DURATION_BUCKETS.iter().position(|bound| seconds <= *bound) {
        series.buckets[bucket] += 1;
    }
    series.count += 1;
    series.seconds += seconds;
}

impl PolicyMetrics {
    /// Counts the decisions of one evaluation of a validating policy. `took` is the duration of the whole evaluation.
    pub(crate) fn observe_validations(&self, policy: &str, binding: &str, checks: &[PolicyCheck], took: Duration) {
        for PolicyCheck { enforcement_action, error_type } in checks {
            let (policy, binding) = (policy.to_owned(), binding.to_owned());
            let each = took / u32::try_from(checks.len()).unwrap_or(u32::MAX);
            observe(&self.validating, Labels { policy, binding, error_type, enforcement_action }, each);
        }
    }

    /// Counts the evaluation of a mutation. `error` is the error message if the mutation failed.
    pub(crate) fn observe_mutation(&self, policy: &str, binding: &str, error: Option<&str>, took: Duration) {
        let (policy, binding) = (policy.to_owned(), binding.to_owned());
        let error_type = error.map_or("no_error", error_type);
        observe(&self.mutating, Labels { policy, binding, error_type, enforcement_action: "" }, took);
    }

    /// Returns all series in the text format of Prometheus.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        write_families(&mut out, "validating", &self.validating.lock().clone());
        write_families(&mut out, "mutating", &self.mutating.lock().clone());
        out
    }
}

fn write_families(out: &mut String, kind: &str, all: &BTreeMap<Labels, Series>) {
    let labels = |labels: &Labels| {
        let Labels { policy, binding, error_type, enforcement_action } = labels;
        let action = match *enforcement_action {
            "" => String::new(),
            action => format!("enforcement_action=\"{action}\","),
        };
        format!("{action}error_type=\"{error_type}\",policy={policy:?},policy_binding={binding:?}")
    };
    let name = format!("apiserver_{kind}_admission_policy_check_total");
    let _ = write!(out, "# HELP {name} Evaluations of {kind} admission policies.\n# TYPE {name} counter\n");
    for (of, series) in all {
        let _ = writeln!(out, "{name}{{{}}} {}", labels(of), series.count);
    }
    let name = format!("apiserver_{kind}_admission_policy_check_duration_seconds");
    let help = format!("How long evaluations of {kind} admission policies took.");
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
    for (of, series) in all {
        let (labels, mut below) = (labels(of), 0);
        for (bound, count) in DURATION_BUCKETS.iter().zip(&series.buckets) {
            below += count;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", series.count);
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {}", series.seconds, series.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_are_counted_by_policy_binding_and_outcome() {
        let metrics = PolicyMetrics::default();
        let checks = [
            PolicyCheck { enforcement_action: "deny", error_type: "invalid_error" },
            PolicyCheck { enforcement_action: "deny", error_type: "invalid_error" },
            PolicyCheck { enforcement_action: "warn", error_type: "compile_error" },
        ];
        metrics.observe_validations("p", "b", &checks, Duration::from_millis(3));
        metrics.observe_mutation("m", "b", None, Duration::ZERO);
        let text = metrics.to_text();
        let name = "apiserver_validating_admission_policy_check";
        let deny = "enforcement_action=\"deny\",error_type=\"invalid_error\",policy=\"p\",policy_binding=\"b\"";
        for line in [
            format!("{name}_total{{{deny}}} 2"),
            format!("{name}_duration_seconds_bucket{{{deny},le=\"0.001\"}} 2"),
            format!("{name}_duration_seconds_count{{{deny}}} 2"),
            "apiserver_mutating_admission_policy_check_total{error_type=\"no_error\",policy=\"m\",policy_binding=\"b\"} 1"
                .to_owned(),
            format!("{name}_total{{{}}} 1", deny.replace("deny", "warn").replace("invalid", "compile")),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn metric_series_do_not_exceed_the_maximum() {
        let metrics = PolicyMetrics::default();
        let checks = [PolicyCheck { enforcement_action: "deny", error_type: "invalid_error" }];
        for number in 0..=SERIES_MAX {
            metrics.observe_validations(&number.to_string(), "b", &checks, Duration::ZERO);
        }
        metrics.observe_validations("0", "b", &checks, Duration::ZERO);
        let all = metrics.validating.lock();
        assert_eq!((all.len(), all.values().map(|series| series.count).max()), (SERIES_MAX, Some(2)));
    }
}
