//! Repairs the allocated node ports from the stored services.
//!
//! Source: `pkg/registry/core/service/portallocator/controller/repair.go`, which kube-apiserver runs in the hook
//! `start-service-ip-repair-controllers`. Several servers on one store may all run this controller.

use std::sync::Arc;
use std::time::Duration;

use listwatch_write::{NodePortRepair, REPAIR_INTERVAL, Writer};

/// The health check of this controller, with the name from kube-apiserver.
pub const CHECK: &str = "poststarthook/start-service-ip-repair-controllers";

/// Delay before the next repair after a failed repair.
const RETRY: Duration = Duration::from_secs(10);

/// The controller on one server.
#[derive(Debug)]
pub struct NodePortController {
    writer: Arc<Writer>,
    repair: NodePortRepair,
}

impl NodePortController {
    /// Creates a controller that has not run yet.
    pub fn new(writer: Arc<Writer>) -> Self {
        NodePortController { writer, repair: NodePortRepair::default() }
    }

    /// Runs one repair and returns the delay before the next repair. A failed repair fails the health check [`CHECK`].
    pub async fn sync(&mut self) -> Duration {
        let done = self.writer.repair_node_ports(&mut self.repair).await;
        let pause = if done.is_ok() { REPAIR_INTERVAL } else { RETRY };
        self.writer.backend().bootstrap().set(CHECK, done.err().map(|status| status.message));
        pause
    }

    /// Waits for `pause`, then repairs periodically until the future is dropped.
    pub async fn run(mut self, mut pause: Duration) {
        loop {
            tokio::time::sleep(pause).await;
            pause = self.sync().await;
        }
    }
}
