//! All integration tests of this crate, in one binary to save link time.

mod calls;
mod conditions;
mod matching;
mod reinvocation;
mod responses;
mod support;
