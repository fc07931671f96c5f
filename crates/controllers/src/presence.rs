//! [`Presence`]: publishes a running server in the cluster: the address in the endpoints of the Service `kubernetes`,
//! and the identity Lease.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use crate::identity_lease::IdentityLease;
use crate::kubernetes_endpoints::EndpointReconciler;
use listwatch_write::Writer;
use tokio::task::JoinSet;

/// The published address and Lease of a server, and the tasks that renew them.
pub struct Presence {
    endpoints: Option<Arc<EndpointReconciler>>,
    lease: Option<Arc<IdentityLease>>,
    /// The running tasks. Dropping the value aborts them.
    tasks: OnceLock<JoinSet<()>>,
}

impl Presence {
    /// Creates the value. `address` is the address and port for clients inside the cluster; `None`: no address is
    /// published. `host_name` determines the name of the identity Lease; `None`: no Lease.
    pub fn new(writer: &Arc<Writer>, address: Option<(IpAddr, u16)>, host_name: Option<&str>) -> Self {
        let endpoints = |(address, port)| Arc::new(EndpointReconciler::new(Arc::clone(writer), address, port));
        let lease = |host_name| Arc::new(IdentityLease::new(Arc::clone(writer), host_name));
        Presence { endpoints: address.map(endpoints), lease: host_name.map(lease), tasks: OnceLock::new() }
    }

    /// Whether the server has an identity Lease.
    pub fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Starts the tasks that publish the server: the Lease at once, the address when `ready` completes.
    pub fn start(&self, writer: &Arc<Writer>, ready: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = JoinSet::new();
        if let Some(endpoints) = self.endpoints.clone() {
            tasks.spawn(async move { endpoints.run(ready).await });
        }
        if let Some(lease) = self.lease.clone() {
            tasks.spawn(async move { lease.run().await });
            tasks.spawn(IdentityLease::run_collection(Arc::clone(writer)));
        }
        // A second start changes nothing.
        let _ = self.tasks.set(tasks);
    }

    /// Removes the address and the Lease. Clients then use other servers.
    pub async fn withdraw(&self) {
        let endpoints = async {
            if let Some(endpoints) = &self.endpoints {
                endpoints.stop().await;
            }
        };
        let lease = async {
            if let Some(lease) = &self.lease {
                lease.stop().await;
            }
        };
        tokio::join!(endpoints, lease);
    }
}
