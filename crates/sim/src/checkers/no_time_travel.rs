//! No time travel: a list, and the initial state of a watch, equal the state at their revision.

use std::collections::BTreeMap;

use crate::observer::{ObserverPlan, Received, Segment};
use crate::truth::History;

pub(super) fn check(segment: &Segment, plan: &ObserverPlan, truth: &History) -> Result<(), String> {
    if let Some((revision, items)) = &segment.listed {
        let expected = super::view_at(truth, plan, *revision);
        if *items != expected {
            return Err(format!(
                "no time travel: the list at {revision} showed {items:?}, the store held {expected:?}"
            ));
        }
    }
    if segment.start.is_some() {
        return Ok(());
    }
    let mut initial = BTreeMap::new();
    for received in &segment.received {
        match received {
            Received::Put { object, kind, revision, state } => {
                if kind != "ADDED" {
                    return Err(format!("no time travel: an initial event of {object} was {kind}"));
                }
                initial.insert(object.clone(), (*revision, state.clone()));
            }
            Received::Deleted { object, .. } => {
                return Err(format!("no time travel: an initial event of {object} was DELETED"));
            }
            Received::Bookmark { revision, initial_events_end: true } => {
                let expected = super::view_at(truth, plan, *revision);
                return if initial == expected {
                    Ok(())
                } else {
                    Err(format!(
                        "no time travel: the initial events showed {initial:?}, at {revision} the store held {expected:?}"
                    ))
                };
            }
            Received::Bookmark { .. } => {}
        }
    }
    Ok(())
}
