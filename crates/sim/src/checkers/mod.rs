//! The guarantees. Each is a function from a trace and the store's log to success or an error text.
//!
//! | file | guarantee |
//! |---|---|
//! | `ordered` | revisions increase within a watch after its initial state |
//! | `unique` | no change arrives twice on one watch |
//! | `complete` | no visible change between two events was skipped, and event types match the selector |
//! | `bookmarkable` | no event at or below a bookmark arrives after it |
//! | `resumable` | a watch from a seen revision misses nothing, or ends with Expired |
//! | `no_time_travel` | a list or initial state equals the state at its revision |
//! | `converging` | after the faults stop, every observer's copy equals the store |

mod bookmarkable;
mod complete;
mod converging;
mod no_time_travel;
mod ordered;
mod unique;

use listwatch_meta::Revision;

use crate::observer::{ObserverPlan, Received, Segment, Trace};
use crate::truth::{Change, History, Objects, State};

/// Checks a trace against the store's log.
///
/// # Errors
/// The broken guarantee, with details.
pub fn check(trace: &Trace, truth: &History) -> Result<(), String> {
    for segment in &trace.segments {
        let checks = [
            ordered::check(segment),
            unique::check(segment),
            bookmarkable::check(segment),
            no_time_travel::check(segment, &trace.plan, truth),
            complete::check(segment, &trace.plan, truth),
        ];
        for check in checks {
            check
                .map_err(|broken| format!("{broken}\n  asked: {:?}\n  received: {:?}", trace.plan, segment.received))?;
        }
    }
    converging::check(trace, truth).map_err(|broken| format!("{broken}\n  asked: {:?}", trace.plan))
}

/// Whether the plan's view contains this state of this object.
fn shows(plan: &ObserverPlan, object: &str, state: &State) -> bool {
    let in_namespace = plan.namespace.is_none_or(|namespace| object.starts_with(&format!("{namespace}/")));
    in_namespace && plan.tier.is_none_or(|tier| state.labels.get("tier").is_some_and(|value| value == tier))
}

/// The state of the plan's view at a revision.
fn view_at(truth: &History, plan: &ObserverPlan, revision: Revision) -> Objects {
    truth.state_at(revision).into_iter().filter(|(object, (_, state))| shows(plan, object, state)).collect()
}

/// The event type that the plan's view must receive for a change.
fn expected(plan: &ObserverPlan, change: &Change) -> Option<&'static str> {
    let visible = |state: &Option<State>| state.as_ref().is_some_and(|state| shows(plan, &change.object, state));
    match (visible(&change.before), visible(&change.after)) {
        (false, true) => Some("ADDED"),
        (true, true) => Some("MODIFIED"),
        (true, false) => Some("DELETED"),
        (false, false) => None,
    }
}

/// The events after the bookmark that ends the initial events, and its revision; 0 for a watch from a revision.
fn live_part(segment: &Segment) -> Option<(Revision, &[Received])> {
    if let Some(start) = segment.start {
        return Some((start, &segment.received));
    }
    segment.received.iter().enumerate().find_map(|(position, received)| match received {
        Received::Bookmark { revision, initial_events_end: true } => {
            Some((*revision, &segment.received[position + 1..]))
        }
        _ => None,
    })
}

fn revision(received: &Received) -> Revision {
    match received {
        Received::Put { revision, .. } | Received::Deleted { revision, .. } | Received::Bookmark { revision, .. } => {
            *revision
        }
    }
}
