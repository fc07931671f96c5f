//! Bookmarkable: nothing at or below a bookmark arrives after it; one end mark in a watch.

use listwatch_meta::Revision;

use crate::observer::{Segment, Told};

pub(super) fn check(segment: &Segment) -> Result<(), String> {
    let mut bookmark = Revision::ZERO;
    let mut marks = 0;
    for told in &segment.told {
        match told {
            Told::Bookmark { revision, initial_events_end } => {
                bookmark = *revision;
                marks += usize::from(*initial_events_end);
            }
            Told::Put { revision, object, .. } | Told::Deleted { revision, object } if *revision <= bookmark => {
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
