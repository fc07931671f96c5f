//! `CronJob (batch/v1)`: cronjobs.

use crate::Kind;
use crate::Subresource;

pub(crate) static KIND: Kind = Kind {
    short_names: &["cj"],
    generation: true,
    categories: &["all"],
    subresources: &[Subresource::Status],
    defaults: &crate::defaults::table::CRON_JOB,
    validate: crate::validate::batch::cron_job,
    printer: &crate::printers::workload::CRON_JOB,
    ..Kind::namespaced("batch", "v1", "cronjobs", "CronJob")
};
