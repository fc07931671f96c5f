//! Every bound of this crate, with what happens there. Values come from a JSON parser with a bound
//! on depth of its own (`serde_json`: 128), so whatever follows a value down ends.

/// How deep schemas nest below the root. A deeper one is refused when the definition is created:
/// whatever follows a schema down takes stack. A property is two levels of JSON, so that a document
/// that nests up to 128 hardly has more; the deepest of a public operator known to us has 19.
pub const SCHEMA_DEPTH_MAX: usize = 64;

/// How many schemas one schema consists of, itself included. A larger one is refused when the
/// definition is created. The largest of a public operator known to us has about 10,000.
pub const SCHEMA_NODES_MAX: usize = 65_536;

/// Field errors that one validation reports. The object is invalid all the same; what is wrong
/// beyond them is left out.
pub const FIELD_ERRORS_MAX: usize = 1_000;

/// Bytes of one text of an error, such as the list of what an enumeration allows, or the value that is wrong.
/// A longer one is cut and ends in `…`.
pub use listwatch_meta::status::FIELD_ERROR_BYTES_MAX;

/// Bytes of all errors that one validation reports. The object is invalid all the same; what is wrong beyond
/// them is left out.
pub const FIELD_ERRORS_BYTES_MAX: usize = 256 * 1024;

/// Bytes of the paths of unknown fields that one pruning reports. All unknown fields are removed all the same.
pub const UNKNOWN_FIELDS_BYTES_MAX: usize = 256 * 1024;

/// Paths of unknown fields that one pruning reports. All unknown fields are removed all the same.
pub const UNKNOWN_FIELDS_MAX: usize = 1_000;

/// Bytes of one step of a path, such as a key of a map, that an error shows. Of a longer one it shows
/// the beginning: many errors may be below one key.
pub const STEP_SHOWN_BYTES_MAX: usize = 1_024;

/// Single checks of values in one validation. `anyOf` within `anyOf` multiplies them; where the
/// budget ends, the value is refused with an error that says so.
pub const VALIDATION_STEPS_MAX: usize = 20_000_000;

/// Selectable fields of one version, as in Kubernetes.
pub const SELECTABLE_FIELDS_MAX: usize = 8;

/// Different regular expressions of one schema. More are refused when the definition is created:
/// each has to be compiled to be checked.
pub const PATTERNS_MAX: usize = 2_000;

/// Units of the worst case of one rule, by the estimate made when the definition is created, where it
/// is refused if it has more. As in Kubernetes (`StaticEstimatedCostLimit`).
pub const RULE_ESTIMATE_MAX: u64 = 10_000_000;

/// Units of the worst cases of all rules of a schema together; as [`RULE_ESTIMATE_MAX`]
/// (`StaticEstimatedCRDCostLimit`).
pub const RULES_ESTIMATE_MAX: u64 = 100_000_000;

/// Units that one evaluation of one rule takes. Beyond, it ends, and the object is refused. As in
/// Kubernetes (`PerCallLimit`).
pub const RULE_CALL_COST_MAX: u64 = 1_000_000;

/// Units that all rules of one validation take together; as [`RULE_CALL_COST_MAX`]
/// (`RuntimeCELCostBudget`).
pub const RULES_COST_MAX: u64 = 10_000_000;
