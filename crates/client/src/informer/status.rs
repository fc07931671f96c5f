//! The status of an informer ([`InformerStatus`]), its errors, and its metrics.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::event::StopReason;
use super::handler::HandlerEnd;
use super::view::{Counts, Lag};
use crate::problem::Problem;
use crate::reflector::ReflectorState;

/// Whether an informer runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The informer has not been started.
    #[default]
    New,
    /// The informer runs.
    Running,
    /// A stop was requested, and the worker has not ended yet.
    Stopping,
    /// The informer has stopped.
    Stopped(StopReason),
}

/// The status of one list and watch of an informer: the whole resource, one namespace, or one
/// shard.
#[derive(Clone, Debug, PartialEq)]
pub struct PartStatus {
    /// The namespace or shard; empty if there is only one part.
    pub name: String,
    /// The state of the reflector, with the reason if the copy is not current.
    pub state: ReflectorState,
    /// Whether the initial state is loaded.
    pub synced: bool,
    /// The last problem since data was last received.
    pub problem: Option<Problem>,
    /// The number of objects that were skipped because they had no name or were of another kind.
    pub skipped: u64,
    /// The number of failed decodings.
    pub quarantined: u64,
}

/// The status of one handler of an informer.
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerStatus {
    /// The name of the handler.
    pub name: String,
    /// Whether the handler has processed the initial state.
    pub synced: bool,
    /// The handler's lag.
    pub lag: Lag,
    /// The handler's counters.
    pub counts: Counts,
}

/// The status of an informer at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct InformerStatus {
    /// The name of the informer.
    pub name: String,
    /// Whether the informer runs.
    pub phase: Phase,
    /// Whether the complete initial state is loaded.
    pub synced: bool,
    /// The number of objects.
    pub objects: usize,
    /// The resource version up to which the cache is current.
    pub version: String,
    /// The status of the informer's lists and watches, by name.
    pub parts: Vec<PartStatus>,
    /// The status of the informer's handlers, in the order of registration.
    pub handlers: Vec<HandlerStatus>,
}

/// An informer or a handler has not loaded its initial state.
#[derive(Clone, Debug, PartialEq)]
pub enum NotSynced {
    /// The time limit was reached.
    TimedOut {
        /// The length of the wait.
        waited: Duration,
        /// The name and state of each part that is not synced.
        parts: Vec<(String, String)>,
    },
    /// The informer stopped.
    Stopped(StopReason),
    /// The handler ended before it had processed the initial state.
    Ended {
        /// The reason.
        why: HandlerEnd,
    },
}

impl fmt::Display for NotSynced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotSynced::TimedOut { waited, parts } => {
                write!(f, "not synced after {:.1} s", waited.as_secs_f64())?;
                for (at, (name, state)) in parts.iter().take(NAMED_PARTS_MAX).enumerate() {
                    let separator = if at == 0 { ": " } else { "; " };
                    let space = if name.is_empty() { "" } else { ": " };
                    write!(f, "{separator}{name}{space}{state}")?;
                }
                match parts.len().saturating_sub(NAMED_PARTS_MAX) {
                    0 => Ok(()),
                    more => write!(f, "; and {more} more"),
                }
            }
            NotSynced::Stopped(why) => write!(f, "not synced: {why}"),
            NotSynced::Ended { why } => write!(f, "not synced: the handler has ended: {why}"),
        }
    }
}

impl std::error::Error for NotSynced {}

/// The largest number of parts that an error names. Further parts are counted.
const NAMED_PARTS_MAX: usize = 3;

/// An informer cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The informer is stopping. A start is possible after the stop.
    #[error("the informer is still stopping")]
    Stopping,
    /// The informer has ended permanently.
    #[error("the informer cannot be started again: {0}")]
    Over(StopReason),
}

/// Handlers that still processed events at the timeout of a stop. The informer has stopped. The
/// handlers continue with their queues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("handlers were still busy: {}", .handlers.join(", "))]
pub struct DrainTimeout {
    /// The names of the handlers.
    pub handlers: Vec<String>,
}

