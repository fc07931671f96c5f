//! The metrics of a controller: [`ControllerMetrics`], under controller-runtime's names.

use std::fmt::Write as _;

use listwatch_work_queue::{Histogram, QueueMetrics};

/// The metrics of a controller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControllerMetrics {
    /// Reconciles with the result [`Outcome::Done`](super::Outcome::Done).
    pub done: u64,
    /// Reconciles with the result [`Outcome::RequeueAfter`](super::Outcome::RequeueAfter).
    pub requeued: u64,
    /// Reconciles that returned an error.
    pub errors: u64,
    /// Reconciles that panicked.
    pub panics: u64,
    /// Reconciles that exceeded their time limit and were dropped.
    pub timeouts: u64,
    /// Reconciles that were dropped at the end of the controller's drain time.
    pub aborted: u64,
    /// Reconciles that started although a cache did not show the last write of their key.
    pub behind: u64,
    /// The durations of reconciles, including failed ones.
    pub reconcile_duration: Histogram,
    /// Keys being reconciled.
    pub active_workers: usize,
    /// The maximum number of concurrent reconciles.
    pub max_workers: usize,
    /// The metrics of the queue.
    pub queue: QueueMetrics,
}

impl ControllerMetrics {
    /// The sum of errors, panics and timeouts.
    pub fn failures(&self) -> u64 {
        self.errors + self.panics + self.timeouts
    }

    /// Formats these metrics and the queue's as Prometheus text.
    pub fn to_prometheus(&self, controller: &str) -> String {
        let mut out = String::from("# TYPE controller_runtime_reconcile_total counter\n");
        for (result, count) in [("success", self.done), ("requeue_after", self.requeued), ("error", self.failures())] {
            let _ = writeln!(
                out,
                "controller_runtime_reconcile_total{{controller={controller:?},result=\"{result}\"}} {count}"
            );
        }
        let mut put = |name: &str, kind: &str, value: u64| {
            let _ = writeln!(
                out,
                "# TYPE controller_runtime_{name} {kind}\ncontroller_runtime_{name}{{controller={controller:?}}} {value}"
            );
        };
        put("reconcile_errors_total", "counter", self.failures());
        put("reconcile_panics_total", "counter", self.panics);
        put("reconcile_timeouts_total", "counter", self.timeouts);
        put("active_workers", "gauge", self.active_workers as u64);
        put("max_concurrent_reconciles", "gauge", self.max_workers as u64);
        out.push_str("# TYPE controller_runtime_reconcile_time_seconds histogram\n");
        let labels = format!("controller={controller:?}");
        self.reconcile_duration.write_prometheus("controller_runtime_reconcile_time_seconds", &labels, &mut out);
        out.push_str(&self.queue.to_prometheus(controller));
        out
    }
}
