//! Ordered: revisions increase within a watch after its initial state.
//!
//! Initial events come in key order, each with its object's own revision, so they are exempt.

use crate::observer::{Received, Segment};

pub(super) fn check(segment: &Segment) -> Result<(), String> {
    let Some((start, live)) = super::live_part(segment) else { return Ok(()) };
    let mut last = start;
    for received in live {
        let revision = super::revision(received);
        let rises = if matches!(received, Received::Bookmark { .. }) { revision >= last } else { revision > last };
        if !rises {
            return Err(format!("ordered: {received:?} came after revision {last}"));
        }
        last = revision;
    }
    Ok(())
}
