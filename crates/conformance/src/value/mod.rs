//! Values of cases and responses, without I/O: paths into documents, placeholders, and expectations on values.

pub(crate) mod matcher;
pub(crate) mod path;
pub(crate) mod template;

use std::cmp::Ordering;

use serde_json::Value;

/// Compares two resource versions as decimal numbers of any length (KEP-5504). `None` if one is not such a number.
pub(crate) fn compare_resource_versions(a: &str, b: &str) -> Option<Ordering> {
    let is_number = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
    };
    (is_number(a) && is_number(b)).then(|| a.len().cmp(&b.len()).then_with(|| a.cmp(b)))
}

/// Formats a value as text of at most about `limit` bytes.
pub(crate) fn excerpt(value: &Value, limit: usize) -> String {
    let text = match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    };
    shorten(&text, limit)
}

/// Truncates a text to `limit` bytes, and adds an ellipsis if text was removed.
pub(crate) fn shorten(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let end = (0..=limit).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}… ({} bytes)", &text[..end], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_versions_are_compared_as_numbers_of_any_length() {
        fn check(a: &str, b: &str, expected: Option<Ordering>) {
            assert_eq!(compare_resource_versions(a, b), expected, "{a} {b}");
        }
        check("9", "10", Some(Ordering::Less));
        check("10", "10", Some(Ordering::Equal));
        check("99999999999999999999999", "99999999999999999999998", Some(Ordering::Greater));
        check("010", "10", None);
        check("", "1", None);
        check("a", "1", None);
        check("0", "1", Some(Ordering::Less));
    }

    #[test]
    fn long_text_is_truncated_at_a_character_boundary() {
        assert_eq!(shorten("äöü", 3), "ä… (6 bytes)");
        assert_eq!(shorten("abc", 3), "abc");
    }
}
