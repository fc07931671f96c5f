//! `Deployment (apps/v1)`: deployments.

use crate::Subresource;
use crate::{Kind, MetadataScope, WriteScope};

pub(crate) static KIND: Kind = Kind {
    short_names: &["deploy"],
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::scale("spec.selector"), Subresource::Status],
    defaults: &crate::defaults::table::DEPLOYMENT,
    validate: crate::validate::workloads::deployment,
    validate_update: crate::validate::workloads::update_selector,
    validate_transition: |new, old, context, errors| crate::hooks::counts::DEPLOYMENT.judge(new, old, context, errors),
    status_write: WriteScope {
        metadata: MetadataScope::Without(&["labels"]),
        reset: &[&["spec"], &["metadata", "labels"]],
    },
    generation_counts_annotations: true,
    printer: &crate::printers::workload::DEPLOYMENT,
    ..Kind::namespaced("apps", "v1", "deployments", "Deployment")
};
