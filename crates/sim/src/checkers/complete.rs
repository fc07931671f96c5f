//! Complete and resumable: from the start of a watch to its last event, every change of its view
//! arrived and no other event. Each event has the type that the selector determines.

use listwatch_meta::Revision;

use crate::observer::{ObserverPlan, Received, Segment};
use crate::truth::History;

pub(super) fn check(segment: &Segment, plan: &ObserverPlan, truth: &History) -> Result<(), String> {
    let Some((start, live)) = super::live_part(segment) else { return Ok(()) };
    let Some(end) = live.last().map(super::revision) else { return Ok(()) };
    let expected: Vec<(Revision, &str, &str)> = truth
        .changes
        .iter()
        .filter(|change| change.revision > start && change.revision <= end)
        .filter_map(|change| super::expected(plan, change).map(|kind| (change.revision, kind, change.object.as_str())))
        .collect();
    let received: Vec<(Revision, &str, &str)> = live
        .iter()
        .filter_map(|received| match received {
            Received::Put { object, kind, revision, .. } => Some((*revision, kind.as_str(), object.as_str())),
            Received::Deleted { object, revision } => Some((*revision, "DELETED", object.as_str())),
            Received::Bookmark { .. } => None,
        })
        .collect();
    if received != expected {
        let difference = expected.iter().find(|one| !received.contains(one)).map_or_else(
            || format!("{:?} was received and did not happen so", received.iter().find(|one| !expected.contains(one))),
            |missing| format!("{missing:?} was skipped"),
        );
        return Err(format!("complete: from {start} to {end}: {difference}"));
    }
    for received in live {
        if let Received::Put { object, revision, state, .. } = received {
            let truth = truth.changes.iter().find(|change| change.revision == *revision);
            if truth.and_then(|change| change.after.as_ref()) != Some(state) {
                return Err(format!("complete: {object} at {revision} arrived with other content than was written"));
            }
        }
    }
    Ok(())
}
