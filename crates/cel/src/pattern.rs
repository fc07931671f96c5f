//! Regular expressions in RE2 syntax with a bounded cost per search: [`Matcher`].
//!
//! The engine takes linear time, but each byte may cost as much as the expression has states, and a
//! search cannot be interrupted. The worst case is therefore computed before a search, and the
//! elapsed time is charged after it.
//!
//! The engine matches with a deterministic automaton, which it builds lazily and which costs a few nanoseconds per
//! byte. If that automaton becomes too large, the engine tracks all states of the expression. Most expressions have a
//! small automaton. The first search that needs the sizes computes them.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::Instant;

use listwatch_meta::fuel;
use regex_automata::Anchored;
use regex_automata::hybrid::dfa::{Config, DFA};
use regex_automata::nfa::thompson::{self, NFA, State};
use regex_automata::util::start;

use crate::limits::{PATTERN_BYTES_MAX, PATTERN_CACHE_BYTES_MAX, PATTERN_MATCH_UNITS_MAX, PATTERN_TEXT_BYTES_MAX};
use crate::re2;

/// The minimum size of a state of a compiled expression in bytes.
const STATE_BYTES: usize = 16;

/// The number of states that the engine visits per unit of fuel if it tracks all of them. Measured:
/// up to 9 ns per state and byte.
const STATES_PER_UNIT: u64 = 5;

/// The number of bytes that the deterministic automaton reads per unit of fuel. Measured: 2 ns per
/// byte.
const BYTES_PER_UNIT: u64 = 10;

/// The largest size of a small deterministic automaton, in bytes. A small automaton fits into the cache of the regex
/// engine ([`PATTERN_CACHE_BYTES_MAX`]).
const DETERMINISTIC_BYTES_MAX: usize = 16 << 10;

const TOO_LARGE: &str = "error parsing regexp: expression too large";

/// A compiled regular expression.
#[derive(Debug, Clone)]
pub struct Matcher {
    /// The expression in RE2 syntax.
    source: Box<str>,
    /// The translated expression.
    regex: regex::Regex,
    /// The maximum number of states that the engine visits per byte.
    states: OnceLock<u64>,
    /// The number of states of the deterministic automaton, if it is small.
    deterministic: OnceLock<Option<u64>>,
}

impl Matcher {
    /// Compiles an expression within [`PATTERN_TEXT_BYTES_MAX`] and [`PATTERN_BYTES_MAX`], and charges the elapsed time. Reads the
    /// syntax of Go's `regexp`, and rejects what Go rejects.
    ///
    /// # Errors
    /// Go's error text.
    pub fn compile(text: &str) -> Result<Self, String> {
        if text.len() > PATTERN_TEXT_BYTES_MAX {
            return Err(TOO_LARGE.to_owned());
        }
        charged(|| {
            let translated = re2::translate(text)?;
            Matcher::build(text, &translated).map_err(|error| go_regex_error(text, &error))
        })
    }

    /// Checks the syntax of an expression without compiling it, in linear time. Accepts expressions that
    /// [`Matcher::compile`] rejects only for their compiled size, their depth or an unknown Unicode class.
    ///
    /// # Errors
    /// Go's error text.
    pub fn check_syntax(text: &str) -> Result<(), String> {
        if text.len() > PATTERN_TEXT_BYTES_MAX {
            return Err(TOO_LARGE.to_owned());
        }
        charged(|| re2::translate(text).map(drop))
    }

