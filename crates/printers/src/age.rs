//! Durations as kubectl shows them: two or three significant figures (`4m7s`, `3h12m`, `2d`).
//!
//! Source: `HumanDuration` in `apimachinery/pkg/util/duration/duration.go`.

use std::cell::Cell;

use time::{Duration, OffsetDateTime};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Formats a duration with two or three significant figures.
///
/// Because clocks differ, a duration down to -1 s is printed as `0s`, and a more negative one as `<invalid>`.
pub fn human_duration(duration: Duration) -> String {
    // Two units. A smaller unit of zero is omitted.
    let pair = |large: i64, large_unit: char, small: i64, small_unit: char| match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match duration.whole_seconds() {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => pair(s / MINUTE, 'm', s % MINUTE, 's'),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => pair(s / HOUR, 'h', s / MINUTE % 60, 'm'),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => pair(s / DAY, 'd', s / HOUR % 24, 'h'),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => pair(s / YEAR, 'y', s / DAY % 365, 'd'),
        s => format!("{}y", s / YEAR),
    }
}

/// The time until the text of an age changes.
fn unchanged_for(age: Duration) -> Duration {
    // Ages up to this one are printed as `<invalid>`, and larger ones as `0s`, because fractions are truncated toward
    // zero.
    const LAST_INVALID: Duration = Duration::seconds(-2);
    if age <= LAST_INVALID {
        return LAST_INVALID - age + Duration::NANOSECOND;
    }
    let seconds = age.whole_seconds().max(0);
    // The smallest unit of the text. Each bound is a multiple of the next unit.
    let unit = match seconds {
        s if s < 10 * MINUTE => 1,
        s if s < 8 * HOUR => MINUTE,
        s if s < 8 * DAY => HOUR,
        s if s < 8 * YEAR => DAY,
        _ => YEAR,
    };
    Duration::seconds((seconds / unit + 1) * unit) - age
}

/// The time at which a row is printed. All ages of a row are formatted by this clock, which records the time at which
/// the first age changes.
#[derive(Debug)]
pub struct RowClock {
    now: OffsetDateTime,
    unchanged_until: Cell<Option<OffsetDateTime>>,
}

impl RowClock {
    /// Creates the clock of a row that is printed at `now`.
    pub fn new(now: OffsetDateTime) -> Self {
        RowClock { now, unchanged_until: Cell::new(None) }
    }

    /// Formats the time since `time`, e.g. `5m`.
    pub fn age(&self, time: OffsetDateTime) -> String {
        let age = self.now - time;
        let until = self.now.saturating_add(unchanged_for(age));
        self.unchanged_until.set(Some(self.unchanged_until.get().map_or(until, |former| former.min(until))));
        human_duration(age)
    }

    /// Formats the time since `time`. Returns `<unknown>` for `None`.
    pub fn age_or_unknown(&self, time: Option<OffsetDateTime>) -> String {
        time.map_or_else(|| "<unknown>".to_owned(), |time| self.age(time))
    }

    /// The earliest time at which the text of a printed age changes. `None` if no age was printed.
    pub fn unchanged_until(&self) -> Option<OffsetDateTime> {
        self.unchanged_until.get()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn duration_is_formatted_as_in_kubectl() {
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (1, "1s"),
            (119, "119s"),
            (2 * MINUTE, "2m"),
            (2 * MINUTE + 1, "2m1s"),
            (10 * MINUTE - 1, "9m59s"),
            (10 * MINUTE, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 59, "3h"),
            (3 * HOUR + 61, "3h1m"),
            (8 * HOUR, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY, "8d"),
            (2 * 365 * DAY - 1, "729d"),
            (2 * 365 * DAY, "2y"),
            (2 * 365 * DAY + DAY, "2y1d"),
            (8 * 365 * DAY, "8y"),
            (1000 * 365 * DAY, "1000y"),
        ] {
            assert_eq!(human_duration(Duration::seconds(seconds)), text, "{seconds} s");
        }
        assert_eq!(human_duration(Duration::milliseconds(-1999)), "0s", "fractions are truncated toward zero");
    }

    proptest! {
        #[test]
        fn printed_age_stays_the_same_until_unchanged_until(
            seconds in prop_oneof![-5_i64..700, 0_i64..200_000, 0_i64..400_000_000],
            nanoseconds in prop_oneof![Just(0_i64), 0_i64..1_000_000_000],
            part in 0.0_f64..1.0,
        ) {
            let (now, age) = (OffsetDateTime::UNIX_EPOCH, Duration::seconds(seconds) + Duration::nanoseconds(nanoseconds));
            let clock = RowClock::new(now);
            let text = clock.age(now - age);
            let until = clock.unchanged_until().unwrap();
            prop_assert!(until > now);
            for later in [(until - now) * part, until - now - Duration::nanoseconds(1)] {
                prop_assert_eq!(human_duration(age + later), text.clone(), "{} after {}", later, age);
            }
        }
    }

    #[test]
    fn age_in_the_future_stays_unchanged_to_the_nanosecond() {
        for (age, until) in [
            (Duration::seconds(-5), Duration::new(-1, -999_999_999)),
            (Duration::seconds(-2), Duration::new(-1, -999_999_999)),
            (Duration::new(-1, -999_999_999), Duration::SECOND),
            (Duration::milliseconds(-500), Duration::SECOND),
        ] {
            assert_eq!(unchanged_for(age), until - age, "{age}");
            assert_ne!(human_duration(age), human_duration(until), "{age}");
        }
    }

    #[test]
    fn age_of_an_older_object_stays_unchanged_for_longer() {
        let unchanged = |seconds| unchanged_for(Duration::seconds(seconds)).whole_seconds();
        assert_eq!(
            [unchanged(1), unchanged(601), unchanged(8 * 3600), unchanged(9 * 24 * 3600)],
            [1, 59, 3600, 86_400]
        );
        let clock = RowClock::new(OffsetDateTime::UNIX_EPOCH);
        assert_eq!((clock.age_or_unknown(None), clock.unchanged_until()), ("<unknown>".to_owned(), None));
        clock.age(OffsetDateTime::UNIX_EPOCH - Duration::hours(9));
        clock.age(OffsetDateTime::UNIX_EPOCH - Duration::seconds(5));
        clock.age(OffsetDateTime::UNIX_EPOCH - Duration::hours(9));
        assert_eq!(clock.unchanged_until(), Some(OffsetDateTime::UNIX_EPOCH + Duration::seconds(1)), "the earliest");
    }
}
