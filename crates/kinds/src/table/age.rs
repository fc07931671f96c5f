//! Durations as kubectl shows them: two or three significant figures (`4m7s`, `3h12m`, `2d`).
//!
//! Source: `HumanDuration` in `apimachinery/pkg/util/duration/duration.go`.

use time::{Duration, OffsetDateTime};

/// Formats a duration with two or three significant figures.
///
/// Because clocks differ, a duration down to -1 s is printed as `0s`, and a more negative one as `<invalid>`.
pub fn human_duration(duration: Duration) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
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

/// The time since `time`; `<unknown>` without a time.
pub fn since(time: Option<OffsetDateTime>, now: OffsetDateTime) -> String {
    time.map_or_else(|| "<unknown>".to_owned(), |time| human_duration(now - time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_formatted_as_in_kubectl() {
        const MINUTE: i64 = 60;
        const HOUR: i64 = 3600;
        const DAY: i64 = 24 * HOUR;
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
}
