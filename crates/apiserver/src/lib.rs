//! A Kubernetes API server for list-watch.
#![forbid(unsafe_code)]

mod backend;
pub mod registry;
mod write;