impl InformerStatus {
    /// The reason why the informer is not synced, as text; `None` if it is.
    pub fn why_not_synced(&self) -> Option<String> {
        if self.synced {
            return None;
        }
        let now = tokio::time::Instant::now().into_std();
        Some(match &self.phase {
            Phase::New => "it was not started".to_owned(),
            Phase::Stopping => "it is stopping".to_owned(),
            Phase::Stopped(why) => why.to_string(),
            Phase::Running => {
                let waiting = self.parts.iter().filter(|part| !part.synced);
                let described = waiting.map(|part| {
                    let space = if part.name.is_empty() { "" } else { ": " };
                    format!("{}{space}{}", part.name, part.state.describe(now))
                });
                described.collect::<Vec<_>>().join("; ")
            }
        })
    }

    /// Appends the status as Prometheus text, without `# HELP` and `# TYPE` lines: see
    /// [`METRIC_TYPES`].
    pub fn write_metrics(&self, out: &mut String) {
        let informer = Label(&self.name);
        let running = u8::from(self.phase == Phase::Running);
        let mut line = |name: &str, labels: fmt::Arguments<'_>, value: fmt::Arguments<'_>| {
            // Writing to a String does not fail.
            let _ = writeln!(out, "listwatch_informer_{name}{{{labels}}} {value}");
        };
        line("running", format_args!("informer={informer}"), format_args!("{running}"));
        line("synced", format_args!("informer={informer}"), format_args!("{}", u8::from(self.synced)));
        line("objects", format_args!("informer={informer}"), format_args!("{}", self.objects));
        for part in &self.parts {
            let labels = format_args!("informer={informer},part={}", Label(&part.name));
            let watching = u8::from(matches!(part.state, ReflectorState::Watching { .. }));
            line("watching", labels, format_args!("{watching}"));
            line("skipped_total", labels, format_args!("{}", part.skipped));
            line("quarantined_total", labels, format_args!("{}", part.quarantined));
        }
        for handler in &self.handlers {
            let labels = format_args!("informer={informer},handler={}", Label(&handler.name));
            let Lag { waiting, age, versions, .. } = handler.lag;
            line("handler_synced", labels, format_args!("{}", u8::from(handler.synced)));
            line("handler_waiting", labels, format_args!("{waiting}"));
            line("handler_lag_seconds", labels, format_args!("{:.3}", age.as_secs_f64()));
            if let Some(versions) = versions {
                line("handler_lag_versions", labels, format_args!("{versions}"));
            }
            let Counts { delivered, coalesced, resets, block_timeouts } = handler.counts;
            line("handler_events_total", labels, format_args!("{delivered}"));
            line("handler_coalesced_total", labels, format_args!("{coalesced}"));
            line("handler_resets_total", labels, format_args!("{resets}"));
            line("handler_block_timeouts_total", labels, format_args!("{block_timeouts}"));
        }
    }
}

/// The descriptions of the informers' metrics, to be written once before all
/// [`InformerStatus::write_metrics`].
pub const METRIC_TYPES: &str = "\
# HELP listwatch_informer_running 1 while the informer runs.
# TYPE listwatch_informer_running gauge
# HELP listwatch_informer_synced 1 once the initial state is in place.
# TYPE listwatch_informer_synced gauge
# HELP listwatch_informer_objects Objects in the cache.
# TYPE listwatch_informer_objects gauge
# HELP listwatch_informer_watching 1 while a watch of the part is open.
# TYPE listwatch_informer_watching gauge
# HELP listwatch_informer_skipped_total Objects that were passed over.
# TYPE listwatch_informer_skipped_total counter
# HELP listwatch_informer_quarantined_total Versions of objects that could not be decoded.
# TYPE listwatch_informer_quarantined_total counter
# HELP listwatch_informer_handler_synced 1 once the handler has processed the initial state.
# TYPE listwatch_informer_handler_synced gauge
# HELP listwatch_informer_handler_waiting Objects with changes that the handler has not seen.
# TYPE listwatch_informer_handler_waiting gauge
# HELP listwatch_informer_handler_lag_seconds Age of the oldest change that the handler has not processed.
# TYPE listwatch_informer_handler_lag_seconds gauge
# HELP listwatch_informer_handler_lag_versions Versions between what the handler has processed and the newest state.
# TYPE listwatch_informer_handler_lag_versions gauge
# HELP listwatch_informer_handler_events_total Events that the handler took.
# TYPE listwatch_informer_handler_events_total counter
# HELP listwatch_informer_handler_coalesced_total Changes that were collapsed into one that waited.
# TYPE listwatch_informer_handler_coalesced_total counter
# HELP listwatch_informer_handler_resets_total How often all that waited was dropped.
# TYPE listwatch_informer_handler_resets_total counter
# HELP listwatch_informer_handler_block_timeouts_total How often the informer stopped waiting for the handler.
# TYPE listwatch_informer_handler_block_timeouts_total counter
";

