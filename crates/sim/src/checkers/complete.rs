//! Complete and resumable: between where a watch began and the last thing it was told, every change
//! of its view arrived, with the type that the selector makes of it, and nothing else did.

use listwatch_meta::Revision;

use crate::observer::{ObserverPlan, Segment, Told};
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
    let told: Vec<(Revision, &str, &str)> = live
        .iter()
        .filter_map(|told| match told {
            Told::Put { object, kind, revision, .. } => Some((*revision, kind.as_str(), object.as_str())),
            Told::Deleted { object, revision } => Some((*revision, "DELETED", object.as_str())),
            Told::Bookmark { .. } => None,
        })
        .collect();
    if told != expected {
        let difference = expected.iter().find(|one| !told.contains(one)).map_or_else(
            || format!("{:?} was told and did not happen so", told.iter().find(|one| !expected.contains(one))),
            |missing| format!("{missing:?} was skipped"),
        );
        return Err(format!("complete: from {start} to {end}: {difference}"));
    }
    for told in live {
        if let Told::Put { object, revision, state, .. } = told {
            let truth = truth.changes.iter().find(|change| change.revision == *revision);
            if truth.and_then(|change| change.after.as_ref()) != Some(state) {
                return Err(format!("complete: {object} at {revision} arrived with other content than was written"));
            }
        }
    }
    Ok(())
}
