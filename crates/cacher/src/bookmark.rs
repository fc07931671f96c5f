//! When the next bookmark of a watcher is due: a pure function of now and the deadline.

use std::time::Instant;

use crate::limits::Limits;

/// The next bookmark after one that was due at `now`: a period later, or a little before the
/// deadline, whichever is sooner; `None` when the last one has been.
pub(crate) fn next_due(now: Instant, deadline: Instant, limits: &Limits) -> Option<Instant> {
    // A deadline that is nearer than the margin has no instant before it worth a bookmark.
    let last = deadline.checked_sub(limits.bookmark_before_deadline)?;
    (last > now).then(|| last.min(now + limits.bookmark_interval))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_minute_and_before_the_deadline() {
        let start = Instant::now();
        let second = Duration::from_secs;
        let due = |now: u64, deadline: u64| {
            next_due(start + second(now), start + second(deadline), &Limits::default())
                .map(|due| (due - start).as_secs())
        };
        for (now, deadline, expected) in [
            (0, 1800, Some(60)),
            (60, 1800, Some(120)),
            (1760, 1800, Some(1798)),
            (1798, 1800, None),
            (0, 10, Some(8)),
            (8, 10, None),
            (0, 2, None),
        ] {
            assert_eq!(due(now, deadline), expected, "at {now} s of {deadline} s");
        }
    }
}
