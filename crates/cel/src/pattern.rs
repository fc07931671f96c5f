//! Regular expressions in RE2 syntax with a bound on what one search can cost: [`Matcher`].
//!
//! The engine takes time linear in the text, but each byte may cost as much as the expression has states, and a
//! search cannot be interrupted. So the worst case is computed before a search, and the time that the search
//! took is charged afterwards.
//!
//! The engine follows a text in a deterministic automaton that it builds as it goes, for a few nanoseconds a
//! byte, and follows all states of the expression when that automaton becomes too large. Most expressions have
//! a small one. [`Matcher::compile`] finds out.

use listwatch_meta::fuel;
use regex_automata::dfa::{StartKind, dense};
use regex_automata::nfa::thompson::{self, NFA, State};

use crate::limits::{PATTERN_BYTES_MAX, PATTERN_CACHE_BYTES_MAX, PATTERN_MATCH_UNITS_MAX};

/// Bytes that a state of a compiled expression takes at least.
const STATE_BYTES: usize = 16;

/// States that are visited in one unit of fuel, when the engine has to follow all of them. Measured: up to 9 ns
/// for a state and byte.
const STATES_PER_UNIT: u64 = 5;

/// Bytes of a text that the deterministic automaton of an expression reads in one unit of fuel. Measured: 2 ns
/// for a byte.
const BYTES_PER_UNIT: u64 = 10;

/// Bytes of the deterministic automaton of an expression, so that the engine can keep all of it
/// ([`PATTERN_CACHE_BYTES_MAX`]).
const DETERMINISTIC_BYTES_MAX: usize = 16 << 10;

/// A compiled regular expression.
#[derive(Debug, Clone)]
pub struct Matcher {
    regex: regex::Regex,
    /// States that the engine follows at one byte of a text, at most.
    states: u64,
    /// States of the deterministic automaton, if that is small.
    deterministic: Option<u64>,
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
        let begun = std::time::Instant::now();
        let mut builder = regex::RegexBuilder::new(text);
        let compiled = builder.size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_CACHE_BYTES_MAX).build();
        let compiled = compiled.map(|regex| {
            let automaton = automaton(text);
            let states = automaton.as_ref().map_or((PATTERN_BYTES_MAX / STATE_BYTES) as u64, count_states);
            Matcher { regex, states, deterministic: automaton.as_ref().and_then(count_deterministic_states) }
        });
        fuel::charge_time(begun.elapsed());
        compiled
    }

    /// The expression.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// Whether the expression matches somewhere in the text. `None` when there is no fuel to find out.
    pub fn is_match(&self, text: &str) -> Option<bool> {
        self.search(self.units_of_match(text), |regex| regex.is_match(text))
    }

    /// The first match.
    pub(crate) fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        self.search(self.units_of_find(text), |regex| regex.find(text).map(|found| found.as_str())).flatten()
    }

    /// The first matches; they end early when there is no fuel to find more.
    pub(crate) fn find_all<'t>(&self, text: &'t str, limit: usize) -> Vec<&'t str> {
        let mut found = self.regex.find_iter(text);
        let mut all = Vec::new();
        while all.len() < limit
            && let Some(Some(next)) = self.search(self.units_of_find(text), |_| found.next())
        {
            all.push(next.as_str());
        }
        all
    }

    /// Units that one pass over a text takes in the worst case.
    fn units_of_match(&self, text: &str) -> u64 {
        let bytes = text.len() as u64;
        let all_states = bytes.saturating_mul(self.states) / STATES_PER_UNIT;
        self.deterministic.map_or(all_states, |deterministic| {
            // Each state of it is built once.
            let build = deterministic.saturating_mul(self.states) / STATES_PER_UNIT;
            all_states.min(build.saturating_add(bytes / BYTES_PER_UNIT))
        })
    }

    /// The same for the place of a match: a pass forward, and one backward with an automaton of its own.
    fn units_of_find(&self, text: &str) -> u64 {
        (text.len() as u64).saturating_mul(self.states).saturating_mul(2) / STATES_PER_UNIT
    }

    /// Searches in a text, when the worst case is within the fuel that is left.
    fn search<T>(&self, worst: u64, search: impl FnOnce(&regex::Regex) -> T) -> Option<T> {
        if fuel::left().is_some_and(|left| worst > left.min(PATTERN_MATCH_UNITS_MAX)) {
            fuel::exhaust();
            return None;
        }
        fuel::timed(|| search(&self.regex))
    }
}

/// The automaton of an expression that compiles.
fn automaton(text: &str) -> Option<NFA> {
    let config = thompson::Config::new().nfa_size_limit(Some(PATTERN_BYTES_MAX));
    NFA::compiler().configure(config).build(text).ok()
}

/// The states of an automaton. A state with several branches counts once for each of them.
fn count_states(automaton: &NFA) -> u64 {
    let branches = |state: &State| match state {
        State::Sparse(sparse) => sparse.transitions.len() as u64,
        State::Union { alternates } => alternates.len() as u64,
        State::BinaryUnion { .. } => 2,
        _ => 1,
    };
    automaton.states().iter().map(branches).sum()
}

/// The states of the deterministic form of an automaton, at most; `None` when that is not small.
fn count_deterministic_states(automaton: &NFA) -> Option<u64> {
    let config = dense::Config::new()
        .start_kind(StartKind::Both)
        .accelerate(false)
        .dfa_size_limit(Some(DETERMINISTIC_BYTES_MAX))
        .determinize_size_limit(Some(DETERMINISTIC_BYTES_MAX * 2));
    let deterministic = dense::Builder::new().configure(config).build_from_nfa(automaton).ok()?;
    Some((deterministic.memory_usage() / (size_of::<u32>() * deterministic.stride())) as u64)
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
    fn regular_expression_states_are_counted() {
        let states = |text: &str| Matcher::build(text).map(|matcher| matcher.states);
        assert!(states("^a$").is_ok_and(|states| states < 12), "{:?}", states("^a$"));
        assert!(states("(abcdefgh|ijklmnop){50}").is_ok_and(|states| states > 50 * 16));
        assert!(states(r"\pL").is_ok_and(|states| states > 300), "each range of bytes is a branch");
        assert!(matches!(states(r"(\pL{1000}){1000}"), Err(regex::Error::CompiledTooBig(_))));
    }

    #[test]
    fn usual_pattern_on_4_kib_stays_within_the_fuel_of_an_io_worker() {
        // The units of `INLINE_UNITS_MAX`, less those that reading the rest of a small body takes.
        const UNITS: u64 = 16_000;
        let text = "a".repeat(4 << 10);
        for pattern in [
            "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            "^[A-Za-z0-9_-]+$",
            "^[a-z]{1,63}$",
            "^(Always|Never|IfNotPresent)$",
            r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$|a",
        ] {
            let matcher = Matcher::compile(pattern).unwrap();
            assert_eq!(
                Tank::new(UNITS).run(|| matcher.is_match(&text)),
                Some(matcher.regex.is_match(&text)),
                "{pattern}: {matcher:?}"
            );
        }
        // The deterministic automaton of this one has 2^40 states: it goes to the pool.
        let exponential = Matcher::compile("[ab]*a[ab]{40}c").unwrap();
        assert_eq!(exponential.deterministic, None);
        assert_eq!(Tank::new(UNITS).run(|| exponential.is_match(&text)), None);
    }

    #[test]
    fn too_costly_search_is_rejected_before_it_starts() {
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
