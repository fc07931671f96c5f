//! Unique: no change arrives twice on one watch, and the initial state contains each object once.

use std::collections::BTreeSet;

use crate::observer::{Received, Segment};

pub(super) fn check(segment: &Segment) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for received in &segment.received {
        if let Received::Put { object, revision, .. } | Received::Deleted { object, revision } = received
            && !seen.insert((object, *revision))
        {
            return Err(format!("unique: {object} at revision {revision} arrived twice"));
        }
    }
    Ok(())
}
