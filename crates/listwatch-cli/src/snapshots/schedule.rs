//! Pure functions for snapshots: their names, the time of the next one, and the ones that retention removes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".lwx";
const TIME: &[BorrowedFormatItem<'_>] = format_description!("[year][month][day]T[hour][minute][second]Z");

/// The name of a snapshot's file: `snapshot-20260102T030405Z-678.lwx`. Snapshots are ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SnapshotName {
    /// The time at which the snapshot began, in seconds since 1970.
    pub(super) taken_at: i64,
    /// The revision of the store in the snapshot.
    pub(super) revision: u64,
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = OffsetDateTime::from_unix_timestamp(self.taken_at).map_err(|_| fmt::Error)?;
        let time = time.format(TIME).map_err(|_| fmt::Error)?;
        write!(f, "{PREFIX}{time}-{}{SUFFIX}", self.revision)
    }
}

/// The name does not belong to a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidSnapshotName;

impl FromStr for SnapshotName {
    type Err = InvalidSnapshotName;

    fn from_str(name: &str) -> Result<Self, InvalidSnapshotName> {
        let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)?.split_once('-'));
        let (time, revision) = parts.ok_or(InvalidSnapshotName)?;
        let time = PrimitiveDateTime::parse(time, TIME).map_err(|_| InvalidSnapshotName)?;
        let revision = revision.parse().map_err(|_| InvalidSnapshotName)?;
        let found = SnapshotName { taken_at: time.assume_utc().unix_timestamp(), revision };
        // A different spelling of the same name, such as `+5`, belongs to a file of another program.
        if found.to_string() == name { Ok(found) } else { Err(InvalidSnapshotName) }
    }
}

/// Returns the time until the next snapshot: one interval after the newest snapshot. If the clock was set back, a
/// snapshot from the future is treated as taken now.
pub(super) fn wait(newest: Option<SnapshotName>, interval: Duration, now: i64) -> Duration {
    let Some(newest) = newest else { return Duration::ZERO };
    let age = Duration::from_secs(u64::try_from(now - newest.taken_at).unwrap_or_default());
    interval.saturating_sub(age)
}

/// Returns the snapshots that retention removes: all except the newest `retention`.
pub(super) fn superseded(mut snapshots: Vec<SnapshotName>, retention: usize) -> Vec<SnapshotName> {
    snapshots.sort_unstable_by(|one, other| other.cmp(one));
    snapshots.split_off(retention.min(snapshots.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(taken_at: i64) -> SnapshotName {
        SnapshotName { taken_at, revision: 7 }
    }

    #[test]
    fn formatted_snapshot_name_parses_to_the_same_snapshot() {
        let snapshot = SnapshotName { taken_at: 1_767_323_045, revision: 678 };
        assert_eq!(snapshot.to_string(), "snapshot-20260102T030405Z-678.lwx");
        assert_eq!(snapshot.to_string().parse(), Ok(snapshot));
    }

    #[test]
    fn other_file_name_is_not_a_snapshot_name() {
        for name in [
            "",
            "backup.lwx",
            "snapshot-20260102T030405Z.lwx",
            "snapshot-20260102T030405Z-.lwx",
            "snapshot-20260102T030405Z-+7.lwx",
            "snapshot-20260102T030405Z-007.lwx",
            "snapshot-20261302T030405Z-7.lwx",
            "snapshot-20260102T030405Z-7.lwx.old",
            ".snapshot-20260102T030405Z-7.lwx.x.partial",
        ] {
            assert_eq!(name.parse::<SnapshotName>(), Err(InvalidSnapshotName), "{name}");
        }
    }

    #[test]
    fn snapshot_is_due_one_interval_after_the_newest_snapshot() {
        let interval = Duration::from_secs(100);
        for (newest, now, expected) in [
            (None, 50, 0),
            (Some(1_000), 1_000, 100),
            (Some(1_000), 1_060, 40),
            (Some(1_000), 1_100, 0),
            (Some(1_000), 9_000, 0),
            (Some(1_000), 10, 100),
        ] {
            let found = wait(newest.map(taken), interval, now);
            assert_eq!(found, Duration::from_secs(expected), "{newest:?} {now}");
        }
    }

    #[test]
    fn retention_keeps_the_newest_snapshots() {
        let snapshots = vec![taken(3), taken(1), taken(4), taken(2)];
        assert_eq!(superseded(snapshots.clone(), 2), [taken(2), taken(1)]);
        assert_eq!(superseded(snapshots.clone(), 4), []);
        assert_eq!(superseded(snapshots, 9), []);
    }
}
