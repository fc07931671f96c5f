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
pub(crate) struct Matcher {
    regex: regex::Regex,
    /// At most so many states.
    states: u64,
}

impl Matcher {
    /// Compiles an expression within [`PATTERN_BYTES_MAX`]. Charges the time that it takes.
    pub(crate) fn compile(text: &str) -> Result<Self, regex::Error> {
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
    pub(crate) fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// Whether the expression matches somewhere in the text. `None` when there is no fuel to find out.
    pub(crate) fn is_match(&self, text: &str) -> Option<bool> {
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

#[cfg(test)]
mod tests {
    use listwatch_meta::fuel::Tank;

    use super::*;

    #[test]
    fn expressions_are_compiled_into_their_size() {
        let states = |text: &str| Matcher::compile(text).map(|matcher| matcher.states * 32);
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
