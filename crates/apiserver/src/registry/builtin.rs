//! Kubernetes' built-in kinds as a table.
use std::sync::Arc;
use super::Resource;
pub(super) fn resources() -> Vec<Arc<Resource>> { Vec::new() }