/// A label's value, quoted.
struct Label<'a>(&'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_synced_names_three_parts_and_counts_the_others() {
        fn check(parts: &[(&str, &str)], expected: &str) {
            let parts = parts.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect();
            let error = NotSynced::TimedOut { waited: Duration::from_millis(1_500), parts };
            assert_eq!(error.to_string(), expected);
        }
        let [a, b, c, d] = [("a", "starting"), ("b", "listing"), ("c", "starting"), ("d", "starting")];
        check(&[], "not synced after 1.5 s");
        check(&[("", "starting")], "not synced after 1.5 s: starting");
        check(&[a, b], "not synced after 1.5 s: a: starting; b: listing");
        check(&[a, b, c], "not synced after 1.5 s: a: starting; b: listing; c: starting");
        check(&[a, b, c, d], "not synced after 1.5 s: a: starting; b: listing; c: starting; and 1 more");
    }

    #[test]
    fn metrics_have_one_line_per_value_and_a_declared_type() {
        let since = std::time::Instant::now();
        let part = PartStatus {
            name: "n\"1\"".to_owned(),
            state: ReflectorState::Watching { since },
            synced: true,
            problem: None,
            skipped: 2,
            quarantined: 3,
        };
        let lag = Lag { waiting: 4, replaying: false, age: Duration::from_millis(1_250), versions: Some(5) };
        let counts = Counts { delivered: 6, coalesced: 7, resets: 8, block_timeouts: 9 };
        let mut status = InformerStatus {
            name: "pods".to_owned(),
            phase: Phase::Running,
            synced: true,
            objects: 10,
            version: "11".to_owned(),
            parts: vec![part],
            handlers: vec![HandlerStatus { name: "h".to_owned(), synced: true, lag, counts }],
        };
        let mut text = String::new();
        status.write_metrics(&mut text);
        let expected = r#"listwatch_informer_running{informer="pods"} 1
listwatch_informer_synced{informer="pods"} 1
listwatch_informer_objects{informer="pods"} 10
listwatch_informer_watching{informer="pods",part="n\"1\""} 1
listwatch_informer_skipped_total{informer="pods",part="n\"1\""} 2
listwatch_informer_quarantined_total{informer="pods",part="n\"1\""} 3
listwatch_informer_handler_synced{informer="pods",handler="h"} 1
listwatch_informer_handler_waiting{informer="pods",handler="h"} 4
listwatch_informer_handler_lag_seconds{informer="pods",handler="h"} 1.250
listwatch_informer_handler_lag_versions{informer="pods",handler="h"} 5
listwatch_informer_handler_events_total{informer="pods",handler="h"} 6
listwatch_informer_handler_coalesced_total{informer="pods",handler="h"} 7
listwatch_informer_handler_resets_total{informer="pods",handler="h"} 8
listwatch_informer_handler_block_timeouts_total{informer="pods",handler="h"} 9
"#;
        assert_eq!(text, expected);
        for line in text.lines() {
            let name = line.split('{').next().unwrap_or_default();
            assert!(METRIC_TYPES.contains(&format!("# TYPE {name} ")), "{name} has no type");
        }
        for phase in [Phase::New, Phase::Stopping, Phase::Stopped(StopReason::Requested)] {
            status.phase = phase;
            let mut text = String::new();
            status.write_metrics(&mut text);
            assert!(text.starts_with("listwatch_informer_running{informer=\"pods\"} 0\n"), "{text}");
        }
    }
}
