//! Regular expressions in RE2 syntax with a bound on what one search can cost: [`Matcher`].
//!
//! The engine takes time linear in the text, but each byte may cost as much as the expression has states, and a
//! search cannot be interrupted. So the worst case is looked at before, and the time that a search really took
//! is charged afterwards.

use listwatch_meta::fuel;

use crate::limits::{PATTERN_BYTES_MAX, PATTERN_CACHE_BYTES_MAX, PATTERN_MATCH_UNITS_MAX};

/// Sizes of compiled expressions that are told apart, in bytes.
const SIZES: [usize; 4] = [4 << 10, 32 << 10, 256 << 10, PATTERN_BYTES_MAX];

/// What a state of a compiled expression takes, in bytes.
const STATE_BYTES: usize = 32;

/// States that are visited in one unit of fuel, when the engine has to follow all of them.
const STATES_PER_UNIT: u64 = 5;

/// A compiled regular expression.
#[derive(Debug, Clone)]
pub struct Matcher {
    regex: regex::Regex,
    /// At most so many states.
    states: u64,
}

impl Matcher {
    /// Compiles an expression within [`PATTERN_BYTES_MAX`], and charges the time that it takes. Refuses what Go's
    /// `regexp` refuses.
    ///
    /// # Errors
    /// Go's text for what is wrong, as far as both engines are known to agree.
    pub fn compile(text: &str) -> Result<Self, String> {
        if let Some(repeat) = repeat_beyond_go(text) {
            return Err(format!("error parsing regexp: invalid repeat count: `{repeat}`"));
        }
        if let Some(repeat) = nested_repeat(text) {
            return Err(format!("error parsing regexp: invalid nested repetition operator: `{repeat}`"));
        }
        Matcher::build(text).map_err(|error| go_regex_error(text, &error))
    }

    fn build(text: &str) -> Result<Self, regex::Error> {
        let mut compiled = Err(regex::Error::CompiledTooBig(0));
        for size in SIZES {
            let build =
                || regex::RegexBuilder::new(text).size_limit(size).dfa_size_limit(PATTERN_CACHE_BYTES_MAX).build();
            let begun = std::time::Instant::now();
            compiled = build().map(|regex| Matcher { regex, states: (size / STATE_BYTES) as u64 });
            fuel::charge_time(begun.elapsed());
            if !matches!(compiled, Err(regex::Error::CompiledTooBig(_))) {
                break;
            }
        }
        compiled
    }

    /// The expression.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// Whether the expression matches somewhere in the text. `None` when there is no fuel to find out.
    pub fn is_match(&self, text: &str) -> Option<bool> {
        self.search(text, |regex| regex.is_match(text))
    }

    /// The first match.
    pub(crate) fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        self.search(text, |regex| regex.find(text).map(|found| found.as_str())).flatten()
    }

    /// The first matches; they end early when there is no fuel to find more.
    pub(crate) fn find_all<'t>(&self, text: &'t str, limit: usize) -> Vec<&'t str> {
        let mut found = self.regex.find_iter(text);
        let mut all = Vec::new();
        while all.len() < limit
            && let Some(Some(next)) = self.search(text, |_| found.next())
        {
            all.push(next.as_str());
        }
        all
    }

    /// Searches in a text, when the worst case is within what may be taken.
    fn search<T>(&self, text: &str, search: impl FnOnce(&regex::Regex) -> T) -> Option<T> {
        let worst = (text.len() as u64).saturating_mul(self.states) / STATES_PER_UNIT;
        if fuel::left().is_some_and(|left| worst > left.min(PATTERN_MATCH_UNITS_MAX)) {
            fuel::exhaust();
            return None;
        }
        fuel::timed(|| search(&self.regex))
    }
}

/// The first counted repetition that Go refuses: of more than a thousand times.
fn repeat_beyond_go(text: &str) -> Option<&str> {
    const REPEAT_MAX: u32 = 1_000;
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let escaped = rest[..at].bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1;
        let after = &rest[at + 1..];
        if let Some(end) = after.find('}').filter(|_| !escaped) {
            let (min, max) = after[..end].split_once(',').unwrap_or((&after[..end], ""));
            let beyond = |count: &str| count.parse::<u32>().is_ok_and(|count| count > REPEAT_MAX);
            if beyond(min) || (min.parse::<u32>().is_ok() && beyond(max)) {
                return Some(&rest[at..at + end + 2]);
            }
        }
        rest = after;
    }
    None
}

