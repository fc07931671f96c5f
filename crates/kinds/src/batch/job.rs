//! `Job (batch/v1)`: jobs.

use crate::Subresource;
use crate::{Field, Kind};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    categories: &["all"],
    fields: &[Field {
        label: "status.successful",
        path: "status.succeeded",
        default: "0",
        ..Field::new("status.successful")
    }],
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::JOB,
    prepare_for_create: crate::hooks::workloads::create_job,
    validate: crate::validate::batch::job,
    validate_update: crate::validate::batch::update_job,
    validate_status: crate::validate::batch::job_status,
    printer: &crate::printers::workload::JOB,
    orphans_dependents: true,
    delete_warning: Some(
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
    ),
    ..Kind::namespaced("batch", "v1", "jobs", "Job")
};
