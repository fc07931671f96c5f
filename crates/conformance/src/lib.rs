//! A conformance test suite for Kubernetes list-watch. The cases are language-neutral YAML files, and run against any
//! API server of a kubeconfig.
//!
//! ```text
//!  cases/*.yaml ─▶ Suite ─┐
//!  kubeconfig ──▶ Target ─┼─▶ judge ─▶ Report ─▶ text, JSON, JUnit, HTML
//!  Environment (compact, ─┘    │
//!  restart)                    └ probes: cases of missing capabilities are unsupported, not failed
//! ```
//!
//! Each case names the rule that it tests and the rule's source. A case runs in a namespace of its own and removes its
//! objects. `cases/README.md` documents the format, so that other programs can run the same cases.
//!
//! # Example
//! ```no_run
//! use std::sync::Arc;
//!
//! use listwatch_client::Config;
//! use listwatch_conformance::{Actions, HttpVersion, RunOptions, Suite, Target, judge};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let suite = Suite::bundled()?;
//! let config = Config::load(Some("kubeconfig".as_ref()), None)?;
//! let target = Target::new(config, HttpVersion::Any).await?;
//! let options = RunOptions { only: vec!["paging/".to_owned()], ..RunOptions::default() };
//! let report = judge(&suite, target, Arc::new(Actions::default()), &options, |_| {}).await?;
//! println!("{}", report.to_text());
//! assert!(report.conforms());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod report;
mod run;
mod suite;
mod transport;
mod value;

pub use self::report::{CaseResult, Counts, Outcome, Report, Row};
pub use self::run::{ActionFuture, Actions, Environment, RunError, RunOptions, judge, select};
pub use self::suite::{Capability, Case, FORMAT_VERSION, Level, Profile, Suite, SuiteError};
pub use self::transport::{HttpVersion, Target, TargetError};
