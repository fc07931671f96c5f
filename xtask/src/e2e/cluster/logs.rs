//! Finds the errors that a component logs repeatedly (klog's format: `E1123 23:36:42.123456 123 file.go:7] text`).

use std::collections::BTreeMap;

/// The number of occurrences from which an error counts as repeated. Rarer errors are races of a start or a lost
/// connection.
const REPEATED_MIN: usize = 3;
/// The number of characters of a message that are shown.
const MESSAGE_CHARS: usize = 220;

/// Errors by component and source location: the number and one example.
#[derive(Debug, Default)]
pub(crate) struct Errors(BTreeMap<(String, String), (usize, String)>);

impl Errors {
    /// Counts the errors among these lines of a component.
    pub(crate) fn add<'a>(&mut self, component: &str, lines: impl IntoIterator<Item = &'a str>) {
        for (key, message) in lines.into_iter().filter_map(parse) {
            let entry = self.0.entry((component.to_owned(), key)).or_insert_with(|| (0, message));
            entry.0 += 1;
        }
    }

    /// The repeated errors that `other` lacks, one line each.
    pub(crate) fn repeated_only_here(&self, other: &Self) -> Vec<String> {
        let here = self.0.iter().filter(|(key, (count, _))| *count >= REPEATED_MIN && !other.0.contains_key(key));
        here.map(|((component, _), (count, message))| format!("{component}: {count} × {message}")).collect()
    }
}

/// The source location and the text of an error line. Texts of one location with different words are different errors;
/// numbers and names with digits are ignored.
fn parse(line: &str) -> Option<(String, String)> {
    let header = line.strip_prefix('E')?;
    if !header.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (header, message) = header.split_once("] ")?;
    let place = header.split_whitespace().last()?;
    let masked = |word: &str| word.contains(|c: char| c.is_ascii_digit());
    let text: Vec<_> = message.split_whitespace().map(|word| if masked(word) { "#" } else { word }).collect();
    let key: String = format!("{place} {}", text.join(" ")).chars().take(MESSAGE_CHARS).collect();
    let shown: String = format!("{place}] {message}").chars().take(MESSAGE_CHARS).collect();
    Some((key, shown))
}

#[cfg(test)]
mod tests {
    use super::Errors;

    #[test]
    fn errors_repeated_on_one_server_only_are_named_once_with_their_count() {
        let line = |n: u32| format!("E1123 23:36:42.123456   123 gc.go:7] \"sync failed\" item=\"web-{n}\"");
        let lines: Vec<_> = (0..4).map(line).collect();
        let texts = || lines.iter().map(String::as_str);
        let (mut here, mut there) = (Errors::default(), Errors::default());
        here.add("manager", texts());
        here.add("manager", ["E1123 1 2 once.go:1] once", "I1123 1 2 info.go:1] fine", "Error: no klog] line"]);
        let found = here.repeated_only_here(&there);
        assert_eq!(found, ["manager: 4 × gc.go:7] \"sync failed\" item=\"web-0\""]);
        there.add("manager", texts().take(1));
        assert!(here.repeated_only_here(&there).is_empty());
    }
}
