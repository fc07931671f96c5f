//! Sends warnings to the client in `Warning` headers (`filters/warning.go`).

use std::collections::HashSet;

use http::header::WARNING;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;

/// The largest number of characters of all warnings of a response (`truncateAtTotalRunes`). If there are more, each
/// warning is truncated to [`WARNING_CHARS_MAX`], and further warnings are omitted.
const WARNINGS_CHARS_MAX: usize = 4 * 1024;

/// The largest number of characters of one warning if warnings are truncated (`truncateItemRunes`).
const WARNING_CHARS_MAX: usize = 256;

/// Collects the warnings of one request (`WarningRecorder`).
#[derive(Debug, Default)]
pub(crate) struct WarningRecorder(Mutex<Vec<String>>);

impl WarningRecorder {
    /// Adds warnings to the response.
    pub(crate) fn add(&self, warnings: impl IntoIterator<Item = String>) {
        let mut warnings = warnings.into_iter().peekable();
        // Most requests have no warnings.
        if warnings.peek().is_some() {
            self.0.lock().extend(warnings);
        }
    }

    /// Writes the warnings as headers.
    pub(crate) fn write_to(self, headers: &mut HeaderMap) {
        let warnings = self.0.into_inner();
        if !warnings.is_empty() {
            write(headers, &warnings);
        }
    }
}

/// Writes `Warning: 299 - "text"` headers. Each text is written once, within the limits.
fn write(headers: &mut HeaderMap, warnings: &[String]) {
    let mut seen = HashSet::new();
    let each: Vec<&str> =
        warnings.iter().map(String::as_str).filter(|text| !text.is_empty() && seen.insert(*text)).collect();
    let chars: usize = each.iter().map(|text| text.chars().count()).sum();
    let item_max = if chars > WARNINGS_CHARS_MAX { WARNING_CHARS_MAX } else { usize::MAX };
    let mut written = 0;
    for warning in each {
        if written >= WARNINGS_CHARS_MAX {
            break;
        }
        let mut text = String::new();
        for c in warning.chars().take(item_max) {
            written += 1;
            match c {
                '\\' | '"' => text.extend(['\\', c]),
                c if c.is_control() => {}
                c => text.push(c),
            }
        }
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{text}\"").as_bytes()) {
            headers.append(WARNING, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_warning_is_quoted_and_written_once() {
        let mut headers = HeaderMap::new();
        write(&mut headers, &["a \"b\"".to_owned(), "a \"b\"".to_owned(), "c\n".to_owned()]);
        let values: Vec<&str> = headers.get_all(WARNING).iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(values, ["299 - \"a \\\"b\\\"\"", "299 - \"c\""]);
    }

    #[test]
    fn long_warnings_are_truncated_and_excess_warnings_are_omitted() {
        let texts = |warnings: Vec<String>| -> Vec<usize> {
            let mut headers = HeaderMap::new();
            write(&mut headers, &warnings);
            headers.get_all(WARNING).iter().map(|value| value.as_bytes().len() - "299 - \"\"".len()).collect()
        };
        assert_eq!(texts(vec!["x".repeat(4096)]), [4096]);
        assert_eq!(texts(vec!["x".repeat(2 << 20)]), [256]);
        // Up to 4096 characters, no warning is truncated. Above, all warnings are truncated, including the earlier
        // ones.
        assert_eq!(texts(vec!["x".repeat(3000), "y".repeat(1096)]), [3000, 1096]);
        assert_eq!(texts(vec!["x".repeat(3000), "y".repeat(1097)]), [256, 256]);
        let many: Vec<String> = (0..1000).map(|n| format!("unknown field \"{n:06}\"")).collect();
        // Quotes are escaped and counted once.
        assert_eq!(texts(many), vec!["unknown field \"000000\"".len() + 2; 187]);
    }

    #[test]
    fn recorded_warnings_are_written_in_order() {
        let recorder = WarningRecorder::default();
        recorder.add(["a".to_owned(), "b".to_owned()]);
        recorder.add(None);
        recorder.add(Some("c".to_owned()));
        recorder.add(Some("a".to_owned()));
        let mut headers = HeaderMap::new();
        recorder.write_to(&mut headers);
        let values: Vec<&HeaderValue> = headers.get_all(WARNING).iter().collect();
        assert_eq!(values, ["299 - \"a\"", "299 - \"b\"", "299 - \"c\""]);
    }
}