    fn build(source: &str, translated: &str) -> Result<Self, regex::Error> {
        let mut builder = regex::RegexBuilder::new(translated);
        builder.size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_CACHE_BYTES_MAX);
        let regex = builder.build()?;
        let source = source.into();
        Ok(Matcher { source, regex, states: OnceLock::new(), deterministic: OnceLock::new() })
    }

    fn states(&self) -> u64 {
        let count = || {
            automaton(self.regex.as_str()).map_or((PATTERN_BYTES_MAX / STATE_BYTES) as u64, |nfa| count_states(&nfa))
        };
        *self.states.get_or_init(|| charged(count))
    }

    fn deterministic(&self) -> Option<u64> {
        let count = || automaton(self.regex.as_str()).as_ref().and_then(count_deterministic_states);
        *self.deterministic.get_or_init(|| charged(count))
    }

    /// The source of the expression.
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// True if the expression matches a part of the text. `None` if the fuel does not suffice.
    pub fn is_match(&self, text: &str) -> Option<bool> {
        self.search(|limit| self.units_of_match(text, limit), |regex| regex.is_match(text))
    }

    /// Returns the first match. `None` if there is no match, or if the fuel does not suffice.
    pub(crate) fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        let find = |regex: &regex::Regex| regex.find(text).map(|found| found.as_str());
        self.search(|_| self.units_of_find(text), find).flatten()
    }

    /// The first `limit` matches; fewer if the fuel does not suffice.
    pub(crate) fn find_all<'t>(&self, text: &'t str, limit: usize) -> Vec<&'t str> {
        let mut found = self.regex.find_iter(text);
        let mut all = Vec::new();
        while all.len() < limit
            && let Some(Some(next)) = self.search(|_| self.units_of_find(text), |_| found.next())
        {
            all.push(next.as_str());
        }
        all
    }

    /// The worst-case cost of one pass over a text, in units of fuel. Below `limit` the result may be
    /// a larger upper bound.
    fn units_of_match(&self, text: &str, limit: u64) -> u64 {
        let (bytes, states) = (text.len() as u64, self.states());
        let all_states = bytes.saturating_mul(states) / STATES_PER_UNIT;
        if all_states <= limit {
            return all_states;
        }
        self.deterministic().map_or(all_states, |deterministic| {
            // Each state is built once.
            let build = deterministic.saturating_mul(states) / STATES_PER_UNIT;
            all_states.min(build.saturating_add(bytes / BYTES_PER_UNIT))
        })
    }

    /// The worst-case cost of finding a match: a forward pass, and a backward pass with a second
    /// automaton.
    fn units_of_find(&self, text: &str) -> u64 {
        (text.len() as u64).saturating_mul(self.states()).saturating_mul(2) / STATES_PER_UNIT
    }

    /// Searches a text if the remaining fuel suffices for the worst case. `worst` receives the limit
    /// and returns the worst-case cost in units of fuel.
    fn search<T>(&self, worst: impl FnOnce(u64) -> u64, search: impl FnOnce(&regex::Regex) -> T) -> Option<T> {
        // Without a tank nothing is charged, and the clock need not be read.
        let Some(left) = fuel::left() else { return Some(search(&self.regex)) };
        let limit = left.min(PATTERN_MATCH_UNITS_MAX);
        if worst(limit) > limit {
            fuel::exhaust();
            return None;
        }
        fuel::timed(|| search(&self.regex))
    }
}

/// Runs uninterruptible work and charges its duration.
fn charged<T>(work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    fuel::charge_time(begun.elapsed());
    done
}

/// The automaton of a valid expression.
fn automaton(text: &str) -> Option<NFA> {
    let config = thompson::Config::new().nfa_size_limit(Some(PATTERN_BYTES_MAX));
    NFA::compiler().configure(config).build(text).ok()
}

/// The number of states of an automaton. A state with several branches counts once per branch.
fn count_states(automaton: &NFA) -> u64 {
    let branches = |state: &State| match state {
        State::Sparse(sparse) => sparse.transitions.len() as u64,
        State::Union { alternates } => alternates.len() as u64,
        State::BinaryUnion { .. } => 2,
        _ => 1,
    };
    automaton.states().iter().map(branches).sum()
}

/// The number of states of the deterministic automaton. `None` if the automaton is larger than
/// [`DETERMINISTIC_BYTES_MAX`].
///
/// The automaton is explored with the lazy engine. The engine that builds all states in advance is a feature of the
/// dependency. That feature would also double the time to compile each expression.
fn count_deterministic_states(automaton: &NFA) -> Option<u64> {
    let config = Config::new().cache_capacity(PATTERN_CACHE_BYTES_MAX).minimum_cache_clear_count(Some(0));
    let engine = DFA::builder().configure(config).build_from_nfa(automaton.clone()).ok()?;
    let classes = engine.byte_classes();
    let states_max = DETERMINISTIC_BYTES_MAX / (size_of::<u32>() * classes.alphabet_len().next_power_of_two());
    let mut cache = engine.create_cache();
    let mut known = HashSet::new();
    for anchored in [Anchored::No, Anchored::Yes] {
        // A search begins at the beginning of the text or after a byte, on which assertions may depend.
        for behind in std::iter::once(None).chain((0..=u8::MAX).map(Some)) {
            let start = start::Config::new().anchored(anchored).look_behind(behind);
            known.insert(engine.start_state(&mut cache, &start).ok()?);
        }
    }
    let mut unexplored: Vec<_> = known.iter().copied().collect();
    while let Some(state) = unexplored.pop() {
        if known.len() > states_max {
            return None;
        }
        for unit in classes.representatives(..) {
            let next = match unit.as_u8() {
                Some(byte) => engine.next_state(&mut cache, state, byte),
                None => engine.next_eoi_state(&mut cache, state),
            };
            let next = next.ok()?;
            if known.insert(next) {
                unexplored.push(next);
            }
        }
    }
    Some(known.len() as u64)
}

