//! Tasks that maintain the state of a server until it is dropped.

use std::sync::Arc;
use std::time::Duration;

use listwatch_write::Writer;

/// Drops the trees of objects that were not written for 30 s. Writes do this, too, but a server may have none.
pub(super) async fn drop_recent_objects(writer: Arc<Writer>) {
    const INTERVAL: Duration = Duration::from_secs(30);
    loop {
        tokio::time::sleep(INTERVAL).await;
        while writer.drop_recent_objects() {
            tokio::task::yield_now().await;
        }
    }
}

/// Completes the deletions of services whose requests were dropped.
pub(super) async fn run_cleanups(writer: Arc<Writer>) {
    match writer.run_cleanups().await {}
}
