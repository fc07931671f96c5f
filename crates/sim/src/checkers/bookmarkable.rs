//! Bookmarkable: no event at or below a bookmark arrives after it; a watch has one bookmark that
//! ends its initial events.

use listwatch_meta::Revision;

use crate::observer::{Received, Segment};

pub(super) fn check(segment: &Segment) -> Result<(), String> {
    let mut bookmark = Revision::ZERO;
    let mut marks = 0;
    for received in &segment.received {
        match received {
            Received::Bookmark { revision, initial_events_end } => {
                bookmark = *revision;
                marks += usize::from(*initial_events_end);
            }
            Received::Put { revision, object, .. } | Received::Deleted { revision, object }
                if *revision <= bookmark =>
            {
                return Err(format!("bookmarkable: {object} at {revision} arrived after the bookmark at {bookmark}"));
            }
            _ => {}
        }
    }
    if marks > 1 {
        return Err(format!("bookmarkable: the initial events ended {marks} times"));
    }
    Ok(())
}
