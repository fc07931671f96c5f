//! Starts the controllers that repair cluster addresses and node ports, and the update of the ranges of cluster
//! addresses.

use std::sync::Arc;
use std::time::Duration;

use listwatch_controllers::ip_addresses::IpAddressController;
use listwatch_controllers::node_ports::NodePortController;
use listwatch_controllers::service_cidrs;
use listwatch_meta::Status;
use listwatch_write::Writer;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::BuildError;

/// Time limit for retries of the first read of the ServiceCIDRs.
const LOAD_MAX: Duration = Duration::from_secs(60);
/// Delay between two attempts.
const RETRY: Duration = Duration::from_secs(1);

/// The controllers after their first repair, each with the delay before its next repair.
pub(super) struct ServiceRepairs {
    addresses: (IpAddressController, Duration),
    node_ports: (NodePortController, Duration),
}

/// Reads the ServiceCIDRs, and repairs addresses and node ports. A server calls this before it allocates the first
/// address. If the ServiceCIDRs cannot be read within a minute, the server uses the range of its flag, and the update of
/// the ranges reads them later. A failed repair of node ports fails a health check and is retried.
///
/// # Errors
/// [`BuildError::Addresses`] when the repair of addresses has failed for a minute, as in kube-apiserver.
pub(super) async fn start(writer: &Arc<Writer>) -> Result<ServiceRepairs, BuildError> {
    if let Err(status) = load_service_cidrs(writer).await {
        tracing::warn!(%status, "cannot read the ServiceCIDRs; services get addresses of the flag's range only");
    }
    let mut addresses = IpAddressController::new(Arc::clone(writer));
    let mut node_ports = NodePortController::new(Arc::clone(writer));
    let (next_addresses, next_node_ports) = tokio::join!(addresses.start(), node_ports.sync());
    let next_addresses = next_addresses.map_err(|status| BuildError::Addresses(status.message))?;
    Ok(ServiceRepairs { addresses: (addresses, next_addresses), node_ports: (node_ports, next_node_ports) })
}

/// Reads the ServiceCIDRs. A failing store is retried for [`LOAD_MAX`].
async fn load_service_cidrs(writer: &Writer) -> Result<(), Status> {
    let deadline = Instant::now() + LOAD_MAX;
    loop {
        match tokio::time::timeout_at(deadline, service_cidrs::load(writer)).await {
            Ok(Err(_)) if Instant::now() + RETRY < deadline => tokio::time::sleep(RETRY).await,
            Ok(loaded) => return loaded,
            Err(_) => return Err(Status::timeout("the store did not list the ServiceCIDRs")),
        }
    }
}

impl ServiceRepairs {
    /// Spawns a task for each controller.
    pub(super) fn spawn(self, writer: &Arc<Writer>) -> Vec<JoinHandle<()>> {
        let ServiceRepairs { addresses, node_ports } = self;
        vec![
            tokio::spawn(addresses.0.run(addresses.1)),
            tokio::spawn(node_ports.0.run(node_ports.1)),
            tokio::spawn(service_cidrs::follow(Arc::clone(writer))),
        ]
    }
}
