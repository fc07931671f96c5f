//! The metrics of priority and fairness, with kube-apiserver's names and labels (`flowcontrol/metrics/metrics.go`).
//!
//! kube-apiserver's `priority_level_request_utilization`, `priority_level_seat_utilization`, `read_vs_write_*` and
//! `*_samples` are not implemented, because they are histograms of samples over time.

use std::fmt::Display;

use listwatch_flow_control::{LevelView, RejectReason, SchemaCounts, WAIT_SECONDS, WaitHistogram};

use super::Text;
use crate::flow_control::Fairness;

/// A metric family: name, help text, and the function that returns the value of a priority level.
type LevelFamily = (&'static str, &'static str, fn(&LevelView<'_>) -> f64);

const LEVEL_FAMILIES: &[LevelFamily] = &[
    ("apiserver_flowcontrol_nominal_limit_seats", "Configured seats of a level.", |level| level.nominal_seats as f64),
    ("apiserver_flowcontrol_lower_limit_seats", "Seats that a level keeps when others borrow.", |level| {
        level.lower_seats as f64
    }),
    ("apiserver_flowcontrol_upper_limit_seats", "The most seats that a level can have.", |level| {
        level.upper_seats as f64
    }),
    ("apiserver_flowcontrol_current_limit_seats", "Seats that a level has now.", |level| level.current_seats as f64),
    (
        "apiserver_flowcontrol_demand_seats_high_watermark",
        "The largest demand of the last period, in seats.",
        |level| level.demand.high_watermark as f64,
    ),
    ("apiserver_flowcontrol_demand_seats_average", "The average demand of the last period, in seats.", |level| {
        level.demand.average
    }),
    (
        "apiserver_flowcontrol_demand_seats_stdev",
        "The deviation of the demand of the last period, in seats.",
        |level| level.demand.deviation,
    ),
    ("apiserver_flowcontrol_demand_seats_smoothed", "The smoothed demand, in seats.", |level| level.demand.smoothed),
    ("apiserver_flowcontrol_target_seats", "Seats that the last adjustment aimed at.", |level| level.target_seats),
];

/// A metric family: name, help text, and the function that returns the value of a flow schema.
type SchemaFamily = (&'static str, &'static str, fn(&SchemaCounts) -> u64);

const SCHEMA_FAMILIES: &[SchemaFamily] = &[
    ("apiserver_flowcontrol_current_inqueue_requests", "Requests that wait.", |counts| counts.waiting),
    ("apiserver_flowcontrol_current_inqueue_seats", "Seats that the waiting requests need.", |counts| {
        counts.seats_waiting
    }),
    ("apiserver_flowcontrol_current_executing_requests", "Requests that execute.", |counts| counts.executing),
    ("apiserver_flowcontrol_current_executing_seats", "Seats of the requests that execute.", |counts| {
        counts.seats_executing
    }),
];

/// The label text and the counts of a flow schema.
type Schema = (String, SchemaCounts);

/// Writes the metrics. Copies the counts while the lock is held, and formats them after the lock is released.
pub(super) fn text(out: &mut Text, fairness: &Fairness) {
    let (levels, schemas, fair_fraction) = fairness.inspect(|found| {
        let level = |level: LevelView<'_>| {
            let values = LEVEL_FAMILIES.iter().map(|(_, _, value)| value(&level)).collect();
            (format!("priority_level={:?}", level.name), values)
        };
        let mut levels: Vec<(String, Vec<f64>)> = found.levels().map(level).collect();
        levels.sort_by(|a, b| a.0.cmp(&b.0));
        let schema = |(level, schema, counts): (&str, &str, &SchemaCounts)| {
            (format!("flow_schema={schema:?},priority_level={level:?}"), counts.clone())
        };
        let mut schemas: Vec<Schema> = found.schema_counts().map(schema).collect();
        schemas.sort_by(|a, b| a.0.cmp(&b.0));
        (levels, schemas, found.fair_fraction())
    });
    for (at, (name, help, _)) in LEVEL_FAMILIES.iter().enumerate() {
        out.family(name, "gauge", help);
        for (labels, values) in &levels {
            out.sample(labels, values[at]);
        }
    }
    out.family("apiserver_flowcontrol_seat_fair_frac", "gauge", "Seats in proportion to the demand of the levels.");
    out.sample("", fair_fraction);
    for (name, help, value) in SCHEMA_FAMILIES {
        out.family(name, "gauge", help);
        for (labels, counts) in &schemas {
            out.sample(labels, value(counts));
        }
    }
    out.family("apiserver_flowcontrol_dispatched_requests_total", "counter", "Requests that began to execute.");
    for (labels, counts) in schemas.iter().filter(|(_, counts)| counts.dispatched > 0) {
        out.sample(labels, counts.dispatched);
    }
    out.family("apiserver_flowcontrol_rejected_requests_total", "counter", "Requests that were rejected.");
    for (labels, counts) in &schemas {
        for (reason, rejected) in RejectReason::ALL.iter().zip(counts.rejected).filter(|(_, rejected)| *rejected > 0) {
            out.sample(&format!("{labels},reason=\"{}\"", reason.as_str()), rejected);
        }
    }
    out.family("apiserver_flowcontrol_request_wait_duration_seconds", "histogram", "How long requests waited.");
    for (labels, counts) in &schemas {
        histogram(out, labels, false, &counts.rejected_waits);
        histogram(out, labels, true, &counts.waits);
    }
}

fn histogram(out: &mut Text, labels: &str, executed: bool, found: &WaitHistogram) {
    let total: u64 = found.intervals.iter().sum();
    if total == 0 {
        return;
    }
    let labels = format!("execute=\"{executed}\",{labels}");
    let mut below = 0;
    let mut bucket = |bound: &dyn Display, count: u64| {
        out.member("_bucket", &format!("{labels},le=\"{bound}\""), count);
    };
    for (bound, count) in WAIT_SECONDS.iter().zip(&found.intervals) {
        below += count;
        bucket(bound, below);
    }
    bucket(&"+Inf", total);
    out.member("_sum", &labels, found.seconds);
    out.member("_count", &labels, total);
}
