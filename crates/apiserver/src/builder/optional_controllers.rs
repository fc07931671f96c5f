//! Starts the built-in controllers that `--controllers` selects.

use std::sync::Arc;

use listwatch_controllers::service_accounts::{self, NamespaceObjects};
use listwatch_controllers::{
    Controllers, gc, namespaces, policy_status, resource_quotas, service_cidr_lifecycle, storage_migration,
    storage_protection,
};
use listwatch_write::Writer;
use tokio::task::JoinHandle;

/// Spawns a task for each selected controller. `root_ca` is the PEM text that `root-ca-cert-publisher` writes into each
/// namespace; without it, that controller does not run.
pub(super) async fn spawn(selected: Controllers, writer: &Arc<Writer>, root_ca: Option<String>) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    if selected.service_cidr {
        service_cidr_lifecycle::prepare(writer).await;
    }
    let writer = || Arc::clone(writer);
    if selected.namespace {
        tasks.push(tokio::spawn(namespaces::run(writer())));
    }
    if selected.validating_admission_policy_status {
        tasks.push(tokio::spawn(policy_status::run(writer())));
    }
    if selected.storage_version_migrator {
        tasks.push(tokio::spawn(storage_migration::run(writer())));
    }
    if selected.service_cidr {
        tasks.push(tokio::spawn(service_cidr_lifecycle::run(writer())));
    }
    if selected.resource_quota {
        tasks.push(tokio::spawn(resource_quotas::run(writer())));
    }
    for (runs, protection) in [
        (selected.pvc_protection, &storage_protection::CLAIMS),
        (selected.pv_protection, &storage_protection::VOLUMES),
        (selected.vac_protection, &storage_protection::ATTRIBUTES_CLASSES),
    ] {
        if runs {
            tasks.push(tokio::spawn(storage_protection::run(writer(), protection)));
        }
    }
    let objects =
        NamespaceObjects { service_account: selected.service_account, root_ca: root_ca.filter(|_| selected.root_ca) };
    if objects.service_account || objects.root_ca.is_some() {
        tasks.push(tokio::spawn(service_accounts::run(writer(), objects)));
    }
    if selected.gc {
        tasks.push(tokio::spawn(gc::run(writer())));
    }
    tasks
}
