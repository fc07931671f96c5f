//! Unique: no change arrives twice on one watch, and the initial state names each object once.

use std::collections::BTreeSet;

use crate::observer::{Segment, Told};

pub(super) fn check(segment: &Segment) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for told in &segment.told {
        if let Told::Put { object, revision, .. } | Told::Deleted { object, revision } = told
            && !seen.insert((object, *revision))
        {
            return Err(format!("unique: {object} at revision {revision} arrived twice"));
        }
    }
    Ok(())
}