/// Converts an error of the engine to Go's text.
fn go_regex_error(text: &str, error: &regex::Error) -> String {
    let message = error.to_string();
    match error {
        regex::Error::CompiledTooBig(_) => TOO_LARGE.to_owned(),
        // The engine nests less deeply than Go.
        _ if message.contains("nest") => format!("error parsing regexp: expression nests too deeply: `{text}`"),
        _ => {
            let reason = message.rsplit("error: ").next().unwrap_or(&message).trim();
            format!("error parsing regexp: {reason}: `{text}`")
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::fuel::Tank;

    use super::*;

    #[test]
    fn state_count_of_a_regular_expression_covers_repetitions_and_classes() {
        let states = |text: &str| Matcher::compile(text).map(|matcher| matcher.states());
        assert!(states("^a$").is_ok_and(|states| states < 12), "{:?}", states("^a$"));
        assert!(states("(abcdefgh|ijklmnop){50}").is_ok_and(|states| states > 50 * 16));
        assert!(states(r"\pL").is_ok_and(|states| states > 300), "each range of bytes is a branch");
        assert_eq!(states(r"\pL{1000}"), Err("error parsing regexp: expression too large".to_owned()));
    }

    /// Creates a matcher whose automata are already counted, because counting is charged by its duration on this
    /// machine.
    fn sized(pattern: &str) -> Matcher {
        let matcher = Matcher::compile(pattern).unwrap();
        matcher.states();
        matcher.deterministic();
        matcher
    }

    /// Searches on `units` of fuel. Returns `None` if the fuel suffices for none of 20 tries. A search is charged by
    /// its duration, so a pause of the thread can exhaust the fuel of a single try.
    fn match_on(units: u64, matcher: &Matcher, text: &str) -> Option<bool> {
        (0..20).find_map(|_| Tank::new(units).run(|| matcher.is_match(text)))
    }

    #[test]
    fn common_pattern_on_4_kib_stays_within_the_fuel_of_an_io_worker() {
        // The units of `INLINE_UNITS_MAX`, minus the units for reading the rest of a small body.
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
            let matcher = sized(pattern);
            assert_eq!(match_on(UNITS, &matcher, &text), Some(matcher.regex.is_match(&text)), "{pattern}: {matcher:?}");
        }
        // The deterministic automaton of this expression has 2^40 states, so the search runs on the
        // pool.
        let exponential = sized("[ab]*a[ab]{40}c");
        assert_eq!(exponential.deterministic(), None);
        assert_eq!(match_on(UNITS, &exponential, &text), None);
    }

    #[test]
    fn too_costly_search_is_rejected_before_it_starts() {
        let matcher = sized("(a|b|ab|ba){60}x");
        let text = "ab".repeat(500_000);
        assert_eq!(matcher.is_match(&text), Some(false), "without a tank there is no bound");
        assert_eq!(match_on(20_000, &matcher, "ab"), Some(false));
        let mut small = Tank::new(20_000);
        assert_eq!(small.run(|| matcher.is_match(&text)), None);
        assert!(small.is_exhausted());
        let mut large = Tank::new(u64::MAX / 4);
        assert_eq!(large.run(|| matcher.is_match(&"ab".repeat(50_000_000))), None, "no single search takes so long");
    }

    #[test]
    fn find_all_returns_every_match() {
        let matcher = Matcher::compile("[0-9]+").unwrap();
        assert_eq!((matcher.find("a12b3"), matcher.find("a")), (Some("12"), None));
        assert_eq!(matcher.find_all("a12b3c4", 2), ["12", "3"]);
        assert_eq!(matcher.as_str(), "[0-9]+");
    }
}
