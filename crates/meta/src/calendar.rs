//! Dates of the Gregorian calendar, for any year: `time.Time` of Go has no limits that a client can reach.
//!
//! Days are counted from 0000-03-01. Years begin in March, so that the leap day is the last day of a year.

/// The days from 0000-03-01 to 1970-01-01.
pub const UNIX_EPOCH_DAYS: i64 = 719_468;

/// Returns the days from 0000-03-01 to a date.
pub fn days_until(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let days_before_month = (153 * ((month + 9) % 12) + 2) / 5;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + days_before_month + day - 1
}

/// Returns year, month and day. The inverse of [`days_until`].
pub fn date_of(days: i64) -> (i64, i64, i64) {
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day_of_month)
}

/// Returns the number of days of a month.
pub fn days_of_month(month: i64, year: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_and_days_convert_into_each_other() {
        assert_eq!(days_until(1970, 1, 1), UNIX_EPOCH_DAYS);
        assert_eq!((days_until(0, 3, 1), date_of(-1)), (0, (0, 2, 29)));
        let mut days = days_until(-800, 1, 1);
        for year in -800..=800 {
            for month in 1..=12 {
                for day in 1..=days_of_month(month, year) {
                    assert_eq!((days_until(year, month, day), date_of(days)), (days, (year, month, day)));
                    days += 1;
                }
            }
        }
        let far = i64::MAX / 86_400;
        let (year, month, day) = date_of(far);
        assert_eq!(days_until(year, month, day), far);
    }
}
