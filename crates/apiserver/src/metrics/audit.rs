//! The metrics of the audit log, with kube-apiserver's names (`apiserver/pkg/audit/metrics.go`).

use std::sync::atomic::Ordering;

use listwatch_audit::{AUDIT_PLUGINS, AuditCounters};

use super::Text;

/// The labels of [`AuditCounters::levels`].
const LEVELS: [&str; 4] = ["None", "Metadata", "Request", "RequestResponse"];

pub(super) fn text(out: &mut Text, counters: &AuditCounters) {
    out.family("apiserver_audit_event_total", "counter", "Audit events that were passed to the backends.");
    out.sample("", counters.events.load(Ordering::Relaxed));
    out.family("apiserver_audit_error_total", "counter", "Audit events that were lost.");
    for (plugin, count) in AUDIT_PLUGINS.iter().zip(&counters.errors) {
        out.sample(&format!("plugin=\"{plugin}\""), count.load(Ordering::Relaxed));
    }
    out.family("apiserver_audit_level_total", "counter", "Requests by the level of the audit policy.");
    for (level, count) in LEVELS.iter().zip(&counters.levels) {
        out.sample(&format!("level=\"{level}\""), count.load(Ordering::Relaxed));
    }
    out.family(
        "apiserver_audit_requests_rejected_total",
        "counter",
        "Requests that failed because their audit event could not be written.",
    );
    out.sample("", counters.rejected.load(Ordering::Relaxed));
}
