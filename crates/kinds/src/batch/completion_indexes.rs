//! Completion indexes of indexed Jobs, written as `1,3-5,7`.
//!
//! Source: `validateIndexesFormat` in `pkg/apis/batch/validation/validation.go`.

use listwatch_meta::go;

/// Counts the indexes. All indexes must be below `completions` and in increasing order.
///
/// # Errors
/// Upstream's message about an invalid list.
pub(crate) fn count(text: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut last) = (0i64, None);
    for interval in text.split(',').filter(|_| !text.is_empty()) {
        let (first, end) = read(interval, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

fn number(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

fn read(interval: &str, completions: i64) -> Result<(i64, i64), String> {
    let parts: Vec<&str> = interval.splitn(4, '-').collect();
    if parts.len() > 2 {
        let why = "violates the requirement that an index interval can have at most two parts separated by '-'";
        return Err(format!("the fragment {} {why}", go::quote(interval)));
    }
    let index = |part: &str| {
        let Some(index) = number(part) else {
            return Err(format!("cannot convert string to integer for index: {}", go::quote(part)));
        };
        if index >= completions { Err(format!("too large index: {}", go::quote(part))) } else { Ok(index) }
    };
    let first = index(parts[0])?;
    let Some(end) = parts.get(1) else { return Ok((first, first)) };
    let end = index(end)?;
    if first >= end {
        return Err(format!("non-increasing order, previous: {first}, current: {end}"));
    }
    Ok((first, end))
}

/// Returns the first index that both lists contain. Invalid intervals are skipped.
pub(crate) fn overlap(one: &str, other: &str, completions: i64) -> Option<i64> {
    if one.is_empty() || other.is_empty() {
        return None;
    }
    let readable = |text| str::split(text, ',').filter_map(|interval| read(interval, completions).ok());
    let (mut ones, mut others) = (readable(one).peekable(), readable(other).peekable());
    while let (Some((first, end)), Some((other_first, other_end))) = (ones.peek(), others.peek()) {
        if first <= other_end && other_first <= end {
            return Some(*first.max(other_first));
        }
        if first <= other_first {
            ones.next().map(drop)
        } else {
            others.next().map(drop)
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_index_count_rejects_unordered_and_too_large_indexes() {
        for (text, expected) in [
            ("", Ok(0)),
            ("0", Ok(1)),
            ("0,2-4,9", Ok(5)),
            ("1,1", Err("non-increasing order, previous: 1, current: 1")),
            ("3-2", Err("non-increasing order, previous: 3, current: 2")),
            ("10", Err("too large index: \"10\"")),
            ("a", Err("cannot convert string to integer for index: \"a\"")),
            ("1-", Err("cannot convert string to integer for index: \"\"")),
            (
                "1-2-3",
                Err(
                    "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'",
                ),
            ),
        ] {
            assert_eq!(count(text, 10), expected.map_err(str::to_owned), "{text}");
        }
        assert_eq!(overlap("0-3,7", "4-6,7", 10), Some(7));
        assert_eq!(overlap("0-3", "4", 10), None);
    }
}
