//! All limits of this crate, with the behavior at each limit.

/// The maximum length of an expression, in bytes. A longer expression does not compile.
pub const EXPRESSION_BYTES_MAX: usize = 100_000;

/// The maximum nesting depth of an expression, including chains of operators. A deeper expression
/// does not compile, because recursion needs stack.
pub const EXPRESSION_DEPTH_MAX: usize = 64;

/// The nesting depth of a named expression (`variables` of admission policies), counted in nodes, together with that of
/// the named expressions that it uses. A deeper one does not compile.
pub const VARIABLES_DEPTH_MAX: usize = 256;

/// The number of node visits of a type check. Each nested loop doubles the visits of its body. An
/// expression that needs more does not compile.
pub const TYPE_CHECKS_MAX: usize = 1_000_000;

/// The maximum length of a string that an expression constructs, in bytes. A longer string ends the
/// evaluation like the cost limit.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

/// The maximum size of a compiled regular expression, in bytes. A larger one, for example of nested
/// repetitions, does not compile. Matching takes linear time.
pub const PATTERN_BYTES_MAX: usize = 1 << 20;

/// The maximum length of the text of a regular expression, in bytes. A longer one does not compile: the parser needs a
/// multiple of that memory before [`PATTERN_BYTES_MAX`] is checked. Go has no such limit.
pub const PATTERN_TEXT_BYTES_MAX: usize = 256 << 10;

/// The maximum size of the lazily built automaton of a regular expression, in bytes. Above it,
/// matching is slower.
pub const PATTERN_CACHE_BYTES_MAX: usize = 1 << 18;

/// The maximum worst-case cost of a search for a regular expression, in units of fuel
/// (`listwatch_meta::fuel`, 50 ns each). A search that may cost more is not started, because a
/// search cannot be interrupted. The request then fails as if it had exceeded its deadline. An
/// expression with 100 states may search 5 MB. An expression with a small deterministic automaton
/// may search any value.
pub const PATTERN_MATCH_UNITS_MAX: u64 = 100_000_000;
