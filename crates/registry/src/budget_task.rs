//! The task that keeps the memory of all watch caches of a server below their shared budget.

use std::sync::{Arc, Weak};
use std::time::Duration;

use listwatch_meta::KeyRange;
use listwatch_storage::ListQuery;
use tokio::time::Instant;

use crate::backend::Backend;
use crate::cache_budget::Change;

/// Interval between two measurements of the caches.
const WEIGH_INTERVAL: Duration = Duration::from_secs(1);

/// Measures the caches once per [`WEIGH_INTERVAL`] until the server is dropped.
async fn run(backend: Weak<Backend>) {
    let mut tick = tokio::time::interval(WEIGH_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(backend) = backend.upgrade() else { return };
        let now = Instant::now().into_std();
        for name in backend.caches_due(now) {
            // The versions of a kind with a conversion webhook have the same objects.
            let prefix = name.split('@').next().unwrap_or_default();
            let query = ListQuery { range: KeyRange::resource(prefix), at: None, limit: 1 };
            // If the store cannot count objects now, the last known count stays valid.
            if let Ok(page) = backend.storage().list(query).await
                && let Some(remaining) = page.remaining
            {
                backend.handle_count(&name, page.items.len() + remaining as usize);
            }
        }
        for change in backend.weigh_caches(now) {
            match change {
                Change::Drop(prefix) => tracing::warn!(
                    resource = prefix,
                    "the caches are above --cache-bytes: this resource is served from the store"
                ),
                Change::Restore(prefix) => tracing::info!(resource = prefix, "there is room for a cache again"),
            }
        }
    }
}

/// Starts the task that keeps the caches of a server below their budget. The task ends when the server is dropped.
pub fn spawn_cache_budget(backend: &Arc<Backend>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(run(Arc::downgrade(backend)))
}
