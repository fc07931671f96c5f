//! Ordered: revisions rise within a watch, once the initial state is over.
//!
//! Initial events come in key order, each with its object's own revision, so they are exempt.

use crate::observer::{Segment, Told};

pub(super) fn check(segment: &Segment) -> Result<(), String> {
    let Some((start, live)) = super::live_part(segment) else { return Ok(()) };
    let mut last = start;
    for told in live {
        let revision = super::revision(told);
        let rises = if matches!(told, Told::Bookmark { .. }) { revision >= last } else { revision > last };
        if !rises {
            return Err(format!("ordered: {told:?} came after revision {last}"));
        }
        last = revision;
    }
    Ok(())
}
