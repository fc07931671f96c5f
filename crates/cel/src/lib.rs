//! The Common Expression Language of Kubernetes: types, worst-case costs, bounded evaluation, library.
//!
//! ```text
//!  text ──parse──▶ Expression ──check(types of variables)──▶ result type, worst-case cost │ compiler's errors
//!                      └───────evaluate(values, limit)─────▶ value, cost                  │ EvalError
//! ```
//!
//! The rules, costs and error texts are those of kube-apiserver 1.36 (`apiserver/pkg/cel`) and
//! cel-go. Custom resources, admission policies and device selectors share them.
//!
//! ```
//! use listwatch_cel::{Expression, Type, Value};
//! use listwatch_json::json;
//!
//! let expression = Expression::parse("object.metadata.name.startsWith('web-')")?;
//! let checked = expression.check([("object", Type::DYN)])?;
//! assert_eq!(checked.ty.to_string(), "bool");
//!
//! let object = json!({"metadata": {"name": "web-1"}});
//! let evaluation = expression.evaluate([("object", Value::json(&object, None, false))], 1_000);
//! assert_eq!(evaluation.result?.as_bool(), Some(true));
//!
//! let error = Expression::parse("1 + 'a'")?.check([]).unwrap_err();
//! let expected = "ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'\n | 1 + 'a'\n | ..^";
//! assert_eq!(error.to_string(), expected);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Typed and untyped objects
//! A variable of [`Type::DYN`] is checked during the evaluation. A variable whose type comes from a
//! [`Schema`] ([`Type::of`]) is checked before, and `maxItems`, `maxLength` and `maxProperties`
//! bound the worst-case cost.
//!
//! # Costs
//! A step of an evaluation costs one unit, and reading costs one unit per ten bytes or items.
//! [`CheckResult::cost`] is the worst-case cost. [`Expression::evaluate`] ends with
//! [`EvalError::Limit`] at its limit. Both also charge fuel (`listwatch_meta::fuel`), so that a
//! request cannot occupy a thread.
//!
//! # Limits
//! Every limit is a constant of [`limits`], which documents the behavior at the limit.
#![forbid(unsafe_code)]

mod access_review;
mod admission;
mod ast;
mod authorizer;
mod check;
mod device;
mod eval;
mod expression;
pub mod format;
mod json;
mod kubernetes;
mod lazy;
mod library;
pub mod limits;
pub mod pattern;
mod quantity;
mod re2;
mod schema;
mod semver;
mod signatures;
mod types;
mod value;

pub use admission::{AdmissionVariables, ResultType, compile_expression};
pub use authorizer::{AuthorizationCheck, AuthorizationDecisions, CheckDecision, CheckTarget, ResourceCheck};
pub use device::check_device_selector;
pub use eval::EvalError;
pub use expression::{CheckResult, CompileError, Evaluation, Expression, Value};
pub use lazy::{LazyScope, LazyVariables};
pub use schema::{Kind, ListType, Schema};
pub use types::{Declared, Fields, RESERVED_WORDS, Type, count_max};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
