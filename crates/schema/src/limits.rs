//! All limits of this crate, with the behavior at each limit. Values come from a JSON parser with a
//! depth limit (`serde_json`: 128), so every recursion over values is bounded.

/// The largest nesting depth of schemas below the root. A definition with a deeper schema is
/// rejected, because recursion over a schema needs stack. The deepest known schema of a public
/// operator has 19 levels.
pub const SCHEMA_DEPTH_MAX: usize = 64;

/// The largest number of schemas within one schema, including the schema itself. A definition with
/// a larger schema is rejected. The largest known schema of a public operator has about 10,000.
pub const SCHEMA_NODES_MAX: usize = 65_536;

/// The largest number of field errors that one validation reports. Further errors are omitted; the
/// object is invalid in any case.
pub const FIELD_ERRORS_MAX: usize = 1_000;

/// The size of one text in an error in bytes, such as the supported values of an enumeration, or
/// the invalid value. A longer text is truncated and ends in `…`.
pub use listwatch_meta::status::FIELD_ERROR_BYTES_MAX;

/// The largest total size of the errors that one validation reports, in bytes. Further errors are
/// omitted; the object is invalid in any case.
pub const FIELD_ERRORS_BYTES_MAX: usize = 256 * 1024;

/// The largest total size of the paths of unknown fields that one pruning reports, in bytes.
/// Further unknown fields are removed without a report.
pub const UNKNOWN_FIELDS_BYTES_MAX: usize = 256 * 1024;

/// The largest number of unknown fields that one pruning reports. Further unknown fields are
/// removed without a report.
pub const UNKNOWN_FIELDS_MAX: usize = 1_000;

/// The largest length of one path element in an error, in bytes, such as a map key. A longer
/// element is truncated, because many errors may be below one key.
pub const STEP_SHOWN_BYTES_MAX: usize = 1_024;

/// The largest number of steps of one validation. A nested `anyOf` multiplies the steps. Above the
/// limit, the value is rejected with an error that states the limit.
pub const VALIDATION_STEPS_MAX: usize = 20_000_000;

/// The largest number of selectable fields of one version, as in Kubernetes.
pub const SELECTABLE_FIELDS_MAX: usize = 8;

/// The largest number of distinct regular expressions of one schema. A definition with more
/// expressions is rejected, because the check compiles each of them.
pub const PATTERNS_MAX: usize = 2_000;

/// The largest estimated worst-case cost of one rule, in cost units. A definition with a more
/// expensive rule is rejected, as in Kubernetes (`StaticEstimatedCostLimit`).
pub const RULE_ESTIMATE_MAX: u64 = 10_000_000;

/// The largest estimated worst-case cost of all rules of a schema together, in cost units. A more
/// expensive definition is rejected, as in Kubernetes (`StaticEstimatedCRDCostLimit`).
pub const RULES_ESTIMATE_MAX: u64 = 100_000_000;

/// The largest cost of one evaluation of one rule, in cost units. Above the limit the evaluation
/// ends and the object is rejected, as in Kubernetes (`PerCallLimit`).
pub const RULE_CALL_COST_MAX: u64 = 1_000_000;

/// The largest total cost of all rules in one validation, in cost units. Above the limit the object
/// is rejected, as in Kubernetes (`RuntimeCELCostBudget`).
pub const RULES_COST_MAX: u64 = 10_000_000;
