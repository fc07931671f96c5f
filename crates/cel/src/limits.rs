//! Every bound of this crate, with what happens there.

/// Bytes of an expression. A longer one does not compile.
pub const EXPRESSION_BYTES_MAX: usize = 100_000;

/// How deep an expression nests, chains of operators included. A deeper one does not compile: parsing and
/// evaluating it take stack.
pub const EXPRESSION_DEPTH_MAX: usize = 64;

/// Nodes of an expression that its type check visits. Each loop inside a loop doubles the visits of its body. An
/// expression that needs more does not compile.
pub const TYPE_CHECKS_MAX: usize = 1_000_000;

/// Bytes of a text that an expression makes. A longer one ends the evaluation as if its cost were at the limit.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

/// Bytes that a compiled regular expression may take. A larger one, such as repetitions of repetitions, does not
/// compile. Matching takes time linear in the value.
pub const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Bytes that the lazily built automaton of a regular expression may take while it is used. Beyond it, matching goes
/// on more slowly.
pub const PATTERN_CACHE_BYTES_MAX: usize = 1 << 18;

/// Units of fuel (`listwatch_meta::fuel`, 50 ns each) that a search for a regular expression may take in the worst
/// case. A search that might take more is not begun, since it cannot be interrupted: the request is answered as one
/// whose time is up. An expression of 100 states may search 5 MB, one with a small deterministic automaton any value.
pub const PATTERN_MATCH_UNITS_MAX: u64 = 100_000_000;
