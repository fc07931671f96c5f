//! The filters of the request chain, one per file, with kube-apiserver's names. `chain.rs` calls them.

pub(crate) mod audit;
pub(crate) mod authentication;
pub(crate) mod authorization;
pub(crate) mod cache_control;
pub(crate) mod flow_control;
pub(crate) mod impersonation;
pub(crate) mod panic_recovery;
pub(crate) mod rejection;
pub(crate) mod request_deadline;
pub(crate) mod warnings;
