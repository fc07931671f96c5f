//! Tables of cases for the rules of admission webhooks.

mod calls;
mod conditions;
mod matching;
mod reinvocation;
mod responses;
mod support;
