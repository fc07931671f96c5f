//! The metrics of a queue: [`QueueMetrics`], under client-go's names.

use std::fmt::Write as _;
use std::time::Duration;

/// The upper bounds of the buckets in seconds: powers of ten from 10 ns to 10 s as in client-go,
/// then 100 s and 1,000 s for slow reconciles.
const BOUNDS_SECONDS: [f64; 12] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1_000.0];

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// One count per bound, and a last one for longer durations. Not cumulative.
    buckets: [u64; BOUNDS_SECONDS.len() + 1],
    sum: Duration,
    max: Duration,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = BOUNDS_SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS_SECONDS.len());
        self.buckets[bucket] += 1;
        self.sum = self.sum.saturating_add(duration);
        self.max = self.max.max(duration);
    }

    /// The number of counted durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of the durations.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The longest duration.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The bounds in seconds, rising, each with the number of durations up to it. The last bound is
    /// infinite.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = BOUNDS_SECONDS.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.buckets).scan(0, |total, (bound, count)| {
            *total += count;
            Some((bound, *total))
        })
    }

    /// Appends this histogram in Prometheus' text format; `labels` is `a="b",c="d"` or empty.
    pub fn write_prometheus(&self, name: &str, labels: &str, out: &mut String) {
        let comma = if labels.is_empty() { "" } else { "," };
        for (bound, count) in self.cumulative() {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", self.sum.as_secs_f64());
        let _ = writeln!(out, "{name}_count{{{labels}}} {}", self.count());
    }
}

/// The metrics of a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueMetrics {
    /// The number of ready keys.
    pub depth: usize,
    /// The number of delayed keys.
    pub delayed: usize,
    /// The number of keys in processing.
    pub processing: usize,
    /// The number of keys with failures.
    pub failing: usize,
    /// The number of times that a key became ready since the queue was created. Adds of a ready key
    /// do not count.
    pub adds: u64,
    /// The number of adds after a failure since the queue was created.
    pub retries: u64,
    /// The number of adds that were ignored after shutdown.
    pub ignored: u64,
    /// The time between ready and taken.
    pub queue_duration: Histogram,
    /// The time between taken and done.
    pub work_duration: Histogram,
    /// The total time since the keys in processing were taken.
    pub unfinished_work: Duration,
    /// The longest time since a key in processing was taken.
    pub longest_running: Duration,
    /// The longest time since a ready key became ready.
    pub oldest_ready: Duration,
}

impl QueueMetrics {
    /// Formats these metrics as Prometheus text, under client-go's names, with the queue's name as
    /// a label.
    pub fn to_prometheus(&self, queue: &str) -> String {
        let mut out = String::new();
        let labels = format!("name={queue:?}");
        let mut put = |name: &str, kind: &str, value: f64| {
            let _ = writeln!(out, "# TYPE workqueue_{name} {kind}\nworkqueue_{name}{{{labels}}} {value}");
        };
        put("depth", "gauge", self.depth as f64);
        put("adds_total", "counter", self.adds as f64);
        put("retries_total", "counter", self.retries as f64);
        put("unfinished_work_seconds", "gauge", self.unfinished_work.as_secs_f64());
        put("longest_running_processor_seconds", "gauge", self.longest_running.as_secs_f64());
        for (name, histogram) in
            [("queue_duration_seconds", &self.queue_duration), ("work_duration_seconds", &self.work_duration)]
        {
            let _ = writeln!(out, "# TYPE workqueue_{name} histogram");
            histogram.write_prometheus(&format!("workqueue_{name}"), &labels, &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_their_histogram_bucket() {
        let mut histogram = Histogram::default();
        for millis in [0, 1, 2, 1_000, 2_000_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let found: Vec<(f64, u64)> = histogram.cumulative().collect();
        assert_eq!(found[0], (1e-8, 1));
        assert_eq!(found[5], (1e-3, 2), "a bound belongs to its bucket");
        assert_eq!(found[8], (1.0, 4));
        assert_eq!(*found.last().unwrap(), (f64::INFINITY, 5), "no duration is too long to be counted");
        assert_eq!((histogram.count(), histogram.max().as_secs()), (5, 2_000));
    }

    #[test]
    fn metric_names_are_those_of_client_go() {
        let mut metrics = QueueMetrics { depth: 3, adds: 7, ..QueueMetrics::default() };
        metrics.work_duration.observe(Duration::from_millis(5));
        let text = metrics.to_prometheus("pods");
        for line in [
            "workqueue_depth{name=\"pods\"} 3",
            "workqueue_adds_total{name=\"pods\"} 7",
            "workqueue_work_duration_seconds_bucket{name=\"pods\",le=\"0.01\"} 1",
            "workqueue_work_duration_seconds_bucket{name=\"pods\",le=\"+Inf\"} 1",
            "workqueue_work_duration_seconds_sum{name=\"pods\"} 0.005",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