/// The first repetition of a repetition, which Go refuses: `a**`, but not the lazy `a*?`.
fn nested_repeat(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let (mut at, mut in_class) = (0, false);
    // Where the repetition before this place began, and whether it was said to be lazy.
    let mut before: Option<(usize, bool)> = None;
    while at < bytes.len() {
        let operator = matches!(bytes[at], b'*' | b'+' | b'?') && !in_class;
        match (before, bytes[at]) {
            (Some((start, false)), b'?') if operator => before = Some((start, true)),
            (Some((start, _)), _) if operator => return text.get(start..=at),
            _ if operator => before = Some((at, false)),
            (_, b'\\') => {
                before = None;
                at += 1;
            }
            (_, b) => {
                before = None;
                in_class = if in_class { b != b']' } else { b == b'[' };
                // What opens a group is no repetition.
                if b == b'(' && !in_class && bytes.get(at + 1) == Some(&b'?') {
                    at += 1;
                }
            }
        }
        at += 1;
    }
    None
}

/// The words of Go for what is wrong with a regular expression, as far as they are known to agree.
fn go_regex_error(text: &str, error: &regex::Error) -> String {
    if let regex::Error::CompiledTooBig(_) = error {
        return "error parsing regexp: expression too large".to_owned();
    }
    let message = error.to_string();
    let span = marked(&message).unwrap_or(text);
    let from_span = text.find(span).map_or(text, |at| &text[at..]);
    let known = [
        ("look-around", "invalid or unsupported Perl syntax", span),
        ("unclosed group", "missing closing )", text),
        ("unopened group", "unexpected )", text),
        ("unclosed character class", "missing closing ]", from_span),
        ("repetition operator missing expression", "missing argument to repetition operator", span),
        ("invalid character class range", "invalid character class range", span),
        ("Unicode property", "invalid character class range", span),
        ("backreferences", "invalid escape sequence", span),
        ("unrecognized escape", "invalid escape sequence", span),
    ];
    let go = known.iter().find(|(ours, ..)| message.contains(ours));
    match go {
        Some((_, words, shown)) => format!("error parsing regexp: {words}: `{shown}`"),
        None => {
            let reason = message.rsplit("error: ").next().unwrap_or(&message).trim();
            format!("error parsing regexp: {reason}: `{text}`")
        }
    }
}

/// The part of an expression that an error has put carets under.
fn marked(message: &str) -> Option<&str> {
    let mut lines = message.lines().skip(1);
    let (pattern, carets) = (lines.next()?, lines.next()?);
    let (start, end) = (carets.find('^')?, carets.rfind('^')? + 1);
    pattern.get(start..end)
}

#[cfg(test)]
mod tests {
    use listwatch_meta::fuel::Tank;

    use super::*;

    #[test]
    fn expressions_are_compiled_into_their_size() {
        let states = |text: &str| Matcher::build(text).map(|matcher| matcher.states * 32);
        assert_eq!(states("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"), Ok(4 << 10));
        assert!(states("(abcdefgh|ijklmnop){50}").is_ok_and(|bytes| bytes > 4 << 10));
        assert!(matches!(states(r"(\pL{1000}){1000}"), Err(regex::Error::CompiledTooBig(_))));
    }

    #[test]
    fn search_that_may_take_too_long_is_not_begun() {
        let matcher = Matcher::compile("(a|b|ab|ba){60}x").unwrap();
        let text = "ab".repeat(500_000);
        assert_eq!(matcher.is_match(&text), Some(false), "without a tank there is no bound");
        let mut small = Tank::new(20_000);
        assert_eq!(small.run(|| matcher.is_match("ab")), Some(false));
        assert_eq!(small.run(|| matcher.is_match(&text)), None);
        assert!(small.is_exhausted());
        let mut large = Tank::new(u64::MAX / 4);
        assert_eq!(large.run(|| matcher.is_match(&"ab".repeat(50_000_000))), None, "no single search takes so long");
    }

    #[test]
    fn all_matches_are_found() {
        let matcher = Matcher::compile("[0-9]+").unwrap();
        assert_eq!((matcher.find("a12b3"), matcher.find("a")), (Some("12"), None));
        assert_eq!(matcher.find_all("a12b3c4", 2), ["12", "3"]);
        assert_eq!(matcher.as_str(), "[0-9]+");
    }
}
