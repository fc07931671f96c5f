//! All limits of this crate, with the behavior at each limit.

/// The length of an expression in bytes. A longer one does not compile.
pub const EXPRESSION_BYTES_MAX: usize = 100_000;

/// The nesting depth of an expression, including chains of operators. A deeper one does not
/// compile, because recursion needs stack.
pub const EXPRESSION_DEPTH_MAX: usize = 64;

/// The number of node visits of a type check. Each nested loop doubles the visits of its body. An
/// expression that needs more does not compile.
pub const TYPE_CHECKS_MAX: usize = 1_000_000;

/// The length of a string that an expression constructs, in bytes. A longer one ends the evaluation
/// like the cost limit.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

/// The size of a compiled regular expression in bytes. A larger one, such as nested repetitions,
/// does not compile. Matching takes linear time.
pub const PATTERN_BYTES_MAX: usize = 1 << 20;

/// The size of the lazily built automaton of a regular expression in bytes. Above it, matching is
/// slower.
pub const PATTERN_CACHE_BYTES_MAX: usize = 1 << 18;

/// The worst-case cost of a search for a regular expression, in units of fuel
/// (`listwatch_meta::fuel`, 50 ns each). A search that may cost more is not started, because it
/// cannot be interrupted; the request is answered like one that exceeded its deadline. An
/// expression with 100 states may search 5 MB. One with a small deterministic automaton may search
/// any value.
pub const PATTERN_MATCH_UNITS_MAX: u64 = 100_000_000;
