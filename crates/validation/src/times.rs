//! Times of objects, parsed and printed as in Go: `metav1.Time` and `metav1.MicroTime`.
//!
//! Source: `apimachinery/pkg/apis/meta/v1/{time,micro_time}.go`, and `parse` in Go's `time/format.go`. Go accepts more
//! than RFC 3339: an hour of one digit, a comma before the fraction, and an offset of 24 hours.

use std::fmt::Write as _;

use listwatch_json::Value;
use listwatch_meta::calendar::{date_of, days_of_month, days_until};

/// The precision of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// `metav1.Time`. A fraction is accepted and cut off.
    Seconds,
    /// `metav1.MicroTime`: exactly six digits after the point.
    Micros,
}

/// The digits of the fraction of a `MicroTime`, with the point.
const FRACTION: usize = ".000000".len();

/// The days before 0001-01-01, counted from 0000-03-01.
const DAYS_BEFORE_ZERO_TIME: i64 = 306;

impl Precision {
    fn layout(self) -> &'static str {
        match self {
            Precision::Seconds => "2006-01-02T15:04:05Z07:00",
            Precision::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// Rewrites a time in the form that Go writes: in UTC, with whole seconds or six digits. Go's zero time becomes null.
/// Values that are not strings are not changed.
///
/// # Errors
/// The error text of Go's `time.Parse`.
pub fn normalize_time(value: &mut Value, precision: Precision) -> Result<(), String> {
    let Value::String(text) = &*value else { return Ok(()) };
    if is_normal(text.as_bytes(), precision) {
        return Ok(());
    }
    *value = match parse(text, precision)?.print(precision) {
        Some(text) => text.into(),
        None => Value::Null,
    };
    Ok(())
}

/// Checks that a text is a time.
///
/// # Errors
/// The error text of Go's `time.Parse`.
pub fn check_time(text: &str, precision: Precision) -> Result<(), String> {
    if is_normal(text.as_bytes(), precision) { Ok(()) } else { parse(text, precision).map(drop) }
}

/// The days of each month, without leap days.
const DAYS: [u8; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Whether a text has the form that Go writes. Leap days and years before 2000 take the full conversion.
fn is_normal(text: &[u8], precision: Precision) -> bool {
    let (date, fraction) = match precision {
        Precision::Seconds if text.len() == 20 => text.split_at(19),
        Precision::Micros if text.len() == 20 + FRACTION => text.split_at(19),
        _ => return false,
    };
    let number = |at: usize| match date[at..at + 2] {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => (tens - b'0') * 10 + (ones - b'0'),
        _ => u8::MAX,
    };
    let (digits, end) = fraction.split_at(fraction.len() - 1);
    (20..=99).contains(&number(0))
        && number(2) <= 99
        && (1..=12).contains(&number(5))
        && (1..=DAYS[usize::from(number(5)) - 1]).contains(&number(8))
        && number(11) <= 23
        && number(14) <= 59
        && number(17) <= 59
        && [date[4], date[7], date[10], date[13], date[16]] == *b"--T::"
        && (digits.is_empty() || (digits[0] == b'.' && digits[1..].iter().all(u8::is_ascii_digit)))
        && end == b"Z"
}

/// A point in time: days since 0000-03-01, the second of the day and the microsecond.
struct Time {
    days: i64,
    second: i64,
    micros: u32,
}

impl Time {
    /// The text in UTC. `None` for Go's zero time.
    fn print(&self, precision: Precision) -> Option<String> {
        let micros = if precision == Precision::Seconds { 0 } else { self.micros };
        if (self.days, self.second, micros) == (DAYS_BEFORE_ZERO_TIME, 0, 0) {
            return None;
        }
        let (year, month, day) = date_of(self.days);
        let (hour, minute, second) = (self.second / 3600, self.second / 60 % 60, self.second % 60);
        let width = if year < 0 { 5 } else { 4 };
        let mut text = format!("{year:0width$}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
        if precision == Precision::Micros {
            let _ = write!(text, ".{micros:06}");
        }
        text.push('Z');
        Some(text)
    }
}

/// The reader of one text. Each method consumes the text of one element of the layout.
struct Reader<'a> {
    text: &'a str,
    rest: &'a [u8],
    precision: Precision,
}

impl Reader<'_> {
    fn cannot_parse(&self, rest: &[u8], element: &str) -> String {
        format!(
            "parsing time {} as \"{}\": cannot parse {} as \"{element}\"",
            quote(self.text.as_bytes()),
            self.precision.layout(),
            quote(rest)
        )
    }

    fn wrong(&self, why: &str) -> String {
        format!("parsing time {}: {why}", quote(self.text.as_bytes()))
    }

    fn out_of_range(&self, what: &str) -> String {
        self.wrong(&format!("{what} out of range"))
    }

    fn separator(&mut self, separator: &str) -> Result<(), String> {
        match self.rest.strip_prefix(separator.as_bytes()) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.cannot_parse(self.rest, separator)),
        }
    }

