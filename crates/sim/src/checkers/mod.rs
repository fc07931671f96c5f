//! The promises, each a function from a trace and the truth to "kept" or the text of what broke.
//!
//! | file | promise |
//! |---|---|
//! | `ordered` | revisions rise within a watch, once the initial state is over |
//! | `unique` | no change arrives twice on one watch |
//! | `complete` | nothing between two delivered changes was skipped, and selectors tell the truth |
//! | `bookmarkable` | nothing at or below a bookmark arrives after it |
//! | `resumable` | a watch from a seen revision misses nothing, or says Expired |
//! | `no_time_travel` | a list or initial state is a state that really was |
//! | `converging` | when faults stop, every observer believes what the store holds |

mod bookmarkable;
mod complete;
mod converging;
mod no_time_travel;
mod ordered;
mod unique;

use listwatch_meta::Revision;

use crate::observer::{ObserverPlan, Segment, Told, Trace};
use crate::truth::{Change, History, Objects, State};

/// Holds a trace against the truth.
///
/// # Errors
/// The promise that broke, and how.
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
            check.map_err(|broken| format!("{broken}\n  asked: {:?}\n  told: {:?}", trace.plan, segment.told))?;
        }
    }
    converging::check(trace, truth).map_err(|broken| format!("{broken}\n  asked: {:?}", trace.plan))
}

/// Does the plan's view show this state of this object?
fn shows(plan: &ObserverPlan, object: &str, state: &State) -> bool {
    let in_namespace = plan.namespace.is_none_or(|namespace| object.starts_with(&format!("{namespace}/")));
    in_namespace && plan.tier.is_none_or(|tier| state.labels.get("tier").is_some_and(|value| value == tier))
}

/// The state of the plan's view at a revision.
fn view_at(truth: &History, plan: &ObserverPlan, revision: Revision) -> Objects {
    truth.state_at(revision).into_iter().filter(|(object, (_, state))| shows(plan, object, state)).collect()
}

/// What the plan's view must be told of a change.
fn expected(plan: &ObserverPlan, change: &Change) -> Option<&'static str> {
    let visible = |state: &Option<State>| state.as_ref().is_some_and(|state| shows(plan, &change.object, state));
    match (visible(&change.before), visible(&change.after)) {
        (false, true) => Some("ADDED"),
        (true, true) => Some("MODIFIED"),
        (true, false) => Some("DELETED"),
        (false, false) => None,
    }
}

/// Where the initial events end: the position behind the end mark; 0 for a watch from a revision.
fn live_part(segment: &Segment) -> Option<(Revision, &[Told])> {
    if let Some(start) = segment.start {
        return Some((start, &segment.told));
    }
    segment.told.iter().enumerate().find_map(|(position, told)| match told {
        Told::Bookmark { revision, initial_events_end: true } => Some((*revision, &segment.told[position + 1..])),
        _ => None,
    })
}

fn revision(told: &Told) -> Revision {
    match told {
        Told::Put { revision, .. } | Told::Deleted { revision, .. } | Told::Bookmark { revision, .. } => *revision,
    }
}
