//! All bounds of this crate, with the behavior at each bound. Values come from a JSON parser with a
//! bound on depth (`serde_json`: 128), so every recursion over values is bounded.

/// How deep schemas nest below the root. A deeper one is refused when the definition is created:
/// whatever follows a schema down takes stack. A property is two levels of JSON, so that a document
/// that nests up to 128 hardly has more; the deepest of a public operator known to us has 19.
pub const SCHEMA_DEPTH_MAX: usize = 64;

/// Number of schemas within one schema, including itself. A definition with a larger schema is
/// rejected. The largest known schema of a public operator has about 10,000.
pub const SCHEMA_NODES_MAX: usize = 65_536;

/// Field errors reported by one validation. Further errors are omitted; the object is invalid in
/// any case.
pub const FIELD_ERRORS_MAX: usize = 1_000;

/// Bytes of one text in an error, such as the supported values of an enumeration, or the invalid
/// value. A longer text is truncated and ends in `…`.
pub use listwatch_meta::status::FIELD_ERROR_BYTES_MAX;

/// Bytes of all errors reported by one validation. Further errors are omitted; the object is
/// invalid in any case.
pub const FIELD_ERRORS_BYTES_MAX: usize = 256 * 1024;

/// Bytes of the paths of unknown fields that one pruning reports. All unknown fields are removed all the same.
pub const UNKNOWN_FIELDS_BYTES_MAX: usize = 256 * 1024;

/// Paths of unknown fields that one pruning reports. All unknown fields are removed all the same.
pub const UNKNOWN_FIELDS_MAX: usize = 1_000;

/// Bytes of one step of a path, such as a key of a map, that an error shows. Of a longer one it shows
/// the beginning: many errors may be below one key.
pub const STEP_SHOWN_BYTES_MAX: usize = 1_024;

/// Checks of single values in one validation. Nested `anyOf` multiplies them. When the budget is
/// used up, the value is rejected with an error that says so.
pub const VALIDATION_STEPS_MAX: usize = 20_000_000;

/// Selectable fields of one version, as in Kubernetes.
pub const SELECTABLE_FIELDS_MAX: usize = 8;

/// Distinct regular expressions of one schema. A definition with more is rejected, because each
/// must be compiled to be checked.
pub const PATTERNS_MAX: usize = 2_000;

/// Estimated worst-case units of one rule. A definition with a more expensive rule is rejected, as
/// in Kubernetes (`StaticEstimatedCostLimit`).
pub const RULE_ESTIMATE_MAX: u64 = 10_000_000;

/// Units of the worst cases of all rules of a schema together; as [`RULE_ESTIMATE_MAX`]
/// (`StaticEstimatedCRDCostLimit`).
pub const RULES_ESTIMATE_MAX: u64 = 100_000_000;

/// Units of one evaluation of one rule. Above them the evaluation ends and the object is rejected,
/// as in Kubernetes (`PerCallLimit`).
pub const RULE_CALL_COST_MAX: u64 = 1_000_000;

/// Units of all rules in one validation together; as [`RULE_CALL_COST_MAX`]
/// (`RuntimeCELCostBudget`).
pub const RULES_COST_MAX: u64 = 10_000_000;