    /// Reads a number of `digits_min` to `digits_max` digits.
    fn number(&mut self, element: &str, digits_min: usize, digits_max: usize) -> Result<i64, String> {
        let digits = self.rest.iter().take(digits_max).take_while(|byte| byte.is_ascii_digit()).count();
        if digits < digits_min {
            return Err(self.cannot_parse(self.rest, element));
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        Ok(number.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
    }

    /// Reads a number of two digits (`digits_min`: or one) within a range.
    fn in_range(
        &mut self,
        element: &str,
        digits_min: usize,
        range: std::ops::RangeInclusive<i64>,
        what: &str,
    ) -> Result<i64, String> {
        let number = self.number(element, digits_min, 2)?;
        if range.contains(&number) { Ok(number) } else { Err(self.out_of_range(what)) }
    }

    /// Reads the microseconds.
    fn fraction(&mut self) -> Result<u32, String> {
        let has_point = matches!(self.rest, [b'.' | b',', ..]);
        let digits = self.rest.iter().skip(1).take_while(|byte| byte.is_ascii_digit()).count();
        match self.precision {
            Precision::Seconds if has_point && digits > 0 => {
                self.rest = &self.rest[1 + digits..];
                Ok(0)
            }
            Precision::Seconds => Ok(0),
            Precision::Micros if has_point && digits >= FRACTION - 1 => {
                let (fraction, rest) = self.rest.split_at(FRACTION);
                self.rest = rest;
                Ok(fraction[1..].iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0')))
            }
            Precision::Micros => Err(self.cannot_parse(self.rest, ".000000")),
        }
    }

    /// Reads the offset from UTC in seconds.
    fn offset(&mut self) -> Result<i64, String> {
        let element = "Z07:00";
        if let Some(rest) = self.rest.strip_prefix(b"Z") {
            self.rest = rest;
            return Ok(0);
        }
        let Some((zone, rest)) = self.rest.split_at_checked(6).filter(|(zone, _)| zone[3] == b':') else {
            return Err(self.cannot_parse(self.rest, element));
        };
        let number = |at: usize| match zone[at..at + 2] {
            [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => Some(i64::from(tens - b'0') * 10 + i64::from(ones - b'0')),
            _ => None,
        };
        // Go reads the minutes only if the hours are digits, and reports a range before a wrong digit or sign.
        let (hours, minutes) = (number(1), number(1).and_then(|_| number(4)));
        if hours.is_some_and(|hours| hours > 24) {
            return Err(self.out_of_range("time zone offset hour"));
        }
        if minutes.is_some_and(|minutes| minutes > 60) {
            return Err(self.out_of_range("time zone offset minute"));
        }
        let sign = match zone[0] {
            b'+' => 1,
            b'-' => -1,
            _ => return Err(self.cannot_parse(self.rest, element)),
        };
        let (Some(hours), Some(minutes)) = (hours, minutes) else {
            return Err(self.cannot_parse(self.rest, element));
        };
        self.rest = rest;
        Ok(sign * (hours * 60 + minutes) * 60)
    }
}

fn parse(text: &str, precision: Precision) -> Result<Time, String> {
    let mut reader = Reader { text, rest: text.as_bytes(), precision };
    let year = reader.number("2006", 4, 4)?;
    reader.separator("-")?;
    let month = reader.in_range("01", 2, 1..=12, "month")?;
    reader.separator("-")?;
    let day = reader.number("02", 2, 2)?;
    reader.separator("T")?;
    let hour = reader.in_range("15", 1, 0..=23, "hour")?;
    reader.separator(":")?;
    let minute = reader.in_range("04", 2, 0..=59, "minute")?;
    reader.separator(":")?;
    let second = reader.in_range("05", 2, 0..=59, "second")?;
    let micros = reader.fraction()?;
    let offset = reader.offset()?;
    if !reader.rest.is_empty() {
        return Err(reader.wrong(&format!("extra text: {}", quote(reader.rest))));
    }
    if day < 1 || day > days_of_month(month, year) {
        return Err(reader.out_of_range("day"));
    }
    let second = hour * 3600 + minute * 60 + second - offset;
    let days = days_until(year, month, day) + second.div_euclid(86_400);
    Ok(Time { days, second: second.rem_euclid(86_400), micros })
}

/// Quotes a text as Go's `time` package does, which escapes each byte that is not printable ASCII.
fn quote(text: &[u8]) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(*byte)]),
            b' '..=0x7f => quoted.push(char::from(*byte)),
            _ => {
                let _ = write!(quoted, "\\x{byte:02x}");
            }
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[track_caller]
    fn check(precision: Precision, text: &str, expected: Result<Value, &str>) {
        let mut value = json!(text);
        let result = normalize_time(&mut value, precision).map(|()| value);
        let expected = expected.map_err(|why| {
            let layout = precision.layout();
            if why.starts_with("cannot parse") {
                format!("parsing time {} as \"{layout}\": {why}", quote(text.as_bytes()))
            } else {
                format!("parsing time {}: {why}", quote(text.as_bytes()))
            }
        });
        assert_eq!(check_time(text, precision), expected.clone().map(drop), "{text:?}");
        assert_eq!(result, expected, "{text:?}");
    }

    #[test]
    fn time_is_printed_in_utc_with_whole_seconds() {
        for (text, expected) in [
            ("2020-01-01T00:00:00Z", json!("2020-01-01T00:00:00Z")),
            ("2020-01-01T00:00:00.5+01:00", json!("2019-12-31T23:00:00Z")),
            ("2020-01-01T1:00:00Z", json!("2020-01-01T01:00:00Z")),
            ("2020-02-29T23:59:59,999999999999Z", json!("2020-02-29T23:59:59Z")),
            ("2020-02-28T12:00:00-24:60", json!("2020-02-29T13:00:00Z")),
            ("1970-01-01T00:00:00Z", json!("1970-01-01T00:00:00Z")),
            ("0000-01-01T00:00:00+00:01", json!("-0001-12-31T23:59:00Z")),
            ("9999-12-31T23:59:59-00:01", json!("10000-01-01T00:00:59Z")),
            ("0001-01-01T00:00:00Z", Value::Null),
            ("0001-01-01T00:00:00.5Z", Value::Null),
        ] {
            check(Precision::Seconds, text, Ok(expected));
        }
    }

    #[test]
    fn micro_time_is_printed_in_utc_with_six_digits() {
        for (text, expected) in [
            ("2020-01-01T00:00:00.000000Z", json!("2020-01-01T00:00:00.000000Z")),
            ("2020-01-01T00:00:00.123456+02:00", json!("2019-12-31T22:00:00.123456Z")),
            ("2020-02-20T01:00:00,123456Z", json!("2020-02-20T01:00:00.123456Z")),
            ("0001-01-01T00:00:00.000000Z", Value::Null),
            ("0001-01-01T00:00:00.000001Z", json!("0001-01-01T00:00:00.000001Z")),
        ] {
            check(Precision::Micros, text, Ok(expected));
        }
    }

    #[test]
    fn wrong_time_is_reported_with_gos_error_text() {
        for (text, why) in [
            ("", r#"cannot parse "" as "2006""#),
            ("yesterday", r#"cannot parse "yesterday" as "2006""#),
            ("20x0-01-01T00:00:00Z", r#"cannot parse "20x0-01-01T00:00:00Z" as "2006""#),
            ("2020-01-01", r#"cannot parse "" as "T""#),
            ("2020-1-01T00:00:00Z", r#"cannot parse "1-01T00:00:00Z" as "01""#),
            ("2020-01-01t00:00:00Z", r#"cannot parse "t00:00:00Z" as "T""#),
            ("2020-01-01T00:00:00", r#"cannot parse "" as "Z07:00""#),
            ("2020-01-01T00:00:00+0100", r#"cannot parse "+0100" as "Z07:00""#),
            ("2020-01-01T00:00:00é", r#"cannot parse "\xc3\xa9" as "Z07:00""#),
            ("2020-13-01T00:00:00Z", "month out of range"),
            ("2020-02-30T00:00:00Z", "day out of range"),
            ("2020-02-20T25:00:00Z", "hour out of range"),
            ("2020-02-20T00:60:00Z", "minute out of range"),
            ("2020-02-20T00:00:60Z", "second out of range"),
            ("2020-02-20T00:00:00+25:00", "time zone offset hour out of range"),
            ("2020-02-20T00:00:00+00:61", "time zone offset minute out of range"),
            ("2020-02-20T00:00:00Zx", r#"extra text: "x""#),
        ] {
            check(Precision::Seconds, text, Err(why));
        }
        for (text, why) in [
            ("2020-01-01T00:00:00Z", r#"cannot parse "Z" as ".000000""#),
            ("2020-01-01T00:00:00.1Z", r#"cannot parse ".1Z" as ".000000""#),
            ("2020-02-20T00:00:00.1234567Z", r#"cannot parse "7Z" as "Z07:00""#),
        ] {
            check(Precision::Micros, text, Err(why));
        }
    }
}
