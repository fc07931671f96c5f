//! [`AuditCounters`]: the counters of an audit log.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::policy::Level;

/// The counters of `/metrics` (`audit/metrics.go`).
#[derive(Debug, Default)]
pub struct AuditCounters {
    /// The events that were passed to the backends.
    pub events: AtomicU64,
    /// Requests by [`Level`].
    pub levels: [AtomicU64; 4],
    /// The requests that failed because a strict backend did not write their event.
    pub rejected: AtomicU64,
    /// The number of lost events, by [`Plugin`].
    pub errors: [AtomicU64; 4],
}

/// The names of [`AuditCounters::errors`].
pub const AUDIT_PLUGINS: [&str; 4] = ["log", "webhook", "buffered", "truncate"];

/// The part of the audit log that lost an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// The log file.
    Log,
    /// The webhook.
    Webhook,
    /// The queue of a backend.
    Buffered,
    /// The truncation of large events.
    Truncate,
}

impl AuditCounters {
    /// Counts lost events, and logs the cause. The events are not logged, because they may contain secrets.
    pub fn lost(&self, plugin: Plugin, count: usize, why: &dyn std::fmt::Display) {
        let before = self.errors[plugin as usize].fetch_add(count as u64, Ordering::Relaxed);
        // A full queue loses many events. The log has the first one and every thousandth.
        if before == 0 || before / 1_000 != (before + count as u64) / 1_000 {
            let plugin = AUDIT_PLUGINS[plugin as usize];
            tracing::error!(plugin, lost = before + count as u64, error = %why, "audit events are lost");
        }
    }

    /// Counts a request that is recorded at a level.
    pub fn count_level(&self, level: Level) {
        self.levels[level as usize].fetch_add(1, Ordering::Relaxed);
    }
}
