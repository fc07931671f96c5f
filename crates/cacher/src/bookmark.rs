//! The time of a watcher's next bookmark, as a pure function of now and the deadline.

use std::time::Instant;

use crate::limits::Limits;

/// The time of the next bookmark after `now`: one interval later or shortly before the deadline,
/// whichever is sooner. `None` when no bookmark follows.
pub(crate) fn next_due(now: Instant, deadline: Instant, limits: &Limits) -> Option<Instant> {
    // A deadline closer than the margin leaves no time for a bookmark before it.
    let last = deadline.checked_sub(limits.bookmark_before_deadline)?;
    (last > now).then(|| last.min(now + limits.bookmark_interval))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bookmark_is_due_every_minute_and_before_the_deadline() {
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
